//! A link so slow that what is under way takes longer than the keep-alive.

use crate::common::{bytes, check_clean, on_reactor, session_config, slice};
use crate::target::{config, serve};
use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_base::MILLIS;
use weir_initiator_brp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::spawn;
use weir_uring::{SocketOptions, TcpListener, TcpStream};

/// The link itself holds little: what it has not passed on, the other end has not got.
const SMALL: usize = 64 << 10;

fn pause() {
    std::thread::sleep(Duration::from_micros(300));
}

/// Passes on what comes, so many bytes a second.
fn relay(from: &TcpStream, to: &TcpStream, rate: u64) {
    let (begin, mut done, mut part) = (Instant::now(), 0u64, [0; 8192]);
    loop {
        let n = match from.try_recv(&mut [IoSliceMut::new(&mut part)]) {
            Ok(Ok(n)) if n > 0 => n,
            Ok(Err(_)) => {
                pause();
                continue;
            }
            _ => break,
        };
        let mut left = &part[..n];
        while !left.is_empty() {
            match to.try_send(left) {
                Ok(Ok(n)) => left = &left[n..],
                Ok(Err(_)) => pause(),
                Err(_) => break,
            }
        }
        done += n as u64;
        let due = Duration::from_nanos(done * 1_000_000_000 / rate);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    from.shutdown(true);
    to.shutdown(true);
}

/// A link to `addr` of so many bytes a second in each direction. Gives its address, and counts connections.
fn link(addr: &str, out: u64, back: u64) -> (String, Arc<AtomicUsize>) {
    let l = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (at, count) = (l.local_addr().unwrap().to_string(), Arc::new(AtomicUsize::new(0)));
    let (n, addr) = (count.clone(), addr.parse().unwrap());
    let options = SocketOptions { buffer: SMALL, ..SocketOptions::default() };
    std::thread::spawn(move || {
        loop {
            let Ok(Ok(host)) = l.try_accept(options) else {
                pause();
                continue;
            };
            n.fetch_add(1, Ordering::Relaxed);
            let Ok(target) = TcpStream::connect(addr, options) else { return };
            while target.connected().is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock) {
                pause();
            }
            let (h, t) = (Arc::new(host), Arc::new(target));
            let (h2, t2) = (h.clone(), t.clone());
            std::thread::spawn(move || relay(&h, &t, out));
            std::thread::spawn(move || relay(&t2, &h2, back));
        }
    });
    (at, count)
}

/// Each way in turns: data that the target asks for and that it sends, eight times as long on its way as the keep-alive.
#[test]
fn data_on_its_way_is_a_sign_of_life() {
    for (out, back) in [(2 << 20, 1 << 30), (1 << 30, 2 << 20)] {
        on_reactor(move |p| async move {
            let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(8 << 20));
            let (addr, connections) = link(&t.addr, out, back);
            let c =
                SessionConfig { addrs: vec![addr], keep_alive: 500 * MILLIS, ..session_config(&t) };
            let s = Session::connect(p, c).await.unwrap();
            let d = Rc::new(s.queue().open("v").await.unwrap());
            let mut all = Vec::new();
            for i in 0..8u64 {
                let d = d.clone();
                all.push(spawn(async move {
                    if out < back {
                        d.write(i << 20, slice(&bytes(1 << 20, i)), false).await
                    } else {
                        d.read(i << 20, Slice::heap(1 << 20)).await
                    }
                }));
            }
            for one in all {
                assert_eq!(one.await, Some(Ok(())));
            }
            assert_eq!((s.figures().losses, connections.load(Ordering::Relaxed)), (0, 1));
            drop(d);
            check_clean(&s, &t).await;
        });
    }
}
