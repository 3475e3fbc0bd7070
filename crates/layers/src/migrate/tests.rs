use super::*;
use std::cell::RefCell;
use weir_base::{IoError, IoResult, MICROS, MILLIS, Nanos, Prng};
use weir_block::{Allocation, Geometry, IoFuture, check_range};
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
    /// How long anything takes.
    takes: Cell<Nanos>,
    /// A write changes nothing.
    lies: Cell<bool>,
    /// It does not tell where it has nothing.
    vague: Cell<bool>,
    /// Bytes that were given back.
    given_back: Cell<u64>,
    writes: Cell<u64>,
    written: Cell<u64>,
    flushes: Cell<u64>,
    lost: Cell<u64>,
}

impl Mem {
    fn new(len: u64) -> Mem {
        Mem {
            bytes: RefCell::new(vec![0; len as usize]),
            block_size: 512,
            thin: true,
            fails: Cell::new(None),
            hangs: Cell::new(false),
            takes: Cell::new(50 * MICROS),
            lies: Cell::new(false),
            vague: Cell::new(false),
            given_back: Cell::new(0),
            writes: Cell::new(0),
            written: Cell::new(0),
            flushes: Cell::new(0),
            lost: Cell::new(0),
        }
    }

    fn filled(seed: u64, from: usize, to: usize) -> Rc<Mem> {
        let m = Mem::new(LEN);
        Prng::new(seed).fill(&mut m.bytes.borrow_mut()[from..to]);
        Rc::new(m)
    }

    async fn does(&self, at: u64, len: u64, f: impl FnOnce(&mut [u8])) -> IoResult {
        check_range(&self.geometry(), at, len)?;
        sleep(self.takes.get()).await;
        // What hung is done in the end.
        while self.hangs.get() {
            sleep(MILLIS).await;
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
    fn lost(&self) -> u64 {
        self.lost.get()
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.given_back.set(self.given_back.get() + if unmap { len } else { 0 });
        IoFuture::new(self.does(at, len, |b| b.fill(0)))
    }
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        if self.vague.get() {
            return Box::pin(std::future::ready(Allocation { mapped: true, len }));
        }
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

/// The source does not tell where it has nothing, as a disk does not. Two pieces of it are not all zeros.
#[test]
fn pieces_of_zeros_become_holes_where_there_can_be_some() {
    const PIECE: u64 = 64 << 10;
    for (clean, thin) in [(true, true), (true, false), (false, true), (false, false)] {
        sim(async move {
            let (a, b) = (Mem::filled(1, 70_000, 140_000), Mem::filled(2, 0, LEN as usize));
            a.vague.set(true);
            let b = Mem { thin, ..Rc::into_inner(b).unwrap() };
            if clean {
                b.bytes.borrow_mut().fill(0);
            }
            let b = Rc::new(b);
            let m = Migration::new(a.clone(), b.clone(), Plan { clean, ..plan() }).unwrap();
            let v = m.entrance().handle();
            m.begin();
            // What is written and given back meanwhile is at both.
            for at in (0..LEN).step_by(PIECE as usize) {
                write(&*v, at, 7, 512).await.unwrap();
                v.write_zeroes(at, 512, true).await.unwrap();
            }
            let s = settled(&m).await;
            assert_eq!((s.phase, s.reason), (Phase::Ready, None));
            assert_eq!(*a.bytes.borrow(), *b.bytes.borrow(), "clean {clean}, thin {thin}");
            let zeros = LEN - 2 * PIECE;
            let hosts = LEN / PIECE * 512;
            match (clean, thin) {
                (false, false) => assert!(s.copied == LEN && b.written.get() >= LEN),
                _ => assert!(s.copied <= LEN - zeros + hosts * 2, "{clean} {thin}: {}", s.copied),
            }
            let back = b.given_back.get();
            assert!(if !clean && thin { back >= zeros } else { back <= hosts }, "{back}");
        });
    }
}

#[test]
fn what_fails_there_is_not_seen_by_hosts() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        b.fails.set(Some(IoError::Medium));
        write(&*v, 4096, 3, 512).await.unwrap();
        let s = m.status();
        assert_eq!(s.phase, Phase::Failed);
        assert!(s.reason.unwrap().contains("byte 4096"));
        assert_eq!(m.under_way(), 0);
        let before = b.writes.get();
        write(&*v, 8192, 4, 512).await.unwrap();
        assert_eq!((a.bytes.borrow()[8192], b.writes.get()), (4, before));
        assert!(m.hold(SECONDS).await.is_err());
    });
}

