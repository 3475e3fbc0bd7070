//! Who wrote what: a name for the node, and one for each time that its daemon ran.
//!
//! What pools carry of the configuration says in which life of which store it was written. A store knows what was written in its
//! own lives up to the revision that it was opened with, and what it writes now. It does not know what lives wrote after they
//! were copied: so a store that was put back from a copy does not take what pools carry for older than itself, however far
//! it counts on.

use super::db::Row;
use super::{MetaStore, Table};
use crate::error::{Code, Error, Result};
use crate::model::{Model, PoolId, Stamp};
use crate::planted::{Bug, has};
use crate::platform;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// From so many lives on those that no pool bears are forgotten.
const MANY: usize = if cfg!(test) { 16 } else { 1024 };
/// Where they are among the blobs.
const LIVES: &str = "lives";
/// The same for the node's name.
const NODE: &str = "node";

/// A life that the store knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    life: String,
    /// It is the present one of this store, or was when the store was written.
    own: bool,
    /// All of it is known up to this revision.
    #[serde(default)]
    upto: u64,
    /// What pools that were taken over carried of it is known up to these revisions, by the identity of the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pools: BTreeMap<String, u64>,
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
    platform::entropy(&mut b)
        .map_err(|e| Error::new(Code::IoError, "no random bits for a new identity").because(e))?;
    Ok(b.iter().map(|b| format!("{b:02x}")).collect())
}

impl Identity {
    /// Whether what was written then on this pool is part of a configuration of this revision, or older than it.
    fn knows(&self, at: &Stamp, pool: PoolId, revision: u64) -> bool {
        let Some(l) = self.lives.iter().find(|l| l.life == at.life) else { return false };
        let of_pool = l.pools.get(&pool.to_string()).is_some_and(|r| at.revision <= *r);
        at.revision <= l.upto || of_pool || l.own && at.revision <= revision
    }

    /// No life is the present one: what is known of them ends with this revision, which the configuration has that they are
    /// kept with.
    pub(super) fn end_lives(&mut self, revision: u64) {
        if has(Bug::LivesGoOn) {
            return;
        }
        for l in self.lives.iter_mut().filter(|l| l.own) {
            l.own = false;
            l.upto = l.upto.max(revision);
        }
    }

    /// Changes what is known of a life, which is one that the store knows from now on.
    fn learn(&mut self, life: &str, f: impl FnOnce(&mut Life)) {
        match self.lives.iter_mut().find(|l| l.life == life) {
            Some(l) => f(l),
            None => {
                let mut new = Life { life: life.into(), ..Life::default() };
                f(&mut new);
                self.lives.push(new);
            }
        }
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
    /// Reads who the store is; one that has no name gets one. That the lives before have ended is written with the next change,
    /// without which they are found as they are now.
    pub(super) fn identify(&self) -> Result<()> {
        let node = self.db.row(Table::Blobs, NODE)?.and_then(|b| String::from_utf8(b).ok());
        let lives = self.db.row(Table::Blobs, LIVES)?;
        let lives = lives.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        let is_new = node.is_none();
        let node = match node {
            Some(n) => n,
            None => random(16)?,
        };
        let mut now = Identity { node, lives };
        now.end_lives(self.revision()?);
        if is_new {
            self.db.write(&now.rows()?)?;
        }
        *self.identity() = now;
        Ok(())
    }

    /// The identity as it is to be before anything is written in this life; none: it is like that.
    pub(super) fn living(&self) -> Option<Identity> {
        let mut new = self.identity().clone();
        if new.lives.iter().any(|l| l.own && l.life == self.life) {
            return None;
        }
        new.learn(&self.life, |l| l.own = true);
        Some(new)
    }

    /// The stamp of what is written now, as of this revision. Nothing is to be written with it before [`begin_life`].
    ///
    /// [`begin_life`]: MetaStore::begin_life
    pub fn stamp(&self, revision: u64) -> Stamp {
        Stamp { life: self.life.clone(), revision }
    }

    /// Has the store and its readable copy know the present life, before anything is written elsewhere with its stamp. The model is
    /// the one that the store holds.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn begin_life(&self, model: &Model) -> Result<()> {
        let Some(new) = self.living() else { return Ok(()) };
        self.identify_as(new)?;
        self.export(model);
        Ok(())
    }

    /// Whether what was written then on this pool is part of a configuration of this revision, or older than it.
    pub fn knows(&self, at: &Stamp, pool: PoolId, revision: u64) -> bool {
        self.identity().knows(at, pool, revision)
    }

    /// Whether that was written in one of the store's own lives.
    pub fn is_own(&self, at: &Stamp) -> bool {
        self.identity().lives.iter().any(|l| l.life == at.life && (l.own || l.upto > 0))
    }

    /// What was written then on this pool has been taken over into the configuration. Of other pools that says nothing.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn take_over(&self, stamps: &[Stamp], pool: PoolId) -> Result<()> {
        let mut new = self.identity().clone();
        for at in stamps {
            new.learn(&at.life, |l| {
                let upto = l.pools.entry(pool.to_string()).or_default();
                *upto = at.revision.max(*upto);
            });
        }
        self.identify_as(new)
    }

    /// Forgets lives that are none of these, if there are many. The caller has looked at all that is stamped.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn forget_lives(&self, borne: &BTreeSet<String>) -> Result<()> {
        let mut new = self.identity().clone();
        if new.lives.len() <= MANY {
            return Ok(());
        }
        new.lives.retain(|l| l.own || borne.contains(&l.life));
        self.identify_as(new)
    }

    fn identify_as(&self, new: Identity) -> Result<()> {
        if *self.identity() == new {
            return Ok(());
        }
        self.db.write(&new.rows()?)?;
        *self.identity() = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(7);

    fn at(life: &str, revision: u64) -> Stamp {
        Stamp { life: life.into(), revision }
    }

    #[test]
    fn a_life_that_is_not_known_is_a_newer_one() {
        let mut me = Identity::default();
        me.learn("a", |l| l.own = true);
        me.learn("b", |l| l.upto = 7);
        me.learn("d", |l| (l.own, l.upto) = (true, 9));
        let knows = |me: &Identity, s, revision| me.knows(&s, POOL, revision);
        assert!(knows(&me, at("a", 5), 5) && !knows(&me, at("a", 6), 5));
        assert!(knows(&me, at("b", 7), 5) && !knows(&me, at("b", 8), 100));
        assert!(knows(&me, at("d", 9), 5) && !knows(&me, at("d", 10), 5));
        assert!(!knows(&me, at("c", 1), 100));
        // It was opened again: what it counts from now on is another life.
        me.end_lives(6);
        assert!(knows(&me, at("a", 6), 6) && !knows(&me, at("a", 7), 100));
        assert!(knows(&me, at("d", 9), 6) && !knows(&me, at("d", 10), 100));
        assert!(knows(&me, at("b", 7), 6) && !knows(&me, at("b", 8), 100));
    }

    #[test]
    fn what_was_taken_over_with_one_pool_is_not_known_of_another() {
        let mut me = Identity::default();
        me.learn("b", |l| l.pools = [(POOL.to_string(), 7)].into());
        assert!(me.knows(&at("b", 7), POOL, 0) && !me.knows(&at("b", 8), POOL, 100));
        assert!(!me.knows(&at("b", 1), PoolId(8), 100));
    }
}
