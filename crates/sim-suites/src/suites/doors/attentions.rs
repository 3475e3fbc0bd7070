//! Unit attentions that are due: each nexus is told of what concerns it before anything else is done for it, and of nothing else.
//!
//! What raised an attention is known by the host that did it, from before it asked until it was answered. In between it may
//! be pending or not; afterwards it is due, unless it has been told meanwhile. A command that runs although one is due is
//! suspected; it is cleared when another command that was under way at the time brings the attention.

use super::spc::{Code, Pair};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::Nanos;

/// Names a command under way.
pub(super) type Flight = u64;

#[derive(Debug, Default)]
struct Pending {
    /// What may raise it is under way.
    open: u32,
    /// It is pending since then at the latest.
    due: Option<Nanos>,
    /// It may be pending.
    maybe: bool,
    told: Option<Nanos>,
    /// When what raises it was last over.
    raised: Nanos,
}

struct Suspicion {
    of: (Pair, Code),
    /// Commands that may bring it yet.
    waits: BTreeSet<Flight>,
    what: String,
}

/// The unit attentions of a unit.
#[derive(Default)]
pub(super) struct Attentions {
    pending: BTreeMap<(Pair, Code), Pending>,
    flights: BTreeMap<Flight, (Pair, Nanos)>,
    suspicions: Vec<Suspicion>,
    /// When a nexus may last have lost one without a word.
    doubts: BTreeMap<Pair, Nanos>,
    next: Flight,
    /// Some that were due have been told.
    pub(super) met: u64,
}

/// Attentions that no harm is in when they are told without need.
fn harmless(code: Code) -> bool {
    code >> 8 != 0x2a || matches!(code, 0x2a01)
}

impl Attentions {
    fn at(&mut self, who: Pair, code: Code) -> &mut Pending {
        self.pending.entry((who, code)).or_default()
    }

    /// Something that may raise it begins.
    pub(super) fn begin(&mut self, who: Pair, code: Code) {
        self.at(who, code).open += 1;
    }

    /// It is over; it began at `began`. With `sure` the attention has been raised.
    pub(super) fn end(&mut self, who: Pair, code: Code, sure: bool, began: Nanos, now: Nanos) {
        // What was raised at once may have been lost since.
        let sure = sure && self.doubts.get(&who).is_none_or(|d| *d < began);
        let p = self.at(who, code);
        p.open = p.open.saturating_sub(1);
        p.raised = now;
        match sure && p.told.is_none_or(|t| t < began) {
            true => p.due = Some(p.due.unwrap_or(now)),
            false => p.maybe = true,
        }
    }

    /// What is pending for a nexus may be or not from here on.
    pub(super) fn doubt(&mut self, who: Pair, now: Nanos) {
        self.doubts.insert(who, now);
        for (_, p) in self.pending.iter_mut().filter(|((w, _), _)| *w == who) {
            p.maybe |= p.due.take().is_some();
        }
        self.suspicions.retain(|s| s.of.0 != who);
    }

    /// A command is sent.
    pub(super) fn depart(&mut self, who: Pair, now: Nanos) -> Flight {
        self.next += 1;
        self.flights.insert(self.next, (who, now));
        self.next
    }

    /// When a command under way was sent.
    pub(super) fn sent(&self, flight: Flight) -> Option<Nanos> {
        self.flights.get(&flight).map(|(_, at)| *at)
    }

    /// A command ended with a unit attention.
    ///
    /// # Errors
    /// There was none to tell.
    pub(super) fn told(&mut self, flight: Flight, code: Code, now: Nanos) -> Result<(), String> {
        let Some((who, sent)) = self.flights.remove(&flight) else { return Ok(()) };
        let p = self.pending.entry((who, code)).or_default();
        let possible = p.open > 0 || p.maybe || p.due.is_some();
        self.met += u64::from(p.due.is_some());
        p.due = None;
        p.told = Some(now);
        p.maybe = p.open > 0 || sent <= p.raised;
        self.suspicions.retain(|s| s.of != (who, code));
        self.cleared(flight)?;
        match possible || harmless(code) {
            true => Ok(()),
            false => Err(format!("nexus {who:?} is told {code:04x}, which nothing has raised")),
        }
    }

    /// It may be pending: what raises it is not known.
    pub(super) fn perhaps(&mut self, who: Pair, code: Code) {
        self.at(who, code).maybe = true;
    }

    /// One that was told stays until it is fetched: the unit clears none (UA_INTLCK_CTRL).
    pub(super) fn stays(&mut self, who: Pair, code: Code) {
        self.at(who, code).maybe = true;
    }

    /// One that stayed was fetched by a question of `asked`.
    pub(super) fn fetched(&mut self, who: Pair, code: Code, asked: Nanos) {
        let p = self.at(who, code);
        p.maybe = p.open > 0 || asked <= p.raised;
    }

    /// A command ran.
    ///
    /// # Errors
    /// An attention was due.
    pub(super) fn ran(&mut self, flight: Flight, now: Nanos) -> Result<(), String> {
        let Some((who, sent)) = self.flights.remove(&flight) else { return Ok(()) };
        let waits: BTreeSet<Flight> =
            self.flights.iter().filter(|(_, (w, _))| *w == who).map(|(f, _)| *f).collect();
        for ((w, code), p) in &self.pending {
            if *w == who && p.due.is_some_and(|d| d < sent) {
                let what = format!(
                    "a command of nexus {who:?} of {sent}..{now} ran though attention {code:04x} was due since {:?}",
                    p.due
                );
                self.suspicions.push(Suspicion { of: (who, *code), waits: waits.clone(), what });
            }
        }
        self.cleared(flight)
    }

    /// A command ended without a word: it may have taken an attention with it.
    pub(super) fn vanished(&mut self, flight: Flight, now: Nanos) {
        if let Some((who, _)) = self.flights.remove(&flight) {
            self.doubt(who, now);
        }
    }

    /// A command brings nothing more.
    fn cleared(&mut self, flight: Flight) -> Result<(), String> {
        for s in &mut self.suspicions {
            s.waits.remove(&flight);
        }
        match self.suspicions.iter().find(|s| s.waits.is_empty()) {
            Some(s) => Err(s.what.clone()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Pair = (1, 1);

    #[test]
    fn what_is_due_is_demanded_once() {
        let mut a = Attentions::default();
        a.begin(WHO, 0x2a05);
        a.end(WHO, 0x2a05, true, 10, 20);
        let (x, y) = (a.depart(WHO, 30), a.depart(WHO, 30));
        a.ran(x, 40).expect("the other may bring it");
        a.told(y, 0x2a05, 41).expect("it was due");
        let z = a.depart(WHO, 50);
        assert!(a.told(z, 0x2a05, 60).is_err(), "told twice");
        a.stays(WHO, 0x2a05);
        let z = a.depart(WHO, 50);
        a.told(z, 0x2a05, 60).expect("it stayed");
        a.stays(WHO, 0x2a05);
        a.fetched(WHO, 0x2a05, 60);
        let z = a.depart(WHO, 60);
        assert!(a.told(z, 0x2a05, 61).is_err(), "told although it was fetched");
        a.begin(WHO, 0x2a04);
        a.end(WHO, 0x2a04, true, 61, 62);
        let z = a.depart(WHO, 70);
        assert!(a.ran(z, 80).is_err(), "not told at all");
    }
}
