//! Reservation commands of several hosts at once: which orders explain what they were answered?
//!
//! A command takes effect at one moment between its start and its answer. Every state that some order of those
//! under way leads to is kept, with what each of them would be answered in it; an answer strikes out the states
//! that it does not fit. When none is left, no order explains the answers.

use super::spc::{Act, Code, Deed, Pair, Said, Spc};
use std::collections::{BTreeMap, BTreeSet};

/// Names a command under way.
pub(super) type ActId = u64;

/// More states than that are not kept: nothing more is said of the unit.
const MOST: usize = 400;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Branch {
    state: Spc,
    /// Commands under way that have taken effect.
    done: BTreeMap<ActId, Deed>,
}

/// What is known of a command that was answered.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Unit attentions, and whether they were raised for sure.
    pub(super) told: Vec<(Pair, Code, bool)>,
    /// Whose tasks were aborted for sure.
    pub(super) aborted: Vec<Pair>,
}

/// The states that a unit's reservations may be in.
#[derive(Debug)]
pub(super) struct Orders {
    branches: BTreeSet<Branch>,
    open: BTreeMap<ActId, (Pair, Act)>,
    next: ActId,
    /// Resets that nobody waits for any more, each with the first command begun since. They end the SPC-2 reservation that is there
    /// all the same.
    left: BTreeMap<ActId, ActId>,
    /// There were too many: anything may be.
    lost: bool,
}

impl Default for Orders {
    fn default() -> Orders {
        let branches = BTreeSet::from([Branch::default()]);
        Orders { branches, open: BTreeMap::new(), next: 1, left: BTreeMap::new(), lost: false }
    }
}

impl Orders {
    /// Commands under way, or of unknown end.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Its end is not known yet.
    pub(super) fn is_open(&self, id: ActId) -> bool {
        self.open.contains_key(&id)
    }

    /// Anything may be.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// One of the states, to choose a command that makes sense.
    pub(super) fn guess(&self) -> Spc {
        self.branches.first().map(|b| b.state.clone()).unwrap_or_default()
    }

    /// All states.
    pub(super) fn states(&self) -> impl Iterator<Item = &Spc> {
        self.branches.iter().map(|b| &b.state)
    }

    /// An SPC-2 reservation may be this nexus's now, or be when what is under way has ended.
    pub(super) fn may_be_held_by(&self, who: Pair) -> bool {
        let asks = |(by, act): &(Pair, Act)| (*by, act) == (who, &Act::Reserve6);
        self.states().any(|s| s.old == Some(who)) || self.open.values().any(asks)
    }

    /// This nexus may be lost at any time.
    pub(super) fn may_be_lost(&self, who: Pair) -> bool {
        self.open.values().any(|(by, act)| (*by, act) == (who, &Act::Lost))
    }

    /// The attentions that a command under way may raise.
    pub(super) fn may_tell(&self, id: ActId) -> BTreeSet<(Pair, Code)> {
        let told = self.branches.iter().filter_map(|b| b.done.get(&id));
        told.flat_map(|d| d.told.iter().copied()).collect()
    }

