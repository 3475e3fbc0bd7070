//! Single-copy faults aimed at what is in use: each is found, by reading or by scrub, and mended.

use super::pool::{PATIENCE, Story};
use super::trouble::Trouble;
use crate::Wrong;
use weir_sim::SimMedium;
use weir_store::Pool;
use weir_store::format::label::{LABELS, SUPER_SLOTS};
use weir_store::format::superblock::{MemberState, Superblock};

/// Faults in one go, at most.
const MOST: u64 = 40;

/// What came of the faults.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    injected: u64,
    found: u64,
    mended: u64,
    /// Written over by a checkpoint before anybody looked.
    superseded: u64,
}

/// One fault.
struct Fault {
    /// The pool's block; `None`: a label or superblock.
    vbn: Option<u64>,
    medium: SimMedium,
    at: u64,
    /// What was there, and what is there now. The same: it cannot be read.
    was: Vec<u8>,
    is: Vec<u8>,
}

impl Fault {
    fn content(&self) -> Vec<u8> {
        let mut now = vec![0; 4096];
        self.medium.peek(self.at, &mut now);
        now
    }

    fn unreadable(&self) -> bool {
        self.medium.is_bad(self.at, 4096)
    }
}

impl Story {
    /// Damages one copy each of blocks of all kinds, several times, and has them found and mended.
    pub(crate) fn single_faults(&mut self) -> Result<(), Wrong> {
        let whole = self.spec.copies == 2 && self.missing.is_empty();
        // Without checksums nobody can tell which copy is damaged.
        if !whole || self.unsummed || self.trouble == Trouble::BothCopies {
            return Ok(());
        }
        for round in 0..2 {
            self.single_round(round == 0)?;
        }
        Ok(())
    }

    /// Blocks of one device wear out: they take what is written and do not hold it. They are found and live in spares from
    /// then on, also after a kill.
    pub(crate) fn worn_blocks(&mut self) -> Result<(), Wrong> {
        let pool = self.running()?;
        let status = pool.status();
        let whole = status.whole && self.missing.is_empty();
        // Errors of the medium that pass use spares up, too.
        let room = |d: &weir_store::DeviceInfo| u64::from(d.replaced) + 4 <= self.spec.spares;
        let whole = whole && status.devices.iter().all(room);
        let other = matches!(self.trouble, Trouble::BothCopies | Trouble::Unreadable);
        if self.spec.copies != 2 || !whole || self.unsummed || other {
            return Ok(());
        }
        let blocks = pool.blocks_in_use();
        for _ in 0..3 {
            let (_, places) = &blocks[self.rng.below(blocks.len() as u64) as usize];
            let name = |n: u16| pool.status().devices.into_iter().find(|d| d.number == n)?.name;
            let Some((number, at)) = places.first() else { continue };
            let Some(name) = name(*number) else { continue };
            if let Some(m) = self.media.iter().find(|m| m.name() == name) {
                m.wear_out(*at);
            }
        }
        let worn: u64 = self.media.iter().map(|m| m.worn().len() as u64).sum();
        let before = pool.counters();
        let scrub = |s: &Story, p: Pool| {
            let done = s.w.run(&s.node, PATIENCE, async move { p.scrub(0).await })?;
            done.map_err(|e| Wrong(format!("scrubbing worn blocks: {e}")))
        };
        scrub(self, pool.clone())?;
        let after = pool.counters();
        let (found, mended) = (after.damaged - before.damaged, after.repaired - before.repaired);
        let moved = after.relocated - before.relocated;
        if found != mended || found != moved || after.lost > before.lost {
            let text = format!("worn blocks: {found} found, {mended} mended, {moved} moved");
            return Err(Wrong(text));
        }
        self.beside.relocated.set(self.beside.relocated.get() + moved);
        drop(pool);
        self.node.kill();
        self.pool.take();
        self.director.is_over();
        self.volumes.iter().for_each(|v| v.load.settle());
        self.node.restart();
        self.open()?;
        self.read_all(1)?;
        let report = scrub(self, self.running()?)?;
        // What was written over before anybody looked is still there for what comes there next.
        self.media.iter().for_each(SimMedium::forget_worn);
        match report.lost == 0 && report.damaged <= worn - moved {
            true => Ok(()),
            false => {
                Err(Wrong(format!("{worn} blocks wore out, {moved} moved to spares: {report:?}")))
            }
        }
    }

