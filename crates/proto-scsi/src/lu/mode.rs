//! Mode pages and MODE SENSE (SPC-4 7.5, SBC-3 6.5).

use super::LuState;
use crate::cdb::{ControlCommand, ModeForm, ModePages};
use crate::data::Data;
use crate::geometry::Features;
use crate::identity::Identity;
use crate::sense::Sense;

/// The values of the mode pages that MODE SELECT can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModeValues {
    /// Write cache enabled.
    pub(super) wce: bool,
    /// Sense data in descriptor format.
    pub(super) d_sense: bool,
    /// TASK ABORTED status.
    pub(super) tas: bool,
    /// Software write protect.
    pub(super) swp: bool,
    /// UA_INTLCK_CTRL 10b: reporting a unit attention does not clear it.
    pub(super) ua_interlock: bool,
}

impl ModeValues {
    /// After power on and reset.
    pub(super) fn default_of(identity: &Identity) -> ModeValues {
        ModeValues {
            wce: identity.write_cache,
            d_sense: false,
            tas: identity.task_aborted_status,
            swp: false,
            ua_interlock: false,
        }
    }

    fn all(set: bool) -> ModeValues {
        ModeValues { wce: set, d_sense: set, tas: set, swp: set, ua_interlock: set }
    }
}

/// Page and subpage codes, ascending as MODE SENSE returns them.
const DISK_PAGES: &[(u8, u8)] =
    &[(0x01, 0), (0x02, 0), (0x08, 0), (0x0a, 0), (0x0a, 1), (0x1a, 0), (0x1c, 0)];

/// The one page of reduced block commands.
const RBC_PAGES: &[(u8, u8)] = &[(0x06, 0)];

/// All pages, or all subpages.
const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// WP, and DPO and FUA are supported.
const WRITE_PROTECT: u8 = 0x80;
const DPOFUA: u8 = 0x10;

