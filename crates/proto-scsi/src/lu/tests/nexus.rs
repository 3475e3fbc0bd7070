//! Nexuses come, go and part; what is cached of them holds until the generation moves.

use crate::initiator as i;
use crate::lu::{LuState, Nexus, UnknownPort};
use crate::pr::Import;
use crate::sense::Sense;
use crate::status::ScsiError;
use crate::testbed::{Bed, identity, initiator, nexus};
use crate::{Geometry, TransportId};

const CONFLICT: ScsiError = ScsiError::RESERVATION_CONFLICT;

#[test]
fn a_nexus_goes_through_a_port_of_the_unit() {
    let mut bed = Bed::new();
    let n = nexus(1, 2);
    assert_eq!(bed.lu.nexus_added(n, initiator(1), 99), Err(UnknownPort(99)));
    assert_eq!((bed.lu.nexuses().count(), bed.lu.ports_of(n)), (0, None));
    bed.lu.nexus_added(n, initiator(1), 2).unwrap();
    assert_eq!(bed.lu.ports_of(n), Some((&initiator(1), 2)));
    assert_eq!(bed.lu.ports_of(nexus(1, 1)), None);
    bed.lu.nexus_lost(n);
    assert_eq!((bed.lu.nexuses().count(), bed.lu.ports_of(n)), (0, None));
}

/// SPC-2 5.5: a reservation ends with the nexus that holds it, not with another.
#[test]
fn who_parts_gives_up_its_reservation_and_stays_known() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    bed.run(a, i::reserve_6()).unwrap();
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    bed.lu.nexus_parted(b);
    bed.lu.nexus_parted(Nexus(77));
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    let before = bed.lu.generation();
    bed.lu.nexus_parted(a);
    assert!(bed.lu.generation() > before, "what was cached of other nexuses does not hold");
    assert!(bed.lu.fast_path(b).writes);
    bed.run(b, i::read(0, 1, false)).unwrap();
    bed.run(a, i::read(0, 1, false)).unwrap();
    assert_eq!(bed.lu.nexuses().collect::<Vec<_>>(), [a, b]);
}

#[test]
fn a_lost_nexus_takes_its_own_reservation_only() {
    let mut bed = Bed::new();
    let (a, b, c) = (bed.login(1), bed.login(2), bed.login(3));
    bed.run(a, i::reserve_6()).unwrap();
    bed.lu.nexus_lost(c);
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    bed.lu.nexus_lost(a);
    bed.run(b, i::read(0, 1, false)).unwrap();
    let before = bed.lu.generation();
    bed.lu.nexus_lost(c);
    assert_eq!(bed.lu.generation(), before, "it was not known any more");
}

/// Its host comes back with another nexus, and may know nothing of what it had reserved.
#[test]
fn what_a_lost_nexus_has_reserved_keeps_others_out_as_long_as_it_has_something_under_way() {
    let mut bed = Bed::new();
    let (a, b, elsewhere) = (bed.login(1), bed.login(2), bed.login_at(1, 2));
    bed.run(a, i::reserve_6()).unwrap();
    let again = Nexus(4711);
    bed.lu.nexus_added(again, initiator(1), 1).unwrap();
    let told = bed.run(again, i::read(0, 1, false)).unwrap_err();
    assert_eq!(told.sense, Some(Sense::POWER_ON_OR_RESET));
    assert_eq!(bed.run(again, i::read(0, 1, false)), Err(CONFLICT), "both are there");
    let before = bed.lu.generation();
    bed.lu.nexus_over(a);
    assert!(bed.lu.generation() > before);
    for other in [b, elsewhere] {
        assert_eq!(bed.run(other, i::read(0, 1, false)), Err(CONFLICT));
        assert!(!bed.lu.has_reserved(other) && !bed.lu.fast_path(other).reads);
    }
    assert!(bed.lu.has_reserved(again) && bed.lu.fast_path(again).writes);
    bed.run(again, i::read(0, 1, false)).unwrap();
    // It is not the new one's to give back.
    bed.run(again, i::release_6()).unwrap();
    assert_eq!(bed.run(b, i::read(0, 1, false)), Err(CONFLICT));
    bed.lu.nexus_lost(a);
    bed.run(b, i::reserve_6()).unwrap();
    assert!(!bed.lu.has_reserved(again));
}

type Change<'a> = &'a dyn Fn(&mut LuState);

/// A cached fast path is valid while the generation stands: whatever may alter it moves the number.
#[test]
fn what_may_alter_admission_moves_the_generation() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let empty = bed.lu.export_reservations();
    let moves: [(&str, Change<'_>); 6] = [
        ("rules beside the unit", &|lu| lu.rules_changed()),
        ("a login", &|lu| lu.nexus_added(nexus(2, 1), initiator(2), 1).unwrap()),
        ("a loss", &|lu| lu.nexus_lost(nexus(2, 1))),
        ("reservations of another controller", &|lu| {
            lu.import_reservations(&empty, Import::TakeOver).unwrap();
        }),
        ("read-only", &|lu| lu.set_read_only(true)),
        ("a size", &|lu| assert!(lu.resize(5))),
    ];
    for (what, change) in moves {
        let before = bed.lu.generation();
        change(&mut bed.lu);
        assert!(bed.lu.generation() > before, "{what}");
    }
    let before = bed.lu.generation();
    assert!(!bed.lu.resize(5), "the present size");
    assert_eq!(bed.lu.generation(), before);
    assert!(!bed.lu.fast_path(a).writes);
}

#[test]
fn tas_is_as_the_unit_was_made() {
    for tas in [false, true] {
        let id = crate::Identity { task_aborted_status: tas, ..identity() };
        let lu = LuState::new(id, Geometry::new(512, 8));
        assert_eq!(lu.task_aborted_status(), tas);
    }
}

/// Registrations belong to the pair of initiator port and target port: the same initiator elsewhere is another.
#[test]
fn ports_tell_nexuses_of_one_host_apart() {
    let mut bed = Bed::new();
    let (one, two) = (bed.login_at(1, 1), bed.login_at(1, 2));
    let who: Vec<(TransportId, u16)> = [one, two]
        .iter()
        .filter_map(|n| bed.lu.ports_of(*n).map(|(id, port)| (id.clone(), port)))
        .collect();
    assert_eq!(who, [(initiator(1), 1), (initiator(1), 2)]);
}
