//! Filling what maps lead by: their nodes, and what is done for a page of which no copy is good.

use super::{Into, Walk};
use crate::engine::copies::{LATER, Look, Shown, Which};
use crate::engine::dataset::Dataset;
use crate::engine::device::Device;
use crate::engine::meta::{Effort, kind_of};
use crate::engine::{Inner, block_of};
use crate::format::page::{FANOUT, NodePtr, PageKind};
use crate::format::{BLOCK, Block, tree};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, sleep};

/// How often something that is wrong everywhere is waited for so long that this proves it. A host that reads it well in between begins
/// that anew.
pub(super) const PROOFS: u32 = 2;
/// Checkpoints to wait for when a node cannot be read: it may be on its way still.
const PATIENCE: u32 = 2;

/// What is known of a page that was tried for the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It may be read some day.
    Unread,
    /// All copies were read and are wrong, and nobody knows for how long.
    Doubted,
    /// They were wrong a while ago, too.
    Lost,
}

/// The tries to read a page of metadata, which lie under a pin each, and nothing between them.
pub(super) struct Tries {
    pub(super) effort: Effort,
    pauses: std::slice::Iter<'static, Nanos>,
    checkpoints: u32,
    proofs: u32,
    asked: bool,
}

impl Tries {
    pub(super) fn new() -> Tries {
        Tries {
            effort: Effort::Once,
            pauses: LATER.iter(),
            checkpoints: PATIENCE,
            proofs: PROOFS,
            asked: false,
        }
    }
}

impl Inner {
    /// A node of a dataset's map as the last checkpoint has it. `None`: there is none.
    pub(super) async fn node_now(
        &self,
        w: &Walk,
        ds: &Dataset,
        at: (u8, u64),
        effort: Effort,
    ) -> IoResult<Option<(NodePtr, Rc<Block>)>> {
        let Some(ptr) = self.wanted_node(w, ds, at).await? else { return Ok(None) };
        let node = self.map_node_by(&ptr, ds.family, at, effort).await?;
        Ok(Some((ptr, node)))
    }

    async fn wanted_node(
        &self,
        w: &Walk,
        ds: &Dataset,
        (level, index): (u8, u64),
    ) -> IoResult<Option<NodePtr>> {
        let root = self.durable_map(ds);
        let Some(ptr) = self.pointer_in(root, ds.family, level, index).await? else {
            return Ok(None);
        };
        let own = self.own_after(ds).is_none_or(|e| ptr.birth > e);
        if !own || !self.is_wanted(w, ptr.birth) || self.is_seen(w, &ptr) {
            return Ok(None);
        }
        Ok(Some(ptr))
    }

    /// What becomes of a page of which no copy is good. The caller holds the pin under which it was found.
    pub(super) async fn fate(
        &self,
        w: &Walk,
        t: &Tries,
        e: IoError,
        page: Option<(NodePtr, PageKind)>,
    ) -> Fate {
        if t.effort != Effort::Last || e != IoError::Medium {
            return Fate::Unread;
        }
        let is_hasty = has(Bug::ResyncIsHasty) || has(Bug::WrongOnceIsLost);
        let goes_without = w.into != Into::Moves && !is_hasty;
        // It was not even reached.
        let Some((ptr, kind)) = page else {
            return match (goes_without, t.proofs) {
                (false, _) => Fate::Unread,
                (true, 0) => Fate::Lost,
                (true, _) => Fate::Doubted,
            };
        };
        let good = |b: &Slice| ptr.verify(&block_of(b), self.tag, kind).is_ok();
        let seen = self.look((ptr.vbn, ptr.crc), good, Which::All, &[]).await.give_up();
        let proved = |shown| self.is_proved((ptr.vbn, ptr.crc as u32), shown, seen.begun);
        match seen.look {
            Look::Wrong if has(Bug::WrongOnceIsLost) => Fate::Lost,
            Look::Wrong if proved(Shown::Wrong) => Fate::Lost,
            Look::Wrong => Fate::Doubted,
            // It is whole, and makes no sense; or it was not a moment ago.
            Look::Good(..) if t.proofs == 0 => Fate::Lost,
            Look::Good(..) => Fate::Doubted,
            // What is filled as a whole goes without what the medium does not give, if that lasts.
            Look::Unread(IoError::Medium) if goes_without => match proved(Shown::Bad) {
                true => Fate::Lost,
                false => Fate::Doubted,
            },
            Look::Unread(_) => Fate::Unread,
        }
    }

