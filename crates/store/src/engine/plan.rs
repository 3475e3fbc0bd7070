//! Where slabs go: decisions without I/O, from a view of the pool to moves, new slabs and slabs to give up.

use crate::format::slab::Placement;
use crate::planted::{Bug, has};
use std::cmp::Reverse;

/// A device as far as places are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) number: u16,
    /// It is current and stays: slabs can be put here.
    pub(crate) fit: bool,
    /// What is here can be read.
    pub(crate) current: bool,
    /// What is here has to go.
    pub(crate) draining: bool,
    /// Extents that nothing uses.
    pub(crate) vacant: Vec<u32>,
    /// The same, which do not give back what is written there. Only what would have to stay is moved there.
    pub(crate) poor: Vec<u32>,
}

/// A slab as far as places are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plot {
    pub(crate) slab: usize,
    pub(crate) copies: [Option<Placement>; 2],
    /// Nothing is on it.
    pub(crate) empty: bool,
    /// Blocks in use.
    pub(crate) used: u64,
    /// Where it was moved did not give everything back: it goes to no poor place.
    pub(crate) deaf: bool,
}

/// What a pool looks like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct View {
    pub(crate) sites: Vec<Site>,
    pub(crate) plots: Vec<Plot>,
    /// Copies of each block.
    pub(crate) copies: usize,
    /// Empty slabs that may be given up without the pool being too full.
    pub(crate) expendable: usize,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Empty slabs to give up.
    pub(crate) give_up: Vec<usize>,
    /// Slab, which of its copies, and where that goes.
    pub(crate) moves: Vec<(usize, usize, Placement)>,
    /// Copies for which there is no place.
    pub(crate) stuck: usize,
    /// Of those, copies whose slab cannot be read anywhere.
    pub(crate) unreadable: usize,
    /// Slabs for which there is no place but poor ones, which do not do for them.
    pub(crate) deaf: Vec<usize>,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.give_up.is_empty() && self.moves.is_empty()
    }
}

impl View {
    fn site(&self, number: u16) -> Option<&Site> {
        self.sites.iter().find(|s| s.number == number)
    }

    fn drains(&self, number: u16) -> bool {
        self.site(number).is_some_and(|s| s.draining)
    }

    /// Takes an extent of the roomiest device on which a slab has no copy yet.
    fn take(&mut self, not_on: &[Option<Placement>]) -> Option<Placement> {
        self.take_of(not_on, |s| &mut s.vacant)
    }

    /// The same of one that does not give back what is written there.
    fn take_poor(&mut self, not_on: &[Option<Placement>]) -> Option<Placement> {
        self.take_of(not_on, |s| &mut s.poor)
    }

    fn take_of(
        &mut self,
        not_on: &[Option<Placement>],
        room: fn(&mut Site) -> &mut Vec<u32>,
    ) -> Option<Placement> {
        let fits = |s: &&mut Site| s.fit && not_on.iter().flatten().all(|c| c.device != s.number);
        let best = self.sites.iter_mut().filter(fits).map(|s| (s.number, room(s)));
        let (device, room) = best
            .filter(|(_, room)| !room.is_empty())
            .max_by_key(|(number, room)| (room.len(), Reverse(*number)))?;
        Some(Placement { device, extent: room.remove(0), filling: false })
    }

    /// How to clear the devices that are drained, at most `most` moves at once. What is given up makes room,
    /// but only after the checkpoint that says so: moves that need it come with a later plan.
    pub(crate) fn evacuate(&self, most: usize) -> Plan {
        let (mut v, mut plan) = (self.clone(), Plan::default());
        let mut expendable = self.expendable;
        let drained =
            |v: &View, p: &Plot| (0..2).find(|i| p.copies[*i].is_some_and(|c| v.drains(c.device)));
        for p in &self.plots {
            if p.empty && expendable > 0 && drained(&v, p).is_some() {
                expendable -= 1;
                plan.give_up.push(p.slab);
            }
        }
        let mut wanting = Vec::new();
        for p in self.plots.iter().filter(|p| !plan.give_up.contains(&p.slab)) {
            let Some(index) = drained(&v, p) else { continue };
            if plan.moves.len() >= most {
                break;
            }
            let readable = |c: &Placement| self.site(c.device).is_some_and(|s| s.current);
            if !p.empty && !p.copies.iter().flatten().any(readable) {
                plan.stuck += 1;
                plan.unreadable += 1;
                continue;
            }
            let poor = |v: &mut View| has(Bug::PoorIsRoom).then(|| v.take_poor(&p.copies));
            match poor(&mut v).flatten().or_else(|| v.take(&p.copies)) {
                Some(to) => plan.moves.push((p.slab, index, to)),
                None => wanting.push(p),
            }
        }
        // Empty slabs elsewhere make room, if they lie where this one may go.
        for p in wanting {
            let Some(index) = drained(&v, p) else { continue };
            let fits = |c: &Placement| {
                self.site(c.device).is_some_and(|s| s.fit)
                    && p.copies.iter().flatten().all(|o| o.device != c.device)
            };
            let victim = self.plots.iter().find(|e| {
                e.empty
                    && !plan.give_up.contains(&e.slab)
                    && !plan.moves.iter().any(|(s, ..)| *s == e.slab)
                    && e.copies.iter().flatten().any(fits)
            });
            match victim.filter(|_| expendable > 0) {
                Some(e) => {
                    expendable -= 1;
                    plan.give_up.push(e.slab);
                }
                None if plan.moves.len() >= most => {}
                None if p.deaf => plan.deaf.push(p.slab),
                None => match v.take_poor(&p.copies) {
                    Some(to) => plan.moves.push((p.slab, index, to)),
                    None => plan.stuck += 1,
                },
            }
        }
        plan
    }

