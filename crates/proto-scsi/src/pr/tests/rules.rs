//! Rules of PERSISTENT RESERVE OUT and IN, one test each.

use crate::cdb::{PrIn, PrOut};
use crate::initiator::{self as i, PrRegister};
use crate::lu::Nexus;
use crate::pr::{Import, ImportError, PrType};
use crate::sense::Sense;
use crate::status::ScsiError;
use crate::testbed::{Bed, initiator, sense};

const CONFLICT: Result<(), ScsiError> = Err(ScsiError::RESERVATION_CONFLICT);

pub(super) fn out(
    bed: &mut Bed,
    n: Nexus,
    action: PrOut,
    kind: u8,
    key: u64,
    new: u64,
) -> Result<(), ScsiError> {
    let list = i::pr_out_list(key, new, &PrRegister::default());
    out_list(bed, n, action, kind, &list)
}

pub(super) fn out_list(
    bed: &mut Bed,
    n: Nexus,
    action: PrOut,
    kind: u8,
    list: &[u8],
) -> Result<(), ScsiError> {
    let mut cdb = i::pr_out(action, None, list.len() as u32).padded();
    cdb[2] = kind;
    bed.raw(n, &cdb, list).map(|data| assert!(data.is_empty()))
}

pub(super) fn register(bed: &mut Bed, n: Nexus, key: u64) {
    out(bed, n, PrOut::RegisterAndIgnore, 0, 0, key).unwrap();
}

pub(super) fn keys(bed: &mut Bed, n: Nexus) -> Vec<u64> {
    let mut keys =
        i::parse_pr_keys(&bed.run(n, i::pr_in(PrIn::ReadKeys, 4096)).unwrap()).unwrap().keys;
    keys.sort_unstable();
    keys
}

fn generation(bed: &mut Bed, n: Nexus) -> u32 {
    i::parse_pr_keys(&bed.run(n, i::pr_in(PrIn::ReadKeys, 8)).unwrap()).unwrap().generation
}

pub(super) fn held(bed: &mut Bed, n: Nexus) -> Option<(u64, u8)> {
    i::parse_pr_reservation(&bed.run(n, i::pr_in(PrIn::ReadReservation, 64)).unwrap()).unwrap().held
}

pub(super) fn three() -> (Bed, Nexus, Nexus, Nexus) {
    let mut bed = Bed::new();
    let (a, b, c) = (bed.login(1), bed.login(2), bed.login(3));
    register(&mut bed, a, 0xa);
    register(&mut bed, b, 0xb);
    (bed, a, b, c)
}

#[test]
fn register_checks_the_key_and_ignore_does_not() {
    let (mut bed, a, _, c) = three();
    assert_eq!(out(&mut bed, c, PrOut::Register, 0, 5, 6), CONFLICT);
    assert_eq!(out(&mut bed, c, PrOut::Register, 0, 0, 0xc), Ok(()));
    assert_eq!(out(&mut bed, c, PrOut::Register, 0, 0, 0xd), CONFLICT);
    assert_eq!(out(&mut bed, c, PrOut::Register, 0, 0xc, 0xd), Ok(()));
    assert_eq!(out(&mut bed, a, PrOut::RegisterAndIgnore, 0, 99, 0xe), Ok(()));
    assert_eq!(keys(&mut bed, c), [0xb, 0xd, 0xe]);
    assert_eq!(out(&mut bed, c, PrOut::Register, 0, 0xd, 0), Ok(()));
    assert_eq!(keys(&mut bed, c), [0xb, 0xe]);
    assert_eq!(bed.attentions(a), []);
}

#[test]
fn prgeneration_counts_what_it_should() {
    let (mut bed, a, _, _) = three();
    let g = generation(&mut bed, a);
    assert_eq!(g, 2);
    out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
    out(&mut bed, a, PrOut::Release, 1, 0xa, 0).unwrap();
    assert_eq!(out(&mut bed, a, PrOut::Register, 0, 1, 2), CONFLICT);
    assert_eq!(generation(&mut bed, a), g);
    out(&mut bed, a, PrOut::Preempt, 1, 0xa, 0xb).unwrap();
    assert_eq!(generation(&mut bed, a), g + 1);
    out(&mut bed, a, PrOut::Clear, 0, 0xa, 0).unwrap();
    assert_eq!(generation(&mut bed, a), g + 2);
}

