//! One process of the node: its start, its work, and its end.

use super::clients::{self, Step, Want, pool};
use super::declared;
use super::medium::BLOCK;
use super::plane::Plane;
use super::{CLIENTS, Scene, calm};
use crate::Wrong;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_control::model::{Command, Volume};
use weir_control::store::MetaStore;
use weir_control::{Controller, Stopping};
use weir_sim::Node;

/// How long anything may take that is waited for when all is well.
const LONG: Nanos = 200 * SECONDS;

pub(super) struct Life {
    pub(super) node: Node,
    pub(super) plane: Arc<Plane>,
    pub(super) c: Arc<Controller>,
    dead: Arc<AtomicBool>,
}

/// Spoils devices of a pool that is not open yet. Gives the pool.
pub(super) fn spoil(scene: &Scene, rng: &mut Prng) -> String {
    let name = format!("p{}", rng.below(2));
    if let Ok(mut g) = scene.ground.lock() {
        let is_silent = rng.chance(1, 2);
        let t = &mut g.trouble;
        let which = if is_silent { &mut t.silent } else { &mut t.missing };
        which.insert(format!("/sim/{name}.{}", rng.below(2)));
        if rng.chance(1, 3) {
            which.extend((0..2).map(|n| format!("/sim/{name}.{n}")));
        }
    }
    name
}

impl Life {
    /// Starts the process. It comes up by itself.
    pub(super) fn begin(scene: &Rc<Scene>, rng: &mut Prng) -> Result<Life, Wrong> {
        let node = scene.world.node("node");
        node.restart();
        let file = scene.file.borrow().clone();
        let dead = file.dead();
        let plane = Plane::new(scene.ground.clone(), dead.clone());
        let p = plane.clone();
        let file_says = scene.declared.borrow().file.clone();
        let declared = file_says.clone();
        let opened = scene.world.run(&node, LONG, async move {
            let store = MetaStore::open_on(file)?;
            let (dir, stopping) = (Path::new("/nowhere"), Stopping::default());
            Controller::open_on(store, dir, p, Vec::new(), declared, stopping).await
        })?;
        let c = opened.map_err(|e| Wrong(format!("the node does not start: {e}")))?;
        let life = Life { node, plane, c, dead };
        life.resolve(scene)?;
        let c = life.c.clone();
        life.node.spawn(async move {
            if c.come_up().await.is_ok() {
                c.declare_at_start(file_says).await;
                c.started();
            }
        });
        if !scene.furnished.get() {
            for (name, raid) in [("p0", None), ("p1", Some("1"))] {
                let made =
                    life.command(scene, Command::CreatePool(pool(name, 2, raid, 24 * BLOCK)));
                made?.map_err(|e| Wrong(format!("pool {name} cannot be made: {e}")))?;
            }
            scene.furnished.set(true);
        }
        scene.quiet.set(false);
        let _ = rng;
        Ok(life)
    }

    pub(super) fn command(
        &self,
        scene: &Scene,
        command: Command,
    ) -> Result<Result<(), weir_control::Error>, Wrong> {
        let c = self.c.clone();
        let done = scene.world.run(&self.node, LONG, async move {
            c.after_start().await?;
            c.execute(command).await.map(drop)
        });
        Ok(done?)
    }

    /// What is in force of what was under way when the process before ended: each command wholly, or not at all.
    fn resolve(&self, scene: &Scene) -> Result<(), Wrong> {
        let model = self.c.model();
        for (k, client) in scene.clients.borrow_mut().iter_mut().enumerate() {
            let found = Want::of(&model, k);
            let former = scene.former.borrow();
            let is_it = |w: &Want| w.as_found(&found, &former, &client.moving) == found;
            if !is_it(&client.want) && !client.perhaps.iter().any(is_it) {
                return Err(Wrong(format!(
                    "after the end of a process client {k} has {found:?}\nand not {:?}\nnor {:?}\nformer sizes {former:?}",
                    client.want, client.perhaps
                )));
            }
            client.want = found;
            client.perhaps.clear();
            client.busy = false;
        }
        let mut declared = scene.declared.borrow_mut();
        declared.check(&model)?;
        declared.busy = false;
        let mut judge = scene.judge.borrow_mut();
        judge.copied(&mut self.plane.ground().medium)?;
        judge.ended();
        judge.settled(&model);
        Ok(())
    }

