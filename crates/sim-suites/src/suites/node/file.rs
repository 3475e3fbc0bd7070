//! The file of the configuration, through kills, power cuts and a full file system.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::Prng;

/// A write that is not durable yet.
#[derive(Debug, Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Default)]
struct Inner {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What a power cut leaves for sure.
    durable: Vec<u8>,
    pending: Vec<Pending>,
    /// The process that has it open; what others do has no effect.
    life: u64,
    /// Changes that still work; then there is no space.
    room: Option<u64>,
    /// Changes until the process is killed in the midst of one.
    fuse: Option<u64>,
    /// It is no more.
    dead: Arc<AtomicBool>,
    /// Changes that found no space.
    refused: u64,
}

impl Inner {
    fn change(&mut self, life: u64, f: impl FnOnce(&mut Inner)) -> io::Result<()> {
        if life == self.life && self.fuse == Some(0) {
            self.dead.store(true, Relaxed);
        }
        if life != self.life || self.dead.load(Relaxed) {
            return Err(io::Error::other("this process is no more"));
        }
        if self.room == Some(0) {
            self.refused += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        for left in [&mut self.fuse, &mut self.room] {
            *left = left.map(|n| n - 1);
        }
        f(self);
        Ok(())
    }
}

fn put(bytes: &mut Vec<u8>, at: u64, data: &[u8]) {
    let (from, end) = (at as usize, at as usize + data.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[from..end].copy_from_slice(data);
}

/// The file, as the process of one life has it open.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigFile(Arc<Mutex<Inner>>, u64);

impl ConfigFile {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the next process opens it, after the present one was killed or, with `power`, lost its power.
    pub(super) fn next_life(&self, power: Option<&mut Prng>) -> ConfigFile {
        let mut i = self.inner();
        if let Some(rng) = power {
            let mut left = std::mem::take(&mut i.durable);
            for p in std::mem::take(&mut i.pending) {
                match p {
                    _ if rng.chance(1, 2) => {}
                    Pending::Length(n) => left.resize(n as usize, 0),
                    Pending::Write(at, data) => {
                        // Sectors are written whole.
                        let sectors = rng.below(data.len() as u64 / 512 + 1) as usize * 512;
                        let torn = if rng.chance(1, 4) { sectors } else { data.len() };
                        put(&mut left, at, &data[..torn]);
                    }
                }
            }
            // File systems journal a length: shorter than was seen it is not.
            let len = i.seen.len().max(left.len());
            left.resize(len, 0);
            (i.seen, i.durable) = (left.clone(), left);
        }
        i.life += 1;
        i.fuse = None;
        i.dead.store(true, Relaxed);
        i.dead = Arc::default();
        ConfigFile(self.0.clone(), i.life)
    }

    /// The process is killed in the midst of a change: after so many writes to the file.
    pub(super) fn kill_after(&self, changes: u64) {
        self.inner().fuse = Some(changes);
    }

    /// Set when the process is no more.
    pub(super) fn dead(&self) -> Arc<AtomicBool> {
        self.inner().dead.clone()
    }

    /// There is room for so many changes; none: for all.
    pub(super) fn room(&self, changes: Option<u64>) {
        self.inner().room = changes;
    }

    /// Changes that found no room.
    pub(super) fn refused(&self) -> u64 {
        self.inner().refused
    }
}

impl redb::StorageBackend for ConfigFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let i = self.inner();
        let at = offset as usize;
        let from = i.seen.get(at..at + out.len());
        out.copy_from_slice(from.ok_or_else(|| io::Error::other("read beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner().change(self.1, |i| {
            i.seen.resize(len as usize, 0);
            i.pending.push(Pending::Length(len));
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner().change(self.1, |i| {
            i.durable.clone_from(&i.seen);
            i.pending.clear();
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner().change(self.1, |i| {
            put(&mut i.seen, offset, data);
            i.pending.push(Pending::Write(offset, data.to_vec()));
        })
    }
}
