//! Who asks for a change goes away, or two ask for the same one at once.

use crate::bench::{B, Bench, MIB, first, spec, write};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_reactor::{JoinHandle, Token, complete, sleep, spawn, spawn_task, timeout};
use weir_sim::SimMedium;
use weir_store::format::label::SUPER_SLOTS;
use weir_store::format::superblock::{MemberState, Superblock};
use weir_store::{Options, Pool, create};

/// A disk that takes so much time with a write, or keeps it until it is told to go on.
struct Lazy {
    disk: Rc<dyn Disk>,
    takes: Cell<Nanos>,
    holds: Cell<bool>,
    /// Nothing is read of it any more.
    dead: Cell<bool>,
    held: RefCell<Vec<(DiskOp, Token)>>,
}

impl Lazy {
    fn new(disk: Rc<dyn Disk>) -> Rc<Lazy> {
        let (takes, holds, dead) = (Cell::new(0), Cell::new(false), Cell::new(false));
        Rc::new(Lazy { disk, takes, holds, dead, held: RefCell::default() })
    }

    fn go_on(&self) {
        self.holds.set(false);
        for (op, token) in self.held.take() {
            self.disk.submit(op, token);
        }
    }
}

impl Disk for Lazy {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        if self.dead.get() {
            return complete(token, report(Err(IoError::Offline)));
        }
        let writes = matches!(op, DiskOp::Write { .. });
        if writes && self.holds.get() {
            return self.held.borrow_mut().push((op, token));
        }
        match self.takes.get() {
            time if writes && time > 0 => {
                let disk = self.disk.clone();
                spawn_task(async move {
                    sleep(time).await;
                    disk.submit(op, token);
                });
            }
            _ => self.disk.submit(op, token),
        }
    }
}

/// A checkpoint that takes until the disk goes on.
async fn checkpoint_under_way(p: &Pool, disk: &Lazy) -> JoinHandle<()> {
    disk.holds.set(true);
    let q = p.clone();
    let done = spawn(async move { q.checkpoint().await.unwrap() });
    sleep(10 * MILLIS).await;
    done
}

/// Two make a volume of one name at the same time: both are told that it is theirs. After a restart the name is that of the
/// other one, and what was acknowledged is not there.
#[test]
fn of_two_that_make_a_volume_of_one_name_at_once_one_is_refused() {
    let b = Bench::new(1, 0);
    let disk = Lazy::new(b.disk(0));
    let disks: Vec<Rc<dyn Disk>> = vec![disk.clone()];
    let again = disks.clone();
    let (made, names, found) = b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let checkpoint = checkpoint_under_way(&p, &disk).await;
        let both = [p.clone(), p.clone()]
            .map(|p| spawn(async move { p.create_volume("v", MIB, 4096).await }));
        sleep(10 * MILLIS).await;
        disk.go_on();
        checkpoint.await;
        let mut made = Vec::new();
        for one in both {
            made.extend(one.await.unwrap());
        }
        let last = *made.last().unwrap();
        write(&p, last, 0, B, 7).await.unwrap();
        let names = p.datasets().iter().filter(|d| d.name == "v").count();
        p.close().await.unwrap();
        let p = Pool::open(again, Options::default()).await.unwrap();
        let found = first(&p, p.find("v").unwrap(), 0).await;
        (made.len(), names, found)
    });
    assert_eq!((made, names, found), (1, 1, Ok(7)));
}

/// The same of a snapshot, which is there at once, beside a clone, which is there with the next checkpoint.
#[test]
fn a_clone_does_not_get_the_name_of_a_snapshot_made_meanwhile() {
    let b = Bench::new(1, 0);
    let disk = Lazy::new(b.disk(0));
    let disks: Vec<Rc<dyn Disk>> = vec![disk.clone()];
    let names = b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.create_volume("v", MIB, 4096).await.unwrap();
        let s = p.snapshot(&[(v, "s")], 0).await.unwrap()[0];
        let checkpoint = checkpoint_under_way(&p, &disk).await;
        let (q, r) = (p.clone(), p.clone());
        let clone = spawn(async move { q.clone_snapshot(s, "x").await });
        sleep(10 * MILLIS).await;
        let snapshot = spawn(async move { r.snapshot(&[(v, "x")], 0).await });
        sleep(10 * MILLIS).await;
        disk.go_on();
        checkpoint.await;
        let _ = snapshot.await.unwrap();
        let _ = clone.await.unwrap();
        p.datasets().iter().filter(|d| d.name == "x").count()
    });
    assert_eq!(names, 1);
}