    /// Has clients and hosts work.
    pub(super) fn work(&self, scene: &Rc<Scene>, rng: &mut Prng) {
        for k in 0..CLIENTS {
            let (scene, c, dead) = (scene.clone(), self.c.clone(), self.dead.clone());
            let mut rng = rng.fork();
            self.node.spawn(async move {
                while !dead.load(Relaxed) {
                    weir_reactor::sleep(rng.between(1, 800) * MILLIS).await;
                    if !scene.quiet.get() {
                        one_command(&scene, &c, &dead, k, &mut rng).await;
                    }
                }
            });
        }
        let (shared, c, dead) = (scene.clone(), self.c.clone(), self.dead.clone());
        let mut chance = rng.fork();
        self.node.spawn(async move { declared::work(&shared, &c, &dead, &mut chance).await });
        let (scene, plane, dead) = (scene.clone(), self.plane.clone(), self.dead.clone());
        let c = self.c.clone();
        let mut rng = rng.fork();
        self.node.spawn(async move {
            while !dead.load(Relaxed) {
                weir_reactor::sleep(rng.between(1, 100) * MILLIS).await;
                if let Err(e) = scene.judge.borrow_mut().touch(&plane, &c.model(), &mut rng) {
                    scene.wrong(e);
                }
            }
        });
    }

    /// The process is killed, or with `power` the machine: at once, or in the midst of a change.
    pub(super) fn kill(self, scene: &Scene, rng: &mut Prng, power: bool) -> Result<(), Wrong> {
        if rng.chance(1, 2) {
            scene.file.borrow().kill_after(rng.below(40));
            let dead = self.dead.clone();
            if scene.world.run_until(5 * SECONDS, || dead.load(Relaxed)).is_ok() {
                scene.figures.borrow_mut().in_change += 1;
            }
        }
        {
            let mut f = scene.figures.borrow_mut();
            *(if power { &mut f.cuts } else { &mut f.kills }) += 1;
        }
        let model = self.c.model();
        let unsure = model.volumes.values().filter(|v| v.is_size_unrecorded());
        let former = unsure.filter_map(|v| Some((v.name.clone(), v.cut?.from))).collect();
        scene.former.replace(former);
        let next = scene.file.borrow().next_life(power.then_some(rng));
        self.node.kill();
        scene.file.replace(next);
        scene.ended.set(true);
        drop(self);
        calm(scene);
        Ok(())
    }

    /// The process is told to stop, and does.
    pub(super) fn stop(self, scene: &Scene) -> Result<(), Wrong> {
        scene.quiet.set(true);
        let c = self.c.clone();
        let begun = scene.world.now();
        let done = scene.world.run(&self.node, LONG, async move { c.shutdown().await })?;
        if let Err(e) = done {
            return Err(Wrong(format!("an orderly stop leaves something open: {e}")));
        }
        if scene.world.now() - begun > 46 * SECONDS {
            return Err(Wrong("a stop takes longer than 46 s".into()));
        }
        let open = self.plane.life();
        if !(open.pools.is_empty() && open.volumes.is_empty() && open.targets.is_empty()) {
            let all = (open.pools.keys(), open.volumes.keys(), open.targets.keys());
            return Err(Wrong(format!("open after a stop: {all:?}")));
        }
        drop(open);
        scene.figures.borrow_mut().stops += 1;
        scene.ended.set(true);
        self.node.kill();
        let next = scene.file.borrow().next_life(None);
        scene.file.replace(next);
        Ok(())
    }
}

/// Has a volume move, or stay. Which of the two it does is found out when it has come to rest.
async fn one_move(scene: &Scene, c: &Arc<Controller>, dead: &AtomicBool, k: usize, step: Step) {
    {
        let mut all = scene.clients.borrow_mut();
        all[k].busy = true;
        if let Step::Move(name, spec) = &step
            && let Some(from) = all[k].want.volumes.get(name).map(|v| v.0.clone())
        {
            let pools = all[k].moving.entry(name.clone()).or_default();
            pools.extend(spec.pool.clone().into_iter().chain([from]));
        }
    }
    scene.world.say(|| format!("client {k}: {step:?}"));
    let reverts = match &step {
        Step::Revert(volume, _) => c.model().volumes.get(volume).map(|v| v.naa),
        _ => None,
    };
    if let Some(naa) = reverts {
        scene.judge.borrow_mut().reverts(naa, true);
    }
    let snaps = matches!(&step, Step::Snap(..));
    let done = match step {
        Step::Move(name, spec) => c.start_migration(name, spec).await.map(drop),
        Step::Stay(name) => c.cancel_migration(name).await.map(drop),
        Step::Snap(volume, name) => c.take_snapshots(vec![(volume, name)]).await.map(drop),
        Step::Unsnap(volume, name) => c.delete_snapshot(volume, name).await,
        Step::Revert(volume, name) => c.revert(volume, name).await.map(drop),
        Step::Do(_) | Step::Clone(_) => Ok(()),
    };
    if dead.load(Relaxed) {
        std::future::pending::<()>().await;
    }
    if let Some(naa) = reverts {
        copied(scene);
        scene.judge.borrow_mut().reverts(naa, false);
    }
    scene.world.say(|| format!("client {k}: {done:?}"));
    scene.clients.borrow_mut()[k].busy = false;
    let mut f = scene.figures.borrow_mut();
    f.snapshots += u64::from(snaps && done.is_ok());
    f.reverted += u64::from(reverts.is_some() && done.is_ok());
    *(if done.is_ok() { &mut f.done } else { &mut f.refused }) += 1;
}

