//! The node: two reactors, two SRP ports and a BRP port before the same units, and what its operator does.

mod ports;
mod wishes;

use super::judge::Judge;
use super::medium::Medium;
use crate::Wrong;
use crate::suites::scene::{Port as _, check_unit, pool};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_fabric::Provider;
use weir_layers::remote::Home;
use weir_mem::BufPool;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_reactor::{Handle, set_local, sleep, spawn_task};
use weir_sim::{Node as Machine, World};
use weir_target_brp as brp;
use weir_target_core::{Access, AccessMap, PATIENCE, ReservationStore, UnitShared, Units};
use weir_target_srp as srp;

/// Relative identifier of the BRP port; those of the SRP ports come before it.
pub(super) const BRP: u8 = 3;
/// Data moves in pieces of so many bytes.
const CHUNK: usize = 4096;

/// How long a port's channels may take to end when their hosts have left.
const ENDS: Nanos = 90 * SECONDS;

/// What a port is called on the wire.
pub(super) fn port_id(port: u8) -> [u8; 16] {
    weir_proto_srp::PortId::new(0x5745_4952, u64::from(port)).0
}

/// What an initiator port is called.
pub(super) fn initiator_id(number: u8) -> [u8; 16] {
    weir_proto_srp::PortId::new(0x1000 + u64::from(number), 7).0
}

pub(super) fn volume_name(number: u32) -> String {
    format!("v{number}")
}

/// What a reactor has of the node.
struct Local {
    provider: Rc<dyn Provider>,
    units: Rc<Units>,
    pool: BufPool,
    medium: Rc<Medium>,
    /// Volumes that are at home here.
    homes: RefCell<BTreeMap<u32, Home>>,
}

/// Keeps reservations, or fails to.
struct Keeper {
    rng: Mutex<Prng>,
    /// One of so many fails; 0: none.
    fails: u64,
    /// One of so many takes longer than a fence waits for hosts; 0: none.
    slow: u64,
    failed: AtomicU64,
}

impl ReservationStore for Keeper {
    fn save(&self, _: &str, _: u64, _: Vec<u8>, done: Box<dyn FnOnce(bool) + Send>) {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = self.fails > 0 && rng.chance(1, self.fails);
        let wait = match self.slow > 0 && rng.chance(1, self.slow) {
            true => PATIENCE + rng.below(SECONDS),
            false => rng.below(MILLIS),
        };
        drop(rng);
        if fails {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        spawn_task(async move {
            sleep(wait).await;
            done(!fails);
        });
    }
}

/// Settings that are drawn.
pub(super) struct NodeConfig {
    pub(super) srp: srp::TargetConfig,
    pub(super) brp: brp::TargetConfig,
    pub(super) tas: bool,
    /// One of so many saved reservations fails.
    pub(super) forgets: u64,
    /// One of so many saves takes longer than a fence waits for hosts.
    pub(super) slow: u64,
    /// Data buffers of each reactor.
    pub(super) buffers: usize,
}

/// The node and its operator's wishes.
pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) judge: Rc<Judge>,
    medium: Rc<Medium>,
    access: Arc<Access>,
    srp: RefCell<[srp::Target; 2]>,
    brp: RefCell<brp::Target>,
    /// How ports are made.
    ports: ports::Recipe,
    pools: Vec<BufPool>,
    units: RefCell<BTreeMap<u32, Arc<UnitShared>>>,
    keeper: Arc<Keeper>,
    tas: bool,
    /// RDMA READs that the SRP ports and the BRP port do at once.
    reads_out: (u16, u16),
    /// Initiator ports of each host.
    hosts: Vec<BTreeSet<u8>>,
    /// LUNs of each host.
    maps: RefCell<Vec<BTreeMap<u16, u32>>>,
    /// Hosts that have a secret, which they do not know.
    secrets: RefCell<BTreeSet<usize>>,
    /// Volumes that were taken from hosts and that these, being logged in ever since, still know by a number.
    known: RefCell<BTreeMap<(usize, u16), u32>>,
    /// One wish at a time.
    turn: weir_reactor::WaitChannel,
    pub(super) busy: Cell<u32>,
}

/// A wish under way.
struct Turn<'a> {
    node: &'a Node,
    _one: weir_reactor::Units<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.node.busy.set(self.node.busy.get() - 1);
    }
}

