//! From CDB bytes to [`Command`].

use super::command::{
    ByteCheck, Command, ControlCommand, FormatList, ModeForm, ModePages, PrIn, PrOut, StartStop,
};
use super::table::{self, Entry, Kind};
use crate::geometry::{Features, Geometry};
use crate::sense::Sense;

/// The CDB, zero-padded.
type Cdb = [u8; 16];

/// Decodes a CDB against a geometry: operation code (5/20/00), reserved and unsupported bits
/// including NACA and PROTECT (5/24/00 with field pointer), address range (5/21/00) and transfer
/// limits. Total, without allocation, and independent of any shared state. Bytes of `cdb` beyond
/// the command's own length are ignored.
#[inline]
pub fn decode(cdb: &[u8], geometry: &Geometry) -> Result<Command, Sense> {
    let entry = lookup(cdb, geometry.features)?;
    // Where all 16 bytes are there they are not copied: its parts could not be read before the copy is in the cache.
    let mut padded: Cdb = [0; 16];
    let c = match cdb.first_chunk::<16>() {
        Some(whole) => whole,
        None if cdb.len() >= usize::from(entry.len) => {
            padded[..cdb.len()].copy_from_slice(cdb);
            &padded
        }
        None => return Err(Sense::cdb_byte(cdb.len() as u16)),
    };
    let refused = u128::from_be_bytes(*c) & !entry.accepted;
    if refused != 0 {
        let at = refused.leading_zeros();
        return Err(Sense::cdb_bit((at / 8) as u16, (7 - at % 8) as u8));
    }
    build(entry, c, geometry)
}

fn lookup(cdb: &[u8], features: Features) -> Result<&'static Entry, Sense> {
    let Some(&opcode) = cdb.first() else { return Err(Sense::INVALID_OPCODE) };
    let action = cdb.get(1).map_or(0, |b| b & 0x1f);
    let mut known = false;
    for entry in table::entries(opcode) {
        if entry.offered(features) {
            if entry.action.is_none_or(|a| a == action) {
                return Ok(entry);
            }
            known = true;
        }
    }
    Err(if known { Sense::cdb_bit(1, 4) } else { Sense::INVALID_OPCODE })
}

#[inline]
fn be16(c: &Cdb, at: usize) -> u16 {
    u16::from_be_bytes([c[at], c[at + 1]])
}

#[inline]
fn be24(c: &Cdb, at: usize) -> u32 {
    u32::from_be_bytes([0, c[at], c[at + 1], c[at + 2]])
}

#[inline]
fn be32(c: &Cdb, at: usize) -> u32 {
    u32::from_be_bytes([c[at], c[at + 1], c[at + 2], c[at + 3]])
}

#[inline]
fn be64(c: &Cdb, at: usize) -> u64 {
    u64::from(be32(c, at)) << 32 | u64::from(be32(c, at + 4))
}

/// Address and length of the 6-, 10-, 12- and 16-byte forms, and where the length begins.
struct Extent {
    lba: u64,
    blocks: u32,
    len_at: u16,
}

#[inline]
fn extent(entry: &Entry, c: &Cdb) -> Extent {
    match entry.len {
        6 => {
            let lba = u64::from(be24(c, 1) & 0x1f_ffff);
            let blocks = if c[4] == 0 { 256 } else { u32::from(c[4]) };
            Extent { lba, blocks, len_at: 4 }
        }
        10 => Extent { lba: be32(c, 2).into(), blocks: be16(c, 7).into(), len_at: 7 },
        12 => Extent { lba: be32(c, 2).into(), blocks: be32(c, 6), len_at: 6 },
        _ => Extent { lba: be64(c, 2), blocks: be32(c, 10), len_at: 10 },
    }
}

impl Extent {
    fn in_range(&self, blocks: u64, g: &Geometry) -> Result<(), Sense> {
        match self.lba.checked_add(blocks) {
            Some(end) if end <= g.blocks => Ok(()),
            _ => Err(Sense::LBA_OUT_OF_RANGE),
        }
    }

    /// For transfers: the range, then the longest transfer.
    #[inline]
    fn transfer(self, g: &Geometry) -> Result<(u64, u32), Sense> {
        self.in_range(self.blocks.into(), g)?;
        if self.blocks > g.limits.max_transfer_blocks {
            return Err(Sense::cdb_byte(self.len_at));
        }
        Ok((self.lba, self.blocks))
    }

