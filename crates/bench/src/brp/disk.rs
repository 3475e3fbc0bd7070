//! A volume behind a BRP session.

use crate::client::{BlockClient, ClientError, Geometry};
use weir_initiator_brp::{Disk, Error};
use weir_mem::Slice;

/// A volume, as one reactor reaches it.
pub struct BrpDisk {
    disk: Disk,
    geometry: Geometry,
}

impl BrpDisk {
    /// An open volume.
    pub fn new(disk: Disk) -> BrpDisk {
        let info = disk.info();
        let geometry = Geometry { len: info.len, block_size: info.block_size };
        BrpDisk { disk, geometry }
    }
}

/// An initiator's error as a client's.
#[cold]
fn failure(e: &Error) -> ClientError {
    match e {
        Error::PathDown | Error::Closed | Error::Replaced | Error::Fabric(_) => ClientError::Lost,
        Error::TimedOut => ClientError::Other("the command took too long and was aborted"),
        Error::Damaged { .. } => ClientError::Other("data was changed on its way"),
        Error::Status(s) => ClientError::Brp(*s),
        _ => ClientError::Other("the target refused the request"),
    }
}

impl BlockClient for BrpDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        self.disk.read(at, buf).await.map_err(|e| failure(&e))
    }

    #[inline]
    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        self.disk.write(at, buf, false).await.map_err(|e| failure(&e))
    }

    async fn flush(&self) -> Result<(), ClientError> {
        self.disk.flush().await.map_err(|e| failure(&e))
    }

    async fn trim(&self, at: u64, len: u64, _scratch: Slice) -> Result<(), ClientError> {
        self.disk.discard(at, len).await.map_err(|e| failure(&e))
    }

    async fn nop(&self) -> Result<(), ClientError> {
        self.disk.queue().nop().await.map_err(|e| failure(&e))
    }
}
