//! A pool is closed while everything else goes on: it comes to an end, and nothing changes a device afterwards. And who overwrites
//! what was freed, since that is in no map.

use super::beside::Beside;
use super::director::is_low;
use super::pool::{PATIENCE, Story};
use super::trouble::Trouble;
use crate::Wrong;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};
use weir_sim::SimMedium;
use weir_store::{Pool, StoreError};

/// The volume of which blocks are overwritten when they are free.
pub(crate) const SHREDDED: &str = "shredded";

fn content(m: &SimMedium) -> Vec<u8> {
    let mut all = vec![0; m.len() as usize];
    m.peek(0, &mut all);
    all
}

impl Story {
    /// Whether only what the pool does changes a device, and nothing that was given up may.
    fn is_quiet(&self) -> bool {
        !matches!(
            self.trouble,
            Trouble::Latent | Trouble::BothCopies | Trouble::Lies | Trouble::Stall | Trouble::Away
        )
    }

    /// Closes the pool beside everything else.
    pub(crate) fn close_beside(&mut self) -> Result<(), Wrong> {
        let pool = self.running()?;
        self.director.verdict.closing(true);
        self.steward.verdict.closing(true);
        self.errors.ill.closing(true);
        let before = pool.status().suspended;
        let p = pool.clone();
        let closed = self.w.run(&self.node, PATIENCE, async move { p.close().await })?;
        let ill = before.or(pool.status().suspended).is_some();
        if let Err(e) = closed
            && !ill
            && self.trouble != Trouble::Full
        {
            return Err(Wrong(format!("closing beside I/O in a story of {:?}: {e}", self.trouble)));
        }
        let (closed, mut looked_at) = self.beside.closed.get();
        if self.is_quiet() {
            looked_at += 1;
            let were: Vec<_> = self.media.iter().map(content).collect();
            let time = self.rng.between(MILLIS, 30 * MILLIS);
            self.w.run_for(time);
            for (m, was) in self.media.iter().zip(were) {
                let now = content(m);
                let differs = |at: &usize| was[*at..at + 4096] != now[*at..at + 4096];
                if let Some(at) = (0..now.len()).step_by(4096).find(differs) {
                    let block = at / 4096;
                    let text =
                        format!("block {block} of {} changed when the pool was closed", m.name());
                    return Err(Wrong(text));
                }
            }
        }
        self.beside.closed.set((closed + 1, looked_at));
        Ok(())
    }

    /// Sets off who overwrites what was freed, in some lives.
    pub(super) fn start_shredding(&mut self, pool: &Pool) {
        let mut rng = self.rng.fork();
        if self.trouble != Trouble::Full && rng.chance(1, 2) {
            self.node.spawn(self.beside.clone().shredding(pool.clone(), rng));
        }
    }
}

/// Writes some blocks, writes them again, and overwrites what they were, as far as somebody waits for it.
async fn shred(pool: &Pool, v: &dyn Volume, id: u32, rng: &mut Prng) -> Result<bool, StoreError> {
    let (at, len) = (rng.below(64) * 4096, rng.between(1, 24) * 4096);
    let buf = Slice::heap(len as usize);
    buf.fill(rng.below(256) as u8 | 1);
    v.write(at, buf.clone(), false).await?;
    let places = pool.volume(id)?.places(at, len).await?;
    v.write(at, buf, false).await?;
    let p = pool.clone();
    let mut work = spawn(async move { p.shred(&places).await });
    let patience = match rng.chance(1, 2) {
        true => rng.between(20 * MICROS, 2 * MILLIS),
        false => 1000 * MILLIS,
    };
    match timeout(patience, &mut work).await {
        Ok(Some(done)) => done.map(|()| true),
        _ => {
            work.cancel();
            Ok(false)
        }
    }
}

impl Beside {
    async fn shredding(self: Rc<Self>, pool: Pool, mut rng: Prng) {
        let Some(id) = pool.find(SHREDDED) else { return };
        let Ok(v) = pool.volume(id) else { return };
        loop {
            sleep(rng.below(3 * MILLIS)).await;
            if is_low(&pool) {
                continue;
            }
            let (done, given_up) = self.shredded.get();
            match shred(&pool, &*v, id, &mut rng).await {
                Ok(true) => self.shredded.set((done + 1, given_up)),
                Ok(false) => self.shredded.set((done, given_up + 1)),
                // A pool that is suspended may go on.
                Err(_) => sleep(MILLIS).await,
            }
        }
    }
}
