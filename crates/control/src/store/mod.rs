//! The model on disk.
//!
//! One redb file, `weir.redb`, in the data directory. Every change is one transaction with two-phase commit and
//! immediate durability: when [`MetaStore::commit`] or [`MetaStore::put_blob`] has returned, the change survives a
//! crash of the process and of the machine; when it has failed, the store holds what it held before. After each
//! change a readable copy, `config.json`, is put beside it by atomic rename. It is for people, and for a node that has lost its
//! store ([`MetaStore::restore`]): so it is never overwritten by less.

mod damage;
mod db;
mod devices;
mod export;
mod life;
mod released;
mod saver;

pub use damage::explain_damage;
pub use saver::{Done, ReservationStore};

use crate::error::{Code, Error, Result};
use crate::model::Model;
use db::{Db, Row, Table};
use life::Identity;
use redb::{Database, DatabaseError, StorageBackend, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The store's file in the data directory.
pub const FILE: &str = "weir.redb";
/// A store that is being made for the first time, or anew.
const NEW_FILE: &str = "weir.redb.new";
/// Locked by the daemon that uses the data directory. It says which node's it is, once there is a store.
const LOCK: &str = "weir.lock";
/// How long a lock is waited for that nobody but a child of its last owner may have.
const LOCK_LEFT: Duration = Duration::from_millis(500);
/// How long it is waited for the clock of the file system to go on.
const TURN: Duration = Duration::from_secs(1);
/// The readable copy in the data directory.
pub const EXPORT: &str = "config.json";
/// Version of the tables and of what is in them. A store of a later version is refused.
pub const SCHEMA: u64 = 1;
/// Largest blob in bytes. A full set of registrations of one volume is far smaller.
pub const MAX_BLOB: usize = 1 << 20;

/// Prefix of the keys under which persistent reservations are kept, followed by the volume's name.
pub const RESERVATIONS: &str = "reservations/";

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const OBJECTS: TableDefinition<&str, &[u8]> = TableDefinition::new("objects");
const BLOBS: TableDefinition<&str, &[u8]> = TableDefinition::new("blobs");

/// See [`MetaStore::mark`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark([u64; 3]);

impl Mark {
    /// As it is kept.
    pub fn bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|n| n.to_le_bytes()).collect()
    }
}

/// The store of one data directory. Only one process can have it open.
#[derive(Debug)]
pub struct MetaStore {
    db: Db,
    dir: Option<PathBuf>,
    export: Option<PathBuf>,
    identity: Mutex<Identity>,
    /// Names what is written from now on, until it is closed.
    life: String,
    /// What was found when it was opened, for people.
    notes: Vec<String>,
    /// Keeps other daemons out of the data directory. Let go after the database is closed.
    lock: Option<File>,
}

impl MetaStore {
    /// Opens the store in `dir`, making directory and store when they do not exist, and checks it.
    ///
    /// # Errors
    /// Among others: the store is gone, or empty, where there was one.
    pub fn open(dir: &Path) -> Result<MetaStore> {
        std::fs::create_dir_all(dir).map_err(|e| {
            Error::new(
                Code::IoError,
                format!("the data directory {} cannot be made", dir.display()),
            )
            .because(e)
            .hint("name a directory that you may write to, with --data-dir or `data_dir` in the configuration")
        })?;
        let lock = lock(dir)?;
        Self::open_locked(dir, lock)
    }

    /// Makes a store in `dir`, where there is none or one that cannot be opened, of what a readable copy tells, and opens
    /// it. Reservations are in no copy: those of protected pools are on their devices.
    ///
    /// # Errors
    /// The copy cannot be read, or there is a store that can be opened.
    pub fn restore(dir: &Path, copy: &Path) -> Result<MetaStore> {
        let found = export::read(copy)?;
        std::fs::create_dir_all(dir).map_err(|e| dir_error(dir, &e))?;
        let lock = lock(dir)?;
        let path = dir.join(FILE);
        let there = std::fs::metadata(&path).map(|m| m.len()).unwrap_or(0);
        if there > 0 {
            let to = path.clone();
            if Db::open(move || open_file(&to)).is_ok() {
                return Err(Error::new(
                    Code::StoreUnusable,
                    format!("{} is there and can be opened", path.display()),
                )
                .because("a copy is read back where there is no store any more")
                .hint("leave --restore-from out, or move the store away first"));
            }
            let aside = dir.join(format!("{FILE}.damaged"));
            std::fs::rename(&path, &aside).map_err(|e| dir_error(dir, &e))?;
            tracing::warn!("the damaged store is kept as {}", aside.display());
        }
        let mut identity = found.identity;
        if identity.node.is_empty() {
            identity.node = life::random(16)?;
        }
        // What the lives did after the copy is not in it.
        identity.end_lives(found.model.revision);
        let mut rows: Vec<Row> = identity.rows()?.into();
        let entries = entries(&found.model)?.into_iter();
        rows.extend(entries.map(|(key, v)| Row { table: Table::Objects, key, value: Some(v) }));
        make(dir, &rows)?;
        Self::open_locked(dir, lock)
    }

