//! Blocks of which every version is known, and a host that writes and verifies them over SRP.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Channel, ChannelConfig};
use weir_mem::Slice;
use weir_proto_scsi::initiator as scsi;
use weir_proto_scsi::sense::SenseKey;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, spawn};
use weir_uring::Ring;

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

pub struct Host {
    channels: Vec<Rc<Channel>>,
    truth: RefCell<Vec<Truth>>,
    next: Cell<u64>,
    acknowledged: Cell<u64>,
}

impl Host {
    /// A command on LUN 0; `false`: the connection is gone. An error is one that a host must not see.
    async fn command(
        &self,
        by: u64,
        cdb: &[u8],
        out: Option<Slice>,
        into: Option<Slice>,
    ) -> Result<bool, String> {
        let channel = &self.channels[by as usize % self.channels.len()];
        for _ in 0..8 {
            let Ok(o) = channel.command(0, cdb, out.as_slice(), into.as_slice()).await else {
                return Ok(false);
            };
            if o.is_good() {
                return Ok(true);
            }
            let sense = scsi::parse_sense(o.sense()).ok_or("an error without sense data")?;
            if sense.key != SenseKey::UnitAttention {
                return Err(format!("a host sees no error: {sense}"));
            }
        }
        Err("one unit attention after the other".to_owned())
    }

    /// Writes runs of blocks of its own until the connection ends.
    async fn write(&self, me: u64, seed: u64) -> Result<(), String> {
        let mut rng = Prng::new(seed);
        let (first, mine) = (me * (BLOCKS / WRITERS), BLOCKS / WRITERS);
        loop {
            let n = rng.between(1, RUN);
            let lba = first + rng.below(mine - n + 1);
            let buf = Slice::heap(n as usize * BLOCK);
            let version = self.next.get() + 1;
            self.next.set(version);
            for i in 0..n {
                fill(&buf, i as usize * BLOCK, lba + i, version);
                self.truth.borrow_mut()[(lba + i) as usize].doubt.push(version);
            }
            let cdb = scsi::write(lba, n as u32, false);
            if !self.command(me, &cdb.padded(), Some(buf), None).await? {
                return Ok(());
            }
            for t in &mut self.truth.borrow_mut()[lba as usize..(lba + n) as usize] {
                *t = Truth { known: version, doubt: Vec::new() };
            }
            self.acknowledged.set(self.acknowledged.get() + n);
        }
    }

    /// Writes with all writers until the connections end. Returns the blocks acknowledged.
    pub async fn write_all(self: &Rc<Self>, seed: u64) -> Result<u64, String> {
        let one = |w| {
            let h = self.clone();
            spawn(async move { h.write(w, seed << 8 | w).await })
        };
        for t in (0..WRITERS).map(one).collect::<Vec<_>>() {
            t.await.ok_or("a writer was given up")??;
        }
        Ok(self.acknowledged.get())
    }

    /// Reads everything. What is there from now on is what was found.
    pub async fn verify(&self) -> Result<(), String> {
        for lba in (0..BLOCKS).step_by(64) {
            let buf = Slice::heap(64 * BLOCK);
            let cdb = scsi::read(lba, 64, false);
            if !self.command(lba, &cdb.padded(), None, Some(buf.clone())).await? {
                return Err("the connection ended".to_owned());
            }
            for (i, bytes) in buf.to_vec().chunks(BLOCK).enumerate() {
                let lba = lba + i as u64;
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
        }
        Ok(())
    }
}

/// What is known of the volume, and the next version.
pub type Known = (Vec<Truth>, u64);

/// A volume of zeros.
pub fn zeros() -> Known {
    (vec![Truth::default(); BLOCKS as usize], 0)
}

/// Runs `f` with two sessions, which the daemon spreads over its reactors.
pub fn attached<T: 'static>(
    target: String,
    known: &mut Known,
    f: impl AsyncFnOnce(Rc<Host>) -> Result<T, String> + 'static,
) -> Result<T, String> {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, &ring, Config::default()));
    let (truth, next) = std::mem::take(known);
    let done = reactor.block_on(PollMode::Sleep, async move {
        let provider: Rc<dyn Provider> = Rc::new(iwarp);
        let mut channels = Vec::new();
        for i in 0..2u64 {
            let config = ChannelConfig {
                depth: 64,
                command_timeout: 60 * SECONDS,
                ..ChannelConfig::new(
                    PortId::new(0, 0),
                    PortId::new(7 + i, std::process::id().into()),
                )
            };
            let login = Channel::connect(&*provider, &target, config).await;
            match login {
                Ok(c) => channels.push(c),
                Err(e) => return (Err(format!("a login: {e}")), (truth, next)),
            }
        }
        let host = Rc::new(Host {
            channels,
            truth: RefCell::new(truth),
            next: Cell::new(next),
            acknowledged: Cell::new(0),
        });
        let result = f(host.clone()).await;
        for c in &host.channels {
            c.disconnect(false);
        }
        (result, (host.truth.take(), host.next.get()))
    });
    reactor.shutdown();
    *known = done.1;
    done.0
}
