//! A node's handle to a medium: operations under virtual time.

use super::medium::{Next, SimMedium};
use super::orphans::{Orphan, What};
use crate::chance::pieces;
use crate::core::Core;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, Nanos};
use weir_disk::{Disk, DiskOp, report};
use weir_mem::Slice;
use weir_reactor::{Token, complete};

/// Bytes that are moved at once or not at all.
const SECTOR: usize = 512;

/// A disk as one simulated reactor sees it.
///
/// Each operation takes its own time, so operations pass each other. Data is moved between memory and
/// medium in pieces at random moments before the completion: whoever changes a buffer too early, or counts
/// on reads and writes being atomic, is found out.
pub struct SimDisk {
    medium: SimMedium,
    core: Rc<Core>,
}

/// An operation under way.
struct Op {
    medium: SimMedium,
    core: Rc<Core>,
    token: Token,
    id: u64,
    epoch: u64,
    kind: Kind,
    /// Where the data really goes; for a misdirected write not where it should.
    at: u64,
    moves: bool,
    fails: Option<IoError>,
    /// Pieces that have not been moved: offset and length.
    left: RefCell<Vec<(usize, usize)>>,
    /// The disk was away when a piece was due.
    missed: Cell<bool>,
    over: Cell<bool>,
}

enum Kind {
    Read(Slice),
    Write { buf: Slice, durable: bool },
    Zero { len: u64 },
    Flush { mark: u64 },
}

impl Kind {
    fn name(&self) -> String {
        match self {
            Kind::Read(buf) => format!("read of {}", buf.len()),
            Kind::Write { buf, durable } => {
                format!("write of {}{}", buf.len(), if *durable { ", forced" } else { "" })
            }
            Kind::Zero { len } => format!("zeroing of {len}"),
            Kind::Flush { .. } => "flush".to_string(),
        }
    }
}

impl SimDisk {
    pub(crate) fn new(medium: SimMedium, core: Rc<Core>) -> Rc<SimDisk> {
        Rc::new(SimDisk { medium, core })
    }

    /// Waits until nothing of a life before this one is under way on it, as whoever opens a disk does.
    pub async fn drained(&self) {
        let rest = self.medium.drains_in(self.core.clock.now());
        if rest > 0 {
            weir_reactor::sleep(rest).await;
        }
    }

    /// The medium below.
    pub fn medium(&self) -> &SimMedium {
        &self.medium
    }

    fn check(&self, at: u64, len: u64) -> IoResult {
        let unit = u64::from(self.block_size());
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        match inside && at.is_multiple_of(unit) && len.is_multiple_of(unit) {
            true => Ok(()),
            false => Err(IoError::OutOfRange),
        }
    }

    /// Checks an operation and draws what becomes of it.
    fn plan(&self, op: DiskOp, token: Token) -> Op {
        let m = &self.medium;
        let volatile = m.0.config.borrow().volatile_cache;
        let mut plan = Op {
            medium: m.clone(),
            core: self.core.clone(),
            token,
            id: m.op(),
            epoch: m.0.epoch.get(),
            kind: Kind::Zero { len: 0 },
            at: 0,
            moves: true,
            fails: None,
            left: RefCell::default(),
            missed: Cell::new(false),
            over: Cell::new(false),
        };
        let range = match &op {
            DiskOp::Read { offset, buf } | DiskOp::Write { offset, buf, .. } => {
                (*offset, buf.len() as u64)
            }
            DiskOp::Discard { offset, len } | DiskOp::WriteZeroes { offset, len, .. } => {
                (*offset, *len)
            }
            DiskOp::Flush => (0, 0),
        };
        plan.at = range.0;
        plan.fails = self.check(range.0, range.1).err();
        plan.moves = plan.fails.is_none();
        let told = m.0.config.borrow().error;
        let fail = |plan: &mut Op, e: IoError| plan.fails = plan.fails.or(Some(e));
        plan.kind = match op {
            DiskOp::Read { buf, .. } => {
                if m.goes_wrong(Next::ReadError) {
                    fail(&mut plan, told);
                }
                Kind::Read(buf)
            }
            DiskOp::Write { buf, fua, .. } => {
                if plan.moves && !m.has_room(range.0, buf.len()) {
                    m.count(|c| &mut c.write_errors);
                    plan.moves = false;
                    fail(&mut plan, IoError::NoSpace);
                }
                if m.goes_wrong(Next::WriteError) {
                    plan.moves &= m.draw(|r| r.chance(1, 2));
                    fail(&mut plan, told);
                }
                if m.goes_wrong(Next::LostWrite) {
                    plan.moves = false;
                } else if plan.moves && m.goes_wrong(Next::MisdirectedWrite) {
                    plan.at = self.elsewhere(range.0, buf.len() as u64);
                }
                Kind::Write { buf, durable: fua || !volatile }
            }
            DiskOp::Discard { len, .. } => {
                // It may do nothing.
                plan.moves &= m.draw(|r| r.chance(3, 4));
                Kind::Zero { len }
            }
            DiskOp::WriteZeroes { len, .. } => Kind::Zero { len },
            DiskOp::Flush => {
                if m.goes_wrong(Next::FlushError) {
                    fail(&mut plan, told);
                }
                Kind::Flush { mark: m.0.cache.borrow().mark() }
            }
        };
        if m.is_offline() {
            plan.moves = false;
            plan.fails = Some(IoError::Offline);
        }
        plan
    }

