//! A logical unit behind an SRP channel.

use crate::client::{BlockClient, ClientError, Geometry};
use std::rc::Rc;
use weir_base::MILLIS;
use weir_initiator_srp::{Channel, Outcome};
use weir_mem::Slice;
use weir_proto_scsi::initiator::{self as scsi, Cdb};
use weir_proto_scsi::{Sense, SenseKey, Status};
use weir_proto_srp::residual::Residual;
use weir_reactor::sleep;

/// Unit attentions in a row that are taken as news; a new nexus begins with one or two.
const ATTENTIONS: u32 = 8;
/// How often a target may say that it is busy, one millisecond apart.
const BUSY: u32 = 5000;

/// A logical unit.
pub struct SrpDisk {
    channel: Rc<Channel>,
    lun: u64,
    geometry: Geometry,
    shift: u32,
}

impl SrpDisk {
    /// The unit `lun` (as on the wire); asks for its size.
    ///
    /// # Errors
    /// It is no disk, or cannot be read.
    pub async fn open(channel: Rc<Channel>, lun: u64) -> Result<SrpDisk, ClientError> {
        let buf = Slice::heap(512);
        let cdb = scsi::read_capacity_16(32);
        command(&channel, lun, &cdb, None, Some(buf.sub(0, 32)), 0).await?;
        let c = scsi::parse_capacity_16(&buf.to_vec()).map_err(|_| ClientError::Short(32))?;
        if !c.block_size.is_power_of_two() || c.block_size < 512 {
            return Err(ClientError::Io(weir_base::IoError::Unsupported));
        }
        let len = c.last_lba.saturating_add(1).saturating_mul(u64::from(c.block_size));
        let shift = c.block_size.trailing_zeros();
        let geometry = Geometry { len, block_size: c.block_size };
        Ok(SrpDisk { channel, lun, geometry, shift })
    }

    #[inline]
    fn extent(&self, at: u64, len: usize) -> (u64, u32) {
        (at >> self.shift, (len >> self.shift) as u32)
    }
}

/// What an outcome means: done, do it again, or failed.
enum Verdict {
    Good,
    Attention,
    Busy,
    Failed(ClientError),
}

#[inline]
fn judge(o: &Outcome, wanted: u64) -> Verdict {
    if o.is_good() {
        let missing = match (o.in_residual, o.out_residual) {
            (Residual::None, Residual::None) => return Verdict::Good,
            (Residual::Under(n), _) | (_, Residual::Under(n)) => u64::from(n),
            _ => 0,
        };
        // An answer shorter than its buffer is all there was, unless all of it was wanted.
        return if wanted > 0 && missing > 0 {
            Verdict::Failed(ClientError::Short(missing))
        } else {
            Verdict::Good
        };
    }
    let sense = Sense::parse(o.sense());
    match Status::from_code(o.status) {
        Some(Status::Busy | Status::TaskSetFull) => Verdict::Busy,
        _ if sense.is_some_and(|s| s.key == SenseKey::UnitAttention) => Verdict::Attention,
        _ => Verdict::Failed(ClientError::Scsi { status: o.status, sense }),
    }
}

/// Runs a command until it has an outcome that is about the command itself. `wanted` bytes must have been
/// moved; 0: any number will do.
pub(super) async fn command(
    channel: &Channel,
    lun: u64,
    cdb: &Cdb,
    data_out: Option<Slice>,
    data_in: Option<Slice>,
    wanted: usize,
) -> Result<(), ClientError> {
    let (mut attentions, mut busy) = (0, 0);
    loop {
        let o = channel
            .command(lun, &cdb.padded(), data_out.clone(), data_in.clone())
            .await
            .map_err(|_| ClientError::Lost)?;
        match judge(&o, wanted as u64) {
            Verdict::Good => return Ok(()),
            Verdict::Attention if attentions < ATTENTIONS => attentions += 1,
            Verdict::Busy if busy < BUSY => {
                busy += 1;
                sleep(MILLIS).await;
            }
            Verdict::Failed(e) => return Err(e),
            _ => {
                let sense = Sense::parse(o.sense());
                return Err(ClientError::Scsi { status: o.status, sense });
            }
        }
    }
}

impl BlockClient for SrpDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let (lba, blocks) = self.extent(at, buf.len());
        let n = buf.len();
        command(&self.channel, self.lun, &scsi::read(lba, blocks, false), None, Some(buf), n).await
    }

    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let (lba, blocks) = self.extent(at, buf.len());
        let n = buf.len();
        command(&self.channel, self.lun, &scsi::write(lba, blocks, false), Some(buf), None, n).await
    }

    async fn flush(&self) -> Result<(), ClientError> {
        command(&self.channel, self.lun, &scsi::sync_cache(0, 0), None, None, 0).await
    }

    async fn trim(&self, at: u64, len: u64, scratch: Slice) -> Result<(), ClientError> {
        // One descriptor, as in weir_proto_scsi::initiator::unmap_list, without its allocation.
        let mut list = [0u8; 24];
        list[..2].copy_from_slice(&22u16.to_be_bytes());
        list[2..4].copy_from_slice(&16u16.to_be_bytes());
        list[8..16].copy_from_slice(&(at >> self.shift).to_be_bytes());
        list[16..20].copy_from_slice(&((len >> self.shift) as u32).to_be_bytes());
        scratch.write_at(0, &list);
        let list = scratch.sub(0, list.len());
        command(&self.channel, self.lun, &scsi::unmap(24), Some(list), None, 24).await
    }

    async fn nop(&self) -> Result<(), ClientError> {
        command(&self.channel, self.lun, &scsi::test_unit_ready(), None, None, 0).await
    }
}
