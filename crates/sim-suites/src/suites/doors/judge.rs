//! Says of everything that happens whether it may: what lands on the medium, what hosts read and are told.

use super::book::{Book, Content, Fence, HIDDEN, NO_READ, NO_WRITE, READ, WRITE};
use super::spc::{Act, Code, Pair, Said};
use crate::srp::Fault;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::{MILLIS, Nanos};
use weir_sim::Time;
use weir_sim::check::blocks::{self, BLOCK, fill_block, read_block};

/// By then a message that nothing holds up has come to the target and was looked at.
const ARRIVED: Nanos = 50 * MILLIS;

/// What a long run must have done.
const FIGURES: &[&str] = &[
    "logins",
    "writes",
    "reads verified",
    "compared and written",
    "compared and different",
    "media commands refused by reservations",
    "attentions",
    "attentions demanded and told",
    "reservation commands",
    "reservation conflicts",
    "reservations refused, not kept",
    "other reservation commands",
    "reserved",
    "released",
    "preempted",
    "preempted and aborted",
    "cleared",
    "moved",
    "reserved by RESERVE(6)",
    "resets",
    "task sets ended",
    "mode pages changed",
    "unmappings",
    "deletions",
    "other volume at a LUN",
    "reverts",
    "resizes",
    "hosts stopped",
    "partitions",
    "channels cut",
    "writes aborted",
    "writes of volumes in memory",
    "units that keep attentions",
];

/// A host's way to the node: a nexus.
pub(super) struct PathInfo {
    pub(super) host: usize,
    pub(super) pair: Pair,
    /// Logins so far.
    pub(super) epoch: Cell<u32>,
    /// Volumes that this nexus has been answered by since its login.
    met: RefCell<BTreeSet<u32>>,
}

/// Where a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its end is not known.
    Open,
    /// It was done, or ended: nothing of it happens any more.
    Over(Nanos),
    /// It was refused: nothing of it happens at all.
    Refused,
}

struct Write {
    path: usize,
    epoch: u32,
    volume: u32,
    first: u64,
    count: u64,
    begun: Nanos,
    /// When its message was handed to the network.
    sent: Option<Nanos>,
    /// Of a COMPARE AND WRITE: what must be there.
    expects: Option<Content>,
    end: End,
    landed: u64,
}

/// Names a promise that is being made.
#[derive(Debug, Clone, Copy)]
pub(super) struct FenceId(u32, usize);

/// Everything that is known, and what is wrong.
pub(super) struct Judge {
    pub(super) time: Time,
    pub(super) fault: Fault,
    pub(super) paths: Vec<PathInfo>,
    nexuses: Vec<(usize, Pair)>,
    /// By number, less one.
    books: RefCell<Vec<Book>>,
    writes: RefCell<Vec<Write>>,
    /// The volume that each place of the medium belongs to.
    owners: RefCell<Vec<Option<u32>>>,
    /// When messages of a host may have been held up. `None`: always.
    delays: Option<RefCell<Vec<(usize, Nanos, Nanos)>>>,
    figures: RefCell<BTreeMap<&'static str, u64>>,
    /// Connections may be lost without their hosts' knowledge.
    fragile: Cell<bool>,
}

impl Judge {
    /// `punctual`: the network delays nothing by itself.
    pub(super) fn new(
        time: Time,
        paths: Vec<(usize, Pair)>,
        slots: usize,
        punctual: bool,
    ) -> Judge {
        let info = |(host, pair): &(usize, Pair)| PathInfo {
            host: *host,
            pair: *pair,
            epoch: Cell::new(0),
            met: RefCell::default(),
        };
        Judge {
            time,
            fault: Fault::default(),
            paths: paths.iter().map(info).collect(),
            nexuses: paths,
            books: RefCell::default(),
            writes: RefCell::default(),
            owners: RefCell::new(vec![None; slots]),
            delays: punctual.then(RefCell::default),
            figures: RefCell::default(),
            fragile: Cell::new(!punctual),
        }
    }

    pub(super) fn now(&self) -> Nanos {
        self.time.now()
    }

    /// Something is wrong.
    pub(super) fn wrong(&self, what: String) {
        self.fault.set(format!("{} ns: {what}", self.now()));
    }

    fn check<T: Default>(&self, r: Result<T, String>) -> T {
        r.unwrap_or_else(|what| {
            self.wrong(what);
            T::default()
        })
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.fault.get().is_some()
    }

    /// Counts something that was done.
    pub(super) fn count(&self, what: &'static str) {
        *self.figures.borrow_mut().entry(what).or_default() += 1;
    }