    /// For commands where a length of 0 means "to the end of the unit".
    fn to_end(&self, g: &Geometry) -> Result<(u64, u64), Sense> {
        let blocks = match self.blocks {
            0 => g.blocks.saturating_sub(self.lba),
            n => n.into(),
        };
        self.in_range(blocks, g)?;
        Ok((self.lba, blocks))
    }
}

#[inline]
fn build(entry: &Entry, c: &Cdb, g: &Geometry) -> Result<Command, Sense> {
    use ControlCommand as C;
    // FUA_NV (bit 1, obsolete) counts as FUA.
    let (dpo, fua) = (c[1] & 0x10 != 0, c[1] & 0x0a != 0);
    let control = match entry.kind {
        Kind::Read10 | Kind::Read16 | Kind::Read12 => {
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::Read { lba, blocks, fua, dpo });
        }
        Kind::Write10 | Kind::Write16 | Kind::Write12 => {
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::Write { lba, blocks, fua, dpo });
        }
        Kind::Read6 => {
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::Read { lba, blocks, fua: false, dpo: false });
        }
        Kind::Write6 => {
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::Write { lba, blocks, fua: false, dpo: false });
        }
        Kind::TestUnitReady => return Ok(Command::TestUnitReady),
        Kind::WriteVerify10 | Kind::WriteVerify12 | Kind::WriteVerify16 => {
            let bytchk = byte_check(c)?;
            if bytchk == ByteCheck::CompareOne {
                return Err(Sense::cdb_bit(1, 2));
            }
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::WriteVerify { lba, blocks, bytchk });
        }
        Kind::Verify10 | Kind::Verify12 | Kind::Verify16 => {
            let bytchk = byte_check(c)?;
            let (lba, blocks) = extent(entry, c).transfer(g)?;
            return Ok(Command::Verify { lba, blocks, bytchk });
        }
        Kind::PreFetch10 | Kind::PreFetch16 => {
            let (lba, blocks) = extent(entry, c).to_end(g)?;
            return Ok(Command::PreFetch { lba, blocks, immed: c[1] & 0x02 != 0 });
        }
        Kind::SyncCache10 | Kind::SyncCache16 => {
            let (lba, blocks) = extent(entry, c).to_end(g)?;
            return Ok(Command::SyncCache { lba, blocks, immed: c[1] & 0x02 != 0 });
        }
        Kind::WriteSame10 | Kind::WriteSame16 => return write_same(entry, c, g),
        Kind::Unmap => {
            let anchor = anchor(c[1] & 0x01 != 0, 0, g)?;
            return Ok(Command::Unmap { param_len: be16(c, 7), anchor });
        }
        Kind::CompareAndWrite => {
            let e = Extent { lba: be64(c, 2), blocks: c[13].into(), len_at: 13 };
            e.in_range(e.blocks.into(), g)?;
            if c[13] > g.limits.max_caw_blocks {
                return Err(Sense::cdb_byte(13));
            }
            return Ok(Command::CompareAndWrite { lba: e.lba, blocks: c[13], fua });
        }
        Kind::GetLbaStatus => {
            let lba = be64(c, 2);
            if lba >= g.blocks {
                return Err(Sense::LBA_OUT_OF_RANGE);
            }
            return Ok(Command::GetLbaStatus { lba, alloc: be32(c, 10) });
        }
        Kind::RequestSense => C::RequestSense { descriptor: c[1] & 1 != 0, alloc: c[4] },
        Kind::FormatUnit => C::FormatUnit {
            list: match c[1] & 0x30 {
                0x10 => FormatList::Short,
                0x30 => FormatList::Long,
                0x20 => return Err(Sense::cdb_bit(1, 5)),
                _ => FormatList::None,
            },
        },
        Kind::Inquiry => {
            let evpd = c[1] & 1 != 0;
            if !evpd && c[2] != 0 {
                return Err(Sense::cdb_byte(2));
            }
            C::Inquiry { evpd, page: c[2], alloc: be16(c, 3) }
        }
        Kind::ModeSelect6 => mode_select(c, ModeForm::Six, c[4].into())?,
        Kind::ModeSelect10 => mode_select(c, ModeForm::Ten, be16(c, 7))?,
        Kind::ModeSense6 => mode_sense(c, ModeForm::Six, c[4].into()),
        Kind::ModeSense10 => mode_sense(c, ModeForm::Ten, be16(c, 7)),
        Kind::Reserve6 => C::Reserve6,
        Kind::Release6 => C::Release6,
        Kind::StartStop => start_stop(c)?,
        Kind::SendDiagnostic => send_diagnostic(c)?,
        // 2 and 3 are obsolete.
        Kind::PreventAllow if c[4] & 2 != 0 => return Err(Sense::cdb_bit(4, 1)),
        Kind::PreventAllow => C::PreventAllow { prevent: c[4] & 1 != 0 },
        Kind::ReadCapacity10 => C::ReadCapacity10,
        Kind::ReadCapacity16 => C::ReadCapacity16 { alloc: be32(c, 10) },
        Kind::WriteBuffer => write_buffer(c)?,
        Kind::ReadBuffer => read_buffer(c)?,
        Kind::LogSense => log_sense(c)?,
        Kind::PrIn => C::PersistentReserveIn { action: pr_in(c[1]), alloc: be16(c, 7) },
        Kind::PrOut => pr_out(c)?,
        Kind::ReportLuns => {
            if c[2] > 2 {
                return Err(Sense::cdb_byte(2));
            }
            let alloc = be32(c, 6);
            if alloc < 16 {
                return Err(Sense::cdb_byte(6));
            }
            C::ReportLuns { select: c[2], alloc }
        }
        Kind::ReportTargetPortGroups => {
            let extended = match c[1] >> 5 {
                0 => false,
                1 => true,
                _ => return Err(Sense::cdb_bit(1, 7)),
            };
            C::ReportTargetPortGroups { extended, alloc: be32(c, 6) }
        }
        Kind::ReportOpcodes => {
            let options = c[2] & 7;
            if options > 3 {
                return Err(Sense::cdb_bit(2, 2));
            }
            C::ReportOpcodes {
                timeouts: c[2] & 0x80 != 0,
                options,
                opcode: c[3],
                action: be16(c, 4),
                alloc: be32(c, 6),
            }
        }
        Kind::ReportTmf => {
            let alloc = be32(c, 6);
            if alloc < 4 {
                return Err(Sense::cdb_byte(6));
            }
            C::ReportTmf { extended: c[2] & 0x80 != 0, alloc }
        }
    };
    Ok(Command::Control(control))
}

