//! Persistent reservations of volumes whose pools go from node to node: the real program, files as devices, hosts over SRP.

use crate::common::Daemon;
use std::rc::Rc;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Channel, ChannelConfig};
use weir_mem::Slice;
use weir_proto_scsi::cdb::PrOut;
use weir_proto_scsi::initiator::{self as scsi, PrRegister};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::pr::PrType;
use weir_proto_scsi::sense::SenseKey;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor};
use weir_uring::{Ring, TcpNetwork};

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const RESERVATION_CONFLICT: u8 = 0x18;
const LUN: u64 = 0;
/// Of the host that others have to stay away from.
const KEY: u64 = 0xfeed;

/// What a host does in one login.
#[derive(Clone, Copy)]
enum Act {
    Write,
    /// To another number.
    WriteTo(u16),
    /// Registers, durably, and reserves for itself what it writes.
    Reserve,
    /// Registers only, durably, whatever it was registered by.
    Register,
    /// Takes its registration back, durably.
    Leave,
}

async fn command(c: &Channel, cdb: scsi::Cdb, out: &[u8]) -> u8 {
    command_to(c, LUN, cdb, out).await
}

async fn command_to(c: &Channel, lun: u64, cdb: scsi::Cdb, out: &[u8]) -> u8 {
    let data = Slice::copy_of(out);
    loop {
        let done = c.command(lun, &cdb.padded(), std::slice::from_ref(&data), &[]).await;
        let done = done.expect("the connection stays");
        // Unit attentions tell of the login and of what others did.
        if done.status != CHECK_CONDITION {
            return done.status;
        }
        let sense = scsi::parse_sense(done.sense()).expect("sense data");
        if sense.key != SenseKey::UnitAttention {
            eprintln!("{sense}");
            return CHECK_CONDITION;
        }
    }
}

async fn reserve_out(c: &Channel, action: PrOut, key: u64, new: u64) -> u8 {
    let list = scsi::pr_out_list(key, new, &PrRegister { aptpl: true, ..PrRegister::default() });
    let kind = Some(PrType::WriteExclusive);
    command(c, scsi::pr_out(action, kind, list.len() as u32), &list).await
}

