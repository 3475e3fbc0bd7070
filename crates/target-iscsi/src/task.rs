//! One command, and the data that its initiator sends for it.

use crate::conn::Conn;
use crate::order::Place;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_mem::{Lent, Purse, Slice};
use weir_proto_iscsi::bhs::{Additional, Request};
use weir_proto_iscsi::sequence::{Incoming, Stray};
use weir_proto_scsi::lun::Lun;
use weir_reactor::WaitChannel;

/// CDB bytes kept; longer ones are of no command that we know.
const CDB: usize = 32;

/// Commands that take their first buffer for the first of their data, and for nothing before that: WRITE of any length, COMPARE
/// AND WRITE.
const WRITES: [u8; 5] = [0x0a, 0x2a, 0x8a, 0xaa, 0x89];

/// A command from its header until its end.
pub(crate) struct Task {
    pub(crate) conn: Rc<Conn>,
    pub(crate) itt: u32,
    pub(crate) cmd_sn: u32,
    pub(crate) lun: Lun,
    cdb: [u8; CDB],
    cdb_len: usize,
    /// Bytes that its initiator has to send, and room for.
    pub(crate) out_len: u32,
    pub(crate) in_len: u32,
    aborted: Cell<bool>,
    /// Its turn has come.
    pub(crate) begun: Cell<bool>,
    /// It has done its work, and waits for the end of others.
    pub(crate) waits: Cell<bool>,
    /// Nothing of its data is of use any more.
    done: Cell<bool>,
    over: Cell<bool>,
    /// Signalled when it is aborted.
    pub(crate) stop: WaitChannel,
    /// Signalled when data have come, and when it is aborted.
    pub(crate) came: WaitChannel,
    /// Signalled at its end.
    pub(crate) ended: WaitChannel,
    pub(crate) purse: Purse,
    /// Where unsolicited data are put, from the first byte of DATA-OUT on, as long as the command has not got it for its own.
    pub(crate) staged: RefCell<Option<Lent>>,
    /// The same memory, as long as unsolicited data are of use there.
    pub(crate) early: RefCell<Option<Slice>>,
    /// Unsolicited bytes that are there.
    pub(crate) have: Cell<u32>,
    unsolicited: Cell<Option<Incoming>>,
    solicited: Cell<Option<Incoming>>,
    /// Where solicited data are put, and the byte of DATA-OUT that it begins with.
    sink: RefCell<Option<(Slice, u32)>>,
    pub(crate) place: Cell<Option<Place>>,
}

impl Task {
    /// A command as its header says; `additional` is what belongs to that.
    pub(crate) fn new(conn: &Rc<Conn>, r: &Request, additional: &[u8]) -> Rc<Task> {
        let more = Additional::decode(additional).unwrap_or_default();
        let mut cdb = [0; CDB];
        let bytes = r.cdb().iter().chain(more.cdb);
        let cdb_len = bytes.clone().count().min(CDB);
        cdb.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let (reads, writes) = (r.flags() & 0x40 != 0, r.flags() & 0x20 != 0);
        let expected = r.word20();
        let in_len = match (reads, writes) {
            (true, true) => more.read_len.unwrap_or(0),
            (true, false) => expected,
            _ => 0,
        };
        Rc::new(Task {
            conn: conn.clone(),
            itt: r.itt(),
            cmd_sn: r.cmd_sn(),
            lun: Lun(r.lun()),
            cdb,
            cdb_len,
            out_len: if writes { expected } else { 0 },
            in_len,
            aborted: Cell::new(false),
            begun: Cell::new(false),
            waits: Cell::new(false),
            done: Cell::new(false),
            over: Cell::new(false),
            stop: WaitChannel::new(0),
            came: WaitChannel::new(0),
            ended: WaitChannel::new(0),
            purse: Purse::default(),
            staged: RefCell::default(),
            early: RefCell::default(),
            have: Cell::new(0),
            unsolicited: Cell::default(),
            solicited: Cell::default(),
            sink: RefCell::default(),
            place: Cell::new(Some(Place::new(conn, r.is_immediate()))),
        })
    }

    /// Its CDB.
    pub(crate) fn cdb(&self) -> &[u8] {
        self.cdb.get(..self.cdb_len).unwrap_or_default()
    }

    /// It takes its first buffer for the first of its data.
    pub(crate) fn is_write(&self) -> bool {
        self.cdb().first().is_some_and(|op| WRITES.contains(op))
    }

