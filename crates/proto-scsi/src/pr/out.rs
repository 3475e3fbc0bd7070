//! PERSISTENT RESERVE OUT.

use super::{PortPair, PrType, REGISTRATIONS_MAX, Registration, Reservations};
use crate::cdb::PrOut;
use crate::identity::TargetPort;
use crate::planted::{Bug, has};
use crate::sense::Sense;
use crate::status::ScsiError;
use crate::transport_id::TransportId;

/// Length of the basic parameter list, and of the fixed part of REGISTER AND MOVE's.
const LIST_LEN: usize = 24;

/// One PERSISTENT RESERVE OUT command as it reaches the reservations.
pub(crate) struct PrRequest<'a> {
    /// Who sent it.
    pub(crate) who: &'a PortPair,
    pub(crate) action: PrOut,
    /// TYPE field of the CDB, any value.
    pub(crate) kind: u8,
    /// PARAMETER LIST LENGTH of the CDB.
    pub(crate) param_len: u32,
    /// The data-out buffer.
    pub(crate) list: &'a [u8],
    /// All target ports of the device.
    pub(crate) ports: &'a [TargetPort],
}

/// What a successful command did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PrChange {
    /// State that must survive power loss has changed.
    pub(crate) persist: bool,
    /// Any state has changed.
    pub(crate) changed: bool,
    /// Unit attentions to raise, in order.
    pub(crate) notify: Vec<(PortPair, Sense)>,
    /// PREEMPT AND ABORT: whose tasks to abort.
    pub(crate) abort: Vec<PortPair>,
}

impl PrChange {
    fn notify(&mut self, who: &PortPair, sense: Sense) {
        self.notify.push((who.clone(), sense));
    }
}

/// The parameter list of all actions but REGISTER AND MOVE.
struct Params<'a> {
    key: u64,
    action_key: u64,
    spec_i_pt: bool,
    all_tg_pt: bool,
    aptpl: bool,
    /// TransportIDs of SPEC_I_PT, from byte 28 on.
    ids: &'a [u8],
}

/// Byte of the parameter list with the flags.
const FLAGS_AT: u16 = 20;
/// Byte of the parameter list where the TransportIDs of SPEC_I_PT begin.
const IDS_AT: usize = 28;

fn be64(b: &[u8], at: usize) -> Result<u64, Sense> {
    let field = b.get(at..).and_then(|b| b.first_chunk());
    field.map(|b| u64::from_be_bytes(*b)).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)
}

fn be32(b: &[u8], at: usize) -> Result<u32, Sense> {
    let field = b.get(at..).and_then(|b| b.first_chunk());
    field.map(|b| u32::from_be_bytes(*b)).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)
}

/// The parameter list proper: what the CDB announced, all of which must have arrived.
fn list<'a>(request: &PrRequest<'a>) -> Result<&'a [u8], Sense> {
    let announced = usize::try_from(request.param_len).ok();
    let list = announced.and_then(|n| request.list.get(..n));
    match list {
        Some(list) if list.len() >= LIST_LEN => Ok(list),
        _ => Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
    }
}

fn params<'a>(request: &PrRequest<'a>) -> Result<Params<'a>, Sense> {
    let list = list(request)?;
    let flags = list[usize::from(FLAGS_AT)];
    let registers = matches!(request.action, PrOut::Register | PrOut::RegisterAndIgnore);
    // The flags mean something to the register actions only.
    let flags = if registers { flags } else { 0 };
    let spec_i_pt = flags & 0x08 != 0;
    if spec_i_pt && request.action == PrOut::RegisterAndIgnore {
        return Err(Sense::list_bit(FLAGS_AT, 3));
    }
    let ids = if spec_i_pt {
        let len = be32(list, LIST_LEN)? as usize;
        list[IDS_AT..].get(..len).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?
    } else if list.len() != LIST_LEN {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    } else {
        &[]
    };
    Ok(Params {
        key: be64(list, 0)?,
        action_key: be64(list, 8)?,
        spec_i_pt,
        all_tg_pt: flags & 0x04 != 0,
        aptpl: flags & 0x01 != 0,
        ids,
    })
}

