//! Sessions of a port, by initiator port. A login by the name of a session that is there ends that one first (RFC 7143 6.3.5).

use crate::conn::Conn;
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::target::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_iscsi::NO_TAG;
use weir_proto_iscsi::bhs::Response;
use weir_proto_scsi::lu::Nexus;
use weir_reactor::{now, sleep};
use weir_target_core::doubts::{Doubt, answers, ask_each};

/// How long reactors have for their part of a login.
const PATIENCE: Nanos = 5 * SECONDS;
/// How long a login waits for what a session that it replaces has with a device. Later writes of the host wait for the rest. Some
/// initiators give up a login after 5 s.
const DEVICES: Nanos = 2 * SECONDS;

/// How long a login waits to know whether its initiator is in its other sessions. One that sends for so long is.
const ALIVE: Nanos = 2 * SECONDS;

/// Sessions that may wait for a device without a place of their own at the port: of one initiator, and of all.
const LEFT: usize = 8;
const LEFT_OF_ALL: usize = 64;
/// The end of a stream comes right behind what was sent before: how long that may take where something came, and where nothing did.
const QUIET: Nanos = SECONDS / 4;
const STILL: Nanos = 20 * MILLIS;

/// An initiator port: the initiator's name, and its part of the session's name.
pub(crate) type Key = (String, [u8; 6]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Session {
    nexus: Nexus,
    tsih: u16,
    /// Where it is, or will be, served.
    reactor: u32,
    /// It is over, waits for a device, and has no place at the port any more.
    left: bool,
}

/// All sessions of a port. Those of one initiator port are in the order of their logins: all but the last are over.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Table>);

#[derive(Default)]
struct Table {
    all: BTreeMap<Key, Vec<Session>>,
    last: u16,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a session with this number.
    pub(crate) fn has(&self, tsih: u16) -> bool {
        self.lock().all.values().flatten().any(|s| s.tsih == tsih)
    }

    /// A session more. Gives its number, and those that it replaces.
    fn enter(&self, key: &Key, nexus: Nexus, reactor: u32) -> (u16, Vec<Session>) {
        let mut t = self.lock();
        let tsih = loop {
            t.last = t.last.wrapping_add(1);
            let n = t.last;
            if n != 0 && !t.all.values().flatten().any(|s| s.tsih == n) {
                break n;
            }
        };
        let own = t.all.entry(key.clone()).or_default();
        let old = own.clone();
        own.push(Session { nexus, tsih, reactor, left: false });
        (tsih, old)
    }

    /// No later login has replaced it.
    pub(crate) fn is_last(&self, key: &Key, nexus: Nexus) -> bool {
        self.lock().all.get(key).and_then(|own| own.last()).is_some_and(|s| s.nexus == nexus)
    }

    /// How many sessions of an initiator port have places.
    pub(crate) fn of(&self, key: &Key) -> usize {
        self.lock().all.get(key).map_or(0, |own| own.iter().filter(|s| !s.left).count())
    }

    /// A session that is over waits for a device: whether its place may go to another one. Each such keeps a descriptor and some
    /// memory, so there are not many.
    pub(crate) fn lets_go(&self, key: &Key, nexus: Nexus) -> bool {
        let mut t = self.lock();
        let left = |own: &Vec<Session>| own.iter().filter(|s| s.left).count();
        let of_all: usize = t.all.values().map(left).sum();
        let of_its: usize =
            t.all.iter().filter(|((n, _), _)| *n == key.0).map(|(_, o)| left(o)).sum();
        let own = t.all.get_mut(key).into_iter().flatten().find(|s| s.nexus == nexus);
        let Some(own) = own.filter(|_| of_all < LEFT_OF_ALL && of_its < LEFT) else { return false };
        own.left = true;
        true
    }

    /// Where other sessions of this initiator are served.
    fn reactors(&self, name: &str, but: Nexus) -> BTreeSet<u32> {
        let t = self.lock();
        let own = t.all.iter().filter(|((n, _), _)| n == name).flat_map(|(_, own)| own);
        own.filter(|s| s.nexus != but).map(|s| s.reactor).collect()
    }

    /// Any of these is there yet.
    fn has_any(&self, key: &Key, old: &[Session]) -> bool {
        let is_old = |s: &Session| old.iter().any(|o| o.nexus == s.nexus);
        self.lock().all.get(key).is_some_and(|own| own.iter().any(is_old))
    }

    fn leave(&self, key: &Key, nexus: Nexus) {
        let mut t = self.lock();
        if let Some(own) = t.all.get_mut(key) {
            own.retain(|s| s.nexus != nexus);
            if own.is_empty() {
                t.all.remove(key);
            }
        }
    }

    /// Initiators, with their sessions.
    pub(crate) fn list(&self) -> Vec<(String, usize)> {
        let mut found = BTreeMap::<String, usize>::new();
        for ((name, _), own) in &self.lock().all {
            *found.entry(name.clone()).or_default() += own.len();
        }
        found.into_iter().collect()
    }

    /// Those that are left when the port ends.
    pub(crate) fn clear(&self) -> Vec<Nexus> {
        let all = std::mem::take(&mut self.lock().all);
        all.into_values().flatten().map(|s| s.nexus).collect()
    }
}

/// A session's place among all. With it goes the nexus.
pub(crate) struct Member {
    shared: Arc<Shared>,
    pub(crate) key: Key,
    pub(crate) nexus: Nexus,
    pub(crate) tsih: u16,
}

impl Drop for Member {
    fn drop(&mut self) {
        if !has(Bug::SessionStays) {
            self.shared.sessions.leave(&self.key, self.nexus);
        }
        self.shared.access.nexus_lost(self.nexus);
    }
}

/// A session that is to end does not know of it yet.
struct Unaware(Arc<AtomicUsize>);

impl Drop for Unaware {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enters a session that `reactor` will serve, and ends those that it replaces. None of their commands that has not begun will have
/// an effect. `None`: a later login has replaced this one, or a reactor does not answer.
pub(crate) async fn enter(
    shared: &Arc<Shared>,
    key: Key,
    reactor: u32,
    is_there: impl Fn() -> bool,
) -> Option<Member> {
    let nexus = shared.spread.new_nexus();
    let (tsih, mut old) = shared.sessions.enter(&key, nexus, reactor);
    if has(Bug::ReplacedGoesOn) {
        old.clear();
    }
    let member = Member { shared: shared.clone(), key, nexus, tsih };
    let unaware = Arc::new(AtomicUsize::new(old.len()));
    let (target, reactors) = (shared.spread.id(), shared.spread.reactors());
    for s in old.iter().copied() {
        let told = Unaware(unaware.clone());
        // A reactor that has ended has no sessions.
        let Some(there) = reactors.iter().find(|h| h.id() == s.reactor) else { continue };
        there.run(move || {
            if let Some(port) = Port::local(target) {
                let all = port.conns();
                all.iter().filter(|c| c.nexus() == s.nexus).for_each(|c| c.replaced());
            }
            drop(told);
        });
    }
    let begin = now();
    let are_unaware = || unaware.load(Ordering::SeqCst) > 0;
    let is_last = || shared.sessions.is_last(&member.key, nexus);
    let waits = || {
        let waited = now() - begin;
        let is_left = || shared.sessions.has_any(&member.key, &old);
        are_unaware() && waited < PATIENCE || waited < DEVICES && is_left()
    };
    while waits() && is_last() && is_there() {
        sleep(MILLIS).await;
    }
    if are_unaware() || !is_last() || !is_there() {
        return None;
    }
    // A reactor that stands still makes a login fail, and not wait for ever.
    if !after_former(shared, &member).await {
        return None;
    }
    // What they had reserved for as long as they last is free, but for units of which a device has writes of theirs yet.
    old.iter().for_each(|s| shared.access.nexus_over(s.nexus));
    Some(member)
}

/// A question whether the initiator of another session is there.
struct Question {
    about: Rc<Conn>,
    doubt: Doubt,
    /// What had come when it was asked, and by when the last of it did.
    before: u64,
    came: u64,
    last: Nanos,
}

impl Question {
    fn new(about: Rc<Conn>) -> Question {
        let doubt = about.doubts.raise(about.handed.get());
        // Its system acknowledges that, or answers with a reset.
        about.push(Response::ping(NO_TAG), Vec::new());
        let came = about.received.get();
        Question { about, doubt, before: came, came, last: now() }
    }

    fn is_answered(&mut self) -> bool {
        let c = &self.about;
        if c.stream.has_ended() {
            c.replaced();
        }
        if c.is_over() {
            // It may not know itself yet.
            c.parts();
            return true;
        }
        let came = c.received.get();
        if came != self.came {
            (self.came, self.last) = (came, now());
        }
        // One that takes nothing acknowledges nothing; the end of one that is gone would be here.
        let quiet = if came != self.before || c.has_put_off() { QUIET } else { STILL };
        self.doubt.is_refuted(c.handed.get(), c.stream.unacknowledged())
            || now() - self.last >= quiet
    }
}

/// Waits until it is known of all other sessions of this initiator whether it is there; those of which it is not end. Not all
/// initiators give their sessions the same name in each life, and what a former one left would come upon what this one writes.
/// False: a reactor does not answer.
async fn after_former(shared: &Shared, member: &Member) -> bool {
    let target = shared.spread.id();
    let (name, own) = (member.key.0.clone(), member.nexus);
    let there = shared.sessions.reactors(&name, own);
    let mut reactors = shared.spread.reactors();
    reactors.retain(|r| there.contains(&r.id()));
    let ask = move || async move {
        let conns = Port::local(target).map(|p| p.conns()).unwrap_or_default();
        let theirs = |c: &Rc<Conn>| c.initiator() == name && c.nexus() != own;
        let all = conns.into_iter().filter(theirs).map(Question::new).collect();
        answers(all, ALIVE, Question::is_answered).await;
        true
    };
    ask_each(reactors, PATIENCE, ask).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_replaces_those_of_its_initiator_port() {
        let s = Sessions::default();
        let a = ("iqn.2026-01.org.example:a".to_owned(), [0, 2, 0x3d, 0, 0, 1]);
        let b = (a.0.clone(), [0, 2, 0x3d, 0, 0, 2]);
        let (one, old) = s.enter(&a, Nexus(1), 0);
        assert!(old.is_empty() && one != 0 && s.has(one) && s.is_last(&a, Nexus(1)));
        assert_eq!((s.of(&a), s.reactors(&a.0, Nexus(1)).len()), (1, 0));
        assert!(s.enter(&b, Nexus(2), 0).1.is_empty(), "another part of the name is another port");
        let (two, old) = s.enter(&a, Nexus(3), 1);
        assert!(two != one && old.len() == 1 && old[0].nexus == Nexus(1));
        assert!(!s.is_last(&a, Nexus(1)) && s.is_last(&a, Nexus(3)) && s.has_any(&a, &old));
        assert_eq!(s.list(), [(a.0.clone(), 3)]);
        s.leave(&a, Nexus(1));
        assert!(!s.has_any(&a, &old) && !s.has(one) && s.has(two));
        // It waits for a device, and its place is another's.
        assert!(s.lets_go(&a, Nexus(3)) && s.of(&a) == 0 && s.has(two) && !s.lets_go(&a, Nexus(9)));
        s.leave(&a, Nexus(3));
        s.leave(&b, Nexus(2));
        assert!(s.list().is_empty() && s.clear().is_empty());
    }
}
