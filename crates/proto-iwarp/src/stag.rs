//! Steering tags: what a peer may name, and what each name permits.
//!
//! A key is a counter encrypted under a secret of the table: keys are spread over all 32 bits, one
//! says nothing about the next, and none comes back before 2^32 others were given out. A guess hits
//! one of `n` live keys with probability `n / 2^32` and a miss ends the peer's stream.

use core::fmt;
use weir_base::Prng;

/// Rights of a registration, or the rights an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The peer may fetch (RDMA Read).
    pub remote_read: bool,
    /// The peer may store (RDMA Write, and the sink of our own READs).
    pub remote_write: bool,
}

impl Access {
    /// Fetch only.
    pub const READ: Access = Access { remote_read: true, remote_write: false };
    /// Store only.
    pub const WRITE: Access = Access { remote_read: false, remote_write: true };

    #[inline]
    const fn covers(self, need: Access) -> bool {
        (self.remote_read || !need.remote_read) && (self.remote_write || !need.remote_write)
    }
}

/// Why an access is not permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// No live registration has this key.
    InvalidStag {
        /// The key named.
        stag: u32,
    },
    /// The range leaves the registration.
    Bounds {
        /// The key named.
        stag: u32,
        /// First byte wanted.
        to: u64,
        /// Bytes wanted.
        len: u64,
    },
    /// The registration lacks the right.
    Access {
        /// The key named.
        stag: u32,
    },
    /// Offset plus length passes the end of the 64-bit range.
    Wrap {
        /// The key named.
        stag: u32,
    },
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::InvalidStag { stag } => write!(f, "STag {stag:#x} is not valid"),
            Protection::Bounds { stag, to, len } => {
                write!(f, "{len} bytes at {to:#x} are outside the registration of STag {stag:#x}")
            }
            Protection::Access { stag } => write!(f, "STag {stag:#x} does not give this right"),
            Protection::Wrap { stag } => {
                write!(f, "tagged offset plus length wraps, with STag {stag:#x}")
            }
        }
    }
}

impl std::error::Error for Protection {}

/// Why a registration is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertError {
    /// All slots are in use: their number.
    Full(usize),
    /// Base plus length passes 2^64.
    Range,
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InsertError::Full(n) => write!(f, "all {n} registrations are in use"),
            InsertError::Range => f.write_str("the range to register passes 2^64"),
        }
    }
}

impl std::error::Error for InsertError {}

#[derive(Debug)]
struct Registration<T> {
    base: u64,
    len: u64,
    access: Access,
    value: T,
}

#[derive(Debug)]
enum Slot<T> {
    Used(Registration<T>),
    /// Free; the field is the next free slot, or [`NONE`].
    Free(u32),
}

/// No slot.
const NONE: u32 = u32::MAX;

/// Where a key's registration is kept; `slot` is [`NONE`] when the bucket is empty.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    key: u32,
    slot: u32,
}

const EMPTY: Bucket = Bucket { key: 0, slot: NONE };

/// A fixed number of registrations, found by key in constant time. Never allocates after `new`.
#[derive(Debug)]
pub struct StagTable<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    len: usize,
    /// Open addressing with linear probing, at most half full. Keys are as good as random, so that
    /// their low bits serve as the hash.
    buckets: Vec<Bucket>,
    cipher: Speck32,
    count: u32,
    /// Keys made ahead, the next one last; [`AHEAD`] at a time cost little more than one.
    ahead: [u32; AHEAD],
    left: usize,
}

/// Keys made at once.
const AHEAD: usize = 8;

impl<T> StagTable<T> {
    /// Room for `capacity` registrations, at most 2^24. `prng` gives the secret behind the keys:
    /// outside simulations seed it from the operating system's secure source.
    pub fn new(capacity: usize, prng: &mut Prng) -> Self {
        let capacity = capacity.clamp(1, 1 << 24);
        let next = |i: usize| if i + 1 < capacity { i as u32 + 1 } else { NONE };
        StagTable {
            slots: (0..capacity).map(|i| Slot::Free(next(i))).collect(),
            free: 0,
            len: 0,
            buckets: vec![EMPTY; (capacity * 2).next_power_of_two()],
            cipher: Speck32::new(prng.next_u64()),
            count: prng.next_u64() as u32,
            ahead: [0; AHEAD],
            left: 0,
        }
    }

    /// Live registrations.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without registrations.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most registrations at once.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Registers `len` bytes that the peer will address as `base..base + len`; gives the key, never
    /// 0. The range may end exactly at 2^64.
    pub fn insert(
        &mut self,
        base: u64,
        len: u64,
        access: Access,
        value: T,
    ) -> Result<u32, InsertError> {
        self.insert_with(base, len, access, || value)
    }

    /// As [`insert`](StagTable::insert), of what `value` makes where it is kept.
    #[inline]
    pub fn insert_with(
        &mut self,
        base: u64,
        len: u64,
        access: Access,
        value: impl FnOnce() -> T,
    ) -> Result<u32, InsertError> {
        if wraps(base, len) {
            return Err(InsertError::Range);
        }
        let full = InsertError::Full(self.slots.len());
        let index = self.free;
        let slot = self.slots.get_mut(index as usize).ok_or(full)?;
        let Slot::Free(next) = *slot else { return Err(full) };
        *slot = Slot::Used(Registration { base, len, access, value: value() });
        self.free = next;
        self.len += 1;
        // At most half of the buckets are used and keys differ, so both searches end.
        let mask = self.buckets.len() - 1;
        loop {
            let key = self.next_key();
            if key == 0 || self.find(key).is_some() {
                continue;
            }
            let mut at = key as usize & mask;
            while self.buckets[at].slot != NONE {
                at = (at + 1) & mask;
            }
            self.buckets[at] = Bucket { key, slot: index };
            return Ok(key);
        }
    }

