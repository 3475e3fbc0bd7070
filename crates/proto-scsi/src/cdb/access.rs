//! The row of the reservation conflict table that a command belongs to.

use super::command::{Command, ControlCommand, PrOut, StartStop};

/// Row of the persistent reservation conflict table (SPC-4 tables 66 and 67, SBC-3 table 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessClass {
    /// INQUIRY, TEST UNIT READY, READ CAPACITY, PR IN and the like: never in conflict.
    Always,
    /// READ, VERIFY, PRE-FETCH, GET LBA STATUS.
    ReadMedium,
    /// WRITE, UNMAP, WRITE SAME, COMPARE AND WRITE, SYNCHRONIZE CACHE, FORMAT UNIT, MODE SELECT,
    /// SEND DIAGNOSTIC, WRITE BUFFER, PREVENT.
    WriteMedium,
    /// MODE SENSE, READ BUFFER, REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS.
    ReadConfig,
    /// START STOP UNIT other than a plain START.
    StartStop,
    /// PR OUT REGISTER and REGISTER AND IGNORE EXISTING KEY.
    PrRegister,
    /// PR OUT CLEAR, PREEMPT, PREEMPT AND ABORT, RELEASE, REGISTER AND MOVE.
    PrManage,
    /// PR OUT RESERVE.
    PrReserve,
    /// RESERVE(6) and RELEASE(6).
    Spc2Reserve,
}

impl Command {
    /// The command's row of the conflict table.
    pub fn access(&self) -> AccessClass {
        match self {
            Command::TestUnitReady => AccessClass::Always,
            Command::Read { .. }
            | Command::Verify { .. }
            | Command::PreFetch { .. }
            | Command::GetLbaStatus { .. } => AccessClass::ReadMedium,
            Command::Write { .. }
            | Command::WriteVerify { .. }
            | Command::SyncCache { .. }
            | Command::Unmap { .. }
            | Command::WriteSame { .. }
            | Command::CompareAndWrite { .. } => AccessClass::WriteMedium,
            Command::Control(c) => c.access(),
        }
    }
}

impl ControlCommand {
    /// The command's row of the conflict table.
    pub fn access(&self) -> AccessClass {
        use ControlCommand as C;
        match self {
            C::Inquiry { .. }
            | C::RequestSense { .. }
            | C::ReportLuns { .. }
            | C::ReadCapacity10
            | C::ReadCapacity16 { .. }
            | C::ReportTargetPortGroups { .. }
            | C::PersistentReserveIn { .. }
            | C::LogSense { .. }
            | C::StartStop { action: StartStop::Start, .. }
            | C::PreventAllow { prevent: false } => AccessClass::Always,
            C::ModeSense { .. }
            | C::ReadBuffer { .. }
            | C::ReportOpcodes { .. }
            | C::ReportTmf { .. } => AccessClass::ReadConfig,
            C::ModeSelect { .. }
            | C::SendDiagnostic
            | C::FormatUnit { .. }
            | C::WriteBuffer { .. }
            | C::PreventAllow { prevent: true } => AccessClass::WriteMedium,
            C::StartStop { .. } => AccessClass::StartStop,
            C::PersistentReserveOut { action, .. } => match action {
                PrOut::Register | PrOut::RegisterAndIgnore => AccessClass::PrRegister,
                PrOut::Reserve => AccessClass::PrReserve,
                PrOut::Release
                | PrOut::Clear
                | PrOut::Preempt
                | PrOut::PreemptAndAbort
                | PrOut::RegisterAndMove => AccessClass::PrManage,
            },
            C::Reserve6 | C::Release6 => AccessClass::Spc2Reserve,
        }
    }
}