impl Reservations {
    /// Performs the command, whole or not at all.
    pub(crate) fn pr_out(&mut self, request: &PrRequest<'_>) -> Result<PrChange, ScsiError> {
        let (revision, aptpl) = (self.revision, self.aptpl);
        let mut change = PrChange::default();
        if request.action == PrOut::RegisterAndMove {
            self.register_and_move(request)?;
        } else {
            let p = params(request)?;
            match request.action {
                PrOut::Register => self.register(request, &p, false, &mut change)?,
                PrOut::RegisterAndIgnore => self.register(request, &p, true, &mut change)?,
                PrOut::Reserve => self.reserve(request, &p)?,
                PrOut::Release => self.release(request, &p, &mut change)?,
                PrOut::Clear => self.clear(request, &p, &mut change)?,
                _ => self.preempt(request, &p, &mut change)?,
            }
        }
        change.changed = self.revision != revision;
        change.persist = change.changed && (aptpl || self.aptpl);
        Ok(change)
    }

    /// A change that PRGENERATION counts.
    fn generate(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.revision += 1;
    }

    /// Index of the registration of `who`, which must have `key`.
    fn registered(&self, who: &PortPair, key: u64) -> Result<usize, ScsiError> {
        match self.position(who) {
            Some(i) if self.registrations[i].key == key => Ok(i),
            _ => Err(ScsiError::RESERVATION_CONFLICT),
        }
    }

    /// Raises `sense` for every registered pair but `who`.
    fn notify_others(&self, who: &PortPair, sense: Sense, change: &mut PrChange) {
        for r in &self.registrations {
            if r.who != *who {
                change.notify(&r.who, sense);
            }
        }
    }

    fn register(
        &mut self,
        request: &PrRequest<'_>,
        p: &Params<'_>,
        ignore_key: bool,
        change: &mut PrChange,
    ) -> Result<(), ScsiError> {
        let who = request.who;
        let current = self.key_of(who);
        if !ignore_key && current.unwrap_or(0) != p.key {
            return Err(ScsiError::RESERVATION_CONFLICT);
        }
        // TransportIDs go only with a new registration.
        if p.spec_i_pt && (current.is_some() || p.action_key == 0) {
            return Err(Sense::list_bit(FLAGS_AT, 3).into());
        }
        let pairs = pairs_named(request, p)?;
        if p.action_key == 0 {
            let kind = self.kind;
            let mut released = false;
            for pair in pairs {
                if self.key_of(&pair) == current {
                    released |= self.unregister(&pair);
                }
            }
            if released && kind.is_some_and(PrType::shared_by_registrants) {
                self.notify_others(who, Sense::RESERVATIONS_RELEASED, change);
            }
            // The bit of an unregistration does not end persistence for the others.
            self.aptpl &= self.any_registered();
        } else {
            self.set_keys(who, &pairs, p, ignore_key)?;
            self.aptpl = p.aptpl;
        }
        self.generate();
        Ok(())
    }

    /// Registers or re-registers all `pairs` with the action key.
    fn set_keys(
        &mut self,
        who: &PortPair,
        pairs: &[PortPair],
        p: &Params<'_>,
        ignore_key: bool,
    ) -> Result<(), ScsiError> {
        let mut new = 0;
        for pair in pairs {
            match self.key_of(pair) {
                None => new += 1,
                // Another pair that already has a key of its own must fit, as if it had sent the
                // command itself.
                Some(k) if !ignore_key && pair != who && k != p.key && k != p.action_key => {
                    return Err(ScsiError::RESERVATION_CONFLICT);
                }
                Some(_) => {}
            }
        }
        if self.registrations.len() + new > REGISTRATIONS_MAX {
            return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
        }
        for pair in pairs {
            match self.position(pair) {
                Some(i) => self.registrations[i].key = p.action_key,
                None => self.registrations.push(Registration {
                    who: pair.clone(),
                    key: p.action_key,
                    holder: false,
                }),
            }
        }
        Ok(())
    }

