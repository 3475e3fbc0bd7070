//! The decoded commands.

use crate::geometry::Geometry;

/// What VERIFY and WRITE AND VERIFY compare (BYTCHK, SBC-3 5.33).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteCheck {
    /// 00b: the medium is checked, nothing is transferred for comparison.
    None,
    /// 01b: every block is compared with the data-out buffer.
    Compare,
    /// 11b: every block is compared with the one block in the data-out buffer.
    CompareOne,
}

/// A decoded command. Ranges are within the geometry it was decoded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// TEST UNIT READY: answered by admission alone.
    TestUnitReady,
    /// READ (6), (10), (12), (16).
    Read {
        /// First block.
        lba: u64,
        /// Number of blocks; 0 transfers nothing.
        blocks: u32,
        /// Read from the medium, after writing back what the cache holds.
        fua: bool,
        /// Cache hint.
        dpo: bool,
    },
    /// WRITE (6), (10), (12), (16).
    Write {
        /// First block.
        lba: u64,
        /// Number of blocks; 0 transfers nothing.
        blocks: u32,
        /// Durable before status.
        fua: bool,
        /// Cache hint.
        dpo: bool,
    },
    /// WRITE AND VERIFY (10), (12), (16): durable, then read back from the medium.
    WriteVerify {
        /// First block.
        lba: u64,
        /// Number of blocks.
        blocks: u32,
        /// Only `None` and `Compare` occur.
        bytchk: ByteCheck,
    },
    /// VERIFY (10), (12), (16).
    Verify {
        /// First block.
        lba: u64,
        /// Number of blocks.
        blocks: u32,
        /// What is compared.
        bytchk: ByteCheck,
    },
    /// SYNCHRONIZE CACHE (10), (16).
    SyncCache {
        /// First block.
        lba: u64,
        /// Number of blocks; a length of 0 in the CDB was replaced by all blocks from `lba` on.
        blocks: u64,
        /// Status may be sent before the cache is written.
        immed: bool,
    },
    /// UNMAP; the parameter list goes to [`crate::unmap::parse`].
    Unmap {
        /// Parameter list length in bytes.
        param_len: u16,
        /// Anchor rather than deallocate.
        anchor: bool,
    },
    /// WRITE SAME (10), (16).
    WriteSame {
        /// First block.
        lba: u64,
        /// Number of blocks; a length of 0 in the CDB was replaced by all blocks from `lba` on.
        blocks: u64,
        /// The blocks may be unmapped where that reads as the same data.
        unmap: bool,
        /// No data-out buffer: the data are zeros.
        ndob: bool,
        /// Anchor rather than deallocate.
        anchor: bool,
    },
    /// COMPARE AND WRITE: the data-out buffer holds the compare blocks, then the write blocks.
    CompareAndWrite {
        /// First block.
        lba: u64,
        /// Number of blocks compared and written; 0 does nothing.
        blocks: u8,
        /// Durable before status.
        fua: bool,
    },
    /// PRE-FETCH (10), (16).
    PreFetch {
        /// First block.
        lba: u64,
        /// Number of blocks; a length of 0 in the CDB was replaced by all blocks from `lba` on.
        blocks: u64,
        /// Status may be sent before the blocks are in the cache.
        immed: bool,
    },
    /// GET LBA STATUS; the answer is built by [`crate::lba_status`].
    GetLbaStatus {
        /// First block asked about.
        lba: u64,
        /// Allocation length in bytes.
        alloc: u32,
    },
    /// Everything that is answered from the state of the logical unit.
    Control(ControlCommand),
}

/// The 6-byte or 10-byte form of MODE SENSE and MODE SELECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModeForm {
    /// 4-byte header.
    Six,
    /// 8-byte header.
    Ten,
}

/// Which values MODE SENSE asks for (page control).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModePages {
    /// 00b: values in force.
    Current,
    /// 01b: a mask of the bits that MODE SELECT can change.
    Changeable,
    /// 10b: values after a reset.
    Default,
    /// 11b: saved values, which Weir does not keep.
    Saved,
}

/// PERSISTENT RESERVE IN service action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the standard's own and say it all.
pub enum PrIn {
    ReadKeys,
    ReadReservation,
    ReportCapabilities,
    ReadFullStatus,
}

/// PERSISTENT RESERVE OUT service action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the standard's own and say it all.
pub enum PrOut {
    Register,
    Reserve,
    Release,
    Clear,
    Preempt,
    PreemptAndAbort,
    RegisterAndIgnore,
    RegisterAndMove,
}

/// The parameter list that FORMAT UNIT announces. Its length is not in the CDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FormatList {
    /// FMTDATA 0: none.
    None,
    /// 4-byte header.
    Short,
    /// 8-byte header.
    Long,
}

/// What START STOP UNIT asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StartStop {
    /// START 1, power condition 0 or ACTIVE.
    Start,
    /// START 0, power condition 0.
    Stop,
    /// Power condition LU_CONTROL: the device manages itself.
    LuControl,
}

