//! Reading what libFuzzer prints.

/// What one fuzzing process did, by its log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Counters that the program was compiled with; 0: it is not instrumented.
    pub(crate) counters: u64,
    /// Executions of the target.
    pub(crate) executions: u64,
    /// Edges reached.
    pub(crate) coverage: u64,
    /// Where the input that failed was written.
    pub(crate) artifact: Option<String>,
    /// What the target said when it failed.
    pub(crate) reason: Option<String>,
}

impl Report {
    pub(crate) fn parse(log: &str) -> Report {
        let mut report = Report::default();
        let mut lines = log.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("INFO: Loaded ") {
                // Another line beginning so speaks of tables.
                let number = rest.split_once('(').and_then(|(_, n)| n.split_once(" inline 8-bit"));
                let number = number.and_then(|(n, _)| n.trim().parse().ok());
                report.counters = number.unwrap_or(report.counters);
            } else if let Some((executions, coverage)) = pulse(line) {
                report.executions = report.executions.max(executions);
                report.coverage = coverage;
            } else if let Some(n) = line.strip_prefix("stat::number_of_executed_units:") {
                report.executions = n.trim().parse().unwrap_or(report.executions);
            } else if let Some((_, path)) = line.split_once("Test unit written to ") {
                report.artifact = Some(path.trim().to_string());
            } else if line.contains("panicked at ") {
                // The message is on the next line.
                let message = lines.next().unwrap_or_default().trim();
                report.reason = Some(format!("{} {message}", line.trim()));
            } else if line.contains("ERROR: libFuzzer:") && report.reason.is_none() {
                report.reason = Some(line.trim().to_string());
            }
        }
        report
    }
}

/// `#4194304 pulse  cov: 210 ft: 433 corp: 60/10Kb …`: executions and edges.
pub(crate) fn pulse(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix('#')?.split_whitespace();
    let executions = words.next()?.parse().ok()?;
    let coverage = words.skip_while(|word| *word != "cov:").nth(1)?.parse().ok()?;
    Some((executions, coverage))
}

#[cfg(test)]
mod tests {
    use super::{Report, pulse};

    #[test]
    fn reads_a_clean_run() {
        let log = "INFO: Seed: 1\n\
            INFO: Loaded 1 modules   (1324 inline 8-bit counters): 1324 [0x1, 0x2), \n\
            INFO: Loaded 1 PC tables (1324 PCs): 1324 [0x1,0x2), \n\
            #2\tINITED cov: 210 ft: 211 corp: 1/1b exec/s: 0 rss: 40Mb\n\
            #4096\tpulse  cov: 254 ft: 433 corp: 60/10Kb lim: 4 exec/s: 2048 rss: 44Mb\n\
            Done 5000 runs in 2 second(s)\n\
            stat::number_of_executed_units: 5000\n";
        let report = Report::parse(log);
        assert_eq!((report.counters, report.executions, report.coverage), (1324, 5000, 254));
        assert_eq!((report.artifact, report.reason), (None, None));
    }

    #[test]
    fn reads_a_failure() {
        let log = "INFO: Loaded 1 modules   (9 inline 8-bit counters): 9 [0x1, 0x2), \n\
            #77\tNEW    cov: 3 ft: 4 corp: 2/2b\n\
            thread '<unnamed>' (3) panicked at targets/x.rs:9:9:\n\
            index out of bounds\n\
            ==8569== ERROR: libFuzzer: deadly signal\n\
            artifact_prefix='a/'; Test unit written to a/crash-12\n";
        let report = Report::parse(log);
        assert_eq!(report.counters, 9);
        assert_eq!(report.executions, 77);
        assert_eq!(report.artifact.as_deref(), Some("a/crash-12"));
        let reason = report.reason.unwrap();
        assert!(reason.contains("x.rs:9:9: index out of bounds"), "{reason}");
        let log = "==1== ERROR: libFuzzer: timeout after 10 seconds\n";
        assert!(Report::parse(log).reason.unwrap().contains("timeout"));
    }

    #[test]
    fn other_lines_are_no_pulse() {
        assert_eq!(pulse("#8\tNEW    cov: 3 ft: 4"), Some((8, 3)));
        assert_eq!(pulse("INFO: cov: 3"), None);
        assert_eq!(pulse("#x cov: 3"), None);
        assert_eq!(Report::parse("").counters, 0);
    }
}
