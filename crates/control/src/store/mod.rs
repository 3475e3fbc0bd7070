//! The model on disk.
//!
//! One redb file, `weir.redb`, in the data directory. Every change is one transaction with two-phase commit and
//! immediate durability: when [`MetaStore::commit`] or [`MetaStore::put_blob`] has returned, the change survives a
//! crash of the process and of the machine; when it has not, the store holds the change whole or not at all. After each
//! change a readable copy, `config.json`, is put beside it by atomic rename. It is for people: nothing reads it back.

mod damage;
mod export;
mod saver;

pub use damage::explain_damage;
pub use saver::{Done, ReservationStore};

use crate::error::{Code, Error, Result};
use crate::model::Model;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The store's file in the data directory.
pub const FILE: &str = "weir.redb";
/// A store that is being made for the first time.
const NEW_FILE: &str = "weir.redb.new";
/// Locked by the daemon that uses the data directory.
const LOCK: &str = "weir.lock";
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

/// The store of one data directory. Only one process can have it open.
#[derive(Debug)]
pub struct MetaStore {
    db: Database,
    export: Option<PathBuf>,
    /// Keeps other daemons out of the data directory. Let go after the database is closed.
    _lock: Option<File>,
}

impl MetaStore {
    /// Opens the store in `dir`, making directory and store when they do not exist, and checks it.
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
        let path = dir.join(FILE);
        if !path.exists() {
            // Made under another name and moved into place once it is whole: a power cut while it is being made must
            // not leave a file that cannot be opened.
            let new = dir.join(NEW_FILE);
            let made = match std::fs::remove_file(&new) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            };
            drop(builder().create(&new).map_err(|e| open_error(&new, e))?);
            made.and_then(|()| File::open(&new)?.sync_all())
                .and_then(|()| std::fs::rename(&new, &path))
                .and_then(|()| export::sync_dir(dir))
                .map_err(|e| {
                    Error::new(Code::IoError, format!("{} cannot be made", path.display()))
                        .because(e)
                        .hint("check the file system that holds the data directory")
                })?;
        }
        // Wrapped keys of encrypted volumes are in it.
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(|e| {
            Error::new(Code::IoError, format!("{} cannot be kept from others", path.display()))
                .because(e)
                .hint("run the daemon as the user that the data directory belongs to")
        })?;
        damage::guarded(|| {
            let db = builder().create(&path).map_err(|e| open_error(&path, e))?;
            Self::check(db, Some(dir.join(EXPORT)), Some(lock))
        })
    }

    /// Opens a store on other storage, without a readable copy. For simulations of crashes.
    pub fn open_on(backend: impl StorageBackend) -> Result<MetaStore> {
        let db = builder()
            .create_with_backend(backend)
            .map_err(|e| open_error(Path::new("(simulated)"), e))?;
        Self::check(db, None, None)
    }

    fn check(mut db: Database, export: Option<PathBuf>, lock: Option<File>) -> Result<MetaStore> {
        match db.check_integrity() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the configuration store was repaired"),
            Err(e) => return Err(open_error(Path::new(FILE), e)),
        }
        let store = MetaStore { db, export, _lock: lock };
        let mut found = None;
        store.write(|tx| {
            let mut meta = tx.open_table(META)?;
            found = meta.get("schema")?.map(|v| v.value());
            if found.is_none() {
                meta.insert("schema", SCHEMA)?;
            }
            tx.open_table(OBJECTS)?;
            tx.open_table(BLOBS)?;
            Ok(())
        })?;
        match found {
            None | Some(SCHEMA) => Ok(store),
            Some(other) => Err(Error::new(
                Code::StoreUnusable,
                format!("the configuration store has format {other}"),
            )
            .because(format!("this version of weir knows format {SCHEMA} only"))
            .hint("start the version of weir that wrote it")),
        }
    }

    /// One durable transaction.
    fn write(
        &self,
        f: impl FnOnce(&WriteTransaction) -> std::result::Result<(), redb::Error>,
    ) -> Result<()> {
        let run = || -> std::result::Result<(), redb::Error> {
            let mut tx = self.db.begin_write()?;
            tx.set_durability(Durability::Immediate)?;
            tx.set_two_phase_commit(true);
            f(&tx)?;
            tx.commit()?;
            Ok(())
        };
        run().map_err(|e| {
            Error::new(Code::IoError, "the change could not be written to the configuration store")
                .because(e)
                .hint("check the file system that holds the data directory; restart the daemon once it is well")
        })
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
        let read = || -> std::result::Result<BTreeMap<String, Vec<u8>>, redb::Error> {
            let tx = self.db.begin_read()?;
            let table = tx.open_table(OBJECTS)?;
            let mut all = BTreeMap::new();
            for row in table.iter()? {
                let (k, v) = row?;
                all.insert(k.value().to_string(), v.value().to_vec());
            }
            Ok(all)
        };
        let entries = read().map_err(read_error)?;
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
    /// Blobs of volumes that are gone go too.
    pub fn commit(&self, old: &Model, new: &Model) -> Result<()> {
        let (before, after) = (entries(old)?, entries(new)?);
        self.write(|tx| {
            let mut objects = tx.open_table(OBJECTS)?;
            for key in before.keys().filter(|k| !after.contains_key(*k)) {
                objects.remove(key.as_str())?;
            }
            for (key, value) in &after {
                if before.get(key) != Some(value) {
                    objects.insert(key.as_str(), value.as_slice())?;
                }
            }
            let mut blobs = tx.open_table(BLOBS)?;
            for name in old.volumes.keys().filter(|n| !new.volumes.contains_key(*n)) {
                blobs.remove(format!("{RESERVATIONS}{name}").as_str())?;
            }
            Ok(())
        })?;
        self.export(new);
        Ok(())
    }

    /// Writes the readable copy. A failure is logged and no more: the store itself is what counts.
    pub fn export(&self, model: &Model) {
        if let Some(path) = &self.export
            && let Err(e) = export::write(path, model)
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
        self.write(|tx| {
            let mut table = tx.open_table(BLOBS)?;
            for (key, bytes) in blobs {
                if bytes.is_empty() {
                    table.remove(key)?;
                } else {
                    table.insert(key, bytes)?;
                }
            }
            Ok(())
        })
    }

    /// The blob under a key.
    pub fn blob(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let read = || -> std::result::Result<Option<Vec<u8>>, redb::Error> {
            let tx = self.db.begin_read()?;
            Ok(tx.open_table(BLOBS)?.get(key)?.map(|v| v.value().to_vec()))
        };
        read().map_err(read_error)
    }

    /// Every blob whose key begins with `prefix`.
    pub fn blobs(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        let read = || -> std::result::Result<BTreeMap<String, Vec<u8>>, redb::Error> {
            let tx = self.db.begin_read()?;
            let table = tx.open_table(BLOBS)?;
            let mut all = BTreeMap::new();
            for row in table.range(prefix..)? {
                let (k, v) = row?;
                if !k.value().starts_with(prefix) {
                    break;
                }
                all.insert(k.value().to_string(), v.value().to_vec());
            }
            Ok(all)
        };
        read().map_err(read_error)
    }
}

/// Takes the data directory for this process.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let failed = |e: std::io::Error| {
        Error::new(Code::IoError, format!("{} cannot be locked", path.display()))
            .because(e)
            .hint("name a data directory that you may write to, on a file system with locks")
    };
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use(dir)),
        Err(TryLockError::Error(e)) => Err(failed(e)),
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
        .hint("keep the file; config.json beside it is the readable copy of the last good state"),
    }
}

fn read_error(e: redb::Error) -> Error {
    Error::new(Code::StoreUnusable, "the configuration store cannot be read").because(e)
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