    fn open_locked(dir: &Path, mut lock: File) -> Result<MetaStore> {
        let path = dir.join(FILE);
        export::wipe_old(&path)
            .and_then(|()| export::wipe_old(&dir.join(EXPORT)))
            .map_err(|e| dir_error(dir, &e))?;
        let len = std::fs::metadata(&path).map(|m| m.len());
        let was_used = lock.metadata().is_ok_and(|m| m.len() > 0) || dir.join(EXPORT).exists();
        match len {
            Ok(0) => return Err(gone(dir, "has no bytes")),
            Err(_) if was_used => return Err(gone(dir, "is gone")),
            Err(_) => make(dir, &[])?,
            Ok(_) => {}
        }
        // Wrapped keys of encrypted volumes are in it.
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(|e| {
            Error::new(Code::IoError, format!("{} cannot be kept from others", path.display()))
                .because(e)
                .hint("run the daemon as the user that the data directory belongs to")
        })?;
        let db = Db::open(move || open_file(&path))?;
        let mut store = Self::named(db)?;
        let export = dir.join(EXPORT);
        let revision = store.load()?.revision;
        let kept = export::keep_if_more(&export, &store.identity(), revision);
        let is_ours = kept.as_ref().is_none_or(|k| k.1);
        store.notes.extend(kept.map(|k| k.0));
        store.export = is_ours.then_some(export);
        store.dir = Some(dir.to_owned());
        // From now on a store that is gone is not taken for one that was never there.
        let text = lock_text(&store.identity());
        if lock.metadata().is_ok_and(|m| m.len() != text.len() as u64) {
            let mut told = || {
                lock.set_len(0)?;
                lock.rewind()?;
                lock.write_all(text.as_bytes())?;
                lock.sync_all()
            };
            if let Err(e) = told() {
                store.notes.push(format!("{LOCK} does not say whose it is: {e}"));
            }
        }
        store.lock = Some(lock);
        Ok(store)
    }

    /// Opens a store on other storage, without a readable copy. For simulations of crashes.
    pub fn open_on(backend: impl StorageBackend + Clone) -> Result<MetaStore> {
        let open = move || {
            let made = builder().create_with_backend(backend.clone());
            made.map_err(|e| open_error(Path::new("(simulated)"), e))
        };
        Self::named(Db::open(open)?)
    }

    /// One on other storage with a data directory, as one in a file has it. For simulations of disks that fail.
    ///
    /// # Errors
    /// The directory is another daemon's, or cannot be written.
    pub fn in_directory(mut self, dir: &Path) -> Result<MetaStore> {
        self.lock = Some(lock(dir)?);
        self.dir = Some(dir.to_owned());
        Ok(self)
    }

    fn named(db: Db) -> Result<MetaStore> {
        let store = MetaStore {
            db,
            dir: None,
            export: None,
            identity: Mutex::default(),
            life: life::random(8)?,
            notes: Vec::new(),
            lock: None,
        };
        store.identify()?;
        Ok(store)
    }

    /// The identity for something that takes its time: others ask for it meanwhile.
    fn identity_now(&self) -> Identity {
        self.identity().clone()
    }

    fn identity(&self) -> MutexGuard<'_, Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data directory, if it is in one.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// What was found when it was opened that people should know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tells the data directory as it is from any copy of it, whole or in part, and from itself before the last
    /// [`turn`](MetaStore::turn): number and time of change of the lock's file, which nobody can set.
    ///
    /// # Errors
    /// The lock's file cannot be looked at.
    pub fn mark(&self) -> Result<Mark> {
        let Some((lock, dir)) = self.lock.as_ref().zip(self.dir.as_ref()) else {
            return Ok(Mark::default());
        };
        let m = lock.metadata().map_err(|e| dir_error(dir, &e))?;
        Ok(Mark([m.ino(), m.ctime() as u64, m.ctime_nsec() as u64]))
    }

    /// Changes the [`mark`](MetaStore::mark), durably. False: this file system does not tell when a file was changed.
    ///
    /// # Errors
    /// The lock's file cannot be written.
    pub fn turn(&self) -> Result<bool> {
        let Some((lock, dir)) = self.lock.as_ref().zip(self.dir.as_ref()) else { return Ok(true) };
        let (before, begun) = (self.mark()?, Instant::now());
        let text = lock_text(&self.identity_now());
        while self.mark()? == before {
            if begun.elapsed() > TURN {
                return Ok(false);
            }
            // What is there already. The clock of a file system has steps of some milliseconds.
            let written = lock.write_all_at(text.as_bytes(), 0).and_then(|()| lock.sync_all());
            written.map_err(|e| dir_error(dir, &e))?;
        }
        Ok(true)
    }

