//! CDBs and parameter lists.

use crate::cdb::{PrIn, PrOut};
use crate::pr::PrType;
use crate::transport_id::TransportId;

/// A command descriptor block: 16 bytes of which the first [`Cdb::len`] count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
    len: u8,
}

impl Cdb {
    fn new(len: u8, opcode: u8) -> Cdb {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        Cdb { bytes, len }
    }

    fn set(mut self, at: usize, value: u8) -> Cdb {
        self.bytes[at] = value;
        self
    }

    fn put<const N: usize>(mut self, at: usize, value: [u8; N]) -> Cdb {
        self.bytes[at..at + N].copy_from_slice(&value);
        self
    }

    /// The CDB's own bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The CDB zero-padded to 16 bytes, as SRP and iSCSI carry it.
    #[inline]
    pub fn padded(&self) -> [u8; 16] {
        self.bytes
    }

    /// As [`padded`](Cdb::padded), without a copy.
    #[inline]
    pub fn as_padded(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// Length in bytes: 6, 10, 12 or 16.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.len.into()
    }
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// The 10-byte form when address and length allow, else the 16-byte form.
fn extent(ten: u8, sixteen: u8, lba: u64, blocks: u32, flags: u8) -> Cdb {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => {
            Cdb::new(10, ten).set(1, flags).put(2, lba.to_be_bytes()).put(7, blocks.to_be_bytes())
        }
        _ => Cdb::new(16, sixteen)
            .set(1, flags)
            .put(2, lba.to_be_bytes())
            .put(10, blocks.to_be_bytes()),
    }
}

/// TEST UNIT READY.
pub fn test_unit_ready() -> Cdb {
    Cdb::new(6, 0x00)
}

/// REQUEST SENSE, fixed or descriptor format.
pub fn request_sense(descriptor: bool, alloc: u8) -> Cdb {
    Cdb::new(6, 0x03).set(1, flag(descriptor, 1)).set(4, alloc)
}

/// Standard INQUIRY.
pub fn inquiry(alloc: u16) -> Cdb {
    Cdb::new(6, 0x12).put(3, alloc.to_be_bytes())
}

/// INQUIRY for a VPD page.
pub fn vpd(page: u8, alloc: u16) -> Cdb {
    inquiry(alloc).set(1, 1).set(2, page)
}

/// REPORT LUNS, all addressable units; `alloc` must be at least 16.
pub fn report_luns(alloc: u32) -> Cdb {
    Cdb::new(12, 0xa0).put(6, alloc.to_be_bytes())
}

/// READ CAPACITY(10).
pub fn read_capacity_10() -> Cdb {
    Cdb::new(10, 0x25)
}

/// READ CAPACITY(16).
pub fn read_capacity_16(alloc: u32) -> Cdb {
    Cdb::new(16, 0x9e).set(1, 0x10).put(10, alloc.to_be_bytes())
}

/// READ(10) or READ(16).
pub fn read(lba: u64, blocks: u32, fua: bool) -> Cdb {
    extent(0x28, 0x88, lba, blocks, flag(fua, 0x08))
}

/// WRITE(10) or WRITE(16).
pub fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    extent(0x2a, 0x8a, lba, blocks, flag(fua, 0x08))
}

/// VERIFY(10) or VERIFY(16); with `compare` against the data-out buffer.
pub fn verify(lba: u64, blocks: u32, compare: bool) -> Cdb {
    extent(0x2f, 0x8f, lba, blocks, flag(compare, 0x02))
}

/// SYNCHRONIZE CACHE(10) or (16); 0 blocks means to the end of the unit.
pub fn sync_cache(lba: u64, blocks: u32) -> Cdb {
    extent(0x35, 0x91, lba, blocks, 0)
}

/// WRITE SAME(16); without `data` (NDOB) the blocks become zeros.
pub fn write_same_16(lba: u64, blocks: u32, unmap: bool, data: bool) -> Cdb {
    Cdb::new(16, 0x93)
        .set(1, flag(unmap, 0x08) | flag(!data, 0x01))
        .put(2, lba.to_be_bytes())
        .put(10, blocks.to_be_bytes())
}

/// UNMAP with a parameter list of this length; see [`unmap_list`].
pub fn unmap(param_len: u16) -> Cdb {
    Cdb::new(10, 0x42).put(7, param_len.to_be_bytes())
}

