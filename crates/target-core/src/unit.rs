//! Logical units.

use crate::access::Access;
use crate::fence::{End, Link, User, off_the_media};
use crate::gate::{Gate, SharedGate};
use crate::members::{self, Members};
use crate::pass::Rounds;
use crate::turn::Turns;
use crate::vital::Vital;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_block::Volume;
use weir_mem::BufPool;
use weir_proto_scsi::cdb::Command;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::lu::{FastPath, LuState, Nexus, UaScope};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_scsi::status::ScsiError;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::vital;

/// Keeps persistent reservations with APTPL (SPC-4 5.13.5).
pub trait ReservationStore: Send + Sync {
    /// Stores `state` for `volume`, then calls `done` with true; with false when it could not. May be
    /// called on any reactor and must not hold it up; of two states the one with the higher `revision`
    /// stays.
    fn save(&self, volume: &str, revision: u64, state: Vec<u8>, done: Box<dyn FnOnce(bool) + Send>);
}

/// No generation of a unit's state.
const NO_GENERATION: u64 = u64::MAX;

/// What all reactors and front ends share of a logical unit.
pub struct UnitShared {
    name: String,
    state: Mutex<LuState>,
    generation: AtomicU64,
    pub(crate) store: Option<Arc<dyn ReservationStore>>,
    pub(crate) gate: SharedGate,
    pub(crate) members: Members,
    /// Changes of persistent reservations.
    pub(crate) reserving: Turns,
    pub(crate) lingering: Mutex<Vec<Nexus>>,
}

