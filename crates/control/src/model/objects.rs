//! The objects of the desired state and the specifications that make them.

use super::{
    Device, DeviceSpec, FormSpec, Hex64, HostAuth, HostSecret, InitiatorPort, Layout, MapMemory,
    Migration, Naa, Overwrite, PoolId, Protection, Raid, SnapshotRule, Told, VolumeLayer,
};
use crate::live::PoolLive;
use crate::units;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A pool to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Its devices; at least one.
    pub devices: Vec<DeviceSpec>,
    /// Protect its volumes: copies, checksums, snapshots. Left out: a plain pool, whose volumes are as safe as its
    /// devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raid: Option<Raid>,
    /// What may be lost that is on the devices, in the words of the refusal without it: `ext4`, `weir` …
    #[serde(default, skip_serializing_if = "Overwrite::is_nothing")]
    pub overwrite: Overwrite,
    /// Protected pools: how much of their maps is kept in memory. Left out: lean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MapMemory>,
}

/// Storage that volumes are made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its devices. Layouts name a device by its index here, which never changes.
    pub devices: Vec<Device>,
    /// The identity of a plain pool, as the labels on its devices have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id: Option<PoolId>,
    /// Makes it a protected one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Protection>,
    /// What its devices carry of volumes that were left out when it was taken over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub left: Vec<Left>,
}

/// A volume that is on a pool's devices and was left out when the pool was taken over. The devices go on carrying what they said of
/// it, which may be the only wrapped key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// As the devices have it; it need not make sense.
    pub volume: Volume,
    /// Hosts that saw it, as the devices have them, and as which LUNs. What has such a name here may be another one.
    #[serde(default)]
    pub seen_by: Vec<(Host, u16)>,
}

impl Pool {
    /// What the labels of its devices say.
    pub fn identity(&self) -> Option<PoolId> {
        self.protection.as_ref().map(|p| p.id).or(self.id)
    }
}

/// A pool with its use of space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolInfo {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Bytes on the devices that volumes can be laid out on.
    pub capacity: u64,
    /// Bytes of these that belong to volumes.
    pub allocated: u64,
    /// Bytes of these that are free.
    pub free: u64,
    /// Sum of the sizes of all volumes in the pool, in bytes.
    pub provisioned: u64,
    /// Number of volumes.
    pub volumes: usize,
    /// Makes it a protected one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Protection>,
    /// How a protected pool stands; none while it is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<PoolLive>,
}

/// A change to a pool. No device can be taken away by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolPatch {
    /// Devices to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<DeviceSpec>,
    /// Devices to grow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grow: Vec<DeviceGrow>,
    /// Protected pools: how much of their maps is kept in memory from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MapMemory>,
    /// What may be lost that is on devices to add, or in what devices to grow have gained, in the words of the refusal without it.
    #[serde(default, skip_serializing_if = "Overwrite::is_nothing")]
    pub overwrite: Overwrite,
}

/// A device's new, larger size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceGrow {
    /// Index of the device in the pool.
    pub device: usize,
    /// New size in bytes. Left out: all that a block device has gained.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub size: Option<u64>,
}

/// How a volume is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// A sparse file of its own on a `dir` device; takes only the space that was written.
    Thin,
    /// One device after the other, `file` and `block` devices.
    Concat,
    /// Striped over several devices.
    Stripe,
    /// On the pool's `ram` devices.
    Ram,
    /// On the pool's `null` devices.
    Null,
    /// In a protected pool: thin, with copies, checksums and snapshots.
    Protected,
    /// A file or disk of its own, in no pool, byte by byte.
    Image,
}

impl VolumeKind {
    /// The word that JSON, TOML and the command line use.
    pub fn as_str(self) -> &'static str {
        match self {
            VolumeKind::Thin => "thin",
            VolumeKind::Concat => "concat",
            VolumeKind::Stripe => "stripe",
            VolumeKind::Ram => "ram",
            VolumeKind::Null => "null",
            VolumeKind::Protected => "protected",
            VolumeKind::Image => "image",
        }
    }
}

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// The pool that holds it.
    pub pool: String,
    /// Size in bytes, a multiple of the block size.
    #[serde(deserialize_with = "units::size")]
    pub size: u64,
    /// Logical block size: 512 (the default) or 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// How to lay it out. Left out: `protected` in a protected pool, `thin` on a pool of directories, `ram` or `null` on a pool of these, `stripe`
    /// over several devices, else `concat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<VolumeKind>,
    /// Stripes: bytes on one device before the next one's turn; a power of two from 4 KiB to 1 MiB (default 64 KiB).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub chunk: Option<u64>,
    /// Stripes: number of devices to stripe over (default: all).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<usize>,
    /// Whether hosts may only read it.
    #[serde(default)]
    pub read_only: bool,
    /// Unit serial number, 1 to 32 printable characters; left out: made from the world-wide name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Rules for periodic snapshots, such as `every=10m,keep=24`, of a volume of a protected pool. In a declaration:
    /// left out, they stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub snapshots: Option<Vec<SnapshotRule>>,
    /// Protected pools: the form in which its data is kept; left out: as it is.
    #[serde(default, skip_serializing_if = "FormSpec::is_plain")]
    pub form: FormSpec,
}

