//! A voter: the engine on one node.

use super::error::{FormError, ReplaceError, StartError};
use super::file::File;
use super::log::Log;
use super::machine::{Copy, Machine, of_copy};
use super::network::{Network, ask};
use super::peers::{PeerError, Peers};
use super::types::{Identity, Member, Outcome, Proposal, Request, Response, Types, Wire};
use crate::planted::{Bug, has};
use crate::registers::{Changed, Pool, ReadError, Registers, Standing, follows};
use core::time::Duration;
use openraft::error::{CheckIsLeaderError, InstallSnapshotError, RaftError};
use openraft::{ChangeMembers, Config, Raft, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::{Instant, sleep, timeout_at};
use weir_proto_cluster::{Register, Version};

/// How long nobody is asked after an answer that said nothing.
const PAUSE: Duration = Duration::from_millis(30);
/// Bytes of a snapshot in one message, which has up to four times as many.
const PIECE: u64 = 128 << 10;
/// Entries of the log in one message.
const ENTRIES: u64 = 256;

/// Times of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Between two signs of life of a leader.
    pub heartbeat: Duration,
    /// Shortest and longest silence of a leader after which another one is elected, chosen anew each time.
    pub election: (Duration, Duration),
    /// How long a read or a change is tried before it fails or is in doubt.
    pub limit: Duration,
    /// Entries that are applied between two snapshots. About as many are kept in the log.
    pub snapshot_after: u64,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            heartbeat: Duration::from_millis(100),
            election: (Duration::from_millis(300), Duration::from_millis(600)),
            limit: Duration::from_secs(2),
            snapshot_after: 1000,
        }
    }
}

/// What a voter knows of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Who leads, as far as it knows.
    pub leader: Option<Identity>,
    /// Its term.
    pub term: u64,
    /// Who votes.
    pub voters: Vec<Identity>,
    /// The last entry of the log that is applied here.
    pub applied: u64,
    /// Whether the engine goes on.
    pub alive: bool,
}

/// A voter. Clones are the same one.
pub struct Voter<P> {
    raft: Raft<Types>,
    peers: Arc<P>,
    me: Identity,
    copy: Copy,
    times: Times,
}

impl<P> Clone for Voter<P> {
    fn clone(&self) -> Voter<P> {
        Voter {
            raft: self.raft.clone(),
            peers: self.peers.clone(),
            me: self.me,
            copy: self.copy.clone(),
            times: self.times,
        }
    }
}

impl<P> core::fmt::Debug for Voter<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Voter").field("me", &self.me).finish_non_exhaustive()
    }
}

/// What one try with a leader came to.
enum Tried<T> {
    Answer(T),
    /// Not carried out by anybody. It may be tried again.
    No,
}

