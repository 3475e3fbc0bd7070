//! From a CDB to status and sense.

use crate::attachment::Attachment;
use crate::fence::End;
use crate::pass::{Inside, Pass};
use crate::planted::{Bug, has};
use crate::transfer::{Stop, Transfer};
use crate::turn::Turn;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_proto_scsi::cdb::{Command, ControlCommand, decode};
use weir_proto_scsi::identity::Identity;
use weir_proto_scsi::lu::{ControlContext, Effects, Nexus, SpaceUse};
use weir_proto_scsi::lun::{Lun, execute_no_lu};
use weir_proto_scsi::sense::{SENSE_LEN_MAX, Sense, SenseFormat};
use weir_proto_scsi::status::{Direction, ScsiError};
use weir_reactor::completion;

/// Most bytes of a write that are fetched into one buffer to be copied to a volume that is memory: they stay
/// in a core's cache.
const CACHED: u64 = 256 << 10;

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// SCSI status.
    pub status: u8,
    /// What the command moves from the initiator, by its CDB.
    pub command_out: u64,
    /// What the command moves to the initiator, by its CDB and what there was to return.
    pub command_in: u64,
    /// Bytes really moved from the initiator.
    pub moved_out: u32,
    /// Bytes really moved to the initiator.
    pub moved_in: u32,
    /// Tasks of these nexuses are to be aborted on this unit (PREEMPT AND ABORT), but for the command
    /// itself.
    pub abort_tasks_of: Vec<Nexus>,
    /// With CHECK CONDITION: the sense data and the form to send it in.
    sense: Option<Box<(Sense, SenseFormat)>>,
}

impl Outcome {
    fn new() -> Self {
        Outcome {
            status: 0,
            command_out: 0,
            command_in: 0,
            moved_out: 0,
            moved_in: 0,
            abort_tasks_of: Vec::new(),
            sense: None,
        }
    }

    /// Writes the sense data; gives its length, 0 for none.
    pub fn encode_sense(&self, out: &mut [u8; SENSE_LEN_MAX]) -> usize {
        self.sense.as_ref().map_or(0, |s| s.0.encode(s.1, out))
    }

    /// True when there is sense data.
    pub fn has_sense(&self) -> bool {
        self.sense.is_some()
    }

    #[cold]
    fn fail(&mut self, e: &ScsiError, format: SenseFormat) {
        self.status = e.status.code();
        self.sense = e.sense.map(|s| Box::new((s, format)));
    }
}

/// Why a command does not end with GOOD.
pub(crate) enum Failure {
    Scsi(ScsiError),
    Stop,
}

impl From<Stop> for Failure {
    fn from(_: Stop) -> Self {
        Failure::Stop
    }
}

impl From<End> for Failure {
    fn from(_: End) -> Self {
        Failure::Stop
    }
}

impl From<ScsiError> for Failure {
    fn from(e: ScsiError) -> Self {
        Failure::Scsi(e)
    }
}

impl From<Sense> for Failure {
    fn from(s: Sense) -> Self {
        Failure::Scsi(s.into())
    }
}

/// Translates a volume's error.
pub(crate) fn io<T>(r: IoResult<T>, direction: Direction, lba: u64) -> Result<T, Failure> {
    r.map_err(|e: IoError| ScsiError::from_io_error(e, direction, lba).into())
}

impl Pass {
    /// Runs a command to its end. One that a fence lets ask again begins anew.
    ///
    /// # Errors
    /// [`Stop`]: it was aborted or its channel is gone; there is no status to send.
    pub async fn execute<T: Transfer>(
        &mut self,
        view: &Attachment,
        cdb: &[u8],
        t: &mut T,
    ) -> Result<Outcome, Stop> {
        loop {
            t.begins(self);
            let ended = self.run(view, cdb, t).await;
            if ended.is_ok() || t.stopped() {
                return ended;
            }
            match self.end() {
                Some(End::Again) => self.renew(),
                Some(End::Gone) => {
                    let mut out = Outcome::new();
                    out.fail(&Sense::LU_NOT_SUPPORTED.into(), self.fast().sense);
                    return Ok(out);
                }
                Some(End::Aborted(_)) | None => return ended,
            }
        }
    }

