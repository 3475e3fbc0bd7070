//! A command that ends well allocates nothing on the core that submitted it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::channel;
use weir_base::SECONDS;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_reactor::{PollMode, Reactor, sleep};
use weir_uring::{Ring, TcpNetwork};

#[path = "it/target.rs"]
#[allow(dead_code)]
mod target;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn note() {
    let _ = COUNT.try_with(|c| c.set(c.get() + 1));
}

// SAFETY: everything is the system allocator's work; counting touches a plain thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reads_and_writes_allocate_nothing() {
    let (addr_tx, addr_rx) = channel();
    let (stop_tx, stop_rx) = channel::<()>();
    let target = std::thread::spawn(move || {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let p = Rc::new(Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
        reactor.block_on(PollMode::Sleep, async move {
            let t = target::serve(p, "127.0.0.1:0", target::config(), &target::medium(1 << 20));
            addr_tx.send((t.addr.clone(), t.target.port_id())).unwrap();
            while stop_rx.try_recv().is_err() {
                sleep(SECONDS / 100).await;
            }
        });
    });
    let (addr, port) = addr_rx.recv().unwrap();
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let p = Rc::new(Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
    reactor.block_on(PollMode::default(), async move {
        let s = Session::connect(p, SessionConfig::new(&addr, port, target::HOST)).await.unwrap();
        let q = s.queue();
        let (small, large) = (Slice::heap(4096), Slice::heap(65536));
        let mut before = 0;
        for i in 0..3000u64 {
            if i == 1000 {
                before = COUNT.with(Cell::get);
            }
            let at = i % 16 * 65536;
            match i % 4 {
                0 => q.read(Lun::ZERO, at, small.clone()).await.unwrap(),
                1 => q.write(Lun::ZERO, at, small.clone(), false).await.unwrap(),
                2 => q.read(Lun::ZERO, at, large.clone()).await.unwrap(),
                _ => q.write(Lun::ZERO, at, large.clone(), false).await.unwrap(),
            }
        }
        let n = COUNT.with(Cell::get) - before;
        // The clock ticks meanwhile: the ladder looks at commands under way now and then.
        assert!(n < 20, "{n} allocations in 2000 commands");
        s.close().await;
    });
    stop_tx.send(()).unwrap();
    target.join().unwrap();
}
