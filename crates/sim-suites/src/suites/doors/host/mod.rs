//! Hosts: clients that read, write and compare through any of their paths, and the cluster software that reserves.

mod cluster;

use super::book::Content;
use super::judge::Judge;
use super::node::{Node, volume_name};
use super::path::{Command, Path, Reply};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng};
use weir_initiator_brp::{Disk, Error, Session, Status};
use weir_mem::{BufPool, Slice};
use weir_proto_scsi::initiator as build;
use weir_proto_srp::TaskFunction;
use weir_reactor::sleep;
use weir_sim::Node as Machine;
use weir_sim::check::blocks::{BLOCK, Content as Found, fill_block, read_block};

/// Most blocks of one request.
const MOST: u64 = 24;

/// A BRP path of a host.
pub(super) struct Bio {
    pub(super) number: usize,
    pub(super) session: Session,
    /// The target can fetch data.
    fetched: bool,
    disks: RefCell<BTreeMap<u32, Rc<Disk>>>,
}

impl Bio {
    pub(super) fn new(number: usize, session: Session, fetched: bool) -> Rc<Bio> {
        Rc::new(Bio { number, session, fetched, disks: RefCell::default() })
    }
}

/// One way of a host.
#[derive(Clone)]
pub(super) enum Way {
    Srp(Rc<Path>),
    Brp(Rc<Bio>),
}

impl Way {
    pub(super) fn number(&self) -> usize {
        match self {
            Way::Srp(p) => p.number,
            Way::Brp(b) => b.number,
        }
    }
}

/// A host.
pub(super) struct Host {
    pub(super) number: usize,
    pub(super) machine: Machine,
    pub(super) judge: Rc<Judge>,
    pub(super) node: Rc<Node>,
    pub(super) pool: BufPool,
    pub(super) ways: Vec<Way>,
    /// Tasks that have not ended.
    pub(super) running: Cell<u32>,
    pub(super) stop: Cell<bool>,
    /// It waits for every answer, so it ends nothing: commands that are ended get none.
    pub(super) patient: bool,
    /// Longest pause between requests.
    pub(super) think: Nanos,
}

/// Where a request goes.
struct Place {
    way: Way,
    lun: u16,
    volume: u32,
    blocks: u64,
}

impl Host {
    fn over(&self) -> bool {
        self.stop.get() || self.judge.is_wrong()
    }

    /// A client: one request after the other, until it is stopped.
    pub(super) async fn client(self: Rc<Self>, mut rng: Prng, requests: u64) {
        for _ in 0..requests {
            if self.over() {
                break;
            }
            match self.choose(&mut rng).await {
                Some(p) => self.request(&p, &mut rng).await,
                None => sleep(rng.below(5 * MILLIS) + 1).await,
            }
            if self.think > 0 {
                sleep(rng.below(self.think)).await;
            }
        }
        self.running.set(self.running.get() - 1);
    }

    /// A way, and a volume behind it.
    async fn choose(&self, rng: &mut Prng) -> Option<Place> {
        let way = self.ways[rng.below(self.ways.len() as u64) as usize].clone();
        let mapped = self.node.mapped(self.number);
        let luns: Vec<(u16, u32)> = mapped.into_iter().collect();
        let (lun, present) = *luns.get(rng.below(luns.len().max(1) as u64) as usize)?;
        let volume = match &way {
            // A SCSI host believes what the unit says of itself.
            Way::Srp(p) => p.volume(lun).await?,
            Way::Brp(_) => present,
        };
        let blocks = self.judge.with(volume, |b| b.blocks);
        Some(Place { way, lun, volume, blocks })
    }

    async fn request(&self, p: &Place, rng: &mut Prng) {
        let most = MOST.min(p.blocks);
        let count = if rng.chance(1, 2) { rng.between(1, 4) } else { rng.between(1, most) };
        let first = rng.below(p.blocks - count + 1);
        match rng.below(100) {
            0..=44 => self.write(p, first, count, rng).await,
            45..=69 => self.read(p, first, count).await.map(drop).unwrap_or(()),
            70..=91 => self.compare_and_write(p, first.min(3), rng).await,
            92..=95 => self.zero(p, first, count).await,
            99 if !self.patient => {
                if let Way::Srp(path) = &p.way {
                    path.manage(p.volume, p.lun, TaskFunction::AbortTaskSet).await;
                }
            }
            _ => self.flush(p).await,
        }
    }

    async fn disk(&self, b: &Bio, volume: u32) -> Option<Rc<Disk>> {
        if let Some(d) = b.disks.borrow().get(&volume) {
            return Some(d.clone());
        }
        let found = b.session.queue().open(&volume_name(volume)).await;
        match found {
            Ok(d) => {
                let d = Rc::new(d);
                b.disks.borrow_mut().insert(volume, d.clone());
                Some(d)
            }
            Err(_) => None,
        }
    }

