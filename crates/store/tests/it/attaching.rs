//! A device is attached while the pool brings it back by itself.

use crate::bench::{B, Bench, MIB, first, newest, spec, write};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, sleep, spawn};
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, create};

/// A disk of which writes are held back for as long as somebody says.
struct Sticky {
    disk: Rc<dyn Disk>,
    hold: Cell<bool>,
    held: RefCell<Vec<(DiskOp, Token)>>,
}

impl Sticky {
    fn release(&self) {
        self.hold.set(false);
        for (op, token) in self.held.take() {
            self.disk.submit(op, token);
        }
    }
}

impl Disk for Sticky {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        match self.hold.get() && matches!(op, DiskOp::Write { .. }) {
            true => self.held.borrow_mut().push((op, token)),
            false => self.disk.submit(op, token),
        }
    }
}

/// A device fails. An older image of it (a copy that somebody made of it) is attached in its place; it is slow. Meanwhile
/// the device itself answers again, and is brought back by itself. Then the other device dies. Says what is wrong then.
fn older_image() -> Vec<String> {
    let mut b = Bench::new(2, 0);
    let disks = b.disks(&[0, 1]);
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    let old = b.image(1);
    let (media, image) = (b.media.clone(), b.disk(old));
    b.run(async move {
        for k in 0..4 {
            write(&p, 1, MIB + k * B, B, 2).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        media[1].set_offline(true);
        write(&p, 1, 2 * MIB, B, 3).await.unwrap();
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        media[1].set_offline(false);
        sleep(27 * SECONDS).await;
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        media[old].stall(2 * SECONDS);
        let q = p.clone();
        let attach = spawn(async move { q.attach(image).await });
        sleep(6 * SECONDS).await;
        media[old].stall(0);
        let attached = attach.await.unwrap();
        sleep(60 * SECONDS).await;
        p.settled().await.unwrap();
        let s = p.status();
        assert!(s.whole, "{attached:?} {s:?}");
        // The pool says that every block has all its copies. So it can lose a device.
        media[0].set_offline(true);
        let mut wrong = Vec::new();
        for (at, value) in [(0, 1), (MIB, 2), (MIB + B, 2), (MIB + 3 * B, 2), (2 * MIB, 3)] {
            let found = first(&p, 1, at).await;
            if found != Ok(value) {
                let name = &s.devices[1].name;
                wrong.push(format!("byte {at}: {found:?}, not {value}; device 1 is {name:?}"));
            }
        }
        wrong
    })
}

#[test]
fn an_older_image_attached_while_the_device_itself_comes_back_is_not_taken_as_current() {
    assert_eq!(older_image(), Vec::<String>::new());
}

/// A device hung; the pool brings it back by itself when what it was asked for has ended, `t` after it is attached by hand.
/// Says what has become of it two hours later.
fn attached_by_hand(t: u64) -> Result<(), String> {
    let b = Bench::new(2, t);
    let (zero, disk, again) = (b.disk(0), b.disk(1), b.disk(1));
    let one = Rc::new(Sticky { disk, hold: Cell::default(), held: RefCell::default() });
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![zero, one.clone()];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options { deadline: 10 * SECONDS, ..Options::default() });
        let p = p.await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        one.hold.set(true);
        write(&p, 1, MIB, B, 2).await.unwrap();
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        // The pool tries to bring it back after 30 s, and waits for that write.
        sleep(31 * SECONDS).await;
        let q = p.clone();
        let attach = spawn(async move { q.attach(again).await });
        sleep(SECONDS + t * 50 * MILLIS).await;
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        one.release();
        let attached = attach.await.unwrap();
        sleep(3600 * SECONDS).await;
        let (s, settled, resync) = (p.status(), p.settled().await, p.resync().await);
        sleep(3600 * SECONDS).await;
        match p.status().whole {
            true => Ok(()),
            false => Err(format!(
                "device 1 is {:?}, whole: {}, work: {:?}, trouble: {:?}; attach said {attached:?}, settled {settled:?}, \
                 resync {resync:?}",
                s.devices[1].state, s.whole, s.work, s.trouble
            )),
        }
    })
}

#[test]
fn a_device_attached_while_it_is_brought_back_is_in_sync_in_the_end() {
    let wrong: Vec<_> = (0..40).filter_map(|t| attached_by_hand(t).err()).collect();
    assert_eq!(wrong.first(), None, "{} of 40", wrong.len());
}

/// Two devices of four are to be brought back, as somebody asked for; the first takes long. Meanwhile a disk is attached as the
/// second that went its own way. How it stands in the end.
fn attached_when_another_was_asked_for() -> MemberState {
    let mut b = Bench::new(4, 0);
    let (disks, media) = (b.all(), b.media.clone());
    let alone = || Options { resync: false, ..Options::default() };
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, alone()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 4 * MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        media[1].set_offline(true);
        media[3].set_offline(true);
        write(&p, 1, 0, 4 * MIB, 2).await.unwrap();
        p.checkpoint().await.unwrap();
        assert!(
            p.status().devices.iter().all(|d| (d.state == MemberState::Out) == (d.number % 2 == 1))
        );
        p.close().await.unwrap();
    });
    b.media.iter().for_each(|m| m.set_offline(false));
    let own = [b.image(1), b.image(3)];
    let (two, all, other) = (b.disks(&own), b.disks(&[0, 1, 2, 3]), b.disk(own[1]));
    b.run(async move {
        let o = Options { force: true, lineage: 9, ..alone() };
        let p = Pool::open(two, o).await.unwrap();
        write(&p, 1, 0, 4 * MIB, 7).await.unwrap();
        p.close().await.unwrap();
        let p = Pool::open(all, alone()).await.unwrap();
        p.set_fill_rate(65536);
        p.resync().await.unwrap();
        sleep(5 * SECONDS).await;
        assert_eq!(p.status().devices[1].state, MemberState::Syncing);
        p.attach(other.clone()).await.unwrap();
        p.set_fill_rate(0);
        sleep(3600 * SECONDS).await;
        let s = p.status();
        assert_eq!(s.devices[1].state, MemberState::InSync);
        s.devices[3].state
    })
}

