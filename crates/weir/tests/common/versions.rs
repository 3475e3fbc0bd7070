//! Blocks of which every version is known, and a host that writes and verifies them over SRP and BRP.

use super::Daemon;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_brp as brp;
use weir_initiator_srp::{Channel, ChannelConfig};
use weir_mem::Slice;
use weir_proto_scsi::initiator as scsi;
use weir_proto_scsi::sense::SenseKey;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, spawn};
use weir_uring::{Ring, TcpNetwork};

const BLOCK: usize = 4096;
/// Blocks of the volume, and the part of them that is written.
pub const BLOCKS: u64 = 4096;
/// Tasks that write; each has blocks of its own.
pub const WRITERS: u64 = 16;
/// Blocks of the longest write.
const RUN: u64 = 8;

/// What a block may hold.
#[derive(Clone, Default)]
pub struct Truth {
    /// The last version that was acknowledged, or read since; 0 for zeros.
    known: u64,
    /// Versions sent and not acknowledged.
    doubt: Vec<u64>,
}

/// Versions that are the same in all blocks, which are used again and again once [`ALIKE`] is set.
const FEW: u64 = 12;
/// Every other write has contents that others have, too.
pub static ALIKE: AtomicBool = AtomicBool::new(false);

fn next_version(n: u64) -> u64 {
    match ALIKE.load(Ordering::Relaxed) {
        true if n.is_multiple_of(2) => 1 + n / 2 % FEW,
        true => n + FEW,
        false => n,
    }
}

fn fill(buf: &Slice, at: usize, lba: u64, version: u64) {
    let alike = ALIKE.load(Ordering::Relaxed) && version <= FEW;
    let seed = if alike { version } else { lba << 32 | version };
    let mut rng = Prng::new(seed);
    // Some can be compressed, some cannot, some in part.
    let random = [0, BLOCK / 2, BLOCK][version as usize % 3];
    for i in (0..BLOCK).step_by(8) {
        let word = match (version, i) {
            (0, _) => 0,
            (_, 0) => version,
            _ if i < random => rng.next_u64(),
            _ => seed,
        };
        buf.write_at(at + i, &word.to_le_bytes());
    }
}

/// Which version a block has; an error when it is none at all.
fn version(bytes: &[u8], lba: u64) -> Result<u64, String> {
    let found = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let want = Slice::heap(BLOCK);
    fill(&want, 0, lba, found);
    match bytes == want.to_vec() {
        true => Ok(found),
        false => Err(format!("block {lba} holds no version; its first word is {found:#x}")),
    }
}

/// A way to the volume.
enum Way {
    Srp(Rc<Channel>),
    Brp(brp::Disk),
}

/// What a host asks for.
enum Ask {
    Read(Slice),
    Write { data: Slice, fua: bool },
}

pub struct Host {
    ways: Vec<Way>,
    truth: RefCell<Vec<Truth>>,
    next: Cell<u64>,
    stop: Cell<bool>,
    written: Cell<u64>,
    read: Cell<u64>,
    /// Unit attentions; each session has one, of its login.
    attentions: Cell<u64>,
}

impl Host {
    /// An I/O of whole blocks; `false`: the connection is gone. An error is one that a host must not see.
    async fn io(&self, by: u64, first: u64, ask: Ask) -> Result<bool, String> {
        match &self.ways[by as usize % self.ways.len()] {
            Way::Brp(disk) => {
                let at = first * BLOCK as u64;
                let done = match ask {
                    Ask::Read(into) => disk.read(at, into).await,
                    Ask::Write { data, fua } => disk.write(at, data, fua).await,
                };
                match done {
                    Ok(()) => Ok(true),
                    Err(brp::Error::PathDown) => Ok(false),
                    Err(e) => Err(format!("a host sees no error: {e}")),
                }
            }
            Way::Srp(channel) => {
                let blocks = |s: &Slice| (s.len() / BLOCK) as u32;
                let (cdb, out, into) = match ask {
                    Ask::Read(into) => (scsi::read(first, blocks(&into), false), None, Some(into)),
                    Ask::Write { data, fua } => {
                        (scsi::write(first, blocks(&data), fua), Some(data), None)
                    }
                };
                self.command(channel, &cdb.padded(), out, into).await
            }
        }
    }

    /// A command on LUN 0.
    async fn command(
        &self,
        channel: &Channel,
        cdb: &[u8],
        out: Option<Slice>,
        into: Option<Slice>,
    ) -> Result<bool, String> {
        loop {
            let Ok(o) = channel.command(0, cdb, out.as_slice(), into.as_slice()).await else {
                return Ok(false);
            };
            if o.is_good() {
                return Ok(true);
            }
            let sense = scsi::parse_sense(o.sense()).ok_or("an error without sense data")?;
            self.attentions.set(self.attentions.get() + 1);
            let logins = self.ways.len() as u64;
            if sense.key != SenseKey::UnitAttention || self.attentions.get() > logins {
                return Err(format!("a host sees no error: {sense}"));
            }
        }
    }

