//! One command against its unit: its data, and its status.

use crate::conn::Conn;
use crate::planted::{Bug, has};
use crate::send::Data;
use crate::task::Task;
use std::pin::pin;
use std::rc::Rc;
use weir_mem::{Lent, Slice};
use weir_proto_iscsi::bhs::{Response, Stat, op};
use weir_proto_iscsi::sequence::{Outgoing, Residual};
use weir_proto_scsi::sense::SENSE_LEN_MAX;
use weir_proto_scsi::status::Status;
use weir_reactor::{contained_future, spawn_task, unless};
use weir_target_core::{End, Outcome, Pass, Stop, Transfer, Watch, Whom, execute_unmapped};

/// The command could not be carried out by the target (RFC 7143 11.4.3).
const TARGET_FAILURE: u8 = 1;

/// A Data-In PDU that waits to know whether it is the last one.
struct Held {
    head: Response,
    data: Slice,
}

/// A command's data on their way.
struct Moves<'a> {
    task: &'a Rc<Task>,
    /// Whether it has been fenced.
    watch: Option<Watch>,
    outgoing: Outgoing,
    held: Option<Held>,
    r2t_sn: u32,
    /// Bytes of DATA-IN that have been sent or are held.
    delivered: u64,
}

impl Conn {
    /// Begins a command whose turn has come, or lets it wait while it is asked whether its initiator is there. What comes behind it
    /// is taken all the same: the end of the session may.
    pub(crate) fn begin_or_put_off(self: &Rc<Self>, t: Rc<Task>) {
        let first = self.put_off.borrow().is_empty();
        if first && !self.doubts.are_raised() {
            return self.begin(t);
        }
        self.put_off.borrow_mut().push_back(t);
        if !first {
            return;
        }
        let me = self.clone();
        spawn_task(async move {
            me.doubts.cleared().await;
            loop {
                let next = me.put_off.borrow_mut().pop_front();
                let Some(t) = next else { return };
                me.begin(t);
            }
        });
    }

    /// Begins a command whose turn has come.
    pub(crate) fn begin(self: &Rc<Self>, t: Rc<Task>) {
        self.look();
        // Here, so that task management that comes next finds it.
        let pass = self.view.find(t.lun).map(|a| a.pass_of(t.itt.into()));
        t.begun.set(true);
        let me = self.clone();
        spawn_task(async move {
            if let Err(p) = contained_future(pin!(me.run(&t, pass))).await {
                me.port.shared.spread.broke(&me.peer, &p);
                me.abort("an error of this program");
            }
            me.forget(&t);
        });
    }

    async fn run(self: &Rc<Self>, t: &Rc<Task>, mut pass: Option<Pass>) {
        let mut moves = Moves::new(t);
        let result = match &mut pass {
            _ if t.stopped() => Err(Stop),
            Some(p) => p.execute(&self.view, t.cdb(), &mut moves).await,
            None => {
                let identity = &self.port.shared.identity;
                execute_unmapped(&self.view, identity, &self.port.pool, t.lun, t.cdb(), &mut moves)
                    .await
            }
        };
        t.needs_no_more();
        let mut over = false;
        if let Ok(o) = &result
            && !o.abort_tasks_of.is_empty()
            && let Some(p) = pass.take()
        {
            // It is done itself, and must not be waited for by those that it waits for.
            let aside = p.aside();
            t.waits.set(true);
            t.ended.signal_all();
            let by = self.nexus();
            aside.fence(Whom::Only(o.abort_tasks_of.clone()), End::Aborted(by)).await;
            let p = aside.back();
            over = matches!(p.end(), Some(End::Aborted(_) | End::Gone));
            pass = Some(p);
        }
        match result {
            _ if t.stopped() || over => self.in_silence(t, pass.as_ref(), moves.sent()),
            Ok(o) => {
                moves.respond(&o);
                if let Some(p) = pass {
                    p.told();
                }
            }
            // Its data could not be moved though nobody stopped it.
            Err(_) if pass.as_ref().is_none_or(|p| p.end().is_none()) => {
                let r = Response::scsi(t.itt, 0, Residual::None, 0).with(2, &[TARGET_FAILURE]);
                self.send_out(r, Data::Bytes(Vec::new()), t.place.take(), None);
            }
            Err(_) => self.in_silence(t, pass.as_ref(), moves.sent()),
        }
    }

