//! Says of everything that happens whether it may: what lands on the medium, what hosts read and are told.

mod acts;
mod answers;
mod landing;

use super::book::{Book, Fence};
use super::orders::ActId;
use super::spc::{Act, Code, Pair};
use crate::srp::Fault;
use landing::Write;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::{MILLIS, Nanos};
use weir_sim::Time;

/// By then a message that nothing holds up has come to the target and was looked at, though its command may wait there.
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
    "secrets",
    "deletions",
    "other volume at a LUN",
    "reverts",
    "resizes",
    "hosts stopped",
    "hosts stopped in a login",
    "partitions",
    "channels cut",
    "writes aborted",
    "writes of volumes in memory",
    "units that keep attentions",
    "data that could not be fetched",
    "hosts gone and come back",
    "volumes that hang",
    "ports made again",
    "ports that left commands behind",
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

/// Attentions that a command may raise: whose, and whether that nexus knew the unit before.
type Telling = Vec<(Code, (Pair, bool))>;

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
    /// Attentions that commands about reservations under way may raise, by volume and number.
    telling: RefCell<BTreeMap<(u32, u64), Telling>>,
    /// A login need not wait for what its nexus has left with a device.
    lingers: Cell<bool>,
    /// Ports that left reservation commands behind while these were being kept: they take effect at any later time, in their
    /// order.
    unsettled: RefCell<BTreeSet<u8>>,
    /// What ends an SPC-2 reservation that is of a nexus before the present one of the same ports, by volume and ports.
    former: RefCell<BTreeMap<(u32, Pair), Vec<ActId>>>,
    /// By path and volume, the login of the newest write that landed.
    newest: RefCell<BTreeMap<(usize, u32), u32>>,
    /// What happens is written to standard error.
    words: bool,
}

impl Judge {
    /// `punctual`: the network delays nothing by itself; `lingers`: see there; `words`: tells whoever replays a seed.
    pub(super) fn new(
        time: Time,
        paths: Vec<(usize, Pair)>,
        slots: usize,
        (punctual, lingers, words): (bool, bool, bool),
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
            telling: RefCell::default(),
            lingers: Cell::new(lingers),
            former: RefCell::default(),
            unsettled: RefCell::default(),
            newest: RefCell::default(),
            words,
        }
    }

    pub(super) fn now(&self) -> Nanos {
        self.time.now()
    }

    /// Tells whoever replays a seed.
    pub(super) fn say(&self, words: impl FnOnce() -> String) {
        if self.words {
            eprintln!("{:>13.6} ms  judge: {}", self.now() as f64 / 1e6, words());
        }
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
        let known = !b.orders.is_lost();
        let r = f(b);
        b.note(&self.nexuses, now);
        if known && b.orders.is_lost() {
            self.say(|| format!("nothing more is said of the reservations of volume {volume}"));
            self.count("volumes with too many orders of commands");
        }
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
        self.say(|| format!("{why} of volume {volume} begins, for {of:?}"));
        self.with(volume, |b| {
            b.fences.push(Fence { of, began, ended: None, why });
            FenceId(volume, b.fences.len() - 1)
        })
    }

    /// It was promised.
    pub(super) fn fenced(&self, id: FenceId) {
        let now = self.now();
        self.with(id.0, |b| b.fences[id.1].ended = Some(now));
        self.say(|| format!("the end number {} of volume {} is promised", id.1, id.0));
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
        self.say(|| format!("path {path} {:?} has logged in", p.pair));
        p.epoch.set(p.epoch.get() + 1);
        p.met.borrow_mut().clear();
        let now = self.now();
        let settled = !self.unsettled.borrow().contains(&p.pair.1);
        for number in 1..=self.volumes() {
            self.change(number, |b| {
                if settled {
                    b.orders.settle_all_of(p.pair);
                }
                // What the nexus before had reserved ends when its writes have. Or that nexus lives on, and is lost at any later time.
                if b.lives && b.orders.may_be_held_by(p.pair) {
                    let lost = b.orders.begin(p.pair, Act::Lost);
                    if !self.fragile.get() {
                        let mut former = self.former.borrow_mut();
                        former.entry((number, p.pair)).or_default().push(lost);
                    }
                }
                b.attentions.doubt(p.pair, now);
            });
        }
    }

    /// A nexus may be lost from here on: its SPC-2 reservations end, its attentions too.
    pub(super) fn may_lose(&self, path: usize) {
        let pair = self.paths[path].pair;
        self.say(|| format!("path {path} {pair:?} may be lost"));
        for number in 1..=self.volumes() {
            self.change(number, |b| {
                if b.lives && b.orders.may_be_held_by(pair) {
                    b.orders.begin(pair, Act::Lost);
                }
            });
            self.raise_more(number);
        }
    }

    /// The nexuses of a host may be lost from here on.
    pub(super) fn dropped(&self, host: usize) {
        for p in (0..self.paths.len()).filter(|p| self.paths[*p].host == host) {
            self.may_lose(p);
        }
    }

    /// A port ended before the commands of its hosts: what they left with a device lingers beside new logins.
    /// `keeping`: perhaps while reservations were being kept.
    pub(super) fn left_behind(&self, port: u8, keeping: bool) {
        self.lingers.set(true);
        if keeping {
            self.unsettled.borrow_mut().insert(port);
        }
        self.count("ports that left commands behind");
    }

    /// From here on any nexus may be lost at any time.
    pub(super) fn disturbed(&self) {
        self.fragile.set(true);
        (0..self.paths.len()).for_each(|p| self.may_lose(p));
    }
}