impl<P: Peers> Voter<P> {
    /// Begins, with what its file has. It must be called within a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// Its file cannot be read, or the times do not fit together.
    pub async fn start(file: File, peers: Arc<P>, times: Times) -> Result<Voter<P>, StartError> {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            cluster_name: "weir".into(),
            heartbeat_interval: ms(times.heartbeat),
            election_timeout_min: ms(times.election.0),
            election_timeout_max: ms(times.election.1),
            install_snapshot_timeout: ms(times.limit),
            max_payload_entries: ENTRIES,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(times.snapshot_after),
            snapshot_max_chunk_size: PIECE,
            // Who is further behind is sent a snapshot, so older entries need not be kept for it.
            replication_lag_threshold: times.snapshot_after.saturating_mul(2),
            max_in_snapshot_log_to_keep: times.snapshot_after,
            purge_batch_size: 1,
            ..Config::default()
        };
        let config = config.validate().map_err(|e| StartError::Times(e.to_string()))?;
        let me = file.identity();
        let mut machine = Machine::load(file.clone())?;
        machine.fill().await?;
        let copy = machine.copy();
        let network = Network(peers.clone());
        let raft = Raft::new(me, Arc::new(config), network, Log(file), machine).await;
        let raft = raft.map_err(|e| StartError::Engine(e.to_string()))?;
        Ok(Voter { raft, peers, me, copy, times })
    }

    /// Its identity.
    pub fn identity(&self) -> Identity {
        self.me
    }

    /// What it knows of its cluster.
    pub fn known(&self) -> Known {
        let metrics = self.raft.metrics();
        let m = metrics.borrow();
        Known {
            leader: m.current_leader,
            term: m.current_term,
            voters: m.membership_config.voter_ids().collect(),
            applied: m.last_applied.map_or(0, |l| l.index),
            alive: m.running_state.is_ok(),
        }
    }

    /// Makes a cluster of these voters, of which this is one. Called once, at one of them.
    ///
    /// # Errors
    /// One of them does not answer, or is a member of a cluster.
    pub async fn form(&self, members: BTreeMap<Identity, Member>) -> Result<(), FormError> {
        if !self.is_empty().await {
            return Err(FormError::Member(self.me));
        }
        for (identity, member) in members.iter().filter(|(id, _)| **id != self.me) {
            let limit = self.times.limit;
            match ask(&*self.peers, *identity, member, &Request::Empty, limit).await {
                Ok(Response::Empty(true)) => {}
                Ok(Response::Empty(false)) => return Err(FormError::Member(*identity)),
                Ok(_) => return Err(FormError::Silent(*identity, "a strange answer".into())),
                Err(e) => return Err(FormError::Silent(*identity, e.to_string())),
            }
        }
        self.raft.initialize(members).await.map_err(|e| FormError::Engine(e.to_string()))
    }

    async fn is_empty(&self) -> bool {
        matches!(self.raft.is_initialized().await, Ok(false))
    }

    /// Takes a voter in, and another one out, as one change: `gone` has lost its file or its node, `new` is empty. Called
    /// at the leader. Asked for again it does no harm. It waits until the new one has everything, for as long as that
    /// takes: who waits less drops the call, and it is in doubt.
    ///
    /// # Errors
    /// Another voter leads, or it is not known whether it happened.
    pub async fn replace(
        &self,
        gone: Option<Identity>,
        new: Option<(Identity, Member)>,
    ) -> Result<(), ReplaceError> {
        let known = self.known();
        if known.leader != Some(self.me) {
            return Err(ReplaceError::NotLeader(known.leader));
        }
        let doubt = |e: &dyn core::fmt::Display| ReplaceError::InDoubt(e.to_string());
        let mut voters: BTreeSet<Identity> = known.voters.into_iter().collect();
        if let Some((identity, member)) = new {
            // It has everything before it votes, so the majority stays as able as it was.
            self.raft.add_learner(identity, member, true).await.map_err(|e| doubt(&e))?;
            voters.insert(identity);
        }
        gone.map(|identity| voters.remove(&identity));
        let change = ChangeMembers::ReplaceAllVoters(voters);
        self.raft.change_membership(change, false).await.map_err(|e| doubt(&e))?;
        Ok(())
    }

    /// Ends the engine. What is under way is in doubt.
    pub async fn stop(&self) {
        // An engine that panicked has ended, too.
        let _ = self.raft.shutdown().await;
    }

    /// Answers what another voter asked by its [`Peers`].
    pub async fn answer(&self, request: &[u8]) -> Vec<u8> {
        let response = match serde_json::from_slice(request) {
            Ok(request) => self.respond(request).await,
            Err(e) => Response::Failed(format!("no request of this version: {e}")),
        };
        // What cannot be written is answered by nothing, which is no answer to the other.
        serde_json::to_vec(&response).unwrap_or_default()
    }

    async fn respond(&self, request: Request) -> Response {
        let failed = |e: &dyn core::fmt::Display| Response::Failed(e.to_string());
        let until = Instant::now() + self.times.limit;
        match request {
            Request::Append(rpc) => match self.raft.append_entries(rpc).await {
                Ok(response) => Response::Append(response),
                Err(e) => failed(&e),
            },
            Request::Vote(rpc) => match self.raft.vote(rpc).await {
                Ok(response) => Response::Vote(response),
                Err(e) => failed(&e),
            },
            Request::Snapshot(rpc) => match self.raft.install_snapshot(rpc).await {
                Ok(response) => Response::Snapshot(Ok(response)),
                Err(RaftError::APIError(e)) => {
                    Response::Snapshot(Err::<_, InstallSnapshotError>(e))
                }
                Err(RaftError::Fatal(e)) => failed(&e),
            },
            Request::Change(_) | Request::Read(_) if self.leader() != Some(self.me) => {
                Response::NotLeader
            }
            Request::Change(proposal) => {
                Response::Changed(self.change_here(proposal, until).await.into())
            }
            Request::Read(pool) => match self.read_here(pool, until).await {
                Tried::Answer(Ok(standing)) => Response::Read(Ok(standing.map(|(_, r)| Wire(r)))),
                Tried::Answer(Err(e)) => Response::Read(Err(e.into())),
                Tried::No => Response::NotLeader,
            },
            Request::Empty => Response::Empty(self.is_empty().await),
        }
    }

    fn leader(&self) -> Option<Identity> {
        self.raft.metrics().borrow().current_leader
    }

    fn alive(&self) -> bool {
        self.raft.metrics().borrow().running_state.is_ok()
    }

    fn member(&self, identity: Identity) -> Option<Member> {
        let metrics = self.raft.metrics();
        let m = metrics.borrow();
        m.membership_config.membership().get_node(&identity).cloned()
    }

    /// Makes a change as leader.
    async fn change_here(&self, proposal: Proposal, until: Instant) -> Changed {
        // An error is no failure: who loses the lead has written the entry, and the next leader may decide it.
        let (expected, pool) = (proposal.expected, proposal.value.0.pool);
        match timeout_at(until, self.raft.client_write(proposal)).await {
            Ok(Ok(response)) => Outcome::into(response.data),
            _ if has(Bug::DoubtTakenForFailure) => {
                let standing = of_copy(&self.copy, pool);
                Changed::Other(standing.filter(|(v, _)| Some(v.0) != expected))
            }
            _ => Changed::InDoubt,
        }
    }

    /// Reads as leader.
    async fn read_here(
        &self,
        pool: Pool,
        until: Instant,
    ) -> Tried<Result<Option<Standing>, ReadError>> {
        match timeout_at(until, self.raft.ensure_linearizable()).await {
            Ok(Ok(_)) => Tried::Answer(Ok(of_copy(&self.copy, pool))),
            Ok(Err(RaftError::APIError(
                CheckIsLeaderError::ForwardToLeader(_) | CheckIsLeaderError::QuorumNotEnough(_),
            ))) => Tried::No,
            Ok(Err(RaftError::Fatal(_))) => Tried::Answer(Err(ReadError::Ended)),
            Err(_) => Tried::Answer(Err(ReadError::NoMajority)),
        }
    }

    /// One try to change, at whoever leads.
    async fn try_change(&self, proposal: &Proposal, until: Instant) -> Tried<Changed> {
        let Some(leader) = self.leader() else { return Tried::No };
        if leader == self.me {
            return Tried::Answer(self.change_here(proposal.clone(), until).await);
        }
        let Some(member) = self.member(leader) else { return Tried::No };
        let request = Request::Change(proposal.clone());
        let limit = until.saturating_duration_since(Instant::now());
        match ask(&*self.peers, leader, &member, &request, limit).await {
            Ok(Response::Changed(outcome)) => Tried::Answer(outcome.into()),
            Ok(Response::NotLeader) | Err(PeerError::NotSent(_)) => Tried::No,
            _ if has(Bug::DoubtTakenForFailure) => {
                let standing = of_copy(&self.copy, proposal.value.0.pool);
                let other = standing.filter(|(v, _)| Some(v.0) != proposal.expected);
                Tried::Answer(Changed::Other(other))
            }
            _ => Tried::Answer(Changed::InDoubt),
        }
    }

    /// One try to read, at whoever leads. It does no harm twice, so it is not waited for until the end.
    async fn try_read(
        &self,
        pool: Pool,
        until: Instant,
    ) -> Tried<Result<Option<Standing>, ReadError>> {
        let Some(leader) = self.leader() else { return Tried::No };
        if leader == self.me {
            return self.read_here(pool, until).await;
        }
        let Some(member) = self.member(leader) else { return Tried::No };
        let left = until.saturating_duration_since(Instant::now());
        let limit = left.min(self.times.election.1);
        match ask(&*self.peers, leader, &member, &Request::Read(pool), limit).await {
            Ok(Response::Read(Ok(found))) => Tried::Answer(Ok(found.map(|Wire(r)| (r.version, r)))),
            _ => Tried::No,
        }
    }
}

