//! SAM logical unit numbers, and what a LUN without a logical unit answers.

use crate::cdb::{Command, ControlCommand, decode};
use crate::data::{Data, truncate};
use crate::geometry::{Features, Geometry};
use crate::identity::Identity;
use crate::sense::{Sense, SenseFormat};
use crate::status::ScsiError;

/// An 8-byte logical unit number as it stands on the wire (SAM-5 4.7), as a big-endian number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u64);

/// Highest number that flat space addressing can express.
pub const LUN_INDEX_MAX: u16 = 0x3fff;

impl Lun {
    /// LUN 0.
    pub const ZERO: Lun = Lun(0);

    /// The LUN for a small number: peripheral device addressing below 256, flat space addressing
    /// up to [`LUN_INDEX_MAX`], `None` above.
    pub const fn from_index(index: u16) -> Option<Lun> {
        match index {
            0..=0xff => Some(Lun((index as u64) << 48)),
            0x100..=LUN_INDEX_MAX => Some(Lun((0x4000 | index as u64) << 48)),
            _ => None,
        }
    }

    /// The small number of a single-level LUN in peripheral (bus 0) or flat space addressing.
    pub const fn index(self) -> Option<u16> {
        if self.0 << 16 != 0 {
            return None;
        }
        let level = (self.0 >> 48) as u16;
        match level >> 14 {
            0 if level >> 8 == 0 => Some(level),
            1 => Some(level & LUN_INDEX_MAX),
            _ => None,
        }
    }

    /// From wire bytes.
    pub const fn from_bytes(bytes: [u8; 8]) -> Lun {
        Lun(u64::from_be_bytes(bytes))
    }

    /// To wire bytes.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// REPORT LUNS data for these LUNs. `select` 1 asks for well known logical units, of which there
/// are none.
pub fn report_luns(luns: &[Lun], select: u8, alloc: u32, out: &mut Vec<u8>) {
    let luns = if select == 1 { &[][..] } else { luns };
    out.clear();
    out.be32((luns.len() * 8) as u32);
    out.be32(0);
    for lun in luns {
        out.extend_from_slice(&lun.to_bytes());
    }
    truncate(out, alloc as usize);
}

fn bare_inquiry(first: u8, identity: &Identity, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[first, 0, 0x06, 0x12, 31, 0, 0, 0x02]);
    out.extend_from_slice(&identity.vendor);
    out.extend_from_slice(&identity.product);
    out.extend_from_slice(&identity.revision);
}

/// Standard INQUIRY data of a LUN that does not exist: qualifier 3, type 1Fh.
pub fn no_lu_inquiry(identity: &Identity, out: &mut Vec<u8>) {
    bare_inquiry(0x7f, identity, out);
}

/// Standard INQUIRY data of LUN 0 without a volume: qualifier 1, type 1Fh, so that a host goes on
/// to REPORT LUNS.
pub fn lun0_inquiry(identity: &Identity, out: &mut Vec<u8>) {
    bare_inquiry(0x3f, identity, out);
}

