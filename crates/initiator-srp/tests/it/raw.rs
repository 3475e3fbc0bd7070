//! A peer that speaks iWARP by hand over TCP, on a thread of its own, and answers the target's RDMA READs as no host in good order
//! does.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use weir_base::Prng;
use weir_proto_iwarp::mpa::{Enhanced, HEADER, Reply, Request};
use weir_proto_iwarp::terminate::{Code, Order};
use weir_proto_iwarp::{Op, tx};

/// Ways to answer a READ. The first of them are right ones.
pub(crate) const KINDS: u64 = 16;
const RIGHT: u64 = 5;
/// READs that the peer says it serves at once.
const READS: u16 = 16;

/// A READ of the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    stag: u32,
    to: u64,
    len: usize,
}

/// What comes from the target.
pub(crate) enum Came {
    Message(Vec<u8>),
    Read(Asked),
    /// Nothing more: it has ended the connection.
    End,
}

/// The connection.
pub(crate) struct Raw {
    stream: TcpStream,
    /// Of the next message.
    msn: u32,
    /// How often READs were answered in each way.
    pub(crate) answered: [u32; KINDS as usize],
}

fn fpdu(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let (trailer, n) = tx::trailer(header.len() + payload.len() - 2, None);
    [header, payload, &trailer[..n]].concat()
}

/// A READ response of so many bytes at a place, in segments of `most`.
fn response(stag: u32, to: u64, len: usize, most: usize, byte: u8) -> Vec<u8> {
    let (mut out, mut done) = (Vec::new(), 0);
    loop {
        let n = most.min(len - done);
        let last = done + n == len;
        let at = to.wrapping_add(done as u64);
        let header = tx::tagged_header(Op::ReadResponse, stag, at, n, last);
        out.extend(fpdu(&header, &vec![byte; n]));
        done += n;
        if last {
            return out;
        }
    }
}

