//! What hosts write, and that it is there for as long as it must be.

use super::CLIENTS;
use super::clients::own;
use super::medium::{BLOCK, Medium, Stamp};
use super::plane::Plane;
use std::collections::{BTreeMap, BTreeSet};
use weir_base::Prng;
use weir_control::model::{Model, Naa, VolumeState};

/// What a volume's blocks must have.
#[derive(Debug, Default)]
struct Blocks {
    written: BTreeMap<u64, Stamp>,
    /// Somebody is to throw it away, all of it.
    dying: bool,
    /// Somebody is to cut it off at so many blocks.
    cut: Option<u64>,
    /// It was cut off at so many, which a start does not know yet.
    agreed: Option<u64>,
}

/// What all volumes' blocks must have.
#[derive(Debug, Default)]
pub(super) struct Judge {
    all: BTreeMap<Naa, Blocks>,
    /// Somebody wants these to be what they were.
    reverted: BTreeSet<Naa>,
    writes: u64,
    pub(super) reads: u64,
}

impl Judge {
    /// One read or write of an open volume, as a host does it.
    pub(super) fn touch(
        &mut self,
        plane: &Plane,
        model: &Model,
        rng: &mut Prng,
    ) -> Result<(), String> {
        self.copied(&mut plane.ground().medium)?;
        let open: Vec<_> = plane.life().volumes.values().cloned().collect();
        if open.is_empty() {
            return Ok(());
        }
        let v = &open[rng.below(open.len() as u64) as usize];
        // What grows by itself, when it can, may be refused then.
        let sure = if own(&v.name, CLIENTS) { 1 } else { v.size / BLOCK };
        let n = rng.below(sure);
        let b = self.all.entry(v.naa).or_default();
        if b.dying || b.cut.is_some_and(|cut| n >= cut) {
            return Ok(());
        }
        // Hosts may see what was refused for as long as it cannot be taken back. What they write there is lost.
        if model.volumes.get(&v.name).is_none_or(|now| n >= now.size / BLOCK) {
            let stamp = Stamp { naa: v.naa, write: 0 };
            return plane.write(&v.name, n, stamp).unwrap_or(Ok(()));
        }
        if v.read_only || rng.chance(1, 2) {
            return self.read(plane, &v.name, v.naa, n);
        }
        self.writes += 1;
        let stamp = Stamp { naa: v.naa, write: self.writes };
        if let Some(done) = plane.write(&v.name, n, stamp) {
            done?;
            self.all.entry(v.naa).or_default().written.insert(n, stamp);
        }
        Ok(())
    }

    fn read(&mut self, plane: &Plane, name: &str, naa: Naa, n: u64) -> Result<(), String> {
        let Some(found) = plane.read(name, n) else { return Ok(()) };
        let expected = self.all.get(&naa).and_then(|b| b.written.get(&n)).copied();
        self.reads += 1;
        match found? {
            found if found == expected => Ok(()),
            found => Err(format!(
                "block {n} of volume {name} has {found:?}, and should have {expected:?}"
            )),
        }
    }

    /// Somebody asks for a volume to be what it was at a snapshot, or does so no more.
    pub(super) fn reverts(&mut self, naa: Naa, yes: bool) {
        match yes {
            true => self.reverted.insert(naa),
            false => self.reverted.remove(&naa),
        };
    }

    /// Volumes may have become what snapshots are.
    pub(super) fn copied(&mut self, m: &mut Medium) -> Result<(), String> {
        for c in std::mem::take(&mut m.copied) {
            if c.reverted && !self.reverted.contains(&c.naa) {
                return Err(format!("volume {} is reverted, which nobody wants", c.naa));
            }
            self.all.entry(c.naa).or_default().written = c.blocks;
        }
        Ok(())
    }

    /// Reads all blocks of all open volumes.
    pub(super) fn read_all(&mut self, plane: &Plane) -> Result<(), String> {
        self.copied(&mut plane.ground().medium)?;
        let open: Vec<_> = plane.life().volumes.values().cloned().collect();
        for v in open {
            for n in 0..v.size / BLOCK {
                self.read(plane, &v.name, v.naa, n)?;
            }
        }
        Ok(())
    }

    /// Somebody asks for a volume to be deleted, or cut off at so many bytes.
    pub(super) fn asked(&mut self, naa: Naa, cut: Option<u64>) {
        let b = self.all.entry(naa).or_default();
        match cut {
            None => b.dying = true,
            Some(size) => b.cut = Some(b.cut.map_or(size / BLOCK, |c| c.min(size / BLOCK))),
        }
    }

    /// That has been done, or refused: the volume has so many bytes now.
    pub(super) fn told(&mut self, naa: Naa, size: u64) {
        let b = self.all.entry(naa).or_default();
        (b.dying, b.cut) = (false, None);
        let least = b.agreed.take().unwrap_or(u64::MAX).min(size / BLOCK);
        b.written.retain(|n, _| *n < least);
    }

    /// A volume was cut off at so many bytes, which could not be recorded yet.
    pub(super) fn agreed(&mut self, naa: Naa, size: u64) {
        self.all.entry(naa).or_default().agreed = Some(size / BLOCK);
    }

    /// The process has ended: what was not recorded is not so.
    pub(super) fn ended(&mut self) {
        self.all.values_mut().for_each(|b| b.agreed = None);
        self.reverted.clear();
    }

    /// What is in force of what was asked for, as a configuration says after all is well.
    pub(super) fn settled(&mut self, model: &Model) {
        let all: BTreeMap<Naa, u64> = model
            .volumes
            .values()
            .filter(|v| v.state != VolumeState::Deleting)
            .map(|v| (v.naa, v.size))
            .collect();
        let known: Vec<Naa> = self.all.keys().copied().collect();
        for naa in known {
            match all.get(&naa) {
                Some(size) => self.told(naa, *size),
                None => drop(self.all.remove(&naa)),
            }
        }
    }
}
