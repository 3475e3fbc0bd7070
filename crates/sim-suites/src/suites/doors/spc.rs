//! A model of SPC-4's reservations, written from the standard: what each command does to the state of a unit, what it is
//! answered, and what others are told.

use std::collections::BTreeMap;

/// An I_T nexus as reservations know it: number of the initiator port, relative target port.
pub(super) type Pair = (u8, u8);

/// ASC and ASCQ of a unit attention. All of ASC 29h are one: a later reset takes the place of an earlier one.
pub(super) type Code = u16;

/// POWER ON, RESET and their like.
pub(super) const RESET: Code = 0x2900;
/// MODE PARAMETERS CHANGED.
pub(super) const MODES: Code = 0x2a01;
/// RESERVATIONS PREEMPTED.
pub(super) const PREEMPTED: Code = 0x2a03;
/// RESERVATIONS RELEASED.
pub(super) const RELEASED: Code = 0x2a04;
/// REGISTRATIONS PREEMPTED.
pub(super) const UNREGISTERED: Code = 0x2a05;
/// What commands about reservations tell others.
pub(super) const OF_RESERVATIONS: [Code; 3] = [PREEMPTED, RELEASED, UNREGISTERED];
/// CAPACITY DATA HAS CHANGED.
pub(super) const CAPACITY: Code = 0x2a09;

/// Types of persistent reservations.
pub(super) const KINDS: [u8; 6] = [1, 3, 5, 6, 7, 8];

/// A command that reads or changes reservations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// REGISTER, or with `ignore` REGISTER AND IGNORE EXISTING KEY. `pairs` has the sender's last (ALL_TG_PT: others before).
    Register {
        key: u64,
        new: u64,
        ignore: bool,
        pairs: Vec<Pair>,
    },
    Reserve {
        key: u64,
        kind: u8,
    },
    Release {
        key: u64,
        kind: u8,
    },
    Clear {
        key: u64,
    },
    Preempt {
        key: u64,
        victim: u64,
        kind: u8,
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move {
        key: u64,
        new: u64,
        to: Pair,
        leave: bool,
    },
    /// RESERVE(6) and RELEASE(6).
    Reserve6,
    Release6,
    ReadKeys,
    ReadReservation,
    /// LOGICAL UNIT RESET, as far as reservations go.
    Reset,
    /// The nexus of the sender is lost.
    Lost,
}

/// What a command is answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Said {
    Good,
    Conflict,
    /// CHECK CONDITION with ILLEGAL REQUEST.
    Illegal,
    /// PRGENERATION and keys, ascending.
    Keys(u32, Vec<u64>),
    /// PRGENERATION, and the holder's key and the type.
    Held(u32, Option<(u64, u8)>),
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deed {
    pub(super) said: Said,
    /// Unit attentions raised.
    pub(super) told: Vec<(Pair, Code)>,
    /// Whose tasks are aborted.
    pub(super) aborted: Vec<Pair>,
}

/// The reservations of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spc {
    pub(super) keys: BTreeMap<Pair, u64>,
    /// Type and holder; no holder where every registered nexus is one.
    pub(super) held: Option<(u8, Option<Pair>)>,
    pub(super) generation: u32,
    /// Holder of an SPC-2 reservation.
    pub(super) old: Option<Pair>,
}

fn of_all(kind: u8) -> bool {
    kind >= 7
}

fn shared(kind: u8) -> bool {
    kind >= 5
}

impl Spc {
    /// Whether a nexus may read, and write.
    pub(super) fn may(&self, who: Pair) -> (bool, bool) {
        if self.old.is_some_and(|h| h != who) {
            return (false, false);
        }
        let Some((kind, _)) = self.held else { return (true, true) };
        let known = self.keys.contains_key(&who);
        let write = self.holds(who) || (known && shared(kind));
        (write || matches!(kind, 1 | 5 | 7), write)
    }

    fn holds(&self, who: Pair) -> bool {
        match self.held {
            None => false,
            Some((_, Some(h))) => h == who,
            Some((_, None)) => self.keys.contains_key(&who),
        }
    }

    fn has(&self, who: Pair, key: u64) -> bool {
        self.keys.get(&who) == Some(&key)
    }

    fn others(&self, me: Pair, code: Code) -> Vec<(Pair, Code)> {
        self.keys.keys().filter(|p| **p != me).map(|p| (*p, code)).collect()
    }

