//! A number is not a unit: what happens when another unit gets it, and what is known of a unit's caches by its name.

use crate::common::L0;
use crate::sim::{LEN, Lab, PORT};
use crate::target::{BLOCK, Medium, Nature, medium, serve_as};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_initiator_srp::{
    Error, Multipath, MultipathConfig, PathCondition, Session, SessionConfig,
};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::sense::SenseKey;
use weir_reactor::{sleep, timeout};

const NAA: [u8; 16] = [0x60; 16];
const OTHER: [u8; 16] = [0x61; 16];

fn block(byte: u8) -> Slice {
    let b = Slice::heap(BLOCK).sub(0, BLOCK);
    b.fill(byte);
    b
}

fn open(lab: &Lab, core: usize, s: &Session) -> Rc<Multipath> {
    let q = lab.host.enter_on(core, || s.queue());
    on(lab, core, async move {
        Rc::new(Multipath::open(vec![q], &NAA, MultipathConfig::default()).await.unwrap())
    })
}

fn on<T: 'static>(lab: &Lab, core: usize, f: impl Future<Output = T> + 'static) -> T {
    let task = lab.host.spawn_on(core, f);
    lab.world.run_until(60 * SECONDS, || task.is_finished()).unwrap();
    lab.run(task).unwrap()
}

fn write(lab: &Lab, core: usize, m: &Rc<Multipath>, byte: u8) {
    let m = m.clone();
    on(lab, core, async move { m.write(0, block(byte), false).await.unwrap() });
}

fn flush(lab: &Lab, core: usize, m: &Rc<Multipath>) -> Result<(), Error> {
    let m = m.clone();
    on(lab, core, async move { m.flush().await })
}

/// Two units of one target, the second of which nobody sees.
fn with_another(seed: u64, cores: usize) -> (Lab, Session, Medium) {
    let lab = Lab::new(seed, cores);
    let other = medium(LEN);
    lab.target.enter(|| lab.served.borrow().as_ref().unwrap().add("w", OTHER, &other));
    show(&lab, &[(0, "v")]);
    let s = lab.session(lab.session_config());
    (lab, s, other)
}

fn show(lab: &Lab, luns: &[(u16, &str)]) {
    lab.served.borrow().as_ref().unwrap().show(luns);
}

fn first(m: &Medium) -> u8 {
    m.lock().unwrap()[0]
}

#[test]
fn a_number_that_is_given_to_another_unit_takes_no_writes_of_the_first() {
    // Both cores have a channel, and the attention comes by one of them only.
    for cores in 1..=2 {
        let (lab, s, other) = with_another(1, cores);
        let all: Vec<_> = (0..cores).map(|core| open(&lab, core, &s)).collect();
        (0..cores).for_each(|core| write(&lab, core, &all[core], 1));
        assert_eq!(first(&lab.medium), 1);
        show(&lab, &[(0, "w")]);
        let writes: Vec<_> = (0..cores)
            .map(|core| {
                let m = all[core].clone();
                lab.host.spawn_on(core, async move { m.write(0, block(2), false).await })
            })
            .collect();
        lab.world.run_for(5 * SECONDS);
        assert_eq!((first(&lab.medium), first(&other)), (1, 0), "written to another unit");
        assert!(writes.iter().all(|w| !w.is_finished()), "they wait for the unit");
        assert_eq!(all[0].paths()[0].condition, PathCondition::Missing);
        // It is found again by its name.
        show(&lab, &[(0, "w"), (5, "v")]);
        for w in writes {
            assert_eq!(lab.run(w), Some(Ok(())));
        }
        assert_eq!((first(&lab.medium), first(&other)), (2, 0));
        assert_eq!(all[0].paths()[0].lun, Lun::from_index(5));
        drop(all);
        lab.check_clean(&s);
    }
}

