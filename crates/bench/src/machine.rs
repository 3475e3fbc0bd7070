//! The machine that a figure was measured on.

use serde_json::{Value, json};

/// What decides about speed, as far as it can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average of the last minute when it was asked for: other work disturbs measurements.
    pub load: String,
}

fn read(path: &str) -> String {
    // What cannot be read is shown as unknown.
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

impl Machine {
    /// This machine, now.
    pub fn this() -> Machine {
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kib = memory.and_then(|m| m.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
        let unknown = || "unknown".to_owned();
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kib << 10,
            kernel: if kernel.is_empty() { unknown() } else { kernel },
            load: read("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned(),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{} with {} usable cores, {:.0} GiB of memory, Linux {}, load average {} at the start",
            self.processor,
            self.cores,
            self.memory as f64 / f64::from(1 << 30),
            self.kernel,
            self.load
        )
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        json!({
            "processor": self.processor,
            "cores": self.cores,
            "memory_bytes": self.memory,
            "kernel": self.kernel,
            "load_average_at_start": self.load,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let text = "processor\t: 0\nmodel name\t: A: B\nMemTotal:       100 kB\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(text, "MemTotal").as_deref(), Some("100 kB"));
        assert_eq!(field(text, "x"), None);
        let m = Machine::this();
        assert!(m.cores > 0 && m.memory > 0 && !m.kernel.is_empty());
    }
}