    /// Removes one registration. True if that released the reservation because its (last) holder
    /// is gone.
    fn unregister(&mut self, pair: &PortPair) -> bool {
        let Some(i) = self.position(pair) else { return false };
        let removed = self.registrations.remove(i);
        let ends = removed.holder || !self.any_registered();
        if ends && !has(Bug::LeavingHolderHolds) {
            self.kind = None;
        }
        ends
    }

    fn reserve(&mut self, request: &PrRequest<'_>, p: &Params<'_>) -> Result<(), ScsiError> {
        let i = self.registered(request.who, p.key)?;
        let kind = PrType::from_code(request.kind).ok_or(Sense::cdb_bit(2, 3))?;
        match self.kind {
            None => {
                self.kind = Some(kind);
                self.registrations[i].holder = !kind.held_by_all();
                self.revision += 1;
                Ok(())
            }
            Some(held) if held == kind && (held.held_by_all() || self.registrations[i].holder) => {
                Ok(())
            }
            Some(_) => Err(ScsiError::RESERVATION_CONFLICT),
        }
    }

    fn release(
        &mut self,
        request: &PrRequest<'_>,
        p: &Params<'_>,
        change: &mut PrChange,
    ) -> Result<(), ScsiError> {
        let i = self.registered(request.who, p.key)?;
        let Some(kind) = self.kind else { return Ok(()) };
        if !kind.held_by_all() && !self.registrations[i].holder {
            return Ok(());
        }
        if kind.code() != request.kind {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.kind = None;
        self.registrations[i].holder = false;
        if kind.shared_by_registrants() && !has(Bug::ReleaseInSilence) {
            self.notify_others(request.who, Sense::RESERVATIONS_RELEASED, change);
        }
        self.revision += 1;
        Ok(())
    }

    fn clear(
        &mut self,
        request: &PrRequest<'_>,
        p: &Params<'_>,
        change: &mut PrChange,
    ) -> Result<(), ScsiError> {
        self.registered(request.who, p.key)?;
        self.notify_others(request.who, Sense::RESERVATIONS_PREEMPTED, change);
        self.registrations.clear();
        self.kind = None;
        self.aptpl = false;
        self.generate();
        Ok(())
    }

    fn preempt(
        &mut self,
        request: &PrRequest<'_>,
        p: &Params<'_>,
        change: &mut PrChange,
    ) -> Result<(), ScsiError> {
        let me = request.who;
        self.registered(me, p.key)?;
        let victim = p.action_key;
        let held_by_all = self.kind.is_some_and(PrType::held_by_all);
        let holder_key = self.registrations.iter().find(|r| r.holder).map(|r| r.key);
        // Key 0 stands for everybody, and only while everybody holds the reservation.
        if victim == 0 && !held_by_all {
            return Err(Sense::list_byte(8).into());
        }
        let take_over = (held_by_all && victim == 0) || holder_key == Some(victim);
        let goes =
            |r: &Registration| (victim == 0 || r.key == victim) && !(take_over && r.who == *me);
        let new_kind = PrType::from_code(request.kind);
        if take_over && new_kind.is_none() {
            return Err(Sense::cdb_bit(2, 3).into());
        }
        if !take_over && !self.registrations.iter().any(goes) {
            return Err(ScsiError::RESERVATION_CONFLICT);
        }
        let most = if has(Bug::PreemptFirstOnly) { 1 } else { usize::MAX };
        let removed: Vec<_> = self.registrations.extract_if(.., |r| goes(r)).take(most).collect();
        for r in &removed {
            if r.who != *me {
                change.notify(&r.who, Sense::REGISTRATIONS_PREEMPTED);
            }
        }
        if take_over {
            let old = core::mem::replace(&mut self.kind, new_kind);
            for r in &mut self.registrations {
                r.holder = r.who == *me && new_kind.is_some_and(|k| !k.held_by_all());
            }
            if old != new_kind && old.is_some_and(PrType::shared_by_registrants) {
                self.notify_others(me, Sense::RESERVATIONS_RELEASED, change);
            }
        } else if !self.any_registered() {
            self.kind = None;
        }
        if request.action == PrOut::PreemptAndAbort {
            change.abort = removed.into_iter().map(|r| r.who).collect();
        }
        self.aptpl &= self.any_registered();
        self.generate();
        Ok(())
    }

    fn register_and_move(&mut self, request: &PrRequest<'_>) -> Result<(), ScsiError> {
        let list = list(request)?;
        let (key, action_key) = (be64(list, 0)?, be64(list, 8)?);
        let (unregister, aptpl) = (list[17] & 0x02 != 0, list[17] & 0x01 != 0);
        let target_port = u16::from_be_bytes([list[18], list[19]]);
        let id_len = be32(list, 20)? as usize;
        if id_len != list.len() - LIST_LEN {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
        }
        let from = self.registered(request.who, key)?;
        // Only the one holder can hand the reservation over.
        if !self.registrations[from].holder {
            return Err(ScsiError::RESERVATION_CONFLICT);
        }
        if action_key == 0 {
            return Err(Sense::list_byte(8).into());
        }
        let (initiator, rest) = TransportId::parse(&list[LIST_LEN..], LIST_LEN)?;
        if !rest.is_empty() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
        }
        let Some(port) = request.ports.iter().find(|p| p.relative_id == target_port) else {
            return Err(Sense::list_byte(18).into());
        };
        if port.name.protocol() != initiator.protocol() {
            return Err(Sense::list_bit(LIST_LEN as u16, 3).into());
        }
        let to = PortPair { initiator, target_port };
        if to == *request.who {
            return Err(Sense::list_byte(LIST_LEN as u16).into());
        }
        if self.position(&to).is_none() && self.registrations.len() >= REGISTRATIONS_MAX {
            return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
        }
        self.registrations[from].holder = false;
        match self.position(&to) {
            Some(i) => {
                self.registrations[i].key = action_key;
                self.registrations[i].holder = true;
            }
            None => {
                self.registrations.push(Registration { who: to, key: action_key, holder: true });
            }
        }
        if unregister {
            self.registrations.remove(from);
        }
        self.aptpl = aptpl;
        self.generate();
        Ok(())
    }
}

