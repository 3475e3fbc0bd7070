//! What this node knew of pools that it let go of while they were not there to be told.

use super::MetaStore;
use super::db::{Row, Table};
use crate::error::Result;
use crate::model::{Model, PoolId};
use std::collections::BTreeMap;

/// Where it is among the blobs: followed by the pool's identity and the number of the part.
const RELEASED: &str = "released/";

fn prefix(pool: PoolId) -> String {
    format!("{RELEASED}{pool}/")
}

impl MetaStore {
    /// Keeps what the devices of a pool should carry, part by part, in place of what was kept before of that pool. No parts: nothing
    /// is kept.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn keep_released(&self, pool: PoolId, parts: &BTreeMap<u32, Vec<u8>>) -> Result<()> {
        let key = |number: &u32| format!("{}{number}", prefix(pool));
        let old = self.db.rows(Table::Blobs, &prefix(pool))?;
        let gone = old.into_keys().map(|key| Row { table: Table::Blobs, key, value: None });
        let new = parts.iter().map(|(n, content)| Row {
            table: Table::Blobs,
            key: key(n),
            value: Some(content.clone()),
        });
        let rows: Vec<Row> = gone.chain(new).collect();
        if rows.is_empty() { Ok(()) } else { self.db.write(&rows) }
    }

    /// What was kept of a pool.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn released(&self, pool: PoolId) -> Result<BTreeMap<u32, Vec<u8>>> {
        let prefix = prefix(pool);
        let number = |(key, content): (String, Vec<u8>)| {
            let number = key.strip_prefix(&prefix)?.parse().ok()?;
            Some((number, content))
        };
        Ok(self.db.rows(Table::Blobs, &prefix)?.into_iter().filter_map(number).collect())
    }

    /// Keeps nothing of pools that are here.
    ///
    /// # Errors
    /// The store takes no changes.
    pub(super) fn forget_released(&self, model: &Model) -> Result<()> {
        let pools = model.pools.values().filter_map(|p| p.protection.as_ref());
        pools.map(|p| p.id).try_for_each(|id| self.keep_released(id, &BTreeMap::new()))
    }
}