#[test]
fn a_disk_with_a_history_of_its_own_loses_that_only_if_somebody_asks_for_that_disk() {
    assert_eq!(attached_when_another_was_asked_for(), MemberState::Out);
}

/// A device has failed. Somebody attaches a copy of it with a history of its own, sees the mistake, and attaches the device itself.
/// Whether the pool ever says that it misses everything, and how many bytes it gets, and has proved after that.
fn attached_after_a_wrong_one() -> (bool, u64) {
    let mut b = Bench::new(2, 0);
    let (disks, media) = (b.all(), b.media.clone());
    let alone = || Options { resync: false, ..Options::default() };
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, alone()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 4 * MIB, 1).await.unwrap();
        for k in 0..3 {
            p.checkpoint().await.unwrap();
            write(&p, 1, k * B, B, 1).await.unwrap();
        }
        media[1].set_offline(true);
        write(&p, 1, 0, B, 2).await.unwrap();
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        p.close().await.unwrap();
    });
    b.media[1].set_offline(false);
    let copy = b.image(1);
    let (own, zero, other, device) = (b.disks(&[copy]), b.disks(&[0]), b.disk(copy), b.disk(1));
    let m = b.media[0].clone();
    b.run(async move {
        let o = Options { force: true, lineage: 9, ..alone() };
        let p = Pool::open(own, o).await.unwrap();
        write(&p, 1, 0, 4 * MIB, 7).await.unwrap();
        p.close().await.unwrap();
        let p = Pool::open(zero, Options::default()).await.unwrap();
        p.attach(other).await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        p.set_fill_rate(256 * B);
        p.attach(device).await.unwrap();
        let (mut misses_all, mut bytes) = (false, 0);
        while p.status().devices[1].state != MemberState::InSync {
            misses_all |= newest(&m).is_some_and(|s| s.members[1].since == 0);
            bytes = p.status().work.map_or(bytes, |w| w.done);
            sleep(10 * MILLIS).await;
        }
        (misses_all, bytes)
    })
}

#[test]
fn a_device_attached_after_a_wrong_one_gets_what_it_missed_only() {
    let (misses_all, bytes) = attached_after_a_wrong_one();
    assert!(!misses_all && bytes < 4 * MIB, "{misses_all}, {bytes} bytes");
}

#[cfg(feature = "planted")]
#[test]
fn a_disk_taken_for_the_one_that_had_its_number_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::DeviceByNumber));
    let wrong = (older_image(), (0..40).any(|t| attached_by_hand(t).is_err()));
    plant(None);
    assert!(!wrong.0.is_empty() && wrong.1, "{wrong:?}");
}

#[cfg(feature = "planted")]
#[test]
fn a_disk_that_was_not_asked_for_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::AskedByNumber));
    let state = attached_when_another_was_asked_for();
    plant(None);
    assert_eq!(state, MemberState::InSync);
}

#[cfg(feature = "planted")]
#[test]
fn a_device_of_which_nothing_is_believed_for_another_one_is_caught() {
    use weir_store::planted::Bug;
    let (misses_all, bytes) = crate::bench::with(Bug::ForeignByNumber, attached_after_a_wrong_one);
    assert!(misses_all && bytes >= 4 * MIB, "{bytes} bytes");
}

/// A device is given up, and comes back by itself; then it is cancelled while it is out. Gives what is said when it is to come back by
/// itself once more, and whether it does so by the operator's word.
fn back_by_itself() -> (Result<u16, String>, bool) {
    let b = Bench::new(2, 0);
    let disks = b.disks(&[0, 1]);
    let again = [b.disk(1), b.disk(1), b.disk(1)];
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        let [first, second, third] = again;
        let give_up = || {
            let name = p.status().devices[1].name.clone().unwrap();
            p.give_up(&name);
            let d = &p.status().devices[1];
            assert!(d.failed && d.state == MemberState::Out);
        };
        p.give_up("nobody's");
        assert!(p.status().whole);
        give_up();
        write(&p, 1, MIB, MIB, 2).await.unwrap();
        p.attach_again(first).await.unwrap();
        p.settled().await.unwrap();
        assert!(p.status().whole && p.status().devices[1].state == MemberState::InSync);
        give_up();
        p.cancel(1).await.unwrap();
        let said = p.attach_again(second).await.map_err(|e| e.to_string());
        let asked = p.attach(third).await.is_ok();
        (said, asked)
    })
}

#[test]
fn what_comes_back_by_itself_does_not_against_the_operators_word() {
    let (said, asked) = back_by_itself();
    assert!(said.is_err_and(|e| e.contains("until it is asked for")) && asked);
}

#[cfg(feature = "planted")]
#[test]
fn what_comes_back_against_the_operators_word_is_caught() {
    use weir_store::planted::Bug;
    assert!(crate::bench::with(Bug::ReturnsUnasked, back_by_itself).0.is_ok());
}