/// One command is under way at most: the next one after a change meets the attention.
#[test]
fn numbers_that_change_places_are_told_apart_under_load() {
    let (lab, s, other) = with_another(2, 1);
    show(&lab, &[(0, "v"), (1, "w")]);
    let m = open(&lab, 0, &s);
    let (n, stop) = (m.clone(), Rc::new(std::cell::Cell::new(false)));
    let enough = stop.clone();
    let work = lab.host.spawn(async move {
        let mut writes = 0;
        while !enough.get() {
            n.write(0, block(7), false).await.unwrap();
            writes += 1;
        }
        writes
    });
    for round in 0..20u16 {
        lab.world.run_for(3 * MILLIS);
        show(&lab, &[(round % 2, "w"), (1 - round % 2, "v")]);
    }
    lab.world.run_for(SECONDS);
    stop.set(true);
    assert!(lab.run(work).unwrap() > 20);
    assert_eq!((first(&lab.medium), first(&other)), (7, 0));
    drop(m);
    lab.check_clean(&s);
}

/// As [`with_another`], and the target tells nothing by itself: the next command is to meet the attention. Both units are
/// there, and have told all that they had.
fn silent_with_another(seed: u64) -> (Lab, Session, Medium, Rc<Multipath>) {
    let (lab, first, other) = with_another(seed, 1);
    lab.run(async move { first.close().await });
    show(&lab, &[(0, "v"), (1, "w")]);
    let s = lab.session(SessionConfig { events: false, ..lab.session_config() });
    let m = open(&lab, 0, &s);
    let q = lab.queue(&s);
    lab.run(async move { assert_eq!(q.scan().await.unwrap().len(), 2) });
    write(&lab, 0, &m, 1);
    (lab, s, other, m)
}

/// Unit `v` has no number any more and `w` has its old one, about which something has been answered already. Then `v` is
/// there again.
fn is_left_alone(lab: &Lab, s: &Session, other: &Medium, m: Rc<Multipath>) {
    let n = m.clone();
    let task = lab.host.spawn(async move { n.write(0, block(2), false).await });
    lab.world.run_for(5 * SECONDS);
    assert_eq!((first(&lab.medium), first(other)), (1, 0), "written to another unit");
    show(lab, &[(0, "w"), (5, "v")]);
    assert_eq!(lab.run(task), Some(Ok(())));
    assert_eq!((first(&lab.medium), first(other)), (2, 0));
    drop(m);
    lab.check_clean(s);
}

/// REPORT LUNS takes the attention away, so whoever asks for the list has it.
#[test]
fn what_a_list_of_numbers_has_taken_away_counts() {
    let (lab, s, other, m) = silent_with_another(7);
    show(&lab, &[(0, "w")]);
    let q = lab.queue(&s);
    lab.run(async move { assert_eq!(q.scan().await.unwrap().len(), 1) });
    is_left_alone(&lab, &s, &other, m);
}

/// The same when a handle for the other unit looks for it.
#[test]
fn what_another_handle_has_asked_for_counts() {
    let (lab, s, other, m) = silent_with_another(8);
    show(&lab, &[(0, "w")]);
    let q = lab.queue(&s);
    let w = lab.run(async move {
        Multipath::open(vec![q], &OTHER, MultipathConfig::default()).await.unwrap()
    });
    is_left_alone(&lab, &s, &other, m);
    drop(w);
}

/// REQUEST SENSE takes it, too.
#[test]
fn what_was_asked_for_as_sense_data_counts() {
    let (lab, s, other, m) = silent_with_another(9);
    show(&lab, &[(0, "w")]);
    let q = lab.queue(&s);
    lab.run(async move {
        let (cdb, buf) = (build::request_sense(false, 32), Slice::heap(32));
        q.execute(L0, &cdb, &[], std::slice::from_ref(&buf)).await.unwrap();
    });
    is_left_alone(&lab, &s, &other, m);
}

