//! A declaration that is to be applied, and how.

use super::Desired;
use crate::model::{HostSpec, MapSpec, Naa, PoolSpec, TargetSpec, Volume, VolumeSpec};
use crate::planted::{Bug, has};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Objects as they should be, and how that is to be done. Options are in the body, so that a daemon that does not
/// know one of them refuses all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApplySpec {
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// Volumes.
    pub volumes: Vec<VolumeSpec>,
    /// Hosts.
    pub hosts: Vec<HostSpec>,
    /// Mappings.
    pub maps: Vec<MapSpec>,
    /// Target ports.
    pub targets: Vec<TargetSpec>,
    /// Only tell what would be done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Remove what is not declared. Target ports stay if none is declared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prune: bool,
    /// With `prune`: volumes that may be deleted with their data, if they are still these. A dry run tells which there are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delete_data: Vec<DoomedVolume>,
    /// With `prune`: all volumes that are not declared may be deleted with their data, also those of which nobody knew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delete_all_data: bool,
}

/// A volume that may be deleted with its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DoomedVolume {
    /// What it is called.
    pub name: String,
    /// Its world-wide name: another volume may be called the same by now.
    #[schema(value_type = String)]
    pub naa: Naa,
}

/// How a declaration is applied.
#[derive(Debug, Clone, Default)]
pub(crate) struct How {
    pub(crate) dry_run: bool,
    pub(crate) prune: bool,
    pub(crate) delete_data: Vec<DoomedVolume>,
    pub(crate) delete_all_data: bool,
}

impl How {
    /// Whether a volume may be deleted with its data.
    pub(crate) fn may_delete(&self, volume: &Volume) -> bool {
        let is_it = |d: &DoomedVolume| {
            let same = d.naa == volume.naa || has(Bug::ConfirmedByName);
            (d.name == volume.name && same) || has(Bug::SomeConfirmedIsAll)
        };
        self.delete_all_data || self.delete_data.iter().any(is_it)
    }
}

impl From<Desired> for ApplySpec {
    fn from(d: Desired) -> ApplySpec {
        let Desired { pools, volumes, hosts, maps, targets } = d;
        ApplySpec { pools, volumes, hosts, maps, targets, ..ApplySpec::default() }
    }
}

impl ApplySpec {
    pub(crate) fn parts(self) -> (Desired, How) {
        let ApplySpec { pools, volumes, hosts, maps, targets, .. } = self;
        let ApplySpec { dry_run, prune, delete_data, delete_all_data, .. } = self;
        let how = How { dry_run, prune, delete_data, delete_all_data };
        (Desired { pools, volumes, hosts, maps, targets }, how)
    }
}
