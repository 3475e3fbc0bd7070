//! Ports that have no place left, and hosts whose own dead channels have them.

use crate::peer::{Peer, login};
use crate::target::{HOST, Served, config, map, serve};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_initiator_brp::{Error, PortId, Secret, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_brp::{LoginRequest, RejectReason};
use weir_reactor::sleep;
use weir_sim::{Node, World};
use weir_target_brp::TargetConfig;
use weir_target_core::Secret as Asked;

const CHANNELS: u16 = 4;
const SECRET: &[u8] = b"what only this host and the target know";

/// A port of few channels that never finds by itself that a host is gone.
struct Full {
    world: World,
    target: Node,
    /// The host's machine, and the one that it goes on with.
    machines: [Node; 2],
    served: Rc<Served>,
}

impl Full {
    fn new(seed: u64, asked: Asked) -> Full {
        let world = World::new(seed);
        let target = world.node("target");
        let machines = [world.node("host"), world.node("host again")];
        let c = TargetConfig { max_channels: CHANNELS.into(), keep_alive: 0, ..config() };
        let memory = Slice::heap(1 << 20);
        let addr = target.addr(5555);
        let served = Rc::new(target.enter(|| serve(target.provider(), &addr, c, &memory)));
        let mut rules = map(&[0, 3]);
        rules.hosts[0].secret = asked;
        served.access.set(rules);
        Full { world, target, machines, served }
    }

    fn run<T: 'static>(&self, on: &Node, f: impl Future<Output = T> + 'static) -> T {
        match self.world.run(on, 600 * SECONDS, f) {
            Ok(v) => v,
            Err(stuck) => panic!("seed {}: {stuck}", self.world.seed()),
        }
    }

    /// A session with all channels of the port.
    fn session(&self, on: &Node, session: u64, keyed: bool) -> Result<Session, Error> {
        let s = Session::new(SessionConfig {
            session,
            channels: CHANNELS.into(),
            secret: keyed.then(|| Secret { bytes: SECRET.to_vec(), seed: [session as u8; 32] }),
            keep_alive: 0,
            ..SessionConfig::new(&self.target.addr(5555), HOST)
        });
        on.enter(|| s.join(on.provider()));
        let login = s.clone();
        let done = self.run(on, async move {
            loop {
                match login.login().await {
                    // What it ends has not ended yet.
                    Err(Error::Rejected(RejectReason::Draining)) => sleep(MILLIS).await,
                    other => break other,
                }
            }
        });
        done.map(|_| s)
    }

    /// One channel by hand. Who is to wait for what it ends comes again.
    fn enter(&self, on: &Node, login: LoginRequest) -> Result<Peer, RejectReason> {
        let (p, served): (Rc<dyn Provider>, _) = (on.provider(), self.served.clone());
        self.run(on, async move {
            loop {
                match Peer::enter(&p, &served, login, 1).await {
                    Err(RejectReason::Draining) => sleep(MILLIS).await,
                    other => break other,
                }
            }
        })
    }

    /// The host's machine loses its power; nobody is told.
    fn cut(&self) {
        self.world.net().partition(self.machines[0].number(), self.target.number());
        self.world.run_for(60 * SECONDS);
    }

    fn sessions(&self) -> Vec<(u64, usize)> {
        self.served.target.sessions().iter().map(|s| (s.session, s.channels)).collect()
    }
}

/// With a secret and without.
#[test]
fn a_host_comes_back_to_a_port_that_is_full_of_its_own_dead_channels() {
    for keyed in [false, true] {
        let asked = if keyed { Asked::Known(Arc::from(SECRET)) } else { Asked::None };
        let f = Full::new(50 + u64::from(keyed), asked);
        let old = f.session(&f.machines[0], 1, keyed).expect("the port is empty");
        f.world.run_for(SECONDS);
        assert_eq!(f.sessions(), [(1, 4)]);
        f.cut();
        assert_eq!(f.sessions(), [(1, 4)], "nobody knows that they are dead");
        let new = f.session(&f.machines[1], 2, keyed).expect("its own channels do not count");
        f.world.run_for(SECONDS);
        assert_eq!(f.sessions(), [(2, 4)]);
        assert!(f.served.port.census().credits > 0);
        // Nobody else comes in for that.
        if !keyed {
            let other = LoginRequest { initiator: PortId([9; 16]), ..login() };
            assert_eq!(f.enter(&f.machines[1], other).err(), Some(RejectReason::Resources));
        }
        let close = new.clone();
        f.run(&f.machines[1], async move { close.close().await });
        f.world.run_for(60 * SECONDS);
        assert_eq!((f.sessions(), f.served.port.census().credits), (vec![], 0));
        f.served.port.check_idle().unwrap();
        f.machines[0].enter(|| drop(old));
    }
}

/// A channel that comes back replaces its own connection, and goes on where it was.
#[test]
fn a_channel_comes_back_in_the_place_of_its_own_dead_connection() {
    let f = Full::new(52, Asked::None);
    let all: Vec<Peer> = (0..CHANNELS)
        .map(|channel| LoginRequest { channel, ..login() })
        .map(|l| f.enter(&f.machines[0], l).expect("there is a place"))
        .collect();
    // The last one's answer has arrived.
    f.world.run_for(SECONDS);
    f.cut();
    for channel in 0..CHANNELS {
        let again = f.enter(&f.machines[1], LoginRequest { channel, ..login() });
        let again = again.expect("the place is its own");
        assert!(again.granted.resumed);
        f.machines[1].enter(|| drop(again));
        f.world.run_for(SECONDS);
        // Somebody else takes it.
        let initiator = PortId([10 + channel as u8; 16]);
        let other = f.enter(&f.machines[1], LoginRequest { initiator, ..login() });
        std::mem::forget(other.expect("a place is free"));
    }
    f.machines[0].enter(|| drop(all));
}

/// A login that would be refused without the channels that it replaces, too, leaves these alone.
#[test]
fn who_is_refused_anyway_keeps_what_the_port_remembers_of_it() {
    let f = Full::new(53, Asked::None);
    let first = f.enter(&f.machines[0], login()).expect("there is a place");
    f.machines[0].enter(|| drop(first));
    f.world.run_for(SECONDS);
    let others: Vec<Peer> = (0..CHANNELS)
        .map(|n| LoginRequest { initiator: PortId([10 + n as u8; 16]), ..login() })
        .map(|l| f.enter(&f.machines[1], l).expect("there is a place"))
        .collect();
    let new = LoginRequest { session: 78, ..login() };
    assert_eq!(f.enter(&f.machines[0], new).err(), Some(RejectReason::Resources));
    let own = |p: &PortId| *p == HOST;
    let known = f.served.target.sessions();
    let known: Vec<u64> = known.iter().filter(|s| own(&s.initiator)).map(|s| s.session).collect();
    assert_eq!(known, [login().session]);
    f.machines[1].enter(|| drop(others));
}
