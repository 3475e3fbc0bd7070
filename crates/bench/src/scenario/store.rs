//! What protection costs: the pool store without and with checksums of the data, and with steady snapshots.

use super::page::{Page, Section, Table};
use super::pooled::{Folder, alone, store_failed, write_everywhere};
use super::runner::Runner;
use super::{Scenario, ScenarioError};
use crate::engine::{JobResult, JobTask, Lane, Options, Progress, run_jobs};
use crate::job::{JobSpec, Rw};
use crate::local::LocalDisk;
use crate::units;
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_mem::Slice;
use weir_reactor::{PollMode, Token, complete, sleep, spawn};
use weir_store::{Counters, Options as PoolOptions, Pool, PoolSpec, StoreError, create};
use weir_uring::{FileDisk, OpenOptions, Ring};

pub(super) const OVERHEAD: Scenario = Scenario {
    name: "store-overhead",
    title: "The store: what checksums and snapshots cost, and writes to the media",
    run,
};

/// Bytes of each volume.
pub(super) const VOLUME: u64 = if cfg!(test) { 16 << 20 } else { 256 << 20 };
/// Bytes of the devices of a pool together, for each byte of the volume: two copies of it, of what snapshots keep, and of what is
/// being deleted.
const ROOM: u64 = 12;
/// Memory for maps: all of them fit, as in a pool whose cache suits it.
const CACHE: usize = 64 << 20;
/// Snapshots that are kept; older ones are deleted.
const KEEP: usize = 2;
const SNAPSHOT_EVERY: Nanos = SECONDS;
/// Where Linux has a file system in memory.
const SHM: &str = "/dev/shm";

/// What a pool of the comparison does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Sums,
    Snapshots,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Sums, Kind::Snapshots];

/// What the devices are.
#[derive(Debug, Clone)]
pub(super) enum Backing {
    /// Two in memory, which complete at once.
    Memory,
    /// Four files on a file system in memory.
    Tmpfs(PathBuf),
    /// Four files.
    Files(PathBuf),
}

impl Backing {
    /// All there are, with the folders that some of them live in.
    pub(super) fn all() -> Result<(Vec<Backing>, Vec<Folder>), ScenarioError> {
        let files = Folder::new(&std::env::temp_dir(), "store-bench")?;
        let shm = Folder::new(Path::new(SHM), "store-bench").ok();
        let mut all = vec![Backing::Memory];
        all.extend(shm.as_ref().map(|f| Backing::Tmpfs(f.0.clone())));
        all.push(Backing::Files(files.0.clone()));
        Ok((all, shm.into_iter().chain([files]).collect()))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Backing::Memory => "memory",
            Backing::Tmpfs(_) => "tmpfs",
            Backing::Files(_) => "files",
        }
    }

    async fn disks(&self, ring: &Ring, kind: usize) -> std::io::Result<Vec<Rc<dyn Disk>>> {
        let dir = match self {
            Backing::Memory => {
                return Ok((0..2).map(|n| Memory::disk(n, VOLUME * ROOM / 2)).collect());
            }
            Backing::Files(dir) | Backing::Tmpfs(dir) => dir,
        };
        let mut all: Vec<Rc<dyn Disk>> = Vec::new();
        for n in 0..4 {
            let path = dir.join(format!("pool{kind}-{n}.img"));
            let len = VOLUME * ROOM / 4;
            let o = OpenOptions { create: true, len: Some(len), direct: true, read_only: false };
            let disk: Rc<dyn Disk> = Rc::new(FileDisk::open(ring, &path, o)?);
            write_everywhere(&*disk).await?;
            all.push(disk);
        }
        Ok(all)
    }
}

/// A device in memory.
struct Memory {
    name: String,
    all: Slice,
}

impl Memory {
    fn disk(n: usize, len: u64) -> Rc<dyn Disk> {
        let all = Slice::heap(len as usize);
        // Not while it is measured.
        all.fill(0);
        Rc::new(Memory { name: format!("memory {n}"), all })
    }
}