#[test]
fn unregistering_the_holder_releases() {
    for kind in PrType::ALL {
        let (mut bed, a, b, _) = three();
        out(&mut bed, a, PrOut::Reserve, kind.code(), 0xa, 0).unwrap();
        out(&mut bed, a, PrOut::Register, 0, 0xa, 0).unwrap();
        let ro = matches!(kind.code(), 5 | 6);
        let want: &[Sense] = if ro { &[Sense::RESERVATIONS_RELEASED] } else { &[] };
        assert_eq!(bed.attentions(b), want, "{kind:?}");
        let all = kind.code() >= 7;
        assert_eq!(held(&mut bed, b).is_some(), all);
        out(&mut bed, b, PrOut::Register, 0, 0xb, 0).unwrap();
        assert_eq!(held(&mut bed, b), None);
    }
}

#[test]
fn release_needs_the_type_and_tells_registrants() {
    for kind in PrType::ALL {
        let (mut bed, a, b, c) = three();
        out(&mut bed, a, PrOut::Reserve, kind.code(), 0xa, 0).unwrap();
        let other = if kind.code() == 1 { 3 } else { 1 };
        assert_eq!(sense(out(&mut bed, a, PrOut::Release, other, 0xa, 0)), Sense::INVALID_RELEASE);
        if kind.code() < 7 {
            assert_eq!(out(&mut bed, b, PrOut::Release, kind.code(), 0xb, 0), Ok(()));
        }
        assert_eq!(out(&mut bed, a, PrOut::Release, kind.code(), 0x9, 0), CONFLICT);
        assert!(held(&mut bed, a).is_some());
        out(&mut bed, a, PrOut::Release, kind.code(), 0xa, 0).unwrap();
        assert_eq!(held(&mut bed, a), None);
        let told: &[Sense] = if kind.code() >= 5 { &[Sense::RESERVATIONS_RELEASED] } else { &[] };
        assert_eq!(bed.attentions(b), told, "{kind:?}");
        assert_eq!((bed.attentions(a), bed.attentions(c)), (vec![], vec![]));
    }
}

#[test]
fn reserving_again_is_good_only_for_the_same() {
    let (mut bed, a, b, _) = three();
    out(&mut bed, a, PrOut::Reserve, 3, 0xa, 0).unwrap();
    assert_eq!(out(&mut bed, a, PrOut::Reserve, 3, 0xa, 0), Ok(()));
    assert_eq!(out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0), CONFLICT);
    assert_eq!(out(&mut bed, b, PrOut::Reserve, 3, 0xb, 0), CONFLICT);
    assert_eq!(held(&mut bed, b), Some((0xa, 3)));
}

#[test]
fn clear_removes_everything_and_tells_the_others() {
    let (mut bed, a, b, c) = three();
    out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
    out(&mut bed, b, PrOut::Clear, 0, 0xb, 0).unwrap();
    assert_eq!(keys(&mut bed, c), []);
    assert_eq!(held(&mut bed, c), None);
    assert_eq!(bed.attentions(a), [Sense::RESERVATIONS_PREEMPTED]);
    assert_eq!((bed.attentions(b), bed.attentions(c)), (vec![], vec![]));
}

#[test]
fn preempt_takes_over_and_tells() {
    let (mut bed, a, b, c) = three();
    register(&mut bed, c, 0xa); // shares the holder's key
    out(&mut bed, a, PrOut::Reserve, 5, 0xa, 0).unwrap();
    out(&mut bed, b, PrOut::Preempt, 3, 0xb, 0xa).unwrap();
    assert_eq!(keys(&mut bed, b), [0xb]);
    assert_eq!(held(&mut bed, b), Some((0xb, 3)));
    assert_eq!(bed.attentions(a), [Sense::REGISTRATIONS_PREEMPTED]);
    assert_eq!(bed.attentions(c), [Sense::REGISTRATIONS_PREEMPTED]);
    assert_eq!(bed.attentions(b), []);
    assert!(bed.effects.abort_tasks_of.is_empty());
}

