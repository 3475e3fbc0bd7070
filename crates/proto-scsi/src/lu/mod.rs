//! The shared state of one logical unit.
//!
//! One [`LuState`] per volume, behind the caller's lock. Media commands touch it only when a
//! cached [`FastPath`] does not say that they are admitted anyway; see [`LuState::generation`].

mod admit;
mod alua;
mod buffer;
mod control;
mod events;
mod inquiry;
mod log;
mod mode;
mod mode_select;
mod report;
mod ua;
mod vpd;

pub use alua::{AluaGroup, AluaState};
pub use control::{
    ControlContext, ControlOutcome, Effects, FormatRequest, PlannedReservations, SpaceUse,
};
pub use ua::UA_QUEUE_MAX;

use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::planted::{Bug, has};
use crate::pr::{Import, ImportError, PortPair, Reservations};
use crate::sense::{Sense, SenseFormat};
use crate::transport_id::TransportId;
use buffer::EchoBuffer;
use mode::ModeValues;
use std::collections::BTreeMap;
use ua::UaQueue;

/// An I_T nexus, by a number that the caller gives and does not reuse while it is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus(pub u64);

/// Which nexuses a unit attention is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UaScope {
    /// All.
    All,
    /// One.
    Only(Nexus),
    /// All but one.
    AllExcept(Nexus),
}

/// Whether the medium can be accessed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Yes.
    #[default]
    Ready,
    /// Soon: 2/04/01, which hosts retry.
    BecomingReady,
    /// The volume below is gone: 2/04/12.
    Offline,
    /// FORMAT UNIT at work: 2/04/04 with progress in 65536ths.
    Formatting(u16),
}

impl Condition {
    /// What commands that need the medium end with; `None` when ready.
    pub fn sense(self) -> Option<Sense> {
        match self {
            Condition::Ready => None,
            Condition::BecomingReady => Some(Sense::BECOMING_READY),
            Condition::Offline => Some(Sense::OFFLINE),
            Condition::Formatting(p) => Some(Sense::FORMAT_IN_PROGRESS.with_progress(p)),
        }
    }
}

/// What may be cached per nexus until [`LuState::generation`] moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastPath {
    /// READ, VERIFY, PRE-FETCH and GET LBA STATUS are admitted, and admitting them has no effect.
    pub reads: bool,
    /// The same for WRITE, UNMAP, WRITE SAME, COMPARE AND WRITE, SYNCHRONIZE CACHE.
    pub writes: bool,
    /// WCE is 0: every write must be durable before its status, FUA or not.
    pub write_through: bool,
    /// The form of sense data to send.
    pub sense: SenseFormat,
}

/// The target port named by the caller is not one of the unit's [`Identity::ports`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPort(pub u16);

impl core::fmt::Display for UnknownPort {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the logical unit has no target port with relative identifier {}", self.0)
    }
}

impl std::error::Error for UnknownPort {}

/// The target port group named by the caller is not one of the unit's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownGroup(pub u16);

impl core::fmt::Display for UnknownGroup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the logical unit has no target port group {}", self.0)
    }
}

impl std::error::Error for UnknownGroup {}

/// What the unit keeps per nexus.
#[derive(Debug)]
struct NexusState {
    who: PortPair,
    attentions: UaQueue,
    /// It is lost, and something of it is under way yet.
    over: bool,
}

/// An SPC-2 reservation (RESERVE(6)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reserved {
    by: Nexus,
    /// The last reset since it was taken will end it, unless its holder reserves the unit again before that.
    ends: Option<Reset>,
    /// The first since then.
    first: Option<Reset>,
}

/// A logical unit reset, told from others of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reset(u64);

/// Shared state of a logical unit.
#[derive(Debug)]
pub struct LuState {
    identity: Identity,
    geometry: Geometry,
    modes: ModeValues,
    reservations: Reservations,
    nexuses: BTreeMap<Nexus, NexusState>,
    reserved: Option<Reserved>,
    /// How many there have been.
    resets: u64,
    groups: Vec<AluaGroup>,
    condition: Condition,
    echo: EchoBuffer,
    generation: u64,
}

impl LuState {
    /// A unit as after power on: no nexus, no reservation, all port groups active/optimized.
    pub fn new(identity: Identity, geometry: Geometry) -> LuState {
        let modes = ModeValues::default_of(&identity);
        let groups = alua::groups_of(&identity.ports, &[]);
        LuState {
            identity,
            geometry,
            modes,
            reservations: Reservations::default(),
            nexuses: BTreeMap::new(),
            reserved: None,
            resets: 0,
            groups,
            condition: Condition::Ready,
            echo: EchoBuffer::default(),
            generation: 0,
        }
    }

