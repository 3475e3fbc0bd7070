//! A logical unit with a few nexuses, driven as a target drives it; for tests.

use crate::cdb::{Command, decode};
use crate::initiator::Cdb;
use crate::lu::{ControlContext, Effects, LuState, Nexus};
use crate::lun::Lun;
use crate::sense::Sense;
use crate::status::ScsiError;
use crate::{Geometry, Identity, PortName, TargetPort, TransportId};

/// Blocks of the unit.
pub(crate) const BLOCKS: u64 = 1 << 20;

/// The unit and what the last control command asked for.
pub(crate) struct Bed {
    pub(crate) lu: LuState,
    pub(crate) effects: Effects,
}

pub(crate) fn identity() -> Identity {
    let mut id = Identity::new("WEIR", "VOLUME", "0001", "S-42", Identity::naa6(0xabcdef, 1, 2));
    id.ports = vec![port(1, 10), port(2, 20)];
    id
}

pub(crate) fn port(relative_id: u16, group: u16) -> TargetPort {
    TargetPort { relative_id, group, name: PortName::Srp([relative_id as u8; 16]) }
}

/// The initiator port with this number.
pub(crate) fn initiator(n: u8) -> TransportId {
    TransportId::srp([n; 16])
}

/// Nexus of initiator `i` and target port `p`, both small numbers.
pub(crate) fn nexus(i: u8, p: u16) -> Nexus {
    Nexus(u64::from(i) << 16 | u64::from(p))
}

impl Bed {
    pub(crate) fn new() -> Bed {
        Bed::with(identity(), Geometry::new(512, BLOCKS))
    }

    pub(crate) fn with(identity: Identity, geometry: Geometry) -> Bed {
        Bed { lu: LuState::new(identity, geometry), effects: Effects::default() }
    }

    /// Logs in at target port 1 and takes the first unit attention.
    pub(crate) fn login(&mut self, i: u8) -> Nexus {
        self.login_at(i, 1)
    }

    pub(crate) fn login_at(&mut self, i: u8, p: u16) -> Nexus {
        let n = nexus(i, p);
        self.lu.nexus_added(n, initiator(i), p).unwrap();
        assert_eq!(self.attentions(n), [Sense::POWER_ON_OR_RESET]);
        n
    }

    /// Sets UA_INTLCK_CTRL to 10b: attentions stay until REQUEST SENSE.
    pub(crate) fn interlock(&mut self, n: Nexus) {
        let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0x20, 0x40, 0, 0, 0, 0, 0, 0];
        self.raw(n, crate::initiator::mode_select_6(16).as_bytes(), &list).unwrap();
    }

    /// Drains the unit attentions of a nexus by TEST UNIT READY, and REQUEST SENSE under UA_INTLCK.
    pub(crate) fn attentions(&mut self, n: Nexus) -> Vec<Sense> {
        let mut all = Vec::new();
        while let Err(e) = self.lu.admit(n, &Command::TestUnitReady) {
            let sense = e.sense.expect("a unit attention");
            if all.last() == Some(&sense) {
                self.run(n, crate::initiator::request_sense(false, 18)).unwrap();
            } else {
                all.push(sense);
            }
            assert!(all.len() < 100, "attentions without end");
        }
        all
    }

    /// Decodes, admits and, for control commands, runs.
    pub(crate) fn raw(&mut self, n: Nexus, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, ScsiError> {
        self.effects = Effects::default();
        let command = decode(cdb, &self.lu.geometry())?;
        self.lu.admit(n, &command)?;
        let mut out = vec![0xee; 7];
        if let Command::Control(c) = command {
            let luns = [Lun::ZERO, Lun(5 << 48)];
            let ctx = ControlContext { luns: &luns, space: None };
            let outcome = self.lu.control(n, &c, data, &ctx, &mut out);
            self.effects = outcome.effects;
            outcome.result?;
            Ok(out)
        } else {
            Ok(Vec::new())
        }
    }

    pub(crate) fn run(&mut self, n: Nexus, cdb: Cdb) -> Result<Vec<u8>, ScsiError> {
        self.raw(n, cdb.as_bytes(), &[])
    }
}

/// The sense of a failed command.
pub(crate) fn sense<T: core::fmt::Debug>(result: Result<T, ScsiError>) -> Sense {
    result.unwrap_err().sense.expect("sense data")
}