/// A command that nobody waits for any more is answered all the same.
#[test]
fn what_was_told_to_one_who_is_gone_counts() {
    let (lab, s, other, m) = silent_with_another(10);
    show(&lab, &[(0, "w")]);
    let q = lab.queue(&s);
    lab.run(async move {
        assert!(timeout(1, q.test_unit_ready(L0)).await.is_err(), "it is given up at once");
        sleep(50 * MILLIS).await;
    });
    is_left_alone(&lab, &s, &other, m);
}

#[test]
fn a_queue_that_is_bound_to_a_unit_refuses_another() {
    let (lab, s, other) = with_another(3, 1);
    let q = lab.queue(&s);
    let bound = lab.run(async move { q.bind(&q.identify(L0).await.unwrap()) });
    let b = bound.clone();
    assert_eq!(lab.run(async move { b.write(L0, 0, block(1), false).await }), Ok(()));
    show(&lab, &[(0, "w")]);
    let b = bound.clone();
    let refused = lab.run(async move { b.write(L0, 0, block(2), false).await });
    assert_eq!((refused, first(&lab.medium), first(&other)), (Err(Error::OtherUnit), 1, 0));
    show(&lab, &[(0, "v")]);
    let b = bound.clone();
    assert_eq!(lab.run(async move { b.write(L0, 0, block(3), false).await }), Ok(()));
    assert_eq!((first(&lab.medium), first(&other)), (3, 0));
    drop(bound);
    lab.check_clean(&s);
}

/// A unit with a volatile cache, whose target tells `power`.
fn volatile(lab: &Lab, power: Option<u64>) {
    let nature = Nature { volatile: true, power, store: None };
    let t = lab.target.enter(|| {
        let ports = [(lab.target.addr(PORT), lab.config.clone())];
        let ports = ports.iter().map(|(a, c)| (a.as_str(), c.clone()));
        serve_as(lab.target.provider(), ports, &lab.medium, nature).remove(0)
    });
    *lab.served.borrow_mut() = Some(t);
}

/// A lab whose target ends, and comes back with another number.
fn lost(seed: u64, powers: (Option<u64>, Option<u64>)) -> (Lab, Session, [Rc<Multipath>; 2]) {
    let lab = Lab::new(seed, 2);
    let again = |power| {
        lab.target.power_off();
        lab.served.take();
        lab.target.restart();
        volatile(&lab, power);
    };
    again(powers.0);
    let s = lab.session(lab.session_config());
    let all = [open(&lab, 0, &s), open(&lab, 1, &s)];
    write(&lab, 0, &all[0], 1);
    again(powers.1);
    (lab, s, all)
}

#[test]
fn a_lost_cache_is_told_by_the_next_flush_of_any_handle() {
    // Of a target that tells what its caches are of, and of one that only says that it was switched on.
    for powers in [(Some(1), Some(2)), (None, None)] {
        let (lab, s, [a, b]) = lost(4, powers);
        assert_eq!(flush(&lab, 1, &b), Err(Error::LostCache), "{powers:?}");
        assert_eq!(flush(&lab, 0, &a), Err(Error::LostCache), "each handle tells it");
        write(&lab, 0, &a, 2);
        assert_eq!((flush(&lab, 1, &b), flush(&lab, 0, &a)), (Ok(()), Ok(())), "once");
        drop([a, b]);
        lab.check_clean(&s);
    }
}

/// A device tells a loss once. Whoever repeats the flush hears that all is well.
#[test]
fn a_flush_that_the_device_fails_is_not_repeated_and_told_by_each_handle() {
    // The target tells each connection, until it is sure that the host has heard it.
    for heard in [true, false] {
        flush_fails(heard);
    }
}

