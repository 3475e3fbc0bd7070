//! The desired state, and the one pure function that changes it.
//!
//! [`Model::apply`] takes a [`Command`] and either changes the model and says what changed, or leaves it untouched and
//! says why. It reads no clock, no disk and no random source (identities come from the `entropy` argument), so the same
//! commands always give the same model.

mod apply;
mod compression;
mod deduplication;
mod devices;
mod form;
mod hosts;
mod ids;
mod import;
mod initiator;
mod key_source;
mod layers;
mod layout;
mod migration;
mod newer;
mod objects;
mod overwrite;
mod pools;
mod protection;
mod record;
mod remote;
mod secret;
mod snapshots;
mod volumes;

pub use apply::{Action, Change, Command, ObjectKind};
pub use compression::{Compression, CompressionSpec, Compressor};
pub use deduplication::{Deduplication, DeduplicationSpec};
pub use devices::{Device, DeviceFound, DeviceKind, DeviceSpec};
pub use form::{Cipher, Encryption, EncryptionSpec, Form, FormSpec, RekeySpec, SealedKey};
pub use ids::{Hex64, Naa, check_name};
pub use import::{DatasetFound, ImportReport, ImportSpec, PoolFound, VolumeImported};
pub use initiator::{InitiatorId, InitiatorPort};
pub use key_source::KeySource;
pub use layers::{LayerChange, LayerParams, LayerSpec, LayerSwap, MAX_LAYERS, VolumeLayer};
pub use layout::{EXTENT_ALIGN, Layout, MAX_CHUNK, MIN_CHUNK};
pub(crate) use migration::being_cut;
pub use migration::{
    AdoptSpec, IMAGES, ImageFound, Migration, MigrationPatch, MigrationSpec, MigrationStage, Told,
};
pub use objects::*;
pub use overwrite::Overwrite;
pub use pools::DeviceNames;
pub(crate) use pools::not_protected;
pub use protection::{
    CloneSpec, DeviceAction, DeviceUse, MAX_SNAPSHOT_NAME, MapMemory, PoolId, Protection, Raid,
    check_snapshot_name, snapshot_dataset,
};

pub use record::{Carried, PoolRecord, RECORD_PARTS, RecordPart, Stamp};
pub use remote::RemoteAddress;
pub use secret::{HostAuth, HostSecret};
pub use snapshots::{MAX_RULES, SnapshotPolicySpec, SnapshotRule, check_own_name};

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Largest LUN that fits the peripheral and flat-space addressing methods (SAM-5 4.7.4): 14 bits.
pub const MAX_LUN: u16 = 16_383;
/// Most objects of one kind. Far above what one node serves; bounds memory and the store.
pub const MAX_OBJECTS: usize = 65_536;
/// Largest volume, in bytes: 1 EiB.
pub const MAX_VOLUME: u64 = 1 << 60;

/// Everything that the operator wants, in one value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Counts the changes since the store was made; every accepted command adds one.
    pub revision: u64,
    /// Pools by name.
    pub pools: BTreeMap<String, Pool>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Volume>,
    /// Hosts by name.
    pub hosts: BTreeMap<String, Host>,
    /// Mappings, ordered by host and LUN.
    pub maps: BTreeSet<Mapping>,
    /// Target ports by name.
    pub targets: BTreeMap<String, TargetPort>,
}

impl Model {
    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Result<&Pool> {
        self.pools.get(name).ok_or_else(|| missing(Code::PoolNotFound, "pool", name))
    }

    /// The volume of that name.
    pub fn volume(&self, name: &str) -> Result<&Volume> {
        self.volumes.get(name).ok_or_else(|| {
            let e = missing(Code::VolumeNotFound, "volume", name);
            match name.split_once('@') {
                Some((volume, _)) => {
                    e.because(format!("`{name}` is a snapshot of volume `{volume}`")).hint(format!(
                        "`weir clone create {name} NAME --read-only` makes a volume that shows it"
                    ))
                }
                None => e,
            }
        })
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.get(name).ok_or_else(|| missing(Code::HostNotFound, "host", name))
    }

    /// The target port of that name.
    pub fn target(&self, name: &str) -> Result<&TargetPort> {
        self.targets.get(name).ok_or_else(|| missing(Code::TargetNotFound, "target", name))
    }

    /// The mapping of that volume to that host.
    pub fn map(&self, host: &str, volume: &str) -> Result<&Mapping> {
        self.host(host)?;
        self.volume(volume)?;
        self.maps_of_host(host).find(|m| m.volume == volume).ok_or_else(|| {
            Error::new(
                Code::MapNotFound,
                format!("volume `{volume}` is not mapped to host `{host}`"),
            )
            .hint("`weir map list` shows what is")
        })
    }

    /// The mappings of one host, by LUN.
    pub fn maps_of_host(&self, host: &str) -> impl Iterator<Item = &Mapping> {
        let first = Mapping { host: host.to_string(), lun: 0, volume: String::new() };
        let host = host.to_string();
        self.maps.range(first..).take_while(move |m| m.host == host)
    }

    /// Tells as which host an initiator port logs in.
    pub fn viewers<'a>(&'a self) -> impl Fn(&InitiatorPort) -> Option<&'a Host> {
        let ports = self.hosts.values().flat_map(|h| h.ports.iter().map(move |p| (*p, h)));
        let named: BTreeMap<InitiatorPort, &Host> = ports.collect();
        let any = self.hosts.values().find(|h| h.allow_any);
        move |port| named.get(port).copied().or(any)
    }

    /// What a host sees, by LUN.
    pub fn seen_by(&self, host: Option<&Host>) -> BTreeMap<u16, &Volume> {
        let maps = host.into_iter().flat_map(|h| self.maps_of_host(&h.name));
        maps.filter_map(|m| Some((m.lun, self.volumes.get(&m.volume)?))).collect()
    }

    /// The volumes of one pool, by name.
    pub fn volumes_of_pool(&self, pool: &str) -> impl Iterator<Item = &Volume> {
        self.volumes.values().filter(move |v| v.pool == pool)
    }

    /// Who may see what, as the data plane needs it. Volumes being deleted are left out.
    pub fn access(&self) -> AccessMap {
        let hosts = self.hosts.values().map(|h| HostAccess {
            name: h.name.clone(),
            ports: h.ports.clone(),
            allow_any: h.allow_any,
            auth: secret::asked(h.keyed, h.secret.as_ref()),
            luns: self
                .maps_of_host(&h.name)
                .map(|m| LunAccess { lun: m.lun, volume: m.volume.clone() })
                .collect(),
        });
        AccessMap { revision: self.revision, hosts: hosts.collect() }
    }
}

fn missing(code: Code, what: &str, name: &str) -> Error {
    Error::new(code, format!("there is no {what} `{name}`"))
        .hint(format!("`weir {what} list` shows what there is"))
}

#[cfg(test)]
mod tests;