/// Somebody adds a device and goes away while that waits for a checkpoint. The next one who adds a device gets its number: what
/// was put on the first one meanwhile is looked for on the second.
fn added(after_one_given_up: bool, another_dies: bool) -> Vec<String> {
    let b = Bench::new(5, 0);
    let zero = Lazy::new(b.disk(0));
    let late = Lazy::new(b.disk(4));
    let (one, two, three) = (b.disk(1), b.disk(2), b.disk(3));
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![zero.clone(), one];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, v, 0, 3 * MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        // Slabs are being moved to a new device for a while.
        p.set_fill_rate(100 * B);
        p.add(two).await.unwrap();
        while p.status().work.is_none() {
            sleep(MILLIS).await;
        }
        // A checkpoint takes its time.
        let checkpoint = checkpoint_under_way(&p, &zero).await;
        if after_one_given_up {
            let given_up = timeout(500 * MILLIS, p.add(three)).await.is_err();
            assert!(given_up, "it waits for the checkpoint");
        } else {
            let q = p.clone();
            spawn(async move { q.add(three).await.unwrap() });
            sleep(500 * MILLIS).await;
        }
        late.takes.set(2 * SECONDS);
        let (q, disk) = (p.clone(), late.clone());
        let second = spawn(async move { q.add(disk).await });
        sleep(100 * MILLIS).await;
        zero.go_on();
        checkpoint.await;
        p.set_fill_rate(0);
        sleep(3 * SECONDS).await;
        for k in 4..12 {
            write(&p, v, k * MIB, MIB, 2).await.unwrap();
        }
        let number = second.await.unwrap();
        late.takes.set(0);
        sleep(10 * SECONDS).await;
        let mut wrong = Vec::new();
        let s = p.status();
        assert!(s.whole && number.is_ok(), "{number:?}, {s:?}");
        zero.dead.set(another_dies);
        for at in (0..3).chain(4..12) {
            let value = if at < 3 { 1 } else { 2 };
            for k in 0..MIB / B {
                let found = first(&p, v, at * MIB + k * B).await;
                if found != Ok(value) {
                    wrong.push(format!("{at} MiB, block {k}: {found:?}"));
                }
            }
        }
        if another_dies {
            wrong.truncate(4);
            return wrong;
        }
        let found = p.scrub(0).await.unwrap();
        if found.damaged + found.lost > 0 || p.counters().damaged > 0 {
            let damaged = p.counters().damaged;
            wrong.push(format!(
                "added as {number:?}, whole: {}, and yet {damaged} damaged: {found:?}, {:?}",
                s.whole, s.devices
            ));
        }
        wrong.truncate(4);
        wrong
    })
}

#[test]
fn a_device_added_after_one_that_was_given_up_does_not_take_its_place() {
    assert_eq!(added(true, false), Vec::<String>::new());
}

/// A pool that says that it is whole bears the loss of a device.
#[test]
fn a_pool_with_a_device_added_after_one_that_was_given_up_loses_nothing() {
    assert_eq!(added(false, true), Vec::<String>::new(), "not given up");
    assert_eq!(added(true, true), Vec::<String>::new());
}

/// One call that gives two snapshots one name.
#[test]
fn two_snapshots_of_one_call_do_not_get_one_name() {
    let b = Bench::new(1, 0);
    let disks = vec![b.disk(0)];
    let (refused, names) = b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let a = p.create_volume("a", MIB, 4096).await.unwrap();
        let c = p.create_volume("c", MIB, 4096).await.unwrap();
        let refused = p.snapshot(&[(a, "x"), (c, "x")], 0).await.is_err();
        (refused, p.datasets().iter().filter(|d| d.name == "x").count())
    });
    assert_eq!((refused, names), (true, 0));
}

/// A replacement is stopped while another device is being added, and everything has left the old device by then: that was
/// about to go, and who stopped it is told that it stays.
#[test]
fn a_replacement_that_was_stopped_in_time_takes_no_device_away() {
    let b = Bench::new(4, 0);
    let (disks, two, slow) = (b.disks(&[0, 1]), b.disk(2), Lazy::new(b.disk(3)));
    let (stopped, there) = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, v, 0, 3 * MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(100 * B);
        p.replace(0, two).await.unwrap();
        // The turn is another one's for a while.
        slow.takes.set(2 * SECONDS);
        let q = p.clone();
        let added = spawn(async move { q.add(slow).await });
        sleep(MILLIS).await;
        let q = p.clone();
        let stopped = spawn(async move { q.cancel(0).await });
        sleep(MILLIS).await;
        p.set_fill_rate(0);
        added.await.unwrap().unwrap();
        let stopped = stopped.await.unwrap().is_ok();
        p.settled().await.unwrap();
        sleep(100 * SECONDS).await;
        (stopped, p.status().devices.iter().any(|d| d.number == 0))
    });
    assert_eq!(there, stopped, "it was told that it stays");
}

