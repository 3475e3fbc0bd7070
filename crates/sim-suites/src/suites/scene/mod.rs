//! The scene that hosts and a target play in: volumes that outlive the target, verified load on them, hosts and
//! a target that die and come back, and closing checks that find whatever is left anywhere.

mod port;
mod store;

pub(super) use port::Port;
pub(super) use store::{BLOCK, LEN, Store, unit_name};

use crate::Wrong;
use crate::load::{Load, VolumeIo};
use crate::srp::Fault;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{Nanos, Prng, SECONDS};
use weir_block::Volume;
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_sim::{Node, World};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};

/// Buffers of these lengths and numbers.
pub(super) fn pool(classes: &[(usize, usize)]) -> Result<BufPool, Wrong> {
    BufPool::new(&PoolConfig { classes: classes.to_vec() }).map_err(|e| Wrong(e.to_string()))
}

/// Parts two nodes at a moment, in one direction or both, for `longest` at the most.
pub(super) fn partition(w: &World, rng: &mut Prng, at: Nanos, (a, b): (u32, u32), longest: Nanos) {
    let (for_long, one_way) = (rng.below(longest), rng.chance(1, 2));
    w.after(at, move |w| {
        w.net().partition_one_way(a, b);
        if !one_way {
            w.net().partition_one_way(b, a);
        }
        w.after(for_long, move |w| w.net().heal(a, b));
    });
}

/// One life of the target.
struct Serving<T> {
    life: u32,
    target: T,
    units: Vec<Arc<UnitShared>>,
    pools: Vec<BufPool>,
}

/// A host in one life of its node.
pub(super) struct Client<H> {
    pub(super) node: Node,
    pub(super) life: u32,
    pub(super) host: H,
    pub(super) pools: Vec<BufPool>,
    /// What of it has not come to its end.
    pub(super) running: Rc<Cell<u32>>,
}

impl<H> Client<H> {
    pub(super) fn is_current(&self) -> bool {
        self.node.is_alive() && self.node.lives() == self.life
    }
}

/// A target with its volumes, and all the hosts that there have been.
pub(super) struct Scene<T, H> {
    pub(super) target: Node,
    pub(super) stores: Vec<Store>,
    pub(super) loads: Vec<Rc<Load>>,
    /// Requests of one client.
    pub(super) requests: u64,
    pub(super) fault: Fault,
    pub(super) clients: RefCell<Vec<Client<H>>>,
    pub(super) kills: Cell<u64>,
    serving: RefCell<Option<Serving<T>>>,
    old_pools: RefCell<Vec<BufPool>>,
}

impl<T: Port, H> Scene<T, H> {
    pub(super) fn new(
        target: &Node,
        stores: Vec<Store>,
        loads: Vec<Rc<Load>>,
        requests: u64,
    ) -> Self {
        Scene {
            target: target.clone(),
            stores,
            loads,
            requests,
            fault: Fault::default(),
            clients: RefCell::default(),
            kills: Cell::default(),
            serving: RefCell::default(),
            old_pools: RefCell::default(),
        }
    }

    /// What is wrong, once something is.
    pub(super) fn verdict(&self) -> Result<(), Wrong> {
        match self.fault.get() {
            Some(what) => Err(Wrong(what)),
            None => self.loads.iter().try_for_each(|l| l.verdict()),
        }
    }

    /// Every host sees every volume.
    pub(super) fn access(&self) -> Arc<Access> {
        let luns = (0..self.stores.len()).map(|i| (i as u16, unit_name(i))).collect();
        let rule = HostRule { host: "all".into(), any: true, luns, ..HostRule::default() };
        Arc::new(Access::new(AccessMap { hosts: vec![rule] }))
    }

    /// How a volume shows itself at a target port of this name.
    pub(super) fn identity(&self, i: usize, port: [u8; 16]) -> Identity {
        let mut id = Identity::new("WEIR", "SIM", "0001", &format!("{i:08}"), [i as u8; 16]);
        id.ports = vec![TargetPort { relative_id: 1, group: 1, name: PortName::Srp(port) }];
        id
    }

    /// Puts a target on its node, which has just started. Data moves in pieces of `chunk` bytes.
    pub(super) fn put_up(
        &self,
        target: T,
        identity: impl Fn(usize) -> Identity,
        chunk: usize,
    ) -> Result<(), Wrong> {
        let node = &self.target;
        let shared: Vec<Arc<UnitShared>> = (0..self.stores.len())
            .map(|i| {
                let geometry = Geometry::new(BLOCK as u32, LEN / BLOCK as u64);
                UnitShared::new(&unit_name(i), LuState::new(identity(i), geometry), None)
            })
            .collect();
        let mut pools = Vec::new();
        for core in 0..node.cores() {
            let pool = pool(&[(4096, 24), (16384, 8)])?;
            let units = Rc::new(Units::default());
            for (i, s) in self.stores.iter().enumerate() {
                let volume = s.volume(node, core, &unit_name(i));
                node.enter_on(core, || {
                    units.insert(Unit::new(shared[i].clone(), volume, pool.clone(), chunk));
                });
            }
            let provider: Rc<dyn Provider> = node.provider_on(core);
            let joined = node.enter_on(core, || target.serve(provider, units, pool.clone()));
            joined.map_err(|e| Wrong(e.to_string()))?;
            pools.push(pool);
        }
        let listening = node.enter(|| target.take_logins(&*node.provider(), "0.0.0.0:1"));
        listening.map_err(|e| Wrong(e.to_string()))?;
        let serving = Serving { life: node.lives(), target, units: shared, pools };
        *self.serving.borrow_mut() = Some(serving);
        Ok(())
    }