    /// What a command by BRP goes to, and nothing for SRP. `None`: the volume cannot be opened.
    async fn opened(&self, p: &Place) -> Option<Option<Rc<Disk>>> {
        match &p.way {
            Way::Brp(b) => self.disk(b, p.volume).await.map(Some),
            Way::Srp(_) => Some(None),
        }
    }

    /// What an answer by BRP means.
    fn brp_reply(&self, b: &Bio, volume: u32, r: Result<(), Error>) -> Reply {
        match r {
            Ok(()) => Reply::Good,
            Err(Error::Status(Status::Reserved)) => Reply::Conflict,
            Err(Error::Status(Status::NoVolume | Status::WrongVolume) | Error::NoVolume(_)) => {
                b.disks.borrow_mut().remove(&volume);
                Reply::Hidden
            }
            // The volume may have become smaller.
            Err(Error::Status(Status::OutOfRange)) => {
                b.disks.borrow_mut().remove(&volume);
                Reply::Sense(5, 0x2100)
            }
            Err(Error::Status(Status::Aborted)) => Reply::Aborted,
            Err(Error::Status(Status::Invalid)) if !b.fetched => {
                self.judge.count("data that could not be fetched");
                Reply::Aborted
            }
            Err(Error::Miscompare(_)) => Reply::Sense(0xe, 0x1d00),
            Err(
                Error::TimedOut
                | Error::InDoubt
                | Error::PathDown
                | Error::Replaced
                | Error::Closed
                | Error::Rejected(_)
                | Error::Fabric(_),
            ) => Reply::Lost,
            Err(e) => {
                self.judge.wrong(format!("an I/O by BRP failed: {e}"));
                Reply::Lost
            }
        }
    }

    /// What every answer to a media command is held against.
    fn judged(&self, p: &Place, reply: Reply, writes: bool, begun: Nanos) {
        let (j, number) = (&self.judge, p.way.number());
        match reply {
            Reply::Good | Reply::Sense(0xe, _) => j.judged(number, p.volume, writes, true, begun),
            Reply::Conflict => {
                j.count("media commands refused by reservations");
                j.judged(number, p.volume, writes, false, begun);
            }
            Reply::Hidden => j.hidden(number, p.volume, begun),
            Reply::Attention | Reply::Aborted | Reply::Lost => {}
            // LBA OUT OF RANGE of a volume that has become smaller.
            Reply::Sense(5, 0x2100) => {}
            // READ or WRITE of a nexus that the unit does not know yet.
            Reply::Sense(key, code) => {
                j.wrong(format!(
                    "path {number}: a media command to volume {} ends with sense {key:x}/{code:04x}",
                    p.volume
                ));
            }
        }
    }

    async fn read(&self, p: &Place, first: u64, count: u64) -> Option<Vec<u8>> {
        let j = &self.judge;
        let buf = self.pool.alloc(count as usize * BLOCK).await;
        buf.fill(0xbb);
        let begun = j.now();
        let reply = match &p.way {
            Way::Srp(path) => {
                let cdb = build::read(first, count as u32, false);
                let c = command(p, cdb.as_bytes(), None, Some(&buf), None);
                path.command(c).await
            }
            Way::Brp(b) => {
                let disk = self.disk(b, p.volume).await?;
                let r = disk.read(first * BLOCK as u64, buf.clone()).await;
                self.brp_reply(b, p.volume, r)
            }
        };
        self.judged(p, reply, false, begun);
        if reply != Reply::Good {
            return None;
        }
        let bytes = buf.to_vec();
        j.read(p.way.number(), p.volume, first, &bytes, begun);
        Some(bytes)
    }

    async fn write(&self, p: &Place, first: u64, count: u64, rng: &mut Prng) {
        let j = &self.judge;
        let buf = self.pool.alloc(count as usize * BLOCK).await;
        let Some(disk) = self.opened(p).await else { return };
        let begun = j.now();
        let number = j.begin_write(p.way.number(), p.volume, first, count, None);
        buf.write_at(0, &j.data(number));
        let fua = rng.chance(1, 4);
        let reply = match (&p.way, disk) {
            (Way::Srp(path), _) => {
                let cdb = build::write(first, count as u32, fua);
                path.command(command(p, cdb.as_bytes(), Some(&buf), None, Some(number))).await
            }
            (Way::Brp(b), Some(d)) => {
                let r = d.write(first * BLOCK as u64, buf.clone(), fua).await;
                self.brp_ended(b, p, number, r)
            }
            (Way::Brp(_), None) => return,
        };
        buf.fill(0xdd);
        if reply == Reply::Good {
            j.done(number);
            j.count("writes");
            if j.with(p.volume, |b| b.direct) {
                j.count("writes of volumes in memory");
            }
        }
        self.judged(p, reply, true, begun);
    }

