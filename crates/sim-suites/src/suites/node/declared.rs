//! A configuration file: what it declares, and that it is so in the end, whatever goes wrong beside it.

use super::clients::{own, pool, target};
use super::life::Life;
use super::medium::BLOCK;
use super::{CLIENTS, Scene};
use crate::Wrong;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weir_base::{Prng, SECONDS};
use weir_control::declare::{ApplySpec, Desired};
use weir_control::model::{Command, HostSpec, MapSpec, Model, VolumeSpec, VolumeState};
use weir_control::{Controller, Error};

/// Its objects' names end in this.
const OWN: usize = CLIENTS;
/// Its pool.
const POOL: &str = "d0-3";

/// What a file has declared.
#[derive(Debug, Default)]
pub(super) struct Declared {
    pub(super) file: Desired,
    /// What each of its objects may be until all is well; none: it need not be there.
    may: BTreeMap<String, BTreeSet<Option<String>>>,
    pub(super) busy: bool,
}

/// What objects are, by name.
type Objects = BTreeMap<String, String>;

fn declared(file: &Desired) -> Objects {
    let mut all = Objects::new();
    for p in &file.pools {
        all.insert(format!("pool/{}", p.name), p.devices.len().to_string());
    }
    for v in &file.volumes {
        let is = format!("{} {} {}", v.pool, v.size, v.read_only);
        all.insert(format!("volume/{}", v.name), is);
    }
    for h in &file.hosts {
        let ports: BTreeSet<String> = h.ports.iter().map(ToString::to_string).collect();
        all.insert(format!("host/{}", h.name), format!("{ports:?}"));
    }
    for m in &file.maps {
        all.insert(format!("map/{}/{}", m.host, m.volume), String::new());
    }
    for t in &file.targets {
        all.insert(format!("target/{}", t.name), format!("{:?}", t.listen));
    }
    all
}

fn configured(model: &Model) -> Objects {
    let own = |name: &str| own(name, OWN);
    let mut all = Objects::new();
    for p in model.pools.values().filter(|p| own(&p.name)) {
        all.insert(format!("pool/{}", p.name), p.devices.len().to_string());
    }
    let there = |v: &&weir_control::model::Volume| v.state != VolumeState::Deleting;
    for v in model.volumes.values().filter(|v| own(&v.name)).filter(there) {
        let is = format!("{} {} {}", v.pool, v.size, v.read_only);
        all.insert(format!("volume/{}", v.name), is);
    }
    for h in model.hosts.values().filter(|h| own(&h.name)) {
        let ports: BTreeSet<String> = h.ports.iter().map(ToString::to_string).collect();
        all.insert(format!("host/{}", h.name), format!("{ports:?}"));
    }
    for m in model.maps.iter().filter(|m| own(&m.host)) {
        all.insert(format!("map/{}/{}", m.host, m.volume), String::new());
    }
    for t in model.targets.values().filter(|t| own(&t.name)) {
        all.insert(format!("target/{}", t.name), format!("{:?}", t.listen));
    }
    all
}

impl Declared {
    fn may_be(&mut self, all: &Objects) {
        for (object, is) in all {
            let may = self.may.entry(object.clone()).or_insert_with(|| [None].into());
            may.insert(Some(is.clone()));
        }
    }

    /// What a configuration has of it must be something that was there, or was declared, since all was well.
    pub(super) fn check(&self, model: &Model) -> Result<(), Wrong> {
        let found = configured(model);
        for (object, may) in &self.may {
            let is = found.get(object).cloned();
            if !may.contains(&is) {
                return Err(Wrong(format!("{object} is {is:?}, and may be {may:?}")));
            }
        }
        match found.keys().find(|o| !self.may.contains_key(*o)) {
            Some(o) => Err(Wrong(format!("{o} is there, and was never declared"))),
            None => Ok(()),
        }
    }

    /// All is well: what is there is known.
    fn settled(&mut self, model: &Model) {
        let found = configured(model);
        self.may = found.into_iter().map(|(o, is)| (o, [Some(is)].into())).collect();
    }
}

