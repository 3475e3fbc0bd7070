//! One node's control plane as it ships, on the simulator's reactor, with a data plane of simulated devices.
//!
//! Clients change the configuration beside hosts' I/O, and somebody applies a file that also counts at each start. The process is killed, loses its power, or stops, at any moment, also in the
//! midst of a write to the configuration's file. Calls of the data plane fail before or after they have done their work, devices are
//! missing or silent, and the file system of the configuration runs full.

mod clients;
mod declared;
mod file;
mod hosts;
mod life;
mod medium;
mod moving;
mod plane;
mod snapshots;
mod trouble;
mod verdict;

use crate::{Pass, Run, Wrong};
use clients::Want;
use declared::Declared;
use file::ConfigFile;
use hosts::Judge;
use life::Life;
use plane::Ground;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use trouble::Trouble;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_sim::{Options, World};

/// Who changes the configuration.
const CLIENTS: usize = 3;

/// What outlives the node's processes.
struct Scene {
    world: World,
    ground: Arc<Mutex<Ground>>,
    file: RefCell<ConfigFile>,
    judge: RefCell<Judge>,
    clients: RefCell<Vec<Client>>,
    declared: RefCell<Declared>,
    /// Clients begin nothing more.
    quiet: Cell<bool>,
    /// A process has ended since all was well.
    ended: Cell<bool>,
    /// The pools that all have are there.
    furnished: Cell<bool>,
    wrong: RefCell<Option<String>>,
    /// Sizes that volumes may have again after a kill: what hosts see could not be recorded.
    former: RefCell<BTreeMap<String, u64>>,
    figures: RefCell<Figures>,
}

#[derive(Debug, Default)]
struct Client {
    want: Want,
    /// What may be instead: a command is under way, or was refused and is to be taken back.
    perhaps: Vec<Want>,
    busy: bool,
    /// Volumes that move or have been told to, and where they were and may be.
    moving: BTreeMap<String, BTreeSet<String>>,
    /// A pool of its own that is to be deleted, which failed: its devices may not be a pool's any more.
    half_deleted: Option<String>,
    /// A volume of which hosts may see another size than it is to have: it is to be moved next.
    unsettled: Option<String>,
}

#[derive(Debug, Default)]
struct Figures {
    done: u64,
    refused: u64,
    kills: u64,
    cuts: u64,
    in_change: u64,
    stops: u64,
    settled: u64,
    bad_starts: u64,
    deleted_again: u64,
    moved: u64,
    snapshots: u64,
    cloned: u64,
    reverted: u64,
    declared: u64,
}

impl Scene {
    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    fn verdict(&self) -> Result<(), Wrong> {
        let ground = self.ground.lock().ok().and_then(|g| g.wrong.clone());
        match self.wrong.borrow().clone().or(ground) {
            Some(what) => Err(Wrong(what)),
            None => Ok(()),
        }
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let world = run.world(Options::default());
    let mut rng = world.rng(1);
    let trouble = Trouble::none(rng.fork());
    let ground = Ground { medium: Default::default(), trouble, wrong: None, words: run.words };
    let scene = Rc::new(Scene {
        world,
        ground: Arc::new(Mutex::new(ground)),
        file: RefCell::default(),
        judge: RefCell::default(),
        clients: RefCell::new((0..CLIENTS).map(|_| Client::default()).collect()),
        declared: RefCell::default(),
        quiet: Cell::new(false),
        ended: Cell::new(false),
        furnished: Cell::new(false),
        wrong: RefCell::default(),
        former: RefCell::default(),
        figures: RefCell::default(),
    });
    let lives = rng.between(1, 5);
    for n in 0..lives {
        one_life(&scene, &mut rng, n + 1 == lives)?;
    }
    let f = scene.figures.borrow();
    let g = scene.ground.lock().map_err(|e| Wrong(e.to_string()))?;
    let figures = vec![
        ("commands done", f.done),
        ("commands refused", f.refused),
        ("kills", f.kills),
        ("power cuts", f.cuts),
        ("of them in a change", f.in_change),
        ("stops", f.stops),
        ("settled", f.settled),
        ("pools deleted again", f.deleted_again),
        ("volumes moved", f.moved),
        ("snapshots taken", f.snapshots),
        ("volumes made of snapshots", f.cloned),
        ("volumes reverted", f.reverted),
        ("objects as declared", f.declared),
        ("starts with a bad pool", f.bad_starts),
        ("calls that failed", g.trouble.failed),
        ("changes without room", scene.file.borrow().refused()),
        ("blocks read", scene.judge.borrow().reads),
    ];
    Ok(Pass { trace: scene.world.trace_hash(), figures })
}

/// What goes wrong for a while.
fn upset(scene: &Scene, rng: &mut Prng) {
    let Ok(mut g) = scene.ground.lock() else { return };
    let t = &mut g.trouble;
    t.failing = [0, 10, 60, 300][rng.below(4) as usize];
    t.slow = [0, 10, 100][rng.below(3) as usize];
    if rng.chance(1, 3) {
        scene.file.borrow().room(Some(rng.below(60)));
    }
}

fn calm(scene: &Scene) {
    if let Ok(mut g) = scene.ground.lock() {
        g.trouble.end();
    }
    scene.file.borrow().room(None);
}

/// One process, from its start to its end.
fn one_life(scene: &Rc<Scene>, rng: &mut Prng, last: bool) -> Result<(), Wrong> {
    let mut bad = None;
    if scene.furnished.get() && rng.chance(1, 3) {
        bad = Some(life::spoil(scene, rng));
    }
    let life = Life::begin(scene, rng)?;
    if let Some(pool) = bad {
        life.bad_start(scene, &pool)?;
        calm(scene);
        scene.figures.borrow_mut().bad_starts += 1;
    }
    life.work(scene, rng);
    for _ in 0..rng.below(4) {
        if rng.chance(1, 2) {
            upset(scene, rng);
        }
        scene.world.run_for(rng.between(20 * MILLIS, 12 * SECONDS));
        scene.verdict()?;
        if rng.chance(1, 3) {
            calm(scene);
        }
        if rng.chance(1, 4) {
            life.settle(scene)?;
        }
    }
    if last {
        life.settle(scene)?;
        life.stop(scene)?;
        return scene.verdict();
    }
    match rng.below(4) {
        0 => {
            calm(scene);
            life.stop(scene)?;
        }
        n => life.kill(scene, rng, n > 1)?,
    }
    scene.verdict()
}
