//! Random timers, cancelled and polled at will, against a plain list.

use crate::common::{ByHand, manual};
use proptest::prelude::*;
use weir_base::Nanos;
use weir_reactor::{Sleep, sleep_until};

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A new timer this far from now, polled once.
    Start(Nanos),
    /// Drops one of the timers alive.
    Cancel(usize),
    /// Polls one of the timers alive.
    Poll(usize),
    /// Moves the clock and makes a turn.
    Advance(Nanos),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..60u64).prop_map(Op::Start),
        3 => any::<usize>().prop_map(Op::Cancel),
        2 => any::<usize>().prop_map(Op::Poll),
        3 => (0..20u64).prop_map(Op::Advance),
    ]
}

struct Timer {
    at: Nanos,
    future: ByHand<Sleep>,
}

fn check(ops: &[Op]) -> Result<(), TestCaseError> {
    let (r, driver) = manual();
    let mut live: Vec<Timer> = Vec::new();
    for &op in ops {
        let now = driver.now.get();
        match op {
            Op::Start(after) => r.enter(|| {
                let mut t =
                    Timer { at: now + after, future: ByHand::new(sleep_until(now + after)) };
                // The reactor's time is that of its last turn.
                if !t.future.is_ready() {
                    live.push(t);
                }
            }),
            Op::Cancel(k) if !live.is_empty() => {
                let t = live.swap_remove(k % live.len());
                r.enter(|| drop(t));
            }
            Op::Poll(k) if !live.is_empty() => {
                let k = k % live.len();
                let ready = r.enter(|| live[k].future.is_ready());
                prop_assert_eq!(ready, live[k].at <= now);
                if ready {
                    live.swap_remove(k);
                }
            }
            Op::Advance(by) => {
                driver.now.set(now + by);
                r.turn();
            }
            Op::Cancel(_) | Op::Poll(_) => {}
        }
        let now = driver.now.get();
        for t in &live {
            prop_assert_eq!(t.future.wakes() > 0, t.at <= now, "due at {}, now {}", t.at, now);
            prop_assert!(t.future.wakes() <= 1);
        }
        let next = live.iter().filter(|t| t.at > now).map(|t| t.at).min();
        prop_assert_eq!(r.next_deadline(), next);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_timers_do_what_the_list_says(ops in proptest::collection::vec(op(), 1..300)) {
        check(&ops)?;
    }
}
