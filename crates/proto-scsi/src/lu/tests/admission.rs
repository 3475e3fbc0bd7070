//! Unit attentions, SPC-2 reservations, access states, readiness, write protection.

use crate::cdb::decode;
use crate::initiator as i;
use crate::lu::{AluaState, Condition, Nexus, UA_QUEUE_MAX, UaScope, UnknownPort};
use crate::sense::{Sense, SenseKey};
use crate::status::ScsiError;
use crate::testbed::{Bed, initiator, nexus, port, sense};

const CONFLICT: ScsiError = ScsiError::RESERVATION_CONFLICT;

#[test]
fn attentions_come_oldest_first_and_each_once() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    for s in
        [Sense::MODE_PARAMETERS_CHANGED, Sense::CAPACITY_CHANGED, Sense::MODE_PARAMETERS_CHANGED]
    {
        bed.lu.raise_ua(UaScope::All, s);
    }
    assert_eq!(bed.attentions(a), [Sense::MODE_PARAMETERS_CHANGED, Sense::CAPACITY_CHANGED]);
}

#[test]
fn a_reset_replaces_earlier_resets_only() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.lu.raise_ua(UaScope::All, Sense::POWER_ON);
    bed.lu.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
    bed.lu.lu_reset(None);
    assert_eq!(bed.attentions(a), [Sense::CAPACITY_CHANGED, Sense::LU_RESET]);
}

#[test]
fn scopes() {
    let mut bed = Bed::new();
    let (a, b, c) = (bed.login(1), bed.login(2), bed.login(3));
    bed.lu.raise_ua(UaScope::Only(a), Sense::THIN_SOFT_THRESHOLD);
    bed.lu.raise_ua(UaScope::AllExcept(b), Sense::COMMANDS_CLEARED);
    assert_eq!(bed.attentions(a), [Sense::THIN_SOFT_THRESHOLD, Sense::COMMANDS_CLEARED]);
    assert_eq!(bed.attentions(b), []);
    assert_eq!(bed.attentions(c), [Sense::COMMANDS_CLEARED]);
}

#[test]
fn the_queue_is_bounded_and_keeps_the_newest() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    for n in 0..100 {
        bed.lu.raise_ua(UaScope::All, Sense::new(SenseKey::UnitAttention, 0x80, n));
    }
    let got = bed.attentions(a);
    assert_eq!(got.len(), UA_QUEUE_MAX);
    assert_eq!(got.last().map(|s| s.ascq), Some(99));
}

#[test]
fn inquiry_report_luns_and_request_sense_pass_attentions() {
    let mut bed = Bed::new();
    let a = nexus(1, 1);
    bed.lu.nexus_added(a, initiator(1), 1).unwrap();
    bed.lu.raise_ua(UaScope::All, Sense::REPORT_LUNS_CHANGED);
    bed.run(a, i::inquiry(36)).unwrap();
    // REPORT LUNS clears its own attention and no other.
    bed.run(a, i::report_luns(64)).unwrap();
    // REQUEST SENSE returns the oldest and clears it; then there is none.
    let s = bed.run(a, i::request_sense(false, 18)).unwrap();
    assert_eq!(i::parse_sense(&s), Some(Sense::POWER_ON_OR_RESET));
    let s = bed.run(a, i::request_sense(true, 252)).unwrap();
    assert_eq!(s, [0x72, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bed.attentions(a), []);
}

#[test]
fn any_other_command_reports_and_clears_one() {
    for cdb in [i::read(0, 1, false), i::read_capacity_16(32), i::mode_sense_6(0x3f, 0, false, 4)] {
        let mut bed = Bed::new();
        let a = nexus(1, 1);
        bed.lu.nexus_added(a, initiator(1), 1).unwrap();
        assert_eq!(sense(bed.run(a, cdb)), Sense::POWER_ON_OR_RESET);
        assert!(bed.run(a, cdb).is_ok());
    }
}

#[test]
fn interlock_keeps_the_attention_until_request_sense() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.interlock(a);
    bed.lu.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
    for _ in 0..3 {
        assert_eq!(sense(bed.run(a, i::test_unit_ready())), Sense::CAPACITY_CHANGED);
    }
    bed.run(a, i::request_sense(false, 18)).unwrap();
    assert!(bed.run(a, i::test_unit_ready()).is_ok());
}

