//! Planted bugs, each of a kind that only some orders of events show. A runner or a simulator that lets
//! them pass is no proof of anything else.

use super::disk;
use crate::{Pass, Run, Wrong};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MICROS, SECONDS};
use weir_fabric::{Params, Provider, SendFlags};
use weir_mem::Slice;
use weir_reactor::{Token, completion, run_async, sleep};
use weir_sim::{DiskConfig, Options};

/// A send buffer is used again before its request is complete.
fn early_reuse(run: &Run) -> Result<Pass, Wrong> {
    let w = run.world(Options::default());
    let (a, b) = (w.node("a"), w.node("b"));
    let (pa, pb, addr) = (a.provider(), b.provider(), b.addr(1));
    let params = |p: &dyn Provider| {
        let recv_queue = p.recv_queue(4, 64).map_err(|e| Wrong(e.to_string()))?;
        Ok::<_, Wrong>(Params { private_data: vec![], recv_queue, reads_out: 1, reads_in: 1 })
    };
    let received = b.spawn(async move {
        let listener = pb.listen("0.0.0.0:1").map_err(|e| Wrong(e.to_string()))?;
        let incoming = listener.next().await.map_err(|e| Wrong(e.to_string()))?;
        let p = params(&*pb)?;
        let (buf, queue) = (Slice::heap(64), p.recv_queue.clone());
        let (token, done) = completion();
        queue.post(buf.clone(), token);
        let _conn = incoming.accept(&*pb, p).await.map_err(|e| Wrong(e.to_string()))?;
        done.await;
        let bytes = buf.to_vec();
        match bytes[0] == bytes[63] && bytes[0] == 1 {
            true => Ok(()),
            false => Err(Wrong(format!("received {bytes:?}, sent 64 times 1"))),
        }
    });
    a.spawn(async move {
        let p = params(&*pa)?;
        let (conn, _) = pa.connect(&addr, p).await.map_err(|e| Wrong(e.to_string()))?;
        let buf = Slice::heap(64);
        buf.fill(1);
        conn.send_slots().wait().await;
        conn.send(&[], Some(buf.clone()), SendFlags::default(), Token::NONE);
        // Here the completion should be waited for.
        sleep(MICROS).await;
        buf.fill(2);
        sleep(SECONDS).await;
        Ok::<_, Wrong>(())
    });
    w.run_until(10 * SECONDS, || received.is_finished())?;
    let verdict = w.run(&b, SECONDS, received)?;
    verdict.unwrap_or_else(|| Err(Wrong("the receiver was dropped".to_string())))?;
    Ok(Pass { trace: w.trace_hash(), ..Pass::default() })
}

/// Writes are reported as durable before the flush.
fn early_ack(run: &Run) -> Result<Pass, Wrong> {
    let (w, _) = disk::lives(run, DiskConfig::default(), true)?;
    Ok(Pass { trace: w.trace_hash(), ..Pass::default() })
}

/// Check and act with an await between, without a mutex.
fn lost_update(run: &Run) -> Result<Pass, Wrong> {
    const TASKS: u32 = 4;
    let w = run.world(Options::default());
    let n = w.node("n");
    let (count, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let mut rng = w.rng(1);
    for _ in 0..TASKS {
        let (count, ended, at) = (count.clone(), ended.clone(), rng.below(20 * MICROS));
        n.spawn(async move {
            sleep(at).await;
            let seen = count.get();
            run_async().await;
            count.set(seen + 1);
            ended.set(ended.get() + 1);
        });
    }
    w.run_until(SECONDS, || ended.get() == TASKS)?;
    match count.get() {
        TASKS => Ok(Pass { trace: w.trace_hash(), ..Pass::default() }),
        less => Err(Wrong(format!("{TASKS} tasks counted to {less}"))),
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    match run.seed % 3 {
        0 => early_reuse(run).map_err(|w| Wrong(format!("early reuse: {}", w.0))),
        1 => early_ack(run).map_err(|w| Wrong(format!("early ack: {}", w.0))),
        _ => lost_update(run).map_err(|w| Wrong(format!("lost update: {}", w.0))),
    }
}
