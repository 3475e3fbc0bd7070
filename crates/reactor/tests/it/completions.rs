//! Completion slots: early, late, stale and abandoned completions.

use crate::common::{ByHand, manual, settle};
use std::task::Poll;
use weir_reactor::{Completion, Token, complete, completion};

#[test]
fn completion_before_and_after_the_wait() {
    let (r, _) = manual();
    r.enter(|| {
        let (t, f) = completion();
        let mut f = ByHand::new(f);
        complete(t, Completion::ok(5));
        assert_eq!(f.poll(), Poll::Ready(Completion::ok(5)));

        let (t, f) = completion();
        let mut f = ByHand::new(f);
        assert_eq!(f.poll(), Poll::Pending);
        complete(t, Completion::error(-7));
        assert_eq!(f.wakes(), 1);
        assert_eq!(f.poll(), Poll::Ready(Completion { result: -7, ..Completion::default() }));
    });
}

#[test]
fn errors_are_never_positive_and_success_is_not_an_error() {
    assert!(!Completion::error(3).is_ok());
    assert!(!Completion::error(0).is_ok());
    assert!(!Completion::error(i32::MIN).is_ok());
    assert!(Completion::ok(u32::MAX).is_ok());
}

#[test]
fn a_stale_token_hits_nobody() {
    let (r, _) = manual();
    r.enter(|| {
        let (old, f) = completion();
        complete(old, Completion::ok(1));
        assert!(ByHand::new(f).is_ready());
        // The same slot again, under another name.
        let (new, f) = completion();
        assert_ne!(old, new);
        assert_eq!(old.0 as u32, new.0 as u32);
        let mut f = ByHand::new(f);
        complete(old, Completion::ok(2));
        assert_eq!(f.poll(), Poll::Pending);
        complete(new, Completion::ok(3));
        assert_eq!(f.poll(), Poll::Ready(Completion::ok(3)));
        complete(new, Completion::ok(4));
    });
}

#[test]
fn tokens_never_issued_and_the_token_of_nobody_are_ignored() {
    let (r, _) = manual();
    r.enter(|| {
        complete(Token::NONE, Completion::ok(0));
        complete(Token(12345), Completion::ok(0));
        complete(Token(1 << 32), Completion::ok(0));
        let (t, _f) = completion();
        complete(Token(t.0 + (1 << 32)), Completion::ok(0));
        assert_ne!(t, Token::NONE);
    });
}

#[test]
fn an_abandoned_slot_is_free_only_after_its_completion() {
    let (r, _) = manual();
    r.enter(|| {
        let (t, f) = completion();
        drop(f);
        // The device still owns that name: nobody else may get the slot.
        let (t2, f2) = completion();
        assert_ne!(t.0 as u32, t2.0 as u32);
        complete(t, Completion::ok(1));
        let (t3, f3) = completion();
        assert_eq!(t.0 as u32, t3.0 as u32, "now it is used again");
        assert_ne!(t, t3);
        drop((f2, f3));
    });
}

#[test]
fn abandoned_while_waiting_and_abandoned_when_done() {
    let (r, _) = manual();
    r.enter(|| {
        let (t, f) = completion();
        let mut f = ByHand::new(f);
        assert!(!f.is_ready());
        drop(f);
        complete(t, Completion::ok(1));
        complete(t, Completion::ok(1));

        let (t, f) = completion();
        complete(t, Completion::ok(1));
        drop(f);
        let (t2, _f2) = completion();
        assert_eq!(t.0 as u32, t2.0 as u32);
    });
}

#[test]
fn slots_do_not_grow_with_use() {
    let (r, _) = manual();
    r.enter(|| {
        for i in 0..10_000 {
            let (t, f) = completion();
            assert_eq!(t.0 as u32, 0);
            complete(t, Completion::ok(i));
            assert!(ByHand::new(f).is_ready());
        }
    });
}

#[test]
fn a_task_waits_for_its_completion() {
    let (r, _) = manual();
    let (t, f) = r.enter(completion);
    assert_eq!(f.token(), t);
    let h = r.spawn(async move { f.await.len });
    settle(&r);
    r.enter(|| complete(t, Completion::ok(9)));
    settle(&r);
    assert!(h.is_finished());
}

#[test]
#[should_panic(expected = "polled after completion")]
fn a_result_is_given_once() {
    let (r, _) = manual();
    r.enter(|| {
        let (t, f) = completion();
        complete(t, Completion::ok(0));
        let mut f = ByHand::new(f);
        assert!(f.is_ready());
        let _ = f.poll();
    });
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "completed twice")]
fn a_second_completion_before_the_first_was_taken_is_a_bug_that_shows() {
    let (r, _) = manual();
    r.enter(|| {
        let (t, _f) = completion();
        complete(t, Completion::ok(0));
        complete(t, Completion::ok(0));
    });
}