/// The file as it is edited. What it had before and is there yet does not come back.
fn edited(was: &Desired, model: &Model, rng: &mut Prng) -> Desired {
    let mut is = was.clone();
    let n = rng.below(2);
    let name = |what: &str| format!("{what}{n}-{OWN}");
    match rng.below(9) {
        0 | 1 if is.pools.is_empty() => is.pools.push(pool(POOL, 2, Some("1"), 64 * BLOCK)),
        0..=2 => {
            let own = rng.chance(1, 2) && !is.pools.is_empty();
            let is_new = is.volumes.iter().all(|v| v.name != name("v"));
            if is_new && !model.volumes.contains_key(&name("v")) {
                let pool = if own { POOL } else { "p1" };
                is.volumes.push(VolumeSpec::new(name("v"), pool, rng.between(1, 3) * BLOCK));
            }
        }
        3 => is.volumes.iter_mut().for_each(|v| v.size += rng.below(2) * BLOCK),
        4 => is.volumes.iter_mut().for_each(|v| v.read_only ^= rng.chance(1, 2)),
        5 => {
            let port = format!("{:x}:{:x}", OWN + 1, 16 + n * 2 + rng.below(2));
            is.hosts.retain(|h| h.name != name("h"));
            let ports = port.parse().into_iter().collect();
            is.hosts.push(HostSpec { name: name("h"), ports, ..HostSpec::default() });
        }
        6 => {
            if let (Some(h), Some(v)) = (is.hosts.first(), is.volumes.last())
                && is.maps.iter().all(|m| (&m.host, &m.volume) != (&h.name, &v.name))
            {
                let (host, volume) = (h.name.clone(), v.name.clone());
                is.maps.push(MapSpec { host, volume, lun: None });
            }
        }
        7 => {
            let listen = format!("127.0.0.1:{}", 5300 + 2 * n + rng.below(2));
            is.targets.retain(|t| t.name != name("t"));
            is.targets.push(target(&name("t"), listen));
        }
        _ => {
            // Mappings go first, and what they are of with them.
            is.maps.clear();
            is.volumes.retain(|_| rng.chance(2, 3));
            is.hosts.retain(|_| rng.chance(2, 3));
            is.targets.retain(|_| rng.chance(2, 3));
        }
    }
    is
}

fn spec(file: &Desired) -> ApplySpec {
    let Desired { pools, volumes, hosts, maps, targets } = file.clone();
    ApplySpec { pools, volumes, hosts, maps, targets, ..ApplySpec::default() }
}

/// What is there and declared no more goes by hand, in the order in which it can.
fn leftover(model: &Model, file: &Desired) -> Option<Command> {
    let (found, wanted) = (configured(model), declared(file));
    let gone = |o: &&String| !wanted.contains_key(*o);
    let all: Vec<&String> = found.keys().filter(gone).collect();
    let of = |kind: &str| all.iter().find_map(|o| o.strip_prefix(kind)).map(str::to_owned);
    if let Some((host, volume)) = of("map/").as_deref().and_then(|m| m.split_once('/')) {
        return Some(Command::DeleteMap { host: host.into(), volume: volume.into() });
    }
    let volume = of("volume/").map(|name| Command::DeleteVolume { name });
    let host = || of("host/").map(|name| Command::DeleteHost { name });
    volume.or_else(host).or_else(|| of("target/").map(|name| Command::DeleteTarget { name }))
}

/// One who edits the file and applies it, or deletes what it has no more.
pub(super) async fn work(scene: &Scene, c: &Arc<Controller>, dead: &AtomicBool, rng: &mut Prng) {
    while !dead.load(Relaxed) {
        weir_reactor::sleep(rng.between(SECONDS / 4, 3 * SECONDS)).await;
        if !scene.quiet.get() {
            scene.declared.borrow_mut().busy = true;
            step(scene, c, rng).await;
            if dead.load(Relaxed) {
                std::future::pending::<()>().await;
            }
            scene.declared.borrow_mut().busy = false;
        }
    }
}

async fn step(scene: &Scene, c: &Arc<Controller>, rng: &mut Prng) {
    let was = scene.declared.borrow().file.clone();
    let gone = leftover(&c.model(), &was).filter(|_| rng.chance(2, 3));
    if let Some(command) = gone {
        scene.world.say(|| format!("by hand: {command:?}"));
        if let Command::DeleteVolume { name } = &command
            && let Some(v) = c.model().volumes.get(name)
        {
            scene.judge.borrow_mut().asked(v.naa, None);
        }
        let object = match &command {
            Command::DeleteMap { host, volume } => format!("map/{host}/{volume}"),
            Command::DeleteVolume { name } => format!("volume/{name}"),
            Command::DeleteHost { name } => format!("host/{name}"),
            Command::DeleteTarget { name } => format!("target/{name}"),
            _ => String::new(),
        };
        scene.declared.borrow_mut().may.entry(object).or_default().insert(None);
        let done = c.execute(command).await;
        return scene.world.say(|| format!("by hand: {:?}", done.as_ref().map(|m| m.revision)));
    }
    let is = edited(&was, &c.model(), rng);
    {
        let mut d = scene.declared.borrow_mut();
        d.may_be(&declared(&is));
        d.file = is.clone();
    }
    scene.world.say(|| format!("the file: {:?}", declared(&is)));
    let done = match rng.chance(1, 4) {
        true => c.declare(is).await,
        false => c.apply(spec(&is)).await,
    };
    scene.world.say(|| format!("the file: {done:?}"));
}