    /// The command is over without a response, but for one that another nexus has aborted where the control mode page wants its
    /// host to be told (TAS).
    fn in_silence(&self, t: &Task, pass: Option<&Pass>, sent: u32) {
        let tas = !t.stopped()
            && pass.is_some_and(|p| match p.end() {
                Some(End::Aborted(by)) if by != self.nexus() => {
                    p.unit().shared().with(|s| s.task_aborted_status())
                }
                _ => false,
            });
        if tas {
            // Of what has come nothing counts.
            let residual = Residual::new(u64::MAX, t.out_len.max(t.in_len), 0);
            let r = Response::scsi(t.itt, Status::TaskAborted.code(), residual, 0).with32(36, sent);
            self.send_out(r, Data::Bytes(Vec::new()), t.place.take(), None);
        } else {
            drop(t.place.take());
            self.tell_window();
        }
    }
}

impl Moves<'_> {
    fn new(task: &Rc<Task>) -> Moves<'_> {
        Moves {
            task,
            watch: None,
            outgoing: Outgoing::default(),
            held: None,
            r2t_sn: 0,
            delivered: 0,
        }
    }

    /// It has no further effect, as it is.
    fn is_over(&self) -> bool {
        self.task.stopped() || self.watch.as_ref().is_some_and(Watch::is_void)
    }

    /// Waits for what is up to its initiator, or to others of its host.
    ///
    /// # Errors
    /// It was aborted or fenced meanwhile.
    async fn unless_over<R>(&self, wait: impl Future<Output = R>) -> Result<R, Stop> {
        let void = async {
            match &self.watch {
                Some(w) => w.voided().await,
                None => std::future::pending().await,
            }
        };
        let done = unless(void, unless(self.task.halted(), wait)).await.flatten();
        done.filter(|_| !self.is_over()).ok_or(Stop)
    }

    /// Sends what was held back: it is not the last one.
    fn let_go(&mut self, last: bool) {
        if let Some(mut h) = self.held.take() {
            if last {
                h.head.bhs[1] |= 0x80;
            }
            self.task.conn.send_out(h.head, Data::Slice(h.data), None, None);
        }
    }

    /// PDUs of data and R2Ts that have been sent: ExpDataSN.
    fn sent(&self) -> u32 {
        self.outgoing.count() - u32::from(self.held.is_some()) + self.r2t_sn
    }

    /// Waits for data of the initiator.
    async fn comes(&self) -> Result<(), Stop> {
        if !self.is_over() && self.unless_over(self.task.came.wait()).await.is_ok() {
            return Ok(());
        }
        self.task.turns_down();
        Err(Stop)
    }

    /// Waits as long as data that are queued already are enough. Data cost an initiator nothing that has not taken them, and others
    /// memory.
    async fn room(&self) -> Result<(), Stop> {
        let conn = &self.task.conn;
        while conn.is_full() && !self.is_over() {
            self.unless_over(conn.room.wait()).await?;
        }
        if self.is_over() { Err(Stop) } else { Ok(()) }
    }

    fn respond(&mut self, o: &Outcome) {
        let t = self.task;
        let (command, expected, moved) = match t.out_len {
            0 if o.command_out > 0 => (o.command_out, 0, o.moved_out),
            0 => (o.command_in, t.in_len, o.moved_in),
            n => (o.command_out, n, o.moved_out),
        };
        // Of what went well all was moved that could be: of a write, whole blocks.
        let moved = if o.status == Status::Good.code() { expected } else { moved };
        let residual = Residual::new(command, expected, moved);
        let good = o.status == Status::Good.code() && !o.has_sense() && t.out_len == 0;
        if let Some(h) = self.held.take_if(|_| good && !has(Bug::StatusBeforeData)) {
            let head = h.head.and_good(residual);
            return t.conn.send_out(head, Data::Slice(h.data), t.place.take(), None);
        }
        if !has(Bug::StatusBeforeData) {
            self.let_go(true);
        }
        let mut data = Vec::new();
        if o.has_sense() {
            let mut sense = [0; SENSE_LEN_MAX];
            let n = o.encode_sense(&mut sense);
            data.extend_from_slice(&(n as u16).to_be_bytes());
            data.extend_from_slice(&sense[..n]);
        }
        let mut r = Response::scsi(t.itt, o.status, residual, data.len().saturating_sub(2));
        r = r.with32(36, self.sent());
        if t.out_len > 0 && t.in_len > 0 {
            // The other direction of a bidirectional command (RFC 7143 11.4.5).
            let back = Residual::new(o.command_in, t.in_len, o.moved_in);
            r.bhs[1] |= back.flags() << 2;
            r = r.with32(40, back.count());
        }
        t.conn.send_out(r, Data::Bytes(data), t.place.take(), None);
        self.let_go(true);
    }

    /// Unsolicited data that are at hand for `len` bytes from `at` on are put into `into`. Gives how many.
    fn early(&self, at: u64, into: &Slice) -> usize {
        let (have, early) = (u64::from(self.task.have.get()), self.task.early.borrow());
        let Some(e) = early.as_ref().filter(|_| at < have) else { return 0 };
        let n = ((have - at) as usize).min(into.len());
        if e.as_ptr().wrapping_add(at as usize) != into.as_ptr() {
            into.copy_from(0, e, at as usize, n);
        }
        n
    }
}