    /// The number of changes so far that can alter the admission of any command, the geometry, or
    /// a [`FastPath`]. A cached fast path is valid while the generation it was read with stands;
    /// the caller mirrors the number to where cores can read it without the lock, and does so
    /// before it unlocks.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Something beside this state decides about admission, and has changed: nothing that was cached holds.
    pub fn rules_changed(&mut self) {
        self.touch();
    }

    fn touch(&mut self) {
        self.generation += 1;
    }

    /// Identity, as changed by [`LuState::set_ports`] and [`LuState::set_read_only`].
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Present geometry; decoders keep a copy per [`LuState::generation`].
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Form of sense data to send (D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        if self.modes.d_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// TAS: tasks that another nexus aborted end with TASK ABORTED instead of silence.
    pub fn task_aborted_status(&self) -> bool {
        self.modes.tas
    }

    /// WCE: writes without FUA may be acknowledged from a volatile cache.
    pub fn write_cache_enabled(&self) -> bool {
        self.modes.wce
    }

    /// True when writes are refused: the volume is read-only or software write protected (SWP).
    pub fn write_protected(&self) -> bool {
        self.identity.read_only || self.modes.swp
    }

    /// The nexuses known here, ascending.
    pub fn nexuses(&self) -> impl Iterator<Item = Nexus> + '_ {
        self.nexuses.keys().copied()
    }

    /// The initiator port and relative target port of a nexus, if it is known here.
    pub fn ports_of(&self, nexus: Nexus) -> Option<(&TransportId, u16)> {
        self.nexuses.get(&nexus).map(|s| (&s.who.initiator, s.who.target_port))
    }

    /// Makes a nexus known. Its first command meets 6/29/00. Registrations of the same initiator
    /// port and target port are its own again.
    pub fn nexus_added(
        &mut self,
        nexus: Nexus,
        initiator: TransportId,
        target_port: u16,
    ) -> Result<(), UnknownPort> {
        if self.identity.port(target_port).is_none() {
            return Err(UnknownPort(target_port));
        }
        let who = PortPair { initiator, target_port };
        let mut attentions = UaQueue::default();
        attentions.push(Sense::POWER_ON_OR_RESET);
        self.nexuses.insert(nexus, NexusState { who, attentions, over: false });
        self.touch();
        Ok(())
    }

    /// Forgets a nexus: its unit attentions and its SPC-2 reservation end, its registrations stay.
    pub fn nexus_lost(&mut self, nexus: Nexus) {
        if self.nexuses.remove(&nexus).is_none() {
            return;
        }
        if self.is_holder(nexus) {
            self.reserved = None;
        }
        self.echo.nexus_lost(nexus);
        self.touch();
    }

    /// A nexus does not see the unit any more, and stays known: its SPC-2 reservation ends, which it could not release.
    pub fn nexus_parted(&mut self, nexus: Nexus) {
        if self.is_holder(nexus) && !has(Bug::PartedKeepsReserve6) {
            self.reserved = None;
            self.touch();
        }
    }

    /// A nexus is lost, but something of it is under way yet; [`nexus_lost`](LuState::nexus_lost) follows. What it has reserved by
    /// SPC-2 stays so until then. It does not keep out a nexus of the same ports that comes after it, whose host may know
    /// nothing of it.
    pub fn nexus_over(&mut self, nexus: Nexus) {
        if let Some(s) = self.nexuses.get_mut(&nexus) {
            s.over = true;
            self.touch();
        }
    }

    /// The whole state of persistent reservations as bytes: versioned, without a checksum (the
    /// store adds one), to be read by [`LuState::import_reservations`]. Taken under the same lock
    /// as the command that asked for persistence.
    pub fn export_reservations(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.reservations.export(&mut out);
        out
    }

    /// Counts changes of the reservations; it is part of the export, so that of two exports on
    /// their way to the store the newer is kept.
    pub fn reservation_revision(&self) -> u64 {
        self.reservations.revision
    }

    /// Replaces all registrations and the reservation by exported ones.
    pub fn import_reservations(&mut self, bytes: &[u8], why: Import) -> Result<(), ImportError> {
        self.reservations = Reservations::import(bytes, why)?;
        self.touch();
        Ok(())
    }

    /// Checks what must hold whatever commands came; for tests and fuzzing.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        self.reservations.check()?;
        if self.reserved.is_some_and(|r| !self.nexuses.contains_key(&r.by)) {
            return Err("an SPC-2 reservation of an unknown nexus");
        }
        if self.nexuses.values().any(|n| n.attentions.len() > UA_QUEUE_MAX) {
            return Err("too many unit attentions");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
