//! What has been placed and has not taken effect: the next checkpoint may have to write it.

use crate::format::tree::LEAF;

/// Changes of maps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coming {
    /// Entries.
    pub(crate) entries: u64,
    /// Leaves that those are in, at most.
    pub(crate) leaves: u64,
}

impl Coming {
    /// So many entries in a row.
    #[inline]
    pub(super) fn row(entries: u64) -> Coming {
        let leaves = if entries == 1 { 1 } else { entries / LEAF as u64 + 2 };
        Coming { entries, leaves }
    }

    #[inline]
    pub(super) fn and(self, more: Coming) -> Coming {
        Coming { entries: self.entries + more.entries, leaves: self.leaves + more.leaves }
    }

    #[inline]
    pub(super) fn without(self, over: Coming) -> Coming {
        Coming { entries: self.entries - over.entries, leaves: self.leaves - over.leaves }
    }
}
