//! Buffers in a few sizes, lent out with back-pressure.

use crate::arena::Arena;
use crate::shares::{Account, Shares};
use crate::slice::Slice;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

/// How many buffers of which size (bytes, a multiple of 4096), in ascending size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// (size, number of buffers).
    pub classes: Vec<(usize, usize)>,
}

impl PoolConfig {
    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.classes.iter().map(|(s, n)| s * n).sum()
    }
}

impl Default for PoolConfig {
    /// 64 MiB: 4 KiB × 4096, 64 KiB × 256, 1 MiB × 32.
    fn default() -> Self {
        PoolConfig { classes: vec![(4096, 4096), (64 << 10, 256), (1 << 20, 32)] }
    }
}

/// Buffers of one size: total, free now, and how many requests wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Bytes of each.
    pub size: usize,
    /// All there are.
    pub total: usize,
    /// Not lent out.
    pub free: usize,
    /// Requests that wait for one.
    pub waiting: usize,
}

struct Class {
    size: usize,
    total: usize,
    free: RefCell<Vec<Rc<BufInner>>>,
}

struct PoolInner {
    classes: Vec<Class>,
    /// Who has how many of each class, and who may have more.
    shares: Shares,
    /// One count on every buffer, so that a lent buffer's own count tells when it comes back.
    all: RefCell<Vec<Rc<BufInner>>>,
    arena: Arena,
}

pub(crate) struct BufInner {
    ptr: NonNull<u8>,
    class: u32,
    /// Who has it, while it is lent out. Keeps the pool.
    holder: RefCell<Option<Rc<Taker>>>,
    me: Weak<BufInner>,
}

impl BufInner {
    /// The last reference but the pool's own goes away.
    #[inline]
    #[expect(clippy::unreachable, reason = "an invariant: it is set as long as the buffer is lent")]
    pub(crate) fn give_back(&self) {
        let (Some(taker), Some(me)) = (self.holder.borrow_mut().take(), self.me.upgrade()) else {
            unreachable!("a lent buffer holds its pool");
        };
        let class = self.class as usize;
        taker.pool.classes[class].free.borrow_mut().push(me);
        taker.account.give_back(class);
    }
}

/// Who takes buffers of a pool.
struct Taker {
    pool: Rc<PoolInner>,
    account: Rc<Account>,
}

impl PoolInner {
    fn max_len(&self) -> usize {
        self.classes.last().map_or(0, |c| c.size)
    }

    fn class(&self, len: usize) -> usize {
        let i = self.classes.partition_point(|c| c.size < len);
        assert!(i < self.classes.len(), "no buffer of {len} bytes in this pool");
        i
    }
}

/// A pool of one reactor.
#[derive(Clone)]
pub struct BufPool {
    inner: Rc<PoolInner>,
    /// What is taken for no host.
    house: Share,
}

/// A channel's share of a pool: what it takes is its host's, until the last reference to the buffer is gone. Clones are
/// the same share.
#[derive(Clone)]
pub struct Share(Rc<Taker>);

impl BufPool {
    /// Maps the memory and cuts it up.
    ///
    /// # Errors
    /// The operating system has not enough memory.
    ///
    /// # Panics
    /// When a size is not a multiple of 4096 or sizes do not ascend.
    pub fn new(config: &PoolConfig) -> std::io::Result<BufPool> {
        assert!(!config.classes.is_empty(), "a pool needs a size");
        assert!(config.classes.windows(2).all(|w| w[0].0 < w[1].0), "sizes ascend");
        let arena = Arena::new(config.total())?;
        let base = arena.base();
        let classes = config
            .classes
            .iter()
            .map(|&(size, n)| {
                assert!(size % 4096 == 0 && size > 0, "buffers are multiples of 4096 bytes");
                Class { size, total: n, free: RefCell::new(Vec::with_capacity(n)) }
            })
            .collect();
        let shares = Shares::new(config.classes.iter().map(|c| c.1));
        let inner = Rc::new(PoolInner { classes, shares, all: RefCell::default(), arena });
        let mut all = Vec::new();
        let mut at = 0;
        for (c, class) in inner.classes.iter().enumerate() {
            for _ in 0..class.total {
                // SAFETY: `at` stays below the arena's length, which is the sum of all classes.
                let ptr = unsafe { base.add(at) };
                at += class.size;
                all.push(Rc::new_cyclic(|me| BufInner {
                    ptr,
                    class: c as u32,
                    holder: RefCell::new(None),
                    me: me.clone(),
                }));
            }
            // Last in, first out: the first buffers are the ones that stay in the caches.
            let n = class.total;
            class.free.borrow_mut().extend(all[all.len() - n..].iter().rev().cloned());
        }
        *inner.all.borrow_mut() = all;
        let account = inner.shares.house();
        let house = Share(Rc::new(Taker { pool: inner.clone(), account }));
        Ok(BufPool { inner, house })
    }

    /// The share of another channel of the host of this name.
    ///
    /// # Panics
    /// When the name is empty.
    pub fn share(&self, host: &str) -> Share {
        let account = self.inner.shares.account(host);
        Share(Rc::new(Taker { pool: self.inner.clone(), account }))
    }

    /// What is taken for no host.
    #[cfg(test)]
    pub(crate) fn house(&self) -> Share {
        self.house.clone()
    }

    /// Largest buffer there is, in bytes.
    pub fn max_len(&self) -> usize {
        self.inner.max_len()
    }

    /// A buffer for no host, as by [`Share::try_alloc`]; none of those that are kept for hosts.
    ///
    /// # Panics
    /// When `len` is over [`max_len`](BufPool::max_len).
    #[inline]
    pub fn try_alloc(&self, len: usize) -> Option<Slice> {
        self.house.try_alloc(len)
    }

