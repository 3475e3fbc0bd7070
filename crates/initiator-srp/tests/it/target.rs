//! A target with a disk in memory that can be slow, or deaf.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::PortId;
use weir_reactor::sleep;
use weir_target_core::{Access, AccessMap, HostRule, ReservationStore, Unit, UnitShared, Units};
use weir_target_srp::{Port, Target, TargetConfig};

pub(crate) const BLOCK: usize = 512;
pub(crate) const HOST: PortId = PortId::new(7, 1);

/// What the disk holds outlives the target that serves it.
pub(crate) type Medium = Arc<std::sync::Mutex<Vec<u8>>>;

pub(crate) fn medium(len: usize) -> Medium {
    Arc::new(std::sync::Mutex::new(vec![0; len]))
}

#[derive(Default)]
pub(crate) struct Mood {
    /// Each I/O takes this much longer.
    pub(crate) delay: Cell<Nanos>,
    /// I/O does not end while this is set.
    pub(crate) stall: Cell<bool>,
    /// I/Os begun.
    pub(crate) begun: Cell<u64>,
    /// The one with this number does not end while this is set.
    pub(crate) stuck: Cell<u64>,
    /// Another one.
    pub(crate) stuck_too: Cell<u64>,
    /// The next flush fails, and the one after it ends well.
    pub(crate) flush_fails: Cell<bool>,
    /// How often one has.
    pub(crate) lost: Cell<u64>,
}

/// What a target's unit is like.
#[derive(Clone, Default)]
pub(crate) struct Nature {
    /// Completed writes may be lost.
    pub(crate) volatile: bool,
    /// What the caches are of, if the target tells.
    pub(crate) power: Option<u64>,
    /// Where its reservations are kept.
    pub(crate) store: Option<Arc<dyn ReservationStore>>,
}

struct Disk {
    medium: Medium,
    mood: Rc<Mood>,
    g: Geometry,
}

impl Disk {
    async fn wait(&self) {
        let number = self.mood.begun.get() + 1;
        self.mood.begun.set(number);
        if self.mood.delay.get() > 0 {
            sleep(self.mood.delay.get()).await;
        }
        let stuck = |m: &Mood| m.stuck.get() == number || m.stuck_too.get() == number;
        while self.mood.stall.get() || stuck(&self.mood) {
            sleep(MILLIS).await;
        }
    }

    fn with(&self, at: u64, len: u64, f: impl FnOnce(&mut [u8])) -> IoResult {
        check_range(&self.g, at, len)?;
        f(&mut self.medium.lock().unwrap()[at as usize..(at + len) as usize]);
        Ok(())
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        self.g
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.wait().await;
            self.with(at, buf.len() as u64, |b| buf.write_at(0, b))
        })
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.wait().await;
            self.with(at, buf.len() as u64, |b| buf.read_at(0, b))
        })
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(async move {
            while self.mood.stall.get() {
                sleep(MILLIS).await;
            }
            if !self.mood.flush_fails.replace(false) {
                return Ok(());
            }
            self.mood.lost.set(self.mood.lost.get() + 1);
            Err(IoError::Path)
        })
    }
    fn lost(&self) -> u64 {
        self.mood.lost.get()
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        IoFuture::ready(self.with(at, len, |b| b.fill(0)))
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        IoFuture::ready(self.with(at, len, |b| b.fill(0)))
    }
}

/// A target port of the present reactor.
pub(crate) struct Served {
    pub(crate) target: Target,
    pub(crate) port: Rc<Port>,
    pub(crate) mood: Rc<Mood>,
    pub(crate) addr: String,
    /// What all front ends share of the unit.
    pub(crate) unit: Arc<UnitShared>,
    pub(crate) access: Arc<Access>,
    units: Rc<Units>,
    pool: BufPool,
}

impl Served {
    /// Another unit, which nobody sees yet.
    pub(crate) fn add(&self, name: &str, naa: [u8; 16], medium: &Medium) {
        let g = geometry(medium, false);
        let ports = self.unit.with(|s| s.identity().ports.clone());
        let identity = Identity { ports, ..Identity::new("WEIR", "TEST", "0001", name, naa) };
        let blocks = weir_proto_scsi::geometry::Geometry::new(BLOCK as u32, g.blocks());
        let disk = Disk { medium: medium.clone(), mood: self.mood.clone(), g };
        let shared = UnitShared::new(name, LuState::new(identity, blocks), None);
        self.units.insert(Unit::new(shared, Rc::new(disk), self.pool.clone(), 1 << 20));
    }