    pub(super) fn figures(&self) -> BTreeMap<&'static str, u64> {
        let mut all: BTreeMap<&'static str, u64> = FIGURES.iter().map(|n| (*n, 0)).collect();
        all.extend(self.figures.borrow().iter());
        let met = self.books.borrow().iter().map(|b| b.attentions.met).sum::<u64>();
        *all.entry("attentions demanded and told").or_default() += met;
        all
    }

    // Volumes.

    /// How many have been made.
    fn volumes(&self) -> u32 {
        self.books.borrow().len() as u32
    }

    /// Runs `f` on what is known of a volume; what is possible may be something else afterwards.
    pub(super) fn change<R>(&self, volume: u32, f: impl FnOnce(&mut Book) -> R) -> R {
        let now = self.now();
        let mut books = self.books.borrow_mut();
        let b = &mut books[volume as usize - 1];
        let r = f(b);
        b.note(&self.nexuses, now);
        r
    }

    /// Runs `f` on what is known of a volume.
    pub(super) fn with<R>(&self, volume: u32, f: impl FnOnce(&mut Book) -> R) -> R {
        f(&mut self.books.borrow_mut()[volume as usize - 1])
    }

    /// A volume that is made in a place. Gives its number.
    pub(super) fn new_volume(
        &self,
        slot: usize,
        blocks: u64,
        most: u64,
        direct: bool,
        delay: Nanos,
    ) -> u32 {
        let mut books = self.books.borrow_mut();
        books.push(Book::new(slot, blocks, most, direct, delay, self.now()));
        let number = books.len() as u32;
        drop(books);
        self.owners.borrow_mut()[slot] = Some(number);
        self.change(number, |_| ());
        number
    }

    /// A volume's place is nobody's.
    pub(super) fn free(&self, volume: u32) {
        let slot = self.change(volume, |b| {
            b.lives = false;
            b.slot
        });
        self.owners.borrow_mut()[slot] = None;
    }

    // Ends that are promised.

    /// An end is asked for, of commands of these nexuses or all.
    pub(super) fn fence(
        &self,
        volume: u32,
        of: Option<BTreeSet<Pair>>,
        why: &'static str,
    ) -> FenceId {
        let began = self.now();
        self.with(volume, |b| {
            b.fences.push(Fence { of, began, ended: None, why });
            FenceId(volume, b.fences.len() - 1)
        })
    }

    /// It was promised.
    pub(super) fn fenced(&self, id: FenceId) {
        if std::env::var("DOORS_SKIP").is_ok_and(|s| s.contains('f')) {
            return;
        }
        let now = self.now();
        self.with(id.0, |b| b.fences[id.1].ended = Some(now));
    }

    /// It was promised of the commands of these nexuses.
    pub(super) fn fenced_of(&self, id: FenceId, of: BTreeSet<Pair>) {
        self.with(id.0, |b| b.fences[id.1].of = Some(of));
        self.fenced(id);
    }

    /// All nexuses of a host.
    pub(super) fn pairs_of(&self, host: usize) -> BTreeSet<Pair> {
        self.paths.iter().filter(|p| p.host == host).map(|p| p.pair).collect()
    }

    /// Messages of a host may be held up for so long from now on, and those of the last moment, too.
    pub(super) fn delayed(&self, host: usize, duration: Nanos) {
        if let Some(d) = &self.delays {
            let now = self.now();
            d.borrow_mut().push((host, now.saturating_sub(ARRIVED), now + duration));
        }
    }

    fn arrived_by(&self, host: usize, sent: Option<Nanos>) -> Nanos {
        let (Some(d), Some(sent)) = (&self.delays, sent) else { return Nanos::MAX };
        let held = |x: &(usize, Nanos, Nanos)| x.0 == host && x.1 <= sent + ARRIVED && sent <= x.2;
        if d.borrow().iter().any(held) { Nanos::MAX } else { sent + ARRIVED }
    }

    /// A path has logged in anew: what it sent before has had its effect or never will.
    pub(super) fn logged_in(&self, path: usize) {
        let p = &self.paths[path];
        p.epoch.set(p.epoch.get() + 1);
        p.met.borrow_mut().clear();
        for number in 1..=self.volumes() {
            self.change(number, |b| {
                b.orders.settle_all_of(p.pair);
                b.attentions.doubt(p.pair);
            });
        }
    }

    /// A nexus may be lost from here on: its SPC-2 reservations end, its attentions too.
    pub(super) fn may_lose(&self, path: usize) {
        let pair = self.paths[path].pair;
        for number in 1..=self.volumes() {
            self.change(number, |b| {
                if b.lives && b.orders.may_be_held_by(pair) {
                    b.orders.begin(pair, Act::Lost);
                }
            });
        }
    }

    /// From here on any nexus may be lost at any time.
    pub(super) fn disturbed(&self) {
        self.fragile.set(true);
        (0..self.paths.len()).for_each(|p| self.may_lose(p));
    }

    // Writes.

    /// A write begins. Gives its number, which is what its blocks hold.
    pub(super) fn begin_write(
        &self,
        path: usize,
        volume: u32,
        first: u64,
        count: u64,
        expects: Option<Content>,
    ) -> u64 {
        let mut all = self.writes.borrow_mut();
        all.push(Write {
            path,
            epoch: self.paths[path].epoch.get(),
            volume,
            first,
            count,
            begun: self.now(),
            sent: None,
            expects,
            end: End::Open,
            landed: 0,
        });
        all.len() as u64
    }

    /// The data of a write.
    pub(super) fn data(&self, number: u64) -> Vec<u8> {
        let all = self.writes.borrow();
        let w = &all[number as usize - 1];
        let mut out = vec![0; w.count as usize * BLOCK];
        for (i, b) in out.chunks_mut(BLOCK).enumerate() {
            fill_block(b, w.volume, w.first + i as u64, number);
        }
        out
    }

    fn write<R>(&self, number: u64, f: impl FnOnce(&mut Write) -> R) -> R {
        f(&mut self.writes.borrow_mut()[number as usize - 1])
    }

    /// Its message is handed to the network.
    pub(super) fn sent(&self, number: u64) {
        let now = self.now();
        self.write(number, |w| {
            w.sent = Some(now);
            w.epoch = self.paths[w.path].epoch.get();
        });
    }

    /// It ended with GOOD.
    pub(super) fn done(&self, number: u64) {
        let now = self.now();
        let (landed, count, what) = self.write(number, |w| {
            w.end = End::Over(now);
            (w.landed, w.count, (w.volume, w.first, w.begun))
        });
        if landed != u64::MAX >> (64 - count) {
            self.wrong(format!(
                "write {number} {what:?} was acknowledged, but only blocks {landed:b} are written"
            ));
        }
    }

    /// It ended otherwise: nothing more of it happens.
    pub(super) fn over(&self, number: u64) {
        let now = self.now();
        self.write(number, |w| w.end = End::Over(now));
    }

    /// It was refused. One that was done in part when an end came to it has asked again.
    pub(super) fn refused(&self, number: u64) {
        let now = self.now();
        let (landed, volume, begun) = self.write(number, |w| {
            w.end = End::Refused;
            (w.landed, w.volume, w.begun)
        });
        if landed != 0 && !self.with(volume, |b| b.was_fenced(begun, now)) {
            self.wrong(format!("write {number} was refused, but blocks {landed:b} are written"));
        }
    }

    /// It was refused when it was sent for the last time; before that it may have been done.
    pub(super) fn refused_again(&self, number: u64) {
        self.over(number);
    }

    // The medium.

    /// A block is written on the medium, by the handle that `volume` was opened with.
    pub(super) fn land(&self, slot: usize, handle: u32, block: u64, bytes: Option<&[u8]>) {
        let now = self.now();
        let owner = self.owners.borrow()[slot];
        if owner != Some(handle) {
            let found = bytes.map(read_block);
            self.wrong(format!(
                "a write to volume {handle} lands in place {slot}, which belongs to {owner:?}: block {block}, {found:?}"
            ));
            return;
        }
        let content = match bytes.map(read_block) {
            None | Some(blocks::Content::Zero) => 0,
            Some(blocks::Content::Written { volume, block: b, write }) => {
                if (volume, b) != (handle, block) {
                    return self.wrong(format!(
                        "write {write} to block {b} of volume {volume} lands on block {block} of volume {handle}"
                    ));
                }
                if let Err(why) = self.may_land(write, block, now) {
                    self.wrong(format!(
                        "write {write} lands on block {block} of volume {handle}, {why}"
                    ));
                }
                write
            }
            Some(blocks::Content::Mixed { at }) => {
                return self.wrong(format!(
                    "a torn block, at {at}, lands on block {block} of volume {handle}"
                ));
            }
        };
        let blocks = self.with(handle, |b| {
            b.landed(block, content, now);
            b.blocks
        });
        if block >= blocks {
            self.wrong(format!(
                "write {content} lands on block {block} of volume {handle}, which has {blocks}"
            ));
        }
    }

    fn may_land(&self, number: u64, block: u64, now: Nanos) -> Result<(), String> {
        let mut all = self.writes.borrow_mut();
        let Some(w) = (number as usize).checked_sub(1).and_then(|n| all.get_mut(n)) else {
            return Err("though it never was".to_string());
        };
        let bit = block
            .checked_sub(w.first)
            .filter(|b| *b < w.count)
            .ok_or("where it was not meant for")?;
        let again = w.landed >> bit & 1 != 0;
        w.landed |= 1 << bit;
        match w.end {
            End::Open => {}
            End::Over(at) => return Err(format!("which is over since {at}")),
            End::Refused => return Err("though it was refused".to_string()),
        }
        let p = &self.paths[w.path];
        if w.epoch < p.epoch.get() {
            return Err(format!(
                "though path {} has logged in since, it is of {}",
                w.path, w.begun
            ));
        }
        let books = self.books.borrow();
        let b = &books[w.volume as usize - 1];
        if let Some(expected) = w.expects {
            let found = b.content(block);
            if again {
                return Err("a second time, and it is a COMPARE AND WRITE".to_string());
            }
            if found != expected {
                return Err(format!("a COMPARE AND WRITE that compared {expected}, over {found}"));
            }
        }
        let (since, why) = b.admitted_since(p.pair, now);
        let until = now.min(self.arrived_by(p.host, w.sent));
        let from = w.begun.max(since);
        if from > until {
            return Err(format!(
                "sent by path {} at {:?}, though everything before {since} was ended by {why}",
                w.path, w.sent
            ));
        }
        if b.possible(w.path, from, until) & WRITE == 0 {
            return Err(format!(
                "though path {} (nexus {:?}) may not write from {from} (begun {}, {why}) to {until}; it is {:?}",
                w.path,
                p.pair,
                w.begun,
                b.orders.guess()
            ));
        }
        Ok(())
    }

    // What hosts see.

    /// A command of this path and this time was refused because of a reservation, or ran.
    pub(super) fn judged(&self, path: usize, volume: u32, writes: bool, ran: bool, begun: Nanos) {
        let now = self.now();
        let bits = self.with(volume, |b| b.possible(path, begun, now));
        let need = match (writes, ran) {
            (false, true) => READ,
            (true, true) => WRITE,
            (false, false) => NO_READ,
            (true, false) => NO_WRITE,
        };
        if bits & need == 0 {
            let what = match (writes, ran) {
                (false, true) => "has read",
                (true, true) => "has written",
                (false, false) => "was refused to read",
                (true, false) => "was refused to write",
            };
            let state = self.with(volume, |b| b.orders.guess());
            self.wrong(format!(
                "path {path} (nexus {:?}) {what} volume {volume} at {begun}..{now}, against {state:?}",
                self.paths[path].pair
            ));
        }
    }

    /// A command of this path was told that there is no such unit.
    pub(super) fn hidden(&self, path: usize, volume: u32, begun: Nanos) {
        let now = self.now();
        if self.with(volume, |b| b.possible(path, begun, now)) & HIDDEN == 0 {
            self.wrong(format!(
                "path {path} does not find volume {volume} at {begun}..{now}, which it is shown"
            ));
        }
    }

    /// Whether a path has been shown a volume all the time since `begun`.
    pub(super) fn was_shown(&self, path: usize, volume: u32, begun: Nanos) -> bool {
        let now = self.now();
        self.with(volume, |b| b.possible(path, begun, now)) & HIDDEN == 0
    }

    /// What was read of a volume.
    pub(super) fn read(&self, path: usize, volume: u32, first: u64, bytes: &[u8], begun: Nanos) {
        let now = self.now();
        let books = self.books.borrow();
        let b = &books[volume as usize - 1];
        for (i, bytes) in bytes.chunks(BLOCK).enumerate() {
            let block = first + i as u64;
            let content = match read_block(bytes) {
                blocks::Content::Zero => 0,
                blocks::Content::Written { volume: v, block: k, write }
                    if (v, k) == (volume, block) =>
                {
                    write
                }
                // Memory that is lent may be sent half written.
                blocks::Content::Mixed { .. } if b.direct && b.changed(block, begun, now) => {
                    continue;
                }
                other => {
                    self.wrong(format!(
                        "path {path} reads {other:?} from block {block} of volume {volume}"
                    ));
                    return;
                }
            };
            if !b.held(block, begun, now).any(|c| c == content) {
                let held: Vec<Content> = b.held(block, begun, now).collect();
                self.wrong(format!(
                    "path {path} reads write {content} from block {block} of volume {volume} at {begun}..{now}, which held {held:?}"
                ));
                return;
            }
        }
        drop(books);
        self.count("reads verified");
    }

    /// A COMPARE AND WRITE was told that something else is there.
    pub(super) fn miscompared(&self, volume: u32, block: u64, expected: Content, begun: Nanos) {
        let now = self.now();
        let other = self.with(volume, |b| b.held(block, begun, now).any(|c| c != expected));
        if !other {
            self.wrong(format!("a COMPARE AND WRITE of block {block} of volume {volume} finds a difference where there is none"));
        }
    }

    /// Zeros were written to a range.
    pub(super) fn zeroed(&self, volume: u32, first: u64, count: u64, begun: Nanos) {
        let now = self.now();
        let books = self.books.borrow();
        let b = &books[volume as usize - 1];
        if (first..first + count).any(|k| !b.held(k, begun, now).any(|c| c == 0)) {
            self.wrong(format!(
                "zeros were acknowledged on {first}+{count} of volume {volume} and are not there"
            ));
        }
    }

    // Unit attentions.

    /// A nexus has been answered by a volume since its login, so that the volume knows it.
    pub(super) fn has_met(&self, path: usize, volume: u32) -> bool {
        self.paths[path].met.borrow().contains(&volume)
    }

    /// It has.
    pub(super) fn meets(&self, path: usize, volume: u32) {
        self.paths[path].met.borrow_mut().insert(volume);
    }

    fn path_of(&self, pair: Pair) -> Option<usize> {
        self.paths.iter().position(|p| p.pair == pair)
    }

    /// Something begins that raises attentions for these nexuses.
    pub(super) fn raises(
        &self,
        volume: u32,
        code: Code,
        of: impl IntoIterator<Item = Pair>,
    ) -> Vec<(Pair, bool)> {
        let mut all = Vec::new();
        for pair in of {
            let met = self.path_of(pair).is_some_and(|p| self.has_met(p, volume));
            self.with(volume, |b| b.attentions.begin(pair, code));
            all.push((pair, met));
        }
        all
    }

    /// It is over. Those who knew the volume from the start must be told.
    pub(super) fn raised(
        &self,
        volume: u32,
        code: Code,
        of: &[(Pair, bool)],
        sure: bool,
        began: Nanos,
    ) {
        let now = self.now();
        for (pair, met) in of {
            let still = self.path_of(*pair).is_some_and(|p| self.has_met(p, volume));
            self.with(volume, |b| {
                let sure = sure && *met && still && !b.interlock;
                b.attentions.end(*pair, code, sure, began, now);
            });
        }
    }

    // Reservations.

    /// A command about reservations is about to be sent.
    pub(super) fn begin_act(&self, path: usize, volume: u32, act: Act) -> Running {
        let began = self.now();
        let pair = self.paths[path].pair;
        let fragile = act == Act::Reserve6 && self.fragile.get();
        let (id, told) = self.change(volume, |b| b.orders.begin(pair, act));
        if fragile {
            self.change(volume, |b| b.orders.begin(pair, Act::Lost));
        }
        let told = told
            .into_iter()
            .map(|(p, code)| {
                let all = self.raises(volume, code, [p]);
                (code, all)
            })
            .collect();
        Running { volume, id, began, told }
    }

    /// It was answered.
    pub(super) fn end_act(&self, r: &Running, said: &Said) -> Vec<Pair> {
        let known = self.change(r.volume, |b| b.orders.answered(r.id, said));
        let known = self.check(known);
        for (code, all) in &r.told {
            for one in all {
                let sure = known.told.contains(&(one.0, *code, true));
                self.raised(r.volume, *code, &[*one], sure, r.began);
            }
        }
        known.aborted
    }

    /// It was refused without effect.
    pub(super) fn refuse_act(&self, r: &Running) {
        let refused = self.change(r.volume, |b| b.orders.refused(r.id));
        self.check(refused);
        self.doubt_told(r);
    }

    /// It was ended; nobody knows whether it took effect. With `over` it does not any more.
    pub(super) fn lose_act(&self, r: &Running, over: bool) {
        if over {
            self.change(r.volume, |b| b.orders.settled(r.id));
        }
        self.doubt_told(r);
    }

    fn doubt_told(&self, r: &Running) {
        for (code, all) in &r.told {
            self.raised(r.volume, *code, all, false, r.began);
        }
    }
}

/// A command about reservations under way.
pub(super) struct Running {
    volume: u32,
    id: u64,
    pub(super) began: Nanos,
    told: Vec<(Code, Vec<(Pair, bool)>)>,
}