    #[inline]
    fn next_key(&mut self) -> u32 {
        if self.left == 0 {
            self.ahead = self
                .cipher
                .encrypt(std::array::from_fn(|i| self.count.wrapping_add((AHEAD - i) as u32)));
            self.count = self.count.wrapping_add(AHEAD as u32);
            self.left = AHEAD;
        }
        self.left -= 1;
        self.ahead[self.left]
    }

    /// The bucket that holds `key`.
    #[inline]
    fn find(&self, key: u32) -> Option<usize> {
        let mask = self.buckets.len() - 1;
        let mut at = key as usize & mask;
        loop {
            let bucket = self.buckets[at];
            if bucket.slot == NONE {
                return None;
            }
            if bucket.key == key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn registration(&self, key: u32) -> Option<&Registration<T>> {
        let slot = self.buckets[self.find(key)?].slot;
        match self.slots.get(slot as usize)? {
            Slot::Used(r) => Some(r),
            Slot::Free(_) => None,
        }
    }

    /// The value registered under `key`.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&T> {
        self.registration(key).map(|r| &r.value)
    }

    /// Whether `len` bytes at `to` may be accessed with `key` and all rights of `access`; gives
    /// what was registered. With `len` 0 key and rights count, the place does not. Zero-length
    /// operations from the wire are not checked at all: see [`StagTable::check_write`] and
    /// [`StagTable::check_read`].
    #[inline]
    pub fn check(&self, key: u32, to: u64, len: u64, access: Access) -> Result<&T, Protection> {
        let r = self.registration(key).ok_or(Protection::InvalidStag { stag: key })?;
        if !r.access.covers(access) {
            return Err(Protection::Access { stag: key });
        }
        if len > 0 {
            if wraps(to, len) {
                return Err(Protection::Wrap { stag: key });
            }
            let bounds = Protection::Bounds { stag: key, to, len };
            let start = to.checked_sub(r.base).ok_or(bounds)?;
            if start > r.len || len > r.len - start {
                return Err(bounds);
            }
        }
        Ok(&r.value)
    }

    /// The target of a Write segment; `None` for one of zero length, which names nothing (RFC 5040
    /// section 5.1).
    #[inline]
    pub fn check_write(&self, key: u32, to: u64, len: u32) -> Result<Option<&T>, Protection> {
        if len == 0 {
            return Ok(None);
        }
        self.check(key, to, u64::from(len), Access::WRITE).map(Some)
    }

    /// The source of a Read Request; `None` for one of zero length, which names nothing.
    #[inline]
    pub fn check_read(&self, key: u32, to: u64, len: u32) -> Result<Option<&T>, Protection> {
        if len == 0 {
            return Ok(None);
        }
        self.check(key, to, u64::from(len), Access::READ).map(Some)
    }

    /// Ends a registration; `None` when there was none. The key stays invalid.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let mut hole = self.find(key)?;
        let index = self.buckets[hole].slot;
        let slot = self.slots.get_mut(index as usize)?;
        let Slot::Used(r) = core::mem::replace(slot, Slot::Free(self.free)) else { return None };
        self.free = index;
        self.len -= 1;
        // Close the gap: move back what was pushed beyond it, so that searches need no tombstones.
        let mask = self.buckets.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let bucket = self.buckets[at];
            if bucket.slot == NONE {
                break;
            }
            let home = bucket.key as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.buckets[hole] = bucket;
                hole = at;
            }
        }
        self.buckets[hole] = EMPTY;
        Some(r.value)
    }
}

/// Whether `to + len` passes 2^64; ending exactly there does not.
#[inline]
const fn wraps(to: u64, len: u64) -> bool {
    match to.checked_add(len) {
        Some(_) => false,
        None => to.wrapping_add(len) != 0,
    }
}

/// The Speck 32/64 block cipher (Beaulieu et al. 2013): a keyed permutation of 32-bit values.
struct Speck32([u16; 22]);

impl Speck32 {
    fn new(key: u64) -> Speck32 {
        let word = |i: u32| (key >> (16 * i)) as u16;
        let mut k = word(0);
        let mut l = [word(1), word(2), word(3)];
        let mut rounds = [0; 22];
        for (i, round) in rounds.iter_mut().enumerate() {
            *round = k;
            let x = &mut l[i % 3];
            *x = k.wrapping_add(x.rotate_right(7)) ^ i as u16;
            k = k.rotate_left(2) ^ *x;
        }
        Speck32(rounds)
    }

    fn encrypt<const N: usize>(&self, v: [u32; N]) -> [u32; N] {
        let mut x = v.map(|v| (v >> 16) as u16);
        let mut y = v.map(|v| v as u16);
        for k in self.0 {
            for i in 0..N {
                x[i] = x[i].rotate_right(7).wrapping_add(y[i]) ^ k;
                y[i] = y[i].rotate_left(2) ^ x[i];
            }
        }
        std::array::from_fn(|i| u32::from(x[i]) << 16 | u32::from(y[i]))
    }
}

impl fmt::Debug for Speck32 {
    /// Shows nothing of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Speck32")
    }
}

#[cfg(test)]
mod tests;