/// Answers a command to a LUN without a volume: INQUIRY, REPORT LUNS (`luns` are those visible to
/// the nexus) and REQUEST SENSE; everything else ends with `none`: 5/25/00, or 2/04/01 for a volume
/// that is about to come. Vendor, product and revision come from `identity`. `out` holds the data,
/// cut to the allocation length.
pub fn execute_no_lu(
    cdb: &[u8],
    lun: Lun,
    none: Sense,
    luns: &[Lun],
    identity: &Identity,
    out: &mut Vec<u8>,
) -> Result<(), ScsiError> {
    out.clear();
    // Nothing that depends on a geometry is reached here.
    let mut geometry = Geometry::new(512, 0);
    geometry.features = Features::NONE;
    let answered = matches!(cdb.first(), Some(0x03 | 0x12 | 0xa0));
    if !answered {
        return Err(none.into());
    }
    match decode(cdb, &geometry)? {
        Command::Control(ControlCommand::Inquiry { evpd: false, alloc, .. }) => {
            if lun == Lun::ZERO {
                lun0_inquiry(identity, out);
            } else {
                no_lu_inquiry(identity, out);
            }
            truncate(out, alloc.into());
            Ok(())
        }
        Command::Control(ControlCommand::Inquiry { evpd: true, page: 0, alloc }) => {
            let first = if lun == Lun::ZERO { 0x3f } else { 0x7f };
            out.extend_from_slice(&[first, 0, 0, 1, 0]);
            truncate(out, alloc.into());
            Ok(())
        }
        Command::Control(ControlCommand::Inquiry { .. }) => Err(Sense::cdb_byte(2).into()),
        Command::Control(ControlCommand::ReportLuns { select, alloc }) => {
            report_luns(luns, select, alloc, out);
            Ok(())
        }
        Command::Control(ControlCommand::RequestSense { descriptor, alloc }) => {
            let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
            out.sense(&none, format);
            truncate(out, alloc.into());
            Ok(())
        }
        _ => Err(none.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Sense = Sense::LU_NOT_SUPPORTED;

    fn identity() -> Identity {
        Identity::new("WEIR", "none", "0001", "x", [0; 16])
    }

    #[test]
    fn numbers_round_trip_in_both_address_methods() {
        assert_eq!(Lun::from_index(5).unwrap().to_bytes(), [0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Lun::from_index(0x123).unwrap().to_bytes(), [0x41, 0x23, 0, 0, 0, 0, 0, 0]);
        for i in 0..=LUN_INDEX_MAX {
            assert_eq!(Lun::from_index(i).unwrap().index(), Some(i));
        }
        assert_eq!(Lun::from_index(0x4000), None);
        // Flat addressing of a small number is the same unit; other methods and levels are not ours.
        assert_eq!(Lun::from_bytes([0x40, 5, 0, 0, 0, 0, 0, 0]).index(), Some(5));
        assert_eq!(Lun::from_bytes([0x01, 5, 0, 0, 0, 0, 0, 0]).index(), None);
        assert_eq!(Lun::from_bytes([0xc1, 1, 0, 0, 0, 0, 0, 0]).index(), None);
        assert_eq!(Lun::from_bytes([0, 5, 0, 0, 0, 0, 0, 1]).index(), None);
    }

    /// SPC-4 6.6.1: a host may ask any LUN which VPD pages there are; here there is none but the list.
    #[test]
    fn unknown_lun_lists_no_pages() {
        let mut out = Vec::new();
        let five = Lun::from_index(5).unwrap();
        for (lun, first) in [(Lun::ZERO, 0x3f), (five, 0x7f)] {
            for (alloc, len) in [(255, 5), (4, 4)] {
                let vpd = [0x12, 1, 0, 0, alloc, 0];
                execute_no_lu(&vpd, lun, GONE, &[], &identity(), &mut out).unwrap();
                assert_eq!(out, [first, 0, 0, 1, 0][..len]);
            }
            for page in [0x80, 0x83, 0xb0] {
                let e = execute_no_lu(
                    &[0x12, 1, page, 0, 255, 0],
                    lun,
                    GONE,
                    &[],
                    &identity(),
                    &mut out,
                );
                assert_eq!(e, Err(Sense::cdb_byte(2).into()));
            }
        }
    }

    #[test]
    fn unknown_lun_answers_three_commands_only() {
        let mut out = Vec::new();
        let five = Lun::from_index(5).unwrap();
        let inquiry = [0x12, 0, 0, 0, 36, 0];
        execute_no_lu(&inquiry, five, GONE, &[], &identity(), &mut out).unwrap();
        assert_eq!((out[0], out.len(), usize::from(out[4]) + 5), (0x7f, 36, 36));
        execute_no_lu(&inquiry, Lun::ZERO, GONE, &[], &identity(), &mut out).unwrap();
        assert_eq!(out[0], 0x3f);
        let report = [0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0];
        execute_no_lu(&report, Lun::ZERO, GONE, &[five], &identity(), &mut out).unwrap();
        assert_eq!(out, [0, 0, 0, 8, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0]);
        execute_no_lu(&[3, 0, 0, 0, 18, 0], five, GONE, &[], &identity(), &mut out).unwrap();
        assert_eq!((out[0], out[2], out[12]), (0x70, 5, 0x25));
        for cdb in [&[0u8; 6][..], &[0x28; 10], &[0x25; 10], &[0xff], &[]] {
            let e = execute_no_lu(cdb, five, GONE, &[], &identity(), &mut out);
            assert_eq!(e, Err(Sense::LU_NOT_SUPPORTED.into()), "{cdb:x?}");
            let e = execute_no_lu(cdb, five, Sense::BECOMING_READY, &[], &identity(), &mut out);
            assert_eq!(e, Err(Sense::BECOMING_READY.into()), "{cdb:x?}");
        }
    }
}
