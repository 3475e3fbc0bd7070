//! S1 fig. 7: TPC-C on a PostgreSQL whose disk is an attached volume.
//!
//! The five transactions and their shares are TPC-C's; tables are smaller, terminals neither think nor type, and nothing
//! is audited: rates are of use beside each other only.

use super::attached::{self, Site, run as command};
use super::page::{Page, Section, Table};
use super::postgres::{Programs, Server};
use super::runner::Runner;
use super::{Scenario, ScenarioError};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::units;
use serde_json::{Value, json};
use std::path::Path;

pub(super) const FIG7: Scenario = Scenario {
    name: "brp-fig7",
    title: "S1 fig. 7: TPC-C-like load of PostgreSQL on attached volumes",
    run,
};

const TERMINALS: [u32; 5] = [8, 16, 32, 64, 128];
const WAREHOUSES: u32 = 4;
/// The specification's are 100 000 items and 3000 customers (and first orders) in each of ten districts.
const ITEMS: u32 = 20_000;
const CUSTOMERS: u32 = 600;
const VOLUME: u64 = 1536 << 20;
/// A run is not shorter, seconds: terminals have to connect, and commits to find each other.
const SHORTEST: u64 = 3;
const NAMES: [&str; 3] = ["SRP", "BRP", "local disk"];

/// Transactions, their statements, and their shares by the specification's clause 5.2.3.
const MIX: [(&str, &str, u32); 5] = [
    ("new_order", include_str!("new_order.sql"), 45),
    ("payment", include_str!("payment.sql"), 43),
    ("order_status", include_str!("order_status.sql"), 4),
    ("delivery", include_str!("delivery.sql"), 4),
    ("stock_level", include_str!("stock_level.sql"), 4),
];

/// Pages go to the disk and come back; every commit waits for it.
const SETTINGS: &str = "shared_buffers = 32MB\nmax_connections = 150\ncheckpoint_timeout = 60s\nmax_wal_size = 256MB\n\
                        synchronous_commit = on\nfsync = on\nautovacuum_naptime = 10s\n";

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Found {
    /// New orders committed per minute.
    tpm: f64,
    /// Transactions of all kinds per second.
    tps: f64,
    /// Mean time of a transaction, milliseconds.
    ms: f64,
    failed: u64,
}

/// The word behind `key` in what pgbench said.
fn word<'a>(said: &'a str, key: &str) -> Option<&'a str> {
    let line = said.lines().find_map(|l| l.trim().strip_prefix(key))?;
    line.split_whitespace().next()
}

fn parse(said: &str) -> Option<Found> {
    Some(Found {
        tpm: 0.0,
        tps: word(said, "tps = ")?.parse().ok()?,
        ms: word(said, "latency average = ")?.parse().ok()?,
        failed: word(said, "number of failed transactions: ")?.parse().ok()?,
    })
}

/// A loaded database.
fn database(
    programs: &Programs,
    disk: &Path,
    site: &Site,
    name: &str,
) -> Result<Server, ScenarioError> {
    let at = site.mount(disk, name)?;
    let s = Server::start(programs, &at, &site.dir.join(format!("pg-{name}")), SETTINGS)?;
    s.file("schema.sql", include_str!("schema.sql"))?;
    s.sql(&format!("insert into size values ({WAREHOUSES}, {ITEMS}, {CUSTOMERS})"))?;
    s.file("load.sql", include_str!("load.sql"))?;
    s.file("functions.sql", include_str!("functions.sql"))?;
    for (name, text, _) in MIX {
        s.script(&format!("{name}.sql"), text)?;
    }
    Ok(s)
}

/// New orders committed since the beginning, and something constant.
fn orders(s: &Server) -> Result<u64, ScenarioError> {
    let n = s.sql("select sum(d_next_o_id) from district")?;
    n.parse().map_err(|_| ScenarioError::Io(format!("the number of orders is `{n}`")))
}