impl VolumeSpec {
    /// A volume of `size` bytes in a pool, with everything else as it is when nothing is said.
    pub fn new(name: impl Into<String>, pool: impl Into<String>, size: u64) -> VolumeSpec {
        VolumeSpec {
            name: name.into(),
            pool: pool.into(),
            size,
            block_size: None,
            kind: None,
            chunk: None,
            columns: None,
            read_only: false,
            serial: None,
            snapshots: None,
            form: FormSpec::default(),
        }
    }

    /// Refuses a size that no volume can have.
    ///
    /// # Errors
    /// [`Code::InvalidSize`](crate::Code::InvalidSize).
    pub fn check_size(&self) -> crate::Result<()> {
        super::volumes::check_size(self.size, self.block_size.unwrap_or(512))
    }
}

/// Whether a volume is there to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// To be used.
    #[default]
    Ready,
    /// Being made; goes on after a restart. Only such a volume's data or file is made when it is not there.
    Creating,
    /// Being deleted; goes on after a restart.
    Deleting,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The pool that holds it.
    pub pool: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: u32,
    /// How it is laid out.
    pub kind: VolumeKind,
    /// Where exactly its blocks are.
    pub layout: Layout,
    /// Whether hosts may only read it.
    pub read_only: bool,
    /// Unit serial number (VPD page 80h).
    pub serial: String,
    /// World-wide name (VPD page 83h), 32 hexadecimal digits.
    #[schema(value_type = String)]
    pub naa: Naa,
    /// Whether it is there to be used.
    #[serde(default)]
    pub state: VolumeState,
    /// Rules for periodic snapshots, each with another period.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub snapshots: Vec<SnapshotRule>,
    /// Its other place, while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// Number of the place where it is, among all that it has had.
    #[serde(default, skip_serializing_if = "is_first")]
    pub place: u32,
    /// What hosts know of it since it has moved for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
    /// It is being made smaller: what lies beyond its size is on its way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// Layers that were put over it, the uppermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<VolumeLayer>,
    /// Its file, or what a protected pool has of it, is being made larger, from so many bytes, which it has at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_from: Option<u64>,
    /// Another pool has it as of a newer configuration: what is here is of before that, and is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_in: Option<NewerIn>,
}

impl Volume {
    /// Bytes that it has of its pool: more than its size as long as what is cut off it has not been thrown away.
    pub fn held(&self) -> u64 {
        self.cut.map_or(self.size, |c| c.from.max(self.size))
    }
}

/// Where a volume was found that this configuration has elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewerIn {
    /// What the pool was called.
    pub pool: String,
    /// Its identity, 32 hexadecimal digits.
    #[schema(value_type = String)]
    pub id: PoolId,
}

/// A volume that is being made smaller. Its size is the new one; its layout still has what is cut off, which nobody gets
/// before it was thrown away. Goes on after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cut {
    /// Bytes that it had before.
    pub from: u64,
    /// Hosts do not see the new size yet, and nothing is thrown away. A start finds it so where that was refused, or not come to its
    /// end: then the volume keeps its size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

fn is_first(place: &u32) -> bool {
    *place == 0
}

/// A change to a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumePatch {
    /// New size in bytes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub size: Option<u64>,
    /// Leave to make the volume smaller; what lies beyond the new end is lost.
    #[serde(default)]
    pub allow_shrink: bool,
    /// Whether hosts may only read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Rules for periodic snapshots from now on; an empty list ends them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub snapshots: Option<Vec<SnapshotRule>>,
    /// What is here of a volume that a newer pool had is served all the same. By itself only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serve_here: bool,
}

/// A host to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Its name.
    pub name: String,
    /// Its initiator ports: `ext:guid` in hexadecimal, an address, or a name.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub ports: Vec<InitiatorPort>,
    /// Stands for every initiator port that no other host names. At most one host may.
    #[serde(default)]
    pub allow_any: bool,
    /// What it proves at login, in hexadecimal: 16 to 256 bytes. Then it is let in by BRP only, with its proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<HostSecret>,
    /// File with the secret; in configuration files only, seen from where the file is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret_file: Option<PathBuf>,
}

