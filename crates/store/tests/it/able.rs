//! Pools that two nodes share: which nodes count as having everything, and what is told of that.

use crate::common::{filled, read};
use crate::owned::{MIB, Told, both, make, only, open, owner, owner_of, story, why};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::Volume;
use weir_disk::{Disk, DiskOp};
use weir_mem::Slice;
use weir_reactor::{Token, sleep, spawn_task};
use weir_sim::SimMedium;
use weir_store::format::label::SUPER_SLOTS;
use weir_store::format::superblock::{MemberState, Superblock};
use weir_store::{Pool, StoreError};

/// A disk that calls `then` before the second superblock that says that device 1 is in sync, when it is told to look.
struct Watched {
    disk: Rc<dyn Disk>,
    looks: Rc<Cell<bool>>,
    first: Cell<Option<u64>>,
    then: Box<dyn Fn()>,
}

impl Watched {
    fn new(disk: &Rc<dyn Disk>, looks: &Rc<Cell<bool>>, then: impl Fn() + 'static) -> Rc<Watched> {
        let (disk, looks) = (disk.clone(), looks.clone());
        Rc::new(Watched { disk, looks, first: Cell::new(None), then: Box::new(then) })
    }
}

/// The superblock that is being written, if it is one.
fn superblock(buf: &Slice) -> Option<Superblock> {
    let b = buf.to_vec().try_into().ok()?;
    let one = |slot| Superblock::decode_any(&b, 0, slot).ok();
    (0..SUPER_SLOTS).find_map(one).map(|(_, s)| s)
}

impl Disk for Watched {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        if let DiskOp::Write { buf, .. } = &op
            && self.looks.get()
            && let Some(s) = superblock(buf)
            && s.members[1].state == MemberState::InSync
            && s.log_set.contains(&Some(1))
        {
            let first = self.first.get().unwrap_or(s.seq);
            self.first.set(Some(first));
            if s.seq > first {
                self.looks.set(false);
                (self.then)();
            }
        }
        self.disk.submit(op, token);
    }
}

/// A pool of node 1 alone, and its volume; the other device can be attached.
async fn alone(
    media: &[SimMedium; 2],
    disks: &[Rc<dyn Disk>; 2],
    told: &Rc<Told>,
) -> (Pool, Rc<dyn Volume>) {
    make(disks).await;
    let p = open(disks, owner(1, both(), told)).await.unwrap();
    let v: Rc<dyn Volume> = p.volume(1).unwrap();
    v.write(0, filled(4096, 1), false).await.unwrap();
    media[1].set_offline(true);
    v.write(0, filled(4096, 2), false).await.unwrap();
    assert_eq!(told.fewer.take(), [only(1)]);
    media[1].set_offline(false);
    (p, v)
}

/// The only device that counted fails as the other one comes into service.
#[test]
fn what_came_into_service_counts_before_that_is_told() {
    story(|media, mut disks, told| async move {
        let looks = Rc::new(Cell::new(false));
        let own = media[0].clone();
        disks[0] = Watched::new(&disks[0], &looks, move || own.set_offline(true));
        let (p, v) = alone(&media, &disks, &told).await;
        looks.set(true);
        p.attach(disks[1].clone()).await.unwrap();
        sleep(5 * SECONDS).await;
        assert!(!looks.get(), "it did not come into service");
        v.write(0, filled(4096, 3), false).await.unwrap();
        assert_eq!(told.fewer.take(), [only(2)]);
        assert_eq!(read(&*v, 0, 4096).await.unwrap()[0], 3);
    });
}

/// That only node 1 has everything is kept; its device fails before a superblock says so.
#[test]
fn a_pool_does_not_go_on_with_what_was_given_up() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        let own = media[0].clone();
        told.on_fewer.replace(Some(Box::new(move || own.set_offline(true))));
        media[1].set_offline(true);
        assert!(v.write(0, filled(4096, 2), false).await.is_err());
        assert_eq!(told.fewer.take(), [only(1)]);
        media[1].set_offline(false);
        assert!(p.resume().await.is_err());
        assert!(v.write(0, filled(4096, 3), false).await.is_err());
        assert!(told.fewer.take().is_empty());
        media[0].set_offline(false);
        told.on_fewer.take();
        p.resume().await.unwrap();
        v.write(0, filled(4096, 4), false).await.unwrap();
        assert!(!told.fewer.take().contains(&only(2)));
    });
}

