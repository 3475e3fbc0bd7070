//! The memory of a RAM volume, shared by all cores.

use super::sums::{BLOCK, Sums};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use weir_base::{IoError, IoResult};
use weir_mem::{Backing, Slice};

/// Unit in which it is known whether a thin volume's space is in use, in bytes.
pub(super) const GRANULE: u64 = 4096;
/// Huge pages: the base is aligned to them.
const HUGE: usize = 2 << 20;
/// From this length on, zeroing gives whole pages back to the system instead of writing zeros.
const RELEASE: u64 = 1 << 20;
/// Granules of one chunk of the map: a bit for each of 128 MiB.
const CHUNK: u64 = 1 << 15;
/// Bytes that one answer about allocation looks at.
const LOOK: u64 = 1 << 30;

/// How a [`Region`] is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Config {
    /// Bytes.
    pub(super) len: u64,
    /// Bytes that it can grow to.
    pub(super) reserve: u64,
    /// Ask for huge pages.
    pub(super) huge: bool,
    /// Take all memory at once.
    pub(super) prefault: bool,
    /// Zeroing gives memory back. Not for memory that a device has registered: it would go on using
    /// the pages that were given back.
    pub(super) release: bool,
    /// Keep a map of what is in use.
    pub(super) thin: bool,
}

type Chunk = Box<[AtomicU64]>;

/// One reservation of address space, of which the first [`len`](Region::len) bytes are memory. Its base
/// never moves, also when it grows.
///
/// It is device memory in the sense of [`Slice`]: access is by copy, no Rust reference to a byte of it
/// ever exists, and cores that race for a byte see some mix of old and new ones, as with a disk.
pub struct Region {
    base: NonNull<u8>,
    map: NonNull<u8>,
    map_len: usize,
    /// Bytes in use. Grows after the memory is there, shrinks before it is emptied.
    len: AtomicU64,
    /// The largest `len` so far: up to here there is memory.
    high: AtomicU64,
    config: Config,
    used: Vec<OnceLock<Chunk>>,
    sums: Sums,
    resizing: Mutex<()>,
}