/// A host: a set of initiator ports that see the same volumes under the same LUNs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its initiator ports.
    #[schema(value_type = Vec<String>)]
    pub ports: Vec<InitiatorPort>,
    /// Stands for every initiator port that no other host names.
    pub allow_any: bool,
    /// It proves at login that it knows its secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
    /// The secret. In no answer of this interface, and in nothing that pools carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub secret: Option<HostSecret>,
}

impl Host {
    /// As others may see it.
    pub fn without_secret(&self) -> Host {
        Host { secret: None, ..self.clone() }
    }
}

/// A change to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostPatch {
    /// Ports to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub add_ports: Vec<InitiatorPort>,
    /// Ports to take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub remove_ports: Vec<InitiatorPort>,
    /// Whether it stands for every other initiator port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_any: Option<bool>,
    /// The secret that it proves from now on, in hexadecimal. Sessions without that proof end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<HostSecret>,
    /// It proves nothing any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_secret: bool,
}

/// A mapping to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The host.
    pub host: String,
    /// The volume.
    pub volume: String,
    /// The LUN, 0 to 16383; left out: the lowest that is free, and by which the host for all ports has no other volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
}

/// A volume that a host sees under a LUN.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct Mapping {
    /// The host.
    pub host: String,
    /// The LUN.
    pub lun: u16,
    /// The volume.
    pub volume: String,
}

/// Which fabric a target port listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// iWARP in user space over TCP; needs no RDMA hardware here.
    #[default]
    Iwarp,
    /// An RDMA adapter by way of the verbs library.
    Verbs,
    /// TCP, for protocols that want no RDMA.
    Tcp,
}

/// Which protocol a target port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The SCSI RDMA protocol.
    #[default]
    Srp,
    /// Weir's block RDMA protocol.
    Brp,
    /// The network block device protocol, over TCP.
    Nbd,
    /// iSCSI, over TCP.
    Iscsi,
}

/// What a target port does about MPA's CRC (RFC 5044 section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CrcPolicy {
    /// Used when the initiator asks for it.
    #[default]
    Peer,
    /// Asked for always.
    Require,
}

/// A target port to create or change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// Its name.
    pub name: String,
    /// Addresses to listen on, `IP:PORT`; `[IPv6]:PORT`.
    pub listen: Vec<String>,
    /// The protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// The fabric.
    #[serde(default)]
    pub transport: Transport,
    /// First half of the target port identifier; left out: kept, or made once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id_ext: Option<Hex64>,
    /// Second half of the target port identifier; left out: kept, or made once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ioc_guid: Option<Hex64>,
    /// Most RDMA channels at once, 1 to 4096 (default 256).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Processor cores whose reactors serve the port; empty: all reactors.
    #[serde(default)]
    pub cores: Vec<u16>,
    /// CRC policy.
    #[serde(default)]
    pub crc: CrcPolicy,
}

/// A target port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetPort {
    /// Its name.
    pub name: String,
    /// Addresses to listen on.
    pub listen: Vec<String>,
    /// The protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// The fabric.
    pub transport: Transport,
    /// First half of the target port identifier, 16 hexadecimal digits.
    #[schema(value_type = String)]
    pub id_ext: Hex64,
    /// Second half of the target port identifier, 16 hexadecimal digits.
    #[schema(value_type = String)]
    pub ioc_guid: Hex64,
    /// Relative target port identifier (SPC-4, VPD page 83h, designator type 4h), the same for as long as the port is
    /// there: registrations of hosts name it. 0: of a configuration from before, which gets one when it is read.
    #[serde(default)]
    pub relative: u16,
    /// Most RDMA channels at once.
    pub channels: u16,
    /// Processor cores whose reactors serve the port; empty: all reactors.
    pub cores: Vec<u16>,
    /// CRC policy.
    pub crc: CrcPolicy,
}

/// Who may see what: hosts and their LUNs in one consistent piece, for the data plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessMap {
    /// The model's revision that it was taken from.
    pub revision: u64,
    /// Every host.
    pub hosts: Vec<HostAccess>,
}

/// One host's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAccess {
    /// The host's name.
    pub name: String,
    /// Its initiator ports.
    pub ports: Vec<InitiatorPort>,
    /// Whether it stands for every port that no host names.
    pub allow_any: bool,
    /// What it proves at login.
    pub auth: HostAuth,
    /// Its LUNs in ascending order.
    pub luns: Vec<LunAccess>,
}

/// One LUN of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunAccess {
    /// The LUN.
    pub lun: u16,
    /// The volume behind it.
    pub volume: String,
}
