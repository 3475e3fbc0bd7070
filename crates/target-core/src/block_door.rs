//! What front ends without SCSI need of a logical unit: admission, and writes that keep out of the way of
//! COMPARE AND WRITE.

use crate::gate::Writing;
use crate::planted::Bug;
use crate::unit::{Attached, Unit};
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_proto_scsi::cdb::Command;
use weir_proto_scsi::lu::{Nexus, UA_QUEUE_MAX};
use weir_proto_scsi::sense::SenseKey;
use weir_proto_scsi::status::{ScsiError, Status};

/// Why an I/O may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A reservation of another nexus.
    Reserved,
    /// The unit may not be written.
    ReadOnly,
    /// This path does not serve the unit now, or the unit is not ready.
    NotReady,
    /// The unit does not know the nexus.
    Unknown,
}

fn refusal(e: &ScsiError) -> Refusal {
    match (e.status, e.sense.map(|s| s.key)) {
        (Status::ReservationConflict, _) => Refusal::Reserved,
        (_, Some(SenseKey::DataProtect)) => Refusal::ReadOnly,
        (_, Some(SenseKey::NotReady)) => Refusal::NotReady,
        _ => Refusal::Unknown,
    }
}

impl Attached {
    /// Whether the nexus may read, or write. Gives true when writes must be durable before they are answered.
    ///
    /// Unit attentions are news for SCSI hosts; here they are taken note of and passed over.
    ///
    /// # Errors
    /// It may not.
    #[inline]
    pub fn admit_block(&self, nexus: Nexus, writes: bool) -> Result<bool, Refusal> {
        self.geometry(nexus);
        let fast = self.fast();
        if if writes { fast.writes } else { fast.reads } {
            return Ok(fast.write_through);
        }
        self.ask(nexus, writes)
    }

    #[cold]
    fn ask(&self, nexus: Nexus, writes: bool) -> Result<bool, Refusal> {
        let command = match writes {
            true => Command::Write { lba: 0, blocks: 0, fua: false, dpo: false },
            false => Command::Read { lba: 0, blocks: 0, fua: false, dpo: false },
        };
        // Each attention is told once; there is a most of them.
        for _ in 0..=UA_QUEUE_MAX {
            match self.admit(nexus, &command) {
                Ok(()) => return Ok(self.fast().write_through),
                Err(e) if e.sense.is_some_and(|s| s.key == SenseKey::UnitAttention) => {}
                Err(e) => return Err(refusal(&e)),
            }
        }
        Err(Refusal::NotReady)
    }
}

/// Held while a write is between its start and its end: no COMPARE AND WRITE of its range runs meanwhile.
#[must_use]
pub struct WriteGuard<'a>(#[allow(dead_code)] Writing<'a>); // Only its end matters.

impl Unit {
    /// Waits while a COMPARE AND WRITE of the range is between its read and its write.
    pub async fn begin_write(&self, at: u64, len: u64) -> WriteGuard<'_> {
        WriteGuard(self.pass_gate(at, len, Bug::BlockWriteNotCounted).await)
    }

    /// True when a write of the range that ends at once need not wait for anything.
    #[inline]
    pub fn may_write_now(&self, at: u64, len: u64) -> bool {
        !self.is_compared(at, len)
    }

    /// Writes `data` at `at` if `expected` is there; atomic against all other writes to the range.
    /// Both slices are of this command alone.
    ///
    /// # Errors
    /// [`IoError::Miscompare`] when something else is there, or what the volume says.
    pub async fn compare_and_write(
        &self,
        at: u64,
        expected: &Slice,
        data: Slice,
        fua: bool,
    ) -> IoResult {
        let _alone = self.compare_gate(at, expected.len() as u64).await;
        // Memory of its own: whoever holds a buffer of the pool must not wait for another.
        let found = Slice::heap(expected.len());
        self.volume.read(at, found.clone()).await?;
        let (found, expected) = (found.to_vec(), expected.to_vec());
        if let Some(n) = found.iter().zip(&expected).position(|(a, b)| a != b) {
            return Err(IoError::Miscompare(n as u64));
        }
        self.volume.write(at, data, fua).await
    }

    /// Data buffers of this reactor.
    pub fn pool(&self) -> &weir_mem::BufPool {
        &self.pool
    }
}