    /// A place of the same length that is not `at`, if there is one.
    fn elsewhere(&self, at: u64, len: u64) -> u64 {
        let unit = u64::from(self.block_size());
        let places = (self.len() - len) / unit + 1;
        let place = self.medium.draw(|r| r.below(places)) * unit;
        match place == at {
            true if at >= unit => at - unit,
            true if places > 1 => at + unit,
            _ => place,
        }
    }

    fn latency(&self, kind: &Kind) -> Nanos {
        let latency = {
            let c = self.medium.0.config.borrow();
            match kind {
                Kind::Read(_) => c.read,
                Kind::Write { .. } | Kind::Zero { .. } => c.write,
                Kind::Flush { .. } => c.flush,
            }
        };
        self.medium.draw(|r| latency.draw(r)) + self.medium.extra()
    }
}

impl Disk for SimDisk {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn block_size(&self) -> u32 {
        self.medium.0.config.borrow().block_size
    }

    fn volatile_cache(&self) -> bool {
        self.medium.0.config.borrow().volatile_cache
    }

    fn name(&self) -> &str {
        self.medium.name()
    }

    fn submit(&self, op: DiskOp, token: Token) {
        if !self.core.is_alive() {
            return;
        }
        self.core.check_here("a disk");
        let op = self.plan(op, token);
        // Not before those of another life have ended.
        let wait = self.medium.drains_in(self.core.clock.now());
        self.core.say(|| {
            let held = match wait {
                0 => String::new(),
                n => format!(", held {} us by what a killed process left", n.div_ceil(MICROS)),
            };
            format!("disk {}: {} at {}{held}", self.medium.name(), op.kind.name(), op.at)
        });
        let time = self.latency(&op.kind);
        let len = match &op.kind {
            Kind::Read(buf) | Kind::Write { buf, .. } if op.moves => buf.len(),
            _ => 0,
        };
        // Pieces, each at its own moment, and then the completion.
        let max = self.medium.0.config.borrow().pieces;
        let steps: Vec<(Nanos, usize, usize)> = self.medium.draw(|r| {
            // A sector is the least that a disk moves.
            let p = pieces(r, len.div_ceil(SECTOR), max);
            let mut times: Vec<Nanos> = p.iter().map(|_| r.below(time + 1)).collect();
            times.sort_unstable();
            let each = times.into_iter().zip(p);
            each.map(|(t, (at, n))| (wait + t, at * SECTOR, n * SECTOR)).collect()
        });
        op.left.borrow_mut().extend(steps.iter().map(|(_, at, n)| (*at, *n)));
        Rc::new(op).step(steps, 0, 0, wait + time);
    }

    fn set_len(&self, len: u64) -> IoResult {
        self.medium.set_len(len)
    }

