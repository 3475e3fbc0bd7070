//! COMPARE AND WRITE against plain writes on two cores that really run at the same time.

use crate::common::{BLOCK, Data, attach, does_nothing, shared_unit, volume_geometry};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_block::{Geometry, IoFuture, Volume};
use weir_mem::Slice;
use weir_proto_scsi::initiator::{self as build, Cdb};
use weir_proto_scsi::lun::Lun;
use weir_reactor::{LocalFuture, PollMode, Reactor, run_async};
use weir_target_core::UnitShared;
use weir_uring::Ring;

/// One block, of which only the first eight bytes are kept.
struct Word(Arc<AtomicU64>);

impl Volume for Word {
    fn lost(&self) -> u64 {
        0
    }
    fn geometry(&self) -> Geometry {
        Geometry { granularity: 512, ..volume_geometry(1) }
    }
    does_nothing!(flush, discard, write_zeroes);
    fn read(&self, _at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            buf.fill(0);
            buf.write_at(0, &self.0.load(Ordering::SeqCst).to_le_bytes());
            // Some time for others between this and what follows.
            run_async().await;
            Ok(())
        })
    }
    fn write(&self, _at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let mut b = [0; 8];
        buf.read_at(0, &mut b);
        self.0.store(u64::from_le_bytes(b), Ordering::SeqCst);
        IoFuture::ready(Ok(()))
    }
}

/// Data of a command: each block begins with a number, the rest of it is zero.
fn blocks(numbers: &[u64]) -> Data {
    let mut bytes = vec![0; numbers.len() * BLOCK];
    for (b, n) in bytes.chunks_exact_mut(BLOCK).zip(numbers) {
        b[..8].copy_from_slice(&n.to_le_bytes());
    }
    Data::given(bytes, 0)
}

/// Sends a command with its data; gives the status.
type Send = Rc<dyn Fn(Cdb, Vec<u64>) -> LocalFuture<'static, u8>>;

/// Runs `f` on a reactor of the calling thread, which has the unit.
fn on_core<R: 'static, F: Future<Output = R> + 'static>(
    core: usize,
    shared: &Arc<UnitShared>,
    word: &Arc<AtomicU64>,
    f: impl FnOnce(Send) -> F + 'static,
) -> R {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring));
    let (shared, word) = (shared.clone(), word.clone());
    let result = reactor.block_on(PollMode::default(), async move {
        let view = Rc::new(attach(core, &shared, Rc::new(Word(word))));
        let send: Send = Rc::new(move |cdb, data| {
            let view = view.clone();
            Box::pin(async move {
                let unit = view.find(Lun::ZERO).unwrap();
                let mut pass = unit.pass();
                let o = pass.execute(&view, cdb.as_bytes(), &mut blocks(&data)).await.unwrap();
                pass.told();
                o.status
            })
        });
        // The unit attention of a new nexus.
        send(build::test_unit_ready(), Vec::new()).await;
        f(send).await
    });
    reactor.shutdown();
    result
}

#[test]
fn a_write_is_never_lost_to_a_compare_and_write_of_another_core() {
    let shared = shared_unit(1, None);
    let word = Arc::new(AtomicU64::new(0));
    let (over, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
    let comparer = {
        let (shared, word, over, begun) =
            (shared.clone(), word.clone(), over.clone(), begun.clone());
        std::thread::spawn(move || {
            on_core(1, &shared, &word.clone(), move |send| async move {
                let mut equal = 0u64;
                begun.wait();
                while !over.load(Ordering::Acquire) {
                    // Changes the lowest bit of what is there.
                    let old = word.load(Ordering::SeqCst);
                    let cdb = build::compare_and_write(0, 1, false);
                    equal += u64::from(send(cdb, vec![old, old ^ 1]).await == 0);
                    run_async().await;
                }
                equal
            })
        })
    };
    on_core(2, &shared, &word.clone(), move |send| async move {
        begun.wait();
        let (mut n, mut swaps) = (0u64, 0);
        while n < 300 || swaps < 20 {
            n += 1;
            assert_eq!(send(build::write(0, 1, false), vec![n << 1]).await, 0);
            // The other core gets its chance: its messages are looked at between turns. Now and then it is
            // waited for, however the two cores stand to each other.
            let turns = if n % 8 == 0 { 100_000 } else { n % 64 };
            for _ in 0..turns {
                if word.load(Ordering::SeqCst) & 1 == 1 {
                    break;
                }
                run_async().await;
            }
            let found = word.load(Ordering::SeqCst);
            assert_eq!(found >> 1, n, "the write was acknowledged, and is gone");
            swaps += found & 1;
        }
        over.store(true, Ordering::Release);
        // The last COMPARE AND WRITE wants this core's answer.
        while Arc::strong_count(&over) > 1 {
            weir_reactor::sleep(100_000).await;
        }
    });
    assert!(comparer.join().unwrap() >= 20);
}
