//! Hosts beside each other: one that is stopped in the midst of its work, very many of them, and a crowd that wants in.

mod crowd;
mod hung;
mod restarted;

use super::limits::resident;
use super::page::{Page, Section, Table};
use super::runner::Runner;
use super::target::{Medium, NOT_OURS, Target, Wanted};
use super::{Scenario, ScenarioError};
use crate::plot::Chart;
use crate::units;
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(super) const FAIR: Scenario = Scenario {
    name: "hosts-fair",
    title: "Hosts beside others: one is stopped, there are many, a crowd wants in",
    run,
};

const VOLUME: u64 = 256 << 20;
const BUFFERS: u64 = 128 << 20;
/// How long the host that is stopped works before that.
const BEGINS: Duration = Duration::from_secs(1);
const HOSTS: u32 = 64;
const CHANNELS: u32 = 4;
/// How often it is looked whether hosts and their channels have come.
const LOOKS: u32 = 600;
const STEP: Duration = Duration::from_millis(100);
/// How long a login of another address may take while the crowd is there.
const LOGIN: Duration = Duration::from_millis(200);

fn system(what: &'static str) -> impl Fn(std::io::Error) -> ScenarioError {
    move |e| ScenarioError::System(what.to_owned(), e)
}

/// A host: a process of its own, which ends with this at the latest, also while it is stopped.
struct Host(Option<Child>);

impl Host {
    /// Starts the host of this number with a load.
    fn start(r: &Runner<'_>, t: &Target, number: u32, load: &str) -> Result<Host, ScenarioError> {
        Host::start_on(r, t, number, 0, load)
    }

