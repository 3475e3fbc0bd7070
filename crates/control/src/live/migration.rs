//! Migrations under way, and those that have ended.

use super::Pace;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far the data plane is with a migration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MigrationProgress {
    /// `copying`, `verifying`, `ready` (only the cut-over is missing) or `failed`.
    pub state: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// What it waits for: a destination that does not answer.
    pub waits: Option<String>,
    /// Bytes done in this state.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that were really read and written: what is empty is left out.
    pub copied: u64,
}

/// A migration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MigrationLive {
    /// The volume.
    pub volume: String,
    /// The pool, or the file or disk, that it was in when the migration began.
    pub from: String,
    /// The pool, or the file or disk, that it is moved to.
    pub to: String,
    /// `waiting` (not begun, or not again after a restart), `copying`, `verifying`, `ready` (the cut-over is next),
    /// `clearing` (over; space is being given back), `done`, `cancelled` or `failed`.
    pub state: String,
    /// Why it failed, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes done in this state.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that were really read and written: what is empty is left out.
    pub copied: u64,
    /// Bytes a second at most; 0 for as fast as possible.
    pub rate: u64,
    /// Nothing is copied for now.
    pub paused: bool,
    /// Both sides are read and compared before the cut-over.
    pub verify: bool,
    /// The volume is forgotten in the end.
    pub detach: bool,
    /// Seconds since it began, or since the daemon's start; or that it took.
    pub seconds: u64,
    /// How fast this state of it goes on.
    #[serde(flatten)]
    pub pace: Pace,
}

impl MigrationLive {
    /// Whether nothing more happens.
    pub fn is_over(&self) -> bool {
        matches!(self.state.as_str(), "done" | "cancelled" | "failed")
    }
}