    /// Lets I/O begin, if the command is still to have an effect.
    pub(crate) fn begin<T: Transfer>(&self, t: &T) -> Result<Inside<'_>, Failure> {
        if t.stopped() { Err(Failure::Stop) } else { Ok(self.enter()?) }
    }

    /// The same for I/O that changes the medium.
    pub(crate) fn begin_to_write<T: Transfer>(&self, t: &T) -> Result<Inside<'_>, Failure> {
        if t.stopped() { Err(Failure::Stop) } else { Ok(self.enter_to_write()?) }
    }

    /// The same for a flush.
    pub(crate) fn begin_to_flush<T: Transfer>(&self, t: &T) -> Result<Inside<'_>, Failure> {
        if t.stopped() { Err(Failure::Stop) } else { Ok(self.enter_to_flush()?) }
    }

    async fn run<T: Transfer>(
        &self,
        view: &Attachment,
        cdb: &[u8],
        t: &mut T,
    ) -> Result<Outcome, Stop> {
        let nexus = view.nexus();
        let mut out = Outcome::new();
        let geometry = self.geometry(nexus);
        let command = match decode(cdb, &geometry) {
            Ok(c) => c,
            Err(sense) => {
                // Of a write that is sent again what a lost channel has left may yet be done.
                if !self.fast().writes {
                    self.wait_for_lingering(t).await?;
                }
                out.fail(&sense.into(), self.fast().sense);
                return Ok(out);
            }
        };
        let flushes = matches!(command, Command::SyncCache { .. });
        let held_up = (command.writes_medium() || flushes) && !self.fast().writes;
        if held_up || self.may_release(nexus, &command) {
            self.wait_for_lingering(t).await?;
        }
        if let Err(e) = self.admit(nexus, &command) {
            self.refused(&e);
            out.fail(&e, self.fast().sense);
            return Ok(out);
        }
        let result = match command {
            Command::Read { lba, blocks, .. } => {
                let at = lba * u64::from(geometry.block_size);
                let len = u64::from(blocks) * u64::from(geometry.block_size);
                out.command_in = len;
                self.read(at, len, lba, t, &mut out).await
            }
            Command::Write { lba, blocks, fua, .. } => {
                let at = lba * u64::from(geometry.block_size);
                let len = u64::from(blocks) * u64::from(geometry.block_size);
                out.command_out = len;
                let fua = fua || self.fast().write_through;
                self.write(at, len, lba, fua, t, &mut out).await
            }
            Command::TestUnitReady => Ok(()),
            // Rare commands do not make every request's memory larger.
            Command::Control(c) => Box::pin(self.control(view, &c, t, &mut out)).await,
            other => Box::pin(self.medium(&other, geometry, t, &mut out)).await,
        };
        match result {
            Ok(()) => Ok(out),
            Err(Failure::Stop) => Err(Stop),
            Err(Failure::Scsi(e)) => {
                out.fail(&e, self.fast().sense);
                Ok(out)
            }
        }
    }

    /// Whether a command could end an SPC-2 reservation of the host, or replace it: what the host has left with a device must not
    /// land after that.
    #[inline]
    fn may_release(&self, nexus: Nexus, command: &Command) -> bool {
        let Command::Control(c) = command else { return false };
        let of_reservations = matches!(
            c,
            ControlCommand::Reserve6
                | ControlCommand::Release6
                | ControlCommand::PersistentReserveIn { .. }
                | ControlCommand::PersistentReserveOut { .. }
        );
        of_reservations
            && self.unit.shared.with(|s| s.has_reserved(nexus))
            && !has(Bug::ReleasedBesideFormer)
    }

    async fn read<T: Transfer>(
        &self,
        at: u64,
        len: u64,
        lba: u64,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        // The initiator's buffer may be shorter than the command; the residual says so.
        let len = len.min(t.in_len());
        if len == 0 {
            return Ok(());
        }
        if self.end().is_none()
            && !t.needs_stable_data()
            && let Some(slice) = self.unit.volume.direct(at, len as usize)
        {
            t.deliver(0, slice).await?;
            out.moved_in = len as u32;
            return Ok(());
        }
        // Blocks are read whole even where only a part of the last one is wanted.
        let block = u64::from(self.unit.volume.geometry().block_size);
        let mut done = 0;
        while done < len {
            let n = (len - done).min(self.unit.chunk as u64);
            let whole = t.piece(n.next_multiple_of(block) as usize);
            let n = n.min(whole as u64);
            let buf = t.buffer(whole).await?;
            let inside = self.begin(t)?;
            let r = self.unit.volume.read(at + done, buf.clone()).await;
            drop(inside);
            io(r, Direction::Read, lba + done / block)?;
            t.deliver(done, buf.sub(0, n as usize)).await?;
            done += n;
            out.moved_in = done as u32;
        }
        Ok(())
    }

    async fn write<T: Transfer>(
        &self,
        at: u64,
        len: u64,
        lba: u64,
        fua: bool,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        let block = u64::from(self.unit.volume.geometry().block_size);
        // Only whole blocks that the initiator has data for are written; the residual tells.
        let len = len.min(t.out_len()) / block * block;
        if len == 0 {
            return Ok(());
        }
        let mut step = self.unit.chunk as u64;
        if let Some(data) = t.immediate() {
            // Where data lie in a message, no disk takes them from there.
            if self.unit.volume.direct_in_use().is_some() {
                let _writing = self.write_gate(at, len, t).await?;
                let r = self.unit.volume.write(at, data.sub(0, len as usize), fua).await;
                io(r, Direction::Write, lba)?;
                out.moved_out = len as u32;
                return Ok(());
            }
        } else if self.unit.volume.direct_in_use().is_some() {
            // Data are not fetched right to where they belong: a connection that ends meanwhile would
            // leave a part of a block.
            step = step.min(CACHED);
        }
        let mut done = 0;
        while done < len {
            let n = t.piece((len - done).min(step) as usize);
            let buf = t.buffer(n).await?;
            fetch(t, done, &buf).await?;
            out.moved_out += n as u32;
            // Not before the data are there: their coming is up to the host, and holds nobody up.
            let _writing = self.write_gate(at + done, n as u64, t).await?;
            let r = self.unit.volume.write(at + done, buf.clone(), fua).await;
            io(r, Direction::Write, lba + done / block)?;
            done += n as u64;
        }
        Ok(())
    }

    async fn control<T: Transfer>(
        &self,
        view: &Attachment,
        c: &ControlCommand,
        t: &mut T,
        out: &mut Outcome,
    ) -> Result<(), Failure> {
        let nexus = view.nexus();
        out.command_out = c.data_out_len();
        let wanted = out.command_out.min(t.out_len()) as usize;
        if wanted > self.unit.chunk {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
        }
        let mut list = vec![0; wanted];
        if wanted > 0 {
            let buf = t.buffer(wanted).await?;
            fetch(t, 0, &buf).await?;
            buf.read_at(0, &mut list);
            out.moved_out = wanted as u32;
        }
        // Its rules may have changed while its parameters came.
        drop(self.begin(t)?);
        if matches!(c, ControlCommand::PersistentReserveOut { .. }) {
            out.abort_tasks_of = self.reserve_out(nexus, c, &list, t).await?;
            return Ok(());
        }
        if matches!(c, ControlCommand::PersistentReserveIn { .. }) {
            self.wait_for_keeping(t).await?;
        }
        let turn = match c {
            ControlCommand::Reserve6 | ControlCommand::Release6 => {
                Some(self.turn_to_reserve(nexus, c, t).await?)
            }
            _ => None,
        };
        let luns = view.luns();
        let g = self.unit.volume.geometry();
        let space = g.thin.then_some(SpaceUse { used: g.len, available: g.len });
        let ctx = ControlContext { luns: &luns, space };
        let mut answer = Vec::new();
        let outcome = match c {
            ControlCommand::RequestSense { .. } | ControlCommand::ReportLuns { .. } => {
                self.taking(|s| s.control(nexus, c, &list, &ctx, &mut answer))
            }
            _ => self.unit.shared.with(|s| s.control(nexus, c, &list, &ctx, &mut answer)),
        };
        drop(turn);
        outcome.result?;
        self.effects(&outcome.effects, t).await?;
        out.command_in = answer.len() as u64;
        let n = answer.len().min(t.in_len() as usize);
        if n > 0 {
            for (i, part) in answer[..n].chunks(self.unit.chunk).enumerate() {
                let buf = t.buffer(part.len()).await?;
                buf.write_at(0, part);
                t.deliver((i * self.unit.chunk) as u64, buf.clone()).await?;
            }
            out.moved_in = n as u32;
        }
        Ok(())
    }

    /// One command that changes reservations at a time, of either kind and whatever reactor it is on: each is checked
    /// against what the one before has left, and nothing comes between its check and its being in force. Fences wait for it
    /// as for I/O: a command that they have ended changes nothing any more.
    async fn turn_to_reserve<T: Transfer>(
        &self,
        nexus: Nexus,
        c: &ControlCommand,
        t: &T,
    ) -> Result<(Turn<'_>, Inside<'_>), Failure> {
        let shared = &self.unit.shared;
        let turn = self.unless_over(t, shared.reserving.take()).await?;
        let inside = self.begin(t)?;
        // What was in force when it was admitted may be so no more.
        shared.with(|s| s.admit(nexus, &Command::Control(*c))).inspect_err(|e| self.refused(e))?;
        Ok((turn, inside))
    }

    /// PERSISTENT RESERVE OUT: what must survive a loss of power is durable before it is in force, so that a command that
    /// is refused has changed nothing. Gives the nexuses whose tasks are to be aborted.
    async fn reserve_out<T: Transfer>(
        &self,
        nexus: Nexus,
        c: &ControlCommand,
        list: &[u8],
        t: &T,
    ) -> Result<Vec<Nexus>, Failure> {
        let shared = &self.unit.shared;
        // All three until it is in force, or given up.
        let (_turn, _inside, planned) = loop {
            let (turn, inside) = self.turn_to_reserve(nexus, c, t).await?;
            let planned = shared.with(|s| s.plan_reserve_out(nexus, c, list))?;
            if !self.bares_former(&planned) {
                break (turn, inside, planned);
            }
            // Others have their turns meanwhile.
            drop((turn, inside));
            self.wait_for_lingering(t).await?;
        };
        let to_keep = planned.to_keep();
        let _kept = to_keep.as_ref().map(|_| self.begin_to_keep());
        if let Some((revision, state)) = to_keep
            && !self.persist(revision, state).await
        {
            let (revision, state) = shared.with(|s| s.drop_plan(&planned));
            if let Some(store) = &shared.store {
                store.save(shared.name(), revision, state, Box::new(|_| {}));
            }
            return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
        }
        Ok(shared.with(|s| s.put_in_force(planned)).abort_tasks_of)
    }

    /// Makes reservations durable. False: they are not.
    async fn persist(&self, revision: u64, state: Vec<u8>) -> bool {
        let Some(store) = &self.unit.shared.store else { return false };
        let (token, done) = completion();
        let handle = weir_reactor::handle();
        store.save(
            self.unit.shared.name(),
            revision,
            state,
            Box::new(move |ok| {
                handle.complete(
                    token,
                    weir_reactor::Completion { result: -i32::from(!ok), ..Default::default() },
                );
            }),
        );
        done.await.is_ok()
    }

    async fn effects<T: Transfer>(&self, e: &Effects, t: &T) -> Result<(), Failure> {
        if e.flush {
            let _inside = self.begin_to_flush(t)?;
            io(self.flush().await, Direction::Write, 0)?;
        }
        if e.format.is_some() {
            let len = self.unit.volume.geometry().len;
            let _writing = self.write_gate(0, len, t).await?;
            io(self.unit.volume.write_zeroes(0, len, true).await, Direction::Write, 0)?;
        }
        Ok(())
    }
}

