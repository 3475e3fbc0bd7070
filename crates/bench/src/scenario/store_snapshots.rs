//! What snapshots, a restart and the maps of large volumes take: latency, time, memory.

use super::page::{Page, Section, Table};
use super::pooled::{Folder, alone, files, resident, store_failed};
use super::runner::Runner;
use super::{Scenario, ScenarioError};
use crate::histogram::Histogram;
use crate::units;
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_block::Volume;
use weir_disk::{Disk, DiskOp};
use weir_mem::Slice;
use weir_reactor::{PollMode, clock, sleep_until, spawn};
use weir_store::{Options, Pool, PoolSpec, create};
use weir_uring::Ring;

pub(super) const SNAPSHOTS: Scenario = Scenario {
    name: "store-snapshots",
    title: "The store: snapshots, restarts and memory of large volumes",
    run,
};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// Bytes of the devices of which snapshots are made, together.
const ROOM: u64 = 6 * GIB;
/// Blocks that a leaf of a map covers (docs/format.md).
const LEAF: u64 = 336;
/// Writes in flight while snapshots are made.
const WRITERS: u64 = 16;
/// One snapshot each so long.
const EVERY: Nanos = 50 * MILLIS;
/// Snapshots kept; what is older is deleted meanwhile.
const KEEP: usize = 8;
/// Writes in flight while a map is built and the log filled.
const FILLERS: u64 = 32;
/// Longest time of filling a log.
const FILL: Nanos = 120 * SECONDS;

/// How large everything is.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Bytes of the volume whose map is built.
    volume: u64,
    /// Bytes of each of the four devices.
    device: u64,
}

fn block() -> Slice {
    let s = Slice::heap(4096);
    let mut rng = Prng::new(5);
    for at in (0..4096).step_by(8) {
        s.write_at(at, &rng.next_u64().to_le_bytes());
    }
    s
}

fn io(e: weir_base::IoError) -> ScenarioError {
    ScenarioError::Io(e.to_string())
}

/// What snapshots of one volume took.
struct Taken {
    snapshots: Histogram,
    /// A write of one block and a flush of a file beside the devices, at the same time.
    bare: Histogram,
    writes: u64,
    seconds: f64,
}

/// Makes snapshots at a steady pace while blocks all over a volume are written.
async fn snapshots(
    ring: Ring,
    dir: PathBuf,
    room: u64,
    len: u64,
    time: Nanos,
) -> Result<Taken, ScenarioError> {
    let disks = files(&ring, &dir, "snap", 4, room / 4)?;
    for d in &disks {
        // A file system that finds room for what is written would be measured otherwise.
        let buf = Slice::heap(1 << 20);
        for offset in (0..d.len()).step_by(1 << 20) {
            let op = DiskOp::Write { offset, buf: buf.clone(), fua: false };
            weir_disk::run(&**d, op).await.map_err(io)?;
        }
    }
    let spec = PoolSpec { overwrite: true, ..PoolSpec::fitting(7, 2, room) };
    create(&disks, &spec).await.map_err(store_failed)?;
    let pool = Pool::open(disks, Options::default()).await.map_err(store_failed)?;
    let id = pool.create_volume("v", len, 4096).await.map_err(store_failed)?;
    let volume = pool.volume(id).map_err(store_failed)?;
    // Blocks that take, with a leaf each, an eighth of what can be used: the rest is for what the snapshots keep.
    let spots = (room / 2 / 8 / 8192).min(len / 4096);
    let apart = len / 4096 / spots;
    let (stop, writes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)));
    let mut tasks = Vec::new();
    for n in 0..WRITERS {
        let (v, stop, writes) = (volume.clone(), stop.clone(), writes.clone());
        tasks.push(spawn(async move {
            let (mut rng, buf) = (Prng::new(n), block());
            while !stop.get() {
                v.write(rng.below(spots) * apart * 4096, buf.clone(), false).await?;
                writes.set(writes.get() + 1);
            }
            Ok::<(), weir_base::IoError>(())
        }));
    }
    let bare = spawn(bare_flushes(files(&ring, &dir, "bare", 1, GIB)?.remove(0), stop.clone()));
    let mut taken = Taken {
        snapshots: Histogram::default(),
        bare: Histogram::default(),
        writes: 0,
        seconds: 0.0,
    };
    let (begin, mut kept, mut purges) = (clock(), Vec::new(), Vec::new());
    for n in 0..(time / EVERY).max(4) {
        sleep_until(begin + (n + 1) * EVERY).await;
        let t = clock();
        kept.extend(pool.snapshot(&[(id, &format!("v@{n}"))], n).await.map_err(store_failed)?);
        taken.snapshots.record(clock() - t);
        if kept.len() > KEEP {
            let (p, old) = (pool.clone(), kept.remove(0));
            purges.push(spawn(async move { p.delete(old).await }));
        }
    }
    taken.seconds = (clock() - begin) as f64 / 1e9;
    stop.set(true);
    for t in tasks {
        t.await.unwrap_or(Ok(())).map_err(io)?;
    }
    for p in purges {
        p.await.unwrap_or(Ok(())).map_err(store_failed)?;
    }
    taken.writes = writes.get();
    taken.bare = bare.await.unwrap_or_else(|| Ok(Histogram::default())).map_err(io)?;
    pool.close().await.map_err(store_failed)?;
    Ok(taken)
}