    fn allocated(&self) -> Option<u64> {
        Some(self.medium.allocated())
    }
}

impl Op {
    fn step(self: Rc<Self>, steps: Vec<(Nanos, usize, usize)>, next: usize, at: Nanos, end: Nanos) {
        let core = self.core.clone();
        match steps.get(next).copied() {
            Some((t, pos, len)) => core.after(t - at, move || {
                self.transfer(pos, len);
                self.step(steps, next + 1, t, end);
            }),
            None => core.after(end - at, move || self.finish()),
        }
    }

    fn lost_power(&self) -> bool {
        self.medium.0.epoch.get() != self.epoch
    }

    /// Moves one piece.
    fn transfer(&self, pos: usize, len: usize) {
        self.left.borrow_mut().retain(|(at, _)| *at != pos);
        if self.medium.is_offline() {
            // It may be back before this ends: that tells of it all the same.
            self.missed.set(true);
        }
        if !self.moves || self.lost_power() || self.medium.is_offline() {
            return;
        }
        let mut cache = self.medium.0.cache.borrow_mut();
        let at = self.at + pos as u64;
        match &self.kind {
            Kind::Read(buf) => {
                let mut bytes = vec![0; len];
                cache.read(at, &mut bytes);
                self.medium.wear(at, &mut bytes);
                buf.write_at(pos, &bytes);
            }
            Kind::Write { buf, .. } => {
                let mut bytes = vec![0; len];
                buf.read_at(pos, &mut bytes);
                cache.write(self.id, at, bytes);
                self.medium.mend(at, len as u64);
            }
            Kind::Zero { len } => {
                cache.zero(self.id, self.at, *len);
                self.medium.mend(self.at, *len);
            }
            Kind::Flush { .. } => {}
        }
    }

    fn finish(&self) {
        self.over.set(true);
        let m = &self.medium;
        let mut result = self.fails.map_or(Ok(()), Err);
        if self.lost_power() || self.missed.get() || m.is_offline() {
            result = Err(IoError::Offline);
        } else {
            let mut cache = m.0.cache.borrow_mut();
            match &self.kind {
                Kind::Read(buf) => {
                    if result.is_ok() && m.is_bad(self.at, buf.len() as u64) {
                        m.count(|c| &mut c.read_errors);
                        result = Err(IoError::Medium);
                    }
                }
                Kind::Write { durable, .. } => {
                    cache.finish(self.id, *durable && result.is_ok());
                    if m.draw(|r| r.chance(1, 8)) {
                        cache.write_back();
                    }
                }
                Kind::Zero { .. } => {
                    let durable = !m.0.config.borrow().volatile_cache;
                    cache.finish(self.id, durable);
                }
                Kind::Flush { mark } => match result {
                    Ok(()) => cache.flushed(*mark),
                    Err(_) => m.draw(|r| cache.flush_failed(*mark, r)),
                },
            }
        }
        if let Err(e) = result {
            self.core.say(|| format!("disk {}: {e} at {}", m.name(), self.at));
        }
        complete(self.token, report(result));
    }
}

impl Drop for Op {
    /// Its process was killed: what the disk has taken stays taken, in the cache, and the rest it takes later.
    fn drop(&mut self) {
        if self.over.get() || self.lost_power() {
            return;
        }
        let durable = !self.medium.0.config.borrow().volatile_cache;
        self.medium.0.cache.borrow_mut().finish(self.id, durable);
        if !self.moves || self.medium.is_offline() {
            return;
        }
        let part = |(pos, len): (usize, usize)| match &self.kind {
            Kind::Write { buf, .. } => {
                let mut bytes = vec![0; len];
                buf.read_at(pos, &mut bytes);
                Some((self.at + pos as u64, What::Data(bytes)))
            }
            Kind::Zero { len } => Some((self.at, What::Zero(*len))),
            Kind::Read(_) | Kind::Flush { .. } => None,
        };
        let parts: Vec<_> = self.left.take().into_iter().filter_map(part).collect();
        if !parts.is_empty() {
            let orphan = Orphan { op: self.id, parts, durable };
            self.medium.0.orphans.borrow_mut().push(orphan);
        }
    }
}