fn byte_check(c: &Cdb) -> Result<ByteCheck, Sense> {
    match c[1] >> 1 & 3 {
        0 => Ok(ByteCheck::None),
        1 => Ok(ByteCheck::Compare),
        3 => Ok(ByteCheck::CompareOne),
        _ => Err(Sense::cdb_bit(1, 2)),
    }
}

fn anchor(asked: bool, bit: u8, g: &Geometry) -> Result<bool, Sense> {
    if asked && !g.features.contains(Features::ANCHOR) {
        return Err(Sense::cdb_bit(1, bit));
    }
    Ok(asked)
}

fn write_same(entry: &Entry, c: &Cdb, g: &Geometry) -> Result<Command, Sense> {
    let unmap = c[1] & 0x08 != 0;
    let ndob = c[1] & 0x01 != 0;
    if unmap && !g.features.contains(Features::WRITE_SAME_UNMAP) {
        return Err(Sense::cdb_bit(1, 3));
    }
    let anchor = anchor(c[1] & 0x10 != 0, 4, g)?;
    if anchor && !unmap {
        return Err(Sense::cdb_bit(1, 4));
    }
    let e = extent(entry, c);
    if e.blocks == 0 && g.limits.write_same_non_zero {
        return Err(Sense::cdb_byte(e.len_at));
    }
    let (lba, blocks) = e.to_end(g)?;
    let max = g.limits.max_write_same_blocks;
    if max != 0 && blocks > max {
        return Err(Sense::cdb_byte(e.len_at));
    }
    Ok(Command::WriteSame { lba, blocks, unmap, ndob, anchor })
}

fn mode_select(c: &Cdb, form: ModeForm, param_len: u16) -> Result<ControlCommand, Sense> {
    // PF 0 would mean vendor-specific pages; SP asks for saved pages, which do not exist.
    if c[1] & 0x10 == 0 {
        return Err(Sense::cdb_bit(1, 4));
    }
    if c[1] & 0x01 != 0 {
        return Err(Sense::cdb_bit(1, 0));
    }
    Ok(ControlCommand::ModeSelect { form, param_len })
}

fn mode_sense(c: &Cdb, form: ModeForm, alloc: u16) -> ControlCommand {
    ControlCommand::ModeSense {
        form,
        dbd: c[1] & 0x08 != 0,
        long_lba: c[1] & 0x10 != 0,
        pages: match c[2] >> 6 {
            0 => ModePages::Current,
            1 => ModePages::Changeable,
            2 => ModePages::Default,
            _ => ModePages::Saved,
        },
        page: c[2] & 0x3f,
        subpage: c[3],
        alloc,
    }
}

