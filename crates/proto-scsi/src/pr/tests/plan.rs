//! Planned reservations: what is to be durable before it is in force, and what if that cannot be.

use crate::cdb::{Command, ControlCommand, PrIn, PrOut, decode};
use crate::initiator::{self as i, PrRegister};
use crate::lu::{Nexus, PlannedReservations};
use crate::pr::Import;
use crate::sense::Sense;
use crate::status::ScsiError;
use crate::testbed::{Bed, initiator, nexus, sense};

fn plan(
    bed: &Bed,
    n: Nexus,
    action: PrOut,
    keys: (u64, u64),
    aptpl: bool,
) -> Result<PlannedReservations, ScsiError> {
    let list = i::pr_out_list(keys.0, keys.1, &PrRegister { aptpl, ..PrRegister::default() });
    let cdb = i::pr_out(action, None, list.len() as u32);
    let Ok(Command::Control(c)) = decode(cdb.as_bytes(), &bed.lu.geometry()) else { panic!() };
    bed.lu.plan_reserve_out(n, &c, &list)
}

fn keys(bed: &mut Bed, n: Nexus) -> Vec<u64> {
    i::parse_pr_keys(&bed.run(n, i::pr_in(PrIn::ReadKeys, 4096)).unwrap()).unwrap().keys
}

/// SPC-4 5.13.4: with APTPL the device server preserves the registration across power loss, before it says GOOD.
#[test]
fn what_must_survive_is_kept_before_it_is_in_force() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let volatile = plan(&bed, a, PrOut::Register, (0, 7), false).unwrap();
    assert_eq!(volatile.to_keep(), None);
    let planned = plan(&bed, a, PrOut::Register, (0, 7), true).unwrap();
    let (revision, bytes) = planned.to_keep().expect("something to keep");
    assert!(revision > bed.lu.reservation_revision());
    assert_eq!(keys(&mut bed, a), [], "not in force yet");
    let before = bed.lu.generation();
    let effects = bed.lu.put_in_force(planned);
    assert!(effects.persist && effects.reservations_changed && effects.generation_changed);
    assert!(bed.lu.generation() > before);
    assert_eq!((keys(&mut bed, a), bed.lu.reservation_revision()), (vec![7], revision));
    assert_eq!(bed.lu.export_reservations(), bytes, "what was kept is what is in force");
    // What changes nothing need not be kept, and leaves what is cached as it is.
    let planned = plan(&bed, a, PrOut::Release, (7, 0), false).unwrap();
    assert_eq!(planned.to_keep(), None);
    let effects = bed.lu.put_in_force(planned);
    assert!(!effects.persist && !effects.reservations_changed && !effects.generation_changed);
}

/// A part of what could not be kept may be found after a loss of power: what counts is written over it.
#[test]
fn what_could_not_be_kept_is_overruled() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let planned = plan(&bed, a, PrOut::Register, (0, 7), true).unwrap();
    let (lost, _) = planned.to_keep().expect("something to keep");
    let (revision, bytes) = bed.lu.drop_plan(&planned);
    assert_eq!(revision, lost + 1);
    assert_eq!((keys(&mut bed, a), bed.lu.reservation_revision()), (vec![], revision));
    assert_eq!(bytes, bed.lu.export_reservations());
    let mut other = Bed::new();
    other.lu.import_reservations(&bytes, Import::TakeOver).unwrap();
    assert_eq!(other.lu.reservation_revision(), revision);
    // Its number is not given out again.
    let again = plan(&bed, a, PrOut::Register, (0, 8), true).unwrap();
    assert!(again.to_keep().is_some_and(|(r, _)| r > revision));
}

#[test]
fn only_known_nexuses_plan_and_only_reservations() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let unknown = plan(&bed, nexus(9, 1), PrOut::Register, (0, 7), true);
    assert_eq!(sense(unknown), Sense::ABORTED_COMMAND);
    let other = bed.lu.plan_reserve_out(a, &ControlCommand::Reserve6, &[]);
    assert_eq!(sense(other), Sense::INTERNAL_TARGET_FAILURE);
    assert_eq!(
        plan(&bed, a, PrOut::Clear, (1, 0), true).err(),
        Some(ScsiError::RESERVATION_CONFLICT)
    );
}

