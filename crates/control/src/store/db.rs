//! The database behind the store: one transaction for each change, and another life after one that failed.
//!
//! The database refuses everything once a write has failed. So it is closed and opened again, at once and then again and again,
//! and what it holds is compared with what it held before the change that failed: that one has been refused, and must not
//! be found after the next start.

use super::{BLOBS, META, OBJECTS, SCHEMA, damage, open_error};
use crate::error::{Code, Error, Result};
use crate::planted::{Bug, has};
use crate::platform::Instant;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// How long a write may take before that is told.
const SLOW: Duration = Duration::from_secs(5);

fn hung() -> Error {
    Error::new(Code::IoError, "a change of the configuration is not written yet")
        .because("the file system of the data directory has not answered for more than 5 s")
        .hint("see to that file system or its disk; hosts are served meanwhile, and changes wait")
}

type Redb<T> = std::result::Result<T, redb::Error>;
type Opener = Box<dyn Fn() -> Result<Database> + Send + Sync>;

/// A table of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Objects,
    Blobs,
}

impl Table {
    fn of(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        match self {
            Table::Objects => OBJECTS,
            Table::Blobs => BLOBS,
        }
    }
}

/// What a row is to be; none: it is to be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) key: String,
    pub(super) value: Option<Vec<u8>>,
}

/// A change that failed, and may be there all the same.
struct Failed {
    /// The rows that it touched, as they were.
    before: Vec<Row>,
    why: Error,
    /// What is told of it.
    told: Error,
}

struct State {
    /// None: it is closed.
    base: Option<Database>,
    failed: Option<Failed>,
}

#[derive(Default)]
struct Told {
    /// Why nothing could be written when it was tried last.
    trouble: Option<Error>,
    /// Since when it is being written to.
    since: Option<Instant>,
}

/// The database.
pub(super) struct Db {
    state: RwLock<State>,
    /// What is told without waiting for a file system that hangs.
    told: Mutex<Told>,
    open: Opener,
}

/// The state for whoever changes it. What there is to tell of it is told when it is let go of.
struct Writing<'a> {
    state: RwLockWriteGuard<'a, State>,
    told: &'a Mutex<Told>,
}

impl Deref for Writing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        *told = Told { trouble: self.state.failed.as_ref().map(|f| f.told.clone()), since: None };
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Db")
    }
}

impl Db {
    /// Opens it by `open`, which is called again after a failure, and checks it.
    pub(super) fn open(open: impl Fn() -> Result<Database> + Send + Sync + 'static) -> Result<Db> {
        let base = open_checked(&open)?;
        let state = RwLock::new(State { base: Some(base), failed: None });
        let db = Db { state, told: Mutex::default(), open: Box::new(open) };
        db.check_schema()?;
        Ok(db)
    }

