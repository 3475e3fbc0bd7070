//! Why a voter does not do what it is told to.

use super::types::Identity;
use std::io;
use thiserror::Error;

/// Why a voter cannot begin.
#[derive(Debug, Error)]
pub enum StartError {
    /// Times that do not fit together.
    #[error("the times of the voter do not fit together: {0}")]
    Times(String),
    /// Its file cannot be read, or has what cannot be.
    #[error("the file of the voter cannot be read: {0}")]
    File(#[from] io::Error),
    /// The engine.
    #[error("the engine of the registers does not start: {0}")]
    Engine(String),
}

/// Why a cluster is not formed.
#[derive(Debug, Error)]
pub enum FormError {
    /// This one is a member already, or one of the others is.
    #[error("voter {0:016x} is a member of a cluster already")]
    Member(Identity),
    /// One of them does not say whether it is empty.
    #[error("voter {0:016x} does not answer: {1}")]
    Silent(Identity, String),
    /// The engine refuses it.
    #[error("the engine of the registers refuses these members: {0}")]
    Engine(String),
}

/// Why members are not changed.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// This voter does not lead: ask the one that does, if known.
    #[error("another voter leads")]
    NotLeader(Option<Identity>),
    /// It is not known whether it happened: look at [`Voter::known`](super::Voter::known).
    #[error("it is not known whether the members were changed: {0}")]
    InDoubt(String),
}
