//! The fence against commands that stand in different places, in simulated worlds.

use crate::common::{BLOCK, Data, attach, does_nothing, shared_unit, volume_geometry};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_block::{Geometry, IoFuture, Volume};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{JoinHandle, LocalFuture, now, sleep, spawn, timeout};
use weir_sim::{Node, World};
use weir_target_core::{
    Access, AccessMap, Attachment, End, HostRule, Link, PATIENCE, Stop, Unit, UnitShared, Units,
    Whom,
};

const BLOCKS: u64 = 64;

/// A disk that keeps the first byte of what was last written.
#[derive(Default)]
struct Disk {
    time: Cell<Nanos>,
    written: Cell<u8>,
}

impl Volume for Disk {
    fn lost(&self) -> u64 {
        0
    }
    fn geometry(&self) -> Geometry {
        volume_geometry(BLOCKS)
    }
    does_nothing!(read, flush, discard, write_zeroes);
    fn write(&self, _at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            sleep(self.time.get()).await;
            let mut first = [0];
            buf.read_at(0, &mut first);
            self.written.set(first[0]);
            Ok(())
        })
    }
}

/// A host whose data take a while to come, and a disk.
struct Host {
    view: Rc<Attachment>,
    disk: Rc<Disk>,
    unit: Arc<UnitShared>,
}

impl Host {
    async fn new() -> Host {
        let (unit, disk) = (shared_unit(BLOCKS, None), Rc::new(Disk::default()));
        let view = Rc::new(attach(0, &unit, disk.clone()));
        let host = Host { view, disk, unit };
        // The unit attention of a new nexus.
        let _ = host.write(0, 0).await;
        host
    }

    /// Begins a write of a block of `byte`s, which come after `time`.
    fn write(&self, byte: u8, time: Nanos) -> JoinHandle<Result<u8, Stop>> {
        let view = self.view.clone();
        spawn(async move {
            let mut pass = view.find(Lun::ZERO).expect("mapped").pass();
            let cdb = build::write(0, 1, false);
            let mut data = Data::given(vec![byte; BLOCK], time);
            let o = pass.execute(&view, cdb.as_bytes(), &mut data).await?;
            pass.told();
            Ok(o.status)
        })
    }

    fn nexus(&self) -> Nexus {
        self.view.nexus()
    }
}

fn run<F: Future<Output = ()> + 'static>(f: impl FnOnce(Host) -> F + 'static) {
    let w = World::new(1);
    let node: Node = w.node("target");
    w.run(&node, 10_000 * SECONDS, async move { f(Host::new().await).await }).unwrap();
}

#[test]
fn data_that_come_after_the_fence_have_no_effect() {
    run(|h| async move {
        let write = h.write(7, 10 * MILLIS);
        sleep(5 * MILLIS).await;
        h.unit.fence(Whom::All, End::Aborted(Nexus(9))).await;
        assert_eq!(write.await, Some(Err(Stop)));
        assert_eq!(h.disk.written.get(), 0);
        // What comes later is as ever.
        assert_eq!(h.write(8, 0).await, Some(Ok(0)));
        assert_eq!(h.disk.written.get(), 8);
    });
}

#[test]
fn one_that_may_ask_again_meets_the_new_rules() {
    run(|h| async move {
        let (first, second) = (h.write(7, 10 * MILLIS), h.write(8, 20 * MILLIS));
        sleep(5 * MILLIS).await;
        h.unit.fence(Whom::All, End::Again).await;
        assert_eq!((first.await, h.disk.written.get()), (Some(Ok(0)), 7));
        h.unit.with(|s| s.set_read_only(true));
        h.unit.fence(Whom::All, End::Again).await;
        assert_eq!((second.await, h.disk.written.get()), (Some(Ok(2)), 7));
    });
}

#[test]
fn a_unit_that_is_gone_stays_gone() {
    run(|h| async move {
        let write = h.write(7, 10 * MILLIS);
        sleep(5 * MILLIS).await;
        h.unit.fence(Whom::Only(vec![h.nexus()]), End::Gone).await;
        // CHECK CONDITION, for the command that was under way and for later ones.
        assert_eq!(write.await, Some(Ok(2)));
        assert_eq!(h.write(8, 0).await, Some(Ok(2)));
        assert_eq!(h.disk.written.get(), 0);
    });
}

#[test]
fn other_nexuses_go_on() {
    run(|h| async move {
        let write = h.write(7, 10 * MILLIS);
        sleep(5 * MILLIS).await;
        h.unit.fence(Whom::Only(vec![Nexus(77)]), End::Gone).await;
        assert_eq!((write.await, h.disk.written.get()), (Some(Ok(0)), 7));
    });
}

