//! The end of a story: everything is read again in every way.

use super::forms::Form;
use super::pool::{PATIENCE, Story};
use super::trouble::Trouble;
use crate::{Pass, Wrong};
use std::rc::Rc;
use weir_base::IoError;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_sim::SimMedium;
use weir_store::{Options, Pool, check};

impl Story {
    pub(crate) fn read_all(&mut self, times: u32) -> Result<(), Wrong> {
        let pool = self.running()?;
        for _ in 0..times {
            for v in self.volumes.clone() {
                let io = self.io(&pool, &v)?;
                self.w.run(&self.node, PATIENCE, v.load.clone().read_all(io, self.bufs.clone()))?;
            }
        }
        self.verdict()
    }

    /// Reads everything in every way.
    pub(crate) fn finish(mut self) -> Result<Pass, Wrong> {
        // From here on all is well: everything that was acknowledged can be read, and nothing may fail.
        for m in &self.media {
            m.set_offline(false);
            m.read_again();
            if self.trouble != Trouble::Latent {
                m.forget_next();
            }
        }
        self.errors.ill.is_over();
        self.missing.retain(|_| self.trouble == Trouble::HalfLost);
        self.open()?;
        if self.trouble == Trouble::Lies {
            self.end_filling()?;
        }
        self.check_snapshots()?;
        self.read_all(2)?;
        let mut damaged = 0;
        let found = self.running()?.counters().damaged;
        if self.trouble == Trouble::Lies && found > 0 {
            // It was called in sync, and since then nothing happened to it.
            return Err(Wrong(format!("{found} damaged copies on a device that was filled")));
        }
        self.settle_devices()?;
        if self.trouble == Trouble::Full {
            self.make_room()?;
        }
        if self.trouble == Trouble::Latent {
            // Faults must not come while everything is put right: neither those whose time has not come, nor those
            // that wait for a write.
            self.w.run_for((self.faults_until + 1).saturating_sub(self.w.now()));
            let (pool, m) = (self.running()?, self.media[self.victim].clone());
            m.forget_next();
            let done = self.w.run(&self.node, PATIENCE, async move { pool.scrub(0).await })?;
            let report = done.map_err(|e| Wrong(format!("scrubbing: {e}")))?;
            damaged = report.damaged;
            // What the merge of a kept log had found before is put right meanwhile, and counts besides.
            if report.lost > 0 || report.repaired < report.damaged {
                return Err(Wrong(format!("scrub did not mend everything: {report:?}")));
            }
            self.read_all(1)?;
        }
        self.note_blame();
        self.verdict()?;
        self.grow()?;
        self.single_faults()?;
        self.worn_blocks()?;
        self.give_up_mends()?;
        let pool = self.running()?;
        let c = pool.counters();
        let with = |f: fn(&Form) -> bool| self.volumes.iter().filter(|v| f(&v.form)).count() as u64;
        let (compressed, deduplicated) = (with(Form::is_compressed), with(Form::is_deduplicated));
        let encrypted = with(Form::is_encrypted);
        let members: Vec<_> = pool.status().devices.into_iter().filter_map(|d| d.name).collect();
        let closed = self.w.run(&self.node, PATIENCE, async move { pool.close().await })?;
        closed.map_err(|e| Wrong(format!("closing: {e}")))?;
        self.node.kill();
        self.pool.take();
        self.director.is_over();
        self.volumes.iter().for_each(|v| v.load.settle());
        self.node.restart();
        self.verify()?;
        let whole = self.missing.is_empty() && self.trouble != Trouble::BothCopies;
        if self.spec.copies == 2 && whole {
            self.each_half_alone(&members)?;
        }
        let sum = |f: fn(&crate::load::Figures) -> u64| {
            self.volumes.iter().map(|v| f(&v.load.figures())).sum::<u64>()
        };
        let mut figures = self.crashes.figures();
        figures.extend(self.aimed.figures());
        figures.extend(self.errors.ill.figures());
        figures.extend(self.beside.figures());
        let late: u64 = self.media.iter().map(|m| m.counts().late_writes).sum();
        figures.extend([
            ("volumes that are encrypted", encrypted),
            ("volumes across groups of chunks", self.across()),
            ("parts of writes that came after a kill", late),
            ("pools without checksums of data", self.unsummed.into()),
        ]);
        // One of thousands has it, so that a run without is none that lacks something.
        if self.hidden.get() > 0 {
            figures.push((
                "pools opened by force, as nothing told what a superblock was",
                self.hidden.get(),
            ));
        }
        let (doubles, errors) = self.director.doubles();
        figures.extend([
            ("blocks verified", sum(|f| f.blocks_read)),
            ("writes acknowledged", sum(|f| f.writes)),
            ("blocks that lost all copies", doubles),
            ("medium errors of those, each time", errors),
            ("devices that hung", self.stalls + self.steward.stalls()),
            ("faults of devices by chance", self.faults),
            ("errors excused", self.errors.excused.get()),
            ("volumes that are compressed", compressed),
            ("volumes that are deduplicated", deduplicated),
            ("damaged copies found by scrub", damaged),
            ("copies repaired", c.repaired + self.repaired),
            ("log entries replayed", self.replayed),
            ("pools opened with the log kept", self.opened.0),
            ("pools opened with the log merged, or empty", self.opened.1),
            ("snapshots verified", self.director.verified()),
            ("changes of devices", self.steward.changes()),
            ("mends that were given up", self.mends),
            ("blocks of slabs moved or brought back", self.steward.filled()),
        ]);
        Ok(Pass { trace: self.w.trace_hash(), figures })
    }

