//! Commands in flight: the private data of each, made once at login.

use crate::planted::{Bug, has};
use std::task::Waker;
use weir_base::Nanos;
use weir_mem::Slice;
use weir_proto_srp::RspCode;
use weir_proto_srp::residual::Residual;

/// How a command ended at the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// SCSI status.
    pub status: u8,
    /// RSP_CODE, when the target answered that it could not make sense of the request; then there is no
    /// SCSI status.
    pub failure: Option<RspCode>,
    /// Residual of DATA-OUT.
    pub out_residual: Residual,
    /// Residual of DATA-IN.
    pub in_residual: Residual,
    /// On the heap, and mostly empty: a command that ends well costs no allocation and few bytes.
    pub(super) sense: Box<[u8]>,
}

impl Outcome {
    /// GOOD, and all data was moved.
    #[inline]
    pub(crate) fn none() -> Outcome {
        Outcome {
            status: 0,
            failure: None,
            out_residual: Residual::None,
            in_residual: Residual::None,
            sense: Box::default(),
        }
    }

    /// True for GOOD.
    #[inline]
    pub fn is_good(&self) -> bool {
        self.status == 0 && self.failure.is_none()
    }

    /// Sense data.
    pub fn sense(&self) -> &[u8] {
        &self.sense
    }
}

/// Where a slot is in the life of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// With the target; a future waits.
    Sent,
    /// Answered: GOOD, and all data was moved.
    Good,
    /// Answered otherwise; the outcome tells.
    Done,
    /// Ended by task management: the target will not answer.
    Aborted,
    /// The channel ended first.
    Lost,
    /// With the target, but nobody waits: it is aborted, so that its tag can be used again.
    Orphan,
    /// Over, but a task management function that names it is unanswered: its tag must not be used.
    Spent,
}

/// A command, wherever it is by now: its slot may have another one since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommandId {
    pub(super) index: u16,
    /// That of the slot's command.
    pub(super) number: u64,
}

/// One command's private data.
pub(super) struct Slot {
    pub(super) state: State,
    /// Counts the commands of the slot.
    pub(super) number: u64,
    pub(super) waker: Option<Waker>,
    pub(super) outcome: Outcome,
    pub(super) lun: u64,
    pub(super) started: Nanos,
    /// Its unit was reset, so that it may never be answered.
    pub(super) expired: bool,
    /// Registrations of its data.
    pub(super) keys: Vec<u32>,
    /// Registered memory for an indirect table; taken at first use.
    pub(super) table: Option<Slice>,
    /// A task management function that names it is unanswered.
    pub(super) managed: bool,
}

/// All slots of a channel.
pub(super) struct Table {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u16>,
}

impl Table {
    pub(super) fn new(depth: u16) -> Table {
        let slot = || Slot {
            state: State::Free,
            number: 0,
            waker: None,
            outcome: Outcome::none(),
            lun: 0,
            started: 0,
            expired: false,
            keys: Vec::with_capacity(2),
            table: None,
            managed: false,
        };
        Table { slots: (0..depth).map(|_| slot()).collect(), free: (0..depth).rev().collect() }
    }

    #[inline]
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slot of a command, as long as it has no other one.
    pub(super) fn slot_of(&mut self, c: CommandId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(c.index));
        slot.filter(|s| s.number == c.number || has(Bug::SlotIsCommand))
    }

    /// The command that has this slot.
    pub(super) fn id(&self, index: u16) -> CommandId {
        CommandId { index, number: self.slots[usize::from(index)].number }
    }

    /// Nobody waits for the slot's command any more. True when the slot is free by that.
    #[inline]
    pub(super) fn let_go(&mut self, index: u16) -> bool {
        let s = &mut self.slots[usize::from(index)];
        s.waker = None;
        match s.state {
            State::Sent => s.state = State::Orphan,
            _ if s.managed => s.state = State::Spent,
            _ => return self.set_free(index),
        }
        false
    }

    pub(super) fn set_free(&mut self, index: u16) -> bool {
        self.slots[usize::from(index)].state = State::Free;
        self.free.push(index);
        true
    }
}
