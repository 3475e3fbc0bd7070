//! What the node's operator wishes. Each wish is over when its promise holds.

use super::{BRP, CHUNK, Local, Node, identity, initiator_id, volume_name};
use crate::suites::doors::book::Book;
use crate::suites::doors::medium::{PLACE, Spied};
use crate::suites::doors::spc::{CAPACITY, Pair};
use crate::suites::scene::BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MICROS, MILLIS, Nanos, Prng, SECONDS};
use weir_layers::remote::Home;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::lu::LuState;
use weir_reactor::{Handle, call, get_local, sleep};
use weir_target_core::{AccessMap, End, HostRule, Secret, Unit, UnitShared, Whom};

impl Node {
    /// Makes a volume in a place and shows it to nobody.
    pub(in crate::suites::doors) async fn create(
        &self,
        place: usize,
        blocks: u64,
        direct: bool,
        delay: u64,
    ) -> u32 {
        self.medium.wipe(place);
        let number = self.judge.new_volume(place, blocks, PLACE, direct, delay);
        let geometry = Geometry::new(BLOCK as u32, blocks);
        let lu = LuState::new(identity(number, self.tas), geometry);
        let unit = UnitShared::new(&volume_name(number), lu, Some(self.keeper.clone()));
        self.units.borrow_mut().insert(number, unit.clone());
        let entrance = match self.home(number).filter(|_| !direct) {
            Some(home) => {
                let entrance = call(&home, move || async move {
                    let l = get_local::<Local>()?;
                    let spied =
                        Spied { medium: l.medium.clone(), place, volume: number, delay, direct };
                    let home = Home::open(Rc::new(spied));
                    let entrance = home.entrance();
                    l.homes.borrow_mut().insert(number, home);
                    Some(entrance)
                });
                self.judge.count("volumes at home on one reactor");
                entrance.await.flatten()
            }
            None => None,
        };
        for h in self.reactors() {
            let (unit, entrance) = (unit.clone(), entrance.clone());
            call(&h, move || async move {
                let Some(l) = get_local::<Local>() else { return };
                let spied =
                    Spied { medium: l.medium.clone(), place, volume: number, delay, direct };
                let far = entrance.and_then(|e| e.volume());
                let volume = far.unwrap_or_else(|| Rc::new(spied));
                l.units.insert(Unit::new(unit, volume, l.pool.clone(), CHUNK));
            })
            .await;
        }
        self.access.touch();
        number
    }

    /// The reactor that a volume is at home on, as those of protected pools are; others go by way of it.
    fn home(&self, volume: u32) -> Option<Handle> {
        let mut reactors = self.reactors();
        let n = volume as usize % (reactors.len() + 1);
        (n < reactors.len()).then(|| reactors.swap_remove(n))
    }

    /// Does something with a volume where it is at home.
    async fn at_home(&self, volume: u32, what: impl FnOnce(&Local) + Send + 'static) {
        if let Some(home) = self.home(volume) {
            call(&home, move || async move {
                if let Some(l) = get_local::<Local>() {
                    what(&l);
                }
            })
            .await;
        }
    }

