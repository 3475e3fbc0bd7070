//! What a host has left with a device: writes that are under way though their channel has ended, or its connection.
//!
//! The host may have done the same again by then, over another channel, another port of this node or another protocol, and
//! must not be overtaken. So its writes wait for what lingers, whichever way they come. A host is known by its name in the access map,
//! which may be that of several initiator ports, and by its initiator port: nexuses of one know nothing of each other.

use crate::attachment::Attachment;
use crate::fence::End;
use crate::pass::Pass;
use crate::planted::{Bug, has};
use crate::transfer::{Stop, Transfer};
use crate::unit::{Attached, Unit, UnitShared, Units};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use weir_base::MILLIS;
use weir_proto_scsi::lu::{Nexus, PlannedReservations};
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{sleep, spawn};

/// Initiator port and relative target port.
type Ports = (TransportId, u16);

/// Writes that are under way though their channel has ended, or its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lingering {
    ports: Ports,
    /// Whose it is; empty where only the initiator port tells.
    writer: Arc<str>,
    nexus: Nexus,
    /// Tells it from others of the nexus.
    number: u64,
    /// The nexus is lost: it is forgotten when this is over.
    lost: bool,
}

/// Numbers what lingers.
static LINGERING: AtomicU64 = AtomicU64::new(1);

impl Lingering {
    /// Whether a nexus of these ports and this writer waits for it: any of the same writer or initiator port, its own as well, which
    /// may have lost one channel of several.
    fn is_of(&self, (of, port): (&TransportId, u16), writer: &str, nexus: Nexus) -> bool {
        let other_port = self.ports.1 != port && has(Bug::LingeringByPort);
        let own = self.nexus == nexus && has(Bug::OwnNotAwaited);
        is_same((&self.writer, &self.ports.0), (writer, of)) && !other_port && !own
    }
}

/// Whether these writers and initiator ports are of one host.
pub(crate) fn is_same(a: (&str, &TransportId), b: (&str, &TransportId)) -> bool {
    let known = !a.0.is_empty() && !has(Bug::LingeringByInitiator);
    a.1 == b.1 || known && a.0 == b.0
}

impl UnitShared {
    fn lingering(&self) -> MutexGuard<'_, Vec<Lingering>> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write of this writer or initiator port is under way whose channel or connection has ended: the host may have repeated
    /// it already.
    pub(crate) fn lingers(&self, ports: (&TransportId, u16), writer: &str, nexus: Nexus) -> bool {
        self.lingering().iter().any(|l| l.is_of(ports, writer, nexus))
    }

    /// Initiator and target port of such writes.
    fn ports_of_lingering(
        &self,
        ports: (&TransportId, u16),
        writer: &str,
        nexus: Nexus,
    ) -> Vec<Ports> {
        let all = self.lingering();
        all.iter().filter(|l| l.is_of(ports, writer, nexus)).map(|l| l.ports.clone()).collect()
    }

    /// What lingered is over.
    fn lingers_no_more(&self, number: u64) {
        let mut all = self.lingering();
        let over = all.iter().position(|l| l.number == number).map(|i| all.swap_remove(i));
        // The state's lock is never waited for by whoever has this one.
        let lost = over.filter(|o| o.lost && !all.iter().any(|l| l.nexus == o.nexus));
        drop(all);
        self.with(|s| {
            if let Some(o) = lost {
                s.nexus_lost(o.nexus);
            }
            s.rules_changed();
        });
    }

    /// The last channel of a nexus is over: it is forgotten, and its SPC-2 reservation ends. As long as a device has writes of
    /// it, its number stays known: whoever ends what the nexus of these ports has under way ends that, too. And its reservation
    /// stays, or they would land over what the next holder has written.
    pub fn nexus_lost(&self, nexus: Nexus) {
        let mut lingers = false;
        for l in self.lingering().iter_mut().filter(|l| l.nexus == nexus) {
            (l.lost, lingers) = (true, true);
        }
        self.with(|s| match lingers {
            true if has(Bug::LostFreesReservation) => s.nexus_parted(nexus),
            true => s.nexus_over(nexus),
            false => s.nexus_lost(nexus),
        });
    }

    /// These nexuses, and those before them of the same ports that are lost. Not others of these ports that are there: hosts without
    /// an identifier have one in common.
    pub(crate) fn with_former(&self, mut some: Vec<Nexus>) -> Vec<Nexus> {
        if has(Bug::FormerNotFenced) {
            return some;
        }
        let ports: Vec<_> = some.iter().filter_map(|n| self.ports_of(*n)).collect();
        let all = self.lingering();
        let former = |l: &&Lingering| l.lost && ports.contains(&l.ports);
        some.extend(all.iter().filter(former).map(|l| l.nexus));
        some
    }

