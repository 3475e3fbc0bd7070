//! A target with a volume in memory that can lend itself, be slow, or stall.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_fabric::Provider;
use weir_initiator_brp::PortId;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_reactor::sleep;
use weir_target_brp::{Port, Target, TargetConfig};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};

pub(crate) const BLOCK: usize = 512;
pub(crate) const HOST: PortId = PortId([7; 16]);

#[derive(Default)]
pub(crate) struct Mood {
    /// Lend the memory itself.
    pub(crate) direct: Cell<bool>,
    /// Each I/O takes this much longer.
    pub(crate) delay: Cell<Nanos>,
    /// I/O does not end while this is set.
    pub(crate) stall: Cell<bool>,
    /// Writes that took effect.
    pub(crate) writes: Cell<u64>,
    /// Discards and writes of zeroes.
    pub(crate) ranges: Cell<u64>,
    /// Reads panic.
    pub(crate) broken: Cell<bool>,
    /// Completed writes may be lost.
    pub(crate) volatile: Cell<bool>,
    /// The next flush fails, and the one after it ends well.
    pub(crate) flush_fails: Cell<bool>,
    /// How often one has.
    pub(crate) lost: Cell<u64>,
}

struct Disk {
    memory: Slice,
    mood: Rc<Mood>,
}

impl Disk {
    async fn wait(&self) {
        if self.mood.delay.get() > 0 {
            sleep(self.mood.delay.get()).await;
        }
        while self.mood.stall.get() {
            sleep(MILLIS).await;
        }
    }

    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.memory.len() as u64,
            block_size: BLOCK as u32,
            granularity: 4096,
            thin: true,
            volatile_cache: self.mood.volatile.get(),
            read_only: false,
        }
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.wait().await;
            assert!(!self.mood.broken.get(), "broken on purpose");
            self.check(at, buf.len() as u64)?;
            buf.copy_from(0, &self.memory, at as usize, buf.len());
            Ok(())
        })
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.wait().await;
            self.check(at, buf.len() as u64)?;
            self.mood.writes.set(self.mood.writes.get() + 1);
            self.memory.copy_from(at as usize, &buf, 0, buf.len());
            Ok(())
        })
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.wait().await;
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
        self.write_zeroes(at, len, true)
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        let r = self.check(at, len);
        self.mood.ranges.set(self.mood.ranges.get() + 1);
        if r.is_ok() {
            self.memory.sub(at as usize, len as usize).fill(0);
        }
        IoFuture::ready(r)
    }
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        let lend = self.mood.direct.get() && !self.mood.stall.get();
        (lend && self.check(at, len as u64).is_ok()).then(|| self.memory.sub(at as usize, len))
    }

    fn write_now(&self, at: u64, data: &[u8], _sums: &[[u8; 4]]) -> bool {
        let place = self.direct(at, data.len());
        place.is_some_and(|p| {
            p.write_at(0, data);
            true
        })
    }
}

/// A target port of the present reactor.
pub(crate) struct Served {
    pub(crate) target: Target,
    pub(crate) port: Rc<Port>,
    pub(crate) mood: Rc<Mood>,
    pub(crate) access: Arc<Access>,
    pub(crate) addr: String,
    /// What all front ends share of the unit.
    pub(crate) unit: Arc<UnitShared>,
    units: Rc<Units>,
    pool: BufPool,
}

impl Served {
    /// The same port made again, at another address. Gives that.
    pub(crate) fn again(&self, provider: &Rc<dyn Provider>, config: TargetConfig) -> String {
        let target = Target::new(config, self.access.clone());
        target.join(provider.clone(), self.units.clone(), self.pool.clone()).unwrap();
        target.listen(&**provider, "127.0.0.1:0").unwrap()
    }
}

pub(crate) fn config() -> TargetConfig {
    TargetConfig { requests: 256, recv_buffers: 200, credits: 32, ..TargetConfig::default() }
}

/// The rule under which everybody sees the volume as these numbers.
pub(crate) fn map(numbers: &[u16]) -> AccessMap {
    let luns = numbers.iter().map(|n| (*n, "v".to_owned())).collect();
    AccessMap {
        hosts: vec![HostRule { host: "any".into(), any: true, luns, ..HostRule::default() }],
    }
}

/// Serves `memory` as volumes 0 and 3 to everybody.
pub(crate) fn serve(
    provider: Rc<dyn Provider>,
    addr: &str,
    config: TargetConfig,
    memory: &Slice,
) -> Served {
    let mood = Rc::new(Mood::default());
    mood.direct.set(true);
    let disk = Disk { memory: memory.clone(), mood: mood.clone() };
    serve_volume(provider, addr, config, Rc::new(disk), mood)
}

/// Serves a volume that lends no memory, with so many buffers of 4 KiB.
pub(crate) fn serve_from(
    provider: Rc<dyn Provider>,
    config: TargetConfig,
    memory: &Slice,
    buffers: usize,
) -> Served {
    let mood = Rc::new(Mood::default());
    let disk = Rc::new(Disk { memory: memory.clone(), mood: mood.clone() });
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, buffers)] }).unwrap();
    serve_pooled(provider, "127.0.0.1:0", config, disk, mood, pool)
}

/// Serves any volume of 512-byte blocks in the same way.
pub(crate) fn serve_volume(
    provider: Rc<dyn Provider>,
    addr: &str,
    config: TargetConfig,
    volume: Rc<dyn Volume>,
    mood: Rc<Mood>,
) -> Served {
    let classes = vec![(4096, 256), (64 << 10, 64), (1 << 20, 8)];
    let pool = BufPool::new(&PoolConfig { classes }).unwrap();
    serve_pooled(provider, addr, config, volume, mood, pool)
}

fn serve_pooled(
    provider: Rc<dyn Provider>,
    addr: &str,
    config: TargetConfig,
    volume: Rc<dyn Volume>,
    mood: Rc<Mood>,
    pool: BufPool,
) -> Served {
    let name = PortName::Srp(config.port_id.0);
    let mut identity = Identity::new("WEIR", "TEST", "0001", "S1", [0x60; 16]);
    // One for the tests' second port.
    let second = if config.relative_port == 2 { 3 } else { 2 };
    let port = |relative_id| TargetPort { relative_id, group: 1, name: name.clone() };
    identity.ports = vec![port(config.relative_port), port(second)];
    let blocks = volume.geometry().len / BLOCK as u64;
    let access = Arc::new(Access::new(map(&[0, 3])));
    let units = Rc::new(Units::default());
    let lu = LuState::new(identity, weir_proto_scsi::geometry::Geometry::new(BLOCK as u32, blocks));
    let shared = UnitShared::new("v", lu, None);
    units.insert(Unit::new(shared.clone(), volume, pool.clone(), 1 << 20));
    let target = Target::new(config, access.clone());
    let port = target.join(provider.clone(), units.clone(), pool.clone()).unwrap();
    let addr = target.listen(&*provider, addr).unwrap();
    Served { target, port, mood, access, addr, unit: shared, units, pool }
}
