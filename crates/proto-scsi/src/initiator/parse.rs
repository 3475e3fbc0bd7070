//! Answers. All readers are total: short or foreign bytes give an error, never a panic.

use crate::identity::{POWER_MAGIC, POWER_PAGE};
use crate::lba_status::{LbaStatus, Provisioning};
use crate::lu::AluaState;
use crate::lun::Lun;
use crate::sense::Sense;
use weir_wire::{Reader, Short};

/// READ CAPACITY (10) or (16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Last logical block address. FFFFFFFFh from the 10-byte form says: ask with (16).
    pub last_lba: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Physical block is 2^n logical blocks; 0 from the 10-byte form.
    pub physical_exponent: u8,
    /// LBPME: the unit is thin.
    pub thin: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub unmapped_zeros: bool,
}

/// Reads READ CAPACITY(10) data.
pub fn parse_capacity_10(b: &[u8]) -> Result<Capacity, Short> {
    let mut r = Reader::new(b);
    Ok(Capacity {
        last_lba: r.u32()?.into(),
        block_size: r.u32()?,
        physical_exponent: 0,
        thin: false,
        unmapped_zeros: false,
    })
}

/// Reads READ CAPACITY(16) data, of which the first 12 bytes must be there.
pub fn parse_capacity_16(b: &[u8]) -> Result<Capacity, Short> {
    let mut r = Reader::new(b);
    let (last_lba, block_size) = (r.u64()?, r.u32()?);
    let at = |i: usize| b.get(i).copied().unwrap_or(0);
    Ok(Capacity {
        last_lba,
        block_size,
        physical_exponent: at(13) & 0x0f,
        thin: at(14) & 0x80 != 0,
        unmapped_zeros: at(14) & 0x40 != 0,
    })
}

/// Standard INQUIRY data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    /// Peripheral qualifier: 0 connected, 1 not now, 3 none.
    pub qualifier: u8,
    /// Peripheral device type.
    pub device_type: u8,
    /// Version of SPC: 06h is SPC-4.
    pub version: u8,
    /// Length of the whole data that the unit has, in bytes.
    pub full_len: usize,
    /// Implicit ALUA.
    pub implicit_alua: bool,
    /// Explicit ALUA.
    pub explicit_alua: bool,
    /// Vendor, without padding.
    pub vendor: String,
    /// Product, without padding.
    pub product: String,
    /// Revision, without padding.
    pub revision: String,
}

fn text(b: &[u8]) -> String {
    let visible = |b: &u8| if (0x20..0x7f).contains(b) { char::from(*b) } else { '.' };
    let text: String = b.iter().take_while(|b| **b != 0).map(visible).collect();
    text.trim().to_owned()
}

/// Reads standard INQUIRY data, of which the first 36 bytes must be there.
pub fn parse_inquiry(b: &[u8]) -> Result<Inquiry, Short> {
    let mut r = Reader::new(b);
    let [first, _, version, _, additional, flags, _, _] = r.array::<8>()?;
    Ok(Inquiry {
        qualifier: first >> 5,
        device_type: first & 0x1f,
        version,
        full_len: usize::from(additional) + 5,
        implicit_alua: flags & 0x10 != 0,
        explicit_alua: flags & 0x20 != 0,
        vendor: text(r.take(8)?),
        product: text(r.take(16)?),
        revision: text(r.take(4)?),
    })
}

/// The content of a VPD page: what follows its header, as far as it arrived.
pub fn vpd_body(b: &[u8], page: u8) -> Option<&[u8]> {
    let [_, code, hi, lo, body @ ..] = b else { return None };
    let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(body.len());
    (*code == page).then_some(&body[..len])
}

/// Reads VPD page 80h: the unit serial number.
pub fn parse_serial(b: &[u8]) -> Option<String> {
    vpd_body(b, 0x80).map(text)
}

