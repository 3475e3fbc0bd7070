//! The medium: places that volumes are made in, one after the other, and volumes that tell the judge of all that lands.

use super::judge::Judge;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoResult, Nanos, Prng};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_sim::check::blocks::BLOCK;

/// Blocks of a place.
pub(super) const PLACE: u64 = 64;

/// All places. Nothing of it is lost when a volume goes.
pub(super) struct Medium {
    pub(super) judge: Rc<Judge>,
    places: Vec<Slice>,
    /// Until when volumes hang.
    hangs: RefCell<BTreeMap<u32, Nanos>>,
}

impl Medium {
    pub(super) fn new(judge: Rc<Judge>, places: usize) -> Rc<Medium> {
        let place = || {
            let s = Slice::heap(PLACE as usize * BLOCK);
            s.fill(0);
            s
        };
        let places = (0..places).map(|_| place()).collect();
        Rc::new(Medium { judge, places, hangs: RefCell::default() })
    }

    /// From now on nothing that a volume is asked goes on, for so long.
    pub(super) fn hang(&self, volume: u32, duration: Nanos) {
        self.judge.disturbed();
        self.judge.count("volumes that hang");
        self.hangs.borrow_mut().insert(volume, self.judge.now() + duration);
    }

    fn hangs(&self, volume: u32) -> Nanos {
        let until = self.hangs.borrow().get(&volume).copied().unwrap_or(0);
        until.saturating_sub(self.judge.now())
    }

    async fn hung(&self, volume: u32) {
        loop {
            match self.hangs(volume) {
                0 => return,
                left => sleep(left).await,
            }
        }
    }

    /// Stores a block, or zeros.
    fn store(&self, place: usize, volume: u32, block: u64, bytes: Option<&[u8]>) {
        self.judge.land(place, volume, block, bytes);
        let at = block as usize * BLOCK;
        match bytes {
            Some(b) => self.places[place].write_at(at, b),
            None => self.places[place].sub(at, BLOCK).fill(0),
        }
    }

    /// A whole place as it is.
    pub(super) fn copy(&self, place: usize) -> Vec<u8> {
        self.places[place].to_vec()
    }

    /// Puts a place back to what it was, for the volume in it.
    pub(super) fn restore(&self, place: usize, volume: u32, bytes: &[u8]) {
        use weir_sim::check::blocks::{Content, read_block};
        let now = self.judge.now();
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            self.places[place].write_at(i * BLOCK, b);
            let content = match read_block(b) {
                Content::Written { write, .. } => write,
                _ => 0,
            };
            self.judge.with(volume, |book| book.landed(i as u64, content, now));
        }
    }

    /// What was in a place is wiped before it is given out again.
    pub(super) fn wipe(&self, place: usize) {
        self.places[place].fill(0);
    }
}

/// One reactor's handle to a volume.
pub(super) struct Spied {
    pub(super) medium: Rc<Medium>,
    pub(super) place: usize,
    pub(super) volume: u32,
    /// Longest time of each half of a request.
    pub(super) delay: Nanos,
    pub(super) direct: bool,
}

impl Spied {
    fn time(&self) -> Nanos {
        // From the clock, as in other volumes of suites; requests of one moment take the same time.
        Prng::new(weir_reactor::clock()).below(self.delay + 1)
    }

    async fn pause(&self) {
        self.medium.hung(self.volume).await;
        if self.delay > 0 {
            sleep(self.time()).await;
        }
    }

    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }

    fn memory(&self) -> &Slice {
        &self.medium.places[self.place]
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            self.medium.store(self.place, self.volume, at / BLOCK as u64 + i as u64, Some(b));
        }
    }
}

impl Volume for Spied {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.medium.judge.with(self.volume, |b| b.blocks) * BLOCK as u64,
            block_size: BLOCK as u32,
            granularity: 4096,
            thin: true,
            volatile_cache: false,
            read_only: false,
        }
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            self.pause().await;
            buf.copy_from(0, self.memory(), at as usize, buf.len());
            self.pause().await;
            Ok(())
        })
    }

    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            self.pause().await;
            // In two parts: an end in the middle leaves the first.
            let half = buf.len() / BLOCK / 2 * BLOCK;
            let bytes = buf.to_vec();
            self.store(at, &bytes[..half]);
            self.pause().await;
            self.store(at + half as u64, &bytes[half..]);
            self.pause().await;
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }

    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, len)?;
            self.pause().await;
            let first = at / BLOCK as u64;
            for block in first..first + len / BLOCK as u64 {
                self.medium.store(self.place, self.volume, block, None);
            }
            Ok(())
        })
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        (self.direct && self.check(at, len as u64).is_ok())
            .then(|| self.memory().sub(at as usize, len))
    }

    fn direct_in_use(&self) -> Option<bool> {
        self.direct.then_some(false)
    }

    fn write_now(&self, at: u64, data: &[u8], _sums: &[[u8; 4]]) -> bool {
        let may = self.direct && self.check(at, data.len() as u64).is_ok();
        if may {
            self.store(at, data);
        }
        may
    }
}
