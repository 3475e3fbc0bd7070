//! What happens beside I/O: giving areas back, and keeping the account.

use super::form::BLOCK;
use super::{Figures, Inner};
use crate::sum::own_sum;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use weir_base::{IoResult, MILLIS, Nanos, SECONDS};
use weir_block::{IoFuture, join_parts};
use weir_reactor::{WaitChannel, sleep, spawn_task};

/// Chunks that wait for their other areas to be given back, at most.
pub(super) const QUEUE: usize = 1024;
/// How long they wait: what is written again and again uses its two areas in turn, and gives back nothing.
const LATER: Nanos = 10 * MILLIS;
/// How often the account is written.
const EVERY: Nanos = SECONDS;
const MAGIC: &[u8; 8] = b"WRcount\x02";

/// What compression saves, in blocks.
#[derive(Default)]
pub(super) struct Account {
    /// With what is kept beside the data, if that has been read.
    saved: Cell<i64>,
    read: Cell<bool>,
    guessed: Cell<bool>,
    dirty: Cell<bool>,
    bell: Rc<WaitChannel>,
}

impl Account {
    pub(super) fn add(&self, blocks: i64) {
        if blocks != 0 {
            self.saved.set(self.saved.get() + blocks);
            self.ring();
        }
    }

    fn ring(&self) {
        if !self.dirty.replace(true) {
            self.bell.signal();
        }
    }

    pub(super) fn is_any(&self) -> bool {
        !self.read.get() || self.saved.get() != 0
    }

    /// Of `all` chunks so many were discarded without looking at them.
    pub(super) fn wiped(&self, chunks: u64, all: u64) {
        let left = all.saturating_sub(chunks);
        let saved = self.saved.get().max(0);
        if self.read.get() && (left == 0 || saved == 0) {
            self.saved.set(0);
            self.guessed.set(false);
        } else {
            let share = i128::from(saved) * i128::from(left) / i128::from(all.max(1));
            self.saved.set(share as i64);
            self.guessed.set(true);
        }
        self.ring();
    }

    /// What is kept beside the data has to be read again.
    pub(super) fn forget(&self) {
        self.saved.set(0);
        self.guessed.set(false);
        self.read.set(false);
        self.ring();
    }

    pub(super) fn figures(&self) -> Option<Figures> {
        let saved = self.saved.get().max(0) as u64 * BLOCK as u64;
        self.read.get().then_some(Figures { saved, exact: !self.guessed.get() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The tasks see that it is gone.
        self.give.signal();
        self.account.bell.signal();
    }
}

/// Begins what happens beside I/O.
pub(super) fn begin(inner: &Rc<Inner>) {
    let (me, bell) = (Rc::downgrade(inner), inner.give.clone());
    spawn_task(giving(me, bell));
    let (me, bell) = (Rc::downgrade(inner), inner.account.bell.clone());
    inner.account.ring();
    spawn_task(accounting(me, bell));
}

async fn giving(me: Weak<Inner>, bell: Rc<WaitChannel>) {
    let batch = RefCell::new(Vec::with_capacity(QUEUE));
    loop {
        bell.wait().await;
        sleep(LATER).await;
        let Some(inner) = me.upgrade() else { return };
        while bell.try_wait() {}
        batch.borrow_mut().extend(inner.stale.borrow_mut().drain(..));
        let n = batch.borrow().len();
        let each = |i: usize| {
            let chunk = batch.borrow()[i];
            IoFuture::new(inner.give_back(chunk))
        };
        // What fails stays where it is until the chunk is changed again.
        let _ = join_parts(n, each).await;
        batch.borrow_mut().clear();
    }
}

async fn accounting(me: Weak<Inner>, bell: Rc<WaitChannel>) {
    loop {
        bell.wait().await;
        {
            let Some(inner) = me.upgrade() else { return };
            inner.account.dirty.set(false);
            // What could not be read is tried again; what could not be written is, with the next change.
            if inner.keep_account().await.is_err() && !inner.account.read.get() {
                inner.account.ring();
            }
        }
        sleep(EVERY).await;
    }
}

impl Inner {
    /// The chunk's other areas are given back in a while. False: too many wait already.
    pub(super) fn give_back_soon(&self, chunk: u64) -> bool {
        let mut stale = self.stale.borrow_mut();
        if stale.len() >= QUEUE {
            return false;
        }
        stale.push_back(chunk);
        if self.give.count() == 0 {
            self.give.signal();
        }
        true
    }

    async fn give_back(&self, chunk: u64) -> IoResult {
        let _alone = self.locks.lock(chunk, chunk + 1, false).await;
        if chunk << self.shift >= self.geometry().len {
            return Ok(());
        }
        let known = self.states.get(chunk);
        if known.is_some_and(|s| !s.stale) {
            return Ok(());
        }
        let state = match known {
            Some(s) => s,
            None => self.state_of(chunk, false).await?.0,
        };
        self.give_back_others(chunk, state).await
    }

    /// Reads the account if that has not been done, else writes it.
    async fn keep_account(&self) -> IoResult {
        let a = &self.account;
        // Beyond all chunks, but not beyond whoever holds the layer.
        let _alone = self.locks.lock(u64::MAX - 1, u64::MAX, false).await;
        let block = self.memory(BLOCK).await?;
        let mut b = [0; 32];
        if !a.read.get() {
            self.lower.read(0, block.clone()).await?;
            let had = a.saved.get();
            block.read_at(0, &mut b);
            let sum = u32::from_le_bytes([b[28], b[29], b[30], b[31]]);
            if b[..8] == *MAGIC && sum == own_sum(&b[..28]) {
                let saved: [u8; 8] = std::array::from_fn(|i| b[8 + i]);
                a.saved.set(a.saved.get().saturating_add(i64::from_le_bytes(saved)));
                a.guessed.set(b[16] != 0 || a.guessed.get());
            } else if b != [0; 32] {
                a.guessed.set(true);
            }
            a.read.set(true);
            if had != 0 {
                a.ring();
            }
            return Ok(());
        }
        if self.lower.geometry().read_only {
            return Ok(());
        }
        b[..8].copy_from_slice(MAGIC);
        b[8..16].copy_from_slice(&a.saved.get().to_le_bytes());
        b[16] = u8::from(a.guessed.get());
        let sum = own_sum(&b[..28]).to_le_bytes();
        b[28..].copy_from_slice(&sum);
        block.fill(0);
        block.write_at(0, &b);
        self.lower.write(0, block, false).await
    }
}
