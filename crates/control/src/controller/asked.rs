//! Devices that a command names are asked before it gets its turn: one that does not answer keeps nobody else waiting.
//!
//! Nothing is kept by that, and what they are may change until the turn: they are looked at there as if nobody had asked, and taken.

use super::take_down::being_stopped;
use super::*;
use crate::model::{IMAGES, Layout, Pool, Volume, VolumeState};

/// How long a device may take to answer that a command names.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same for what volumes are in that are to be opened: all else that comes up waits for them.
const SOON: Duration = Duration::from_secs(2);

/// What a command changes the devices of: the pool, and the devices that it names.
fn named(command: &Command) -> Option<(&str, Vec<&str>)> {
    let (pool, devices) = match command {
        Command::CreatePool(spec) => (&spec.name, &spec.devices[..]),
        Command::PatchPool { name, patch } => (name, &patch.add[..]),
        Command::DeletePool { name } => (name, &[][..]),
        _ => return None,
    };
    Some((pool, devices.iter().filter_map(|d| d.path.as_deref()).collect()))
}

/// Paths of a plain pool, all of which are opened when it gets more, or larger ones.
fn own<'a>(command: &Command, model: &'a Model) -> impl Iterator<Item = &'a str> + use<'a> {
    let pool = match command {
        Command::PatchPool { name, patch } if !patch.add.is_empty() || !patch.grow.is_empty() => {
            model.pools.get(name).filter(|p| p.protection.is_none())
        }
        _ => None,
    };
    let devices = |p: &'a Pool| p.devices.iter().filter_map(|d| d.path.as_deref());
    pool.into_iter().flat_map(devices)
}

impl Controller {
    /// Asks files and devices side by side. Gives those that have not answered within that time of when they were first asked, and why.
    async fn silent(&self, paths: BTreeSet<String>, within: Duration) -> BTreeMap<String, Error> {
        let mut all = JoinSet::new();
        for path in paths {
            let plane = self.plane.clone();
            all.spawn(async move {
                let asked = plane.ask(&path, within).await;
                (path, asked)
            });
        }
        let mut silent = BTreeMap::new();
        while let Some(done) = all.join_next().await {
            // Who cannot be asked says so when it is taken.
            if let Ok((path, Err(e))) = done {
                silent.insert(path, e);
            }
        }
        silent
    }

    /// Volumes in image mode that are to be opened, and whose files or disks do not answer. Each by itself would keep everything
    /// else waiting, and many may be on one file system.
    pub(super) async fn silent_images(&self, model: &Model) -> BTreeMap<String, Error> {
        let is_up = |v: &Volume| self.up().volumes.contains(&v.name);
        let wanted = |v: &&Volume| v.pool == IMAGES && v.state == VolumeState::Ready && !is_up(v);
        let path = |v: &'_ Volume| match &v.layout {
            Layout::Image { path, .. } => Some((v.name.clone(), path.clone())),
            _ => None,
        };
        let all = model.volumes.values().filter(wanted).filter(|_| !has(Bug::ImagesOneByOne));
        let all: BTreeMap<String, String> = all.filter_map(path).collect();
        let silent = self.silent(all.values().cloned().collect(), SOON).await;
        let why = |(name, path): (String, String)| Some((name, silent.get(&path)?.clone()));
        all.into_iter().filter_map(why).collect()
    }

    /// Has the devices answer that a command names, and what is being done with its pool end. To be called before its turn.
    ///
    /// # Errors
    /// They do not, or the pool is being opened for long; the node is being stopped.
    pub(super) async fn ask_for(&self, command: &Command) -> Result<()> {
        let Some((pool, mut paths)) = named(command).filter(|_| !has(Bug::AskedAmongChanges))
        else {
            return Ok(());
        };
        self.unless_stopped(self.pool_is_still(pool)).await?;
        let model = self.model();
        paths.extend(own(command, &model));
        self.ask(paths).await
    }

    /// The same for devices by their paths.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn ask(&self, paths: Vec<&str>) -> Result<()> {
        if has(Bug::AskedAmongChanges) {
            return Ok(());
        }
        let asked = async {
            let paths = paths.into_iter().map(str::to_owned).collect();
            let silent = self.silent(paths, PATIENCE).await;
            silent.into_values().next().map_or(Ok(()), Err)
        };
        self.unless_stopped(asked).await
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stopping.begun() => Err(being_stopped()),
            done = work => done,
        }
    }
}