    /// What was begun is brought to its end, and the pool opened again.
    fn end_filling(&mut self) -> Result<(), Wrong> {
        let (pool, s) = (self.running()?, self.steward.clone());
        let closed = self.w.run(&self.node, PATIENCE, async move {
            s.settle(pool.clone(), true).await;
            pool.close().await
        })?;
        closed.map_err(|e| Wrong(format!("closing after filling: {e}")))?;
        self.node.kill();
        self.pool.take();
        self.director.is_over();
        self.node.restart();
        self.open()
    }

    /// In the end every device that is there is in sync, and every block has all its copies.
    fn settle_devices(&mut self) -> Result<(), Wrong> {
        if self.spec.copies == 1 && self.trouble != Trouble::Devices {
            return Ok(());
        }
        let (pool, s) = (self.running()?, self.steward.clone());
        self.media.iter().for_each(SimMedium::forget_next);
        let whole = self.missing.is_empty();
        self.w.run(&self.node, PATIENCE, s.settle(pool, whole))?;
        self.verdict()?;
        self.read_all(1)
    }

    /// In a full pool deletions work, and then so do writes.
    fn make_room(&mut self) -> Result<(), Wrong> {
        let pool = self.running()?;
        let mut all = Vec::new();
        for v in &self.volumes {
            all.push(self.io(&pool, v)?);
        }
        let done = self.w.run(&self.node, PATIENCE, async move {
            for io in &all {
                let v = io.volume()?;
                v.write_zeroes(0, v.geometry().len, true).await?;
            }
            let (buf, v) = (Slice::heap(65536), all[0].volume()?);
            for n in 0..4 {
                v.write(n << 16, buf.clone(), false).await?;
            }
            v.write_zeroes(0, 1 << 20, true).await?;
            Ok::<_, IoError>(())
        })?;
        done.map_err(|e| Wrong(format!("a full pool after a deletion: {e}")))?;
        self.volumes.clear();
        Ok(())
    }

    /// The offline verifier finds nothing.
    fn verify(&mut self) -> Result<(), Wrong> {
        let (disks, options) = (self.disks(), self.options());
        let report =
            self.w.run(&self.node, PATIENCE, async move { check(disks, options).await })?;
        let report = report.map_err(|e| Wrong(format!("verifying: {e}")))?;
        let all = report.findings.iter();
        let findings: Vec<_> = match self.trouble {
            Trouble::BothCopies => report
                .structural()
                .filter(|f| f.what != "no good copy" || !f.layer.starts_with("dataset"))
                .collect(),
            _ => all.collect(),
        };
        if let Some(f) = findings.first() {
            return Err(Wrong(format!(
                "the verifier in a story of {:?}: {}: block {}: {} ({} findings)",
                self.trouble,
                f.layer,
                f.vbn,
                f.what,
                findings.len()
            )));
        }
        Ok(())
    }

    /// Everything is read again with each device missing in turn.
    fn each_half_alone(&mut self, members: &[String]) -> Result<(), Wrong> {
        for gone in 0..self.media.len() {
            if !members.iter().any(|m| *m == self.media[gone].name()) {
                continue;
            }
            let node = self.w.node(&format!("without-d{gone}"));
            let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
            for (n, m) in self.media.iter().enumerate().filter(|(n, _)| *n != gone) {
                let name = format!("c{gone}-{n}");
                node.attach(&m.copy(&name, n as u64));
                disks.push(node.disk(&name));
            }
            let options = Options { force: true, resync: false, ..self.options() };
            let opened = self.w.run(&node, PATIENCE, Pool::open(disks, options))?;
            let pool = opened.map_err(|e| Wrong(format!("without device {gone}: {e}")))?;
            for v in self.volumes.clone() {
                let io = self.io(&pool, &v)?;
                self.w.run(&node, PATIENCE, v.load.clone().read_all(io, self.bufs.clone()))?;
            }
            self.w.run(&node, PATIENCE, self.director.clone().check(pool))?;
            node.kill();
            self.director.is_over();
            self.verdict().map_err(|w| Wrong(format!("without device {gone}: {}", w.0)))?;
        }
        Ok(())
    }
}