    /// Why no change can be written now, as far as is known.
    pub fn trouble(&self) -> Option<Error> {
        self.db.trouble()
    }

    /// The same, after trying to open the database again.
    pub fn try_again(&self) -> Option<Error> {
        self.db.try_again()
    }

    /// Writes the store and its readable copy anew and overwrites what they were kept in, so that nothing of the past is
    /// left there: neither in free pages, nor in files that are gone.
    pub fn forget_past(&self, model: &Model) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        self.forget_released(model)?;
        self.db.replace(|rows| {
            let new = dir.join(NEW_FILE);
            make_file(&new, rows)?;
            export::replace(&new, &dir.join(FILE), true).map_err(|e| dir_error(dir, &e))
        })?;
        let Some(path) = &self.export else { return Ok(()) };
        let done = export::write(path, &self.identity_now(), model, true);
        done.map_err(|e| dir_error(dir, &e))
    }

    /// The revision of the model.
    fn revision(&self) -> Result<u64> {
        let row = self.db.row(Table::Objects, "revision")?;
        // One that makes no sense is told of when all is read.
        Ok(row.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default())
    }

    /// Reads the model.
    pub fn load(&self) -> Result<Model> {
        let mut model = Model::default();
        let damaged = |key: &str, e: serde_json::Error| {
            Error::new(
                Code::StoreUnusable,
                format!("the entry `{key}` of the configuration store cannot be read"),
            )
            .because(e)
            .hint("it may be of a later version of weir; config.json beside the store is its readable copy")
        };
        let entries = self.db.rows(Table::Objects, "")?;
        for (key, bytes) in &entries {
            fn get<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
                serde_json::from_slice(bytes)
            }
            let (kind, name) = key.split_once('/').unwrap_or((key, ""));
            let name = name.to_string();
            let done = match kind {
                "revision" => get(bytes).map(|v| model.revision = v),
                "pool" => get(bytes).map(|v| drop(model.pools.insert(name, v))),
                "volume" => get(bytes).map(|v| drop(model.volumes.insert(name, v))),
                "host" => get(bytes).map(|v| drop(model.hosts.insert(name, v))),
                "target" => get(bytes).map(|v| drop(model.targets.insert(name, v))),
                "map" => get(bytes).map(|v| {
                    model.maps.insert(v);
                }),
                _ => Err(serde::de::Error::custom("unknown kind of entry")),
            };
            done.map_err(|e| damaged(key, e))?;
        }
        Ok(model)
    }

    /// Makes the difference between `old`, which the store holds, and `new` durable, and writes the readable copy.
    /// Blobs of volumes that are gone go too. The first change makes the present life known with it.
    pub fn commit(&self, old: &Model, new: &Model) -> Result<()> {
        let (before, after) = (entries(old)?, entries(new)?);
        let mut rows = Vec::new();
        let mut row = |table, key: String, value| rows.push(Row { table, key, value });
        for key in before.keys().filter(|k| !after.contains_key(*k)) {
            row(Table::Objects, key.clone(), None);
        }
        for (key, value) in after {
            if before.get(&key) != Some(&value) {
                row(Table::Objects, key, Some(value));
            }
        }
        for name in old.volumes.keys().filter(|n| !new.volumes.contains_key(*n)) {
            row(Table::Blobs, format!("{RESERVATIONS}{name}"), None);
        }
        let living = self.living();
        if let Some(identity) = &living {
            rows.extend(identity.rows()?);
        }
        self.db.write(&rows)?;
        if let Some(identity) = living {
            *self.identity() = identity;
        }
        self.export(new);
        Ok(())
    }

    /// Writes the readable copy. A failure is logged and no more: the store itself is what counts.
    pub fn export(&self, model: &Model) {
        if let Some(path) = &self.export
            && let Err(e) = export::write(path, &self.identity_now(), model, false)
        {
            tracing::warn!("the readable copy {} could not be written: {e}", path.display());
        }
    }

    /// Stores a blob under a key; it is durable when this returns. An empty one is removed.
    pub fn put_blob(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.put_blobs(std::iter::once((key, bytes)))
    }

    /// Stores several blobs in one transaction.
    pub fn put_blobs<'a>(
        &self,
        blobs: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    ) -> Result<()> {
        if let Some((key, bytes)) = blobs.clone().find(|b| b.1.len() > MAX_BLOB) {
            return Err(Error::new(
                Code::TooMany,
                format!("`{key}` with {} bytes is too large for the store", bytes.len()),
            )
            .because(format!("the most is {MAX_BLOB}")));
        }
        let row = |(key, bytes): (&str, &[u8])| Row {
            table: Table::Blobs,
            key: key.to_string(),
            value: (!bytes.is_empty()).then(|| bytes.to_vec()),
        };
        let rows: Vec<Row> = blobs.map(row).collect();
        self.db.write(&rows)
    }

    /// The blob under a key.
    pub fn blob(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.db.row(Table::Blobs, key)
    }

    /// Every blob whose key begins with `prefix`.
    pub fn blobs(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        self.db.rows(Table::Blobs, prefix)
    }
}

