//! A declaration that is to be applied, and how.

use super::Desired;
use crate::model::{HostSpec, MapSpec, PoolSpec, TargetSpec, VolumeSpec};
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
    /// With `prune`: delete volumes, too, with their data.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delete_data: bool,
}

/// How a declaration is applied.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct How {
    pub(crate) dry_run: bool,
    pub(crate) prune: bool,
    pub(crate) delete_data: bool,
}

impl From<Desired> for ApplySpec {
    fn from(d: Desired) -> ApplySpec {
        let Desired { pools, volumes, hosts, maps, targets } = d;
        ApplySpec { pools, volumes, hosts, maps, targets, ..ApplySpec::default() }
    }
}

impl ApplySpec {
    pub(crate) fn parts(self) -> (Desired, How) {
        let ApplySpec { pools, volumes, hosts, maps, targets, dry_run, prune, delete_data } = self;
        (Desired { pools, volumes, hosts, maps, targets }, How { dry_run, prune, delete_data })
    }
}