impl Disk for Memory {
    fn len(&self) -> u64 {
        self.all.len() as u64
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn volatile_cache(&self) -> bool {
        true
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn submit(&self, op: DiskOp, token: Token) {
        match op {
            DiskOp::Read { offset, buf } => buf.copy_from(0, &self.all, offset as usize, buf.len()),
            DiskOp::Write { offset, buf, .. } => {
                self.all.stream_from(offset as usize, &buf, 0, buf.len());
            }
            DiskOp::WriteZeroes { offset, len, .. } => {
                self.all.sub(offset as usize, len as usize).fill(0);
            }
            DiskOp::Flush | DiskOp::Discard { .. } => {}
        }
        complete(token, report(Ok(())));
    }
}

/// One workload on one backing.
struct Found {
    spec: JobSpec,
    /// I/Os per second of each kind of pool, medians.
    iops: [f64; KINDS.len()],
    /// What checksums and snapshots cost in percent: medians of the rounds, in each of which all kinds are measured in a row.
    costs: [f64; 2],
    /// Blocks written to each copy for each block that the volume wrote, with checksums.
    media: Option<f64>,
}

/// A pool with one volume, filled.
pub(super) struct Scene {
    kind: Kind,
    pub(super) pool: Pool,
    pub(super) volume: u32,
    client: Rc<LocalDisk>,
}

impl Scene {
    pub(super) async fn new(
        backing: &Backing,
        ring: &Ring,
        kind: Kind,
    ) -> Result<Scene, ScenarioError> {
        let disks = backing
            .disks(ring, kind as usize)
            .await
            .map_err(|e| ScenarioError::System("a device of the pool".into(), e))?;
        let spec = PoolSpec { overwrite: true, ..PoolSpec::fitting(7, 2, VOLUME * ROOM) };
        create(&disks, &spec).await.map_err(store_failed)?;
        let options =
            PoolOptions { sum_data: kind != Kind::Plain, cache: CACHE, ..PoolOptions::default() };
        let pool = Pool::open(disks, options).await.map_err(store_failed)?;
        let made = pool.create_volume("v", VOLUME, 4096).await;
        let volume = made.map_err(store_failed)?;
        let client = Rc::new(LocalDisk::of(pool.volume(volume).map_err(store_failed)?));
        let scene = Scene { kind, pool, volume, client };
        let fill = JobSpec {
            name: "fill".into(),
            rw: Rw::Write,
            bs: 1 << 20,
            iodepth: 4,
            runtime: None,
            ..JobSpec::default()
        };
        scene.load(&fill).await?;
        Ok(scene)
    }

    pub(super) async fn load(&self, spec: &JobSpec) -> Result<f64, ScenarioError> {
        let span = spec.span(VOLUME, 4096, 0, 1);
        let span = span.map_err(|e| ScenarioError::Io(e.to_string()))?;
        let lane = Lane::new(self.client.clone(), span, spec, 0);
        let jobs = vec![JobTask::new(0, spec, vec![lane])];
        let all = run_jobs(jobs, &Options::default(), &Progress::default()).await;
        let j = JobResult::merge(&all);
        match j.first_error.clone() {
            Some(e) => Err(ScenarioError::Io(format!("{}: {e}", spec.name))),
            None => Ok(j.iops()),
        }
    }

    /// Measures once, with snapshots meanwhile where they belong to it.
    async fn measure(&self, spec: &JobSpec) -> Result<f64, ScenarioError> {
        let over = Rc::new(Cell::new(false));
        let (pool, volume, stop) = (self.pool.clone(), self.volume, over.clone());
        let capture = (self.kind == Kind::Snapshots).then(|| {
            spawn(async move {
                let mut taken = Vec::new();
                for n in 0u64.. {
                    sleep(SNAPSHOT_EVERY / 2).await;
                    if stop.get() {
                        break;
                    }
                    taken.extend(pool.snapshot(&[(volume, &format!("s{n}"))], n).await?);
                    if taken.len() > KEEP {
                        pool.delete(taken.remove(0)).await?;
                    }
                    sleep(SNAPSHOT_EVERY / 2).await;
                }
                for s in taken {
                    pool.delete(s).await?;
                }
                Ok::<(), StoreError>(())
            })
        });
        let rate = self.load(spec).await;
        over.set(true);
        if let Some(c) = capture {
            c.await.unwrap_or(Ok(())).map_err(store_failed)?;
        }
        // What is left to do of these writes is not the next measurement's.
        self.pool.checkpoint().await.map_err(store_failed)?;
        rate
    }
}

fn media(before: &Counters, after: &Counters) -> Option<f64> {
    let blocks = after.blocks_written - before.blocks_written;
    let written = after.media_writes - before.media_writes;
    (blocks > 0).then(|| written as f64 / 2.0 / blocks as f64)
}

pub(super) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// All workloads on one backing, on the present reactor.
async fn on(
    backing: Backing,
    ring: Ring,
    specs: Vec<JobSpec>,
    repeat: u32,
    say: fn(&str),
) -> Result<Vec<Found>, ScenarioError> {
    let mut scenes = Vec::new();
    for kind in KINDS {
        scenes.push(Scene::new(&backing, &ring, kind).await?);
    }
    let mut found = Vec::new();
    for spec in specs {
        let mut rates = [const { Vec::new() }; KINDS.len()];
        let mut ratios = Vec::new();
        for round in 0..repeat.max(1) as usize {
            // Another one begins each time, so that none is favoured.
            for k in (0..KINDS.len()).map(|k| (k + round) % KINDS.len()) {
                let before = scenes[k].pool.counters();
                rates[k].push(scenes[k].measure(&spec).await?);
                if scenes[k].kind == Kind::Sums {
                    ratios.extend(media(&before, &scenes[k].pool.counters()));
                }
            }
        }
        let costs =
            [(Kind::Sums, Kind::Plain), (Kind::Snapshots, Kind::Sums)].map(|(of, against)| {
                let rounds = rates[of as usize].iter().zip(&rates[against as usize]);
                median(rounds.map(|(a, b)| cost(*a, *b)).collect())
            });
        let iops = rates.map(median);
        let media = (!ratios.is_empty()).then(|| median(ratios));
        let text: Vec<String> = iops.iter().map(|i| units::si(*i)).collect();
        let (name, depth) = (&spec.name, spec.iodepth);
        say(&format!("  {}, {name} depth {depth}: {}", backing.name(), text.join(", ")));
        found.push(Found { spec, iops, costs, media });
    }
    for s in scenes {
        s.pool.close().await.map_err(store_failed)?;
    }
    Ok(found)
}

/// In percent.
pub(super) fn cost(of: f64, against: f64) -> f64 {
    (1.0 - of / against) * 100.0
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let mut specs = Vec::new();
    for (rw, bs) in
        [(Rw::RandRead, 4096), (Rw::RandWrite, 4096), (Rw::Read, 128 << 10), (Rw::Write, 128 << 10)]
    {
        for depth in [1, 32] {
            specs.push(r.job(rw, bs, depth, VOLUME));
        }
    }
    let mut table = Table::new(&[
        "devices, workload, in flight",
        "no checksums",
        "checksums",
        "and snapshots",
        "checksums cost %",
        "goal",
        "met",
        "snapshots cost %",
        "goal",
        "met",
        "media writes",
        "goal",
        "met",
    ]);
    let (mut data, mut passed, mut failed): (Vec<Value>, u64, u64) = (Vec::new(), 0, 0);
    let (all, _folders) = Backing::all()?;
    for backing in all {
        let name = backing.name();
        let (specs, repeat, say) = (specs.clone(), r.setup.repeat, r.setup.say);
        let work = |ring| on(backing, ring, specs, repeat, say);
        for f in alone(r, PollMode::Busy, work)? {
            let [plain, sums, snapshots] = f.iops;
            let [edc, versions] = f.costs;
            let mut judge = |good: bool| {
                *(if good { &mut passed } else { &mut failed }) += 1;
                if good { "yes" } else { "no" }.to_owned()
            };
            let mut row = vec![format!("{name}, {}, {}", f.spec.name, f.spec.iodepth)];
            row.extend(f.iops.iter().map(|i| units::si(*i)));
            row.extend([format!("{edc:.1}"), "<= 3".into(), judge(edc <= 3.0)]);
            row.extend([format!("{versions:.1}"), "<= 1".into(), judge(versions <= 1.0)]);
            let small = f.spec.rw == Rw::RandWrite && f.spec.iodepth == 32;
            row.push(f.media.map_or("-".into(), |m| format!("{m:.3}")));
            row.extend(match f.media {
                Some(m) if small => ["<= 1.25".into(), judge(m <= 1.25)],
                _ => ["-".into(), "-".into()],
            });
            table.row(row);
            data.push(json!({ "devices": name, "rw": f.spec.rw.name(), "bs": f.spec.bs,
                "iodepth": f.spec.iodepth, "iops_plain": plain, "iops_sums": sums, "costs_percent": f.costs,
                "iops_snapshots": snapshots, "media_writes": f.media }));
        }
    }
    Ok(Page {
        intro: "S2 reports 12 to 20 % for checksums and 2.5 to 5 % for versions. Here the same volume is measured on three pools \
                in turn: without checksums of the data (for this measurement only: such a pool is not protected), with them, and \
                with a snapshot every second of which two are kept. That is sixty times as often as a snapshot each minute, so \
                the figure is more than what that costs. *Media writes* are the blocks written to each copy for each block \
                that the volume wrote: data, log, maps and superblocks."
            .into(),
        method: format!(
            "pools with two copies of everything; a volume of {} that was written before; the load in the reactor of the pool \
             on one core, no protocol in between; *memory*: two devices inside the program that complete at once, as no device can; *tmpfs*: four files \
             in {SHM}, the quickest that a pool can really be made on; \
             *files*: four of them, past the page cache, one flush for each group of writes; both written everywhere before. \
             Costs are medians of the rounds' own, in each of which the three kinds of pools come in a row.",
            units::size(VOLUME)
        ),
        sections: vec![Section::Table(table)],
        data: json!(data),
        frame: None,
        passed,
        failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::MILLIS;
    use weir_reactor::Reactor;

    #[test]
    fn costs_and_media_writes_are_shares() {
        assert!((cost(97.0, 100.0) - 3.0).abs() < 1e-9);
        let before = Counters { blocks_written: 10, media_writes: 30, ..Counters::default() };
        let after = Counters { blocks_written: 110, media_writes: 250, ..Counters::default() };
        assert_eq!(media(&before, &after), Some(1.1));
        assert_eq!(media(&after, &after), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn every_kind_of_pool_is_measured_on_every_backing() {
        let folder = Folder::new(&std::env::temp_dir(), "store-bench").unwrap();
        for backing in [Backing::Memory, Backing::Files(folder.0.clone())] {
            let spec = JobSpec {
                rw: Rw::RandWrite,
                iodepth: 4,
                runtime: Some(30 * MILLIS),
                size: Some(1 << 20),
                ..JobSpec::default()
            };
            let ring = Ring::new().unwrap();
            let reactor = Reactor::new(Rc::new(ring.clone()));
            let found =
                reactor.block_on(PollMode::default(), on(backing, ring, vec![spec], 1, |_| ()));
            let found = found.unwrap();
            assert!(found[0].iops.iter().all(|i| *i > 0.0) && found[0].media.is_some());
        }
    }
}
