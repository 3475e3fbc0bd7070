//! What cannot be read must not pass for missing: superblocks of a device that may have what the others have not.

use crate::bench::{B, Bench, MIB, first, newest, spec, write};
use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;
use weir_base::{IoError, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_reactor::{Token, complete, now, sleep};
use weir_store::format::label::SUPER_SLOTS;
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, StoreError, create};

const HOUR: Nanos = 3600 * SECONDS;
const ALL: Range<u64> = 0..SUPER_SLOTS;

/// A disk of which some slots of superblocks cannot be read, in both areas, for two minutes.
struct Ill {
    disk: Rc<dyn Disk>,
    since: OnceCell<Nanos>,
    slots: Range<u64>,
    told: IoError,
}

impl Disk for Ill {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        if let DiskOp::Read { offset, buf } = &op {
            let (from, to) = (offset / B, (offset + buf.len() as u64) / B);
            let hit = |first: u64| from < first + self.slots.end && first + self.slots.start < to;
            let ill = now() < self.since.get_or_init(now) + 120 * SECONDS;
            if ill && (hit(2) || hit(self.len() / B - 2 - SUPER_SLOTS)) {
                return complete(token, report(Err(self.told)));
            }
        }
        self.disk.submit(op, token);
    }
}

impl Bench {
    fn ill(&self, i: usize, slots: Range<u64>, told: IoError) -> Rc<dyn Disk> {
        Rc::new(Ill { disk: self.disk(i), since: OnceCell::new(), slots, told })
    }
}

fn alone() -> Options {
    Options { resync: false, ..Options::default() }
}

/// A mirror whose device 0 failed long ago; device 1 went on alone.
fn bench() -> Bench {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, alone()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        media[0].set_offline(true);
        // All of this is acknowledged by a pool that says that device 0 is out.
        for k in 0..64 {
            write(&p, 1, k * B, B, 2).await.unwrap();
            if k % 8 == 0 {
                p.checkpoint().await.unwrap();
            }
        }
        p.checkpoint().await.unwrap();
        write(&p, 1, MIB, B, 2).await.unwrap();
        let s = p.status();
        let states = (s.devices[0].state, s.devices[1].state);
        assert_eq!(states, (MemberState::Out, MemberState::InSync));
        p.close().await.unwrap();
    });
    b.media[0].set_offline(false);
    b
}

/// A mirror whose device 0 has just failed. The program was killed.
fn degraded() -> Bench {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, alone()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        media[0].set_offline(true);
        write(&p, 1, 0, B, 2).await.unwrap();
        write(&p, 1, MIB, B, 2).await.unwrap();
    });
    b.n.kill();
    b.media[0].set_offline(false);
    b.n.restart();
    b
}

/// Both are there again, but superblocks of the one that has everything cannot be read for two minutes. Gives what is found
/// wrong at once and later.
fn opened(slots: Range<u64>, told: IoError) -> Vec<(u64, Result<u8, IoError>)> {
    let b = bench();
    let disks = vec![b.disk(0), b.ill(1, slots, told)];
    b.run(async move {
        // It refuses, or has what was acknowledged.
        let Ok(p) = Pool::open(disks, Options::default()).await else { return Vec::new() };
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend([(0, first(&p, 1, 0).await), (MIB, first(&p, 1, MIB).await)]);
            sleep(HOUR).await;
        }
        seen.retain(|(_, found)| *found != Ok(2));
        seen
    })
}

#[test]
fn a_pool_is_not_opened_as_it_was_long_ago_because_superblocks_cannot_be_read() {
    for told in [IoError::Path, IoError::Medium] {
        assert_eq!(opened(ALL, told), [], "{told:?}");
    }
}

#[test]
fn a_pool_is_not_opened_as_it_was_long_ago_because_some_superblocks_cannot_be_read() {
    for n in 0..40 {
        assert_eq!(opened(n..SUPER_SLOTS, IoError::Path), [], "from slot {n} on");
        assert_eq!(opened(n..n + 16, IoError::Path), [], "16 from slot {n} on");
    }
}

#[cfg(feature = "planted")]
#[test]
fn superblocks_that_pass_for_missing_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::HiddenIsNone));
    let b = bench();
    let disk = b.ill(1, ALL, IoError::Path);
    let made = b.run(async move { create(&[disk], &spec(1)).await });
    plant(None);
    assert!(made.is_ok());
}

/// A pool is opened by force while superblocks from slot `n` on cannot be read, and again when they can. Says whether it was opened
/// by force, and what is wrong then. `quick`: the program was killed soon after the other device had failed.
fn forced(n: u64, quick: bool) -> (bool, Option<String>) {
    let b = if quick { degraded() } else { bench() };
    let one = b.disk(1);
    b.run(async move {
        if !quick {
            let p = Pool::open(vec![one], alone()).await.unwrap();
            for _ in 0..8 {
                p.checkpoint().await.unwrap();
            }
        }
    });
    b.restart();
    let ill = b.ill(1, n..SUPER_SLOTS, IoError::Medium);
    let opened = b.run(async move {
        let o = Options { force: true, lineage: 9, ..alone() };
        let p = Pool::open(vec![ill], o).await?;
        let found = first(&p, 1, 0).await;
        write(&p, 1, 2 * MIB, B, 7).await?;
        sleep(HOUR).await;
        Ok::<_, StoreError>(found)
    });
    b.restart();
    let well = b.disk(1);
    let now = b.run(async move {
        let p = Pool::open(vec![well], alone()).await.map_err(|e| e.to_string())?;
        Ok::<_, String>([
            first(&p, 1, 0).await,
            first(&p, 1, MIB).await,
            first(&p, 1, 2 * MIB).await,
        ])
    });
    let good = match (&opened, &now) {
        (Ok(found), Ok(now)) => (now[0], now[2]) == (*found, Ok(7)),
        // Its log or its table proved that there were others. So it was refused, and nothing was given up.
        (Err(_), Ok(now)) => *now == [Ok(2), Ok(2), Ok(0)],
        (_, Err(_)) => false,
    };
    (opened.is_ok(), (!good).then(|| format!("from slot {n} on: {opened:?}, then {now:?}")))
}

