//! Overwriting what was freed.
//!
//! Nothing is overwritten in place here, so what was written over stays on the devices until its block is used again. Where that must
//! not be, the blocks are noted before they are written over, and overwritten once a checkpoint has freed them.

use super::device::Device;
use super::volume::StoreVolume;
use super::{Inner, Pool, StoreResult};
use crate::format::BLOCK;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;

/// Where a block of data was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u64);

/// A free block that is kept from being handed out.
struct Held<'a>(&'a Inner, u64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.space.borrow_mut().release(self.1);
    }
}

impl Inner {
    /// Overwrites what nobody uses. It comes to its end also when nobody waits for it any more: what is on its way must not land
    /// on what somebody else has there by then. Who closes or resumes the pool waits for it.
    async fn shred(self: &Rc<Self>, places: &[Place]) -> IoResult {
        let (me, places) = (self.clone(), places.to_vec());
        let work = async move { me.shred_all(&places).await };
        match has(Bug::ShreddedLater) {
            true => work.await,
            false => self.to_the_end(work).await.unwrap_or(Err(IoError::Offline)),
        }
    }

    async fn shred_all(&self, places: &[Place]) -> IoResult {
        let (mut touched, mut result) = (Vec::new(), Ok(()));
        for Place(vbn) in places {
            if !has(Bug::ShreddedLater) {
                self.check_running()?;
            }
            // That one block stays is no reason to leave the others.
            result = result.and(self.shred_one(*vbn, &mut touched).await);
            if has(Bug::ShreddedToTheFirst) {
                result?;
            }
        }
        for d in touched {
            if let Err(e) = d.flush(self.options.deadline).await {
                self.device_failed(&d, e);
            }
        }
        self.check_running().and(result)
    }

    async fn shred_one(&self, vbn: u64, touched: &mut Vec<Rc<Device>>) -> IoResult {
        let taken = self.space.borrow().is_place(vbn) && self.space.borrow_mut().take(vbn);
        if !taken {
            // Somebody else has written over it, or is about to. Or its slab was given up and made anew elsewhere.
            return Ok(());
        }
        let (held, zeros) = (Held(self, vbn), Slice::heap(BLOCK));
        zeros.fill(0);
        // Where its slab is now nothing else comes before this has ended.
        let _pin = self.pins.pin();
        let copies = self.copies_of(vbn).into_iter().flatten().chain(self.moving_to(vbn));
        let copies: Vec<_> = copies.filter(|(d, _)| d.is_written()).collect();
        let mut bad = Ok(());
        for (d, block) in copies {
            match d.write(block, &zeros, self.options.deadline).await {
                Ok(()) => {}
                Err(e) if e == IoError::Medium || has(Bug::ShreddedToTheFirst) => {
                    bad = Err(e);
                    continue;
                }
                // It is not there any more, and keeps it. What it was asked for ends before it is brought back.
                Err(e) => {
                    self.device_failed(&d, e);
                    continue;
                }
            }
            if !touched.iter().any(|t| Rc::ptr_eq(t, &d)) {
                touched.push(d);
            }
        }
        drop(held);
        bad
    }
}

impl StoreVolume {
    /// Where the data of a range is now, in whole blocks.
    ///
    /// # Errors
    /// The map cannot be read.
    pub async fn places(&self, at: u64, len: u64) -> Result<Vec<Place>, IoError> {
        let block = BLOCK as u64;
        let mut all = Vec::new();
        for lba in at / block..(at + len).div_ceil(block) {
            all.extend(self.place_of(lba).await?.map(Place));
        }
        Ok(all)
    }
}

impl Pool {
    /// Overwrites what was at these places before it was written over or discarded, as far as nobody else has used them
    /// since. Makes a checkpoint first. Devices that are not there keep it.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub async fn shred(&self, places: &[Place]) -> StoreResult {
        if places.is_empty() {
            return Ok(());
        }
        // Of one life: the next one may have given the places to others.
        let i = self.0.clone();
        i.checkpoint_now().await?;
        Ok(i.shred(places).await?)
    }
}
