//! A volume of one reactor, used from others: on threads, and in the simulator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use weir_base::{IoError, MICROS, MILLIS, Prng, SECONDS};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range, compare_sums, fill_sums};
use weir_layers::remote::{Entrance, Home};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{
    LocalFuture, PollMode, Reactor, current_id, run_async, sleep, spawn, spawn_task, timeout,
};
use weir_sim::World;
use weir_uring::Ring;

struct Counting;

/// Of the threads that said they count.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTS.try_with(Cell::get) == Ok(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is the system allocator's; counting touches only a number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

const LEN: u64 = 1 << 20;

/// A volume that insists on its own reactor, takes its time, and can keep buffers.
struct Native {
    all: Slice,
    reactor: u32,
    slow: bool,
    len: Cell<u64>,
    prng: RefCell<Prng>,
    keeps: Cell<bool>,
    kept: RefCell<Vec<Slice>>,
    under_way: Cell<usize>,
}

impl Native {
    fn new(slow: bool) -> Rc<Native> {
        Rc::new(Native {
            all: Slice::heap(LEN as usize),
            reactor: current_id(),
            slow,
            len: Cell::new(LEN),
            prng: RefCell::new(Prng::new(7)),
            keeps: Cell::new(false),
            kept: RefCell::default(),
            under_way: Cell::new(0),
        })
    }

    async fn takes_a_while(&self) {
        assert_eq!(current_id(), self.reactor, "only at home");
        self.under_way.set(self.under_way.get() + 1);
        if self.slow {
            let t = self.prng.borrow_mut().below(50) * MICROS;
            sleep(t).await;
        } else {
            run_async().await;
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    fn keep(&self, buf: &Slice) {
        if self.keeps.get() {
            self.kept.borrow_mut().push(buf.clone());
        }
    }
}

impl Volume for Native {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.len.get(),
            block_size: 512,
            granularity: 4096,
            thin: true,
            volatile_cache: false,
            read_only: false,
        }
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.keep(&buf);
        IoFuture::new(async move {
            self.takes_a_while().await;
            buf.copy_from(0, &self.all, at as usize, buf.len());
            Ok(())
        })
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.keep(&buf);
        IoFuture::new(async move {
            self.takes_a_while().await;
            self.all.copy_from(at as usize, &buf, 0, buf.len());
            Ok(())
        })
    }
    fn keeps_sums(&self) -> bool {
        true
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Err(IoError::Medium))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        let fits = check_range(&self.geometry(), at, len);
        IoFuture::new(async move {
            fits?;
            self.takes_a_while().await;
            self.all.sub(at as usize, len as usize).fill(if unmap { 0 } else { 1 });
            Ok(())
        })
    }
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        Box::pin(async move {
            self.takes_a_while().await;
            Allocation { mapped: at == 0, len: len / 2 }
        })
    }
}

/// Reads and writes ranges of its own and compares; some I/Os are given up half-way.
async fn exercise(v: Rc<dyn Volume>, seed: u64, part: (u64, u64), ios: u64) {
    let mut rng = Prng::new(seed);
    let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 8), (16384, 4)] }).expect("memory");
    let blocks = part.1 / 512;
    let mut model = vec![0u8; part.1 as usize];
    for n in 0..ios {
        let len = rng.between(1, 8) * 512;
        let at = rng.below(blocks - len / 512 + 1) * 512;
        let range = at as usize..(at + len) as usize;
        let buf = bufs.alloc(len as usize).await;
        if (at | len).is_multiple_of(4096) {
            let sums = Slice::heap(4);
            if rng.chance(1, 2) {
                let byte = (n % 251) as u8;
                buf.fill(byte);
                fill_sums(&buf, &sums);
                v.write_summed(part.0 + at, buf.clone(), sums.clone(), false)
                    .await
                    .expect("written");
                model[range.clone()].fill(byte);
                buf.fill(byte ^ 1);
                let wrong = v.write_summed(part.0 + at, buf.clone(), sums, false).await;
                assert_eq!(wrong, Err(IoError::Changed(0)));
            } else {
                v.read_summed(part.0 + at, buf.clone(), sums.clone()).await.expect("read");
                assert_eq!(compare_sums(&buf, &sums), Ok(()));
                assert!(buf.to_vec() == model[range.clone()], "seed {seed}, I/O {n}");
            }
        }
        match rng.below(10) {
            0..5 => {
                let byte = (n % 251) as u8;
                buf.fill(byte);
                v.write(part.0 + at, buf, rng.chance(1, 2)).await.expect("written");
                model[range].fill(byte);
            }
            5..9 => {
                buf.fill(0xee);
                v.read(part.0 + at, buf.clone()).await.expect("read");
                assert!(buf.to_vec() == model[range], "seed {seed}, I/O {n}");
            }
            _ => {
                // Given up at once, or after a moment; it is a read, so nothing changes.
                let io = v.read(part.0 + at, buf);
                let _ = timeout(rng.below(30) * MICROS, io).await;
            }
        }
    }
    while !bufs.is_whole() {
        sleep(100 * MICROS).await;
    }
}