    /// Does what the command says; nothing at all unless it ends with GOOD.
    pub(super) fn run(&mut self, me: Pair, act: &Act) -> Deed {
        let mut next = self.clone();
        let deed = match next.try_run(me, act) {
            Ok((said, told, aborted)) => {
                *self = next;
                Deed { said, told, aborted }
            }
            Err(said) => Deed { said, told: Vec::new(), aborted: Vec::new() },
        };
        if let Said::Good = deed.said
            && matches!(
                act,
                Act::Register { .. } | Act::Clear { .. } | Act::Preempt { .. } | Act::Move { .. }
            )
        {
            self.generation = self.generation.wrapping_add(1);
        }
        deed
    }

    #[allow(clippy::type_complexity)] // Of this function only.
    fn try_run(
        &mut self,
        me: Pair,
        act: &Act,
    ) -> Result<(Said, Vec<(Pair, Code)>, Vec<Pair>), Said> {
        let persistent = !matches!(act, Act::Reserve6 | Act::Release6 | Act::Reset | Act::Lost);
        if persistent && self.old.is_some() {
            return Err(Said::Conflict);
        }
        let mut told = Vec::new();
        let mut aborted = Vec::new();
        match act {
            Act::ReadKeys => {
                let mut keys: Vec<u64> = self.keys.values().copied().collect();
                keys.sort_unstable();
                return Ok((Said::Keys(self.generation, keys), told, aborted));
            }
            Act::ReadReservation => {
                let held = self.held.map(|(kind, holder)| {
                    (holder.and_then(|h| self.keys.get(&h).copied()).unwrap_or(0), kind)
                });
                return Ok((Said::Held(self.generation, held), told, aborted));
            }
            Act::Register { key, new, ignore, pairs } => {
                told = self.register(me, *key, *new, *ignore, pairs)?;
            }
            Act::Reserve { key, kind } => {
                if !self.has(me, *key) {
                    return Err(Said::Conflict);
                }
                match self.held {
                    None => self.held = Some((*kind, (!of_all(*kind)).then_some(me))),
                    Some((k, _)) if k == *kind && self.holds(me) => {}
                    Some(_) => return Err(Said::Conflict),
                }
            }
            Act::Release { key, kind } => {
                if !self.has(me, *key) {
                    return Err(Said::Conflict);
                }
                if let Some((k, _)) = self.held
                    && self.holds(me)
                {
                    if k != *kind {
                        return Err(Said::Illegal);
                    }
                    self.held = None;
                    if shared(k) {
                        told = self.others(me, RELEASED);
                    }
                }
            }
            Act::Clear { key } => {
                if !self.has(me, *key) {
                    return Err(Said::Conflict);
                }
                told = self.others(me, PREEMPTED);
                self.keys.clear();
                self.held = None;
            }
            Act::Preempt { key, victim, kind, abort } => {
                let removed = self.preempt(me, *key, *victim, *kind, &mut told)?;
                if *abort {
                    aborted = removed;
                }
            }
            Act::Move { key, new, to, leave } => {
                let Some((kind, Some(holder))) = self.held else { return Err(Said::Conflict) };
                if !self.has(me, *key) || holder != me {
                    return Err(Said::Conflict);
                }
                if *new == 0 || *to == me {
                    return Err(Said::Illegal);
                }
                self.keys.insert(*to, *new);
                self.held = Some((kind, Some(*to)));
                if *leave {
                    self.keys.remove(&me);
                }
            }
            Act::Reserve6 => match (self.keys.is_empty(), self.old) {
                (false, _) if self.keys.contains_key(&me) => {}
                (false, _) => return Err(Said::Conflict),
                (true, Some(h)) if h != me => return Err(Said::Conflict),
                (true, _) => self.old = Some(me),
            },
            Act::Release6 => match self.keys.is_empty() {
                false if self.keys.contains_key(&me) => {}
                false => return Err(Said::Conflict),
                true if self.old == Some(me) => self.old = None,
                true => {}
            },
            Act::Reset => self.old = None,
            Act::Lost if self.old == Some(me) => self.old = None,
            Act::Lost => {}
        }
        Ok((Said::Good, told, aborted))
    }

