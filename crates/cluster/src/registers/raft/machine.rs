//! The registers as the state machine of the engine.
//!
//! They are in the file as well as in memory, and on the disk before the engine hears that an entry is applied.
//!
//! The log would bring them back after a crash, and openraft allows registers that go back then. But its leader that starts
//! again in the same term leads at once. A read waits for its first entry of that term, and for what is applied, which has gone
//! back: it would miss what was answered before the crash. Found by `cargo xtask registers`, and kept as the planted bug
//! `AppliedNotKept`. With what is applied on the disk, a leader that starts again has all that it ever answered.

use super::file::{File, META, REGISTERS, from_json, json, row};
use super::types::{Identity, Member, Outcome, Types, Wire};
use crate::planted::{Bug, has};
use crate::registers::{Pool, Standing, State};
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use redb::{ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};
use std::io::{self, Cursor};
use tokio::sync::watch;
use weir_proto_cluster::{Register, Version};

type Failed = StorageError<Identity>;
type Meta = SnapshotMeta<Identity, Member>;

fn writing(error: &io::Error) -> Failed {
    StorageIOError::write_state_machine(error).into()
}

fn reading(error: &io::Error) -> Failed {
    StorageIOError::read_state_machine(error).into()
}

/// How far the registers are, and who was a member then.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Applied {
    last: Option<LogId<Identity>>,
    members: StoredMembership<Identity, Member>,
}

/// This node's copy of the registers, as others of this process see it.
pub(super) type Copy = watch::Receiver<State>;

/// One register of a copy.
pub(super) fn of_copy(copy: &Copy, pool: Pool) -> Option<Standing> {
    copy.borrow().get(pool)
}

/// The state machine.
#[derive(Debug)]
pub(super) struct Machine {
    file: File,
    applied: Applied,
    state: watch::Sender<State>,
}

impl Machine {
    /// As the file has it.
    pub(super) fn load(file: File) -> io::Result<Machine> {
        let applied = file.get(row::APPLIED)?.unwrap_or_default();
        Ok(Machine { file, applied, state: watch::channel(State::default()).0 })
    }

    /// Reads the registers of the file.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        let registers = self.file.read(|tx| {
            let table = tx.open_table(REGISTERS).map_err(io::Error::other)?;
            let rows = table.range::<u128>(..).map_err(io::Error::other)?;
            let decode = |bytes: &[u8]| Register::decode(bytes).map_err(io::Error::other);
            rows.map(|row| decode(row.map_err(io::Error::other)?.1.value())).collect()
        });
        let registers: Vec<Register> = registers.await?;
        self.state.send_replace(of(registers));
        Ok(())
    }

    /// The registers, as they change.
    pub(super) fn copy(&self) -> Copy {
        self.state.subscribe()
    }

    /// Writes what these registers are now, and how far they are. With a snapshot there are no others.
    async fn keep(
        &self,
        applied: &Applied,
        changed: &[Register],
        snapshot: Option<Saved>,
    ) -> io::Result<()> {
        let applied = json(applied)?;
        let rows: Vec<_> = changed.iter().map(|r| (r.pool, r.encode())).collect();
        let whole = snapshot.is_some();
        let change = move |tx: &WriteTransaction| {
            let mut table = tx.open_table(REGISTERS)?;
            if whole {
                table.retain(|_, _| false)?;
            }
            for (pool, bytes) in &rows {
                table.insert(pool, bytes.as_slice())?;
            }
            tx.open_table(META)?.insert(row::APPLIED, applied.as_slice())?;
            snapshot.map_or(Ok(()), |s| s.put(tx))
        };
        if has(Bug::AppliedNotKept) && !whole {
            return self.file.write_lazily(change).await;
        }
        self.file.write(change).await
    }
}