    /// Waits until a page of metadata is tried again. False: there is nothing to bring, or it is left out. The caller holds no pin.
    pub(super) async fn try_again(
        self: &Rc<Self>,
        w: &Walk,
        t: &mut Tries,
        (e, fate): (IoError, Fate),
    ) -> IoResult<bool> {
        if t.effort == Effort::Last {
            let is_bad = e == IoError::Medium && fate == Fate::Unread;
            let is_hasty = w.into != Into::Moves && has(Bug::ResyncIsHasty);
            let is_gone = is_bad && (is_hasty || has(Bug::BadIsLost));
            if fate == Fate::Lost || is_gone || has(Bug::UnseenIsNothing) {
                w.lost.set(w.lost.get() + u64::from(e == IoError::Medium));
                w.lost_pages.set(w.lost_pages.get() + u64::from(e == IoError::Medium));
                return Ok(false);
            }
            if fate == Fate::Doubted && !w.prove {
                // Whoever proves all tells.
                return Ok(false);
            }
            if fate == Fate::Doubted && t.proofs > 0 {
                t.proofs -= 1;
                sleep(self.options.proof).await;
                return Ok(true);
            }
            return self.leave_out_all(w, e).map(|()| false);
        }
        self.upkeep_goes_on().await?;
        // Who does not answer a second time is not asked for this one any more.
        if !t.asked && self.ask_removed(w).await {
            t.asked = true;
            return Ok(true);
        }
        // Time brings no device back that has gone, and not each of many pages that are wrong is waited for.
        let passes = match e {
            IoError::Offline => false,
            IoError::Medium => !Inner::patience(w.lost.get() + w.unread.get()).is_empty(),
            _ => true,
        };
        if let Some(pause) = t.pauses.next().filter(|_| passes) {
            sleep(*pause).await;
        } else if t.checkpoints > 0 && !Inner::patience(w.unread.get()).is_empty() {
            // It may be on its way still. Not each of many is waited for so long.
            t.checkpoints -= 1;
            self.checkpoint_now().await?;
        } else {
            t.effort = Effort::Last;
        }
        Ok(true)
    }

    /// Asks removed devices that did not answer whether they do now. True: one does.
    pub(super) async fn ask_removed(&self, w: &Walk) -> bool {
        let is_asked = |d: &&Rc<Device>| {
            let is_removed = d.is_written_off() && d.is_away() && d.disk.is_some();
            is_removed && !d.is_readable() && !w.silent.borrow().contains(&d.number)
        };
        let all: Vec<_> = self.devices.borrow().iter().filter(is_asked).cloned().collect();
        let mut any = false;
        for d in all.into_iter().filter(|_| !has(Bug::FailedIsDead) && !has(Bug::SilentForGood)) {
            let answers = self.answers_soon(&d).await;
            any |= answers;
            if !answers {
                w.silent.borrow_mut().insert(d.number);
            }
        }
        any
    }

    pub(super) fn fill_node<'a>(
        self: &'a Rc<Self>,
        w: &'a mut Walk,
        ds: &'a Rc<Dataset>,
        level: u8,
        index: u64,
    ) -> LocalFuture<'a, IoResult> {
        Box::pin(async move {
            let mut tries = Tries::new();
            let (ptr, node, maps) = loop {
                self.upkeep_goes_on().await?;
                let pin = self.pins.pin();
                if ds.is_stale() {
                    return Ok(());
                }
                let maps = ds.maps.get();
                let (ptr, found) = match self.wanted_node(w, ds, (level, index)).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(ptr)) => {
                        let at = (level, index);
                        let node = self.map_node_by(&ptr, ds.family, at, tries.effort).await;
                        (Some((ptr, kind_of(level))), node.map(|node| (ptr, node)))
                    }
                    Err(e) => (None, Err(e)),
                };
                match found {
                    Ok((ptr, node)) => {
                        self.fill_meta(w, ptr, &node).await?;
                        let rest = match level {
                            0 => self.fill_leaf(w, ds, index, &node).await?,
                            _ => Vec::new(),
                        };
                        let held = has(Bug::PausedUnderPin).then(|| pin.clone());
                        drop(pin);
                        self.fill_rest(w, ds, rest).await?;
                        drop(held);
                        break (ptr, node, maps);
                    }
                    Err(e) => {
                        let fate = self.fate(w, &tries, e, ptr).await;
                        drop(pin);
                        match self.try_again(w, &mut tries, (e, fate)).await? {
                            true => continue,
                            false => return Ok(()),
                        }
                    }
                }
            };
            if level > 0 {
                for k in 0..FANOUT {
                    let child = tree::pointer(&node, k).map_err(|_| IoError::Medium)?;
                    if !child.is_none() && self.is_wanted(w, child.birth) {
                        let at = index * FANOUT as u64 + k as u64;
                        self.fill_node(w, ds, level - 1, at).await?;
                    }
                }
            }
            let _pin = self.pins.pin();
            // What was freed of a map that is nobody's any more may be something else by now, and is not damaged.
            if ds.is_stale() {
                return Ok(());
            }
            let root = self.durable_map(ds);
            let still = self.pointer_in(root, ds.family, level, index).await == Ok(Some(ptr));
            // It may have been another one meanwhile: a volume gets back what it had when it becomes what its snapshot is.
            let unlooked = match w.into {
                Into::Moves => has(Bug::LackingUnasked) || has(Bug::SeenAfterRevert),
                Into::Device(..) => has(Bug::SeenAfterRevert),
            };
            let same_map = ds.maps.get() == maps || unlooked;
            if still && same_map && !ds.is_stale() {
                // It was this one all the time, so all below was its, and was looked at.
                w.seen.insert(ptr);
            }
            Ok(())
        })
    }

    /// Brings a verified block of metadata.
    pub(super) async fn fill_meta(&self, w: &Walk, ptr: NodePtr, page: &Block) -> IoResult {
        let Some((d, at)) = self.destination(w.into, ptr.vbn) else { return Ok(()) };
        let data = Slice::copy_of(&page[..]);
        self.upkeep.add_done(1);
        if !w.prove {
            return self.write_filled(w, ptr.vbn, (&d, at), &data).await;
        }
        let have = Slice::heap(BLOCK);
        let read = d.read(at, &have, self.options.deadline).await;
        let is_there = read.is_ok() && block_of(&have)[..] == page[..];
        if is_there || self.put_right(w, ptr.vbn, (&d, at), &data).await? {
            self.brought(w, ptr.vbn);
        }
        Ok(())
    }
}