/// A command answered from the state of the logical unit, with no access to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Fields carry the CDB's own names; lengths are in bytes.
pub enum ControlCommand {
    Inquiry {
        evpd: bool,
        page: u8,
        alloc: u16,
    },
    RequestSense {
        descriptor: bool,
        alloc: u8,
    },
    ReportLuns {
        select: u8,
        alloc: u32,
    },
    ModeSense {
        form: ModeForm,
        dbd: bool,
        long_lba: bool,
        pages: ModePages,
        page: u8,
        subpage: u8,
        alloc: u16,
    },
    ModeSelect {
        form: ModeForm,
        param_len: u16,
    },
    ReadCapacity10,
    ReadCapacity16 {
        alloc: u32,
    },
    ReportOpcodes {
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
        alloc: u32,
    },
    ReportTmf {
        extended: bool,
        alloc: u32,
    },
    ReportTargetPortGroups {
        extended: bool,
        alloc: u32,
    },
    PersistentReserveIn {
        action: PrIn,
        alloc: u16,
    },
    PersistentReserveOut {
        action: PrOut,
        kind: u8,
        param_len: u32,
    },
    Reserve6,
    Release6,
    StartStop {
        action: StartStop,
        immed: bool,
    },
    PreventAllow {
        prevent: bool,
    },
    SendDiagnostic,
    LogSense {
        page: u8,
        subpage: u8,
        alloc: u16,
    },
    FormatUnit {
        list: FormatList,
    },
    ReadBuffer {
        mode: u8,
        offset: u32,
        alloc: u32,
    },
    WriteBuffer {
        offset: u32,
        len: u32,
    },
}

impl Command {
    /// Bytes that the CDB says go from initiator to target. What the transport announces beyond
    /// or below it is the residual.
    pub fn data_out_len(&self, geometry: &Geometry) -> u64 {
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(geometry.block_size));
        match *self {
            Command::Write { blocks, .. } | Command::WriteVerify { blocks, .. } => {
                bytes(blocks.into())
            }
            Command::Verify { blocks, bytchk, .. } => match bytchk {
                ByteCheck::None => 0,
                ByteCheck::Compare => bytes(blocks.into()),
                ByteCheck::CompareOne => bytes(u64::from(blocks.min(1))),
            },
            Command::WriteSame { ndob, .. } => bytes(u64::from(!ndob)),
            Command::CompareAndWrite { blocks, .. } => bytes(2 * u64::from(blocks)),
            Command::Unmap { param_len, .. } => param_len.into(),
            Command::Control(c) => c.data_out_len(),
            _ => 0,
        }
    }

    /// Bytes that the CDB allows from target to initiator: exact for READ, else the allocation
    /// length.
    pub fn data_in_len(&self, geometry: &Geometry) -> u64 {
        match *self {
            Command::Read { blocks, .. } => u64::from(blocks) * u64::from(geometry.block_size),
            Command::GetLbaStatus { alloc, .. } => alloc.into(),
            Command::Control(c) => c.data_in_len(),
            _ => 0,
        }
    }

    /// True for commands that change what the medium holds: refused while write protected.
    pub fn writes_medium(&self) -> bool {
        matches!(
            self,
            Command::Write { .. }
                | Command::WriteVerify { .. }
                | Command::Unmap { .. }
                | Command::WriteSame { .. }
                | Command::CompareAndWrite { .. }
                | Command::Control(ControlCommand::FormatUnit { .. })
        )
    }
}

impl ControlCommand {
    /// Bytes of the parameter list that the CDB announces.
    pub fn data_out_len(&self) -> u64 {
        match *self {
            ControlCommand::ModeSelect { param_len, .. } => param_len.into(),
            ControlCommand::PersistentReserveOut { param_len, .. } => param_len.into(),
            ControlCommand::FormatUnit { list: FormatList::Short } => 4,
            ControlCommand::FormatUnit { list: FormatList::Long } => 8,
            ControlCommand::WriteBuffer { len, .. } => len.into(),
            _ => 0,
        }
    }

    /// The allocation length: no answer is longer.
    pub fn data_in_len(&self) -> u64 {
        match *self {
            ControlCommand::Inquiry { alloc, .. }
            | ControlCommand::ModeSense { alloc, .. }
            | ControlCommand::PersistentReserveIn { alloc, .. }
            | ControlCommand::LogSense { alloc, .. } => alloc.into(),
            ControlCommand::RequestSense { alloc, .. } => alloc.into(),
            ControlCommand::ReportLuns { alloc, .. }
            | ControlCommand::ReadCapacity16 { alloc }
            | ControlCommand::ReportOpcodes { alloc, .. }
            | ControlCommand::ReportTmf { alloc, .. }
            | ControlCommand::ReportTargetPortGroups { alloc, .. }
            | ControlCommand::ReadBuffer { alloc, .. } => alloc.into(),
            ControlCommand::ReadCapacity10 => 8,
            _ => 0,
        }
    }
}