/// Blocks before the superblocks, and after them at the end.
const FRONT: u64 = 2;

/// A mirror of three; the third one is drained, and out of service. Nobody can tell what its superblocks say, so all of its log
/// is wiped to bring it back.
async fn wiped_to_come(m: &SimMedium, disks: Vec<Rc<dyn Disk>>) -> Pool {
    create(&disks, &spec(2)).await.unwrap();
    let p = Pool::open(disks, Options::default()).await.unwrap();
    p.create_volume("v", 64 * MIB, 4096).await.unwrap();
    write(&p, 1, 0, MIB, 1).await.unwrap();
    p.drain(2).await.unwrap();
    p.settled().await.unwrap();
    m.set_offline(true);
    write(&p, 1, 0, MIB, 2).await.unwrap();
    p.checkpoint().await.unwrap();
    assert_eq!(p.status().devices[2].state, MemberState::Out);
    m.set_offline(false);
    for first in [FRONT, m.len() / B - FRONT - SUPER_SLOTS] {
        m.fail_reads(first * B, SUPER_SLOTS * B);
    }
    p
}

async fn holds_something(disk: &Lazy) {
    disk.holds.set(true);
    while disk.held.borrow().is_empty() {
        sleep(MILLIS).await;
    }
}

/// Until a superblock is on its way that says of device 2 that it misses everything.
async fn holds_what_tells(disk: &Lazy) {
    let tells = |op: &DiskOp| {
        let DiskOp::Write { offset, buf, .. } = op else { return false };
        let slot = (offset / B).wrapping_sub(FRONT);
        let bytes = buf.to_vec();
        let block = bytes.first_chunk().filter(|_| slot < SUPER_SLOTS);
        let found = block.and_then(|b| Superblock::decode_any(b, 0, slot).ok());
        found.is_some_and(|(_, s)| s.members[2].since == 0)
    };
    holds_something(disk).await;
    while !disk.held.borrow().iter().any(|(op, _)| tells(op)) {
        disk.go_on();
        holds_something(disk).await;
    }
}

/// Somebody removes a device as it begins to be wiped to bring it back, while it is, or after it was attached once more
/// meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    Early,
    Amid,
    Attached,
}

/// Whether nothing is written to it once it is removed, and whether it can be removed when it is back.
fn removed_amid_wipe(when: Removed, seed: u64) -> (bool, bool) {
    let b = Bench::new(3, seed);
    let (zero, last) = (Lazy::new(b.disk(0)), Lazy::new(b.disk(2)));
    let disks: Vec<Rc<dyn Disk>> = vec![zero.clone(), b.disk(1), last.clone()];
    let m = b.media[2].clone();
    b.run(async move {
        let p = wiped_to_come(&m, disks).await;
        p.resync().await.unwrap();
        match when {
            // What is to be done at the next checkpoint is not done at this one.
            Removed::Early => holds_what_tells(&zero).await,
            Removed::Amid => holds_something(&last).await,
            Removed::Attached => {
                holds_something(&last).await;
                let _ = timeout(SECONDS, p.attach(last.clone())).await;
            }
        }
        last.holds.set(true);
        let q = p.clone();
        let removed = spawn(async move { q.remove(2).await.is_ok() });
        sleep(10 * MILLIS).await;
        zero.go_on();
        sleep(SECONDS).await;
        // Of what it is given to next nothing is written over. It wipes its own names before it goes.
        let safe = !removed.is_finished()
            && when == Removed::Early
            && last.held.borrow().len() == 1
            || removed.is_finished() && (!removed.await.unwrap() || last.held.borrow().is_empty());
        last.go_on();
        p.settled().await.unwrap();
        let gone = || p.status().devices.iter().all(|d| d.number != 2);
        (safe, gone() || p.remove(2).await.is_ok())
    })
}

#[test]
fn a_device_is_not_removed_while_it_is_wiped_to_bring_it_back() {
    for when in [Removed::Early, Removed::Amid, Removed::Attached] {
        for seed in 0..4 {
            assert_eq!(removed_amid_wipe(when, seed), (true, true), "{when:?} {seed}");
        }
    }
}