/// The parameter list of UNMAP: extents of first block and number of blocks. At most 4095 fit the
/// length field; more are left out.
pub fn unmap_list(extents: &[(u64, u32)]) -> Vec<u8> {
    let extents = &extents[..extents.len().min(4095)];
    let bytes = (extents.len() * 16) as u16;
    let mut list = Vec::with_capacity(8 + usize::from(bytes));
    list.extend_from_slice(&(bytes + 6).to_be_bytes());
    list.extend_from_slice(&bytes.to_be_bytes());
    list.extend_from_slice(&[0; 4]);
    for (lba, blocks) in extents {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&blocks.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    list
}

/// COMPARE AND WRITE: the data-out buffer holds `blocks` to compare, then `blocks` to write.
pub fn compare_and_write(lba: u64, blocks: u8, fua: bool) -> Cdb {
    Cdb::new(16, 0x89).set(1, flag(fua, 0x08)).put(2, lba.to_be_bytes()).set(13, blocks)
}

/// GET LBA STATUS.
pub fn get_lba_status(lba: u64, alloc: u32) -> Cdb {
    Cdb::new(16, 0x9e).set(1, 0x12).put(2, lba.to_be_bytes()).put(10, alloc.to_be_bytes())
}

/// MODE SENSE(6), current values.
pub fn mode_sense_6(page: u8, subpage: u8, dbd: bool, alloc: u8) -> Cdb {
    Cdb::new(6, 0x1a).set(1, flag(dbd, 0x08)).set(2, page & 0x3f).set(3, subpage).set(4, alloc)
}

/// MODE SENSE(10), current values.
pub fn mode_sense_10(page: u8, subpage: u8, dbd: bool, alloc: u16) -> Cdb {
    Cdb::new(10, 0x5a)
        .set(1, flag(dbd, 0x08))
        .set(2, page & 0x3f)
        .set(3, subpage)
        .put(7, alloc.to_be_bytes())
}

/// MODE SELECT(6), page format, not saved.
pub fn mode_select_6(param_len: u8) -> Cdb {
    Cdb::new(6, 0x15).set(1, 0x10).set(4, param_len)
}

/// START STOP UNIT.
pub fn start_stop(start: bool, immed: bool) -> Cdb {
    Cdb::new(6, 0x1b).set(1, flag(immed, 1)).set(4, flag(start, 1))
}

/// REPORT SUPPORTED OPERATION CODES, all commands.
pub fn report_opcodes_all(alloc: u32) -> Cdb {
    Cdb::new(12, 0xa3).set(1, 0x0c).put(6, alloc.to_be_bytes())
}

/// REPORT SUPPORTED OPERATION CODES for one command.
pub fn report_opcode(opcode: u8, action: Option<u16>, alloc: u32) -> Cdb {
    report_opcodes_all(alloc)
        .set(2, if action.is_some() { 2 } else { 1 })
        .set(3, opcode)
        .put(4, action.unwrap_or(0).to_be_bytes())
}

/// REPORT TARGET PORT GROUPS with the extended header.
pub fn report_target_port_groups(alloc: u32) -> Cdb {
    Cdb::new(12, 0xa3).set(1, 0x2a).put(6, alloc.to_be_bytes())
}

/// RESERVE(6).
pub fn reserve_6() -> Cdb {
    Cdb::new(6, 0x16)
}

/// RELEASE(6).
pub fn release_6() -> Cdb {
    Cdb::new(6, 0x17)
}

/// PERSISTENT RESERVE IN.
pub fn pr_in(action: PrIn, alloc: u16) -> Cdb {
    let code = match action {
        PrIn::ReadKeys => 0,
        PrIn::ReadReservation => 1,
        PrIn::ReportCapabilities => 2,
        PrIn::ReadFullStatus => 3,
    };
    Cdb::new(10, 0x5e).set(1, code).put(7, alloc.to_be_bytes())
}

/// PERSISTENT RESERVE OUT with a parameter list of this length. `kind` is needed by RESERVE,
/// RELEASE and PREEMPT.
pub fn pr_out(action: PrOut, kind: Option<PrType>, param_len: u32) -> Cdb {
    let code = match action {
        PrOut::Register => 0,
        PrOut::Reserve => 1,
        PrOut::Release => 2,
        PrOut::Clear => 3,
        PrOut::Preempt => 4,
        PrOut::PreemptAndAbort => 5,
        PrOut::RegisterAndIgnore => 6,
        PrOut::RegisterAndMove => 7,
    };
    Cdb::new(10, 0x5f)
        .set(1, code)
        .set(2, kind.map_or(0, PrType::code))
        .put(5, param_len.to_be_bytes())
}

/// Options of a registration.
#[derive(Debug, Clone, Default)]
pub struct PrRegister<'a> {
    /// Keep the state through a loss of power.
    pub aptpl: bool,
    /// Register at all target ports.
    pub all_target_ports: bool,
    /// Also register these initiator ports (SPEC_I_PT).
    pub initiators: &'a [TransportId],
}

/// The parameter list of every PERSISTENT RESERVE OUT but REGISTER AND MOVE.
pub fn pr_out_list(key: u64, action_key: u64, options: &PrRegister<'_>) -> Vec<u8> {
    let mut list = Vec::with_capacity(24);
    list.extend_from_slice(&key.to_be_bytes());
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0; 8]);
    list[20] = flag(options.aptpl, 0x01)
        | flag(options.all_target_ports, 0x04)
        | flag(!options.initiators.is_empty(), 0x08);
    if !options.initiators.is_empty() {
        let len: usize = options.initiators.iter().map(|i| i.as_bytes().len()).sum();
        list.extend_from_slice(&(len as u32).to_be_bytes());
        for i in options.initiators {
            list.extend_from_slice(i.as_bytes());
        }
    }
    list
}

/// The parameter list of REGISTER AND MOVE.
pub fn pr_move_list(
    key: u64,
    action_key: u64,
    unregister: bool,
    aptpl: bool,
    target_port: u16,
    to: &TransportId,
) -> Vec<u8> {
    let mut list = Vec::with_capacity(48);
    list.extend_from_slice(&key.to_be_bytes());
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0, flag(unregister, 0x02) | flag(aptpl, 0x01)]);
    list.extend_from_slice(&target_port.to_be_bytes());
    list.extend_from_slice(&(to.as_bytes().len() as u32).to_be_bytes());
    list.extend_from_slice(to.as_bytes());
    list
}