/// Has the judge know of what has become a copy of a snapshot.
fn copied(scene: &Scene) {
    let mut judge = scene.judge.borrow_mut();
    let copied = scene.ground.lock().map(|mut g| judge.copied(&mut g.medium));
    if let Ok(Err(e)) = copied {
        scene.wrong(e);
    }
}

async fn one_command(
    scene: &Scene,
    c: &Arc<Controller>,
    dead: &AtomicBool,
    k: usize,
    rng: &mut Prng,
) {
    let was = scene.clients.borrow()[k].want.clone();
    let unsettled = scene.clients.borrow_mut()[k].unsettled.take().filter(|_| rng.chance(1, 2));
    let next = match unsettled {
        Some(name) => Some((clients::moves(name, rng), was.clone())),
        None => clients::next(k, &was, rng),
    };
    let Some((step, mut is)) = next else { return };
    let (command, clone) = match step {
        Step::Do(command) => (command, None),
        Step::Clone(spec) => {
            let all = c.snapshots(Some(&spec.volume)).await.unwrap_or_default();
            let of = all.into_iter().find(|s| s.name == spec.snapshot);
            let Some(of) = of else { return };
            is.volumes.insert(spec.name.clone(), (of.pool, of.size, spec.read_only));
            (Command::CloneVolume { spec: spec.clone(), size: of.size }, Some(spec))
        }
        other => return one_move(scene, c, dead, k, other).await,
    };
    let touched = match &command {
        Command::DeleteVolume { name } => Some((name, None)),
        Command::PatchVolume { name, patch } => patch.size.map(|s| (name, Some(s))),
        _ => None,
    };
    let model = c.model();
    let touched = touched.and_then(|(name, size)| Some((model.volumes.get(name)?.naa, name, size)));
    let touched = touched.map(|(naa, name, size)| (naa, name.clone(), size));
    if let Some((naa, _, size)) = &touched {
        scene.judge.borrow_mut().asked(*naa, *size);
    }
    let pool = match &command {
        Command::DeletePool { name } => Some(name.clone()),
        _ => None,
    };
    {
        let mut all = scene.clients.borrow_mut();
        all[k].perhaps.push(is.clone());
        all[k].half_deleted = pool.or(all[k].half_deleted.take());
        all[k].busy = true;
    }
    scene.world.say(|| format!("client {k}: {command:?}"));
    let deletes = matches!(&command, Command::DeleteVolume { .. });
    let clones = clone.is_some();
    let done = match clone {
        Some(spec) => c.clone_volume(spec).await,
        None => c.execute(command).await,
    };
    if dead.load(Relaxed) {
        std::future::pending::<()>().await;
    }
    scene.world.say(|| format!("client {k}: {:?}", done.as_ref().map(|m| m.revision)));
    let owed = c.owes();
    let mut all = scene.clients.borrow_mut();
    let client = &mut all[k];
    client.busy = false;
    client.unsettled = match &touched {
        Some((_, name, Some(_))) if done.is_err() => Some(name.clone()),
        _ => None,
    };
    // It may have been made smaller, or larger, in another place since.
    let is = is.as_found(&Want::of(&c.model(), k), &BTreeMap::new(), &client.moving);
    // A deletion that has been answered with an error may have begun: then it goes on by itself.
    let begun = deletes && Want::of(&c.model(), k) == is;
    let ok = done.is_ok();
    match done {
        Err(_) if begun => {
            client.want = is;
            client.perhaps.clear();
        }
        Ok(_) => {
            client.want = is;
            if !owed {
                client.perhaps.clear();
            }
            let mut f = scene.figures.borrow_mut();
            f.done += 1;
            f.cloned += u64::from(clones);
        }
        Err(_) => {
            if !owed {
                client.perhaps.clear();
            }
            scene.figures.borrow_mut().refused += 1;
        }
    }
    // Of what is on its way out hosts may see this or that for as long as it is there.
    if let Some((naa, name, _)) = touched
        && let Some(v) = client.want.volumes.get(&name)
    {
        // What it was made of counts before what was cut off since.
        copied(scene);
        let mut judge = scene.judge.borrow_mut();
        let unrecorded = c.model().volumes.get(&name).is_some_and(Volume::is_size_unrecorded);
        match owed || unrecorded {
            true if ok => judge.agreed(naa, v.1),
            true => {}
            false => judge.told(naa, v.1),
        }
    }
}