impl<P: Peers> Registers for Voter<P> {
    async fn read(&self, pool: Pool) -> Result<Option<Standing>, ReadError> {
        if has(Bug::StaleReadBelieved) {
            return Ok(of_copy(&self.copy, pool));
        }
        let until = Instant::now() + self.times.limit;
        loop {
            if !self.alive() {
                return Err(ReadError::Ended);
            }
            if let Tried::Answer(answer) = self.try_read(pool, until).await {
                return answer;
            }
            if Instant::now() + PAUSE >= until {
                return Err(ReadError::NoMajority);
            }
            sleep(PAUSE).await;
        }
    }

    async fn change(&self, pool: Pool, expected: Option<Version>, value: Register) -> Changed {
        if let Err(why) = follows(pool, expected, &value) {
            return Changed::Refused(why);
        }
        let proposal = Proposal::new(expected, value);
        let until = Instant::now() + self.times.limit;
        while self.alive() {
            if let Tried::Answer(changed) = self.try_change(&proposal, until).await {
                return changed;
            }
            if Instant::now() + PAUSE >= until {
                break;
            }
            sleep(PAUSE).await;
        }
        Changed::InDoubt
    }

    async fn newer(&self, pool: Pool, than: Option<Version>) -> Option<Standing> {
        let mut copy = self.copy.clone();
        loop {
            let standing = copy.borrow_and_update().get(pool);
            if let Some((version, _)) = standing
                && than.is_none_or(|t| version > t)
            {
                return standing;
            }
            copy.changed().await.ok()?;
        }
    }
}
