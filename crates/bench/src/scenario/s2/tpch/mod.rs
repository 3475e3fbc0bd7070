//! TPC-H on a PostgreSQL whose disk is an attached volume of a protected pool.
//!
//! Tables, their sizes, the 22 queries and the two refresh functions are TPC-H's; nothing is audited and text is simpler: times are
//! of use beside each other only.

mod page;
#[cfg(test)]
mod tests;

use super::scene::{KINDS, Kind, RULE};
use crate::scenario::attached::{self, Extra, Protocol, Site, Traffic, forget, run as command};
use crate::scenario::page::Page;
use crate::scenario::postgres::{Programs, Server};
use crate::scenario::runner::Runner;
use crate::scenario::{Scenario, ScenarioError};
use crate::units;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use weir_base::{Nanos, SECONDS};
use weir_reactor::Driver;
use weir_uring::Ring;

pub(in crate::scenario) const TPCH: Scenario =
    Scenario { name: "s2-tpch", title: "S2: TPC-H-like queries of PostgreSQL on RAID-10", run };

/// Rows of `supplier`, `part`, `customer` and `orders`: scale factor 0.1 of clause 4.2.5.
const ROWS: [u32; 4] = [1_000, 20_000, 15_000, 150_000];
/// Suppliers at scale factor 1.
const SUPPLIERS: u32 = 10_000;
const LOAD: &str = include_str!("load.sql");
const QUERIES: &str = include_str!("queries.sql");
/// Rows that the refresh functions bring and take; the second leaves what was there before the first.
const REFRESH: [(&str, &str, &str); 2] = [
    ("RF1", "new sales", "select refresh_insert(0)"),
    ("RF2", "old sales", "select refresh_delete(0)"),
];
/// Queries that read the largest table whole, wherever the planner looks.
const WHOLE: [&str; 2] = ["Q1", "Q6"];

/// Bytes of each volume, and of each of the four devices of its pool.
const VOLUME: u64 = 1 << 30;
const DEVICE: u64 = 768 << 20;
const DEVICES: u32 = 4;
/// Bytes of memory that have to be free: what the pools come to hold, with room for the server's and the target's own.
const MEMORY: u64 = 7 << 30;
/// Of the target, for I/O.
const BUFFERS: u64 = 128 << 20;

/// Little memory for the server, so that data comes from the disk and what does not fit is written to it; nothing by itself
/// in the background; plans of one process, in which times vary less, and that scan rather than jump.
const SETTINGS: &str = "shared_buffers = 16MB\nwork_mem = 4MB\nrandom_page_cost = 25\nmax_connections = 20\nautovacuum = off\njit = off\n\
                        max_parallel_workers_per_gather = 0\nwal_level = minimal\nmax_wal_senders = 0\nmax_wal_size = 128MB\n\
                        checkpoint_timeout = 1h\nfsync = on\nsynchronous_commit = on\n";

/// What a power run (clause 5.3.3) consists of, in order.
struct Step {
    name: String,
    text: String,
    sql: String,
}

fn steps() -> Vec<Step> {
    let refresh = |i: usize| {
        let (name, text, sql) = REFRESH[i];
        Step { name: name.into(), text: text.into(), sql: sql.into() }
    };
    let mut all = vec![refresh(0)];
    all.extend(queries(QUERIES));
    all.push(refresh(1));
    all
}

/// Queries of a file: each begins after a line `-- NAME: what it asks`.
fn queries(text: &str) -> Vec<Step> {
    let mut all: Vec<Step> = Vec::new();
    for line in text.lines() {
        let name = line.strip_prefix("-- Q").and_then(|l| l.split_once(": "));
        match name.and_then(|(number, text)| Some((number.parse::<u32>().ok()?, text))) {
            Some((number, text)) => {
                let (name, text) = (format!("Q{number}"), text.into());
                all.push(Step { name, text, sql: String::new() });
            }
            None => {
                if let Some(s) = all.last_mut() {
                    let _ = writeln!(s.sql, "{line}");
                }
            }
        }
    }
    all
}

/// One run of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Found {
    ms: f64,
    traffic: Traffic,
}

/// All runs of a step: for each kind of pool, one a round.
type Runs = [Vec<Found>; KINDS.len()];

/// A pool with its volume, disk and server.
struct Scene {
    kind: Kind,
    volume: String,
    disk: PathBuf,
    server: Server,
    /// Names of all snapshots that were seen.
    versions: BTreeSet<String>,
}

fn pool(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "plain",
        Kind::Sums => "sums",
        Kind::Versions => "versions",
    }
}