fn start_stop(c: &Cdb) -> Result<ControlCommand, Sense> {
    let (start, load_eject) = (c[4] & 0x01 != 0, c[4] & 0x02 != 0);
    if load_eject {
        // The medium cannot be removed.
        return Err(Sense::cdb_bit(4, 1));
    }
    let action = match (c[4] >> 4, start) {
        (0, true) => StartStop::Start,
        (0, false) => StartStop::Stop,
        (1, _) => StartStop::Start,
        (7, _) => StartStop::LuControl,
        // Idle, standby and their timers do not exist here (mode page 1Ah says so).
        _ => return Err(Sense::cdb_bit(4, 7)),
    };
    if c[3] != 0 {
        return Err(Sense::cdb_bit(3, 3));
    }
    Ok(ControlCommand::StartStop { action, immed: c[1] & 1 != 0 })
}

fn send_diagnostic(c: &Cdb) -> Result<ControlCommand, Sense> {
    // Only the default self-test: no pages, no background or extended tests.
    if c[1] & 0xe0 != 0 {
        return Err(Sense::cdb_bit(1, 7));
    }
    if be16(c, 3) != 0 {
        return Err(Sense::cdb_byte(3));
    }
    Ok(ControlCommand::SendDiagnostic)
}

fn write_buffer(c: &Cdb) -> Result<ControlCommand, Sense> {
    // Mode 0Ah writes the echo buffer. Modes 04h..0Fh that download microcode are refused here:
    // Weir is updated as a program, never through a LUN.
    if c[1] != 0x0a {
        return Err(Sense::cdb_bit(1, 4));
    }
    if c[2] != 0 {
        return Err(Sense::cdb_byte(2));
    }
    if be24(c, 3) != 0 {
        return Err(Sense::cdb_byte(3));
    }
    Ok(ControlCommand::WriteBuffer { offset: 0, len: be24(c, 6) })
}

fn read_buffer(c: &Cdb) -> Result<ControlCommand, Sense> {
    // 03h descriptor, 0Ah echo buffer, 0Bh echo buffer descriptor.
    if !matches!(c[1], 0x03 | 0x0a | 0x0b) {
        return Err(Sense::cdb_bit(1, 4));
    }
    if c[2] != 0 {
        return Err(Sense::cdb_byte(2));
    }
    if be24(c, 3) != 0 {
        return Err(Sense::cdb_byte(3));
    }
    Ok(ControlCommand::ReadBuffer { mode: c[1], offset: 0, alloc: be24(c, 6) })
}

fn log_sense(c: &Cdb) -> Result<ControlCommand, Sense> {
    if c[2] >> 6 > 1 {
        // Default values of counters (PC 10b, 11b) do not exist; current ones do.
        return Err(Sense::cdb_bit(2, 7));
    }
    if be16(c, 5) != 0 {
        return Err(Sense::cdb_byte(5));
    }
    Ok(ControlCommand::LogSense { page: c[2] & 0x3f, subpage: c[3], alloc: be16(c, 7) })
}

fn pr_in(byte: u8) -> PrIn {
    match byte & 0x1f {
        0 => PrIn::ReadKeys,
        1 => PrIn::ReadReservation,
        2 => PrIn::ReportCapabilities,
        // The table has no other service action.
        _ => PrIn::ReadFullStatus,
    }
}

fn pr_out(c: &Cdb) -> Result<ControlCommand, Sense> {
    let action = match c[1] & 0x1f {
        0 => PrOut::Register,
        1 => PrOut::Reserve,
        2 => PrOut::Release,
        3 => PrOut::Clear,
        4 => PrOut::Preempt,
        5 => PrOut::PreemptAndAbort,
        6 => PrOut::RegisterAndIgnore,
        // The table has no other service action.
        _ => PrOut::RegisterAndMove,
    };
    let (scope, kind) = (c[2] >> 4, c[2] & 0x0f);
    // Scope and type mean something to these four only; the others ignore them.
    let scoped =
        matches!(action, PrOut::Reserve | PrOut::Release | PrOut::Preempt | PrOut::PreemptAndAbort);
    if scoped && scope != 0 {
        return Err(Sense::cdb_bit(2, 7));
    }
    if action == PrOut::Reserve && !matches!(kind, 1 | 3 | 5..=8) {
        return Err(Sense::cdb_bit(2, 3));
    }
    Ok(ControlCommand::PersistentReserveOut { action, kind, param_len: be32(c, 5) })
}
