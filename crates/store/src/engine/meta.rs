//! Metadata blocks: read with proof, cached, written to all copies.

use super::arrivals::{Arrival, Arrivals};
use super::copies::{LATER, Which, told};
use super::device::{self, Device, Pending};
use super::together::together;
use super::{Inner, block_of};
use crate::format::dataset::MapRoot;
use crate::format::dead;
use crate::format::page::{FANOUT, Header, NodePtr, PageKind};
use crate::format::tree::{self, LEAF, MapEntry, span};
use crate::format::{BLOCK, Block};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;

/// What a node of a map on this level is.
pub(crate) fn kind_of(level: u8) -> PageKind {
    if level == 0 { PageKind::Leaf } else { PageKind::Inner }
}

/// Writes under way of one batch at most, before it waits.
const BATCH: usize = 128;
/// Nodes read at a time.
const AHEAD: usize = 32;

/// How much is done for a page of which no copy is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// It is waited for.
    Waits,
    /// One look: for who holds a pin, and comes again.
    Once,
    /// The last one of these: what only a removed device may have is lost.
    Last,
}

/// Map nodes in memory.
pub(crate) struct Cache {
    pages: BTreeMap<u64, (NodePtr, Rc<Block>, bool)>,
    /// In the order of a clock's hand.
    order: VecDeque<u64>,
    /// Those stay.
    arrivals: Rc<Arrivals>,
    limit: usize,
}

/// Least number of nodes kept.
const LEAST: usize = 8;

impl Cache {
    /// A cache of at most this many bytes of nodes.
    pub(crate) fn new(bytes: usize, arrivals: Rc<Arrivals>) -> Cache {
        let limit = (bytes / BLOCK).max(LEAST);
        Cache { pages: BTreeMap::new(), order: VecDeque::new(), arrivals, limit }
    }

    /// From now on so many bytes at most.
    fn resize(&mut self, bytes: usize) {
        self.limit = (bytes / BLOCK).max(LEAST);
        self.shrink();
    }

    /// As large as another one.
    pub(super) fn like(&mut self, other: &Cache) {
        self.limit = other.limit;
    }

    /// Lets go of everything.
    pub(super) fn forget(&mut self) {
        self.pages.clear();
        self.order.clear();
    }

    fn get(&mut self, ptr: &NodePtr) -> Option<Rc<Block>> {
        let (have, page, used) = self.pages.get_mut(&ptr.vbn)?;
        if have != ptr {
            return None;
        }
        *used = true;
        Some(page.clone())
    }

    pub(crate) fn put(&mut self, ptr: NodePtr, page: Rc<Block>) {
        if self.pages.insert(ptr.vbn, (ptr, page, false)).is_none() {
            self.order.push_back(ptr.vbn);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.pages.len() > self.limit + self.arrivals.len() {
            let Some(v) = self.order.pop_front() else { return };
            if self.arrivals.is_expected(v) {
                self.order.push_back(v);
                continue;
            }
            match self.pages.get_mut(&v) {
                Some((.., used)) if *used => {
                    *used = false;
                    self.order.push_back(v);
                }
                _ => {
                    self.pages.remove(&v);
                }
            }
        }
    }
}

/// Metadata writes under way.
#[derive(Default)]
pub(crate) struct Batch {
    io: Vec<Pending>,
    blocks: Vec<Arrival>,
}

impl Batch {
    /// Starts a write to one device.
    pub(crate) fn push(&mut self, d: &Device, block: u64, buf: &Slice) {
        d.submit_write(block, buf, &mut self.io);
    }
}

impl Inner {
    /// A metadata block, if it is in memory.
    pub(crate) fn cached(&self, ptr: &NodePtr) -> Option<Rc<Block>> {
        self.cache.borrow_mut().get(ptr)
    }

    /// Reads a metadata block and proves it by the pointer to it. A damaged copy is mended.
    pub(crate) async fn meta(&self, ptr: &NodePtr, kind: PageKind) -> IoResult<Rc<Block>> {
        self.meta_by(ptr, kind, Effort::Waits).await
    }

    pub(crate) async fn meta_by(
        &self,
        ptr: &NodePtr,
        kind: PageKind,
        effort: Effort,
    ) -> IoResult<Rc<Block>> {
        if let Some(b) = self.cached(ptr) {
            return Ok(b);
        }
        let good = |b: &Block| ptr.verify(b, self.tag, kind).is_ok();
        // Seldom, and not to make every read's memory larger.
        let block: Rc<Block> = Rc::from(Box::pin(self.proved(ptr, good, effort)).await?);
        if !self.is_sane(&block, kind) {
            return Err(IoError::Medium);
        }
        self.cache.borrow_mut().put(*ptr, block.clone());
        Ok(block)
    }

