//! Runs points of scenarios.

use super::cores::{Cores, allowed};
use super::target::{Medium, Target, Wanted};
use super::{ScenarioError, Setup};
use crate::engine::{self, JobResult, Options};
use crate::job::{JobSpec, Rw};
use crate::machine::Machine;
use crate::srp::{Login, QueueMode, Sessions, Srp, SrpOptions};
use weir_base::{MILLIS, Nanos};

/// Buffers of a scenario's target.
const BUFFERS: u64 = 128 << 20;
/// Load before each measurement: connections and caches warm up.
const RAMP: Nanos = 200 * MILLIS;

/// How a job reaches the target.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) luns: Vec<u16>,
    pub(super) sessions: Sessions,
    pub(super) channels: usize,
    pub(super) queue_mode: QueueMode,
    pub(super) cores: Vec<usize>,
}

/// What scenarios are run by.
pub(super) struct Runner<'a> {
    pub(super) setup: &'a Setup,
    pub(super) machine: Machine,
    /// All cores, half for each side.
    pub(super) cores: Cores,
}

impl<'a> Runner<'a> {
    pub(super) fn new(setup: &'a Setup) -> Runner<'a> {
        let cores = Cores::halves(&allowed());
        Runner { setup, machine: Machine::this(), cores }
    }

    pub(super) fn say(&self, line: &str) {
        (self.setup.say)(line);
    }

    /// A target with volumes of `size` bytes.
    pub(super) fn target(
        &self,
        medium: Medium,
        volumes: u16,
        size: u64,
        cores: &Cores,
    ) -> Result<Target, ScenarioError> {
        let wanted = Wanted {
            medium,
            volumes,
            size,
            cores: cores.target.clone(),
            buffers: BUFFERS,
            listen: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let t = Target::start(self.setup, &wanted)?;
        self.say(&match t.pid() {
            Some(pid) => format!("target started (process {pid}), {}", cores.text()),
            None => format!("using the target at {}", t.login.place()),
        });
        Ok(t)
    }

    /// One LUN by one session with as many channels as there are cores.
    pub(super) fn way(&self, cores: &Cores) -> Way {
        Way {
            luns: vec![0],
            sessions: Sessions::Shared,
            channels: 0,
            queue_mode: QueueMode::Multi,
            cores: cores.load.clone(),
        }
    }

    /// A job for one point.
    pub(super) fn job(&self, rw: Rw, bs: u32, iodepth: u32, size: u64) -> JobSpec {
        JobSpec {
            name: format!("{} {}", rw.name(), crate::units::size(u64::from(bs))),
            rw,
            bs,
            iodepth,
            size: Some(size),
            runtime: Some(self.setup.runtime),
            time_based: true,
            ramp: RAMP.min(self.setup.runtime),
            // It has a core of its own, or else `once` says so.
            poll: weir_reactor::PollMode::Busy,
            ..JobSpec::default()
        }
    }

    /// Measures once.
    pub(super) fn once(
        &self,
        target: &Target,
        spec: &JobSpec,
        way: &Way,
    ) -> Result<JobResult, ScenarioError> {
        self.once_as(target.login.clone(), spec, way)
    }

    /// As [`once`](Runner::once), with this login.
    pub(super) fn once_as(
        &self,
        login: Login,
        spec: &JobSpec,
        way: &Way,
    ) -> Result<JobResult, ScenarioError> {
        let options = Options { cores: way.cores.clone(), ..Options::default() };
        let srp = SrpOptions {
            luns: way.luns.clone(),
            sessions: way.sessions,
            channels: way.channels,
            queue_mode: way.queue_mode,
            ..SrpOptions::new(Vec::new(), spec)
        };
        let mut spec = spec.clone();
        if self.cores.shared() {
            // One core for both sides: whoever has nothing to do must let the other run.
            spec.poll = weir_reactor::PollMode::Sleep;
        }
        let all = engine::run(Srp::new(login, srp), &spec, &options)?;
        let r = JobResult::merge(&all);
        if r.errors > 0 || r.lost {
            let why = r.first_error.unwrap_or_else(|| "the connection was lost".into());
            return Err(ScenarioError::Io(format!("{}: {why}", spec.name)));
        }
        if r.total().ios == 0 {
            let why =
                format!("{}: no I/O ended within the time; use a longer --runtime", spec.name);
            return Err(ScenarioError::Io(why));
        }
        Ok(r)
    }

    /// Measures as often as set and gives the run with the median rate.
    pub(super) fn median(
        &self,
        target: &Target,
        spec: &JobSpec,
        way: &Way,
    ) -> Result<JobResult, ScenarioError> {
        let mut all = Vec::new();
        for _ in 0..self.setup.repeat.max(1) {
            all.push(self.once(target, spec, way)?);
        }
        all.sort_by(|a, b| a.iops().total_cmp(&b.iops()));
        let m = all.swap_remove(all.len() / 2);
        self.say(&format!(
            "  {} depth {} x {}: {} IOPS, {}, mean {}",
            spec.name,
            spec.iodepth,
            spec.numjobs,
            crate::units::si(m.iops()),
            crate::units::bandwidth(m.bandwidth()),
            crate::units::nanos(m.total().latency.mean())
        ));
        Ok(m)
    }

    /// Writes a volume once all over, so that reads meet memory of its own.
    pub(super) fn fill(&self, target: &Target, lun: u16, size: u64) -> Result<(), ScenarioError> {
        let way = Way { luns: vec![lun], channels: 1, ..self.way(&self.cores.first(1)) };
        self.once(target, &fill(size), &way).map(drop)
    }
}

/// Writes a volume of `size` bytes once all over.
pub(super) fn fill(size: u64) -> JobSpec {
    JobSpec {
        name: "fill".into(),
        rw: Rw::Write,
        bs: 1 << 20,
        iodepth: 4,
        size: Some(size),
        runtime: None,
        time_based: false,
        ..JobSpec::default()
    }
}