fn config(address: SocketAddr, dir: &Path, cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let mut t = format!(
        "listen = [\"{address}\"]\ncores = [{}]\nbuffer_memory = {BUFFERS}\n[[host]]\nname = \"all\"\nallow_any = true\n",
        cores.join(", ")
    );
    for (lun, kind) in KINDS.into_iter().enumerate() {
        let name = pool(kind);
        let device = |i| {
            let path = Site::devices(dir).join(format!("{name}-{i}.img"));
            format!("{{ kind = \"file\", path = \"{}\", size = {DEVICE} }}", path.display())
        };
        let devices: Vec<String> = (0..DEVICES).map(device).collect();
        let _ = write!(
            t,
            "[[pool]]\nname = \"{name}\"\nraid = \"10\"\nmemory = \"full\"\ndevices = [{}]\n\
             [[volume]]\nname = \"bench-{name}\"\npool = \"{name}\"\nsize = {VOLUME}\n\
             [[map]]\nhost = \"all\"\nvolume = \"bench-{name}\"\nlun = {lun}\n",
            devices.join(", ")
        );
    }
    t
}

/// Whether this machine has the memory, by what the kernel says.
fn enough(meminfo: &str) -> Result<(), String> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    match kib {
        Some(kib) if kib * 1024 < MEMORY => Err(format!(
            "three pools in memory need {} of it, and {} are free",
            units::size(MEMORY),
            units::size(kib / 1024 * (1 << 20))
        )),
        _ => Ok(()),
    }
}

impl Scene {
    /// Runs `weir` on the daemon.
    fn weir(&self, site: &Site, args: &[&str]) -> Result<String, ScenarioError> {
        command(site.weir().args(args))
    }

    fn look(&mut self, site: &Site) -> Result<(), ScenarioError> {
        let said = self.weir(site, &["snapshot", "list", &self.volume, "--json"])?;
        self.versions.extend(snapshots(&said));
        Ok(())
    }

    /// Runs a step with nothing of the database in the page cache; gives its answer too.
    fn measure(&mut self, site: &Site, step: &Step) -> Result<(String, Found), ScenarioError> {
        self.server.sql("checkpoint")?;
        forget(&self.server.data().join("base"))?;
        if self.kind == Kind::Versions {
            self.weir(site, &["snapshot", "policy", "set", &self.volume, "--snapshot", RULE])?;
        }
        let before = Traffic::of(&self.disk)?;
        let found = self.server.timed(&step.sql);
        let traffic = Traffic::of(&self.disk)?.since(before);
        if self.kind == Kind::Versions {
            self.look(site)?;
            self.weir(site, &["snapshot", "policy", "clear", &self.volume])?;
        }
        let (answer, ms) = found?;
        Ok((answer, Found { ms, traffic }))
    }
}

/// Names in a list of snapshots.
fn snapshots(json: &str) -> Vec<String> {
    let all: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let names = all.as_array().into_iter().flatten().filter_map(|s| s["name"].as_str());
    names.map(ToOwned::to_owned).collect()
}

/// A loaded database that is down, and how long loading took.
fn database(
    r: &Runner<'_>,
    programs: &Programs,
    at: &Path,
    site: &Site,
) -> Result<(Server, Nanos), ScenarioError> {
    // For its clock.
    let clock = Ring::new().map_err(|e| ScenarioError::System("io_uring".into(), e))?;
    let begun = clock.now();
    let s = Server::start(programs, at, &site.dir.join("pg-first"), SETTINGS)?;
    let [suppliers, parts, customers, orders] = ROWS;
    s.sql(&format!(
        "create table size (suppliers int, parts int, customers int, orders int);
         insert into size values ({suppliers}, {parts}, {customers}, {orders})"
    ))?;
    s.file("load.sql", LOAD)?;
    let time = clock.now() - begun;
    r.say(&format!("a database at {}, loaded in {} s", at.display(), time / SECONDS));
    s.stop()?;
    Ok((s, time))
}

/// What was set up.
struct Stage {
    site: Site,
    scenes: Vec<Scene>,
    /// How long loading took.
    loaded: Nanos,
    /// Bytes of the largest table.
    largest: u64,
    /// Bytes of the database.
    bytes: u64,
}

fn number(s: &Server, sql: &str) -> Result<u64, ScenarioError> {
    let said = s.sql(sql)?;
    said.parse().map_err(|_| ScenarioError::Io(format!("`{sql}` gave `{said}`")))
}

