//! Cluster software: what is registered, reserved, preempted and reset, and when.

use super::{Host, Place, Way};
use crate::suites::doors::node::BRP;
use crate::suites::doors::path::Path;
use crate::suites::doors::spc::{Act, KINDS, Pair};
use std::rc::Rc;
use weir_base::{Nanos, Prng};
use weir_proto_srp::TaskFunction;
use weir_reactor::sleep;

impl Host {
    /// Registers, reserves, preempts and resets, until it is stopped.
    pub(in crate::suites::doors) async fn cluster(
        self: Rc<Self>,
        mut rng: Prng,
        pause: Nanos,
        times: u64,
    ) {
        for _ in 0..times {
            if self.over() {
                break;
            }
            sleep(rng.below(pause) + 1).await;
            if let Some(p) = self.choose(&mut rng).await
                && let Way::Srp(path) = &p.way
            {
                self.govern(path, &p, &mut rng).await;
            }
        }
        self.running.set(self.running.get() - 1);
    }

    async fn govern(&self, path: &Path, p: &Place, rng: &mut Prng) {
        let j = &self.judge;
        match rng.below(40) {
            0 | 1 => path.manage(p.volume, p.lun, TaskFunction::LunReset).await,
            2 => path.manage(p.volume, p.lun, TaskFunction::ClearTaskSet).await,
            3 => path.manage(p.volume, p.lun, TaskFunction::AbortTaskSet).await,
            4 => path.drop_one(),
            5 => {
                let (interlock, tas) = (rng.chance(1, 2), rng.chance(1, 2));
                path.mode_select(p.volume, p.lun, interlock, tas).await;
            }
            _ => {
                if j.with(p.volume, |b| b.orders.open() >= 3) {
                    return;
                }
                let act = self.think_of(path.pair(), p.volume, rng);
                let port = match &act {
                    Act::Move { to, .. } => to.1,
                    _ => 0,
                };
                // One that waits for the end of others is over for its host once it is aborted: what has its tag then is
                // another command, and may be aborted, too.
                let twice = matches!(act, Act::Preempt { abort: true, .. }) && rng.chance(1, 3);
                if twice {
                    path.hurry(3);
                }
                path.act(p.volume, p.lun, act, (rng.chance(1, 2), port)).await;
                for _ in 0..if twice { 2 } else { 0 } {
                    self.request(p, rng).await;
                }
            }
        }
    }

    /// A command that makes sense, more or less.
    fn think_of(&self, me: Pair, volume: u32, rng: &mut Prng) -> Act {
        let state = self.judge.with(volume, |b| b.orders.guess());
        let mine = state.keys.get(&me).copied();
        let fresh = match rng.chance(1, 3) {
            // Shared by hosts, so that a preemption hits several.
            true => 0xaaaa,
            false => u64::from(me.0) << 8 | u64::from(me.1),
        };
        let key = if rng.chance(1, 20) { 0xbad } else { mine.unwrap_or(0) };
        let kind = KINDS[rng.below(6) as usize];
        let Some(_) = mine else {
            let pairs = match rng.chance(1, 4) {
                true => {
                    let others = (1..=BRP).filter(|p| *p != me.1).map(|p| (me.0, p));
                    others.chain([me]).collect()
                }
                false => vec![me],
            };
            return match rng.below(10) {
                0 => Act::Reserve6,
                1 => Act::Release6,
                2 => Act::ReadKeys,
                3 => Act::Reserve { key, kind },
                n => Act::Register { key, new: fresh, ignore: n < 6, pairs },
            };
        };
        let others: Vec<Pair> = state.keys.keys().copied().filter(|p| *p != me).collect();
        let other =
            (!others.is_empty()).then(|| others[rng.below(others.len().max(1) as u64) as usize]);
        let victim = other.map_or(0xbad, |o| state.keys[&o]);
        let victim = match state.held {
            Some((7 | 8, _)) if rng.chance(1, 2) => 0,
            _ => victim,
        };
        match rng.below(20) {
            0..=5 if state.held.is_none() => Act::Reserve { key, kind },
            0 | 1 => Act::Release { key, kind: state.held.map_or(kind, |h| h.0) },
            2..=6 => Act::Preempt { key, victim, kind, abort: true },
            7 | 8 => Act::Preempt { key, victim, kind, abort: false },
            9 => Act::Clear { key },
            10 => Act::Register { key, new: 0, ignore: false, pairs: vec![me] },
            11 => Act::Register { key, new: fresh, ignore: rng.chance(1, 2), pairs: vec![me] },
            12 => {
                let all = &self.judge.paths;
                let to = all[rng.below(all.len() as u64) as usize].pair;
                Act::Move { key, new: 0x77, to, leave: rng.chance(1, 2) }
            }
            13 => Act::Release { key, kind },
            14..=16 => Act::ReadKeys,
            17 | 18 => Act::ReadReservation,
            _ => Act::Reserve { key, kind },
        }
    }
}
