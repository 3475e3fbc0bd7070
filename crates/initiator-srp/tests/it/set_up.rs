//! Channels whose set-up takes long, beside logins that end them.

use crate::again::{RESERVE, TEST_UNIT_READY, reserved, status};
use crate::common::on_reactor;
use crate::peer::Peer;
use crate::target::{HOST, config, medium, serve};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{
    Connected, Connection, FabricError, Incoming, Listener, Params, Provider, RecvQueue,
};
use weir_proto_srp::PortId;
use weir_proto_srp::command_builder::BufferSpec;
use weir_reactor::{LocalFuture, sleep, timeout};

/// Tells that connections are there only once it may.
struct Late {
    inner: Rc<dyn Provider>,
    may: Arc<AtomicBool>,
}

struct LateListener(Rc<dyn Listener>, Arc<AtomicBool>);

struct LateIncoming(Box<dyn Incoming>, Arc<AtomicBool>);

impl Provider for Late {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        self.inner.recv_queue(depth, len)
    }
    fn register_region(&self, base: NonNull<u8>, len: usize) -> Result<(), FabricError> {
        self.inner.register_region(base, len)
    }
    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        Ok(Rc::new(LateListener(self.inner.listen(addr)?, self.may.clone())))
    }
    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        self.inner.connect(addr, params)
    }
}

impl Listener for LateListener {
    fn local_addr(&self) -> String {
        self.0.local_addr()
    }
    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>> {
        Box::pin(async move {
            let incoming = self.0.next().await?;
            Ok(Box::new(LateIncoming(incoming, self.1.clone())) as Box<dyn Incoming>)
        })
    }
}

impl Incoming for LateIncoming {
    fn private_data(&self) -> &[u8] {
        self.0.private_data()
    }
    fn peer(&self) -> String {
        self.0.peer()
    }
    fn native_cm(&self) -> bool {
        self.0.native_cm()
    }
    fn peer_serves_reads(&self) -> u16 {
        self.0.peer_serves_reads()
    }
    fn accept(
        self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>> {
        let LateIncoming(inner, may) = *self;
        let accepted = inner.accept(provider, params);
        Box::pin(async move {
            let connection = accepted.await;
            while !may.load(Ordering::Acquire) {
                sleep(MILLIS).await;
            }
            connection
        })
    }
    fn reject(self: Box<Self>, private_data: &[u8]) {
        self.0.reject(private_data);
    }
}

/// Its host has had the answer, and the target hears of the connection when the channels of the host have been ended.
#[test]
fn a_channel_that_is_set_up_late_does_not_outlive_a_login_that_ends_it() {
    on_reactor(|p| async move {
        let mut t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let may = Arc::new(AtomicBool::new(false));
        let late = Late { inner: p.clone(), may: may.clone() };
        let slow = t.target.listen(&late, "127.0.0.1:0").unwrap();
        let fast = std::mem::replace(&mut t.addr, slow);
        let old = Peer::enter(&p, &t, 0).await;
        assert!(t.target.local_channels().is_empty() && old.conn.is_open());
        t.addr = fast;
        let new = Peer::enter_instead(&p, &t, HOST).await.unwrap();
        may.store(true, Ordering::Release);
        let ends = async {
            while old.conn.is_open() {
                sleep(MILLIS).await;
            }
        };
        assert!(
            timeout(5 * SECONDS, ends).await.is_ok(),
            "it goes on beside the one that ended it"
        );
        assert_eq!((t.target.local_channels().len(), new.conn.is_open()), (1, true));
        drop((old, new));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// Nothing is left of its host but that, which comes back.
#[test]
fn a_channel_that_is_set_up_late_keeps_nothing_reserved_for_its_former_life() {
    on_reactor(|p| async move {
        let mut t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let may = Arc::new(AtomicBool::new(false));
        let late = Late { inner: p.clone(), may: may.clone() };
        let (holder, other) = reserved(&p, &t).await;
        let slow = t.target.listen(&late, "127.0.0.1:0").unwrap();
        let fast = std::mem::replace(&mut t.addr, slow);
        let second = Peer::enter(&p, &t, 0).await;
        t.addr = fast;
        let before = t.target.local_channels().len();
        drop(holder);
        while t.target.local_channels().len() == before {
            sleep(MILLIS).await;
        }
        let new = Peer::enter_instead(&p, &t, HOST).await.unwrap();
        new.attention().await;
        assert_eq!(status(&other, 2, &RESERVE).await, 0, "its former life has it yet");
        assert_eq!(status(&new, 2, &TEST_UNIT_READY).await, 0x18);
        may.store(true, Ordering::Release);
        drop((second, new, other));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// What came by a connection that is refused once it is there gives its buffer back, also while another one is being set up.
#[test]
fn a_channel_that_is_refused_late_keeps_no_buffer() {
    on_reactor(|p| async move {
        let mut t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let [never, may] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let by = |may: &Arc<AtomicBool>| Late { inner: p.clone(), may: may.clone() };
        let slowest = t.target.listen(&by(&never), "127.0.0.1:0").unwrap();
        let slow = t.target.listen(&by(&may), "127.0.0.1:0").unwrap();
        let fast = std::mem::replace(&mut t.addr, slowest);
        let another = Peer::enter_as(&p, &t, PortId::new(8, 1), 0).await.unwrap();
        t.addr = slow;
        let old = Peer::enter(&p, &t, 0).await;
        t.addr = fast;
        let new = Peer::enter_instead(&p, &t, HOST).await.unwrap();
        let posted = || t.port.census().receives_posted;
        let all = posted();
        old.send(1, &TEST_UNIT_READY, BufferSpec::None);
        while posted() == all {
            sleep(MILLIS).await;
        }
        may.store(true, Ordering::Release);
        let freed = async {
            while posted() < all {
                sleep(MILLIS).await;
            }
        };
        assert!(timeout(5 * SECONDS, freed).await.is_ok(), "it waits for another connection");
        never.store(true, Ordering::Release);
        drop((another, old, new));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}