    /// Writes blocks that nobody else writes meanwhile.
    async fn write(&self, me: u64, first: u64, n: u64, fua: bool) -> Result<bool, String> {
        let buf = Slice::heap(n as usize * BLOCK);
        self.next.set(self.next.get() + 1);
        let version = next_version(self.next.get());
        for i in 0..n {
            fill(&buf, i as usize * BLOCK, first + i, version);
            self.truth.borrow_mut()[(first + i) as usize].doubt.push(version);
        }
        if !self.io(me, first, Ask::Write { data: buf, fua }).await? {
            return Ok(false);
        }
        for t in &mut self.truth.borrow_mut()[first as usize..(first + n) as usize] {
            *t = Truth { known: version, doubt: Vec::new() };
        }
        self.written.set(self.written.get() + n);
        Ok(true)
    }

    /// Reads blocks that nobody writes meanwhile. What is there from now on is what was found.
    async fn check(&self, me: u64, first: u64, n: u64) -> Result<bool, String> {
        let buf = Slice::heap(n as usize * BLOCK);
        if !self.io(me, first, Ask::Read(buf.clone())).await? {
            return Ok(false);
        }
        for (i, bytes) in buf.to_vec().chunks(BLOCK).enumerate() {
            let lba = first + i as u64;
            let t = &mut self.truth.borrow_mut()[lba as usize];
            let found = version(bytes, lba).map_err(|e| format!("{e}; known {}", t.known))?;
            if found != t.known && !t.doubt.contains(&found) {
                return Err(format!(
                    "block {lba} has version {found}; acknowledged was {}, in doubt {:?}",
                    t.known, t.doubt
                ));
            }
            *t = Truth { known: found, doubt: Vec::new() };
        }
        self.read.set(self.read.get() + n);
        Ok(true)
    }

    /// Writes runs of blocks of its own, and reads some if wanted, until it is stopped or the connection ends.
    async fn work(&self, me: u64, seed: u64, reads: bool) -> Result<(), String> {
        let mut rng = Prng::new(seed);
        let (first, mine) = (me * (BLOCKS / WRITERS), BLOCKS / WRITERS);
        while !self.stop.get() {
            let n = rng.between(1, RUN);
            let lba = first + rng.below(mine - n + 1);
            let goes_on = match reads && rng.chance(1, 3) {
                true => self.check(me, lba, n).await?,
                false => self.write(me, lba, n, rng.chance(1, 4)).await?,
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    async fn all(self: &Rc<Self>, seed: u64, reads: bool) -> Result<(), String> {
        let one = |w| {
            let h = self.clone();
            spawn(async move { h.work(w, seed << 8 | w, reads).await })
        };
        for t in (0..WRITERS).map(one).collect::<Vec<_>>() {
            t.await.ok_or("a writer was given up")??;
        }
        Ok(())
    }

    /// Writes with all writers until the connections end. Returns the blocks acknowledged.
    pub async fn write_all(self: &Rc<Self>, seed: u64) -> Result<u64, String> {
        self.all(seed, false).await?;
        Ok(self.written.get())
    }

    /// Writes and reads while `other` runs in a thread of its own. Returns the blocks written and read.
    pub async fn work_while(
        self: &Rc<Self>,
        seed: u64,
        other: impl FnOnce() + Send + 'static,
    ) -> Result<(u64, u64), String> {
        let thread = std::thread::spawn(other);
        let host = self.clone();
        let all = spawn(async move { host.all(seed, true).await });
        while !thread.is_finished() {
            weir_reactor::sleep(SECONDS / 100).await;
        }
        self.stop.set(true);
        all.await.ok_or("it was given up")??;
        if let Err(e) = thread.join() {
            std::panic::resume_unwind(e);
        }
        Ok((self.written.get(), self.read.get()))
    }

    /// Reads everything. What is there from now on is what was found.
    pub async fn verify(&self) -> Result<(), String> {
        for lba in (0..BLOCKS).step_by(64) {
            if !self.check(lba, lba, 64).await? {
                return Err("the connection ended".to_owned());
            }
        }
        Ok(())
    }
}

/// Whether these bytes are those blocks, from the first on, as they were known.
///
/// # Errors
/// The first that is not.
pub fn same(bytes: &[u8], known: &Known) -> Result<(), String> {
    for (lba, (b, t)) in (0..).zip(bytes.chunks(BLOCK).zip(&known.0)) {
        match version(b, lba)? {
            v if v == t.known => {}
            v => return Err(format!("block {lba} has version {v}, not {}", t.known)),
        }
    }
    Ok(())
}

/// What is known of the volume, and the next version.
pub type Known = (Vec<Truth>, u64);

/// A volume of zeros.
pub fn zeros() -> Known {
    (vec![Truth::default(); BLOCKS as usize], 0)
}

/// Runs `f` with two sessions by SRP, which the daemon spreads over its reactors.
///
/// # Errors
/// A login fails, or what `f` says.
pub fn attached<T: 'static>(
    target: String,
    known: &mut Known,
    f: impl AsyncFnOnce(Rc<Host>) -> Result<T, String> + 'static,
) -> Result<T, String> {
    over(target, None, known, f)
}

/// The same with a session by BRP besides, where that listens.
fn over<T: 'static>(
    target: String,
    by_brp: Option<String>,
    known: &mut Known,
    f: impl AsyncFnOnce(Rc<Host>) -> Result<T, String> + 'static,
) -> Result<T, String> {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
    let (truth, next) = std::mem::take(known);
    let done = reactor.block_on(PollMode::Sleep, async move {
        let ways = match log_in(Rc::new(iwarp), &target, by_brp.as_deref()).await {
            Ok(w) => w,
            Err(e) => return (Err(format!("a login: {e}")), (truth, next)),
        };
        let host = Rc::new(Host {
            ways,
            truth: RefCell::new(truth),
            next: Cell::new(next),
            stop: Cell::new(false),
            written: Cell::new(0),
            read: Cell::new(0),
            attentions: Cell::new(0),
        });
        let result = f(host.clone()).await;
        for w in &host.ways {
            if let Way::Srp(c) = w {
                c.disconnect(false);
            }
        }
        (result, (host.truth.take(), host.next.get()))
    });
    reactor.shutdown();
    *known = done.1;
    done.0
}

async fn log_in(
    provider: Rc<dyn Provider>,
    target: &str,
    by_brp: Option<&str>,
) -> Result<Vec<Way>, String> {
    let mut ways = Vec::new();
    for i in 0..2u64 {
        let config = ChannelConfig {
            depth: 64,
            command_timeout: 60 * SECONDS,
            ..ChannelConfig::new(PortId::new(0, 0), PortId::new(7 + i, std::process::id().into()))
        };
        let login = Channel::connect(&*provider, target, config).await;
        ways.push(Way::Srp(login.map_err(|e| e.to_string())?));
    }
    if let Some(address) = by_brp {
        let config = brp::SessionConfig {
            channels: 2,
            // A connection of a killed daemon is gone at once; a busy machine only makes it slow.
            keep_alive: 60 * SECONDS,
            fast_io_fail: 5 * SECONDS,
            ..brp::SessionConfig::new(address, brp::PortId([9; 16]))
        };
        let told = |e: brp::Error| e.to_string();
        let session = brp::Session::connect(provider, config).await.map_err(told)?;
        let list = session.queue().list().await.map_err(told)?;
        let volume = list.into_iter().next().ok_or("no volume")?;
        ways.push(Way::Brp(session.queue().open(&volume.name).await.map_err(told)?));
    }
    Ok(ways)
}

/// Writes until the daemon is killed, `after` so long from the first write on; how many blocks were acknowledged.
pub fn until_killed(d: &Daemon, known: &mut Known, seed: u64, after: std::time::Duration) -> u64 {
    let pid = d.pid();
    let written = attached(d.target(), known, async move |host: Rc<Host>| {
        // From here on, so that there is load however slow the machine is.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()
        });
        let acknowledged = host.write_all(seed).await?;
        let killed = killer.join().expect("the killer ends").expect("kill runs");
        assert!(killed.success(), "the daemon was there to be killed");
        Ok(acknowledged)
    });
    written.unwrap_or_else(|e| panic!("cycle {seed}: {e}"))
}