/// Hosts without an identifier of their own have one initiator port, and are told apart by their addresses: one that is there is no
/// former nexus of another.
#[test]
fn a_nexus_of_the_same_ports_that_is_there_goes_on() {
    run(|h| async move {
        let write = h.write(7, 10 * MILLIS);
        h.unit.with(|s| s.nexus_added(Nexus(77), TransportId::srp([0; 16]), 1)).unwrap();
        sleep(5 * MILLIS).await;
        h.unit.fence(Whom::Only(vec![Nexus(77)]), End::Aborted(Nexus(77))).await;
        assert_eq!((write.await, h.disk.written.get()), (Some(Ok(0)), 7));
    });
}

#[test]
fn what_a_lost_nexus_of_the_same_ports_has_left_is_waited_for() {
    run(|h| async move {
        h.disk.time.set(10 * PATIENCE);
        let (began, write) = (now(), h.write(7, 0));
        sleep(MILLIS).await;
        h.view.leave();
        h.unit.nexus_lost(h.nexus());
        h.unit.with(|s| s.nexus_added(Nexus(77), TransportId::srp([0; 16]), 1)).unwrap();
        h.unit.fence(Whom::Only(vec![Nexus(77)]), End::Aborted(Nexus(77))).await;
        assert!(now() - began >= 10 * PATIENCE);
        write.await;
    });
}

#[test]
fn io_under_way_is_waited_for_however_long_it_takes() {
    run(|h| async move {
        h.disk.time.set(100 * PATIENCE);
        let (began, write) = (now(), h.write(7, 0));
        sleep(MILLIS).await;
        h.unit.fence(Whom::All, End::Aborted(Nexus(9))).await;
        assert!(now() - began >= 100 * PATIENCE);
        assert_eq!((write.await, h.disk.written.get()), (Some(Ok(0)), 7));
    });
}

#[test]
fn a_later_fence_waits_for_io_that_an_earlier_one_met() {
    run(|h| async move {
        h.disk.time.set(10 * PATIENCE);
        let (began, write) = (now(), h.write(7, 0));
        sleep(MILLIS).await;
        let unit = h.unit.clone();
        let first = spawn(async move { unit.fence(Whom::All, End::Again).await });
        sleep(MILLIS).await;
        h.unit.fence(Whom::All, End::Aborted(Nexus(9))).await;
        assert!(now() - began >= 10 * PATIENCE);
        first.await;
        write.await;
    });
}

#[test]
fn a_host_that_stands_still_holds_nothing_up() {
    run(|h| async move {
        let (began, write) = (now(), h.write(7, 1000 * SECONDS));
        sleep(MILLIS).await;
        h.unit.fence(Whom::All, End::Aborted(Nexus(9))).await;
        assert!(now() - began < 2 * PATIENCE);
        assert!(!write.is_finished());
        assert_eq!((write.await, h.disk.written.get()), (Some(Err(Stop)), 0));
    });
}

#[test]
fn nothing_of_a_channel_that_has_left_has_an_effect() {
    run(|h| async move {
        let write = h.write(7, 10 * MILLIS);
        sleep(5 * MILLIS).await;
        h.view.leave();
        h.view.left().await;
        assert!(h.view.find(Lun::ZERO).is_none());
        write.await;
        assert_eq!(h.disk.written.get(), 0);
    });
}

#[test]
fn writes_of_a_new_channel_come_after_those_that_the_old_one_left() {
    run(|h| async move {
        h.disk.time.set(PATIENCE);
        let old = h.write(7, 0);
        sleep(MILLIS).await;
        // The same nexus by another channel.
        let view = Rc::new(attach(0, &h.unit, h.disk.clone()));
        let new = Host { view, disk: h.disk.clone(), unit: h.unit.clone() };
        h.view.leave();
        new.disk.time.set(0);
        assert_eq!((new.write(8, 0).await, new.disk.written.get()), (Some(Ok(0)), 8));
        assert!(old.is_finished());
        sleep(2 * PATIENCE).await;
        assert_eq!(new.disk.written.get(), 8);
    });
}

/// A host that sends a write again is told nothing of it before the first one is over, whatever becomes of the unit meanwhile.
#[test]
fn a_fence_that_wakes_a_write_has_it_wait_on_for_what_the_old_channel_left() {
    run(|h| async move {
        h.disk.time.set(PATIENCE);
        let old = h.write(7, 0);
        sleep(MILLIS).await;
        let view = Rc::new(attach(0, &h.unit, h.disk.clone()));
        let new = Host { view, disk: h.disk.clone(), unit: h.unit.clone() };
        h.view.leave();
        let again = new.write(8, 0);
        sleep(10 * MILLIS).await;
        h.unit.with(|s| s.set_read_only(true));
        let unit = h.unit.clone();
        let fence = spawn(async move { unit.fence(Whom::All, End::Again).await });
        sleep(10 * MILLIS).await;
        assert!(!again.is_finished(), "it is refused while the old one is with the device");
        // CHECK CONDITION: it is write protected.
        assert_eq!(again.await, Some(Ok(2)));
        assert!(old.is_finished());
        fence.await;
    });
}

