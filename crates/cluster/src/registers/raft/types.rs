//! What the engine's log and messages are made of.

use crate::registers::{Changed, Pool, ReadError, Refused, text};
use openraft::error::InstallSnapshotError;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io::Cursor;
use weir_proto_cluster::{Register, Version};

/// Names one file of a voter, for ever: a random number. Another file is another voter, though on the same node.
pub type Identity = u64;

/// A voter, as the others know it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// Number of its node.
    pub node: u8,
    /// Where it is reached, as the transport understands it: for TCP `IP:PORT`.
    pub address: String,
}

openraft::declare_raft_types!(
    /// The types of the engine.
    pub(super) Types:
        D = Proposal,
        R = Outcome,
        NodeId = Identity,
        Node = Member,
        SnapshotData = Cursor<Vec<u8>>,
);

/// A register in its own format, as hexadecimal digits in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wire(pub(super) Register);

impl Serialize for Wire {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text::of(&self.0))
    }
}

impl<'de> Deserialize<'de> for Wire {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Wire, D::Error> {
        let digits = String::deserialize(from)?;
        text::read(&digits).map(Wire).map_err(serde::de::Error::custom)
    }
}

/// A change, as the log has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Proposal {
    pub(super) expected: Option<u64>,
    pub(super) value: Wire,
}

impl Proposal {
    pub(super) fn new(expected: Option<Version>, value: Register) -> Proposal {
        Proposal { expected: expected.map(|v| v.0), value: Wire(value) }
    }
}

/// What a copy of the registers made of an entry of the log, or what a leader says of a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The entry was none of a change.
    Nothing,
    Done(u64),
    Other(Option<Wire>),
    InDoubt,
    RefusedVersion,
    RefusedPool,
}

impl From<Changed> for Outcome {
    fn from(changed: Changed) -> Outcome {
        match changed {
            Changed::Done(version) => Outcome::Done(version.0),
            Changed::Other(standing) => Outcome::Other(standing.map(|(_, r)| Wire(r))),
            Changed::InDoubt => Outcome::InDoubt,
            Changed::Refused(Refused::Version) => Outcome::RefusedVersion,
            Changed::Refused(Refused::Pool) => Outcome::RefusedPool,
        }
    }
}

impl From<Outcome> for Changed {
    fn from(outcome: Outcome) -> Changed {
        match outcome {
            Outcome::Done(version) => Changed::Done(Version(version)),
            Outcome::Other(standing) => Changed::Other(standing.map(|w| (w.0.version, w.0))),
            // An answer that says nothing leaves the doubt.
            Outcome::InDoubt | Outcome::Nothing => Changed::InDoubt,
            Outcome::RefusedVersion => Changed::Refused(Refused::Version),
            Outcome::RefusedPool => Changed::Refused(Refused::Pool),
        }
    }
}

/// What one voter asks another.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Identity>),
    Snapshot(InstallSnapshotRequest<Types>),
    /// Change a register, as leader.
    Change(Proposal),
    /// Read a register, as leader.
    Read(Pool),
    /// Whether it has never been a member of anything.
    Empty,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) enum Response {
    Append(AppendEntriesResponse<Identity>),
    Vote(VoteResponse<Identity>),
    Snapshot(Result<InstallSnapshotResponse<Identity>, InstallSnapshotError>),
    Changed(Outcome),
    Read(Result<Option<Wire>, Unread>),
    Empty(bool),
    /// It does not lead, and has not done what only a leader does.
    NotLeader,
    /// It could not, for this reason.
    Failed(String),
}

/// A read that failed, as a message has it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Unread {
    NoMajority,
    Garbled,
    Ended,
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Unread {
        match error {
            ReadError::NoMajority => Unread::NoMajority,
            ReadError::Garbled => Unread::Garbled,
            ReadError::Ended => Unread::Ended,
        }
    }
}
