//! Running the commands that are answered from the state of the unit.

use super::{LuState, Nexus, Reserved};
use crate::cdb::{ControlCommand, FormatList, PrOut, StartStop};
use crate::data::{Data, truncate};
use crate::lun::{Lun, report_luns};
use crate::pr::{PortPair, PrChange, PrRequest, Reservations};
use crate::sense::{Sense, SenseFormat};
use crate::status::ScsiError;
use crate::transport_id::TransportId;

/// What a control command needs to know that the unit does not.
#[derive(Debug, Clone, Copy, Default)]
pub struct ControlContext<'a> {
    /// LUNs visible to the nexus, ascending.
    pub luns: &'a [Lun],
    /// Use of space, for the logical block provisioning log page; without it there is no such
    /// page.
    pub space: Option<SpaceUse>,
}

/// Space of a thin unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceUse {
    /// Bytes that the unit occupies.
    pub used: u64,
    /// Bytes that it can still be given.
    pub available: u64,
}

/// FORMAT UNIT: all blocks are to read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatRequest {
    /// Status may be sent at once; progress goes to [`LuState::set_condition`].
    pub immed: bool,
}

/// What the caller must do because of a control command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// [`LuState::export_reservations`] was to be durable before this was in force: who has somewhere to keep it takes
    /// [`LuState::plan_reserve_out`] instead.
    pub persist: bool,
    /// Persistent reservations have changed, persistent or not (for a partner that mirrors them).
    pub reservations_changed: bool,
    /// Abort all tasks of these nexuses, but never the command itself (PREEMPT AND ABORT).
    pub abort_tasks_of: Vec<Nexus>,
    /// Write the volatile cache back before the status is sent.
    pub flush: bool,
    /// Format the unit.
    pub format: Option<FormatRequest>,
    /// A unit attention was raised for some nexus.
    pub ua_raised: bool,
    /// [`LuState::generation`] has moved.
    pub generation_changed: bool,
}

/// Reservations as a command will have left them.
#[derive(Debug)]
pub struct PlannedReservations {
    reservations: Reservations,
    change: PrChange,
}

impl PlannedReservations {
    /// The revision and the state to be made durable before this is in force; `None` when nothing need be.
    pub fn to_keep(&self) -> Option<(u64, Vec<u8>)> {
        self.change.persist.then(|| {
            let mut bytes = Vec::new();
            self.reservations.export(&mut bytes);
            (self.reservations.revision, bytes)
        })
    }
}

/// How a control command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlOutcome {
    /// GOOD, or what else.
    pub result: Result<(), ScsiError>,
    /// What remains to be done.
    pub effects: Effects,
}

impl LuState {
    /// Runs an admitted control command. `data_out` is the parameter list that arrived, which may
    /// be shorter or longer than the CDB announced. `out` is cleared and receives the data-in
    /// answer, cut to the allocation length; it is empty after an error.
    pub fn control(
        &mut self,
        nexus: Nexus,
        command: &ControlCommand,
        data_out: &[u8],
        ctx: &ControlContext<'_>,
        out: &mut Vec<u8>,
    ) -> ControlOutcome {
        out.clear();
        let before = self.generation;
        let mut effects = Effects::default();
        let result = match self.nexuses.get(&nexus).map(|s| s.who.clone()) {
            Some(who) => self.run(nexus, &who, command, data_out, ctx, out, &mut effects),
            None => Err(Sense::ABORTED_COMMAND.into()),
        };
        match result {
            Ok(()) => {
                let alloc = command.data_in_len();
                truncate(out, usize::try_from(alloc).unwrap_or(usize::MAX));
            }
            Err(_) => out.clear(),
        }
        effects.generation_changed = self.generation != before;
        ControlOutcome { result, effects }
    }

