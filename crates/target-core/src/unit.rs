//! Logical units.

use crate::fence::User;
use crate::gate::{Gate, SharedGate};
use crate::keeping::Keeping;
use crate::linger::Lingering;
use crate::losses::Losses;
use crate::members::{self, Members};
use crate::pass::Rounds;
use crate::turn::Turns;
use crate::vital::Vital;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_block::Volume;
use weir_mem::BufPool;
use weir_proto_scsi::cdb::Command;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::lu::{FastPath, LuState, Nexus};
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
pub(crate) const NO_GENERATION: u64 = u64::MAX;

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
    pub(crate) keeping: Keeping,
    /// Of whom I/O is under way whose channels or connections have ended.
    pub(crate) lingering: Mutex<Vec<Lingering>>,
    /// Nexuses that the access map has taken the unit from, until their commands have ended.
    pub(crate) parting: Mutex<BTreeSet<Nexus>>,
    pub(crate) losses: Losses,
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
            keeping: Keeping::default(),
            lingering: Mutex::default(),
            parting: Mutex::default(),
            losses: Losses::default(),
        })
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What may be assumed of the commands of a nexus, which is this writer's.
    pub(crate) fn rules(&self, s: &LuState, nexus: Nexus, writer: &str) -> FastPath {
        let fast = s.fast_path(nexus);
        let lingers = s.ports_of(nexus).is_some_and(|ports| self.lingers(ports, writer, nexus));
        FastPath { writes: fast.writes && !lingers, ..fast }
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

    /// Whether this is so of any unit.
    pub(crate) fn any(&self, is: impl Fn(&Unit) -> bool) -> bool {
        self.0.borrow().values().any(|u| is(u))
    }

    /// All units.
    pub fn all(&self) -> Vec<Rc<Unit>> {
        self.0.borrow().values().cloned().collect()
    }
}

/// A unit as one nexus sees it, with what may be cached of its state.
pub struct Attached {
    /// Tells it from other views.
    pub(crate) number: u64,
    pub(crate) nexus: Nexus,
    /// The initiator port of the nexus.
    pub(crate) port: TransportId,
    pub(crate) unit: Rc<Unit>,
    /// Whose writes wait for what is left behind here, as the access map has it.
    writer: RefCell<Arc<str>>,
    generation: Cell<u64>,
    geometry: Cell<Geometry>,
    fast: Cell<FastPath>,
    pub(crate) rounds: Rounds,
    /// When its connection was given an answer that tells of a loss, and that may not have reached the host.
    pub(crate) answered: Cell<Option<u64>>,
}

impl Attached {
    /// A view, with what was found of the state.
    pub(crate) fn new(
        unit: Rc<Unit>,
        (nexus, port): (Nexus, TransportId),
        writer: Arc<str>,
        generation: u64,
        geometry: Geometry,
        fast: FastPath,
    ) -> Attached {
        let attached = Attached {
            number: members::number(),
            nexus,
            port,
            unit,
            writer: RefCell::new(writer),
            generation: Cell::new(generation),
            geometry: Cell::new(geometry),
            fast: Cell::new(fast),
            rounds: Rounds::default(),
            answered: Cell::default(),
        };
        attached.is_seen();
        attached
    }

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
            self.fast.set(self.unit.shared.rules(s, nexus, &self.writer.borrow()));
        });
        if self.rounds.is_gone() {
            self.fast.set(FastPath::default());
        }
    }

    /// Whose writes wait for what is left behind here.
    pub(crate) fn writer(&self) -> Arc<str> {
        self.writer.borrow().clone()
    }

    /// The access map has been looked at again.
    pub(crate) fn belongs_to(&self, writer: &Arc<str>) {
        if self.writer() != *writer {
            self.is_renamed(writer);
            self.writer.replace(writer.clone());
            self.forget_rules();
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
