//! LOG SENSE (SPC-4 6.7, SBC-3 6.4).

use super::LuState;
use super::control::ControlContext;
use crate::data::Data;
use crate::geometry::Features;
use crate::sense::Sense;

/// Logical block provisioning.
const PROVISIONING: u8 = 0x0c;
/// Temperature.
const TEMPERATURE: u8 = 0x0d;
/// Informational exceptions.
const EXCEPTIONS: u8 = 0x2f;
/// No temperature is known.
const NO_TEMPERATURE: u8 = 0xff;

impl LuState {
    /// Appends a log page.
    pub(super) fn log_sense(
        &self,
        page: u8,
        subpage: u8,
        ctx: &ControlContext<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Sense> {
        let space = ctx.space.filter(|_| self.geometry.features.contains(Features::UNMAP));
        let pages = [Some(0), space.map(|_| PROVISIONING), Some(TEMPERATURE), Some(EXCEPTIONS)];
        let pages = || pages.into_iter().flatten();
        // Page 00h has the one subpage FFh; all others have none.
        if !(subpage == 0 || (page == 0 && subpage == 0xff)) {
            return Err(Sense::cdb_byte(3));
        }
        let spf = if subpage == 0 { 0 } else { 0x40 };
        out.extend_from_slice(&[spf | page, subpage, 0, 0]);
        match (page, space) {
            (0, _) => {
                for p in pages() {
                    out.push(p);
                    if subpage != 0 {
                        out.push(0);
                    }
                }
                if subpage != 0 {
                    out.extend_from_slice(&[0, 0xff]);
                }
            }
            (PROVISIONING, Some(space)) => {
                let unit = self.threshold_bytes();
                resource_count(1, space.available / unit, out);
                resource_count(2, space.used.div_ceil(unit), out);
            }
            (TEMPERATURE, _) => {
                // Temperature, then reference temperature.
                out.extend_from_slice(&[0, 0, 0x03, 2, 0, NO_TEMPERATURE]);
                out.extend_from_slice(&[0, 1, 0x03, 2, 0, NO_TEMPERATURE]);
            }
            (EXCEPTIONS, _) => {
                // No exception: code and qualifier 0, then the temperature.
                out.extend_from_slice(&[0, 0, 0x03, 4, 0, 0, NO_TEMPERATURE, 0]);
            }
            _ => return Err(Sense::cdb_bit(2, 5)),
        }
        out.set_len16(2);
        Ok(())
    }

    /// Bytes per threshold set: 2^exponent logical blocks.
    fn threshold_bytes(&self) -> u64 {
        let shift = u32::from(self.identity.threshold_exponent);
        let blocks = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        u64::from(self.geometry.block_size).saturating_mul(blocks).max(1)
    }
}

/// Available (1) or used (2) mapping resources, in threshold sets, of this unit alone.
fn resource_count(parameter: u16, count: u64, out: &mut Vec<u8>) {
    out.be16(parameter);
    out.extend_from_slice(&[0x03, 8]);
    out.be32(u32::try_from(count).unwrap_or(u32::MAX));
    out.extend_from_slice(&[0x01, 0, 0, 0]);
}
