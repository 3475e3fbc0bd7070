//! Who wrote what: a name for the node, and one for each time that its daemon ran.
//!
//! What pools carry of the configuration says in which life of which store it was written. A store that was put back from a copy does
//! not know the lives after the copy, so it does not take what they wrote for older than itself.

use super::db::Row;
use super::{MetaStore, Table};
use crate::error::{Code, Error, Result};
use crate::model::Stamp;
use serde::{Deserialize, Serialize};
use std::io::Read;

/// Lives that are remembered.
const MOST: usize = 1024;
/// Where they are among the blobs.
const LIVES: &str = "lives";
/// The same for the node's name.
const NODE: &str = "node";

/// A life that the store knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    life: String,
    /// It was one of this store.
    own: bool,
    /// The last revision that was taken over from it.
    #[serde(default)]
    upto: u64,
}

/// What a store is called, and what it knows of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    #[serde(default)]
    pub(super) node: String,
    #[serde(default)]
    pub(super) lives: Vec<Life>,
}

/// So many random hexadecimal digits.
pub(super) fn random(bytes: usize) -> Result<String> {
    let mut b = vec![0; bytes];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut b))
        .map_err(|e| Error::new(Code::IoError, "no random bits for a new identity").because(e))?;
    Ok(b.iter().map(|b| format!("{b:02x}")).collect())
}

impl Identity {
    /// Whether what was written then is part of a configuration of this revision, or older than it.
    fn knows(&self, at: &Stamp, revision: u64) -> bool {
        let found = self.lives.iter().find(|l| l.life == at.life);
        found.is_some_and(|l| at.revision <= l.upto || l.own && at.revision <= revision)
    }

    fn add(&mut self, new: Life) {
        self.lives.retain(|l| l.life != new.life);
        self.lives.push(new);
        let over = self.lives.len().saturating_sub(MOST);
        self.lives.drain(..over);
    }

    pub(super) fn rows(&self) -> Result<[Row; 2]> {
        let lives = serde_json::to_vec(&self.lives)
            .map_err(|e| Error::new(Code::Internal, "lives cannot be written").because(e))?;
        let row =
            |key: &str, value| Row { table: Table::Blobs, key: key.into(), value: Some(value) };
        Ok([row(NODE, self.node.clone().into_bytes()), row(LIVES, lives)])
    }
}

impl MetaStore {
    /// Reads who the store is; one that has no name gets one.
    pub(super) fn identify(&self) -> Result<()> {
        let node = self.db.row(Table::Blobs, NODE)?.and_then(|b| String::from_utf8(b).ok());
        let lives = self.db.row(Table::Blobs, LIVES)?;
        let lives = lives.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        let is_new = node.is_none();
        let node = match node {
            Some(n) => n,
            None => random(16)?,
        };
        let now = Identity { node, lives };
        if is_new {
            self.db.write(&now.rows()?)?;
        }
        *self.identity() = now;
        Ok(())
    }

    /// The stamp of what is written now, as of this revision. The store knows the life before anything is written in it.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn stamp(&self, revision: u64) -> Result<Stamp> {
        let life = self.life.clone();
        self.learn(&life, true, 0)?;
        Ok(Stamp { life, revision })
    }

    /// Whether what was written then is part of a configuration of this revision, or older than it.
    pub fn knows(&self, at: &Stamp, revision: u64) -> bool {
        self.identity().knows(at, revision)
    }

    /// What was written then has been taken over into the configuration.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn take_over(&self, at: &Stamp) -> Result<()> {
        self.learn(&at.life, false, at.revision)
    }

    fn learn(&self, life: &str, own: bool, upto: u64) -> Result<()> {
        let mut new = self.identity().clone();
        let old = new.lives.iter().find(|l| l.life == life).cloned();
        let (was, before) = old.as_ref().map_or((false, 0), |l| (l.own, l.upto));
        let now = Life { life: life.to_owned(), own: own || was, upto: upto.max(before) };
        if old.as_ref() == Some(&now) {
            return Ok(());
        }
        new.add(now);
        self.db.write(&new.rows()?)?;
        *self.identity() = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_that_is_not_known_is_a_newer_one() {
        let mut me = Identity::default();
        let life = |life: &str, own, upto| Life { life: life.into(), own, upto };
        me.add(life("a", true, 0));
        me.add(life("b", false, 7));
        me.add(life("d", true, 9));
        let at = |life: &str, revision| Stamp { life: life.into(), revision };
        assert!(me.knows(&at("a", 5), 5) && !me.knows(&at("a", 6), 5));
        assert!(me.knows(&at("b", 7), 5) && !me.knows(&at("b", 8), 100));
        assert!(me.knows(&at("d", 9), 5) && !me.knows(&at("d", 10), 5));
        assert!(!me.knows(&at("c", 1), 100));
        for n in 0..MOST {
            me.add(life(&n.to_string(), true, 0));
        }
        assert_eq!(me.lives.len(), MOST);
    }
}
