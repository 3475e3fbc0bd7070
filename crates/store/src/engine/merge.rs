//! Merging: layers become part of the map on disk, always in new places.

use super::Inner;
use super::dataset::Dataset;
use super::meta::{Batch, kind_of};
use super::ranges::Ranges;
use super::stage::{Below, Stage};
use crate::format::dataset::{Kind, MapRoot};
use crate::format::page::{FANOUT, Header, NodePtr, seal};
use crate::format::tree::{self, LEAF, MAX_HEIGHT, MapEntry, span};
use crate::format::{Block, zeroed};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_reactor::LocalFuture;

/// A checkpoint's merging.
#[derive(Default)]
pub(crate) struct Merge {
    pub(crate) batch: Batch,
    /// Blocks that are free once the checkpoint is durable.
    pub(crate) frees: Vec<u64>,
}

/// The line in which something is merged: what it may free, and when its nodes are born.
struct Line {
    owner: Rc<Dataset>,
    family: u32,
    /// What was born in or before this epoch is a snapshot's too.
    shared: u32,
    epoch: u32,
    mapped: u64,
}

/// Children of a node that entries go into; the node covers blocks from `first` on, each child so many.
fn touched_children(b: &Block, first: u64, each: u64, entries: &[(u64, MapEntry)]) -> Vec<NodePtr> {
    let mut rest = entries;
    let mut found = Vec::new();
    while let Some((lba, _)) = rest.first() {
        let i = (lba - first) / each;
        let n = rest.partition_point(|(l, _)| (l - first) / each <= i);
        rest = &rest[n..];
        // A pointer that makes no sense is met again, and told, on the way down.
        found.extend(tree::pointer(b, i as usize).ok().filter(|p| !p.is_none()));
    }
    found
}

impl Inner {
    /// The epoch of the newest snapshot of this dataset's line that is older than `epoch`, or of its origin.
    pub(crate) fn shared_epoch(&self, ds: &Dataset, epoch: u32) -> u32 {
        let volume = if ds.kind == Kind::Snapshot { ds.parent.get() } else { ds.id };
        let before = |s: &Dataset| s.epoch < epoch;
        let datasets = self.datasets.borrow();
        let floor = datasets.get(&volume).map_or(ds.floor.get(), |v| v.floor.get());
        let newest = datasets
            .values()
            .filter(|s| s.kind == Kind::Snapshot && s.parent.get() == volume && !s.deleting.get())
            .filter(|s| before(s))
            .map(|s| s.epoch)
            .max();
        newest.unwrap_or(0).max(floor).max(ds.floor.get())
    }

    /// Of what a dataset's map leads to, only what was born after that is its own. What is left of a deleted one must not be
    /// followed any further, whoever looks at it; `None`: everything that it leads to is in use.
    pub(super) fn own_after(&self, ds: &Dataset) -> Option<u32> {
        (ds.kind == Kind::Garbage).then(|| self.shared_epoch(ds, u32::MAX))
    }

