//! Where a volume has data and where it has none: stretches of it, by its layers in memory and by the nodes of its map.
//!
//! What is told is so at one moment, the one at which it is told: nodes that are not in memory are read, and then everything is
//! looked at once more without waiting. What is not known counts as data.

use super::Inner;
use super::dataset::Dataset;
use super::stage::Above;
use crate::format::Block;
use crate::format::dataset::MapRoot;
use crate::format::page::{FANOUT, NodePtr};
use crate::format::tree::{self, LEAF, span};
use crate::planted::{Bug, has};
use std::rc::Rc;

/// Nodes that are read for one answer, at most.
const NODES: usize = 16;
/// Entries and pointers that are looked at for one answer, about.
const LOOKS: usize = 8192;

/// Blocks in a row that all have data, or all have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) mapped: bool,
    /// The block after the last one.
    pub(crate) end: u64,
}

/// A node that has to be read to go on.
struct Missing {
    ptr: NodePtr,
    level: u8,
    index: u64,
}

/// Nodes that were read for an answer: they need not stay in the cache so long. `None`: it cannot be read.
type Nodes = Vec<(NodePtr, Option<Rc<Block>>)>;

/// A question on its way: from which block on, what was found, and what may still be looked at.
struct Search<'a> {
    pool: &'a Inner,
    ds: &'a Dataset,
    end: u64,
    nodes: &'a Nodes,
    looks: usize,
}

impl Search<'_> {
    /// What block `at` is, and up to where that goes on as far as one look tells.
    fn state(&mut self, at: u64) -> Result<Stretch, Missing> {
        let mut end = self.end;
        if self.pool.suspended.get().is_some() {
            // Whether these were written nobody knows yet.
            let (open, to) = self.ds.undecided.borrow().run(at, end);
            if open {
                return Ok(Stretch { mapped: true, end: to });
            }
            end = to;
        }
        let (above, end) = self.ds.top.run(at, end, &mut self.looks);
        match above {
            Above::Known(mapped) => Ok(Stretch { mapped, end }),
            Above::Tree(root) => self.in_map(root, at, end),
        }
    }

    /// The same, of a map alone.
    fn in_map(&mut self, root: MapRoot, at: u64, end: u64) -> Result<Stretch, Missing> {
        let stretch = |mapped, to: u64| Ok(Stretch { mapped, end: to.min(end) });
        let (mut ptr, mut level, mut index) = (root.ptr, root.height, 0);
        if ptr.is_none() || at >= span(level) {
            return stretch(false, end);
        }
        loop {
            let first = index * span(level);
            let Some(node) = self.node(&ptr, level, index)? else {
                return stretch(!has(Bug::UnreadIsHole), first + span(level));
            };
            if level == 0 {
                let mapped = |i: usize| tree::entry(&node, i).vbn != 0;
                let from = (at - first) as usize;
                let n = (from..LEAF).take_while(|i| mapped(*i) == mapped(from)).count();
                self.looked(n);
                return stretch(mapped(from), at + n as u64);
            }
            let each = span(level - 1);
            let i = ((at - first) / each) as usize;
            let child = tree::pointer(&node, i);
            let absent = |i: usize| tree::pointer(&node, i).is_ok_and(|p| p.is_none());
            match child {
                Ok(p) if !p.is_none() => ptr = p,
                Ok(_) => {
                    let n = (i..FANOUT).take_while(|i| absent(*i)).count();
                    self.looked(n);
                    return stretch(false, first + (i + n) as u64 * each);
                }
                Err(_) => return stretch(true, first + (i as u64 + 1) * each),
            }
            (level, index) = (level - 1, index * FANOUT as u64 + i as u64);
        }
    }

    /// A node, if it is at hand; `None`: it cannot be read.
    fn node(&self, ptr: &NodePtr, level: u8, index: u64) -> Result<Option<Rc<Block>>, Missing> {
        if let Some(b) = self.pool.cached(ptr) {
            return Ok(Some(b).filter(|b| self.pool.is_node(b, self.ds.family, level, index)));
        }
        match self.nodes.iter().find(|(p, _)| p == ptr) {
            Some((_, node)) => Ok(node.clone()),
            None => Err(Missing { ptr: *ptr, level, index }),
        }
    }

    fn looked(&mut self, n: usize) {
        self.looks = self.looks.saturating_sub(n);
    }

    /// Goes on from a stretch that ends at `at` as long as the same goes on. With the node that is missing to go further.
    fn go_on(
        &mut self,
        mut at: u64,
        mut found: Option<Stretch>,
    ) -> (Option<Stretch>, Option<Missing>) {
        while at < self.end && self.looks > 0 {
            let next = match self.state(at) {
                Ok(next) => next,
                Err(missing) => return (found, Some(missing)),
            };
            if found.is_some_and(|f| f.mapped != next.mapped) {
                break;
            }
            (at, found) = (next.end, Some(next));
            self.looked(1);
        }
        (found, None)
    }
}

impl Inner {
    fn search<'a>(&'a self, ds: &'a Dataset, end: u64, nodes: &'a Nodes) -> Search<'a> {
        Search { pool: self, ds, end, nodes, looks: LOOKS }
    }

    /// What the pool has may be another by now: another node owns it.
    fn tells_nothing(&self) -> bool {
        self.check_owned().is_err() && !has(Bug::FencedTells)
    }

    /// How far it is the same from block `lba` on, before `end`, as far as that is known without waiting. What is not counts as
    /// data.
    pub(crate) fn stretch_at_hand(&self, ds: &Dataset, lba: u64, end: u64) -> Stretch {
        if ds.is_stale() || self.over.get() || self.tells_nothing() {
            return Stretch { mapped: true, end };
        }
        let found = self.search(ds, end, &Vec::new()).go_on(lba, None);
        match found {
            (Some(stretch), _) => stretch,
            (None, Some(m)) => {
                let to = (m.index + 1).saturating_mul(span(m.level));
                Stretch { mapped: !has(Bug::UnreadIsHole), end: to.min(end) }
            }
            (None, None) => Stretch { mapped: true, end },
        }
    }

    /// The same, of which nodes that are not in memory are read, not too many. `None`: the pool has been opened anew meanwhile.
    pub(crate) async fn stretch(&self, ds: &Dataset, lba: u64, end: u64) -> Option<Stretch> {
        let mut nodes = Nodes::new();
        let mut known = None;
        loop {
            let pin = self.pins.pin();
            if self.over.get() {
                return None;
            }
            if ds.is_stale() || self.tells_nothing() {
                return Some(Stretch { mapped: true, end });
            }
            // What was found before something was waited for may be over.
            let before = known.filter(|_| has(Bug::HoleOutrun));
            let at = before.map_or(lba, |f: Stretch| f.end);
            let (found, missing) = self.search(ds, end, &nodes).go_on(at, before);
            known = found;
            let Some(m) = missing.filter(|_| nodes.len() < NODES) else {
                return Some(found.unwrap_or(Stretch { mapped: true, end: lba + 1 }));
            };
            let node = self.map_node(&m.ptr, ds.family, m.level, m.index).await;
            drop(pin);
            nodes.push((m.ptr, node.ok()));
        }
    }
}
