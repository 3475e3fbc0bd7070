//! Reservations that cannot be kept.

use crate::common::{BLOCK, Data, attach, does_nothing, shared_unit, volume_geometry};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weir_base::SECONDS;
use weir_block::{Geometry, Volume};
use weir_proto_scsi::cdb::PrOut;
use weir_proto_scsi::initiator::{self as build, Cdb};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::pr::PrType;
use weir_proto_scsi::status::Status;
use weir_reactor::{run_async, sleep, spawn};
use weir_sim::World;
use weir_target_core::{
    Access, AccessMap, Attachment, End, PATIENCE, ReservationStore, UnitShared, Units, Whom,
};

/// A store that is full when it is told to be.
#[derive(Default)]
struct Store(AtomicBool);

impl ReservationStore for Store {
    fn save(&self, _: &str, _: u64, _: Vec<u8>, done: Box<dyn FnOnce(bool) + Send>) {
        done(!self.0.load(Ordering::Relaxed));
    }
}

/// A disk that keeps nothing.
struct Nothing;

impl Volume for Nothing {
    fn lost(&self) -> u64 {
        0
    }
    fn geometry(&self) -> Geometry {
        volume_geometry(8)
    }
    does_nothing!(read, write, flush, discard, write_zeroes);
}

/// Runs a test of a unit with this store.
fn with_unit<F: Future<Output = ()> + 'static>(
    store: Option<Arc<dyn ReservationStore>>,
    test: impl FnOnce(Arc<UnitShared>) -> F,
) {
    let w = World::new(1);
    let node = w.node("target");
    w.run(&node, 100 * SECONDS, test(shared_unit(8, store))).unwrap();
}

/// A host that has the unit, and has heard the unit attention of its login.
async fn host(number: usize, unit: &Arc<UnitShared>) -> Rc<Attachment> {
    let a = attach(number, unit, Rc::new(Nothing));
    run(&a, build::test_unit_ready(), Vec::new()).await;
    Rc::new(a)
}

async fn run(host: &Attachment, cdb: Cdb, bytes: Vec<u8>) -> u8 {
    let mut pass = host.find(Lun::ZERO).unwrap().pass();
    let mut data = Data::given(bytes, 0);
    let o = pass.execute(host, cdb.as_bytes(), &mut data).await.unwrap();
    pass.told();
    o.status
}

async fn reserve_out(host: &Attachment, action: PrOut, key: u64, action_key: u64) -> u8 {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    // APTPL: it survives a loss of power.
    list[20] = 1;
    run(host, build::pr_out(action, Some(PrType::WriteExclusive), 24), list).await
}

#[test]
fn a_reservation_that_is_refused_is_none() {
    let store = Arc::new(Store::default());
    with_unit(Some(store.clone()), |unit| async move {
        let (a, b) = (host(0, &unit).await, host(1, &unit).await);
        let write = || build::write(0, 1, false);
        assert_eq!(reserve_out(&a, PrOut::Register, 0, 7).await, 0);
        let before = unit.with(|s| s.export_reservations());
        store.0.store(true, Ordering::Relaxed);
        assert_eq!(reserve_out(&a, PrOut::Reserve, 7, 0).await, 2);
        assert_eq!(run(&b, write(), vec![0; BLOCK]).await, 0);
        // Neither is anybody registered, nor preempted.
        assert_eq!(reserve_out(&b, PrOut::Register, 0, 8).await, 2);
        let conflict = Status::ReservationConflict.code();
        assert_eq!(reserve_out(&b, PrOut::Preempt, 8, 7).await, conflict);
        let after = unit.with(|s| s.export_reservations());
        // All but the revision, which no other state may have.
        assert_eq!((&before[..8], &before[16..]), (&after[..8], &after[16..]));
        store.0.store(false, Ordering::Relaxed);
        assert_eq!(reserve_out(&a, PrOut::Reserve, 7, 0).await, 0);
        assert_eq!(run(&b, write(), vec![0; BLOCK]).await, conflict);
    });
}

/// Who waits for a store that takes its time.
type Waiting = Mutex<Vec<Box<dyn FnOnce(bool) + Send>>>;

#[derive(Default)]
struct Slow(Waiting);

impl Slow {
    /// Waits until something is to be saved.
    async fn asked(&self) {
        while self.0.lock().unwrap().is_empty() {
            run_async().await;
        }
    }

    /// It has been saved.
    fn keep(&self) {
        let kept = self.0.lock().unwrap().pop().unwrap();
        kept(true);
    }
}

impl ReservationStore for Slow {
    fn save(&self, _: &str, _: u64, _: Vec<u8>, done: Box<dyn FnOnce(bool) + Send>) {
        self.0.lock().unwrap().push(done);
    }
}