#[test]
fn unknown_nexuses_and_ports() {
    let mut bed = Bed::new();
    let stranger = Nexus(99);
    assert_eq!(bed.lu.nexus_added(stranger, initiator(1), 3), Err(UnknownPort(3)));
    assert_eq!(sense(bed.run(stranger, i::inquiry(36))), Sense::ABORTED_COMMAND);
    assert!(!bed.lu.fast_path(stranger).reads);
    let a = bed.login(1);
    bed.lu.nexus_lost(a);
    bed.lu.nexus_lost(a);
    assert_eq!(sense(bed.run(a, i::test_unit_ready())), Sense::ABORTED_COMMAND);
}

#[test]
fn spc2_reservation_shuts_the_others_out() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    bed.run(a, i::reserve_6()).unwrap();
    bed.run(a, i::reserve_6()).unwrap();
    let refused = [
        i::test_unit_ready(),
        i::read(0, 1, false),
        i::write(0, 1, false),
        i::mode_sense_6(0x3f, 0, false, 255),
        i::read_capacity_10(),
        i::reserve_6(),
        i::pr_in(crate::cdb::PrIn::ReadKeys, 64),
        i::sync_cache(0, 0),
    ];
    for cdb in refused {
        assert_eq!(bed.run(b, cdb), Err(CONFLICT), "{cdb:?}");
    }
    for cdb in [i::inquiry(36), i::report_luns(16), i::request_sense(false, 18), i::release_6()] {
        assert!(bed.run(b, cdb).is_ok(), "{cdb:?}");
    }
    // The other's RELEASE had no effect; the holder works, but not with persistent reservations.
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    assert!(bed.run(a, i::write(0, 1, false)).is_ok());
    assert_eq!(bed.run(a, i::pr_in(crate::cdb::PrIn::ReadKeys, 64)), Err(CONFLICT));
    assert!(bed.lu.fast_path(a).writes && !bed.lu.fast_path(b).reads);
    bed.run(a, i::release_6()).unwrap();
    assert!(bed.run(b, i::read(0, 1, false)).is_ok());
}

#[test]
fn spc2_reservation_ends_with_reset_and_nexus_loss() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    bed.run(a, i::reserve_6()).unwrap();
    let reset = bed.lu.lu_reset(Some(b));
    // What it has under way has not ended.
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    bed.lu.lu_reset_over(reset);
    assert!(bed.run(b, i::read(0, 1, false)).is_ok());
    assert_eq!(bed.attentions(a), [Sense::LU_RESET]);
    bed.run(a, i::reserve_6()).unwrap();
    let first = bed.lu.lu_reset(Some(b));
    assert_eq!(bed.attentions(a), [Sense::LU_RESET]);
    bed.run(a, i::reserve_6()).unwrap();
    bed.lu.lu_reset_over(first);
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT), "it was taken after the reset");
    assert!(!bed.lu.outlives(first));
    // A later one is to end it: what the holder has begun between the two goes on when the first is over.
    let second = bed.lu.lu_reset(Some(b));
    assert_eq!(bed.lu.reset_due(), Some(second));
    bed.lu.lu_reset_over(first);
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT), "the second reset is not over");
    let third = bed.lu.lu_reset(Some(b));
    bed.lu.lu_reset_over(second);
    assert!(bed.lu.outlives(second) && !bed.lu.outlives(first));
    bed.lu.lu_reset_over(third);
    assert!(!bed.lu.outlives(second) && bed.run(b, i::read(0, 1, false)).is_ok());
    assert_eq!((bed.attentions(a), bed.lu.reset_due()), (vec![Sense::LU_RESET], None));
    bed.run(a, i::reserve_6()).unwrap();
    bed.lu.nexus_lost(a);
    assert!(bed.run(b, i::read(0, 1, false)).is_ok());
}

