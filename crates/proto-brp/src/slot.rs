//! Exactly once: what a target keeps of each slot of a channel.
//!
//! A slot carries one command at a time. Its sequence number goes up by one with each new command, so a
//! target can tell a new command from one that it has seen: the initiator sends a command again, with
//! the same number, when its channel was lost before the completion came.

use crate::types::Status;

/// What a command's sequence number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not seen before: run it.
    New,
    /// Seen, and it came to this end: answer that again. Reads are run again instead.
    Done(Status, u32),
    /// It is running.
    Running,
    /// Neither the last number nor the next: the initiator has lost count.
    Wrong,
}

/// A target's memory of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Number of the last command that had an end, or of the one that runs.
    seq: u32,
    running: bool,
    /// How it ended. A slot that was never used has ended well with number 0.
    end: Option<(Status, u32)>,
}

impl Slot {
    /// What to do with a command of number `seq`.
    #[inline]
    pub fn judge(&self, seq: u32) -> Verdict {
        if self.running {
            return if seq == self.seq { Verdict::Running } else { Verdict::Wrong };
        }
        if seq == self.seq.wrapping_add(1) {
            return Verdict::New;
        }
        match self.end {
            Some((status, detail)) if seq == self.seq => Verdict::Done(status, detail),
            _ => Verdict::Wrong,
        }
    }

    /// A command judged [`New`](Verdict::New) begins, or a finished read begins again.
    #[inline]
    pub fn begin(&mut self, seq: u32) {
        self.seq = seq;
        self.running = true;
    }

    /// It came to an end that is to be answered, now or when it is asked for again.
    #[inline]
    pub fn end(&mut self, status: Status, detail: u32) {
        self.running = false;
        self.end = Some((status, detail));
    }

    /// It came to no end and had no effect: sent again it is new.
    pub fn forget(&mut self) {
        self.running = false;
        self.seq = self.seq.wrapping_sub(1);
        // What ended before is of no interest: its completion was received, or this slot would not have
        // been used again.
        self.end = None;
    }

    /// True between [`begin`](Slot::begin) and the end.
    pub fn is_running(&self) -> bool {
        self.running
    }
}
