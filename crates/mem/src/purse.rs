//! What one command holds of a pool: whoever holds a buffer never waits for another.
//!
//! Commands that each hold one and wait for one more can take all there are, and then none of them ever goes on. A purse
//! counts what its owner holds and refuses to wait while that is not nothing, so that the mistake shows in the first
//! test in which a pool runs short, and not only when all of them meet.

use crate::pool::Share;
use crate::slice::Slice;
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

/// Counts the buffers that one command holds. Clones are the same purse.
#[derive(Clone, Default)]
pub struct Purse(Rc<Cell<u32>>);

impl Purse {
    /// A buffer of at least `len` bytes if one is free, as by [`Share::try_alloc`].
    ///
    /// # Panics
    /// When `len` is over [`Share::max_len`].
    #[inline]
    pub fn try_take(&self, share: &Share, len: usize) -> Option<Lent> {
        Some(self.hold(share.try_alloc(len)?))
    }

    /// Waits for a buffer of at least `len` bytes, as [`Share::alloc`].
    ///
    /// # Panics
    /// When `len` is over [`Share::max_len`], and when it would have to wait while the purse holds a buffer.
    pub async fn take(&self, share: &Share, len: usize) -> Lent {
        if let Some(b) = self.try_take(share, len) {
            return b;
        }
        assert_eq!(self.0.get(), 0, "whoever holds a buffer never waits for another");
        self.hold(share.alloc(len).await)
    }

    #[inline]
    fn hold(&self, slice: Slice) -> Lent {
        self.0.set(self.0.get() + 1);
        Lent { slice, of: self.clone() }
    }

    /// Buffers held.
    pub fn held(&self) -> u32 {
        self.0.get()
    }
}

/// A buffer in a [`Purse`]. Clones and parts of the slice may live on, in a send queue say, when this is dropped: nobody
/// waits for them.
pub struct Lent {
    slice: Slice,
    of: Purse,
}

impl Lent {
    /// Keeps only its first `len` bytes.
    ///
    /// # Panics
    /// When it has fewer.
    pub fn narrow(&mut self, len: usize) {
        self.slice.narrow(0, len);
    }
}

impl Deref for Lent {
    type Target = Slice;
    #[inline]
    fn deref(&self) -> &Slice {
        &self.slice
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        self.of.0.set(self.of.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{BufPool, PoolConfig};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// What is not taken for a host may be all there is.
    fn pool(n: usize) -> Share {
        BufPool::new(&PoolConfig { classes: vec![(4096, n)] }).unwrap().house()
    }

    fn poll<F: Future>(f: F) -> bool {
        pin!(f).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn counts_what_its_owner_holds() {
        let pool = pool(2);
        let (a, b) = (Purse::default(), Purse::default());
        let one = a.try_take(&pool, 10).unwrap();
        let part = one.sub(2, 4);
        assert_eq!((a.held(), b.held(), one.len()), (1, 0, 10));
        drop(one);
        assert_eq!(a.held(), 0, "a part that somebody else has is not held");
        // Who holds one may take another that is free.
        let held = (a.try_take(&pool, 1), a.clone().held());
        assert!(held.0.is_some() && held.1 == 1 && b.try_take(&pool, 1).is_none());
        assert!(!poll(b.take(&pool, 1)), "it waits");
        drop(part);
        assert!(poll(a.take(&pool, 1)));
    }

    #[test]
    #[should_panic(expected = "never waits for another")]
    fn does_not_wait_while_it_holds() {
        let pool = pool(1);
        let p = Purse::default();
        let _held = p.try_take(&pool, 1).unwrap();
        poll(p.take(&pool, 1));
    }
}
