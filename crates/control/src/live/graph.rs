//! Device graphs and their layers at work.

use super::IoStats;
use crate::model::LayerParams;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One layer of a device graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GraphNodeLive {
    /// Its name in the graph.
    pub id: String,
    /// The kind of layer.
    pub kind: String,
    /// Its parameters, as text.
    pub params: std::collections::BTreeMap<String, String>,
    /// The layers that it stands on.
    pub children: Vec<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Its logical block in bytes.
    pub block_size: u32,
    /// Reads that passed it, on all reactors.
    pub read: IoStats,
    /// Writes that passed it, on all reactors.
    pub write: IoStats,
    /// I/Os below it now.
    pub in_flight: u64,
}

/// The device graph of a volume, the top first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GraphLive {
    /// The volume.
    pub volume: String,
    /// Its layers.
    pub nodes: Vec<GraphNodeLive>,
}

/// A layer that was put over a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LayerLive {
    /// Its name.
    pub name: String,
    /// The kind of layer.
    pub kind: String,
    /// Its parameters, as text.
    pub params: LayerParams,
    /// Its name in the device graph.
    pub node: String,
    /// I/O passes it. Else the volume is not up, or was opened without its layers, as one could not be made.
    pub in_use: bool,
    /// Reads that passed it.
    pub read: IoStats,
    /// Writes that passed it.
    pub write: IoStats,
    /// I/Os below it now.
    pub in_flight: u64,
}

/// A kind of layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LayerKindLive {
    /// Its name.
    pub kind: String,
    /// What it does.
    pub about: String,
    /// What it wants to know.
    pub params: Vec<LayerParamLive>,
    /// Why it cannot be put over a volume; none: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A parameter of a kind of layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LayerParamLive {
    /// Its name.
    pub name: String,
    /// What it may be, and what it is when not given.
    pub value: String,
    /// What it means.
    pub help: String,
}
