//! Target on one core, initiator on the other: `loop BLOCK DEPTH SECONDS
//! read|write|tur [channel|queue|single] [MIB of the volume]`.
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_base::IoResult;
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Channel, ChannelConfig, QueueMode, Session, SessionConfig};
use weir_mem::{Arena, BufPool, PoolConfig, Slice};
use weir_proto_scsi::Lun;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, clock, spawn};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};
use weir_target_srp::{Target, TargetConfig};
use weir_uring::{Ring, TcpNetwork, pin_to_core};

struct Ram {
    mem: Rc<Arena>,
    g: Geometry,
}

impl Ram {
    fn slice(&self, at: u64, len: usize) -> Slice {
        // SAFETY: the volume checks ranges against its size, which is the arena's.
        let ptr = unsafe { self.mem.base().add(at as usize) };
        // SAFETY: the slice keeps the arena; nobody holds references to its bytes.
        unsafe { Slice::from_raw(ptr, len as u32, self.mem.clone()) }
    }
}

impl Volume for Ram {
    fn geometry(&self) -> Geometry {
        self.g
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::ready(self.io(at, &buf, true))
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::ready(self.io(at, &buf, false))
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, _: u64, _: u64) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        Some(self.slice(at, len))
    }

    fn write_now(&self, at: u64, data: &[u8], _sums: &[[u8; 4]]) -> bool {
        let place = self.direct(at, data.len());
        place.is_some_and(|p| {
            p.write_at(0, data);
            true
        })
    }
}

impl Ram {
    fn io(&self, at: u64, buf: &Slice, read: bool) -> IoResult {
        check_range(&self.g, at, buf.len() as u64)?;
        let s = self.slice(at, buf.len());
        if read {
            buf.copy_from(0, &s, 0, buf.len())
        } else {
            s.stream_from(0, buf, 0, buf.len())
        }
        Ok(())
    }
}

/// Bytes of the volume.
fn size() -> usize {
    std::env::args().nth(6).map_or(4, |a| a.parse().unwrap()) << 20
}

fn target(addr: std::sync::mpsc::Sender<String>) {
    pin_to_core(0).unwrap();
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let provider = Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default());
    reactor.block_on(PollMode::Busy, async move {
        let mut identity = Identity::new("WEIR", "RAM", "0001", "1", [0x60; 16]);
        let config = TargetConfig::default();
        let name = PortName::Srp(config.port_id.0);
        identity.ports = vec![TargetPort { relative_id: 1, group: 1, name }];
        let g = Geometry {
            len: size() as u64,
            block_size: 512,
            granularity: 4096,
            thin: false,
            volatile_cache: false,
            read_only: false,
        };
        let lu = LuState::new(
            identity.clone(),
            weir_proto_scsi::geometry::Geometry::new(512, g.blocks()),
        );
        let rule = HostRule {
            host: "any".into(),
            any: true,
            luns: vec![(0, "v".into())],
            ..HostRule::default()
        };
        let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
        let units = Rc::new(Units::default());
        let pool = BufPool::new(&PoolConfig::default()).unwrap();
        let mem = Rc::new(Arena::new(size()).unwrap());
        // SAFETY: the whole arena, which nobody else uses yet.
        unsafe { std::ptr::write_bytes(mem.base().as_ptr(), 7, size()) };
        let shared = UnitShared::new("v", lu, None);
        units.insert(Unit::new(shared, Rc::new(Ram { mem, g }), pool.clone(), 1 << 20));
        let t = Target::new(config, access, identity, 1);
        t.join(Rc::new(provider.clone()), units, pool).unwrap();
        addr.send(t.listen(&provider, "127.0.0.1:0").unwrap()).unwrap();
        std::future::pending::<()>().await;
    });
}

fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (block, depth, secs) = (
        a[1].parse::<usize>().unwrap(),
        a[2].parse::<usize>().unwrap(),
        a[3].parse::<u64>().unwrap(),
    );
    let op = a[4].clone();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("target".into()).spawn(move || target(tx)).unwrap();
    let addr = rx.recv().unwrap();
    pin_to_core(1).unwrap();
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let provider = Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default());
    static DONE: AtomicU64 = AtomicU64::new(0);
    reactor.block_on(PollMode::Busy, async move {
        let config = ChannelConfig {
            depth: depth as u16,
            ..ChannelConfig::new(TargetConfig::default().port_id, PortId::new(1, 1))
        };
        let via = a.get(5).map_or("channel", |s| s.as_str());
        let mut session = SessionConfig::new(&addr, config.target, config.initiator);
        session.depth = depth as u16;
        if via == "single" {
            session.queue_mode = QueueMode::Single;
        }
        let (c, q) = if via == "channel" {
            let c = Channel::connect(&provider, &addr, config).await.unwrap();
            // Unit attention of a new nexus.
            let _ = c.command(0, &[0; 16], &[], &[]).await.unwrap();
            (Some(c), None)
        } else {
            let s = Session::connect(Rc::new(provider), session).await.unwrap();
            s.queue().test_unit_ready(Lun::ZERO).await.unwrap();
            (None, Some(s.queue()))
        };
        let size = size();
        let end = clock() + secs * 1_000_000_000;
        let mut tasks = Vec::new();
        for i in 0..depth {
            let (c, q, op) = (c.clone(), q.clone(), op.clone());
            tasks.push(spawn(async move {
                let buf = Slice::heap(block.max(1));
                let mut rng = weir_base::Prng::new(i as u64);
                let mut lat = 0u64;
                let mut n = 0u64;
                loop {
                    let t = clock();
                    if t >= end {
                        break;
                    }
                    let lba =
                        rng.below((size / block.max(512)) as u64) * (block.max(512) / 512) as u64;
                    if let Some(q) = &q {
                        let at = lba * 512;
                        match op.as_str() {
                            "read" => q.read(Lun::ZERO, at, buf.clone()).await.unwrap(),
                            "write" => q.write(Lun::ZERO, at, buf.clone(), false).await.unwrap(),
                            _ => q.test_unit_ready(Lun::ZERO).await.unwrap(),
                        }
                    } else if let Some(c) = &c {
                        let mut cdb = [0u8; 16];
                        cdb[0] = if op == "write" { 0x2a } else { 0x28 };
                        cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
                        cdb[7..9].copy_from_slice(&((block / 512) as u16).to_be_bytes());
                        let o = match op.as_str() {
                            "read" => c.command(0, &cdb, &[], std::slice::from_ref(&buf)).await,
                            "write" => c.command(0, &cdb, std::slice::from_ref(&buf), &[]).await,
                            _ => c.command(0, &[0; 16], &[], &[]).await,
                        };
                        assert!(o.as_ref().is_ok_and(|o| o.is_good()), "{o:x?}");
                    }
                    n += 1;
                    lat += clock() - t;
                }
                DONE.fetch_add(n, Ordering::Relaxed);
                (n, lat)
            }));
        }
        let (mut n, mut lat) = (0, 0);
        for t in tasks {
            let (a, b) = t.await.unwrap();
            n += a;
            lat += b;
        }
        println!(
            "{} {} depth {}: {:.0} IOPS {:.1} MB/s mean {:.2} us",
            op,
            block,
            depth,
            n as f64 / secs as f64,
            (n as usize * block) as f64 / secs as f64 / 1e6,
            lat as f64 / n as f64 / 1e3
        );
    });
    std::process::exit(0);
}