    /// The same port made again, at another address. Gives that.
    pub(crate) fn again(&self, provider: &Rc<dyn Provider>, config: TargetConfig) -> String {
        let identity = self.unit.with(|s| s.identity().clone());
        let target = Target::new(config, self.access.clone(), identity, 1);
        target.join(provider.clone(), self.units.clone(), self.pool.clone()).unwrap();
        target.listen(&**provider, "127.0.0.1:0").unwrap()
    }

    /// Takes the unit away under the numbers that hosts have for it.
    pub(crate) fn take(&self) -> Rc<Unit> {
        let unit = self.units.remove("v").expect("it is there");
        self.access.touch();
        unit
    }

    /// It is back.
    pub(crate) fn put(&self, unit: Rc<Unit>) {
        self.units.insert(unit);
        self.access.touch();
    }

    /// Has all hosts see these units by these numbers.
    pub(crate) fn show(&self, luns: &[(u16, &str)]) {
        let luns = luns.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        let rule = HostRule { host: "any".into(), any: true, luns, ..HostRule::default() };
        self.access.set(AccessMap { hosts: vec![rule] });
    }
}

/// Another reactor's side of a unit.
pub(crate) fn side(
    shared: Arc<UnitShared>,
    medium: &Medium,
    pool: &BufPool,
    mood: Rc<Mood>,
) -> Rc<Unit> {
    let g = geometry(medium, false);
    let disk = Disk { medium: medium.clone(), mood, g };
    Unit::new(shared, Rc::new(disk), pool.clone(), 1 << 20)
}

fn geometry(medium: &Medium, volatile_cache: bool) -> Geometry {
    Geometry {
        len: medium.lock().unwrap().len() as u64,
        block_size: BLOCK as u32,
        granularity: 4096,
        thin: true,
        volatile_cache,
        read_only: false,
    }
}

pub(crate) fn config() -> TargetConfig {
    TargetConfig {
        requests: 256,
        recv_buffers: 200,
        policy: weir_proto_srp::TargetPolicy { credits: 32, ..TargetConfig::default().policy },
        ..TargetConfig::default()
    }
}

/// Serves `medium` as LUNs 0 and 3 to everybody.
pub(crate) fn serve(
    provider: Rc<dyn Provider>,
    addr: &str,
    config: TargetConfig,
    medium: &Medium,
) -> Served {
    serve_ports(provider, [(addr, config)], medium).remove(0)
}

/// The same through several target ports of one node, which stand before the same unit.
pub(crate) fn serve_ports<'a>(
    provider: Rc<dyn Provider>,
    ports: impl IntoIterator<Item = (&'a str, TargetConfig)>,
    medium: &Medium,
) -> Vec<Served> {
    serve_as(provider, ports, medium, Nature::default())
}

/// As [`serve_ports`], with a unit of this nature.
pub(crate) fn serve_as<'a>(
    provider: Rc<dyn Provider>,
    ports: impl IntoIterator<Item = (&'a str, TargetConfig)>,
    medium: &Medium,
    nature: Nature,
) -> Vec<Served> {
    let ports: Vec<_> = ports.into_iter().collect();
    let mut identity = Identity::new("WEIR", "TEST", "0001", "S1", [0x60; 16]);
    let port = |(_, c): &(&str, TargetConfig)| TargetPort {
        relative_id: c.relative_port,
        group: 1,
        name: PortName::Srp(c.port_id.0),
    };
    identity.ports = ports.iter().map(port).collect();
    (identity.write_cache, identity.power) = (nature.volatile, nature.power);
    let g = geometry(medium, nature.volatile);
    let luns = vec![(0, "v".into()), (3, "v".into())];
    let rule = HostRule { host: "any".into(), any: true, luns, ..HostRule::default() };
    let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
    let units = Rc::new(Units::default());
    let classes = vec![(4096, 256), (64 << 10, 64), (1 << 20, 4)];
    let pool = BufPool::new(&PoolConfig { classes }).unwrap();
    let lu = LuState::new(
        identity.clone(),
        weir_proto_scsi::geometry::Geometry::new(BLOCK as u32, g.blocks()),
    );
    let mood = Rc::new(Mood::default());
    let disk = Disk { medium: medium.clone(), mood: mood.clone(), g };
    let shared = UnitShared::new("v", lu, nature.store);
    units.insert(Unit::new(shared.clone(), Rc::new(disk), pool.clone(), 1 << 20));
    let serve = |(addr, config): (&str, TargetConfig)| {
        let target = Target::new(config, access.clone(), identity.clone(), 1);
        let port = target.join(provider.clone(), units.clone(), pool.clone()).unwrap();
        let addr = target.listen(&*provider, addr).unwrap();
        let (mood, unit, access) = (mood.clone(), shared.clone(), access.clone());
        let (units, pool) = (units.clone(), pool.clone());
        Served { target, port, mood, addr, unit, access, units, pool }
    };
    ports.into_iter().map(serve).collect()
}
