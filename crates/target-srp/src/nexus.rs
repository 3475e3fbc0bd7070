//! The I_T nexus machine: which channels belong together.
//!
//! A nexus is an initiator port at a target port, whatever number of channels. Hosts on `siw` that were given
//! no `initiator_ext` all log in with the zero port id; they are told apart by their network address.

use crate::planted::{Bug, has};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use weir_proto_scsi::lu::Nexus as NexusId;
use weir_proto_srp::PortId;
use weir_proto_srp::states::NexusState;
use weir_target_core::AccessMap;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    initiator: [u8; 16],
    /// Address without port, for the zero initiator port id only.
    address: String,
}

/// Where a channel lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelRef {
    pub(crate) reactor: u32,
    pub(crate) channel: u32,
}

struct Nexus {
    id: NexusId,
    state: NexusState,
    channels: Vec<ChannelRef>,
    /// How many of them have lost their connection, and are there for what a device holds only.
    lost: usize,
    /// Channels being set up that hold the nexus.
    joining: usize,
    /// Where its first channel goes, and its channels since: for spreading them over reactors.
    first: u64,
    joined: u64,
    /// A later login of the host has ended its channels. Nobody joins it any more, and those being set up come to nothing.
    over: bool,
}

impl Nexus {
    fn enter(&mut self, next: NexusState) {
        assert!(
            self.state.may_follow(next) || self.state == next,
            "nexus {:x}: {} after {}",
            self.id.0,
            next,
            self.state
        );
        self.state = next;
    }
}

/// All nexuses of a target port. Those of one host have ascending numbers, and all but the last are over.
#[derive(Default)]
pub(crate) struct Nexuses {
    table: Mutex<Table>,
    made: AtomicU64,
}

type Table = BTreeMap<NexusName, Nexus>;

/// What joining found.
pub(crate) struct Joined {
    pub(crate) id: NexusId,
    /// Channels of its host before this one.
    pub(crate) others: Vec<ChannelRef>,
    /// Nexuses of its host that are over, and have not ended.
    pub(crate) old: Vec<NexusId>,
    /// Spreads the channels of all nexuses over reactors in turn.
    pub(crate) turn: u64,
}

/// Holds a nexus while a channel is being set up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    key: Key,
    id: NexusId,
}

impl NexusName {
    /// Whose shares its channels count to.
    pub(crate) fn account(&self, map: &AccessMap) -> String {
        map.account(&self.key.initiator, &self.key.address)
    }
}

fn key(initiator: &PortId, peer: &str) -> Key {
    let address = if initiator.is_zero() {
        peer.rsplit_once(':').map_or(peer, |(a, _)| a).to_owned()
    } else {
        String::new()
    };
    Key { initiator: initiator.0, address }
}

/// The nexuses of a host.
fn all_of<'a>(t: &'a Table, key: &'a Key) -> impl Iterator<Item = (&'a NexusName, &'a Nexus)> {
    let first = NexusName { key: key.clone(), id: NexusId(0) };
    t.range(first..).take_while(move |(n, _)| n.key == *key)
}

impl Nexuses {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Finds the nexus or makes it with a `new` number; [`attach`](Nexuses::attach) or
    /// [`give_up`](Nexuses::give_up) must follow. With `alone` it is a new one, and what the host had before is over: whoever ends it
    /// may be another life of the host, which knows nothing of what that one held reserved. Channels being set up for that are
    /// refused when they attach, and the others are to be ended.
    pub(crate) fn join(
        &self,
        initiator: &PortId,
        peer: &str,
        alone: bool,
        new: impl FnOnce() -> NexusId,
    ) -> (NexusName, Joined) {
        let key = key(initiator, peer);
        let mut t = self.lock();
        let others: Vec<_> =
            all_of(&t, &key).flat_map(|(_, n)| n.channels.iter().copied()).collect();
        let last = all_of(&t, &key).filter(|(_, n)| !n.over).last().map(|(n, _)| n.clone());
        let last = last.filter(|l| match t.get_mut(l) {
            Some(n) if alone && !has(Bug::TerminatedStays) => {
                n.over = true;
                false
            }
            _ => true,
        });
        let name = last.unwrap_or_else(|| NexusName { key, id: new() });
        let n = t.entry(name.clone()).or_insert_with(|| Nexus {
            id: name.id,
            state: NexusState::Free,
            channels: Vec::new(),
            lost: 0,
            joining: 0,
            first: self.made.fetch_add(1, Ordering::Relaxed) + 1,
            joined: 0,
            over: false,
        });
        n.joining += 1;
        n.joined += 1;
        n.enter(NexusState::Active);
        let turn = n.first + n.joined - 1;
        let old = all_of(&t, &name.key).filter(|(n, _)| **n != name).map(|(n, _)| n.id).collect();
        let joined = Joined { id: name.id, others, old, turn };
        (name, joined)
    }

