//! Who mends a block and is given up: the write that is on its way must not land in what the place holds next.

use super::closing::SHREDDED;
use super::director::is_low;
use super::pool::{PATIENCE, Story};
use super::trouble::Trouble;
use crate::Wrong;
use weir_base::{MICROS, MILLIS, Nanos, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{now, sleep, spawn};
use weir_sim::SimMedium;
use weir_store::{Pool, StoreError};

/// Bytes of what is written over until the place of a block has another one.
const ROUND: usize = 256 << 10;

impl Story {
    /// Who mends a block is given up while its write is on the way. It lands in the block that it was meant for, or never.
    pub(crate) fn give_up_mends(&mut self) -> Result<(), Wrong> {
        let pool = self.running()?;
        let both = self.spec.copies == 2 && self.missing.is_empty() && pool.status().whole;
        if !both || self.unsummed || self.trouble == Trouble::BothCopies || is_low(&pool) {
            return Ok(());
        }
        let mut rng = self.w.rng(0x3e_5709);
        if !rng.chance(1, 2) {
            return Ok(());
        }
        // It must not be given up as a device that hangs.
        let most = (self.options().deadline / 4).min(30 * MILLIS);
        let stall = rng.between(most / 2, most);
        let (p, media) = (pool.clone(), self.media.clone());
        let done = self.w.run(&self.node, PATIENCE, async move {
            give_up_a_mend(p, media, stall, &mut rng).await
        })?;
        match done.map_err(|e| Wrong(format!("a mend that is given up: {e}")))? {
            None => return Ok(()),
            Some(_) => self.mends += 1,
        }
        let p = pool.clone();
        let report = self.w.run(&self.node, PATIENCE, async move { p.scrub(0).await })?;
        let report = report.map_err(|e| Wrong(format!("scrubbing after a mend: {e}")))?;
        match (report.damaged, report.lost) {
            (0, 0) => Ok(()),
            _ => Err(Wrong(format!("a mend that was given up left damage behind: {report:?}"))),
        }
    }
}

/// One copy of a block is damaged on a slow device, and whoever reads it and mends it is given up. Then its place is used
/// again. `None`: it did not come to that.
async fn give_up_a_mend(
    pool: Pool,
    media: Vec<SimMedium>,
    stall: Nanos,
    rng: &mut Prng,
) -> Result<Option<()>, StoreError> {
    let Some(id) = pool.find(SHREDDED) else { return Ok(None) };
    let v = pool.volume(id)?;
    let buf = Slice::heap(ROUND);
    buf.fill(0x11);
    v.write(0, buf.clone(), false).await?;
    pool.checkpoint().await?;
    let at = rng.below(ROUND as u64 / 4096) * 4096;
    let places = v.locate(at).await?;
    let Some((device, byte)) = places.get(rng.below(2) as usize).copied() else { return Ok(None) };
    let name = pool.status().devices.into_iter().find(|d| d.number == device).and_then(|d| d.name);
    let Some(ill) = media.iter().find(|m| Some(m.name()) == name.as_deref()) else {
        return Ok(None);
    };
    ill.rot(byte, 4096, 1);
    let before = pool.counters().damaged;
    ill.stall(stall);
    // Reads take the copies in turn.
    for _ in 0..8 {
        let v = v.clone();
        let read = spawn(async move { v.read(at, Slice::heap(4096)).await });
        while !read.is_finished() && pool.counters().damaged == before {
            sleep(20 * MICROS).await;
        }
        if pool.counters().damaged > before {
            sleep(rng.below(100 * MICROS)).await;
            read.cancel();
            break;
        }
    }
    ill.stall(0);
    if pool.counters().damaged == before {
        // It is not left behind, though nobody met it.
        v.write(0, buf, false).await?;
        return Ok(None);
    }
    let until = now() + 2 * stall;
    'used: while now() < until {
        buf.fill(rng.below(256) as u8 | 1);
        v.write(0, buf.clone(), false).await?;
        pool.checkpoint().await?;
        for at in (0..ROUND as u64).step_by(4096) {
            if v.locate(at).await?.contains(&(device, byte)) {
                break 'used;
            }
        }
    }
    sleep(2 * stall).await;
    Ok(Some(()))
}
