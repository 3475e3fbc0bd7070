//! A volume that hosts have by iSCSI and NBD at once, over streams that are short, slow, cut and reset between any two bytes. Hosts and
//! the target die and come back, the access map changes under way. Data are verified, nobody hangs, and in the end nothing is left of
//! anybody: no session, no nexus, no buffer.

mod host;
mod iscsi;
mod link;
mod manage;
mod medium;
mod nbd;

use super::scene::{check_unit, check_whole, pool};
use crate::load::{Load, Mix, VolumeIo};
use crate::srp::{DiskVolume, Fault};
use crate::{Pass, Run, Wrong};
use host::Host;
use iscsi::Style;
use medium::{Counts, Nature, Watched};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, Prng, SECONDS};
use weir_mem::BufPool;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_sim::{Cut, DiskConfig, NetConfig, Node, Options, SimMedium, World};
use weir_stream::Network;
use weir_target_core::{
    Access, AccessMap, Frontend, HostRule, PortSpec, Site, Unit, UnitShared, Units,
};

/// Longest time that anything may take that must end.
const PATIENCE: Nanos = 120 * SECONDS;
const VOLUME: &str = "v";
const BLOCK: u64 = 512;
const LEN: u64 = 64 << 10;
/// Where the ports listen.
const NBD: u16 = 2;
const ISCSI: u16 = 3;
/// Names both ports.
const PORT: [u8; 16] = [5; 16];

/// One life of the target.
struct Serving {
    ports: Vec<Arc<dyn Frontend>>,
    pools: Vec<BufPool>,
    unit: Arc<UnitShared>,
}

struct Story {
    w: World,
    rng: Prng,
    target: Node,
    hosts: Vec<Node>,
    access: Arc<Access>,
    load: Rc<Load>,
    bufs: BufPool,
    fault: Fault,
    nature: Rc<Nature>,
    style: Style,
    volatile: bool,
    serving: Option<Serving>,
    counts: Rc<Counts>,
    deaths: u64,
    hides: u64,
}

impl Story {
    fn new(run: &Run) -> Result<Story, Wrong> {
        let w = run.world(Options::default());
        let mut rng = w.rng(0x7c9);
        if rng.chance(1, 2) {
            let hostile = NetConfig::hostile(&mut rng);
            w.net().set_config(|c| *c = hostile);
        }
        let target = w.node_with("target", rng.between(1, 2) as usize);
        let volatile = rng.chance(1, 2);
        let config = DiskConfig { volatile_cache: volatile, ..DiskConfig::default() };
        let medium = SimMedium::new(VOLUME, LEN, config, rng.next_u64());
        target.attach(&medium);
        let hosts = (0..rng.between(2, 4)).map(|n| w.node(&format!("host-{n}"))).collect();
        let mix = Mix {
            blocks: rng.between(2, 12) * 8,
            unit: if rng.chance(1, 2) { 8 } else { 1 },
            most: rng.between(1, 24),
            writes: rng.between(30, 70) as u32,
            think: [2, 5, 20][rng.below(3) as usize] * MILLIS,
            volatile,
            ..Mix::default()
        };
        let hasty = [0, 10, 60][rng.below(3) as usize];
        let style = Style { hasty, silence: rng.chance(2, 3) };
        Ok(Story {
            nature: Rc::default(),
            style,
            volatile,
            load: Load::new(1, w.time(), mix),
            access: Arc::new(Access::new(Story::map(true))),
            bufs: pool(&[(4096, 64), (65536, 16)])?,
            fault: Fault::default(),
            serving: None,
            counts: Rc::default(),
            deaths: 0,
            hides: 0,
            target,
            hosts,
            rng,
            w,
        })
    }

    /// Every host sees the volume, or none does.
    fn map(shown: bool) -> AccessMap {
        let luns = if shown { vec![(0, VOLUME.to_owned())] } else { Vec::new() };
        let rule = HostRule { host: "all".into(), any: true, luns, ..HostRule::default() };
        AccessMap { hosts: vec![rule] }
    }

    fn verdict(&self) -> Result<(), Wrong> {
        match self.fault.get() {
            Some(what) => Err(Wrong(what)),
            None => self.load.verdict(),
        }
    }

    fn identity(&self) -> Identity {
        let mut id = Identity::new("WEIR", "SIM", "0001", VOLUME, [9; 16]);
        let port = |relative_id| TargetPort { relative_id, group: 1, name: PortName::Srp(PORT) };
        id.ports = vec![port(1), port(2)];
        id.write_cache = self.volatile;
        id
    }