    /// Waits for a buffer for no host, as by [`Share::alloc`].
    ///
    /// # Panics
    /// When `len` is over [`max_len`](BufPool::max_len).
    pub async fn alloc(&self, len: usize) -> Slice {
        self.house.alloc(len).await
    }

    /// The memory behind all buffers, for registration with a ring or a fabric.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.inner.arena.base(), self.inner.arena.len())
    }

    /// What is lent out and who waits.
    pub fn census(&self) -> Vec<Census> {
        let of = |(i, c): (usize, &Class)| Census {
            size: c.size,
            total: c.total,
            free: c.free.borrow().len(),
            waiting: self.inner.shares.waiting(i),
        };
        self.inner.classes.iter().enumerate().map(of).collect()
    }

    /// True when no buffer is lent out.
    pub fn is_whole(&self) -> bool {
        self.census().iter().all(|c| c.free == c.total)
    }
}

impl Share {
    #[expect(clippy::expect_used, reason = "an invariant: as many may be taken as are free")]
    fn lend(&self, class: usize, len: usize) -> Slice {
        let c = &self.0.pool.classes[class];
        let buf = c.free.borrow_mut().pop().expect("one was taken for this");
        *buf.holder.borrow_mut() = Some(self.0.clone());
        let ptr = buf.ptr;
        Slice::of_buf(buf, ptr, len as u32)
    }

    /// A buffer of at least `len` bytes (narrowed to `len`) if one may be taken: of the smallest fitting size,
    /// else of a larger one. The content is whatever was there.
    ///
    /// # Panics
    /// When `len` is over [`max_len`](Share::max_len).
    #[inline]
    pub fn try_alloc(&self, len: usize) -> Option<Slice> {
        let pool = &self.0.pool;
        let first = pool.class(len);
        (first..pool.classes.len()).find(|&i| self.0.account.try_one(i)).map(|i| self.lend(i, len))
    }

    /// Waits for a buffer of at least `len` bytes: first come first served among those of its channel, while channels of
    /// a host take turns, and hosts.
    ///
    /// # Panics
    /// When `len` is over [`max_len`](Share::max_len).
    pub async fn alloc(&self, len: usize) -> Slice {
        if let Some(s) = self.try_alloc(len) {
            return s;
        }
        let class = self.0.pool.class(len);
        self.0.account.one(class).await;
        self.lend(class, len)
    }

    /// How much of `len` bytes, which may go in pieces, to move in one step. That is all of it, unless every buffer of
    /// that size is with others: then as much as there may be buffers for, so that nobody waits for hosts that stand still.
    ///
    /// # Panics
    /// When `len` is over [`max_len`](Share::max_len).
    #[inline]
    pub fn piece(&self, len: usize) -> usize {
        let class = self.0.pool.class(len);
        if self.0.account.is_without(class) { self.smaller(len, class) } else { len }
    }

    #[cold]
    fn smaller(&self, len: usize, class: usize) -> usize {
        let pool = &self.0.pool;
        // One that may be had now: those of other sizes are not waited for.
        if (class + 1..pool.classes.len()).any(|i| self.0.account.can_take(i)) {
            return len;
        }
        let fits = (0..class).rev().find(|i| !self.0.account.is_without(*i));
        fits.map_or(len, |i| pool.classes[i].size)
    }

    /// Largest buffer there is, in bytes.
    pub fn max_len(&self) -> usize {
        self.0.pool.max_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufPool {
        BufPool::new(&PoolConfig { classes: vec![(4096, 2), (8192, 1)] }).unwrap()
    }

    #[test]
    fn lends_the_smallest_that_fits_and_gets_it_back_with_the_last_reference() {
        let p = pool();
        let a = p.try_alloc(512).unwrap();
        let b = a.sub(100, 10);
        assert_eq!((a.len(), b.len()), (512, 10));
        drop(a);
        assert_eq!(p.census()[0].free, 1, "a part of the buffer is still referred to");
        drop(b);
        assert!(p.is_whole());
        let all: Vec<_> = (0..3).map(|_| p.try_alloc(1).unwrap()).collect();
        assert!(p.try_alloc(1).is_none());
        drop(all);
        assert!(p.is_whole());
    }

    #[test]
    fn a_lent_buffer_outlives_its_pool() {
        let p = pool();
        let a = p.try_alloc(4096).unwrap();
        a.write_at(0, b"weir");
        drop(p);
        let mut v = [0; 4];
        a.read_at(0, &mut v);
        assert_eq!(&v, b"weir");
    }

    #[test]
    fn who_has_a_larger_one_waits_for_nobody_all_the_same() {
        let classes = vec![(4096, 8), (64 << 10, 2), (1 << 20, 1)];
        let p = BufPool::new(&PoolConfig { classes }).unwrap();
        let [a, b, me] = ["a", "b", "me"].map(|h| p.share(h));
        let large = me.try_alloc(1 << 20).unwrap();
        let standing = [&a, &b].map(|h| h.try_alloc(64 << 10).unwrap());
        // Its own large one does not help: a buffer of 64 KiB is waited for among those of its size only.
        assert!(me.try_alloc(64 << 10).is_none());
        assert_eq!(me.piece(64 << 10), 4096);
        drop(large);
        assert_eq!(me.piece(64 << 10), 64 << 10, "a larger one may be had");
        drop(standing);
        assert_eq!(me.piece(64 << 10), 64 << 10);
    }

    #[test]
    #[should_panic(expected = "outside a slice")]
    fn parts_stay_inside() {
        Slice::heap(10).sub(8, 3);
    }
}
