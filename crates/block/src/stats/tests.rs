use super::*;
use crate::{Geometry, IoFuture, Volume};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use weir_base::{IoError, IoResult, SECONDS};
use weir_mem::Slice;

#[test]
fn snapshots_add_up_and_give_rates() {
    let (a, b) = (Counters::default(), Counters::default());
    for _ in 0..99 {
        a.at_once(Op::Read, 4096, Ok(()));
    }
    b.begin();
    b.done(Op::Read, 4096, Ok(()), 1000);
    b.begin();
    b.done(Op::Write, 512, Err(IoError::Medium), 50);
    b.begin();
    let mut s = a.snapshot();
    s.add(&b.snapshot());
    assert_eq!(s.in_flight, 1);
    let r = s.of(Op::Read);
    assert_eq!((r.ops, r.bytes, r.errors, r.at_once, r.nanos), (100, 409_600, 0, 99, 1000));
    assert_eq!((s.of(Op::Write).bytes, s.of(Op::Write).errors), (0, 1));
    let rates = Rates::new(&s, 2.0);
    let read = rates.of(Op::Read);
    assert_eq!((read.iops, read.bytes, read.mean), (50.0, 204_800.0, 10));
    assert!((rates.of(Op::Write).p99 as f64) < 57.0);
    assert_eq!(s.since(&a.snapshot()).of(Op::Read).ops, 1);
}

#[test]
fn a_watch_covers_the_time_since_the_sample_before() {
    let meters = Meters::default();
    let c = meters.counters("vol/top");
    let mut watch = Watch::new();
    c.at_once(Op::Write, 512, Ok(()));
    assert_eq!(watch.sample(&meters, 0)["vol/top"].of(Op::Write).iops, 0.0);
    for _ in 0..10 {
        c.at_once(Op::Write, 512, Ok(()));
    }
    assert_eq!(watch.sample(&meters, 2 * SECONDS)["vol/top"].of(Op::Write).iops, 5.0);
    meters.counters("volume/top");
    meters.forget("vol");
    assert_eq!(meters.snapshot().keys().collect::<Vec<_>>(), ["volume/top"]);
}

/// Completes at once with what it was given.
struct Fixed(RefCell<Option<IoResult>>);

impl Volume for Fixed {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: 4096,
            block_size: 512,
            granularity: 512,
            thin: false,
            volatile_cache: false,
            read_only: false,
        }
    }
    fn read(&self, _at: u64, _buf: Slice) -> IoFuture<'_> {
        match *self.0.borrow() {
            Some(r) => IoFuture::ready(r),
            None => IoFuture::new(std::future::pending()),
        }
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.read(at, buf)
    }
    fn flush(&self) -> IoFuture<'_> {
        self.read(0, Slice::heap(0))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, _len: u64) -> IoFuture<'_> {
        self.read(at, Slice::heap(0))
    }
    fn write_zeroes(&self, at: u64, _len: u64, _unmap: bool) -> IoFuture<'_> {
        self.read(at, Slice::heap(0))
    }
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        (at == 0).then(|| Slice::heap(len))
    }
    fn write_now(&self, at: u64, _data: &[u8], _sums: &[[u8; 4]]) -> bool {
        at == 0
    }
}

#[test]
fn what_completes_at_once_stays_so_and_is_counted() {
    let lower = Rc::new(Fixed(RefCell::new(Some(Ok(())))));
    let m = Metered::new(lower.clone(), Arc::default());
    assert_eq!(m.read(0, Slice::heap(512)).result(), Some(Ok(())));
    assert_eq!(m.flush().result(), Some(Ok(())));
    *lower.0.borrow_mut() = Some(Err(IoError::Medium));
    assert_eq!(m.write(0, Slice::heap(512), false).result(), Some(Err(IoError::Medium)));
    let s = m.counters().snapshot();
    assert_eq!((s.of(Op::Read).ops, s.of(Op::Read).bytes, s.of(Op::Read).at_once), (1, 512, 1));
    assert_eq!((s.of(Op::Write).ops, s.of(Op::Write).errors), (1, 1));
    assert_eq!(s.of(Op::Flush).ops, 1);
    assert!(m.write_now(0, &[0; 512], &[]) && !m.write_now(512, &[0; 512], &[]));
    assert!(m.direct(0, 512).is_some() && m.direct(512, 512).is_none());
    let s = m.counters().snapshot();
    assert_eq!((s.of(Op::Read).ops, s.of(Op::Write).ops, s.of(Op::Write).bytes), (2, 2, 512));
}

#[test]
fn a_dropped_io_is_no_longer_in_flight() {
    let reactor =
        weir_reactor::Reactor::new(Rc::new(crate::junction::tests::TestDriver::default()));
    let m = Metered::new(Rc::new(Fixed(RefCell::new(None))), Arc::default());
    reactor.enter(|| {
        let mut f = m.read(0, Slice::heap(512));
        assert!(Pin::new(&mut f).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(m.counters().snapshot().in_flight, 1);
        drop(f);
    });
    let s = m.counters().snapshot();
    assert_eq!((s.in_flight, s.of(Op::Read).ops), (0, 0));
}