/// A reactor on a thread of its own.
fn thread<T: Send + 'static>(f: impl AsyncFnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let reactor = Reactor::new(Rc::new(Ring::new().expect("a ring")));
        reactor.block_on(PollMode::Adaptive { spin: 50 * MICROS }, async move { f().await })
    })
}

/// A home on a thread, which lasts until the sender is dropped.
fn home(slow: bool, keeps: bool) -> (Entrance, Arc<AtomicBool>, JoinHandle<usize>) {
    let (tell, told) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let join = thread(async move || {
        let native = Native::new(slow);
        native.keeps.set(keeps);
        let home = Home::open(native.clone());
        tell.send(home.entrance()).expect("somebody waits");
        while !stopped.load(Ordering::Acquire) {
            sleep(MILLIS).await;
        }
        let n = native.kept.take().len();
        // What lingers goes back to who waits for it.
        sleep(50 * MILLIS).await;
        n
    });
    (told.recv().expect("a home"), stop, join)
}

#[test]
fn two_reactors_use_the_volume_of_a_third() {
    let (entrance, stop, join) = home(true, false);
    let users: Vec<_> = (0..2)
        .map(|i| {
            let e = entrance.clone();
            thread(async move || {
                let v = e.volume().expect("open");
                assert_eq!(v.geometry().len, LEN);
                let all = (0..8).map(|k| {
                    let part = ((i * 8 + k) * 65536, 65536);
                    spawn(exercise(v.clone(), i * 100 + k, part, 400))
                });
                for t in all.collect::<Vec<_>>() {
                    t.await.expect("not cancelled");
                }
                assert_eq!(v.flush().await, Err(IoError::Medium), "errors come back");
                assert_eq!(v.write(LEN, Slice::heap(512), false).await, Err(IoError::OutOfRange));
                // Of its own range: the other one may still be at it.
                let own = i * 8 * 65536;
                v.write_zeroes(own, 4096, false).await.expect("zeroed");
                let b = Slice::heap(4096);
                v.read(own, b.clone()).await.expect("read");
                assert!(b.to_vec().iter().all(|b| *b == 1), "the flag arrives");
                let a = v.find_allocation(4096, 8192).await;
                assert_eq!(a, Allocation { mapped: false, len: 4096 });
            })
        })
        .collect();
    for u in users {
        u.join().expect("a user ends well");
    }
    stop.store(true, Ordering::Release);
    join.join().expect("home ends well");
}

#[test]
fn memory_stays_until_home_has_let_it_go_and_the_answer_does_not_wait() {
    let (entrance, stop, join) = home(false, true);
    let user = thread(async move || {
        let v = entrance.volume().expect("open");
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).expect("memory");
        let buf = bufs.alloc(4096).await;
        buf.fill(9);
        timeout(SECONDS, v.write(0, buf, false)).await.expect("in time").expect("written");
        drop(v.write(4096, bufs.alloc(4096).await, false));
        sleep(50 * MILLIS).await;
        assert_eq!(bufs.census()[0].free, 2, "a device has both buffers");
        stop.store(true, Ordering::Release);
        while !bufs.is_whole() {
            sleep(MILLIS).await;
        }
    });
    user.join().expect("the user ends well");
    assert_eq!(join.join().expect("home ends well"), 2);
}

/// How many of four buffers are free after one was written by way of another reactor, where a device still has it.
fn free_while_a_device_has_one() -> usize {
    let w = World::new(3);
    let n = w.node_with("n", 2);
    let (home, free) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(None)));
    let h = home.clone();
    n.spawn_on(0, async move {
        let native = Native::new(false);
        native.keeps.set(true);
        *h.borrow_mut() = Some((Home::open(native.clone()), native));
    });
    w.run_until(SECONDS, || home.borrow().is_some()).expect("it opens");
    let (entrance, f) = (home.borrow().as_ref().expect("open").0.entrance(), free.clone());
    n.spawn_on(1, async move {
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).expect("memory");
        let v = entrance.volume().expect("open");
        v.write(0, bufs.alloc(4096).await, false).await.expect("written");
        sleep(MILLIS).await;
        f.set(Some(bufs.census()[0].free));
    });
    w.run_until(SECONDS, || free.get().is_some()).expect("it is written");
    n.enter_on(0, || drop(home.take()));
    free.get().expect("counted")
}

