//! Logical units.

use crate::access::Access;
use crate::gate::{Gate, SharedGate};
use crate::vital::Vital;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weir_block::Volume;
use weir_mem::BufPool;
use weir_proto_scsi::cdb::Command;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::lu::{FastPath, LuState, Nexus};
use weir_proto_scsi::lun::Lun;
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

/// What all reactors and front ends share of a logical unit.
pub struct UnitShared {
    name: String,
    state: Mutex<LuState>,
    generation: AtomicU64,
    pub(crate) store: Option<Arc<dyn ReservationStore>>,
    pub(crate) gate: SharedGate,
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
        })
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
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
    pub(crate) shared: Arc<UnitShared>,
    pub(crate) volume: Rc<dyn Volume>,
    pub(crate) pool: BufPool,
    /// Longest piece that is moved through a buffer at once, in bytes.
    pub(crate) chunk: usize,
    pub(crate) gate: Rc<Gate>,
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
        let gate = Gate::new(shared.clone());
        let volume = Rc::new(Vital(volume));
        Rc::new(Unit { shared, volume, pool, chunk, gate })
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
            self.fast.set(s.fast_path(nexus));
        });
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
        }
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
        let map = access.map();
        let rule = map.host(&self.port);
        let old = self.luns.take();
        let mut new = Vec::new();
        let mut changed = false;
        for (index, volume) in rule.map_or(&[][..], |r| &r.luns) {
            let (Some(lun), Some(unit)) = (Lun::from_index(*index), units.get(volume)) else {
                continue;
            };
            let known = old.iter().find(|(l, a)| *l == lun && Rc::ptr_eq(&a.unit, &unit));
            let attached = known.map(|(_, a)| a.clone()).unwrap_or_else(|| {
                changed = true;
                self.attach(unit)
            });
            new.push((lun, attached));
        }
        new.sort_by_key(|(l, _)| *l);
        *self.host.borrow_mut() = rule.map_or_else(String::new, |r| r.host.clone());
        // A host that knew another list is told on the units that it kept (SPC-4: 3F/0E).
        if !old.is_empty() && (changed || new.len() != old.len()) {
            for (_, a) in &new {
                a.unit.shared.with(|s| {
                    s.raise_ua(
                        weir_proto_scsi::lu::UaScope::Only(self.nexus),
                        weir_proto_scsi::sense::Sense::REPORT_LUNS_CHANGED,
                    );
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
                Some(who) => assert_eq!(
                    who,
                    (&self.transport, self.target_port),
                    "two nexuses of a unit have the number {:x}",
                    self.nexus.0
                ),
            }
            (s.generation(), s.geometry(), s.fast_path(self.nexus))
        });
        Rc::new(Attached {
            unit,
            generation: Cell::new(generation),
            geometry: Cell::new(geometry),
            fast: Cell::new(fast),
        })
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
