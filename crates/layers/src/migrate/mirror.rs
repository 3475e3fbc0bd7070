//! The volume that hosts use while data moves: the source, and what of it the destination has already.

use super::Inner;
use crate::planted::{Bug, has};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// Two I/Os at the same time, each with a result of its own.
struct Pair<'a> {
    source: (IoFuture<'a>, Option<IoResult>),
    destination: (IoFuture<'a>, Option<IoResult>),
}

impl Future for Pair<'_> {
    type Output = (IoResult, IoResult);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(IoResult, IoResult)> {
        let this = &mut *self;
        for (io, result) in [&mut this.source, &mut this.destination] {
            if result.is_none()
                && let Poll::Ready(r) = Pin::new(io).poll(cx)
            {
                *result = Some(r);
            }
        }
        match (this.source.1, this.destination.1) {
            (Some(s), Some(d)) => Poll::Ready((s, d)),
            _ => Poll::Pending,
        }
    }
}

/// See the module.
pub(super) struct Mirror(pub(super) Rc<Inner>);

impl Mirror {
    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }

    /// Changes a range at the source, and at the destination the part of it that is there already.
    fn change<'a, S, D>(&'a self, at: u64, len: u64, source: S, destination: D) -> IoFuture<'a>
    where
        S: FnOnce(&'a dyn Volume) -> IoFuture<'a> + 'a,
        D: FnOnce(&'a dyn Volume, u64) -> IoFuture<'a> + 'a,
    {
        let inner = &*self.0;
        IoFuture::new(async move {
            // Also against other changes: two at once of the same blocks could end in different orders.
            let _lock = inner.ranges.lock(at, at + len).await;
            let both = inner.of_both(at, len);
            if both == 0 {
                return source(&*inner.source).await;
            }
            if inner.is_behind() {
                inner.mark(at, at + both);
                return source(&*inner.source).await;
            }
            let late = Cell::new(false);
            let there = inner.bounded(destination(&*inner.destination, both), &late);
            let pair = Pair { source: (source(&*inner.source), None), destination: (there, None) };
            let (s, d) = pair.await;
            if late.get() {
                inner.mark(at, at + both);
            }
            inner.settle(at, at + both, s, d)
        })
    }
}

impl Inner {
    /// How many bytes of a range from its start on a change has to reach the destination too. No more than
    /// that: the destination must not have anything where the copier has not been, as it leaves out what is
    /// empty at the source.
    fn of_both(&self, at: u64, len: u64) -> u64 {
        if has(Bug::ChangesNotMirrored) || !self.is_mirroring() {
            return 0;
        }
        if has(Bug::MirroredTooFar) && at < self.frontier.get() {
            return len;
        }
        self.frontier.get().saturating_sub(at).min(len)
    }

    /// What a change of `from..to` of both means.
    fn settle(&self, from: u64, to: u64, source: IoResult, destination: IoResult) -> IoResult {
        if let Err(e) = destination {
            self.fail(format!("the destination could not be changed at byte {from}: {e}"));
            if self.doubtful.get() {
                // Either may be the volume after a restart, so nothing may be on one of them only.
                self.stale.mark(from, to);
                return source.and(Err(IoError::Medium));
            }
        }
        if source.is_err() {
            // What the source has there now is what counts.
            self.stale.mark(from, to);
        }
        source
    }
}

impl Volume for Mirror {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.0.plan.len, ..self.0.source.geometry() }
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let len = buf.len() as u64;
        let inner = &*self.0;
        match self.check(at, len) {
            Err(e) => IoFuture::ready(Err(e)),
            // Either side may be the volume after a crash: nobody is shown what is on one of them only, so far.
            Ok(()) if inner.doubtful.get() => IoFuture::new(async move {
                let _lock = inner.ranges.lock(at, at + len).await;
                inner.source.read(at, buf.clone()).await?;
                if !inner.stale.may_differ(at, at + len) {
                    return Ok(());
                }
                // A change failed on one side. What is seen of it is on both.
                inner.destination.write(at, buf, false).await.map_err(|_| IoError::Medium)
            }),
            Ok(()) => inner.source.read(at, buf),
        }
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        if let Err(e) = self.check(at, len) {
            return IoFuture::ready(Err(e));
        }
        let same = buf.clone();
        // The destination need not be durable before the cut-over, which flushes it: until then a crash
        // ends the migration.
        let durable = fua && self.0.doubtful.get();
        self.change(
            at,
            len,
            move |v| v.write(at, buf, fua),
            move |v, n| v.write(at, same.sub(0, n as usize), durable),
        )
    }

    fn flush(&self) -> IoFuture<'_> {
        let inner = &*self.0;
        if !inner.doubtful.get() {
            return inner.source.flush();
        }
        IoFuture::new(async move {
            let late = Cell::new(false);
            let there = inner.bounded(inner.settles(), &late);
            let pair = Pair { source: (inner.source.flush(), None), destination: (there, None) };
            let (s, d) = pair.await;
            if let Err(e) = d {
                inner.fail(format!("the destination could not be flushed: {e}"));
            }
            s.and(d)
        })
    }

    /// What the destination loses counts once it is the volume.
    fn lost(&self) -> u64 {
        self.0.source.lost()
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        if let Err(e) = self.check(at, len) {
            return IoFuture::ready(Err(e));
        }
        if !self.0.source.geometry().thin {
            // Advice, after which such a source reads as it likes. The two must read the same.
            return IoFuture::ready(Ok(()));
        }
        self.change(at, len, move |v| v.discard(at, len), move |v, n| v.write_zeroes(at, n, true))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        if let Err(e) = self.check(at, len) {
            return IoFuture::ready(Err(e));
        }
        self.change(
            at,
            len,
            move |v| v.write_zeroes(at, len, unmap),
            move |v, n| v.write_zeroes(at, n, unmap),
        )
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        self.0.source.allocation(at, len)
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        self.0.source.find_allocation(at, len)
    }

    fn allocated(&self) -> Option<u64> {
        self.0.source.allocated()
    }
}