    /// Whether any of these channels of its host is there yet; a login waits until those that it ends are not.
    pub(crate) fn has_any(&self, name: &NexusName, some: &[ChannelRef]) -> bool {
        let t = self.lock();
        all_of(&t, &name.key).any(|(_, n)| n.channels.iter().any(|c| some.contains(c)))
    }

    /// A later login of the host has ended this one.
    pub(crate) fn is_over(&self, name: &NexusName) -> bool {
        self.lock().get(name).is_none_or(|n| n.over)
    }

    pub(crate) fn terminate_wait(&self, name: &NexusName, waits: bool) {
        if let Some(n) = self.lock().get_mut(name) {
            n.enter(if waits { NexusState::TerminateWait } else { NexusState::Active });
        }
    }

    /// Puts a channel in service that joined. False: a login that came after it has ended it, and
    /// [`give_up`](Nexuses::give_up) must follow.
    #[must_use]
    pub(crate) fn attach(&self, name: &NexusName, channel: ChannelRef) -> bool {
        let mut t = self.lock();
        let may = |n: &&mut Nexus| !n.over || has(Bug::JoiningStay);
        let Some(n) = t.get_mut(name).filter(may) else { return false };
        n.joining -= 1;
        n.channels.push(channel);
        true
    }

    /// A channel that joined will not come. Gives the nexus that is lost by this, if it is.
    pub(crate) fn give_up(&self, name: &NexusName) -> Option<NexusId> {
        let mut t = self.lock();
        if let Some(n) = t.get_mut(name) {
            n.joining -= 1;
        }
        Self::reap(&mut t, name)
    }

    /// A channel has lost its connection; [`detach`](Nexuses::detach) must follow.
    pub(crate) fn lose(&self, name: &NexusName) {
        if let Some(n) = self.lock().get_mut(name) {
            n.lost += 1;
        }
    }

    /// Whether lost channels have half of the `most` that the port has, some of this host among them: a device that hangs gives
    /// none of them back, and they must not become all that there are.
    pub(crate) fn is_crowded(&self, name: &NexusName, most: usize) -> bool {
        let t = self.lock();
        let own: usize = all_of(&t, &name.key).map(|(_, n)| n.lost).sum();
        own > 0 && 2 * t.values().map(|n| n.lost).sum::<usize>() >= most && !has(Bug::LostTakeAll)
    }

    /// A channel that was [lost](Nexuses::lose) is gone with all its requests. Gives the nexus that is lost by this, if it is.
    pub(crate) fn detach(&self, name: &NexusName, channel: ChannelRef) -> Option<NexusId> {
        let mut t = self.lock();
        if let Some(n) = t.get_mut(name) {
            n.channels.retain(|c| *c != channel);
            n.lost = n.lost.saturating_sub(1);
        }
        Self::reap(&mut t, name)
    }

    fn reap(t: &mut Table, name: &NexusName) -> Option<NexusId> {
        let n = t.get_mut(name)?;
        if n.joining > 0 || !n.channels.is_empty() {
            return None;
        }
        // The tasks of its channels have ended; the logical units hear of the loss from the caller.
        n.enter(NexusState::LossWait);
        n.enter(NexusState::Free);
        let id = n.id;
        t.remove(name);
        Some(id)
    }

