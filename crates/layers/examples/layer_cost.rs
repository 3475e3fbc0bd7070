//! What a layer costs: pooled futures against an I/O slot with a stack of frames.
//!
//! ```text
//! cargo build --release -p weir-layers --example layer_cost
//! taskset -c 1 target/release/examples/layer_cost
//! ```
//!
//! Five layers: RAM under four others; 4 KiB reads at random places of 64 MiB. Each way of writing a
//! layer is measured over a leaf that completes at once and over one that completes later, as a disk
//! does, with 32 reads in flight. The frame stack exists in this file only. The decision that these
//! figures led to is in docs/layers.md.
//!
//! On a machine that others use as well, look at the tenth percentile: it is of the slices of time in
//! which they did not.

mod common;

use common::{Clock, LEN, ram};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use weir_base::{IoResult, Prng};
use weir_block::{Counters, Filter, IoFuture, Junction, Metered, Shared, Volume};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{Completion, PollMode, Poller, Reactor, Token, complete, completion, spawn};

const BLOCK: u64 = 4096;
/// Reads of one slice of time, which is a few milliseconds at most.
const IOS: usize = 8_192;
const DEPTH: usize = 32;
const ROUNDS: usize = 501;

// ---- the world -----------------------------------------------------------------------------------

/// Completes an I/O in a later turn.
#[derive(Default)]
struct Later {
    tokens: RefCell<Vec<Token>>,
    taken: RefCell<Vec<Token>>,
}

impl Poller for Later {
    fn poll(&self) -> bool {
        std::mem::swap(&mut *self.tokens.borrow_mut(), &mut *self.taken.borrow_mut());
        let mut taken = self.taken.borrow_mut();
        let any = !taken.is_empty();
        for t in taken.drain(..) {
            complete(t, Completion::ok(0));
        }
        any
    }
}

// ---- pooled futures ------------------------------------------------------------------------------

/// Forwards: its work is done before the lower volume's begins.
struct Forward(Rc<dyn Volume>, Cell<u64>);

impl Filter for Forward {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.1.set(self.1.get() + 1);
        self.0.read(at, buf)
    }
}

/// Has work to do afterwards, always in a future of its own.
struct After(Rc<dyn Volume>, Cell<u64>);

impl Filter for After {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            let r = self.0.read(at, buf).await;
            self.1.set(self.1.get() + at);
            r
        })
    }
}

/// Has work to do afterwards, and looks whether the result is there already.
struct AfterQuick(Rc<dyn Volume>, Cell<u64>);

impl Filter for AfterQuick {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let io = self.0.read(at, buf);
        if io.result().is_some() {
            self.1.set(self.1.get() + at);
            return io;
        }
        IoFuture::new(async move {
            let r = io.await;
            self.1.set(self.1.get() + at);
            r
        })
    }
}

/// RAM that completes later.
struct Slow(Rc<dyn Volume>, Rc<Later>);

impl Filter for Slow {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            let (token, done) = completion();
            self.1.tokens.borrow_mut().push(token);
            done.await;
            self.0.read(at, buf).await
        })
    }
}

fn four(leaf: Rc<dyn Volume>, layer: impl Fn(Rc<dyn Volume>) -> Rc<dyn Volume>) -> Rc<dyn Volume> {
    (0..4).fold(leaf, |below, _| layer(below))
}

/// What tasks read into, and where.
struct Load {
    bufs: Vec<Slice>,
    at: Rc<Vec<u64>>,
}

impl Load {
    fn new() -> Load {
        let mut p = Prng::new(1);
        let at = (0..IOS).map(|_| p.below(LEN / BLOCK) * BLOCK).collect();
        Load { bufs: (0..DEPTH).map(|_| Slice::heap(BLOCK as usize)).collect(), at: Rc::new(at) }
    }

    /// Nanoseconds of one read by `read`, of `depth` tasks.
    fn measure<R>(&self, reactor: &Reactor, depth: usize, read: R) -> f64
    where
        R: AsyncFn(u64, Slice) -> IoResult + Clone + 'static,
    {
        let (bufs, at) = (self.bufs.clone(), self.at.clone());
        reactor.block_on(PollMode::Busy, async move {
            let start = Instant::now();
            let task = |t: usize| {
                let (read, at, buf) = (read.clone(), at.clone(), bufs[t].clone());
                spawn(async move {
                    for at in at.iter().skip(t).step_by(depth) {
                        read(*at, buf.clone()).await.expect("a read");
                    }
                })
            };
            let tasks: Vec<_> = (0..depth).map(task).collect();
            for t in tasks {
                t.await;
            }
            start.elapsed().as_nanos() as f64 / IOS as f64
        })
    }
}

// ---- the frame stack -----------------------------------------------------------------------------

const FRAMES: usize = 8;

/// What a layer keeps of an I/O: who it is, and a few words of its own.
#[derive(Clone, Copy, Default)]
struct Frame {
    layer: u32,
    words: [u64; 2],
}