#[test]
fn reserve_6_beside_registrations() {
    use crate::cdb::PrOut;
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    let list = i::pr_out_list(0, 1, &i::PrRegister::default());
    bed.raw(a, i::pr_out(PrOut::Register, None, 24).as_bytes(), &list).unwrap();
    // GOOD without effect for the registered nexus (CRH), conflict for the other.
    assert!(bed.run(a, i::reserve_6()).is_ok());
    assert!(bed.run(b, i::read(0, 1, false)).is_ok());
    assert_eq!(bed.run(b, i::reserve_6()), Err(CONFLICT));
    assert_eq!(bed.run(b, i::release_6()), Err(CONFLICT));
}

#[test]
fn access_states_by_port_group() {
    let states = [
        (AluaState::ActiveNonOptimized, None),
        (AluaState::Standby, Some(Sense::ALUA_STANDBY)),
        (AluaState::Unavailable, Some(Sense::ALUA_UNAVAILABLE)),
        (AluaState::Offline, Some(Sense::OFFLINE)),
        (AluaState::Transitioning, Some(Sense::ALUA_TRANSITION)),
    ];
    for (state, refusal) in states {
        let mut bed = Bed::new();
        let (here, there) = (bed.login_at(1, 1), bed.login_at(1, 2));
        bed.lu.set_alua(10, state, false).unwrap();
        assert_eq!(bed.attentions(there), [Sense::ALUA_STATE_CHANGED]);
        let first = bed.run(here, i::test_unit_ready());
        assert_eq!(sense(first), Sense::ALUA_STATE_CHANGED);
        for cdb in [i::test_unit_ready(), i::read(0, 1, false), i::write(0, 1, false)] {
            assert_eq!(bed.run(here, cdb).err().and_then(|e| e.sense), refusal, "{state:?}");
            assert!(bed.run(there, cdb).is_ok());
        }
        assert_eq!(bed.lu.fast_path(here).reads, refusal.is_none());
        assert!(bed.lu.fast_path(there).writes);
        for cdb in [i::inquiry(36), i::report_luns(16), i::report_target_port_groups(128)] {
            assert!(bed.run(here, cdb).is_ok(), "{state:?}");
        }
        let standby = !matches!(
            state,
            AluaState::Unavailable | AluaState::Offline | AluaState::Transitioning
        );
        for cdb in [
            i::mode_sense_6(8, 0, true, 20),
            i::pr_in(crate::cdb::PrIn::ReadKeys, 8),
            i::read_capacity_16(32),
        ] {
            assert_eq!(bed.run(here, cdb).is_ok(), standby, "{state:?}");
        }
        // REQUEST SENSE tells the state.
        let s = bed.run(here, i::request_sense(false, 18)).unwrap();
        assert_eq!(i::parse_sense(&s), Some(refusal.unwrap_or(Sense::NO_SENSE)));
        bed.lu.set_alua(10, state, false).unwrap();
        assert_eq!(bed.attentions(there), [], "no change, no attention");
    }
    assert!(Bed::new().lu.set_alua(11, AluaState::Standby, false).is_err());
}

#[test]
fn report_target_port_groups_golden() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.lu.set_alua(20, AluaState::ActiveNonOptimized, true).unwrap();
    assert_eq!(bed.attentions(a), [Sense::ALUA_STATE_CHANGED]);
    let groups = [
        0x00, 0xcf, 0, 10, 0, 0, 0, 1, 0, 0, 0, 1, //
        0x81, 0xcf, 0, 20, 0, 2, 0, 1, 0, 0, 0, 2,
    ];
    let extended = bed.run(a, i::report_target_port_groups(128)).unwrap();
    assert_eq!(extended[..8], [0, 0, 0, 28, 0x10, 0, 0, 0]);
    assert_eq!(extended[8..], groups);
    let plain = bed.raw(a, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0], &[]).unwrap();
    assert_eq!(plain[..4], [0, 0, 0, 24]);
    assert_eq!(plain[4..], groups);
    // An initiator reads either, and finds its own port's group in the unit's designators.
    let want = [
        i::PortGroup { id: 10, state: Some(AluaState::ActiveOptimized), preferred: false },
        i::PortGroup { id: 20, state: Some(AluaState::ActiveNonOptimized), preferred: true },
    ];
    assert_eq!(i::parse_port_groups(&extended).unwrap(), want);
    assert_eq!(i::parse_port_groups(&plain).unwrap(), want);
    assert_eq!(i::parse_port_groups(&extended[..27]).unwrap(), want[..1]);
    assert!(i::parse_port_groups(&[0; 3]).is_err());
    let page = bed.run(a, i::vpd(0x83, 1024)).unwrap();
    assert_eq!(i::parse_port_group(&page), Some(10));
    // Linux begins with 128 bytes and asks again if the length says so.
    let cut = bed.run(a, i::report_target_port_groups(10)).unwrap();
    assert_eq!(cut, extended[..10]);
}

