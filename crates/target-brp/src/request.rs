//! Commands that wait: for a device, for the wire, or for each other. Each has a request of a pool.

mod compare;
mod fetch;
mod work;

use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use fetch::pieces;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use weir_base::{IoError, MILLIS};
use weir_block::Volume;
use weir_mem::{Lent, Purse, Slice};
use weir_proto_brp::command::{Command, Descriptor, flag};
use weir_proto_brp::volume::VOLUME_INFO;
use weir_proto_brp::{Op, Status, sums};
use weir_reactor::{TaskId, Token, WaitChannel, contained_future, sleep, spawn_task, unless};
use weir_target_core::{End, Pass, WriteGuard};
pub(crate) use work::Work;

/// RDMA READs of one command at once; more wait their turn.
const PARALLEL_READS: usize = 16;
/// Longest piece of a large read that is moved in one step, in bytes.
const CHUNK: usize = 256 << 10;
/// The same, of memory that the volume lends, and of what is fetched: what is summed in one go is still in the caches when it
/// is sent, or has just come there.
const LENT: usize = 512 << 10;

/// The checksum number `i` of those that go with data (little-endian).
fn sum_at(sums: &Slice, i: usize) -> u32 {
    let mut b = [0; 4];
    sums.read_at(i * 4, &mut b);
    u32::from_le_bytes(b)
}

/// How a command ended.
pub(crate) enum Ended {
    /// With a status and its detail, and without inline data.
    Status(Status, u32),
    /// Well, with inline data.
    Data { data: Slice, stable: bool },
    /// It had no effect, and whoever sent it is gone.
    Lost,
    /// It had no effect, and asks for admission anew: a fence has ended what was admitted before.
    Again,
}

impl From<End> for Ended {
    fn from(e: End) -> Ended {
        match e {
            End::Gone => Status::NoVolume.into(),
            // Hosts have no word for a command that another host's task management ends.
            End::Again | End::Aborted(_) => Ended::Again,
        }
    }
}

impl From<Status> for Ended {
    fn from(s: Status) -> Ended {
        Ended::Status(s, 0)
    }
}

/// Descriptors of a command, and checksums that came with it.
#[derive(Default)]
pub(crate) struct Parts {
    descriptors: Vec<Descriptor>,
    sums: Vec<[u8; 4]>,
}

/// A request. Its memory is used again and again.
pub(crate) struct Request {
    port: Rc<Port>,
    work: RefCell<Option<Work>>,
    wake: WaitChannel,
    /// That of its loop.
    run: Cell<Option<TaskId>>,
}

impl Request {
    /// A request, whose loop is started.
    pub(crate) fn start(port: Rc<Port>) -> Rc<Request> {
        let (work, wake, run) = (RefCell::default(), WaitChannel::new(0), Cell::new(None));
        let r = Rc::new(Request { port, work, wake, run });
        r.run.set(Some(spawn_task(r.clone().run())));
        r
    }

    /// Ends the loop of one that has no work.
    pub(crate) fn end(&self) {
        if let Some(task) = self.run.take() {
            weir_reactor::cancel(task);
        }
    }

    async fn run(self: Rc<Self>) {
        let mut task = Task::default();
        loop {
            self.wake.wait().await;
            let Some(w) = self.work.take() else { continue };
            let channel = w.channel.clone();
            task.run(&self.port, w).await;
            if self.port.is_stopped() {
                return channel.places.give_back(0);
            }
            self.port.idle.borrow_mut().push(self.clone());
            // Whoever is given it finds it.
            channel.places.give_back(0);
        }
    }
}

/// Why a command goes no further.
struct Stop(Ended);

impl From<Status> for Stop {
    fn from(s: Status) -> Stop {
        Stop(s.into())
    }
}

impl From<End> for Stop {
    fn from(e: End) -> Stop {
        Stop(e.into())
    }
}

