//! Commands that have nothing to wait for: TEST UNIT READY, and READ and WRITE of a volume that is memory.
//!
//! They do what `Pass::execute` would do, without its awaits; whatever is less plain is left to that.

use crate::attachment::Attachment;
use crate::unit::Attached;
use weir_mem::Slice;
use weir_proto_scsi::cdb::{Command, decode};

/// A command that has ended with GOOD. Its buffers are exactly as long as what it moves: no residual.
#[derive(Debug)]
pub enum AtOnce {
    /// All is done.
    Done,
    /// This is to be delivered to the start of the DATA-IN buffer, before the status.
    Deliver(Slice),
}

impl Attached {
    /// Runs a command on the spot, if it can end with GOOD now and moves exactly `in_len` bytes to the
    /// initiator or the bytes of `data` from it. `None`: nothing was done, and
    /// `Pass::execute` finds out why.
    #[inline]
    pub fn execute_at_once(
        &self,
        view: &Attachment,
        cdb: &[u8],
        in_len: u32,
        data: Option<&[u8]>,
    ) -> Option<AtOnce> {
        let geometry = self.geometry(view.nexus());
        let fast = self.fast();
        let block = u64::from(geometry.block_size);
        match decode(cdb, &geometry).ok()? {
            Command::Read { lba, blocks, .. } if fast.reads && data.is_none() => {
                let len = u64::from(blocks) * block;
                if len == 0 || len != u64::from(in_len) {
                    return None;
                }
                let slice = self.unit.volume.direct(lba * block, len as usize)?;
                Some(AtOnce::Deliver(slice))
            }
            Command::Write { lba, blocks, .. } if fast.writes && in_len == 0 => {
                let len = u64::from(blocks) * block;
                let data = data.filter(|d| !d.is_empty() && d.len() as u64 == len)?;
                let at = lba * block;
                // A COMPARE AND WRITE that begins later waits for this write by its message, which is
                // looked at when this is over.
                if self.unit.is_compared(at, len) {
                    return None;
                }
                self.unit.volume.write_now(at, data, &[]).then_some(AtOnce::Done)
            }
            Command::TestUnitReady if fast.reads && in_len == 0 && data.is_none() => {
                Some(AtOnce::Done)
            }
            _ => None,
        }
    }
}
