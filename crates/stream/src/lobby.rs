//! Peers between their connection and their being let in: bounded, and shared out among the addresses that they come from.

use crate::source;
use std::net::IpAddr;
use weir_reactor::TaskId;

/// One that waits.
struct Entry<R> {
    number: u64,
    from: IpAddr,
    /// Reads what it sends.
    task: TaskId,
    /// What it sent, when that is whole.
    request: Option<R>,
}

/// Peers that wait. When it is full, one of those that have most there goes: the first to come of them. They are let in by
/// turns of their addresses.
pub struct Lobby<R> {
    most: usize,
    /// In the order in which they came.
    entries: Vec<Entry<R>>,
    /// Addresses in it that had a turn, and when that was.
    turns: Vec<(IpAddr, u64)>,
    turn: u64,
}

impl<R> Lobby<R> {
    /// For `most` peers, one at least.
    #[must_use]
    pub fn new(most: usize) -> Lobby<R> {
        Lobby { most: most.max(1), entries: Vec::new(), turns: Vec::new(), turn: 0 }
    }

    /// Takes a peer in. Gives the task of the one that had to go for that, if it still reads.
    #[must_use]
    pub fn enter(&mut self, number: u64, from: IpAddr, task: TaskId) -> Option<TaskId> {
        self.entries.push(Entry { number, from: source(from), task, request: None });
        if self.entries.len() <= self.most {
            return None;
        }
        self.send_one_away(1)
    }

    /// There is no descriptor for the next one: one goes of an address that has several here. Gives its task, if it still reads.
    pub fn make_room(&mut self) -> Option<TaskId> {
        self.send_one_away(2)
    }

    /// The first of an address that has most here, if that is so many.
    fn send_one_away(&mut self, least: usize) -> Option<TaskId> {
        // Of each address how many there are, and the first.
        let mut counts: Vec<(IpAddr, usize, usize)> = Vec::new();
        for (i, e) in self.entries.iter().enumerate() {
            match counts.iter_mut().find(|c| c.0 == e.from) {
                Some(c) => c.1 += 1,
                None => counts.push((e.from, 1, i)),
            }
        }
        let most = counts.iter().map(|c| c.1).max().filter(|most| *most >= least)?;
        let (.., first) = *counts.iter().find(|c| c.1 == most)?;
        let gone = self.entries.remove(first);
        gone.request.is_none().then_some(gone.task)
    }

    /// A peer's request is there. It stays where it is; false if it had to go.
    pub fn ready(&mut self, number: u64, request: R) -> bool {
        match self.entries.iter_mut().find(|e| e.number == number) {
            Some(e) => {
                e.request = Some(request);
                true
            }
            None => false,
        }
    }

    /// A peer sent nothing that is a request, or not in time.
    pub fn leave(&mut self, number: u64) {
        self.entries.retain(|e| e.number != number);
    }

    /// Ends all. Gives the tasks of those that still read.
    #[must_use]
    pub fn clear(&mut self) -> Vec<TaskId> {
        let all = self.entries.drain(..).filter(|e| e.request.is_none());
        all.map(|e| e.task).collect()
    }

    /// Whoever's address was let in least recently, if one is ready.
    pub fn admit(&mut self) -> Option<R> {
        let turns = &self.turns;
        let last = |from: IpAddr| turns.iter().find(|(a, _)| *a == from).map_or(0, |(_, t)| *t);
        let ready = self.entries.iter().enumerate().filter(|(_, e)| e.request.is_some());
        let (i, _) = ready.min_by_key(|(_, e)| last(e.from))?;
        let e = self.entries.remove(i);
        self.turn += 1;
        let entries = &self.entries;
        self.turns.retain(|(a, _)| *a != e.from && entries.iter().any(|o| o.from == *a));
        self.turns.push((e.from, self.turn));
        e.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    /// With tasks to name; what they are makes no difference here.
    fn with_tasks(check: impl Fn(&mut dyn FnMut() -> TaskId) + 'static) {
        let world = weir_sim::World::new(1);
        world.node("here").enter(|| check(&mut || weir_reactor::spawn_task(async {})));
    }

    #[test]
    fn who_has_most_goes() {
        with_tasks(|task| {
            let mut l = Lobby::new(4);
            let (a, b) = (host(1), host(2));
            assert!(l.enter(0, b, task()).is_none());
            for n in 1..4 {
                assert!(l.enter(n, a, task()).is_none());
            }
            for n in 4..50 {
                assert!(l.enter(n, a, task()).is_some());
            }
            assert!(l.enter(50, b, task()).is_some());
            assert!(l.ready(0, "b") && l.ready(50, "b again") && !l.ready(1, "gone"));
            assert!(l.ready(49, "a"));
            assert_eq!(
                [l.admit(), l.admit(), l.admit(), l.admit()],
                [Some("b"), Some("a"), Some("b again"), None]
            );
        });
    }

    #[test]
    fn room_is_made_by_a_crowd_only() {
        with_tasks(|task| {
            let mut l: Lobby<()> = Lobby::new(8);
            let (a, b) = (host(1), host(2));
            assert!(l.enter(0, b, task()).is_none() && l.enter(1, a, task()).is_none());
            assert!(l.make_room().is_none(), "each is the only one of its address");
            assert!(l.enter(2, a, task()).is_none());
            assert!(l.make_room().is_some());
            assert!(!l.ready(1, ()) && l.ready(0, ()) && l.ready(2, ()));
        });
    }

    #[test]
    fn addresses_take_turns() {
        with_tasks(|task| {
            let mut l = Lobby::new(100);
            for n in 0..90 {
                assert!(l.enter(n, host(1), task()).is_none());
                assert!(l.ready(n, 1));
            }
            assert_eq!(l.admit(), Some(1));
            for n in 90..93 {
                assert!(l.enter(n, host(2), task()).is_none());
                assert!(l.ready(n, 2));
            }
            let next: Vec<_> = (0..7).filter_map(|_| l.admit()).collect();
            assert_eq!(next, [2, 1, 2, 1, 2, 1, 1]);
            l.leave(60);
            assert_eq!(std::iter::from_fn(|| l.admit()).count(), 84);
        });
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let a: IpAddr = "2001:db8:1:2:3::4".parse().expect("an address");
        let b: IpAddr = "2001:db8:1:2::1".parse().expect("an address");
        let c: IpAddr = "2001:db8:1:3::1".parse().expect("an address");
        assert_eq!(source(a), source(b));
        assert_ne!(source(a), source(c));
        assert_eq!(source("::ffff:192.0.2.1".parse().expect("an address")), host(1));
    }
}