#[test]
fn hosts_go_on_without_a_destination_that_does_not_answer_and_it_is_made_up_later() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        b.hangs.set(true);
        let begin = now();
        write(&*v, 4096, 3, 512).await.unwrap();
        assert!((100 * MILLIS..110 * MILLIS).contains(&(now() - begin)), "its patience, once");
        let s = m.status();
        assert_eq!((s.phase, s.reason), (Phase::Copying, None));
        let waits = s.waits.unwrap();
        assert!(waits.contains("has not answered for 0.1 s"), "{waits}");
        assert!(!waits.contains("process"), "this reactor was there all the time: {waits}");
        // The same block again, which what hangs would overwrite with something older, and many others.
        let begin = now();
        let before = b.writes.get();
        write(&*v, 4096, 5, 512).await.unwrap();
        for at in (0..LEN).step_by(8192) {
            write(&*v, at + 512, 6, 512).await.unwrap();
        }
        v.write_zeroes(600 * 1024, 4096, true).await.unwrap();
        v.flush().await.unwrap();
        assert!(now() - begin < 50 * MILLIS, "hosts wait no more");
        assert_eq!(b.writes.get(), before, "nothing new is sent there");
        sleep(SECONDS).await;
        assert!(m.hold(SECONDS).await.is_err());
        assert_eq!((m.status().phase, m.under_way()), (Phase::Copying, 1));
        b.hangs.set(false);
        sleep(100 * MILLIS).await;
        let waits = m.status().waits.unwrap();
        assert!(waits.contains("gets a rest"), "{waits}");
        let s = settled(&m).await;
        assert_eq!((s.phase, s.reason, s.waits), (Phase::Ready, None, None));
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
        assert_eq!(b.bytes.borrow()[4096], 5, "not what came late");
        m.hold(SECONDS).await.unwrap().moved().unwrap();
        assert_eq!(m.status().phase, Phase::Moved);
    });
}

/// By the time that migrations of a daemon have.
#[test]
fn a_destination_has_four_seconds_to_answer() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let plan = Plan { patience: Plan::PATIENCE, ..plan() };
        let m = Migration::new(a.clone(), b.clone(), plan).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        b.hangs.set(true);
        let begin = now();
        write(&*v, 4096, 3, 512).await.unwrap();
        assert!((4 * SECONDS..4 * SECONDS + 10 * MILLIS).contains(&(now() - begin)));
        let waits = m.status().waits.unwrap();
        assert!(waits.contains("has not answered for 4.0 s"), "{waits}");
        b.hangs.set(false);
        assert_eq!(settled(&m).await.phase, Phase::Ready);
    });
}

/// Another volume's flush was told that the destination's device has lost what it had taken: ours ends well.
#[test]
fn a_destination_that_has_lost_something_is_not_moved_to() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        b.lost.set(7);
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        m.begin();
        assert_eq!(settled(&m).await.phase, Phase::Ready);
        b.lost.set(8);
        let e = m.hold(SECONDS).await.err().unwrap();
        assert!(e.contains("cannot be flushed"), "{e}");
        assert_eq!(m.status().phase, Phase::Failed);
    });
}

#[test]
fn it_may_stop_answering_at_any_time() {
    // Copies take a piece after the other, so these are moments of copying, of comparing, and after both.
    for wait in (0..40).map(|i| i * 100 * MICROS) {
        for clean in [true, false] {
            sim(async move {
                let (a, b) = (Mem::filled(1, 100_352, 800_256), Mem::filled(2, 0, LEN as usize));
                if clean {
                    b.bytes.borrow_mut().fill(0);
                }
                let plan = Plan { clean, ..plan() };
                let m = Migration::new(a.clone(), b.clone(), plan).unwrap();
                let v = m.entrance().handle();
                m.begin();
                sleep(wait).await;
                b.hangs.set(true);
                for i in 0..20 {
                    write(&*v, i * 52 * 1024, i as u8, 1024).await.unwrap();
                    sleep(20 * MILLIS).await;
                }
                b.hangs.set(false);
                let s = settled(&m).await;
                assert_eq!((s.phase, s.reason), (Phase::Ready, None), "at {wait}");
                assert_eq!(*a.bytes.borrow(), *b.bytes.borrow(), "at {wait}");
            });
        }
    }
}