    /// One round. `read`: everything is read before it is scrubbed.
    fn single_round(&mut self, read: bool) -> Result<(), Wrong> {
        let pool = self.running()?;
        // Nothing changes beside I/O from here on.
        self.settle_forms()?;
        // What was freed and waits for a checkpoint is not in use.
        let p = pool.clone();
        let done = self.w.run(&self.node, PATIENCE, async move {
            p.checkpoint().await?;
            p.checkpoint().await
        })?;
        done.map_err(|e| Wrong(format!("a checkpoint before faults: {e}")))?;
        if !pool.status().whole {
            return Ok(());
        }
        let before = pool.counters();
        let faults = self.inject()?;
        if read {
            self.check_snapshots()?;
            self.read_all(1)?;
        }
        let p = pool.clone();
        let done = self.w.run(&self.node, PATIENCE, async move { p.scrub(0).await })?;
        done.map_err(|e| Wrong(format!("scrubbing after single faults: {e}")))?;
        let after = pool.counters();
        let (found, mended) = (after.damaged - before.damaged, after.repaired - before.repaired);
        let lost = after.lost - before.lost;
        if lost > 0 || found != mended {
            return Err(Wrong(format!(
                "{} single faults: {found} found, {mended} mended, {lost} blocks lost",
                faults.len()
            )));
        }
        let used: std::collections::BTreeSet<u64> =
            pool.blocks_in_use().into_iter().map(|(vbn, _)| vbn).collect();
        let mut superseded = 0;
        for f in &faults {
            let now = f.content();
            if now == f.was && !f.unreadable() {
                continue;
            }
            let stands = f.unreadable() || now == f.is;
            if stands && f.vbn.is_none_or(|v| used.contains(&v)) {
                return Err(Wrong(format!(
                    "a fault of one copy of block {:?} on {} at byte {} was not found: {:02x?} {} in a story of {:?}",
                    f.vbn,
                    f.medium.name(),
                    f.at,
                    &f.was[..16],
                    f.unreadable(),
                    self.trouble
                )));
            }
            superseded += 1;
        }
        let injected = faults.len() as u64;
        if found + superseded < injected {
            return Err(Wrong(format!(
                "of {injected} single faults {found} were found and {superseded} written over"
            )));
        }
        self.aimed.injected += injected;
        self.aimed.found += found;
        self.aimed.mended += mended;
        self.aimed.superseded += superseded;
        if read { self.read_all(1) } else { Ok(()) }
    }

    /// Damages one copy each of some blocks that are in use, and of labels and superblocks.
    fn inject(&mut self) -> Result<Vec<Fault>, Wrong> {
        let pool = self.running()?;
        let blocks = pool.blocks_in_use();
        let devices = pool.status().devices;
        let named = |name: &str| self.media.iter().find(|m| m.name() == name).cloned();
        let medium = |number: u16| {
            let d = devices.iter().find(|d| d.number == number)?;
            d.name.as_deref().and_then(named)
        };
        let mut targets: Vec<(Option<u64>, SimMedium, u64)> = Vec::new();
        for _ in 0..MOST.min(blocks.len() as u64 / 2) {
            let (vbn, places) = &blocks[self.rng.below(blocks.len() as u64) as usize];
            if places.len() != 2 || targets.iter().any(|(v, ..)| *v == Some(*vbn)) {
                continue;
            }
            let (number, at) = places[self.rng.below(2) as usize];
            targets.extend(medium(number).map(|m| (Some(*vbn), m, at)));
        }
        // One that failed is not looked at; it may be out of service and the pool whole, when nothing was on it.
        for d in devices.iter().filter(|d| !d.failed) {
            let Some(m) = d.name.as_deref().and_then(named) else { continue };
            let Some(layout) = self.layout(m.len()) else { continue };
            let label = layout.label(self.rng.below(u64::from(LABELS)));
            let area = self.rng.below(2) as u8;
            let slot = |n| {
                let (at, mut b) = (layout.superblock(u64::from(area), n), [0; 4096]);
                m.peek(at * 4096, &mut b);
                Superblock::decode_any(&b, area, n).ok().map(|(_, s)| (s.seq, at))
            };
            let newest = (0..SUPER_SLOTS).filter_map(slot).max();
            // What a spare has of superblocks is not looked at before it is used.
            let newest = newest.filter(|_| d.state == MemberState::InSync);
            for at in [Some(label), newest.map(|(_, at)| at)].into_iter().flatten() {
                if self.rng.below(2) == 0 {
                    targets.push((None, m.clone(), at * 4096));
                }
            }
        }
        let mut faults = Vec::new();
        for (vbn, m, at) in targets {
            let mut was = vec![0; 4096];
            m.peek(at, &mut was);
            let (_, places) = &blocks[self.rng.below(blocks.len() as u64) as usize];
            let elsewhere = places.first().and_then(|(n, from)| Some((medium(*n)?, *from)));
            self.damage(&m, at, elsewhere);
            let mut is = vec![0; 4096];
            m.peek(at, &mut is);
            let f = Fault { vbn, medium: m, at, was, is };
            if f.is != f.was || f.unreadable() {
                faults.push(f);
            }
        }
        Ok(faults)
    }

    /// One fault of a kind that is drawn. `elsewhere`: a block that may be found here.
    fn damage(&self, m: &SimMedium, at: u64, elsewhere: Option<(SimMedium, u64)>) {
        let mut rng = self.faulty.borrow_mut();
        match (rng.below(5), elsewhere) {
            // Rot. An odd number of bits: some of it stays.
            (0, _) => m.rot(at, 4096, 1 + 2 * rng.below(2) as u32),
            // Unreadable.
            (1, _) => m.fail_reads(at, 4096),
            // A write that never arrived.
            (2, _) => m.poke(at, &[0; 4096]),
            // What belongs elsewhere.
            (3, Some((other, from))) => {
                let mut b = [0; 4096];
                other.peek(from, &mut b);
                m.poke(at, &b);
            }
            // A sector that is another.
            _ => m.poke(at + rng.below(8) * 512, &[rng.below(256) as u8; 512]),
        }
    }
}

impl Faults {
    /// As figures of a run.
    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("single-copy faults of blocks in use", self.injected),
            ("single-copy faults found", self.found),
            ("single-copy faults mended", self.mended),
            ("single-copy faults written over before anybody looked", self.superseded),
        ]
    }
}
