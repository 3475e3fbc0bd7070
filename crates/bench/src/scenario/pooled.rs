//! What scenarios that measure pools in this process have in common.

use super::ScenarioError;
use super::runner::Runner;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use weir_disk::{Disk, DiskOp};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor};
use weir_store::StoreError;
use weir_uring::{FileDisk, OpenOptions, Ring, pin_to_core};

/// Bytes of the writes that fill devices.
const PIECE: usize = 4 << 20;

pub(super) fn store_failed(e: StoreError) -> ScenarioError {
    ScenarioError::Io(format!("the pool: {e}"))
}

/// Runs `work` on a reactor of its own, on the load's first core. What it leaves open ends as by a kill: nothing is
/// closed, no checkpoint made.
pub(super) fn alone<T, F>(
    r: &Runner<'_>,
    mode: PollMode,
    work: impl FnOnce(Ring) -> F + Send,
) -> Result<T, ScenarioError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ScenarioError>> + 'static,
{
    let core = r.cores.load.first().copied();
    let failed = |what: &str, e| ScenarioError::System(what.into(), e);
    std::thread::scope(|s| {
        let thread = move || {
            if let Some(c) = core {
                pin_to_core(c).map_err(|e| failed("a core", e))?;
            }
            let ring = Ring::new().map_err(|e| failed("io_uring", e))?;
            let reactor = Reactor::new(Rc::new(ring.clone()));
            let found = reactor.block_on(mode, work(ring));
            reactor.shutdown();
            found
        };
        let ended = s.spawn(thread).join();
        ended.unwrap_or_else(|_| Err(ScenarioError::Io("the measuring thread panicked".into())))
    })
}

/// A directory for the devices, removed in the end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(at: &Path, name: &str) -> Result<Folder, ScenarioError> {
        let dir = at.join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir)
            .map_err(|e| ScenarioError::System(dir.display().to_string(), e))?;
        Ok(Folder(dir))
    }

    /// Bytes that the files in it take on the disk.
    pub(super) fn taken(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|e| e.metadata().ok()).map(|m| m.blocks() * 512).sum()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the way of nobody but is told by its name.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens sparse files as devices, making those that are not there.
pub(super) fn files(
    ring: &Ring,
    dir: &Path,
    name: &str,
    n: usize,
    len: u64,
) -> Result<Vec<Rc<dyn Disk>>, ScenarioError> {
    let open = |i| {
        let path = dir.join(format!("{name}-{i}.img"));
        let o = OpenOptions { create: true, len: Some(len), direct: true, read_only: false };
        let disk = FileDisk::open(ring, &path, o);
        let failed = |e| ScenarioError::System(path.display().to_string(), e);
        Ok(Rc::new(disk.map_err(failed)?) as Rc<dyn Disk>)
    };
    (0..n).map(open).collect()
}

/// Writes zeros to all of a device: what a file system, and the host of a virtual machine, do when a place is written for the
/// first time takes many times as long as a write.
pub(super) async fn write_everywhere(disk: &dyn Disk) -> std::io::Result<()> {
    let piece = Slice::heap(PIECE);
    for offset in (0..disk.len()).step_by(PIECE) {
        let len = (disk.len() - offset).min(PIECE as u64) as usize;
        let op = DiskOp::Write { offset, buf: piece.sub(0, len), fua: false };
        weir_disk::run(disk, op).await.map_err(|e| std::io::Error::other(e.to_string()))?;
    }
    Ok(())
}

/// Memory of this process in bytes, now.
pub(super) fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
