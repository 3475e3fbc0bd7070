//! Asymmetric logical unit access: target port groups and their states (SPC-4 5.15).

use super::LuState;
use crate::cdb::{Command, ControlCommand};
use crate::data::Data;
use crate::identity::TargetPort;
use crate::pr::PortPair;
use crate::sense::Sense;

/// Access state of a target port group. The discriminant is the wire code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AluaState {
    /// Full access, best path.
    ActiveOptimized = 0x0,
    /// Full access, another path is better.
    ActiveNonOptimized = 0x1,
    /// Only commands about the unit itself.
    Standby = 0x2,
    /// Fewer still.
    Unavailable = 0x3,
    /// The port group is off.
    Offline = 0xe,
    /// Between two states.
    Transitioning = 0xf,
}

impl AluaState {
    /// From the wire code (SPC-4 table 306).
    pub fn from_code(code: u8) -> Option<AluaState> {
        Some(match code {
            0x0 => AluaState::ActiveOptimized,
            0x1 => AluaState::ActiveNonOptimized,
            0x2 => AluaState::Standby,
            0x3 => AluaState::Unavailable,
            0xe => AluaState::Offline,
            0xf => AluaState::Transitioning,
            _ => return None,
        })
    }

    /// What commands refused in this state end with; `None` when everything is allowed.
    pub fn refusal(self) -> Option<Sense> {
        match self {
            AluaState::ActiveOptimized | AluaState::ActiveNonOptimized => None,
            AluaState::Standby => Some(Sense::ALUA_STANDBY),
            AluaState::Unavailable => Some(Sense::ALUA_UNAVAILABLE),
            AluaState::Offline => Some(Sense::OFFLINE),
            AluaState::Transitioning => Some(Sense::ALUA_TRANSITION),
        }
    }

    /// True for a command that every access state allows.
    fn always_allowed(command: &Command) -> bool {
        matches!(
            command,
            Command::Control(
                ControlCommand::Inquiry { .. }
                    | ControlCommand::ReportLuns { .. }
                    | ControlCommand::RequestSense { .. }
                    | ControlCommand::ReportTargetPortGroups { .. }
                    | ControlCommand::ReportOpcodes { .. }
                    | ControlCommand::ReportTmf { .. }
            )
        )
    }

    /// True for a command that standby allows beyond those. READ CAPACITY is among them because
    /// hosts size a disk on whichever path they find first.
    fn standby_allowed(command: &Command) -> bool {
        matches!(
            command,
            Command::Control(
                ControlCommand::PersistentReserveIn { .. }
                    | ControlCommand::PersistentReserveOut { .. }
                    | ControlCommand::ModeSense { .. }
                    | ControlCommand::ModeSelect { .. }
                    | ControlCommand::LogSense { .. }
                    | ControlCommand::ReadCapacity10
                    | ControlCommand::ReadCapacity16 { .. }
            )
        )
    }

    /// Refuses a command that the state does not allow.
    pub(super) fn admit(self, command: &Command) -> Result<(), Sense> {
        let Some(refusal) = self.refusal() else { return Ok(()) };
        let allowed = AluaState::always_allowed(command)
            || (self == AluaState::Standby && AluaState::standby_allowed(command));
        if allowed { Ok(()) } else { Err(refusal) }
    }
}

/// A target port group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AluaGroup {
    /// Target port group identifier.
    pub id: u16,
    /// Access state.
    pub state: AluaState,
    /// PREF.
    pub preferred: bool,
    /// The state was changed by the target since the unit began (status code 2).
    pub changed: bool,
}

/// The groups of these ports, with the states that `known` has for them.
pub(super) fn groups_of(ports: &[TargetPort], known: &[AluaGroup]) -> Vec<AluaGroup> {
    let mut groups: Vec<AluaGroup> = Vec::new();
    for port in ports {
        if groups.iter().any(|g| g.id == port.group) {
            continue;
        }
        groups.push(known.iter().find(|g| g.id == port.group).copied().unwrap_or(AluaGroup {
            id: port.group,
            state: AluaState::ActiveOptimized,
            preferred: false,
            changed: false,
        }));
    }
    groups.sort_by_key(|g| g.id);
    groups
}

impl LuState {
    /// The target port groups, ascending.
    pub fn alua_groups(&self) -> &[AluaGroup] {
        &self.groups
    }

    /// Access state through the target port of `who`.
    pub(super) fn alua_state(&self, who: &PortPair) -> AluaState {
        self.identity
            .port(who.target_port)
            .and_then(|p| self.groups.iter().find(|g| g.id == p.group))
            .map_or(AluaState::Unavailable, |g| g.state)
    }

    /// REPORT TARGET PORT GROUPS.
    pub(super) fn report_target_port_groups(&self, extended: bool, out: &mut Vec<u8>) {
        out.be32(0);
        if extended {
            // Format 1; an implicit transition time of 0 gives none.
            out.extend_from_slice(&[0x10, 0, 0, 0]);
        }
        for g in &self.groups {
            // Supported: transitioning, offline, unavailable, standby, both active states.
            let state = u8::from(g.preferred) << 7 | g.state as u8;
            out.extend_from_slice(&[state, 0xcf]);
            out.be16(g.id);
            let ports = || self.identity.ports.iter().filter(|p| p.group == g.id);
            let status = if g.changed { 2 } else { 0 };
            out.extend_from_slice(&[0, status, 0, ports().count().min(255) as u8]);
            for p in ports().take(255) {
                out.be16(0);
                out.be16(p.relative_id);
            }
        }
        out.set_len32(0);
    }
}