#[test]
fn conditions() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let cases = [
        (Condition::BecomingReady, Sense::BECOMING_READY),
        (Condition::Offline, Sense::OFFLINE),
        (Condition::Formatting(0x8000), Sense::FORMAT_IN_PROGRESS.with_progress(0x8000)),
    ];
    for (condition, want) in cases {
        bed.lu.set_condition(condition);
        assert_eq!(sense(bed.run(a, i::test_unit_ready())), want);
        assert_eq!(sense(bed.run(a, i::read(0, 1, false))), want);
        assert!(bed.run(a, i::mode_sense_6(8, 0, true, 20)).is_ok());
        assert!(!bed.lu.fast_path(a).reads);
        let s = bed.run(a, i::request_sense(true, 252)).unwrap();
        assert_eq!(i::parse_sense(&s), Some(want));
    }
    bed.lu.set_condition(Condition::Ready);
    assert_eq!(bed.attentions(a), [Sense::BECAME_READY]);
    assert!(bed.lu.fast_path(a).reads);
}

#[test]
fn write_protection_spares_reads_flushes_and_mode_select() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.lu.set_read_only(true);
    assert!(bed.lu.fast_path(a).reads && !bed.lu.fast_path(a).writes);
    let refused = [
        i::write(0, 1, false),
        i::unmap(24),
        i::write_same_16(0, 1, true, true),
        i::compare_and_write(0, 1, false),
    ];
    for cdb in refused {
        assert_eq!(sense(bed.run(a, cdb)), Sense::WRITE_PROTECTED);
    }
    for cdb in
        [i::read(0, 1, false), i::sync_cache(0, 0), i::verify(0, 1, true), i::mode_select_6(0)]
    {
        assert!(bed.run(a, cdb).is_ok());
    }
    assert_eq!(bed.run(a, i::mode_sense_6(0x3f, 0, false, 4)).unwrap()[2], 0x90);
    bed.lu.set_read_only(false);
    assert!(bed.lu.fast_path(a).writes);
}

#[test]
fn resize_is_told_once_and_moves_the_range() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let blocks = crate::testbed::BLOCKS;
    assert!(!bed.lu.resize(blocks));
    assert_eq!(bed.attentions(a), []);
    assert!(bed.lu.resize(2 * blocks));
    assert_eq!(bed.attentions(a), [Sense::CAPACITY_CHANGED]);
    assert!(decode(i::read(blocks, 1, false).as_bytes(), &bed.lu.geometry()).is_ok());
    let capacity = bed.run(a, i::read_capacity_16(32)).unwrap();
    assert_eq!(i::parse_capacity_16(&capacity).unwrap().last_lba, 2 * blocks - 1);
}

#[test]
fn new_ports_are_told_and_keep_group_states() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.lu.set_alua(20, AluaState::Standby, false).unwrap();
    bed.lu.set_ports(vec![port(1, 10), port(2, 20), port(3, 30)]);
    assert_eq!(bed.attentions(a), [Sense::ALUA_STATE_CHANGED, Sense::INQUIRY_DATA_CHANGED]);
    let states: Vec<_> = bed.lu.alua_groups().iter().map(|g| (g.id, g.state)).collect();
    use AluaState::{ActiveOptimized, Standby};
    assert_eq!(states, [(10, ActiveOptimized), (20, Standby), (30, ActiveOptimized)]);
    let c = bed.login_at(3, 3);
    assert!(bed.run(c, i::read(0, 1, false)).is_ok());
}

#[test]
fn the_state_can_be_shared_between_cores() {
    fn shared<T: Send + 'static>() {}
    shared::<std::sync::Mutex<crate::LuState>>();
    // What the hot path copies around stays small.
    assert!(size_of::<crate::Geometry>() <= 72);
    assert!(size_of::<crate::cdb::Command>() <= 32);
}
