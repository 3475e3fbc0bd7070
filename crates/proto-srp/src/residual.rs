//! Residuals: how a response says that less or more than the initiator's buffer was to be moved.
//!
//! Three lengths meet per direction: what the command moves (the transfer length of the CDB; for a
//! command with an allocation length, the bytes it really returns), what the initiator's buffer holds
//! (the descriptors' total), and what was moved in the end. The command's length is authoritative: a
//! longer buffer does not make the command longer, it is left over and reported as underflow; a
//! shorter buffer bounds the transfer and the rest is reported as overflow.

#[cfg(test)]
mod tests;

/// The residual of one direction, as SRP_RSP carries it (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Residual {
    /// Exactly the buffer was moved.
    #[default]
    None,
    /// DOUNDER, DIUNDER: so much of the buffer was not used.
    Under(u32),
    /// DOOVER, DIOVER: so much more would have been moved, had there been room.
    Over(u32),
}

impl Residual {
    /// The residual count field.
    #[inline]
    pub fn count(self) -> u32 {
        match self {
            Residual::None => 0,
            Residual::Under(n) | Residual::Over(n) => n,
        }
    }
}

/// The lengths of one direction, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lengths {
    /// What the command moves in this direction; 0 when it moves nothing.
    pub command: u64,
    /// What the initiator's buffer for this direction holds; 0 without one.
    pub buffer: u32,
}

impl Lengths {
    /// Bytes to transfer: the smaller of the two.
    #[inline]
    pub fn transfer(self) -> u32 {
        // Not above `buffer`, so it fits.
        self.command.min(u64::from(self.buffer)) as u32
    }

    /// The residual, when `moved` bytes were moved in the end.
    ///
    /// A transfer that stopped early (the command failed) is an underflow by all that is missing in
    /// the buffer, even where a whole one would have overflowed: the initiator must learn how much of
    /// its buffer is valid. A `moved` above [`Lengths::transfer`] counts as that.
    #[inline]
    pub fn residual(self, moved: u32) -> Residual {
        let transfer = self.transfer();
        if moved < transfer {
            return Residual::Under(self.buffer - moved);
        }
        let buffer = u64::from(self.buffer);
        match self.command.checked_sub(buffer) {
            Some(0) => Residual::None,
            Some(over) => Residual::Over(u32::try_from(over).unwrap_or(u32::MAX)),
            None => Residual::Under(self.buffer - transfer),
        }
    }
}

/// Both directions of a command; most use one, a bidirectional command uses both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Transfer {
    /// DATA-OUT.
    pub data_out: Lengths,
    /// DATA-IN.
    pub data_in: Lengths,
}

/// The residuals of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Residuals {
    /// DATA-OUT residual.
    pub data_out: Residual,
    /// DATA-IN residual.
    pub data_in: Residual,
}

impl Transfer {
    /// The residuals when so many bytes were moved out and in.
    #[inline]
    pub fn residuals(self, moved_out: u32, moved_in: u32) -> Residuals {
        Residuals {
            data_out: self.data_out.residual(moved_out),
            data_in: self.data_in.residual(moved_in),
        }
    }
}
