//! The file of a voter: its identity, log, vote, snapshot and registers in one redb database.
//!
//! Every change is one transaction, with two-phase commit and on the disk before it is answered, as the configuration has it.

use super::types::Identity;
use redb::{Database, Durability, ReadableDatabase, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Rows by name; see [`row`].
pub(super) const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// Entries of the log by index.
pub(super) const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
/// Registers by pool, in their own format.
pub(super) const REGISTERS: TableDefinition<'static, u128, &[u8]> =
    TableDefinition::new("registers");

/// Names of rows of [`META`].
pub(super) mod row {
    pub(in super::super) const FORMAT: &str = "format";
    pub(in super::super) const IDENTITY: &str = "identity";
    pub(in super::super) const VOTE: &str = "vote";
    pub(in super::super) const PURGED: &str = "purged";
    pub(in super::super) const APPLIED: &str = "applied";
    pub(in super::super) const SNAPSHOT: &str = "snapshot";
    pub(in super::super) const SNAPSHOT_META: &str = "snapshot-meta";
}

/// Format of the file.
const FORMAT: u32 = 1;
/// The whole is some hundred kilobytes.
const CACHE: usize = 1 << 20;

/// Why a file of a voter cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// There is none. A new one would be another voter, which only whoever runs the cluster can want.
    #[error("{0} does not exist: a voter that has lost its file joins as another one")]
    Missing(PathBuf),
    /// There is one already.
    #[error("{0} exists: it is the file of a voter")]
    Exists(PathBuf),
    /// It has a format that this program does not know.
    #[error("the file of the voter has format {0}, this program knows {FORMAT}")]
    Format(u32),
    /// It does not have what it must have.
    #[error("the file of the voter lacks or garbles `{0}`")]
    Garbled(&'static str),
    /// The file system, or the directory of it.
    #[error("the file of the voter cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The database.
    #[error("the file of the voter cannot be used: {0}")]
    Database(String),
}

impl From<redb::Error> for FileError {
    fn from(error: redb::Error) -> FileError {
        FileError::Database(error.to_string())
    }
}

/// The file of a voter.
#[derive(Clone)]
pub struct File {
    base: Arc<Database>,
    identity: Identity,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl File {
    /// Makes a file, and with it a voter that nobody knows yet.
    ///
    /// # Errors
    /// There is one already, or it cannot be written.
    pub fn create(path: &Path) -> Result<File, FileError> {
        if path.try_exists()? {
            return Err(FileError::Exists(path.to_path_buf()));
        }
        // Under another name until it is whole: half a file would have no identity, or nobody knows which.
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        match fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        // Nobody else may read or write what it has promised.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let identity = random()?;
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        let base = builder.create(&new).map_err(redb::Error::from)?;
        let file = File { base: Arc::new(base), identity };
        file.write_now(Durability::Immediate, |tx| {
            tx.open_table(LOG)?;
            tx.open_table(REGISTERS)?;
            let mut meta = tx.open_table(META)?;
            meta.insert(row::FORMAT, FORMAT.to_le_bytes().as_slice())?;
            meta.insert(row::IDENTITY, identity.to_le_bytes().as_slice())?;
            Ok(())
        })?;
        fs::rename(&new, path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(file)
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    /// It is not there, in use, or none that this program knows.
    pub fn open(path: &Path) -> Result<File, FileError> {
        if !path.try_exists()? {
            return Err(FileError::Missing(path.to_path_buf()));
        }
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        let base = builder.open(path).map_err(redb::Error::from)?;
        let mut file = File { base: Arc::new(base), identity: 0 };
        let format =
            file.bytes(row::FORMAT)?.and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)));
        match format {
            Some(FORMAT) => {}
            Some(other) => return Err(FileError::Format(other)),
            None => return Err(FileError::Garbled(row::FORMAT)),
        }
        let identity = file.bytes(row::IDENTITY)?;
        let identity = identity.and_then(|b| Some(Identity::from_le_bytes(b.try_into().ok()?)));
        file.identity = identity.ok_or(FileError::Garbled(row::IDENTITY))?;
        Ok(file)
    }

    /// Whose file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, redb::Error> {
        let tx = self.base.begin_read()?;
        let table = match tx.open_table(META) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table?,
        };
        Ok(table.get(name)?.map(|v| v.value().to_vec()))
    }

    /// A row of [`META`].
    pub(super) fn get<T: DeserializeOwned>(&self, name: &'static str) -> io::Result<Option<T>> {
        let bytes = self.bytes(name).map_err(io::Error::other)?;
        bytes.map(|b| from_json(&b)).transpose()
    }

    /// Reads, on a thread that may wait for the disk.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&redb::ReadTransaction) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let base = self.base.clone();
        let work = move || read(&base.begin_read().map_err(io::Error::other)?);
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// Changes, on a thread that may wait for the disk. When it returns well, the change is on the disk.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> io::Result<T> {
        self.write_as(Durability::Immediate, change).await
    }

    /// Changes without waiting for the disk, for a bug on purpose.
    pub(super) async fn write_lazily<T: Send + 'static>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> io::Result<T> {
        self.write_as(Durability::None, change).await
    }

    async fn write_as<T: Send + 'static>(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> io::Result<T> {
        let file = self.clone();
        let work = move || file.write_now(durability, change).map_err(io::Error::other);
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    fn write_now<T>(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let mut tx = self.base.begin_write()?;
        tx.set_durability(durability)?;
        tx.set_two_phase_commit(true);
        let value = change(&tx)?;
        tx.commit()?;
        Ok(value)
    }
}

/// As a row of the file has it.
pub(super) fn json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}

/// From a row of the file.
pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(io::Error::other)
}

/// A number that nobody guesses, and that no other file has. Never 0.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
