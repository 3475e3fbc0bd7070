//! What tests share: a logical unit that every host sees, and commands with data.

use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_block::{Geometry as VolumeGeometry, Volume};
use weir_mem::{BufPool, Lent, PoolConfig, Purse, Share, Slice};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::{LuState, Nexus};
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::sleep;
use weir_target_core::{
    Access, AccessMap, Attachment, HostRule, ReservationStore, Stop, Transfer, Unit, UnitShared,
    Units,
};

pub(crate) const BLOCK: usize = 512;

/// What a volume of so many blocks tells of itself.
pub(crate) fn volume_geometry(blocks: u64) -> VolumeGeometry {
    VolumeGeometry {
        len: blocks * BLOCK as u64,
        block_size: BLOCK as u32,
        granularity: 4096,
        thin: false,
        volatile_cache: false,
        read_only: false,
    }
}

/// Operations for which a volume does nothing.
macro_rules! does_nothing {
    (@ read) => { does_nothing!(@ fn read(_at: u64, _buf: ::weir_mem::Slice)); };
    (@ write) => { does_nothing!(@ fn write(_at: u64, _buf: ::weir_mem::Slice, _fua: bool)); };
    (@ flush) => { does_nothing!(@ fn flush()); };
    (@ discard) => { does_nothing!(@ fn discard(_at: u64, _len: u64)); };
    (@ write_zeroes) => { does_nothing!(@ fn write_zeroes(_at: u64, _len: u64, _unmap: bool)); };
    (@ fn $op:ident($($arg:ident: $t:ty),*)) => {
        fn $op(&self, $($arg: $t),*) -> ::weir_block::IoFuture<'_> {
            ::weir_block::IoFuture::ready(Ok(()))
        }
    };
    ($($op:ident),*) => { $(does_nothing!(@ $op);)* };
}
pub(crate) use does_nothing;

/// A command's data, which takes a while to come.
pub(crate) struct Data {
    pub(crate) bytes: Vec<u8>,
    pub(crate) time: Nanos,
    pub(crate) share: Share,
    /// What is answered, as far as there is room for it.
    pub(crate) answer: Vec<u8>,
}

impl Data {
    /// Data for a command, which come after `time` nanoseconds.
    pub(crate) fn given(bytes: Vec<u8>, time: Nanos) -> Data {
        Data { bytes, time, share: share(), answer: Vec::new() }
    }

    /// Room for so many bytes of an answer.
    pub(crate) fn answered(len: u32) -> Data {
        Data { answer: vec![0; len as usize], ..Data::given(Vec::new(), 0) }
    }
}

/// Buffers of a channel's own.
pub(crate) fn share() -> Share {
    BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).unwrap().share("h")
}

impl Transfer for Data {
    fn out_len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn in_len(&self) -> u64 {
        self.answer.len() as u64
    }
    fn immediate(&self) -> Option<Slice> {
        None
    }
    fn needs_stable_data(&self) -> bool {
        false
    }
    fn stopped(&self) -> bool {
        false
    }
    async fn halted(&self) {
        std::future::pending().await
    }
    async fn buffer(&mut self, len: usize) -> Result<Lent, Stop> {
        Ok(Purse::default().take(&self.share, len).await)
    }
    fn piece(&self, len: usize) -> usize {
        self.share.piece(len)
    }
    async fn fetch(&mut self, at: u64, into: Slice) -> Result<(), Stop> {
        if self.time > 0 {
            sleep(self.time).await;
        }
        into.write_at(0, &self.bytes[at as usize..at as usize + into.len()]);
        Ok(())
    }
    async fn deliver(&mut self, at: u64, from: Slice) -> Result<(), Stop> {
        from.read_at(0, &mut self.answer[at as usize..at as usize + from.len()]);
        Ok(())
    }
}

/// What all cores share of a unit of this many blocks, whose reservations are kept in `store`.
pub(crate) fn shared_unit(
    blocks: u64,
    store: Option<Arc<dyn ReservationStore>>,
) -> Arc<UnitShared> {
    let mut identity = Identity::new("WEIR", "TEST", "0001", "S1", [0x60; 16]);
    identity.ports = vec![TargetPort { relative_id: 1, group: 1, name: PortName::Srp([1; 16]) }];
    UnitShared::new("v", LuState::new(identity, Geometry::new(BLOCK as u32, blocks)), store)
}

/// A host on the present core, which has the unit with `volume`; its nexus and port have the core's number.
pub(crate) fn attach(core: usize, shared: &Arc<UnitShared>, volume: Rc<dyn Volume>) -> Attachment {
    attach_as(Nexus(1 + core as u64), core as u8, shared, volume)
}

/// A nexus of an initiator port of these bytes.
pub(crate) fn attach_as(
    nexus: Nexus,
    port: u8,
    shared: &Arc<UnitShared>,
    volume: Rc<dyn Volume>,
) -> Attachment {
    let luns = vec![(0, "v".into())];
    let rule = HostRule { host: "h".into(), any: true, luns, ..HostRule::default() };
    attach_by(nexus, port, shared, volume, AccessMap { hosts: vec![rule] })
}

/// The same by this map.
pub(crate) fn attach_by(
    nexus: Nexus,
    port: u8,
    shared: &Arc<UnitShared>,
    volume: Rc<dyn Volume>,
    map: AccessMap,
) -> Attachment {
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 64)] }).unwrap();
    let units = Units::default();
    units.insert(Unit::new(shared.clone(), volume, pool, 4096));
    let access = Access::new(map);
    let id = TransportId::srp([port; 16]);
    let view = Attachment::new(nexus, vec![port; 16], id, 1);
    view.refresh(&access, &units);
    view
}