/// Logs in as this host, does it, and gives the status of the last command.
fn host(d: &Daemon, host: u64, act: Act) -> u8 {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let iwarp = reactor.enter(|| Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
    let target = d.target();
    let status = reactor.block_on(PollMode::Sleep, async move {
        let config = ChannelConfig::new(PortId::new(0, 0), PortId::new(7, host));
        let c = Channel::connect(&iwarp, &target, config).await.expect("a login");
        let status = match act {
            Act::Write => command(&c, scsi::write(0, 1, false), &[7; 4096]).await,
            Act::WriteTo(n) => {
                let lun = Lun::from_index(n).expect("a LUN").0;
                command_to(&c, lun, scsi::write(0, 1, false), &[7; 4096]).await
            }
            Act::Reserve => {
                assert_eq!(reserve_out(&c, PrOut::Register, 0, KEY).await, GOOD);
                reserve_out(&c, PrOut::Reserve, KEY, 0).await
            }
            Act::Register => reserve_out(&c, PrOut::RegisterAndIgnore, 0, KEY).await,
            Act::Leave => reserve_out(&c, PrOut::Register, KEY, 0).await,
        };
        c.disconnect(false);
        status
    });
    reactor.shutdown();
    status
}

#[test]
fn whom_a_host_has_shut_out_stays_out_wherever_the_pool_goes() {
    let (mut a, mut b) = (Daemon::new("reserved-a"), Daemon::new("reserved-b"));
    a.start();
    a.ok(&format!("pool create safe --raid 1 {}", a.devices(2, "256M")));
    a.ok("volume create v --pool safe --size 64M --block-size 4096");
    a.ok("host create all --allow-any");
    a.ok("map create all v");
    assert_eq!(host(&a, 2, Act::Write), GOOD);
    assert_eq!(host(&a, 1, Act::Reserve), GOOD);
    assert_eq!(host(&a, 2, Act::Write), RESERVATION_CONFLICT);
    a.kill();
    b.start();
    let devices: String =
        (0..2).map(|i| format!("--device file:{} ", a.path(&format!("disk{i}")))).collect();
    b.ok(&format!("pool import {devices}"));
    assert_eq!(host(&b, 2, Act::Write), RESERVATION_CONFLICT, "{}", b.log());
    assert_eq!(host(&b, 1, Act::Write), GOOD);
    b.kill();
    b.start();
    assert_eq!(host(&b, 2, Act::Write), RESERVATION_CONFLICT);
    assert_eq!(host(&b, 1, Act::Leave), GOOD, "{}", b.log());
    assert_eq!(host(&b, 2, Act::Write), GOOD);
    b.ok("pool release safe --yes");

    // The first node knows an older state, which counts no more.
    a.start();
    assert_eq!(host(&a, 2, Act::Write), GOOD, "{}", a.log());
    // Nor do those of a volume that is gone for another one of its name.
    assert_eq!(host(&a, 1, Act::Reserve), GOOD);
    a.ok("pool release safe --yes");
    a.ok(&format!("pool create plain --device file:{}:128M", a.path("plain")));
    a.ok("volume create v --pool plain --size 16M --block-size 4096");
    // By another number: hosts that were there a moment ago know the first one.
    a.ok("map create all v --lun 1");
    assert_eq!(host(&a, 2, Act::WriteTo(1)), GOOD);
    a.ok("map delete all v");
    a.ok("volume delete v --yes");
    a.ok(&format!("pool import {devices}"));
    assert_eq!(host(&a, 2, Act::Write), RESERVATION_CONFLICT);
    a.stop();
    a.is_clean(2);
}

#[test]
fn reservations_move_with_their_volume() {
    let mut d = Daemon::new("reserved-moved");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    let others: String =
        (2..4).map(|i| format!("--device file:{}:256M ", d.path(&format!("disk{i}")))).collect();
    d.ok(&format!("pool create other --raid 1 {others}"));
    d.ok("volume create v --pool safe --size 32M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    assert_eq!(host(&d, 1, Act::Reserve), GOOD);
    d.ok("migrate start v --to other --wait");
    assert_eq!(host(&d, 2, Act::Write), RESERVATION_CONFLICT);
    d.kill();
    // What the node remembers is gone with its data directory.
    for name in ["weir.redb", "config.json", "weir.lock"] {
        std::fs::remove_file(d.path(name)).expect("it was there");
    }
    d.start();
    let devices: String =
        (2..4).map(|i| format!("--device file:{} ", d.path(&format!("disk{i}")))).collect();
    d.ok(&format!("pool import {devices}"));
    assert_eq!(host(&d, 2, Act::Write), RESERVATION_CONFLICT, "{}", d.log());
    assert_eq!(host(&d, 1, Act::Write), GOOD);
}

#[test]
fn a_full_pool_refuses_what_it_cannot_carry() {
    let mut d = Daemon::new("reserved-full");
    d.start();
    d.ok(&format!("pool create safe --raid 0 {}", d.devices(1, "32M")));
    d.ok("volume create v --pool safe --size 8M --block-size 4096");
    d.ok("volume create big --pool safe --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("map create all big");
    let file = d.path("data");
    std::fs::write(&file, crate::common::noise(3, 48 << 20)).expect("written");
    let target = d.target();
    // To the last block: writes side by side are refused while there is room for some of them only.
    for how in ["--bs 64k", "--bs 4k", "--bs 4k --iodepth 1 --offset 16M"] {
        d.fails(&format!("write --target {target} --volume big --input {file} {how}"), 1);
    }
    assert_eq!(host(&d, 1, Act::Register), CHECK_CONDITION, "{}", d.log());
    d.ok("map delete all big");
    d.ok("volume delete big --yes");
    let begin = std::time::Instant::now();
    while host(&d, 1, Act::Register) != GOOD {
        assert!(begin.elapsed().as_secs() < 30, "there is room again: {}", d.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    d.stop();
    d.is_clean(1);
}

/// A pool that a volume has left keeps nothing of the reservations of that time: when it comes back, what is so now counts.
#[test]
fn reservations_of_before_do_not_come_back_with_the_volume() {
    let mut d = Daemon::new("reserved-back");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    let others: String =
        (2..4).map(|i| format!("--device file:{}:256M ", d.path(&format!("disk{i}")))).collect();
    d.ok(&format!("pool create other --raid 1 {others}"));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("volume create v --pool safe --size 32M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    for away in ["other", "plain"] {
        // Host 1 reserves while the volume is in the first pool, and gives up while it is elsewhere.
        assert_eq!(host(&d, 1, Act::Reserve), GOOD);
        d.ok(&format!("migrate start v --to {away} --wait"));
        assert_eq!(host(&d, 2, Act::Write), RESERVATION_CONFLICT);
        assert_eq!(host(&d, 1, Act::Leave), GOOD);
        // Host 2 takes its place.
        assert_eq!(host(&d, 2, Act::Reserve), GOOD);
        assert_eq!(host(&d, 1, Act::Write), RESERVATION_CONFLICT);
        d.ok("migrate start v --to safe --wait");
        d.stop();
        d.start();
        let (one, two) = (host(&d, 1, Act::Write), host(&d, 2, Act::Write));
        assert_eq!((one, two), (RESERVATION_CONFLICT, GOOD), "by way of {away}");
        assert_eq!(host(&d, 2, Act::Leave), GOOD);
    }
    // Nobody has it any more, also after a start.
    d.stop();
    d.start();
    assert_eq!((host(&d, 1, Act::Write), host(&d, 2, Act::Write)), (GOOD, GOOD));
    d.stop();
    d.is_clean(2);
}

/// An older copy of the data directory does not bring back what hosts have given up since.
#[test]
fn an_older_copy_of_the_data_directory_brings_no_reservation_back() {
    let mut d = Daemon::new("reserved-copy");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "128M")));
    d.ok("volume create v --pool safe --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    assert_eq!(host(&d, 1, Act::Reserve), GOOD);
    d.stop();
    let (store, copy) = (d.path("weir.redb"), d.path("copy.redb"));
    std::fs::copy(&store, &copy).expect("a copy");
    d.start();
    assert_eq!(host(&d, 1, Act::Leave), GOOD);
    assert_eq!(host(&d, 2, Act::Reserve), GOOD);
    d.stop();
    std::fs::copy(&copy, &store).expect("put back");
    d.start();
    assert_eq!((host(&d, 1, Act::Write), host(&d, 2, Act::Write)), (RESERVATION_CONFLICT, GOOD));
    d.stop();
    d.is_clean(2);
}
