//! Flushes of a device, none of which is believed before those beside it.

use super::device::Device;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use weir_base::{IoError, IoResult, Nanos};
use weir_disk::{DiskOp, status};
use weir_reactor::{Completion, CompletionFuture, WaitChannel, completion, patience};

/// Flushes of a device.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: Cell<u64>,
    /// Numbers of those that have not ended.
    open: RefCell<Vec<u64>>,
    /// One failed: nobody is told otherwise any more, until the device is brought back.
    failed: Cell<Option<IoError>>,
    /// How often it was.
    lives: Cell<u32>,
    ended: WaitChannel,
}

impl Flushes {
    /// The device is brought back: what it lost is known.
    pub(crate) fn forget(&self) {
        self.failed.set(None);
        self.lives.set(self.lives.get() + 1);
    }

    fn begin(&self) -> Open<'_> {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        self.open.borrow_mut().push(number);
        Open(self, number)
    }

    /// Waits until all that have begun so far have ended.
    async fn those_beside(&self) {
        let last = self.begun.get();
        while self.open.borrow().iter().any(|n| *n <= last) {
            self.ended.wait().await;
        }
    }
}

/// A flush is under way.
struct Open<'a>(&'a Flushes, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.borrow_mut().retain(|n| *n != self.1);
        self.0.ended.signal_all();
    }
}

/// A flush that a device was asked for.
struct Asked<'a> {
    device: &'a Device,
    life: u32,
    /// `None`: it has ended.
    done: Option<CompletionFuture>,
}

impl Asked<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        let Some(done) = &mut self.done else { return Poll::Pending };
        let ended = Pin::new(done).poll(cx);
        if ended.is_ready() {
            self.done = None;
        }
        ended
    }

    fn failed(&self, e: IoError) {
        let f = &self.device.flushes;
        if f.lives.get() == self.life && f.failed.get().is_none() {
            f.failed.set(Some(e));
        }
    }
}

impl Drop for Asked<'_> {
    /// What it would have told is told to nobody: that is as if it had failed.
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            self.device.late.borrow_mut().push(done);
            self.failed(IoError::Offline);
        }
    }
}

impl Device {
    /// Makes durable what was written before.
    ///
    /// A device tells the failure of a flush only once, and loses by it what others were to flush: of two at a time one
    /// may be told that all is well. So one that ended well waits for all that had begun by then, and none ends well
    /// after one that failed.
    pub(crate) async fn flush(&self, limit: Nanos) -> IoResult {
        let Some(disk) = self.disk.as_ref().filter(|_| self.failed.get().is_none()) else {
            return Err(IoError::Offline);
        };
        if !disk.volatile_cache() {
            return Ok(());
        }
        let f = &self.flushes;
        if f.failed.get().is_none() {
            let open = f.begin();
            let (token, done) = completion();
            disk.submit(DiskOp::Flush, token);
            let mut asked = Asked { device: self, life: f.lives.get(), done: Some(done) };
            let result = match patience(limit, poll_fn(|cx| asked.poll(cx))).await {
                Ok(c) => status(c),
                Err(_) => Err(IoError::Offline),
            };
            if let Err(e) = result {
                asked.failed(e);
            }
            drop((asked, open));
            result?;
            f.those_beside().await;
        }
        f.failed.get().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::label::Layout;
    use crate::format::superblock::{Member, MemberState};
    use std::cell::RefCell;
    use std::rc::Rc;
    use weir_base::{MILLIS, SECONDS};
    use weir_disk::{Disk, report};
    use weir_reactor::{Token, complete, sleep, spawn};
    use weir_sim::World;

    /// Flushes end when they are told to.
    #[derive(Default)]
    struct Fake {
        begun: RefCell<Vec<Token>>,
    }

    impl Fake {
        fn end(&self, n: usize, result: IoResult) {
            complete(self.begun.borrow()[n], report(result));
        }

        fn count(&self) -> usize {
            self.begun.borrow().len()
        }
    }

    impl Disk for Fake {
        fn len(&self) -> u64 {
            1 << 30
        }
        fn block_size(&self) -> u32 {
            4096
        }
        fn volatile_cache(&self) -> bool {
            true
        }
        fn name(&self) -> &str {
            "fake"
        }
        fn submit(&self, op: DiskOp, token: Token) {
            assert!(matches!(op, DiskOp::Flush));
            self.begun.borrow_mut().push(token);
        }
    }

    fn device(disk: &Rc<Fake>) -> Rc<Device> {
        let layout = Layout::plan(1 << 18, 10, 64, 8, 8).unwrap();
        let member = Member {
            device: 1,
            state: MemberState::InSync,
            draining: false,
            leaving: false,
            written_off: false,
            since: 0,
            blocks: layout.blocks,
            spares_used: 0,
            domain: 0,
        };
        Device::new(0, &member, layout, Some(disk.clone()))
    }

    fn sim<F: Future<Output = ()> + 'static>(f: F) {
        let w = World::new(1);
        let n = w.node("n");
        w.run(&n, 100 * SECONDS, f).unwrap();
    }

    #[test]
    fn one_that_ended_well_waits_for_those_beside_it() {
        sim(async {
            let disk = Rc::new(Fake::default());
            let d = device(&disk);
            let told = Rc::new(RefCell::new(Vec::new()));
            let flush = |n: u32| {
                let (d, told) = (d.clone(), told.clone());
                spawn(async move {
                    let r = d.flush(SECONDS).await;
                    told.borrow_mut().push((n, r));
                })
            };
            flush(0);
            flush(1);
            sleep(MILLIS).await;
            assert_eq!(disk.count(), 2);
            disk.end(1, Ok(()));
            sleep(MILLIS).await;
            flush(2);
            sleep(MILLIS).await;
            assert_eq!(*told.borrow(), [], "the first has not ended");
            disk.end(0, Ok(()));
            sleep(MILLIS).await;
            assert_eq!(
                *told.borrow(),
                [(1, Ok(()))],
                "and that one ended when the third had begun"
            );
            disk.end(2, Ok(()));
            sleep(MILLIS).await;
            assert_eq!(told.borrow().len(), 3);
            assert!(told.borrow().iter().all(|(_, r)| r.is_ok()));
        });
    }

    #[test]
    fn after_one_that_failed_nobody_is_told_that_all_is_well() {
        sim(async {
            let disk = Rc::new(Fake::default());
            let d = device(&disk);
            let flush = || {
                spawn({
                    let d = d.clone();
                    async move { d.flush(SECONDS).await }
                })
            };
            let (first, second) = (flush(), flush());
            sleep(MILLIS).await;
            disk.end(1, Ok(()));
            sleep(MILLIS).await;
            disk.end(0, Err(IoError::Medium));
            let lost = Some(Err(IoError::Medium));
            assert_eq!((first.await, second.await), (lost, lost));
            assert_eq!(d.flush(SECONDS).await, Err(IoError::Medium));
            assert_eq!(disk.count(), 2);
            d.flushes.forget();
            let again = flush();
            sleep(2 * SECONDS).await;
            assert_eq!(again.await, Some(Err(IoError::Offline)), "it took too long");
            assert_eq!((d.late.borrow().len(), disk.count()), (1, 3));
            disk.end(2, Ok(()));
            assert_eq!(d.flush(SECONDS).await, Err(IoError::Offline));
        });
    }
}
