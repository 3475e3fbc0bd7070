//! Which cores the two sides get.

/// Cores of target and load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) target: Vec<usize>,
    pub(super) load: Vec<usize>,
}

impl Cores {
    /// Half of `all` for each side; one that is shared when there is only one.
    pub(super) fn halves(all: &[usize]) -> Cores {
        match all {
            [] => Cores { target: vec![0], load: vec![0] },
            [one] => Cores { target: vec![*one], load: vec![*one] },
            _ => {
                let (target, load) = all.split_at(all.len() / 2);
                Cores { target: target.to_vec(), load: load.to_vec() }
            }
        }
    }

    /// The first `n` cores of each side.
    pub(super) fn first(&self, n: usize) -> Cores {
        let cut = |c: &[usize]| c[..n.min(c.len())].to_vec();
        Cores { target: cut(&self.target), load: cut(&self.load) }
    }

    /// True when both sides have to share a core.
    pub(super) fn shared(&self) -> bool {
        self.target.iter().any(|c| self.load.contains(c))
    }

    /// For a page.
    pub(super) fn text(&self) -> String {
        format!("target on {}, load on {}", list(&self.target), list(&self.load))
    }
}

fn list(cores: &[usize]) -> String {
    let all: Vec<String> = cores.iter().map(ToString::to_string).collect();
    format!("core{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}

/// The processors that this process may use, from a list as in `/proc/self/status`: `0-3,8`.
pub(super) fn parse_list(text: &str) -> Vec<usize> {
    let part = |p: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (a, b) = p.split_once('-').unwrap_or((p, p));
        Some(a.trim().parse().ok()?..=b.trim().parse().ok()?)
    };
    text.split(',').filter_map(part).flatten().collect()
}

/// The processors that this process may use.
pub(super) fn allowed() -> Vec<usize> {
    // What cannot be read is taken to be all there is.
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    let found = parse_list(line.unwrap_or(""));
    if found.is_empty() {
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_halved() {
        assert_eq!(parse_list("\t0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("x"), [0usize; 0]);
        let c = Cores::halves(&[0, 1, 2, 3, 8]);
        assert_eq!((c.target.as_slice(), c.load.as_slice()), (&[0, 1][..], &[2, 3, 8][..]));
        assert_eq!(c.first(1).text(), "target on core 0, load on core 2");
        assert!(!c.shared() && Cores::halves(&[5]).shared());
        assert!(!allowed().is_empty());
    }
}