/// What the devices themselves take for the least that a snapshot needs: a block written and flushed, half way between
/// snapshots.
async fn bare_flushes(
    file: Rc<dyn Disk>,
    stop: Rc<Cell<bool>>,
) -> Result<Histogram, weir_base::IoError> {
    let (mut taken, buf, mut offset) = (Histogram::default(), block(), 0);
    let mut next = clock() + EVERY / 2;
    while !stop.get() {
        sleep_until(next).await;
        next += EVERY;
        let t = clock();
        let op = DiskOp::Write { offset, buf: buf.clone(), fua: false };
        weir_disk::run(&*file, op).await?;
        weir_disk::run(&*file, DiskOp::Flush).await?;
        taken.record(clock() - t);
        offset = (offset + 4096) % GIB;
    }
    Ok(taken)
}

fn spec_of(size: Size) -> PoolSpec {
    PoolSpec { overwrite: true, ..PoolSpec::fitting(9, 2, 4 * size.device) }
}

/// Runs `f` for 0 to `n - 1`, so many at a time, until it says that it is enough.
async fn each<F, Fut>(n: u64, at_once: u64, f: F) -> Result<(), ScenarioError>
where
    F: Fn(u64) -> Fut + 'static,
    Fut: Future<Output = Result<bool, weir_base::IoError>>,
{
    let (next, f) = (Rc::new(Cell::new(0)), Rc::new(f));
    let mut tasks = Vec::new();
    for _ in 0..at_once {
        let (next, f) = (next.clone(), f.clone());
        tasks.push(spawn(async move {
            while next.get() < n {
                let i = next.replace(next.get() + 1);
                if !f(i).await? {
                    next.set(n);
                }
            }
            Ok(())
        }));
    }
    for t in tasks {
        t.await.unwrap_or(Ok(())).map_err(io)?;
    }
    Ok(())
}

/// Makes the pool and writes one block in each leaf of the volume's map.
async fn build(ring: Ring, dir: PathBuf, size: Size) -> Result<u64, ScenarioError> {
    let disks = files(&ring, &dir, "map", 4, size.device)?;
    create(&disks, &spec_of(size)).await.map_err(store_failed)?;
    let pool = Pool::open(disks, Options::default()).await.map_err(store_failed)?;
    let id = pool.create_volume("v", size.volume, 4096).await.map_err(store_failed)?;
    let volume = pool.volume(id).map_err(store_failed)?;
    let leaves = size.volume / 4096 / LEAF;
    let buf = block();
    let write = move |i: u64| {
        let (v, buf) = (volume.clone(), buf.clone());
        async move { v.write(i * LEAF * 4096, buf, false).await.map(|()| true) }
    };
    each(leaves, FILLERS, write).await?;
    pool.close().await.map_err(store_failed)?;
    Ok(leaves)
}

/// What a pool in use took.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// Bytes with the map in memory as far as the tier keeps it.
    map: u64,
    /// The same and what was written since the last checkpoint.
    all: u64,
    /// Pages in the log at the end, and writes in them.
    pages: u64,
    entries: u64,
}

