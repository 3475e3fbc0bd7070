//! The reservation state machine against a second one, written from the standard's rules in the
//! plainest way: maps from pair to key, a set of holders, and the rules read one by one.

use crate::cdb::{PrIn, PrOut};
use crate::initiator::{self as i, PrRegister};
use crate::lu::Nexus;
use crate::sense::Sense;
use crate::status::{ScsiError, Status};
use crate::testbed::{Bed, initiator};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Initiator number and target port number.
type Pair = (u8, u16);

const PAIRS: [Pair; 5] = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)];

#[derive(Debug, Clone)]
struct Op {
    from: Pair,
    action: PrOut,
    kind: u8,
    key: Key,
    new: u64,
    all_ports: bool,
    ids: Vec<u8>,
    to: Pair,
    unregister: bool,
    login_again: bool,
}

/// Mostly the right key, for otherwise nearly everything is a conflict.
#[derive(Debug, Clone, Copy)]
enum Key {
    Right,
    This(u64),
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Ended {
    Good,
    Conflict,
    Illegal,
}

#[derive(Debug, Default, Clone)]
struct Model {
    keys: BTreeMap<Pair, u64>,
    /// Type, and the holder unless everybody is.
    held: Option<(u8, Option<Pair>)>,
    generation: u32,
    /// Attentions that the last command raised.
    told: BTreeMap<Pair, BTreeSet<(u8, u8)>>,
    aborted: BTreeSet<Pair>,
}

const RELEASED: (u8, u8) = (0x2a, 4);
const CLEARED: (u8, u8) = (0x2a, 3);
const PREEMPTED: (u8, u8) = (0x2a, 5);

impl Model {
    fn tell(&mut self, who: impl IntoIterator<Item = Pair>, what: (u8, u8)) {
        for p in who {
            self.told.entry(p).or_default().insert(what);
        }
    }

    fn others(&self, me: Pair) -> Vec<Pair> {
        self.keys.keys().copied().filter(|p| *p != me).collect()
    }

    fn is_holder(&self, p: Pair) -> bool {
        self.keys.contains_key(&p)
            && self.held.is_some_and(|(_, holder)| holder.is_none_or(|h| h == p))
    }

    /// Removes registrations; whoever stays is told if that ends a registrants-only reservation.
    fn drop_registrations(&mut self, gone: &[Pair], by: Pair) {
        let held_alone = self.held.is_some_and(|(_, h)| h.is_some_and(|h| gone.contains(&h)));
        self.keys.retain(|p, _| !gone.contains(p));
        if held_alone {
            let (kind, _) = self.held.take().unwrap();
            if kind == 5 || kind == 6 {
                let others = self.others(by);
                self.tell(others, RELEASED);
            }
        }
        if self.keys.is_empty() {
            self.held = None;
        }
    }

