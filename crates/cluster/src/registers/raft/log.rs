//! The log and the vote of a voter.

use super::file::{File, LOG, META, from_json, json, row};
use super::types::{Identity, Types};
use crate::planted::{Bug, has};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    Entry, LogId, OptionalSend, RaftLogId, RaftLogReader, StorageError, StorageIOError, Vote,
};
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

type Failed = StorageError<Identity>;

fn writing(error: &io::Error) -> Failed {
    StorageIOError::write_logs(error).into()
}

fn reading(error: &io::Error) -> Failed {
    StorageIOError::read_logs(error).into()
}

/// The log in a voter's file.
#[derive(Debug, Clone)]
pub(super) struct Log(pub(super) File);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry<Types>>, Failed>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let read = move |tx: &redb::ReadTransaction| {
            let log = tx.open_table(LOG).map_err(io::Error::other)?;
            let rows = log.range::<u64>(range).map_err(io::Error::other)?;
            rows.map(|row| from_json(row.map_err(io::Error::other)?.1.value())).collect()
        };
        self.0.read(read).await.map_err(|e| reading(&e))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failed> {
        let purged: Option<LogId<Identity>> = self.0.get(row::PURGED).map_err(|e| reading(&e))?;
        let last = self.0.read(|tx| {
            let log = tx.open_table(LOG).map_err(io::Error::other)?;
            let last = log.range::<u64>(..).map_err(io::Error::other)?.next_back();
            let Some(row) = last else { return Ok(None) };
            let entry: Entry<Types> = from_json(row.map_err(io::Error::other)?.1.value())?;
            Ok(Some(*entry.get_log_id()))
        });
        let last = last.await.map_err(|e| reading(&e))?;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<Identity>) -> Result<(), Failed> {
        let failed = |e: io::Error| Failed::from(StorageIOError::write_vote(&e));
        let vote = json(vote).map_err(failed)?;
        let done = self.0.write(move |tx| {
            tx.open_table(META)?.insert(row::VOTE, vote.as_slice())?;
            Ok(())
        });
        done.await.map_err(failed)
    }

    /// Without the lead: a leader that begins again must be elected, and so decide what it had told others of. Else it would
    /// answer reads with less than they have.
    async fn read_vote(&mut self) -> Result<Option<Vote<Identity>>, Failed> {
        let vote: Option<Vote<Identity>> =
            self.0.get(row::VOTE).map_err(|e| Failed::from(StorageIOError::read_vote(&e)))?;
        let me = self.0.identity();
        let own = |v: &Vote<Identity>| v.leader_id().voted_for() == Some(me);
        Ok(vote.map(|mut v| {
            v.committed &= !own(&v) || has(Bug::LeadKept);
            v
        }))
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<(), Failed>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let rows = entries.into_iter().map(|e| Ok((e.get_log_id().index, json(&e)?)));
        let rows = rows.collect::<io::Result<Vec<_>>>().map_err(|e| writing(&e))?;
        let done = self.0.write(move |tx| {
            let mut log = tx.open_table(LOG)?;
            for (index, entry) in &rows {
                log.insert(index, entry.as_slice())?;
            }
            Ok(())
        });
        done.await.map_err(|e| writing(&e))?;
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, since: LogId<Identity>) -> Result<(), Failed> {
        let done = self.0.write(move |tx| {
            tx.open_table(LOG)?.retain_in(since.index.., |_, _| false)?;
            Ok(())
        });
        done.await.map_err(|e| writing(&e))
    }

    async fn purge(&mut self, upto: LogId<Identity>) -> Result<(), Failed> {
        let purged = json(&upto).map_err(|e| writing(&e))?;
        let done = self.0.write(move |tx| {
            tx.open_table(LOG)?.retain_in(..=upto.index, |_, _| false)?;
            tx.open_table(META)?.insert(row::PURGED, purged.as_slice())?;
            Ok(())
        });
        done.await.map_err(|e| writing(&e))
    }
}
