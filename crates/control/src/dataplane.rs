//! The seam between control plane and data path.
//!
//! The controller calls these methods from Tokio threads, one change at a time. An implementation passes each to its
//! reactors as a message and answers when it is in effect there. Everything may be called again with the same
//! arguments: after a failure the controller repeats or undoes, and after a restart it opens everything anew.

use crate::error::Result;
use crate::events::EventLog;
use crate::live::LiveStatus;
use crate::model::{AccessMap, Pool, TargetPort, Volume};
use crate::store::ReservationStore;
use std::net::SocketAddr;
use std::pin::Pin;

/// Work in progress: a boxed future, so that the trait stays object-safe.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// What the data plane gets from the control plane.
#[derive(Debug, Clone)]
pub struct Hooks {
    /// Where persistent reservations with APTPL are kept.
    pub reservations: ReservationStore,
    /// Where to tell of progress and of faults.
    pub events: EventLog,
}

/// The data path as the control plane sees it.
pub trait DataPlane: Send + Sync + 'static {
    /// Called once, before anything else.
    fn attach(&self, hooks: Hooks);

    /// Opens the devices of a pool, making files that do not exist, and gives the size of each in bytes (0 for a
    /// directory). Called again after devices were added or given a larger size: opens what is new, grows what must.
    fn start_pool<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<u64>>;

    /// Closes the devices of a pool. All its volumes are closed by then. Data stays.
    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, ()>;

    /// Builds the device graph of a volume's layout and opens the volume. For a `File` layout this makes the file
    /// when it does not exist.
    fn open_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// The size, layout or read-only state of an open volume is now this. Hosts must get unit attentions.
    fn update_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// Closes a volume after its I/Os in flight. Does nothing when it is not open.
    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()>;

    /// Gives back what a closed volume holds: removes its file or discards its extents. Must also work when part of it
    /// is gone already.
    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// Puts hosts and LUNs into effect, all at once, replacing those before. LUNs whose volume is not open are to be
    /// answered as not ready. Hosts must get the unit attention for changed LUNs.
    fn set_mappings<'a>(&'a self, access: &'a AccessMap) -> Work<'a, ()>;

    /// Starts a target port, or changes one to be like this, and gives the addresses that it really listens on.
    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>>;

    /// Stops a target port: logs its hosts out. Does nothing when it does not run.
    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()>;

    /// What is going on. Called about once a second; must be cheap.
    fn status(&self) -> Work<'_, LiveStatus>;
}
