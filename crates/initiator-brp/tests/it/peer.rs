//! A host that speaks BRP by hand, so that it can say what no initiator of ours would.

use crate::target::{HOST, Served};
use std::rc::Rc;
use weir_base::{MICROS, SECONDS};
use weir_fabric::{Connection, FabricError, Params, Provider, RecvQueue, SendFlags};
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor, Layout, flag};
use weir_proto_brp::completion::{Completion, Completions};
use weir_proto_brp::login::{VERSION, units};
use weir_proto_brp::message::seal;
use weir_proto_brp::{
    Features, Header, Kind, LoginReject, LoginRequest, LoginResponse, Op, PortId, RejectReason,
    VolumeInfo, sums,
};
use weir_reactor::{CompletionQueue, Token, now, sleep};

/// Longest message that the peer receives, in bytes.
pub(crate) const ROOM: usize = 40 << 10;

/// A login as a host in good order sends it.
pub(crate) fn login() -> LoginRequest {
    LoginRequest {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::USUAL,
        initiator: HOST,
        target: PortId::default(),
        session: 77,
        channel: 0,
        depth: 64,
        max_message: units(ROOM),
        keep_alive: 0,
    }
}

/// A connection of its own making, with a login that was let in.
pub(crate) struct Peer {
    pub(crate) conn: Rc<dyn Connection>,
    pub(crate) granted: LoginResponse,
    queue: Rc<dyn RecvQueue>,
    cq: CompletionQueue,
    buffers: Vec<Slice>,
}

/// Gone is gone: what was under way is lost.
impl Drop for Peer {
    fn drop(&mut self) {
        self.conn.disconnect(true);
    }
}

impl Peer {
    /// Logs in, and serves so many RDMA READs at once.
    pub(crate) async fn enter(
        p: &Rc<dyn Provider>,
        t: &Served,
        login: LoginRequest,
        reads: u16,
    ) -> Result<Peer, RejectReason> {
        Peer::enter_at(p, &t.addr, login, reads).await
    }

    /// As [`enter`](Peer::enter), at an address.
    pub(crate) async fn enter_at(
        p: &Rc<dyn Provider>,
        addr: &str,
        login: LoginRequest,
        reads: u16,
    ) -> Result<Peer, RejectReason> {
        let queue = p.recv_queue(64, ROOM).unwrap();
        let (cq, buffers) = (CompletionQueue::new(), (0..64).map(|_| Slice::heap(ROOM)));
        let buffers: Vec<Slice> = buffers.collect();
        for (i, b) in buffers.iter().enumerate() {
            queue.post(b.clone(), cq.token(i as u32));
        }
        let private_data = login.encode().to_vec();
        let recv_queue = queue.clone();
        let params = Params { private_data, recv_queue, reads_out: 0, reads_in: reads };
        match p.connect(addr, params).await {
            Ok((conn, data)) => {
                let granted = LoginResponse::decode(&data).unwrap();
                Ok(Peer { conn, granted, queue, cq, buffers })
            }
            Err(FabricError::Rejected(data)) => Err(LoginReject::decode(&data).unwrap().reason),
            Err(e) => panic!("the login failed: {e}"),
        }
    }

    fn integrity(&self) -> bool {
        self.granted.features.has(Features::INTEGRITY)
    }

    /// Sends commands in one message, each with its descriptors and its inline data.
    pub(crate) fn send(&self, all: &[(Command, &[Descriptor], &[u8])]) {
        self.say(&message(all, self.integrity()));
    }

    /// Sends any bytes as a message.
    pub(crate) fn say(&self, bytes: &[u8]) {
        assert!(self.conn.send_slots().try_wait(), "a place in the send queue");
        self.conn.send(bytes, None, SendFlags::default(), Token::NONE);
    }

