//! What the data plane is doing now: counters, latencies, sessions, processor use, buffers.
//!
//! Counters count from the start of the daemon. Rates are worked out by the controller from two readings a second
//! apart; the data plane leaves them 0.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Latency of finished I/Os over the last second or so, in nanoseconds; all 0 when there were none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

/// One direction of a volume's I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct IoStats {
    /// I/Os finished well.
    pub ops: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// I/Os per second. Filled in by the controller.
    pub iops: f64,
    /// Bytes per second. Filled in by the controller.
    pub bytes_per_second: f64,
    /// Latency from the command's arrival to its response.
    pub latency: Latency,
}

/// A volume at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeLive {
    /// The volume's name.
    pub name: String,
    /// Reads.
    pub read: IoStats,
    /// Writes.
    pub write: IoStats,
    /// I/Os in flight.
    pub in_flight: u64,
    /// Bytes that it takes on its devices, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}

/// One host's login at a target port: an I_T nexus.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NexusLive {
    /// The host, when one names the initiator port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The initiator port, `ext:guid`.
    pub initiator: String,
    /// The peer's address.
    pub peer: String,
    /// RDMA channels.
    pub channels: u64,
    /// Commands in flight.
    pub in_flight: u64,
}

/// A target port at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PortLive {
    /// The target port's name.
    pub name: String,
    /// Addresses that it really listens on.
    pub listening: Vec<String>,
    /// RDMA channels.
    pub channels: u64,
    /// Logged-in hosts.
    pub nexuses: Vec<NexusLive>,
    /// Logins since the start.
    pub logins: u64,
    /// Logins refused since the start.
    pub rejects: u64,
    /// Commands finished since the start, of every kind.
    pub commands: u64,
    /// Task management functions finished since the start.
    pub task_management: u64,
}

/// A reactor at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReactorLive {
    /// Its processor core.
    pub core: u16,
    /// Share of the last second with work to do, in percent.
    pub busy_percent: f64,
    /// Share of the last second on the processor, work or not, in percent.
    pub awake_percent: f64,
    /// Polls since the start.
    pub polls: u64,
    /// Polls that found work since the start.
    pub useful_polls: u64,
    /// Times that it slept since the start.
    pub sleeps: u64,
}

/// A pool of buffers, requests or the like.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CensusLive {
    /// What it holds, e.g. `srp0/requests`.
    pub name: String,
    /// Members in all.
    pub total: u64,
    /// Members that are free.
    pub free: u64,
    /// The fewest that ever were free.
    pub least_free: u64,
    /// Tasks that wait for a member.
    pub waiting: u64,
    /// Bytes of one member.
    pub item_bytes: u64,
}

/// Everything at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LiveStatus {
    /// Volumes that are open.
    pub volumes: Vec<VolumeLive>,
    /// Target ports that run.
    pub ports: Vec<PortLive>,
    /// Reactors.
    pub reactors: Vec<ReactorLive>,
    /// Buffer and request pools.
    pub census: Vec<CensusLive>,
}

impl LiveStatus {
    /// Fills in the rates from an earlier reading, `seconds` ago. Volumes that were not there keep rates of 0.
    pub(crate) fn rate(&mut self, earlier: &LiveStatus, seconds: f64) {
        if seconds <= 0.0 {
            return;
        }
        for v in &mut self.volumes {
            let Some(was) = earlier.volumes.iter().find(|w| w.name == v.name) else { continue };
            for (now, was) in [(&mut v.read, &was.read), (&mut v.write, &was.write)] {
                // A volume that was deleted and made again begins at zero.
                now.iops = now.ops.saturating_sub(was.ops) as f64 / seconds;
                now.bytes_per_second = now.bytes.saturating_sub(was.bytes) as f64 / seconds;
            }
        }
    }
}

/// Something that did not start or stopped working.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// The object, e.g. `pool/fast`.
    pub object: String,
    /// The stable code.
    pub code: String,
    /// What and why.
    pub text: String,
    /// What to do.
    pub hint: String,
}

/// The answer to `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Its data directory.
    pub data_dir: String,
    /// Revision of the configuration.
    pub revision: u64,
    /// Number of pools.
    pub pools: usize,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Number of mappings.
    pub maps: usize,
    /// What is not well; empty when all is.
    pub faults: Vec<Fault>,
    /// What the data plane is doing.
    pub live: LiveStatus,
}