/// Whoever was told of it learns so from the effects; tasks of nexuses that were not preempted go on.
#[test]
fn effects_say_whether_anybody_was_told() {
    let mut bed = Bed::new();
    let (a, b, c) = (bed.login(1), bed.login(2), bed.login(3));
    for (n, key) in [(a, 1), (b, 2), (c, 3)] {
        let planned = plan(&bed, n, PrOut::Register, (0, key), false).unwrap();
        assert!(!bed.lu.put_in_force(planned).ua_raised, "nobody to tell");
    }
    let planned = plan(&bed, a, PrOut::PreemptAndAbort, (1, 2), false).unwrap();
    let effects = bed.lu.put_in_force(planned);
    assert_eq!((effects.ua_raised, effects.abort_tasks_of), (true, vec![b]));
    // The last of those who are registered may be gone; one who is there is told all the same.
    bed.lu.nexus_lost(c);
    let planned = plan(&bed, b, PrOut::Register, (0, 2), false).unwrap();
    bed.lu.put_in_force(planned);
    let planned = plan(&bed, a, PrOut::Clear, (1, 0), false).unwrap();
    assert!(bed.lu.put_in_force(planned).ua_raised);
}

/// What keeps others out of the way of who has it is not taken by registering, by reserving it once more, or by taking others out.
#[test]
fn a_plan_tells_for_whom_a_reservation_ends() {
    use crate::pr::PrType::{WriteExclusive as We, WriteExclusiveRegistrantsOnly as Wero};
    use PrOut::{Clear, Preempt, Register, RegisterAndIgnore, Release, Reserve};
    let (holder, member, stranger) = ((initiator(1), 1), (initiator(2), 1), (initiator(3), 1));
    let ends = |held, by: u8, action, kind, keys: (u64, u64)| {
        let mut bed = Bed::new();
        let all = [bed.login(1), bed.login(2), bed.login(3)];
        for (n, key) in [(0, 7), (1, 8)] {
            let list = i::pr_out_list(0, key, &PrRegister::default());
            bed.raw(all[n], i::pr_out(Register, None, 24).as_bytes(), &list).unwrap();
        }
        let list = i::pr_out_list(7, 0, &PrRegister::default());
        bed.raw(all[0], i::pr_out(Reserve, Some(held), 24).as_bytes(), &list).unwrap();
        let list = i::pr_out_list(keys.0, keys.1, &PrRegister::default());
        let cdb = i::pr_out(action, kind, 24);
        let Ok(Command::Control(c)) = decode(cdb.as_bytes(), &bed.lu.geometry()) else { panic!() };
        let planned = bed.lu.plan_reserve_out(all[usize::from(by)], &c, &list).unwrap();
        [&holder, &member, &stranger]
            .map(|p| bed.lu.ends_for_any(&planned, std::slice::from_ref(p)))
    };
    let none = [false; 3];
    for (held, member) in [(We, false), (Wero, true)] {
        assert_eq!(ends(held, 0, Release, Some(held), (7, 0)), [true, member, false]);
        assert_eq!(ends(held, 0, Clear, None, (7, 0)), [true, member, false]);
        assert_eq!(ends(held, 1, Clear, None, (8, 0)), [true, member, false]);
        assert_eq!(ends(held, 0, Register, None, (7, 0)), [true, member, false]);
        assert_eq!(ends(held, 1, Register, None, (8, 0)), [false, member, false]);
        // Its own key.
        let other = if held == We { Wero } else { We };
        assert_eq!(ends(held, 0, Preempt, Some(other), (7, 7)), [true, member, false]);
        assert_eq!(ends(held, 0, Preempt, Some(held), (7, 7)), none);
        // The holder's, by another one.
        assert_eq!(ends(held, 1, Preempt, Some(held), (8, 7)), [true, false, false]);
        assert_eq!(ends(held, 0, Preempt, Some(held), (7, 8)), [false, member, false]);
        assert_eq!(ends(held, 0, Register, None, (7, 9)), none);
        assert_eq!(ends(held, 2, RegisterAndIgnore, None, (0, 9)), none);
        assert_eq!(ends(held, 0, Reserve, Some(held), (7, 0)), none);
    }
}