/// One I/O on its way down or up.
struct Io {
    at: u64,
    buf: Option<Slice>,
    frames: [Frame; FRAMES],
    depth: usize,
    /// Who waits for its end.
    token: Token,
}

enum Step {
    /// On to the layer of this number.
    Down(usize),
    Done(IoResult),
    /// The layer will say later.
    Pending,
}

trait FrameLayer {
    fn submit(&self, slot: usize, io: &mut Io) -> Step;
    fn complete(&self, io: &mut Io, frame: Frame, result: IoResult) -> Step;
}

/// All layers and I/Os of a graph.
#[derive(Default)]
struct Stack {
    layers: Vec<Box<dyn FrameLayer>>,
    ios: Vec<RefCell<Io>>,
    free: RefCell<Vec<usize>>,
}

impl Stack {
    /// Runs an I/O until it ends or a layer keeps it.
    fn drive(&self, slot: usize, io: &mut Io, mut step: Step) -> Option<IoResult> {
        loop {
            step = match step {
                Step::Down(layer) => self.layers[layer].submit(slot, io),
                Step::Done(r) if io.depth == 0 => return Some(r),
                Step::Done(r) => {
                    io.depth -= 1;
                    let frame = io.frames[io.depth];
                    self.layers[frame.layer as usize].complete(io, frame, r)
                }
                Step::Pending => return None,
            }
        }
    }

    /// What a front end's task calls: the I/O's slot comes from the pool, the task waits only when it
    /// must.
    async fn read(&self, at: u64, buf: Slice) -> IoResult {
        let slot = self.free.borrow_mut().pop().expect("as many slots as tasks");
        let first = {
            let mut io = self.ios[slot].borrow_mut();
            (io.at, io.buf, io.token) = (at, Some(buf), Token::NONE);
            self.drive(slot, &mut io, Step::Down(0))
        };
        let result = match first {
            Some(r) => r,
            None => {
                let (token, done) = completion();
                self.ios[slot].borrow_mut().token = token;
                weir_disk::status(done.await)
            }
        };
        self.free.borrow_mut().push(slot);
        result
    }

    /// A layer that kept an I/O goes on with it.
    fn resume(&self, slot: usize, step: Step) {
        let mut io = self.ios[slot].borrow_mut();
        if let Some(r) = self.drive(slot, &mut io, step) {
            complete(io.token, weir_disk::report(r));
        }
    }
}

struct FrameForward {
    below: usize,
    count: Cell<u64>,
}

impl FrameLayer for FrameForward {
    fn submit(&self, _slot: usize, _io: &mut Io) -> Step {
        self.count.set(self.count.get() + 1);
        Step::Down(self.below)
    }
    fn complete(&self, _io: &mut Io, _frame: Frame, result: IoResult) -> Step {
        Step::Done(result)
    }
}

struct FrameAfter {
    me: u32,
    below: usize,
    sum: Cell<u64>,
}

impl FrameLayer for FrameAfter {
    fn submit(&self, _slot: usize, io: &mut Io) -> Step {
        io.frames[io.depth] = Frame { layer: self.me, words: [io.at, 0] };
        io.depth += 1;
        Step::Down(self.below)
    }
    fn complete(&self, _io: &mut Io, frame: Frame, result: IoResult) -> Step {
        self.sum.set(self.sum.get() + frame.words[0]);
        Step::Done(result)
    }
}

/// The same RAM volume, by its own read.
struct FrameRam(Rc<dyn Volume>);

impl FrameLayer for FrameRam {
    fn submit(&self, _slot: usize, io: &mut Io) -> Step {
        let buf = io.buf.take().expect("a read has a buffer");
        Step::Done(self.0.read(io.at, buf).result().expect("RAM completes at once"))
    }
    fn complete(&self, _io: &mut Io, _frame: Frame, result: IoResult) -> Step {
        Step::Done(result)
    }
}

/// Keeps I/Os until the next turn.
#[derive(Default)]
struct FrameLater {
    slots: RefCell<Vec<usize>>,
}

struct FrameSlow {
    later: Rc<FrameLater>,
}

impl FrameLayer for FrameSlow {
    fn submit(&self, slot: usize, _io: &mut Io) -> Step {
        self.later.slots.borrow_mut().push(slot);
        Step::Pending
    }
    fn complete(&self, _io: &mut Io, _frame: Frame, result: IoResult) -> Step {
        Step::Done(result)
    }
}

struct FramePoller {
    later: Rc<FrameLater>,
    stack: RefCell<Option<Rc<Stack>>>,
    taken: RefCell<Vec<usize>>,
}

impl Poller for FramePoller {
    fn poll(&self) -> bool {
        std::mem::swap(&mut *self.later.slots.borrow_mut(), &mut *self.taken.borrow_mut());
        let stack = self.stack.borrow();
        let Some(stack) = &*stack else { return false };
        let mut taken = self.taken.borrow_mut();
        let any = !taken.is_empty();
        for slot in taken.drain(..) {
            stack.resume(slot, Step::Down(stack.layers.len() - 1));
        }
        any
    }
}