    /// The map with everything below a dataset's active layer, merged as far as that was not done.
    pub(crate) fn resolve<'a>(
        &'a self,
        cx: &'a mut Merge,
        below: Below,
    ) -> LocalFuture<'a, IoResult<(MapRoot, u64)>> {
        Box::pin(async move {
            let stage = match below {
                Below::Root(root, mapped) => return Ok((root, mapped)),
                Below::Stage(s) => s,
            };
            if let Some(done) = stage.merged.get() {
                return Ok(done);
            }
            let lower = stage.below.borrow().clone();
            let (root, mapped) = self.resolve(cx, lower).await?;
            let done = self.merge_stage(cx, &stage, root, mapped).await?;
            stage.merged.set(Some(done));
            Ok(done)
        })
    }

    async fn merge_stage(
        &self,
        cx: &mut Merge,
        stage: &Stage,
        root: MapRoot,
        mapped: u64,
    ) -> IoResult<(MapRoot, u64)> {
        let owner = self.datasets.borrow().get(&stage.owner).cloned();
        let Some(owner) = owner else { return Err(IoError::Internal) };
        let shared = self.shared_epoch(&owner, stage.epoch);
        let entries: Vec<(u64, MapEntry)> = stage
            .layer
            .map
            .iter()
            .filter(|(_, e)| !(e.is_poison() && has(Bug::PoisonForgotten)))
            .map(|(l, e)| (*l, *e))
            .collect();
        let line = Line { family: owner.family, owner, shared, epoch: stage.epoch, mapped };
        self.merge_into(cx, line, root, &entries, &stage.layer.wiped).await
    }

    /// Takes a range out of a dataset's map, for good.
    pub(crate) async fn take_out(
        &self,
        cx: &mut Merge,
        ds: &Rc<Dataset>,
        epoch: u32,
        root: MapRoot,
        mapped: u64,
        range: (u64, u64),
    ) -> IoResult<(MapRoot, u64)> {
        let shared = self.shared_epoch(ds, epoch);
        let line = Line { owner: ds.clone(), family: ds.family, shared, epoch, mapped };
        let mut wiped = Ranges::default();
        wiped.add(range.0, range.1);
        self.merge_into(cx, line, root, &[], &wiped).await
    }

    async fn merge_into(
        &self,
        cx: &mut Merge,
        mut line: Line,
        mut root: MapRoot,
        entries: &[(u64, MapEntry)],
        wiped: &Ranges,
    ) -> IoResult<(MapRoot, u64)> {
        // What was written before may be read here, and need not be in memory any more.
        self.settle(&mut cx.batch).await?;
        let last = entries.last().map_or(0, |(l, _)| *l);
        while span(root.height) <= last && root.height < MAX_HEIGHT {
            // The tree grows at the top: what was all of it is the first child.
            if !root.ptr.is_none() {
                let mut b = zeroed();
                tree::set_pointer(&mut b, 0, root.ptr);
                root.ptr = self.new_node(cx, &line, root.height + 1, 0, b).await?;
            }
            root.height += 1;
        }
        let ptr = self.merge_node(cx, &mut line, root.ptr, root.height, 0, entries, wiped).await?;
        Ok((MapRoot { ptr, height: root.height }, line.mapped))
    }

    /// Places and writes a node.
    async fn new_node(
        &self,
        cx: &mut Merge,
        line: &Line,
        level: u8,
        index: u64,
        mut b: Box<Block>,
    ) -> IoResult<NodePtr> {
        let vbn = self.place_meta(line.epoch)?;
        let header = Header {
            kind: kind_of(level),
            level,
            entry_format: 0,
            pool: self.tag,
            owner: u64::from(line.family),
            index,
            birth: line.epoch,
            max_birth: line.epoch,
            vbn,
            count: 0,
        };
        let crc = seal(&mut b, &header);
        let ptr = NodePtr { vbn, birth: line.epoch, max_birth: line.epoch, crc };
        self.count(|c| c.nodes_written += 1);
        self.put_meta(&mut cx.batch, vbn, b, Some(ptr)).await?;
        Ok(ptr)
    }

    /// Takes a block for metadata of the checkpoint being made.
    pub(crate) fn place_meta(&self, epoch: u32) -> IoResult<u64> {
        let mut space = self.space.borrow_mut();
        let Some((vbn, _)) = space.alloc(1) else { return Err(IoError::NoSpace) };
        space.disk_set(vbn, epoch);
        Ok(vbn)
    }

    /// The map of a line does not use a block any more.
    fn kill(&self, cx: &mut Merge, line: &Line, vbn: u64, birth: u32) {
        if birth > line.shared || (has(Bug::DeadEntryLost) && birth > line.owner.floor.get()) {
            self.space.borrow_mut().disk_clear(vbn);
            cx.frees.push(vbn);
        } else if line.owner.kind != Kind::Garbage && birth > line.owner.floor.get() {
            line.owner.newly_dead.borrow_mut().push((vbn, birth));
        }
    }

    fn kill_entry(&self, cx: &mut Merge, line: &mut Line, e: MapEntry) {
        if e.is_data() {
            line.mapped -= 1;
            self.kill(cx, line, e.vbn, e.birth);
        }
    }

    /// A subtree goes.
    fn drop_tree<'a>(
        &'a self,
        cx: &'a mut Merge,
        line: &'a mut Line,
        ptr: NodePtr,
        level: u8,
        index: u64,
    ) -> LocalFuture<'a, IoResult> {
        Box::pin(async move {
            if ptr.is_none() || (line.owner.kind == Kind::Garbage && ptr.birth <= line.shared) {
                return Ok(());
            }
            let node = self.map_node(&ptr, line.family, level, index).await?;
            if level == 0 {
                for i in 0..LEAF {
                    self.kill_entry(cx, line, tree::entry(&node, i));
                }
            } else {
                for i in 0..FANOUT {
                    let child = tree::pointer(&node, i).map_err(|_| IoError::Medium)?;
                    let at = index * FANOUT as u64 + i as u64;
                    self.drop_tree(cx, line, child, level - 1, at).await?;
                }
            }
            self.kill(cx, line, ptr.vbn, ptr.birth);
            Ok(())
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn merge_node<'a>(
        &'a self,
        cx: &'a mut Merge,
        line: &'a mut Line,
        mut ptr: NodePtr,
        level: u8,
        index: u64,
        entries: &'a [(u64, MapEntry)],
        wiped: &'a Ranges,
    ) -> LocalFuture<'a, IoResult<NodePtr>> {
        Box::pin(async move {
            let (first, end) = (index * span(level), (index + 1).saturating_mul(span(level)));
            if line.owner.kind == Kind::Garbage && ptr.birth <= line.shared {
                // All of it is somebody else's.
                ptr = NodePtr::NONE;
            }
            if !ptr.is_none() && wiped.covers(first, end) {
                self.drop_tree(cx, line, ptr, level, index).await?;
                ptr = NodePtr::NONE;
            }
            let touched = !ptr.is_none() && wiped.touches(first, end);
            if entries.is_empty() && !touched {
                return Ok(ptr);
            }
            let mut b = match ptr.is_none() {
                true => zeroed(),
                false => {
                    let old = self.map_node(&ptr, line.family, level, index).await?;
                    Box::new(*old)
                }
            };
            let mut empty = true;
            if level == 0 {
                for (from, to) in wiped.within(first, end) {
                    for l in from..to {
                        let i = (l - first) as usize;
                        self.kill_entry(cx, line, tree::entry(&b, i));
                        tree::set_entry(&mut b, i, MapEntry::HOLE);
                    }
                }
                for (l, e) in entries {
                    let i = (l - first) as usize;
                    self.kill_entry(cx, line, tree::entry(&b, i));
                    if e.is_data() {
                        line.mapped += 1;
                        self.space.borrow_mut().disk_set(e.vbn, e.birth);
                    }
                    tree::set_entry(&mut b, i, *e);
                }
                empty = (0..LEAF).all(|i| tree::entry(&b, i) == MapEntry::HOLE);
            } else {
                let below = span(level - 1);
                self.read_ahead(&touched_children(&b, first, below, entries), kind_of(level - 1))
                    .await;
                let mut rest = entries;
                for i in 0..FANOUT as u64 {
                    let (from, to) = (first + i * below, first + (i + 1) * below);
                    let n = rest.partition_point(|(l, _)| *l < to);
                    let (mine, others) = rest.split_at(n);
                    rest = others;
                    let child = tree::pointer(&b, i as usize).map_err(|_| IoError::Medium)?;
                    let hit = !child.is_none() && wiped.touches(from, to);
                    let new = match mine.is_empty() && !hit {
                        true => child,
                        false => {
                            let at = index * FANOUT as u64 + i;
                            self.merge_node(cx, line, child, level - 1, at, mine, wiped).await?
                        }
                    };
                    tree::set_pointer(&mut b, i as usize, new);
                    empty &= new.is_none();
                }
            }
            if !ptr.is_none() {
                self.kill(cx, line, ptr.vbn, ptr.birth);
            }
            match empty {
                true => Ok(NodePtr::NONE),
                false => self.new_node(cx, line, level, index, b).await,
            }
        })
    }

    /// The first logical block at or after which a map has a leaf; `None`: the map is empty.
    pub(crate) async fn first_leaf(
        &self,
        root: MapRoot,
        family: u32,
        shared: u32,
    ) -> IoResult<Option<u64>> {
        let (mut ptr, mut level, mut index) = (root.ptr, root.height, 0);
        if ptr.is_none() {
            return Ok(None);
        }
        while level > 0 && ptr.birth > shared {
            let node = self.map_node(&ptr, family, level, index).await?;
            let mut next = None;
            for i in 0..FANOUT {
                let child = tree::pointer(&node, i).map_err(|_| IoError::Medium)?;
                if !child.is_none() {
                    next = Some((child, i as u64));
                    break;
                }
            }
            let Some((child, i)) = next else { break };
            level -= 1;
            index = index * FANOUT as u64 + i;
            ptr = child;
        }
        Ok(Some(index * span(level)))
    }
}
