//! I/O on a disk of this host through the kernel: by its page cache or past it.

use super::run;
use crate::job::Rw;
use crate::scenario::ScenarioError;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use weir_base::Nanos;
use weir_reactor::Driver;
use weir_uring::Ring;

/// `O_DIRECT` of Linux on all machines that Weir runs on but ARM, where another bit has that meaning.
const DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
/// Memory for direct I/O begins at a multiple of this.
const ALIGN: usize = 4096;

/// What threads do to a disk, each with a part of its own, once all over or until time is up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::scenario) struct Load {
    pub(in crate::scenario) rw: Rw,
    pub(in crate::scenario) bs: u32,
    pub(in crate::scenario) threads: u32,
    /// Past the page cache.
    pub(in crate::scenario) direct: bool,
    /// Bytes of the disk that are used.
    pub(in crate::scenario) size: u64,
    /// Nanoseconds.
    pub(in crate::scenario) most: Nanos,
}

/// Bytes, and how long they took; writes with the flush behind them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::scenario) struct Moved {
    pub(in crate::scenario) bytes: u64,
    pub(in crate::scenario) time: Nanos,
}

impl Moved {
    pub(in crate::scenario) fn rate(&self) -> f64 {
        crate::engine::per_second(self.bytes, self.time)
    }
}

/// Number `i` of `n` blocks, in order or by chance: each comes once either way.
fn block(random: bool, i: u64, n: u64) -> u64 {
    if !random || n < 2 {
        return i;
    }
    // Steps of a length that has no divisor in common with the number of blocks meet each once.
    let mut step = (n as f64 * 0.618_033_988) as u64 | 1;
    while gcd(step, n) != 1 {
        step += 2;
    }
    // Neighbours among the steps are far from each other, but at equal distances; a turn within halves breaks those.
    let j = (u128::from(i) * u128::from(step) % u128::from(n)) as u64;
    if n.is_multiple_of(2) && j.is_multiple_of(2) { (j + n / 2 + (n / 2) % 2) % n } else { j }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn one_thread(file: &File, load: &Load, index: u32) -> std::io::Result<u64> {
    // For its clock.
    let clock = Ring::new()?;
    let until = clock.now().saturating_add(load.most);
    let bs = u64::from(load.bs);
    let n = load.size / bs / u64::from(load.threads.max(1));
    let first = u64::from(index) * n;
    let mut memory = vec![0x5au8; load.bs as usize + ALIGN];
    let skip = memory.as_ptr().align_offset(ALIGN);
    let buf = &mut memory[skip..skip + load.bs as usize];
    let mut bytes = 0;
    for i in 0..n {
        let at = (first + block(load.rw.is_random(), i, n)) * bs;
        if load.rw.only_writes() {
            file.write_all_at(buf, at)?;
        } else {
            file.read_exact_at(buf, at)?;
        }
        bytes += bs;
        if i % 16 == 0 && clock.now() >= until {
            break;
        }
    }
    Ok(bytes)
}

impl Load {
    /// Does it, with nothing of the disk in the page cache at first.
    pub(in crate::scenario) fn run(&self, disk: &Path) -> Result<Moved, ScenarioError> {
        run(Command::new("blockdev").arg("--flushbufs").arg(disk))?;
        let failed = |e| ScenarioError::System(disk.display().to_string(), e);
        let mut options = OpenOptions::new();
        options.read(true).write(self.rw.writes());
        if self.direct {
            options.custom_flags(DIRECT);
        }
        let file = options.open(disk).map_err(failed)?;
        let clock = Ring::new().map_err(failed)?;
        let begun = clock.now();
        let moved = std::thread::scope(|s| {
            let threads: Vec<_> = (0..self.threads)
                .map(|i| {
                    let file = &file;
                    s.spawn(move || one_thread(file, self, i))
                })
                .collect();
            let panicked = |_| std::io::Error::other("a thread panicked");
            let ends: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            ends.into_iter().map(|e| e.map_err(panicked)?).sum::<std::io::Result<u64>>()
        });
        let bytes = moved.map_err(failed)?;
        if self.rw.writes() {
            file.sync_all().map_err(failed)?;
        }
        Ok(Moved { bytes, time: clock.now() - begun })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_once_and_neighbours_are_far_apart() {
        for n in [1, 2, 3, 16, 100, 4096, 4095] {
            for random in [false, true] {
                let mut all: Vec<u64> = (0..n).map(|i| block(random, i, n)).collect();
                if random && n > 90 {
                    let near = all.windows(2).filter(|w| w[0].abs_diff(w[1]) < 4).count();
                    assert!(near < 4, "{near} of {n}");
                }
                all.sort_unstable();
                assert!(all.iter().copied().eq(0..n), "{n} {random}");
            }
        }
    }

    #[test]
    fn rates_are_of_the_whole_time() {
        let m = Moved { bytes: 3_000_000, time: 1_500_000_000 };
        assert!((m.rate() - 2e6).abs() < 1.0);
    }
}