fn measure(s: &Server, terminals: u32, seconds: u64) -> Result<Found, ScenarioError> {
    // What earlier runs left to be written is not this one's.
    s.sql("checkpoint")?;
    let before = orders(s)?;
    let mut c = s.program("pgbench");
    c.arg("-h").arg(s.host()).args(["-n", "-M", "prepared", "--max-tries=10", "-j", "2"]);
    c.args(["-c", &terminals.to_string(), "-T", &seconds.to_string()]);
    c.args(["-D", &format!("warehouses={WAREHOUSES}")]);
    for (name, _, share) in MIX {
        c.args(["-f", &format!("{name}.sql@{share}")]);
    }
    let said = command(c.arg("postgres"))?;
    let found = parse(&said);
    let found = found.ok_or_else(|| ScenarioError::Io(format!("pgbench said: {said}")))?;
    let tpm = (orders(s)? - before) as f64 * 60.0 / seconds as f64;
    Ok(Found { tpm, ..found })
}

/// Consistency conditions 1 to 4 of the specification's clause 3.3.2 hold.
fn consistent(s: &Server) -> Result<(), ScenarioError> {
    for (what, sql) in [
        (
            "warehouses and districts",
            "select count(*) from warehouse where w_ytd <> (select sum(d_ytd) from district where d_w_id = w_id)",
        ),
        (
            "districts and orders",
            "select count(*) from district where d_next_o_id - 1 <> (select max(o_id) from orders \
          where o_w_id = d_w_id and o_d_id = d_id)",
        ),
        (
            "districts and new orders",
            "select count(*) from (select max(no_o_id) - min(no_o_id) + 1 - count(*) as gap from new_order \
          group by no_w_id, no_d_id) as t where gap <> 0",
        ),
        (
            "orders and their lines",
            "select count(*) from district where (select sum(o_ol_cnt) from orders where o_w_id = d_w_id and \
          o_d_id = d_id) <> (select count(*) from order_line where ol_w_id = d_w_id and ol_d_id = d_id)",
        ),
    ] {
        let wrong = s.sql(sql)?;
        if wrong != "0" {
            return Err(ScenarioError::Io(format!(
                "{what} do not agree in {wrong} places after the load"
            )));
        }
    }
    Ok(())
}

fn median(all: &mut [Found]) -> Option<Found> {
    all.sort_by(|a, b| a.tpm.total_cmp(&b.tpm));
    all.get(all.len() / 2).copied()
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    if let Some(why) = attached::missing() {
        return Err(ScenarioError::Io(why));
    }
    let programs = Programs::find().map_err(ScenarioError::Io)?;
    let (site, disks) = Site::with_three_disks(r, VOLUME)?;
    let mut servers = Vec::new();
    for (disk, name) in disks.iter().zip(["srp", "brp", "local"]) {
        servers.push(database(&programs, disk, &site, name)?);
        r.say(&format!("a database on {} ({name})", disk.display()));
    }
    let seconds = (r.setup.runtime / weir_base::SECONDS).max(SHORTEST);
    let mut rows = Vec::new();
    for terminals in TERMINALS {
        let mut found = [const { Vec::new() }; 3];
        for round in 0..r.setup.repeat.max(1) {
            for i in 0..3 {
                let i = if round % 2 == 0 { i } else { 2 - i };
                found[i].push(measure(&servers[i], terminals, seconds)?);
            }
        }
        let medians: Vec<Found> = found.iter_mut().filter_map(|f| median(f)).collect();
        let text: Vec<String> =
            NAMES.iter().zip(&medians).map(|(n, f)| format!("{n} {:.0}", f.tpm)).collect();
        r.say(&format!("  {terminals} terminals, new orders per minute: {}", text.join(", ")));
        let failed = found.iter().flatten().map(|f| f.failed).sum();
        rows.push(Row { terminals, medians, failed });
    }
    for s in &servers {
        consistent(s)?;
        s.stop()?;
    }
    site.close()?;
    Ok(page(r, &programs, seconds, &rows))
}

/// What was found for a number of terminals.
struct Row {
    terminals: u32,
    /// In the order of [`NAMES`].
    medians: Vec<Found>,
    /// Transactions given up after ten attempts, in all runs.
    failed: u64,
}