fn io<T>(r: Result<T, IoError>) -> Result<T, Stop> {
    r.map_err(|e| {
        let (status, detail) = match e {
            IoError::OutOfRange => (Status::OutOfRange, 0),
            IoError::Medium => (Status::Medium, 0),
            IoError::NoSpace => (Status::NoSpace, 0),
            IoError::ReadOnly => (Status::ReadOnly, 0),
            IoError::Miscompare(at) => (Status::Miscompare, at as u32),
            IoError::Busy | IoError::Path => (Status::Busy, 0),
            IoError::Aborted => (Status::Aborted, 0),
            IoError::Offline => (Status::Offline, 0),
            IoError::Unsupported => (Status::Unsupported, 0),
            IoError::Changed(n) => (Status::ChecksumTarget, n),
            _ => (Status::Internal, 0),
        };
        Stop(Ended::Status(status, detail))
    })
}

/// One command's state; its vectors keep their memory.
#[derive(Default)]
struct Task {
    parts: Parts,
    /// Checksums of what was read.
    read_sums: Vec<u32>,
    /// Data was sent from memory of the volume.
    lent: bool,
    /// The buffers that it holds.
    purse: Purse,
}

/// The command that runs.
struct Running<'a> {
    port: &'a Port,
    channel: &'a Rc<Channel>,
    generation: u64,
    c: Command,
    inline: Option<Slice>,
    purse: Purse,
    /// It may have had an effect.
    acts: Cell<bool>,
}

impl Task {
    async fn run(&mut self, port: &Port, w: Work) {
        let Work { channel, generation, command, parts, data: inline } = w;
        self.parts = parts;
        self.read_sums.clear();
        self.lent = false;
        let purse = self.purse.clone();
        let acts = Cell::new(false);
        let r = Running { port, channel: &channel, generation, c: command, inline, purse, acts };
        let ended = loop {
            // Pinned here: it is large, and would be moved for each command.
            let done = contained_future(pin!(r.one_at_a_time(self))).await;
            match done {
                Ok(Ok(Ended::Again) | Err(Stop(Ended::Again))) => {
                    self.read_sums.clear();
                    self.lent = false;
                }
                Ok(Ok(e) | Err(Stop(e))) => break e,
                Err(p) => {
                    channel.broke(&p);
                    break Ended::Lost;
                }
            }
        };
        let ended = r.verdict(ended).await;
        // What it was to tell of a loss is not heard, where its host has given it up while that was being decided.
        if !channel.is_lost(generation) && r.go_on().is_err() {
            channel.view.given_up(command.tag.into());
        }
        let acts = r.acts.get();
        drop(r);
        let sums = match ended {
            Ended::Status(Status::Ok, _) | Ended::Data { .. } => &self.read_sums[..],
            _ => &[],
        };
        channel.ended(generation, &command, ended, sums, self.lent);
        if acts {
            channel.has_acted();
        }
        port.spare.borrow_mut().push(std::mem::take(&mut self.parts));
    }
}

