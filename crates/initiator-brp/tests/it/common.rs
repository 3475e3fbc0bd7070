//! What tests share.

use crate::target::{BLOCK, HOST, Served};
use std::future::Future;
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_brp::{Disk, Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, spawn, timeout};
use weir_uring::{Ring, TcpNetwork};

pub(crate) fn session_config(t: &Served) -> SessionConfig {
    SessionConfig::new(&t.addr, HOST)
}

/// Runs a test on a reactor of its own, for a minute at most.
pub(crate) fn on_reactor<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rc<dyn Provider>) -> F,
) {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let provider = Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default());
    let f = test(Rc::new(provider));
    let done = reactor.block_on(PollMode::Sleep, async move { timeout(60 * SECONDS, f).await });
    assert!(done.is_ok(), "the test hangs");
}

pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut v = vec![0; len];
    Prng::new(seed).fill(&mut v);
    v
}

/// A slice of exactly these bytes.
pub(crate) fn slice(b: &[u8]) -> Slice {
    Slice::copy_of(b).sub(0, b.len())
}

/// Writes and reads at random with `tasks` tasks, each in its own part of the volume, and compares.
pub(crate) async fn verify(
    disk: Rc<Disk>,
    base: u64,
    len: u64,
    tasks: u64,
    rounds: usize,
    seed: u64,
) {
    let part = len / tasks / BLOCK as u64 * BLOCK as u64;
    let mut all = Vec::new();
    for t in 0..tasks {
        let d = disk.clone();
        all.push(spawn(async move {
            let mut rng = Prng::new(seed * 1000 + t);
            let from = base + t * part;
            let b = Slice::heap(part as usize).sub(0, part as usize);
            d.read(from, b.clone()).await.unwrap();
            let mut model = b.to_vec();
            for round in 0..rounds {
                let n = BLOCK * (1 + rng.below(60) as usize).min(part as usize / BLOCK);
                let at = rng.below((part as usize - n) as u64 / BLOCK as u64 + 1) * BLOCK as u64;
                let range = at as usize..at as usize + n;
                // In one piece or several.
                let cut = if rng.chance(1, 3) { 1 + rng.below(n as u64 - 1) as usize } else { n };
                match rng.below(9) {
                    0..=3 => {
                        let mut new = vec![0; n];
                        rng.fill(&mut new);
                        let parts = [slice(&new[..cut]), slice(&new[cut..])];
                        let parts = &parts[..if cut == n { 1 } else { 2 }];
                        d.write_from(from + at, parts, rng.chance(1, 4)).await.unwrap();
                        model[range].copy_from_slice(&new);
                    }
                    4 => {
                        d.write_zeroes(from + at, n as u64, rng.chance(1, 2)).await.unwrap();
                        model[range].fill(0);
                    }
                    _ => {
                        let (a, b) = (Slice::heap(n).sub(0, cut), Slice::heap(n).sub(0, n - cut));
                        let parts = [a, b];
                        let parts = &parts[..if cut == n { 1 } else { 2 }];
                        d.read_to(from + at, parts).await.unwrap();
                        let got: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
                        if got != model[range.clone()] {
                            let i = (0..n).find(|i| got[*i] != model[range.start + i]).unwrap();
                            panic!(
                                "round {round}, seed {seed}, task {t}: {n} bytes at {at} differ from byte {i}"
                            );
                        }
                    }
                }
            }
        }));
    }
    for t in all {
        t.await.unwrap();
    }
}

/// Nothing is held at either side once all is quiet.
pub(crate) async fn check_clean(s: &Session, t: &Served) {
    for c in s.census() {
        assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "{c:?}");
    }
    s.close().await;
    for _ in 0..2000 {
        if t.port.census().channels == 0 {
            break;
        }
        weir_reactor::sleep(SECONDS / 1000).await;
    }
    t.port.check_idle().unwrap();
    let c = t.port.census();
    assert_eq!(c.channels, 0);
    assert!(c.data_pool.iter().all(|c| c.free == c.total), "{c:?}");
    assert!(t.target.sessions().is_empty());
}