    /// A command is about to be sent. Gives its number.
    pub(super) fn begin(&mut self, by: Pair, act: Act) -> ActId {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, (by, act));
        self.spread();
        id
    }

    /// Lets every command under way take effect in every order.
    fn spread(&mut self) {
        let mut look: Vec<Branch> = self.branches.iter().cloned().collect();
        while let Some(b) = look.pop() {
            for (id, (by, act)) in &self.open {
                if b.done.contains_key(id) {
                    continue;
                }
                let mut c = b.clone();
                let deed = c.state.run(*by, act);
                c.done.insert(*id, deed);
                if !self.branches.contains(&c) {
                    self.branches.insert(c.clone());
                    look.push(c);
                }
            }
            if self.branches.len() > MOST {
                self.lost = true;
                self.branches.clear();
                return;
            }
        }
    }

    fn keep(
        &mut self,
        id: ActId,
        fits: impl Fn(&Branch) -> bool,
        what: &str,
    ) -> Result<(), String> {
        let of = self.open.remove(&id);
        if self.lost {
            return Ok(());
        }
        let (left, mut gone): (Vec<Branch>, Vec<Branch>) =
            std::mem::take(&mut self.branches).into_iter().partition(fits);
        if left.is_empty() {
            gone.truncate(3);
            return Err(format!(
                "{of:?} {what}, which no order of commands explains; states: {gone:?}"
            ));
        }
        self.branches = left
            .into_iter()
            .map(|mut b| {
                b.done.remove(&id);
                b
            })
            .collect();
        if !self.is_reserved() {
            std::mem::take(&mut self.left).into_keys().for_each(|id| self.settled(id));
        }
        Ok(())
    }

    /// A unit was reserved by this command: no reset that was left before it ends that.
    pub(super) fn reserved_by(&mut self, id: ActId) {
        let before: Vec<ActId> =
            self.left.iter().filter(|(_, since)| **since <= id).map(|(left, _)| *left).collect();
        for left in before {
            self.left.remove(&left);
            self.settled(left);
        }
    }

    /// An SPC-2 reservation may be there.
    fn is_reserved(&self) -> bool {
        self.states().any(|s| s.old.is_some())
    }

    /// The command was answered.
    ///
    /// # Errors
    /// No order explains that.
    pub(super) fn answered(&mut self, id: ActId, said: &Said) -> Result<Known, String> {
        let deeds: Vec<Deed> = self
            .branches
            .iter()
            .filter_map(|b| b.done.get(&id).filter(|d| d.said == *said).cloned())
            .collect();
        self.keep(
            id,
            |b| b.done.get(&id).is_some_and(|d| d.said == *said),
            &format!("was answered {said:?}"),
        )?;
        let Some(first) = deeds.first() else { return Ok(Known::default()) };
        let all: BTreeSet<(Pair, Code)> =
            deeds.iter().flat_map(|d| d.told.iter().copied()).collect();
        Ok(Known {
            told: all
                .into_iter()
                .map(|(p, c)| (p, c, deeds.iter().all(|d| d.told.contains(&(p, c)))))
                .collect(),
            aborted: first
                .aborted
                .iter()
                .copied()
                .filter(|p| deeds.iter().all(|d| d.aborted.contains(p)))
                .collect(),
        })
    }

    /// The command was refused before it had any effect.
    ///
    /// # Errors
    /// It had one: what was answered since says so.
    pub(super) fn refused(&mut self, id: ActId) -> Result<(), String> {
        self.keep(id, |b| !b.done.contains_key(&id), "was refused")
    }

    /// The command has taken effect by now or never will, nobody knows which.
    pub(super) fn settled(&mut self, id: ActId) {
        if self.open.contains_key(&id) {
            let _ = self.keep(id, |_| true, "is over");
        }
    }

    /// As [`settled`](Orders::settled), for all that a nexus has under way, but for what goes on without it.
    pub(super) fn settle_all_of(&mut self, by: Pair) {
        let is_its = |(_, (p, _)): &(&ActId, &(Pair, Act))| *p == by;
        let all: Vec<(ActId, bool)> =
            self.open.iter().filter(is_its).map(|(i, (_, act))| (*i, *act == Act::Reset)).collect();
        for (id, is_reset) in all {
            match is_reset && self.is_reserved() {
                true => drop(self.left.entry(id).or_insert(self.next)),
                false => self.settled(id),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_are_explained_by_either_order_but_not_by_both() {
        let (a, b) = ((1, 1), (2, 1));
        let register = |p, new| Act::Register { key: 0, new, ignore: false, pairs: vec![p] };
        let mut o = Orders::default();
        for (p, k) in [(a, 1), (b, 2)] {
            let id = o.begin(p, register(p, k));
            o.answered(id, &Said::Good).expect("explained");
        }
        let x = o.begin(a, Act::Reserve { key: 1, kind: 3 });
        let y = o.begin(b, Act::Reserve { key: 2, kind: 3 });
        o.answered(x, &Said::Good).expect("a was first");
        assert!(o.answered(y, &Said::Good).is_err(), "both hold it");
    }

    #[test]
    fn a_refused_command_must_have_had_no_effect() {
        let p = (1, 1);
        let mut o = Orders::default();
        let register = Act::Register { key: 0, new: 5, ignore: false, pairs: vec![p] };
        let id = o.begin(p, register);
        o.refused(id).expect("nothing is known against it");
        let id = o.begin(p, Act::ReadKeys);
        assert!(o.answered(id, &Said::Keys(1, vec![5])).is_err());
    }
}
