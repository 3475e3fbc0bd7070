//! A logical unit behind an SRP session.

use crate::client::{BlockClient, ClientError, Geometry};
use std::rc::Rc;
use std::slice::from_ref;
use weir_initiator_srp::{
    Error, LogicalUnit, Multipath, MultipathConfig, PathPolicy, PathState, Queue,
};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::{self as scsi, Cdb};

enum Way {
    One(Queue, Lun),
    Many(Rc<Multipath>),
}

/// A logical unit, as one reactor reaches it.
pub struct SrpDisk {
    way: Way,
    geometry: Geometry,
    shift: u32,
}

impl SrpDisk {
    /// The unit with this number; asks for its size.
    ///
    /// # Errors
    /// It is no disk, or cannot be read.
    pub async fn open(queue: Queue, lun: Lun) -> Result<SrpDisk, Error> {
        let unit = queue.identify(lun).await?;
        SrpDisk::check(&queue, &unit).await?;
        Ok(SrpDisk::of(Way::One(queue.bind(&unit), lun), &unit))
    }

    /// The unit that has this number on the first path that is there, over all paths.
    ///
    /// # Errors
    /// As [`open`](SrpDisk::open), or the unit has no designator by which to know it on the other paths.
    pub async fn open_paths(
        queues: Vec<Queue>,
        lun: Lun,
        policy: PathPolicy,
    ) -> Result<SrpDisk, Error> {
        let first = queues.iter().find(|q| q.state() == PathState::Running);
        let queue = first.ok_or(Error::PathDown)?.clone();
        let unit = queue.identify(lun).await?;
        SrpDisk::check(&queue, &unit).await?;
        let naa = unit.naa.clone().ok_or_else(|| {
            Error::Invalid("it has no NAA designator to know it by on other paths".into())
        })?;
        let config = MultipathConfig { policy, ..MultipathConfig::default() };
        let paths = Multipath::open(queues, &naa, config).await?;
        Ok(SrpDisk::of(Way::Many(Rc::new(paths)), &unit))
    }

    /// The paths, if there are several.
    pub fn paths(&self) -> Option<&Rc<Multipath>> {
        match &self.way {
            Way::One(..) => None,
            Way::Many(m) => Some(m),
        }
    }

    async fn check(queue: &Queue, unit: &LogicalUnit) -> Result<(), Error> {
        // Whatever was wrong with the capacity is told by asking once more.
        queue.test_unit_ready(unit.lun).await?;
        if unit.device_type != 0 || unit.block_size < 512 {
            let what = format!(
                "{} {} (device type {}) is not a disk with blocks of 512 bytes or more",
                unit.vendor, unit.product, unit.device_type
            );
            return Err(Error::Invalid(what));
        }
        Ok(())
    }

    fn of(way: Way, unit: &LogicalUnit) -> SrpDisk {
        let geometry = Geometry { len: unit.len, block_size: unit.block_size };
        SrpDisk { way, geometry, shift: unit.block_size.trailing_zeros() }
    }

    #[inline]
    fn extent(&self, at: u64, len: usize) -> (u64, u32) {
        (at >> self.shift, (len >> self.shift) as u32)
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "the arguments of an `async fn` are moved once more"
    )]
    #[inline]
    fn run<'a>(
        &'a self,
        cdb: &'a Cdb,
        out: &'a [Slice],
        into: &'a [Slice],
    ) -> impl Future<Output = Result<(), ClientError>> + use<'a> {
        async move {
            let ended = match &self.way {
                Way::One(queue, lun) => queue.transfer(*lun, cdb, out, into).await,
                Way::Many(paths) => paths.transfer(cdb, out, into).await,
            };
            ended.map_err(|e| failure(&e))
        }
    }
}

/// An initiator's error as a client's.
#[cold]
fn failure(e: &Error) -> ClientError {
    match e {
        Error::Scsi { status, sense } => ClientError::Scsi { status: *status, sense: *sense },
        Error::Short { wanted, moved } => ClientError::Short(wanted.saturating_sub(*moved)),
        Error::TimedOut => ClientError::Other("the command took too long and was aborted"),
        Error::InDoubt => {
            ClientError::Other("the path was lost; whether the command was done is not known")
        }
        Error::OtherUnit => ClientError::Other("another unit has its number now"),
        Error::LostCache => ClientError::Other("the target lost power before a flush"),
        Error::PathDown | Error::LostUnderWay { .. } | Error::Closed | Error::Login(_) => {
            ClientError::Lost
        }
        Error::Fabric(_) => ClientError::Other("the fabric has no room for the command"),
        _ => ClientError::Other("the target refused the request"),
    }
}

impl BlockClient for SrpDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let (lba, blocks) = self.extent(at, buf.len());
        self.run(&scsi::read(lba, blocks, false), &[], from_ref(&buf)).await
    }

    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let (lba, blocks) = self.extent(at, buf.len());
        self.run(&scsi::write(lba, blocks, false), from_ref(&buf), &[]).await
    }

    async fn flush(&self) -> Result<(), ClientError> {
        self.run(&scsi::sync_cache(0, 0), &[], &[]).await
    }

    async fn trim(&self, at: u64, len: u64, scratch: Slice) -> Result<(), ClientError> {
        // One descriptor, as weir_proto_scsi::initiator::unmap_list makes it, without its allocation.
        let mut list = [0u8; 24];
        list[..2].copy_from_slice(&22u16.to_be_bytes());
        list[2..4].copy_from_slice(&16u16.to_be_bytes());
        list[8..16].copy_from_slice(&(at >> self.shift).to_be_bytes());
        list[16..20].copy_from_slice(&((len >> self.shift) as u32).to_be_bytes());
        scratch.write_at(0, &list);
        let list = scratch.sub(0, list.len());
        self.run(&scsi::unmap(24), from_ref(&list), &[]).await
    }

    async fn nop(&self) -> Result<(), ClientError> {
        self.run(&scsi::test_unit_ready(), &[], &[]).await
    }
}
