//! Which channels belong together. Only logins and the ends of channels come here.

use crate::planted::{Bug, has};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use weir_proto_brp::login::family;
use weir_proto_brp::{Features, PortId};
use weir_proto_scsi::lu::Nexus;

/// Names a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionName {
    pub(crate) initiator: PortId,
    pub(crate) session: u64,
}

/// Names a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChannelName {
    pub(crate) session: SessionName,
    pub(crate) channel: u16,
}

/// Which other sessions of its initiator port a new one leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// None.
    None,
    /// Those of its family.
    Siblings,
    /// All.
    All,
}

impl Keep {
    /// What a login says, of what this port grants.
    pub(crate) fn of(granted: Features) -> Keep {
        match granted.has(Features::SIBLINGS) {
            true if has(Bug::FormerLivesStay) => Keep::All,
            true => Keep::Siblings,
            false if granted.has(Features::KEEP_OTHERS) => Keep::All,
            false => Keep::None,
        }
    }

    /// Whether a session stays when one named `new` is made.
    fn stays(self, old: &SessionName, new: &SessionName) -> bool {
        match self {
            Keep::None => false,
            Keep::Siblings => family(old.session) == family(new.session),
            Keep::All => true,
        }
    }
}

struct Session {
    nexus: Nexus,
    /// Where its channels begin, for spreading them over reactors.
    first: usize,
    /// Reactor of each channel, as an index.
    channels: BTreeMap<u16, usize>,
    /// Those that have a connection.
    connected: BTreeSet<u16>,
    /// Channels of other sessions that were to end when this one was made.
    replaces: Vec<(ChannelName, usize)>,
}

/// All sessions of a target port.
#[derive(Default)]
pub(crate) struct Sessions {
    table: Mutex<BTreeMap<SessionName, Session>>,
    made: AtomicUsize,
}

/// Whether a channel is on the table.
fn knows(t: &BTreeMap<SessionName, Session>, n: &ChannelName) -> bool {
    t.get(&n.session).is_some_and(|s| s.channels.contains_key(&n.channel))
}

/// Channels of other sessions that are to end when this one is made, each with its reactor; none when it is there.
fn others(
    t: &BTreeMap<SessionName, Session>,
    name: &SessionName,
    keep: Keep,
) -> Vec<(ChannelName, usize)> {
    if t.contains_key(name) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let ends = |n: &SessionName| n.initiator == name.initiator && !keep.stays(n, name);
    for (n, s) in t.iter().filter(|(n, _)| ends(n)) {
        let of = |(c, r): (&u16, &usize)| (ChannelName { session: *n, channel: *c }, *r);
        all.extend(s.channels.iter().map(of));
    }
    all
}

/// What a login found.
pub(crate) struct Joined {
    /// The session as a nexus of the logical units.
    pub(crate) nexus: Nexus,
    /// Index of the reactor that has the channel.
    pub(crate) reactor: usize,
    /// Channels of other sessions of this initiator port which are to end before this one is served: those that were there
    /// when the session was made, as long as they are known, whichever of its logins asks.
    pub(crate) others: Vec<(ChannelName, usize)>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionName, Session>> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Index of the reactor that has a channel, or that would get it.
    pub(crate) fn place(&self, name: &ChannelName, reactors: usize) -> usize {
        let t = self.lock();
        let known = t.get(&name.session).and_then(|s| s.channels.get(&name.channel));
        let spread = (name.session.session as usize).wrapping_add(usize::from(name.channel));
        known.copied().unwrap_or(spread % reactors.max(1))
    }

    /// Finds session and channel, or makes them; a session with a `new` nexus. New channels go to `wanted`; else
    /// `reactors` are spread over in turn.
    pub(crate) fn join(
        &self,
        name: ChannelName,
        reactors: usize,
        keep: Keep,
        wanted: Option<usize>,
        new: impl FnOnce() -> Nexus,
    ) -> Joined {
        let mut t = self.lock();
        let others = others(&t, &name.session, keep);
        let s = t.entry(name.session).or_insert_with(|| Session {
            nexus: new(),
            first: self.made.fetch_add(1, Ordering::Relaxed) + 1,
            channels: BTreeMap::new(),
            connected: BTreeSet::new(),
            replaces: others,
        });
        let turn = s.first.wrapping_add(usize::from(name.channel)) % reactors.max(1);
        let reactor = *s.channels.entry(name.channel).or_insert(wanted.unwrap_or(turn));
        let (nexus, others) = (s.nexus, std::mem::take(&mut s.replaces));
        let left: Vec<_> = others.into_iter().filter(|(n, _)| knows(&t, n)).collect();
        if let Some(s) = t.get_mut(&name.session) {
            s.replaces.clone_from(&left);
        }
        Joined { nexus, reactor, others: left }
    }

    /// How many connections a login of this channel will end.
    pub(crate) fn ends(&self, name: &ChannelName, keep: Keep) -> usize {
        let t = self.lock();
        let others = match t.get(&name.session) {
            Some(s) => s.replaces.clone(),
            None => others(&t, &name.session, keep),
        };
        let is_connected =
            |n: &ChannelName| t.get(&n.session).is_some_and(|s| s.connected.contains(&n.channel));
        let all = others.iter().map(|(n, _)| n).chain([name]);
        all.filter(|n| is_connected(n)).count()
    }