    /// `all` bytes come without having been asked for, `immediate` of them with the command. Where no memory is at hand they are
    /// passed over, and asked for later: to wait here would hold up what other commands wait for.
    pub(crate) fn announce(&self, immediate: u32, all: u32) {
        let share = &self.conn.share;
        // What the command will want first, so that it need not be copied.
        let len = (self.out_len as usize).min(share.max_len());
        if all as usize <= len
            && let Some(lent) = self.purse.try_take(share, len)
        {
            *self.early.borrow_mut() = Some(lent.clone());
            *self.staged.borrow_mut() = Some(lent);
        }
        self.unsolicited.set(Some(Incoming::new(weir_proto_iscsi::NO_TAG, immediate, all)));
    }

    /// Immediate data are whole; with `last` nothing else comes unsolicited.
    pub(crate) fn has_begun_to_come(&self, immediate: u32, last: bool) {
        self.have.set(immediate);
        if last {
            self.unsolicited.set(None);
        }
    }

    /// Data come as `r` says. Gives where they belong.
    pub(crate) fn takes(&self, r: &Request) -> Result<u32, Stray> {
        let cell = match r.word20() {
            weir_proto_iscsi::NO_TAG => &self.unsolicited,
            _ => &self.solicited,
        };
        let mut seq = cell.get().filter(|s| s.ttt == r.word20()).ok_or(Stray)?;
        let at = seq.take(r.data_sn(), r.offset(), r.data_len(), r.is_final())?;
        cell.set(Some(seq));
        Ok(at)
    }

    /// What [came](Task::takes) is whole.
    pub(crate) fn has_come(&self, r: &Request) {
        if r.word20() == weir_proto_iscsi::NO_TAG {
            self.have.set(r.offset() + r.data_len());
            if r.is_final() {
                self.unsolicited.set(None);
            }
        } else if r.is_final() {
            self.solicited.set(None);
            self.sink.take();
        }
        if r.is_final() {
            self.came.signal_all();
        }
    }

    /// Memory for data at byte `at` of DATA-OUT, up to the end of what belongs there. `None`: they are passed over.
    pub(crate) fn room(&self, ttt: u32, at: u32) -> Option<Slice> {
        let (slice, from) = match ttt {
            weir_proto_iscsi::NO_TAG => (self.early.borrow().clone()?, 0),
            _ => self.sink.borrow().clone()?,
        };
        let skip = at.checked_sub(from)? as usize;
        (skip < slice.len()).then(|| slice.sub(skip, slice.len() - skip))
    }

    /// Unsolicited data are on their way.
    pub(crate) fn is_owed(&self) -> bool {
        self.unsolicited.get().is_some()
    }

    /// Asks for what belongs into `into`, from byte `at` on.
    pub(crate) fn ask(&self, ttt: u32, at: u32, into: Slice) {
        self.solicited.set(Some(Incoming::new(ttt, at, at + into.len() as u32)));
        *self.sink.borrow_mut() = Some((into, at));
    }

    /// What comes of what was asked for is passed over.
    pub(crate) fn turns_down(&self) {
        self.sink.take();
    }

    /// What was asked for is there.
    pub(crate) fn is_answered(&self) -> bool {
        self.solicited.get().is_none()
    }

    /// Nothing more of its data is of use.
    pub(crate) fn needs_no_more(&self) {
        self.done.set(true);
        self.solicited.set(None);
        self.sink.take();
        self.staged.take();
        self.early.take();
    }

    /// Data that come for it are passed over.
    pub(crate) fn is_done(&self) -> bool {
        self.done.get()
    }

    /// It waits for its initiator.
    pub(crate) fn lacks_data(&self) -> bool {
        self.is_owed() || !self.is_answered()
    }

    /// It ends without an answer.
    pub(crate) fn abort(&self) {
        self.aborted.set(true);
        self.stop.signal_all();
        self.came.signal_all();
    }

    /// There is no answer to it any more.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.get()
    }

    /// True when it is to end without further effect.
    pub(crate) fn stopped(&self) -> bool {
        self.aborted.get() || self.conn.is_over()
    }

    /// Waits until it is [`stopped`](Task::stopped).
    pub(crate) async fn halted(&self) {
        while !self.stopped() {
            self.stop.wait().await;
        }
    }

    /// It is over.
    pub(crate) fn end(&self) {
        self.over.set(true);
        self.needs_no_more();
        self.ended.signal_all();
    }

    /// Waits until it can have no effect any more.
    pub(crate) async fn has_ended(&self) {
        while !self.over.get() && !self.waits.get() {
            self.ended.wait().await;
        }
    }
}
