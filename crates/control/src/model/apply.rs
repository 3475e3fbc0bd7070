//! Commands, changes and the dispatch between them.

use super::*;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What can be asked of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Create a pool. Device sizes that are not given become 0 and are filled in by [`Command::SizePool`].
    CreatePool(PoolSpec),
    /// Take a pool over from devices that another configuration made it of.
    ImportPool {
        /// What is wanted.
        spec: ImportSpec,
        /// What was found there.
        found: PoolFound,
        /// LUNs of hosts by which these know other volumes.
        known: BTreeSet<(String, u16)>,
    },
    /// Know a protected pool and its volumes no longer; all of it stays on its devices.
    ReleasePool {
        /// The pool.
        name: String,
        /// Its devices carry a newer configuration, or are not there: what this one says of volumes that move from or to it does not
        /// count.
        newer: bool,
    },
    /// Record how the devices of a pool were found, by index: they are made, and have their sizes.
    SizePool {
        /// The pool.
        name: String,
        /// One for each device.
        sizes: Vec<DeviceFound>,
    },
    /// Add devices to a pool or grow them.
    PatchPool {
        /// The pool.
        name: String,
        /// What to change.
        patch: PoolPatch,
    },
    /// Name devices of a plain pool no longer that were to be added, and never were.
    DropNew {
        /// The pool.
        name: String,
    },
    /// Name a device of a protected pool, before the pool takes it in.
    PutDevice {
        /// The pool.
        name: String,
        /// The device.
        device: DeviceSpec,
    },
    /// Name a device of a protected pool no longer.
    DropDevice {
        /// The pool.
        name: String,
        /// The device's path.
        path: String,
    },
    /// Name the devices of protected pools by their paths of now. All at once: pools may have each other's.
    NameDevices {
        /// What has changed of each.
        pools: Vec<DeviceNames>,
    },
    /// Give up other places of volumes in a pool that is not there: those that volumes have left, and those that they do not go to
    /// any more.
    DropPlaces {
        /// The pool.
        pool: String,
    },
    /// Delete a pool without volumes.
    DeletePool {
        /// The pool.
        name: String,
    },
    /// Create a volume.
    CreateVolume(VolumeSpec),
    /// Make a volume of a snapshot.
    CloneVolume {
        /// What is wanted.
        spec: CloneSpec,
        /// The snapshot's size in bytes, as the pool says.
        size: u64,
    },
    /// A volume has been made, or made larger, on its devices; follows [`Command::CreateVolume`].
    ReadyVolume {
        /// The volume.
        name: String,
    },
    /// What a volume had beyond its end is gone; follows [`Command::PatchVolume`] with a smaller size.
    FinishCut {
        /// The volume.
        name: String,
    },
    /// Hosts see the new size of a volume; follows [`Command::PatchVolume`] with a smaller one.
    AgreeCut {
        /// The volume.
        name: String,
    },
    /// A volume has more on its devices than is known of it.
    AdoptSize {
        /// The volume.
        name: String,
        /// Bytes that hosts can see of what is there.
        size: u64,
    },
    /// The devices of a newer pool say that a volume is there, which this configuration has elsewhere.
    NoteNewer {
        /// The volume.
        name: String,
        /// The pool.
        pool: String,
    },
    /// Change a volume.
    PatchVolume {
        /// The volume.
        name: String,
        /// What to change.
        patch: VolumePatch,
    },
    /// Give volumes rules for periodic snapshots.
    SetSnapshotRules(SnapshotPolicySpec),
    /// Wrap the key of an encrypted volume anew.
    RekeyVolume {
        /// The volume.
        name: String,
        /// Where the key comes from that it is wrapped with now.
        key: KeySource,
        /// The volume's own key, wrapped.
        sealed: SealedKey,
    },
    /// Change the layers over a volume.
    ChangeLayers {
        /// The volume.
        name: String,
        /// What to change.
        change: LayerChange,
    },
    /// Begin to delete a volume without mappings: from now on it cannot be used.
    DeleteVolume {
        /// The volume.
        name: String,
    },
    /// Forget a volume whose data is gone; follows [`Command::DeleteVolume`].
    ForgetVolume {
        /// The volume.
        name: String,
    },
    /// Make a volume of a foreign file or disk.
    AdoptVolume {
        /// What is wanted.
        spec: AdoptSpec,
        /// What was found there.
        found: ImageFound,
    },
    /// Begin to move a volume.
    StartMigration {
        /// The volume.
        name: String,
        /// Where to, and how.
        spec: MigrationSpec,
    },
    /// Change how a volume is moved.
    ChangeMigration {
        /// The volume.
        name: String,
        /// What to change.
        patch: MigrationPatch,
    },
    /// The cut-over: from now on the volume is where it was moved to; or the end without one.
    EndMigration {
        /// The volume.
        name: String,
        /// It has moved, and this is what hosts know of it; none: it stays.
        moved: Option<Told>,
    },
    /// Nothing is left in the other place; follows [`Command::EndMigration`].
    ForgetMigration {
        /// The volume.
        name: String,
    },
    /// Create a host.
    CreateHost(HostSpec),
    /// Change a host.
    PatchHost {
        /// The host.
        name: String,
        /// What to change.
        patch: HostPatch,
    },
    /// Delete a host without mappings.
    DeleteHost {
        /// The host.
        name: String,
    },
    /// Map a volume to a host.
    CreateMap(MapSpec),
    /// Take a mapping away.
    DeleteMap {
        /// The host.
        host: String,
        /// The volume.
        volume: String,
    },
    /// Create a target port, or change it to be like this.
    PutTarget(TargetSpec),
    /// The same for several at once: one may take an address that another has and leaves.
    PutTargets {
        /// Those that are to be.
        put: Vec<TargetSpec>,
        /// Names of those that go.
        gone: Vec<String>,
    },
    /// Delete a target port.
    DeleteTarget {
        /// The target port.
        name: String,
    },
}

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// [`Pool`].
    Pool,
    /// [`Volume`].
    Volume,
    /// [`Host`].
    Host,
    /// [`Mapping`].
    Map,
    /// [`TargetPort`].
    Target,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Pool => "pool",
            ObjectKind::Volume => "volume",
            ObjectKind::Host => "host",
            ObjectKind::Map => "map",
            ObjectKind::Target => "target",
        })
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is new.
    Created,
    /// It is different now.
    Updated,
    /// It is gone.
    Deleted,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Created => "created",
            Action::Updated => "updated",
            Action::Deleted => "deleted",
        })
    }
}

