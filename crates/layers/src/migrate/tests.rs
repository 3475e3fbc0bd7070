use super::*;
use std::cell::RefCell;
use weir_base::{IoResult, MICROS, MILLIS, Prng};
use weir_block::{Allocation, Geometry, check_range};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, sleep, spawn};
use weir_sim::World;

const LEN: u64 = 1 << 20;

/// Memory that takes its time, and fails or hangs when it is told to.
struct Mem {
    bytes: RefCell<Vec<u8>>,
    block_size: u32,
    thin: bool,
    fails: Cell<Option<IoError>>,
    hangs: Cell<bool>,
    /// A write changes nothing.
    lies: Cell<bool>,
    writes: Cell<u64>,
    written: Cell<u64>,
    flushes: Cell<u64>,
}

impl Mem {
    fn new(len: u64) -> Mem {
        Mem {
            bytes: RefCell::new(vec![0; len as usize]),
            block_size: 512,
            thin: true,
            fails: Cell::new(None),
            hangs: Cell::new(false),
            lies: Cell::new(false),
            writes: Cell::new(0),
            written: Cell::new(0),
            flushes: Cell::new(0),
        }
    }

    fn filled(seed: u64, from: usize, to: usize) -> Rc<Mem> {
        let m = Mem::new(LEN);
        Prng::new(seed).fill(&mut m.bytes.borrow_mut()[from..to]);
        Rc::new(m)
    }

    async fn does(&self, at: u64, len: u64, f: impl FnOnce(&mut [u8])) -> IoResult {
        check_range(&self.geometry(), at, len)?;
        sleep(50 * MICROS).await;
        if self.hangs.get() {
            std::future::pending::<()>().await;
        }
        if let Some(e) = self.fails.get() {
            return Err(e);
        }
        f(&mut self.bytes.borrow_mut()[at as usize..(at + len) as usize]);
        Ok(())
    }
}

impl Volume for Mem {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.bytes.borrow().len() as u64,
            block_size: self.block_size,
            granularity: 4096,
            thin: self.thin,
            volatile_cache: true,
            read_only: false,
        }
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let len = buf.len() as u64;
        IoFuture::new(self.does(at, len, move |b| buf.write_at(0, b)))
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.writes.set(self.writes.get() + 1);
        self.written.set(self.written.get() + buf.len() as u64);
        let (lies, len) = (self.lies.get(), buf.len() as u64);
        IoFuture::new(self.does(at, len, move |b| {
            if !lies {
                buf.read_at(0, b);
            }
        }))
    }
    fn flush(&self) -> IoFuture<'_> {
        self.flushes.set(self.flushes.get() + 1);
        IoFuture::new(self.does(0, 0, |_| ()))
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        IoFuture::new(self.does(at, len, |b| b.fill(0)))
    }
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let bytes = self.bytes.borrow();
        let empty = |at: u64| bytes[at as usize..at as usize + 512].iter().all(|b| *b == 0);
        let first = empty(at);
        let n = (0..len).step_by(512).take_while(|o| empty(at + o) == first).count() as u64;
        Box::pin(std::future::ready(Allocation { mapped: !first, len: n * 512 }))
    }
}

fn plan() -> Plan {
    Plan { len: LEN, clean: true, verify: true, rate: 0, chunk: 64 << 10, patience: 100 * MILLIS }
}

/// Runs `f` in a simulated world.
fn sim<T: 'static>(f: impl Future<Output = T> + 'static) -> T {
    let w = World::new(1);
    let n = w.node("n");
    w.run(&n, 100 * SECONDS, f).unwrap_or_else(|e| panic!("{e}"))
}

/// Waits until nothing goes on by itself any more.
async fn settled(m: &Migration) -> Status {
    loop {
        let s = m.status();
        if !matches!(s.phase, Phase::Waiting | Phase::Copying | Phase::Verifying) {
            return s;
        }
        sleep(MILLIS).await;
    }
}

async fn write(v: &dyn Volume, at: u64, byte: u8, len: usize) -> IoResult {
    let buf = Slice::heap(len);
    buf.fill(byte);
    v.write(at, buf, false).await
}

#[test]
fn everything_moves_and_holes_stay_holes() {
    sim(async {
        let (a, b) = (Mem::filled(1, 300_032, 500_224), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        assert_eq!(write(&*v, 0, 7, 512).await, Ok(()));
        assert_eq!(b.writes.get(), 0, "it has not begun");
        m.begin();
        let s = settled(&m).await;
        assert_eq!((s.phase, s.reason), (Phase::Ready, None));
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
        assert!(b.written.get() < 300_000, "thin stays thin: {}", b.written.get());
        // Ready: changes reach both, and only the cut-over flushes the destination.
        write(&*v, 1000 * 512, 9, 4096).await.unwrap();
        v.write_zeroes(400 * 512, 512, true).await.unwrap();
        v.discard(800 * 512, 1024).await.unwrap();
        v.flush().await.unwrap();
        assert_eq!((*a.bytes.borrow() == *b.bytes.borrow(), b.flushes.get()), (true, 0));
        let held = m.hold(SECONDS).await.unwrap();
        let (v2, wrote) = (v.clone(), Rc::new(Cell::new(false)));
        let flag = wrote.clone();
        let t = spawn(async move {
            write(&*v2, 0, 1, 512).await.unwrap();
            flag.set(true);
        });
        sleep(10 * MILLIS).await;
        assert!(!wrote.get() && b.flushes.get() > 0, "I/O is held back");
        held.moved().unwrap();
        t.await.unwrap();
        assert_eq!(
            (a.bytes.borrow()[0], b.bytes.borrow()[0]),
            (7, 1),
            "the old place is left alone"
        );
        assert_eq!((m.status().phase, m.under_way()), (Phase::Moved, 0));
    });
}

#[test]
fn a_destination_that_is_not_new_loses_what_it_had() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, 70_144), Mem::filled(2, 0, LEN as usize));
        let plan = Plan { clean: false, verify: false, ..plan() };
        let m = Migration::new(a.clone(), b.clone(), plan).unwrap();
        m.begin();
        assert_eq!(settled(&m).await.phase, Phase::Ready);
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
    });
}