#[test]
fn no_reservation_of_the_old_kind_comes_between_a_registration_and_its_being_kept() {
    let store = Arc::new(Slow::default());
    with_unit(Some(store.clone()), |unit| async move {
        let (a, b) = (host(0, &unit).await, host(1, &unit).await);
        let registering = spawn(async move { reserve_out(&a, PrOut::Register, 0, 7).await });
        store.asked().await;
        let host = b.clone();
        let reserving = spawn(async move { run(&host, build::reserve_6(), Vec::new()).await });
        for _ in 0..100 {
            run_async().await;
        }
        store.keep();
        let ended = (registering.await, reserving.await);
        let conflict = Status::ReservationConflict.code();
        assert_eq!(ended, (Some(0), Some(conflict)), "one of them was first");
    });
}

/// A PERSISTENT RESERVE OUT waits for its store when its host loses the unit (or a reset ends it). Once the fence has ended,
/// nothing of the host may have an effect any more; so it waits for the store as for a device.
#[test]
fn nothing_is_reserved_after_the_fence_has_ended() {
    let store = Arc::new(Slow::default());
    with_unit(Some(store.clone()), |unit| async move {
        let a = host(0, &unit).await;
        let host = a.clone();
        let registering = spawn(async move { reserve_out(&host, PrOut::Register, 0, 7).await });
        store.asked().await;
        let (fenced, whom) = (unit.clone(), Whom::Only(vec![a.nexus()]));
        let fence = spawn(async move {
            fenced.fence(whom, End::Gone).await;
            fenced.with(|s| s.export_reservations())
        });
        sleep(2 * PATIENCE).await;
        store.keep();
        registering.await;
        let at_the_end = fence.await.unwrap();
        sleep(2 * PATIENCE).await;
        let after = unit.with(|s| s.export_reservations());
        assert_eq!(after, at_the_end, "a host that was shut out has registered since");
    });
}

/// One host's PERSISTENT RESERVE OUT waits for a store that does not answer, another's RESERVE waits for its turn. A reset
/// ends what waits: it is neither answered nor at the medium, so nobody's connection need be cut for it.
#[test]
fn one_that_waits_for_its_turn_is_ended_by_a_fence() {
    let store = Arc::new(Slow::default());
    with_unit(Some(store.clone()), |unit| async move {
        let (a, b) = (host(0, &unit).await, host(1, &unit).await);
        let registering = spawn(async move { reserve_out(&a, PrOut::Register, 0, 7).await });
        store.asked().await;
        let host = b.clone();
        let reserving = spawn(async move {
            let mut pass = host.find(Lun::ZERO).unwrap().pass();
            let mut data = Data::given(Vec::new(), 0);
            pass.execute(&host, build::reserve_6().as_bytes(), &mut data).await.is_err()
        });
        for _ in 0..100 {
            run_async().await;
        }
        unit.fence(Whom::Only(vec![b.nexus()]), End::Aborted(b.nexus())).await;
        assert!(reserving.is_finished(), "the fence has given up waiting for it");
        store.keep();
        registering.await;
    });
}

/// A host with a RESERVE(6) loses the unit, which is given to another host. It cannot release what it no longer sees.
/// As long as it stays logged in, for its other units, nobody else could use the unit.
#[test]
fn a_host_that_lost_the_unit_does_not_hold_it_reserved() {
    with_unit(None, |unit| async move {
        let (a, b) = (host(0, &unit).await, host(1, &unit).await);
        assert_eq!(run(&a, build::reserve_6(), Vec::new()).await, 0);
        let nothing = Access::new(AccessMap::default());
        nothing.touch();
        a.refresh(&nothing, &Units::default());
        unit.part().await;
        assert!(a.find(Lun::ZERO).is_none());
        let ended = run(&b, build::write(0, 1, false), vec![0; BLOCK]).await;
        assert_ne!(ended, Status::ReservationConflict.code());
    });
}

/// Hosts of three reactors register at the same time, as those of a cluster do when they start. One does so, and the others wait for
/// their turns, each on its own reactor. A place in that queue is told from others by a token, which is a number of one reactor
/// only: those of two reactors may be equal, and one that leaves takes the other's place with it.
#[test]
fn every_turn_comes_also_where_waiting_ones_have_the_same_number_on_their_reactors() {
    let store = Arc::new(Slow::default());
    let w = World::new(1);
    let node = w.node_with("target", 3);
    let unit = shared_unit(8, Some(store.clone()));
    let registering: Vec<_> = (0..3)
        .map(|core| {
            let unit = unit.clone();
            node.spawn_on(core, async move {
                let h = host(core, &unit).await;
                // The first has its turn before the others come.
                sleep((1 + core as u64) * SECONDS).await;
                reserve_out(&h, PrOut::Register, 0, 7 + core as u64).await
            })
        })
        .collect();
    let saver = node.spawn_on(0, async move {
        // All are there by now.
        sleep(5 * SECONDS).await;
        for _ in 0..3 {
            store.asked().await;
            store.keep();
        }
    });
    let all = w.run_until(60 * SECONDS, || registering.iter().all(|r| r.is_finished()));
    let answered: Vec<bool> = registering.iter().map(|r| r.is_finished()).collect();
    drop(saver);
    assert!(all.is_ok(), "which of three were answered within a minute: {answered:?}");
}