fn stage(r: &Runner<'_>, programs: &Programs) -> Result<Stage, ScenarioError> {
    let cores = r.cores.first(1).target;
    let extra = Extra {
        memory: DEVICE * u64::from(DEVICES) * KINDS.len() as u64,
        args: &["--measure-without-checksums", pool(Kind::Plain)],
    };
    let site = Site::start_with(r, &extra, |address, dir| config(address, dir, &cores))?;
    let mut first: Option<Server> = None;
    let (mut scenes, mut loaded) = (Vec::new(), 0);
    for kind in KINDS {
        let volume = format!("bench-{}", pool(kind));
        // By SRP: with BRP, checksums of the host's own would be there even when the store has none.
        let disk = site.attach(&volume, Protocol::Srp)?;
        let at = site.mount(&disk, pool(kind))?;
        let server = match &first {
            Some(from) => {
                let aside = site.dir.join(format!("pg-{}", pool(kind)));
                from.start_copy(&at, &aside, SETTINGS)?
            }
            None => {
                let (server, time) = database(r, programs, &at, &site)?;
                loaded = time;
                first = Some(server.clone());
                server
            }
        };
        scenes.push(Scene { kind, volume, disk, server, versions: BTreeSet::new() });
    }
    if let Some(s) = first {
        s.up(SETTINGS)?;
    }
    let [s, ..] = scenes.as_slice() else { return Err(ScenarioError::Io("no pools".into())) };
    let largest = number(&s.server, "select pg_relation_size('lineitem')")?;
    let bytes = number(&s.server, "select pg_database_size('postgres')")?;
    r.say(&format!("three databases of {} MB are up", bytes / 1_000_000));
    Ok(Stage { site, scenes, loaded, largest, bytes })
}

/// The same query has the same answer on every pool, in every round.
fn same(
    answers: &mut Vec<Option<String>>,
    i: usize,
    step: &Step,
    kind: Kind,
    got: String,
) -> Result<(), ScenarioError> {
    if answers.len() <= i {
        answers.resize(i + 1, None);
    }
    match &answers[i] {
        Some(first) if *first != got => Err(ScenarioError::Io(format!(
            "{} has another answer with {} than before: data is wrong",
            step.name,
            kind.name()
        ))),
        _ => {
            answers[i] = Some(got);
            Ok(())
        }
    }
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    if let Some(why) = attached::missing() {
        return Err(ScenarioError::Io(why));
    }
    let programs = Programs::find().map_err(ScenarioError::Io)?;
    enough(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
        .map_err(ScenarioError::Io)?;
    let mut stage = stage(r, &programs)?;
    let steps = steps();
    let mut runs: Vec<Runs> = steps.iter().map(|_| Runs::default()).collect();
    let mut answers = Vec::new();
    for round in 0..r.setup.repeat.max(1) as usize {
        for (i, step) in steps.iter().enumerate() {
            // Next to each other, so that what the machine does meanwhile meets all, and none always first.
            for k in (0..KINDS.len()).map(|k| (k + i + round) % KINDS.len()) {
                let scene = &mut stage.scenes[k];
                let (answer, found) = scene.measure(&stage.site, step)?;
                same(&mut answers, i, step, scene.kind, answer)?;
                runs[i][k].push(found);
            }
            let text: Vec<String> = runs[i].iter().map(|f| units::three(f[round].ms)).collect();
            r.say(&format!("  round {}, {}, ms: {}", round + 1, step.name, text.join(", ")));
        }
        for s in &stage.scenes {
            // What was deleted is not in the next round's way.
            s.server.sql("vacuum orders")?;
            s.server.sql("vacuum lineitem")?;
        }
    }
    reached(&steps, &runs, stage.largest)?;
    let Stage { site, scenes, loaded, largest, bytes } = stage;
    let versions = scenes[Kind::Versions as usize].versions.len();
    if versions < 2 {
        return Err(ScenarioError::Io(format!("{versions} snapshots were made in all the time")));
    }
    let in_memory = site.in_memory();
    for s in scenes {
        s.server.stop()?;
    }
    site.close()?;
    let about =
        page::About { version: programs.version, in_memory, loaded, largest, bytes, versions };
    Ok(page::page(&about, &steps, &runs))
}

/// Queries that read a whole table had it from the disk: otherwise all of this shows what the page cache does.
fn reached(steps: &[Step], runs: &[Runs], largest: u64) -> Result<(), ScenarioError> {
    for (step, runs) in steps.iter().zip(runs) {
        let least = runs.iter().flatten().map(|f| f.traffic.read).min().unwrap_or(0);
        if WHOLE.contains(&step.name.as_str()) && least < largest / 10 * 9 {
            let text = format!(
                "{} read {least} bytes of a table of {largest} from the disk: the rest came from some cache",
                step.name
            );
            return Err(ScenarioError::Io(text));
        }
    }
    Ok(())
}
