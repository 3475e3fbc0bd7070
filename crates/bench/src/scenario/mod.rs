//! Series of runs that redraw a figure of the founding documents or answer one question about speed.
//!
//! Each starts a target of its own (`weir serve` in a temporary directory, on cores of its own), measures,
//! takes medians, and writes a page with a table, a drawing and how to measure again. A page says what was
//! measured where, and nothing else.

mod attached;
mod brp;
mod cores;
mod hosts_fair;
mod limits;
mod page;
mod pooled;
mod postgres;
mod reference;
mod runner;
mod s0_latency;
mod s0_sizes;
mod s0_zero;
mod s2;
mod s3;
mod store;
mod store_minute;
mod store_snapshots;
mod target;
#[cfg(test)]
mod tests;
mod tpcc;

pub use page::Outcome;

use crate::engine::RunError;
use reference::{Frame, Reference};
use runner::Runner;
use std::net::SocketAddr;
use std::path::PathBuf;
use weir_base::Nanos;
use weir_proto_srp::PortId;

/// What every scenario is run with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The `weir` program, to start targets.
    pub program: PathBuf,
    /// Measure this target, with volumes under LUN 0 and up, instead of starting one.
    pub target: Option<SocketAddr>,
    /// Initiator port to log in as.
    pub initiator: PortId,
    /// Nanoseconds per point.
    pub runtime: Nanos,
    /// Measurements per point; the median counts.
    pub repeat: u32,
    /// Directory for the page, its figures and its data.
    pub out: PathBuf,
    /// Now, in seconds since 1970.
    pub unix_time: u64,
    /// Version of the program.
    pub version: String,
    /// The command that does the same again.
    pub command: String,
    /// Told what is going on.
    pub say: fn(&str),
}

/// One scenario.
pub struct Scenario {
    /// Its name on the command line, and of its page.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    run: fn(&Runner<'_>) -> Result<page::Page, ScenarioError>,
}

/// All scenarios.
pub static ALL: &[Scenario] = &[
    s0_sizes::FIG5,
    s0_sizes::FIG6,
    s0_latency::FIG7,
    s0_zero::ZERO,
    s3::LATENCY,
    s3::IOPS,
    limits::LIMITS,
    hosts_fair::FAIR,
    brp::TABLE1,
    brp::TABLE2,
    brp::MERGE,
    brp::FIG4,
    brp::FIG5,
    brp::FIG6,
    tpcc::FIG7,
    store::OVERHEAD,
    store_minute::MINUTE,
    store_snapshots::SNAPSHOTS,
    s2::IOMETER,
    s2::ORION,
    s2::JETSTRESS,
    s2::TPCH,
    s2::WRITE,
];

/// Why a scenario did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The load generator did not start.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The target did not start, or ended.
    #[error("the target {0}")]
    Target(String),
    /// I/Os failed.
    #[error("I/O failed: {0}")]
    Io(String),
    /// A file or a thread.
    #[error("{0}: {1}")]
    System(String, #[source] std::io::Error),
    /// A drawing.
    #[error(transparent)]
    Plot(#[from] crate::plot::PlotError),
}

/// The scenario of this name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|s| s.name == name)
}

/// Runs a scenario and writes its page.
///
/// # Errors
/// It did not run to its end; nothing was written.
pub fn run(scenario: &Scenario, setup: &Setup) -> Result<Outcome, ScenarioError> {
    let runner = Runner::new(setup);
    let before = Reference::measure(&runner)?;
    let mut page = (scenario.run)(&runner)?;
    page.frame = before.zip(Reference::measure(&runner)?).map(|(a, b)| Frame(a, b));
    page.write(scenario, setup, &runner)
}
