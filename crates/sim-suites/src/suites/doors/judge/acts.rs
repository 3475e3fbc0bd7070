//! Commands about reservations, and the unit attentions that they and others raise.

use super::{Judge, Telling};
use crate::suites::doors::orders::ActId;
use crate::suites::doors::spc::{Act, Code, Pair, Said};
use std::collections::BTreeSet;
use weir_base::Nanos;

impl Judge {
    /// A nexus has been answered by a volume since its login, so that the volume knows it.
    pub(in crate::suites::doors) fn has_met(&self, path: usize, volume: u32) -> bool {
        self.paths[path].met.borrow().contains(&volume)
    }

    /// It has.
    pub(in crate::suites::doors) fn meets(&self, path: usize, volume: u32) {
        self.paths[path].met.borrow_mut().insert(volume);
    }

    fn path_of(&self, pair: Pair) -> Option<usize> {
        self.paths.iter().position(|p| p.pair == pair)
    }

    /// These nexuses are about to lose a volume, and with it their SPC-2 reservation. Of one that may be lost anyway nothing
    /// more is known.
    pub(in crate::suites::doors) fn parting(&self, volume: u32, of: &BTreeSet<Pair>) -> Vec<ActId> {
        self.change(volume, |b| {
            let sure = |p: &&Pair| b.orders.may_be_held_by(**p) && !b.orders.may_be_lost(**p);
            let sure: Vec<Pair> = of.iter().filter(sure).copied().collect();
            sure.into_iter().map(|p| b.orders.begin(p, Act::Lost)).collect()
        })
    }

    /// They have lost it. One that has logged in again meanwhile is another nexus: what was said of the former is settled.
    pub(in crate::suites::doors) fn parted(&self, volume: u32, held: Vec<ActId>) {
        for id in held {
            let known = self.change(volume, |b| match b.orders.is_open(id) {
                true => b.orders.answered(id, &Said::Good).map(|_| ()),
                false => Ok(()),
            });
            self.check(known);
        }
    }

    /// Something begins that raises attentions for these nexuses.
    pub(in crate::suites::doors) fn raises(
        &self,
        volume: u32,
        code: Code,
        of: impl IntoIterator<Item = Pair>,
    ) -> Vec<(Pair, bool)> {
        let mut all = Vec::new();
        for pair in of {
            let met = self.path_of(pair).is_some_and(|p| self.has_met(p, volume));
            self.with(volume, |b| b.attentions.begin(pair, code));
            all.push((pair, met));
        }
        all
    }

    /// It is over. Those who knew the volume from the start must be told.
    pub(in crate::suites::doors) fn raised(
        &self,
        volume: u32,
        code: Code,
        of: &[(Pair, bool)],
        sure: bool,
        began: Nanos,
    ) {
        let now = self.now();
        for (pair, met) in of {
            let still = self.path_of(*pair).is_some_and(|p| self.has_met(p, volume));
            self.with(volume, |b| {
                let sure = sure && *met && still && !b.keeps_attentions();
                b.attentions.end(*pair, code, sure, began, now);
            });
        }
    }

    /// A command about reservations is about to be sent.
    pub(in crate::suites::doors) fn begin_act(
        &self,
        path: usize,
        volume: u32,
        act: Act,
    ) -> Running {
        let began = self.now();
        let pair = self.paths[path].pair;
        let reserves = (act == Act::Reserve6).then_some(pair);
        let fragile = reserves.is_some() && self.fragile.get();
        self.say(|| format!("{act:?} by {pair:?} on volume {volume} begins"));
        let id = self.change(volume, |b| b.orders.begin(pair, act));
        if fragile {
            self.change(volume, |b| b.orders.begin(pair, Act::Lost));
        }
        self.telling.borrow_mut().insert((volume, id), Vec::new());
        self.raise_more(volume);
        Running { volume, id, began, reserves }
    }

    /// What is under way may raise more than was known when it began: others have begun since.
    pub(super) fn raise_more(&self, volume: u32) {
        for ((_, id), known) in
            self.telling.borrow_mut().range_mut((volume, 0)..=(volume, u64::MAX))
        {
            let may = self.with(volume, |b| b.orders.may_tell(*id));
            for (pair, code) in may {
                if !known.iter().any(|(c, (p, _))| (*p, *c) == (pair, code)) {
                    known.extend(
                        self.raises(volume, code, [pair]).into_iter().map(|one| (code, one)),
                    );
                }
            }
        }
    }

    /// A command ends: what it may have raised.
    fn told_by(&self, r: &Running) -> Telling {
        self.telling.borrow_mut().remove(&(r.volume, r.id)).unwrap_or_default()
    }

    /// It was answered.
    pub(in crate::suites::doors) fn end_act(&self, r: &Running, said: &Said) -> Vec<Pair> {
        let known = self.change(r.volume, |b| b.orders.answered(r.id, said));
        self.say(|| format!("act {} on volume {} is answered {said:?}: {known:?}", r.id, r.volume));
        let known = self.check(known);
        // The present nexus has it now, and keeps it.
        let reserved = r.reserves.filter(|_| *said == Said::Good);
        if let Some(pair) = reserved {
            let former = self.former.borrow_mut().remove(&(r.volume, pair)).unwrap_or_default();
            self.change(r.volume, |b| {
                former.into_iter().for_each(|id| b.orders.settled(id));
                b.orders.reserved_by(r.id);
            });
        }
        for (code, one) in self.told_by(r) {
            let sure = known.told.contains(&(one.0, code, true));
            self.raised(r.volume, code, &[one], sure, r.began);
        }
        known.aborted
    }

    /// It was refused without effect.
    pub(in crate::suites::doors) fn refuse_act(&self, r: &Running) {
        let refused = self.change(r.volume, |b| b.orders.refused(r.id));
        self.say(|| format!("act {} on volume {} is refused", r.id, r.volume));
        self.check(refused);
        self.doubt_told(r);
    }

    /// It was ended; nobody knows whether it took effect. With `over` it does not any more.
    pub(in crate::suites::doors) fn lose_act(&self, r: &Running, over: bool) {
        self.say(|| format!("act {} on volume {} is lost, over: {over}", r.id, r.volume));
        if over {
            self.change(r.volume, |b| b.orders.settled(r.id));
        }
        self.doubt_told(r);
    }

    fn doubt_told(&self, r: &Running) {
        for (code, one) in self.told_by(r) {
            self.raised(r.volume, code, &[one], false, r.began);
        }
    }
}

/// A command about reservations under way.
pub(in crate::suites::doors) struct Running {
    volume: u32,
    id: u64,
    pub(in crate::suites::doors) began: Nanos,
    /// It is to reserve the unit for this nexus by SPC-2.
    reserves: Option<Pair>,
}