// SAFETY: the mapping is plain memory that lives as long as the region; it is accessed by copies only,
// whose races are those of a device (see above). All else in it is Sync by itself.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(config: Config) -> std::io::Result<Region> {
        let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let reserve = usize::try_from(config.reserve).map_err(|_| too_large())?;
        let map_len = reserve.checked_add(HUGE).ok_or_else(too_large)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), map_len, libc::PROT_NONE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or_else(too_large)?;
        let skip = map.as_ptr().align_offset(HUGE);
        // SAFETY: skip is less than HUGE, by which the mapping is longer than the reservation.
        let base = unsafe { map.add(skip) };
        let chunks = if config.thin { config.reserve.div_ceil(GRANULE * CHUNK) } else { 0 };
        let region = Region {
            base,
            map,
            map_len,
            len: AtomicU64::new(0),
            high: AtomicU64::new(0),
            config,
            used: (0..chunks).map(|_| OnceLock::new()).collect(),
            sums: Sums::new(config.reserve),
            resizing: Mutex::new(()),
        };
        region.grow(0, config.len)?;
        region.high.store(config.len, Relaxed);
        region.len.store(config.len, Relaxed);
        Ok(region)
    }

    /// Bytes of the volume.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// True for a volume of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, for registration with a device; build the volume with `release = false` then.
    pub fn memory(&self) -> (NonNull<u8>, u64) {
        (self.base, self.len())
    }

    /// Makes `from..to` memory that reads as zeros.
    fn grow(&self, from: u64, to: u64) -> std::io::Result<()> {
        // Whole huge pages, so that the last one can be huge as well.
        let start = (from as usize) / HUGE * HUGE;
        let end = (to as usize).next_multiple_of(HUGE).min(self.map_len - HUGE);
        if end <= start {
            return Ok(());
        }
        // SAFETY: start..end is inside the reservation; making it accessible harms nobody.
        let r = unsafe {
            let p = self.base.as_ptr().add(start).cast();
            let r = libc::mprotect(p, end - start, libc::PROT_READ | libc::PROT_WRITE);
            if r == 0 && self.config.huge {
                // Advice: no harm if it is not taken.
                libc::madvise(p, end - start, libc::MADV_HUGEPAGE);
            }
            if r == 0 && self.config.prefault {
                libc::madvise(p, end - start, libc::MADV_POPULATE_WRITE)
            } else {
                r
            }
        };
        if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Changes the length; what is cut off is lost.
    pub(super) fn resize(&self, len: u64) -> IoResult {
        let _one = self.resizing.lock().unwrap_or_else(|e| e.into_inner());
        let old = self.len();
        if len > self.config.reserve {
            return Err(IoError::NoSpace);
        }
        if len > old {
            self.grow(old, len).map_err(|_| IoError::NoSpace)?;
            // What an I/O begun before an earlier cut may have left there.
            let high = self.high.fetch_max(len, Relaxed);
            self.zero(old, high.min(len) - old);
        }
        self.len.store(len, Relaxed);
        if len < old {
            self.mark(len.next_multiple_of(GRANULE), old.next_multiple_of(GRANULE), false);
            self.zero(len, old - len);
        }
        Ok(())
    }

    /// The address of a byte.
    ///
    /// # Safety
    /// `at` is at most the reservation's length.
    unsafe fn at(&self, at: u64) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.base.as_ptr().add(at as usize) }
    }

    /// True when the range is memory of the volume; also a check against overflow.
    #[inline]
    fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Copies out.
    #[inline]
    pub(super) fn read(&self, at: u64, buf: &Slice) -> IoResult {
        if !self.holds(at, buf.len() as u64) {
            return Err(IoError::OutOfRange);
        }
        // SAFETY: the source is mapped (checked, and never unmapped while the region lives), the target
        // is the slice's own memory. copy() allows the two to overlap, as when one range of the volume
        // is read into another through direct().
        unsafe { std::ptr::copy(self.at(at), buf.as_ptr(), buf.len()) };
        Ok(())
    }

    /// Copies in.
    #[inline]
    pub(super) fn write(&self, at: u64, buf: &Slice) -> IoResult {
        self.write_with(at, buf.as_ptr(), buf.len(), |_| None)
    }

    /// Copies in data with the checksum of each block (little-endian), of which there are as many as blocks.
    pub(super) fn write_summed(&self, at: u64, buf: &Slice, sums: &Slice) -> IoResult {
        let sum = |i: u64| {
            let mut b = [0; 4];
            sums.read_at(i as usize * 4, &mut b);
            u32::from_le_bytes(b)
        };
        self.write_with(at, buf.as_ptr(), buf.len(), |b| Some(sum(b - at / BLOCK)))
    }

    /// As [`write_summed`](Region::write_summed), of ordinary memory.
    #[inline]
    pub(super) fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> IoResult {
        let whole = (at | data.len() as u64).is_multiple_of(BLOCK);
        if !whole || sums.len() as u64 * BLOCK != data.len() as u64 {
            return self.write_with(at, data.as_ptr(), data.len(), |_| None);
        }
        let sum = |b: u64| sums.get((b - at / BLOCK) as usize).map(|s| u32::from_le_bytes(*s));
        self.write_with(at, data.as_ptr(), data.len(), sum)
    }

    /// Copies in; `sum` knows the checksum of a block, or does not.
    #[inline]
    fn write_with(
        &self,
        at: u64,
        from: *const u8,
        len: usize,
        sum: impl Fn(u64) -> Option<u32>,
    ) -> IoResult {
        if !self.holds(at, len as u64) {
            return Err(IoError::OutOfRange);
        }
        self.sums.begin(at, len as u64);
        // SAFETY: the target is mapped (checked, and never unmapped while the region lives), the source is memory that
        // callers have. copy() allows the two to overlap, as when one range of the volume is written from another.
        unsafe { weir_mem::streaming::copy(from, self.at(at), len) };
        self.sums.end(at, len as u64, sum);
        Ok(())
    }

    /// The checksums of a range of whole blocks, if those of all are known.
    #[inline]
    pub(super) fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        let whole = (at | len as u64).is_multiple_of(BLOCK) && self.holds(at, len as u64);
        whole
            && (at / BLOCK..(at + len as u64) / BLOCK)
                .all(|b| self.sums.look(b).sum().map(&mut *f).is_some())
    }

    /// Copies out a range of whole blocks, with the checksum of each: that which is kept, where one is, so that what
    /// became of the data in memory is found out by comparing.
    pub(super) fn read_summed(&self, at: u64, buf: &Slice, sums: &Slice) -> IoResult {
        for i in 0..buf.len() / BLOCK as usize {
            let (from, part) = (i * BLOCK as usize, buf.sub(i * BLOCK as usize, BLOCK as usize));
            let block = (at + from as u64) / BLOCK;
            let before = self.sums.look(block);
            self.read(at + from as u64, &part)?;
            let kept = before.sum().filter(|_| self.sums.look(block) == before);
            // SAFETY: the buffer of an I/O belongs to it until completion; nobody writes to it now.
            let sum = kept.unwrap_or_else(|| weir_codec::crc32c(unsafe { part.bytes() }));
            sums.write_at(i * 4, &sum.to_le_bytes());
        }
        Ok(())
    }

    /// The memory itself. `backing` must keep this region alive.
    #[inline]
    pub(super) fn slice(&self, at: u64, len: usize, backing: &Backing) -> Option<Slice> {
        debug_assert!(std::ptr::eq(
            backing.downcast_ref::<std::sync::Arc<Region>>().map_or(std::ptr::null(), |r| &**r),
            self
        ));
        let short = u32::try_from(len).ok()?;
        if !self.holds(at, u64::from(short)) {
            return None;
        }
        // SAFETY: the range is mapped and stays so as long as the region, which `backing` keeps alive;
        // nobody makes references into it.
        Some(unsafe {
            Slice::from_raw(NonNull::new_unchecked(self.at(at)), short, backing.clone())
        })
    }

    /// Sets a range to zeros; when it is long, by giving its pages back. The range must have been part
    /// of the volume at some time.
    pub(super) fn zero(&self, at: u64, len: u64) {
        let end = at + len;
        assert!(end <= self.high.load(Relaxed), "zeroing {len} bytes at {at}: never a part of it");
        // The rest is zeros since the memory was made.
        for (at, len) in self.sums.written(at, len) {
            self.sums.begin(at, len);
            self.zero_memory(at, at + len);
            self.sums.end(at, len, |_| None);
        }
    }

    fn zero_memory(&self, at: u64, end: u64) {
        if self.config.release && end - at >= RELEASE {
            let (first, last) = (at.next_multiple_of(4096), end / 4096 * 4096);
            // SAFETY: whole pages inside the reservation, of private anonymous memory: they are replaced
            // by pages of zeros. Addresses stay valid.
            let r = unsafe {
                libc::madvise(self.at(first).cast(), (last - first) as usize, libc::MADV_DONTNEED)
            };
            if r == 0 {
                self.fill_zero(at, first);
                self.fill_zero(last, end);
                return;
            }
        }
        self.fill_zero(at, end);
    }

    fn fill_zero(&self, from: u64, to: u64) {
        if from < to {
            // SAFETY: callers stay below the high-water mark, up to which grow() made memory.
            unsafe { std::ptr::write_bytes(self.at(from), 0, (to - from) as usize) };
        }
    }

    #[inline]
    fn word(&self, granule: u64) -> Option<&AtomicU64> {
        let chunk = self.used.get((granule / CHUNK) as usize)?.get()?;
        chunk.get((granule % CHUNK / 64) as usize)
    }

    /// As [`word`](Region::word); the first use of each 128 MiB makes 4 KiB of map.
    #[inline]
    fn word_or_new(&self, granule: u64) -> Option<&AtomicU64> {
        let chunk = self.used.get((granule / CHUNK) as usize)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK / 64).map(|_| AtomicU64::new(0)).collect());
        chunk.get((granule % CHUNK / 64) as usize)
    }

    /// Notes that every granule touched by the range is in use.
    #[inline]
    pub(super) fn mark_used(&self, at: u64, len: u64) {
        if len > 0 && !self.used.is_empty() {
            self.mark(at, at + len, true);
        }
    }

    /// Notes that the granules wholly inside the range are not in use.
    pub(super) fn mark_unused(&self, at: u64, len: u64) {
        let end = at + len;
        // The end of the volume need not be the end of a granule.
        let end = if end == self.len() { end.next_multiple_of(GRANULE) } else { end };
        self.mark(at.next_multiple_of(GRANULE), end / GRANULE * GRANULE, false);
    }

    fn mark(&self, from: u64, to: u64, used: bool) {
        let (mut g, end) = (from / GRANULE, to.div_ceil(GRANULE));
        while g < end {
            let n = (64 - g % 64).min(end - g);
            let mask = (u64::MAX >> (64 - n)) << (g % 64);
            let word = if used { self.word_or_new(g) } else { self.word(g) };
            let Some(word) = word else {
                // Nothing of this chunk is in use.
                g = (g / CHUNK + 1) * CHUNK;
                continue;
            };
            let now = word.load(Relaxed);
            // Mostly nothing changes, and then nothing is written that another core may be reading.
            if used && now & mask != mask {
                word.fetch_or(mask, Relaxed);
            } else if !used && now & mask != 0 {
                word.fetch_and(!mask, Relaxed);
            }
            g += n;
        }
    }

    /// Whether the granule of `at` is in use, and for how many of `len` bytes that holds, as far as it
    /// looks.
    pub(super) fn state(&self, at: u64, len: u64) -> (bool, u64) {
        if self.used.is_empty() {
            return (true, len);
        }
        let len = len.min(LOOK);
        let is = |g: u64| self.word(g).is_some_and(|w| w.load(Relaxed) >> (g % 64) & 1 == 1);
        let first = at / GRANULE;
        let state = is(first);
        let end = at + len;
        let mut g = first + 1;
        while g * GRANULE < end {
            let whole = if state { u64::MAX } else { 0 };
            let same_word =
                g.is_multiple_of(64) && self.word(g).is_some_and(|w| w.load(Relaxed) == whole);
            if same_word {
                g += 64;
            } else if is(g) == state {
                g += 1;
            } else {
                break;
            }
        }
        (state, (g * GRANULE).min(end) - at)
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        if self.used.is_empty() {
            return self.len();
        }
        let chunks = self.used.iter().filter_map(OnceLock::get);
        let granules: u64 =
            chunks.flat_map(|c| c.iter()).map(|w| u64::from(w.load(Relaxed).count_ones())).sum();
        granules * GRANULE
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever has an address into it keeps the region alive.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
