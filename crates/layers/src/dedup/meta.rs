//! Records of slots: a bounded part of them in memory, and how they change.
//!
//! What is in memory is what is durable. Changes of a group wait together for its block, of which one write is under way
//! at a time, and take effect when that has ended.

use super::Inner;
use super::format::{META, Place, Record, SLOTS, home, is_sound, read_record, write_record};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_reactor::WaitChannel;

/// Groups whose kinds are kept together.
const PAGE: u64 = 4096;

/// A change of one record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// One more refers to the slot.
    More(usize),
    /// One less does.
    Less(usize),
    /// The data of the chunk is there from now on.
    Place(usize, Place),
    /// Nothing is known of either any more: the slot is cut off.
    Clear(usize),
    /// So many refer to it as have been counted, and those that are about to.
    Counted(usize),
}

/// A change that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) error: IoError,
    /// It has surely not happened.
    pub(super) undone: bool,
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Failure {
        Failure { error, undone: true }
    }
}

/// What is known of a group without its records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    /// All of its records are zeros.
    Blank,
    Written,
    /// It had no slot to give when that was last looked at.
    Full,
}

/// Records of a group in memory.
pub(super) struct Group {
    pub(super) number: u64,
    records: RefCell<Box<[Record; SLOTS as usize]>>,
    loaded: Cell<bool>,
    /// They were right once: what differs from them has changed since.
    known: Cell<bool>,
    /// The block is being read or written.
    busy: Cell<bool>,
    /// What the next write is to change, and what the present one does.
    pending: RefCell<Vec<Op>>,
    flying: RefCell<Vec<Op>>,
    /// Number of the next write; those before `ended` have ended.
    batch: Cell<u64>,
    ended: Cell<u64>,
    failures: RefCell<Vec<(u64, Failure)>>,
    waiting: Cell<usize>,
    changed: WaitChannel,
    recent: Cell<bool>,
}

impl Group {
    fn new(number: u64) -> Group {
        Group {
            number,
            records: RefCell::new(Box::new([Record::default(); SLOTS as usize])),
            loaded: Cell::new(false),
            known: Cell::new(false),
            busy: Cell::new(false),
            pending: RefCell::default(),
            flying: RefCell::default(),
            batch: Cell::new(0),
            ended: Cell::new(0),
            failures: RefCell::default(),
            waiting: Cell::new(0),
            changed: WaitChannel::new(0),
            recent: Cell::new(true),
        }
    }

    pub(super) fn record(&self, k: usize) -> Record {
        self.records.borrow().get(k).copied().unwrap_or_default()
    }

    /// All of them, for a look.
    pub(super) fn records<R>(&self, f: impl FnOnce(&[Record]) -> R) -> R {
        f(&self.records.borrow()[..])
    }

    fn result(&self, batch: u64) -> Result<(), Failure> {
        let failures = self.failures.borrow();
        failures.iter().find(|(n, _)| *n == batch).map_or(Ok(()), |(_, e)| Err(*e))
    }
}

/// The block of a group is used by nobody else.
struct Busy<'a>(&'a Group);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.changed.signal_all();
    }
}

struct Waits<'a>(&'a Group);

impl<'a> Waits<'a> {
    fn new(g: &'a Group) -> Waits<'a> {
        g.waiting.set(g.waiting.get() + 1);
        Waits(g)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        if self.0.waiting.get() == 0 {
            self.0.failures.borrow_mut().clear();
        }
    }
}

/// What is known of groups without waiting.
pub(super) enum Peek {
    Unknown,
    Blank,
    Loaded(Rc<Group>),
}

/// Two bits for each of some groups in a row.
type Kinds = [u8; PAGE as usize / 4];

fn kind_in(page: &Kinds, group: u64) -> Kind {
    match page[(group % PAGE / 4) as usize] >> (group % 4 * 2) & 3 {
        0 => Kind::Unknown,
        1 => Kind::Blank,
        2 => Kind::Written,
        _ => Kind::Full,
    }
}

/// The groups in memory.
pub(super) struct Groups {
    map: RefCell<BTreeMap<u64, Rc<Group>>>,
    order: RefCell<VecDeque<u64>>,
    /// Of those that were used.
    kinds: RefCell<BTreeMap<u64, Box<Kinds>>>,
    most: usize,
}

impl Groups {
    /// Keeps the records of groups in so many bytes.
    pub(super) fn new(bytes: usize) -> Groups {
        Groups {
            map: RefCell::default(),
            order: RefCell::default(),
            kinds: RefCell::default(),
            most: (bytes / (META + 256)).max(2),
        }
    }

    pub(super) fn clear(&self) {
        self.map.borrow_mut().clear();
        self.order.borrow_mut().clear();
        self.kinds.borrow_mut().clear();
    }

    fn kind(&self, group: u64) -> Kind {
        let kinds = self.kinds.borrow();
        kinds.get(&(group / PAGE)).map_or(Kind::Unknown, |page| kind_in(page, group))
    }

