//! Dead lists and the giving back of deleted datasets, a bounded piece with each checkpoint.

use super::Inner;
use super::dataset::Dataset;
use super::merge::Merge;
use super::stage::Below;
use crate::format::dataset::Kind;
use crate::format::dead::{self, PER_PAGE};
use crate::format::page::{Header, NodePtr, PageKind};
use crate::format::tree::{LEAF, span};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult};

/// Pages of dead lists that somebody comes back to after a pause in which nothing holds them where they are.
#[derive(Default)]
pub(crate) struct Marks {
    next: Cell<u64>,
    /// The marked pages, by the numbers of the marks. One that was given back is not there.
    pages: Rc<RefCell<BTreeMap<u64, u64>>>,
}

/// One of them.
pub(crate) struct Mark {
    number: u64,
    page: NodePtr,
    pages: Rc<RefCell<BTreeMap<u64, u64>>>,
}

impl Marks {
    /// Marks a page that is on a list now.
    pub(crate) fn mark(&self, page: NodePtr) -> Mark {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut mark = Mark { number, page: NodePtr::NONE, pages: self.pages.clone() };
        mark.put(page);
        mark
    }

    /// A page is given back.
    fn popped(&self, vbn: u64) {
        self.pages.borrow_mut().retain(|_, page| *page != vbn);
    }
}

impl Mark {
    /// The marked page; none: the list is over.
    pub(crate) fn at(&self) -> NodePtr {
        self.page
    }

    /// It is still on a list, whichever.
    pub(crate) fn stands(&self) -> bool {
        self.pages.borrow().contains_key(&self.number)
    }

    /// Marks the page before it, unless this one was given back: then that one is next, or gone, too. Says whether it was
    /// not.
    pub(crate) fn go_on(&mut self, older: NodePtr) -> bool {
        let stands = self.stands();
        if stands {
            self.put(older);
        }
        stands
    }

    fn put(&mut self, page: NodePtr) {
        self.page = page;
        self.pages.borrow_mut().insert(self.number, page.vbn);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.pages.borrow_mut().remove(&self.number);
    }
}

impl Inner {
    /// True while something deleted has not been given back.
    pub(crate) fn is_reaping(&self) -> bool {
        self.datasets.borrow().values().any(|d| d.deleting.get())
    }

    /// Writes what became dead to the dead lists.
    pub(crate) async fn write_dead(&self, cx: &mut Merge, epoch: u32) -> IoResult {
        let all: Vec<Rc<Dataset>> = self.datasets.borrow().values().cloned().collect();
        for ds in all {
            let list = ds.newly_dead.take();
            for part in list.chunks(PER_PAGE) {
                let (older, count) = ds.dead.get();
                let vbn = self.place_meta(epoch)?;
                let header = Header {
                    kind: PageKind::Dead,
                    level: 0,
                    entry_format: 0,
                    pool: self.tag,
                    owner: u64::from(ds.family),
                    index: 0,
                    birth: epoch,
                    max_birth: epoch,
                    vbn,
                    count: 0,
                };
                let (block, crc) = dead::encode(&header, older, part);
                self.put_meta(&mut cx.batch, vbn, block, None).await?;
                let ptr = NodePtr { vbn, birth: epoch, max_birth: epoch, crc };
                ds.dead.set((ptr, count + part.len() as u64));
            }
        }
        Ok(())
    }

    /// Takes the newest page off a dataset's dead list: the blocks on it.
    async fn pop_dead(&self, cx: &mut Merge, ds: &Dataset) -> IoResult<Vec<(u64, u32)>> {
        let (ptr, count) = ds.dead.get();
        // The page may still be on its way.
        self.settle(&mut cx.batch).await?;
        let page = self.meta(&ptr, PageKind::Dead).await?;
        let (older, list) = dead::decode(&page).map_err(|_| IoError::Medium)?;
        ds.dead.set((older, count.saturating_sub(list.len() as u64)));
        self.space.borrow_mut().disk_clear(ptr.vbn);
        cx.frees.push(ptr.vbn);
        self.marks.popped(ptr.vbn);
        Ok(list)
    }

