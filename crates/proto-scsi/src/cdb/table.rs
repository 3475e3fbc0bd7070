//! Every command, once: name, length, evaluated bits and what it needs.

use crate::geometry::Features;

/// What an entry decodes to; one per CDB layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // One per row of the table below.
pub(super) enum Kind {
    TestUnitReady,
    RequestSense,
    FormatUnit,
    Read6,
    Write6,
    Inquiry,
    ModeSelect6,
    ModeSelect10,
    Reserve6,
    Release6,
    ModeSense6,
    ModeSense10,
    StartStop,
    SendDiagnostic,
    PreventAllow,
    ReadCapacity10,
    ReadCapacity16,
    Read10,
    Read12,
    Read16,
    Write10,
    Write12,
    Write16,
    WriteVerify10,
    WriteVerify12,
    WriteVerify16,
    Verify10,
    Verify12,
    Verify16,
    PreFetch10,
    PreFetch16,
    SyncCache10,
    SyncCache16,
    WriteBuffer,
    ReadBuffer,
    WriteSame10,
    WriteSame16,
    Unmap,
    LogSense,
    PrIn,
    PrOut,
    CompareAndWrite,
    GetLbaStatus,
    ReportLuns,
    ReportTargetPortGroups,
    ReportOpcodes,
    ReportTmf,
}

/// One command of the table.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Operation code.
    pub opcode: u8,
    /// Service action (byte 1 bits 4:0), for operation codes that have them.
    pub action: Option<u8>,
    /// CDB length in bytes.
    pub len: u8,
    /// The standard's name.
    pub name: &'static str,
    /// CDB usage data as RSOC reports it: operation code and service action by value, else a 1
    /// for each bit that is evaluated. Only `len` bytes count.
    pub usage: [u8; 16],
    pub(super) kind: Kind,
    /// Bits that may be 1 in a valid CDB, as one big-endian number; bytes beyond `len` may hold
    /// anything.
    pub(super) accepted: u128,
    needs: Features,
    without: Features,
}

impl Entry {
    /// True when a unit with these features has the command.
    pub const fn offered(&self, features: Features) -> bool {
        features.contains(self.needs) && !features.intersects(self.without)
    }

    /// The byte holds a group number, which is tolerated and not evaluated (GROUP_SUP 0).
    const fn group(self, byte: u32) -> Entry {
        self.tolerating(byte, 0x3f)
    }

    /// FUA_NV, obsolete since SBC-4: taken as FUA, which promises more.
    const fn fua_nv(self) -> Entry {
        self.tolerating(1, 0x02)
    }

    /// SYNC_NV, obsolete since SBC-4: the cache is written to the medium anyway.
    const fn sync_nv(self) -> Entry {
        self.tolerating(1, 0x04)
    }

    /// The LUN field of SCSI-2 in byte 1: Linux fills it in its first INQUIRY to a target, before
    /// it knows what standard the target follows.
    const fn scsi2_lun(self) -> Entry {
        self.tolerating(1, 0xe0)
    }

    const fn tolerating(mut self, byte: u32, bits: u8) -> Entry {
        self.accepted |= (bits as u128) << (120 - 8 * byte);
        self
    }

    const fn needs(mut self, features: Features) -> Entry {
        self.needs = features;
        self
    }

    const fn not_with(mut self, features: Features) -> Entry {
        self.without = features;
        self
    }
}

const fn op<const N: usize>(name: &'static str, kind: Kind, cdb: [u8; N]) -> Entry {
    let mut usage = [0; 16];
    let mut i = 0;
    while i < N {
        usage[i] = cdb[i];
        i += 1;
    }
    let beyond = u128::MAX.checked_shr(8 * N as u32);
    Entry {
        opcode: cdb[0],
        action: None,
        len: N as u8,
        name,
        usage,
        kind,
        accepted: u128::from_be_bytes(usage)
            | 0xff << 120
            | match beyond {
                Some(bits) => bits,
                None => 0,
            },
        needs: Features::NONE,
        without: Features::NONE,
    }
}

/// A command with a service action, given in the low bits of byte 1.
const fn sa<const N: usize>(name: &'static str, kind: Kind, cdb: [u8; N]) -> Entry {
    let mut e = op(name, kind, cdb);
    e.action = Some(cdb[1] & 0x1f);
    e.tolerating(1, 0x1f)
}

const F: u8 = 0xff;
/// PROTECT is never among the accepted bits: there is no protection information.
const DPO_FUA: u8 = 0x18;
const DPO_BYTCHK: u8 = 0x16;

