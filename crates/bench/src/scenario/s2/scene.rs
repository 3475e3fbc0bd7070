//! A pool of the comparison, with its volumes.

use super::load::{self, Figures, Load};
use crate::scenario::ScenarioError;
use crate::scenario::pooled::{files, store_failed, write_everywhere};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos};
use weir_block::Volume;
use weir_mem::Slice;
use weir_store::policy::{Charge, Keeper, News, Rule};
use weir_store::{Options, Pool, PoolSpec, create};
use weir_uring::Ring;

/// How versions are captured and purged.
pub(super) const RULE: &str = "every=1s,keep=2,group=s2";
/// Bytes of the volumes: data, log.
const VOLUMES: [(&str, u64); 2] = [("data", 512 << 20), ("log", 64 << 20)];
/// Bytes of the devices together.
const ROOM: u64 = 4 << 30;
/// Memory for maps: all of them fit.
const CACHE: usize = 64 << 20;
const RAMP: Nanos = 100 * MILLIS;

/// What a pool of the comparison does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Sums,
    Versions,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Plain, Kind::Sums, Kind::Versions];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "no checksums",
            Kind::Sums => "checksums",
            Kind::Versions => "checksums and versions",
        }
    }
}

pub(super) struct Scene {
    kind: Kind,
    pool: Pool,
    volumes: Vec<Rc<dyn Volume>>,
    keeper: Rc<Keeper>,
    trouble: Rc<RefCell<Option<String>>>,
}

impl Scene {
    /// Makes the pool and writes its volumes once all over.
    pub(super) async fn new(ring: &Ring, dir: &Path, kind: Kind) -> Result<Scene, ScenarioError> {
        let disks = files(ring, dir, &format!("pool{}", kind as usize), 4, ROOM / 4)?;
        // Tests tell nothing about speed, and sparse files take less of a disk.
        for d in disks.iter().filter(|_| !cfg!(test)) {
            let failed = |e| ScenarioError::System("a device of the pool".into(), e);
            write_everywhere(&**d).await.map_err(failed)?;
        }
        let spec = PoolSpec { overwrite: true, ..PoolSpec::fitting(7, 2, ROOM) };
        create(&disks, &spec).await.map_err(store_failed)?;
        let options = Options { sum_data: kind != Kind::Plain, cache: CACHE, ..Options::default() };
        let pool = Pool::open(disks, options).await.map_err(store_failed)?;
        let mut volumes: Vec<Rc<dyn Volume>> = Vec::new();
        for (name, len) in VOLUMES {
            let id = pool.create_volume(name, len, 512).await.map_err(store_failed)?;
            let v = pool.volume(id).map_err(store_failed)?;
            let buf = Slice::heap(1 << 20);
            buf.fill(0x5a);
            for at in (0..len).step_by(1 << 20) {
                let done = v.write(at, buf.clone(), false).await;
                done.map_err(|e| ScenarioError::Io(e.to_string()))?;
            }
            volumes.push(v);
        }
        let trouble = Rc::new(RefCell::new(None));
        let t = trouble.clone();
        let keeper = Keeper::start(pool.clone(), weir_reactor::now, move |news| {
            if let News::Trouble(_, why) = news {
                *t.borrow_mut() = Some(why);
            }
        });
        Ok(Scene { kind, pool, volumes, keeper, trouble })
    }

    async fn rules(&self, rules: &[Rule]) {
        let charge =
            |(name, _): &(&str, u64)| Charge { volume: name.to_string(), rules: rules.to_vec() };
        self.keeper.set(VOLUMES.iter().map(charge).collect()).await;
    }

    /// Measures once, with versions captured and purged meanwhile where they belong to it.
    pub(super) async fn measure(
        &self,
        load: &Load,
        time: Nanos,
    ) -> Result<Vec<Figures>, ScenarioError> {
        if self.kind == Kind::Versions {
            let rule: Result<Rule, _> = RULE.parse();
            self.rules(&[rule.map_err(|e| ScenarioError::Io(e.to_string()))?]).await;
        }
        let found = load::run(&self.volumes, load, RAMP, time).await;
        self.rules(&[]).await;
        // What is left to do of these writes is not the next measurement's.
        self.pool.checkpoint().await.map_err(store_failed)?;
        match self.trouble.borrow_mut().take() {
            Some(why) => Err(ScenarioError::Io(format!("versions: {why}"))),
            None => found.map_err(|e| ScenarioError::Io(e.to_string())),
        }
    }

    /// Snapshots that are there.
    #[cfg(test)]
    pub(super) fn versions(&self) -> usize {
        self.pool.datasets().iter().filter(|d| d.snapshot && !d.deleting).count()
    }

    pub(super) async fn close(self) -> Result<(), ScenarioError> {
        self.keeper.stop().await;
        self.pool.close().await.map_err(store_failed)
    }
}
