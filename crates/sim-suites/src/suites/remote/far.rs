//! The other node: a BRP target with one volume on a disk.

use crate::Wrong;
use crate::srp::{DiskVolume, Fault};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_target_brp::{Target, TargetConfig};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};

/// What its volume is called.
pub(super) const VOLUME: &str = "half";
const BLOCK: u64 = 512;

pub(super) struct Far {
    pub(super) node: Node,
    pub(super) fault: Fault,
    pub(super) deaths: Cell<u64>,
    medium: SimMedium,
    volatile: bool,
    /// Times that its machine lost power.
    powers: Cell<u64>,
    serving: RefCell<Option<(Target, BufPool)>>,
}

impl Far {
    pub(super) fn new(w: &World, len: u64, rng: &mut Prng) -> Result<Rc<Far>, Wrong> {
        let node = w.node("far");
        let volatile = rng.chance(4, 5);
        let config = DiskConfig { volatile_cache: volatile, ..DiskConfig::default() };
        let medium = SimMedium::new(VOLUME, len, config, rng.next_u64());
        node.attach(&medium);
        Ok(Rc::new(Far {
            node,
            fault: Fault::default(),
            deaths: Cell::default(),
            medium,
            volatile,
            powers: Cell::new(1),
            serving: RefCell::default(),
        }))
    }

    /// Puts the target on the node, which has just started.
    pub(super) fn serve(self: &Rc<Self>) -> Result<(), Wrong> {
        let rule = HostRule {
            host: "all".into(),
            any: true,
            luns: [(0, VOLUME.to_owned())].into(),
            ..HostRule::default()
        };
        let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
        let config = TargetConfig {
            incarnation: u64::from(self.node.lives()) + 1,
            power: self.powers.get(),
            depth: 16,
            credits: 8,
            recv_buffers: 128,
            requests: 32,
            ..TargetConfig::default()
        };
        let port = config.port_id.0;
        let target = Target::new(config, access);
        let bufs = BufPool::new(&PoolConfig { classes: vec![(4096, 32), (65536, 16)] });
        let bufs = bufs.map_err(|e| Wrong(e.to_string()))?;
        let mut id = Identity::new("WEIR", "SIM", "0001", "half", [9; 16]);
        id.label = VOLUME.into();
        id.write_cache = self.volatile;
        id.ports = vec![TargetPort { relative_id: 1, group: 1, name: PortName::Srp(port) }];
        let geometry = Geometry::new(BLOCK as u32, self.medium.len() / BLOCK);
        let shared = UnitShared::new(VOLUME, LuState::new(id, geometry), None);
        let (me, disk) = (self.clone(), self.node.disk(VOLUME));
        *self.serving.borrow_mut() = Some((target.clone(), bufs.clone()));
        self.node.spawn(async move {
            // As the daemon does: nobody gets at a disk before all that a killed process had asked of it has ended.
            disk.drained().await;
            let units = Rc::new(Units::default());
            units.insert(Unit::new(shared, Rc::new(DiskVolume(disk)), bufs.clone(), 65536));
            let provider: Rc<dyn Provider> = me.node.provider();
            let up = target.join(provider.clone(), units, bufs).map(drop);
            let up = up.and_then(|()| target.listen(&*provider, "0.0.0.0:1").map(drop));
            if let Err(e) = up {
                me.fault.set(format!("the target does not listen: {e}"));
            }
        });
        Ok(())
    }

    /// It dies, and comes back after a while.
    pub(super) fn die(self: &Rc<Self>, w: &World, rng: &mut Prng) {
        if !self.node.is_alive() {
            return;
        }
        self.deaths.set(self.deaths.get() + 1);
        self.serving.take();
        match rng.chance(1, 2) {
            true => {
                self.powers.set(self.powers.get() + 1);
                self.node.power_off();
            }
            false => self.node.kill(),
        }
        // Often sooner than the pool gives it up.
        let longest = [200 * MILLIS, SECONDS, 10 * SECONDS][rng.below(3) as usize];
        let me = self.clone();
        w.after(rng.below(longest), move |_| {
            me.node.restart();
            if let Err(Wrong(e)) = me.serve() {
                me.fault.set(e);
            }
        });
    }

    /// What its volume is now.
    pub(super) fn image(&self) -> Vec<u8> {
        let mut all = vec![0; self.medium.len() as usize];
        self.medium.peek(0, &mut all);
        all
    }

    /// It dies, and comes back after that time with a volume like this. Gives what that was.
    pub(super) fn die_and_be(self: &Rc<Self>, w: &World, image: Vec<u8>, away: Nanos) -> Vec<u8> {
        self.serving.take();
        self.node.kill();
        let last = self.image();
        let me = self.clone();
        w.after(away, move |_| {
            me.medium.poke(0, &image);
            me.node.restart();
            if let Err(Wrong(e)) = me.serve() {
                me.fault.set(e);
            }
        });
        last
    }

    /// Its disk takes longer for everything from here on.
    pub(super) fn stall(&self, rng: &mut Prng) {
        self.medium.stall(rng.below(500 * MILLIS));
    }

    pub(super) fn be_well(&self) {
        self.medium.stall(0);
    }
}