fn stack(ram: &Rc<dyn Volume>, after: bool, slow: Option<Rc<FrameLater>>) -> Rc<Stack> {
    let mut s = Stack::default();
    for me in 0..4 {
        let below = me + 1;
        s.layers.push(if after {
            Box::new(FrameAfter { me: me as u32, below, sum: Cell::new(0) })
        } else {
            Box::new(FrameForward { below, count: Cell::new(0) })
        });
    }
    if let Some(later) = slow {
        s.layers.push(Box::new(FrameSlow { later }));
    }
    s.layers.push(Box::new(FrameRam(ram.clone())));
    for i in 0..DEPTH {
        let frames = [Frame::default(); FRAMES];
        s.ios.push(RefCell::new(Io { at: 0, buf: None, frames, depth: 0, token: Token::NONE }));
        s.free.get_mut().push(i);
    }
    Rc::new(s)
}

// ---- the measurement -----------------------------------------------------------------------------

fn main() {
    let reactor = Reactor::new(Rc::new(Clock(Instant::now())));
    let shared = Shared::new();
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 1)] }).expect("memory");
    let ram = reactor.enter(|| ram(&shared, &pool, "cost"));
    let later = Rc::new(Later::default());
    reactor.add_poller(later.clone());
    let poller = Rc::new(FramePoller {
        later: Rc::default(),
        stack: RefCell::default(),
        taken: RefCell::default(),
    });
    reactor.add_poller(poller.clone());
    let slow: Rc<dyn Volume> = Rc::new(Slow(ram.clone(), later));
    let slow_stack = |after| stack(&ram, after, Some(poller.later.clone()));

    let load = Load::new();
    type Way<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);
    let of = |v: Rc<dyn Volume>, depth: usize| -> Box<dyn Fn() -> f64 + '_> {
        let (reactor, load) = (&reactor, &load);
        Box::new(move || {
            let v = v.clone();
            load.measure(reactor, depth, async move |at, buf| v.read(at, buf).await)
        })
    };
    let of_stack = |s: Rc<Stack>, depth: usize| -> Box<dyn Fn() -> f64 + '_> {
        let (reactor, load, poller) = (&reactor, &load, &poller);
        Box::new(move || {
            *poller.stack.borrow_mut() = Some(s.clone());
            let s = s.clone();
            let t = load.measure(reactor, depth, async move |at, buf| s.read(at, buf).await);
            *poller.stack.borrow_mut() = None;
            t
        })
    };
    let forward = |v| Rc::new(Forward(v, Cell::new(0))) as Rc<dyn Volume>;
    let after = |v| Rc::new(After(v, Cell::new(0))) as Rc<dyn Volume>;
    let quick = |v| Rc::new(AfterQuick(v, Cell::new(0))) as Rc<dyn Volume>;
    let junction = |v| Rc::new(Junction::new(v)) as Rc<dyn Volume>;
    let metered = |v| Rc::new(Metered::new(v, Arc::new(Counters::default()))) as Rc<dyn Volume>;
    let ways: Vec<Way<'_>> = vec![
        ("at once, depth 1: RAM alone", of(ram.clone(), 1)),
        ("  4 forwarding, futures", of(four(ram.clone(), forward), 1)),
        ("  4 forwarding, frames", of_stack(stack(&ram, false, None), 1)),
        ("  4 working afterwards, futures", of(four(ram.clone(), after), 1)),
        ("  4 working afterwards, futures that look first", of(four(ram.clone(), quick), 1)),
        ("  4 working afterwards, frames", of_stack(stack(&ram, true, None), 1)),
        ("  1 junction", of(junction(ram.clone()), 1)),
        ("  1 counter", of(metered(ram.clone()), 1)),
        ("later, depth 32: RAM alone", of(slow.clone(), DEPTH)),
        ("  4 forwarding, futures", of(four(slow.clone(), forward), DEPTH)),
        ("  4 forwarding, frames", of_stack(slow_stack(false), DEPTH)),
        ("  4 working afterwards, futures", of(four(slow.clone(), after), DEPTH)),
        ("  4 working afterwards, futures that look first", of(four(slow.clone(), quick), DEPTH)),
        ("  4 working afterwards, frames", of_stack(slow_stack(true), DEPTH)),
        ("  1 junction", of(junction(slow.clone()), DEPTH)),
        ("  1 counter", of(metered(slow.clone()), DEPTH)),
    ];
    // Round by round, so that a change of the machine's mood hits all ways alike.
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (t, (_, run)) in times.iter_mut().zip(&ways) {
            t.push(run());
        }
    }
    println!("{:<52}{:>8}{:>8}{:>8}", "ns per 4 KiB read", "least", "p10", "median");
    for (t, (name, _)) in times.iter_mut().zip(&ways) {
        t.sort_by(f64::total_cmp);
        println!("{name:<52}{:>8.1}{:>8.1}{:>8.1}", t[0], t[ROUNDS / 10], t[ROUNDS / 2]);
    }
}