    /// Puts the ports on the target's node, which has just started.
    fn serve(&mut self) -> Result<(), Wrong> {
        self.access = Arc::new(Access::new(Story::map(true)));
        let cores = self.target.cores();
        let spec = |relative: u16| PortSpec {
            id: PORT,
            relative,
            channels: 64,
            reactors: cores,
            access: self.access.clone(),
            identity: self.identity(),
            incarnation: u64::from(self.target.lives()) + 1,
            power: 1,
            seed: [7; 32],
        };
        let ports = vec![weir_target_nbd::open(spec(1)), weir_target_iscsi::open(spec(2))];
        let geometry = Geometry::new(BLOCK as u32, LEN / BLOCK);
        let identity = self.identity();
        let unit = UnitShared::new(VOLUME, LuState::new(identity, geometry), None);
        let mut pools = Vec::new();
        for core in 0..cores {
            let (node, pool) = (&self.target, pool(&[(4096, 24), (16384, 8)])?);
            let disk = node.disk_on(core, VOLUME);
            self.w.run(node, PATIENCE, {
                let disk = disk.clone();
                async move { disk.drained().await }
            })?;
            let units = Rc::new(Units::default());
            let (load, nature, fault) =
                (self.load.clone(), self.nature.clone(), self.fault.clone());
            let joined = node.enter_on(core, || {
                let volume = Rc::new(Watched { disk: DiskVolume(disk), load, nature, fault });
                units.insert(Unit::new(unit.clone(), volume, pool.clone(), 16384));
                let network: Rc<dyn Network> = node.network_on(core);
                let site = Site { fabric: None, network, units, pool: pool.clone() };
                ports.iter().try_for_each(|p| p.join(&site))?;
                // The last one has all others.
                if core + 1 == cores {
                    ports[0].listen(&site, &node.addr(NBD))?;
                    ports[1].listen(&site, &node.addr(ISCSI))?;
                }
                Ok::<(), weir_fabric::FabricError>(())
            });
            joined.map_err(|e| Wrong(format!("the target: {e}")))?;
            pools.push(pool);
        }
        self.serving = Some(Serving { ports, pools, unit });
        Ok(())
    }

    /// Puts a host on its node, which has just started.
    fn start(&mut self, n: usize) {
        let node = &self.hosts[n];
        let (net, a, b) = (Rc::downgrade(self.w.net()), node.number(), self.target.number());
        let unheard = move || net.upgrade().is_some_and(|net| net.has_unheard_end(a, b));
        let host = Rc::new(Host {
            number: n as u32 + 1,
            by_iscsi: n.is_multiple_of(2),
            at: [self.target.addr(NBD), self.target.addr(ISCSI)],
            network: node.network_on(0),
            load: self.load.clone(),
            bufs: self.bufs.clone(),
            fault: self.fault.clone(),
            nature: self.nature.clone(),
            counts: self.counts.clone(),
            rng: RefCell::new(self.rng.fork()),
            clients: self.rng.between(1, 4),
            style: self.style,
            unheard: Box::new(unheard),
        });
        node.spawn(host.live());
    }

    fn target_dies(&mut self) -> Result<(), Wrong> {
        self.deaths += 1;
        self.serving = None;
        match self.rng.chance(1, 2) {
            true => self.target.kill(),
            false => {
                self.target.power_off();
                self.load.power_cut();
            }
        }
        let pause = self.rng.below(SECONDS);
        self.w.run_for(pause);
        self.target.restart();
        self.serve()?;
        // Whatever a former life had with the disk has ended.
        self.load.settle_given_up();
        Ok(())
    }

    /// Nobody sees the volume for a while, and nothing comes to it then.
    fn hide(&mut self) -> Result<(), Wrong> {
        let Some(serving) = &self.serving else { return Ok(()) };
        self.hides += 1;
        if self.rng.chance(1, 2) {
            self.nature.slow.set(20 * MILLIS);
            self.w.run_for(20 * MILLIS);
        }
        self.access.set(Story::map(false));
        let unit = serving.unit.clone();
        self.w.run(&self.target, PATIENCE, async move { unit.part().await })?;
        self.nature.hidden.set(self.hides);
        self.nature.slow.set(0);
        let longest = [50, 500][self.rng.below(2) as usize] * MILLIS;
        let pause = self.rng.below(longest);
        self.w.run_for(pause);
        self.nature.hidden.set(0);
        self.access.set(Story::map(true));
        Ok(())
    }