/// A new database in `dir`, of these rows. Made under another name and moved into place once it is whole: a power cut while
/// it is being made must not leave a file that cannot be opened.
fn make(dir: &Path, rows: &[Row]) -> Result<()> {
    let new = dir.join(NEW_FILE);
    make_file(&new, rows)?;
    export::replace(&new, &dir.join(FILE), false).map_err(|e| dir_error(dir, &e))
}

fn make_file(new: &Path, rows: &[Row]) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::new(Code::IoError, format!("{} cannot be made", new.display()))
            .because(e)
            .hint("check the file system that holds the data directory")
    };
    match std::fs::remove_file(new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let base = open_file(new)?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(new, private).map_err(failed)?;
    db::fill(&base, rows)?;
    drop(base);
    File::open(new).and_then(|f| f.sync_all()).map_err(failed)
}

fn open_file(path: &Path) -> Result<Database> {
    builder().create(path).map_err(|e| open_error(path, e))
}

fn dir_error(dir: &Path, e: &std::io::Error) -> Error {
    Error::new(Code::IoError, format!("the data directory {} cannot be used", dir.display()))
        .because(e)
        .hint("check the file system that holds it")
}

/// The store is not there, or empty, and was there once.
fn gone(dir: &Path, how: &str) -> Error {
    let path = dir.join(FILE);
    let hint = match dir.join(EXPORT).exists() {
        true => format!(
            "if it cannot be brought back: `weir serve --restore-from {}` makes it anew of its readable copy",
            dir.join(EXPORT).display()
        ),
        false => "bring it back from a backup, or --restore-from a config.json".into(),
    };
    Error::new(Code::StoreUnusable, format!("the configuration store {} {how}", path.display()))
        .because("this data directory was in use, so this is no new node")
        .hint(format!("{hint}; to begin anew, take the data directory away"))
}

/// What the lock's file says.
fn lock_text(identity: &Identity) -> String {
    format!("node {}\n", identity.node)
}

/// Takes the data directory for this process.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let failed = |e: std::io::Error| {
        Error::new(Code::IoError, format!("{} cannot be locked", path.display()))
            .because(e)
            .hint("name a data directory that you may write to, on a file system with locks")
    };
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(failed)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A child that its last owner began has it until it is another program.
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_LEFT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => return Err(in_use(dir)),
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
    }
}

fn in_use(path: &Path) -> Error {
    Error::new(Code::DataDirInUse, format!("{} is in use by another process", path.display()))
        .because("a data directory belongs to one daemon at a time")
        .hint("stop the other `weir`, or name another directory with --data-dir")
}

fn builder() -> redb::Builder {
    let mut b = Database::builder();
    // The whole store is a few megabytes; an idle node should not hold more.
    b.set_cache_size(4 << 20);
    b
}

fn open_error(path: &Path, e: DatabaseError) -> Error {
    match e {
        DatabaseError::DatabaseAlreadyOpen => in_use(path),
        e => Error::new(
            Code::StoreUnusable,
            format!("the configuration store {} cannot be opened", path.display()),
        )
        .because(e)
        .hint("keep the file; `weir serve --restore-from` makes a store of config.json beside it, the last good state"),
    }
}

/// The model as the rows of the object table.
fn entries(model: &Model) -> Result<BTreeMap<String, Vec<u8>>> {
    fn put<T: Serialize>(
        all: &mut BTreeMap<String, Vec<u8>>,
        key: String,
        value: &T,
    ) -> Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|e| {
            Error::new(Code::Internal, format!("`{key}` cannot be written as JSON")).because(e)
        })?;
        all.insert(key, bytes);
        Ok(())
    }
    let mut all = BTreeMap::new();
    put(&mut all, "revision".into(), &model.revision)?;
    for (name, v) in &model.pools {
        put(&mut all, format!("pool/{name}"), v)?;
    }
    for (name, v) in &model.volumes {
        put(&mut all, format!("volume/{name}"), v)?;
    }
    for (name, v) in &model.hosts {
        put(&mut all, format!("host/{name}"), v)?;
    }
    for (name, v) in &model.targets {
        put(&mut all, format!("target/{name}"), v)?;
    }
    for m in &model.maps {
        put(&mut all, format!("map/{}/{}", m.host, m.lun), m)?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