    fn set_kind(&self, group: u64, kind: Kind) {
        let mut kinds = self.kinds.borrow_mut();
        let page = kinds.entry(group / PAGE).or_insert_with(|| Box::new([0; PAGE as usize / 4]));
        let (byte, shift) = (&mut page[(group % PAGE / 4) as usize], group % 4 * 2);
        *byte = *byte & !(3 << shift) | (kind as u8) << shift;
    }

    pub(super) fn is_unknown(&self, group: u64) -> bool {
        self.kind(group) == Kind::Unknown
    }

    /// Whether it has surely no slot to give.
    pub(super) fn is_full(&self, group: u64) -> bool {
        self.kind(group) == Kind::Full
    }

    pub(super) fn set_full(&self, group: u64) {
        self.set_kind(group, Kind::Full);
    }

    fn set_written(&self, group: u64) {
        if self.kind(group) == Kind::Blank {
            self.set_kind(group, Kind::Written);
        }
    }

    /// Of `count` groups from `group` on nothing was ever written a moment ago: how many there are of which that still is so. It
    /// is not noted of each: a large volume has too many.
    pub(super) fn still_blank(&self, group: u64, count: u64) -> u64 {
        let end = group.saturating_add(count);
        // Of those that have no page nothing is known.
        for (number, page) in self.kinds.borrow().range(group / PAGE..end.div_ceil(PAGE)) {
            let first = number * PAGE;
            let mut at = first.max(group);
            while at < end.min(first + PAGE) {
                // Four at a time: the upper bit of each is set when something was written.
                if at.is_multiple_of(4) && page[((at - first) / 4) as usize] & 0xaa == 0 {
                    at += 4;
                } else if matches!(kind_in(page, at), Kind::Unknown | Kind::Blank) {
                    at += 1;
                } else {
                    return at - group;
                }
            }
        }
        count
    }

    /// Whether something was written there, as far as is known.
    pub(super) fn is_written(&self, group: u64) -> bool {
        matches!(self.kind(group), Kind::Written | Kind::Full)
    }

    pub(super) fn peek(&self, group: u64) -> Peek {
        if self.kind(group) == Kind::Blank {
            return Peek::Blank;
        }
        match self.map.borrow().get(&group) {
            Some(g) if g.loaded.get() => {
                g.recent.set(true);
                Peek::Loaded(g.clone())
            }
            _ => Peek::Unknown,
        }
    }

    /// The group in memory, whatever is known of it.
    fn entry(&self, group: u64) -> Rc<Group> {
        let mut map = self.map.borrow_mut();
        if let Some(g) = map.get(&group) {
            return g.clone();
        }
        let mut order = self.order.borrow_mut();
        let mut tries = 64;
        while map.len() >= self.most
            && tries > 0
            && let Some(n) = order.pop_front()
        {
            tries -= 1;
            let free = |g: &Rc<Group>| {
                Rc::strong_count(g) == 1 && g.loaded.get() && !g.recent.replace(false)
            };
            match map.get(&n).is_none_or(free) {
                true => drop(map.remove(&n)),
                false => order.push_back(n),
            }
        }
        let new = Rc::new(Group::new(group));
        map.insert(group, new.clone());
        order.push_back(group);
        new
    }
}

impl Inner {
    /// The records of a group. `None`: all of them are zeros. To be used before anything is waited for.
    pub(super) async fn view(&self, group: u64) -> Result<Option<Rc<Group>>, IoError> {
        match self.groups.peek(group) {
            Peek::Blank => return Ok(None),
            Peek::Loaded(g) => return Ok(Some(g)),
            Peek::Unknown => {}
        }
        let g = self.groups.entry(group);
        loop {
            if g.loaded.get() {
                let blank = self.groups.kind(group) == Kind::Blank;
                return Ok((!blank).then_some(g));
            }
            if g.busy.replace(true) {
                g.changed.wait().await;
                continue;
            }
            let _busy = Busy(&g);
            self.load(&g).await?;
        }
    }

    async fn load(&self, g: &Group) -> IoResult {
        let buf = self.meta_memory().await?;
        self.lower.read(self.layout.group(g.number), buf.clone()).await?;
        if g.known.replace(true) {
            self.adopt(g, &buf);
        } else {
            let mut records = g.records.borrow_mut();
            records.iter_mut().enumerate().for_each(|(k, r)| *r = read_record(&buf, k));
        }
        g.loaded.set(true);
        if self.groups.is_unknown(g.number) {
            let blank = g.records(|all| all.iter().all(|r| *r == Record::default()));
            self.groups.set_kind(g.number, if blank { Kind::Blank } else { Kind::Written });
        }
        Ok(())
    }

    /// The record of a chunk.
    pub(super) async fn record(&self, chunk: u64) -> Result<Record, IoError> {
        let group = home(chunk) / SLOTS;
        match self.view(group).await? {
            None => Ok(Record::default()),
            Some(g) => self.sound(chunk, &g),
        }
    }

