//! What tests share.

use crate::target::{BLOCK, HOST, Served};
use std::future::Future;
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Queue, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_reactor::{PollMode, Reactor, spawn, timeout};
use weir_uring::{Ring, TcpNetwork};

pub(crate) fn session_config(t: &Served) -> SessionConfig {
    SessionConfig::new(&t.addr, t.target.port_id(), HOST)
}

pub(crate) const L0: Lun = Lun::ZERO;

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

/// Writes and reads at random with `tasks` tasks, each in its own part of the disk, and compares.
pub(crate) async fn verify(q: &Queue, len: u64, tasks: u64, rounds: usize, seed: u64) {
    verify_at(q, 0, len, tasks, rounds, seed).await;
}

/// As [`verify`], from `base` on.
pub(crate) async fn verify_at(
    q: &Queue,
    base: u64,
    len: u64,
    tasks: u64,
    rounds: usize,
    seed: u64,
) {
    let part = len / tasks / BLOCK as u64 * BLOCK as u64;
    let mut all = Vec::new();
    for t in 0..tasks {
        let q = q.clone();
        all.push(spawn(async move {
            let mut rng = Prng::new(seed + t);
            let mut model: Option<Vec<u8>> = None;
            for round in 0..rounds {
                let n = BLOCK * (1 + rng.below(40) as usize).min(part as usize / BLOCK);
                let at = rng.below((part as usize - n) as u64 / BLOCK as u64 + 1) * BLOCK as u64;
                let model = match &mut model {
                    Some(m) => m,
                    None => {
                        let b = Slice::heap(part as usize);
                        q.read(L0, base + t * part, b.clone()).await.unwrap();
                        model.insert(b.to_vec())
                    }
                };
                let range = at as usize..at as usize + n;
                if rng.below(2) == 0 {
                    let bytes: Vec<u8> =
                        (0..n).map(|i| (i as u64 ^ rng.next_u64() ^ round as u64) as u8).collect();
                    let b = Slice::copy_of(&bytes).sub(0, n);
                    q.write(L0, base + t * part + at, b, false).await.unwrap();
                    model[range].copy_from_slice(&bytes);
                } else {
                    let b = Slice::heap(n).sub(0, n);
                    q.read(L0, base + t * part + at, b.clone()).await.unwrap();
                    let got = b.to_vec();
                    if let Some(i) = (0..n).find(|i| got[*i] != model[range.start + i]) {
                        let wrong = (0..n).filter(|i| got[*i] != model[range.start + i]).count();
                        panic!(
                            "round {round}, seed {seed}, task {t}: {n} bytes at {at}: {wrong} wrong, the \
                             first at {i}: {:x?} instead of {:x?}",
                            &got[i..(i + 16).min(n)],
                            &model[range.start + i..][..16.min(n - i)]
                        );
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
pub(crate) async fn check_clean(s: Option<&Session>, t: &Served) {
    if let Some(s) = s {
        for c in s.census() {
            assert_eq!((c.busy, c.registrations, c.waiting), (0, 0, 0), "{c:?}");
        }
        s.close().await;
    }
    for _ in 0..2000 {
        if t.port.census().channels == 0 {
            break;
        }
        weir_reactor::sleep(SECONDS / 1000).await;
    }
    t.port.check_idle().unwrap();
    assert_eq!(t.port.census().channels, 0);
}