/// A device hangs, and hosts come and go that end each other's commands.
#[test]
fn a_fence_that_nobody_waits_for_leaves_nothing_behind() {
    let w = World::new(3);
    let node = w.node("target");
    let begins = async {
        let h = Host::new().await;
        h.disk.time.set(1000 * SECONDS);
        let write = h.write(7, 0);
        sleep(MILLIS).await;
        (h, write)
    };
    let (h, write) = w.run(&node, SECONDS, begins).unwrap();
    let tasks = || node.reactor(0).figures().tasks;
    let (before, unit) = (tasks(), h.unit.clone());
    let fences = async move {
        for _ in 0..20 {
            let fence = unit.fence(Whom::All, End::Aborted(Nexus(9)));
            assert!(timeout(MILLIS, fence).await.is_err(), "a write is with the device");
        }
        sleep(SECONDS).await;
    };
    w.run(&node, 100 * SECONDS, fences).unwrap();
    assert_eq!(tasks(), before, "they are waited for");
    assert!(!write.is_finished());
}

/// A channel that is told when what was given to its connection has left.
struct Line {
    view: Attachment,
    access: Access,
    units: Units,
    left: Rc<Cell<bool>>,
}

impl Link for Line {
    fn refresh(&self) {
        self.view.refresh(&self.access, &self.units);
    }
    fn sent(&self) -> LocalFuture<'static, ()> {
        let left = self.left.clone();
        Box::pin(async move {
            while !left.get() {
                sleep(MILLIS).await;
            }
        })
    }
    fn cut(&self, _why: &str) {}
    fn bar(&self) {}
}

#[test]
fn a_host_is_parted_from_a_unit_when_its_last_answers_have_left() {
    let w = World::new(2);
    let node = w.node("target");
    w.run(&node, 10 * SECONDS, async {
        let unit = shared_unit(BLOCKS, None);
        let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).unwrap();
        let units = Units::default();
        units.insert(Unit::new(unit.clone(), Rc::new(Disk::default()), pool, 4096));
        let luns = vec![(0, "v".into())];
        let rule = HostRule { host: "h".into(), any: true, luns, ..HostRule::default() };
        let access = Access::new(AccessMap { hosts: vec![rule] });
        let view = Attachment::new(Nexus(1), vec![1; 16], TransportId::srp([1; 16]), 1);
        let left = Rc::new(Cell::new(false));
        let line = Rc::new(Line { view, access, units, left: left.clone() });
        let link: Rc<dyn Link> = line.clone();
        line.view.set_link(Rc::downgrade(&link));
        line.refresh();
        // No command is under way, but an answer is.
        line.access.set(AccessMap::default());
        let parted = Rc::new(Cell::new(false));
        let seen = parted.clone();
        let parting = spawn(async move {
            unit.part().await;
            seen.set(true);
        });
        sleep(SECONDS).await;
        assert!(!parted.get(), "an answer is on its way");
        left.set(true);
        parting.await;
    })
    .unwrap();
}

/// A command that waits for others is ended by somebody else, and after that by its own host, whose abort is answered.
/// After that answer the host hears nothing more of it, whatever the mode page says about aborts by others.
#[test]
fn the_own_abort_of_a_host_counts_for_more_than_that_of_another() {
    run(|h| async move {
        let (own, other) = (End::Aborted(h.nexus()), End::Aborted(Nexus(9)));
        for (first, then) in [(other, own), (own, other)] {
            let aside = h.view.find(Lun::ZERO).unwrap().pass().aside();
            let fences = [first, then].map(|end| {
                let unit = h.unit.clone();
                spawn(async move { unit.fence(Whom::All, end).await })
            });
            sleep(MILLIS).await;
            assert_eq!(aside.back().end(), Some(own));
            for f in fences {
                f.await;
            }
        }
    });
}