fn flush_fails(heard: bool) {
    let lab = Lab::new(7, 2);
    lab.target.power_off();
    lab.served.take();
    lab.target.restart();
    volatile(&lab, Some(1));
    let s = lab.session(lab.session_config());
    let (a, b) = (open(&lab, 0, &s), open(&lab, 1, &s));
    write(&lab, 1, &b, 1);
    let mood = lab.served.borrow().as_ref().unwrap().mood.clone();
    mood.flush_fails.set(true);
    let e = flush(&lab, 0, &a).unwrap_err();
    assert_eq!(e.sense().map(|s| s.key), Some(SenseKey::HardwareError), "{e}");
    if heard {
        lab.run(async { sleep(2 * SECONDS).await });
        write(&lab, 0, &a, 2);
    }
    let e = flush(&lab, 1, &b).unwrap_err();
    assert_eq!(matches!(e, Error::LostCache), heard, "{e}");
    assert_eq!(flush(&lab, 1, &b), Ok(()), "once");
    // Another connection's answer may be of another loss.
    let again = if heard { Ok(()) } else { Err(Error::LostCache) };
    assert_eq!((flush(&lab, 0, &a), flush(&lab, 0, &a)), (again, Ok(())));
    assert_eq!(mood.lost.get(), 1);
    drop([a, b]);
    lab.check_clean(&s);
}

/// It fails once nobody waits for it any more.
#[test]
fn a_flush_that_fails_after_its_abort_is_told_by_the_next() {
    let lab = Lab::new(8, 1);
    let s = lab.session(lab.session_config());
    let m = open(&lab, 0, &s);
    write(&lab, 0, &m, 1);
    let mood = lab.served.borrow().as_ref().unwrap().mood.clone();
    mood.flush_fails.set(true);
    mood.stall.set(true);
    let first = lab.host.spawn({
        let q = lab.host.enter(|| s.queue());
        async move { q.flush(L0).await }
    });
    lab.run(async { sleep(3 * SECONDS).await });
    mood.stall.set(false);
    // The queue has logged in anew and sent it again.
    let e = lab.run(first).unwrap().unwrap_err();
    assert_eq!(e.sense().map(|s| s.key), Some(SenseKey::HardwareError), "{e}");
    assert_eq!((flush(&lab, 0, &m), mood.lost.get()), (Ok(()), 1));
    drop(m);
    lab.check_clean(&s);
}

#[test]
fn a_restart_of_the_program_loses_no_cache() {
    let (lab, s, [a, b]) = lost(5, (Some(1), Some(1)));
    assert_eq!((flush(&lab, 1, &b), flush(&lab, 0, &a)), (Ok(()), Ok(())));
    assert!(s.figures().reconnects > 0);
    drop([a, b]);
    lab.check_clean(&s);
}

#[test]
fn what_was_flushed_is_not_lost() {
    let lab = Lab::new(6, 1);
    let again = |power| {
        lab.target.power_off();
        lab.served.take();
        lab.target.restart();
        volatile(&lab, power);
    };
    again(Some(1));
    let s = lab.session(lab.session_config());
    let m = open(&lab, 0, &s);
    write(&lab, 0, &m, 1);
    assert_eq!(flush(&lab, 0, &m), Ok(()));
    again(Some(2));
    assert_eq!(flush(&lab, 0, &m), Ok(()));
    let fua = m.clone();
    lab.run(async move { fua.write(0, block(1), true).await.unwrap() });
    again(Some(3));
    assert_eq!(flush(&lab, 0, &m), Ok(()));
    drop(m);
    lab.check_clean(&s);
}

/// A pool takes its time after a start: who writes to its volume by paths waits for it.
#[test]
fn a_unit_that_comes_back_is_waited_for() {
    let lab = Lab::new(11, 1);
    let s = lab.session(lab.session_config());
    let m = open(&lab, 0, &s);
    write(&lab, 0, &m, 1);
    let unit = lab.target.enter(|| lab.served.borrow().as_ref().unwrap().take());
    let writer = m.clone();
    let under_way = lab.host.spawn_on(0, async move { writer.write(0, block(2), false).await });
    assert!(lab.world.run_until(3 * SECONDS, || under_way.is_finished()).is_err(), "it waits");
    lab.target.enter(|| lab.served.borrow().as_ref().unwrap().put(unit));
    lab.world.run_until(60 * SECONDS, || under_way.is_finished()).unwrap();
    lab.run(under_way).unwrap().unwrap();
}