/// Opens the pool with memory for this many bytes of maps, reads a block of each leaf, fills the log as far as it goes
/// without a checkpoint (or the time allows), and leaves it so.
async fn fill(
    ring: Ring,
    dir: PathBuf,
    size: Size,
    cache: usize,
    depth: u64,
    before: u64,
) -> Result<Used, ScenarioError> {
    let disks = files(&ring, &dir, "map", 4, size.device)?;
    let options = Options { cache, ..Options::default() };
    let pool = Pool::open(disks, options).await.map_err(store_failed)?;
    let id = pool.find("v").ok_or_else(|| ScenarioError::Io("the volume is not there".into()))?;
    let volume = pool.volume(id).map_err(store_failed)?;
    let leaves = size.volume / 4096 / LEAF;
    let v = volume.clone();
    let read = move |i: u64| {
        let v = v.clone();
        async move { v.read(i * LEAF * 4096, Slice::heap(4096)).await.map(|()| true) }
    };
    each(leaves, FILLERS, read).await?;
    let map = resident().saturating_sub(before);
    // A checkpoint begins when half of the ring is in use.
    let most = spec_of(size).log_pages * 49 / 100;
    let (first, blocks) = (pool.counters(), size.volume / 4096);
    let (rng, buf) = (Rc::new(std::cell::RefCell::new(Prng::new(before))), block());
    let (p, until) = (pool.clone(), clock() + FILL);
    let write = move |_| {
        let (v, buf, p, rng) = (volume.clone(), buf.clone(), p.clone(), rng.clone());
        async move {
            let at = rng.borrow_mut().below(blocks) * 4096;
            v.write(at, buf, false).await?;
            Ok(p.counters().log_pages - first.log_pages < most && clock() < until)
        }
    };
    each(u64::MAX, depth, write).await?;
    let last = pool.counters();
    if last.checkpoints != first.checkpoints {
        return Err(ScenarioError::Io("there was a checkpoint while the log was filled".into()));
    }
    Ok(Used {
        map,
        all: resident().saturating_sub(before),
        pages: last.log_pages - first.log_pages,
        entries: last.blocks_written - first.blocks_written,
    })
}

/// What opening a pool with a full log took.
struct Restarted {
    /// Until it serves.
    took: Nanos,
    /// From then on, until the log is merged.
    merged: Nanos,
    /// Entries of the log.
    replayed: u64,
}

/// Opens the pool that was left with a full log, and closes it when that is merged.
async fn restart(
    ring: Ring,
    dir: PathBuf,
    size: Size,
    cache: usize,
) -> Result<Restarted, ScenarioError> {
    let t = clock();
    let disks = files(&ring, &dir, "map", 4, size.device)?;
    let options = Options { cache, ..Options::default() };
    let pool = Pool::open(disks, options).await.map_err(store_failed)?;
    let took = clock() - t;
    let replayed = pool.counters().replayed;
    let t = clock();
    while pool.counters().checkpoints == 0 {
        if pool.status().suspended.is_some() {
            return Err(ScenarioError::Io("the pool was suspended while it merged its log".into()));
        }
        sleep_until(clock() + 10 * MILLIS).await;
    }
    let merged = clock() - t;
    pool.close().await.map_err(store_failed)?;
    Ok(Restarted { took, merged, replayed })
}

/// Bytes of maps that a tier keeps in memory.
fn lean(size: Size) -> usize {
    (size.volume / 2048) as usize
}

fn full(size: Size) -> usize {
    // All leaves and what is above them.
    (size.volume / 4096 / LEAF * 4096 / 100 * 102) as usize
}

struct Judge {
    passed: u64,
    failed: u64,
}

impl Judge {
    fn of(&mut self, good: bool) -> String {
        *(if good { &mut self.passed } else { &mut self.failed }) += 1;
        if good { "yes" } else { "no" }.to_owned()
    }
}

fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

fn gib(bytes: f64) -> String {
    format!("{:.2}", bytes / GIB as f64)
}

struct Found {
    sections: Vec<Section>,
    data: Value,
    judge: Judge,
}

