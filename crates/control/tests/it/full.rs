//! A file system that runs full, for stores.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
struct Disk {
    bytes: Vec<u8>,
    /// Operations that still work; then there is no space.
    left: Option<u64>,
}

/// A file on a file system that runs full.
#[derive(Debug, Clone, Default)]
pub(crate) struct Full(Arc<Mutex<Disk>>);

impl Full {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("the disk")
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

    /// Another file with the same bytes, and room.
    pub(crate) fn copy(&self) -> Full {
        Full(Arc::new(Mutex::new(Disk { bytes: self.disk().bytes.clone(), left: None })))
    }

    fn change(&self, f: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut disk = self.disk();
        match &mut disk.left {
            Some(0) => return Err(io::Error::from(io::ErrorKind::StorageFull)),
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