#[test]
fn hosts_wait_for_one_io_of_the_copier_at_most() {
    // Each I/O is just quick enough that hosts do not go on without the destination. A piece of 64 KiB has eight holes
    // and eight stretches of data.
    sim(async {
        let (a, b) = (Rc::new(Mem::new(LEN)), Mem::filled(2, 0, LEN as usize));
        for at in (0..LEN as usize).step_by(8192) {
            a.bytes.borrow_mut()[at..at + 4096].fill(7);
        }
        b.takes.set(80 * MILLIS);
        let plan = Plan { clean: false, ..plan() };
        let m = Migration::new(a.clone(), b.clone(), plan).unwrap();
        let v = m.entrance().handle();
        m.begin();
        for i in 0..50 {
            sleep(7 * MILLIS).await;
            let begin = now();
            write(&*v, i % 4 * (64 << 10) + 60 * 1024, i as u8, 512).await.unwrap();
            let took = (now() - begin) / MILLIS;
            assert!(took < 165, "one I/O of the copier and one of its own: {took} ms");
        }
        let s = settled(&m).await;
        assert_eq!((s.phase, s.reason, s.waits), (Phase::Ready, None, None));
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
    });
}

#[test]
fn a_flush_that_takes_long_puts_the_cut_over_off() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        m.begin();
        settled(&m).await;
        b.hangs.set(true);
        let e = m.hold(SECONDS).await.err().unwrap();
        assert!(e.contains("has not answered"), "{e}");
        write(&*m.entrance().handle(), 0, 1, 512).await.unwrap();
        b.hangs.set(false);
        assert_eq!(settled(&m).await.phase, Phase::Ready);
        let held = m.hold(SECONDS).await.unwrap();
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
        held.moved().unwrap();
    });
}

#[test]
fn what_stops_the_whole_machine_is_not_the_destination_s_fault() {
    let w = World::new(1);
    let n = w.node("n");
    let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
    let m = Rc::new(n.enter_on(0, || Migration::new(a.clone(), b.clone(), plan()).unwrap()));
    let v = n.enter_on(0, || m.entrance().handle());
    n.enter_on(0, || m.begin());
    let writes = Rc::new(Cell::new(0));
    let count = writes.clone();
    n.spawn_on(0, async move {
        for i in 0.. {
            write(&*v, i % 100 * 4096, i as u8, 512).await.unwrap();
            count.set(i);
        }
    });
    for _ in 0..20 {
        w.run_for(300 * MICROS);
        n.pause(SECONDS);
        w.run_for(SECONDS);
        let s = m.status();
        assert_eq!((s.phase == Phase::Failed, s.waits), (false, None));
    }
    assert!(writes.get() > 20 && m.status().phase == Phase::Ready, "{:?}", m.status());
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
fn a_change_that_fails_at_the_source_is_no_difference_when_both_are_compared() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), Plan { rate: 1 << 20, ..plan() }).unwrap();
        let v = m.entrance().handle();
        m.begin();
        while m.status().phase != Phase::Verifying {
            sleep(MILLIS).await;
        }
        // At the end, where comparing has not been yet.
        let at = LEN - 512;
        a.fails.set(Some(IoError::Medium));
        let buf = Slice::heap(512);
        let done = v.write(at, buf, false);
        assert_eq!(done.await, Err(IoError::Medium), "the host's own failure");
        a.fails.set(None);
        assert_ne!(*a.bytes.borrow(), *b.bytes.borrow());
        let s = settled(&m).await;
        assert_eq!((s.phase, s.reason), (Phase::Ready, None));
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
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
        // Nor is anything done before it has answered, however long that takes.
        b.hangs.set(true);
        let (b2, begin) = (b.clone(), now());
        spawn_task(async move {
            sleep(SECONDS).await;
            b2.hangs.set(false);
        });
        write(&*v, 0, 3, 512).await.unwrap();
        assert!(now() - begin >= SECONDS);
        assert_eq!((a.bytes.borrow()[0], b.bytes.borrow()[0]), (3, 3));
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

