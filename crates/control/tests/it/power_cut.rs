//! A power cut keeps any subset of what was not synced: every acknowledged change must still be there.

use crate::support::*;
use std::io;
use std::sync::{Arc, Mutex};
use weir_base::Prng;
use weir_control::model::{Command, Model};
use weir_control::store::MetaStore;

/// A write that was not synced yet; a power cut keeps it, drops it, or keeps its first sectors.
#[derive(Debug, Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Default)]
struct Disk {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What is on the medium.
    medium: Vec<u8>,
    pending: Vec<Pending>,
    /// Operations until the power fails.
    fuse: Option<u64>,
    syncs: u64,
}

impl Disk {
    fn burn(&mut self) -> io::Result<()> {
        match &mut self.fuse {
            Some(0) => Err(io::Error::other("power is off")),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The medium after a power cut now.
    fn cut(&self, prng: &mut Prng) -> Vec<u8> {
        let mut medium = self.medium.clone();
        // A write beyond the end that the medium knows makes it longer, as a file system may do.
        for p in &self.pending {
            if prng.chance(1, 2) {
                match p {
                    Pending::Length(n) => medium.resize(*n as usize, 0),
                    Pending::Write(at, data) => {
                        let keep = if prng.chance(1, 4) {
                            prng.below(data.len() as u64 / 512 + 1) as usize * 512
                        } else {
                            data.len()
                        };
                        put(&mut medium, *at, &data[..keep.min(data.len())]);
                    }
                }
            }
        }
        // The length of a file is journalled by file systems: a shorter file than was seen would be another test.
        if medium.len() < self.seen.len() {
            medium.resize(self.seen.len(), 0);
        }
        medium
    }
}

fn put(medium: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if medium.len() < end {
        medium.resize(end, 0);
    }
    medium[at as usize..end].copy_from_slice(data);
}

#[derive(Debug, Clone)]
struct Handle(Arc<Mutex<Disk>>);

impl redb::StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("disk").seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.0.lock().expect("disk");
        let at = offset as usize;
        let from = disk.seen.get(at..at + out.len());
        out.copy_from_slice(from.ok_or_else(|| io::Error::other("read beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.0.lock().expect("disk");
        disk.burn()?;
        disk.seen.resize(len as usize, 0);
        disk.pending.push(Pending::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.0.lock().expect("disk");
        disk.burn()?;
        disk.medium = disk.seen.clone();
        disk.pending.clear();
        disk.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().expect("disk");
        disk.burn()?;
        put(&mut disk.seen, offset, data);
        disk.pending.push(Pending::Write(offset, data.to_vec()));
        Ok(())
    }
}

fn disk(medium: Vec<u8>, fuse: Option<u64>) -> Handle {
    let seen = medium.clone();
    Handle(Arc::new(Mutex::new(Disk { seen, medium, fuse, ..Disk::default() })))
}

fn next(model: &Model, n: u64) -> Model {
    let mut new = model.clone();
    let name = format!("h{}", n % 8);
    let command = if model.hosts.contains_key(&name) {
        Command::DeleteHost { name }
    } else {
        Command::CreateHost(host(&name, &[&format!("{:x}:1", n + 1)]))
    };
    new.apply(command, 0).expect("a step");
    new
}

#[test]
fn a_power_cut_at_any_write_keeps_every_acknowledged_change() {
    let mut cut_in_change = 0;
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        // A new store is moved into place when it is whole, so cuts begin with one that is there.
        let calm = disk(Vec::new(), None);
        drop(MetaStore::open_on(calm.clone()).expect("a new store"));
        let mut medium = calm.0.lock().expect("disk").medium.clone();
        let mut model = Model::default();
        let mut n = 0;
        // Several cuts in a row, also while recovering from the one before.
        for _ in 0..4 {
            let handle = disk(medium.clone(), Some(prng.between(1, 120)));
            let mut attempted = None;
            if let Ok(store) = MetaStore::open_on(handle.clone()) {
                let first = n;
                loop {
                    // A change that writes nothing would never meet the cut.
                    assert!(n - first < 200, "seed {seed}: changes do not reach the disk");
                    let new = next(&model, n);
                    if store.commit(&model, &new).is_err() {
                        attempted = Some(new);
                        cut_in_change += 1;
                        break;
                    }
                    model = new;
                    n += 1;
                }
            }
            medium = handle.0.lock().expect("disk").cut(&mut prng);
            // Without a fuse it must open, and hold the acknowledged model or the one that was under way.
            let calm = disk(medium.clone(), None);
            let store = MetaStore::open_on(calm.clone())
                .unwrap_or_else(|e| panic!("seed {seed}: does not open: {e}"));
            let found = store.load().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            if Some(&found) == attempted.as_ref() {
                model = found;
                n += 1;
            } else {
                assert_eq!(found, model, "seed {seed}");
            }
            drop(store);
            // Half the time go on from the recovered state, else from the raw one: a cut during recovery.
            if prng.chance(1, 2) {
                medium = calm.0.lock().expect("disk").seen.clone();
            }
        }
    }
    assert!(cut_in_change > 100, "only {cut_in_change} changes were cut");
}
