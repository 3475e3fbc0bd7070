//! Live migration end to end: the real program, files as devices, hosts that write over SRP meanwhile.

mod common;

use common::{Daemon, noise};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Channel, ChannelConfig};
use weir_mem::Slice;
use weir_proto_scsi::initiator as scsi;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, spawn};
use weir_uring::Ring;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Blocks that are written: a part of the volume.
const BLOCKS: u64 = 2048;
/// Tasks that write; each has blocks of its own.
const WRITERS: u64 = 8;
/// Blocks of the longest write.
const RUN: u64 = 16;

/// What a block may hold: what was acknowledged last, and what was sent since.
#[derive(Clone, Default)]
struct Truth {
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

struct Host {
    channels: Vec<Rc<Channel>>,
    truth: RefCell<Vec<Truth>>,
    next: Cell<u64>,
    stop: Cell<bool>,
    written: Cell<u64>,
    read: Cell<u64>,
    /// Unit attentions after the first ones, which tell of the login.
    attentions: Cell<u64>,
}

impl Host {
    /// A command on LUN 0, without any error but the unit attention of a new login; `false`: the daemon is gone.
    async fn command(&self, by: u64, cdb: &[u8], out: Option<Slice>, into: Option<Slice>) -> bool {
        let channel = &self.channels[by as usize % self.channels.len()];
        loop {
            let Ok(o) = channel.command(0, cdb, out.as_slice(), into.as_slice()).await else {
                return false;
            };
            if o.is_good() {
                return true;
            }
            let sense = scsi::parse_sense(o.sense()).expect("sense data");
            self.attentions.set(self.attentions.get() + 1);
            assert!(self.attentions.get() <= self.channels.len() as u64, "a host sees: {sense}");
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
        if !self.command(me, &scsi::write(first, n as u32, fua).padded(), Some(buf), None).await {
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
        let cdb = scsi::read(first, n as u32, false);
        if !self.command(me, &cdb.padded(), None, Some(buf.clone())).await {
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

    async fn check_all(&self) {
        for lba in (0..BLOCKS).step_by(64) {
            assert!(self.check(lba, lba, 64).await, "it is served");
        }
    }
}

/// What is known of the blocks from one login to the next.
type Known = (Vec<Truth>, u64);

/// Runs `f` with two sessions, which the daemon spreads over its reactors.
fn attached<T: 'static>(
    d: &Daemon,
    known: &mut Known,
    f: impl AsyncFnOnce(Rc<Host>) -> T + 'static,
) -> T {
    let (target, (truth, next)) = (d.target(), std::mem::take(known));
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, &ring, Config::default()));
    let done = reactor.block_on(PollMode::Sleep, async move {
        let provider: Rc<dyn Provider> = Rc::new(iwarp);
        let mut channels = Vec::new();
        for i in 0..2u64 {
            let port = PortId::new(7 + i, std::process::id().into());
            let config = ChannelConfig {
                depth: 64,
                command_timeout: 60 * SECONDS,
                ..ChannelConfig::new(PortId::new(0, 0), port)
            };
            channels.push(Channel::connect(&*provider, &target, config).await.expect("a login"));
        }
        let host = Rc::new(Host {
            channels,
            truth: RefCell::new(truth),
            next: Cell::new(next),
            stop: Cell::new(false),
            written: Cell::new(0),
            read: Cell::new(0),
            attentions: Cell::new(0),
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

/// Has hosts write and read while `other` runs in a thread of its own; gives blocks written and read.
fn under_load(
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
fn command(d: &Daemon, line: &str) -> impl FnOnce() + Send + 'static {
    let (dir, line) = (d.dir.clone(), line.to_owned());
    move || {
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = common::weir(&dir, &args);
        assert!(out.status.success(), "weir {line}: {:?}", common::texts(&out));
    }
}

fn faults(d: &Daemon) -> usize {
    d.json("status")["faults"].as_array().map_or(0, Vec::len)
}

/// Waits until the migration of a volume is over and gives its state.
fn ended(d: &Daemon, volume: &str) -> String {
    let begin = Instant::now();
    loop {
        let m = d.json(&format!("migrate show {volume}"));
        let state = m["state"].as_str().unwrap_or_default().to_owned();
        if ["done", "failed", "cancelled"].contains(&state.as_str()) {
            return state;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "it ends: {m}\n{}", d.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_volume_moves_back_and_forth_under_hosts_that_see_nothing() {
    let mut d = Daemon::new("migrate");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:192M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("pool create memory --device ram:128M");
    d.ok("volume create v --pool plain --size 65M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut known: Known = (vec![Truth::default(); BLOCKS as usize], 0);
    let serial = d.json("volume show v")["serial"].clone();
    let mut total = (0, 0);
    for (round, to) in ["safe", "plain", "memory", "safe", "plain"].into_iter().enumerate() {
        let line = format!("migrate start v --to {to} --rate 40M --wait");
        let n = under_load(&d, &mut known, round as u64, command(&d, &line));
        assert!(n.0 > 100 && n.1 > 50, "there was load: {n:?}");
        total = (total.0 + n.0, total.1 + n.1);
        let v = d.json("volume show v");
        assert_eq!((&v["pool"], &v["serial"]), (&to.into(), &serial));
        assert!(v["migration"].is_null(), "{v}");
        let m = d.json("migrate show v");
        assert_eq!((&m["state"], &m["to"]), (&"done".into(), &to.into()));
        // Nothing of it is left in the pools where it was.
        for pool in ["plain", "safe", "memory"].into_iter().filter(|p| *p != to) {
            let p = d.json(&format!("pool show {pool}"));
            assert_eq!(p["volumes"], 0, "{p}");
            if pool != "safe" {
                assert_eq!(p["allocated"], 0, "{p}");
            }
        }
    }
    attached(&d, &mut known, async |h: Rc<Host>| h.check_all().await);
    assert_eq!(faults(&d), 0);
    // Also after a restart hosts find what they were told at first.
    d.stop();
    d.start();
    attached(&d, &mut known, async |h: Rc<Host>| h.check_all().await);

    // A cancelled one leaves it where it is.
    let other = {
        let (start, cancel) =
            (command(&d, "migrate start v --to safe --rate 1M"), command(&d, "migrate cancel v"));
        move || {
            start();
            std::thread::sleep(Duration::from_millis(400));
            cancel();
        }
    };
    under_load(&d, &mut known, 77, other);
    assert_eq!(d.json("volume show v")["pool"], "plain");
    assert_eq!(ended(&d, "v"), "cancelled");
    attached(&d, &mut known, async |h: Rc<Host>| h.check_all().await);
    println!("{} blocks written and {} read while the volume moved 5 times", total.0, total.1);
    d.stop();
}

#[test]
fn kill_9_in_the_middle_loses_nothing() {
    let mut d = Daemon::new("migrate-kill");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:192M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("volume create v --pool plain --size 64M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut known: Known = (vec![Truth::default(); BLOCKS as usize], 0);
    let mut rng = Prng::new(3);
    let (mut kills, mut moves) = (0, 0);
    for round in 0..5u64 {
        let here = d.json("volume show v")["pool"].as_str().unwrap_or_default().to_owned();
        let to = if here == "plain" { "safe" } else { "plain" };
        let (start, pid) = (command(&d, &format!("migrate start v --to {to} --rate 80M")), d.pid());
        // Up to about the time of the cut-over, and past it.
        let delay = rng.between(20, 900);
        under_load(&d, &mut known, 100 + round, move || {
            start();
            std::thread::sleep(Duration::from_millis(delay));
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.expect("kill runs").success());
        });
        d.kill();
        kills += 1;
        d.start();
        // It starts over by itself, unless it was past the cut-over; hosts are served meanwhile.
        attached(&d, &mut known, async |h: Rc<Host>| h.check_all().await);
        let begin = Instant::now();
        while !d.json("volume show v")["migration"].is_null() {
            assert!(begin.elapsed() < Duration::from_secs(120), "it ends: {}", d.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(d.json("volume show v")["pool"], to, "it has moved in the end");
        moves += 1;
        attached(&d, &mut known, async |h: Rc<Host>| h.check_all().await);
        assert_eq!(faults(&d), 0, "{}", d.json("status"));
    }
    println!("{kills} kills, {moves} moves");
    d.stop();
    let all: String =
        (0..2).map(|i| format!("--device {} ", d.path(&format!("disk{i}")))).collect();
    let report = d.json(&format!("check {all}"));
    assert_eq!(report["clean"], true, "{report}");
}

#[test]
fn a_foreign_file_is_adopted_moved_off_and_exported() {
    let mut d = Daemon::new("adopt");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "128M")));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("host create all --allow-any");
    let (old, data) = (d.path("old.img"), noise(9, 8 * MIB + 512));
    std::fs::write(&old, &data).expect("written");

    // What is refused, and why.
    let odd = d.path("odd.img");
    std::fs::write(&odd, &data[..1000]).expect("written");
    for (line, exit, code, word) in [
        (format!("volume adopt o --path {odd}"), 2, "invalid_size", "truncate -s 1024"),
        (format!("volume adopt o --path {}", d.path("none")), 1, "io_error", "No such file"),
        (format!("volume adopt o --path {}", d.path("disk0")), 4, "device_in_use", "pool `safe`"),
        (format!("volume adopt o --path {}", d.path("plain")), 4, "device_in_use", "pool `plain`"),
        ("volume adopt o --path relative".into(), 2, "invalid_device", "absolute"),
        ("volume adopt o --path /proc".into(), 2, "invalid_device", "neither a file"),
    ] {
        let (found, text) = d.fails(&line, exit);
        assert!(found == code && text.contains(word), "weir {line}: {text}");
    }
    // Another daemon's pool, which is not open here.
    std::fs::copy(d.path("disk1"), d.path("label.img")).expect("copied");
    let (code, text) = d.fails(&format!("volume adopt o --path {}", d.path("label.img")), 4);
    assert!(code == "device_in_use" && text.contains("label of protected pool"), "{text}");

    d.ok(&format!("volume adopt ro --path {old} --read-only"));
    assert_eq!(d.fails(&format!("volume adopt v --path {old}"), 4).0, "device_in_use");
    assert_eq!(d.fails("volume set ro --read-only off", 7).0, "unsupported");
    d.ok("map create all ro");
    assert!(d.read("ro", data.len()) == data);
    d.ok("map delete all ro");
    d.ok("volume delete ro --yes");
    assert!(std::fs::read(&old).expect("it is there") == data, "deleting leaves the file alone");

    d.ok(&format!("volume adopt v --path {old}"));
    assert_eq!(d.json("volume show v")["size"], data.len());
    assert_eq!(d.fails("volume resize v 16M", 7).0, "unsupported");
    assert_eq!(d.fails("snapshot create v", 7).0, "unsupported");
    d.ok("map create all v");
    d.stop();
    assert!(std::fs::read(&old).expect("it is there") == data, "nothing of Weir's is in it");
    d.start();
    let new = noise(10, MIB);
    let file = d.path("new");
    std::fs::write(&file, &new).expect("written");
    d.write("v", &file);
    let mut now = data.clone();
    now[..MIB].copy_from_slice(&new);
    assert!(d.read("v", now.len()) == now);

    d.ok("migrate start v --to safe --wait");
    assert!(d.read("v", now.len()) == now);
    assert!(std::fs::read(&old).expect("it is there") == now, "as of the cut-over");
    // The old file is free, and what is written now is not in it.
    std::fs::remove_file(&old).expect("removed");
    let newer = noise(11, MIB);
    std::fs::write(&file, &newer).expect("written");
    d.write("v", &file);
    now[..MIB].copy_from_slice(&newer);

    // Out again, into a file that lives on as the volume, and into one that is taken away.
    let (out, away) = (d.path("out.img"), d.path("away.img"));
    d.ok(&format!("volume export v --to {out} --create --wait"));
    assert_eq!(d.json("volume show v")["kind"], "image");
    assert!(d.read("v", now.len()) == now);
    assert_eq!(
        d.fails(&format!("volume export v --to {away} --create --detach"), 4).0,
        "volume_mapped"
    );
    assert!(!std::path::Path::new(&away).exists(), "what is refused makes no file");
    assert_eq!(d.fails(&format!("volume export v --to {file} --create"), 4).0, "device_in_use");
    d.ok("map delete all v");
    d.ok(&format!("volume export v --to {away} --create --detach --wait"));
    assert_eq!(d.fails("volume show v", 3).0, "volume_not_found");
    assert!(std::fs::read(&away).expect("it is there") == now);
    std::fs::rename(&away, d.path("taken")).expect("it can be taken away");
    assert_eq!(faults(&d), 0);
    assert_eq!(d.json("volume list").as_array().map(Vec::len), Some(0));
    d.stop();
}

#[test]
fn what_cannot_be_moved_is_said() {
    let mut d = Daemon::new("migrate-refused");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "96M")));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("pool create nothing --device null:1G");
    d.ok("volume create v --pool safe --size 32M");
    d.ok("volume create big --pool safe --size 1G");
    d.ok("snapshot create v@s");
    for (line, exit, code) in [
        ("migrate start none --to plain", 3, "volume_not_found"),
        ("migrate start v --to none", 3, "pool_not_found"),
        ("migrate start v --to safe", 2, "invalid_request"),
        ("migrate start v --to plain", 4, "snapshot_in_use"),
        ("migrate start big --to plain", 6, "pool_full"),
        ("migrate start big --to nothing", 2, "invalid_layout"),
        ("migrate show v", 3, "migration_not_found"),
        ("migrate cancel v", 3, "migration_not_found"),
        ("migrate rate v 5M", 3, "migration_not_found"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    d.ok("snapshot delete v@s --yes");
    let file = d.path("data");
    std::fs::write(&file, noise(1, 4 * MIB)).expect("written");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.write("v", &file);
    d.ok("migrate start v --to plain --rate 64k");
    for (line, exit, code) in [
        ("migrate start v --to plain", 4, "volume_migrating"),
        ("volume resize v 64M", 4, "volume_migrating"),
        ("volume delete v --yes", 4, "volume_migrating"),
        ("snapshot create v@t", 4, "volume_migrating"),
        ("pool delete plain", 4, "pool_in_use"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    let list = d.ok("migrate list");
    assert!(list.contains("copying"), "{list}\n{}", d.log());
    assert!(d.ok("migrate pause v").contains("waits"));
    assert!(d.ok("migrate show v").contains("paused"));
    assert!(d.ok("graph v").contains("migrating"));
    d.ok("migrate rate v 0");
    d.ok("migrate resume v");
    assert_eq!(ended(&d, "v"), "done");
    assert_eq!(faults(&d), 0);
    d.stop();
}