    fn run(&mut self, op: &Op, key: u64) -> Ended {
        self.told.clear();
        self.aborted.clear();
        let me = op.from;
        let mine = self.keys.get(&me).copied();
        let single = self.held.and_then(|(_, h)| h);
        let holder_key = single.map(|h| self.keys[&h]);
        let all_hold = self.held.is_some() && single.is_none();
        let registers = matches!(op.action, PrOut::Register | PrOut::RegisterAndIgnore);
        // Without registration only registering gets past the conflict table or the key check.
        if !registers && mine != Some(key) {
            return Ended::Conflict;
        }
        match op.action {
            PrOut::Register | PrOut::RegisterAndIgnore => {
                let ignore = op.action == PrOut::RegisterAndIgnore;
                let spec = !op.ids.is_empty();
                if spec && ignore {
                    return Ended::Illegal;
                }
                if !ignore && key != mine.unwrap_or(0) {
                    return Ended::Conflict;
                }
                if spec && (mine.is_some() || op.new == 0) {
                    return Ended::Illegal;
                }
                let ports: Vec<u16> = if op.all_ports { vec![1, 2] } else { vec![me.1] };
                let who = std::iter::once(me.0).chain(op.ids.iter().copied());
                let targets: BTreeSet<Pair> =
                    who.flat_map(|i| ports.iter().map(move |p| (i, *p))).collect();
                if op.new == 0 {
                    let same = |t: &Pair| mine.is_some() && self.keys.get(t).copied() == mine;
                    let gone: Vec<Pair> = targets.into_iter().filter(same).collect();
                    self.drop_registrations(&gone, me);
                } else {
                    let blocked = |t: &Pair| {
                        *t != me && self.keys.get(t).is_some_and(|k| *k != key && *k != op.new)
                    };
                    if !ignore && targets.iter().any(blocked) {
                        return Ended::Conflict;
                    }
                    self.keys.extend(targets.into_iter().map(|t| (t, op.new)));
                }
                self.generation += 1;
            }
            PrOut::Reserve => match self.held {
                None => self.held = Some((op.kind, (op.kind < 7).then_some(me))),
                Some((kind, _)) if self.is_holder(me) && kind == op.kind => {}
                Some(_) => return Ended::Conflict,
            },
            PrOut::Release => {
                if let Some((kind, _)) = self.held.filter(|_| self.is_holder(me)) {
                    if kind != op.kind {
                        return Ended::Illegal;
                    }
                    self.held = None;
                    if kind >= 5 {
                        let others = self.others(me);
                        self.tell(others, RELEASED);
                    }
                }
            }
            PrOut::Clear => {
                let others = self.others(me);
                self.tell(others, CLEARED);
                self.keys.clear();
                self.held = None;
                self.generation += 1;
            }
            PrOut::Preempt | PrOut::PreemptAndAbort => {
                if op.new == 0 && !all_hold {
                    return Ended::Illegal;
                }
                let victims: Vec<Pair> = self
                    .keys
                    .iter()
                    .filter(|(_, k)| op.new == 0 || **k == op.new)
                    .map(|(p, _)| *p)
                    .collect();
                let take_over = (all_hold && op.new == 0) || holder_key == Some(op.new);
                if take_over {
                    let old = self.held.unwrap().0;
                    for v in victims.into_iter().filter(|v| *v != me) {
                        self.keys.remove(&v);
                        self.tell([v], PREEMPTED);
                        self.aborted.insert(v);
                    }
                    self.held = Some((op.kind, (op.kind < 7).then_some(me)));
                    if old != op.kind && old >= 5 {
                        let others = self.others(me);
                        self.tell(others, RELEASED);
                    }
                } else {
                    if victims.is_empty() {
                        return Ended::Conflict;
                    }
                    for v in victims {
                        self.keys.remove(&v);
                        self.aborted.insert(v);
                        if v != me {
                            self.tell([v], PREEMPTED);
                        }
                    }
                    if self.keys.is_empty() {
                        self.held = None;
                    }
                }
                if op.action == PrOut::Preempt {
                    self.aborted.clear();
                }
                self.generation += 1;
            }
            PrOut::RegisterAndMove => {
                if single != Some(me) {
                    return Ended::Conflict;
                }
                if op.new == 0 || op.to == me {
                    return Ended::Illegal;
                }
                self.keys.insert(op.to, op.new);
                self.held = self.held.map(|(kind, _)| (kind, Some(op.to)));
                if op.unregister {
                    self.keys.remove(&me);
                }
                self.generation += 1;
            }
        }
        Ended::Good
    }
}

fn pair() -> impl Strategy<Value = Pair> {
    proptest::sample::select(&PAIRS[..])
}

fn op() -> impl Strategy<Value = Op> {
    let action = proptest::sample::select(vec![
        PrOut::Register,
        PrOut::Register,
        PrOut::RegisterAndIgnore,
        PrOut::RegisterAndIgnore,
        PrOut::Reserve,
        PrOut::Reserve,
        PrOut::Release,
        PrOut::Clear,
        PrOut::Preempt,
        PrOut::Preempt,
        PrOut::PreemptAndAbort,
        PrOut::RegisterAndMove,
    ]);
    let key = prop_oneof![4 => Just(Key::Right), 1 => (0u64..4).prop_map(Key::This)];
    let kind = proptest::sample::select(vec![1u8, 3, 5, 6, 7, 8]);
    let ids = prop_oneof![4 => Just(vec![]), 1 => proptest::collection::vec(1u8..4, 1..3)];
    let rare = proptest::bool::weighted(0.2);
    (pair(), action, kind, key, 0u64..4, rare, ids, pair(), any::<bool>(), rare).prop_map(
        |(from, action, kind, key, new, all_ports, ids, to, unregister, login_again)| Op {
            from,
            action,
            kind,
            key,
            new,
            all_ports,
            ids,
            to,
            unregister,
            login_again,
        },
    )
}

fn nexus((i, p): Pair) -> Nexus {
    crate::testbed::nexus(i, p)
}

fn send(bed: &mut Bed, op: &Op, key: u64) -> Result<Vec<u8>, ScsiError> {
    let list = if op.action == PrOut::RegisterAndMove {
        i::pr_move_list(key, op.new, op.unregister, false, op.to.1, &initiator(op.to.0))
    } else {
        let ids: Vec<_> = op.ids.iter().map(|n| initiator(*n)).collect();
        let options = PrRegister { all_target_ports: op.all_ports, initiators: &ids, aptpl: false };
        i::pr_out_list(key, op.new, &options)
    };
    let registers = matches!(op.action, PrOut::Register | PrOut::RegisterAndIgnore);
    let list =
        if registers || op.action == PrOut::RegisterAndMove { &list[..] } else { &list[..24] };
    let mut cdb = i::pr_out(op.action, None, list.len() as u32).padded();
    cdb[2] = op.kind;
    bed.raw(nexus(op.from), &cdb, list)
}

fn check(bed: &mut Bed, model: &Model) -> Result<(), TestCaseError> {
    let reader = nexus(PAIRS[0]);
    let keys = i::parse_pr_keys(&bed.run(reader, i::pr_in(PrIn::ReadKeys, 9999)).unwrap()).unwrap();
    prop_assert_eq!(keys.generation, model.generation);
    // READ FULL STATUS names the pairs.
    let full = bed.run(reader, i::pr_in(PrIn::ReadFullStatus, 9999)).unwrap();
    let mut registered = BTreeMap::new();
    for d in full[8..].chunks(48) {
        let p = (d[32], u16::from_be_bytes([d[18], d[19]]));
        registered.insert(p, u64::from_be_bytes(d[..8].try_into().unwrap()));
        prop_assert_eq!(d[12] == 1, model.is_holder(p), "holder {:?}", p);
    }
    prop_assert_eq!(&registered, &model.keys);
    prop_assert_eq!(keys.keys.len(), model.keys.len());
    let held = bed.run(reader, i::pr_in(PrIn::ReadReservation, 64)).unwrap();
    let held = i::parse_pr_reservation(&held).unwrap().held;
    let want = model.held.map(|(kind, h)| (h.map_or(0, |h| model.keys[&h]), kind));
    prop_assert_eq!(held, want);
    // Reads and writes follow the type.
    for p in PAIRS {
        let fast = bed.lu.fast_path(nexus(p));
        let registered = model.keys.contains_key(&p);
        let free = model.held.is_none() || model.is_holder(p);
        let kind = model.held.map_or(0, |h| h.0);
        let shares = registered && kind >= 5;
        let read_only_guard = matches!(kind, 1 | 5 | 7);
        prop_assert_eq!(fast.writes, free || shares, "writes of {:?}", p);
        prop_assert_eq!(fast.reads, free || shares || read_only_guard, "reads of {:?}", p);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn same_as_the_model(ops in proptest::collection::vec(op(), 1..40)) {
        let mut bed = Bed::new();
        for (initiator, port) in PAIRS {
            bed.login_at(initiator, port);
        }
        let mut model = Model::default();
        for op in ops {
            if op.login_again {
                bed.lu.nexus_lost(nexus(op.from));
                bed.login_at(op.from.0, op.from.1);
            }
            let key = match op.key {
                Key::Right => model.keys.get(&op.from).copied().unwrap_or(0),
                Key::This(k) => k,
            };
            let want = model.run(&op, key);
            let got = match send(&mut bed, &op, key) {
                Ok(_) => Ended::Good,
                Err(e) if e.status == Status::ReservationConflict => Ended::Conflict,
                Err(e) => {
                    prop_assert_eq!(e.sense.unwrap().key as u8, 5);
                    Ended::Illegal
                }
            };
            prop_assert_eq!(got, want, "{:?}", op);
            let aborted: BTreeSet<Nexus> = bed.effects.abort_tasks_of.iter().copied().collect();
            // Pairs that are registered and not logged in have no tasks.
            let want: BTreeSet<Nexus> = model
                .aborted
                .iter()
                .filter(|p| PAIRS.contains(p))
                .map(|p| nexus(*p))
                .collect();
            prop_assert_eq!(aborted, want);
            for p in PAIRS {
                let told: BTreeSet<_> =
                    bed.attentions(nexus(p)).iter().map(|s: &Sense| (s.asc, s.ascq)).collect();
                prop_assert_eq!(told, model.told.get(&p).cloned().unwrap_or_default(), "{:?}", p);
            }
            check(&mut bed, &model)?;
        }
    }
}
