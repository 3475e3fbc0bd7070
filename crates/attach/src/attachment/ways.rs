//! The choice among the ways to a volume.

use crate::error::Error;
use crate::reach::{Failure, Passes, Reached, Wanted, reach};
use crate::workers::Workers;
use std::time::Duration;
use weir_base::{Nanos, SECONDS};

use super::NotAttached;

/// Between two tries of the same way.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a way is tried that a target refuses as it is busy with what this host had before. A try may take seconds itself.
const WAIT: Nanos = 60 * SECONDS;
/// Tries of a way for which a target has no room.
const TRIES: u32 = 8;

/// Reaches the volume by the first way that leads there; gives its number, too.
pub(super) fn reach_one(
    workers: &Workers,
    ways: &[Wanted],
) -> Result<(Reached, usize), NotAttached> {
    let try_one = |i: usize| reach(workers, &ways[i]);
    let pause = || {
        std::thread::sleep(PAUSE);
        workers.asked().map_or(Ok(()), Err)?;
        workers.call(0, |_| Box::pin(async { weir_reactor::now() }))
    };
    first(ways.len(), try_one, pause)
}

/// The first way that works, of `n`. One that is refused for a while is tried again, and not left for the next while the target is
/// busy: what this host has sent before may still be done there, and the next way knows nothing of that. It would read old
/// data, and have its own writes overwritten by older ones. `pause` waits, and gives the time.
fn first<R>(
    n: usize,
    try_one: impl Fn(usize) -> Result<R, Failure>,
    pause: impl Fn() -> Result<Nanos, Error>,
) -> Result<(R, usize), NotAttached> {
    let mut failed = Vec::new();
    for i in 0..n {
        let (mut tries, mut until) = (1, None);
        let e = loop {
            let e = match try_one(i) {
                Ok(r) => return Ok((r, i)),
                Err(e) => e,
            };
            if tries == 1 && e.passes().is_some() {
                tracing::info!("the target cannot have this host now: it is asked again");
            }
            let now = match e.passes() {
                Some(Passes::Drained) => pause()?,
                Some(Passes::Room) if tries < TRIES => pause()?,
                _ => break e,
            };
            if now >= *until.get_or_insert(now + WAIT) {
                break e;
            }
            tries += 1;
        };
        // Another protocol would find the same, or must not be tried.
        if e.is_last() {
            return Err(NotAttached::Unreached(vec![(i, e)]));
        }
        failed.push((i, e));
    }
    Err(NotAttached::Unreached(failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use weir_initiator_brp::Error as Brp;
    use weir_initiator_srp::ChannelError;
    use weir_proto_brp::RejectReason::{self, Draining, NotAllowed, Resources, Unspecified};

    fn refused(why: RejectReason) -> Failure {
        Failure::Brp(Brp::Rejected(why))
    }

    /// Tries BRP, which says this, the last for ever, and takes 5 s for it, and SRP, which would work. Gives how often each was
    /// tried, and which worked.
    fn tried(said: Vec<Result<(), Failure>>) -> ([u32; 2], Option<usize>) {
        let (said, tried, now) = (RefCell::new(said), RefCell::new([0; 2]), Cell::new(0));
        let try_one = |i: usize| {
            tried.borrow_mut()[i] += 1;
            now.set(now.get() + 5 * SECONDS);
            let mut said = said.borrow_mut();
            match (i, said.len()) {
                (0, 1) => said[0].clone(),
                (0, _) => said.remove(0),
                _ => Ok(()),
            }
        };
        let done = first(2, try_one, || Ok(now.get()));
        (tried.into_inner(), done.ok().map(|(_, way)| way))
    }

    #[test]
    fn a_protocol_is_not_left_for_a_reason_that_passes() {
        for why in [Draining, Resources] {
            let by = tried(vec![Err(refused(why)), Err(refused(why)), Ok(())]);
            assert_eq!(by, ([3, 0], Some(0)), "{why}");
        }
        // A minute, also where each try takes long.
        assert_eq!(tried(vec![Err(refused(Draining))]), ([13, 0], None));
        // Nor after a login that worked.
        assert_eq!(tried(vec![Err(Failure::Lost(Brp::PathDown))]), ([1, 0], None));
    }

    /// A target may be full for days, and by the other protocol have room.
    #[test]
    fn a_protocol_without_room_is_left_after_a_few_tries() {
        assert_eq!(tried(vec![Err(refused(Resources))]), ([TRIES, 1], Some(1)));
        // Busy with what was before it stays so, whatever it says between.
        let (room, busy) = (|| Err(refused(Resources)), || Err(refused(Draining)));
        let (tries, by) = tried((0..20).map(|n| if n < 7 { room() } else { busy() }).collect());
        assert!(by.is_none() && tries[1] == 0, "{tries:?}");
    }

    #[test]
    fn a_protocol_that_does_not_work_is_left() {
        assert_eq!(tried(vec![Err(refused(NotAllowed))]), ([1, 1], Some(1)));
        // By what speaks SRP only.
        assert_eq!(tried(vec![Err(refused(Unspecified))]), ([1, 1], Some(1)));
        let none = Failure::Brp(Brp::Protocol("it is no BRP".into()));
        assert_eq!(tried(vec![Err(none)]), ([1, 1], Some(1)));
        let others = Failure::NoVolume(Vec::new());
        assert_eq!(tried(vec![Err(others)]), ([1, 0], None));
        assert_eq!(Failure::Srp(ChannelError::NoReactor).passes(), None);
    }

    #[test]
    fn a_signal_ends_the_waiting() {
        let asked = || Err(Error::new(crate::error::Kind::Interrupted, "", "", ""));
        let done = first(2, |_| Err::<(), _>(refused(Draining)), asked);
        assert!(matches!(done, Err(NotAttached::Other(_))));
    }
}