    fn ports_of(&self, nexus: Nexus) -> Option<Ports> {
        self.with(|s| s.ports_of(nexus).map(|(of, port)| (of.clone(), port)))
    }
}

impl Attached {
    /// The channel has ended: the passes are void, and writes of the host wait for those that are under way. Not for reads, which
    /// a device that hangs may never end.
    pub(crate) fn linger(self: &Rc<Self>, nexus: Nexus) {
        self.told_perhaps();
        let mut rounds = self.fence(End::Gone, 0);
        rounds.retain(|r| r.is_writing() || r.is_inside() && has(Bug::ReadsLinger));
        if rounds.is_empty() || has(Bug::LingeringForgotten) {
            return;
        }
        self.keep_in_mind(nexus, async move {
            for r in rounds {
                match has(Bug::ReadsLinger) {
                    true => r.off_the_medium().await,
                    false => r.has_written().await,
                }
            }
        });
    }

    /// The connection has ended, and the channel waits for its host: writes that are under way have not been answered, and never may
    /// be if the host is another life of it. Nothing is void, since the host may come back for the ends of its commands.
    fn cut_off(self: &Rc<Self>, nexus: Nexus) {
        self.told_perhaps();
        if has(Bug::LostGoOnBeside) {
            return;
        }
        let rounds = self.rounds.turn_over();
        if rounds.is_empty() {
            return;
        }
        self.keep_in_mind(nexus, async move {
            for r in rounds {
                r.has_written().await;
            }
        });
    }

    /// Something of a nexus lingers until `over`.
    fn keep_in_mind(&self, nexus: Nexus, over: impl Future<Output = ()> + 'static) {
        let shared = self.unit.shared.clone();
        // By its ports: should it be forgotten, the host comes back as another nexus.
        let Some(ports) = shared.ports_of(nexus) else { return };
        let (number, writer) = (LINGERING.fetch_add(1, Ordering::Relaxed), self.writer());
        shared.lingering().push(Lingering { ports, writer, nexus, number, lost: false });
        shared.with(|s| s.rules_changed());
        spawn(async move {
            over.await;
            shared.lingers_no_more(number);
        });
    }

    /// Whether a write of a front end without SCSI has to wait for what its host has left with the device.
    #[inline]
    pub fn is_held_up(&self) -> bool {
        !self.fast().writes && self.has_former()
    }

    fn has_former(&self) -> bool {
        let shared = &self.unit.shared;
        let ports = shared.ports_of(self.nexus);
        ports.is_some_and(|(of, port)| shared.lingers((&of, port), &self.writer(), self.nexus))
    }
}

impl Attachment {
    /// The connection is lost, and the channel waits for its host. What writes by then holds up writes of every nexus of the
    /// host to that unit, until it is over: who comes next may be another life of the host, which knows nothing of it.
    pub fn cut_off(&self) {
        self.views().iter().for_each(|a| a.cut_off(self.nexus()));
    }

    /// Whether a device still has writes of this host whose channel or connection is lost. What the host sends again may be
    /// that: until it is over, no verdict on a write is true.
    pub fn has_former(&self, units: &Units) -> bool {
        let (ports, writer) = (self.ports(), self.writer());
        units.any(|u: &Unit| u.shared.lingers(ports, &writer, self.nexus()))
    }
}

impl Pass {
    /// Waits for what the host has left with the device.
    ///
    /// # Errors
    /// The command was fenced meanwhile.
    #[cold]
    pub(crate) async fn wait_for_former(&self) -> Result<(), End> {
        let former = async {
            while self.is_held_up() {
                sleep(MILLIS).await;
            }
        };
        self.unless_void(former).await
    }

    /// Waits for writes of the host that lost their channel: they must not come after what the host writes now.
    ///
    /// # Errors
    /// The command was fenced or stopped meanwhile: nothing is to be said of it before they are over.
    #[cold]
    pub(crate) async fn wait_for_lingering<T: Transfer>(&self, t: &T) -> Result<(), Stop> {
        while self.has_former() {
            if self.end().is_some() || t.stopped() {
                return if has(Bug::WokenAnswers) { Ok(()) } else { Err(Stop) };
            }
            sleep(MILLIS).await;
        }
        Ok(())
    }

    /// Whether planned reservations let others write while a device has writes of this host that lost their channel.
    pub(crate) fn bares_former(&self, planned: &PlannedReservations) -> bool {
        let shared = &self.unit.shared;
        let Some(own) = shared.ports_of(self.nexus) else { return false };
        let mut pairs = shared.ports_of_lingering((&own.0, own.1), &self.writer(), self.nexus);
        if pairs.is_empty() || has(Bug::BaredBesideFormer) {
            return false;
        }
        pairs.push(own);
        shared.with(|s| s.ends_for_any(planned, &pairs))
    }
}
