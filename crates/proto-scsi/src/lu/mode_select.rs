//! MODE SELECT (SPC-4 6.13, 6.14).

use super::control::Effects;
use super::{LuState, Nexus, UaScope};
use crate::cdb::{ModeForm, ModePages};
use crate::sense::Sense;

impl LuState {
    /// Checks the whole parameter list, then applies it; nothing changes on error.
    pub(super) fn mode_select(
        &mut self,
        nexus: Nexus,
        form: ModeForm,
        list: &[u8],
        effects: &mut Effects,
    ) -> Result<(), Sense> {
        if list.is_empty() {
            return Ok(());
        }
        let mut at = self.check_header(form, list)?;
        let mut values = self.modes;
        while at < list.len() {
            let (page, subpage, header) = page_header(&list[at..])?;
            if !self.mode_pages().contains(&(page, subpage)) {
                return Err(pointed(at));
            }
            let mut current = Vec::new();
            let mut mask = Vec::new();
            self.mode_page(page, subpage, ModePages::Current, &mut current);
            self.mode_page(page, subpage, ModePages::Changeable, &mut mask);
            let body = list[at..].get(..current.len()).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
            // The length field, and every bit that cannot be changed, must be as MODE SENSE said.
            mask[1..header].fill(0);
            for i in 1..current.len() {
                if (body[i] ^ current[i]) & !mask[i] != 0 {
                    return Err(pointed(at + i));
                }
            }
            LuState::absorb(page, subpage, body, &mut values);
            at += current.len();
        }
        if values != self.modes {
            effects.flush = self.modes.wce && !values.wce;
            self.modes = values;
            self.raise_ua(UaScope::AllExcept(nexus), Sense::MODE_PARAMETERS_CHANGED);
            effects.ua_raised = true;
        }
        Ok(())
    }

    /// Checks mode parameter header and block descriptor; returns where the pages begin. Mode data
    /// length, medium type and the device-specific byte are reserved in MODE SELECT and ignored.
    fn check_header(&self, form: ModeForm, list: &[u8]) -> Result<usize, Sense> {
        let (len, long, descriptor) = match (form, list) {
            (ModeForm::Six, [_, _, _, n, ..]) => (4, false, usize::from(*n)),
            (ModeForm::Ten, [_, _, _, _, flags, _, hi, lo, ..]) => {
                (8, flags & 1 != 0, usize::from(u16::from_be_bytes([*hi, *lo])))
            }
            _ => return Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
        };
        let want = 8 << u8::from(long);
        if descriptor != 0 && (descriptor != want || self.is_rbc()) {
            return Err(Sense::list_byte(len as u16 - 1));
        }
        let d = list[len..].get(..descriptor).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let number = |b: &[u8]| b.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        if descriptor != 0 {
            let blocks = number(&d[..want / 2]);
            let (all, block_size) = if long {
                (u64::MAX, number(&d[12..16]))
            } else {
                (u64::from(u32::MAX), number(&d[5..8]))
            };
            // 0 leaves the number of blocks alone; all ones asks for the maximum, which it is.
            let same = blocks == 0 || blocks == all || blocks == self.geometry.blocks;
            if !same {
                return Err(pointed(len));
            }
            if block_size != u64::from(self.geometry.block_size) {
                return Err(pointed(len + if long { 12 } else { 5 }));
            }
        }
        Ok(len + descriptor)
    }
}

/// Page code, subpage code and header length. PS is reserved in MODE SELECT and ignored.
fn page_header(b: &[u8]) -> Result<(u8, u8, usize), Sense> {
    match *b {
        [first, ..] if first & 0x40 == 0 => Ok((first & 0x3f, 0, 2)),
        [first, subpage, ..] => Ok((first & 0x3f, subpage, 4)),
        _ => Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
    }
}

fn pointed(at: usize) -> Sense {
    Sense::list_byte(at.min(0xffff) as u16)
}
