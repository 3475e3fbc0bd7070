//! Request limits: credits by which a target bounds what an initiator may send.
//!
//! Every SRP_CMD, SRP_TSK_MGMT and SRP_I_LOGOUT takes one; REQUEST LIMIT DELTA of the login response,
//! SRP_RSP, SRP_CRED_REQ and SRP_AER_REQ gives. Receives posted must cover all credits granted, and
//! one more for the unanswered target request (its answer takes no credit).

use crate::planted::{Bug, has};
use core::fmt;

#[cfg(test)]
mod tests;

/// The peer sent a request without a credit for it: a protocol error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request without a credit")
    }
}

impl std::error::Error for Overrun {}

/// The target's side of one channel.
///
/// Each of the `limit` credits is at one of three places: with the initiator (`granted`), with a
/// request that is being worked on (`outstanding`), or on its way back (`pending`). So
/// `granted + outstanding + pending = limit` always, where a lowered limit shows as negative
/// `pending` until enough requests have ended. Deltas sent are never negative: the initiator may
/// already have spent what would be taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLimit {
    granted: u32,
    outstanding: u32,
    pending: i64,
    limit: u32,
}

impl RequestLimit {
    /// A channel whose login response grants `limit` credits (cut to `i32::MAX`).
    pub fn new(limit: u32) -> Self {
        let limit = limit.min(i32::MAX as u32);
        RequestLimit { granted: limit, outstanding: 0, pending: 0, limit }
    }

    /// A request came in.
    #[inline]
    pub fn consume(&mut self) -> Result<(), Overrun> {
        self.granted = self.granted.checked_sub(1).ok_or(Overrun)?;
        self.outstanding += 1;
        Ok(())
    }

    /// A request has ended, with a response or (aborted) without: its credit becomes pending. Call it
    /// before [`take_delta`](Self::take_delta) of the request's own response, so that this carries it.
    ///
    /// # Panics
    /// Without an outstanding request: the caller has lost count.
    #[inline]
    pub fn release(&mut self) {
        assert!(self.outstanding > 0, "more requests ended than came in");
        self.outstanding -= 1;
        self.pending += 1;
    }

    /// REQUEST LIMIT DELTA for the IU about to be sent: everything pending, or 0.
    #[inline]
    pub fn take_delta(&mut self) -> i32 {
        if self.pending <= 0 {
            return 0;
        }
        // Not above `limit`, which fits i32.
        let delta = self.pending as i32;
        self.pending = 0;
        self.granted += delta as u32;
        delta
    }

    /// True when credits are pending, no response is under way that could carry them, and the
    /// initiator cannot send a command without them: send a SRP_CRED_REQ. (An initiator keeps its
    /// last credit for task management.)
    pub fn needs_credit_request(&self) -> bool {
        let few = u32::from(!has(Bug::CreditKeptAtOne));
        self.pending > 0 && self.outstanding == 0 && self.granted <= few
    }

    /// Changes the limit. More is pending at once; less is kept back from what ends next.
    pub fn set_limit(&mut self, limit: u32) {
        let limit = limit.min(i32::MAX as u32);
        self.pending += i64::from(limit) - i64::from(self.limit);
        self.limit = limit;
    }

    /// The limit aimed at.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Credits with the initiator: so many requests may still come unasked.
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// Requests that came in and have not ended.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Credits that the next delta carries.
    pub fn pending(&self) -> u32 {
        // At most `limit`.
        self.pending.max(0) as u32
    }
}

/// A sum of credits that no target can mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditOverflow;

impl fmt::Display for CreditOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sum of credits granted does not fit 31 bits")
    }
}

impl std::error::Error for CreditOverflow {}

/// The initiator's side of one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credits {
    balance: i32,
}

impl Credits {
    /// Credits that commands leave for task management.
    pub const RESERVE: i32 = 1;

    /// With the REQUEST LIMIT DELTA of the login response.
    pub fn new(initial: i32) -> Self {
        Credits { balance: initial }
    }

    /// Takes the delta of a received IU. It may be negative, and so may the balance become.
    pub fn add(&mut self, delta: i32) -> Result<(), CreditOverflow> {
        self.balance = self.balance.checked_add(delta).ok_or(CreditOverflow)?;
        Ok(())
    }

    /// Takes a credit for a command; false when only the reserve is left.
    #[inline]
    pub fn take_command(&mut self) -> bool {
        let ok = self.balance > Self::RESERVE;
        self.balance -= ok as i32;
        ok
    }

    /// Takes a credit for task management or a logout, the reserve included; false without any.
    #[inline]
    pub fn take_task(&mut self) -> bool {
        let ok = self.balance > 0;
        self.balance -= ok as i32;
        ok
    }

    /// Gives back the credit of a request that was never sent.
    pub fn refund(&mut self) {
        self.balance = self.balance.saturating_add(1);
    }

    /// Commands that could be sent now.
    pub fn commands(&self) -> u32 {
        self.balance.saturating_sub(Self::RESERVE).max(0) as u32
    }

    /// The balance; negative after a target has taken back more than was left.
    pub fn balance(&self) -> i32 {
        self.balance
    }
}