#[test]
fn preempt_that_changes_a_shared_type_tells_those_who_stay() {
    let (mut bed, a, b, c) = three();
    register(&mut bed, c, 0xc);
    out(&mut bed, a, PrOut::Reserve, 5, 0xa, 0).unwrap();
    out(&mut bed, b, PrOut::Preempt, 6, 0xb, 0xa).unwrap();
    assert_eq!(bed.attentions(c), [Sense::RESERVATIONS_RELEASED]);
    // The same type: nobody loses anything.
    out(&mut bed, c, PrOut::Preempt, 6, 0xc, 0xb).unwrap();
    assert_eq!(bed.attentions(b), [Sense::REGISTRATIONS_PREEMPTED]);
    assert_eq!(held(&mut bed, c), Some((0xc, 6)));
}

#[test]
fn preempt_without_take_over_removes_registrations() {
    let (mut bed, a, b, c) = three();
    register(&mut bed, c, 0xb);
    out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
    assert_eq!(out(&mut bed, a, PrOut::Preempt, 1, 0xa, 0x99), CONFLICT);
    assert_eq!(sense(out(&mut bed, a, PrOut::Preempt, 1, 0xa, 0)), Sense::list_byte(8));
    // The type is ignored when no reservation is made.
    out(&mut bed, a, PrOut::PreemptAndAbort, 0, 0xa, 0xb).unwrap();
    let mut aborted = bed.effects.abort_tasks_of.clone();
    aborted.sort_unstable();
    assert_eq!(aborted, [b, c]);
    assert_eq!(keys(&mut bed, a), [0xa]);
    assert_eq!(held(&mut bed, a), Some((0xa, 1)));
    assert_eq!(bed.attentions(b), [Sense::REGISTRATIONS_PREEMPTED]);
}

#[test]
fn preempt_of_all_registrants() {
    for kind in [7, 8] {
        let (mut bed, a, b, c) = three();
        register(&mut bed, c, 0xc);
        out(&mut bed, a, PrOut::Reserve, kind, 0xa, 0).unwrap();
        assert_eq!(held(&mut bed, a), Some((0, kind)));
        // A key: only its registrations go.
        out(&mut bed, a, PrOut::Preempt, 1, 0xa, 0xc).unwrap();
        assert_eq!(held(&mut bed, a), Some((0, kind)));
        assert_eq!(bed.attentions(c), [Sense::REGISTRATIONS_PREEMPTED]);
        // Key 0: all others go, and the type changes. A wrong type changes nothing.
        assert_eq!(sense(out(&mut bed, a, PrOut::Preempt, 2, 0xa, 0)), Sense::cdb_bit(2, 3));
        assert_eq!(keys(&mut bed, a), [0xa, 0xb]);
        out(&mut bed, a, PrOut::Preempt, 1, 0xa, 0).unwrap();
        assert_eq!(keys(&mut bed, a), [0xa]);
        assert_eq!(held(&mut bed, a), Some((0xa, 1)));
        assert_eq!(bed.attentions(b), [Sense::REGISTRATIONS_PREEMPTED]);
    }
}

