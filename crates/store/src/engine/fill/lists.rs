//! Filling what no map leads to: dead lists, and what slabs know of the use of their blocks.

use super::Walk;
use super::nodes::Tries;
use crate::engine::Inner;
use crate::engine::dataset::Dataset;
use crate::engine::meta::Effort;
use crate::format::dataset::Kind;
use crate::format::dead;
use crate::format::page::{NodePtr, PageKind};
use crate::format::slab::{SlabHead, bitmap_pages, meta_pages};
use crate::planted::{Bug, has};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, IoResult};

impl Inner {
    pub(super) async fn fill_list(self: &Rc<Self>, w: &mut Walk, ds: &Dataset) -> IoResult {
        let (mut tries, mut brought) = (Tries::new(), BTreeSet::new());
        'again: loop {
            let mut mark = self.marks.mark(ds.dead.get().0);
            // No list is longer, also when somebody has made it lead back to itself.
            let mut left = self.space.borrow().total();
            while left > 0 && !mark.at().is_none() {
                left -= 1;
                self.upkeep_goes_on().await?;
                let pin = self.pins.pin();
                if ds.kind == Kind::Volume && ds.is_stale() {
                    // The list is that of what is left of it, which is looked at in its turn.
                    return Ok(());
                }
                let ptr = mark.at();
                if !mark.stands() {
                    continue 'again;
                }
                if self.is_seen(w, &ptr) {
                    break;
                }
                let page = match self.meta_by(&ptr, PageKind::Dead, tries.effort).await {
                    Ok(page) => page,
                    Err(e) => {
                        let fate = self.fate(w, &tries, e, Some((ptr, PageKind::Dead))).await;
                        drop(pin);
                        match self.try_again(w, &mut tries, (e, fate)).await? {
                            true => continue 'again,
                            // And with it what is behind it.
                            false => break,
                        }
                    }
                };
                if brought.insert(ptr) && self.is_wanted(w, ptr.birth) {
                    self.fill_meta(w, ptr, &page).await?;
                }
                let older = dead::decode(&page).map_or(NodePtr::NONE, |(older, _)| older);
                if !mark.go_on(older) {
                    continue 'again;
                }
            }
            // Only now: what leads to it is seen when all of it has been.
            w.seen.extend(brought);
            return Ok(());
        }
    }

    pub(super) async fn fill_slab(self: &Rc<Self>, w: &Walk, s: usize) -> IoResult {
        self.upkeep_goes_on().await?;
        let shift = self.space.borrow().shift;
        let base = (s as u64) << shift;
        // A second checkpoint would write this place anew; it waits for readers.
        let _pin = self.pins.pin();
        let (which, crc, birth) = {
            let space = self.space.borrow();
            let Some(slab) = space.slabs.get(s) else { return Ok(()) };
            let Some(which) = slab.which else { return Ok(()) };
            (which, slab.crc, slab.birth)
        };
        if !self.is_wanted(w, birth) || self.destination(w.into, base).is_none() {
            return Ok(());
        }
        let vbn = base + u64::from(which) * meta_pages(shift);
        let ptr = NodePtr { vbn, birth, max_birth: birth, crc };
        // It is in memory, too: who can write it anew waits for nothing.
        let effort = if w.prove { Effort::Waits } else { Effort::Last };
        let head = match self.meta_by(&ptr, PageKind::SlabMeta, effort).await {
            Ok(head) => head,
            Err(_) => return self.write_head(w, s),
        };
        self.fill_meta(w, ptr, &head).await?;
        let Ok(head) = SlabHead::decode(&head, shift) else { return Ok(()) };
        for k in 0..bitmap_pages(shift) {
            let crc = head.bitmaps[k as usize];
            let ptr = NodePtr { vbn: vbn + 1 + k, birth, max_birth: birth, crc };
            match self.meta_by(&ptr, PageKind::Bitmap, effort).await {
                Ok(page) => self.fill_meta(w, ptr, &page).await?,
                Err(_) => return self.write_head(w, s),
            }
        }
        Ok(())
    }

    /// What is known of the use of a slab's blocks cannot be read. It is in memory too: a checkpoint brings it.
    fn write_head(&self, w: &Walk, s: usize) -> IoResult {
        self.check_running()?;
        if w.prove {
            // The one before the proof should have done that.
            return Err(IoError::Medium);
        }
        if !has(Bug::HeadsNotMended) {
            self.space.borrow_mut().slabs[s].dirty = true;
        }
        Ok(())
    }
}
