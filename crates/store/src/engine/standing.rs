//! How a pool stands, and whether it may go on with what is left when a device has failed.

use super::Inner;
use super::space::Slab;
use crate::format::slab::Placement;
use crate::format::superblock::MemberState;
use crate::planted::{Bug, has};

impl Inner {
    /// How many of these copies of a slab are current.
    fn current_of(&self, copies: [Option<Placement>; 2]) -> usize {
        let current =
            |c: &&Placement| !c.filling && self.device(c.device).is_some_and(|d| d.is_current());
        copies.iter().flatten().filter(current).count()
    }

    /// Whether every slab has a current copy, and whether every slab has all its copies. On one that no durable superblock
    /// knows there is nothing.
    pub(crate) fn standing(&self) -> (bool, bool) {
        let space = self.space.borrow();
        let copies = usize::from(self.durable.borrow().copies);
        let (mut served, mut whole) = (true, true);
        for s in space.slabs.iter().filter(|s| s.exists() && s.offered) {
            let n = self.current_of(s.copies);
            served &= n > 0;
            whole &= n >= copies;
        }
        (served, whole)
    }

    /// The table of slabs on its way names a place on a device that has failed, and no other: it must not become part of a
    /// superblock.
    pub(crate) fn tells_of_lost(&self) -> bool {
        let space = self.space.borrow();
        let lost = |s: &Slab| {
            let is_told = s.moving.is_some_and(|m| {
                m.told && !self.device(m.to.device).is_some_and(|d| d.is_current())
            });
            is_told || s.exists() && !s.offered && self.current_of(s.copies) == 0
        };
        space.slabs.iter().any(lost)
    }

    /// A device is left that every device in sync knows to be so. What has come into service with a superblock that is not yet
    /// on all of them is not: one that fails now might be opened alone later, and would ask for nobody.
    fn has_known(&self) -> bool {
        let durable = self.durable.borrow();
        let all = self.devices.borrow();
        let mut known = all
            .iter()
            .zip(&durable.members)
            .filter(|(d, m)| m.device == d.id && m.state == MemberState::InSync && !d.untold.get());
        // Where nothing is written nobody goes on.
        known.any(|(d, _)| d.is_current()) || self.options.read_only || has(Bug::CurrentUntold)
    }

    /// Whether the pool may go on without the devices that have failed: all of it is there, by the newest durable superblock and by
    /// one that may be on some devices already.
    pub(crate) fn may_go_on(&self) -> bool {
        let space = self.space.borrow();
        let told = |s: &Slab| self.current_of(s.told()) > 0;
        let telling = self.ckpt.telling.get() && !has(Bug::NewPlaceUnasked);
        let served = !telling || space.slabs.iter().filter(|s| s.exists()).all(told);
        served && self.standing().0 && self.has_known()
    }
}
