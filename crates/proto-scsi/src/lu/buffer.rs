//! READ BUFFER and WRITE BUFFER: the echo buffer (SPC-4 6.18, 6.49).

use super::Nexus;
use crate::data::Data;
use crate::sense::Sense;

/// Size of the echo buffer in bytes.
pub(super) const ECHO_LEN: usize = 4096;

/// One buffer for all nexuses, with a note of who wrote it (EBOS 1).
#[derive(Debug, Default)]
pub(super) struct EchoBuffer {
    bytes: Vec<u8>,
    writer: Option<Nexus>,
    /// Nexuses whose content was overwritten by another and who have not noticed yet.
    overwritten: Vec<Nexus>,
}

impl EchoBuffer {
    /// WRITE BUFFER mode 0Ah.
    pub(super) fn write(&mut self, nexus: Nexus, len: u32, data: &[u8]) -> Result<(), Sense> {
        let len = len as usize;
        if len > ECHO_LEN {
            return Err(Sense::cdb_byte(6));
        }
        let data = data.get(..len).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if len == 0 {
            return Ok(());
        }
        if let Some(before) = self.writer.filter(|w| *w != nexus) {
            self.overwritten.push(before);
        }
        self.overwritten.retain(|n| *n != nexus);
        self.bytes.clear();
        self.bytes.extend_from_slice(data);
        self.writer = Some(nexus);
        Ok(())
    }

    /// READ BUFFER modes 03h, 0Ah and 0Bh.
    pub(super) fn read(&self, nexus: Nexus, mode: u8, out: &mut Vec<u8>) -> Result<(), Sense> {
        match mode {
            // Buffer 0 has no data mode: capacity 0.
            0x03 => out.zeros(4),
            // EBOS, then the capacity.
            0x0b => {
                out.extend_from_slice(&[1, 0]);
                out.be16(ECHO_LEN as u16);
            }
            _ if self.writer == Some(nexus) => out.extend_from_slice(&self.bytes),
            _ if self.overwritten.contains(&nexus) => return Err(Sense::ECHO_BUFFER_OVERWRITTEN),
            _ => return Err(Sense::COMMAND_SEQUENCE_ERROR),
        }
        Ok(())
    }

    pub(super) fn nexus_lost(&mut self, nexus: Nexus) {
        self.overwritten.retain(|n| *n != nexus);
        if self.writer == Some(nexus) {
            self.bytes.clear();
            self.writer = None;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = EchoBuffer::default();
    }
}
