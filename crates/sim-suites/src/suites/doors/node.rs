//! The node: two reactors, two SRP ports and a BRP port before the same units, and what its operator does.

use super::book::Book;
use super::judge::Judge;
use super::medium::{Medium, PLACE, Spied};
use super::spc::{CAPACITY, Pair};
use crate::Wrong;
use crate::suites::scene::{BLOCK, Port as _, pool};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::Provider;
use weir_mem::BufPool;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_reactor::{Handle, call, get_local, set_local, sleep, spawn_task};
use weir_sim::{Node as Machine, World};
use weir_target_brp as brp;
use weir_target_core::{
    Access, AccessMap, End, HostRule, ReservationStore, Unit, UnitShared, Units, Whom,
};
use weir_target_srp as srp;

/// Relative identifier of the BRP port; those of the SRP ports come before it.
pub(super) const BRP: u8 = 3;
/// Data moves in pieces of so many bytes.
const CHUNK: usize = 4096;

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
    units: Rc<Units>,
    pool: BufPool,
    medium: Rc<Medium>,
}

/// Keeps reservations, or fails to.
struct Keeper {
    rng: Mutex<Prng>,
    /// One of so many fails; 0: none.
    fails: u64,
    failed: AtomicU64,
}

impl ReservationStore for Keeper {
    fn save(&self, _: &str, _: u64, _: Vec<u8>, done: Box<dyn FnOnce(bool) + Send>) {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = self.fails > 0 && rng.chance(1, self.fails);
        let wait = rng.below(MILLIS);
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
    /// Data buffers of each reactor.
    pub(super) buffers: usize,
}

/// The node and its operator's wishes.
pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) judge: Rc<Judge>,
    medium: Rc<Medium>,
    access: Arc<Access>,
    srp: [srp::Target; 2],
    brp: brp::Target,
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
    /// Volumes that were taken from hosts and that these, being logged in ever since, still know by a number.
    known: RefCell<BTreeMap<(usize, u16), u32>>,
    /// One wish at a time.
    turn: weir_reactor::WaitChannel,
    pub(super) busy: Cell<u32>,
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
        let id = identity(0, c.tas);
        let target = |port: u8| {
            let config = srp::TargetConfig {
                port_id: weir_proto_srp::PortId(port_id(port)),
                relative_port: u16::from(port),
                ..c.srp.clone()
            };
            srp::Target::new(config, access.clone(), id.clone(), machine.cores())
        };
        let srp = [target(1), target(2)];
        let config = brp::TargetConfig {
            port_id: weir_initiator_brp::PortId(port_id(BRP)),
            relative_port: u16::from(BRP),
            ..c.brp.clone()
        };
        let brp = brp::Target::new(config, access.clone());
        let mut pools = Vec::new();
        for core in 0..machine.cores() {
            let pool = pool(&[(4096, c.buffers), (16384, c.buffers.div_ceil(3))])?;
            let units = Rc::new(Units::default());
            let local = Local { units: units.clone(), pool: pool.clone(), medium: medium.clone() };
            let provider: Rc<dyn Provider> = machine.provider_on(core);
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
                srp[0].take_logins(&*p, "0.0.0.0:1")?;
                srp[1].take_logins(&*p, "0.0.0.0:2")?;
                brp.take_logins(&*p, "0.0.0.0:3")
            })
            .map_err(|e| Wrong(e.to_string()))?;
        let keeper =
            Keeper { rng: Mutex::new(rng.fork()), fails: c.forgets, failed: AtomicU64::new(0) };
        let maps = hosts.iter().map(|_| BTreeMap::new()).collect();
        Ok(Rc::new(Node {
            machine,
            judge,
            medium,
            access,
            srp,
            brp,
            pools,
            units: RefCell::default(),
            keeper: Arc::new(keeper),
            tas: c.tas,
            reads_out: (c.srp.reads_out, c.brp.reads_out),
            hosts,
            maps: RefCell::new(maps),
            known: RefCell::default(),
            turn: weir_reactor::WaitChannel::new(1),
            busy: Cell::new(0),
        }))
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

    // Wishes. Each is over when its promise holds.

    /// Makes a volume in a place and shows it to nobody.
    pub(super) async fn create(&self, place: usize, blocks: u64, direct: bool, delay: u64) -> u32 {
        self.medium.wipe(place);
        let number = self.judge.new_volume(place, blocks, PLACE, direct, delay);
        let geometry = Geometry::new(BLOCK as u32, blocks);
        let lu = LuState::new(identity(number, self.tas), geometry);
        let unit = UnitShared::new(&volume_name(number), lu, Some(self.keeper.clone()));
        self.units.borrow_mut().insert(number, unit.clone());
        for h in self.reactors() {
            let unit = unit.clone();
            call(&h, move || async move {
                let Some(l) = get_local::<Local>() else { return };
                let volume =
                    Spied { medium: l.medium.clone(), place, volume: number, delay, direct };
                l.units.insert(Unit::new(unit, Rc::new(volume), l.pool.clone(), CHUNK));
            })
            .await;
        }
        self.access.touch();
        number
    }

    /// Puts the map in force. What hosts have under way on volumes that they lost by it has ended when this returns.
    async fn put_in_force(&self) {
        let map = self.access_map();
        let lost = self.access.map().lost_by(&map);
        self.access.set(map);
        for name in lost {
            if let Some(u) = self.unit(&name) {
                u.part().await;
            }
        }
    }

    fn unit(&self, name: &str) -> Option<Arc<UnitShared>> {
        self.units.borrow().values().find(|u| u.name() == name).cloned()
    }

    fn access_map(&self) -> AccessMap {
        let maps = self.maps.borrow();
        let rules = self.hosts.iter().zip(maps.iter()).enumerate();
        let hosts = rules
            .map(|(i, (ports, luns))| HostRule {
                host: format!("host{i}"),
                any: false,
                ports: ports.iter().map(|p| initiator_id(*p).to_vec()).collect(),
                luns: luns.iter().map(|(l, v)| (*l, volume_name(*v))).collect(),
                ..HostRule::default()
            })
            .collect();
        AccessMap { hosts }
    }

    /// Whether a host has a connection to any of the ports.
    pub(super) fn is_logged_in(&self, host: usize) -> bool {
        let ports = &self.hosts[host];
        let own = |id: [u8; 16]| ports.iter().any(|p| initiator_id(*p) == id);
        self.srp.iter().any(|t| t.nexuses().iter().any(|n| own(n.initiator.0)))
            || self.brp.sessions().iter().any(|s| own(s.initiator.0))
    }

    /// A LUN that a host, as long as it is logged in, knows as no other volume: this one if it can be.
    fn lun_for(&self, host: usize, lun: u16, volume: u32) -> u16 {
        if !self.is_logged_in(host) {
            self.known.borrow_mut().retain(|(h, _), _| *h != host);
        }
        let (known, maps) = (self.known.borrow(), self.maps.borrow());
        let fits = |l: &u16| {
            known.get(&(host, *l)).is_none_or(|v| *v == volume) && !maps[host].contains_key(l)
        };
        (lun..).find(fits).unwrap_or(lun)
    }

    /// Shows a volume to a host, by this LUN or by one that it knows as nothing else. Gives the LUN.
    pub(super) async fn map(&self, host: usize, lun: u16, volume: u32) -> u16 {
        let lun = self.lun_for(host, lun, volume);
        self.judge.change(volume, |b: &mut Book| b.seen_by.insert(host, (true, true)));
        self.maps.borrow_mut()[host].insert(lun, volume);
        self.put_in_force().await;
        self.judge.change(volume, |b: &mut Book| b.seen_by.insert(host, (true, false)));
        lun
    }

    /// Hides a volume from hosts; nothing of theirs happens to it afterwards.
    pub(super) async fn unmap(&self, hosts: &[usize], volume: u32) {
        let of: BTreeSet<Pair> = hosts.iter().flat_map(|h| self.judge.pairs_of(*h)).collect();
        let fence = self.judge.fence(volume, Some(of.clone()), "unmapping");
        self.judge.change(volume, |b| {
            for h in hosts {
                b.seen_by.insert(*h, (true, true));
            }
        });
        for h in hosts {
            let map = &mut self.maps.borrow_mut()[*h];
            if self.is_logged_in(*h) {
                let was = map.iter().filter(|(_, v)| **v == volume).map(|(l, v)| ((*h, *l), *v));
                self.known.borrow_mut().extend(was);
            }
            map.retain(|_, v| *v != volume);
        }
        self.put_in_force().await;
        self.judge.fenced(fence);
        let now = self.judge.now();
        self.judge.change(volume, |b| {
            for h in hosts {
                b.seen_by.insert(*h, (false, true));
            }
            for p in of {
                b.attentions.doubt(p, now);
            }
        });
        self.judge.count("unmappings");
    }

    fn hosts_of(&self, volume: u32) -> Vec<(usize, u16)> {
        let maps = self.maps.borrow();
        let of = |(h, m): (usize, &BTreeMap<u16, u32>)| {
            m.iter().find(|(_, v)| **v == volume).map(|(l, _)| (h, *l))
        };
        maps.iter().enumerate().filter_map(of).collect()
    }

    /// Deletes a volume; its place is free afterwards. Gives the place, and who saw it as what.
    pub(super) async fn delete(&self, volume: u32) -> (usize, Vec<(usize, u16)>) {
        let seen = self.hosts_of(volume);
        let hosts: Vec<usize> = seen.iter().map(|(h, _)| *h).collect();
        self.unmap(&hosts, volume).await;
        let fence = self.judge.fence(volume, None, "deletion");
        let unit = self.units.borrow_mut().remove(&volume);
        // While every reactor has its side of the unit, which knows who has been answered of late.
        if let Some(u) = &unit {
            u.fence(Whom::All, End::Gone).await;
        }
        for h in self.reactors() {
            call(&h, move || async move {
                if let Some(l) = get_local::<Local>() {
                    l.units.remove(&volume_name(volume));
                }
            })
            .await;
        }
        self.access.touch();
        if let Some(u) = unit {
            u.fence(Whom::All, End::Gone).await;
        }
        self.judge.fenced(fence);
        let place = self.judge.with(volume, |b| b.slot);
        self.judge.free(volume);
        self.judge.count("deletions");
        (place, seen)
    }

    /// Puts a volume back to what it was: nobody sees it meanwhile.
    pub(super) async fn revert(&self, volume: u32, bytes: &[u8]) {
        let seen = self.hosts_of(volume);
        let hosts: Vec<usize> = seen.iter().map(|(h, _)| *h).collect();
        self.unmap(&hosts, volume).await;
        let unit = self.units.borrow().get(&volume).cloned();
        if let Some(u) = unit {
            u.fence(Whom::All, End::Gone).await;
        }
        let place = self.judge.with(volume, |b| b.slot);
        self.medium.restore(place, volume, bytes);
        self.judge.count("reverts");
        for (host, lun) in seen {
            self.map(host, lun, volume).await;
        }
    }

    /// What a volume holds.
    pub(super) fn snapshot(&self, volume: u32) -> Vec<u8> {
        self.medium.copy(self.judge.with(volume, |b| b.slot))
    }

    /// Makes a volume larger or smaller.
    pub(super) async fn resize(&self, volume: u32, blocks: u64) {
        let Some(unit) = self.units.borrow().get(&volume).cloned() else { return };
        let before = self.judge.with(volume, |b| b.blocks);
        if before == blocks {
            return;
        }
        let began = self.judge.now();
        let seeing: Vec<Pair> = (self.hosts_of(volume).iter())
            .flat_map(|(h, _)| self.judge.pairs_of(*h))
            .filter(|p| p.1 != BRP)
            .collect();
        // Units know nexuses that do not see them now, and may see them again.
        let (seeing, others): (Vec<_>, Vec<_>) = (self.judge.paths.iter().map(|p| p.pair))
            .filter(|p| p.1 != BRP)
            .partition(|p| seeing.contains(p));
        let told = self.judge.raises(volume, CAPACITY, seeing);
        let perhaps = self.judge.raises(volume, CAPACITY, others);
        // It ends nobody's right to go on; who has more than the new size allows asks again.
        let fence = self.judge.fence(volume, Some(BTreeSet::new()), "a new size");
        if blocks > before {
            self.judge.change(volume, |b| b.blocks = blocks);
        }
        unit.with(|s| s.resize(blocks));
        if blocks < before {
            unit.fence(Whom::All, End::Again).await;
            self.judge.change(volume, |b| b.blocks = blocks);
        }
        self.judge.fenced(fence);
        self.judge.raised(volume, CAPACITY, &told, true, began);
        self.judge.raised(volume, CAPACITY, &perhaps, false, began);
        self.judge.count("resizes");
    }

    /// Deletes a volume, and shows a new one in its place to whoever saw it: at the same LUN where that can be.
    async fn replace(&self, volume: u32, rng: &mut Prng, direct: bool) {
        let (place, seen) = self.delete(volume).await;
        let delay = self.judge.with(volume, |b| b.delay);
        let new = self.create(place, rng.between(32, PLACE), direct, delay).await;
        for (host, lun) in seen {
            if self.map(host, lun, new).await == lun {
                self.judge.count("other volume at a LUN");
            }
        }
    }

    /// Replaces a volume that a host has seen, when that has logged out or does not.
    pub(super) async fn replace_while_away(&self, host: usize, rng: &mut Prng, direct: bool) {
        self.busy.set(self.busy.get() + 1);
        let _turn = self.turn.acquire(1).await;
        for _ in 0..200 {
            if !self.is_logged_in(host) {
                break;
            }
            sleep(10 * MILLIS).await;
        }
        let first = self.mapped(host).into_values().next();
        if let Some(volume) = first {
            self.replace(volume, rng, direct).await;
        }
        self.busy.set(self.busy.get() - 1);
    }

    /// Does something at random.
    pub(super) async fn wish(self: Rc<Self>, mut rng: Prng, direct: bool) {
        self.busy.set(self.busy.get() + 1);
        let _turn = self.turn.acquire(1).await;
        let all = self.volumes();
        let volume = all[rng.below(all.len() as u64) as usize];
        match rng.below(10) {
            0..=3 => {
                let seen = self.hosts_of(volume);
                if let Some((host, lun)) = seen.get(rng.below(seen.len().max(1) as u64) as usize) {
                    self.unmap(&[*host], volume).await;
                    if rng.chance(1, 2) {
                        sleep(rng.below(300 * MILLIS)).await;
                    }
                    self.map(*host, *lun, volume).await;
                } else {
                    let host = rng.below(self.hosts.len() as u64) as usize;
                    let free = (0..).find(|l| !self.mapped(host).contains_key(l)).unwrap_or(9);
                    self.map(host, free, volume).await;
                }
            }
            4 | 5 => self.replace(volume, &mut rng, direct).await,
            6 | 7 => {
                let was = self.snapshot(volume);
                sleep(rng.below(100 * MILLIS)).await;
                self.revert(volume, &was).await;
            }
            _ => self.resize(volume, rng.between(32, PLACE)).await,
        }
        self.busy.set(self.busy.get() - 1);
    }

    /// What is held on each reactor, for whoever looks for what hangs.
    pub(super) fn census(&self) -> String {
        let mut all = format!("wishes under way: {}", self.busy.get());
        for core in 0..self.machine.cores() {
            self.machine.enter_on(core, || {
                let srp = self.srp.iter().filter_map(|t| t.local_port()).map(|p| p.census());
                let brp = self.brp.local_port().map(|p| p.census());
                all += &format!("\ncore {core}: {:?} {brp:?}", srp.collect::<Vec<_>>());
            });
        }
        all
    }

    /// Ends the ports, and looks for anything left.
    pub(super) fn close(&self, w: &World) -> Result<&[BufPool], Wrong> {
        for (name, port) in [("port 1", &self.srp[0]), ("port 2", &self.srp[1])] {
            close_port(w, &self.machine, name, port)?;
        }
        close_port(w, &self.machine, "BRP port", &self.brp)?;
        for (v, u) in self.units.borrow().iter() {
            let left: Vec<_> = u.with(|s| s.nexuses().collect());
            if !left.is_empty() {
                return Err(Wrong(format!("volume {v} still knows {left:?}")));
            }
            u.with(|s| s.check_invariants()).map_err(|e| Wrong(format!("volume {v}: {e}")))?;
        }
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

fn close_port<P: crate::suites::scene::Port>(
    w: &World,
    machine: &Machine,
    name: &str,
    port: &P,
) -> Result<(), Wrong> {
    for core in 0..machine.cores() {
        let channels = || machine.enter_on(core, || port.channels_here());
        w.run_until(90 * SECONDS, || channels() == 0)
            .map_err(|s| Wrong(format!("channels stay at {name}: {s}")))?;
        let idle = machine.enter_on(core, || port.check_here());
        idle.map_err(|e| Wrong(format!("{name}, core {core}: {e}")))?;
        let p = port.clone();
        let left = machine.spawn_on(core, async move { p.leave_here().await });
        w.run_until(10 * SECONDS, || left.is_finished())?;
    }
    match port.known() {
        known if known.is_empty() => Ok(()),
        known => Err(Wrong(format!("{name} still knows: {known:?}"))),
    }
}