    /// (initiator port, address of a host without one, channels) of all hosts: those of nexuses that are over, too.
    pub(crate) fn list(&self) -> Vec<(PortId, String, Vec<ChannelRef>)> {
        let mut all = BTreeMap::<Key, Vec<ChannelRef>>::new();
        for (name, n) in self.lock().iter() {
            all.entry(name.key.clone()).or_default().extend(&n.channels);
        }
        all.into_iter().map(|(k, c)| (PortId(k.initiator), k.address, c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn numbers() -> impl Fn() -> NexusId {
        let next = Cell::new(0);
        move || NexusId(next.replace(next.get() + 1))
    }

    #[test]
    fn channels_of_one_port_share_a_nexus_and_the_last_one_loses_it() {
        let (t, n) = (Nexuses::default(), numbers());
        let port = PortId::new(1, 2);
        let (a, ja) = t.join(&port, "10.0.0.1:1000", false, &n);
        let (b, jb) = t.join(&port, "10.0.0.2:1000", false, &n);
        assert!(ja.id == jb.id && a == b);
        let (c1, c2) =
            (ChannelRef { reactor: 0, channel: 1 }, ChannelRef { reactor: 1, channel: 1 });
        assert!(t.attach(&a, c1) && t.attach(&b, c2));
        assert_eq!(t.list(), [(port, String::new(), vec![c1, c2])]);
        assert!(t.has_any(&a, &[c2]) && !t.has_any(&a, &[]));
        assert_eq!(t.detach(&a, c1), None);
        assert_eq!(t.detach(&a, c2), Some(ja.id));
        let (d, jd) = t.join(&port, "10.0.0.1:1000", false, &n);
        assert!(jd.id != ja.id);
        assert_eq!(t.give_up(&d), Some(jd.id));
    }

    /// A device that hangs gives none of them back: who has such a one gets no more when they are half of the port's.
    #[test]
    fn lost_channels_do_not_become_all_that_there_are() {
        let (t, n) = (Nexuses::default(), numbers());
        let (a, _) = t.join(&PortId::new(1, 2), "10.0.0.1:1000", false, &n);
        let (b, _) = t.join(&PortId::new(3, 4), "10.0.0.2:1000", false, &n);
        for k in 0..3 {
            if k > 0 {
                t.join(&PortId::new(1, 2), "10.0.0.1:1000", false, &n);
            }
            assert!(t.attach(&a, ChannelRef { reactor: 0, channel: k }));
            assert!(!t.is_crowded(&a, 6));
            t.lose(&a);
        }
        assert!(t.is_crowded(&a, 6) && !t.is_crowded(&a, 7) && !t.is_crowded(&b, 6));
        assert_eq!(t.detach(&a, ChannelRef { reactor: 0, channel: 0 }), None);
        assert!(!t.is_crowded(&a, 6));
    }

    #[test]
    fn hosts_without_a_port_id_are_told_apart_by_address() {
        let (t, n) = (Nexuses::default(), numbers());
        let zero = PortId::new(0, 0);
        let (a, ja) = t.join(&zero, "10.0.0.1:1000", false, &n);
        let (_, jb) = t.join(&zero, "10.0.0.2:1000", false, &n);
        let (c, jc) = t.join(&zero, "10.0.0.1:2000", false, &n);
        assert!(ja.id != jb.id && ja.id == jc.id && a == c);
    }

    /// Its connection may come long after that of the login that has ended it.
    #[test]
    fn a_channel_that_is_set_up_late_does_not_join_those_that_have_ended_it() {
        let (t, n) = (Nexuses::default(), numbers());
        let port = PortId::new(1, 2);
        let (a, old) = t.join(&port, "10.0.0.1:1000", false, &n);
        let (b, new) = t.join(&port, "10.0.0.1:2000", true, &n);
        let (c, more) = t.join(&port, "10.0.0.1:3000", false, &n);
        let at = |channel| ChannelRef { reactor: 0, channel };
        assert!(old.id != new.id && new.id == more.id && new.others.is_empty() && b == c);
        assert_eq!(new.old, [old.id]);
        assert!(t.attach(&c, at(3)) && !t.attach(&a, at(1)));
        assert_eq!(t.give_up(&a), Some(old.id));
        assert!(t.attach(&b, at(2)));
        assert_eq!(t.list()[0].2, [at(3), at(2)]);
    }

    /// What the host had before ends by itself, however late, and counts to it until then.
    #[test]
    fn a_host_that_ends_its_channels_gets_another_nexus() {
        let (t, n) = (Nexuses::default(), numbers());
        let port = PortId::new(1, 2);
        let at = |channel| ChannelRef { reactor: 0, channel };
        let (a, ja) = t.join(&port, "10.0.0.1:1000", true, &n);
        assert!(t.attach(&a, at(1)));
        let (b, jb) = t.join(&port, "10.0.0.1:1001", true, &n);
        assert!(ja.id != jb.id && jb.others == [at(1)] && jb.old == [ja.id]);
        assert!(t.attach(&b, at(2)));
        t.lose(&a);
        assert!(t.has_any(&b, &jb.others) && t.is_crowded(&b, 2));
        assert_eq!(t.list(), [(port, String::new(), vec![at(1), at(2)])]);
        // A third one ends the first two.
        let (c, jc) = t.join(&port, "10.0.0.1:1002", true, &n);
        assert_eq!((jc.others, jc.old), (vec![at(1), at(2)], vec![ja.id, jb.id]));
        assert_eq!(t.detach(&a, at(1)), Some(ja.id));
        assert!(!t.has_any(&c, &[at(1)]) && !t.is_crowded(&c, 2));
        assert_eq!(t.detach(&b, at(2)), Some(jb.id));
        assert_eq!(t.give_up(&c), Some(jc.id));
    }
}
