//! SCSI status codes and the one table from internal I/O errors to status and sense.

use crate::sense::Sense;
use weir_base::IoError;

/// SCSI status byte (SAM-5 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command completed without error.
    Good = 0x00,
    /// Sense data describe what happened.
    CheckCondition = 0x02,
    /// PRE-FETCH: all blocks are in the cache.
    ConditionMet = 0x04,
    /// The logical unit is busy; the same command may work later.
    Busy = 0x08,
    /// A reservation of another I_T nexus forbids the command.
    ReservationConflict = 0x18,
    /// No resource left for another command; the initiator lowers its queue depth.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance exists. Never sent by Weir (NORMACA is 0).
    AcaActive = 0x30,
    /// The command was aborted by another I_T nexus and TAS is 1.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with this code, if SAM-5 defines one.
    pub fn from_code(code: u8) -> Option<Status> {
        Some(match code {
            0x00 => Status::Good,
            0x02 => Status::CheckCondition,
            0x04 => Status::ConditionMet,
            0x08 => Status::Busy,
            0x18 => Status::ReservationConflict,
            0x28 => Status::TaskSetFull,
            0x30 => Status::AcaActive,
            0x40 => Status::TaskAborted,
            _ => return None,
        })
    }

    /// The status byte on the wire.
    #[inline]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// How a command fails: a status and, with CHECK CONDITION only, its sense data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiError {
    /// Status byte to send.
    pub status: Status,
    /// Sense data; always present with CHECK CONDITION and never with another status.
    pub sense: Option<Sense>,
}

/// Whether data was being read from or written to the medium when an I/O failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the medium: READ, VERIFY, the compare half of COMPARE AND WRITE.
    Read,
    /// To the medium: WRITE, WRITE SAME, UNMAP, SYNCHRONIZE CACHE.
    Write,
}

impl ScsiError {
    /// RESERVATION CONFLICT.
    pub const RESERVATION_CONFLICT: ScsiError =
        ScsiError { status: Status::ReservationConflict, sense: None };
    /// BUSY.
    pub const BUSY: ScsiError = ScsiError { status: Status::Busy, sense: None };
    /// TASK SET FULL.
    pub const TASK_SET_FULL: ScsiError = ScsiError { status: Status::TaskSetFull, sense: None };
    /// TASK ABORTED.
    pub const TASK_ABORTED: ScsiError = ScsiError { status: Status::TaskAborted, sense: None };

    /// The status and sense for an I/O that the volume below failed. `lba` is where the I/O began;
    /// it becomes the INFORMATION field of a medium error.
    ///
    /// Thin provisioning out of space is 7/27/07 and never a write error: initiators retry or fail
    /// over on a medium error, but pass "no space" on to the application.
    pub fn from_io_error(error: IoError, direction: Direction, lba: u64) -> ScsiError {
        let sense = match (error, direction) {
            (IoError::OutOfRange, _) => Sense::LBA_OUT_OF_RANGE,
            (IoError::Medium, Direction::Read) => Sense::UNRECOVERED_READ_ERROR.with_info(lba),
            (IoError::Medium, Direction::Write) => Sense::WRITE_ERROR.with_info(lba),
            (IoError::NoSpace, _) => Sense::SPACE_ALLOCATION_FAILED,
            (IoError::ReadOnly, _) => Sense::WRITE_PROTECTED,
            (IoError::Miscompare(at), _) => Sense::MISCOMPARE.with_info(at),
            (IoError::Busy, _) => return ScsiError::BUSY,
            (IoError::Aborted, _) => Sense::ABORTED_COMMAND,
            (IoError::Offline, _) => Sense::OFFLINE,
            // Initiators repeat the command, as they should.
            (IoError::Path, _) => Sense::COMMUNICATION_FAILURE,
            (IoError::Unsupported, _) => Sense::INVALID_OPCODE,
            // IoError is non-exhaustive: a class without a row of its own is an internal fault.
            (_, _) => Sense::INTERNAL_TARGET_FAILURE,
        };
        sense.into()
    }
}

impl From<Sense> for ScsiError {
    fn from(sense: Sense) -> Self {
        ScsiError { status: Status::CheckCondition, sense: Some(sense) }
    }
}

impl core::fmt::Display for ScsiError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.sense {
            Some(sense) => write!(f, "check condition: {sense}"),
            None => write!(f, "status {:#04x} ({:?})", self.status.code(), self.status),
        }
    }
}

impl std::error::Error for ScsiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_the_sense_that_hosts_expect() {
        let triple = |e, d| {
            let s = ScsiError::from_io_error(e, d, 7).sense.unwrap();
            (s.key as u8, s.asc, s.ascq, s.info)
        };
        use Direction::*;
        assert_eq!(triple(IoError::NoSpace, Write), (7, 0x27, 0x07, None));
        assert_eq!(triple(IoError::Medium, Read), (3, 0x11, 0x00, Some(7)));
        assert_eq!(triple(IoError::Medium, Write), (3, 0x0c, 0x00, Some(7)));
        assert_eq!(triple(IoError::Miscompare(513), Write), (0xe, 0x1d, 0x00, Some(513)));
        assert_eq!(triple(IoError::ReadOnly, Write), (7, 0x27, 0x00, None));
        assert_eq!(triple(IoError::Aborted, Read), (0xb, 0x00, 0x00, None));
        assert_eq!(triple(IoError::Offline, Read), (2, 0x04, 0x12, None));
        assert_eq!(triple(IoError::Path, Write), (0xb, 0x08, 0x00, None));
        assert_eq!(triple(IoError::Internal, Read), (4, 0x44, 0x00, None));
        assert_eq!(triple(IoError::OutOfRange, Read), (5, 0x21, 0x00, None));
        assert_eq!(triple(IoError::Unsupported, Write), (5, 0x20, 0x00, None));
        assert_eq!(ScsiError::from_io_error(IoError::Busy, Read, 0), ScsiError::BUSY);
    }

    /// SAM-5 table 33.
    #[test]
    fn status_codes_are_those_of_the_standard() {
        let codes = [
            (0x00, Status::Good),
            (0x02, Status::CheckCondition),
            (0x04, Status::ConditionMet),
            (0x08, Status::Busy),
            (0x18, Status::ReservationConflict),
            (0x28, Status::TaskSetFull),
            (0x30, Status::AcaActive),
            (0x40, Status::TaskAborted),
        ];
        for code in 0..=255 {
            let want = codes.iter().find(|c| c.0 == code).map(|c| c.1);
            assert_eq!(Status::from_code(code), want, "{code:#x}");
            assert!(want.is_none_or(|s| s.code() == code));
        }
    }
}