/// The table, ascending by operation code and service action.
pub const TABLE: &[Entry] = &[
    op("TEST UNIT READY", Kind::TestUnitReady, [0x00, 0, 0, 0, 0, 0]),
    op("REQUEST SENSE", Kind::RequestSense, [0x03, 0x01, 0, 0, F, 0]),
    op("FORMAT UNIT", Kind::FormatUnit, [0x04, 0x38, 0, 0, 0, 0]).needs(Features::FORMAT),
    op("READ(6)", Kind::Read6, [0x08, 0x1f, F, F, F, 0]).not_with(Features::RBC),
    op("WRITE(6)", Kind::Write6, [0x0a, 0x1f, F, F, F, 0]).not_with(Features::RBC),
    op("INQUIRY", Kind::Inquiry, [0x12, 0x01, F, F, F, 0]).scsi2_lun(),
    op("MODE SELECT(6)", Kind::ModeSelect6, [0x15, 0x11, 0, 0, F, 0]),
    op("RESERVE(6)", Kind::Reserve6, [0x16, 0, 0, 0, 0, 0]),
    op("RELEASE(6)", Kind::Release6, [0x17, 0, 0, 0, 0, 0]),
    op("MODE SENSE(6)", Kind::ModeSense6, [0x1a, 0x08, F, F, F, 0]),
    op("START STOP UNIT", Kind::StartStop, [0x1b, 0x01, 0, 0x0f, 0xf7, 0]),
    op("SEND DIAGNOSTIC", Kind::SendDiagnostic, [0x1d, 0xf7, 0, F, F, 0]),
    op("PREVENT ALLOW MEDIUM REMOVAL", Kind::PreventAllow, [0x1e, 0, 0, 0, 0x03, 0]),
    op("READ CAPACITY(10)", Kind::ReadCapacity10, [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    op("READ(10)", Kind::Read10, [0x28, DPO_FUA, F, F, F, F, 0, F, F, 0]).fua_nv().group(6),
    op("WRITE(10)", Kind::Write10, [0x2a, DPO_FUA, F, F, F, F, 0, F, F, 0]).fua_nv().group(6),
    op("WRITE AND VERIFY(10)", Kind::WriteVerify10, [0x2e, DPO_BYTCHK, F, F, F, F, 0, F, F, 0])
        .group(6),
    op("VERIFY(10)", Kind::Verify10, [0x2f, DPO_BYTCHK, F, F, F, F, 0, F, F, 0]).group(6),
    op("PRE-FETCH(10)", Kind::PreFetch10, [0x34, 0x02, F, F, F, F, 0, F, F, 0]).group(6),
    op("SYNCHRONIZE CACHE(10)", Kind::SyncCache10, [0x35, 0x02, F, F, F, F, 0, F, F, 0])
        .sync_nv()
        .group(6),
    op("WRITE BUFFER", Kind::WriteBuffer, [0x3b, F, F, F, F, F, F, F, F, 0]),
    op("READ BUFFER", Kind::ReadBuffer, [0x3c, F, F, F, F, F, F, F, F, 0]),
    op("WRITE SAME(10)", Kind::WriteSame10, [0x41, 0x18, F, F, F, F, 0, F, F, 0])
        .group(6)
        .needs(Features::WRITE_SAME),
    op("UNMAP", Kind::Unmap, [0x42, 0x01, 0, 0, 0, 0, 0, F, F, 0]).group(6).needs(Features::UNMAP),
    op("LOG SENSE", Kind::LogSense, [0x4d, 0, F, F, 0, F, F, F, F, 0]),
    op("MODE SELECT(10)", Kind::ModeSelect10, [0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0]),
    op("MODE SENSE(10)", Kind::ModeSense10, [0x5a, 0x18, F, F, 0, 0, 0, F, F, 0]),
    sa("PERSISTENT RESERVE IN, READ KEYS", Kind::PrIn, [0x5e, 0, 0, 0, 0, 0, 0, F, F, 0]),
    sa("PERSISTENT RESERVE IN, READ RESERVATION", Kind::PrIn, [0x5e, 1, 0, 0, 0, 0, 0, F, F, 0]),
    sa("PERSISTENT RESERVE IN, REPORT CAPABILITIES", Kind::PrIn, [0x5e, 2, 0, 0, 0, 0, 0, F, F, 0]),
    sa("PERSISTENT RESERVE IN, READ FULL STATUS", Kind::PrIn, [0x5e, 3, 0, 0, 0, 0, 0, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, REGISTER", Kind::PrOut, [0x5f, 0, F, 0, 0, F, F, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, RESERVE", Kind::PrOut, [0x5f, 1, F, 0, 0, F, F, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, RELEASE", Kind::PrOut, [0x5f, 2, F, 0, 0, F, F, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, CLEAR", Kind::PrOut, [0x5f, 3, F, 0, 0, F, F, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, PREEMPT", Kind::PrOut, [0x5f, 4, F, 0, 0, F, F, F, F, 0]),
    sa("PERSISTENT RESERVE OUT, PREEMPT AND ABORT", Kind::PrOut, [0x5f, 5, F, 0, 0, F, F, F, F, 0]),
    sa(
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        Kind::PrOut,
        [0x5f, 6, F, 0, 0, F, F, F, F, 0],
    ),
    sa("PERSISTENT RESERVE OUT, REGISTER AND MOVE", Kind::PrOut, [0x5f, 7, F, 0, 0, F, F, F, F, 0]),
    op("READ(16)", Kind::Read16, [0x88, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
        .fua_nv()
        .group(14),
    op(
        "COMPARE AND WRITE",
        Kind::CompareAndWrite,
        [0x89, DPO_FUA, F, F, F, F, F, F, F, F, 0, 0, 0, F, 0, 0],
    )
    .fua_nv()
    .group(14)
    .needs(Features::COMPARE_AND_WRITE),
    op("WRITE(16)", Kind::Write16, [0x8a, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
        .fua_nv()
        .group(14),
    op(
        "WRITE AND VERIFY(16)",
        Kind::WriteVerify16,
        [0x8e, DPO_BYTCHK, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
    )
    .group(14),
    op("VERIFY(16)", Kind::Verify16, [0x8f, DPO_BYTCHK, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
        .group(14),
    op("PRE-FETCH(16)", Kind::PreFetch16, [0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
        .group(14),
    op(
        "SYNCHRONIZE CACHE(16)",
        Kind::SyncCache16,
        [0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
    )
    .sync_nv()
    .group(14),
    op("WRITE SAME(16)", Kind::WriteSame16, [0x93, 0x19, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
        .group(14)
        .needs(Features::WRITE_SAME),
    sa(
        "READ CAPACITY(16)",
        Kind::ReadCapacity16,
        [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0],
    ),
    sa(
        "GET LBA STATUS",
        Kind::GetLbaStatus,
        [0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0],
    )
    .needs(Features::UNMAP),
    op("REPORT LUNS", Kind::ReportLuns, [0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0]),
    sa(
        "REPORT TARGET PORT GROUPS",
        Kind::ReportTargetPortGroups,
        [0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0],
    ),
    sa(
        "REPORT SUPPORTED OPERATION CODES",
        Kind::ReportOpcodes,
        [0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0],
    ),
    sa(
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        Kind::ReportTmf,
        [0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0],
    ),
    op("READ(12)", Kind::Read12, [0xa8, DPO_FUA, F, F, F, F, F, F, F, F, 0, 0]).fua_nv().group(10),
    op("WRITE(12)", Kind::Write12, [0xaa, DPO_FUA, F, F, F, F, F, F, F, F, 0, 0])
        .fua_nv()
        .group(10),
    op(
        "WRITE AND VERIFY(12)",
        Kind::WriteVerify12,
        [0xae, DPO_BYTCHK, F, F, F, F, F, F, F, F, 0, 0],
    )
    .group(10),
    op("VERIFY(12)", Kind::Verify12, [0xaf, DPO_BYTCHK, F, F, F, F, F, F, F, F, 0, 0]).group(10),
];

/// For each operation code the first entry and the number of entries.
static INDEX: [(u8, u8); 256] = index();

const fn index() -> [(u8, u8); 256] {
    let mut index = [(0, 0); 256];
    let mut i = 0;
    while i < TABLE.len() {
        let slot = &mut index[TABLE[i].opcode as usize];
        if slot.1 == 0 {
            slot.0 = i as u8;
        }
        slot.1 += 1;
        i += 1;
    }
    index
}

/// All entries with this operation code, whatever features they need.
#[inline]
pub fn entries(opcode: u8) -> &'static [Entry] {
    let (first, count) = INDEX[usize::from(opcode)];
    &TABLE[usize::from(first)..usize::from(first) + usize::from(count)]
}

/// The standard's name of the command in `cdb`, for traces and messages.
pub fn name(cdb: &[u8]) -> &'static str {
    let Some(&opcode) = cdb.first() else { return "(empty CDB)" };
    let action = cdb.get(1).map_or(0, |b| b & 0x1f);
    entries(opcode)
        .iter()
        .find(|e| e.action.is_none_or(|a| a == action))
        .map_or("(unknown command)", |e| e.name)
}