    /// The target's node has died.
    fn target_died(&self) {
        // What hosts still wait for they will send again.
        self.loads.iter().for_each(|l| l.settle_given_up());
        if let Some(s) = self.serving.take() {
            self.old_pools.borrow_mut().extend(s.pools);
        }
    }

    /// Trouble goes on for a while, and the network's own part of it a bit longer.
    pub(super) fn sit_out(&self, w: &World) {
        w.run_for(SECONDS);
        w.after(4 * SECONDS, |w| w.net().calm());
    }

    /// Waits until every host is done and all is quiet.
    pub(super) fn play_out(&self, w: &World) -> Result<(), Wrong> {
        let done = |c: &Client<H>| c.running.get() == 0 || !c.is_current();
        w.run_until(400 * SECONDS, || {
            self.verdict().is_err() || self.clients.borrow().iter().all(done)
        })?;
        self.verdict()?;
        w.net().calm();
        w.run_for(15 * SECONDS);
        Ok(())
    }

    /// Ends the target, whose hosts have ended, and looks for anything left. Channels of hosts that died may
    /// take up to `patience`. The target's buffers, which must be whole once the volumes are at rest.
    pub(super) fn close_target(&self, w: &World, patience: Nanos) -> Result<Vec<BufPool>, Wrong> {
        let Some(Serving { life, target, units, pools }) = self.serving.take() else {
            return Err(Wrong("the target is not there in the end".to_string()));
        };
        let node = &self.target;
        assert_eq!(life, node.lives(), "the target of this life");
        for core in 0..node.cores() {
            let channels = || node.enter_on(core, || target.channels_here());
            if let Err(s) = w.run_until(patience, || channels() == 0) {
                return Err(Wrong(format!("channels stay at the target: {s}")));
            }
            let idle = node.enter_on(core, || target.check_here());
            idle.map_err(|e| Wrong(format!("target core {core}: {e}")))?;
            let t = target.clone();
            let left = node.spawn_on(core, async move { t.leave_here().await });
            w.run_until(10 * SECONDS, || left.is_finished())?;
        }
        if !target.known().is_empty() {
            return Err(Wrong(format!("the target still knows: {:?}", target.known())));
        }
        units.iter().try_for_each(|u| check_unit(u))?;
        if w.net().connections() > 0 {
            return Err(Wrong(format!("connections are left\n{}", w.dump())));
        }
        self.verdict()?;
        Ok(pools)
    }

    /// A volume itself must hold what the hosts were told. It is given back for other questions.
    pub(super) fn check_volume(
        &self,
        w: &World,
        i: usize,
        pool: &BufPool,
    ) -> Result<Rc<dyn Volume>, Wrong> {
        let load = &self.loads[i];
        load.settle();
        let volume = self.stores[i].volume(&self.target, 0, &unit_name(i));
        let io = Rc::new(VolumeIo(volume.clone()));
        w.run(&self.target, 10 * SECONDS, load.clone().read_all(io, pool.clone()))?;
        load.verdict()?;
        Ok(volume)
    }

    /// The figures that all suites with a scene have.
    pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
        let sum =
            |f: fn(&crate::load::Figures) -> u64| self.loads.iter().map(|l| f(&l.figures())).sum();
        vec![
            ("blocks verified", sum(|f| f.blocks_read)),
            ("writes", sum(|f| f.writes)),
            ("kills", self.kills.get()),
        ]
    }
}

/// A unit whose hosts have gone knows none of them.
pub(super) fn check_unit(unit: &UnitShared) -> Result<(), Wrong> {
    unit.with(|s| {
        let left: Vec<_> = s.nexuses().map(|n| (n, format!("{:?}", s.ports_of(n)))).collect();
        if !left.is_empty() {
            return Err(Wrong(format!("volume {} still knows {left:?}", unit.name())));
        }
        s.check_invariants().map_err(|e| Wrong(format!("volume {}: {e}", unit.name())))
    })
}

/// No buffer is in use.
pub(super) fn check_whole<'a>(pools: impl IntoIterator<Item = &'a BufPool>) -> Result<(), Wrong> {
    for p in pools {
        if !p.is_whole() {
            return Err(Wrong(format!("buffers leaked: {:?}", p.census())));
        }
    }
    Ok(())
}

/// Who plays in a scene: what is started again after a death.
pub(super) trait Play: 'static {
    type Target: Port;
    type Host;

    fn scene(&self) -> &Scene<Self::Target, Self::Host>;

    /// Puts the target on its node, which has just started.
    fn serve(&self) -> Result<(), Wrong>;

    /// Puts a host with its clients on a node that has just started.
    fn start_host(self: &Rc<Self>, node: &Node, number: u64, rng: &mut Prng) -> Result<(), Wrong>;

    /// A node dies and comes back.
    fn death(self: &Rc<Self>, w: &World, at: Nanos, node: Node, rng: &mut Prng) {
        let (silent, back, mut fork) = (rng.chance(1, 2), rng.below(SECONDS), rng.fork());
        let me = self.clone();
        w.after(at, move |w| {
            if !node.is_alive() {
                return;
            }
            match silent {
                true => node.power_off(),
                false => node.kill(),
            }
            let scene = me.scene();
            scene.kills.set(scene.kills.get() + 1);
            let is_target = node.number() == scene.target.number();
            if is_target {
                scene.target_died();
            }
            let number = u64::from(node.number()).saturating_sub(1);
            w.after(back, move |_| {
                node.restart();
                let started = match is_target {
                    true => me.serve(),
                    false => me.start_host(&node, number, &mut fork),
                };
                if let Err(Wrong(e)) = started {
                    me.scene().fault.set(e);
                }
            });
        });
    }
}