impl Running<'_> {
    async fn one_at_a_time(&self, t: &mut Task) -> Result<Ended, Stop> {
        if self.channel.agreed.get().serial {
            let serial = self.channel.serial.borrow().clone();
            let _turn = match has(Bug::TurnAwaited) {
                true => serial.acquire(1).await,
                false => self.unless_halted(serial.acquire(1)).await?,
            };
            return self.execute(t).await;
        }
        self.execute(t).await
    }

    /// The command goes no further when it was aborted, or nobody is there to answer. Not once it may have
    /// had an effect: then its end is remembered.
    fn go_on(&self) -> Result<(), Stop> {
        if self.channel.is_lost(self.generation) || self.channel.view.is_barred() {
            return Err(Stop(Ended::Lost));
        }
        let slots = self.channel.slots.borrow();
        match slots.get(usize::from(self.c.tag)) {
            Some(s) if s.aborted => Err(Status::Aborted.into()),
            _ => Ok(()),
        }
    }

    /// It is about to have an effect, unless it goes no further. Its host's next login waits for its end from here on.
    fn act(&self) -> Result<(), Stop> {
        self.go_on()?;
        if !self.acts.replace(true) {
            self.channel.acts();
        }
        Ok(())
    }

    /// Waits for a buffer, for as long as somebody wants the command's answer.
    async fn buffer(&self, len: usize) -> Result<Lent, Stop> {
        let share = &self.channel.share;
        if let Some(b) = self.purse.try_take(share, len) {
            return Ok(b);
        }
        let lent = self.unless_halted(self.purse.take(share, len)).await?;
        self.go_on()?;
        Ok(lent)
    }

    /// Waits for `f`, which is up to other commands, for as long as somebody wants this one's answer.
    async fn unless_halted<R>(&self, f: impl Future<Output = R>) -> Result<R, Stop> {
        let mut f = pin!(f);
        loop {
            self.go_on()?;
            if let Some(done) = unless(self.channel.halt.wait(), f.as_mut()).await {
                return Ok(done);
            }
        }
    }

    /// Lets a write to the volume begin.
    #[inline]
    async fn begin_write<'b>(
        &self,
        a: &'b Pass,
        at: u64,
        len: u64,
    ) -> Result<WriteGuard<'b>, Stop> {
        if !a.is_held_up() && a.unit().may_write_now(at, len) {
            return Ok(a.begin_write(at, len).await?);
        }
        Ok(Box::pin(self.unless_halted(a.begin_write(at, len))).await??)
    }

    /// What a command's end is to its host. A write that fails may be one that is sent again, and a device may have the first
    /// one yet: the host is told once that is over.
    async fn verdict(&self, ended: Ended) -> Ended {
        let failed = matches!(ended, Ended::Status(s, _) if s != Status::Ok);
        if !failed || !self.writes() || has(Bug::VerdictBesideFormer) {
            return ended;
        }
        // Of its own volume; which that was is not known where it is not seen any more.
        let has_former = || match self.channel.volume(self.c.volume, self.c.guard) {
            Ok(a) => a.is_held_up(),
            Err(_) => self.channel.view.has_former(&self.port.units),
        };
        while has_former() {
            if self.channel.is_lost(self.generation) {
                return Ended::Lost;
            }
            sleep(MILLIS).await;
        }
        ended
    }

    /// Whether it changes what the volume holds.
    fn writes(&self) -> bool {
        use Op::{CompareAndWrite, Discard, Write, WriteZeroes};
        matches!(self.c.operation(), Some(Write | CompareAndWrite | Discard | WriteZeroes))
    }

    fn integrity(&self) -> bool {
        self.channel.agreed.get().integrity
    }

    async fn execute(&self, t: &mut Task) -> Result<Ended, Stop> {
        self.go_on()?;
        let c = &self.c;
        if !self.channel.keeps_limits(c) {
            return Err(Status::Invalid.into());
        }
        let (at, len) = (c.offset, u64::from(c.len));
        match c.operation() {
            Some(Op::Read) => self.read(t).await,
            Some(Op::Write) => self.write(t).await,
            Some(Op::CompareAndWrite) => self.compare_and_write(t).await,
            Some(Op::Flush) => {
                let a = self.volume_only()?;
                let _inside = self.unless_halted(a.begin_flush()).await??;
                // That data are lost may be told once: its end is not to be forgotten.
                if !has(Bug::FlushForgotten) {
                    self.act()?;
                }
                self.flush(&a).await?;
                Ok(Status::Ok.into())
            }
            Some(op @ (Op::Discard | Op::WriteZeroes)) => {
                let (a, durable) = self.channel.admit(c, true)?;
                let volume = a.unit().volume();
                let _writing = self.begin_write(&a, at, len).await?;
                self.act()?;
                match op {
                    Op::Discard => io(volume.discard(at, len).await)?,
                    _ => io(volume.write_zeroes(at, len, c.has(flag::UNMAP)).await)?,
                }
                if op == Op::WriteZeroes && (durable || c.has(flag::FUA)) {
                    self.flush(&a).await?;
                }
                Ok(Status::Ok.into())
            }
            Some(Op::Geometry | Op::List) => self.describe().await,
            Some(Op::Nop) => Ok(Status::Ok.into()),
            None => Err(Status::Unsupported.into()),
        }
    }

    async fn flush(&self, a: &Pass) -> Result<(), Stop> {
        let done = a.flush().await;
        // Who has given it up does not look at its answer.
        if self.go_on().is_ok() || has(Bug::GivenUpIsTold) {
            a.told();
        }
        io(done)
    }

    /// The volume of a command without a range.
    fn volume_only(&self) -> Result<Pass, Stop> {
        let c = Command { offset: 0, len: 0, ..self.c };
        Ok(self.channel.admit(&c, false)?.0)
    }

    async fn describe(&self) -> Result<Ended, Stop> {
        let nexus = self.channel.view.nexus();
        let all = self.channel.volumes();
        let wanted: Vec<_> = match self.c.operation() {
            Some(Op::List) => all.iter().skip(self.c.offset as usize).collect(),
            _ => all.iter().filter(|k| k.number == self.c.volume).collect(),
        };
        if wanted.is_empty() && self.c.operation() == Some(Op::Geometry) {
            return Err(Status::NoVolume.into());
        }
        let room = (self.c.len as usize / VOLUME_INFO).min(
            (self.channel.agreed.get().max_message - weir_proto_brp::message::MIN_MESSAGE / 2)
                / VOLUME_INFO,
        );
        let n = wanted.len().min(room);
        // Rare: memory of its own, so that a list never waits for data buffers.
        let data = Slice::heap((n * VOLUME_INFO).max(1));
        for (i, k) in wanted.iter().take(n).enumerate() {
            data.write_at(i * VOLUME_INFO, &k.info(nexus).encode());
        }
        Ok(Ended::Data { data: data.sub(0, n * VOLUME_INFO), stable: true })
    }

    /// The command's own memory must be what its data needs.
    fn check_descriptors(&self, t: &Task, len: u64) -> Result<(), Stop> {
        let sum: u64 = t.parts.descriptors.iter().map(|d| u64::from(d.len)).sum();
        let many = t.parts.descriptors.len() > usize::from(self.port.config.max_segments);
        if sum != len || many { Err(Status::Invalid.into()) } else { Ok(()) }
    }

    async fn read(&self, t: &mut Task) -> Result<Ended, Stop> {
        let c = &self.c;
        let (a, _) = self.channel.admit(c, false)?;
        let volume = a.unit().volume();
        let len = c.len as usize;
        if c.has(flag::INLINE_IN) {
            let held = self.buffer(len.max(1)).await?;
            let data = held.sub(0, len);
            if len > 0 {
                let _inside = a.enter()?;
                self.read_into(t, &**volume, c.offset, &data).await?;
            }
            return Ok(Ended::Data { data, stable: true });
        }
        self.check_descriptors(t, u64::from(c.len))?;
        let Some(conn) = self.channel.conn() else { return Err(Stop(Ended::Lost)) };
        let lend = !c.has(flag::STABLE) && !conn.needs_stable_data();
        let mut done = 0;
        while done < len {
            let at = c.offset + done as u64;
            drop(a.enter()?);
            // Cut where checksums are cut.
            let most = if lend { LENT } else { CHUNK };
            let mut n = (len - done).min(most - (at % sums::PIECE) as usize);
            let first = t.read_sums.len();
            let kept =
                lend && self.integrity() && volume.kept_sums(at, n, &mut |s| t.read_sums.push(s));
            if !kept {
                t.read_sums.truncate(first);
            }
            let lent = if lend { volume.direct(at, n) } else { None };
            let held;
            let data = match lent {
                Some(d) => {
                    t.lent = true;
                    if self.integrity() && !kept {
                        // SAFETY: others may write to the memory: then some mix of old and new bytes is summed,
                        // which the initiator finds out.
                        sums::each(at, unsafe { d.bytes() }, |s| t.read_sums.push(s));
                    }
                    d
                }
                None => {
                    t.read_sums.truncate(first);
                    n = self.cut(at, n.min(CHUNK - (at % sums::PIECE) as usize));
                    held = self.buffer(n).await?;
                    let _inside = a.enter()?;
                    self.read_into(t, &**volume, at, &held).await?;
                    held.clone()
                }
            };
            self.go_on()?;
            for (from, n, remote) in
                pieces(&t.parts.descriptors, done, n, self.port.config.max_rdma)
            {
                if !conn.send_slots().try_wait() {
                    conn.send_slots().wait().await;
                }
                self.go_on().inspect_err(|_| conn.send_slots().signal())?;
                conn.write(data.sub(from, n), remote, Token::NONE);
            }
            if self.integrity() && !kept {
                // Before what was summed leaves the caches.
                conn.push();
            }
            done += n;
        }
        Ok(Status::Ok.into())
    }

    /// How much of what is to be read at `at` to read in one step: less than it could be only where buffers of that size
    /// are all with others, and then cut where checksums are cut.
    fn cut(&self, at: u64, len: usize) -> usize {
        match self.channel.share.piece(len) {
            n if n < len => n - (at % sums::PIECE) as usize,
            _ => len,
        }
    }

    /// Reads into a buffer of ours, and takes the checksums of what is there. Those that the volume has kept must be
    /// the same.
    async fn read_into(
        &self,
        t: &mut Task,
        volume: &dyn Volume,
        at: u64,
        buf: &Slice,
    ) -> Result<(), Stop> {
        let kept = self.sums_room(volume, at, buf.len());
        let done = match &kept {
            Some(k) => volume.read_summed(at, buf.clone(), k.clone()).await,
            None => volume.read(at, buf.clone()).await,
        };
        if kept.is_some() && done == Err(IoError::Medium) {
            return Err(self.on_medium(volume, at, buf).await);
        }
        io(done)?;
        if !self.integrity() {
            return Ok(());
        }
        let first = t.read_sums.len();
        // SAFETY: the buffer is ours, and nobody writes to it any more.
        sums::each(at, unsafe { buf.bytes() }, |s| t.read_sums.push(s));
        let differs = |k: &Slice| {
            (0..t.read_sums.len() - first).find(|i| sum_at(k, *i) != t.read_sums[first + i])
        };
        match kept.as_ref().and_then(differs) {
            None => Ok(()),
            Some(n) => Err(Stop(Ended::Status(Status::ChecksumTarget, self.piece(at, n)))),
        }
    }

    /// Memory for the checksums of whole blocks of a volume that keeps them.
    fn sums_room(&self, volume: &dyn Volume, at: u64, len: usize) -> Option<Slice> {
        let whole = (at | len as u64).is_multiple_of(sums::PIECE) && len > 0;
        (whole && self.integrity() && volume.keeps_sums()).then(|| {
            let n = len / sums::PIECE as usize * 4;
            // Without waiting: whoever waits here has a buffer already.
            self.channel.share.try_alloc(n).unwrap_or_else(|| Slice::heap(n)).sub(0, n)
        })
    }

    /// The number, in the command, of a piece of what is at `at`.
    fn piece(&self, at: u64, n: usize) -> u32 {
        (at / sums::PIECE - self.c.offset / sums::PIECE) as u32 + n as u32
    }

    /// Finds which block it is that no copy can give.
    #[cold]
    async fn on_medium(&self, volume: &dyn Volume, at: u64, buf: &Slice) -> Stop {
        let len = sums::PIECE as usize;
        for i in 0..buf.len() / len {
            let read = volume.read(at + (i * len) as u64, buf.sub(i * len, len)).await;
            if read == Err(IoError::Medium) {
                return Stop(Ended::Status(Status::ChecksumMedium, self.piece(at, i)));
            }
        }
        Stop(Ended::Status(Status::ChecksumMedium, self.piece(at, 0)))
    }

    async fn write(&self, t: &mut Task) -> Result<Ended, Stop> {
        let c = &self.c;
        let (a, durable) = self.channel.admit(c, true)?;
        let (data, _held) = self.fetch(t, c.len as usize, self.integrity()).await?;
        if data.is_empty() {
            return Ok(Status::Ok.into());
        }
        let _writing = self.begin_write(&a, c.offset, data.len() as u64).await?;
        self.act()?;
        let fua = durable || c.has(flag::FUA);
        let volume = a.unit().volume();
        let done = match self.sums_room(&**volume, c.offset, data.len()) {
            Some(room) => {
                for (i, s) in t.parts.sums.iter().enumerate() {
                    room.write_at(i * 4, s);
                }
                volume.write_summed(c.offset, data, room, fua).await
            }
            None => volume.write(c.offset, data, fua).await,
        };
        io(done)?;
        Ok(Status::Ok.into())
    }
}