    fn lock(&self) -> Writing<'_> {
        self.writing(self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn writing<'a>(&'a self, state: RwLockWriteGuard<'a, State>) -> Writing<'a> {
        self.told().since = Some(Instant::now());
        Writing { state, told: &self.told }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_schema(&self) -> Result<()> {
        let mut found = None;
        let state = self.lock();
        let Some(base) = &state.base else { return Err(closed()) };
        let done = transaction(base, |tx| {
            let mut meta = tx.open_table(META)?;
            found = meta.get("schema")?.map(|v| v.value());
            if found.is_none() {
                meta.insert("schema", SCHEMA)?;
            }
            tx.open_table(OBJECTS)?;
            tx.open_table(BLOBS)?;
            Ok(())
        });
        done.map_err(|e| write_error(&e))?;
        match found {
            None | Some(SCHEMA) => Ok(()),
            Some(other) => Err(Error::new(
                Code::StoreUnusable,
                format!("the configuration store has format {other}"),
            )
            .because(format!("this version of weir knows format {SCHEMA} only"))
            .hint("start the version of weir that wrote it")),
        }
    }

    /// Makes rows so, durably and all at once.
    ///
    /// # Errors
    /// Nothing has changed: what may have become durable is put back before anything else is written.
    pub(super) fn write(&self, rows: &[Row]) -> Result<()> {
        let mut state = self.lock();
        self.mend(&mut state)?;
        let Some(base) = &state.base else { return Err(closed()) };
        let mut before = Vec::new();
        let done = transaction(base, |tx| put(tx, rows, &mut before));
        let Err(e) = done else { return Ok(()) };
        let why = write_error(&e);
        tracing::error!("{why}");
        state.failed = Some(Failed { before, why: why.clone(), told: why.clone() });
        // What fails here is tried again.
        let _ = self.mend(&mut state);
        Err(why)
    }

    /// One transaction of any kind.
    #[cfg(test)]
    pub(super) fn raw(&self, f: impl FnOnce(&WriteTransaction) -> Redb<()>) {
        let state = self.lock();
        transaction(state.base.as_ref().expect("it is open"), f).expect("it is written");
    }

    /// Why nothing can be written now, as far as is known. Waits for nothing.
    pub(super) fn trouble(&self) -> Option<Error> {
        let told = self.told();
        let hangs = told.since.is_some_and(|s| s.elapsed() >= SLOW) && !has(Bug::HungIsWell);
        told.trouble.clone().or_else(|| hangs.then(hung))
    }

    /// Why nothing can be written now, if that is so. Tries to change that, unless somebody is writing.
    pub(super) fn try_again(&self) -> Option<Error> {
        let well = match self.state.try_read() {
            Ok(state) => state.failed.is_none(),
            Err(TryLockError::Poisoned(p)) => p.into_inner().failed.is_none(),
            Err(TryLockError::WouldBlock) => return self.trouble(),
        };
        let state = match self.state.try_write() {
            _ if well => return None,
            Ok(state) => state,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return self.trouble(),
        };
        self.mend(&mut self.writing(state)).err()
    }

    /// Opens it again after a failure.
    fn mend(&self, state: &mut State) -> Result<()> {
        let Some(failed) = &state.failed else { return Ok(()) };
        // Only one can have it open.
        state.base = None;
        let again = || -> Result<Database> {
            let base = open_checked(&self.open)?;
            let mut wrong = Vec::new();
            for row in &failed.before {
                if read_row(&base, row.table, &row.key).map_err(|e| read_error(&e))? != row.value {
                    wrong.push(row.clone());
                }
            }
            if !wrong.is_empty() {
                let done = transaction(&base, |tx| put(tx, &wrong, &mut Vec::new()));
                done.map_err(|e| write_error(&e))?;
            }
            Ok(base)
        };
        match again() {
            Ok(base) => {
                state.base = Some(base);
                state.failed = None;
                tracing::warn!("the configuration store was opened again");
                Ok(())
            }
            Err(e) => {
                let why = &failed.why.reason;
                let told = Error::new(
                    Code::StoreUnusable,
                    "the configuration store takes no changes",
                )
                .because(format!("a change could not be written ({why}); opening it again: {e}"))
                .hint("make room on the file system of the data directory, or see to its disk; it is tried again every second");
                if let Some(f) = &mut state.failed {
                    f.told = told.clone();
                }
                Err(told)
            }
        }
    }

    pub(super) fn row(&self, table: Table, key: &str) -> Result<Option<Vec<u8>>> {
        let state = self.look();
        let Some(base) = &state.base else { return Err(closed()) };
        read_row(base, table, key).map_err(|e| read_error(&e))
    }

    /// Every row whose key begins with `prefix`.
    pub(super) fn rows(&self, table: Table, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        let state = self.look();
        let Some(base) = &state.base else { return Err(closed()) };
        read_rows(base, table, prefix).map_err(|e| read_error(&e))
    }

    /// Puts another file in the place of the database by `swap`, which gets everything that it holds.
    pub(super) fn replace(&self, swap: impl FnOnce(&[Row]) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        self.mend(&mut state)?;
        let Some(base) = &state.base else { return Err(closed()) };
        let mut rows = Vec::new();
        for table in [Table::Objects, Table::Blobs] {
            let all = read_rows(base, table, "").map_err(|e| read_error(&e))?;
            rows.extend(all.into_iter().map(|(key, v)| Row { table, key, value: Some(v) }));
        }
        state.base = None;
        let done = swap(&rows);
        match open_checked(&self.open) {
            Ok(base) => state.base = Some(base),
            Err(e) => {
                state.failed = Some(Failed { before: Vec::new(), why: e.clone(), told: e });
            }
        }
        done
    }
}

/// A database with these rows, in a file that is not there yet.
pub(super) fn fill(base: &Database, rows: &[Row]) -> Result<()> {
    let done = transaction(base, |tx| {
        tx.open_table(META)?.insert("schema", SCHEMA)?;
        tx.open_table(OBJECTS)?;
        tx.open_table(BLOBS)?;
        put(tx, rows, &mut Vec::new())
    });
    done.map_err(|e| write_error(&e))
}

fn open_checked(open: &dyn Fn() -> Result<Database>) -> Result<Database> {
    damage::guarded(|| {
        let mut base = open()?;
        match base.check_integrity() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the configuration store was repaired"),
            Err(e) => return Err(open_error(Path::new(super::FILE), e)),
        }
        Ok(base)
    })
}

/// One durable transaction.
fn transaction(base: &Database, f: impl FnOnce(&WriteTransaction) -> Redb<()>) -> Redb<()> {
    let mut tx = base.begin_write()?;
    tx.set_durability(Durability::Immediate)?;
    tx.set_two_phase_commit(true);
    f(&tx)?;
    tx.commit()?;
    Ok(())
}

fn put(tx: &WriteTransaction, rows: &[Row], before: &mut Vec<Row>) -> Redb<()> {
    for table in [Table::Objects, Table::Blobs] {
        let mut t = tx.open_table(table.of())?;
        for row in rows.iter().filter(|r| r.table == table) {
            let old = match &row.value {
                Some(v) => t.insert(row.key.as_str(), v.as_slice())?,
                None => t.remove(row.key.as_str())?,
            };
            let value = old.map(|v| v.value().to_vec());
            before.push(Row { table, key: row.key.clone(), value });
        }
    }
    Ok(())
}

fn read_row(base: &Database, table: Table, key: &str) -> Redb<Option<Vec<u8>>> {
    let tx = base.begin_read()?;
    Ok(tx.open_table(table.of())?.get(key)?.map(|v| v.value().to_vec()))
}

fn read_rows(base: &Database, table: Table, prefix: &str) -> Redb<BTreeMap<String, Vec<u8>>> {
    let tx = base.begin_read()?;
    let table = tx.open_table(table.of())?;
    let mut all = BTreeMap::new();
    for row in table.range(prefix..)? {
        let (k, v) = row?;
        if !k.value().starts_with(prefix) {
            break;
        }
        all.insert(k.value().to_string(), v.value().to_vec());
    }
    Ok(all)
}

fn closed() -> Error {
    Error::new(Code::StoreUnusable, "the configuration store is not open")
        .because("it could not be opened again after a change that failed")
        .hint("make room on the file system of the data directory, or see to its disk")
}

fn write_error(e: &redb::Error) -> Error {
    Error::new(Code::IoError, "the change could not be written to the configuration store")
        .because(e)
        .hint("check the file system that holds the data directory, then do it again")
}

fn read_error(e: &redb::Error) -> Error {
    Error::new(Code::StoreUnusable, "the configuration store cannot be read").because(e)
}
