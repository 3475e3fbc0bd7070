//! A host that comes again and again, by one of the protocols.

use super::iscsi::{Iscsi, Style};
use super::link::Link;
use super::medium::{Counts, Nature};
use super::nbd::Nbd;
use super::{BLOCK, LEN, PATIENCE, PORT, VOLUME};
use crate::load::{Io, Load};
use crate::srp::Fault;
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_mem::{BufPool, Slice};
use weir_reactor::{JoinHandle, sleep, spawn, timeout, unless};
use weir_stream::Network;

/// What a host needs to go on by itself.
pub(super) struct Host {
    pub(super) number: u32,
    pub(super) by_iscsi: bool,
    pub(super) at: [String; 2],
    pub(super) network: Rc<dyn Network>,
    pub(super) load: Rc<Load>,
    pub(super) bufs: BufPool,
    pub(super) fault: Fault,
    pub(super) nature: Rc<Nature>,
    pub(super) counts: Rc<Counts>,
    pub(super) rng: RefCell<Prng>,
    pub(super) clients: u64,
    pub(super) style: Style,
    /// The target may not have heard that a connection of this host is lost.
    pub(super) unheard: Box<dyn Fn() -> bool>,
}

/// What a host reaches the volume by.
enum Way {
    Nbd(Rc<Nbd>),
    Iscsi(Rc<Iscsi>),
}

impl Way {
    fn io(&self) -> Rc<dyn Io> {
        match self {
            Way::Nbd(c) => c.clone(),
            Way::Iscsi(c) => c.clone(),
        }
    }

    fn link(&self) -> &Link {
        match self {
            Way::Nbd(c) => &c.link,
            Way::Iscsi(c) => &c.link,
        }
    }

    /// Says good-bye, and waits for the end. True: nothing of the session happens any more.
    async fn leave(&self) -> bool {
        match self {
            Way::Nbd(c) => {
                c.leave().await;
                false
            }
            Way::Iscsi(c) => c.log_out().await,
        }
    }

    async fn serve(&self) -> Result<(), String> {
        match self {
            Way::Nbd(c) => c.serve().await,
            Way::Iscsi(c) => c.serve().await,
        }
    }
}

impl Host {
    async fn connect(&self) -> Option<Way> {
        let at = self.network.resolve(&self.at[usize::from(self.by_iscsi)]).ok()?;
        let stream = self.network.connect(at).await.ok()?;
        if !self.by_iscsi {
            let before = self.nature.hidden.get();
            let c = Nbd::connect(stream, VOLUME, self.number).await?;
            if before > 0 && self.nature.hidden.get() == before {
                self.fault.set("a volume is exported that nobody sees".into());
            }
            return Some(Way::Nbd(c));
        }
        let hex: String = PORT.iter().map(|b| format!("{b:02x}")).collect();
        let (me, target) = (
            format!("iqn.2026-11.sim:host-{}", self.number),
            format!("{}{hex}", weir_target_iscsi::NAMES),
        );
        let rest = (self.fault.clone(), self.counts.clone(), self.rng.borrow_mut().fork());
        Iscsi::connect(stream, (&me, &target), self.number, self.style, rest).await.map(Way::Iscsi)
    }

    /// Comes again and again, until the load is over.
    pub(super) async fn live(self: Rc<Self>) {
        while !self.load.is_stopped() {
            let Ok(Some(way)) = timeout(10 * SECONDS, self.connect()).await else {
                sleep(50 * MILLIS).await;
                continue;
            };
            Counts::one_more(&self.counts.sessions);
            self.use_it(Rc::new(way)).await;
            let pause = self.rng.borrow_mut().below(20 * MILLIS);
            sleep(pause).await;
        }
    }

    /// Uses a connection until it ends, or the load does.
    async fn use_it(&self, way: Rc<Way>) {
        let served = {
            let (way, fault) = (way.clone(), self.fault.clone());
            spawn(async move {
                // Of one that is over nobody waits for answers any more.
                if let Err(what) = way.serve().await
                    && !way.link().is_dead()
                {
                    fault.set(what);
                }
            })
        };
        // Its first write is behind all that its session before has left. An NBD target can only tell by the streams: of a lost one it
        // may not have heard (docs/nbd.md).
        let is_behind = self.by_iscsi || !(self.unheard)();
        let io = way.io();
        let first = || io.write(LEN - BLOCK, Slice::heap(BLOCK as usize), false);
        let mut began = false;
        while !began && !way.link().is_dead() && !self.load.is_stopped() {
            // There are attentions before it.
            began = first().await.is_ok();
            sleep(MILLIS).await;
        }
        if began && is_behind {
            self.load.settle_owner(self.number);
        }
        let running: Vec<JoinHandle<()>> = (0..self.clients)
            .map(|_| {
                let (load, io, bufs) = (self.load.clone(), way.io(), self.bufs.clone());
                let (rng, way) = (self.rng.borrow_mut().fork(), way.clone());
                spawn(async move {
                    let client = load.client(io, bufs, rng, u64::MAX);
                    if !way.link().is_dead() {
                        unless(way.link().over.wait(), client).await;
                    }
                })
            })
            .collect();
        let leaves = self.rng.borrow_mut().chance(1, 2).then(|| self.leave(way.clone()));
        let out = match leaves {
            Some(leaves) => leaves.await,
            None => false,
        };
        for r in running {
            r.await;
        }
        if out && began {
            self.load.settle_owner(self.number);
        }
        // Some log out by closing, some let the system do it.
        way.link().die();
        served.await;
    }

    /// Leaves after a while, whatever is under way. True: nothing of the session happens any more.
    async fn leave(&self, way: Rc<Way>) -> bool {
        let longest = [20 * MILLIS, SECONDS][self.rng.borrow_mut().below(2) as usize];
        let pause = self.rng.borrow_mut().below(longest);
        if unless(way.link().ended(), sleep(pause)).await.is_none() {
            return false;
        }
        match timeout(PATIENCE, way.leave()).await {
            Ok(out) => out,
            Err(_) => {
                self.fault.set(format!("host {} says good-bye, and nothing ends", self.number));
                false
            }
        }
    }
}