    /// Gives back a piece of what was deleted. The layers of all datasets are merged.
    pub(crate) async fn reap(&self, cx: &mut Merge, epoch: u32) -> IoResult {
        let mut budget = self.options.give_back.max(1);
        let all: Vec<Rc<Dataset>> =
            self.datasets.borrow().values().filter(|d| d.deleting.get()).cloned().collect();
        // In the order of the line, so that each takes over what the one before it left.
        let mut snapshots: Vec<_> = all.iter().filter(|d| d.kind == Kind::Snapshot).collect();
        snapshots.sort_by_key(|d| std::cmp::Reverse(d.age()));
        for ds in snapshots.into_iter().filter(|d| !d.swapped.get()) {
            let Some(next) = self.next_in_line(ds) else { return Err(IoError::Internal) };
            ds.swapped.set(true);
            self.upkeep.lists_change();
            let mine = ds.dead.replace(next.dead.get());
            next.dead.set(mine);
            // What is not on a page yet belongs to the list that is taken over.
            let fresh = next.newly_dead.replace(ds.newly_dead.take());
            ds.newly_dead.replace(fresh);
        }
        for ds in all {
            let over = match ds.kind {
                Kind::Snapshot => self.reap_snapshot(cx, &ds, &mut budget).await?,
                _ => self.reap_map(cx, &ds, epoch, &mut budget).await?,
            };
            if over {
                self.datasets.borrow_mut().remove(&ds.id);
            }
            if budget == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The dataset after a snapshot in its line, as of the cut. A snapshot made since has no list of its own: what died
    /// before it is on its volume's list until the next cut, which puts that in the place of whatever it has.
    pub(crate) fn next_in_line(&self, s: &Dataset) -> Option<Rc<Dataset>> {
        let datasets = self.datasets.borrow();
        let made = |d: &Dataset| !d.fresh.get() || has(Bug::DeadListToNewSnapshot);
        datasets
            .values()
            .filter(|d| d.kind == Kind::Snapshot && d.parent.get() == s.parent.get())
            .filter(|d| d.age() > s.age() && !d.deleting.get() && made(d))
            .min_by_key(|d| d.age())
            .or_else(|| datasets.get(&s.parent.get()))
            .cloned()
    }

    /// Whether a snapshot is one of several that were made at once of one volume, and not the first of those that are left.
    fn has_elder_twin(&self, s: &Dataset) -> bool {
        let datasets = self.datasets.borrow();
        let mut line = datasets
            .values()
            .filter(|d| d.kind == Kind::Snapshot && d.parent.get() == s.parent.get());
        line.any(|d| d.epoch == s.epoch && d.age() < s.age() && !d.deleting.get())
    }

    /// What only a deleted snapshot used is on the dead list of the next in line. That list is taken over
    /// whole, and what is older than the snapshot before goes back to where it came from.
    async fn reap_snapshot(
        &self,
        cx: &mut Merge,
        ds: &Rc<Dataset>,
        budget: &mut u64,
    ) -> IoResult<bool> {
        let Some(next) = self.next_in_line(ds) else { return Err(IoError::Internal) };
        // One of the same epoch that is before it in the line shares all that was born by then.
        let shared = match self.has_elder_twin(ds) {
            true => ds.epoch,
            false => self.shared_epoch(ds, ds.epoch),
        };
        let sort = |cx: &mut Merge, list: Vec<(u64, u32)>| {
            for (vbn, birth) in list {
                if birth > shared {
                    self.space.borrow_mut().disk_clear(vbn);
                    cx.frees.push(vbn);
                } else {
                    next.newly_dead.borrow_mut().push((vbn, birth));
                }
            }
        };
        sort(cx, ds.newly_dead.take());
        while !ds.dead.get().0.is_none() && *budget > 0 {
            *budget -= 1;
            let list = self.pop_dead(cx, ds).await?;
            sort(cx, list);
        }
        Ok(ds.dead.get().0.is_none())
    }

    async fn reap_map(
        &self,
        cx: &mut Merge,
        ds: &Rc<Dataset>,
        epoch: u32,
        budget: &mut u64,
    ) -> IoResult<bool> {
        while !ds.dead.get().0.is_none() && *budget > 0 {
            *budget -= 1;
            self.pop_dead(cx, ds).await?;
        }
        ds.newly_dead.take();
        let below = ds.top.below.borrow().clone();
        let (mut root, mut mapped) = self.resolve(cx, below).await?;
        let shared = self.shared_epoch(ds, epoch);
        while *budget > 0 {
            let Some(first) = self.first_leaf(root, ds.family, shared).await? else { break };
            let leaves = (*budget).min(64);
            *budget -= leaves;
            let range = (first, (first + leaves * LEAF as u64).min(span(root.height)));
            (root, mapped) = self.take_out(cx, ds, epoch, root, mapped, range).await?;
        }
        ds.top.below.replace(Below::Root(root, mapped));
        Ok(root.ptr.is_none() && ds.dead.get().0.is_none())
    }
}