#[test]
fn register_and_move_hands_over() {
    let (mut bed, a, b, _) = three();
    let to_b = |key, unreg| i::pr_move_list(key, 0xbb, unreg, false, 1, &initiator(2));
    let mv = |bed: &mut Bed, n, list: &[u8]| out_list(bed, n, PrOut::RegisterAndMove, 0, list);
    assert_eq!(mv(&mut bed, a, &to_b(0xa, false)), CONFLICT); // nothing is held
    out(&mut bed, a, PrOut::Reserve, 3, 0xa, 0).unwrap();
    assert_eq!(mv(&mut bed, a, &to_b(0x1, false)), CONFLICT);
    let list = i::pr_move_list(0xa, 0, false, false, 1, &initiator(2));
    assert_eq!(sense(mv(&mut bed, a, &list)), Sense::list_byte(8));
    let list = i::pr_move_list(0xa, 9, false, false, 77, &initiator(2));
    assert_eq!(sense(mv(&mut bed, a, &list)), Sense::list_byte(18));
    let list = i::pr_move_list(0xa, 9, false, false, 1, &initiator(1));
    assert_eq!(sense(mv(&mut bed, a, &list)), Sense::list_byte(24));
    let other_protocol = crate::TransportId::iscsi("iqn.2026-01.org.example:h", None);
    let list = i::pr_move_list(0xa, 9, false, false, 1, &other_protocol);
    assert_eq!(sense(mv(&mut bed, a, &list)), Sense::list_bit(24, 3));
    // The TransportID length and the parameter list length must agree, both ways.
    for wrong in [0u8, 20, 23, 25, 28] {
        let mut list = to_b(0xa, false);
        list[23] = wrong;
        assert_eq!(sense(mv(&mut bed, a, &list)), Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    let mut list = to_b(0xa, false);
    list.extend_from_slice(&[0; 4]);
    list[23] = 28;
    assert_eq!(sense(mv(&mut bed, a, &list)), Sense::PARAMETER_LIST_LENGTH_ERROR);
    let g = generation(&mut bed, a);
    mv(&mut bed, a, &to_b(0xa, true)).unwrap();
    assert_eq!(keys(&mut bed, b), [0xbb]);
    assert_eq!(held(&mut bed, b), Some((0xbb, 3)));
    assert_eq!(generation(&mut bed, b), g + 1);
    // To a port that was never registered, at the other target port, keeping the registration.
    let list = i::pr_move_list(0xbb, 0xdd, false, true, 2, &initiator(9));
    mv(&mut bed, b, &list).unwrap();
    assert_eq!(held(&mut bed, b), Some((0xdd, 3)));
    assert_eq!(keys(&mut bed, b), [0xbb, 0xdd]);
    let n = bed.login_at(9, 2);
    assert_eq!(out(&mut bed, n, PrOut::Release, 3, 0xdd, 0), Ok(()));
}

#[test]
fn all_registrants_cannot_be_moved() {
    let (mut bed, a, _, _) = three();
    out(&mut bed, a, PrOut::Reserve, 7, 0xa, 0).unwrap();
    let list = i::pr_move_list(0xa, 9, false, false, 1, &initiator(2));
    assert_eq!(out_list(&mut bed, a, PrOut::RegisterAndMove, 0, &list), CONFLICT);
}

#[test]
fn all_tg_pt_and_spec_i_pt() {
    let mut bed = Bed::new();
    let (a1, a2) = (bed.login_at(1, 1), bed.login_at(1, 2));
    let options = PrRegister { all_target_ports: true, ..PrRegister::default() };
    out_list(&mut bed, a1, PrOut::Register, 0, &i::pr_out_list(0, 5, &options)).unwrap();
    assert_eq!(keys(&mut bed, a1), [5, 5]);
    // The other path is registered with the same key.
    assert_eq!(out(&mut bed, a2, PrOut::Reserve, 5, 5, 0), Ok(()));
    // A change and an unregistration through one port are for both.
    out_list(&mut bed, a1, PrOut::Register, 0, &i::pr_out_list(5, 6, &options)).unwrap();
    assert_eq!(keys(&mut bed, a1), [6, 6]);
    assert_eq!(held(&mut bed, a1), Some((6, 5)));
    out_list(&mut bed, a1, PrOut::Register, 0, &i::pr_out_list(6, 0, &options)).unwrap();
    assert_eq!(keys(&mut bed, a1), []);
    assert_eq!(held(&mut bed, a1), None);

    let ids = [initiator(7), initiator(8), initiator(7)];
    let options = PrRegister { initiators: &ids, aptpl: true, ..PrRegister::default() };
    let list = i::pr_out_list(0, 9, &options);
    assert_eq!(
        sense(out_list(&mut bed, a1, PrOut::RegisterAndIgnore, 0, &list)),
        Sense::list_bit(20, 3)
    );
    out_list(&mut bed, a1, PrOut::Register, 0, &list).unwrap();
    assert!(bed.effects.persist);
    assert_eq!(keys(&mut bed, a1), [9, 9, 9]);
    let list = i::pr_out_list(9, 10, &options);
    assert_eq!(sense(out_list(&mut bed, a1, PrOut::Register, 0, &list)), Sense::list_bit(20, 3));
    // Somebody else's key stands in the way, whole command refused.
    let b = bed.login(2);
    register(&mut bed, b, 0xb);
    let ids = [initiator(4), initiator(2)];
    let options = PrRegister { initiators: &ids, ..PrRegister::default() };
    let c = bed.login(3);
    let list = i::pr_out_list(0, 0xc, &options);
    assert_eq!(out_list(&mut bed, c, PrOut::Register, 0, &list), CONFLICT);
    assert_eq!(keys(&mut bed, c), [9, 9, 9, 0xb]);
}

#[test]
fn parameter_list_lengths() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let list = i::pr_out_list(0, 5, &PrRegister::default());
    let mut send = |announced: u32, list: &[u8]| {
        let cdb = i::pr_out(PrOut::Register, None, announced);
        bed.raw(a, cdb.as_bytes(), list).map(|_| ()).map_err(|e| e.sense.unwrap())
    };
    let error = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    for n in (0..24).chain(25..40) {
        let mut list = list.clone();
        list.resize(64, 0);
        assert_eq!(send(n, &list), error, "{n}");
    }
    assert_eq!(send(24, &list[..23]), error);
    // SPEC_I_PT with a list that ends too early, and with a foreign protocol.
    let ids = [initiator(2)];
    let options = PrRegister { initiators: &ids, ..PrRegister::default() };
    let mut list = i::pr_out_list(0, 5, &options);
    for n in 24..list.len() {
        assert_eq!(send(n as u32, &list), error, "{n}");
    }
    list[28] = 6;
    assert_eq!(send(list.len() as u32, &list), Err(Sense::list_bit(28, 3)));
    list[28] = 4;
    assert_eq!(send(list.len() as u32, &list), Ok(()));
}

#[test]
fn full_status_and_capabilities() {
    let (mut bed, a, b, _) = three();
    out(&mut bed, b, PrOut::Reserve, 6, 0xb, 0).unwrap();
    let caps = bed.run(a, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap();
    assert_eq!(caps, [0, 8, 0x1d, 0x80, 0xea, 0x01, 0, 0]);
    let full = bed.run(a, i::pr_in(PrIn::ReadFullStatus, 1000)).unwrap();
    assert_eq!(full[..8], [0, 0, 0, 2, 0, 0, 0, 96]);
    let (one, two) = full[8..].split_at(48);
    assert_eq!(
        one[..24],
        [0, 0, 0, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24]
    );
    assert_eq!(one[24..], *initiator(1).as_bytes());
    assert_eq!((two[7], two[12], two[13]), (0xb, 1, 6));
    for alloc in 0..full.len() as u16 {
        let cut = bed.run(a, i::pr_in(PrIn::ReadFullStatus, alloc)).unwrap();
        assert_eq!(cut, full[..usize::from(alloc)]);
    }
}

/// SPC-4 table 212 (READ RESERVATION parameter data): 8 bytes without a reservation, 24 with one.
#[test]
fn read_reservation_is_these_bytes() {
    let (mut bed, _, b, c) = three();
    let read = |bed: &mut Bed| bed.run(c, i::pr_in(PrIn::ReadReservation, 255)).unwrap();
    assert_eq!(read(&mut bed), [0, 0, 0, 2, 0, 0, 0, 0]);
    out(&mut bed, b, PrOut::Reserve, 6, 0xb, 0).unwrap();
    let held = [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0xb, 0, 0, 0, 0, 0, 6, 0, 0];
    assert_eq!(read(&mut bed), held);
    out(&mut bed, b, PrOut::Release, 6, 0xb, 0).unwrap();
    out(&mut bed, b, PrOut::Reserve, 8, 0xb, 0).unwrap();
    let by_all = [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    assert_eq!(read(&mut bed), by_all);
}

/// The limit is exact: so many are registered, stored and read back; one more is refused.
#[test]
fn as_many_registrations_as_are_promised() {
    let mut bed = Bed::new();
    for round in 0..4u8 {
        let ids: Vec<_> = (0..=254u8)
            .map(|n| {
                let mut id = [n; 16];
                id[0] = round;
                crate::TransportId::srp(id)
            })
            .collect();
        let sender = bed.login_at(200 + round, 2);
        let options = PrRegister { initiators: &ids, ..PrRegister::default() };
        let list = i::pr_out_list(0, 3, &options);
        out_list(&mut bed, sender, PrOut::Register, 0, &list).unwrap();
    }
    assert_eq!(bed.lu.check_invariants(), Ok(()));
    let all = bed.lu.export_reservations();
    assert_eq!(bed.lu.import_reservations(&all, Import::TakeOver), Ok(()));
    let a = bed.login(1);
    let more = out(&mut bed, a, PrOut::Register, 0, 0, 1);
    assert_eq!(sense(more), Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
    let all = bed.run(a, i::pr_in(PrIn::ReadKeys, 0xffff)).unwrap();
    assert_eq!(i::parse_pr_keys(&all).unwrap().keys.len(), crate::pr::REGISTRATIONS_MAX);
}

#[test]
fn registrations_outlive_the_nexus() {
    let (mut bed, a, b, _) = three();
    out(&mut bed, a, PrOut::Reserve, 3, 0xa, 0).unwrap();
    bed.lu.nexus_lost(a);
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(ScsiError::RESERVATION_CONFLICT));
    let again = Nexus(4711);
    bed.lu.nexus_added(again, initiator(1), 1).unwrap();
    assert_eq!(bed.attentions(again), [Sense::POWER_ON_OR_RESET]);
    assert!(bed.run(again, i::write(0, 1, false)).is_ok());
    // The same initiator through the other target port is another nexus.
    let other_path = bed.login_at(1, 2);
    assert_eq!(bed.run(other_path, i::read(0, 1, false)), Err(ScsiError::RESERVATION_CONFLICT));
    bed.lu.lu_reset(None);
    assert_eq!(bed.attentions(b), [Sense::LU_RESET]);
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(ScsiError::RESERVATION_CONFLICT));
}

#[test]
fn aptpl_decides_what_power_loss_leaves() {
    let persistent = PrRegister { aptpl: true, ..PrRegister::default() };
    let mut bed = Bed::new();
    let a = bed.login(1);
    register(&mut bed, a, 1);
    assert!(!bed.effects.persist && bed.effects.reservations_changed);
    let volatile = bed.lu.export_reservations();
    out_list(&mut bed, a, PrOut::Register, 0, &i::pr_out_list(1, 2, &persistent)).unwrap();
    assert!(bed.effects.persist);
    out(&mut bed, a, PrOut::Reserve, 1, 2, 0).unwrap();
    assert!(bed.effects.persist);
    out(&mut bed, a, PrOut::Reserve, 1, 2, 0).unwrap();
    assert!(!bed.effects.persist, "nothing changed");
    assert_eq!(bed.run(a, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap()[3], 0x81);
    let kept = bed.lu.export_reservations();

    let mut after = Bed::new();
    let b = after.login(2);
    after.lu.import_reservations(&kept, Import::PowerOn).unwrap();
    assert_eq!(held(&mut after, b), Some((2, 1)));
    assert_eq!(generation(&mut after, b), 0);
    assert_eq!(after.run(b, i::write(0, 1, false)), Err(ScsiError::RESERVATION_CONFLICT));
    after.lu.import_reservations(&volatile, Import::PowerOn).unwrap();
    assert_eq!(keys(&mut after, b), []);
    after.lu.import_reservations(&volatile, Import::TakeOver).unwrap();
    assert_eq!(keys(&mut after, b), [1]);
    assert_eq!(generation(&mut after, b), 1);

    // Giving up persistence must be stored too, and so must the end of the last registration.
    out(&mut bed, a, PrOut::Register, 0, 2, 3).unwrap();
    assert!(bed.effects.persist);
    out(&mut bed, a, PrOut::Release, 1, 3, 0).unwrap();
    assert!(!bed.effects.persist);
    out_list(&mut bed, a, PrOut::Register, 0, &i::pr_out_list(3, 3, &persistent)).unwrap();
    out(&mut bed, a, PrOut::Register, 0, 3, 0).unwrap();
    assert!(bed.effects.persist);
    // With nobody registered nothing persists any more.
    assert_eq!(bed.run(a, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap()[3], 0x80);
    let revision = bed.lu.reservation_revision();
    register(&mut bed, a, 1);
    assert!(bed.lu.reservation_revision() > revision);
}

#[test]
fn aptpl_outlives_others_that_leave_or_are_preempted() {
    let persistent = PrRegister { aptpl: true, ..PrRegister::default() };
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    for (n, key) in [(a, 1), (b, 2)] {
        out_list(&mut bed, n, PrOut::Register, 0, &i::pr_out_list(0, key, &persistent)).unwrap();
    }
    // An unregistration without the bit does not end persistence for those who stay.
    out(&mut bed, b, PrOut::Register, 0, 2, 0).unwrap();
    assert!(bed.effects.persist);
    assert_eq!(bed.run(a, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap()[3], 0x81);
    // A nexus may preempt its own key; then nobody is left.
    out(&mut bed, a, PrOut::Preempt, 1, 1, 1).unwrap();
    assert!(bed.effects.persist);
    assert_eq!(bed.run(a, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap()[3], 0x80);
}

#[test]
fn damaged_exports_are_refused() {
    let (mut bed, a, _, _) = three();
    out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
    let good = bed.lu.export_reservations();
    let mut import = |b: &[u8]| bed.lu.import_reservations(b, Import::TakeOver);
    for n in 0..good.len() {
        assert!(import(&good[..n]).is_err(), "{n}");
    }
    let mut bad = good.clone();
    bad[0] = 2;
    assert_eq!(import(&bad), Err(ImportError::Version(2)));
    let mut bad = good.clone();
    bad[2] = 2;
    assert!(matches!(import(&bad), Err(ImportError::Invalid(_))));
    let mut bad = good.clone();
    bad[2] = 7; // a holder, but everybody should hold
    assert!(matches!(import(&bad), Err(ImportError::Invalid(_))));
    let mut bad = good.clone();
    bad.push(0);
    assert!(matches!(import(&bad), Err(ImportError::Invalid(_))));
    assert_eq!(import(&good), Ok(()));
    assert_eq!(keys(&mut bed, a), [0xa, 0xb]);
}

#[test]
fn registrations_are_bounded() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    register(&mut bed, a, 1);
    for round in 0..8u8 {
        let ids: Vec<_> = (0..=254u8)
            .map(|n| {
                let mut id = [n; 16];
                id[0] = round;
                crate::TransportId::srp(id)
            })
            .collect();
        let sender = bed.login_at(200 + round, 2);
        let options = PrRegister { initiators: &ids, ..PrRegister::default() };
        let done = out_list(&mut bed, sender, PrOut::Register, 0, &i::pr_out_list(0, 3, &options));
        let want = 1 + (usize::from(round) + 1) * 256;
        if want <= crate::pr::REGISTRATIONS_MAX {
            assert_eq!(done, Ok(()));
        } else {
            assert_eq!(sense(done), Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
        }
    }
    assert!(bed.lu.check_invariants().is_ok());
}

#[test]
fn unregistering_both_paths_tells_only_those_who_stay() {
    let (mut bed, a, _, c) = three();
    let b2 = bed.login_at(2, 2);
    register(&mut bed, c, 0xc);
    let all = PrRegister { all_target_ports: true, ..PrRegister::default() };
    let d = bed.login_at(4, 1);
    let d2 = bed.login_at(4, 2);
    out_list(&mut bed, d, PrOut::Register, 0, &i::pr_out_list(0, 4, &all)).unwrap();
    out(&mut bed, d, PrOut::Reserve, 5, 4, 0).unwrap();
    out_list(&mut bed, d2, PrOut::Register, 0, &i::pr_out_list(4, 0, &all)).unwrap();
    assert_eq!(held(&mut bed, b2), None);
    assert_eq!(bed.attentions(a), [Sense::RESERVATIONS_RELEASED]);
    assert_eq!(bed.attentions(c), [Sense::RESERVATIONS_RELEASED]);
    for n in [d, d2, b2] {
        assert_eq!(bed.attentions(n), []);
    }
}