    /// The next message; `None` when the connection has ended, or nothing comes.
    pub(crate) async fn next(&self) -> Option<Vec<u8>> {
        let until = now() + 20 * SECONDS;
        while now() < until {
            if let Some((i, c)) = self.cq.try_next() {
                let bytes = self.buffers[i as usize].to_vec()[..c.len as usize].to_vec();
                self.queue.post(self.buffers[i as usize].clone(), self.cq.token(i));
                return c.is_ok().then_some(bytes);
            }
            if !self.conn.is_open() {
                return None;
            }
            sleep(20 * MICROS).await;
        }
        None
    }

    /// The next `n` completions with their inline data; what is said of checksums has been checked for those of `of`.
    pub(crate) async fn completions(&self, n: usize, of: &[Command]) -> Vec<(Completion, Vec<u8>)> {
        self.try_completions(n, of, ROOM).await.expect("an answer")
    }

    /// As [`completions`](Peer::completions), in messages of at most `room` bytes; `None` when the connection has ended.
    pub(crate) async fn try_completions(
        &self,
        n: usize,
        of: &[Command],
        room: usize,
    ) -> Option<Vec<(Completion, Vec<u8>)>> {
        let mut all = Vec::new();
        while all.len() < n {
            let Some(m) = self.next().await else {
                assert!(!self.conn.is_open(), "{} answers are missing", n - all.len());
                return None;
            };
            assert!(m.len() <= room, "a message of {} bytes", m.len());
            let header = Header::decode(&m, false).unwrap();
            if header.kind != Kind::Completions {
                continue;
            }
            for i in Completions::decode(&header, &m, self.integrity()).unwrap().iter() {
                let c = of.iter().find(|c| (c.tag, c.seq) == (i.completion.tag, i.completion.seq));
                if let Some(c) = c.filter(|_| self.integrity() && !i.data.is_empty()) {
                    assert_eq!(sums::verify(c.offset, i.data, i.sums), None);
                    assert_eq!(i.sums.len(), sums::count(c.offset, i.data.len() as u64));
                }
                all.push((i.completion, i.data.to_vec()));
            }
        }
        Some(all)
    }

    /// The first volume. Takes slot 0 with number 1.
    pub(crate) async fn volume(&self) -> VolumeInfo {
        let list = list();
        self.send(&[(list, &[], &[])]);
        let all = self.completions(1, &[list]).await;
        VolumeInfo::decode(&all[0].1).unwrap()
    }
}

/// Commands in one message, each with its descriptors and its inline data; with checksums or without.
pub(crate) fn message(all: &[(Command, &[Descriptor], &[u8])], integrity: bool) -> Vec<u8> {
    let sums: usize = all.iter().map(|(c, ..)| c.sums_out()).sum();
    let layout = Layout {
        commands: all.len(),
        descriptors: all.iter().map(|(_, d, _)| d.len()).sum(),
        sums: if integrity { sums } else { 0 },
    };
    let data: usize = all.iter().map(|(.., d)| d.len()).sum();
    let mut m = layout.header(data as u32).encode().to_vec();
    all.iter().for_each(|(c, ..)| m.extend(c.encode()));
    all.iter().flat_map(|(_, d, _)| *d).for_each(|d| m.extend(d.encode()));
    for (c, _, data) in all.iter().filter(|_| integrity) {
        let mut n = 0;
        sums::each(c.offset, data, |s| {
            m.extend(s.to_le_bytes());
            n += 1;
        });
        // What is described has checksums too; nobody comes to compare them.
        (n..c.sums_out()).for_each(|_| m.extend([0; 4]));
    }
    m.resize(layout.control(), 0);
    if integrity {
        seal(&mut m);
    }
    all.iter().for_each(|(.., d)| m.extend(*d));
    m
}

/// LIST in slot 0, with number 1.
pub(crate) fn list() -> Command {
    Command { len: 192 * 8, seq: 1, flags: flag::INLINE_IN, ..command(Op::List, 0) }
}

/// A command of slot `tag`, the first one there.
pub(crate) fn command(op: Op, tag: u16) -> Command {
    Command {
        op: op as u8,
        flags: 0,
        tag,
        seq: 1,
        offset: 0,
        len: 0,
        volume: 0,
        segments: 0,
        guard: 0,
    }
}