    fn host_dies(&mut self, n: usize) {
        self.deaths += 1;
        match self.rng.chance(1, 2) {
            true => self.hosts[n].kill(),
            false => self.hosts[n].power_off(),
        }
        let pause = self.rng.below(500 * MILLIS);
        self.w.run_for(pause);
        self.hosts[n].restart();
        self.start(n);
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let longest = [5, 50, 500][self.rng.below(3) as usize] * MILLIS;
        let pause = self.rng.below(longest);
        self.w.run_for(pause);
        self.verdict()?;
        let n = self.rng.below(self.hosts.len() as u64) as usize;
        let (a, b) = (self.hosts[n].number(), self.target.number());
        match self.rng.below(13) {
            0..3 => self.host_dies(n),
            3..5 => self.target_dies()?,
            5..8 => drop(self.w.net().cut_between(a, b, Cut::Any)),
            8 => {
                let longest = self.rng.below(3 * SECONDS);
                self.w.net().partition_one_way(a, b);
                if self.rng.chance(1, 2) {
                    self.w.net().partition_one_way(b, a);
                }
                self.w.after(longest, move |w| w.net().heal(a, b));
            }
            9 if self.style.silence => self.hide()?,
            10 | 11 => {
                // The device is slow for a while: hosts come back, and give commands up, beside what it has.
                let slow = [50, 500, 3000][self.rng.below(3) as usize] * MILLIS;
                self.nature.slow.set(self.rng.below(slow));
                let (for_long, nature) = (self.rng.below(2 * slow), self.nature.clone());
                self.w.after(for_long, move |_| nature.slow.set(0));
            }
            12 => {
                let node = if self.rng.chance(1, 3) { &self.target } else { &self.hosts[n] };
                node.pause(self.rng.below(2 * SECONDS));
            }
            _ => {}
        }
        Ok(())
    }

    /// The disk itself holds what hosts were told, also after a loss of power.
    fn look_at_disk(&mut self) -> Result<(), Wrong> {
        self.load.settle();
        if self.rng.chance(1, 2) {
            self.target.power_off();
            self.load.power_cut();
            self.w.run_for(MILLIS);
            self.target.restart();
        }
        let volume = Rc::new(DiskVolume(self.target.disk(VOLUME)));
        let io = Rc::new(VolumeIo(volume));
        for _ in 0..2 {
            let all = self.load.clone().read_all(io.clone(), self.bufs.clone());
            self.w.run(&self.target, PATIENCE, all)?;
        }
        self.verdict()
    }

    fn finish(mut self) -> Result<Pass, Wrong> {
        self.nature.slow.set(0);
        self.w.net().calm();
        self.w.run_for(SECONDS);
        self.verdict()?;
        self.load.stop();
        let load = self.load.clone();
        self.w.run_until(PATIENCE, || load.under_way() == 0)?;
        let Some(serving) = self.serving.take() else {
            return Err(Wrong("there is no target in the end".into()));
        };
        for p in &serving.ports {
            let quiet = self.w.run_until(PATIENCE, || p.nexuses().is_empty());
            quiet.map_err(|s| Wrong(format!("{:?} stay: {s}", p.nexuses())))?;
        }
        for core in 0..self.target.cores() {
            for p in serving.ports.clone() {
                let here = self.target.enter_on(core, || p.channels());
                if !here.is_empty() {
                    return Err(Wrong(format!("channels stay on core {core}: {here:?}")));
                }
                let (broken, why) = p.broken();
                if broken > 0 {
                    return Err(Wrong(format!("{broken} connections ended by an error: {why:?}")));
                }
                self.target.enter_on(core, || p.close());
                let left = self.target.spawn_on(core, async move { p.leave(SECONDS).await });
                self.w.run_until(10 * SECONDS, || left.is_finished())?;
            }
        }
        check_unit(&serving.unit)?;
        check_whole(&serving.pools)?;
        // Whoever hears nothing of an end finds out.
        self.w.run_for(10 * SECONDS);
        if self.w.net().connections() > 0 {
            return Err(Wrong(format!("connections are left\n{}", self.w.dump())));
        }
        self.look_at_disk()?;
        check_whole([&self.bufs])?;
        let f = self.load.figures();
        Ok(Pass {
            trace: self.w.trace_hash(),
            figures: vec![
                ("blocks verified", f.blocks_read),
                ("writes", f.writes),
                ("requests that failed", f.errors),
                ("sessions", self.counts.sessions.get()),
                ("commands aborted", self.counts.aborts.get()),
                ("resets", self.counts.resets.get()),
                ("logouts", self.counts.logouts.get()),
                ("sent before their turn", self.counts.early.get()),
                ("deaths", self.deaths),
                ("hidings", self.hides),
            ],
        })
    }
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut s = Story::new(run)?;
    s.serve()?;
    (0..s.hosts.len()).for_each(|n| s.start(n));
    for _ in 0..s.rng.between(4, 16) {
        s.step()?;
    }
    s.finish()
}