/// Writes over SRP and BRP until the daemon, which `end` ends once there is load, parts from its hosts; how many blocks were
/// acknowledged.
pub fn until_ended(d: &Daemon, known: &mut Known, seed: u64, end: impl FnOnce() + 'static) -> u64 {
    let work = async move |host: Rc<Host>| {
        let writers = host.clone();
        let all = spawn(async move { writers.write_all(seed).await });
        while host.written.get() < 200 && !all.is_finished() {
            weir_reactor::sleep(SECONDS / 100).await;
        }
        end();
        all.await.ok_or("it was given up")?
    };
    over(d.target(), d.port("brp0"), known, work).unwrap_or_else(|e| panic!("{e}\n{}", d.log()))
}

/// Has hosts write and read while `other` runs in a thread of its own; gives blocks written and read.
pub fn under_load(
    d: &Daemon,
    known: &mut Known,
    seed: u64,
    other: impl FnOnce() + Send + 'static,
) -> (u64, u64) {
    let done =
        attached(d.target(), known, async move |h: Rc<Host>| h.work_while(seed, other).await);
    done.unwrap_or_else(|e| panic!("{e}\n{}", d.log()))
}

/// The same over SRP and BRP.
pub fn under_load_by_both(
    d: &Daemon,
    known: &mut Known,
    seed: u64,
    other: impl FnOnce() + Send + 'static,
) -> (u64, u64) {
    let brp = Some(d.port("brp0").unwrap_or_else(|| panic!("BRP listens: {}", d.json("status"))));
    let work = async move |h: Rc<Host>| h.work_while(seed, other).await;
    over(d.target(), brp, known, work).unwrap_or_else(|e| panic!("{e}\n{}", d.log()))
}

/// Everything is as hosts know it.
pub fn verify(d: &Daemon, known: &mut Known) {
    let done = over(d.target(), d.port("brp0"), known, async |h: Rc<Host>| h.verify().await);
    done.unwrap_or_else(|e| panic!("{e}\n{}", d.log()));
}