    /// Whether all that is on a device can go elsewhere, plan after plan; `Err`: copies that find no place, and
    /// of those, the ones that cannot be read. Plans have at most `most` moves.
    pub(crate) fn can_clear(&self, most: usize) -> Result<(), (usize, usize)> {
        let mut v = self.clone();
        loop {
            let plan = v.evacuate(most);
            if plan.is_empty() {
                return match plan.stuck {
                    0 => Ok(()),
                    n => Err((n, plan.unreadable)),
                };
            }
            v.carry_out(&plan);
        }
    }

    /// The view after a plan.
    fn carry_out(&mut self, plan: &Plan) {
        let mut free = Vec::new();
        for s in &plan.give_up {
            if let Some(k) = self.plots.iter().position(|p| p.slab == *s) {
                free.extend(self.plots.remove(k).copies.into_iter().flatten());
                self.expendable = self.expendable.saturating_sub(1);
            }
        }
        for (slab, index, to) in &plan.moves {
            if let Some(p) = self.plots.iter_mut().find(|p| p.slab == *slab) {
                free.extend(p.copies[*index].replace(*to));
            }
            if let Some(s) = self.sites.iter_mut().find(|s| s.number == to.device) {
                s.vacant.retain(|e| *e != to.extent);
                s.poor.retain(|e| *e != to.extent);
            }
        }
        for f in free {
            if let Some(s) = self.sites.iter_mut().find(|s| s.number == f.device) {
                s.vacant.push(f.extent);
            }
        }
    }

    /// New slabs on what is vacant, at most `most`.
    pub(crate) fn grow(&self, most: usize) -> Vec<[Option<Placement>; 2]> {
        let mut v = self.clone();
        let mut new = Vec::new();
        while new.len() < most {
            let mut slab = [None; 2];
            for i in 0..self.copies {
                slab[i] = v.take(&slab);
            }
            if slab.iter().flatten().count() < self.copies {
                break;
            }
            new.push(slab);
        }
        new
    }

    /// Moves to a device that alone has room, so that what they leave behind and what stays vacant there makes
    /// new slabs; at most `most`.
    pub(crate) fn balance(&self, most: usize) -> Vec<(usize, usize, Placement)> {
        if self.copies < 2 || !self.grow(1).is_empty() {
            return Vec::new();
        }
        let Some(roomy) = self.sites.iter().filter(|s| s.fit).max_by_key(|s| s.vacant.len()) else {
            return Vec::new();
        };
        let mut plots: Vec<&Plot> = self
            .plots
            .iter()
            .filter(|p| p.copies.iter().flatten().count() == 2)
            .filter(|p| {
                let good = |c: &Placement| self.site(c.device).is_some_and(|s| s.fit);
                p.copies.iter().flatten().all(|c| c.device != roomy.number && good(c))
            })
            .collect();
        plots.sort_by_key(|p| (p.used, p.slab));
        // Devices give in turn, those that hold most first.
        let mut load: Vec<(u16, usize)> = self.sites.iter().map(|s| (s.number, 0)).collect();
        for c in self.plots.iter().flat_map(|p| p.copies.iter().flatten()) {
            load.iter_mut().filter(|(n, _)| *n == c.device).for_each(|(_, held)| *held += 1);
        }
        let held = |load: &[(u16, usize)], n: u16| {
            load.iter().find(|(d, _)| *d == n).map_or(0, |(_, held)| *held)
        };
        let mut moves = Vec::new();
        for (p, extent) in
            plots.into_iter().zip(&roomy.vacant).take(most.min(roomy.vacant.len() / 2))
        {
            let [Some(a), Some(b)] = p.copies else { continue };
            let index = usize::from(held(&load, b.device) > held(&load, a.device));
            let from = if index == 0 { a.device } else { b.device };
            load.iter_mut().filter(|(n, _)| *n == from).for_each(|(_, held)| *held -= 1);
            let to = Placement { device: roomy.number, extent: *extent, filling: false };
            moves.push((p.slab, index, to));
        }
        moves
    }
}

#[cfg(test)]
mod tests;