/// One change to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind of object.
    pub kind: ObjectKind,
    /// Its name; of a mapping `host/volume`.
    pub name: String,
    /// What happened to it.
    pub action: Action,
    /// A sentence for the event log.
    pub text: String,
}

impl Change {
    pub(super) fn new(
        kind: ObjectKind,
        action: Action,
        name: &str,
        text: impl Into<String>,
    ) -> Change {
        Change { kind, name: name.to_string(), action, text: text.into() }
    }
}

impl Model {
    /// Carries out `command`, or leaves the model as it is and says why. An accepted command that changes nothing
    /// gives no changes and keeps the revision. `entropy` should be random; new identities come from it.
    pub fn apply(&mut self, command: Command, entropy: u128) -> Result<Vec<Change>> {
        let changes = match command {
            Command::CreatePool(spec) => self.create_pool(spec, entropy),
            Command::ImportPool { spec, found, known } => self.import_pool(&spec, &found, &known),
            Command::ReleasePool { name, newer } => self.release_pool(&name, newer),
            Command::SizePool { name, sizes } => self.size_pool(&name, &sizes),
            Command::PatchPool { name, patch } => self.patch_pool(&name, patch),
            Command::DropNew { name } => self.drop_new(&name),
            Command::PutDevice { name, device } => self.put_device(&name, &device),
            Command::DropDevice { name, path } => self.drop_device(&name, &path),
            Command::NameDevices { pools } => self.name_devices(&pools),
            Command::DropPlaces { pool } => self.drop_places(&pool),
            Command::DeletePool { name } => self.delete_pool(&name),
            Command::CreateVolume(spec) => self.create_volume(spec, entropy),
            Command::CloneVolume { spec, size } => self.clone_volume(spec, size, entropy),
            Command::ReadyVolume { name } => self.ready_volume(&name),
            Command::FinishCut { name } => self.finish_cut(&name),
            Command::AgreeCut { name } => self.agree_cut(&name),
            Command::AdoptSize { name, size } => self.adopt_size(&name, size),
            Command::NoteNewer { name, pool } => self.note_newer(&name, &pool),
            Command::PatchVolume { name, patch } => self.patch_volume(&name, patch),
            Command::RekeyVolume { name, key, sealed } => self.rekey_volume(&name, key, sealed),
            Command::SetSnapshotRules(spec) => self.set_rules(spec),
            Command::ChangeLayers { name, change } => self.change_layers(&name, change),
            Command::DeleteVolume { name } => self.delete_volume(&name),
            Command::ForgetVolume { name } => self.forget_volume(&name),
            Command::AdoptVolume { spec, found } => self.adopt_volume(spec, &found, entropy),
            Command::StartMigration { name, spec } => self.start_migration(&name, spec),
            Command::ChangeMigration { name, patch } => self.change_migration(&name, patch),
            Command::EndMigration { name, moved } => self.end_migration(&name, moved),
            Command::ForgetMigration { name } => self.forget_migration(&name),
            Command::CreateHost(spec) => self.create_host(spec),
            Command::PatchHost { name, patch } => self.patch_host(&name, patch),
            Command::DeleteHost { name } => self.delete_host(&name),
            Command::CreateMap(spec) => self.create_map(spec),
            Command::DeleteMap { host, volume } => self.delete_map(&host, &volume),
            Command::PutTarget(spec) => self.put_target(spec, entropy),
            Command::PutTargets { put, gone } => {
                self.put_targets(&put, &gone, entropy).map_err(|(_, why)| why)
            }
            Command::DeleteTarget { name } => self.delete_target(&name),
        }?;
        if !changes.is_empty() {
            self.revision += 1;
        }
        Ok(changes)
    }
}

/// Refuses a new object when there are too many of its kind.
pub(super) fn check_count(what: &str, present: usize) -> Result<()> {
    if present < MAX_OBJECTS {
        return Ok(());
    }
    Err(Error::new(Code::TooMany, format!("no further {what} can be created"))
        .because(format!("there are {present} already, the most that a node keeps"))
        .hint(format!("delete a {what} that is no longer used")))
}
