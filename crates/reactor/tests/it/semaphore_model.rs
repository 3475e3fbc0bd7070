//! Random programs of P, V and cancel against a semaphore so plain that it is right by inspection.

use crate::common::ByHand;
use proptest::prelude::*;
use std::collections::VecDeque;
use weir_reactor::{Wait, WaitChannel};

#[derive(Debug, Clone, Copy)]
enum Op {
    Wait(u32),
    TryWait(u32),
    Signal(u32),
    SignalFirst,
    SignalAll,
    /// Drops one of the futures alive, whatever its state.
    Cancel(usize),
    /// Polls one of the futures alive.
    Run(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..6u32).prop_map(Op::Wait),
        2 => (0..6u32).prop_map(Op::TryWait),
        4 => (0..6u32).prop_map(Op::Signal),
        1 => Just(Op::SignalFirst),
        1 => Just(Op::SignalAll),
        3 => any::<usize>().prop_map(Op::Cancel),
        5 => any::<usize>().prop_map(Op::Run),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Queued,
    Granted,
    Released,
}

#[derive(Default)]
struct Model {
    count: u32,
    /// In order of arrival: name, units.
    queue: VecDeque<(u64, u32)>,
}

impl Model {
    /// Names of those that the count satisfies now.
    fn serve(&mut self) -> Vec<(u64, State)> {
        let mut out = Vec::new();
        while let Some(&(id, n)) = self.queue.front().filter(|(_, n)| *n <= self.count) {
            self.count -= n;
            self.queue.pop_front();
            out.push((id, State::Granted));
        }
        out
    }
}

struct Live<'a> {
    id: u64,
    n: u32,
    state: State,
    future: ByHand<Wait<'a>>,
}

fn check(start: u32, ops: &[Op]) -> Result<(), TestCaseError> {
    let real = WaitChannel::new(start);
    let mut model = Model { count: start, ..Model::default() };
    let mut live: Vec<Live<'_>> = Vec::new();
    let mut next_id = 0;
    for &op in ops {
        let mut moved = Vec::new();
        match op {
            Op::Wait(n) => {
                let mut future = ByHand::new(real.wait_n(n));
                let at_once = model.queue.is_empty() && model.count >= n;
                prop_assert_eq!(future.is_ready(), at_once);
                if at_once {
                    model.count -= n;
                } else {
                    model.queue.push_back((next_id, n));
                    live.push(Live { id: next_id, n, state: State::Queued, future });
                }
                next_id += 1;
            }
            Op::TryWait(n) => {
                let can = model.queue.is_empty() && model.count >= n;
                prop_assert_eq!(real.try_wait_n(n), can);
                if can {
                    model.count -= n;
                }
            }
            Op::Signal(n) => {
                real.signal_n(n);
                model.count += n;
                moved = model.serve();
            }
            Op::SignalFirst => {
                let first = model.queue.pop_front();
                prop_assert_eq!(real.signal_first(), first.is_some());
                moved.extend(first.map(|(id, _)| (id, State::Released)));
                moved.extend(model.serve());
            }
            Op::SignalAll => {
                real.signal_all();
                moved.extend(model.queue.drain(..).map(|(id, _)| (id, State::Released)));
            }
            Op::Cancel(k) if !live.is_empty() => {
                let gone = live.swap_remove(k % live.len());
                match gone.state {
                    State::Queued => model.queue.retain(|(id, _)| *id != gone.id),
                    State::Granted => model.count += gone.n,
                    State::Released => {}
                }
                moved = model.serve();
                drop(gone.future);
            }
            Op::Run(k) if !live.is_empty() => {
                let k = k % live.len();
                let w = &mut live[k];
                prop_assert_eq!(w.future.is_ready(), w.state != State::Queued);
                if w.state != State::Queued {
                    live.swap_remove(k);
                }
            }
            Op::Cancel(_) | Op::Run(_) => {}
        }
        for (id, state) in moved {
            let w = live.iter_mut().find(|w| w.id == id).expect("a waiter lives till it runs");
            w.state = state;
        }
        prop_assert_eq!(real.count(), model.count);
        prop_assert_eq!(real.waiting(), model.queue.len());
        for w in &live {
            prop_assert_eq!(w.future.wakes() > 0, w.state != State::Queued, "waiter {}", w.id);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_program_does_what_the_model_does(
        start in 0..8u32,
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        check(start, &ops)?;
    }
}