    /// Has nodes in memory that are needed next, reading several at a time. What cannot be read is left to whoever
    /// needs it.
    pub(crate) async fn read_ahead(&self, nodes: &[NodePtr], kind: PageKind) {
        let missing: Vec<&NodePtr> = nodes.iter().filter(|p| self.cached(p).is_none()).collect();
        if missing.len() < 2 || self.cache.borrow().limit < 4 * missing.len() {
            return;
        }
        for some in missing.chunks(AHEAD) {
            together(some.iter().map(|p| self.meta(p, kind))).await;
        }
    }

    /// Whether a whole block says nothing impossible: what it refers to exists.
    fn is_sane(&self, b: &Block, kind: PageKind) -> bool {
        let space = self.space.borrow();
        let Ok(h) = Header::get(b) else { return false };
        let pointer = |p: NodePtr| p.is_none() || space.is_place(p.vbn);
        match kind {
            PageKind::Leaf => {
                let place = |e: MapEntry| !e.is_data() || space.is_place(e.vbn);
                tree::check_leaf(b, h.max_birth).is_ok()
                    && (0..LEAF).all(|i| place(tree::entry(b, i)))
            }
            PageKind::Inner | PageKind::BlobIndex => {
                tree::check_inner(b, h.max_birth).is_ok()
                    && (0..FANOUT).all(|i| tree::pointer(b, i).is_ok_and(pointer))
            }
            PageKind::Dead => dead::decode(b).is_ok_and(|(older, list)| {
                pointer(older) && list.iter().all(|(vbn, _)| space.is_place(*vbn))
            }),
            PageKind::Blob | PageKind::SlabMeta | PageKind::Bitmap => true,
        }
    }

    /// Reads a block from whatever copy satisfies `good`, and mends those that do not.
    pub(crate) async fn proved(
        &self,
        ptr: &NodePtr,
        good: impl Fn(&Block) -> bool,
        effort: Effort,
    ) -> IoResult<Box<Block>> {
        let pin = self.pins.pin();
        self.arrivals.wait(ptr.vbn).await;
        let is_good = |b: &Slice| good(&block_of(b));
        let pauses = if effort == Effort::Waits { LATER } else { &[] };
        let mut seen = self.look((ptr.vbn, ptr.crc), is_good, Which::First, pauses).await;
        if effort == Effort::Last {
            seen = seen.give_up();
        }
        let (buf, bad) = told(self.conclude(seen, None))?;
        self.mend_all(bad, &buf, &pin).await;
        Ok(block_of(&buf))
    }

    /// Starts writing a metadata block to its copies.
    pub(crate) async fn put_meta(
        &self,
        batch: &mut Batch,
        vbn: u64,
        block: Box<Block>,
        ptr: Option<NodePtr>,
    ) -> IoResult {
        let buf = match self.bufs.try_alloc(BLOCK) {
            Some(b) => b,
            None => Slice::heap(BLOCK),
        };
        buf.write_at(0, &block[..]);
        batch.blocks.push(self.arrivals.expect(vbn));
        if let Some(p) = ptr {
            self.cache.borrow_mut().put(p, Rc::from(block));
        }
        if !self.submit(vbn, &buf, &mut batch.io) {
            return Err(IoError::Offline);
        }
        if batch.io.len() >= BATCH {
            self.settle(batch).await?;
        }
        Ok(())
    }

    /// Waits for the writes of a batch.
    pub(crate) async fn settle(&self, batch: &mut Batch) -> IoResult {
        let failed = device::wait(&mut batch.io, self.options.deadline).await;
        self.note_failures(failed);
        batch.blocks.clear();
        self.cache.borrow_mut().shrink();
        match self.standing().0 {
            true => Ok(()),
            false => Err(self.suspended.get().unwrap_or(IoError::Offline)),
        }
    }

    /// The leaf that holds a logical block; `None`: there is none, all holes.
    pub(crate) async fn leaf(
        &self,
        root: MapRoot,
        family: u32,
        lba: u64,
    ) -> IoResult<Option<Rc<Block>>> {
        let (mut ptr, mut level) = (root.ptr, root.height);
        if lba >= span(root.height) {
            return Ok(None);
        }
        while !ptr.is_none() {
            let node = self.map_node(&ptr, family, level, lba / span(level)).await?;
            match below(&node, &mut level, lba)? {
                Some(next) => ptr = next,
                None => return Ok(Some(node)),
            }
        }
        Ok(None)
    }

