//! The seam between control plane and data path.
//!
//! The controller calls these methods from Tokio threads, one change at a time. An implementation passes each to its
//! reactors as a message and answers when it is in effect there. Everything may be called again with the same
//! arguments: after a failure the controller repeats or undoes, and after a restart it opens everything anew.

use crate::controller::PoolRules;
use crate::error::{Code, Error, Result};
use crate::events::EventLog;
use crate::keys::KeyRing;
use crate::live::{
    GraphLive, LayerKindLive, LiveStatus, MigrationProgress, ScrubLive, SnapshotLive,
    SnapshotRuleLive,
};
use crate::model::{
    AccessMap, Carried, Device, DeviceAction, DeviceFound, DeviceGrow, DeviceSpec, ImageFound,
    Migration, Overwrite, Pool, PoolFound, PoolId, RecordPart, TargetPort, Told, Volume,
};
use crate::store::ReservationStore;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The last state of the devices of a protected pool that was closed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastState {
    /// The pool.
    pub pool: PoolId,
    /// What tells it from any other state that they have ever had.
    pub newest: u64,
}

/// A pool that the configuration has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPool {
    /// What it is called.
    pub name: String,
    /// What its devices' labels call it.
    pub id: PoolId,
    /// How many devices it has.
    pub devices: usize,
    /// Those that are directories, with their numbers.
    pub directories: Vec<(u32, PathBuf)>,
}

/// A file or disk that is a volume as it is, for others to keep away from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownImage {
    /// The volume.
    pub volume: String,
    /// Which of its places that is.
    pub place: u32,
    /// Where it was found.
    pub path: PathBuf,
    /// Its lasting name then.
    pub identity: Option<String>,
}

/// How a protected pool may be opened without devices that it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Without {
    /// What those have to have that are there.
    pub last: LastState,
    /// Also without devices that do not answer, or cannot be read. Else only without those that are nowhere. One that another
    /// program uses is never done without: it may be changed there.
    pub silent: bool,
}

/// Work in progress: a boxed future, so that the trait stays object-safe.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// What the data plane gets from the control plane.
#[derive(Debug, Clone)]
pub struct Hooks {
    /// Where persistent reservations with APTPL are kept.
    pub reservations: ReservationStore,
    /// Where to tell of progress and of faults.
    pub events: EventLog,
    /// Where keys of encrypted volumes come from.
    pub keys: Arc<KeyRing>,
}

/// What to do about a pool's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubAction {
    /// Tell how it stands.
    Status,
    /// Begin one, at most so many bytes a second; 0 for as fast as possible.
    Start {
        /// Bytes a second.
        rate: u64,
    },
    /// End it.
    Stop,
}

/// A volume as it is in one of its places, and the pool there.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The volume, with the pool, layout and number of this place.
    pub volume: &'a Volume,
    /// Its pool.
    pub pool: &'a Pool,
}

/// A file or disk that is wanted as a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageWish {
    /// Where it is.
    pub path: String,
    /// Make a file of so many bytes if there is none.
    pub create: Option<u64>,
    /// It will be written to.
    pub write: bool,
    /// What may be lost that is there. None: what is there stays.
    pub overwrite: Option<Overwrite>,
}

/// What is to be seen to when layers change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerTrial {
    /// The new layer, as it is called in the device graph; none: one is taken out.
    pub node: Option<String>,
    /// Put it in without trying it, also if it is made to damage data.
    pub forced: bool,
}

/// How I/O goes on after it was held back for a cut-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The volume has moved, durably.
    Moved,
    /// It has not, and that is sure.
    Stays,
    /// Which of the two is not known: I/O is to be done and durable on both sides.
    Doubtful,
}

fn cannot<'a, T: Send + 'a>(what: &str) -> Work<'a, T> {
    let e = Error::new(Code::Unsupported, format!("this data plane has no {what}"))
        .hint("use the `weir` program");
    Box::pin(std::future::ready(Err(e)))
}