impl Node {
    pub(super) fn start(
        machine: Machine,
        judge: Rc<Judge>,
        places: usize,
        hosts: Vec<BTreeSet<u8>>,
        c: NodeConfig,
        rng: &mut Prng,
    ) -> Result<Rc<Node>, Wrong> {
        let access = Arc::new(Access::new(AccessMap::default()));
        let medium = Medium::new(judge.clone(), places);
        let reads_out = (c.srp.reads_out, c.brp.reads_out);
        let ports = ports::Recipe { srp: c.srp, brp: c.brp, tas: c.tas, made: Cell::new(0) };
        let srp = [1, 2].map(|p| ports.srp(p, &access, machine.cores()));
        let brp = ports.brp(&access);
        let mut pools = Vec::new();
        for core in 0..machine.cores() {
            let pool = pool(&[(4096, c.buffers), (16384, c.buffers.div_ceil(3))])?;
            let units = Rc::new(Units::default());
            let provider: Rc<dyn Provider> = machine.provider_on(core);
            let local = Local {
                provider: provider.clone(),
                units: units.clone(),
                pool: pool.clone(),
                medium: medium.clone(),
                homes: RefCell::default(),
            };
            machine
                .enter_on(core, || {
                    set_local(Rc::new(local));
                    for t in &srp {
                        t.serve(provider.clone(), units.clone(), pool.clone())?;
                    }
                    brp.serve(provider.clone(), units.clone(), pool.clone())
                })
                .map_err(|e| Wrong(e.to_string()))?;
            pools.push(pool);
        }
        machine
            .enter(|| {
                let p = machine.provider();
                srp[0].take_logins(&*p, &ports::address(1))?;
                srp[1].take_logins(&*p, &ports::address(2))?;
                brp.take_logins(&*p, &ports::address(BRP))
            })
            .map_err(|e| Wrong(e.to_string()))?;
        let keeper = Keeper {
            rng: Mutex::new(rng.fork()),
            fails: c.forgets,
            slow: c.slow,
            failed: AtomicU64::new(0),
        };
        let maps = hosts.iter().map(|_| BTreeMap::new()).collect();
        Ok(Rc::new(Node {
            machine,
            judge,
            medium,
            access,
            srp: RefCell::new(srp),
            brp: RefCell::new(brp),
            ports,
            pools,
            units: RefCell::default(),
            keeper: Arc::new(keeper),
            tas: c.tas,
            reads_out,
            hosts,
            maps: RefCell::new(maps),
            secrets: RefCell::default(),
            known: RefCell::default(),
            turn: weir_reactor::WaitChannel::new(1),
            busy: Cell::new(0),
        }))
    }

    /// Begins a wish, when those before it are over. The run goes on until it is.
    async fn turn(&self) -> Turn<'_> {
        self.busy.set(self.busy.get() + 1);
        Turn { node: self, _one: self.turn.acquire(1).await }
    }

    /// Whether a port can fetch data at all.
    pub(super) fn fetches(&self, port: u8) -> bool {
        let (srp, brp) = self.reads_out;
        if port == BRP { brp > 0 } else { srp > 0 }
    }

    fn reactors(&self) -> Vec<Handle> {
        (0..self.machine.cores()).map(|c| self.machine.reactor(c).handle()).collect()
    }

    /// What a host's LUN stands for.
    pub(super) fn mapped(&self, host: usize) -> BTreeMap<u16, u32> {
        self.maps.borrow()[host].clone()
    }

    /// Volumes that there are.
    pub(super) fn volumes(&self) -> Vec<u32> {
        self.units.borrow().keys().copied().collect()
    }

    /// Reservations that could not be kept.
    pub(super) fn forgotten(&self) -> u64 {
        self.keeper.failed.load(Ordering::Relaxed)
    }

    /// What is held on each reactor, for whoever looks for what hangs.
    pub(super) fn census(&self) -> String {
        let mut all = format!("wishes under way: {}", self.busy.get());
        for core in 0..self.machine.cores() {
            self.machine.enter_on(core, || {
                let srp = self.srp.borrow();
                let srp = srp.iter().filter_map(|t| t.local_port()).map(|p| p.census());
                let brp = self.brp.borrow().local_port().map(|p| p.census());
                all += &format!("\ncore {core}: {:?} {brp:?}", srp.collect::<Vec<_>>());
            });
        }
        all
    }

    /// Ends the ports, and looks for anything left.
    pub(super) fn close(&self, w: &World) -> Result<&[BufPool], Wrong> {
        for (name, port) in ["port 1", "port 2"].iter().zip(self.srp.borrow().iter()) {
            ports::close(w, &self.machine, name, port, ENDS)?;
        }
        // A login may be let in that its host has given up, and the host may not come again: the port remembers the
        // session for as long as any.
        let c = &self.ports.brp;
        let patience = ENDS.max(c.session_timeout.max(c.keep_alive) + 10 * SECONDS);
        ports::close(w, &self.machine, "BRP port", &*self.brp.borrow(), patience)?;
        self.units.borrow().values().try_for_each(|u| check_unit(u))?;
        if w.net().connections() > 0 {
            return Err(Wrong(format!("connections are left\n{}", w.dump())));
        }
        Ok(&self.pools)
    }
}

fn identity(number: u32, tas: bool) -> Identity {
    let mut naa = [0; 16];
    naa[12..].copy_from_slice(&number.to_be_bytes());
    let mut id = Identity::new("WEIR", "SIM", "0001", &format!("{number:08}"), naa);
    id.label = volume_name(number);
    id.task_aborted_status = tas;
    let port =
        |p: u8| TargetPort { relative_id: u16::from(p), group: 1, name: PortName::Srp(port_id(p)) };
    id.ports = (1..=BRP).map(port).collect();
    id
}
