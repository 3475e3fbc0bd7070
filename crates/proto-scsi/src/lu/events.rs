//! What happens to a unit from the side of the target: resets, resizes, changes of state.

use super::mode::ModeValues;
use super::{AluaState, Condition, LuState, Nexus, Reset, UaScope, UnknownGroup, alua};
use crate::identity::TargetPort;
use crate::planted::{Bug, has};
use crate::pr::PortPair;
use crate::sense::Sense;
use crate::transport_id::TransportId;

impl LuState {
    /// Raises a unit attention.
    pub fn raise_ua(&mut self, scope: UaScope, sense: Sense) {
        let mut told: Vec<TransportId> = Vec::new();
        for (nexus, state) in &mut self.nexuses {
            if has(Bug::ToldOncePerHost) {
                if told.contains(&state.who.initiator) {
                    continue;
                }
                told.push(state.who.initiator.clone());
            }
            let meant = match scope {
                UaScope::All => true,
                UaScope::Only(n) => *nexus == n,
                UaScope::AllExcept(n) => *nexus != n,
            };
            if meant {
                state.attentions.push(sense);
            }
        }
        if !has(Bug::AttentionBehindCache) {
            self.touch();
        }
    }

    /// A command that had taken this attention of a nexus ends without a word: it is pending again.
    pub fn untold(&mut self, nexus: Nexus, sense: Sense) {
        if self.nexuses.get_mut(&nexus).is_some_and(|s| s.attentions.put_back(sense)) {
            self.touch();
        }
    }

    /// The unit attentions that a nexus has pending, oldest first; they stay pending.
    pub fn attentions(&self, nexus: Nexus) -> Vec<Sense> {
        self.nexuses.get(&nexus).map_or_else(Vec::new, |s| s.attentions.all().to_vec())
    }

    /// Raises a unit attention for a pair of ports, if it is logged in. True if it was.
    pub(super) fn raise_ua_for(&mut self, who: &PortPair, sense: Sense) -> bool {
        let mut raised = false;
        for state in self.nexuses.values_mut().filter(|s| s.who == *who) {
            state.attentions.push(sense);
            raised = true;
        }
        raised
    }

    /// Logical unit reset: mode pages return to their defaults (none are saved), 6/29/03 for all
    /// nexuses except `requester`. Persistent reservations stay. The caller aborts the tasks, and
    /// then calls [`lu_reset_over`](LuState::lu_reset_over).
    pub fn lu_reset(&mut self, requester: Option<Nexus>) -> Reset {
        self.resets += 1;
        let reset = Reset(self.resets);
        if let Some(r) = self.reserved.as_mut().filter(|_| !has(Bug::ResetKeepsReserve6)) {
            r.ends = Some(reset);
            r.first.get_or_insert(reset);
        }
        self.modes = ModeValues::default_of(&self.identity);
        self.echo.clear();
        let scope = requester.map_or(UaScope::All, UaScope::AllExcept);
        self.raise_ua(scope, Sense::LU_RESET);
        reset
    }

    /// The tasks before a reset have ended, and with them the SPC-2 reservation: not sooner, since
    /// they would change what its next holder writes. One that was taken since the reset stays, and
    /// so does one that a later reset is to end: its holder may have begun more before that.
    pub fn lu_reset_over(&mut self, reset: Reset) {
        if self.reset_due() == Some(reset) {
            self.reserved = None;
            self.touch();
        }
    }

    /// Whether an SPC-2 reservation is there that this reset was to end: a later one is to end it by now. Who has asked for either may
    /// not be told before that that it is done.
    pub fn outlives(&self, reset: Reset) -> bool {
        self.reserved.and_then(|r| r.first).is_some_and(|first| first <= reset)
    }

    /// The reset that is to end an SPC-2 reservation when it is over.
    pub fn reset_due(&self) -> Option<Reset> {
        self.reserved.and_then(|r| r.ends)
    }

    /// A new capacity, with 6/2A/09 for all nexuses. False, and nothing happens, if it is the
    /// present one.
    pub fn resize(&mut self, blocks: u64) -> bool {
        if self.geometry.blocks == blocks {
            return false;
        }
        self.geometry.blocks = blocks;
        self.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
        true
    }

    /// Makes the unit read-only or writable; read-only shows as WP in MODE SENSE.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.identity.read_only = read_only;
        self.touch();
    }

    /// Whether the medium can be accessed. Becoming ready again raises 6/28/00.
    pub fn set_condition(&mut self, condition: Condition) {
        let was = core::mem::replace(&mut self.condition, condition);
        if condition == Condition::Ready && was != Condition::Ready {
            self.raise_ua(UaScope::All, Sense::BECAME_READY);
        }
        self.touch();
    }

    /// Whether the medium can be accessed.
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// Replaces the target ports; 6/3F/03 for all nexuses. New groups begin active/optimized.
    pub fn set_ports(&mut self, ports: Vec<TargetPort>) {
        self.groups = alua::groups_of(&ports, &self.groups);
        self.identity.ports = ports;
        self.raise_ua(UaScope::All, Sense::INQUIRY_DATA_CHANGED);
    }

    /// Sets the access state of a target port group; 6/2A/06 for all nexuses if it changed.
    pub fn set_alua(
        &mut self,
        group: u16,
        state: AluaState,
        preferred: bool,
    ) -> Result<(), UnknownGroup> {
        let Some(g) = self.groups.iter_mut().find(|g| g.id == group) else {
            return Err(UnknownGroup(group));
        };
        if (g.state, g.preferred) != (state, preferred) {
            g.state = state;
            g.preferred = preferred;
            g.changed = true;
            self.raise_ua(UaScope::All, Sense::ALUA_STATE_CHANGED);
        }
        Ok(())
    }
}
