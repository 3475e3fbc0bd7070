//! Logins of hosts that have a secret: who is let in, and what one that is not can do to those who are.

use crate::common::{bytes, slice};
use crate::target::{HOST, Served, config, map, serve};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::SECONDS;
use weir_fabric::{Connection, FabricError, Params, SendFlags};
use weir_initiator_brp::{Disk, Error, PortId, RejectReason, Secret, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_brp::keyed::{self, Challenge, HELLO_LEN, Transcript};
use weir_proto_brp::{Features, LoginReject, LoginRequest};
use weir_reactor::{CompletionQueue, Token, completion, sleep};
use weir_sim::{Cut, Node, World};
use weir_target_core::{AccessMap, Secret as Asked};

const PORT: u16 = 5555;
const SECRET: &[u8] = b"what only this host and the target know";

fn rules(secret: Asked) -> AccessMap {
    let mut all = map(&[0, 3]);
    all.hosts[0].secret = secret;
    all
}

fn known(secret: &[u8]) -> Asked {
    Asked::Known(Arc::from(secret))
}

fn secret(bytes: &[u8]) -> Option<Secret> {
    Some(Secret { bytes: bytes.to_vec(), seed: [9; 32] })
}

struct Keyed {
    world: World,
    node: Node,
    host: Node,
    served: Served,
    memory: Slice,
}

impl Keyed {
    fn new(seed: u64, asked: Asked) -> Keyed {
        let world = World::new(seed);
        let (node, host) = (world.node("target"), world.node("host"));
        let memory = Slice::heap(1 << 20);
        let served = node.enter(|| serve(node.provider(), &node.addr(PORT), config(), &memory));
        served.access.set(rules(asked));
        Keyed { world, node, host, served, memory }
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        match self.world.run(&self.host, 3600 * SECONDS, f) {
            Ok(v) => v,
            Err(stuck) => panic!("seed {}: {stuck}", self.world.seed()),
        }
    }

    fn login(&self, session: u64, secret: Option<Secret>) -> Result<Session, Error> {
        let c = SessionConfig {
            session,
            secret,
            keep_alive: 2 * SECONDS,
            fast_io_fail: 4 * SECONDS,
            ..SessionConfig::new(&self.node.addr(PORT), HOST)
        };
        let s = Session::new(c);
        self.host.enter(|| s.join(self.host.provider()));
        let login = s.clone();
        self.run(async move { login.login().await })?;
        Ok(s)
    }

    fn open(&self, s: &Session) -> Rc<Disk> {
        let q = self.host.enter(|| s.queue());
        Rc::new(self.run(async move { q.open("v").await.unwrap() }))
    }

    /// Writes and reads back.
    fn use_it(&self, disk: &Rc<Disk>, seed: u64) -> Result<(), Error> {
        let (disk, data) = (disk.clone(), bytes(64 << 10, seed));
        let memory = self.memory.clone();
        self.run(async move {
            disk.write(4096, slice(&data), false).await?;
            assert!(memory.sub(4096, data.len()).to_vec() == data);
            Ok(())
        })
    }

    /// Ends a session; then nothing is left at the target.
    fn end(&self, s: &Session) {
        let last = s.clone();
        self.run(async move { last.close().await });
        self.world.run_for(20 * SECONDS);
        self.served.port.check_idle().unwrap();
        assert_eq!(self.served.port.census().credits, 0);
        assert!(self.served.target.sessions().is_empty());
    }

    /// A connection of our own making with the private data of a login, and the answer.
    fn connect(&self, r: &LoginRequest) -> Result<Raw, FabricError> {
        self.connect_from(&self.host, r)
    }

    /// The same from another machine.
    fn connect_from(&self, from: &Node, r: &LoginRequest) -> Result<Raw, FabricError> {
        let (provider, addr) = (from.provider(), self.node.addr(PORT));
        let private_data = r.encode().to_vec();
        let connected = self.world.run(from, 3600 * SECONDS, async move {
            let recv_queue = provider.recv_queue(4, 4096)?;
            let cq = CompletionQueue::new();
            let buffers: Vec<Slice> = (0..4).map(|_| Slice::heap(4096)).collect();
            for (i, b) in buffers.iter().enumerate() {
                recv_queue.post(b.clone(), cq.token(i as u32));
            }
            let params = Params { private_data, recv_queue, reads_out: 0, reads_in: 4 };
            let (conn, answer) = provider.connect(&addr, params).await?;
            Ok(Raw { conn, answer, cq, buffers })
        });
        match connected {
            Ok(raw) => raw,
            Err(stuck) => panic!("seed {}: {stuck}", self.world.seed()),
        }
    }

    /// What comes for a message, if something comes before the connection ends.
    fn answer(&self, raw: Raw, message: &[u8]) -> Option<Vec<u8>> {
        let message = message.to_vec();
        self.run(async move {
            assert!(raw.conn.send_slots().try_wait());
            raw.conn.send(&message, None, SendFlags::default(), Token::NONE);
            raw.next().await
        })
    }
}

struct Raw {
    conn: Rc<dyn Connection>,
    answer: Vec<u8>,
    cq: CompletionQueue,
    buffers: Vec<Slice>,
}

impl Raw {
    async fn next(&self) -> Option<Vec<u8>> {
        let (token, closed) = completion();
        self.conn.on_closed(token);
        closed.await;
        let (user, c) = self.cq.try_next()?;
        c.is_ok().then(|| self.buffers[user as usize].sub(0, c.len as usize).to_vec())
    }
}

fn request(session: u64) -> LoginRequest {
    LoginRequest {
        version_min: 1,
        version_max: 1,
        features: Features::USUAL.or(Features::KEYED),
        initiator: HOST,
        target: PortId::default(),
        session,
        channel: 0,
        depth: 8,
        max_message: 64,
        keep_alive: 0,
    }
}

const NO: Error = Error::Rejected(RejectReason::Secret);

#[test]
fn who_knows_the_secret_is_let_in_again_and_again() {
    let k = Keyed::new(1, known(SECRET));
    let s = k.login(1, secret(SECRET)).unwrap();
    let disk = k.open(&s);
    for round in 0..5 {
        k.use_it(&disk, round).unwrap();
        k.world.net().cut_any(Cut::Both);
        k.world.run_for(SECONDS);
    }
    k.use_it(&disk, 9).unwrap();
    assert!(s.figures().reconnects >= 5, "{:?}", s.figures());
    k.end(&s);
}

#[test]
fn who_does_not_know_it_is_refused_and_costs_the_others_nothing() {
    let k = Keyed::new(2, known(SECRET));
    let s = k.login(1, secret(SECRET)).unwrap();
    let disk = k.open(&s);
    // Neither a new session, which would end all others of the port, nor the same one, which would end its channel.
    for session in [1, 2] {
        assert_eq!(k.login(session, None).err(), Some(NO));
        assert_eq!(k.login(session, secret(b"sixteen bytes or so")).err(), Some(NO));
    }
    k.use_it(&disk, 1).unwrap();
    assert_eq!(s.figures().losses, 0);
    k.end(&s);
    let lost = Keyed::new(3, Asked::Lost);
    assert_eq!(lost.login(1, None).err(), Some(NO));
    assert_eq!(lost.login(1, secret(SECRET)).err(), Some(NO));
}

#[test]
fn a_target_that_does_not_know_the_secret_is_not_used() {
    let k = Keyed::new(4, Asked::None);
    assert_eq!(k.login(1, secret(SECRET)).err(), Some(NO));
    // One that lets everybody in has no proof to show either.
    let hello = Transcript::new(
        &request(1),
        &Challenge { version: 1, nonce: [0; 32], target: HOST },
        [1; 32],
    );
    let forged = hello.welcome(b"some other secret", &forged_response());
    assert_eq!(keyed::answer(&forged, SECRET, &hello), Ok(keyed::Answer::NotProved));
}

fn forged_response() -> weir_proto_brp::LoginResponse {
    weir_proto_brp::LoginResponse {
        version: 1,
        resumed: false,
        features: Features::USUAL,
        incarnation: 1,
        power: 1,
        depth: 8,
        credits: 8,
        max_message: 64,
        keep_alive: 0,
        max_len: 4096,
        max_segments: 1,
        max_commands: 1,
        target: HOST,
        memory: 1,
    }
}

#[test]
fn a_hello_that_was_heard_is_of_no_use() {
    let k = Keyed::new(5, known(SECRET));
    let raw = k.connect(&request(7)).unwrap();
    let challenge = Challenge::decode(&raw.answer).unwrap();
    let heard = Transcript::new(&request(7), &challenge, [1; 32]).hello(SECRET);
    // The right one gets its welcome (and the raw peer's end is a lost connection).
    let raw2 = k.connect(&request(7)).unwrap();
    assert_ne!(Challenge::decode(&raw2.answer).unwrap().nonce, challenge.nonce);
    let refused = k.answer(raw2, &heard).unwrap();
    assert_eq!(refused, keyed::refused(RejectReason::Secret));
    raw.conn.disconnect(true);
    k.world.run_for(10 * SECONDS);
    k.served.port.check_idle().unwrap();
    assert!(k.served.target.sessions().is_empty());
}

#[test]
fn who_says_nothing_or_something_else_is_dropped_and_leaves_room() {
    let k = Keyed::new(6, known(SECRET));
    let silent: Vec<Raw> = (0..64).map(|i| k.connect(&request(100 + i)).unwrap()).collect();
    // No more than so many at a time.
    match k.connect(&request(200)) {
        Err(FabricError::Rejected(data)) => {
            let r = LoginReject::decode(&data).unwrap();
            assert_eq!(r.reason, RejectReason::Resources);
        }
        other => panic!("let in: {}", other.is_ok()),
    }
    k.world.run_for(6 * SECONDS);
    assert!(silent.iter().all(|r| !r.conn.is_open()));
    assert_eq!(k.served.port.census().credits, 0);
    // Commands before any proof, a short HELLO, a long one.
    let mut long = Transcript::new(
        &request(1),
        &Challenge { version: 1, nonce: [0; 32], target: HOST },
        [1; 32],
    )
    .hello(SECRET)
    .to_vec();
    long.push(0);
    for message in [vec![1; 64], long[..HELLO_LEN - 1].to_vec(), long.clone(), vec![]] {
        let raw = k.connect(&request(300)).unwrap();
        assert_eq!(k.answer(raw, &message), None);
    }
    let s = k.login(1, secret(SECRET)).unwrap();
    k.end(&s);
}

#[test]
fn a_secret_that_is_new_ends_sessions_without_it() {
    let k = Keyed::new(7, Asked::None);
    let s = k.login(1, None).unwrap();
    let disk = k.open(&s);
    k.use_it(&disk, 1).unwrap();
    k.served.access.set(rules(known(SECRET)));
    let e = {
        let disk = disk.clone();
        k.run(async move {
            sleep(SECONDS).await;
            disk.write(0, slice(&[1; 4096]), false).await
        })
    };
    assert!(e.is_err());
    assert_ne!(k.memory.sub(0, 4096).to_vec(), vec![1; 4096]);
    let keyed = k.login(2, secret(SECRET)).unwrap();
    k.served.access.set(rules(known(b"another secret, also good")));
    k.world.run_for(SECONDS);
    let disk = k.host.enter(|| keyed.queue());
    assert!(k.run(async move { disk.open("v").await }).is_err());
    let last = k.login(3, secret(b"another secret, also good")).unwrap();
    k.end(&last);
}

/// A host gets a secret, which ends its connection, and loses the volume. Unmapping promises that nothing of the host
/// reaches the volume afterwards: it has to wait for the write that is at the device.
#[test]
fn unmapping_waits_for_writes_of_a_host_whose_secret_is_new() {
    let k = Keyed::new(8, Asked::None);
    let s = k.login(1, None).unwrap();
    let disk = k.open(&s);
    k.use_it(&disk, 1).unwrap();
    k.served.mood.direct.set(false);
    k.served.mood.stall.set(true);
    let writing = disk.clone();
    k.host.spawn(async move { writing.write(0, slice(&[7; 4096]), false).await });
    k.world.run_for(SECONDS);
    assert_eq!(k.served.port.census().requests_busy, 1, "the write is at the device");
    k.served.access.set(rules(known(SECRET)));
    k.world.run_for(SECONDS);
    // What the node does to unmap it.
    let mut none = rules(known(SECRET));
    none.hosts[0].luns.clear();
    k.served.access.set(none);
    let unit = k.served.unit.clone();
    let parted = k.node.spawn(async move { unit.part().await });
    k.world.run_for(3 * SECONDS);
    let before = (parted.is_finished(), k.memory.sub(0, 1).to_vec()[0]);
    k.served.mood.stall.set(false);
    k.world.run_for(3 * SECONDS);
    let landed = k.memory.sub(0, 1).to_vec()[0] == 7;
    assert!(parted.is_finished());
    assert!(
        !(before == (true, 0) && landed),
        "a write of the host has landed after the unmapping had ended"
    );
}

/// The map is looked at while the channel has no connection, and asks for a secret by then. Its host goes on with the
/// channel, knows the secret, and finds what it had.
#[test]
fn a_channel_that_goes_on_with_the_new_secret_sees_its_volumes() {
    let k = Keyed::new(9, Asked::None);
    // Without a command: a session that is made anew knows nothing of their numbers.
    let old = k.login(1, None).unwrap();
    k.world.net().partition(k.host.number(), k.node.number());
    k.world.run_for(5 * SECONDS);
    k.served.access.set(rules(known(SECRET)));
    let unit = k.served.unit.clone();
    k.node.spawn(async move { unit.part().await });
    k.world.run_for(SECONDS);
    k.world.net().heal(k.host.number(), k.node.number());
    let s = k.login(1, secret(SECRET)).unwrap();
    let disk = k.open(&s);
    k.use_it(&disk, 2).unwrap();
    drop(old);
    k.end(&s);
}

/// One host's write is with a device that does not answer. Another host's COMPARE AND WRITE of the same blocks waits for it, has
/// done nothing, and holds nothing; then that host starts anew. What waits for other commands gives up when nobody waits for it
/// (as it does over SRP). So the host, which has nothing at the device, is let in.
#[test]
fn a_command_that_waits_for_another_hosts_does_not_keep_its_own_host_out() {
    let k = Keyed::new(10, Asked::None);
    k.served.mood.direct.set(false);
    let login = |node: &Node, session| {
        let c = SessionConfig {
            session,
            keep_alive: 2 * SECONDS,
            fast_io_fail: 4 * SECONDS,
            ..SessionConfig::new(&k.node.addr(PORT), PortId([8; 16]))
        };
        let s = Session::new(c);
        node.enter(|| s.join(node.provider()));
        let l = s.clone();
        match k.world.run(node, 3600 * SECONDS, async move { l.login().await }) {
            Ok(r) => r.map(|()| s),
            Err(stuck) => panic!("{stuck}"),
        }
    };
    let s = k.login(1, None).unwrap();
    let disk = k.open(&s);
    let other = k.world.node("other host");
    let s2 = login(&other, 5).unwrap();
    let q = other.enter(|| s2.queue());
    let disk2 = k.world.run(&other, 60 * SECONDS, async move { q.open("v").await.unwrap() });
    let disk2 = disk2.ok().unwrap();
    k.served.mood.stall.set(true);
    k.host.spawn(async move { disk.write(0, slice(&[7; 4096]), false).await });
    k.world.run_for(SECONDS);
    other.spawn(async move { disk2.compare_and_write(0, slice(&[0; 1024])).await });
    k.world.run_for(SECONDS);
    assert_eq!(k.served.port.census().requests_busy, 2);
    other.kill();
    let again = k.world.node("other host, started anew");
    let mut told = Vec::new();
    for session in 6..16 {
        k.world.run_for(5 * SECONDS);
        match login(&again, session) {
            Ok(_) => return,
            Err(e) => told.push(e.to_string()),
        }
    }
    panic!("not let in within a minute: {told:?}");
}

/// Machines that know the identifier of a host with a secret, which is no secret, and prove nothing. However many connections
/// they make, that host comes in.
#[test]
fn a_crowd_that_proves_nothing_keeps_nobody_of_another_address_out() {
    for machines in [1, 3] {
        let k = Keyed::new(11, known(SECRET));
        let crowd: Vec<Node> = (0..machines).map(|i| k.world.node(&format!("crowd {i}"))).collect();
        let mut raw: Vec<Raw> = Vec::new();
        for i in 0..200 {
            raw.extend(k.connect_from(&crowd[i % machines], &request(1000 + i as u64)).ok());
        }
        assert!(raw.iter().filter(|r| r.conn.is_open()).count() >= 63);
        let s = k.login(1, secret(SECRET)).expect("it knows the secret");
        let disk = k.open(&s);
        k.use_it(&disk, 1).unwrap();
        k.end(&s);
    }
}