fn latencies(r: &Runner<'_>, f: &mut Found) -> Result<(), ScenarioError> {
    let mut table = Table::new(&[
        "volume",
        "snapshots",
        "p50 ms",
        "p99 ms",
        "max ms",
        "goal p99",
        "met",
        "bare flush p50 ms",
        "p99 ms",
        "writes/s meanwhile",
    ]);
    let mut data = Vec::new();
    for (name, len) in [("1 GiB", GIB), ("10 TiB", 10 * TIB)] {
        let mut all = Vec::new();
        for _ in 0..r.setup.repeat.max(1) {
            // New files each time: a pool made over one of the same identity could meet the other's superblocks.
            let folder = Folder::new(&std::env::temp_dir(), "store-snapshots")?;
            let (dir, time) = (folder.0.clone(), r.setup.runtime);
            let t =
                alone(r, PollMode::default(), move |ring| snapshots(ring, dir, ROOM, len, time))?;
            let p99 = units::nanos(t.snapshots.percentile(99.0) as f64);
            r.say(&format!("  {name}: {} snapshots, p99 {p99}", t.snapshots.count()));
            all.push(t);
        }
        all.sort_by_key(|t| t.snapshots.percentile(99.0));
        let t = all.swap_remove(all.len() / 2);
        let (h, rate) = (&t.snapshots, t.writes as f64 / t.seconds);
        let (p50, p99) = (h.percentile(50.0), h.percentile(99.0));
        let good = f.judge.of(p99 <= 10 * MILLIS);
        let row = [h.count().to_string(), ms(p50), ms(p99), ms(h.max()), "<= 10".into(), good];
        let mut cells = vec![name.to_string()];
        cells.extend(row);
        cells.extend([50.0, 99.0].map(|p| ms(t.bare.percentile(p))));
        cells.push(units::si(rate));
        table.row(cells);
        data.push(json!({ "volume": len, "snapshots": h.count(), "p50_ns": p50, "p99_ns": p99,
            "max_ns": h.max(), "bare_p50_ns": t.bare.percentile(50.0),
            "bare_p99_ns": t.bare.percentile(99.0), "writes_per_second": rate }));
    }
    f.sections.push(Section::Table(table));
    f.data["snapshots"] = json!(data);
    Ok(())
}

