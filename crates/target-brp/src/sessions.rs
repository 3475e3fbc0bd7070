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

/// A channel in its place, by which it is told from another one that has its name later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) name: ChannelName,
    /// Its session as a nexus of the logical units.
    pub(crate) nexus: Nexus,
    /// Index of the reactor that has it.
    pub(crate) home: usize,
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
    replaces: Vec<Placed>,
}

/// All sessions of a target port.
#[derive(Default)]
pub(crate) struct Sessions {
    table: Mutex<BTreeMap<SessionName, Session>>,
    made: AtomicUsize,
}

/// Whether a channel is on the table.
fn knows(t: &BTreeMap<SessionName, Session>, c: &Placed) -> bool {
    let is_it =
        |s: &Session| s.nexus == c.nexus && s.channels.get(&c.name.channel) == Some(&c.home);
    t.get(&c.name.session).is_some_and(is_it)
}

/// Channels of other sessions that are to end when this one is made; none when it is there.
fn others(t: &BTreeMap<SessionName, Session>, name: &SessionName, keep: Keep) -> Vec<Placed> {
    if t.contains_key(name) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let ends = |n: &SessionName| n.initiator == name.initiator && !keep.stays(n, name);
    for (n, s) in t.iter().filter(|(n, _)| ends(n)) {
        let name = |channel: &u16| ChannelName { session: *n, channel: *channel };
        let of = |(c, home): (&u16, &usize)| Placed { name: name(c), nexus: s.nexus, home: *home };
        all.extend(s.channels.iter().map(of));
    }
    all
}

/// What a login found.
pub(crate) struct Joined {
    /// The channel.
    pub(crate) channel: Placed,
    /// Channels of other sessions of this initiator port which are to end before this one is served: those that were there
    /// when the session was made, as long as they are known, whichever of its logins asks.
    pub(crate) others: Vec<Placed>,
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
        let home = *s.channels.entry(name.channel).or_insert(wanted.unwrap_or(turn));
        let (nexus, others) = (s.nexus, std::mem::take(&mut s.replaces));
        let left: Vec<_> = others.into_iter().filter(|c| knows(&t, c)).collect();
        if let Some(s) = t.get_mut(&name.session) {
            s.replaces.clone_from(&left);
        }
        Joined { channel: Placed { name, nexus, home }, others: left }
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
        let all = others.iter().map(|c| &c.name).chain([name]);
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

    /// True while this channel is on the table.
    pub(crate) fn has(&self, channel: &Placed) -> bool {
        knows(&self.lock(), channel)
    }

    /// True while any of these is known.
    pub(crate) fn any(&self, some: &[Placed]) -> bool {
        let t = self.lock();
        some.iter().any(|c| knows(&t, c))
    }

    /// A channel is over. Its name may be another one's by now, which stays. Gives the nexus when its session is over by that.
    pub(crate) fn leave(&self, channel: &Placed) -> Option<Nexus> {
        let (mut t, name) = (self.lock(), &channel.name);
        if !knows(&t, channel) && !has(Bug::GoneByName) {
            return None;
        }
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
        assert!(
            a.channel.nexus == b.channel.nexus
                && a.channel.home != b.channel.home
                && b.others.is_empty()
        );
        assert_eq!(join(&s, name(1, 7, 0), 2, false).channel.home, a.channel.home);
        assert!(s.is_first(&name(1, 7, 0)) && !s.is_first(&name(1, 7, 1)));
        assert!(s.has(&b.channel) && !s.has(&Placed { name: name(1, 7, 2), ..b.channel }));
        assert_eq!(s.leave(&a.channel), None);
        assert!(s.is_first(&name(1, 7, 1)));
        assert_eq!(s.leave(&b.channel), Some(a.channel.nexus));
        assert_eq!(s.leave(&b.channel), None);
    }

    /// Whoever comes late to take its name off the table leaves another one's there: of another nexus, or in another place.
    #[test]
    fn a_channel_that_is_over_takes_none_with_it_that_has_its_name_by_now() {
        let s = Sessions::default();
        let new = |n: u64, wanted| s.join(name(1, 7, 0), 2, Keep::None, Some(wanted), || Nexus(n));
        let old = new(1, 0).channel;
        assert_eq!(s.leave(&old), Some(Nexus(1)));
        let again = new(2, 0).channel;
        assert!(s.leave(&old).is_none() && s.has(&again) && !s.has(&old));
        let beside = join(&s, name(1, 7, 1), 2, false).channel;
        assert_eq!(s.leave(&again), None);
        let elsewhere = new(3, 1).channel;
        assert_eq!((elsewhere.nexus, elsewhere.home), (Nexus(2), 1));
        assert!(s.leave(&again).is_none() && s.has(&elsewhere));
        assert!(s.leave(&elsewhere).is_none() && s.leave(&beside) == Some(Nexus(2)));
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
        s.leave(&new.others[0]);
        assert_eq!(new.others[0].name, name(1, 7, 0));
        assert_eq!(join(&s, name(1, 10, 1), 1, true).others, new.others[1..]);
        for c in &new.others {
            s.leave(c);
        }
        assert!(!s.any(&new.others) && s.list().len() == 2);
        assert!(join(&s, name(1, 10, 0), 1, false).others.is_empty());
    }

    /// A path of one life of a host ends what is left of its former lives, and leaves the other paths alone.
    #[test]
    fn siblings_stay_and_former_lives_end() {
        let s = Sessions::default();
        let of = |family: u64, n: u64| name(1, family << 32 | n, 0);
        join(&s, of(7, 1), 1, true);
        join(&s, of(7, 2), 1, true);
        join(&s, name(2, 7 << 32, 0), 1, true);
        let keep = Keep::of(Features::SIBLINGS.or(Features::KEEP_OTHERS));
        assert_eq!(s.ends(&of(8, 1), keep), 0, "they have no connections");
        let new = s.join(of(8, 1), 1, keep, None, || Nexus(1));
        assert_eq!(new.others.iter().map(|c| c.name).collect::<Vec<_>>(), [of(7, 1), of(7, 2)]);
        for c in new.others {
            s.leave(&c);
        }
        assert!(s.join(of(8, 2), 1, keep, None, || Nexus(2)).others.is_empty());
        assert_eq!(s.list().len(), 3);
        assert_eq!(Keep::of(Features::KEEP_OTHERS), Keep::All);
        assert_eq!(Keep::of(Features::USUAL), Keep::None);
    }

    #[test]
    fn a_login_ends_the_connections_of_what_it_replaces() {
        let s = Sessions::default();
        for n in [name(1, 7, 0), name(1, 7, 1), name(1, 7, 2), name(2, 9, 0)] {
            join(&s, n, 1, false);
            s.set_connected(&n, n.channel != 2);
        }
        assert_eq!(
            (s.ends(&name(1, 7, 0), Keep::None), s.ends(&name(1, 7, 2), Keep::None)),
            (1, 0)
        );
        assert_eq!((s.ends(&name(1, 8, 0), Keep::None), s.ends(&name(1, 8, 0), Keep::All)), (2, 0));
        let old = join(&s, name(1, 8, 0), 1, false).others;
        // Each login of the session says so, as long as they are there.
        assert_eq!((s.ends(&name(1, 8, 0), Keep::None), s.ends(&name(1, 8, 1), Keep::All)), (2, 2));
        s.set_connected(&name(1, 7, 0), false);
        assert_eq!(old[1].name, name(1, 7, 1));
        s.leave(&old[1]);
        assert_eq!(
            (s.ends(&name(1, 8, 1), Keep::None), s.ends(&name(2, 9, 0), Keep::None)),
            (0, 1)
        );
    }
}
