//! The command line.

/// How it is used.
pub const USAGE: &str = "usage: weir-sim-suites SUITE [--seeds N] [--start S] [--jobs J] [--words]
       weir-sim-suites SUITE --planted BUG|all [--seeds N]   (built with the feature `planted`)
       weir-sim-suites --list
       weir-sim-suites --list-tests                          (built with the feature `planted`)";

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// Name of the suite.
    pub suite: String,
    /// How many seeds.
    pub seeds: u64,
    /// The first seed.
    pub start: u64,
    /// Threads.
    pub jobs: usize,
    /// Trace in words to standard error (for one seed).
    pub words: bool,
    /// A planted bug, or `all`, that the suite is to catch.
    pub planted: Option<String>,
    /// Print the suites and end.
    pub list: bool,
    /// Print the planted bugs that tests of their crates are to catch, and end.
    pub list_tests: bool,
}

impl Args {
    /// Reads arguments, without the program's name.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Args, String> {
        let mut out = Args {
            suite: String::new(),
            seeds: 0,
            start: 0,
            jobs: 2,
            words: false,
            planted: None,
            list: false,
            list_tests: false,
        };
        let mut args = args.into_iter();
        while let Some(a) = args.next() {
            let (name, inline) = match a.split_once('=') {
                Some((n, v)) if n.starts_with("--") => (n.to_string(), Some(v.to_string())),
                _ => (a, None),
            };
            if name == "--planted" {
                let bug = inline.or_else(|| args.next());
                out.planted = Some(bug.ok_or("--planted needs the name of a bug, or `all`")?);
                continue;
            }
            let mut number = || {
                let v = inline.clone().or_else(|| args.next());
                let v = v.ok_or_else(|| format!("{name} needs a number"))?;
                v.parse::<u64>().map_err(|_| format!("{name}: {v} is not a number"))
            };
            match name.as_str() {
                "--seeds" => out.seeds = number()?,
                "--start" => out.start = number()?,
                "--jobs" => out.jobs = number()?.clamp(1, 256) as usize,
                "--words" => out.words = true,
                "--list" => out.list = true,
                "--list-tests" => out.list_tests = true,
                n if n.starts_with('-') => return Err(format!("unknown option {n}")),
                _ if out.suite.is_empty() => out.suite = name,
                _ => return Err(format!("one suite at a time, not {} and {name}", out.suite)),
            }
        }
        if out.seeds == 0 {
            // A planted bug may need a rare order of events.
            out.seeds = if out.planted.is_some() { 3000 } else { 100 };
        }
        if out.suite.is_empty() && !out.list && !out.list_tests {
            return Err("which suite?".to_string());
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn arguments() {
        let a = parse("fabric --seeds 7 --start=5 --jobs 1 --words").expect("right");
        assert_eq!(
            (a.suite.as_str(), a.seeds, a.start, a.jobs, a.words),
            ("fabric", 7, 5, 1, true)
        );
        assert!(parse("--list").expect("right").list);
        assert!(parse("--list-tests").expect("right").list_tests);
        assert_eq!(parse("a --planted all").expect("right").planted.as_deref(), Some("all"));
        assert_eq!(parse("a").expect("right").seeds, 100);
        for bad in ["", "a b", "a --seeds", "a --seeds x", "a --what", "a --planted"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