/// A command that has preempted waits for a slow device, and is preempted itself: it stops waiting, and the other's
/// fence waits for its answer, though not for the device.
#[test]
fn one_that_waits_for_others_and_is_ended_answers_inside_the_fence() {
    run(|h| async move {
        let other = Nexus(h.nexus().0 + 1);
        let view = attach(1, &h.unit, h.disk.clone());
        assert_eq!(view.nexus(), other);
        let slow = h.view.find(Lun::ZERO).expect("mapped").pass();
        let _at_the_medium = slow.enter().expect("not ended");
        let aside = view.find(Lun::ZERO).expect("mapped").pass().aside();
        sleep(MILLIS).await;
        let began = now();
        let (unit, of) = (h.unit.clone(), h.nexus());
        let ended = spawn(async move {
            unit.fence(Whom::Only(vec![other]), End::Aborted(of)).await;
            now()
        });
        let whom = Whom::Only(vec![of]);
        let waits = aside.fence(whom, End::Aborted(other));
        assert!(weir_reactor::timeout(100 * MILLIS, waits).await.is_ok(), "it waits no more");
        let pass = aside.back();
        assert_eq!(pass.end(), Some(End::Aborted(of)));
        sleep(100 * MILLIS).await;
        let answered = now();
        drop(pass);
        let ended = ended.await.expect("it ran");
        assert!(ended >= answered && ended < began + SECONDS, "it waits for the answer");
        assert_eq!(slow.end(), Some(End::Aborted(other)), "ended, though not waited for");
    });
}

/// It preempts its own registration with those of others that have the same key.
#[test]
fn one_that_ends_its_own_nexus_does_not_end_itself() {
    run(|h| async move {
        let by = End::Aborted(h.nexus());
        let beside = h.view.find(Lun::ZERO).expect("mapped").pass();
        let aside = h.view.find(Lun::ZERO).expect("mapped").pass().aside();
        let ended = beside.end();
        drop(beside);
        aside.fence(Whom::Only(vec![h.nexus()]), by).await;
        assert_eq!((ended, aside.back().end()), (None, None));
    });
}

/// The answer with the unit attention never left: the host has heard nothing of it yet.
#[test]
fn an_attention_that_no_host_was_told_is_told_to_the_next_command() {
    run(|h| async move {
        let view = attach(1, &h.unit, h.disk.clone());
        for (told, status) in [(false, 2), (true, 2), (true, 0)] {
            let mut pass = view.find(Lun::ZERO).expect("mapped").pass();
            let cdb = build::write(0, 1, false);
            let (bytes, share) = (vec![1; BLOCK], crate::common::share());
            let mut data = Data { share, ..Data::given(bytes, 0) };
            let o = pass.execute(&view, cdb.as_bytes(), &mut data).await.expect("not stopped");
            assert_eq!(o.status, status);
            if told {
                pass.told();
            }
        }
    });
}

/// A command was ended while it kept a reservation, and only then comes to where it would wait for others: the fence that ended
/// it waits for its answer all the same.
#[test]
fn one_that_is_ended_before_it_waits_for_others_answers_inside_the_fence() {
    run(|h| async move {
        let (own, by) = (h.nexus(), Nexus(h.nexus().0 + 1));
        let pass = h.view.find(Lun::ZERO).expect("mapped").pass();
        let keeps = pass.enter().expect("not ended");
        let unit = h.unit.clone();
        let fence = spawn(async move {
            unit.fence(Whom::Only(vec![own]), End::Aborted(by)).await;
            now()
        });
        sleep(MILLIS).await;
        drop(keeps);
        let aside = pass.aside();
        aside.fence(Whom::Only(vec![by]), End::Aborted(own)).await;
        let pass = aside.back();
        assert_eq!(pass.end(), Some(End::Aborted(by)));
        // Its answer waits for a place in the send queue.
        sleep(100 * MILLIS).await;
        let answered = now();
        drop(pass);
        assert!(fence.await.expect("it ran") >= answered, "the fence has not waited for it");
    });
}

/// A command that preempts its own registration with those of others was ended by another nexus while it kept that: it is told of that
/// end (TASK ABORTED), and does not end itself beside.
#[test]
fn one_that_another_has_ended_does_not_end_itself() {
    run(|h| async move {
        let (own, by) = (h.nexus(), Nexus(h.nexus().0 + 1));
        let pass = h.view.find(Lun::ZERO).expect("mapped").pass();
        let keeps = pass.enter().expect("not ended");
        let unit = h.unit.clone();
        let fence = spawn(async move { unit.fence(Whom::All, End::Aborted(by)).await });
        sleep(MILLIS).await;
        drop(keeps);
        let aside = pass.aside();
        aside.fence(Whom::Only(vec![own]), End::Aborted(own)).await;
        // What was begun of its fence comes to its end.
        sleep(MILLIS).await;
        let pass = aside.back();
        let end = pass.end();
        drop(pass);
        fence.await.expect("it ran");
        assert_eq!(end, Some(End::Aborted(by)), "its host hears nothing of it");
    });
}