    /// Tells other reactors that a volume's size is another one.
    async fn refresh(&self, volume: u32) {
        let tell = move |l: &Local| {
            if let Some(home) = l.homes.borrow().get(&volume) {
                home.refresh();
            }
        };
        self.at_home(volume, tell).await;
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
                secret: match self.secrets.borrow().contains(&i) {
                    true => Secret::Known(Arc::from(&b"nobody knows it"[..])),
                    false => Secret::None,
                },
                luns: luns.iter().map(|(l, v)| (*l, volume_name(*v))).collect(),
            })
            .collect();
        AccessMap { hosts }
    }

    /// Whether a host has a connection to any of the ports.
    pub(in crate::suites::doors) fn is_logged_in(&self, host: usize) -> bool {
        let ports = &self.hosts[host];
        let own = |id: [u8; 16]| ports.iter().any(|p| initiator_id(*p) == id);
        self.srp.borrow().iter().any(|t| t.nexuses().iter().any(|n| own(n.initiator.0)))
            || self.brp.borrow().sessions().iter().any(|s| own(s.initiator.0))
    }

    /// A LUN that a host, as long as it is logged in, knows as no other volume: this one if it can be.
    fn lun_for(&self, host: usize, lun: u16, volume: u32) -> u16 {
        if !self.is_logged_in(host) {
            self.known.borrow_mut().retain(|(h, _), _| *h != host);
        }
        let (known, maps) = (self.known.borrow(), self.maps.borrow());
        // BRP's commands name the volume that they mean.
        let scsi = self.judge.pairs_of(host).iter().any(|p| p.1 != BRP);
        let fits = |l: &u16| {
            let other = scsi && known.get(&(host, *l)).is_some_and(|v| *v != volume);
            !other && !maps[host].contains_key(l)
        };
        (lun..).find(fits).unwrap_or(lun)
    }

    /// Shows a volume to a host, by this LUN or by one that it knows as nothing else. Gives the LUN.
    pub(in crate::suites::doors) async fn map(&self, host: usize, lun: u16, volume: u32) -> u16 {
        let lun = self.lun_for(host, lun, volume);
        self.judge.change(volume, |b: &mut Book| b.seen_by.insert(host, (true, true)));
        self.maps.borrow_mut()[host].insert(lun, volume);
        self.put_in_force().await;
        self.judge.change(volume, |b: &mut Book| b.seen_by.insert(host, (true, false)));
        lun
    }

    /// Hides a volume from hosts; nothing of theirs happens to it afterwards.
    pub(in crate::suites::doors) async fn unmap(&self, hosts: &[usize], volume: u32) {
        let of: BTreeSet<Pair> = hosts.iter().flat_map(|h| self.judge.pairs_of(*h)).collect();
        let fence = self.judge.fence(volume, Some(of.clone()), "unmapping");
        let held = self.judge.parting(volume, &of);
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
        self.judge.parted(volume, held);
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

    /// A host gets a secret for a while, which it does not know: whoever is logged in as that host is not any more, and
    /// nothing of it happens afterwards.
    async fn bar(&self, host: usize, duration: u64) {
        let volumes: BTreeSet<u32> = self.mapped(host).into_values().collect();
        let of = self.judge.pairs_of(host);
        self.judge.dropped(host);
        let mut fences = Vec::new();
        for v in &volumes {
            fences.push(self.judge.fence(*v, Some(of.clone()), "a new secret"));
            self.judge.change(*v, |b: &mut Book| b.seen_by.insert(host, (true, true)));
        }
        self.secrets.borrow_mut().insert(host);
        self.put_in_force().await;
        fences.into_iter().for_each(|f| self.judge.fenced(f));
        for v in &volumes {
            self.judge.change(*v, |b: &mut Book| b.seen_by.insert(host, (false, true)));
        }
        sleep(duration).await;
        let now = self.judge.now();
        for v in &volumes {
            self.judge.change(*v, |b: &mut Book| {
                b.seen_by.insert(host, (true, true));
                of.iter().for_each(|p| b.attentions.doubt(*p, now));
            });
        }
        self.secrets.borrow_mut().remove(&host);
        self.put_in_force().await;
        for v in &volumes {
            self.judge.change(*v, |b: &mut Book| b.seen_by.insert(host, (true, false)));
        }
        self.judge.count("secrets");
    }

    fn hosts_of(&self, volume: u32) -> Vec<(usize, u16)> {
        let maps = self.maps.borrow();
        let of = |(h, m): (usize, &BTreeMap<u16, u32>)| {
            m.iter().find(|(_, v)| **v == volume).map(|(l, _)| (h, *l))
        };
        maps.iter().enumerate().filter_map(of).collect()
    }

    /// Deletes a volume; its place is free afterwards. Gives the place, and who saw it as what.
    pub(in crate::suites::doors) async fn delete(&self, volume: u32) -> (usize, Vec<(usize, u16)>) {
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
        self.at_home(volume, move |l| drop(l.homes.borrow_mut().remove(&volume))).await;
        self.judge.fenced(fence);
        let place = self.judge.with(volume, |b| b.slot);
        self.judge.free(volume);
        self.judge.count("deletions");
        (place, seen)
    }

    /// Puts a volume back to what it was: nobody sees it meanwhile.
    pub(in crate::suites::doors) async fn revert(&self, volume: u32, bytes: &[u8]) {
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
    pub(in crate::suites::doors) fn snapshot(&self, volume: u32) -> Vec<u8> {
        self.medium.copy(self.judge.with(volume, |b| b.slot))
    }

    /// One of the volumes does nothing for a while.
    pub(in crate::suites::doors) fn hang(&self, which: usize, duration: Nanos) {
        let all = self.volumes();
        if let Some(volume) = all.get(which % all.len().max(1)) {
            self.medium.hang(*volume, duration);
        }
    }

    /// Makes a volume larger or smaller.
    pub(in crate::suites::doors) async fn resize(&self, volume: u32, blocks: u64) {
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
            self.refresh(volume).await;
        }
        unit.with(|s| s.resize(blocks));
        if blocks < before {
            unit.fence(Whom::All, End::Again).await;
            self.judge.change(volume, |b| b.blocks = blocks);
            self.refresh(volume).await;
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
    pub(in crate::suites::doors) async fn replace_while_away(
        &self,
        host: usize,
        rng: &mut Prng,
        direct: bool,
    ) {
        let _turn = self.turn().await;
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
    }

    /// Ends a port and makes it again when `soon` is true, or after a while.
    pub(in crate::suites::doors) async fn remake_when(
        &self,
        port: u8,
        patience: Nanos,
        soon: impl Fn() -> bool,
    ) {
        let _turn = self.turn().await;
        for _ in 0..200 {
            if soon() {
                break;
            }
            sleep(100 * MICROS).await;
        }
        self.remake(port, patience).await;
    }

    /// Does something at random.
    pub(in crate::suites::doors) async fn wish(self: Rc<Self>, mut rng: Prng, direct: bool) {
        let _turn = self.turn().await;
        let all = self.volumes();
        let volume = all[rng.below(all.len() as u64) as usize];
        match rng.below(14) {
            11..=13 => {
                let port = rng.between(1, u64::from(BRP)) as u8;
                if rng.chance(3, 4) {
                    self.medium.hang(volume, rng.between(200 * MILLIS, 3 * SECONDS));
                    sleep(rng.below(20 * MILLIS)).await;
                }
                self.remake(port, rng.below(300 * MILLIS)).await;
            }
            10 => {
                let host = rng.below(self.hosts.len() as u64) as usize;
                self.bar(host, rng.below(300 * MILLIS)).await;
            }
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
    }
}