    /// A write by BRP has ended.
    fn brp_ended(&self, b: &Bio, p: &Place, number: u64, r: Result<(), Error>) -> Reply {
        let reply = self.brp_reply(b, p.volume, r);
        match reply {
            Reply::Conflict | Reply::Hidden => self.judge.refused_again(number),
            Reply::Aborted | Reply::Sense(..) => self.judge.over(number),
            _ => {}
        }
        reply
    }

    /// Changes a block if it is what it was when it was read; others write it plainly meanwhile.
    async fn compare_and_write(&self, p: &Place, block: u64, rng: &mut Prng) {
        let j = &self.judge;
        let Some(found) = self.read(p, block, 1).await else { return };
        let mut expected: Content = match read_block(&found) {
            Found::Written { write, .. } => write,
            Found::Zero => 0,
            Found::Mixed { .. } => return,
        };
        let mut present = found;
        if rng.chance(1, 8) {
            // What is not there.
            expected = u64::MAX;
            fill_block(&mut present, p.volume, block, expected);
        }
        let Some(disk) = self.opened(p).await else { return };
        let begun = j.now();
        let number = j.begin_write(p.way.number(), p.volume, block, 1, Some(expected));
        let both = Slice::copy_of(&[present, j.data(number)].concat());
        let both = both.sub(0, 2 * BLOCK);
        let reply = match (&p.way, disk) {
            (Way::Srp(path), _) => {
                let cdb = build::compare_and_write(block, 1, false);
                path.command(command(p, cdb.as_bytes(), Some(&both), None, Some(number))).await
            }
            (Way::Brp(b), Some(d)) => {
                let r = d.compare_and_write(block * BLOCK as u64, both).await;
                self.brp_ended(b, p, number, r)
            }
            (Way::Brp(_), None) => return,
        };
        match reply {
            Reply::Good => {
                j.done(number);
                j.count("compared and written");
            }
            Reply::Sense(0xe, _) => {
                j.count("compared and different");
                j.refused(number);
                j.miscompared(p.volume, block, expected, begun);
            }
            _ => {}
        }
        self.judged(p, reply, true, begun);
    }

    async fn zero(&self, p: &Place, first: u64, count: u64) {
        let j = &self.judge;
        let begun;
        let reply = match &p.way {
            Way::Srp(path) => {
                begun = j.now();
                let cdb = build::write_same_16(first, count as u32, true, false);
                path.command(command(p, cdb.as_bytes(), None, None, None)).await
            }
            Way::Brp(b) => {
                let Some(d) = self.disk(b, p.volume).await else { return };
                begun = j.now();
                let (at, len) = (first * BLOCK as u64, count * BLOCK as u64);
                let r = d.write_zeroes(at, len, true).await;
                self.brp_reply(b, p.volume, r)
            }
        };
        if reply == Reply::Good {
            j.zeroed(p.volume, first, count, begun);
        }
        self.judged(p, reply, true, begun);
    }

    async fn flush(&self, p: &Place) {
        let begun = self.judge.now();
        match &p.way {
            Way::Srp(path) => {
                let cdb = build::sync_cache(0, 0);
                let reply = path.command(command(p, cdb.as_bytes(), None, None, None)).await;
                self.judged(p, reply, true, begun);
            }
            Way::Brp(b) => {
                if let Some(d) = self.disk(b, p.volume).await {
                    let r = d.flush().await;
                    self.brp_reply(b, p.volume, r);
                }
            }
        }
    }

    /// Whether all ways are SRP paths.
    pub(super) fn is_scsi(&self) -> bool {
        self.ways.iter().all(|w| matches!(w, Way::Srp(_)))
    }

    /// Logs out everywhere.
    pub(super) async fn leave(self: Rc<Self>) {
        for w in &self.ways {
            if let Way::Srp(p) = w {
                p.leave().await;
            }
        }
    }

    /// Uses its ways again.
    pub(super) fn come_back(&self) {
        for w in &self.ways {
            if let Way::Srp(p) = w {
                p.come_back();
            }
        }
        self.judge.count("hosts gone and come back");
    }

    /// Ends all ways.
    pub(super) async fn close(self: Rc<Self>) {
        for w in &self.ways {
            match w {
                Way::Srp(p) => p.close().await,
                Way::Brp(b) => {
                    b.disks.borrow_mut().clear();
                    b.session.close().await;
                }
            }
        }
    }
}

fn command<'a>(
    p: &Place,
    cdb: &'a [u8],
    out: Option<&'a Slice>,
    data_in: Option<&'a Slice>,
    write: Option<u64>,
) -> Command<'a> {
    Command { volume: p.volume, lun: p.lun, cdb, out, data_in, write, aside: false }
}