    /// The same at one look, unless it is below pages that have `failed` before; one that does now is among these from then on.
    pub(super) async fn leaf_but(
        &self,
        root: MapRoot,
        family: u32,
        lba: u64,
        failed: &mut BTreeSet<u64>,
    ) -> IoResult<Option<Rc<Block>>> {
        let (mut ptr, mut level) = (root.ptr, root.height);
        if lba >= span(root.height) {
            return Ok(None);
        }
        while !ptr.is_none() {
            if failed.contains(&ptr.vbn) {
                return Err(IoError::Medium);
            }
            let at = (level, lba / span(level));
            let node = self.map_node_by(&ptr, family, at, Effort::Once).await;
            let Ok(node) = node else {
                failed.insert(ptr.vbn);
                return Err(IoError::Medium);
            };
            match below(&node, &mut level, lba)? {
                Some(next) => ptr = next,
                None => return Ok(Some(node)),
            }
        }
        Ok(None)
    }

    /// A node of a map, checked to be the one that is meant.
    pub(crate) async fn map_node(
        &self,
        ptr: &NodePtr,
        family: u32,
        level: u8,
        index: u64,
    ) -> IoResult<Rc<Block>> {
        self.map_node_by(ptr, family, (level, index), Effort::Waits).await
    }

    pub(crate) async fn map_node_by(
        &self,
        ptr: &NodePtr,
        family: u32,
        (level, index): (u8, u64),
        effort: Effort,
    ) -> IoResult<Rc<Block>> {
        let node = self.meta_by(ptr, kind_of(level), effort).await?;
        match self.is_node(&node, family, level, index) {
            true => Ok(node),
            false => Err(IoError::Medium),
        }
    }

    /// Whether a node of a map is the one that is meant.
    pub(crate) fn is_node(&self, node: &Block, family: u32, level: u8, index: u64) -> bool {
        let is = |h: Header| (h.owner, h.level, h.index) == (u64::from(family), level, index);
        Header::get(node).is_ok_and(is)
    }

    /// The entry of a logical block in a map.
    pub(crate) async fn entry_in(
        &self,
        root: MapRoot,
        family: u32,
        lba: u64,
    ) -> IoResult<MapEntry> {
        let leaf = self.leaf(root, family, lba).await?;
        Ok(leaf.map_or(MapEntry::HOLE, |l| tree::entry(&l, (lba % LEAF as u64) as usize)))
    }
}

/// The pointer to what is below a node on the way to a block; none: it is the leaf.
fn below(node: &Block, level: &mut u8, lba: u64) -> IoResult<Option<NodePtr>> {
    if *level == 0 {
        return Ok(None);
    }
    *level -= 1;
    let i = (lba / span(*level)) % FANOUT as u64;
    tree::pointer(node, i as usize).map(Some).map_err(|_| IoError::Medium)
}

impl super::Pool {
    /// Keeps so many bytes of maps in memory at most from now on ([`super::Options::cache`]).
    pub fn set_cache(&self, bytes: usize) {
        self.0.cache.borrow_mut().resize(bytes);
    }

    /// Bytes of maps that are in memory, and how many there may be.
    pub fn cached_maps(&self) -> (u64, u64) {
        let cache = self.0.cache.borrow();
        let bytes = |nodes: usize| nodes as u64 * BLOCK as u64;
        (bytes(cache.pages.len()), bytes(cache.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_stays_in_memory() {
        let arrivals = Rc::new(Arrivals::default());
        let mut c = Cache::new(0, arrivals.clone());
        let ptr = |vbn| NodePtr { vbn, ..NodePtr::NONE };
        let page = || Rc::new([0; BLOCK]);
        let on_their_way: Vec<Arrival> = (1..=20).map(|v| arrivals.expect(v)).collect();
        (1..=20).for_each(|v| c.put(ptr(v), page()));
        (100..200).for_each(|v| c.put(ptr(v), page()));
        assert!((1..=20).all(|v| c.get(&ptr(v)).is_some()));
        assert_eq!(c.pages.len(), LEAST + 20);
        drop(on_their_way);
        c.shrink();
        assert_eq!((c.pages.len(), c.order.len(), arrivals.len()), (LEAST, LEAST, 0));
    }
}