#[test]
fn what_fails_there_is_not_seen_by_hosts() {
    sim(async {
        for hangs in [false, true] {
            let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
            let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
            let v = m.entrance().handle();
            m.begin();
            settled(&m).await;
            match hangs {
                true => b.hangs.set(true),
                false => b.fails.set(Some(IoError::Medium)),
            }
            write(&*v, 4096, 3, 512).await.unwrap();
            let s = m.status();
            assert_eq!(s.phase, Phase::Failed);
            assert!(s.reason.unwrap().contains("byte 4096"));
            assert_eq!(m.under_way(), usize::from(hangs));
            let before = b.writes.get();
            write(&*v, 8192, 4, 512).await.unwrap();
            assert_eq!((a.bytes.borrow()[8192], b.writes.get()), (4, before));
            assert!(m.hold(SECONDS).await.is_err());
        }
    });
}

#[test]
fn a_destination_that_lies_is_found_out() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        b.lies.set(true);
        let m = Migration::new(a, b, plan()).unwrap();
        m.begin();
        let s = settled(&m).await;
        assert_eq!(s.phase, Phase::Failed);
        assert!(s.reason.unwrap().contains("does not hold what was written"));
    });
}

#[test]
fn a_change_that_fails_at_the_source_is_copied_again() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        a.fails.set(Some(IoError::Medium));
        assert_eq!(write(&*v, 512, 3, 512).await, Err(IoError::Medium), "the host's own failure");
        a.fails.set(None);
        assert_ne!(*a.bytes.borrow(), *b.bytes.borrow());
        assert!(m.hold(SECONDS).await.is_err(), "not as they are");
        assert_eq!(settled(&m).await.phase, Phase::Ready);
        let held = m.hold(SECONDS).await.unwrap();
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
        held.stays();
        write(&*v, 512, 5, 512).await.unwrap();
        assert_eq!((a.bytes.borrow()[512], b.bytes.borrow()[512]), (5, 5));
    });
}

#[test]
fn in_doubt_both_sides_are_done_and_durable_or_it_fails() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, 4096), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        let (fa, fb) = (a.flushes.get(), b.flushes.get());
        v.flush().await.unwrap();
        assert_eq!((a.flushes.get(), b.flushes.get()), (fa + 1, fb + 1));
        b.fails.set(Some(IoError::Medium));
        assert!(write(&*v, 0, 1, 512).await.is_err());
        assert!(v.flush().await.is_err());
        b.fails.set(None);
        write(&*v, 0, 2, 512).await.unwrap();
        assert_eq!((a.bytes.borrow()[0], b.bytes.borrow()[0]), (2, 2));
    });
}

#[test]
fn rate_pause_and_stop() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let plan = Plan { rate: 1 << 20, verify: false, ..plan() };
        let m = Migration::new(a, b.clone(), plan).unwrap();
        let begin = now();
        m.begin();
        sleep(SECONDS / 2).await;
        let half = m.status().copied;
        assert!((LEN / 4..LEN * 3 / 4).contains(&half), "{half} bytes in half the time");
        m.set_paused(true);
        sleep(SECONDS).await;
        let paused = m.status().copied;
        sleep(SECONDS).await;
        assert_eq!((m.status().copied, m.status().paused), (paused, true));
        m.set_paused(false);
        m.set_rate(0);
        assert_eq!(settled(&m).await.phase, Phase::Ready);
        assert!(now() - begin < 3 * SECONDS);
        m.stop();
        assert_eq!(m.status().phase, Phase::Stopped);
        let before = b.writes.get();
        write(&*m.entrance().handle(), 0, 1, 512).await.unwrap();
        assert_eq!(b.writes.get(), before);
    });
}

#[test]
fn what_hosts_would_notice_is_refused() {
    sim(async {
        let a = || Rc::new(Mem::new(LEN));
        let short = Migration::new(a(), Rc::new(Mem::new(LEN - 512)), plan());
        assert_eq!(short.err(), Some(Unfit::Short(LEN - 512)));
        let coarse = Rc::new(Mem { block_size: 4096, ..Mem::new(LEN) });
        assert!(matches!(Migration::new(a(), coarse, plan()).err(), Some(Unfit::Swap(_))));
        // A longer one is cut to what hosts see.
        let m = Migration::new(a(), Rc::new(Mem::new(2 * LEN)), plan()).unwrap();
        assert_eq!(m.entrance().handle().geometry().len, LEN);
    });
}
