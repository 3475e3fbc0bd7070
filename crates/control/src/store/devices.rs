//! What was counted of devices of protected pools, which is to outlive the daemon.

use super::MetaStore;
use super::db::{Row, Table};
use crate::error::Result;
use std::collections::BTreeMap;

/// Where it is among the blobs: followed by the pool's identity and the device's.
const DEVICES: &str = "devices/";

impl MetaStore {
    /// Keeps what was counted of these devices, named `POOL/DEVICE` by their identities. No bytes: of that one nothing is kept any
    /// more.
    ///
    /// # Errors
    /// The store takes no changes.
    pub fn keep_devices(&self, changed: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        let row = |(name, bytes): (&String, &Vec<u8>)| Row {
            table: Table::Blobs,
            key: format!("{DEVICES}{name}"),
            value: (!bytes.is_empty()).then(|| bytes.clone()),
        };
        let rows: Vec<Row> = changed.iter().map(row).collect();
        if rows.is_empty() { Ok(()) } else { self.db.write(&rows) }
    }

    /// What was kept of devices.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn devices(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let named =
            |(key, bytes): (String, Vec<u8>)| Some((key.strip_prefix(DEVICES)?.to_owned(), bytes));
        Ok(self.db.rows(Table::Blobs, DEVICES)?.into_iter().filter_map(named).collect())
    }
}
