//! What must be so when all is well, and while one pool is not.

use super::clients::{Want, own};
use super::life::Life;
use super::medium::Medium;
use super::{CLIENTS, Scene, calm};
use crate::Wrong;
use std::collections::{BTreeMap, BTreeSet};
use weir_base::SECONDS;
use weir_control::Code;
use weir_control::live::Status;
use weir_control::model::{Command, Layout, Model, Volume, VolumeState};

impl Life {
    pub(super) fn status(&self, scene: &Scene) -> Result<Status, Wrong> {
        let c = self.c.clone();
        let status = scene.world.run(&self.node, 2 * SECONDS, async move { c.status().await })?;
        status.map_err(|e| Wrong(format!("no status: {e}")))
    }

    /// All is well from here on: what is configured comes into effect, and nothing else is there.
    pub(super) fn settle(&self, scene: &Scene) -> Result<(), Wrong> {
        calm(scene);
        scene.quiet.set(true);
        let idle = || {
            let clients = scene.clients.borrow();
            clients.iter().all(|c| !c.busy) && !scene.declared.borrow().busy
        };
        let ended = scene.world.run_until(120 * SECONDS, idle);
        ended.map_err(|s| Wrong(format!("a command does not end: {s}")))?;
        // What is owed is taken back.
        scene.world.run_for(6 * SECONDS);
        self.delete_again(scene)?;
        self.declared(scene)?;
        let mut left = Vec::new();
        for _ in 0..60 {
            scene.world.run_for(3 * SECONDS);
            scene.verdict()?;
            left = self.not_so(scene)?;
            if left.is_empty() {
                break;
            }
        }
        if let Some(what) = left.first() {
            return Err(Wrong(format!("three minutes after all is well: {what}")));
        }
        let model = self.c.model();
        for (k, client) in scene.clients.borrow_mut().iter_mut().enumerate() {
            let found = Want::of(&model, k);
            let want = client.want.as_found(&found, &BTreeMap::new(), &client.moving);
            scene.figures.borrow_mut().moved += u64::from(want != client.want);
            client.want = want;
            client.moving.clear();
            if found != client.want {
                return Err(Wrong(format!("client {k} has {found:?}\nand not {:?}", client.want)));
            }
            client.perhaps.clear();
        }
        let mut judge = scene.judge.borrow_mut();
        judge.copied(&mut self.plane.ground().medium)?;
        judge.settled(&model);
        judge.read_all(&self.plane)?;
        drop(judge);
        scene.verdict()?;
        scene.figures.borrow_mut().settled += 1;
        scene.ended.set(false);
        scene.quiet.set(false);
        Ok(())
    }

    /// Pools that could not be deleted may be deleted now.
    fn delete_again(&self, scene: &Scene) -> Result<(), Wrong> {
        for k in 0..CLIENTS {
            let half = scene.clients.borrow_mut()[k].half_deleted.take();
            let Some(name) = half.filter(|p| self.c.model().pools.contains_key(p)) else {
                continue;
            };
            let is_kept = |v: &Volume| v.pool == name && v.state != VolumeState::Deleting;
            let used = self.c.model().volumes.values().any(is_kept);
            if used {
                continue;
            }
            let mut done = Ok(());
            for _ in 0..10 {
                done = self.command(scene, Command::DeletePool { name: name.clone() })?;
                match &done {
                    // What was under way has its pool taken back.
                    Err(e) if e.code == Code::PoolNotFound => done = Ok(()),
                    // Then nothing has begun: a volume of it is not wholly deleted.
                    Err(e) if e.code == Code::PoolInUse => done = Ok(()),
                    // What failed before is told until it is tried again.
                    Err(_) => scene.world.run_for(3 * SECONDS),
                    Ok(()) => {
                        scene.clients.borrow_mut()[k].want.pools.remove(&name);
                        scene.figures.borrow_mut().deleted_again += 1;
                    }
                }
                if done.is_ok() {
                    break;
                }
            }
            done.map_err(|e| Wrong(format!("pool {name} cannot be deleted again: {e}")))?;
        }
        Ok(())
    }

    /// What is not as it is configured.
    fn not_so(&self, scene: &Scene) -> Result<Vec<String>, Wrong> {
        let model = self.c.model();
        let mut all = Vec::new();
        for f in self.status(scene)?.faults {
            all.push(format!("fault of {}: {} ({})", f.object, f.text, f.code));
        }
        all.extend(self.not_open(&model, true, |_| true));
        let life = self.plane.life();
        if life.access.hosts != model.access().hosts {
            let (is, be) = (&life.access.hosts, model.access().hosts);
            all.push(format!("the mappings are {is:?}\nand should be {be:?}"));
        }
        let known = |name: &String| model.volumes.contains_key(name);
        all.extend(life.volumes.keys().filter(|v| !known(v)).map(|v| format!("{v} is open")));
        let known = |name: &String| model.pools.contains_key(name);
        all.extend(life.pools.keys().filter(|p| !known(p)).map(|p| format!("{p} is open")));
        let known = |name: &String| model.targets.contains_key(name);
        all.extend(life.targets.keys().filter(|t| !known(t)).map(|t| format!("{t} listens")));
        drop(life);
        all.extend(left_over(&model, &self.plane.ground().medium));
        Ok(all)
    }