impl LuState {
    /// The pages that the unit has.
    pub(super) fn mode_pages(&self) -> &'static [(u8, u8)] {
        if self.is_rbc() { RBC_PAGES } else { DISK_PAGES }
    }

    pub(super) fn mode_sense(
        &self,
        command: &ControlCommand,
        out: &mut Vec<u8>,
    ) -> Result<(), Sense> {
        let ControlCommand::ModeSense { form, dbd, long_lba, pages, page, subpage, .. } = *command
        else {
            return Err(Sense::INTERNAL_TARGET_FAILURE);
        };
        if pages == ModePages::Saved {
            return Err(Sense::SAVING_NOT_SUPPORTED);
        }
        let device = DPOFUA | if self.write_protected() { WRITE_PROTECT } else { 0 };
        let no_descriptor = dbd || self.is_rbc();
        let long = long_lba && !no_descriptor;
        let descriptor_len = if no_descriptor { 0 } else { 8 << u8::from(long) };
        match form {
            ModeForm::Six => out.extend_from_slice(&[0, 0, device, descriptor_len]),
            ModeForm::Ten => {
                out.extend_from_slice(&[0, 0, 0, device, u8::from(long), 0, 0, descriptor_len]);
            }
        }
        if !no_descriptor {
            self.block_descriptor(long, out);
        }
        let mut found = false;
        for &(p, s) in self.mode_pages() {
            let wanted = match (page, subpage) {
                (ALL_PAGES, 0) => s == 0,
                (ALL_PAGES, ALL_SUBPAGES) => true,
                (ALL_PAGES, _) => false,
                (_, ALL_SUBPAGES) => p == page,
                _ => (p, s) == (page, subpage),
            };
            if wanted {
                self.mode_page(p, s, pages, out);
                found = true;
            }
        }
        if !found {
            let page_known = page == ALL_PAGES || self.mode_pages().iter().any(|p| p.0 == page);
            return Err(if page_known { Sense::cdb_byte(3) } else { Sense::cdb_bit(2, 5) });
        }
        match form {
            ModeForm::Six => out[0] = (out.len() - 1).min(255) as u8,
            ModeForm::Ten => out.set_len16(0),
        }
        Ok(())
    }

    fn block_descriptor(&self, long: bool, out: &mut Vec<u8>) {
        if long {
            out.be64(self.geometry.blocks);
            out.be32(0);
        } else {
            out.be32(u32::try_from(self.geometry.blocks).unwrap_or(u32::MAX));
        }
        out.be32(self.geometry.block_size);
    }

    /// Appends one page. The changeable mask is what differs between all values on and all off,
    /// so it cannot disagree with the page itself.
    pub(super) fn mode_page(&self, page: u8, subpage: u8, pages: ModePages, out: &mut Vec<u8>) {
        match pages {
            ModePages::Current => self.render(page, subpage, &self.modes, out),
            ModePages::Default | ModePages::Saved => {
                let values = ModeValues::default_of(&self.identity);
                self.render(page, subpage, &values, out);
            }
            ModePages::Changeable => {
                let start = out.len();
                let mut off = Vec::new();
                self.render(page, subpage, &ModeValues::all(true), out);
                self.render(page, subpage, &ModeValues::all(false), &mut off);
                let header = if subpage == 0 { 2 } else { 4 };
                for (b, off) in out[start..].iter_mut().zip(off).skip(header) {
                    *b ^= off;
                }
            }
        }
    }

    fn render(&self, page: u8, subpage: u8, v: &ModeValues, out: &mut Vec<u8>) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        match (page, subpage) {
            // Read-write error recovery: AWRE, ARRE.
            (0x01, 0) => {
                out.extend_from_slice(&[0x01, 0x0a, 0xc0]);
                out.zeros(9);
            }
            // Disconnect-reconnect: nothing to limit.
            (0x02, 0) => {
                out.extend_from_slice(&[0x02, 0x0e]);
                out.zeros(14);
            }
            // RBC device parameters: WCD is the inverse of WCE.
            (0x06, 0) => {
                let g = &self.geometry;
                out.extend_from_slice(&[0x06, 0x0b, bit(!v.wce, 0x01)]);
                out.be16(g.block_size as u16);
                out.extend_from_slice(&g.blocks.to_be_bytes()[3..]);
                let no_format = !g.features.contains(Features::FORMAT);
                // 10: no power or performance choice. 11: LOCKD (not removable), FORMATD, WRITED.
                let disabled = 0x01 | bit(no_format, 0x02) | bit(self.identity.read_only, 0x04);
                out.extend_from_slice(&[0, disabled, 0]);
            }
            // Caching: WCE; DRA, there is no read-ahead.
            (0x08, 0) => {
                out.extend_from_slice(&[0x08, 0x12, bit(v.wce, 0x04)]);
                out.zeros(9);
                out.push(0x20);
                out.zeros(7);
            }
            // Control: TST 0 (one task set), unrestricted reordering.
            (0x0a, 0) => out.extend_from_slice(&[
                0x0a,
                0x0a,
                bit(v.d_sense, 0x04),
                0x10,
                bit(v.ua_interlock, 0x20) | bit(v.swp, 0x08),
                bit(v.tas, 0x40),
                0,
                0,
                0,
                0,
                0,
                0,
            ]),
            // Control extension: implicit ALUA enabled.
            (0x0a, 1) => {
                out.extend_from_slice(&[0x4a, 0x01, 0x00, 0x1c, 0x01]);
                out.zeros(27);
            }
            // Power condition: there is only the active one.
            (0x1a, 0) => {
                out.extend_from_slice(&[0x1a, 0x26]);
                out.zeros(38);
            }
            // Informational exceptions: DEXCPT, MRIE 0.
            (0x1c, 0) => {
                out.extend_from_slice(&[0x1c, 0x0a, 0x08]);
                out.zeros(9);
            }
            _ => {}
        }
    }

    /// Takes the changeable values out of a page that MODE SELECT has checked.
    pub(super) fn absorb(page: u8, subpage: u8, bytes: &[u8], v: &mut ModeValues) {
        let on = |at: usize, bit: u8| bytes.get(at).is_some_and(|b| b & bit != 0);
        match (page, subpage) {
            (0x06, 0) => v.wce = !on(2, 0x01),
            (0x08, 0) => v.wce = on(2, 0x04),
            (0x0a, 0) => {
                v.d_sense = on(2, 0x04);
                v.ua_interlock = on(4, 0x20);
                v.swp = on(4, 0x08);
                v.tas = on(5, 0x40);
            }
            _ => {}
        }
    }
}