    /// A channel has a connection, or none any more.
    pub(crate) fn set_connected(&self, name: &ChannelName, is: bool) {
        if let Some(s) = self.lock().get_mut(&name.session) {
            match is {
                true => s.connected.insert(name.channel),
                false => s.connected.remove(&name.channel),
            };
        }
    }

    /// True while this channel belongs to this nexus.
    pub(crate) fn has(&self, name: &ChannelName, nexus: Nexus) -> bool {
        let t = self.lock();
        let session = t.get(&name.session).filter(|s| s.nexus == nexus);
        session.is_some_and(|s| s.channels.contains_key(&name.channel))
    }

    /// True while any of these is known.
    pub(crate) fn any(&self, names: &[(ChannelName, usize)]) -> bool {
        let t = self.lock();
        names.iter().any(|(n, _)| knows(&t, n))
    }

    /// A channel is over. Gives the nexus when its session is over by that.
    pub(crate) fn leave(&self, name: &ChannelName) -> Option<Nexus> {
        let mut t = self.lock();
        let s = t.get_mut(&name.session)?;
        s.channels.remove(&name.channel);
        s.connected.remove(&name.channel);
        let (nexus, over) = (s.nexus, s.channels.is_empty());
        if over {
            t.remove(&name.session);
        }
        over.then_some(nexus)
    }

    /// The port has ended. Gives the nexuses that it knew yet.
    pub(crate) fn end_all(&self) -> Vec<Nexus> {
        std::mem::take(&mut *self.lock()).into_values().map(|s| s.nexus).collect()
    }

    /// The lowest channel of a session: that which hears of events.
    pub(crate) fn is_first(&self, name: &ChannelName) -> bool {
        let t = self.lock();
        let first = t.get(&name.session).and_then(|s| s.channels.keys().next().copied());
        first == Some(name.channel)
    }

    /// (initiator port, session, channels) of all.
    pub(crate) fn list(&self) -> Vec<(PortId, u64, usize)> {
        let t = self.lock();
        t.iter().map(|(n, s)| (n.initiator, n.session, s.channels.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(port: u8, session: u64, channel: u16) -> ChannelName {
        let session = SessionName { initiator: PortId([port; 16]), session };
        ChannelName { session, channel }
    }

    fn join(s: &Sessions, name: ChannelName, reactors: usize, keep: bool) -> Joined {
        let keep = if keep { Keep::All } else { Keep::None };
        s.join(name, reactors, keep, None, || Nexus(name.session.session))
    }

    #[test]
    fn channels_stay_where_they_are_and_the_last_one_ends_the_session() {
        let s = Sessions::default();
        let a = join(&s, name(1, 7, 0), 2, false);
        let b = join(&s, name(1, 7, 1), 2, false);
        assert!(a.nexus == b.nexus && a.reactor != b.reactor && b.others.is_empty());
        assert_eq!(join(&s, name(1, 7, 0), 2, false).reactor, a.reactor);
        assert!(s.is_first(&name(1, 7, 0)) && !s.is_first(&name(1, 7, 1)));
        assert!(s.has(&name(1, 7, 1), a.nexus) && !s.has(&name(1, 7, 2), a.nexus));
        assert!(!s.has(&name(1, 7, 1), Nexus(a.nexus.0 + 1)));
        assert_eq!(s.leave(&name(1, 7, 0)), None);
        assert!(s.is_first(&name(1, 7, 1)));
        assert_eq!(s.leave(&name(1, 7, 1)), Some(a.nexus));
        assert_eq!(s.leave(&name(1, 7, 1)), None);
    }

    #[test]
    fn a_new_session_names_those_it_replaces() {
        let s = Sessions::default();
        join(&s, name(1, 7, 0), 1, false);
        join(&s, name(1, 7, 3), 1, false);
        join(&s, name(2, 9, 0), 1, false);
        let kept = join(&s, name(1, 8, 0), 1, true);
        assert!(kept.others.is_empty());
        let new = join(&s, name(1, 10, 0), 1, false);
        assert_eq!(new.others.len(), 3);
        assert!(s.any(&new.others));
        // So does each of its logins, as long as they are there.
        s.leave(&name(1, 7, 0));
        assert_eq!(join(&s, name(1, 10, 1), 1, true).others, new.others[1..]);
        for (n, _) in &new.others {
            s.leave(n);
        }
        assert!(!s.any(&new.others) && s.list().len() == 2);
        assert!(join(&s, name(1, 10, 0), 1, false).others.is_empty());
    }

    #[test]
    fn a_login_ends_the_connections_of_what_it_replaces() {
        let s = Sessions::default();
        for n in [name(1, 7, 0), name(1, 7, 1), name(1, 7, 2), name(2, 9, 0)] {
            join(&s, n, 1, false);
            s.set_connected(&n, n.channel != 2);
        }
        assert_eq!((s.ends(&name(1, 7, 0), Keep::None), s.ends(&name(1, 7, 2), Keep::None)), (1, 0));
        assert_eq!((s.ends(&name(1, 8, 0), Keep::None), s.ends(&name(1, 8, 0), Keep::All)), (2, 0));
        join(&s, name(1, 8, 0), 1, false);
        // Each login of the session says so, as long as they are there.
        assert_eq!((s.ends(&name(1, 8, 0), Keep::None), s.ends(&name(1, 8, 1), Keep::All)), (2, 2));
        s.set_connected(&name(1, 7, 0), false);
        s.leave(&name(1, 7, 1));
        assert_eq!((s.ends(&name(1, 8, 1), Keep::None), s.ends(&name(2, 9, 0), Keep::None)), (0, 1));
    }
}