/// By force the pool goes on with what can be read, and what could not be read then is not found later; or it is refused, and
/// nothing is lost by the try.
#[test]
fn what_was_given_up_by_force_does_not_come_back_and_nothing_else_is_given_up() {
    let all: Vec<_> = (0..40).flat_map(|n| [forced(n, false), forced(n, true)]).collect();
    let opened = all.iter().filter(|(opened, _)| *opened).count();
    assert_eq!(all.iter().find_map(|(_, wrong)| wrong.clone()), None);
    assert!((5..76).contains(&opened), "{opened}");
}

#[cfg(feature = "planted")]
#[test]
fn superblocks_given_up_before_the_log_was_asked_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::HiddenForgottenFirst));
    let wrong: Vec<_> = (0..40).filter_map(|n| forced(n, true).1).collect();
    plant(None);
    assert!(!wrong.is_empty());
}

/// A pool on two devices, with one copy of each block.
fn striped() -> Bench {
    let b = Bench::new(2, 0);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, alone()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        for k in 0..8 {
            write(&p, 1, k * 65536, 65536, 1).await.unwrap();
        }
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
    });
    b.restart();
    b
}

/// A disk of which writes of superblocks to one slot do not end.
struct Deaf(Rc<dyn Disk>, u64);

impl Disk for Deaf {
    crate::wrapped::is_like!(0);
    fn submit(&self, op: DiskOp, token: Token) {
        let slots = [2, self.len() / B - 2 - SUPER_SLOTS].map(|first| (first + self.1) * B);
        match &op {
            DiskOp::Write { offset, buf, .. }
                if slots.contains(offset) && buf.to_vec().iter().any(|x| *x != 0) => {}
            _ => self.0.submit(op, token),
        }
    }
}

/// The newest superblock of one device, and the place of the next one, cannot be read, so the pool is opened by force. The
/// program is killed when the next one is on the other device only. Then everything can be read; is it there?
fn killed_by_force() -> Result<(), String> {
    let b = striped();
    let n = newest(&b.media[0]).unwrap().seq % SUPER_SLOTS;
    let deaf = Rc::new(Deaf(b.ill(1, n..n + 2, IoError::Medium), n + 1));
    let disks = vec![b.disk(0), deaf as Rc<dyn Disk>];
    let o = Options { force: true, lineage: 9, deadline: HOUR, ..alone() };
    b.n.spawn(async move { drop(Pool::open(disks, o).await) });
    b.w.run_for(60 * SECONDS);
    assert_eq!(newest(&b.media[0]).unwrap().seq, n + 1, "it came as far as that");
    b.n.kill();
    b.n.restart();
    let disks = b.all();
    b.run(async move {
        let p = Pool::open(disks, alone()).await.map_err(|e| e.to_string())?;
        for k in 0..8 {
            let found = first(&p, 1, k * 65536).await;
            if found != Ok(1) {
                return Err(format!("piece {k}: {found:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn a_kill_while_a_pool_is_opened_by_force_takes_nothing_along() {
    assert_eq!(killed_by_force(), Ok(()));
}

/// Two devices went their own ways, by force. The superblocks of one cannot be read when it is attached to the other.
#[test]
fn a_device_that_may_have_gone_its_own_way_is_brought_back_on_demand_only() {
    for told in [IoError::Path, IoError::Medium] {
        let b = bench();
        let zero = b.disk(0);
        b.run(async move {
            let o = Options { force: true, lineage: 9, ..alone() };
            let p = Pool::open(vec![zero], o).await.unwrap();
            write(&p, 1, 0, B, 5).await.unwrap();
            p.close().await.unwrap();
        });
        let (one, ill) = (b.disk(1), b.ill(0, ALL, told));
        b.run(async move {
            let o = Options { force: true, lineage: 10, ..Options::default() };
            let p = Pool::open(vec![one], o).await.unwrap();
            p.attach(ill).await.unwrap();
            for _ in 0..2 {
                sleep(HOUR).await;
                assert_eq!(p.status().devices[0].state, MemberState::Out, "{told:?}");
            }
            assert!(p.settled().await.is_err(), "it says why");
            p.resync().await.unwrap();
            p.settled().await.unwrap();
            assert!(p.status().whole);
            assert_eq!(first(&p, 1, 0).await, Ok(2));
        });
    }
}

#[test]
fn a_device_of_which_superblocks_cannot_be_read_is_brought_back_when_they_can() {
    let b = bench();
    let (one, ill) = (b.disk(1), b.ill(0, ALL, IoError::Path));
    b.run(async move {
        let p = Pool::open(vec![ill, one], Options::default()).await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(p.status().devices[0].state, MemberState::Out);
        sleep(HOUR).await;
        assert!(p.status().whole, "{:?}", p.status());
    });
}

#[test]
fn a_pool_that_may_have_been_used_is_not_made_again() {
    let b = bench();
    let disk = b.ill(1, ALL, IoError::Path);
    let made = b.run(async move { create(&[disk], &spec(1)).await });
    assert!(made.is_err());
}

#[cfg(feature = "planted")]
#[test]
fn the_newest_superblock_given_up_by_force_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::NewestForgotten));
    let lost = killed_by_force();
    plant(None);
    assert!(lost.is_err());
}