fn of(registers: impl IntoIterator<Item = Register>) -> State {
    let mut state = State::default();
    registers.into_iter().for_each(|r| state.put(r));
    state
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<Identity>>, StoredMembership<Identity, Member>), Failed> {
        Ok((self.applied.last, self.applied.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, Failed>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state.borrow().clone();
        let mut applied = self.applied.clone();
        let (mut outcomes, mut changed) = (Vec::new(), Vec::new());
        for entry in entries {
            applied.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::Nothing,
                EntryPayload::Membership(members) => {
                    applied.members = StoredMembership::new(Some(entry.log_id), members);
                    Outcome::Nothing
                }
                EntryPayload::Normal(proposal) => {
                    let Wire(value) = proposal.value;
                    let expected = proposal.expected.map(Version);
                    let blind = has(Bug::ChangeWithoutVersion);
                    let outcome = state.change_with(expected, value, blind);
                    changed.extend(state.get(value.pool).map(|(_, register)| register));
                    outcome.into()
                }
            });
        }
        self.keep(&applied, &changed, None).await.map_err(|e| writing(&e))?;
        self.applied = applied;
        self.state.send_replace(state);
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            file: self.file.clone(),
            applied: self.applied.clone(),
            state: self.state.borrow().clone(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, Failed> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), Failed> {
        let bytes = snapshot.into_inner();
        let wires: Vec<Wire> = from_json(&bytes).map_err(|e| reading(&e))?;
        let registers: Vec<Register> = wires.into_iter().map(|w| w.0).collect();
        let applied = Applied { last: meta.last_log_id, members: meta.last_membership.clone() };
        let saved = Saved::new(meta, bytes).map_err(|e| writing(&e))?;
        self.keep(&applied, &registers, Some(saved)).await.map_err(|e| writing(&e))?;
        self.applied = applied;
        self.state.send_replace(of(registers));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Failed> {
        let found = self.file.read(|tx| {
            let meta = tx.open_table(META).map_err(io::Error::other)?;
            let get = |name| {
                let bytes = meta.get(name).map_err(io::Error::other)?;
                io::Result::Ok(bytes.map(|b| b.value().to_vec()))
            };
            Ok(get(row::SNAPSHOT_META)?.zip(get(row::SNAPSHOT)?))
        });
        let Some((meta, bytes)) = found.await.map_err(|e| reading(&e))? else { return Ok(None) };
        let meta: Meta = from_json(&meta).map_err(|e| reading(&e))?;
        Ok(Some(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

/// Makes a snapshot of the registers as they were when it was asked for.
pub(super) struct Builder {
    file: File,
    applied: Applied,
    state: State,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Failed> {
        let wires: Vec<Wire> = self.state.all().map(|r| Wire(*r)).collect();
        let bytes = json(&wires).map_err(|e| writing(&e))?;
        let Applied { last, members } = self.applied.clone();
        // What it holds is a function of how far it is, so that names it.
        let name = last.map_or_else(String::new, |l| format!("{}-{}", l.leader_id, l.index));
        let meta = Meta { last_log_id: last, last_membership: members, snapshot_id: name };
        let saved = Saved::new(&meta, bytes.clone()).map_err(|e| writing(&e))?;
        self.file.write(move |tx| saved.put(tx)).await.map_err(|e| writing(&e))?;
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

/// A snapshot, as the file has it.
struct Saved {
    last: Option<LogId<Identity>>,
    meta: Vec<u8>,
    bytes: Vec<u8>,
}

impl Saved {
    fn new(meta: &Meta, bytes: Vec<u8>) -> io::Result<Saved> {
        Ok(Saved { last: meta.last_log_id, meta: json(meta)?, bytes })
    }

    /// Puts it in, unless a newer one is there: one may have come from the leader while another was built.
    fn put(&self, tx: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = tx.open_table(META)?;
        let kept = table.get(row::SNAPSHOT_META)?.and_then(|b| from_json::<Meta>(b.value()).ok());
        if kept.is_some_and(|k| k.last_log_id > self.last) {
            return Ok(());
        }
        table.insert(row::SNAPSHOT, self.bytes.as_slice())?;
        table.insert(row::SNAPSHOT_META, self.meta.as_slice())?;
        Ok(())
    }
}