    #[allow(clippy::too_many_arguments)] // One internal dispatch; a struct would only rename them.
    fn run(
        &mut self,
        nexus: Nexus,
        who: &PortPair,
        command: &ControlCommand,
        data_out: &[u8],
        ctx: &ControlContext<'_>,
        out: &mut Vec<u8>,
        effects: &mut Effects,
    ) -> Result<(), ScsiError> {
        use ControlCommand as C;
        match *command {
            C::Inquiry { evpd: false, .. } => self.standard_inquiry(out),
            C::Inquiry { evpd: true, page, .. } => self.vpd(who, page, out)?,
            C::RequestSense { descriptor, .. } => self.request_sense(nexus, who, descriptor, out),
            C::ReportLuns { select, alloc } => {
                report_luns(ctx.luns, select, alloc, out);
                self.clear_luns_changed(nexus);
            }
            C::ModeSense { .. } => self.mode_sense(command, out)?,
            C::ModeSelect { form, param_len } => {
                let list = data_out
                    .get(..usize::from(param_len))
                    .ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
                self.mode_select(nexus, form, list, effects)?;
            }
            C::ReadCapacity10 => {
                out.be32(u32::try_from(self.geometry.last_lba()).unwrap_or(u32::MAX));
                out.be32(self.geometry.block_size);
            }
            C::ReadCapacity16 { .. } => self.read_capacity_16(out),
            C::ReportOpcodes { timeouts, options, opcode, action, .. } => {
                self.report_opcodes(timeouts, options, opcode, action, out)?;
            }
            C::ReportTmf { extended, .. } => self.report_tmf(extended, out),
            C::ReportTargetPortGroups { extended, .. } => {
                self.report_target_port_groups(extended, out);
            }
            C::PersistentReserveIn { action, .. } => self.reservations.pr_in(action, out),
            C::PersistentReserveOut { action, kind, param_len } => {
                self.persistent_reserve_out(who, action, kind, param_len, data_out, effects)?;
            }
            C::Reserve6 => self.reserve6(nexus, who)?,
            C::Release6 => self.release6(nexus, who)?,
            C::StartStop { action, .. } => {
                // A disk of an array does not spin down: one host must not stop it for the others.
                // STOP keeps its promise to the host that sends it, that its data are safe.
                effects.flush = action == StartStop::Stop;
            }
            // The medium cannot be removed, so there is nothing to prevent; the self-test of
            // SEND DIAGNOSTIC passes when the unit can run it at all.
            C::PreventAllow { .. } | C::SendDiagnostic => {}
            C::LogSense { page, subpage, .. } => self.log_sense(page, subpage, ctx, out)?,
            C::FormatUnit { list } => effects.format = Some(format_request(list, data_out)?),
            C::ReadBuffer { mode, .. } => self.echo.read(nexus, mode, out)?,
            C::WriteBuffer { len, .. } => self.echo.write(nexus, len, data_out)?,
        }
        Ok(())
    }

    fn request_sense(&mut self, nexus: Nexus, who: &PortPair, descriptor: bool, out: &mut Vec<u8>) {
        let attention = self.nexuses.get_mut(&nexus).and_then(|s| s.attentions.pop());
        if attention.is_some() {
            self.touch();
        }
        let sense = attention
            .or_else(|| self.alua_state(who).refusal())
            .or_else(|| self.condition.sense())
            .unwrap_or(Sense::NO_SENSE);
        let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
        out.sense(&sense, format);
    }

    fn clear_luns_changed(&mut self, nexus: Nexus) {
        let state = self.nexuses.get_mut(&nexus);
        if state.is_some_and(|s| s.attentions.clear(Sense::REPORT_LUNS_CHANGED)) {
            self.touch();
        }
    }

    /// What an admitted PERSISTENT RESERVE OUT makes of the reservations, which stay as they are: it is in force with
    /// [`LuState::put_in_force`]. Between the two no other such command may be planned.
    pub fn plan_reserve_out(
        &self,
        nexus: Nexus,
        command: &ControlCommand,
        list: &[u8],
    ) -> Result<PlannedReservations, ScsiError> {
        let Some(state) = self.nexuses.get(&nexus) else {
            return Err(Sense::ABORTED_COMMAND.into());
        };
        let ControlCommand::PersistentReserveOut { action, kind, param_len } = *command else {
            return Err(Sense::INTERNAL_TARGET_FAILURE.into());
        };
        self.planned(&state.who, action, kind, param_len, list)
    }

    fn planned(
        &self,
        who: &PortPair,
        action: PrOut,
        kind: u8,
        param_len: u32,
        list: &[u8],
    ) -> Result<PlannedReservations, ScsiError> {
        let request = PrRequest { who, action, kind, param_len, list, ports: &self.identity.ports };
        let mut reservations = self.reservations.clone();
        let change = reservations.pr_out(&request)?;
        Ok(PlannedReservations { reservations, change })
    }

    /// Whether planned reservations take from one of these pairs of initiator port and target port what keeps others out
    /// while it writes: what it has left with a device would land over what they write.
    pub fn ends_for_any(
        &self,
        planned: &PlannedReservations,
        pairs: &[(TransportId, u16)],
    ) -> bool {
        let pair = |(of, port): &(TransportId, u16)| PortPair {
            initiator: of.clone(),
            target_port: *port,
        };
        pairs.iter().any(|p| self.reservations.ends_for(&pair(p), &planned.reservations))
    }

