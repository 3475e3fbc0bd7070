//! A queue at one end of the sockets, and a driver made for the purpose at the other.

use super::{Census, Device, Queue, export_flags, sockets, whose_is};
use crate::disk::{Disk, Errno, Geometry, MAX_IO, Request, check};
use crate::whose::Whose;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use weir_base::Prng;
use weir_mem::Slice;
use weir_proto_nbd::{Op, REPLY, Request as Wire};
use weir_reactor::{PollMode, Reactor, WaitChannel, sleep};
use weir_uring::Ring;

const LEN: usize = 8 << 20;
/// Where writes hang: no request of the other tests begins there.
const HANGS: u64 = LEN as u64 - 512;

/// Memory that takes its time, at random, and fails where it is told to.
struct Memory {
    data: RefCell<Vec<u8>>,
    /// Writes that were given up while their bytes are still to be sent.
    unsent: RefCell<Vec<Slice>>,
    prng: RefCell<Prng>,
    flushes: Cell<u64>,
}

impl Disk for Memory {
    fn geometry(&self) -> Geometry {
        Geometry { len: LEN as u64, block_size: 512, thin: true, read_only: false }
    }

    async fn run(&self, r: &Request) -> Result<(), Errno> {
        check(&self.geometry(), r)?;
        let time = self.prng.borrow_mut().below(200_000);
        sleep(time).await;
        let (at, len) = r.range();
        if let Request::Write { buf, .. } = r
            && at == HANGS
        {
            self.unsent.borrow_mut().push(buf.clone());
            return Err(Errno(libc::EIO));
        }
        let (at, len) = (at as usize, len as usize);
        let mut data = self.data.borrow_mut();
        match r {
            Request::Read { buf, .. } => buf.write_at(0, &data[at..at + len]),
            Request::Write { buf, .. } => buf.read_at(0, &mut data[at..at + len]),
            Request::Flush => self.flushes.set(self.flushes.get() + 1),
            Request::Discard { .. } | Request::WriteZeroes { .. } => data[at..at + len].fill(0),
        }
        Ok(())
    }
}

/// Runs `driver` at the other end of a queue's socket; gives what the queue did, and the disk.
fn with_queue(driver: impl FnOnce(UnixStream) + Send + 'static) -> (Census, Rc<Memory>) {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let (theirs, ours) = sockets().expect("sockets");
    let memory = Rc::new(Memory {
        data: RefCell::new(vec![0; LEN]),
        unsent: RefCell::default(),
        prng: RefCell::new(Prng::new(7)),
        flushes: Cell::new(0),
    });
    let thread = std::thread::spawn(move || driver(theirs));
    let (r, disk) = (reactor.clone(), memory.clone());
    let census = reactor.block_on(PollMode::Sleep, async move {
        let over = Rc::new(WaitChannel::new(0));
        let tell = over.clone();
        let queue = Queue::start(&r, &ring, ours, disk, move || tell.signal());
        over.wait().await;
        while queue.census().under_way > 0 {
            sleep(1_000_000).await;
        }
        queue.census()
    });
    thread.join().expect("the driver is content");
    reactor.shutdown();
    (census, memory)
}