fn large(r: &Runner<'_>, folder: &Folder, size: Size, f: &mut Found) -> Result<(), ScenarioError> {
    let before = resident();
    let dir = || folder.0.clone();
    let (d, share) = (dir(), size.volume as f64 / TIB as f64);
    let leaves = alone(r, PollMode::default(), move |ring| build(ring, d, size))?;
    r.say(&format!("  a map of {leaves} leaves, {} on the disk", units::size(folder.taken())));
    let mut memory =
        Table::new(&["tier", "map GiB/TiB", "with a log of", "GiB/TiB", "goal", "met"]);
    let mut restarts = Table::new(&[
        "log",
        "pages",
        "of the ring",
        "writes in it",
        "restart s",
        "s per TiB",
        "goal",
        "met",
        "merged after s",
    ]);
    let (mut tiers, mut starts) = (Vec::new(), Vec::new());
    // The leaner first: what is given back to the allocator is not given back to the system.
    for (tier, cache, goal, depth) in [
        ("lean", lean(size), 1.0, FILLERS),
        ("full", full(size), 3.4, FILLERS),
        ("lean", lean(size), 0.0, 1),
    ] {
        let d = dir();
        let u =
            alone(r, PollMode::default(), move |ring| fill(ring, d, size, cache, depth, before))?;
        let all = u.all as f64 / share;
        if goal > 0.0 {
            let good = f.judge.of(all <= goal * GIB as f64);
            memory.row(vec![
                tier.into(),
                gib(u.map as f64 / share),
                format!("{} writes", units::si(u.entries as f64)),
                gib(all),
                format!("<= {goal}"),
                good,
            ]);
            tiers.push(json!({ "tier": tier, "cache": cache, "map": u.map, "all": u.all,
                "entries": u.entries, "pages": u.pages }));
        }
        let (d, cache) = (dir(), lean(size));
        let again = alone(r, PollMode::default(), move |ring| restart(ring, d, size, cache))?;
        let Restarted { took, merged, replayed } = again;
        let seconds = took as f64 / 1e9;
        let good = f.judge.of(seconds / share <= 2.0);
        let ring_pages = spec_of(size).log_pages;
        r.say(&format!("  {tier}: {} in memory, restart {seconds:.2} s", units::size(u.all)));
        restarts.row(vec![
            format!("{depth} writes at a time"),
            u.pages.to_string(),
            format!("{:.0} %", u.pages as f64 * 100.0 / ring_pages as f64),
            replayed.to_string(),
            format!("{seconds:.2}"),
            format!("{:.2}", seconds / share),
            "<= 2".into(),
            good,
            format!("{:.1}", merged as f64 / 1e9),
        ]);
        starts.push(json!({ "depth": depth, "pages": u.pages, "ring": ring_pages,
            "replayed": replayed, "ns": took, "merged_ns": merged }));
    }
    f.data["memory"] = json!(tiers);
    f.data["restarts"] = json!(starts);
    f.data["leaves"] = json!(leaves);
    f.data["volume"] = json!(size.volume);
    f.sections.push(Section::Table(restarts));
    f.sections.push(Section::Table(memory));
    Ok(())
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let mut f =
        Found { sections: Vec::new(), data: json!({}), judge: Judge { passed: 0, failed: 0 } };
    latencies(r, &mut f)?;
    let folder = Folder::new(&std::env::temp_dir(), "store-snapshots")?;
    let size = Size { volume: TIB / 4, device: TIB / 8 };
    large(r, &folder, size, &mut f)?;
    Ok(Page {
        intro: format!(
            "**Snapshots**: one each {} while {WRITERS} writes of 4 KiB are in flight all over the volume, the newest {KEEP} of \
             them kept, older ones deleted meanwhile; *bare flush* is what a write of one block and a flush of a file beside the \
             devices takes at the same time, below which no snapshot can be. **Restarts**: a volume of {} with a block in each leaf of its map, so that \
             the map is as large as that of a volume which is full; then the log is filled with writes all over it until a \
             checkpoint would begin, at half of the ring, or for {} s; then everything is dropped as by a kill, and opened again: time \
             until the pool serves, and then until the log is merged into the map, in service. **Memory**: what the process takes more than before, once every leaf was read, and once the \
             log is filled; *lean* keeps half a GiB of maps for a TiB, *full* all.",
            units::nanos(EVERY as f64),
            units::size(size.volume),
            FILL / SECONDS,
        ),
        method: "RAID-10 over four files, past the page cache, each write flushed; the load in the reactor of the pool on \
                 one core. For the snapshots the files were written all over before; for the rest they are sparse, so that the file system's \
                 finding of room is in the times. Per TiB is by proportion: log, map and bitmaps grow with the pool. Measured are the whole map and the bitmaps of the whole pool. Not measured: data in all blocks, for \
                 which there is no room here; neither maps nor bitmaps depend on it. What is written since the last checkpoint \
                 takes some 40 bytes a block, and twice as many may be there while a checkpoint is made."
            .into(),
        sections: f.sections,
        data: f.data,
        frame: None,
        passed: f.judge.passed,
        failed: f.judge.failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_reactor::Reactor;

    fn on<T: 'static, F: Future<Output = Result<T, ScenarioError>> + 'static>(
        f: impl FnOnce(Ring) -> F,
    ) -> T {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let done = reactor.block_on(PollMode::default(), f(ring));
        reactor.shutdown();
        done.unwrap()
    }

    #[test]
    fn what_was_written_is_taken_up_after_a_restart() {
        let folder = Folder::new(&std::env::temp_dir(), "snapshots-test").unwrap();
        let size = Size { volume: 1 << 30, device: 64 << 20 };
        let dir = || folder.0.clone();
        assert_eq!(on(|ring| build(ring, dir(), size)), 780);
        let u = on(|ring| fill(ring, dir(), size, lean(size), 4, 0));
        assert!(u.pages > 100 && u.entries >= u.pages && u.all > 0, "{u:?}");
        let again = on(|ring| restart(ring, dir(), size, lean(size)));
        assert!(again.took > 0 && again.replayed >= u.entries, "{}", again.replayed);
        assert!(folder.taken() > 1 << 20);
        let t = on(|ring| snapshots(ring, dir(), 1 << 30, 1 << 40, SECONDS / 2));
        assert!(t.snapshots.count() == 10 && t.writes > 0);
    }
}
