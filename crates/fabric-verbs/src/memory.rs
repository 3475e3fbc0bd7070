//! Memory as a device knows it: keys by address, and what to do with memory that has none.
//!
//! | memory | how it is used |
//! |---|---|
//! | inside a region registered at start (the buffer pool) | in place |
//! | elsewhere, up to [`COPY`] bytes | copied through a registered buffer, if one is free |
//! | elsewhere, larger | registered for the one request, with its slice held until that is over |
//!
//! Registrations are not cached by address: memory may be unmapped and mapped anew at the same address,
//! and a cached key would then lead to the old pages. A volume in RAM that is to be served without
//! copies is registered whole, as a region.

use crate::ffi::*;
use crate::objects::{Mr, Pd};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use weir_mem::{BufPool, PoolConfig, Slice};

/// Bytes up to which copying is cheaper than registering (tens of microseconds).
const COPY: usize = 64 << 10;
struct Region {
    base: usize,
    len: usize,
    mr: Mr,
}

struct Kept {
    /// Ends before the slice that it registers, since fields are dropped in order.
    _mr: Option<Mr>,
    _slice: Slice,
}

/// What must live until a request is over: one or two pieces of memory.
#[derive(Default)]
pub(crate) struct Hold([Option<Kept>; 2]);

impl Hold {
    fn of(slice: Slice, mr: Option<Mr>) -> Hold {
        Hold([Some(Kept { _mr: mr, _slice: slice }), None])
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0[0].is_some()
    }

    /// Holds a second piece, too.
    pub(crate) fn add(&mut self, other: Hold) {
        let [first, _] = other.0;
        let at = usize::from(self.is_some());
        self.0[at] = first;
    }
}

/// Where the data of a READ goes.
pub(crate) struct Sink {
    pub(crate) sge: ibv_sge,
    hold: Hold,
    /// The buffer that the device writes to, and where its content belongs.
    copy: Option<(Slice, Slice)>,
}

impl Sink {
    /// The data is there: puts it where it belongs.
    pub(crate) fn finish(self) {
        drop(self.hold);
        if let Some((from, to)) = self.copy {
            to.copy_from(0, &from, 0, to.len());
        }
    }
}

/// The keys of one device, for one reactor.
pub(crate) struct Memory {
    pd: Rc<Pd>,
    /// Rights that a READ sink needs beyond local writing.
    sink_access: c_int,
    /// Each READ gets a registration of its own, so that the peer never learns a key to more than that.
    private_sinks: bool,
    regions: RefCell<Vec<Region>>,
    /// The region found last.
    last: Cell<usize>,
    stage: BufPool,
}

fn piece(s: &Slice, lkey: u32) -> ibv_sge {
    ibv_sge { addr: s.as_ptr() as u64, length: s.len() as u32, lkey }
}

impl Memory {
    pub(crate) fn new(pd: &Rc<Pd>, stage: &PoolConfig, private_sinks: bool) -> io::Result<Memory> {
        let ctx = &pd.ctx;
        // An RNIC places READ responses as writes of the peer's (RFC 5040, 5.2); siw knows its own.
        let needs = ctx.iwarp && !ctx.limits.siw;
        let m = Memory {
            pd: pd.clone(),
            sink_access: if needs { IBV_ACCESS_REMOTE_WRITE } else { 0 },
            private_sinks: private_sinks && needs,
            regions: RefCell::default(),
            last: Cell::new(0),
            stage: BufPool::new(stage)?,
        };
        let (base, len) = m.stage.region();
        m.add_region(base, len)?;
        Ok(m)
    }

    /// Registers memory that stays mapped as long as this lives (the promise of
    /// [`Provider::register_region`](weir_fabric::Provider::register_region)).
    pub(crate) fn add_region(&self, base: NonNull<u8>, len: usize) -> io::Result<()> {
        let access = if self.private_sinks { 0 } else { self.sink_access };
        // SAFETY: the pool's own memory, or the promise of the caller of register_region.
        let mr = unsafe { Mr::new(&self.pd, base.as_ptr(), len, access) }?;
        self.regions.borrow_mut().push(Region { base: base.as_ptr() as usize, len, mr });
        Ok(())
    }