impl Life {
    /// All is well: what the file declares can be made so, is so, and making it so again changes nothing.
    pub(super) fn declared(&self, scene: &Scene) -> Result<(), Wrong> {
        let file = scene.declared.borrow().file.clone();
        self.delete_waiting(scene, &file)?;
        let [_, mut failed] = self.apply(scene, &file)?;
        // What a refused pool left on its devices when the process ended is nobody's, and goes by hand.
        if scene.ended.get() && !failed.is_empty() && !self.c.model().pools.contains_key(POOL) {
            for n in 0..2 {
                self.plane.ground().medium.disks.remove(&format!("/sim/{POOL}.{n}"));
            }
            [_, failed] = self.apply(scene, &file)?;
        }
        // One that was refused in another pool, or larger, may have been found at a start: it is to be deleted by hand.
        for name in self.otherwise(&file) {
            let naa = self.c.model().volumes[&name].naa;
            scene.judge.borrow_mut().asked(naa, None);
            let (c, command) = (self.c.clone(), Command::DeleteVolume { name });
            let done = scene
                .world
                .run(&self.node, 200 * SECONDS, async move { c.execute(command).await })?;
            done.map_err(|e| Wrong(format!("what was refused stays where it is: {e}")))?;
            [_, failed] = self.apply(scene, &file)?;
        }
        // What is being deleted of something that was refused goes first.
        for _ in 0..20 {
            if failed.is_empty() {
                break;
            }
            scene.world.run_for(3 * SECONDS);
            [_, failed] = self.apply(scene, &file)?;
        }
        if let Some(what) = failed.first() {
            return Err(Wrong(format!("it cannot be as declared: {what}")));
        }
        let [applied, failed] = self.apply(scene, &file)?;
        if let Some(what) = applied.first().or(failed.first()) {
            return Err(Wrong(format!("what was applied changes things again: {what}")));
        }
        let (found, wanted) = (configured(&self.c.model()), declared(&file));
        for (object, is) in &wanted {
            if found.get(object) != Some(is) {
                let found = found.get(object);
                return Err(Wrong(format!("{object} is {found:?}, and declared to be {is}")));
            }
        }
        let mut d = scene.declared.borrow_mut();
        d.may_be(&wanted);
        d.check(&self.c.model())?;
        d.settled(&self.c.model());
        scene.figures.borrow_mut().declared += wanted.len() as u64;
        Ok(())
    }

    /// A port that the file has no more may wait for a mapping to a host that went by hand: it goes by hand, too.
    fn delete_waiting(&self, scene: &Scene, file: &Desired) -> Result<(), Wrong> {
        let is_known = |name: &str| file.targets.iter().any(|t| t.name == name);
        for fault in self.status(scene)?.faults {
            let Some(name) = fault.object.strip_prefix("declared/target/") else { continue };
            if !is_known(name) && self.c.model().targets.contains_key(name) {
                let (c, name) = (self.c.clone(), name.to_owned());
                let object = format!("target/{name}");
                scene.declared.borrow_mut().may.entry(object).or_default().insert(None);
                let done = scene.world.run(&self.node, 200 * SECONDS, async move {
                    c.execute(Command::DeleteTarget { name }).await
                })?;
                done.map_err(|e| Wrong(format!("a port stays that waits: {e}")))?;
            }
        }
        Ok(())
    }

    /// Volumes that are in another pool than the file has them in, or larger: as it had them when that was refused.
    fn otherwise(&self, file: &Desired) -> Vec<String> {
        let model = self.c.model();
        let is_otherwise = |v: &&VolumeSpec| {
            let found = model.volumes.get(&v.name).filter(|f| f.state == VolumeState::Ready);
            found.is_some_and(|f| f.pool != v.pool || f.size > v.size)
        };
        file.volumes.iter().filter(is_otherwise).map(|v| v.name.clone()).collect()
    }

    /// What was changed, and what could not be.
    fn apply(&self, scene: &Scene, file: &Desired) -> Result<[Vec<String>; 2], Wrong> {
        let (c, spec) = (self.c.clone(), spec(file));
        let done =
            scene.world.run(&self.node, 200 * SECONDS, async move { c.apply(spec).await })?;
        let report =
            done.map_err(|e: Error| Wrong(format!("nothing of what is declared was tried: {e}")))?;
        let applied = report.applied.iter().map(|a| format!("{a:?}")).collect();
        Ok([applied, report.failed.iter().map(|f| format!("{f:?}")).collect()])
    }
}
