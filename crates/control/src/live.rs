//! What the data plane is doing now: counters, latencies, sessions, processor use, buffers.
//!
//! Counters count from the start of the daemon. Rates are worked out by the controller from two readings a second
//! apart; the data plane leaves them 0.

mod graph;
mod migration;
mod pace;

pub use graph::{GraphLive, GraphNodeLive, LayerKindLive, LayerLive, LayerParamLive};
pub use migration::{MigrationLive, MigrationProgress};
pub use pace::Pace;
pub(crate) use pace::Paces;

use crate::model::Volume;
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
    /// What compression has come to, if it is compressed and that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionLive>,
    /// What deduplication has come to, if it is deduplicated and that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication: Option<DeduplicationLive>,
}

/// A volume, and whether hosts are served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeInfo {
    /// As it is configured.
    #[serde(flatten)]
    pub volume: Volume,
    /// Why hosts are not served, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
}

/// What compression of a volume has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompressionLive {
    /// Bytes that it takes in its pool, a copy of each: what was overwritten or discarded since the last checkpoint is
    /// still among them.
    pub stored_bytes: u64,
    /// Bytes that it takes less than without compression. Kept once a second: what the last second before a stop or a
    /// crash changed may be missing.
    pub saved_bytes: u64,
    /// Whether nothing of that had to be guessed: large discards of data that nothing is known of make it an estimate.
    pub exact: bool,
}

/// What deduplication of a volume has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DeduplicationLive {
    /// Bytes that it takes in its pool, a copy of each: what was overwritten or discarded since the last checkpoint is
    /// still among them.
    pub stored_bytes: u64,
    /// Bytes of data that are there more than once and are kept only once, before compression. Kept once a second.
    pub saved_bytes: u64,
    /// Whether that is exact: after a crash it is not before everything has been counted again.
    pub exact: bool,
    /// How much of that has been counted, in percent, while it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recount_percent: Option<f64>,
    /// Chunks of which it is known in memory where their data is, so that the same is found.
    pub indexed_chunks: u64,
}

/// One host's login at a target port: an I_T nexus.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NexusLive {
    /// The host, when one names the initiator port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The initiator port.
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
    /// Connections that an error of this program has ended since its start; each is an event, and a line of the log.
    pub broken: u64,
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
    /// What holds it up, if something does: then it tells nothing else of itself.
    pub held: Option<String>,
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

/// A device of a protected pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolDeviceLive {
    /// Its number in the pool.
    pub number: u16,
    /// Its identity, 16 hexadecimal digits.
    pub id: String,
    /// What it is called now; none: it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `in-sync`, `syncing`, `out` (it misses what was written meanwhile), `spare`, `missing` or `failed`.
    pub state: String,
    /// Size in bytes.
    pub size: u64,
    /// Blocks that live in spare ones.
    pub replaced: u32,
    /// Its slabs are being moved to other devices, or have been.
    pub draining: bool,
    /// Copies of slabs that it holds.
    pub slabs: u32,
    /// Copies of slabs that it has room for.
    pub room: u32,
    /// Copies of blocks that were found damaged on it, in all the time that this node has had it in this pool.
    pub damaged: u64,
    /// Reads of it that failed though it answered, and that say nothing of the medium; since then, too.
    pub unread: u64,
    /// Both, since a scrub went through the whole pool and found nothing on it.
    pub since_clean: u64,
    /// What had been counted of both since the pool was opened, when a scrub last found nothing; none: no scrub has.
    #[serde(skip)]
    pub clean: Option<[u64; 2]>,
}

/// Whose data damaged copies are.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamageOf {
    /// The pool's own, or it is not known whose.
    #[default]
    Pool,
    /// A volume's or snapshot's, as it is called on the devices.
    Dataset(String),
    /// Of volumes and snapshots that are not told apart, since too many others have damage.
    Others,
}

/// Copies of blocks that were found damaged on a device, and whose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamageLive {
    /// The device's identity, as in [`PoolDeviceLive`].
    pub device: String,
    /// Whose they are.
    pub whose: DamageOf,
    /// Copies since the pool was opened.
    pub copies: u64,
    /// Of these, copies of blocks without a good one anywhere.
    pub lost: u64,
}

/// What is being done about a protected pool's devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolWorkLive {
    /// `resync`, `drain` or `balance`.
    pub work: String,
    /// Number of the device that it is about.
    pub device: u16,
    /// Bytes copied and proved.
    pub done: u64,
    /// Bytes in all, as far as that is known.
    pub total: u64,
    /// How fast it goes on.
    #[serde(flatten)]
    pub pace: Pace,
}

/// What happened in a protected pool since it was opened. Blocks have 4096 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolCounters {
    /// Blocks written by volumes.
    pub blocks_written: u64,
    /// Blocks read by volumes.
    pub blocks_read: u64,
    /// Blocks written to all devices, of any kind.
    pub media_writes: u64,
    /// Groups of writes committed together.
    pub groups: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Copies of blocks found damaged, each once until it is mended or read well.
    pub damaged: u64,
    /// Of those, mended from the other copy.
    pub repaired: u64,
    /// Of those, moved to a spare block.
    pub relocated: u64,
    /// Blocks found without a good copy, each once until one can be read.
    pub lost: u64,
    /// Devices that failed.
    pub devices_failed: u64,
    /// Log entries taken up when it was opened.
    pub replayed: u64,
}

