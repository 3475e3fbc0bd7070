//! Whether a command may run: unit attentions, reservations, access state, write protection.

use super::{FastPath, LuState, Nexus, NexusState};
use crate::cdb::{AccessClass, Command, ControlCommand};
use crate::pr::conflicts;
use crate::sense::Sense;
use crate::status::ScsiError;

/// Commands that neither report nor (but for REQUEST SENSE) clear a unit attention (SAM-5 5.14).
fn passes_attentions(command: &Command) -> bool {
    matches!(
        command,
        Command::Control(
            ControlCommand::Inquiry { .. }
                | ControlCommand::ReportLuns { .. }
                | ControlCommand::RequestSense { .. }
        )
    )
}

/// Commands that another nexus may send in spite of an SPC-2 reservation (SPC-2 table 10).
fn passes_spc2(command: &Command) -> bool {
    matches!(
        command,
        Command::Control(
            ControlCommand::Inquiry { .. }
                | ControlCommand::ReportLuns { .. }
                | ControlCommand::RequestSense { .. }
                | ControlCommand::LogSense { .. }
                | ControlCommand::ReportTargetPortGroups { .. }
                | ControlCommand::PreventAllow { prevent: false }
                | ControlCommand::Release6
        )
    )
}

/// Commands that need the medium to be accessible.
fn needs_medium(command: &Command) -> bool {
    match command {
        Command::Control(c) => matches!(c, ControlCommand::FormatUnit { .. }),
        _ => true,
    }
}

impl LuState {
    /// Admits a command or says how it ends: pending unit attention first (which this reports and
    /// thereby clears), then SPC-2 and persistent reservations, access state, readiness, write
    /// protection. Commands of an unknown nexus are aborted.
    pub fn admit(&mut self, nexus: Nexus, command: &Command) -> Result<(), ScsiError> {
        let keep = self.modes.ua_interlock;
        let Some(state) = self.nexuses.get_mut(&nexus) else {
            return Err(Sense::ABORTED_COMMAND.into());
        };
        if !passes_attentions(command)
            && let Some(sense) = state.attentions.oldest()
        {
            if !keep {
                state.attentions.pop();
                self.touch();
            }
            return Err(sense.into());
        }
        self.admit_by_rules(nexus, command)
    }

    /// As [`LuState::admit`], for front ends whose hosts have no way to be told of unit attentions or to clear them:
    /// the nexus's own are dropped, whatever the control mode page says about keeping them.
    pub fn admit_unattended(&mut self, nexus: Nexus, command: &Command) -> Result<(), ScsiError> {
        let state = self.nexuses.get_mut(&nexus);
        if state.is_some_and(|s| s.attentions.clear_all()) {
            self.touch();
        }
        self.admit_by_rules(nexus, command)
    }

    /// Everything but unit attentions.
    fn admit_by_rules(&self, nexus: Nexus, command: &Command) -> Result<(), ScsiError> {
        let Some(state) = self.nexuses.get(&nexus) else {
            return Err(Sense::ABORTED_COMMAND.into());
        };
        self.check_spc2(nexus, command)?;
        self.check_persistent(state, command.access())?;
        self.alua_state(&state.who).admit(command)?;
        if needs_medium(command)
            && let Some(sense) = self.condition.sense()
        {
            return Err(sense.into());
        }
        if command.writes_medium() && self.write_protected() {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        Ok(())
    }

    /// The SPC-2 reservation. It and persistent reservations exclude each other, so the reserving
    /// nexus too gets a conflict for PERSISTENT RESERVE.
    fn check_spc2(&self, nexus: Nexus, command: &Command) -> Result<(), ScsiError> {
        let refused = match self.reserved {
            None => false,
            Some(_) if is_persistent(command) => true,
            Some(_) => self.is_kept_out(nexus) && !passes_spc2(command),
        };
        if refused { Err(ScsiError::RESERVATION_CONFLICT) } else { Ok(()) }
    }

    pub(super) fn is_holder(&self, nexus: Nexus) -> bool {
        self.reserved.is_some_and(|r| r.by == nexus)
    }

    /// Whether an SPC-2 reservation keeps a nexus out: not one that it has, or that one before it of the same ports has left.
    pub(super) fn is_kept_out(&self, nexus: Nexus) -> bool {
        let Some(r) = self.reserved.filter(|r| r.by != nexus) else { return false };
        let state = |n: Nexus| self.nexuses.get(&n);
        let has_left = |(old, new): (&NexusState, &NexusState)| old.over && old.who == new.who;
        !state(r.by).zip(state(nexus)).is_some_and(has_left)
    }

    /// Whether a nexus has an SPC-2 reservation, or one before it of the same ports has left it.
    pub fn has_reserved(&self, nexus: Nexus) -> bool {
        self.reserved.is_some() && !self.is_kept_out(nexus)
    }

    fn check_persistent(&self, state: &NexusState, class: AccessClass) -> Result<(), ScsiError> {
        match self.reservations.kind {
            Some(kind) if conflicts(class, kind, self.reservations.standing(&state.who)) => {
                Err(ScsiError::RESERVATION_CONFLICT)
            }
            _ => Ok(()),
        }
    }

    /// What admission would say to media commands of `nexus`, for the caller to cache until
    /// [`LuState::generation`] moves on. All false for an unknown nexus.
    pub fn fast_path(&self, nexus: Nexus) -> FastPath {
        let mut fast = FastPath {
            write_through: !self.modes.wce,
            sense: self.sense_format(),
            ..FastPath::default()
        };
        let Some(state) = self.nexuses.get(&nexus) else { return fast };
        let open = state.attentions.is_empty()
            && self.condition.sense().is_none()
            && !self.is_kept_out(nexus)
            && self.alua_state(&state.who).refusal().is_none();
        let allowed = |class| self.check_persistent(state, class).is_ok();
        fast.reads = open && allowed(AccessClass::ReadMedium);
        fast.writes = open && allowed(AccessClass::WriteMedium) && !self.write_protected();
        fast
    }
}

fn is_persistent(command: &Command) -> bool {
    matches!(
        command,
        Command::Control(
            ControlCommand::PersistentReserveIn { .. }
                | ControlCommand::PersistentReserveOut { .. }
        )
    )
}
