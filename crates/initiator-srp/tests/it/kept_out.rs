//! Persistent reservations of a host that comes back, while a device has a write of its former life, or that has changed some.

use crate::common::on_reactor;
use crate::peer::{End, Peer};
use crate::target::{BLOCK, HOST, Medium, Nature, Served, config, medium, serve, serve_as};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_proto_scsi::cdb::{PrIn, PrOut};
use weir_proto_scsi::initiator::{self as build, PrRegister};
use weir_proto_scsi::pr::PrType;
use weir_proto_srp::PortId;
use weir_proto_srp::command_builder::BufferSpec;
use weir_reactor::{sleep, timeout};
use weir_target_core::ReservationStore;
use weir_target_srp::TargetConfig;

const KEY: u64 = 0xA;
const OTHER_KEY: u64 = 0xB;
const CONFLICT: (u64, End) = (0, End::Status(0x18));
const GOOD: (u64, End) = (0, End::Status(0));

/// Sends PERSISTENT RESERVE OUT.
fn reserve_out(peer: &Peer, action: PrOut, key: u64, action_key: u64) {
    let kind = match action {
        PrOut::Register | PrOut::Clear => None,
        _ => Some(PrType::WriteExclusive),
    };
    let list = build::pr_out_list(key, action_key, &PrRegister::default());
    let cdb = build::pr_out(action, kind, list.len() as u32);
    peer.send(0, cdb.as_bytes(), Peer::immediate(&list));
}

/// The same, and it ends at once.
async fn reserves(peer: &Peer, action: PrOut, key: u64, action_key: u64) {
    reserve_out(peer, action, key, action_key);
    let done = timeout(SECONDS, peer.next()).await.expect("it waits");
    assert_eq!(done, GOOD, "{action:?}");
}

/// Writes the first block.
async fn write(peer: &Peer, byte: u8) -> (u64, End) {
    peer.write(0, 0, 1, Peer::immediate(&[byte; BLOCK]));
    peer.next().await
}

/// A host that has reserved the unit and comes back, of whose former life the device has a write; and another one, which is kept
/// out.
async fn comes_back(p: &Rc<dyn Provider>) -> (Served, Medium, Peer, Peer) {
    let c = TargetConfig { terminate_timeout: 200 * MILLIS, ..config() };
    let m = medium(1 << 20);
    let t = serve(p.clone(), "127.0.0.1:0", c, &m);
    let old = Peer::enter(p, &t, 0).await;
    old.attention().await;
    reserves(&old, PrOut::Register, 0, KEY).await;
    reserves(&old, PrOut::Reserve, KEY, 0).await;
    let other = Peer::enter_as(p, &t, PortId::new(8, 2), 0).await.expect("it is let in");
    other.attention().await;
    assert_eq!(write(&other, 9).await, CONFLICT);
    t.mood.stuck.set(t.mood.begun.get() + 1);
    old.write(2, 0, 1, Peer::immediate(&[7; BLOCK]));
    while t.mood.begun.get() < t.mood.stuck.get() {
        sleep(MILLIS).await;
    }
    let new = Peer::enter_instead(p, &t, HOST).await.expect("it is let in");
    new.attention().await;
    (t, m, new, other)
}

/// It would land over what others write once they are let in.
#[test]
fn a_host_gives_no_reservation_up_beside_a_write_of_its_former_life() {
    for (action, key) in [(PrOut::Release, 0), (PrOut::Clear, 0), (PrOut::Register, 0)] {
        on_reactor(move |p| async move {
            let (t, m, new, other) = comes_back(&p).await;
            // What gives nothing up waits for nothing.
            reserves(&new, PrOut::Register, KEY, KEY).await;
            reserve_out(&new, action, KEY, key);
            let early = timeout(SECONDS / 4, new.next()).await;
            assert!(early.is_err(), "{action:?} is in force too early");
            assert_eq!(write(&other, 9).await, CONFLICT);
            t.mood.stuck.set(0);
            assert_eq!(new.next().await, GOOD);
            assert_eq!(write(&other, 9).await, GOOD);
            drop((new, other));
            while !t.target.nexuses().is_empty() {
                sleep(MILLIS).await;
            }
            assert_eq!(m.lock().unwrap()[0], 9);
            t.port.check_idle().unwrap();
        });
    }
}

/// Who takes it over waits for nobody's device: that is how hosts are fenced.
#[test]
fn another_host_preempts_beside_a_write_of_a_former_life() {
    on_reactor(|p| async move {
        let (t, _, new, other) = comes_back(&p).await;
        reserves(&other, PrOut::Register, 0, OTHER_KEY).await;
        reserves(&other, PrOut::Preempt, OTHER_KEY, KEY).await;
        assert_eq!(write(&other, 9).await, GOOD);
        t.mood.stuck.set(0);
        drop((new, other));
    });
}

type Done = Box<dyn FnOnce(bool) + Send>;

/// Whoever waits for reservations to be durable.
#[derive(Default)]
struct Slow(Mutex<Vec<Done>>);

impl ReservationStore for Slow {
    fn save(&self, _: &str, _: u64, _: Vec<u8>, done: Done) {
        self.0.lock().unwrap().push(done);
    }
}

/// Its former life registers, which takes long to last, and comes into force or not. What it is told of reservations stays true.
#[test]
fn a_host_hears_of_reservations_when_those_that_its_former_life_changes_are_in_force() {
    for is_kept in [true, false] {
        on_reactor(move |p| async move {
            let c = TargetConfig { terminate_timeout: 200 * MILLIS, ..config() };
            let slow = Arc::new(Slow::default());
            let nature = Nature { store: Some(slow.clone()), ..Nature::default() };
            let t = serve_as(p.clone(), [("127.0.0.1:0", c)], &medium(1 << 20), nature).remove(0);
            let old = Peer::enter(&p, &t, 0).await;
            old.attention().await;
            let other = Peer::enter_as(&p, &t, PortId::new(8, 2), 0).await.expect("it is let in");
            other.attention().await;
            let options = PrRegister { aptpl: true, ..PrRegister::default() };
            let list = build::pr_out_list(0, KEY, &options);
            let cdb = build::pr_out(PrOut::Register, None, list.len() as u32);
            old.send(0, cdb.as_bytes(), Peer::immediate(&list));
            while slow.0.lock().unwrap().is_empty() {
                sleep(MILLIS).await;
            }
            let new = Peer::enter_instead(&p, &t, HOST).await.expect("it is let in");
            new.attention().await;
            let asks = |peer: &Peer| {
                let cdb = build::pr_in(PrIn::ReadKeys, 8);
                peer.send(0, cdb.as_bytes(), BufferSpec::None);
            };
            let revision = || t.unit.with(|s| s.reservation_revision());
            let before = revision();
            asks(&new);
            let early = timeout(SECONDS / 4, new.next()).await;
            assert!(early.is_err(), "it is told what was before");
            // Others wait for nobody.
            asks(&other);
            assert_eq!(timeout(SECONDS, other.next()).await.expect("it waits"), GOOD);
            assert_eq!(revision(), before);
            let done = slow.0.lock().unwrap().remove(0);
            done(is_kept);
            assert_eq!(new.next().await, GOOD);
            drop((old, new, other));
            while !t.target.nexuses().is_empty() {
                sleep(MILLIS).await;
            }
            t.port.check_idle().unwrap();
        });
    }
}