    /// Puts planned reservations in force.
    pub fn put_in_force(&mut self, planned: PlannedReservations) -> Effects {
        let before = self.generation;
        let mut effects = Effects::default();
        self.apply_reservations(planned, &mut effects);
        effects.generation_changed = self.generation != before;
        effects
    }

    /// Planned reservations could not be kept. Their revision is not used again, and what counts is exported under a
    /// higher one, so that it stays wherever a part of them got to.
    pub fn drop_plan(&mut self, planned: &PlannedReservations) -> (u64, Vec<u8>) {
        self.reservations.revision = planned.reservations.revision + 1;
        (self.reservations.revision, self.export_reservations())
    }

    fn persistent_reserve_out(
        &mut self,
        who: &PortPair,
        action: PrOut,
        kind: u8,
        param_len: u32,
        list: &[u8],
        effects: &mut Effects,
    ) -> Result<(), ScsiError> {
        let planned = self.planned(who, action, kind, param_len, list)?;
        self.apply_reservations(planned, effects);
        Ok(())
    }

    fn apply_reservations(&mut self, planned: PlannedReservations, effects: &mut Effects) {
        let PlannedReservations { reservations, change } = planned;
        self.reservations = reservations;
        effects.persist = change.persist;
        effects.reservations_changed = change.changed;
        for (who, sense) in &change.notify {
            effects.ua_raised |= self.raise_ua_for(who, *sense);
        }
        for (nexus, state) in &self.nexuses {
            if change.abort.contains(&state.who) {
                effects.abort_tasks_of.push(*nexus);
            }
        }
        if change.changed {
            self.touch();
        }
    }

    /// RESERVE(6) and RELEASE(6) beside registrations: GOOD without effect from a registered nexus
    /// (CRH 1), conflict from any other. `true` means: GOOD, nothing to do.
    fn beside_registrations(&self, who: &PortPair) -> Result<bool, ScsiError> {
        if !self.reservations.any_registered() {
            return Ok(false);
        }
        match self.reservations.key_of(who) {
            Some(_) => Ok(true),
            None => Err(ScsiError::RESERVATION_CONFLICT),
        }
    }

    fn reserve6(&mut self, nexus: Nexus, who: &PortPair) -> Result<(), ScsiError> {
        let reserved = Some(Reserved { by: nexus, ends: None, first: None });
        if !self.beside_registrations(who)? && self.reserved != reserved {
            if self.is_kept_out(nexus) {
                return Err(ScsiError::RESERVATION_CONFLICT);
            }
            self.reserved = reserved;
            self.touch();
        }
        Ok(())
    }

    fn release6(&mut self, nexus: Nexus, who: &PortPair) -> Result<(), ScsiError> {
        if !self.beside_registrations(who)? && self.is_holder(nexus) {
            self.reserved = None;
            self.touch();
        }
        Ok(())
    }

    fn read_capacity_16(&self, out: &mut Vec<u8>) {
        use crate::geometry::Features;
        out.be64(self.geometry.last_lba());
        out.be32(self.geometry.block_size);
        out.push(0);
        out.push(self.identity.physical_block_exponent & 0x0f);
        let thin = self.geometry.features.contains(Features::UNMAP);
        // LBPME and LBPRZ: unmapped blocks read as zeros.
        let provisioning = if thin { 0xc000 } else { 0 };
        out.be16(provisioning | self.identity.lowest_aligned_lba & 0x3fff);
        out.zeros(16);
    }
}

/// Reads the parameter list of FORMAT UNIT: no defect list, no initialization pattern, no
/// protection information.
fn format_request(list: FormatList, data: &[u8]) -> Result<FormatRequest, Sense> {
    let len = match list {
        FormatList::None => return Ok(FormatRequest { immed: false }),
        FormatList::Short => 4,
        FormatList::Long => 8,
    };
    let header = data.get(..len).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if header[0] & 0x07 != 0 {
        return Err(Sense::list_bit(0, 2));
    }
    // FOV 0 means defaults: the bits that it would validate must be 0.
    let valid = header[1] & 0x80 != 0;
    if !valid && header[1] & 0x7c != 0 {
        return Err(Sense::list_byte(1));
    }
    if header[1] & 0x08 != 0 {
        return Err(Sense::list_bit(1, 3));
    }
    if header[2..].iter().any(|b| *b != 0) {
        return Err(Sense::list_byte(2));
    }
    Ok(FormatRequest { immed: header[1] & 0x02 != 0 })
}
