use super::*;
use crate::Geometry;
use std::sync::Arc;
use weir_base::Nanos;
use weir_reactor::{Driver, PollMode, Reactor, Unpark, spawn, timeout};

/// Virtual time that jumps to the next timer.
#[derive(Default)]
pub(crate) struct TestDriver(Cell<Nanos>);

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for TestDriver {
    fn now(&self) -> Nanos {
        self.0.get()
    }
    fn poll(&self) -> bool {
        false
    }
    fn park(&self, until: Option<Nanos>) {
        let until = until.expect("all tasks wait and nothing will wake them");
        self.0.set(self.0.get().max(until));
    }
    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Nobody)
    }
}

pub(crate) fn run<T: 'static>(f: impl Future<Output = T> + 'static) -> T {
    Reactor::new(Rc::new(TestDriver::default())).block_on(PollMode::Sleep, f)
}

/// Takes a millisecond for each I/O, counts them, and says what a test wants.
struct Slow {
    geometry: Geometry,
    ios: Cell<usize>,
    flushes: Cell<usize>,
    flush_result: Cell<IoResult>,
    direct: Cell<Option<bool>>,
}

impl Slow {
    fn new() -> Rc<Slow> {
        Rc::new(Slow {
            geometry: Geometry {
                len: 1 << 20,
                block_size: 512,
                granularity: 4096,
                thin: false,
                volatile_cache: false,
                read_only: false,
            },
            ios: Cell::new(0),
            flushes: Cell::new(0),
            flush_result: Cell::new(Ok(())),
            direct: Cell::new(None),
        })
    }
    fn with(f: impl FnOnce(&mut Geometry)) -> Rc<Slow> {
        let mut s = Rc::into_inner(Slow::new()).unwrap();
        f(&mut s.geometry);
        Rc::new(s)
    }
    fn io(&self) -> IoFuture<'_> {
        IoFuture::new(async {
            sleep(1_000_000).await;
            self.ios.set(self.ios.get() + 1);
            Ok(())
        })
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn read(&self, _at: u64, _buf: Slice) -> IoFuture<'_> {
        self.io()
    }
    fn write(&self, _at: u64, _buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.io()
    }
    fn flush(&self) -> IoFuture<'_> {
        self.flushes.set(self.flushes.get() + 1);
        IoFuture::ready(self.flush_result.get())
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, _at: u64, _len: u64) -> IoFuture<'_> {
        self.io()
    }
    fn write_zeroes(&self, _at: u64, _len: u64, _unmap: bool) -> IoFuture<'_> {
        self.io()
    }
    fn direct(&self, _at: u64, len: usize) -> Option<Slice> {
        Some(Slice::heap(len))
    }
    fn direct_in_use(&self) -> Option<bool> {
        self.direct.get()
    }
}

#[test]
fn io_in_flight_ends_below_the_old_volume_and_held_io_goes_to_the_new() {
    run(async {
        let (a, b) = (Slow::new(), Slow::new());
        let j = Rc::new(Junction::new(a.clone()));
        let mut ios = Vec::new();
        for _ in 0..10 {
            let j = j.clone();
            ios.push(spawn(async move { j.read(0, Slice::heap(512)).await }));
        }
        sleep(500_000).await;
        assert_eq!(j.in_flight(), 10);
        let quiescing = {
            let j = j.clone();
            spawn(async move { j.quiesce().await })
        };
        sleep(100_000).await;
        assert!(j.is_closed() && !quiescing.is_finished());
        for _ in 0..5 {
            let j = j.clone();
            ios.push(spawn(async move { j.write(0, Slice::heap(512), false).await }));
        }
        let q = quiescing.await.unwrap().unwrap();
        assert_eq!((a.ios.get(), a.flushes.get(), j.in_flight(), j.held()), (10, 1, 0, 5));
        assert!(matches!(j.quiesce().await, Err(SwapError::Busy)));
        q.swap(b.clone()).unwrap();
        drop(q);
        for io in ios {
            assert_eq!(io.await, Some(Ok(())));
        }
        assert_eq!((a.ios.get(), b.ios.get()), (10, 5));
        assert_eq!(Rc::strong_count(&a), 1, "nothing keeps the old volume");
    });
}

#[test]
fn a_quiesce_that_takes_too_long_rolls_back() {
    run(async {
        let a = Slow::new();
        let j = Rc::new(Junction::new(a.clone()));
        let first = {
            let j = j.clone();
            spawn(async move { j.read(0, Slice::heap(512)).await })
        };
        sleep(1000).await;
        assert!(timeout(10_000, j.quiesce()).await.is_err());
        assert!(!j.is_closed());
        assert_eq!(j.read(0, Slice::heap(512)).await, Ok(()));
        assert_eq!(first.await, Some(Ok(())));
        assert_eq!((a.ios.get(), a.flushes.get()), (2, 0));
        // What was in flight before a roll-back still counts for the next attempt.
        assert_eq!(j.in_flight(), 0);
        drop(j.quiesce().await.unwrap());
    });
}

#[test]
fn an_io_dropped_in_flight_or_while_held_does_not_count() {
    run(async {
        let j = Rc::new(Junction::new(Slow::new()));
        assert!(timeout(10, j.read(0, Slice::heap(512))).await.is_err());
        assert_eq!(j.in_flight(), 0);
        let q = j.quiesce().await.unwrap();
        assert!(timeout(10, j.read(0, Slice::heap(512))).await.is_err());
        assert_eq!(j.held(), 0);
        drop(q);
    });
}

#[test]
fn what_hosts_would_notice_is_refused() {
    run(async {
        let j = Rc::new(Junction::new(Slow::new()));
        let q = j.quiesce().await.unwrap();
        let refused = |v: Rc<Slow>| q.swap(v).err();
        assert_eq!(
            refused(Slow::with(|g| g.block_size = 4096)),
            Some(SwapError::BlockSize { old: 512, new: 4096 })
        );
        assert_eq!(
            refused(Slow::with(|g| g.len -= 512)),
            Some(SwapError::Shorter { old: 1 << 20, new: (1 << 20) - 512 })
        );
        assert_eq!(refused(Slow::with(|g| g.volatile_cache = true)), Some(SwapError::Volatile));
        assert_eq!(refused(Slow::with(|g| g.read_only = true)), Some(SwapError::ReadOnly));
        assert_eq!(refused(Slow::with(|g| g.len *= 2)), None);
    });
}

#[test]
fn a_flush_that_fails_leaves_the_old_volume_in_place() {
    run(async {
        let a = Slow::new();
        a.flush_result.set(Err(IoError::Medium));
        let j = Rc::new(Junction::new(a.clone()));
        assert_eq!(j.quiesce().await.err(), Some(SwapError::Flush(IoError::Medium)));
        assert_eq!(j.read(0, Slice::heap(512)).await, Ok(()));
    });
}

#[test]
fn direct_memory_must_be_given_back_before_a_swap() {
    run(async {
        let a = Slow::new();
        let j = Rc::new(Junction::new(a.clone()));
        assert!(j.direct(0, 512).is_none(), "the volume cannot tell about its memory");
        a.direct.set(Some(true));
        assert!(j.direct(0, 512).is_some());
        let quiescing = {
            let j = j.clone();
            spawn(async move { j.quiesce().await.map(drop) })
        };
        sleep(500_000).await;
        assert!(!quiescing.is_finished());
        assert!(j.direct(0, 512).is_none(), "none while closed");
        a.direct.set(Some(false));
        assert_eq!(quiescing.await, Some(Ok(())));
    });
}
