//! A file system that runs full, or whose disk takes its time, for stores.

use crate::support::until;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Disk {
    bytes: Vec<u8>,
    /// Operations that still work; then there is no space.
    left: Option<u64>,
    /// An operation has not worked.
    refused: bool,
    /// Nothing becomes durable.
    held: bool,
    /// Somebody waits for that.
    awaited: bool,
}

/// A file on a file system that runs full.
#[derive(Debug, Clone, Default)]
pub(crate) struct Full(Arc<Mutex<Disk>>, Arc<Condvar>);

/// As long as it is there, nothing becomes durable on a disk.
#[derive(Debug)]
pub(crate) struct Held(Full);

impl Held {
    /// Whether somebody waits for something to become durable.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.disk().awaited
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Also after a failure of the test: the thread that waits keeps it from ending.
        let mut disk = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        (disk.held, disk.awaited) = (false, false);
        self.0.1.notify_all();
    }
}

impl Full {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("the disk")
    }

    /// Has nothing become durable for now.
    pub(crate) fn hold(&self) -> Held {
        self.disk().held = true;
        Held(self.clone())
    }

    /// Has room for so many operations from now on.
    pub(crate) fn after(&self, operations: u64) {
        self.disk().left = Some(operations);
    }

    /// Has room for all there is.
    pub(crate) fn has_room_again(&self) {
        self.disk().left = None;
    }

    /// No operation works any more.
    pub(crate) fn is_full(&self) -> bool {
        self.disk().left == Some(0)
    }

    /// Whether an operation has not worked.
    pub(crate) fn has_refused(&self) -> bool {
        self.disk().refused
    }

    /// Waits until no store has it any more, as a lock on a file is waited for. A controller is gone before its store is closed.
    pub(crate) async fn closed(&self) {
        until("nobody else has it", async || Arc::strong_count(&self.0) == 1).await;
    }

    /// Another file with the same bytes, and room.
    pub(crate) fn copy(&self) -> Full {
        let disk = Disk { bytes: self.disk().bytes.clone(), ..Disk::default() };
        Full(Arc::new(Mutex::new(disk)), Arc::default())
    }

    fn change(&self, f: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.disk();
        match &mut disk.left {
            Some(0) => {
                disk.refused = true;
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Some(n) => *n -= 1,
            None => {}
        }
        f(&mut disk.bytes);
        Ok(())
    }
}

impl redb::StorageBackend for Full {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        let from = disk.bytes.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(from.ok_or_else(|| io::Error::other("read beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|bytes| bytes.resize(len as usize, 0))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk();
        while disk.held {
            disk.awaited = true;
            disk = self.1.wait(disk).expect("the disk");
        }
        drop(disk);
        self.change(|_| {})
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|bytes| {
            let end = offset as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[offset as usize..end].copy_from_slice(data);
        })
    }
}