/// Somebody asks for a device to be brought back while another one is drained, and stops that. What becomes of it.
fn asked_and_stopped() -> MemberState {
    let b = Bench::new(4, 7);
    let (m, disks) = (b.media[2].clone(), b.all());
    b.run(async move {
        let p = wiped_to_come(&m, disks).await;
        p.set_fill_rate(B);
        p.drain(3).await.unwrap();
        while p.status().work.is_none() {
            sleep(MILLIS).await;
        }
        p.resync().await.unwrap();
        p.cancel(2).await.unwrap();
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        p.status().devices[2].state
    })
}

#[test]
fn a_device_that_was_asked_for_is_not_brought_back_when_that_was_stopped() {
    assert_eq!(asked_and_stopped(), MemberState::Out);
}

/// Blocks among a device's first superblocks that have something.
fn superblocks(m: &SimMedium) -> usize {
    superblocks_from(m, FRONT)
}

fn superblocks_from(m: &SimMedium, first: u64) -> usize {
    let is_one = |slot: &u64| {
        let mut block = [0; B as usize];
        m.peek((first + slot) * B, &mut block);
        block.iter().any(|b| *b != 0)
    };
    (0..SUPER_SLOTS).filter(is_one).count()
}

/// The same as it begins. Whether anything on it has been wiped, or it was brought back.
fn stopped_as_it_begins() -> bool {
    let b = Bench::new(3, 7);
    let zero = Lazy::new(b.disk(0));
    let disks: Vec<Rc<dyn Disk>> = vec![zero.clone(), b.disk(1), b.disk(2)];
    let m = b.media[2].clone();
    b.run(async move {
        let p = wiped_to_come(&m, disks).await;
        let before = superblocks(&m);
        assert!(before > 0);
        p.resync().await.unwrap();
        holds_what_tells(&zero).await;
        let q = p.clone();
        let stopped = spawn(async move { q.cancel(2).await });
        sleep(10 * MILLIS).await;
        zero.go_on();
        stopped.await.unwrap().unwrap();
        p.settled().await.unwrap();
        superblocks(&m) < before || p.status().devices[2].state != MemberState::Out
    })
}

#[test]
fn nothing_is_wiped_of_a_device_when_that_was_stopped() {
    assert!(!stopped_as_it_begins());
}

/// The same while it is wiped; perhaps it is asked for once more after that, or was before. What becomes of it, and superblocks that both areas have.
fn stopped_amid_wipe(again: bool) -> (MemberState, [usize; 2]) {
    let b = Bench::new(3, 7);
    let last = Lazy::new(b.disk(2));
    let disks: Vec<Rc<dyn Disk>> = vec![b.disk(0), b.disk(1), last.clone()];
    let m = b.media[2].clone();
    b.run(async move {
        let p = wiped_to_come(&m, disks).await;
        p.resync().await.unwrap();
        holds_something(&last).await;
        // Twice is once.
        p.resync().await.unwrap();
        p.cancel(2).await.unwrap();
        if again {
            p.resync().await.unwrap();
        }
        last.go_on();
        p.settled().await.unwrap();
        let areas = [FRONT, m.len() / B - FRONT - SUPER_SLOTS];
        (p.status().devices[2].state, areas.map(|first| superblocks_from(&m, first)))
    })
}

#[test]
fn superblocks_of_both_areas_are_wiped_together() {
    assert_eq!(stopped_amid_wipe(false), (MemberState::Out, [0, 0]));
}

#[test]
fn a_device_that_is_asked_for_once_more_is_brought_back() {
    assert_eq!(stopped_amid_wipe(true).0, MemberState::InSync);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::bench::with;
    use weir_store::planted::Bug;

    #[test]
    fn a_removal_amid_a_wipe_is_caught() {
        for when in [Removed::Amid, Removed::Attached] {
            assert_ne!(with(Bug::RemovedAmidWipe, || removed_amid_wipe(when, 0)), (true, true));
        }
    }

    #[test]
    fn what_was_stopped_and_goes_on_is_caught() {
        assert_ne!(with(Bug::StillAsked, asked_and_stopped), MemberState::Out);
        assert!(with(Bug::StillAsked, stopped_as_it_begins));
        assert_eq!(with(Bug::AskedInVain, || stopped_amid_wipe(true).0), MemberState::Out);
    }
}
