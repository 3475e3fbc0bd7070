//! Work that is carried out to its end, also when nobody waits for it any more.
//!
//! A future that is dropped takes its locks and pins with it, but not what it asked of a device: that write would land
//! when the place belongs to something else.

use super::Inner;
use super::owner::Ownership;
use crate::planted::{Bug, has};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_reactor::{WaitChannel, spawn};

/// Checkpoints at the end, at most, beside the first.
const MORE: u32 = 2;

/// How much of it is under way.
#[derive(Default)]
pub(crate) struct Works {
    running: Cell<u32>,
    over: WaitChannel,
    /// What was found damaged meanwhile.
    pub(super) damage: super::damage::Book,
    /// Who owns the pool.
    pub(super) owned: Rc<Ownership>,
}

impl Works {
    pub(super) fn of(owned: Ownership) -> Works {
        Works { owned: Rc::new(owned), ..Works::default() }
    }

    /// Waits until none is under way.
    pub(crate) async fn end(&self) {
        while self.running.get() > 0 {
            self.over.wait().await;
        }
    }
}

struct Running(Rc<Works>);

impl Running {
    fn new(all: &Rc<Works>) -> Running {
        all.running.set(all.running.get() + 1);
        Running(all.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.over.signal_all();
    }
}

/// The turn to change which devices there are; given back when it is dropped.
struct Turn(Rc<Inner>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.upkeep.changes.signal();
    }
}

impl Inner {
    /// Carries `work` out to its end while no device comes or goes. It counts as under way when it has that turn, since whoever
    /// closes or resumes the pool has the turn, and waits for what is under way.
    pub(crate) async fn to_the_end_alone<T: 'static>(
        self: &Rc<Self>,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        if has(Bug::TurnInTheEnd) {
            let me = self.clone();
            let alone = async move {
                let _only = me.upkeep.changes.acquire(1).await;
                work.await
            };
            return self.to_the_end(alone).await;
        }
        self.upkeep.changes.acquire(1).await.forget();
        let turn = Turn(self.clone());
        let alone = async move {
            let _turn = turn;
            work.await
        };
        self.to_the_end(alone).await
    }

    /// Carries `work` out in a task of its own. `None`: the whole reactor ends.
    pub(crate) async fn to_the_end<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let running = Running::new(&self.works);
        let task = spawn(async move {
            let result = work.await;
            drop(running);
            result
        });
        task.await
    }

    /// Whether the log has nothing beside the newest superblock.
    pub(crate) fn is_merged(&self) -> bool {
        let s = self.durable.borrow();
        s.turns.is_empty() && s.base_lsn == self.log.next_lsn.get()
    }

    /// Ends all work after a last checkpoint.
    pub(crate) async fn close(&self) -> IoResult {
        self.ckpt.closing.set(true);
        let mut result = self.checkpoint_now().await;
        // What was under way may have logged something after the cut.
        for _ in 0..MORE {
            if result.is_err() || self.is_merged() || has(Bug::TellsAtTheEnd) {
                break;
            }
            result = self.checkpoint_now().await;
        }
        self.ckpt.close();
        // A failure may have called for another one meanwhile.
        while self.ckpt.running.get() && !has(Bug::ClosedOnTheWay) {
            self.ckpt.over.wait().await;
        }
        if !has(Bug::ClosedOnTheWay) {
            let _closed = self.gate.close().await;
            self.ckpt.end();
        }
        self.log.work.signal();
        self.rest().await;
        match result {
            Err(IoError::Offline) if self.suspended.get().is_none() => Ok(()),
            result => result,
        }
    }

    /// Waits until nothing that was begun changes a device any more. Devices that failed are not waited for.
    pub(crate) async fn rest(&self) {
        self.works.end().await;
        // A record of who is current may be on its way.
        let _only = self.super_lock.acquire(1).await;
        let devices = self.devices.borrow().clone();
        for d in devices.iter().filter(|d| d.usable()) {
            d.is_quiet(self.options.deadline).await;
        }
    }
}
