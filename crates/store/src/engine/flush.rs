//! Flushes of a device: one at a time.

use super::device::Device;
use std::cell::Cell;
use weir_base::{IoError, IoResult, Nanos};
use weir_disk::{DiskOp, status};
use weir_reactor::{WaitChannel, completion, patience};

/// Flushes of a device.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: Cell<u64>,
    ended: Cell<u64>,
    busy: Cell<bool>,
    /// One failed: nobody is told otherwise any more.
    failed: Cell<Option<IoError>>,
    over: WaitChannel,
}

impl Flushes {
    /// The device is brought back: what it lost is known.
    pub(crate) fn forget(&self) {
        self.failed.set(None);
    }
}

/// A flush is under way.
struct Turn<'a>(&'a Flushes);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.over.signal_all();
    }
}

impl Device {
    /// Makes durable what was written before.
    ///
    /// There is one flush of a device at a time, and whoever comes while one is under way has a part in the next. A
    /// device tells the failure of one flush only once, and loses by it what others were to flush: of two at a time one
    /// could be told that all is well.
    pub(crate) async fn flush(&self, limit: Nanos) -> IoResult {
        let f = &self.flushes;
        let mine = f.begun.get() + 1;
        while f.ended.get() < mine {
            let Some(disk) = self.disk.as_ref().filter(|_| self.failed.get().is_none()) else {
                return Err(IoError::Offline);
            };
            if !disk.volatile_cache() {
                return Ok(());
            }
            if let Some(e) = f.failed.get() {
                return Err(e);
            }
            if f.busy.replace(true) {
                f.over.wait().await;
                continue;
            }
            let _turn = Turn(f);
            f.begun.set(f.begun.get() + 1);
            let (token, mut done) = completion();
            disk.submit(DiskOp::Flush, token);
            let result = match patience(limit, &mut done).await {
                Ok(c) => status(c),
                Err(_) => {
                    self.late.borrow_mut().push(done);
                    Err(IoError::Offline)
                }
            };
            f.failed.set(result.err());
            f.ended.set(f.begun.get());
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
            since: 0,
            blocks: layout.blocks,
            spares_used: 0,
        };
        Device::new(0, &member, layout, Some(disk.clone()))
    }

    fn sim<F: Future<Output = ()> + 'static>(f: F) {
        let w = World::new(1);
        let n = w.node("n");
        w.run(&n, 100 * SECONDS, f).unwrap();
    }

    #[test]
    fn whoever_comes_meanwhile_has_a_part_in_the_next_one() {
        sim(async {
            let disk = Rc::new(Fake::default());
            let d = device(&disk);
            let flush = || {
                spawn({
                    let d = d.clone();
                    async move { d.flush(SECONDS).await }
                })
            };
            let first = flush();
            sleep(MILLIS).await;
            let others = [flush(), flush()];
            sleep(MILLIS).await;
            assert_eq!(disk.count(), 1, "one at a time");
            disk.end(0, Ok(()));
            assert_eq!(first.await, Some(Ok(())));
            sleep(MILLIS).await;
            assert_eq!(disk.count(), 2, "that one has begun too early for the others");
            let late = flush();
            disk.end(1, Ok(()));
            for o in others {
                assert_eq!(o.await, Some(Ok(())));
            }
            sleep(MILLIS).await;
            assert_eq!(disk.count(), 3);
            disk.end(2, Ok(()));
            assert_eq!(late.await, Some(Ok(())));
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
            disk.end(0, Err(IoError::Medium));
            let lost = Some(Err(IoError::Medium));
            assert_eq!((first.await, second.await), (lost, lost));
            assert_eq!(d.flush(SECONDS).await, Err(IoError::Medium));
            assert_eq!(disk.count(), 1);
            d.flushes.forget();
            let again = flush();
            sleep(2 * SECONDS).await;
            assert_eq!(again.await, Some(Err(IoError::Offline)), "it took too long");
            assert_eq!((d.late.borrow().len(), disk.count()), (1, 2));
            disk.end(1, Ok(()));
            assert_eq!(d.flush(SECONDS).await, Err(IoError::Offline));
        });
    }
}
