//! Commands in flight: the private data of each, made once.

use super::early::Early;
use crate::error::Error;
use std::task::Waker;
use weir_base::Nanos;
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::{Command, Op};

/// Where a slot is in the life of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Not sent yet.
    Waiting,
    /// With the target.
    Sent,
    /// Over; the future has not looked yet.
    Done,
    /// With the target, but nobody waits for its end.
    Orphan,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done; so many bytes came.
    Done(u32),
    /// The target answered with an error; the status' detail.
    Failed(weir_proto_brp::Status, u32),
    /// What came does not fit its checksum.
    Damaged {
        /// Number of the first bad piece.
        piece: u32,
        /// It was changed on the wire; else somebody may have written to it while it was being sent.
        sure: bool,
    },
    /// The target found data changed, and it was our memory that changed: number of the first bad piece.
    MemoryChanged(u32),
    /// There was no answer.
    Lost(Error),
}

/// The memory of a command: mostly one piece.
#[derive(Default)]
pub(super) struct Memory {
    first: Option<Slice>,
    more: Vec<Slice>,
}

impl Memory {
    #[inline]
    pub(super) fn set(&mut self, all: &[Slice]) {
        if let Some((first, more)) = all.split_first() {
            self.first = Some(first.clone());
            if !more.is_empty() {
                self.more.extend_from_slice(more);
            }
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.first.iter().chain(&self.more)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }
}

/// One slot.
pub(super) struct Slot {
    pub(super) state: State,
    /// Number of its last command with the target.
    pub(super) seq: u32,
    pub(super) waker: Option<Waker>,
    pub(super) command: Command,
    pub(super) memory: Memory,
    /// Of what it brings, as taken when it was made.
    pub(super) sums: Vec<u32>,
    /// Registrations of its memory on the present connection.
    pub(super) keys: Vec<u32>,
    /// Checksums of what the target has written by RDMA so far.
    pub(super) early: Early,
    /// When it was sent first, and in which order.
    pub(super) started: Nanos,
    pub(super) order: u64,
    /// It has been sent before: its number stays.
    pub(super) numbered: bool,
    /// Its time was up and it was aborted.
    pub(super) expired: bool,
    /// Its abort was asked for over this connection.
    pub(super) asked: bool,
    /// A connection was lost while it was with the target, and that time was not counted.
    pub(super) excused: bool,
    pub(super) outcome: Outcome,
    /// The outcome was set while the target still has the command, and its future has not looked yet.
    pub(super) unread: bool,
}

impl Slot {
    /// The command is over for its future, though not for the target.
    pub(super) fn orphan(&mut self, outcome: Outcome) -> Option<Waker> {
        self.state = State::Orphan;
        self.outcome = outcome;
        self.unread = true;
        self.waker.take()
    }

    /// Nobody waits for the command, which is to be sent again: if the target has not seen it, nothing is done in its
    /// place. Its number and whether it is a replay stay.
    pub(super) fn empty(&mut self) {
        self.command.op = Op::Nop as u8;
        self.command.flags &= flag::REPLAY;
        self.command.len = 0;
        self.sums.clear();
        self.memory.clear();
    }

    /// Whether the target may change something by it. One that was [emptied](Slot::empty) may have been anything.
    pub(super) fn may_change(&self) -> bool {
        let reads = [Op::Read, Op::Flush, Op::Geometry, Op::List];
        self.command.operation().is_none_or(|op| !reads.contains(&op))
    }

    fn new() -> Slot {
        let command = Command {
            op: Op::Nop as u8,
            flags: 0,
            tag: 0,
            seq: 0,
            offset: 0,
            len: 0,
            volume: 0,
            segments: 0,
            guard: 0,
        };
        Slot {
            state: State::Free,
            seq: 0,
            waker: None,
            command,
            memory: Memory::default(),
            sums: Vec::new(),
            keys: Vec::new(),
            early: Early::default(),
            started: 0,
            order: 0,
            numbered: false,
            expired: false,
            asked: false,
            excused: false,
            outcome: Outcome::Done(0),
            unread: false,
        }
    }
}

/// All slots of a channel.
pub(super) struct Table {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u16>,
    pub(super) order: u64,
}

impl Table {
    pub(super) fn new(depth: u16) -> Table {
        Table {
            slots: (0..depth).map(|_| Slot::new()).collect(),
            free: (0..depth).rev().collect(),
            order: 0,
        }
    }

    #[inline]
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The target has told the end of a command that nobody waits for. True when its slot is free by that.
    pub(super) fn bury(&mut self, tag: u16) -> bool {
        let s = &mut self.slots[usize::from(tag)];
        if s.unread {
            s.state = State::Done;
            return false;
        }
        self.set_free(tag);
        true
    }

    #[inline]
    pub(super) fn set_free(&mut self, tag: u16) {
        let s = &mut self.slots[usize::from(tag)];
        s.state = State::Free;
        s.waker = None;
        s.memory.clear();
        self.free.push(tag);
    }
}
