//! Pools that two nodes share: who opens them, and what is asked before fewer nodes have everything.

use crate::common::{filled, read};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_reactor::{LocalFuture, sleep, spawn_task};
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::{Able, Arbiter, Options, Owner, Pool, PoolSpec, StoreError, create};

const LIMIT: u64 = 1000 * SECONDS;
pub(crate) const MIB: u64 = 1 << 20;

/// A register that answers when it is told to.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) fewer: RefCell<Vec<Able>>,
    pub(crate) more: RefCell<Vec<Able>>,
    /// Answers to both; `None`: none comes.
    pub(crate) answer: Cell<Option<bool>>,
    /// Of more nodes none comes either way.
    pub(crate) more_waits: Cell<bool>,
    /// What happens when fewer nodes are told of.
    pub(crate) on_fewer: RefCell<Option<Box<dyn Fn()>>>,
}

impl Told {
    async fn answer(&self, waits: impl Fn() -> bool) -> bool {
        loop {
            match self.answer.get().filter(|_| !waits()) {
                Some(yes) => return yes,
                None => sleep(MILLIS).await,
            }
        }
    }
}

impl Arbiter for Told {
    fn fewer(&self, able: Able) -> LocalFuture<'_, bool> {
        self.fewer.borrow_mut().push(able);
        // Who asks without end asks without a pause.
        assert!(self.fewer.borrow().len() < 100, "it asks again and again");
        if let Some(f) = self.on_fewer.borrow().as_ref() {
            f();
        }
        Box::pin(self.answer(|| false))
    }
    fn more(&self, able: Able) -> LocalFuture<'_, bool> {
        self.more.borrow_mut().push(able);
        Box::pin(self.answer(|| self.more_waits.get()))
    }
}

pub(crate) fn only(node: u16) -> Able {
    Able::NONE.with(node)
}

pub(crate) fn both() -> Able {
    only(1).with(2)
}

/// As an owner opens it, node 1.
pub(crate) fn owner(epoch: u32, able: Able, arbiter: &Rc<Told>) -> Options {
    owner_of(1, epoch, able, arbiter)
}

pub(crate) fn owner_of(domain: u16, epoch: u32, able: Able, arbiter: &Rc<Told>) -> Options {
    let owner = Owner { epoch, domain, able, arbiter: arbiter.clone() };
    Options { owner: Some(owner), lineage: u64::from(epoch), ..Options::default() }
}

/// Two devices, of two nodes, and a register that says yes.
pub(crate) fn story<F: Future<Output = ()> + 'static>(
    f: impl FnOnce([SimMedium; 2], [Rc<dyn Disk>; 2], Rc<Told>) -> F,
) {
    let w = World::new(19);
    let n: Node = w.node("store");
    let media = [1, 2].map(|i| SimMedium::new(&format!("d{i}"), 8 * MIB, DiskConfig::default(), i));
    media.iter().for_each(|m| n.attach(m));
    let disks = [1, 2].map(|i| n.disk(&format!("d{i}")) as Rc<dyn Disk>);
    let told = Rc::new(Told { answer: Cell::new(Some(true)), ..Told::default() });
    w.run(&n, LIMIT, f(media, disks, told)).expect("it ends");
}

pub(crate) async fn make(disks: &[Rc<dyn Disk>; 2]) {
    let spec = PoolSpec {
        slab_shift: 8,
        log_pages: 64,
        spares: 8,
        domains: vec![1, 2],
        ..PoolSpec::fitting(77, 2, 0)
    };
    create(disks, &spec).await.unwrap();
}

/// Opens it, and makes a volume at first.
pub(crate) async fn open(disks: &[Rc<dyn Disk>], options: Options) -> Result<Pool, StoreError> {
    let p = Pool::open(disks.to_vec(), options).await?;
    if p.find("v").is_none() {
        p.create_volume("v", 64 * MIB, 4096).await?;
    }
    Ok(p)
}

pub(crate) fn why(r: Result<Pool, StoreError>) -> String {
    r.err().map_or_else(|| "it opens".into(), |e| e.to_string())
}

#[test]
fn only_its_owner_opens_it_and_each_epoch_once() {
    story(|_, disks, told| async move {
        make(&disks).await;
        let refused = why(Pool::open(disks.to_vec(), Options::default()).await);
        assert!(refused.contains("shared by two nodes"), "{refused}");
        let p = open(&disks, owner(5, both(), &told)).await.unwrap();
        p.close().await.unwrap();
        for epoch in [4, 5] {
            let refused = why(open(&disks, owner(epoch, both(), &told)).await);
            assert!(refused.contains("owner epoch 5"), "{refused}");
        }
        // To look at it nobody need own it.
        let looks = Options { read_only: true, ..Options::default() };
        assert!(Pool::open(disks.to_vec(), looks).await.is_ok());
        open(&disks, owner(6, both(), &told)).await.unwrap();
        assert!(told.fewer.borrow().is_empty());
    });
}

