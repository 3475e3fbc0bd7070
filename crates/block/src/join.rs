//! Fan-out: one I/O made of several, without memory of its own per part.

use crate::IoFuture;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use weir_base::IoResult;

/// Most parts of one I/O that are in flight together; further parts follow as earlier ones end.
pub const WINDOW: usize = 16;
/// Window of I/Os of few parts, which are most: a smaller slot.
const FEW: usize = 4;

/// Runs the parts `0..count` of an I/O that `make` starts, in parallel, and completes when all that
/// were started have ended.
///
/// The result is that of the first part seen to fail; after a failure no further part is started. When
/// every part completes at once, so does the whole.
pub fn join_parts<'a, F>(count: usize, mut make: F) -> IoFuture<'a>
where
    F: FnMut(usize) -> IoFuture<'a> + Unpin + 'a,
{
    match count {
        0 => IoFuture::ready(Ok(())),
        1 => make(0),
        2..=FEW => Join::<F, FEW>::start(count, make),
        _ => Join::<F, WINDOW>::start(count, make),
    }
}

struct Join<'a, F, const W: usize> {
    make: F,
    /// Parts not started yet: `next..count`.
    next: usize,
    count: usize,
    result: IoResult,
    live: usize,
    slots: [Option<IoFuture<'a>>; W],
}

impl<'a, F, const W: usize> Join<'a, F, W>
where
    F: FnMut(usize) -> IoFuture<'a> + Unpin + 'a,
{
    #[inline]
    fn start(count: usize, make: F) -> IoFuture<'a> {
        let slots = [const { None }; W];
        let mut join = Join { make, next: 0, count, result: Ok(()), live: 0, slots };
        while join.live < W && join.next < join.count {
            let part = join.issue();
            match part.result() {
                Some(r) => join.note(r),
                None => {
                    join.slots[join.live] = Some(part);
                    join.live += 1;
                }
            }
        }
        if join.live == 0 { IoFuture::ready(join.result) } else { IoFuture::new(join) }
    }

    fn issue(&mut self) -> IoFuture<'a> {
        let part = (self.make)(self.next);
        self.next += 1;
        part
    }

    fn note(&mut self, r: IoResult) {
        if r.is_err() {
            self.count = self.next;
            if self.result.is_ok() {
                self.result = r;
            }
        }
    }
}

impl<'a, F, const W: usize> Future for Join<'a, F, W>
where
    F: FnMut(usize) -> IoFuture<'a> + Unpin + 'a,
{
    type Output = IoResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult> {
        let this = self.get_mut();
        for i in 0..W {
            loop {
                let mut part = match this.slots[i].take() {
                    Some(p) => p,
                    None if this.next < this.count => {
                        this.live += 1;
                        this.issue()
                    }
                    None => break,
                };
                match Pin::new(&mut part).poll(cx) {
                    Poll::Ready(r) => {
                        this.live -= 1;
                        this.note(r);
                    }
                    Poll::Pending => {
                        this.slots[i] = Some(part);
                        break;
                    }
                }
            }
        }
        if this.live == 0 { Poll::Ready(this.result) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::task::Waker;
    use weir_base::{IoError, Prng};

    fn poll(f: &mut IoFuture<'_>) -> Poll<IoResult> {
        Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn parts_that_are_ready_make_a_ready_whole() {
        for count in [0, 1, 3, 5, 100] {
            let started = Cell::new(0);
            let f = join_parts(count, |_| {
                started.set(started.get() + 1);
                IoFuture::ready(Ok(()))
            });
            assert_eq!(f.result(), Some(Ok(())), "{count}");
            drop(f);
            assert_eq!(started.get(), count);
        }
        let f =
            join_parts(9, |i| IoFuture::ready(if i == 4 { Err(IoError::Medium) } else { Ok(()) }));
        assert_eq!(f.result(), Some(Err(IoError::Medium)));
    }

    /// Parts end in random order: never more than the window at once, each exactly once, nothing is
    /// started after a failure, and the whole waits for all that were started.
    #[test]
    fn window_order_and_errors() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let count = prng.between(2, 60) as usize;
            let bad = prng.chance(1, 2).then(|| prng.below(count as u64) as usize);
            // None: not started. Some(false): in flight. Some(true): may end.
            let state = Rc::new(RefCell::new(vec![None; count]));
            let ended = Rc::new(Cell::new(0usize));
            let mut whole = {
                let (state, ended) = (state.clone(), ended.clone());
                join_parts(count, move |i| {
                    assert_eq!(state.borrow()[i], None, "started twice");
                    state.borrow_mut()[i] = Some(false);
                    let (state, ended) = (state.clone(), ended.clone());
                    IoFuture::new(async move {
                        std::future::poll_fn(|_| {
                            if state.borrow()[i] == Some(true) {
                                Poll::Ready(())
                            } else {
                                Poll::Pending
                            }
                        })
                        .await;
                        ended.set(ended.get() + 1);
                        if bad == Some(i) { Err(IoError::NoSpace) } else { Ok(()) }
                    })
                })
            };
            let started = || state.borrow().iter().filter(|s| s.is_some()).count();
            let mut at_failure = None;
            let result = loop {
                if let Poll::Ready(r) = poll(&mut whole) {
                    break r;
                }
                let flying: Vec<usize> =
                    (0..count).filter(|i| state.borrow()[*i] == Some(false)).collect();
                assert!(!flying.is_empty() && flying.len() <= WINDOW, "{flying:?}");
                let pick = flying[prng.below(flying.len() as u64) as usize];
                state.borrow_mut()[pick] = Some(true);
                if bad == Some(pick) {
                    at_failure = Some(started());
                }
            };
            let started = started();
            assert!(at_failure.is_none_or(|n| n == started), "started after a failure");
            assert_eq!(ended.get(), started, "all parts that were started have ended");
            match bad {
                Some(b) if state.borrow()[b].is_some() => {
                    assert_eq!(result, Err(IoError::NoSpace));
                }
                _ => assert_eq!((result, started), (Ok(()), count)),
            }
        }
    }
}