/// Reads VPD page C0h of a unit of Weir's: what its volatile caches are of.
pub fn parse_power(b: &[u8]) -> Option<u64> {
    let number = vpd_body(b, POWER_PAGE)?.strip_prefix(POWER_MAGIC)?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// Reads MODE SENSE (6) data of the caching page, without block descriptors or with: WCE. `None` for other data.
pub fn parse_write_cache(b: &[u8]) -> Option<bool> {
    let page = b.get(4 + usize::from(*b.get(3)?)..)?;
    match page {
        [code, len, flags, ..] if code & 0x7f == 0x08 && *len > 0 => Some(flags & 0x04 != 0),
        _ => None,
    }
}

/// A designator of VPD page 83h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Designator<'a> {
    /// Protocol identifier, if valid (PIV).
    pub protocol: Option<u8>,
    /// 0 logical unit, 1 target port, 2 target device.
    pub association: u8,
    /// 1 T10 vendor, 2 EUI-64, 3 NAA, 4 relative port, 5 port group, 8 SCSI name.
    pub kind: u8,
    /// 1 binary, 2 ASCII, 3 UTF-8.
    pub code_set: u8,
    /// The designator itself.
    pub value: &'a [u8],
}

/// Reads VPD page 83h; a designator that is cut short ends the list.
pub fn parse_designators(b: &[u8]) -> Option<impl Iterator<Item = Designator<'_>>> {
    let mut rest = vpd_body(b, 0x83)?;
    Some(core::iter::from_fn(move || {
        let [a, k, _, len, tail @ ..] = rest else { return None };
        let value = tail.get(..usize::from(*len))?;
        rest = &tail[value.len()..];
        Some(Designator {
            protocol: (k & 0x80 != 0).then_some(a >> 4),
            association: k >> 4 & 3,
            kind: k & 0x0f,
            code_set: a & 0x0f,
            value,
        })
    }))
}

/// The NAA designator of the logical unit in VPD page 83h.
pub fn parse_naa(b: &[u8]) -> Option<&[u8]> {
    parse_designators(b)?.find(|d| (d.association, d.kind) == (0, 3)).map(|d| d.value)
}

/// The target port group of the port that was asked, in VPD page 83h.
pub fn parse_port_group(b: &[u8]) -> Option<u16> {
    let d = parse_designators(b)?.find(|d| (d.association, d.kind) == (1, 5))?;
    d.value.get(2..4)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// A target port group as REPORT TARGET PORT GROUPS tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortGroup {
    /// Target port group identifier.
    pub id: u16,
    /// Access state of the unit through its ports; `None` for a code that is not known here.
    pub state: Option<AluaState>,
    /// PREF.
    pub preferred: bool,
}

/// Reads REPORT TARGET PORT GROUPS data with either header, as far as it arrived.
pub fn parse_port_groups(b: &[u8]) -> Result<Vec<PortGroup>, Short> {
    let mut r = Reader::new(b);
    let len = r.u32()? as usize;
    let list = &r.rest()[..len.min(r.remaining())];
    // Format 1 begins with four bytes of the extended header.
    let extended = list.first().is_some_and(|f| f >> 4 & 7 == 1);
    let mut rest = list.get(if extended { 4 } else { 0 }..).unwrap_or(&[]);
    let mut groups = Vec::new();
    while let [state, _, high, low, _, _, _, ports, tail @ ..] = rest {
        groups.push(PortGroup {
            id: u16::from_be_bytes([*high, *low]),
            state: AluaState::from_code(state & 0x0f),
            preferred: state & 0x80 != 0,
        });
        rest = tail.get(usize::from(*ports) * 4..).unwrap_or(&[]);
    }
    Ok(groups)
}

/// What VPD page B0h says that an initiator acts upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLimits {
    /// Most blocks of one transfer; 0 says nothing.
    pub max_transfer_blocks: u32,
    /// Most blocks of one COMPARE AND WRITE.
    pub max_caw_blocks: u8,
    /// Most blocks of one UNMAP.
    pub max_unmap_blocks: u32,
    /// Most descriptors of one UNMAP.
    pub max_unmap_descriptors: u32,
    /// Most blocks of one WRITE SAME; 0 says nothing.
    pub max_write_same_blocks: u64,
}

