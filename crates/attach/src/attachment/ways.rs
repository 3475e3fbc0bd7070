//! The choice among the ways to a volume.

use crate::error::Error;
use crate::reach::{Failure, Reached, Wanted, reach};
use crate::workers::Workers;
use std::time::Duration;

use super::NotAttached;

/// Between two tries of the same way.
const PAUSE: Duration = Duration::from_millis(250);
/// Tries of a way that a target refuses for a reason that passes: a minute, beside what they take themselves.
const TRIES: u32 = 240;

/// Reaches the volume by the first way that leads there; gives its number, too.
pub(super) fn reach_one(
    workers: &Workers,
    ways: &[Wanted],
) -> Result<(Reached, usize), NotAttached> {
    let try_one = |i: usize| reach(workers, &ways[i]);
    let pause = || {
        std::thread::sleep(PAUSE);
        workers.asked().map_or(Ok(()), Err)
    };
    first(ways.len(), try_one, pause)
}

/// The first way that works, of `n`. One that is refused for a while is tried again and never left for the next: what this host
/// has sent before may still be done at the target, and the next way knows nothing of that. It would read old data, and have
/// its own writes overwritten by older ones.
fn first<R>(
    n: usize,
    try_one: impl Fn(usize) -> Result<R, Failure>,
    pause: impl Fn() -> Result<(), Error>,
) -> Result<(R, usize), NotAttached> {
    let mut failed = Vec::new();
    for i in 0..n {
        let mut done = try_one(i);
        let mut tries = 1;
        while tries < TRIES && done.as_ref().is_err_and(Failure::is_passing) {
            if tries == 1 {
                tracing::info!(
                    "the target is busy with what this host had before: it is asked again"
                );
            }
            pause()?;
            done = try_one(i);
            tries += 1;
        }
        match done {
            Ok(r) => return Ok((r, i)),
            // Another protocol would find the same, or must not be tried.
            Err(e) if e.is_last() => return Err(NotAttached::Unreached(vec![(i, e)])),
            Err(e) => failed.push((i, e)),
        }
    }
    Err(NotAttached::Unreached(failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use weir_initiator_brp::Error as Brp;
    use weir_initiator_srp::ChannelError;
    use weir_proto_brp::RejectReason::{self, Draining, NotAllowed, Resources, Unspecified};

    fn refused(why: RejectReason) -> Failure {
        Failure::Brp(Brp::Rejected(why))
    }

    /// Tries BRP, which says this, and SRP, which would work. Gives the ways that were tried, and whether it worked.
    fn tried(said: Vec<Result<(), Failure>>) -> (Vec<usize>, Option<usize>) {
        let (said, tried) = (RefCell::new(said), RefCell::new(Vec::new()));
        let try_one = |i: usize| {
            tried.borrow_mut().push(i);
            let mut said = said.borrow_mut();
            match (i, said.len()) {
                (0, 1) => said[0].clone(),
                (0, _) => said.remove(0),
                _ => Ok(()),
            }
        };
        let done = first(2, try_one, || Ok(()));
        (tried.into_inner(), done.ok().map(|(_, way)| way))
    }

    #[test]
    fn a_protocol_is_not_left_for_a_reason_that_passes() {
        for why in [Draining, Resources] {
            let (ways, by) = tried(vec![Err(refused(why)), Err(refused(why)), Ok(())]);
            assert_eq!((ways, by), (vec![0, 0, 0], Some(0)), "{why}");
            let (ways, by) = tried(vec![Err(refused(why))]);
            assert!(by.is_none() && ways.len() as u32 == TRIES && !ways.contains(&1), "{why}");
        }
        // Nor after a login that worked.
        assert_eq!(tried(vec![Err(Failure::Lost(Brp::PathDown))]), (vec![0], None));
    }

    #[test]
    fn a_protocol_that_does_not_work_is_left() {
        assert_eq!(tried(vec![Err(refused(NotAllowed))]), (vec![0, 1], Some(1)));
        // By what speaks SRP only.
        assert_eq!(tried(vec![Err(refused(Unspecified))]), (vec![0, 1], Some(1)));
        let none = Failure::Brp(Brp::Protocol("it is no BRP".into()));
        assert_eq!(tried(vec![Err(none)]), (vec![0, 1], Some(1)));
        let others = Failure::NoVolume(Vec::new());
        assert_eq!(tried(vec![Err(others)]), (vec![0], None));
        assert!(!Failure::Srp(ChannelError::NoReactor).is_passing());
    }

    #[test]
    fn a_signal_ends_the_waiting() {
        let asked = || Err(Error::new(crate::error::Kind::Interrupted, "", "", ""));
        let done = first(2, |_| Err::<(), _>(refused(Draining)), asked);
        assert!(matches!(done, Err(NotAttached::Other(_))));
    }
}