/// What may be in devices that are to come to a pool.
#[derive(Debug, Clone, Copy)]
pub enum Inside<'a> {
    /// Anything: the pool itself looks whether it is its own data.
    Anything,
    /// What may be lost.
    Only(&'a Overwrite),
    /// The same, or the pool's own data, which its label tells: the configuration names such a device already. That the name is
    /// the same says nothing of what is there now.
    OwnOr(&'a Overwrite),
}

/// The data path as the control plane sees it.
pub trait DataPlane: Send + Sync + 'static {
    /// Called once, before anything else.
    fn attach(&self, hooks: Hooks);

    /// Told before anything is started and with each change: the pools that the configuration has, and the volumes that are files or
    /// disks as they are, up or not. Their devices are nobody else's.
    fn configured(&self, _pools: Vec<KnownPool>, _images: Vec<KnownImage>) {}

    /// Whether a file, directory or device answers within that time of when it was first asked. Nothing is taken or changed, it does
    /// not matter what it answers, and others may ask, take and open it meanwhile.
    ///
    /// # Errors
    /// It does not answer.
    fn ask<'a>(&'a self, _path: &'a str, _within: Duration) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes devices for a pool that is to have them, before the configuration names them. Refuses what others use, also pools of
    /// this node that are not up, and what has something in it that may not be there. Makes and changes nothing.
    fn admit<'a>(
        &'a self,
        _pool: &'a str,
        _devices: &'a [DeviceSpec],
        _inside: Inside<'a>,
    ) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Looks at what devices of a plain pool have gained that are to grow, before the configuration says so: it is refused as a new
    /// device would be. Takes nothing: the next start does, once.
    fn admit_growth<'a>(
        &'a self,
        _pool: &'a Pool,
        _grow: &'a [DeviceGrow],
        _overwrite: &'a Overwrite,
    ) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Lets go of devices that were taken for a pool that is open and does not get them.
    fn dismiss<'a>(&'a self, _pool: &'a str, _devices: &'a [DeviceSpec]) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Opens the devices of a pool and tells how each was found. Files and directories are made of devices that are new only: others
    /// that are missing, shorter than they were or not the same are errors. Called again after devices were added or
    /// given a larger size: opens what is new, grows what must, and lets go of what is no device of the pool any more. A disk that has
    /// become larger by itself stays as it was.
    ///
    /// A protected pool is opened `without` devices that it lacks if those that are there have its last state: nothing may have
    /// been opened since. [`Code::PoolUnfinished`]: nothing may be known of its state any more.
    fn start_pool<'a>(
        &'a self,
        pool: &'a Pool,
        without: Option<Without>,
    ) -> Work<'a, Vec<DeviceFound>>;

    /// Takes back what was made of a pool that did not come to be, or has been deleted (`made` is false): its label goes from the
    /// devices, and files that were made for it go if it did not come to be.
    fn unmake_pool<'a>(&'a self, pool: &'a Pool, _made: bool) -> Work<'a, ()> {
        Box::pin(async { self.stop_pool(&pool.name).await.map(drop) })
    }

    /// Opens a protected pool though devices are missing that may have what the others have not; that is lost then.
    /// Gives sizes as [`start_pool`](Self::start_pool) does.
    fn force_pool<'a>(&'a self, _pool: &'a Pool) -> Work<'a, Vec<DeviceFound>> {
        cannot("protected pools")
    }

    /// Looks at devices for a protected pool that is not open, and changes nothing. `force`: also if devices are missing that
    /// may have what the others have not.
    fn find_pool<'a>(&'a self, _devices: &'a [Device], _force: bool) -> Work<'a, PoolFound> {
        cannot("protected pools")
    }

    /// Has the devices of an open protected pool carry these parts, one after the other, in place of what they carried before.
    /// Durable when it ends; a crash leaves the one or the other of each part.
    fn keep_record<'a>(&'a self, _pool: &'a Pool, _parts: &'a [RecordPart]) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// What the devices of an open protected pool carry.
    fn record<'a>(&'a self, _pool: &'a Pool) -> Work<'a, Carried> {
        Box::pin(std::future::ready(Ok(Carried::default())))
    }

    /// Does something about the devices of an open protected pool. A device that is taken in is named by the
    /// configuration already.
    fn change_device<'a>(&'a self, _pool: &'a Pool, _action: &'a DeviceAction) -> Work<'a, ()> {
        cannot("protected pools")
    }

    /// Makes what a new volume is on the devices, of a protected pool or a file of its own, or finds that it is there.
    fn create_volume<'a>(&'a self, _volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The snapshots of a protected pool.
    fn snapshots<'a>(&'a self, _pool: &'a Pool) -> Work<'a, Vec<SnapshotLive>> {
        cannot("snapshots")
    }

    /// Makes snapshots of volumes of one pool at one instant: pairs of the volume's identity and the snapshot's name.
    fn take_snapshots<'a>(
        &'a self,
        _pool: &'a Pool,
        _wanted: &'a [(String, String)],
    ) -> Work<'a, ()> {
        cannot("snapshots")
    }

    /// Deletes a snapshot, by what it is called on the devices.
    fn delete_snapshot<'a>(&'a self, _pool: &'a Pool, _dataset: &'a str) -> Work<'a, ()> {
        cannot("snapshots")
    }

    /// Has a pool make and delete periodic snapshots by these rules, in place of those before, of which nothing is
    /// under way any more when this ends. A pool that was opened has none.
    fn set_snapshot_rules<'a>(&'a self, _pool: &'a Pool, rules: &'a PoolRules) -> Work<'a, ()> {
        match rules.is_empty() {
            true => Box::pin(std::future::ready(Ok(()))),
            false => cannot("snapshots"),
        }
    }

    /// How the rules of a pool stand. Volumes by name.
    fn snapshot_rules<'a>(&'a self, _pool: &'a Pool) -> Work<'a, Vec<SnapshotRuleLive>> {
        cannot("snapshots")
    }

    /// Makes a volume what it was when a snapshot, its newest, was made.
    fn revert_volume<'a>(
        &'a self,
        _pool: &'a Pool,
        _volume: &'a Volume,
        _snapshot: &'a str,
    ) -> Work<'a, ()> {
        cannot("snapshots")
    }

    /// Begins, ends or looks at a scrub. `None`: there was none since the pool was opened.
    fn scrub<'a>(&'a self, _pool: &'a Pool, _action: ScrubAction) -> Work<'a, Option<ScrubLive>> {
        cannot("scrub")
    }

    /// The device graph of an open volume.
    fn graph<'a>(&'a self, _volume: &'a str) -> Work<'a, GraphLive> {
        cannot("device graphs")
    }

    /// The kinds of layers there are.
    fn layer_kinds(&self) -> Vec<LayerKindLive> {
        Vec::new()
    }

    /// Makes the layers of `is` over an open volume that has those of `was`, holds I/O back and tries the new one.
    /// [`decide_layers`](Self::decide_layers) lets I/O go on; should that not come within seconds, I/O goes on as
    /// before. After a failure I/O goes on as before, and nothing is left.
    fn hold_layers<'a>(
        &'a self,
        _was: &'a Volume,
        _is: &'a Volume,
        _pool: &'a Pool,
        _trial: &'a LayerTrial,
    ) -> Work<'a, ()> {
        cannot("layers that come and go")
    }

    /// Lets I/O go on: through the layers of `is`, whether it is still held back or not, or through those of `was`.
    fn decide_layers<'a>(
        &'a self,
        _was: &'a Volume,
        _is: &'a Volume,
        _pool: &'a Pool,
        _keep: bool,
    ) -> Work<'a, ()> {
        cannot("layers that come and go")
    }

    /// Looks at a file or disk that is to become a volume, or to take one in, and refuses what is in use by others.
    fn find_image<'a>(&'a self, _wish: &'a ImageWish) -> Work<'a, ImageFound> {
        cannot("volumes in image mode")
    }

    /// Makes the place `there` anew and begins to move an open volume to it. Hosts notice nothing.
    fn start_migration<'a>(
        &'a self,
        _here: Place<'a>,
        _there: Place<'a>,
        _migration: &'a Migration,
    ) -> Work<'a, ()> {
        cannot("migration")
    }

    /// How far the migration of a volume is; none: there is none under way.
    fn migration<'a>(&'a self, _volume: &'a str) -> Work<'a, Option<MigrationProgress>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Changes the rate of a migration under way, in bytes a second (0 for no limit), and whether it waits.
    fn tune_migration<'a>(&'a self, _volume: &'a str, _rate: u64, _paused: bool) -> Work<'a, ()> {
        cannot("migration")
    }

    /// Holds the I/O of a volume back that is ready for its cut-over, with both sides flushed, and gives what hosts
    /// know of it. [`decide_migration`](Self::decide_migration) lets I/O go on.
    fn hold_migration<'a>(&'a self, _volume: &'a str) -> Work<'a, Told> {
        cannot("migration")
    }

    /// Lets the I/O of a held volume go on.
    fn decide_migration<'a>(&'a self, _volume: &'a str, _decision: Decision) -> Work<'a, ()> {
        cannot("migration")
    }

    /// Ends the migration of a volume: from now on it is `here` alone, and nothing of the place `there` is in use any
    /// more. May be repeated, also when there is no migration under way.
    fn end_migration<'a>(&'a self, _here: Place<'a>, _there: Place<'a>) -> Work<'a, ()> {
        cannot("migration")
    }

    /// Gives back what a volume holds in a place that it has left or will not go to. A file of its own stays, unless
    /// it was `made` for this volume. May be repeated.
    fn clear_place<'a>(&'a self, _there: Place<'a>, _made: bool) -> Work<'a, ()> {
        cannot("migration")
    }

    /// Closes the devices of a pool. All its volumes are closed by then. Data stays. Gives what the devices of a protected one have
    /// now, if it was open.
    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>>;

    /// The same at the end of the process, which has its devices closed: they may be being closed yet when this returns. Nobody is told
    /// that they are free, and one that hangs in that is no reason to count the pool as left open.
    fn end_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        self.stop_pool(name)
    }

    /// Builds the device graph of a volume's layout and opens the volume. Nothing is made: what is missing is an error.
    /// A file that was being made larger gets its size.
    fn open_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// The size, layout or read-only state of an open volume is now this. Hosts must get unit attentions.
    fn update_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// Bytes that hosts could see of what the devices of an open protected pool hold of a volume; none: the devices do not tell.
    fn size_of<'a>(&'a self, _volume: &'a Volume, _pool: &'a Pool) -> Work<'a, Option<u64>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Throws away what an open volume that is being made smaller has beyond its size, so that nobody can read it
    /// there again; hosts see the new size already. May be repeated. The layout is still the one before.
    fn cut_volume<'a>(&'a self, _volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Closes a volume after its I/Os in flight. Does nothing when it is not open.
    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()>;

    /// The same at the end of the process, as [`end_pool`](Self::end_pool).
    fn end_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        self.close_volume(name)
    }

    /// Gives back what a closed volume holds: removes its file or discards its extents. Must also work when part of it
    /// is gone already.
    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()>;

    /// Puts hosts and LUNs into effect, all at once, replacing those before. LUNs whose volume is not open are to be
    /// answered as not ready. Hosts must get the unit attention for changed LUNs.
    ///
    /// # Errors
    /// They are in effect all the same: what hosts had under way on volumes that they lost by it has not ended.
    fn set_mappings<'a>(&'a self, access: &'a AccessMap) -> Work<'a, ()>;

    /// Starts a target port, or changes one to be like this, and gives the addresses that it really listens on.
    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>>;

    /// Stops a target port: logs its hosts out. Does nothing when it does not run.
    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()>;

    /// The node is being stopped: from here on no host is let in at any target port, also at one that is just being started. Comes
    /// before everything else is waited for, and waits for nothing.
    fn let_nobody_in(&self) {}

    /// What is going on. Called about once a second; must be cheap.
    fn status(&self) -> Work<'_, LiveStatus>;
}