impl Raw {
    /// Connects with this login, and gives what the target says to it.
    pub(crate) fn enter(address: &str, private_data: &[u8]) -> (Raw, Vec<u8>) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        // For "must happen": the target answers everything, or ends the connection.
        stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        let request = Request {
            revision: 2,
            markers: false,
            crc: false,
            enhanced: Some(Enhanced { ird: READS, ..Enhanced::default() }),
            private_data: private_data.to_vec(),
        };
        stream.write_all(&request.encode().unwrap()).unwrap();
        let mut frame = vec![0; HEADER];
        stream.read_exact(&mut frame).unwrap();
        let len = u16::from_be_bytes([frame[18], frame[19]]);
        frame.resize(HEADER + usize::from(len), 0);
        stream.read_exact(&mut frame[HEADER..]).unwrap();
        let reply = Reply::decode(&frame).unwrap();
        assert!(!reply.reject && !reply.crc, "{reply:?}");
        (Raw { stream, msn: 1, answered: [0; KINDS as usize] }, reply.private_data)
    }

    /// Sends a message. One to a connection that the target has ended is lost.
    pub(crate) fn say(&mut self, message: &[u8]) {
        let header = tx::untagged_header(Op::Send, 0, 0, self.msn, 0, message.len(), true);
        self.msn += 1;
        drop(self.stream.write_all(&fpdu(&header, message)));
    }

    /// One segment, without its trailer; `None` at the end.
    fn segment(&mut self) -> Option<Vec<u8>> {
        let mut len = [0; 2];
        self.fill(&mut len)?;
        let n = usize::from(u16::from_be_bytes(len));
        let mut whole = vec![0; n + tx::padding(n) + 4];
        self.fill(&mut whole)?;
        whole.truncate(n);
        Some(whole)
    }

    fn fill(&mut self, to: &mut [u8]) -> Option<()> {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        let done = self.stream.read_exact(to);
        if let Err(e) = &done {
            let waits = matches!(e.kind(), TimedOut | WouldBlock);
            assert!(!waits, "the target neither answers nor ends the connection");
        }
        done.ok()
    }

    /// The next message or READ of the target.
    pub(crate) fn next(&mut self) -> Came {
        const UNTAGGED: usize = tx::UNTAGGED_HDR - 2;
        let mut message = Vec::new();
        loop {
            let Some(s) = self.segment() else { return Came::End };
            match Op::from_bits(s[1] & 15) {
                Some(Op::ReadRequest) => {
                    let word = |at: usize| u32::from_be_bytes(s[at..at + 4].try_into().unwrap());
                    let to = u64::from_be_bytes(s[22..30].try_into().unwrap());
                    return Came::Read(Asked { stag: word(18), to, len: word(30) as usize });
                }
                Some(op) if op.is_send() => {
                    message.extend(&s[UNTAGGED..]);
                    if s[0] & 0x40 != 0 {
                        return Came::Message(message);
                    }
                }
                // It says what was wrong, and ends the connection.
                Some(Op::Terminate) => {}
                _ => panic!("a target says no such thing: {:?}", &s[..UNTAGGED]),
            }
        }
    }

    /// Answers a READ in some way.
    pub(crate) fn answer(&mut self, r: Asked, rng: &mut Prng) {
        let byte = [0, b'A', 0xff][rng.below(3) as usize];
        let whole = |stag, to, len, most| response(stag, to, len, most, byte);
        let right = || whole(r.stag, r.to, r.len, 60_000);
        // Mostly right, so that the target comes to ask for more.
        let kind = if rng.chance(1, 2) { 0 } else { rng.below(KINDS) };
        self.answered[kind as usize] += 1;
        let said = match kind {
            0..RIGHT => right(),
            5 => {
                let most = [1000, 4096, 4097][rng.below(3) as usize];
                whole(r.stag, r.to, r.len, most)
            }
            // Too short, too long, by another key, elsewhere, twice.
            6 => whole(r.stag, r.to, r.len - 1, 60_000),
            7 => whole(r.stag, r.to, r.len + 4, 60_000),
            8 => whole(r.stag.wrapping_add(1), r.to, r.len, 60_000),
            9 => whole(r.stag, r.to.wrapping_add(1), r.len, 60_000),
            10 => [right(), right()].concat(),
            // Segments without data, which are allowed.
            11 => {
                let empty = tx::tagged_header(Op::ReadResponse, r.stag, r.to, 0, false);
                let n = 1 + 4 * rng.below(2) as usize;
                [fpdu(&empty, &[]).repeat(n), right()].concat()
            }
            // Data that nobody has asked for in that way.
            12 => fpdu(&tx::tagged_header(Op::Write, r.stag, r.to, 100, true), &[byte; 100]),
            13 => {
                let told = tx::terminate_with(Code::RDMAP_STREAM, &[], Order::Rfc, false);
                told.as_bytes().to_vec()
            }
            // It breaks off, soon or late.
            14 => right()[..rng.between(1, 35) as usize].to_vec(),
            _ => {
                let all = right();
                all[..all.len() - 3].to_vec()
            }
        };
        drop(self.stream.write_all(&said));
        if kind >= 14 {
            drop(self.stream.shutdown(Shutdown::Both));
        }
    }
}

/// Runs `rounds` rounds on each of four threads, each round with a generator of its own. Gives how often READs were answered in
/// each way, once all have ended.
pub(crate) async fn crowd(
    rounds: u64,
    round: impl Fn(u64, &mut Prng) -> Raw + Clone + Send + 'static,
) -> Vec<u32> {
    let thread = |t: u64| {
        let round = round.clone();
        std::thread::spawn(move || {
            let mut answered = vec![0; KINDS as usize];
            for i in 0..rounds {
                let raw = round(t, &mut Prng::new(1 + t * rounds + i));
                answered.iter_mut().zip(raw.answered).for_each(|(all, n)| *all += n);
            }
            answered
        })
    };
    let threads: Vec<_> = (0..4).map(thread).collect();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        weir_reactor::sleep(weir_base::MILLIS).await;
    }
    let mut all = vec![0; KINDS as usize];
    for t in threads {
        let answered = t.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        all.iter_mut().zip(answered).for_each(|(all, n)| *all += n);
    }
    all
}
