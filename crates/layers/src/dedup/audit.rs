//! Looking for what must not be, for tests.

use super::Inner;
use super::format::{PER, Place, SLOTS, home, owner};
use std::collections::BTreeMap;
use weir_base::IoError;

impl Inner {
    /// What is wrong with records and what they refer to, if anything: for tests.
    pub(super) async fn audit(&self, exact: bool) -> Result<Option<String>, IoError> {
        let mut refs = BTreeMap::new();
        let groups = self.group_count();
        for g in 0..groups {
            for k in 0..PER {
                let chunk = g * PER + k;
                if chunk << self.layout.shift >= self.len() {
                    break;
                }
                if let Place::Slot(s) = self.record(chunk).await?.place() {
                    *refs.entry(s).or_insert(0u32) += 1;
                }
            }
        }
        for slot in 0..groups * SLOTS {
            let (count, n) = (self.count(slot).await?, refs.get(&slot).copied().unwrap_or(0));
            if count < n || (exact && count != n) {
                return Ok(Some(format!("slot {slot} has count {count}, and {n} refer to it")));
            }
            let used = match owner(slot) {
                Some(o) if o >= self.whole() => true,
                Some(o) => count > 0 || self.record(o).await?.place() == Place::Home,
                None => count > 0,
            };
            let at = self.layout.slot(slot);
            if exact && !used && self.lower.find_allocation(at, self.chunk()).await.mapped {
                return Ok(Some(format!("slot {slot} is free, and takes space")));
            }
            debug_assert!(owner(slot).is_none_or(|o| home(o) == slot));
        }
        Ok(None)
    }
}
