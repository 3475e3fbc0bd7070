//! Pools whose devices come and go.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::borrow::Cow;
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_block::Volume;
use weir_disk::{Disk, DiskOp};
use weir_mem::Slice;
use weir_reactor::Token;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::format::label::{Label, SUPER_SLOTS};
use weir_store::format::superblock::Superblock;
use weir_store::{Options, Pool, PoolSpec, StoreError};

pub(crate) const LIMIT: u64 = 100_000 * SECONDS;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const B: u64 = 4096;

pub(crate) fn spec(copies: u8) -> PoolSpec {
    PoolSpec { slab_shift: 8, log_pages: 256, spares: 8, ..PoolSpec::fitting(77, copies, 0) }
}

pub(crate) struct Bench {
    pub(crate) w: World,
    pub(crate) n: Node,
    pub(crate) media: Vec<SimMedium>,
}

/// A disk by another name.
pub(crate) struct Named(pub(crate) &'static str, pub(crate) Rc<dyn Disk>);

impl Disk for Named {
    fn len(&self) -> u64 {
        self.1.len()
    }
    fn block_size(&self) -> u32 {
        self.1.block_size()
    }
    fn volatile_cache(&self) -> bool {
        self.1.volatile_cache()
    }
    fn name(&self) -> &str {
        self.0
    }
    fn identity(&self) -> Cow<'_, str> {
        self.1.identity()
    }
    fn submit(&self, op: DiskOp, token: Token) {
        self.1.submit(op, token);
    }
}

impl Bench {
    pub(crate) fn new(devices: usize, seed: u64) -> Bench {
        let w = World::new(5 + seed);
        let n = w.node("store");
        let medium = |i| {
            let config = DiskConfig::default();
            SimMedium::new(&format!("d{i}"), 8 * MIB, config, seed << 8 | i as u64)
        };
        let media: Vec<SimMedium> = (0..devices).map(medium).collect();
        media.iter().for_each(|m| n.attach(m));
        Bench { w, n, media }
    }

    pub(crate) fn disk(&self, i: usize) -> Rc<dyn Disk> {
        self.n.disk(&format!("d{i}"))
    }

    pub(crate) fn disks(&self, which: &[usize]) -> Vec<Rc<dyn Disk>> {
        which.iter().map(|i| self.disk(*i)).collect()
    }

    pub(crate) fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, LIMIT, f).expect("it ends")
    }

    pub(crate) fn set(&self, change: impl Fn(&mut DiskConfig)) {
        self.media.iter().for_each(|m| m.set_config(&change));
    }

    /// All devices.
    pub(crate) fn all(&self) -> Vec<Rc<dyn Disk>> {
        (0..self.media.len()).map(|i| self.disk(i)).collect()
    }

    pub(crate) fn restart(&self) {
        self.n.power_off();
        self.n.restart();
    }

    /// Opens the pool on all devices.
    pub(crate) fn open(&self) -> Result<Pool, StoreError> {
        let disks = self.all();
        self.run(Pool::open(disks, Options::default()))
    }

    /// An image of a device as it is now.
    pub(crate) fn image(&mut self, of: usize) -> usize {
        let i = self.media.len();
        let copy = self.media[of].copy(&format!("d{i}"), i as u64);
        self.n.attach(&copy);
        self.media.push(copy);
        i
    }
}

pub(crate) async fn write(p: &Pool, id: u32, at: u64, len: u64, value: u8) -> Result<(), IoError> {
    let buf = Slice::heap(len as usize);
    buf.fill(value);
    p.volume(id).unwrap().write(at, buf, false).await
}

pub(crate) async fn first(p: &Pool, id: u32, at: u64) -> Result<u8, IoError> {
    let buf = Slice::heap(4096);
    p.volume(id).unwrap().read(at, buf.clone()).await?;
    Ok(buf.to_vec()[0])
}

/// The newest superblock of a device.
pub(crate) fn newest(m: &SimMedium) -> Option<Superblock> {
    let mut b = [0; B as usize];
    m.peek(0, &mut b);
    let layout = Label::decode(&b).ok()?.layout;
    let slot = |n| {
        let mut b = [0; B as usize];
        m.peek(layout.superblock(0, n) * B, &mut b);
        Some(Superblock::decode_any(&b, 0, n).ok()?.1)
    };
    (0..SUPER_SLOTS).filter_map(slot).max_by_key(|s| s.seq)
}

/// What comes of a story with a bug in it.
#[cfg(feature = "planted")]
pub(crate) fn with<T>(bug: weir_store::planted::Bug, story: impl FnOnce() -> T) -> T {
    weir_store::planted::plant(Some(bug));
    let seen = story();
    weir_store::planted::plant(None);
    seen
}