/// Reads VPD page B0h; fields that did not arrive are 0.
pub fn parse_block_limits(b: &[u8]) -> Option<BlockLimits> {
    let body = vpd_body(b, 0xb0)?;
    let u32_at = |at: usize| {
        body.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
    };
    Some(BlockLimits {
        max_caw_blocks: body.get(1).copied().unwrap_or(0),
        max_transfer_blocks: u32_at(4),
        max_unmap_blocks: u32_at(16),
        max_unmap_descriptors: u32_at(20),
        max_write_same_blocks: u64::from(u32_at(32)) << 32 | u64::from(u32_at(36)),
    })
}

/// What VPD page B2h says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProvisioningLimits {
    /// LBPU: UNMAP works.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP works.
    pub write_same_unmap: bool,
    /// Provisioning type: 0 not told, 1 resource, 2 thin.
    pub kind: u8,
}

/// Reads VPD page B2h.
pub fn parse_provisioning(b: &[u8]) -> Option<ProvisioningLimits> {
    let [_, flags, kind, ..] = *vpd_body(b, 0xb2)? else { return None };
    Some(ProvisioningLimits {
        unmap: flags & 0x80 != 0,
        write_same_unmap: flags & 0x40 != 0,
        kind: kind & 7,
    })
}

/// Reads REPORT LUNS data, as far as it arrived.
pub fn parse_report_luns(b: &[u8]) -> Result<Vec<Lun>, Short> {
    let mut r = Reader::new(b);
    let len = r.u32()? as usize;
    r.skip(4)?;
    let list = &r.rest()[..len.min(r.remaining())];
    let lun = |b: &[u8]| b.first_chunk().map(|b| Lun::from_bytes(*b));
    Ok(list.chunks_exact(8).filter_map(lun).collect())
}

/// Reads sense data of either format; see [`Sense::parse`].
pub fn parse_sense(b: &[u8]) -> Option<Sense> {
    Sense::parse(b)
}

/// Reads GET LBA STATUS data, as far as it arrived; an unknown status ends the list.
pub fn parse_lba_status(b: &[u8]) -> Result<Vec<LbaStatus>, Short> {
    let mut r = Reader::new(b);
    let len = r.u32()? as usize;
    r.skip(4)?;
    let list = &r.rest()[..len.saturating_sub(4).min(r.remaining())];
    let one = |d: &[u8]| {
        let mut r = Reader::new(d);
        let (lba, blocks) = (r.u64().ok()?, r.u32().ok()?);
        Some(LbaStatus { lba, blocks, status: Provisioning::from_bits(r.u8().ok()?)? })
    };
    Ok(list.chunks_exact(16).map_while(one).collect())
}

/// PERSISTENT RESERVE IN, READ KEYS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrKeys {
    /// PRGENERATION.
    pub generation: u32,
    /// Registered keys.
    pub keys: Vec<u64>,
}

/// Reads READ KEYS data, as far as it arrived.
pub fn parse_pr_keys(b: &[u8]) -> Result<PrKeys, Short> {
    let mut r = Reader::new(b);
    let (generation, len) = (r.u32()?, r.u32()? as usize);
    let list = &r.rest()[..len.min(r.remaining())];
    let key = |b: &[u8]| b.first_chunk().map(|b| u64::from_be_bytes(*b));
    Ok(PrKeys { generation, keys: list.chunks_exact(8).filter_map(key).collect() })
}

/// PERSISTENT RESERVE IN, READ RESERVATION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrReservation {
    /// PRGENERATION.
    pub generation: u32,
    /// Key of the holder (0 with all registrants) and type code, if the unit is reserved.
    pub held: Option<(u64, u8)>,
}

/// Reads READ RESERVATION data.
pub fn parse_pr_reservation(b: &[u8]) -> Result<PrReservation, Short> {
    let mut r = Reader::new(b);
    let (generation, len) = (r.u32()?, r.u32()?);
    if len < 16 {
        return Ok(PrReservation { generation, held: None });
    }
    let key = r.u64()?;
    r.skip(5)?;
    Ok(PrReservation { generation, held: Some((key, r.u8()? & 0x0f)) })
}
