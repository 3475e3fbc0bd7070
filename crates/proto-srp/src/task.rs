//! SRP_TSK_MGMT.
use core::fmt;

use weir_wire::{Reader, Short, Writer};

use crate::iu::{IuError, IuType};
use crate::types::{EncodeError, Solicit, Tag};

/// Bytes of a SRP_TSK_MGMT.
pub const TSK_MGMT_LEN: usize = 48;

/// TASK MANAGEMENT FUNCTION (byte 30).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskFunction {
    /// 01: abort one task, named by its tag.
    AbortTask,
    /// 02: abort all tasks of this I_T nexus in the logical unit.
    AbortTaskSet,
    /// 04: abort all tasks of all initiators in the logical unit.
    ClearTaskSet,
    /// 08: reset the logical unit.
    LunReset,
    /// 40: clear the auto contingent allegiance.
    ClearAca,
    /// Any other value; the answer is RSP_CODE 4.
    Other(u8),
}

impl TaskFunction {
    /// From the byte.
    pub fn from_code(c: u8) -> Self {
        match c {
            0x01 => TaskFunction::AbortTask,
            0x02 => TaskFunction::AbortTaskSet,
            0x04 => TaskFunction::ClearTaskSet,
            0x08 => TaskFunction::LunReset,
            0x40 => TaskFunction::ClearAca,
            n => TaskFunction::Other(n),
        }
    }

    /// The byte.
    pub fn code(self) -> u8 {
        match self {
            TaskFunction::AbortTask => 0x01,
            TaskFunction::AbortTaskSet => 0x02,
            TaskFunction::ClearTaskSet => 0x04,
            TaskFunction::LunReset => 0x08,
            TaskFunction::ClearAca => 0x40,
            TaskFunction::Other(n) => n,
        }
    }
}

impl fmt::Display for TaskFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TaskFunction::AbortTask => "ABORT TASK",
            TaskFunction::AbortTaskSet => "ABORT TASK SET",
            TaskFunction::ClearTaskSet => "CLEAR TASK SET",
            TaskFunction::LunReset => "LOGICAL UNIT RESET",
            TaskFunction::ClearAca => "CLEAR ACA",
            TaskFunction::Other(n) => return write!(f, "task management function {n:#04x}"),
        })
    }
}

/// SRP_TSK_MGMT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskManagement {
    /// Names this request.
    pub tag: Tag,
    /// SAM eight-byte logical unit number, as a big-endian number.
    pub lun: u64,
    /// What to do.
    pub function: TaskFunction,
    /// TAG OF TASK TO BE MANAGED, for ABORT TASK.
    pub task_tag: Tag,
    /// Whether the answer raises a solicited event.
    pub solicit: Solicit,
}

impl TaskManagement {
    /// Reads a SRP_TSK_MGMT.
    pub fn decode(bytes: &[u8]) -> Result<Self, IuError> {
        Self::fields(bytes).map_err(|_| IuError::Short {
            iu: IuType::TaskManagement,
            needed: TSK_MGMT_LEN,
            got: bytes.len(),
        })
    }

    fn fields(bytes: &[u8]) -> Result<Self, Short> {
        let mut r = Reader::new(bytes);
        r.skip(1)?;
        let solicit = Solicit::from_byte(r.u8()?);
        r.skip(6)?;
        let tag = Tag::from_bytes(r.array()?);
        r.skip(4)?;
        let lun = r.u64()?;
        r.skip(2)?;
        let function = TaskFunction::from_code(r.u8()?);
        r.skip(1)?;
        let task_tag = Tag::from_bytes(r.array()?);
        r.skip(8)?;
        Ok(TaskManagement { tag, lun, function, task_tag, solicit })
    }

    /// Writes the IU from the start of `out` and returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut w = Writer::new(out);
        w.u8(IuType::TaskManagement.code())?.u8(self.solicit.to_byte())?.zeros(6)?;
        w.put(&self.tag.to_bytes())?.zeros(4)?.u64(self.lun)?;
        w.zeros(2)?.u8(self.function.code())?.zeros(1)?;
        w.put(&self.task_tag.to_bytes())?.zeros(8)?;
        Ok(w.len())
    }
}