impl Transfer for Moves<'_> {
    fn begins(&mut self, pass: &Pass) {
        self.watch = Some(pass.watch());
    }

    fn out_len(&self) -> u64 {
        self.task.out_len.into()
    }

    fn in_len(&self) -> u64 {
        self.task.in_len.into()
    }

    fn immediate(&self) -> Option<Slice> {
        None
    }

    fn needs_stable_data(&self) -> bool {
        // What has a digest must not change behind it.
        self.task.conn.params.get().digests.data
    }

    fn stopped(&self) -> bool {
        self.task.stopped()
    }

    async fn halted(&self) {
        self.task.halted().await;
    }

    async fn buffer(&mut self, len: usize) -> Result<Lent, Stop> {
        self.let_go(false);
        let (t, share) = (self.task, &self.task.conn.share);
        let staged = t.staged.take();
        if let Some(mut lent) = staged {
            if lent.len() >= len && t.is_write() {
                lent.narrow(len);
                return Ok(lent);
            }
            // It is copied from there.
            *t.staged.borrow_mut() = Some(lent);
        } else {
            // That was the command's own, which goes back now.
            t.early.take();
        }
        if len > share.max_len() {
            return Err(Stop);
        }
        if let Some(b) = t.purse.try_take(share, len) {
            return Ok(b);
        }
        // Whoever holds a buffer never waits for another. What came is asked for again.
        drop(t.staged.take());
        drop(t.early.take());
        self.unless_over(t.purse.take(share, len)).await
    }

    fn piece(&self, len: usize) -> usize {
        match &*self.task.staged.borrow() {
            // Only these are given it.
            Some(s) if self.task.is_write() => len.min(s.len()),
            _ => self.task.conn.share.piece(len),
        }
    }

    async fn fetch(&mut self, at: u64, into: Slice) -> Result<(), Stop> {
        let t = self.task;
        // Also of what it has asked for before it began anew: no more than that may be under way.
        while t.is_owed() || !t.is_answered() {
            self.comes().await?;
        }
        let mut done = self.early(at, &into);
        let most = t.conn.params.get().max_burst as usize;
        while done < into.len() {
            if t.stopped() {
                return Err(Stop);
            }
            let n = (into.len() - done).min(most);
            let (from, ttt) = (at as u32 + done as u32, t.conn.tag());
            t.ask(ttt, from, into.sub(done, n));
            let r2t = Response::r2t(t.itt, t.lun.0, ttt, self.r2t_sn, from, n as u32);
            self.r2t_sn += 1;
            t.conn.push(r2t, Vec::new());
            let is_last = done + n == into.len();
            while !(t.is_answered() || is_last && has(Bug::LastDataNotAwaited)) {
                self.comes().await?;
            }
            done += n;
        }
        if t.stopped() { Err(Stop) } else { Ok(()) }
    }

    async fn deliver(&mut self, at: u64, from: Slice) -> Result<(), Stop> {
        let (t, params) = (self.task, self.task.conn.params.get());
        // One that has begun anew goes on behind what it has sent (DataPDUInOrder).
        let mut done = (self.delivered.saturating_sub(at) as usize).min(from.len());
        while done < from.len() {
            if t.stopped() {
                return Err(Stop);
            }
            if self.held.is_some() {
                self.room().await?;
            }
            self.let_go(false);
            let d = self.outgoing.next(&params, (from.len() - done) as u32);
            let offset = at as u32 + done as u32;
            let head = Response::data_in(t.itt, d.data_sn, offset, d.len as usize, d.ends);
            self.held = Some(Held { head, data: from.sub(done, d.len as usize) });
            done += d.len as usize;
            self.delivered = at + done as u64;
        }
        Ok(())
    }
}

/// Answers a task management function.
pub(crate) fn managed(conn: &Conn, itt: u32, code: u8, aside: crate::send::Aside) {
    let r = Response::new(op::TASK_RESPONSE, 0x80, itt, Stat::Takes).with(2, &[code]);
    conn.send_out(r, Data::Bytes(Vec::new()), None, Some(aside));
}
