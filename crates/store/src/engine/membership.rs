//! Superblocks: written to every device that can be written, one at a time.

use super::Inner;
use super::device::{Device, Pending};
use crate::format::superblock::{MemberState, Superblock};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;

impl Inner {
    /// A device failed, and no durable superblock says so yet.
    pub(crate) fn unrecorded(&self) -> bool {
        self.recorded.get() != self.failures.get()
    }

    fn super_devices(&self) -> Vec<Rc<Device>> {
        let gets =
            |d: &Rc<Device>| d.is_written() || (d.usable() && d.state.get() == MemberState::Spare);
        self.devices.borrow().iter().filter(|d| gets(d)).cloned().collect()
    }

    /// Makes a superblock durable, and then once more under the next number: whoever lacks that state lacks two superblocks from
    /// there on, by which an old copy is told. That another device fails meanwhile is told twice as well. `change` makes it from
    /// the newest. The caller holds `super_lock`.
    pub(crate) async fn write_super(&self, change: impl Fn(&mut Superblock)) -> IoResult {
        self.write_one(change).await?;
        while !has(Bug::WrittenOnce) {
            let same = self.durable.borrow().again();
            self.write_one(|_| {}).await?;
            if *self.durable.borrow() == same || has(Bug::FailureToldOnce) {
                break;
            }
        }
        self.readmit().await;
        Ok(())
    }

    async fn write_one(&self, change: impl Fn(&mut Superblock)) -> IoResult {
        let mut last = self.durable.borrow().clone();
        loop {
            self.agree().await?;
            self.check_running()?;
            let mut next = last.again();
            next.owner_epoch = self.owner_epoch();
            change(&mut next);
            // Those of an older program do not have it.
            if let Some(d) = self.devices.borrow().first() {
                (next.table_pages, next.spares) = (d.layout.table_pages, d.layout.spares);
            }
            if !has(Bug::NoMembershipRecord) {
                next.members = self.devices.borrow().iter().map(|d| d.member()).collect();
            }
            for d in &mut next.log_set {
                *d = d.filter(|n| self.device(*n).is_some_and(|d| d.is_current()));
            }
            if next.log_set.iter().all(Option::is_none) {
                self.suspend(IoError::Offline);
                return Err(IoError::Offline);
            }
            self.begun.borrow_mut().push(next.clone());
            let told = self.failures.get();
            if has(Bug::RecordedTooSoon) {
                self.recorded.set(told);
            }
            let mut io: Vec<Pending> = Vec::new();
            for d in self.super_devices() {
                for area in 0..2 {
                    let block = next.encode(d.id, area);
                    let buf = Slice::copy_of(&block[..]);
                    self.count(|c| c.media_writes += 1);
                    d.submit_write(d.layout.superblock(u64::from(area), next.seq), &buf, &mut io);
                }
            }
            self.flush_after_always(&mut io).await;
            if self.failures.get() != told {
                // Another device failed meanwhile: what was just written calls it current.
                last = next;
                continue;
            }
            // Only now: whoever acknowledges anything must not go by a superblock that may be lost.
            self.recorded.set(told);
            self.durable.replace(next);
            self.begun.take();
            return Ok(());
        }
    }

    async fn flush_after_always(&self, io: &mut Vec<Pending>) {
        let touched: u128 = io.iter().fold(0, |m, p| m | 1 << p.device);
        let failed = super::device::wait(io, self.options.deadline).await;
        self.note_failures(failed);
        self.flush_devices(touched).await;
    }

    /// Records which devices are current, before anything is acknowledged that the others have not.
    pub(crate) async fn record_membership(&self) -> IoResult {
        let _only = self.super_lock.acquire(1).await;
        if !self.unrecorded() || has(Bug::NoMembershipRecord) {
            return self.check_running();
        }
        self.write_super(|_| {}).await
    }
}
