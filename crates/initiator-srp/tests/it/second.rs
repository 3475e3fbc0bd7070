//! A target port on two reactors, one of which can be held up. Of either protocol: `crate::target` says of which.

use crate::common::on_reactor;
use crate::target::Served;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
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

/// The second reactor of a port, on a thread of its own, without a unit.
pub(crate) struct Second {
    orders: Sender<(Sender<()>, Receiver<()>)>,
    thread: std::thread::JoinHandle<()>,
}

impl Second {
    pub(crate) async fn start(t: &Served) -> Second {
        let (orders, given) = channel::<(Sender<()>, Receiver<()>)>();
        let (joined, ready) = channel();
        let target = t.target.clone();
        let thread = std::thread::spawn(move || {
            on_reactor(|p| async move {
                let classes = vec![(4096, 64), (64 << 10, 4), (1 << 20, 1)];
                let pool = BufPool::new(&PoolConfig { classes }).unwrap();
                target.join(p, Rc::new(Units::default()), pool).unwrap();
                joined.send(()).unwrap();
                loop {
                    match given.try_recv() {
                        Ok((stands, go_on)) => {
                            stands.send(()).unwrap();
                            // The whole thread waits.
                            go_on.recv().ok();
                        }
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

    /// Holds it up until the sender is gone.
    pub(crate) async fn hold(&self) -> Sender<()> {
        let ((told, stands), (go_on, waits)) = (channel(), channel());
        self.orders.send((told, waits)).unwrap();
        until("it stands still", || stands.try_recv().is_ok()).await;
        go_on
    }

    pub(crate) async fn end(self) {
        drop(self.orders);
        until("the second reactor ends", || self.thread.is_finished()).await;
        self.thread.join().unwrap();
    }
}
