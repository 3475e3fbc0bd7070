//! A target port on two reactors, one of which can be held up. Of either protocol: `crate::target` says of which.

use crate::common::on_reactor;
use crate::target::Served;
use std::rc::Rc;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use weir_base::{MILLIS, SECONDS};
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{sleep, timeout};
use weir_target_core::Units;

/// Waits until `done`, or fails.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            sleep(MILLIS).await;
        }
    };
    assert!(timeout(20 * SECONDS, wait).await.is_ok(), "{what}");
}

/// What it is to do, with its units and buffers.
type Order = Box<dyn FnOnce(&Units, &BufPool) + Send>;

/// The second reactor of a port, on a thread of its own, without a unit.
pub(crate) struct Second {
    orders: Sender<Order>,
    thread: std::thread::JoinHandle<()>,
}

impl Second {
    pub(crate) async fn start(t: &Served) -> Second {
        let (orders, given) = channel::<Order>();
        let (joined, ready) = channel();
        let target = t.target.clone();
        let thread = std::thread::spawn(move || {
            on_reactor(|p| async move {
                let classes = vec![(4096, 64), (64 << 10, 4), (1 << 20, 1)];
                let pool = BufPool::new(&PoolConfig { classes }).unwrap();
                let units = Rc::new(Units::default());
                target.join(p, units.clone(), pool.clone()).unwrap();
                joined.send(()).unwrap();
                loop {
                    match given.try_recv() {
                        Ok(order) => order(&units, &pool),
                        Err(TryRecvError::Empty) => sleep(MILLIS).await,
                        Err(TryRecvError::Disconnected) => break,
                    }
                }
                target.leave().await;
            });
        });
        until("the second reactor joins", || ready.try_recv().is_ok()).await;
        Second { orders, thread }
    }

    /// Has it do something, and waits until that says that it is done.
    pub(crate) async fn has(
        &self,
        order: impl FnOnce(&Units, &BufPool, Sender<()>) + Send + 'static,
    ) {
        let (told, done) = channel();
        self.orders.send(Box::new(move |units, pool| order(units, pool, told))).unwrap();
        until("it is done", || done.try_recv().is_ok()).await;
    }

    /// Holds it up until the sender is gone.
    pub(crate) async fn hold(&self) -> Sender<()> {
        let (go_on, waits) = channel::<()>();
        self.has(move |_, _, stands| {
            stands.send(()).unwrap();
            // The whole thread waits.
            waits.recv().ok();
        })
        .await;
        go_on
    }

    pub(crate) async fn end(self) {
        drop(self.orders);
        until("the second reactor ends", || self.thread.is_finished()).await;
        self.thread.join().unwrap();
    }
}
