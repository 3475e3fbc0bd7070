//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
//! (SPC-4 6.35, 6.36).

use super::LuState;
use crate::cdb::table::{self, Entry};
use crate::data::Data;
use crate::sense::Sense;

/// Reporting options.
const ALL: u8 = 0;
const OPCODE: u8 = 1;
const OPCODE_AND_ACTION: u8 = 2;

/// SUPPORT field.
const NOT_SUPPORTED: u8 = 1;
const STANDARD: u8 = 3;

fn timeouts_descriptor(out: &mut Vec<u8>) {
    // Length 10; no nominal and no recommended timeout is specified.
    out.be16(0x0a);
    out.zeros(10);
}

impl LuState {
    pub(super) fn report_opcodes(
        &self,
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
        out: &mut Vec<u8>,
    ) -> Result<(), Sense> {
        let offered = |e: &&Entry| e.offered(self.geometry.features);
        if options == ALL {
            out.be32(0);
            for e in table::TABLE.iter().filter(offered) {
                out.extend_from_slice(&[e.opcode, 0]);
                out.be16(e.action.unwrap_or(0).into());
                // CTDP, SERVACTV.
                let flags = u8::from(timeouts) << 1 | u8::from(e.action.is_some());
                out.extend_from_slice(&[0, flags]);
                out.be16(e.len.into());
                if timeouts {
                    timeouts_descriptor(out);
                }
            }
            out.set_len32(0);
            return Ok(());
        }
        let mut entries = table::entries(opcode).iter().filter(offered).peekable();
        let has_actions = entries.peek().map(|e| e.action.is_some());
        match (options, has_actions) {
            // The option must fit the kind of operation code.
            (OPCODE, Some(true)) | (OPCODE_AND_ACTION, Some(false)) => {
                return Err(Sense::cdb_bit(2, 2));
            }
            _ => {}
        }
        let found = entries.find(|e| match e.action {
            Some(a) => u16::from(a) == action,
            // Option 3: an operation code without service actions counts with action 0.
            None => options == OPCODE || action == 0,
        });
        let Some(e) = found else {
            out.extend_from_slice(&[0, NOT_SUPPORTED, 0, 0]);
            return Ok(());
        };
        out.extend_from_slice(&[0, u8::from(timeouts) << 7 | STANDARD]);
        out.be16(e.len.into());
        out.extend_from_slice(&e.usage[..usize::from(e.len)]);
        if timeouts {
            timeouts_descriptor(out);
        }
        Ok(())
    }

    pub(super) fn report_tmf(&self, extended: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.identity.task_management, 0, 0, 0]);
        if extended {
            // Additional length; no timeouts are specified (TMFTMOV 0).
            out[3] = 0x0c;
            out.zeros(12);
        }
    }
}