    #[inline]
    fn key(&self, s: &Slice) -> Option<u32> {
        let regions = self.regions.borrow();
        let (at, len) = (s.as_ptr() as usize, s.len());
        let inside = |r: &Region| at >= r.base && at - r.base + len <= r.len;
        if let Some(r) = regions.get(self.last.get())
            && inside(r)
        {
            return Some(r.mr.lkey);
        }
        let i = regions.iter().position(inside)?;
        self.last.set(i);
        Some(regions[i].mr.lkey)
    }

    /// A registration of just this slice, which must be held at least as long.
    pub(crate) fn register(&self, s: &Slice, access: c_int) -> io::Result<Mr> {
        // SAFETY: the caller keeps the slice, and with it the mapping.
        unsafe { Mr::new(&self.pd, s.as_ptr(), s.len(), access) }
    }

    /// A key for a receive buffer, with its registration if it needs one of its own.
    pub(crate) fn receive(&self, s: &Slice) -> io::Result<(ibv_sge, Option<Mr>)> {
        if let Some(k) = self.key(s) {
            return Ok((piece(s, k), None));
        }
        let mr = self.register(s, 0)?;
        Ok((piece(s, mr.lkey), Some(mr)))
    }

    /// Data to be read by the device.
    #[inline]
    pub(crate) fn source(&self, s: Slice) -> io::Result<(ibv_sge, Hold)> {
        if let Some(k) = self.key(&s) {
            return Ok((piece(&s, k), Hold::of(s, None)));
        }
        if let Some(b) = self.buffer(s.len()) {
            b.copy_from(0, &s, 0, s.len());
            return self.source_of_stage(b);
        }
        let mr = self.register(&s, 0)?;
        Ok((piece(&s, mr.lkey), Hold::of(s, Some(mr))))
    }

    /// Bytes to be sent that are too many to go inline.
    pub(crate) fn head(&self, bytes: &[u8]) -> io::Result<(ibv_sge, Hold)> {
        let b = self.buffer(bytes.len()).unwrap_or_else(|| Slice::heap(bytes.len()));
        let b = b.sub(0, bytes.len());
        b.write_at(0, bytes);
        match self.key(&b) {
            Some(k) => Ok((piece(&b, k), Hold::of(b, None))),
            None => {
                let mr = self.register(&b, 0)?;
                Ok((piece(&b, mr.lkey), Hold::of(b, Some(mr))))
            }
        }
    }

    fn source_of_stage(&self, b: Slice) -> io::Result<(ibv_sge, Hold)> {
        let k = self.key(&b).ok_or_else(|| io::Error::other("the staging pool is registered"))?;
        Ok((piece(&b, k), Hold::of(b, None)))
    }

    /// A registered buffer of our own, if the request is small and one is free.
    fn buffer(&self, len: usize) -> Option<Slice> {
        if len > COPY.min(self.stage.max_len()) { None } else { self.stage.try_alloc(len) }
    }

    /// Room for the data of a READ.
    #[inline]
    pub(crate) fn sink(&self, s: Slice) -> io::Result<Sink> {
        if s.is_empty() {
            return Ok(Sink { sge: ibv_sge::default(), hold: Hold::default(), copy: None });
        }
        if !self.private_sinks {
            if let Some(k) = self.key(&s) {
                let sge = piece(&s, k);
                let hold = Hold::of(s, None);
                return Ok(Sink { sge, hold, copy: None });
            }
            if let Some(b) = self.buffer(s.len()) {
                let (sge, hold) = self.source_of_stage(b.clone())?;
                return Ok(Sink { sge, hold, copy: Some((b, s)) });
            }
        }
        let mr = self.register(&s, self.sink_access)?;
        let sge = piece(&s, mr.lkey);
        Ok(Sink { sge, hold: Hold::of(s, Some(mr)), copy: None })
    }

    /// True when no buffer of the staging pool is in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.stage.is_whole()
    }
}
