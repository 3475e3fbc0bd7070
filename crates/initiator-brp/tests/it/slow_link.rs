//! A link so slow that what is under way takes longer than the keep-alive.

use crate::common::{bytes, check_clean, on_reactor, session_config, slice};
use crate::target::{config, serve};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_base::MILLIS;
use weir_initiator_brp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::spawn;

/// Passes on what comes, so many bytes a second.
fn relay(mut from: TcpStream, mut to: TcpStream, rate: u64) {
    let (begin, mut done, mut part) = (Instant::now(), 0u64, [0; 8192]);
    while let Ok(n) = from.read(&mut part) {
        if n == 0 || to.write_all(&part[..n]).is_err() {
            break;
        }
        done += n as u64;
        let due = Duration::from_nanos(done * 1_000_000_000 / rate);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}

/// A link to `addr` of so many bytes a second in each direction. Gives its address, and counts connections.
fn link(addr: String, out: u64, back: u64) -> (String, Arc<AtomicUsize>) {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, count) = (l.local_addr().unwrap().to_string(), Arc::new(AtomicUsize::new(0)));
    let n = count.clone();
    std::thread::spawn(move || {
        while let Ok((host, _)) = l.accept() {
            n.fetch_add(1, Ordering::Relaxed);
            let Ok(target) = TcpStream::connect(&addr) else { return };
            let (h, t) = (host.try_clone().unwrap(), target.try_clone().unwrap());
            std::thread::spawn(move || relay(h, t, out));
            std::thread::spawn(move || relay(target, host, back));
        }
    });
    (at, count)
}

/// Each way in turns: data that the target asks for and that it sends, twenty times as long on its way as the
/// keep-alive.
#[test]
fn data_on_its_way_is_a_sign_of_life() {
    for (out, back) in [(2 << 20, 1 << 30), (1 << 30, 2 << 20)] {
        on_reactor(move |p| async move {
            let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(8 << 20));
            let (addr, connections) = link(t.addr.clone(), out, back);
            let c =
                SessionConfig { addrs: vec![addr], keep_alive: 400 * MILLIS, ..session_config(&t) };
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