#[test]
fn an_answer_does_not_give_back_what_a_device_has() {
    assert_eq!(free_while_a_device_has_one(), 3);
}

#[cfg(feature = "planted")]
#[test]
fn an_answer_that_gives_it_back_is_caught() {
    weir_layers::planted::plant(Some(weir_layers::planted::Bug::LentMemoryReturned));
    let free = free_while_a_device_has_one();
    weir_layers::planted::plant(None);
    assert_ne!(free, 3);
}

#[test]
fn nobody_at_home_is_an_error_not_a_wait() {
    let (entrance, stop, join) = home(false, false);
    let user = thread(async move || {
        let v = entrance.volume().expect("open");
        let stopper = stop.clone();
        spawn_task(async move {
            sleep(5 * MILLIS).await;
            stopper.store(true, Ordering::Release);
        });
        let mut done = 0u64;
        let e = loop {
            match timeout(5 * SECONDS, v.read(0, Slice::heap(4096))).await.expect("an answer") {
                Ok(()) => done += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(e, IoError::Offline);
        assert_eq!(v.write(0, Slice::heap(512), false).await, Err(IoError::Offline));
        assert!(entrance.volume().is_none());
        done
    });
    assert!(user.join().expect("the user ends well") > 0);
    join.join().expect("home ends well");
}

#[test]
fn no_allocation_for_an_io() {
    let (entrance, stop, join) = {
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let join = thread(async move || {
            COUNTS.with(|c| c.set(true));
            let home = Home::open(Native::new(false));
            tell.send(home.entrance()).expect("somebody waits");
            while !stopped.load(Ordering::Acquire) {
                sleep(MILLIS).await;
            }
        });
        (told.recv().expect("a home"), stop, join)
    };
    let user = thread(async move || {
        COUNTS.with(|c| c.set(true));
        let v = entrance.volume().expect("open");
        let bufs: Vec<_> = (0..16).map(|_| Slice::heap(4096)).collect();
        let run = async |n: usize| {
            for i in 0..n {
                let b = &bufs[i % 16];
                let (a, b) = (v.write(0, b.clone(), false), v.read(4096, b.clone()));
                a.await.expect("written");
                b.await.expect("read");
            }
        };
        run(2000).await;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run(4000).await;
        stop.store(true, Ordering::Release);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    });
    let n = user.join().expect("the user ends well");
    join.join().expect("home ends well");
    // The mailbox takes its memory in blocks of 31 messages; a message is for many I/Os at best, here for one.
    assert!(n <= 8000 * 2 / 31 + 200, "{n} allocations for 8000 I/Os");
}

#[test]
fn in_the_simulator_also_when_the_machine_dies() {
    for seed in 0..150 {
        let w = World::new(seed);
        let n = w.node_with("n", 3);
        let mut rng = w.rng(1);
        for life in 0..3 {
            let home = Rc::new(RefCell::new(None));
            let at = rng.below(3) as usize;
            let h = home.clone();
            n.spawn_on(at, async move {
                *h.borrow_mut() = Some(Home::open(Native::new(true)));
            });
            w.run_until(SECONDS, || home.borrow().is_some()).expect("it opens");
            let e = home.borrow().as_ref().expect("open").entrance();
            let done = Rc::new(Cell::new(0));
            for core in 0..3u64 {
                let (e, done) = (e.clone(), done.clone());
                n.spawn_on(core as usize, async move {
                    let v = e.volume().expect("open");
                    exercise(v, seed * 10 + core, (core * 65536, 65536), 60).await;
                    done.set(done.get() + 1);
                });
            }
            if life < 2 {
                w.run_for(rng.below(3) * MILLIS);
                if rng.chance(1, 2) {
                    drop(e);
                    n.enter_on(at, || drop(home.take()));
                    n.kill();
                } else {
                    n.kill();
                    std::mem::forget(home.take());
                }
                n.restart();
                continue;
            }
            w.run_until(60 * SECONDS, || done.get() == 3).expect("all I/Os end");
            n.enter_on(at, || drop(home.take()));
        }
    }
}
