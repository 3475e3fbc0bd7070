//! The commands of the medium that are not READ or WRITE.

use crate::block_door::WriteGuard;
use crate::execute::{Failure, Outcome, fetch, io};
use crate::pass::Pass;
use crate::transfer::{Stop, Transfer};
use weir_base::{IoError, Nanos, SECONDS};
use weir_block::Allocation;
use weir_mem::{Lent, Slice};
use weir_proto_scsi::cdb::{ByteCheck, Command};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::lba_status::{self, LbaStatus, Provisioning};
use weir_proto_scsi::sense::Sense;
use weir_proto_scsi::status::{Direction, ScsiError};
use weir_proto_scsi::unmap;
use weir_reactor::{now, run_async};

/// Descriptors of one answer to GET LBA STATUS, at most.
const DESCRIPTORS: usize = 256;
/// How often a volume is asked for more of a stretch that it tells of in steps, in all.
const STEPS: usize = 16;
/// How long it is asked for further ones: those who wait for what is under way wait for this too.
const LONG: Nanos = SECONDS;

impl Pass {
    pub(crate) async fn medium<T: Transfer>(
        &self,
        c: &Command,
        g: Geometry,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        let bs = u64::from(g.block_size);
        out.command_out = c.data_out_len(&g);
        let volume = &self.unit.volume;
        let durable = self.fast().write_through;
        match *c {
            Command::WriteVerify { lba, blocks, bytchk } => {
                // As WRITE: only whole blocks that the initiator has data for; the residual tells.
                let len = (u64::from(blocks) * bs).min(t.out_len()) / bs * bs;
                let mut done = 0;
                while done < len {
                    let n = (len - done).min(self.half());
                    let both = self.two(n, t).await?;
                    let (data, back) = halves(&both);
                    fetch(t, done, &data).await?;
                    out.moved_out += n as u32;
                    let (at, lba) = (lba * bs + done, lba + done / bs);
                    let WriteGuard(_gate, writing) = self.write_gate(at, n, t).await?;
                    io(volume.write(at, data.clone(), true).await, Direction::Write, lba)?;
                    // Nobody is to wait for what it reads.
                    drop(writing);
                    let _inside = self.begin(t)?;
                    io(volume.read(at, back.clone()).await, Direction::Read, lba)?;
                    if bytchk != ByteCheck::None {
                        compare(&back, &data, done)?;
                    }
                    done += n;
                }
                Ok(())
            }
            Command::Verify { lba, blocks, bytchk } => {
                self.verify(lba, u64::from(blocks), bs, bytchk, t, out).await
            }
            Command::SyncCache { lba, .. } => {
                let _inside = self.begin_to_flush(t)?;
                io(self.flush().await, Direction::Write, lba)
            }
            // There is no cache to fetch into.
            Command::PreFetch { .. } => Ok(()),
            Command::Unmap { param_len, .. } => {
                let n = u64::from(param_len).min(t.out_len()) as usize;
                if n < usize::from(param_len) {
                    return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
                }
                let mut list = vec![0; n];
                if n > 0 {
                    let buf = t.buffer(n).await?;
                    fetch(t, 0, &buf).await?;
                    buf.read_at(0, &mut list);
                    out.moved_out = n as u32;
                }
                for (lba, blocks) in unmap::parse(&list, &g)? {
                    let _writing = self.write_gate(lba * bs, u64::from(blocks) * bs, t).await?;
                    let r = volume.discard(lba * bs, u64::from(blocks) * bs).await;
                    io(r, Direction::Write, lba)?;
                }
                Ok(())
            }
            Command::WriteSame { lba, blocks, unmap, ndob, .. } => {
                self.write_same(lba, blocks, bs, unmap, ndob, durable, t, out).await
            }
            Command::CompareAndWrite { lba, blocks, fua } => {
                self.compare_blocks(lba, u64::from(blocks) * bs, bs, fua || durable, t, out).await
            }
            Command::GetLbaStatus { lba, alloc } => {
                let inside = self.begin(t)?;
                let answer = self.lba_status(lba, alloc, g, t).await;
                drop(inside);
                out.command_in = answer.len() as u64;
                let n = answer.len().min(t.in_len() as usize).min(self.unit.chunk);
                if n > 0 {
                    let buf = t.buffer(n).await?;
                    buf.write_at(0, &answer[..n]);
                    t.deliver(0, buf.clone()).await?;
                    out.moved_in = n as u32;
                }
                Ok(())
            }
            Command::Read { .. }
            | Command::Write { .. }
            | Command::TestUnitReady
            | Command::Control(_) => Err(Sense::INTERNAL_TARGET_FAILURE.into()), // Run elsewhere.
        }
    }

    /// Length of each of two buffers that are taken as one.
    fn half(&self) -> u64 {
        (self.unit.chunk / 2) as u64
    }

    /// Two buffers taken at once: whoever holds one never waits for another.
    async fn two<T: Transfer>(&self, len: u64, t: &mut T) -> Result<Lent, Stop> {
        t.buffer(2 * len as usize).await
    }

