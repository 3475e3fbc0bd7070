//! Hosts that write and verify over SRP and BRP while something is done to the volume.

use super::Daemon;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_brp as brp;
use weir_initiator_srp::{Channel, ChannelConfig};
use weir_mem::Slice;
use weir_proto_scsi::initiator as scsi;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, spawn};
use weir_uring::Ring;

const BLOCK: usize = 4096;
/// Blocks that are written: a part of the volume.
pub const BLOCKS: u64 = 2048;
/// Tasks that write; each has blocks of its own.
const WRITERS: u64 = 8;
/// Blocks of the longest write.
const RUN: u64 = 16;

/// What a block may hold: what was acknowledged last, and what was sent since.
#[derive(Clone, Default)]
pub struct Truth {
    known: u64,
    doubt: Vec<u64>,
}

fn fill(buf: &Slice, at: usize, lba: u64, version: u64) {
    let mut rng = Prng::new(lba << 32 | version);
    for i in (0..BLOCK).step_by(8) {
        let word = match (version, i) {
            (0, _) => 0,
            (_, 0) => version,
            _ => rng.next_u64(),
        };
        buf.write_at(at + i, &word.to_le_bytes());
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
    /// Unit attentions after the first ones, which tell of the login.
    attentions: Cell<u64>,
}

impl Host {
    /// An I/O, without any error but the unit attention of a new login; `false`: the daemon is gone.
    async fn io(&self, by: u64, first: u64, ask: Ask) -> bool {
        match &self.ways[by as usize % self.ways.len()] {
            Way::Brp(disk) => {
                let at = first * BLOCK as u64;
                let done = match ask {
                    Ask::Read(into) => disk.read(at, into).await,
                    Ask::Write { data, fua } => disk.write(at, data, fua).await,
                };
                match done {
                    Ok(()) => true,
                    Err(brp::Error::PathDown) => false,
                    Err(e) => panic!("a host sees: {e}"),
                }
            }
            Way::Srp(channel) => {
                let (cdb, out, into) = match ask {
                    Ask::Read(into) => {
                        let n = into.len() / BLOCK;
                        (scsi::read(first, n as u32, false), None, Some(into))
                    }
                    Ask::Write { data, fua } => {
                        let n = data.len() / BLOCK;
                        (scsi::write(first, n as u32, fua), Some(data), None)
                    }
                };
                let cdb = cdb.padded();
                loop {
                    let sent = channel.command(0, &cdb, out.as_slice(), into.as_slice());
                    let Ok(o) = sent.await else { return false };
                    if o.is_good() {
                        return true;
                    }
                    let sense = scsi::parse_sense(o.sense()).expect("sense data");
                    self.attentions.set(self.attentions.get() + 1);
                    assert!(
                        self.attentions.get() <= self.ways.len() as u64,
                        "a host sees: {sense}"
                    );
                }
            }
        }
    }

    async fn write(&self, me: u64, rng: &mut Prng, first: u64, n: u64) -> bool {
        let buf = Slice::heap(n as usize * BLOCK);
        let version = self.next.get() + 1;
        self.next.set(version);
        for i in 0..n {
            fill(&buf, i as usize * BLOCK, first + i, version);
            self.truth.borrow_mut()[(first + i) as usize].doubt.push(version);
        }
        let fua = rng.chance(1, 4);
        if !self.io(me, first, Ask::Write { data: buf, fua }).await {
            return false;
        }
        for t in &mut self.truth.borrow_mut()[first as usize..(first + n) as usize] {
            *t = Truth { known: version, doubt: Vec::new() };
        }
        self.written.set(self.written.get() + n);
        true
    }

    /// Reads blocks that nobody writes meanwhile. What is there from now on is what was found.
    async fn check(&self, me: u64, first: u64, n: u64) -> bool {
        let buf = Slice::heap(n as usize * BLOCK);
        if !self.io(me, first, Ask::Read(buf.clone())).await {
            return false;
        }
        for (i, bytes) in buf.to_vec().chunks(BLOCK).enumerate() {
            let lba = first + i as u64;
            let found = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let want = Slice::heap(BLOCK);
            fill(&want, 0, lba, found);
            assert!(bytes == want.to_vec(), "block {lba} holds no version; first word {found:#x}");
            let t = &mut self.truth.borrow_mut()[lba as usize];
            assert!(
                found == t.known || t.doubt.contains(&found),
                "block {lba} has version {found}; acknowledged was {}, in doubt {:?}",
                t.known,
                t.doubt
            );
            *t = Truth { known: found, doubt: Vec::new() };
        }
        self.read.set(self.read.get() + n);
        true
    }

    /// Writes and reads blocks of its own until it is stopped or the daemon is gone.
    async fn work(&self, me: u64, seed: u64) {
        let mut rng = Prng::new(seed);
        let (first, mine) = (me * (BLOCKS / WRITERS), BLOCKS / WRITERS);
        while !self.stop.get() {
            let n = rng.between(1, RUN);
            let lba = first + rng.below(mine - n + 1);
            let goes_on = match rng.chance(2, 3) {
                true => self.write(me, &mut rng, lba, n).await,
                false => self.check(me, lba, n).await,
            };
            if !goes_on {
                return;
            }
        }
    }

    pub async fn check_all(&self) {
        for lba in (0..BLOCKS).step_by(64) {
            assert!(self.check(lba, lba, 64).await, "it is served");
        }
    }
}

/// What is known of the blocks from one login to the next.
pub type Known = (Vec<Truth>, u64);

/// Runs `f` with two sessions by SRP, which the daemon spreads over its reactors, and one by BRP.
pub fn attached<T: 'static>(
    d: &Daemon,
    known: &mut Known,
    f: impl AsyncFnOnce(Rc<Host>) -> T + 'static,
) -> T {
    let (target, (truth, next)) = (d.target(), std::mem::take(known));
    let by_brp = d.port("brp0").expect("it listens for BRP too");
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, &ring, Config::default()));
    let done = reactor.block_on(PollMode::Sleep, async move {
        let provider: Rc<dyn Provider> = Rc::new(iwarp);
        let mut ways = Vec::new();
        let config = brp::SessionConfig {
            channels: 2,
            // A connection of a killed daemon is gone at once; a busy machine only makes it slow.
            keep_alive: 60 * SECONDS,
            fast_io_fail: 5 * SECONDS,
            ..brp::SessionConfig::new(&by_brp, brp::PortId([9; 16]))
        };
        let session = brp::Session::connect(provider.clone(), config).await.expect("a login");
        let list = session.queue().list().await.expect("a list");
        let volume = list.into_iter().next().expect("a volume");
        ways.push(Way::Brp(session.queue().open(&volume.name).await.expect("it opens")));
        for i in 0..2u64 {
            let port = PortId::new(7 + i, std::process::id().into());
            let config = ChannelConfig {
                depth: 64,
                command_timeout: 60 * SECONDS,
                ..ChannelConfig::new(PortId::new(0, 0), port)
            };
            let channel = Channel::connect(&*provider, &target, config).await.expect("a login");
            ways.push(Way::Srp(channel));
        }
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

/// Has hosts write and read while `other` runs in a thread of its own; gives blocks written and read.
pub fn under_load(
    d: &Daemon,
    known: &mut Known,
    seed: u64,
    other: impl FnOnce() + Send + 'static,
) -> (u64, u64) {
    attached(d, known, async move |host: Rc<Host>| {
        let one = |w: u64| {
            let h = host.clone();
            spawn(async move { h.work(w, seed << 8 | w).await })
        };
        let workers: Vec<_> = (0..WRITERS).map(one).collect();
        let thread = std::thread::spawn(other);
        while !thread.is_finished() {
            weir_reactor::sleep(SECONDS / 100).await;
        }
        host.stop.set(true);
        for w in workers {
            w.await.expect("it runs to its end");
        }
        if let Err(e) = thread.join() {
            std::panic::resume_unwind(e);
        }
        (host.written.get(), host.read.get())
    })
}

/// Runs a command line in a thread.
pub fn command(d: &Daemon, line: &str) -> impl FnOnce() + Send + 'static {
    let (dir, line) = (d.dir.clone(), line.to_owned());
    move || {
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = super::weir(&dir, &args);
        assert!(out.status.success(), "weir {line}: {:?}", super::texts(&out));
    }
}
