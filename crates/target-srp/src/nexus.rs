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
    /// Of channels that joined before this one's turn, none comes into service any more: a later login has ended them.
    ends_before: u64,
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

/// All nexuses of a target port.
#[derive(Default)]
pub(crate) struct Nexuses {
    table: Mutex<BTreeMap<Key, Nexus>>,
    made: AtomicU64,
}

/// What joining found.
pub(crate) struct Joined {
    pub(crate) id: NexusId,
    /// Its channels before this one.
    pub(crate) others: Vec<ChannelRef>,
    /// Spreads the channels of all nexuses over reactors in turn.
    pub(crate) turn: u64,
    /// Its place among all that have joined this nexus.
    pub(crate) place: u64,
}

/// Holds a nexus while a channel is being set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NexusName(Key);

impl NexusName {
    /// Whose shares its channels count to.
    pub(crate) fn account(&self, map: &AccessMap) -> String {
        map.account(&self.0.initiator, &self.0.address)
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

impl Nexuses {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Nexus>> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Finds the nexus or makes it with a `new` number; [`attach`](Nexuses::attach) or
    /// [`give_up`](Nexuses::give_up) must follow. With `alone`, those still being set up are refused when they attach: who ends
    /// the others must end these too.
    pub(crate) fn join(
        &self,
        initiator: &PortId,
        peer: &str,
        alone: bool,
        new: impl FnOnce() -> NexusId,
    ) -> (NexusName, Joined) {
        let k = key(initiator, peer);
        let mut t = self.lock();
        let n = t.entry(k.clone()).or_insert_with(|| {
            let first = self.made.fetch_add(1, Ordering::Relaxed) + 1;
            let (state, channels) = (NexusState::Free, Vec::new());
            Nexus {
                id: new(),
                state,
                channels,
                lost: 0,
                joining: 0,
                first,
                joined: 0,
                ends_before: 0,
            }
        });
        n.joining += 1;
        n.joined += 1;
        n.enter(NexusState::Active);
        if alone && !has(Bug::JoiningStay) {
            n.ends_before = n.joined;
        }
        let (others, turn) = (n.channels.clone(), n.first + n.joined - 1);
        let joined = Joined { id: n.id, others, turn, place: n.joined };
        (NexusName(k), joined)
    }

    /// The channels of the nexus now; a login waits until those that it ends are not among them.
    pub(crate) fn channels(&self, name: &NexusName) -> Vec<ChannelRef> {
        self.lock().get(&name.0).map_or_else(Vec::new, |n| n.channels.clone())
    }

    pub(crate) fn terminate_wait(&self, name: &NexusName, waits: bool) {
        if let Some(n) = self.lock().get_mut(&name.0) {
            n.enter(if waits { NexusState::TerminateWait } else { NexusState::Active });
        }
    }

    /// Puts a channel in service that joined at this place. False: a login that came after it has ended it, and
    /// [`give_up`](Nexuses::give_up) must follow.
    #[must_use]
    pub(crate) fn attach(&self, name: &NexusName, place: u64, channel: ChannelRef) -> bool {
        let mut t = self.lock();
        let Some(n) = t.get_mut(&name.0).filter(|n| place >= n.ends_before) else { return false };
        n.joining -= 1;
        n.channels.push(channel);
        true
    }

    /// A channel that joined will not come. Gives the nexus that is lost by this, if it is.
    pub(crate) fn give_up(&self, name: &NexusName) -> Option<NexusId> {
        let mut t = self.lock();
        if let Some(n) = t.get_mut(&name.0) {
            n.joining -= 1;
        }
        Self::reap(&mut t, name)
    }

    /// A channel has lost its connection; [`detach`](Nexuses::detach) must follow.
    pub(crate) fn lose(&self, name: &NexusName) {
        if let Some(n) = self.lock().get_mut(&name.0) {
            n.lost += 1;
        }
    }

    /// Whether lost channels have half of the `most` that the port has, some of this nexus among them: a device that hangs gives
    /// none of them back, and they must not become all that there are.
    pub(crate) fn is_crowded(&self, name: &NexusName, most: usize) -> bool {
        let t = self.lock();
        let own = t.get(&name.0).map_or(0, |n| n.lost);
        own > 0 && 2 * t.values().map(|n| n.lost).sum::<usize>() >= most && !has(Bug::LostTakeAll)
    }

    /// A channel that was [lost](Nexuses::lose) is gone with all its requests. Gives the nexus that is lost by this, if it is.
    pub(crate) fn detach(&self, name: &NexusName, channel: ChannelRef) -> Option<NexusId> {
        let mut t = self.lock();
        if let Some(n) = t.get_mut(&name.0) {
            n.channels.retain(|c| *c != channel);
            n.lost = n.lost.saturating_sub(1);
        }
        Self::reap(&mut t, name)
    }

    fn reap(t: &mut BTreeMap<Key, Nexus>, name: &NexusName) -> Option<NexusId> {
        let n = t.get_mut(&name.0)?;
        if n.joining > 0 || !n.channels.is_empty() {
            return None;
        }
        // The tasks of its channels have ended; the logical units hear of the loss from the caller.
        n.enter(NexusState::LossWait);
        n.enter(NexusState::Free);
        let id = n.id;
        t.remove(&name.0);
        Some(id)
    }

    /// (initiator port, address of a host without one, channels) of all nexuses.
    pub(crate) fn list(&self) -> Vec<(PortId, String, Vec<ChannelRef>)> {
        self.lock()
            .iter()
            .map(|(k, n)| (PortId(k.initiator), k.address.clone(), n.channels.clone()))
            .collect()
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
        assert!(t.attach(&a, ja.place, c1) && t.attach(&b, jb.place, c2));
        assert_eq!(t.channels(&a), [c1, c2]);
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
            assert!(t.attach(&a, 1, ChannelRef { reactor: 0, channel: k }));
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
        let (_, new) = t.join(&port, "10.0.0.1:2000", true, &n);
        let (_, more) = t.join(&port, "10.0.0.1:3000", false, &n);
        let at = |channel| ChannelRef { reactor: 0, channel };
        assert!(old.id == new.id && new.others.is_empty());
        assert!(t.attach(&a, more.place, at(3)) && !t.attach(&a, old.place, at(1)));
        assert_eq!(t.give_up(&a), None);
        assert!(t.attach(&a, new.place, at(2)));
        assert_eq!(t.channels(&a), [at(3), at(2)]);
    }
}
