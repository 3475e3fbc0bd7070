//! What is kept of the whole: the summary and the index.

use super::Inner;
use super::format::{SUMMARY, Summary};
use super::index::BLOCK;
use crate::lock::Locks;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::IoResult;
use weir_reactor::{WaitChannel, run_async};

/// Where the index is kept.
const INDEX: u64 = 1 << 20;
/// Blocks of it at most.
const INDEX_BLOCKS: u64 = 1 << 16;

/// What is known of the whole.
#[derive(Default)]
pub(super) struct Account {
    /// Chunks, with what is kept beside the data if that has been read.
    pub(super) saved: Cell<i64>,
    pub(super) read: Cell<bool>,
    /// It says beside the data that counts may be too high.
    pub(super) open: Cell<bool>,
    /// They may be.
    pub(super) stale: Cell<bool>,
    pub(super) dirty: Cell<bool>,
    /// Changes of records so far.
    pub(super) changes: Cell<u64>,
    pub(super) bell: Rc<WaitChannel>,
    pub(super) count_bell: Rc<WaitChannel>,
    /// Whoever reads or writes the summary.
    pub(super) one: Rc<Locks>,
    pub(super) giving: Cell<bool>,
    pub(super) room: WaitChannel,
    /// Times that everything known was forgotten.
    pub(super) epoch: Cell<u64>,
    /// How far a recount has come, in thousandths.
    pub(super) counted: Cell<Option<u32>>,
    /// A recount has ended, and whether it came to its end.
    pub(super) ended: WaitChannel,
    pub(super) success: Cell<bool>,
    /// The volume is used by nobody any more.
    pub(super) closed: Cell<bool>,
}

impl Account {
    pub(super) fn ring(&self) {
        if !self.dirty.replace(true) {
            self.bell.signal();
        }
    }

    /// Something was changed of which it is not known whether it was: a count may be too high.
    pub(super) fn has_leaked(&self) {
        if !self.stale.replace(true) {
            self.count_bell.signal();
        }
    }

    pub(super) fn has_counted(&self, saved: i64) {
        self.saved.set(saved);
        self.ring();
    }

    pub(super) fn is_clean(&self) -> bool {
        self.read.get() && !self.open.get() && !self.stale.get()
    }
}

impl Inner {
    /// Says beside the data that counts are being changed, if that is not said.
    pub(super) async fn open_up(&self) -> IoResult {
        let a = &self.account;
        if a.open.get() {
            return Ok(());
        }
        let _one = a.one.lock(0, 1, false).await;
        if !a.read.get() {
            self.read_summary().await?;
        }
        if !a.open.get() {
            self.write_summary(true).await?;
            a.open.set(true);
        }
        a.ring();
        Ok(())
    }

    /// Says that counts are right, if they are.
    pub(super) async fn close_up(&self) -> IoResult {
        let a = &self.account;
        let _one = a.one.lock(0, 1, false).await;
        let busy = self.committing.get() > 0
            || !self.owed.borrow().is_empty()
            || !self.left.borrow().is_empty()
            || a.giving.get();
        if busy || !a.open.get() || a.stale.get() || a.counted.get().is_some() {
            return Ok(());
        }
        // Whoever changes something from now on says so first.
        a.open.set(false);
        self.barrier().await?;
        self.write_summary(false).await
    }

    pub(super) async fn keep_summary(&self) -> IoResult {
        let a = &self.account;
        let _one = a.one.lock(0, 1, false).await;
        if !a.read.get() {
            return self.read_summary().await;
        }
        if self.lower.geometry().read_only {
            Ok(())
        } else {
            self.write_summary(a.open.get()).await
        }
    }

    async fn read_summary(&self) -> IoResult {
        let a = &self.account;
        let block = self.meta_memory().await?;
        self.lower.read(0, block.clone()).await?;
        let mut b = [0; SUMMARY];
        block.read_at(0, &mut b);
        let found = Summary::decode(&b, self.layout.shift);
        // What is damaged says nothing.
        let s = found.unwrap_or(Summary { open: true, saved: 0 });
        a.saved.set(a.saved.get() + s.saved);
        a.read.set(true);
        if s.open {
            a.open.set(true);
            if !self.lower.geometry().read_only {
                a.has_leaked();
            }
        }
        Ok(())
    }

    async fn write_summary(&self, open: bool) -> IoResult {
        let block = self.meta_memory().await?;
        block.fill(0);
        let s = Summary { open, saved: self.account.saved.get() };
        block.write_at(0, &s.encode(self.layout.shift));
        self.lower.write(0, block, true).await
    }

    pub(super) async fn load_index(&self) -> IoResult {
        let mut b = [0; BLOCK];
        let (mut n, mut all) = (0, INDEX_BLOCKS);
        while n < all {
            let block = self.meta_memory().await?;
            self.lower.read(INDEX + n * BLOCK as u64, block.clone()).await?;
            block.read_at(0, &mut b);
            let found = self.index.borrow_mut().take_in(&b);
            match found {
                Some(blocks) => all = blocks.min(INDEX_BLOCKS),
                // One may be damaged; if the first is there is none.
                None if n == 0 => break,
                None => {}
            }
            n += 1;
            run_async().await;
        }
        self.index.borrow_mut().take_changes();
        Ok(())
    }

    pub(super) async fn keep_index(&self) -> IoResult {
        if self.lower.geometry().read_only {
            return Ok(());
        }
        let (changes, blocks) = {
            let mut index = self.index.borrow_mut();
            (index.take_changes(), index.blocks().min(INDEX_BLOCKS))
        };
        let mut b = [0; BLOCK];
        for n in 0..blocks {
            let block = self.meta_memory().await?;
            self.index.borrow().keep(n, &mut b);
            block.write_at(0, &b);
            let done = self.lower.write(INDEX + n * BLOCK as u64, block, false).await;
            if done.is_err() {
                self.index.borrow_mut().add_changes(changes);
                return done;
            }
            run_async().await;
        }
        Ok(())
    }
}
