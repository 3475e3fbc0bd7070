//! Entry points for fuzzers and property tests: arbitrary bytes in, every promise asserted.
//!
//! Each function panics when a promise is broken and does nothing otherwise.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

use crate::cdb::{AccessClass, Command, ControlCommand, decode};
use crate::identity::{PortName, TargetPort};
use crate::lu::{
    AluaState, Condition, ControlContext, FastPath, LuState, Nexus, SpaceUse, UaScope,
};
use crate::lun::{Lun, execute_no_lu};
use crate::pr::Import;
use crate::sense::{SENSE_LEN_MAX, Sense, SenseFormat, SenseKey};
use crate::status::{ScsiError, Status};
use crate::transport_id::TransportId;
use crate::{Features, Geometry, Identity, initiator, unmap};

/// Nexuses of the unit: two initiator ports at two target ports.
const NEXUSES: u64 = 4;

/// Takes the script apart; missing bytes are 0.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let [first, rest @ ..] = self.0 else { return 0 };
        self.0 = rest;
        *first
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
}

fn login(lu: &mut LuState, n: u64) {
    let port = 1 + (n & 1) as u16;
    let initiator = TransportId::srp([(n >> 1) as u8; 16]);
    lu.nexus_added(Nexus(n), initiator, port).expect("the port exists");
}

fn unit(config: u8) -> LuState {
    let mut id = Identity::new("WEIR", "FUZZ", "0001", "1", Identity::naa6(1, 2, 3));
    for n in 1..=2 {
        let name = if config & 1 == 0 {
            PortName::Srp([n; 16])
        } else {
            PortName::Name { protocol: 4, name: format!("0x{n:032x}") }
        };
        id.ports.push(TargetPort { relative_id: n.into(), group: n.into(), name });
    }
    id.write_cache = config & 2 != 0;
    let mut geometry = Geometry::new(if config & 4 == 0 { 512 } else { 4096 }, 1 << 33);
    if config & 8 != 0 {
        geometry.features = geometry.features.with(Features::ANCHOR).with(Features::FORMAT);
    }
    if config & 16 != 0 {
        geometry.features = Features::RBC;
    }
    let mut lu = LuState::new(id, geometry);
    (0..NEXUSES).for_each(|n| login(&mut lu, n));
    lu
}

/// Interprets `data` as a script of commands and events against one logical unit with four
/// nexuses, and asserts after each step that
///
/// * decoding, admission and control are total, and errors have the right shape;
/// * answers are no longer than the allocation length;
/// * a [`FastPath`] and admission say the same, and a fast admission changes nothing;
/// * every change of a fast path moves the generation;
/// * reservations keep their invariants and survive export and import unchanged;
/// * what INQUIRY, REPORT LUNS and REQUEST SENSE promise (never a unit attention) holds.
pub fn fuzz_cdb(data: &[u8]) {
    let mut script = Script(data);
    let mut lu = unit(script.byte());
    let mut out = Vec::new();
    let mut seen = snapshot(&lu);
    while !script.0.is_empty() {
        let step = script.byte();
        let nexus = Nexus(u64::from(step & 3));
        if step & 0x80 == 0 {
            let len = usize::from(script.byte() % 17);
            let cdb = script.take(len);
            let data_len = usize::from(script.byte());
            let data = script.take(data_len);
            command(&mut lu, nexus, cdb, data, &mut out);
        } else {
            event(&mut lu, nexus, step >> 2 & 0x1f, &mut script);
        }
        lu.check_invariants().expect("invariants");
        reservations_round_trip(&lu);
        let now = snapshot(&lu);
        assert!(now.1 == seen.1 || now.0 != seen.0, "a fast path changed, the generation did not");
        seen = now;
    }
}

fn snapshot(lu: &LuState) -> (u64, Vec<FastPath>) {
    (lu.generation(), (0..NEXUSES).map(|n| lu.fast_path(Nexus(n))).collect())
}