/// Brings `buf.len()` bytes of DATA-OUT from `at` on, from where they are.
pub(crate) async fn fetch<T: Transfer>(t: &mut T, at: u64, buf: &Slice) -> Result<(), Stop> {
    match t.immediate() {
        Some(data) => {
            buf.copy_from(0, &data, at as usize, buf.len());
            Ok(())
        }
        None => t.fetch(at, buf.clone()).await,
    }
}

/// Runs a command to a LUN without a unit: INQUIRY, REPORT LUNS and REQUEST SENSE are answered, all else
/// is LOGICAL UNIT NOT SUPPORTED.
///
/// # Errors
/// [`Stop`], as for [`Pass::execute`].
pub async fn execute_unmapped<T: Transfer>(
    view: &Attachment,
    identity: &Identity,
    pool: &weir_mem::BufPool,
    lun: Lun,
    cdb: &[u8],
    t: &mut T,
) -> Result<Outcome, Stop> {
    let mut out = Outcome::new();
    let mut answer = Vec::new();
    let luns = view.luns();
    let none = match view.is_absent(lun) {
        true => Sense::BECOMING_READY,
        false => Sense::LU_NOT_SUPPORTED,
    };
    if let Err(e) = execute_no_lu(cdb, lun, none, &luns, identity, &mut answer) {
        out.fail(&e, SenseFormat::Fixed);
        return Ok(out);
    }
    out.command_in = answer.len() as u64;
    let n = answer.len().min(t.in_len() as usize).min(pool.max_len());
    if n > 0 {
        let buf = t.buffer(n).await?;
        buf.write_at(0, &answer[..n]);
        t.deliver(0, buf.clone()).await?;
        out.moved_in = n as u32;
    }
    Ok(out)
}