/// The pool is suspended as node 2 comes into service, and whoever has it go on goes away.
#[test]
fn what_a_life_was_told_the_next_one_knows() {
    story(|media, mut disks, told| async move {
        let looks = Rc::new(Cell::new(false));
        let all = media.clone();
        let off = move || all.iter().for_each(|m| m.set_offline(true));
        disks[0] = Watched::new(&disks[0], &looks, off);
        let (p, v) = alone(&media, &disks, &told).await;
        looks.set(true);
        p.attach(disks[1].clone()).await.unwrap();
        sleep(5 * SECONDS).await;
        assert!(!looks.get() && p.status().suspended.is_some());
        media.iter().for_each(|m| m.set_offline(false));
        told.more_waits.set(true);
        let again = p.clone();
        let resume = spawn_task(async move { drop(again.resume().await) });
        sleep(10 * SECONDS).await;
        weir_reactor::cancel(resume);
        told.fewer.take();
        media[1].set_offline(true);
        let _ = v.write(0, filled(4096, 3), false).await;
        if p.status().suspended.is_some() {
            p.resume().await.unwrap();
            v.write(0, filled(4096, 4), false).await.unwrap();
        }
        assert!(told.more.borrow().is_empty() || told.fewer.borrow().contains(&only(1)));
    });
}

/// Node 2 went on, got node 1 back, and then had no device of its own any more.
#[test]
fn a_pool_goes_on_with_those_that_have_everything_by_then() {
    story(|media, disks, told| async move {
        make(&disks).await;
        open(&disks, owner(1, both(), &told)).await.unwrap().close().await.unwrap();
        let p = open(&disks[1..], owner_of(2, 2, only(2), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        p.attach(disks[0].clone()).await.unwrap();
        sleep(5 * SECONDS).await;
        assert!(told.more.borrow().contains(&both()) && told.fewer.borrow().is_empty());
        media[1].set_offline(true);
        v.write(0, filled(4096, 2), false).await.unwrap();
        assert_eq!(told.fewer.take(), [only(1)]);
        media[0].set_offline(true);
        assert!(v.write(0, filled(4096, 3), false).await.is_err());
        media.iter().for_each(|m| m.set_offline(false));
        p.resume().await.unwrap();
        v.write(4096, filled(4096, 4), false).await.unwrap();
        assert_eq!(read(&*v, 4096, 4096).await.unwrap()[0], 4);
        assert_ne!(read(&*v, 0, 4096).await.unwrap()[0], 1);
    });
}

/// What the register does not answer for long holds up nothing: hosts write more than the log has room for.
#[test]
fn nobody_waits_until_it_is_kept_that_more_have_everything() {
    story(|media, disks, told| async move {
        let (p, v) = alone(&media, &disks, &told).await;
        told.more_waits.set(true);
        p.attach(disks[1].clone()).await.unwrap();
        let done = Rc::new(Cell::new(0));
        let (ended, w) = (done.clone(), v.clone());
        spawn_task(async move {
            for n in 0..300 {
                w.write(n % 32 * 4096, filled(4096, n as u8), false).await.unwrap();
                ended.set(n);
            }
        });
        sleep(10 * SECONDS).await;
        assert_eq!((done.get(), told.more.borrow().len()), (299, 1));
        p.close().await.unwrap();
        assert!(told.fewer.borrow().is_empty());
    });
}

/// It was asked whether node 2 counts; that it does not any more was told since.
#[test]
fn an_answer_to_an_older_question_says_nothing() {
    story(|media, disks, told| async move {
        let (p, v) = alone(&media, &disks, &told).await;
        told.more_waits.set(true);
        p.attach(disks[1].clone()).await.unwrap();
        sleep(5 * SECONDS).await;
        assert_eq!(told.more.take(), [both()]);
        media[1].set_offline(true);
        v.write(0, filled(4096, 3), false).await.unwrap();
        assert_eq!(told.fewer.take(), [only(1)]);
        told.more_waits.set(false);
        sleep(60 * SECONDS).await;
        // It counts when it is told of anew.
        media[1].set_offline(false);
        p.attach(disks[1].clone()).await.unwrap();
        sleep(60 * SECONDS).await;
        assert_eq!(told.more.take(), [both()]);
        media[1].set_offline(true);
        v.write(0, filled(4096, 4), false).await.unwrap();
        assert_eq!(told.fewer.take(), [only(1)]);
    });
}

#[test]
fn only_a_node_that_has_everything_opens_it() {
    story(|_, disks, told| async move {
        make(&disks).await;
        let refused = why(open(&disks, owner(1, only(2), &told)).await);
        assert!(refused.contains("not held to have everything"), "{refused}");
        let refused = why(open(&disks, owner_of(3, 1, both().with(3), &told)).await);
        assert!(refused.contains("has no device of it"), "{refused}");
        // The last epoch there is.
        let p = open(&disks, owner(u32::MAX, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        _ = v.write(0, filled(MIB as usize, 1), false).await;
        p.close().await.unwrap();
        let refused = Pool::open(disks.to_vec(), owner(u32::MAX, both(), &told)).await;
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, StoreError::State(_)));
        assert!(refused.to_string().contains("claim it anew"), "{refused}");
    });
}