    /// The same with another volume.
    fn start_on(
        r: &Runner<'_>,
        t: &Target,
        number: u32,
        lun: u16,
        load: &str,
    ) -> Result<Host, ScenarioError> {
        let child = Command::new(&r.setup.program)
            // A host that waits must let the target run, and others.
            .args(["bench", "--json", "--poll", "sleep", "--target", &t.login.place().to_string()])
            .args(["--lun", &lun.to_string()])
            .args(["--initiator-port", &format!("{number:016x}:0000000000000009")])
            .args(load.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(system("a host's process"))?;
        Ok(Host(Some(child)))
    }

    fn signal(&self, name: &str) -> Result<(), ScenarioError> {
        let pid = self.0.as_ref().map_or(0, Child::id).to_string();
        let done = Command::new("kill").args([name, &pid]).status();
        match done.map_err(system("kill"))?.success() {
            true => Ok(()),
            false => Err(ScenarioError::Io("the host that was to be stopped has ended".into())),
        }
    }

    /// Waits for its end; bytes per second.
    fn rate(self) -> Result<f64, ScenarioError> {
        let v = self.ended()?;
        v["bw_bytes"].as_f64().ok_or_else(|| ScenarioError::Io("a host said no rate".into()))
    }

    /// Waits for its end; what it has measured.
    fn ended(mut self) -> Result<Value, ScenarioError> {
        let Some(child) = self.0.take() else { return Ok(Value::Null) };
        let out = child.wait_with_output().map_err(system("a host's process"))?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            return Err(ScenarioError::Io(format!("a host: {why}")));
        }
        Ok(serde_json::from_slice(&out.stdout).unwrap_or_default())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What was found, line by line.
struct Found {
    table: Table,
    data: Vec<Value>,
    charts: Vec<Chart>,
    passed: u64,
    failed: u64,
}

impl Found {
    fn row(&mut self, r: &Runner<'_>, what: &str, is: String, goal: &str, met: bool) {
        *(if met { &mut self.passed } else { &mut self.failed }) += 1;
        let met = if met { "yes" } else { "no" };
        r.say(&format!("  {what}: {is}, goal {goal}: {met}"));
        self.table.row([what, &is, goal, met].map(str::to_owned).to_vec());
        self.data.push(json!({ "what": what, "is": is, "goal": goal, "met": met }));
    }

    /// This machine does not let it be measured.
    fn left_out(&mut self, r: &Runner<'_>, what: &str, why: &str) {
        r.say(&format!("  {what} is not measured: {why}"));
        self.table.row([what, "not measured", "", ""].map(str::to_owned).to_vec());
        self.data.push(json!({ "what": what, "not_measured": why }));
    }
}

fn target(r: &Runner<'_>, medium: Medium) -> Result<Target, ScenarioError> {
    let wanted = Wanted {
        medium,
        volumes: 1,
        size: VOLUME,
        cores: r.cores.target.clone(),
        buffers: BUFFERS,
        listen: Ipv6Addr::UNSPECIFIED.into(),
    };
    Target::start(r.setup, &wanted)
}

/// Three hosts at once; bytes per second of all.
fn three(r: &Runner<'_>, t: &Target) -> Result<f64, ScenarioError> {
    let seconds = r.setup.runtime.div_ceil(weir_base::SECONDS).max(1);
    let load = format!(
        "--rw read --bs 1m --iodepth 8 --size 128m --ramp-time 200ms --time-based --runtime {seconds}s"
    );
    let hosts = (1..=3).map(|n| Host::start(r, t, n, &load)).collect::<Result<Vec<_>, _>>()?;
    hosts.into_iter().map(Host::rate).sum()
}

/// One of four hosts is stopped.
fn stopped(r: &Runner<'_>, t: &Target, found: &mut Found) -> Result<(), ScenarioError> {
    let mut ratios = Vec::new();
    for _ in 0..r.setup.repeat.max(1) {
        let alone = three(r, t)?;
        let load = "--rw read --bs 1m --iodepth 200 --size 128m --time-based --runtime 3600s";
        let fourth = Host::start(r, t, 4, load)?;
        std::thread::sleep(BEGINS);
        fourth.signal("-STOP")?;
        let beside = three(r, t)?;
        // It was there all the time.
        fourth.signal("-CONT")?;
        ratios.push(beside / alone);
        let (a, b) = (units::bandwidth(alone), units::bandwidth(beside));
        r.say(&format!("  three hosts: {a} by themselves, {b} beside a stopped one"));
        found.data.push(json!({ "alone_bytes": alone, "beside_bytes": beside }));
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    let what = "rate of three hosts beside a fourth that is stopped with 200 reads of 1 MiB";
    found.row(r, what, format!("{ratio:.2}"), ">= 0.90", ratio >= 0.9);
    Ok(())
}

/// Channels that the target says it has, of all ports.
fn channels(r: &Runner<'_>, t: &Target) -> Result<u64, ScenarioError> {
    let data = t.data().unwrap_or_default();
    let out = Command::new(&r.setup.program)
        .arg("--data-dir")
        .arg(data)
        .args(["status", "--json"])
        .output()
        .map_err(system("the target's state"))?;
    let v: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let ports = v["live"]["ports"].as_array().cloned().unwrap_or_default();
    Ok(ports.iter().filter_map(|p| p["channels"].as_u64()).sum())
}

/// Many hosts, each with several channels.
fn many(r: &Runner<'_>, t: &Target, pid: u32, found: &mut Found) -> Result<(), ScenarioError> {
    let system = system("the target's memory");
    let before = resident(pid).map_err(&system)?;
    let load = format!(
        "--rw randrw --bs 4k --iodepth 2 --size 64m --channels {CHANNELS} --time-based --runtime 10s"
    );
    let hosts =
        (0..HOSTS).map(|n| Host::start(r, t, 100 + n, &load)).collect::<Result<Vec<_>, _>>()?;
    let (mut most, mut memory) = (0, 0u64);
    for _ in 0..LOOKS {
        if most >= u64::from(HOSTS * CHANNELS) {
            break;
        }
        most = most.max(channels(r, t)?);
        memory = memory.max(resident(pid).map_err(&system)?);
        std::thread::sleep(STEP);
    }
    let (mut well, mut why) = (0, None);
    for h in hosts {
        match h.rate() {
            Ok(rate) if rate > 0.0 => well += 1,
            Ok(_) => {}
            Err(e) => why = Some(e.to_string()),
        }
    }
    if let Some(why) = why {
        r.say(&format!("  {why}"));
    }
    let all = u64::from(HOSTS * CHANNELS);
    let what = format!("channels of {HOSTS} hosts with {CHANNELS} each");
    found.row(r, &what, most.to_string(), &format!(">= {all}"), most >= all);
    let what = format!("of {HOSTS} such hosts, those that worked without an error");
    found.row(r, &what, well.to_string(), &format!("= {HOSTS}"), well == HOSTS);
    let more = memory.saturating_sub(before);
    found.data.push(json!({ "resident_before": before, "resident_with_all": memory }));
    let is = format!("{:.0} MiB", more as f64 / f64::from(1 << 20));
    found.row(r, "memory of the target that they took", is, "<= 256 MiB", more <= 256 << 20);
    Ok(())
}

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r, Medium::Ram)?;
    let Some(pid) = t.pid() else {
        return Err(ScenarioError::Target(NOT_OURS.into()));
    };
    let mut found = Found {
        table: Table::new(&["what", "measured", "goal", "met"]),
        data: Vec::new(),
        charts: Vec::new(),
        passed: 0,
        failed: 0,
    };
    stopped(r, &t, &mut found)?;
    many(r, &t, pid, &mut found)?;
    let system = system("a crowd before the target");
    let before = resident(pid).map_err(&system)?;
    for kind in [crowd::Kind::Silent, crowd::Kind::Logins] {
        let c = crowd::watch(r, &t, kind).map_err(&system)?;
        let worst = units::nanos(c.worst.as_nanos() as f64);
        found.data.push(json!({ "crowd": c.kind.text(), "came": c.came, "logins": c.logins }));
        let what =
            format!("longest of {} logins from another address beside {}", c.logins, c.text());
        found.row(r, &what, worst, "<= 200 ms", c.worst <= LOGIN && c.logins > 0);
    }
    let more = resident(pid).map_err(&system)?.saturating_sub(before);
    let is = format!("{:.0} MiB", more as f64 / f64::from(1 << 20));
    found.row(r, "memory of the target that the crowd took", is, "<= 64 MiB", more <= 64 << 20);
    drop(t);
    restarted::run(r, &mut found)?;
    hung::run(r, &mut found)?;
    let caption = "Hosts over a stop and a start";
    let drawn = Some(std::mem::take(&mut found.charts)).filter(|all| !all.is_empty());
    let drawn = drawn.map(|all| Section::Figure(String::new(), caption.into(), all));
    Ok(Page {
        intro: "Whoever shares a target with others must not feel it when one of them stops in the midst of its work, when there \
                are many of them, or when somebody connects without end. Every host is a process of its own."
            .into(),
        method: format!(
            "target on cores {:?}, hosts wherever they like; a volume of {} in memory; in a file where the target is started anew. A pause is the longest of all commands of a host.",
            r.cores.target,
            units::size(VOLUME)
        ),
        sections: std::iter::once(Section::Table(found.table)).chain(drawn).collect(),
        data: json!(found.data),
        frame: None,
        passed: found.passed,
        failed: found.failed,
    })
}
