//! What front ends without SCSI need of a logical unit: admission, and writes that keep out of the way of
//! COMPARE AND WRITE.

use crate::fence::End;
use crate::gate::{Comparing, Writing};
use crate::pass::{Inside, Pass};
use crate::planted::Bug;
use crate::unit::{Attached, Unit};
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_proto_scsi::cdb::Command;
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::sense::SenseKey;
use weir_proto_scsi::status::{ScsiError, Status};

/// Why an I/O may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A reservation of another nexus.
    Reserved,
    /// The unit may not be written.
    ReadOnly,
    /// The unit is not the nexus's any more.
    Gone,
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
        if self.rounds.is_gone() {
            return Err(Refusal::Gone);
        }
        let command = match writes {
            true => Command::Write { lba: 0, blocks: 0, fua: false, dpo: false },
            false => Command::Read { lba: 0, blocks: 0, fua: false, dpo: false },
        };
        let admitted = self.unit.shared.with(|s| s.admit_unattended(nexus, &command));
        self.geometry(nexus);
        admitted.map(|()| self.fast().write_through).map_err(|e| refusal(&e))
    }

    /// Bytes of the unit: what the nexus may address.
    #[inline]
    pub fn len(&self, nexus: Nexus) -> u64 {
        let g = self.geometry(nexus);
        g.blocks * u64::from(g.block_size)
    }
}

/// Held while a write is between its start and its end: no COMPARE AND WRITE of its range runs meanwhile.
#[must_use]
#[allow(dead_code)] // Only their ends matter.
pub struct WriteGuard<'a>(pub(crate) Writing<'a>, pub(crate) Inside<'a>);

/// Held by a COMPARE AND WRITE between its start and its end: nothing else writes to its range.
#[must_use]
#[allow(dead_code)] // Only its end matters.
pub struct CompareGuard<'a>(Comparing<'a>);

impl Unit {
    /// True when a write of the range that ends at once need not wait for anything.
    #[inline]
    pub fn may_write_now(&self, at: u64, len: u64) -> bool {
        !self.is_compared(at, len)
    }

    /// Data buffers of this reactor.
    pub fn pool(&self) -> &weir_mem::BufPool {
        &self.pool
    }
}

impl Pass {
    /// Waits while a COMPARE AND WRITE of the range is between its read and its write, then lets a write begin.
    ///
    /// # Errors
    /// The command was fenced meanwhile.
    pub async fn begin_write(&self, at: u64, len: u64) -> Result<WriteGuard<'_>, End> {
        if self.is_held_up() {
            Box::pin(self.wait_for_former()).await?;
        }
        let gate = self.unit.pass_gate(at, len, Bug::BlockWriteNotCounted);
        let writing = match self.unit.is_compared(at, len) {
            true => Box::pin(self.unless_void(gate)).await?,
            false => gate.await,
        };
        Ok(WriteGuard(writing, self.enter_to_write()?))
    }

    /// Lets a flush begin, once what its host has left with the device is over.
    ///
    /// # Errors
    /// The command was fenced meanwhile.
    pub async fn begin_flush(&self) -> Result<Inside<'_>, End> {
        if self.is_held_up() {
            Box::pin(self.wait_for_former()).await?;
        }
        self.enter_to_flush()
    }

    /// Waits until nothing else writes to the range, then lets a COMPARE AND WRITE of it begin.
    ///
    /// # Errors
    /// The command was fenced meanwhile.
    pub async fn begin_compare(&self, at: u64, len: u64) -> Result<CompareGuard<'_>, End> {
        if self.is_held_up() {
            Box::pin(self.wait_for_former()).await?;
        }
        let alone = self.unless_void(self.unit.compare_gate(at, len)).await?;
        Ok(CompareGuard(alone))
    }

    /// Looks whether `expected`, which is of this command alone, is at `at`. It stays so as long as `_alone` is held.
    ///
    /// # Errors
    /// [`IoError::Miscompare`] when something else is there, or what the volume says.
    pub async fn compare(&self, _alone: &CompareGuard<'_>, at: u64, expected: &Slice) -> IoResult {
        // Memory of its own: whoever holds a buffer of the pool must not wait for another.
        let found = Slice::heap(expected.len());
        self.unit.volume.read(at, found.clone()).await?;
        let (found, expected) = (found.to_vec(), expected.to_vec());
        match found.iter().zip(&expected).position(|(a, b)| a != b) {
            Some(n) => Err(IoError::Miscompare(n as u64)),
            None => Ok(()),
        }
    }
}
