//! What the volumes of a scene are made of.

use crate::srp::{DiskVolume, MemVolume};
use std::rc::Rc;
use weir_base::{Nanos, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_sim::{DiskConfig, Node, SimMedium};

/// Bytes of a volume.
pub(crate) const LEN: u64 = 64 << 10;
/// Bytes of a logical block.
pub(crate) const BLOCK: usize = 512;

/// What a volume is made of. It outlives the target.
#[derive(Clone)]
pub(crate) enum Store {
    Memory { memory: Slice, direct: bool, delay: Nanos },
    Disk(SimMedium),
}

impl Store {
    fn memory(direct: bool, delay: Nanos) -> Store {
        let memory = Slice::heap(LEN as usize);
        memory.fill(0);
        Store::Memory { memory, direct, delay }
    }

    /// Memory that takes up to `delay` for each request.
    pub(crate) fn slow(delay: Nanos) -> Store {
        Store::memory(false, delay)
    }

    /// Memory that lends itself, memory that takes up to `delay`, or a disk.
    pub(crate) fn draw(rng: &mut Prng, name: &str, delay: Nanos) -> Store {
        match rng.below(3) {
            0 => Store::memory(true, 0),
            1 => Store::slow(rng.below(delay)),
            _ => {
                let config = DiskConfig { volatile_cache: false, ..DiskConfig::default() };
                Store::Disk(SimMedium::new(name, LEN, config, rng.next_u64()))
            }
        }
    }

    /// Where a disk is, there it can be opened.
    pub(crate) fn attach(&self, node: &Node) {
        if let Store::Disk(m) = self {
            node.attach(m);
        }
    }

    /// It lends its memory.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, Store::Memory { direct: true, .. })
    }

    /// A handle for one core of the node that it is attached to.
    pub(super) fn volume(&self, node: &Node, core: usize, name: &str) -> Rc<dyn Volume> {
        match self {
            Store::Memory { memory, direct, delay } => {
                Rc::new(MemVolume { memory: memory.clone(), direct: *direct, delay: *delay })
            }
            Store::Disk(_) => Rc::new(DiskVolume(node.disk_on(core, name))),
        }
    }
}

/// What a volume is called, on its node and in the target.
pub(crate) fn unit_name(i: usize) -> String {
    format!("v{i}")
}