    /// The record of a chunk, if it can be right.
    pub(super) fn sound(&self, chunk: u64, g: &Group) -> Result<Record, IoError> {
        let record = g.record((home(chunk) % SLOTS) as usize);
        let (whole, groups) = (self.whole(), self.group_count());
        let mut sound = g.records(|all| is_sound(record, chunk, all, whole, groups));
        if let Place::Slot(s) = record.place()
            && let Peek::Loaded(other) = self.groups.peek(s / SLOTS)
        {
            sound &= other.record((s % SLOTS) as usize).count() > 0;
        }
        if sound { Ok(record) } else { Err(IoError::Medium) }
    }

    /// How many refer to a slot at most.
    pub(super) async fn count(&self, slot: u64) -> Result<u32, IoError> {
        let group = self.view(slot / SLOTS).await?;
        Ok(group.map_or(0, |g| g.record((slot % SLOTS) as usize).count()))
    }

    /// Makes changes of a group durable, all of them or none.
    pub(super) async fn commit(&self, group: u64, ops: &[Op]) -> Result<(), Failure> {
        let _some = self.committing();
        self.open_up().await?;
        let g = self.groups.entry(group);
        if self.groups.kind(group) == Kind::Blank {
            g.loaded.set(true);
            g.known.set(true);
            self.groups.set_written(group);
        }
        for op in ops {
            if let Op::More(k) = op {
                self.owe(group * SLOTS + *k as u64, 1);
            }
        }
        g.pending.borrow_mut().extend_from_slice(ops);
        let mine = g.batch.get();
        let _waits = Waits::new(&g);
        loop {
            if g.ended.get() > mine {
                return g.result(mine);
            }
            if g.busy.replace(true) {
                g.changed.wait().await;
                continue;
            }
            let _busy = Busy(&g);
            self.fly(&g).await;
        }
    }

    /// Writes what waits.
    async fn fly(&self, g: &Group) {
        let batch = g.batch.get();
        g.batch.set(batch + 1);
        g.pending.swap(&g.flying);
        let done = self.write_records(g).await;
        for op in g.flying.borrow_mut().drain(..) {
            let slot = |k: usize| g.number * SLOTS + k as u64;
            match (op, &done) {
                (Op::More(k), Err(Failure { undone: true, .. })) => self.owe(slot(k), -1),
                // One that failed is not tried again: a recount is to put it right, and is not to expect it.
                (Op::Less(k), _) => self.owe(slot(k), -1),
                _ => {}
            }
        }
        if let Err(e) = done {
            g.failures.borrow_mut().push((batch, e));
        }
        g.ended.set(batch + 1);
    }

    async fn write_records(&self, g: &Group) -> Result<(), Failure> {
        if !g.loaded.get() {
            self.load(g).await?;
        }
        self.groups.set_written(g.number);
        let buf = self.meta_memory().await?;
        g.records(|all| all.iter().enumerate().for_each(|(k, r)| write_record(&buf, k, *r)));
        let change = |k: usize, f: &dyn Fn(Record) -> Record| {
            write_record(&buf, k, f(read_record(&buf, k)));
        };
        for op in g.flying.borrow().iter() {
            match *op {
                Op::More(k) => change(k, &|r| r.with_count(r.count().saturating_add(1))),
                Op::Less(k) => change(k, &|r| r.with_count(r.count().saturating_sub(1))),
                Op::Place(k, place) => change(k, &|r| r.with_place(place)),
                Op::Clear(k) => change(k, &|_| Record::default()),
                Op::Counted(_) => {}
            }
        }
        // Those take into account what the others have just changed.
        for op in g.flying.borrow().iter() {
            if let Op::Counted(k) = *op {
                change(k, &|r| self.counted(g.number * SLOTS + k as u64, r));
            }
        }
        let at = self.layout.group(g.number);
        let Err(error) = self.lower.write(at, buf.clone(), true).await else {
            self.adopt(g, &buf);
            return Ok(());
        };
        // It may have happened.
        let sent = buf.to_vec();
        if self.lower.read(at, buf.clone()).await.is_ok() {
            if buf.to_vec() == sent {
                self.adopt(g, &buf);
                return Ok(());
            }
            let same =
                |all: &[Record]| all.iter().enumerate().all(|(k, r)| *r == read_record(&buf, k));
            if g.records(same) {
                return Err(Failure { error, undone: true });
            }
        }
        g.loaded.set(false);
        self.account.has_leaked();
        Err(Failure { error, undone: false })
    }

    /// Takes what is durable now for what is known.
    fn adopt(&self, g: &Group, block: &Slice) {
        let mut saved = 0;
        for k in 0..SLOTS as usize {
            let (old, new) = (g.record(k), read_record(block, k));
            if old == new {
                continue;
            }
            saved += new.saves(k) - old.saves(k);
            if let Some(r) = g.records.borrow_mut().get_mut(k) {
                *r = new;
            }
            if (k as u64) < super::format::PER && old.place() != new.place() {
                self.moved(g.number, old.place(), new.place());
            }
            if new.count() == 0 && self.groups.is_full(g.number) {
                self.groups.set_kind(g.number, Kind::Written);
            }
        }
        self.saved_more(g.number, saved);
    }
}