fn command(lu: &mut LuState, nexus: Nexus, cdb: &[u8], data: &[u8], out: &mut Vec<u8>) {
    let geometry = lu.geometry();
    let command = match decode(cdb, &geometry) {
        Ok(command) => command,
        Err(sense) => {
            assert_eq!(sense.key, SenseKey::IllegalRequest);
            return;
        }
    };
    let fast = lu.fast_path(nexus);
    let generation = lu.generation();
    let admitted = lu.admit(nexus, &command);
    check_admission(lu, &command, &admitted, fast, generation);
    let (Ok(()), Command::Control(control)) = (admitted, command) else { return };
    let luns = [Lun::ZERO, Lun(0x0007 << 48)];
    let space = Some(SpaceUse { used: 1 << 20, available: 1 << 40 });
    let ctx = ControlContext { luns: &luns, space };
    let outcome = lu.control(nexus, &control, data, &ctx, out);
    assert!(out.len() as u64 <= control.data_in_len(), "longer than allowed: {control:?}");
    assert_eq!(outcome.effects.generation_changed, lu.generation() != generation);
    if let Err(error) = outcome.result {
        assert!(out.is_empty());
        check_error(&error);
        let e = &outcome.effects;
        assert!(!e.persist && !e.flush && e.format.is_none() && e.abort_tasks_of.is_empty());
    }
}

fn check_admission(
    lu: &LuState,
    command: &Command,
    admitted: &Result<(), ScsiError>,
    fast: FastPath,
    generation: u64,
) {
    let medium = !matches!(command, Command::Control(_) | Command::TestUnitReady);
    let fast = match command.access() {
        AccessClass::ReadMedium if medium => Some(fast.reads),
        // SYNCHRONIZE CACHE alone of this row is admitted while write protected.
        AccessClass::WriteMedium if medium && command.writes_medium() => Some(fast.writes),
        _ => None,
    };
    if let Some(fast) = fast {
        assert_eq!(fast, admitted.is_ok(), "fast path and admission differ for {command:?}");
        assert!(!fast || lu.generation() == generation, "a fast admission had an effect");
    }
    if let Err(error) = admitted {
        check_error(error);
        let quiet = matches!(
            command,
            Command::Control(
                ControlCommand::Inquiry { .. }
                    | ControlCommand::ReportLuns { .. }
                    | ControlCommand::RequestSense { .. }
            )
        );
        let known = error.sense != Some(Sense::ABORTED_COMMAND);
        assert!(!(quiet && known), "{command:?} refused: {error}");
    }
}

fn check_error(error: &ScsiError) {
    assert_ne!(error.status, Status::Good);
    assert_eq!(error.status == Status::CheckCondition, error.sense.is_some());
}

fn event(lu: &mut LuState, nexus: Nexus, event: u8, script: &mut Script<'_>) {
    match event {
        0 => lu.nexus_lost(nexus),
        1 => {
            lu.nexus_lost(nexus);
            login(lu, nexus.0);
        }
        2 => match lu.reset_due() {
            Some(reset) if lu.has_reserved(nexus) => lu.lu_reset_over(reset),
            _ => {
                lu.lu_reset(Some(nexus));
            }
        },
        3 => {
            lu.resize(1 + u64::from(script.byte()));
        }
        4 => lu.set_read_only(script.byte() & 1 != 0),
        5 => {
            let state = match script.byte() % 6 {
                0 => AluaState::ActiveOptimized,
                1 => AluaState::ActiveNonOptimized,
                2 => AluaState::Standby,
                3 => AluaState::Unavailable,
                4 => AluaState::Offline,
                _ => AluaState::Transitioning,
            };
            let group = 1 + u16::from(script.byte() & 1);
            lu.set_alua(group, state, false).expect("the group exists");
        }
        6 => lu.set_condition(match script.byte() % 4 {
            0 => Condition::Ready,
            1 => Condition::BecomingReady,
            2 => Condition::Offline,
            _ => Condition::Formatting(7),
        }),
        7 => lu.raise_ua(UaScope::AllExcept(nexus), Sense::REPORT_LUNS_CHANGED),
        8 => {
            let bytes = lu.export_reservations();
            lu.import_reservations(&bytes, Import::PowerOn).expect("our own export");
        }
        // Most often: clear the way for the commands that follow.
        _ => {
            while lu.admit(nexus, &Command::TestUnitReady).is_err_and(|e| is_attention(&e)) {
                // With UA_INTLCK the attention stays until REQUEST SENSE.
                let sense = ControlCommand::RequestSense { descriptor: true, alloc: 252 };
                let ctx = ControlContext::default();
                lu.control(nexus, &sense, &[], &ctx, &mut Vec::new());
            }
        }
    }
}