    async fn verify<T: Transfer>(
        &self,
        lba: u64,
        blocks: u64,
        bs: u64,
        bytchk: ByteCheck,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        let len = blocks * bs;
        need(t, out.command_out)?;
        let volume = &self.unit.volume;
        let one = match bytchk {
            ByteCheck::CompareOne if len > 0 => {
                let buf = Slice::heap(bs as usize);
                fetch(t, 0, &buf).await?;
                out.moved_out = bs as u32;
                Some(buf)
            }
            _ => None,
        };
        let mut done = 0;
        while done < len {
            let n = (len - done).min(self.half());
            let both = self.two(n, t).await?;
            let (back, data) = halves(&both);
            let inside = self.begin(t)?;
            let r = volume.read(lba * bs + done, back.clone()).await;
            drop(inside);
            io(r, Direction::Read, lba + done / bs)?;
            if bytchk == ByteCheck::Compare {
                fetch(t, done, &data).await?;
                out.moved_out += n as u32;
                compare(&back, &data, done)?;
            }
            if let Some(one) = &one {
                for i in (0..n).step_by(bs as usize) {
                    compare(&back.sub(i as usize, bs as usize), one, done + i)?;
                }
            }
            done += n;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // The command's own fields.
    async fn write_same<T: Transfer>(
        &self,
        lba: u64,
        blocks: u64,
        bs: u64,
        unmap: bool,
        ndob: bool,
        durable: bool,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        let volume = &self.unit.volume;
        let len = blocks * bs;
        let mut pattern = None;
        if !ndob {
            need(t, bs)?;
            let buf = Slice::heap(bs as usize);
            fetch(t, 0, &buf).await?;
            out.moved_out = bs as u32;
            if buf.to_vec().iter().any(|b| *b != 0) {
                pattern = Some(buf);
            }
        }
        let Some(pattern) = pattern else {
            let _writing = self.write_gate(lba * bs, len, t).await?;
            let r = volume.write_zeroes(lba * bs, len, unmap).await;
            io(r, Direction::Write, lba)?;
            return if durable { io(self.flush().await, Direction::Write, lba) } else { Ok(()) };
        };
        let most = len.min(self.unit.chunk as u64) as usize;
        let piece = t.buffer(most).await?;
        for at in (0..piece.len()).step_by(bs as usize) {
            piece.copy_from(at, &pattern, 0, bs as usize);
        }
        let mut done = 0;
        while done < len {
            let n = (len - done).min(piece.len() as u64);
            let _writing = self.write_gate(lba * bs + done, n, t).await?;
            let r = volume.write(lba * bs + done, piece.sub(0, n as usize), durable).await;
            io(r, Direction::Write, lba + done / bs)?;
            done += n;
        }
        Ok(())
    }

    /// Atomic against every other COMPARE AND WRITE and write of the unit; see [`crate::gate`].
    async fn compare_blocks<T: Transfer>(
        &self,
        lba: u64,
        len: u64,
        bs: u64,
        fua: bool,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        if len == 0 {
            return Ok(());
        }
        need(t, 2 * len)?;
        let volume = &self.unit.volume;
        let both = t.buffer(2 * len as usize).await?;
        fetch(t, 0, &both).await?;
        out.moved_out = 2 * len as u32;
        let _alone = self.unless_over(t, self.unit.compare_gate(lba * bs, len)).await?;
        let reading = self.begin(t)?;
        let (first, data) = (both.sub(0, len as usize), both.sub(len as usize, len as usize));
        let expected = Slice::copy_of(&first.to_vec());
        io(volume.read(lba * bs, first.clone()).await, Direction::Read, lba)?;
        drop(reading);
        compare(&first, &expected, 0)?;
        let _writing = self.begin_to_write(t)?;
        io(volume.write(lba * bs, data, fua).await, Direction::Write, lba)
    }

    async fn lba_status<T: Transfer>(&self, lba: u64, alloc: u32, g: Geometry, t: &T) -> Vec<u8> {
        let bs = u64::from(g.block_size);
        let most = lba_status::descriptors_wanted(alloc).min(DESCRIPTORS);
        let mut extents: Vec<LbaStatus> = Vec::new();
        let (mut at, mut joined, until) = (lba, 0, now().saturating_add(LONG));
        // A volume may tell of long stretches in several steps. What is left out the host asks for next.
        while at < g.blocks && joined < STEPS && !t.stopped() {
            if !extents.is_empty() {
                if now() >= until {
                    break;
                }
                run_async().await;
            }
            let found = self.unit.volume.find_allocation(at * bs, (g.blocks - at) * bs).await;
            let Allocation { mapped, len } = found.in_blocks(bs);
            let status = if mapped { Provisioning::Mapped } else { Provisioning::Deallocated };
            let blocks = (len / bs).min(u64::from(u32::MAX)).min(g.blocks - at) as u32;
            let full = extents.len() == most;
            let same =
                |e: &&mut LbaStatus| e.status == status && e.blocks.checked_add(blocks).is_some();
            match extents.last_mut().filter(same) {
                Some(last) => {
                    last.blocks += blocks;
                    joined += 1;
                }
                None if full => break,
                None => extents.push(LbaStatus { lba: at, blocks, status }),
            }
            at += u64::from(blocks);
        }
        let mut answer = Vec::new();
        lba_status::encode(&extents, alloc, &mut answer);
        answer
    }
}

/// Both halves of what was taken as one.
fn halves(both: &Slice) -> (Slice, Slice) {
    let len = both.len() / 2;
    (both.sub(0, len), both.sub(len, len))
}

/// The initiator's buffer must hold what the command needs as a whole.
fn need<T: Transfer>(t: &T, len: u64) -> Result<(), Failure> {
    if t.out_len() < len { Err(Sense::INVALID_FIELD_IN_COMMAND_IU.into()) } else { Ok(()) }
}

/// The first difference, as the offset that INFORMATION carries.
fn compare(a: &Slice, b: &Slice, base: u64) -> Result<(), Failure> {
    let (a, b) = (a.to_vec(), b.to_vec());
    match a.iter().zip(&b).position(|(x, y)| x != y) {
        None => Ok(()),
        Some(at) => {
            let e = IoError::Miscompare(base + at as u64);
            Err(ScsiError::from_io_error(e, Direction::Read, 0).into())
        }
    }
}