/// Holds until that is possible.
async fn hold_some_time(m: &Migration) -> Held {
    for _ in 0..100 {
        if let Ok(held) = m.hold(SECONDS).await {
            return held;
        }
        sleep(100 * MILLIS).await;
    }
    panic!("it is never ready: {:?}", m.status())
}

#[test]
fn in_doubt_what_failed_on_one_side_is_the_same_on_both_before_it_is_seen_or_moves() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        b.fails.set(Some(IoError::Medium));
        for at in [0, 512, 4096] {
            assert!(write(&*v, at, 3, 512).await.is_err(), "it is not on both sides");
        }
        let buf = Slice::heap(512);
        assert_eq!(
            v.read(0, buf.clone()).await,
            Err(IoError::Medium),
            "it would be seen on one only"
        );
        b.fails.set(None);
        // After a crash either may be the volume: what was seen is on both.
        v.read(0, buf.clone()).await.unwrap();
        let seen = buf.to_vec()[0];
        assert_eq!((a.bytes.borrow()[0], b.bytes.borrow()[0]), (seen, seen));
        // So is what nobody has looked at, once it moves.
        hold_some_time(&m).await.moved().unwrap();
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
    });
}

#[test]
fn in_doubt_a_copy_that_fails_is_tried_again() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        a.fails.set(Some(IoError::Medium));
        assert!(write(&*v, 512, 3, 512).await.is_err());
        a.fails.set(None);
        assert!(m.hold(SECONDS).await.is_err(), "the two differ");
        b.fails.set(Some(IoError::Medium));
        sleep(SECONDS).await;
        assert!(m.status().reason.is_some(), "it was not copied");
        b.fails.set(None);
        hold_some_time(&m).await.moved().unwrap();
        assert_eq!(*a.bytes.borrow(), *b.bytes.borrow());
    });
}

#[test]
fn in_doubt_what_waits_to_be_copied_again_is_on_both_sides_when_it_is_seen() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a.clone(), b.clone(), plan()).unwrap();
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        b.fails.set(Some(IoError::Medium));
        let chunk = plan().chunk;
        for at in [0, chunk] {
            assert!(write(&*v, at, 3, 512).await.is_err(), "it is not on both sides");
        }
        b.fails.set(None);
        // A piece a second: the second one waits for its turn.
        m.set_rate(chunk);
        assert!(m.hold(SECONDS).await.is_err(), "the two differ");
        for _ in 0..40 {
            sleep(100 * MILLIS).await;
            let buf = Slice::heap(512);
            v.read(chunk, buf.clone()).await.unwrap();
            let at = chunk as usize..chunk as usize + 512;
            let same = b.bytes.borrow()[at] == buf.to_vec();
            assert!(same, "it is seen on one side only: {:?}", m.status());
            // As if nobody had looked before.
            if !m.inner.stale.is_empty() {
                b.bytes.borrow_mut()[chunk as usize] = 9;
            }
        }
    });
}

/// In doubt a destination that hangs must not hold up who asks to cut over: the control plane does that while it has its one lock,
/// which every change of the configuration and the end of the daemon wait for.
#[test]
fn in_doubt_holding_takes_no_longer_than_its_limit() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Migration::new(a, b.clone(), plan()).unwrap();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        b.hangs.set(true);
        let held = timeout(50 * SECONDS, m.hold(SECONDS)).await;
        assert!(held.is_ok(), "it waits for a destination that hangs");
    });
}

/// The same, when the destination begins to hang after I/O was held back: not even what the source alone gives is read then.
#[test]
fn in_doubt_hosts_read_though_the_destination_hangs_at_the_cut_over() {
    sim(async {
        let (a, b) = (Mem::filled(1, 0, LEN as usize), Rc::new(Mem::new(LEN)));
        let m = Rc::new(Migration::new(a.clone(), b.clone(), plan()).unwrap());
        let v = m.entrance().handle();
        m.begin();
        settled(&m).await;
        m.hold(SECONDS).await.unwrap().doubtful();
        let (before, me) = (b.flushes.get(), m.clone());
        let held = spawn(async move { drop(me.hold(SECONDS).await) });
        while b.flushes.get() < before + 3 && !held.is_finished() {
            sleep(MICROS).await;
        }
        b.hangs.set(true);
        let read = timeout(50 * SECONDS, v.read(0, Slice::heap(512))).await;
        assert_eq!(read.ok(), Some(Ok(())), "I/O is held back for ever");
    });
}
