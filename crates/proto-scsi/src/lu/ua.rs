//! The unit attention queue of one nexus.

use crate::sense::Sense;

/// Most unit attentions that one nexus can have pending.
pub const UA_QUEUE_MAX: usize = 16;

/// Pending unit attentions, oldest first, each code at most once.
#[derive(Debug, Default)]
pub(super) struct UaQueue(Vec<Sense>);

impl UaQueue {
    /// Adds one at the end. Any reset (29h) replaces earlier resets; a code that is pending stays
    /// where it is. When the queue is full the oldest goes.
    pub(super) fn push(&mut self, sense: Sense) {
        if sense.asc == 0x29 {
            self.0.retain(|s| s.asc != 0x29);
        } else if self.0.iter().any(|s| s.same_code(&sense)) {
            return;
        }
        if self.0.len() >= UA_QUEUE_MAX {
            self.0.remove(0);
        }
        self.0.push(sense);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn oldest(&self) -> Option<Sense> {
        self.0.first().copied()
    }

    pub(super) fn all(&self) -> &[Sense] {
        &self.0
    }

    pub(super) fn pop(&mut self) -> Option<Sense> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Puts one back before the others, of which nobody was told after all. False, and nothing happens, if it is pending again, if a
    /// reset since then says as much, or if there is no room: then it is the oldest.
    pub(super) fn put_back(&mut self, sense: Sense) -> bool {
        let says = |s: &Sense| s.same_code(&sense) || (s.asc, sense.asc) == (0x29, 0x29);
        let back = self.0.len() < UA_QUEUE_MAX && !self.0.iter().any(says);
        if back {
            self.0.insert(0, sense);
        }
        back
    }

    /// Drops all; true if there were any.
    pub(super) fn clear_all(&mut self) -> bool {
        let any = !self.0.is_empty();
        self.0.clear();
        any
    }

    /// Drops one code; true if it was pending.
    pub(super) fn clear(&mut self, sense: Sense) -> bool {
        let before = self.0.len();
        self.0.retain(|s| !s.same_code(&sense));
        self.0.len() != before
    }
}