#[test]
fn a_pool_of_one_node_has_no_owner() {
    story(|_, disks, told| async move {
        let spec = PoolSpec { slab_shift: 8, log_pages: 64, ..PoolSpec::fitting(77, 2, 0) };
        create(&disks, &PoolSpec { domains: Vec::new(), ..spec.clone() }).await.unwrap();
        let refused = why(Pool::open(disks.to_vec(), owner(1, both(), &told)).await);
        assert!(refused.contains("pool of one node"), "{refused}");
        for domains in [vec![1], vec![1, 1], vec![0, 1], vec![1, 64]] {
            let spec = PoolSpec { domains, overwrite: true, ..spec.clone() };
            assert!(create(&disks, &spec).await.is_err());
        }
    });
}

#[test]
fn nothing_is_acknowledged_with_fewer_before_that_is_kept() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        told.answer.set(None);
        media[1].set_offline(true);
        let done = Rc::new(Cell::new(None));
        let (slot, w) = (done.clone(), v.clone());
        spawn_task(async move { slot.set(Some(w.write(0, filled(4096, 2), false).await)) });
        sleep(30 * SECONDS).await;
        assert_eq!((done.get(), told.fewer.borrow().as_slice()), (None, &[only(1)][..]));
        told.answer.set(Some(true));
        sleep(SECONDS).await;
        assert_eq!(done.get(), Some(Ok(())));
        // It comes back, and is told of when a superblock says so, and again until that is kept.
        told.answer.set(Some(false));
        media[1].set_offline(false);
        p.attach(disks[1].clone()).await.unwrap();
        sleep(5 * SECONDS).await;
        assert!(p.status().whole && told.more.borrow().len() > 1, "{:?}", told.more.borrow());
        assert!(told.more.borrow().iter().all(|a| *a == both()));
        // That may have been kept, and then what it lacks now must be told.
        told.answer.set(Some(true));
        told.fewer.borrow_mut().clear();
        media[1].set_offline(true);
        v.write(0, filled(4096, 3), false).await.unwrap();
        assert_eq!(told.fewer.borrow().as_slice(), &[only(1)]);
    });
}

#[test]
fn an_owner_that_is_none_any_more_does_nothing() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        p.checkpoint().await.unwrap();
        told.answer.set(Some(false));
        media[1].set_offline(true);
        assert_eq!(v.write(0, filled(4096, 2), false).await, Err(IoError::Offline));
        let mut before = vec![0; media[0].len() as usize];
        media[0].peek(0, &mut before);
        // The new owner may have written since.
        assert_eq!(read(&*v, 0, 4096).await.err(), Some(IoError::Offline));
        media[1].set_offline(false);
        told.answer.set(Some(true));
        sleep(5 * SECONDS).await;
        let refused = p.resume().await.expect_err("it is not resumed").to_string();
        assert!(refused.contains("another node"), "{refused}");
        let mut now = vec![0; before.len()];
        media[0].peek(0, &mut now);
        assert!(now == before, "it has written");
    });
}

/// The node that goes on has a lower number of superblock than the one that was fenced.
#[test]
fn the_owner_counts_before_the_number_of_a_superblock() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        p.close().await.unwrap();
        let whole = media.each_ref().map(|m| {
            let mut all = vec![0; m.len() as usize];
            m.peek(0, &mut all);
            all
        });
        // Node 1 goes on alone for long. What it does then nobody was told of.
        let p = open(&disks[..1], owner(2, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        for n in 0..9 {
            v.write(0, filled(4096, 100 + n), false).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        p.close().await.unwrap();
        // Node 2 has what it had, and takes over.
        media[1].poke(0, &whole[1]);
        let p = open(&disks[1..], owner_of(2, 3, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(4096, filled(4096, 2), false).await.unwrap();
        p.close().await.unwrap();
        // Whoever is believed, the newer owner's is the newest.
        let p = open(&disks, owner(4, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        assert_eq!(read(&*v, 0, 4096).await.unwrap()[0], 1);
        assert_eq!(read(&*v, 4096, 4096).await.unwrap()[0], 2);
        sleep(60 * SECONDS).await;
        assert!(p.status().whole, "{:?}", p.status());
        p.close().await.unwrap();
        // Nothing of what went its own way is left.
        let p = open(&disks[..1], owner(5, only(1), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        assert_eq!(read(&*v, 0, 4096).await.unwrap()[0], 1);
        assert_eq!(read(&*v, 4096, 4096).await.unwrap()[0], 2);
    });
}

/// What only the node that is not held to have everything has, was never acknowledged.
#[test]
fn devices_of_others_are_not_believed() {
    story(|_, disks, told| async move {
        make(&disks).await;
        open(&disks, owner(1, both(), &told)).await.unwrap().close().await.unwrap();
        // Node 2 alone, by mistake, say.
        let p = open(&disks[1..], owner_of(2, 9, only(2), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 9), false).await.unwrap();
        p.close().await.unwrap();
        let p = open(&disks, owner(10, only(1), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        assert_eq!(read(&*v, 0, 4096).await.unwrap()[0], 0);
        sleep(60 * SECONDS).await;
        assert!(p.status().whole && told.more.borrow().contains(&both()));
    });
}