impl UnitShared {
    /// A unit as after power on.
    pub fn new(name: &str, state: LuState, store: Option<Arc<dyn ReservationStore>>) -> Arc<Self> {
        let generation = AtomicU64::new(state.generation());
        Arc::new(UnitShared {
            name: name.to_owned(),
            state: Mutex::new(state),
            generation,
            store,
            gate: SharedGate::default(),
            members: Members::default(),
            reserving: Turns::default(),
            lingering: Mutex::default(),
        })
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What may be assumed of a nexus's commands.
    fn rules(&self, s: &LuState, nexus: Nexus) -> FastPath {
        let fast = s.fast_path(nexus);
        FastPath { writes: fast.writes && !self.lingers(nexus), ..fast }
    }

    /// Runs `f` on the state. The generation that other cores read is brought up to date before the lock
    /// is given back.
    ///
    /// All hosts share it, so a panic in here ends the program, whoever called.
    pub fn with<R>(&self, f: impl FnOnce(&mut LuState) -> R) -> R {
        vital(|| {
            let mut s: MutexGuard<'_, LuState> =
                self.state.lock().unwrap_or_else(|e| e.into_inner());
            let r = f(&mut s);
            self.generation.store(s.generation(), Ordering::Release);
            r
        })
    }

    /// Changes whenever what was cached of the state may be wrong.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// One reactor's side of a logical unit.
pub struct Unit {
    /// Names it in messages.
    pub(crate) number: u64,
    pub(crate) shared: Arc<UnitShared>,
    pub(crate) volume: Rc<dyn Volume>,
    pub(crate) pool: BufPool,
    /// Longest piece that is moved through a buffer at once, in bytes.
    pub(crate) chunk: usize,
    pub(crate) gate: Gate,
    /// Who sees it, or saw it, on this reactor.
    pub(crate) users: RefCell<Vec<User>>,
}

impl Unit {
    /// A unit of the present reactor over its handle to the volume.
    pub fn new(
        shared: Arc<UnitShared>,
        volume: Rc<dyn Volume>,
        pool: BufPool,
        chunk: usize,
    ) -> Rc<Self> {
        let chunk = chunk.min(pool.max_len()) & !4095;
        assert!(chunk > 0, "a chunk is at least 4096 bytes");
        let (number, gate) = (members::number(), Gate::new(shared.clone()));
        let (volume, users) = (Rc::new(Vital(volume)), RefCell::default());
        let unit = Rc::new(Unit { number, shared, volume, pool, chunk, gate, users });
        unit.join();
        unit
    }

    /// What is shared with other reactors.
    pub fn shared(&self) -> &Arc<UnitShared> {
        &self.shared
    }

    /// This reactor's volume.
    pub fn volume(&self) -> &Rc<dyn Volume> {
        &self.volume
    }
}

/// The units of one reactor, by volume name.
#[derive(Default)]
pub struct Units(RefCell<BTreeMap<String, Rc<Unit>>>);

impl Units {
    /// Adds a unit or replaces the one of its name.
    pub fn insert(&self, unit: Rc<Unit>) {
        self.0.borrow_mut().insert(unit.shared.name.clone(), unit);
    }

    /// Takes a unit away; commands that run keep it till they end.
    pub fn remove(&self, name: &str) -> Option<Rc<Unit>> {
        self.0.borrow_mut().remove(name)
    }

    /// The unit of this name.
    pub fn get(&self, name: &str) -> Option<Rc<Unit>> {
        self.0.borrow().get(name).cloned()
    }

    /// All units.
    pub fn all(&self) -> Vec<Rc<Unit>> {
        self.0.borrow().values().cloned().collect()
    }
}

/// A unit as one nexus sees it, with what may be cached of its state.
pub struct Attached {
    pub(crate) unit: Rc<Unit>,
    generation: Cell<u64>,
    geometry: Cell<Geometry>,
    fast: Cell<FastPath>,
    pub(crate) rounds: Rounds,
}

impl Attached {
    /// The unit.
    pub fn unit(&self) -> &Rc<Unit> {
        &self.unit
    }

    /// Brings the cache up to date.
    #[inline]
    fn refresh(&self, nexus: Nexus) {
        if self.generation.get() != self.unit.shared.generation() {
            self.reload(nexus);
        }
    }

    #[cold]
    fn reload(&self, nexus: Nexus) {
        self.unit.shared.with(|s| {
            self.generation.set(s.generation());
            self.geometry.set(s.geometry());
            self.fast.set(self.unit.shared.rules(s, nexus));
        });
        if self.rounds.is_gone() {
            self.fast.set(FastPath::default());
        }
    }

    /// What was cached is good no more.
    pub(crate) fn forget_rules(&self) {
        self.generation.set(NO_GENERATION);
        self.fast.set(FastPath::default());
    }

    /// Size and limits now.
    #[inline]
    pub(crate) fn geometry(&self, nexus: Nexus) -> Geometry {
        self.refresh(nexus);
        self.geometry.get()
    }

    /// What may be assumed now.
    #[inline]
    pub(crate) fn fast(&self) -> FastPath {
        self.fast.get()
    }

    /// Whether the command may run: by the cached rules, else by the state itself.
    #[inline]
    pub(crate) fn admit(&self, nexus: Nexus, command: &Command) -> Result<(), ScsiError> {
        let fast = self.fast.get();
        let known = match command {
            Command::Read { .. } | Command::TestUnitReady => fast.reads,
            Command::Write { .. } => fast.writes,
            _ => false,
        };
        if known {
            return Ok(());
        }
        if self.rounds.is_gone() {
            return Err(Sense::LU_NOT_SUPPORTED.into());
        }
        let r = self.unit.shared.with(|s| s.admit(nexus, command));
        self.reload(nexus);
        r
    }
}

/// What one nexus sees: its logical units by LUN, kept up to date with the access map.
pub struct Attachment {
    nexus: Nexus,
    /// The initiator port in the front end's own form, as the access map names it.
    port: Vec<u8>,
    transport: TransportId,
    target_port: u16,
    generation: Cell<u64>,
    host: RefCell<String>,
    luns: RefCell<Vec<(Lun, Rc<Attached>)>>,
    /// Views that were lost, of which commands may still run.
    lost: RefCell<Vec<Weak<Attached>>>,
    link: RefCell<Option<Weak<dyn Link>>>,
    /// The channel has ended: nothing is seen any more.
    left: Cell<bool>,
}

impl Attachment {
    /// A nexus on one reactor.
    pub fn new(nexus: Nexus, port: Vec<u8>, transport: TransportId, target_port: u16) -> Self {
        Attachment {
            nexus,
            port,
            transport,
            target_port,
            generation: Cell::new(0),
            host: RefCell::default(),
            luns: RefCell::default(),
            lost: RefCell::default(),
            link: RefCell::default(),
            left: Cell::new(false),
        }
    }

    /// The channel that looks through this; to be told before anything is looked for.
    pub fn set_link(&self, link: Weak<dyn Link>) {
        *self.link.borrow_mut() = Some(link);
    }

    /// The nexus.
    pub fn nexus(&self) -> Nexus {
        self.nexus
    }

    /// The host's name; empty when no rule knows the initiator port.
    pub fn host(&self) -> String {
        self.host.borrow().clone()
    }

    /// Looks at the access map again if it has changed.
    #[inline]
    pub fn refresh(&self, access: &Access, units: &Units) {
        let now = access.generation();
        if self.generation.get() != now {
            self.reload(access, units);
            self.generation.set(now);
        }
    }

    #[cold]
    fn reload(&self, access: &Access, units: &Units) {
        if self.left.get() {
            return;
        }
        let map = access.map();
        let rule = map.host(&self.port);
        let old = self.luns.take();
        let mut new = Vec::new();
        let mut changed = false;
        for (index, volume) in rule.map_or(&[][..], |r| &r.luns) {
            let (Some(lun), Some(unit)) = (Lun::from_index(*index), units.get(volume)) else {
                continue;
            };
            let same = |a: &Attached| Rc::ptr_eq(&a.unit, &unit) && !a.rounds.is_gone();
            let known = old.iter().find(|(l, a)| *l == lun && same(a));
            let attached = known.map(|(_, a)| a.clone()).unwrap_or_else(|| {
                changed = true;
                self.attach(unit)
            });
            new.push((lun, attached));
        }
        new.sort_by_key(|(l, _)| *l);
        let mut lost = self.lost.borrow_mut();
        lost.retain(|a| a.strong_count() > 0);
        for (_, a) in old.iter().filter(|(_, a)| !new.iter().any(|(_, n)| Rc::ptr_eq(a, n))) {
            a.fence(End::Gone);
            lost.push(Rc::downgrade(a));
        }
        *self.host.borrow_mut() = rule.map_or_else(String::new, |r| r.host.clone());
        // A host that knew another list is told on the units that it kept (SPC-4: 3F/0E).
        if !old.is_empty() && (changed || new.len() != old.len()) {
            for (_, a) in &new {
                a.unit.shared.with(|s| {
                    s.raise_ua(UaScope::Only(self.nexus), Sense::REPORT_LUNS_CHANGED);
                });
            }
        }
        *self.luns.borrow_mut() = new;
    }

    fn attach(&self, unit: Rc<Unit>) -> Rc<Attached> {
        let (generation, geometry, fast) = unit.shared.with(|s| {
            match s.ports_of(self.nexus) {
                // Every unit is made with the port identifiers of all front ends; an unknown one would
                // only make its commands fail.
                None => drop(s.nexus_added(self.nexus, self.transport.clone(), self.target_port)),
                // Another reactor has made the nexus known already. It must be the same one: reservations are kept
                // and taken by this number.
                Some(who) => {
                    assert_eq!(
                        who,
                        (&self.transport, self.target_port),
                        "two nexuses of a unit have the number {:x}",
                        self.nexus.0
                    );
                    // The host knew another unit by this number, or none: it is told before it uses this one.
                    if self.generation.get() != 0 {
                        s.raise_ua(UaScope::Only(self.nexus), Sense::REPORT_LUNS_CHANGED);
                    }
                }
            }
            (s.generation(), s.geometry(), unit.shared.rules(s, self.nexus))
        });
        let attached = Rc::new(Attached {
            unit,
            generation: Cell::new(generation),
            geometry: Cell::new(geometry),
            fast: Cell::new(fast),
            rounds: Rounds::default(),
        });
        let user = User::new(self.nexus, &attached, self.link.borrow().clone());
        attached.unit.add_user(user);
        attached
    }

    /// The channel has ended: nothing of its commands that has not begun will have an effect, and no unit is seen any
    /// more. As long as I/O that has begun is not over, later writes of the nexus to that unit wait.
    pub fn leave(&self) {
        self.left.set(true);
        let mut lost = self.lost.borrow_mut();
        for (_, a) in self.luns.take() {
            a.linger(self.nexus);
            lost.push(Rc::downgrade(&a));
        }
    }

    /// Waits until nothing of the commands of a channel that has [left](Attachment::leave) can have an effect.
    pub async fn left(&self) {
        let lost: Vec<_> = self.lost.borrow().iter().filter_map(Weak::upgrade).collect();
        off_the_media(lost).await;
    }

    /// The unit behind a LUN.
    #[inline]
    pub fn find(&self, lun: Lun) -> Option<Rc<Attached>> {
        let luns = self.luns.borrow();
        let found = luns.iter().find(|(l, _)| *l == lun);
        match found {
            Some((_, a)) => Some(a.clone()),
            // The same number may be written in another addressing method.
            None => {
                let index = lun.index()?;
                luns.iter().find(|(l, _)| l.index() == Some(index)).map(|(_, a)| a.clone())
            }
        }
    }

    /// The LUNs that the nexus sees, ascending.
    pub fn luns(&self) -> Vec<Lun> {
        self.luns.borrow().iter().map(|(l, _)| *l).collect()
    }
}
