//! kill -9 in the middle of writes, again and again: what was acknowledged is there afterwards, and what was not is
//! there whole or not at all, block by block.
//!
//! `WEIR_KILL_CYCLES` sets the number of kills (default 5); `cargo xtask kill --cycles 200` is the long form.

mod common;

use common::Daemon;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
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
const BLOCKS: u64 = 4096;
/// Tasks that write; each has blocks of its own.
const WRITERS: u64 = 16;
/// Blocks of the longest write.
const RUN: u64 = 8;

/// What a block may hold.
#[derive(Clone, Default)]
struct Truth {
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

struct Host {
    channels: Vec<Rc<Channel>>,
    truth: RefCell<Vec<Truth>>,
    next: Cell<u64>,
    acknowledged: Cell<u64>,
}

impl Host {
    /// A command on LUN 0; `false`: the connection is gone.
    async fn command(&self, by: u64, cdb: &[u8], out: Option<Slice>, into: Option<Slice>) -> bool {
        let channel = &self.channels[by as usize % self.channels.len()];
        for _ in 0..8 {
            let Ok(o) = channel.command(0, cdb, out.as_slice(), into.as_slice()).await else {
                return false;
            };
            if o.is_good() {
                return true;
            }
            let sense = scsi::parse_sense(o.sense()).expect("sense data");
            assert_eq!(sense.key, SenseKey::UnitAttention, "a host sees no error: {sense}");
        }
        panic!("one unit attention after the other");
    }

    /// Writes runs of blocks of its own until the connection ends.
    async fn write(&self, me: u64, seed: u64) {
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
            if !self.command(me, &cdb.padded(), Some(buf), None).await {
                return;
            }
            for t in &mut self.truth.borrow_mut()[lba as usize..(lba + n) as usize] {
                *t = Truth { known: version, doubt: Vec::new() };
            }
            self.acknowledged.set(self.acknowledged.get() + n);
        }
    }

    /// Reads everything. What is there from now on is what was found.
    async fn verify(&self) {
        for lba in (0..BLOCKS).step_by(64) {
            let buf = Slice::heap(64 * BLOCK);
            let cdb = scsi::read(lba, 64, false);
            assert!(
                self.command(lba, &cdb.padded(), None, Some(buf.clone())).await,
                "it is served"
            );
            for (i, bytes) in buf.to_vec().chunks(BLOCK).enumerate() {
                let lba = lba + i as u64;
                let t = &mut self.truth.borrow_mut()[lba as usize];
                let found =
                    version(bytes, lba).unwrap_or_else(|e| panic!("{e}; known {}", t.known));
                assert!(
                    found == t.known || t.doubt.contains(&found),
                    "block {lba} has version {found}; acknowledged was {}, in doubt {:?}",
                    t.known,
                    t.doubt
                );
                *t = Truth { known: found, doubt: Vec::new() };
            }
        }
    }
}

/// Runs `f` with two sessions, which the daemon spreads over its reactors.
fn attached<T: 'static>(
    target: String,
    truth: Vec<Truth>,
    next: u64,
    f: impl AsyncFnOnce(Rc<Host>) -> T + 'static,
) -> (T, Vec<Truth>, u64) {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, &ring, Config::default()));
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
            channels.push(Channel::connect(&*provider, &target, config).await.expect("a login"));
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
        (result, host.truth.take(), host.next.get())
    });
    reactor.shutdown();
    done
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let cycles: u64 = match std::env::var("WEIR_KILL_CYCLES") {
        Ok(n) => n.parse().expect("a number of cycles"),
        Err(_) => 5,
    };
    let seed = 1;
    let mut rng = Prng::new(seed);
    let mut d = Daemon::new("kill");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(4, "96M")));
    d.ok("volume create v --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (mut truth, mut next, mut total) = (vec![Truth::default(); BLOCKS as usize], 0, 0);
    for cycle in 0..cycles {
        d.ok(&format!("snapshot create v@s{cycle}"));
        if cycle >= 2 {
            d.ok(&format!("snapshot delete v@s{} --yes", cycle - 2));
        }
        let (pid, delay) = (d.pid(), rng.between(50, 600));
        let before = truth;
        let written = attached(d.target(), before, next, async move |host: Rc<Host>| {
            // From here on, so that there is load however slow the machine is.
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()
            });
            let seed = move |w| cycle << 8 | w;
            let one = |w| {
                let h = host.clone();
                spawn(async move { h.write(w, seed(w)).await })
            };
            for t in (0..WRITERS).map(one).collect::<Vec<_>>() {
                t.await.expect("it runs to its end");
            }
            let killed = killer.join().expect("the killer ends").expect("kill runs");
            assert!(killed.success(), "the daemon was there to be killed");
            host.acknowledged.get()
        });
        (truth, next) = (written.1, written.2);
        total += written.0;
        d.kill();
        if rng.chance(1, 3) {
            // Once more while it recovers.
            d.start_only();
            std::thread::sleep(Duration::from_millis(rng.below(120)));
            d.kill();
        }
        d.start();
        let read = attached(d.target(), truth, next, async |host: Rc<Host>| host.verify().await);
        (truth, next) = (read.1, read.2);
    }
    d.stop();
    let all: String =
        (0..4).map(|i| format!("--device {} ", d.path(&format!("disk{i}")))).collect();
    let report = d.json(&format!("check {all}"));
    assert_eq!(report["clean"], true, "{report}");
    println!("{cycles} kills, {total} blocks acknowledged, none lost");
    assert!(total > cycles * 50, "only {total} blocks were written");
}

/// A program that ends without a word leaves no daemon behind.
#[test]
fn a_daemon_ends_with_the_pipe_of_whoever_started_it() {
    let d = Daemon::new("until-stdin-closes");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--listen", "127.0.0.1:0", "--cores", "0", "--until-stdin-closes"])
        .args(["--buffer-memory", "64M"])
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("weir serve runs");
    let begin = Instant::now();
    while !common::weir(&d.dir, &["status"]).status.success() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it answers");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.stdin.take());
    let out = child.wait_with_output().expect("its end");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && log.contains("stopping"), "{}: {log}", out.status);
}