    /// What is not open of what is configured, in pools of which `of` says so. `moving`: also what moves, which is to have come to rest.
    fn not_open(&self, model: &Model, moving: bool, of: impl Fn(&str) -> bool) -> Vec<String> {
        let (life, mut all) = (self.plane.life(), Vec::new());
        for p in model.pools.values().filter(|p| of(&p.name)) {
            if !life.pools.contains_key(&p.name) {
                all.push(format!("pool {} is not open", p.name));
            }
        }
        for v in model.volumes.values().filter(|v| of(&v.pool) && (moving || v.migration.is_none()))
        {
            let Some(open) = life.volumes.get(&v.name) else {
                all.push(format!("volume {} ({:?}) is not open", v.name, v.state));
                continue;
            };
            if v.state != VolumeState::Ready || v.cut.is_some() || v.migration.is_some() {
                let (state, cut, migration) = (v.state, v.cut, &v.migration);
                all.push(format!("volume {} is {state:?}, {cut:?}, {migration:?}", v.name));
            }
            let known = (open.size, open.read_only, open.naa, &open.layout);
            if known != (v.size, v.read_only, v.naa, &v.layout) {
                all.push(format!("volume {} is {open:?}\nand should be {v:?}", v.name));
            }
        }
        for t in model.targets.values().filter(|t| moving || !own(&t.name, CLIENTS)) {
            if life.targets.get(&t.name).map(|t| &t.listen) != Some(&t.listen) {
                all.push(format!("target port {} does not listen", t.name));
            }
        }
        all
    }

    /// One pool's devices are missing or silent from the start: all else is in effect, and the pool is told of.
    pub(super) fn bad_start(&self, scene: &Scene, pool: &str) -> Result<(), Wrong> {
        scene.world.run_for(45 * SECONDS);
        scene.verdict()?;
        let model = self.c.model();
        let status = self.status(scene)?;
        let half: Vec<String> =
            scene.clients.borrow().iter().filter_map(|c| c.half_deleted.clone()).collect();
        if let Some(what) =
            self.not_open(&model, false, |p| p != pool && !half.iter().any(|h| h == p)).first()
        {
            return Err(Wrong(format!("beside pool {pool}, which is bad: {what}")));
        }
        let is_up = self.plane.life().pools.contains_key(pool);
        let is_told = status.faults.iter().any(|f| f.object == format!("pool/{pool}"));
        if is_up == is_told {
            let told: Vec<_> = status.faults.iter().map(|f| (&f.object, &f.text)).collect();
            return Err(Wrong(format!("pool {pool} is open: {is_up}; faults: {told:?}")));
        }
        Ok(())
    }
}

/// What is on devices, and nobody's.
fn left_over(model: &Model, medium: &Medium) -> Vec<String> {
    let mut all = Vec::new();
    let mut labels = BTreeMap::new();
    for p in model.pools.values() {
        let id = p.identity().map_or(0, |id| id.0);
        let paths: Vec<_> = p.devices.iter().map(|d| d.path.clone().unwrap_or_default()).collect();
        labels.extend(paths.iter().cloned().map(|path| (path, id)));
        let volumes: Vec<_> = model.volumes.values().filter(|v| v.pool == p.name).collect();
        if p.protection.is_none() {
            all.extend(medium.left_over(&paths, &volumes));
            continue;
        }
        let sets = volumes.iter().filter_map(|v| match &v.layout {
            Layout::Store { dataset, .. } => Some(dataset),
            _ => None,
        });
        let known: BTreeSet<_> = sets.collect();
        if let Some(store) = medium.stores.get(&id) {
            let nobodys = store.datasets.keys().filter(|d| !known.contains(d));
            all.extend(nobodys.map(|d| format!("dataset {d} of pool {} is no volume's", p.name)));
        }
        let nobodys = medium.nobodys(id, |d| known.iter().any(|k| *k == d));
        all.extend(nobodys.map(|s| format!("snapshot {s} of pool {} is no volume's", p.name)));
    }
    for (path, label) in labels {
        if medium.disks.get(&path).and_then(|d| d.label) != Some(label) {
            all.push(format!("{path} has lost its label"));
        }
    }
    all
}