fn page(r: &Runner<'_>, programs: &Programs, seconds: u64, rows: &[Row]) -> Page {
    let head = [
        "terminals",
        "SRP",
        "BRP",
        "local disk",
        "BRP / SRP",
        "BRP / local",
        "SRP ms",
        "BRP ms",
        "local ms",
        "given up",
    ];
    let mut table = Table::new(&head);
    let mut data = Vec::new();
    for row in rows {
        let tpm: Vec<f64> = row.medians.iter().map(|f| f.tpm).collect();
        let mut cells = vec![row.terminals.to_string()];
        cells.extend(tpm.iter().map(|t| format!("{t:.0}")));
        cells.extend([format!("{:.2}", tpm[1] / tpm[0]), format!("{:.2}", tpm[1] / tpm[2])]);
        cells.extend(row.medians.iter().map(|f| units::three(f.ms)));
        cells.push(row.failed.to_string());
        table.row(cells);
        let all: serde_json::Map<String, Value> = NAMES
            .iter()
            .zip(&row.medians)
            .map(|(n, f)| {
                (n.to_string(), json!({ "new_orders_per_minute": f.tpm, "tps": f.tps, "ms": f.ms }))
            })
            .collect();
        data.push(json!({ "terminals": row.terminals, "given_up": row.failed, "found": all }));
    }
    let line = |i: usize| rows.iter().map(|x| (f64::from(x.terminals), x.medians[i].tpm)).collect();
    let chart = Chart {
        title: "TPC-C-like load of PostgreSQL".into(),
        x: Axis::new("terminals", Scale::Bytes),
        y: Axis::new("new orders per minute", Scale::Linear),
        series: NAMES.iter().enumerate().map(|(i, n)| Series::new(n, line(i))).collect(),
    };
    Page {
        intro: "S1 runs BenchmarkSQL's TPC-C with 320 warehouses on PostgreSQL, 8 to 128 terminals: BRP is better than SRP at each, by \
                less than in micro-benchmarks, for a database does much to keep its I/O rare. Columns without a unit are new orders \
                committed per minute (what TPC-C counts); *ms* is the mean time of a transaction of any kind."
            .into(),
        method: format!(
            "PostgreSQL {}, 32 MB of shared buffers, every commit on the disk (fsync), ext4. A server for each column on a disk of \
             its own: volumes of {} in the memory of one target, attached by `weir attach` (FUSE and a loop device, or ublk where the \
             kernel has it) by SRP and by BRP, and a loop device on a file in memory without target and network. All stay up; only \
             one is under load at a time, in turns, {seconds} s a run, each run after a checkpoint. Load, servers, kernel and \
             target share all cores of the machine.\n\n\
             TPC-C-like: the five transactions with the specification's shares (45 % new order, 43 % payment, 4 % each order status, \
             delivery, stock level), 1 % of new orders rolled back, its skew of items and customers, as functions called by pgbench. \
             Smaller and simpler than it asks for: {WAREHOUSES} warehouses, {ITEMS} items (100 000), {CUSTOMERS} customers and first \
             orders a district (3000); no keying or thinking, so {WAREHOUSES} warehouses are contended for by up to 128 terminals; \
             deliveries are not queued. The database is small enough to be in the machine's page cache: what the disk sees is \
             the log of commits and written pages. After the load the specification's consistency conditions 1 to 4 were verified.",
            programs.version,
            units::size(VOLUME)
        ),
        sections: vec![
            Section::Figure(String::new(), "New orders per minute by terminals".into(), vec![chart]),
            Section::Table(table),
        ],
        passed: data.len() as u64,
        failed: 0,
        data: json!({ "seconds": seconds, "machine_cores": r.machine.cores, "rows": data }),
        frame: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_taken_from_what_pgbench_says() {
        let said = "pgbench (15.4)\nnumber of transactions actually processed: 12\n\
                    number of failed transactions: 1 (0.000%)\nlatency average = 15.123 ms\n\
                    initial connection time = 4 ms\ntps = 523.400000 (without initial connection time)\n\
                    SQL script 1: new_order.sql\n - latency average = 20.1 ms\n";
        let f = parse(said).unwrap();
        assert_eq!(f, Found { tpm: 0.0, tps: 523.4, ms: 15.123, failed: 1 });
        assert_eq!(parse("pgbench: error"), None);
    }

    #[test]
    fn shares_are_the_specifications() {
        assert_eq!(MIX.iter().map(|m| m.2).sum::<u32>(), 100);
        assert!(MIX[1].2 >= 43 && MIX[2..].iter().all(|m| m.2 >= 4));
    }
}