fn cookie(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Error and cookie of the next reply.
fn answer(socket: &mut UnixStream) -> (u32, u64) {
    let mut b = [0; REPLY];
    socket.read_exact(&mut b).expect("a reply");
    assert_eq!(b[..4], [0x67, 0x44, 0x66, 0x98]);
    let error = u32::from_be_bytes(b[4..8].try_into().expect("4 bytes"));
    (error, u64::from_be_bytes(b[8..].try_into().expect("8 bytes")))
}

/// Requests of every kind and length side by side, cut anyhow; every byte is compared.
#[test]
fn a_driver_gets_what_it_wrote() {
    let driver = |mut socket: UnixStream| {
        let mut rng = Prng::new(11);
        let mut model = vec![0u8; LEN];
        let mut sent = 0u64;
        for _ in 0..60 {
            // Requests that do not overlap, as a block layer does not promise an order.
            let mut batch: BTreeMap<u64, (Wire, Vec<u8>)> = BTreeMap::new();
            let mut bytes = Vec::new();
            let slots = rng.between(1, 8);
            for slot in 0..slots {
                let longest = LEN / slots as usize / 512;
                let blocks = match rng.below(4) {
                    0 => rng.between(1, (longest as u64).min(2048)),
                    _ => rng.between(1, 16),
                };
                let len = blocks as u32 * 512;
                let start = slot * (LEN as u64 / slots / 512) * 512;
                let (fua, unmap) = (rng.chance(1, 2), rng.chance(1, 2));
                let op = match rng.below(8) {
                    0..3 => Op::Read,
                    3..6 => Op::Write { fua },
                    6 => Op::WriteZeroes { fua, unmap },
                    _ => Op::Trim { fua: false },
                };
                sent += 1;
                let request = Wire { op, cookie: cookie(sent), at: start, len };
                let mut data = vec![0; request.payload() as usize];
                rng.fill(&mut data);
                bytes.extend(request.encode());
                bytes.extend(&data);
                batch.insert(sent, (request, data));
            }
            sent += 1;
            let flush = Wire { op: Op::Flush, cookie: cookie(sent), at: 0, len: 0 };
            bytes.extend(flush.encode());
            batch.insert(sent, (flush, Vec::new()));
            let mut writer = socket.try_clone().expect("a clone");
            let cut = rng.between(1, 100_000) as usize;
            let write = std::thread::spawn(move || {
                bytes.chunks(cut).for_each(|c| writer.write_all(c).expect("it is taken"));
            });
            while !batch.is_empty() {
                let (error, n) = answer(&mut socket);
                let (r, data) = batch.remove(&n).expect("a request that was sent");
                assert_eq!(error, 0, "{r:?}");
                let range = r.at as usize..r.at as usize + r.len as usize;
                match r.op {
                    Op::Read => {
                        let mut found = vec![0; r.len as usize];
                        socket.read_exact(&mut found).expect("data");
                        assert!(found == model[range], "{r:?}");
                    }
                    Op::Write { .. } => model[range].copy_from_slice(&data),
                    Op::Flush => {}
                    _ => model[range].fill(0),
                }
            }
            write.join().expect("all is sent");
        }
        let bye = Wire { op: Op::Disconnect, cookie: [0; 8], at: 0, len: 0 };
        socket.write_all(&bye.encode()).expect("it is taken");
        assert_eq!(socket.read(&mut [0]).expect("the end"), 0);
    };
    let (census, disk) = with_queue(driver);
    assert!(census.answered > 200 && census.failed == 0 && census.under_way == 0, "{census:?}");
    assert!(disk.flushes.get() >= 60);
}

/// What cannot be done is answered so, and the data that came with it are skipped; what is no request ends the connection.
#[test]
fn what_cannot_be_done_is_answered() {
    let driver = |mut socket: UnixStream| {
        let mut ask = |n: u64, op: Op, at: u64, len: u32| {
            let r = Wire { op, cookie: cookie(n), at, len };
            let data = vec![7; r.payload() as usize];
            socket.write_all(&r.encode()).and_then(|()| socket.write_all(&data)).expect("taken");
            let (error, named) = answer(&mut socket);
            assert_eq!(named, n);
            error
        };
        let long = MAX_IO as u32 + 512;
        assert_eq!(ask(1, Op::Read, 0, long), 22);
        assert_eq!(ask(2, Op::Write { fua: false }, 0, long), 22);
        assert_eq!(ask(3, Op::Write { fua: true }, 0, 512), 0);
        assert_eq!(ask(4, Op::Read, LEN as u64, 512), 22, "beyond the end");
        assert_eq!(ask(5, Op::Write { fua: false }, 100, 512), 22, "not in whole blocks");
        assert_eq!(ask(6, Op::Read, 0, 0), 22);
        assert_eq!(ask(7, Op::Unknown(9), 0, 512), 95);
        assert_eq!(ask(8, Op::Trim { fua: false }, 0, u32::MAX), 22);
        socket.write_all(&[0xff; 28]).expect("taken");
        assert_eq!(socket.read(&mut [0]).expect("the end"), 0);
    };
    let (census, disk) = with_queue(driver);
    assert_eq!((census.answered, census.failed), (8, 7));
    assert_eq!(disk.data.borrow()[..1024], [[7; 512], [0; 512]].concat());
}

/// More requests than there are buffers: the rest waits in the socket, and nothing is lost.
#[test]
fn more_than_there_are_buffers_waits() {
    let driver = |mut socket: UnixStream| {
        let mut writer = socket.try_clone().expect("a clone");
        let write = std::thread::spawn(move || {
            for n in 0..1000u64 {
                let at = n % 1000 * 4096;
                let r = Wire { op: Op::Write { fua: false }, cookie: cookie(n), at, len: 4096 };
                writer.write_all(&r.encode()).expect("it is taken");
                writer.write_all(&[n as u8; 4096]).expect("it is taken");
            }
        });
        let mut seen: Vec<u64> = (0..1000).map(|_| answer(&mut socket).1).collect();
        write.join().expect("all is sent");
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
    };
    let (census, disk) = with_queue(driver);
    assert_eq!((census.answered, census.failed), (1000, 0));
    let data = disk.data.borrow();
    assert!((0..1000).all(|n| data[n * 4096..][..4096].iter().all(|b| *b == n as u8)));
}

#[test]
fn a_thread_of_a_container_is_known_by_what_was_noted() {
    let me = std::process::id();
    assert_eq!(whose_is(me, me, None, true), Whose::Ours);
    assert_eq!(whose_is(u32::MAX, me, None, true), Whose::NotOurs);
    assert!(matches!(whose_is(u32::MAX, me, None, false), Whose::Unknown(_)));
    assert_eq!(whose_is(u32::MAX, me, Some(u32::MAX), false), Whose::Ours);
    assert_eq!(whose_is(me, me, Some(u32::MAX), false), Whose::NotOurs);
}

#[test]
fn disks_are_known_by_name_and_told_as_they_are() {
    assert_eq!(Device::of(Path::new("/dev/nbd12")), Some(Device { number: 12 }));
    assert_eq!(Device::of(Path::new("/dev/nbd12p1")), None);
    assert_eq!(Device::of(Path::new("/dev/loop12")), None);
    let g = Geometry { len: 8192, block_size: 512, thin: true, read_only: false };
    assert_eq!(export_flags(g), 0b1_0110_1101);
    let ro = Geometry { thin: false, read_only: true, ..g };
    assert_eq!(export_flags(ro), 0b1_0100_1111);
}

/// As many requests as there are buffers come after one that was given up.
#[test]
fn the_memory_of_what_was_given_up_is_not_used_while_it_may_be_sent() {
    let driver = |mut socket: UnixStream| {
        let mut write = |n: u64, at: u64, byte: u8| {
            let r = Wire { op: Op::Write { fua: false }, cookie: cookie(n), at, len: 512 };
            socket.write_all(&r.encode()).expect("sent");
            socket.write_all(&[byte; 512]).expect("sent");
            answer(&mut socket)
        };
        assert_eq!(write(1, HANGS, 0x11), (libc::EIO as u32, 1));
        for n in 2..200 {
            assert_eq!(write(n, 0, 0x22), (0, n));
        }
    };
    let (_, memory) = with_queue(driver);
    let unsent = memory.unsent.borrow();
    assert!(unsent[0].to_vec().iter().all(|b| *b == 0x11), "it is sent as another's");
}
