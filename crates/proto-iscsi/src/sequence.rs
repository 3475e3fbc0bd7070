//! Data of commands on their way: Data-Out that is to come, Data-In cut to PDUs, residuals (RFC 7143 4.2.5, 11.7, 11.8).

/// How far more or less than the initiator's buffer was moved (RFC 7143 11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// Exactly that.
    #[default]
    None,
    /// So many bytes of the buffer were not used.
    Under(u32),
    /// So many more would have been moved.
    Over(u32),
}

impl Residual {
    /// Of a command that moves `command` bytes by its CDB, whose initiator expects `expected`, when `moved` were moved. One that has
    /// stopped early is an underflow by all that is missing: the initiator must learn how much is valid.
    pub fn new(command: u64, expected: u32, moved: u32) -> Residual {
        let whole = command.min(expected.into()) as u32;
        if moved < whole {
            return Residual::Under(expected - moved);
        }
        match command.checked_sub(expected.into()) {
            Some(0) => Residual::None,
            Some(over) => Residual::Over(u32::try_from(over).unwrap_or(u32::MAX)),
            None => Residual::Under(expected - whole),
        }
    }

    /// Bits of the second byte of a response.
    pub fn flags(self) -> u8 {
        match self {
            Residual::None => 0,
            Residual::Under(_) => 0x02,
            Residual::Over(_) => 0x04,
        }
    }

    /// The residual count.
    pub fn count(self) -> u32 {
        match self {
            Residual::None => 0,
            Residual::Under(n) | Residual::Over(n) => n,
        }
    }
}

/// Data that a command's initiator is to send, or sends by itself: one sequence of Data-Out PDUs (RFC 7143 11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// Target transfer tag; [`NO_TAG`](crate::NO_TAG) for what was not asked for.
    pub ttt: u32,
    /// Where the next PDU's data belong.
    pub next: u32,
    /// Where the sequence ends; an unsolicited one may end before.
    pub end: u32,
    data_sn: u32,
}

/// A Data-Out that is not the next one of its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stray;

impl Incoming {
    /// A sequence of the bytes from `from` to before `end`.
    pub fn new(ttt: u32, from: u32, end: u32) -> Incoming {
        Incoming { ttt, next: from, end, data_sn: 0 }
    }

    /// It is what the initiator sends without having been asked.
    pub fn is_unsolicited(&self) -> bool {
        self.ttt == crate::NO_TAG
    }

    /// Judges the header of a Data-Out of `len` bytes; gives where its data belong.
    ///
    /// # Errors
    /// It is not the next one in order, is longer than what is left, or ends a solicited sequence too early or not at all.
    pub fn take(&mut self, data_sn: u32, offset: u32, len: u32, last: bool) -> Result<u32, Stray> {
        let end = offset.checked_add(len).ok_or(Stray)?;
        let short = end < self.end;
        let cut = short && last && !self.is_unsolicited();
        if data_sn != self.data_sn
            || offset != self.next
            || end > self.end
            || cut
            || !short && !last
        {
            return Err(Stray);
        }
        self.data_sn = self.data_sn.wrapping_add(1);
        self.next = end;
        Ok(offset)
    }
}

/// How many bytes of a write come without having been asked for: with the command, and in Data-Out behind it (RFC 7143 13.10, 13.11,
/// 13.14). `None`: the initiator must not send what it does.
pub fn unsolicited(
    p: &crate::keys::Params,
    expected: u32,
    immediate: u32,
    last: bool,
) -> Option<u32> {
    let most = expected.min(p.first_burst);
    let fits = immediate <= most && (immediate == 0 || p.immediate_data);
    match last {
        true if fits => Some(immediate),
        // More follows, which InitialR2T=Yes forbids, and which there has to be.
        false if fits && !p.initial_r2t && immediate < most => Some(most),
        _ => None,
    }
}

/// Data-In of one command, cut to PDUs and sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outgoing {
    data_sn: u32,
    /// Bytes of the present sequence so far.
    burst: u32,
}

/// One Data-In PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataIn {
    /// Its number.
    pub data_sn: u32,
    /// Bytes.
    pub len: u32,
    /// It ends a sequence, by its length.
    pub ends: bool,
}

impl Outgoing {
    /// The next PDU of `left` bytes that are at hand.
    pub fn next(&mut self, p: &crate::keys::Params, left: u32) -> DataIn {
        let len = left.min(p.max_send).min(p.max_burst - self.burst.min(p.max_burst - 1));
        self.burst += len;
        let ends = self.burst >= p.max_burst;
        if ends {
            self.burst = 0;
        }
        let data_sn = self.data_sn;
        self.data_sn = data_sn.wrapping_add(1);
        DataIn { data_sn, len, ends }
    }

    /// PDUs so far: ExpDataSN of the response.
    pub fn count(&self) -> u32 {
        self.data_sn
    }
}
