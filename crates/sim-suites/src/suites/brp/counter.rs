//! A counter in a block of a volume, which hosts raise by COMPARE AND WRITE: it shows every one that was done twice
//! or not at all.

use crate::Wrong;
use crate::srp::Fault;
use crate::suites::scene::{BLOCK, LEN};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_block::Volume;
use weir_initiator_brp::{Disk, Error, Status};
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_sim::{Node, World};

/// Where it is: in the last block.
const AT: u64 = LEN - BLOCK as u64;

/// What hosts were told of a volume's counter.
#[derive(Default)]
pub(super) struct Counter {
    /// Raised, and acknowledged.
    pub(super) raised: Cell<u64>,
    /// The target that knows is gone, or the host.
    in_doubt: Cell<u64>,
}

/// A compare and write that counts as in doubt until its end is known.
struct Doubt<'a>(&'a Counter, bool);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.1 {
            bump(&self.0.in_doubt);
        }
    }
}

fn bump(c: &Cell<u64>) {
    c.set(c.get() + 1);
}

fn block(n: u64) -> Vec<u8> {
    let mut b = vec![0; BLOCK];
    if n > 0 {
        b[..8].copy_from_slice(&n.to_le_bytes());
        b[504..].copy_from_slice(&(!n).to_le_bytes());
    }
    b
}

fn value(b: &[u8]) -> Result<u64, String> {
    let n = b[..8].iter().rev().fold(0u64, |n, x| n << 8 | u64::from(*x));
    if b == block(n) { Ok(n) } else { Err(format!("the counter's block is no counter's: {n}")) }
}

impl Counter {
    /// Raises the counter by one. With `torn`, its block may be read half written.
    pub(super) async fn raise(&self, disk: &Disk, torn: bool, fault: &Fault, rng: &mut Prng) {
        let buf = Slice::heap(BLOCK).sub(0, BLOCK);
        for _ in 0..50 {
            match disk.read(AT, buf.clone()).await {
                Ok(()) => {}
                Err(Error::Status(Status::Medium)) => continue,
                Err(_) => return,
            }
            let n = match value(&buf.to_vec()) {
                Ok(n) => n,
                Err(_) if torn => continue,
                Err(e) => return fault.set(e),
            };
            let both = [block(n), block(n + 1)].concat();
            let mut doubt = Doubt(self, true);
            let r = disk.compare_and_write(AT, Slice::copy_of(&both).sub(0, 2 * BLOCK)).await;
            match r {
                Ok(()) => {
                    doubt.1 = false;
                    return bump(&self.raised);
                }
                Err(Error::Miscompare(_)) => doubt.1 = false,
                // It may have been done or not.
                Err(
                    Error::InDoubt
                    | Error::Replaced
                    | Error::PathDown
                    | Error::TimedOut
                    | Error::Status(Status::Medium),
                ) => return,
                Err(e) => return fault.set(format!("a compare and write failed: {e}")),
            }
            drop(doubt);
            sleep(rng.below(MILLIS)).await;
        }
    }

    /// Everything acknowledged was done once; what is in doubt was done at most once.
    pub(super) fn judge(
        &self,
        w: &World,
        node: &Node,
        volume: Rc<dyn Volume>,
    ) -> Result<(), Wrong> {
        let read = w.run(node, 10 * SECONDS, async move {
            let buf = Slice::heap(BLOCK).sub(0, BLOCK);
            for _ in 0..20 {
                if volume.read(AT, buf.clone()).await.is_ok() {
                    break;
                }
            }
            buf.to_vec()
        })?;
        let (value, raised, doubt) = (value(&read)?, self.raised.get(), self.in_doubt.get());
        if value < raised || value > raised + doubt {
            return Err(Wrong(format!(
                "a counter is {value} after {raised} acknowledged and {doubt} doubtful compare and writes"
            )));
        }
        Ok(())
    }
}
