//! Bits that change on their way: all are found, and the hop is named.

use crate::common::{bytes, check_clean, on_reactor, session_config, slice};
use crate::flip::{Flipping, Plan};
use crate::target::{config, serve};
use std::rc::Rc;
use weir_initiator_brp::{Error, Event, Hop, Session, SessionConfig};
use weir_mem::Slice;

/// What one change comes to: the result, and the hops that were told.
struct Case {
    len: usize,
    direct: bool,
    times: u32,
    write: bool,
    plan: fn(&Plan) -> &std::cell::Cell<u32>,
}

fn run(case: &Case) -> (Result<(), Error>, Vec<Hop>, u64) {
    let out = Rc::new(std::cell::RefCell::new(None));
    let result = out.clone();
    let Case { len, direct, times, write, plan: which } = *case;
    on_reactor(|p| async move {
        let memory = Slice::heap(4 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &memory);
        t.mood.direct.set(direct);
        let plan = Rc::new(Plan::default());
        let flipping = Rc::new(Flipping { inner: p, plan: plan.clone() });
        let c = SessionConfig { retries: 3, ..session_config(&t) };
        let s = Session::connect(flipping, c).await.unwrap();
        let d = s.queue().open("v").await.unwrap();
        let a = bytes(len, 3);
        d.write(4096, slice(&a), false).await.unwrap();
        let before = memory.to_vec();
        let buf = if write { slice(&bytes(len, 4)) } else { Slice::heap(len).sub(0, len) };
        let new = buf.to_vec();
        which(&plan).set(times);
        let r = match write {
            true => d.write(4096, buf.clone(), false).await,
            false => d.read(4096, buf.clone()).await,
        };
        which(&plan).set(0);
        let after = memory.sub(4096, len).to_vec();
        match (write, r.is_ok()) {
            (true, true) => assert!(after == new, "what is there is what was to be written"),
            (true, false) => assert!(memory.to_vec() == before, "nothing bad is written"),
            (false, true) => assert!(buf.to_vec() == a, "nothing bad is given to the caller"),
            (false, false) => {}
        }
        let hop = |e: &Event| match e {
            Event::Damaged { hop, .. } => Some(*hop),
            _ => None,
        };
        let hops = s.events().iter().filter_map(hop).collect();
        *result.borrow_mut() = Some((r, hops, s.figures().losses));
        drop(d);
        check_clean(&s, &t).await;
    });
    out.take().expect("the test ran")
}

const SIZES: [usize; 4] = [512, 4096, 12 << 10, 256 << 10];

#[test]
fn our_own_memory_that_changes_after_its_checksum_was_taken() {
    for len in SIZES {
        for direct in [true, false] {
            let case = Case { len, direct, times: 1, write: true, plan: |p| &p.memory };
            let (r, hops, _) = run(&case);
            // It must not be written with a checksum that says it is right.
            let damaged = Err(Error::Damaged { hop: Hop::InitiatorMemory, at: 4096 });
            assert_eq!((r, hops), (damaged, vec![Hop::InitiatorMemory]), "{len} {direct}");
        }
    }
}

#[test]
fn data_changed_on_its_way_to_the_target() {
    for len in SIZES {
        for direct in [true, false] {
            let case = Case { len, direct, times: 1, write: true, plan: |p| &p.data_out };
            let (r, hops, _) = run(&case);
            assert_eq!((r, hops), (Ok(()), vec![Hop::WireToTarget]), "{len} {direct}");
            let (r, hops, _) = run(&Case { times: u32::MAX, ..case });
            let named = matches!(r, Err(Error::Damaged { hop: Hop::WireToTarget, .. }));
            assert!(named && hops.len() == 4, "{len} {direct}: {r:?} {hops:?}");
        }
    }
}

#[test]
fn commands_changed_on_their_way_have_no_effect_and_are_sent_again() {
    for len in SIZES {
        for direct in [true, false] {
            let case = Case { len, direct, times: 1, write: true, plan: |p| &p.control_out };
            let (r, _, losses) = run(&case);
            assert_eq!((r, losses), (Ok(()), 1), "{len} {direct}");
        }
    }
}

#[test]
fn data_changed_on_its_way_from_the_target() {
    for len in SIZES {
        for direct in [true, false] {
            let inline = len <= 16 << 10;
            let plan: fn(&Plan) -> &std::cell::Cell<u32> =
                if inline { |p| &p.data_in } else { |p| &p.placed };
            let case = Case { len, direct, times: 1, write: false, plan };
            let (r, hops, _) = run(&case);
            assert_eq!(r, Ok(()), "{len} {direct}");
            // Memory that is lent may have been written to by somebody: only what stays is damage.
            let lent = direct && hops.is_empty();
            assert!(lent || hops == [Hop::WireToInitiator], "{len} {direct} {hops:?}");
            let (r, hops, _) = run(&Case { times: u32::MAX, ..case });
            let named = matches!(r, Err(Error::Damaged { hop: Hop::WireToInitiator, .. }));
            assert!(named && hops.len() >= 3, "{len} {direct}: {r:?} {hops:?}");
        }
    }
}