/// The pairs that a register action is about: the sender's, with ALL_TG_PT those of the same
/// initiator port at every target port of its protocol, and with SPEC_I_PT those of the listed
/// TransportIDs likewise.
fn pairs_named(request: &PrRequest<'_>, p: &Params<'_>) -> Result<Vec<PortPair>, Sense> {
    let who = request.who;
    let mut initiators = vec![who.initiator.clone()];
    let mut ids = p.ids;
    while !ids.is_empty() {
        let at = IDS_AT + p.ids.len() - ids.len();
        let (id, rest) = TransportId::parse(ids, at)?;
        if id.protocol() != who.initiator.protocol() {
            return Err(Sense::list_bit(at.min(0xffff) as u16, 3));
        }
        if !initiators.contains(&id) {
            if initiators.len() > REGISTRATIONS_MAX {
                return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
            }
            initiators.push(id);
        }
        ids = rest;
    }
    let mut pairs = Vec::new();
    for initiator in initiators {
        let protocol = initiator.protocol();
        let own = PortPair { initiator, target_port: who.target_port };
        for port in request.ports {
            let other = port.relative_id != who.target_port && port.name.protocol() == protocol;
            if p.all_tg_pt && other {
                pairs.push(PortPair { target_port: port.relative_id, ..own.clone() });
            }
        }
        pairs.push(own);
    }
    Ok(pairs)
}