    fn register(
        &mut self,
        me: Pair,
        key: u64,
        new: u64,
        ignore: bool,
        pairs: &[Pair],
    ) -> Result<Vec<(Pair, Code)>, Said> {
        let present = self.keys.get(&me).copied();
        if !ignore && present.unwrap_or(0) != key {
            return Err(Said::Conflict);
        }
        if new != 0 {
            // A port with a key of its own must fit, as if it had asked itself.
            let foreign = |p: &Pair| {
                self.keys.get(p).is_some_and(|k| *p != me && !ignore && *k != key && *k != new)
            };
            if pairs.iter().any(foreign) {
                return Err(Said::Conflict);
            }
            self.keys.extend(pairs.iter().map(|p| (*p, new)));
            return Ok(Vec::new());
        }
        let was = self.held;
        for p in pairs {
            if self.keys.get(p).copied() != present || present.is_none() {
                continue;
            }
            self.keys.remove(p);
            let holder = self.held.is_some_and(|(_, h)| h == Some(*p));
            if holder || self.keys.is_empty() {
                self.held = None;
            }
        }
        match was {
            Some((kind, _)) if self.held.is_none() && shared(kind) => Ok(self.others(me, RELEASED)),
            _ => Ok(Vec::new()),
        }
    }

    fn preempt(
        &mut self,
        me: Pair,
        key: u64,
        victim: u64,
        kind: u8,
        told: &mut Vec<(Pair, Code)>,
    ) -> Result<Vec<Pair>, Said> {
        if !self.has(me, key) {
            return Err(Said::Conflict);
        }
        let everybody = self.held.is_some_and(|(k, _)| of_all(k));
        if victim == 0 && !everybody {
            return Err(Said::Illegal);
        }
        let of_holder = self.held.and_then(|(_, h)| h).and_then(|h| self.keys.get(&h));
        let takes = (everybody && victim == 0) || of_holder == Some(&victim);
        let gone: Vec<Pair> = self
            .keys
            .iter()
            .filter(|(p, k)| (victim == 0 || **k == victim) && !(takes && **p == me))
            .map(|(p, _)| *p)
            .collect();
        if gone.is_empty() && !takes {
            return Err(Said::Conflict);
        }
        for p in &gone {
            self.keys.remove(p);
            if *p != me {
                told.push((*p, UNREGISTERED));
            }
        }
        if takes {
            let was = self.held.replace((kind, (!of_all(kind)).then_some(me)));
            if was.is_some_and(|(k, _)| k != kind && shared(k)) {
                told.extend(self.others(me, RELEASED));
            }
        } else if self.keys.is_empty() {
            self.held = None;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Pair = (1, 1);
    const B: Pair = (2, 2);

    fn register(who: Pair, new: u64) -> Act {
        Act::Register { key: 0, new, ignore: false, pairs: vec![who] }
    }

    #[test]
    fn an_exclusive_reservation_keeps_others_out_until_it_is_preempted() {
        let mut s = Spc::default();
        assert_eq!(s.run(A, &register(A, 7)).said, Said::Good);
        assert_eq!(s.run(B, &Act::Reserve { key: 0, kind: 3 }).said, Said::Conflict);
        assert_eq!(s.run(A, &Act::Reserve { key: 7, kind: 3 }).said, Said::Good);
        assert_eq!((s.may(A), s.may(B)), ((true, true), (false, false)));
        assert_eq!(s.run(B, &register(B, 9)).said, Said::Good);
        assert_eq!(s.may(B), (false, false));
        let d = s.run(B, &Act::Preempt { key: 9, victim: 7, kind: 5, abort: true });
        assert_eq!((d.said, d.told, d.aborted), (Said::Good, vec![(A, UNREGISTERED)], vec![A]));
        assert_eq!((s.may(A), s.may(B)), ((true, false), (true, true)));
        assert_eq!(s.run(A, &Act::ReadReservation).said, Said::Held(3, Some((9, 5))));
    }

    #[test]
    fn all_registrants_hold_until_the_last_is_gone() {
        let mut s = Spc::default();
        s.run(A, &register(A, 7));
        s.run(B, &register(B, 7));
        assert_eq!(s.run(A, &Act::Reserve { key: 7, kind: 8 }).said, Said::Good);
        assert_eq!(s.may(B), (true, true));
        let leave = |who| Act::Register { key: 7, new: 0, ignore: false, pairs: vec![who] };
        assert_eq!(s.run(A, &leave(A)).told, vec![]);
        assert_eq!((s.may(A), s.held.is_some()), ((false, false), true));
        s.run(B, &leave(B));
        assert_eq!(s.held, None);
        assert_eq!(s.run(A, &Act::Reserve6).said, Said::Good);
        assert_eq!(s.run(A, &Act::ReadKeys).said, Said::Conflict);
        assert_eq!((s.run(B, &Act::Lost).said, s.old), (Said::Good, Some(A)));
        s.run(B, &Act::Reset);
        assert_eq!(s.old, None);
    }
}