fn is_attention(error: &ScsiError) -> bool {
    error.sense.is_some_and(|s| s.key == SenseKey::UnitAttention)
}

fn reservations_round_trip(lu: &LuState) {
    let bytes = lu.export_reservations();
    let mut copy = LuState::new(lu.identity().clone(), lu.geometry());
    copy.import_reservations(&bytes, Import::TakeOver).expect("our own export");
    assert_eq!(copy.export_reservations(), bytes);
}

/// A LUN without a volume: any CDB gives an answer within its allocation length or an error.
pub fn fuzz_no_lu(data: &[u8]) {
    let id = Identity::new("WEIR", "NONE", "0001", "", [0; 16]);
    let mut out = Vec::new();
    for lun in [Lun::ZERO, Lun(9 << 48)] {
        match execute_no_lu(data, lun, Sense::LU_NOT_SUPPORTED, &[Lun(1 << 48)], &id, &mut out) {
            Ok(()) => assert!(out.len() <= 4096),
            Err(e) => check_error(&e),
        }
    }
}

/// Sense data: parsing is total, and what was parsed encodes to something that parses the same.
pub fn fuzz_sense(data: &[u8]) {
    let Some(sense) = Sense::parse(data) else { return };
    let mut b = [0; SENSE_LEN_MAX];
    let n = sense.encode(SenseFormat::Descriptor, &mut b);
    assert_eq!(Sense::parse(&b[..n]), Some(sense));
    let _ = sense.to_string();
}

/// UNMAP parameter lists: total, and every extent is within the unit and the limits.
pub fn fuzz_unmap(data: &[u8]) {
    let geometry = Geometry::new(512, 1 << 20);
    let Ok(extents) = unmap::parse(data, &geometry) else { return };
    let (mut count, mut total) = (0, 0u64);
    for (lba, blocks) in extents {
        assert!(blocks != 0 && lba + u64::from(blocks) <= geometry.blocks);
        count += 1;
        total += u64::from(blocks);
    }
    assert!(count <= geometry.limits.max_unmap_descriptors);
    assert!(total <= geometry.limits.max_unmap_blocks.into());
}

/// Stored reservations: any bytes give an error or a state that keeps its invariants.
pub fn fuzz_reservations(data: &[u8]) {
    let mut lu = unit(0);
    for why in [Import::TakeOver, Import::PowerOn] {
        if lu.import_reservations(data, why).is_ok() {
            lu.check_invariants().expect("invariants");
            reservations_round_trip(&lu);
        }
    }
}

/// Every reader of answers, as an initiator would use them on a hostile target.
pub fn fuzz_answers(data: &[u8]) {
    let _ = initiator::parse_capacity_10(data);
    let _ = initiator::parse_capacity_16(data);
    let _ = initiator::parse_inquiry(data);
    let _ = initiator::parse_serial(data);
    let _ = initiator::parse_naa(data);
    let _ = initiator::parse_designators(data).map(Iterator::count);
    let _ = initiator::parse_block_limits(data);
    let _ = initiator::parse_provisioning(data);
    let _ = initiator::parse_report_luns(data);
    let _ = initiator::parse_lba_status(data);
    let _ = initiator::parse_pr_keys(data);
    let _ = initiator::parse_pr_reservation(data);
}

#[cfg(test)]
mod tests;
