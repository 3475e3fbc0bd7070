//! A link so slow that what is under way takes longer than the keep-alive, by the simulator's clock.

use crate::common::{bytes, check_clean, slice};
use crate::target::{HOST, config, serve};
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_initiator_brp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_reactor::spawn;
use weir_sim::{NetConfig, Options, Style, World};

const PORT: u16 = 5555;
const MIB: usize = 1 << 20;
/// I/Os under way, of a MiB each.
const IOS: u64 = 8;
/// A MiB takes four seconds, twice the keep-alive.
const BYTE_TIME: Nanos = (4 * SECONDS) >> 20;
const KEEP_ALIVE: Nanos = 2 * SECONDS;

/// `IOS` writes or reads at once over a slow link. How often the session lost its path, and how long it took.
fn over_a_slow_link(seed: u64, style: Style, writes: bool) -> (u64, Nanos) {
    let net = NetConfig { byte_time: BYTE_TIME, style, ..NetConfig::default() };
    let world = World::with(seed, Options { net, ..Options::default() });
    let (node, host) = (world.node("target"), world.node("host"));
    let addr = node.addr(PORT);
    let memory = Slice::heap(IOS as usize * MIB);
    let t = node.enter(|| serve(node.provider(), &addr, config(), &memory));
    let s = Session::new(SessionConfig {
        keep_alive: KEEP_ALIVE,
        command_timeout: 0,
        session: 1,
        ..SessionConfig::new(&addr, HOST)
    });
    host.enter(|| s.join(host.provider()));
    let work = async move {
        s.login().await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        let mut all = Vec::new();
        for i in 0..IOS {
            let d = d.clone();
            all.push(spawn(async move {
                match writes {
                    true => d.write(i * MIB as u64, slice(&bytes(MIB, i)), false).await,
                    false => d.read(i * MIB as u64, Slice::heap(MIB)).await,
                }
            }));
        }
        for one in all {
            assert_eq!(one.await, Some(Ok(())));
        }
        let losses = s.figures().losses;
        drop(d);
        check_clean(&s, &t).await;
        losses
    };
    match world.run(&host, 600 * SECONDS, work) {
        Ok(losses) => (losses, world.now()),
        Err(stuck) => panic!("seed {seed}: {stuck}"),
    }
}

/// Data that the target has asked for keeps the host's messages waiting, and data that it sends its own.
#[test]
fn data_on_its_way_is_a_sign_of_life() {
    for seed in 0..4 {
        for style in [Style::Iwarp, Style::Verbs] {
            for writes in [true, false] {
                let (losses, took) = over_a_slow_link(seed, style, writes);
                assert_eq!(losses, 0, "seed {seed}, {style:?}, writes: {writes}");
                assert!(
                    took > 2 * IOS * KEEP_ALIVE - SECONDS,
                    "too quick a link for the test: {took} ns"
                );
            }
        }
    }
}
