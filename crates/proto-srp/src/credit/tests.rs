use proptest::prelude::*;

use super::*;

#[test]
fn one_credit_per_response() {
    let mut t = RequestLimit::new(3);
    for _ in 0..100 {
        t.consume().unwrap();
        t.release();
        assert_eq!(t.take_delta(), 1);
        assert_eq!((t.granted(), t.outstanding(), t.pending()), (3, 0, 0));
    }
}

#[test]
fn overrun_is_found_and_changes_nothing() {
    let mut t = RequestLimit::new(2);
    t.consume().unwrap();
    t.consume().unwrap();
    let before = t.clone();
    assert_eq!(t.consume(), Err(Overrun));
    assert_eq!(t, before);
    assert_eq!(RequestLimit::new(0).consume(), Err(Overrun));
}

#[test]
fn credits_of_aborted_commands_come_with_the_next_delta() {
    let mut t = RequestLimit::new(4);
    for _ in 0..3 {
        t.consume().unwrap();
    }
    // Two aborted without a response, the third answered.
    t.release();
    t.release();
    assert!(!t.needs_credit_request(), "a response is still under way");
    t.release();
    assert_eq!(t.take_delta(), 3);
    assert_eq!(t.take_delta(), 0);
}

/// Each credit is with the initiator, with a request, or on its way back.
#[test]
fn every_credit_is_at_one_place() {
    let mut t = RequestLimit::new(4);
    let places = |t: &RequestLimit| (t.granted(), t.outstanding(), t.pending());
    for _ in 0..3 {
        t.consume().unwrap();
    }
    assert_eq!(places(&t), (1, 3, 0));
    t.release();
    t.release();
    assert_eq!(places(&t), (1, 1, 2));
    assert_eq!(t.take_delta(), 2);
    assert_eq!(places(&t), (3, 1, 0));
    // Kept back from what ends next: nothing is pending meanwhile.
    t.set_limit(3);
    assert_eq!((places(&t), t.limit()), ((3, 1, 0), 3));
}

#[test]
fn a_credit_request_when_nothing_else_can_carry_them() {
    let mut t = RequestLimit::new(2);
    t.consume().unwrap();
    assert!(!t.needs_credit_request());
    t.release();
    // One credit is left, which the initiator keeps for task management.
    assert!(t.needs_credit_request());
    assert_eq!(t.take_delta(), 1);
    assert!(!t.needs_credit_request());
}

#[test]
fn the_limit_is_lowered_by_keeping_back() {
    let mut t = RequestLimit::new(10);
    for _ in 0..4 {
        t.consume().unwrap();
    }
    t.set_limit(7);
    for _ in 0..3 {
        t.release();
        assert_eq!((t.take_delta(), t.pending()), (0, 0));
    }
    t.release();
    assert_eq!(t.take_delta(), 1);
    assert_eq!((t.granted(), t.limit()), (7, 7));
    t.set_limit(9);
    assert_eq!(t.take_delta(), 2);
    t.set_limit(u32::MAX);
    assert_eq!(t.limit(), i32::MAX as u32);
    assert_eq!(t.take_delta(), i32::MAX - 9);
}

#[test]
#[should_panic = "more requests ended than came in"]
fn a_lost_count_is_loud() {
    RequestLimit::new(1).release();
}

#[test]
fn commands_leave_one_for_task_management() {
    let mut c = Credits::new(3);
    assert_eq!(c.commands(), 2);
    assert!(c.take_command() && c.take_command());
    assert!(!c.take_command());
    assert_eq!(c.commands(), 0);
    assert!(c.take_task());
    assert!(!c.take_task());
    c.refund();
    assert_eq!(c.balance(), 1);
    // A target may take back more than there is.
    c.add(-5).unwrap();
    assert_eq!((c.balance(), c.commands()), (-4, 0));
    assert!(!c.take_task());
    c.add(6).unwrap();
    assert!(c.take_command());
    assert_eq!(Credits::new(i32::MAX).add(1), Err(CreditOverflow));
    assert_eq!(Credits::new(i32::MIN).add(-1), Err(CreditOverflow));
    assert_eq!(Credits::new(i32::MIN).commands(), 0);
}

proptest! {
    /// A target and an initiator with deltas under way: credits are conserved, the initiator never
    /// overruns, and the channel never gets stuck.
    #[test]
    fn conservation(limit in 2u32..20, steps in proptest::collection::vec((0u8..7, 1u32..20), 0..400)) {
        let mut t = RequestLimit::new(limit);
        let mut host = Credits::new(limit as i32);
        let mut wire = Vec::new();
        for (step, n) in steps {
            match step {
                0 | 1 => if host.take_command() { t.consume().unwrap(); }
                2 => if host.take_task() { t.consume().unwrap(); }
                // A response.
                3 => if t.outstanding() > 0 {
                    t.release();
                    wire.push(t.take_delta());
                }
                // Aborted: no response.
                4 => if t.outstanding() > 0 { t.release(); }
                5 => if let Some(d) = wire.pop() { host.add(d).unwrap(); }
                _ => t.set_limit(n),
            }
            if t.needs_credit_request() {
                let d = t.take_delta();
                prop_assert!(d > 0);
                wire.push(d);
            }
            let under_way: i32 = wire.iter().sum();
            prop_assert!(wire.iter().all(|&d| d >= 0));
            prop_assert_eq!(t.granted() as i32, host.balance() + under_way);
            let sum = i64::from(t.granted()) + i64::from(t.outstanding()) + t.pending;
            prop_assert_eq!(sum, i64::from(t.limit()));
        }
        // Let everything end: the initiator holds the limit again (unless it was lowered below
        // what the initiator already holds).
        while t.outstanding() > 0 {
            t.release();
            wire.push(t.take_delta());
        }
        wire.push(t.take_delta());
        for d in wire { host.add(d).unwrap(); }
        prop_assert!(host.balance() >= t.limit() as i32);
    }
}