/// A protected pool at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolLive {
    /// The pool's name.
    pub name: String,
    /// `healthy`; `degraded`: not every block has all its copies, or a device is not in use; `suspended`: it can be
    /// read and not written until it is resumed.
    pub state: String,
    /// Why, unless it is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Copies of each block.
    pub copies: u8,
    /// Bytes for data and maps.
    pub total: u64,
    /// Bytes of these that are free.
    pub free: u64,
    /// Bytes of these that hosts can write: the rest is kept for maps, and so that deleting and discarding work in a full
    /// pool.
    pub room: u64,
    /// Its devices.
    pub devices: Vec<PoolDeviceLive>,
    /// Paths of the configuration that are not in use, and why not.
    pub unused: Vec<String>,
    /// What is being done about its devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<PoolWorkLive>,
    /// Why something that should be done about its devices is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Bytes of its maps that are in memory, and how many there may be.
    pub maps: [u64; 2],
    /// What happened since it was opened.
    pub counters: PoolCounters,
    /// The reactor that it lives on, from 0.
    pub reactor: usize,
    /// The scrub that runs or ran last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubLive>,
    /// Periodic snapshots that should be made or deleted and are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overdue: Vec<SnapshotOverdue>,
    /// Which opening of the pool the figures are of: a later one has a higher number.
    #[serde(skip)]
    pub opening: u64,
    /// What was found damaged since it was opened.
    #[serde(skip)]
    pub damage: Vec<DamageLive>,
    /// How many blocks of volumes and snapshots are known to be lost now, by what these are called: on the devices, and in the
    /// control plane as in the configuration.
    #[serde(skip)]
    pub lost: Vec<(String, u64)>,
}

/// A device of a pool that has become shorter under it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ShortDevice {
    /// The pool.
    pub pool: String,
    /// The device.
    pub path: String,
    /// Bytes that it had.
    pub had: u64,
    /// Bytes that it has.
    pub has: u64,
}

/// Periodic snapshots that should be made or deleted and are not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SnapshotOverdue {
    /// The volume, or the group.
    pub name: String,
    /// It is a group.
    pub group: bool,
    /// The period, such as `10m`.
    pub every: String,
    /// Why.
    pub reason: String,
}

/// A rule for periodic snapshots of a volume, and how it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SnapshotRuleLive {
    /// The volume.
    pub volume: String,
    /// The pool.
    pub pool: String,
    /// The rule, such as `every=10m,keep=24`.
    pub rule: String,
    /// The newest snapshot of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Snapshots of the rule that are there.
    pub kept: usize,
    /// When the next one is due, in seconds since 1970; 0: not known.
    pub next: u64,
    /// Why what is due is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Damage that a scrub found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ScrubFinding {
    /// What it concerns: data, a map, a table, with the address where there is one.
    pub layer: String,
    /// The volume, or the snapshot as `VOLUME@SNAPSHOT`; what the configuration does not know is called as on the devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whose: Option<String>,
    /// The pool's block; 0 for none in particular.
    pub block: u64,
    /// What is wrong, and what became of it.
    pub what: String,
}

/// A scrub: every copy of everything is read, verified and mended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ScrubLive {
    /// `running`, `done`, `stopped` or `failed`.
    pub state: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes a second at most; 0 for as fast as possible.
    pub rate: u64,
    /// Blocks of which every copy was read.
    pub blocks: u64,
    /// Blocks in use when it began; what it reads may be more or less.
    pub of_blocks: u64,
    /// Copies found damaged.
    pub damaged: u64,
    /// Of those, mended.
    pub repaired: u64,
    /// Blocks without a good copy.
    pub lost: u64,
    /// Seconds that it has taken.
    pub seconds: u64,
    /// How fast it goes on.
    #[serde(flatten)]
    pub pace: Pace,
    /// The first thousand findings.
    pub findings: Vec<ScrubFinding>,
    /// How many there are in all.
    pub found: u64,
}

/// A snapshot, as the pool on the devices has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SnapshotLive {
    /// The volume; empty: the configuration has none of that identity.
    pub volume: String,
    /// The snapshot's name.
    pub name: String,
    /// What it is called on the devices.
    pub dataset: String,
    /// The pool.
    pub pool: String,
    /// The volume's size then, in bytes.
    pub size: u64,
    /// Bytes of data in it, much of which it shares with others; as of the last checkpoint.
    pub used: u64,
    /// Bytes that only older snapshots of the volume still hold, not this one; as of the last checkpoint.
    pub older: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Volumes made of it.
    pub clones: Vec<String>,
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
    /// Protected pools that are open.
    pub pools: Vec<PoolLive>,
    /// Devices of pools that have become shorter under them.
    pub short: Vec<ShortDevice>,
    /// The initiator port as which the node logs in at others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
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

/// What the start of a node waits for. Commands wait for its end, or are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Starting {
    /// Since when: milliseconds since 1970 UTC.
    pub since_ms: u64,
    /// Pools that are not open yet.
    pub pools: Vec<String>,
    /// Objects that are not yet as the configuration file declares them, e.g. `volume/db-01`.
    pub declared: Vec<String>,
    /// What the program does that was started, before others may change anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
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
    /// What its start waits for. None: that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting: Option<Starting>,
    /// What is not well; empty when all is.
    pub faults: Vec<Fault>,
    /// Rounds, since it started, in which everything was tried again that is not well or not as it is declared; counted when they
    /// end, also where there was nothing to try.
    #[serde(default)]
    pub retries: u64,
    /// What the data plane is doing.
    pub live: LiveStatus,
}
