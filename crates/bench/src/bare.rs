//! What no target can beat on the same machine: TCP over loopback with both ends spinning, no protocol and
//! no storage, and how near two cores are to each other.
//!
//! Sizes and depth are chosen to be those of a storage protocol: 72 bytes of command one way, 4 KiB of
//! data the other way are a read.

use crate::histogram::Histogram;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_base::Nanos;
use weir_mem::Arena;
use weir_reactor::Driver;
use weir_uring::{Ring, SocketOptions, TcpListener, TcpStream, pin_to_core};

/// Bytes that one call receives or sends at most.
const CHUNK: usize = 1 << 20;
/// Answers sent by one call at most.
const GATHER: usize = 256;
/// Places that answers come from are whole pages, as those of a volume are.
const PAGE: usize = 4096;
/// Connecting over loopback takes less.
const CONNECT: Nanos = 5 * weir_base::SECONDS;

/// Cores of the two ends; `None`: wherever the system puts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends {
    /// The end that answers, where a target would be.
    pub far: Option<usize>,
    /// The end that asks and measures.
    pub near: Option<usize>,
}

/// What a loop did.
#[derive(Debug, Clone, Default)]
pub struct Bare {
    /// Answers, or chunks of a stream.
    pub ops: u64,
    /// Payload bytes: of answers, or of requests where these are longer.
    pub bytes: u64,
    /// How long it took, nanoseconds.
    pub time: Nanos,
    /// From request to answer; empty for streams.
    pub latency: Histogram,
}

impl Bare {
    /// Answers per second.
    pub fn iops(&self) -> f64 {
        crate::engine::per_second(self.ops, self.time)
    }

    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        crate::engine::per_second(self.bytes, self.time)
    }
}

fn pin(core: Option<usize>) -> io::Result<()> {
    core.map_or(Ok(()), pin_to_core)
}

/// The clock that reactors use.
pub(crate) struct Clock(Ring);

impl Clock {
    pub(crate) fn new() -> io::Result<Clock> {
        Ok(Clock(Ring::new()?))
    }

    pub(crate) fn now(&self) -> Nanos {
        self.0.now()
    }

    /// The time since then.
    pub(crate) fn since(&self, then: Nanos) -> std::time::Duration {
        std::time::Duration::from_nanos(self.now().saturating_sub(then))
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, what)
}

/// Runs `far` and `near` at the ends of a connection, each on a thread bound to its core. The stream of
/// `near` is closed when it returns, which is how `far` is told to end.
fn between<T: Send + 'static>(
    ends: Ends,
    far: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
    near: impl FnOnce(&TcpStream, &Clock) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let addr = listener.local_addr()?;
    let server = std::thread::Builder::new().name("bare-far".into()).spawn(move || {
        pin(ends.far)?;
        let clock = Clock::new()?;
        let until = clock.now() + CONNECT;
        let stream = loop {
            if let Ok(s) = listener.try_accept(SocketOptions::default())? {
                break s;
            }
            if clock.now() > until {
                return Err(broken("nobody connected"));
            }
        };
        far(stream)
    })?;
    let client = std::thread::Builder::new().name("bare-near".into()).spawn(move || {
        pin(ends.near)?;
        let clock = Clock::new()?;
        let stream = TcpStream::connect(addr, SocketOptions::default())?;
        let until = clock.now() + CONNECT;
        loop {
            match stream.connected() {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && clock.now() < until => {}
                Err(e) => return Err(e),
            }
        }
        near(&stream, &clock)
    })?;
    let panicked = |_| io::Error::other("a thread panicked");
    let result = client.join().map_err(panicked)?;
    let served = server.join().map_err(panicked)?;
    let result = result?;
    served?;
    Ok(result)
}

/// Sends all of `bytes`, spinning.
fn put(s: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        if let Ok(n) = s.try_send(bytes)? {
            bytes = &bytes[n..];
        }
    }
    Ok(())
}

/// True for the ways in which the other end of a loop may go.
fn is_end(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Receives what is there: `None` at the end of the stream, 0 when nothing is.
fn get(s: &TcpStream, buf: &mut [u8]) -> io::Result<Option<usize>> {
    match s.try_recv(&mut [io::IoSliceMut::new(buf)]) {
        Ok(Ok(0)) => Ok(None),
        Ok(Ok(n)) => Ok(Some(n)),
        Ok(Err(_)) => Ok(Some(0)),
        Err(e) if is_end(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Sends of so many owed bytes what goes out at once; false: the other end has gone.
fn repay(s: &TcpStream, outgoing: &[u8], owed: &mut usize) -> io::Result<bool> {
    while *owed > 0 {
        match s.try_send(&outgoing[..(*owed).min(outgoing.len())]) {
            Ok(Ok(n)) => *owed -= n,
            Ok(Err(_)) => break,
            Err(e) if is_end(&e) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

fn answer(s: &TcpStream, request: usize, response: usize) -> io::Result<()> {
    let mut incoming = vec![0u8; CHUNK];
    let outgoing = vec![0u8; CHUNK];
    let (mut part, mut owed) = (0, 0);
    loop {
        let Some(n) = get(s, &mut incoming)? else { return Ok(()) };
        part += n;
        owed += part / request * response;
        part %= request;
        if !repay(s, &outgoing, &mut owed)? {
            return Ok(());
        }
    }
}

/// Places of `unit` bytes in a memory: whole pages, if a request or an answer has any.
struct Places {
    memory: Arena,
    unit: usize,
    rng: weir_base::Prng,
}

impl Places {
    fn new(memory: usize, message: usize) -> io::Result<Places> {
        let unit = if message < PAGE { message } else { message / PAGE * PAGE };
        let mut memory = Arena::new(memory.max(unit))?;
        // Memory that was never touched is slow the first time.
        memory.bytes_mut().fill(1);
        Ok(Places { memory, unit, rng: weir_base::Prng::new(1) })
    }
}

/// As [`answer`], with each answer from another place, as a volume in memory has to.
fn answer_from(places: Places, s: &TcpStream, request: usize, response: usize) -> io::Result<()> {
    let mut incoming = vec![0u8; CHUNK];
    let Places { mut memory, unit, mut rng } = places;
    let store: &[u8] = memory.bytes_mut();
    let places = (store.len() / unit) as u64;
    let rest = vec![0u8; response - unit];
    let mut part = 0;
    // What is still to go of each answer.
    let mut owed: VecDeque<&[u8]> = VecDeque::new();
    loop {
        let Some(n) = get(s, &mut incoming)? else { return Ok(()) };
        part += n;
        for _ in 0..part / request {
            let at = rng.below(places) as usize * unit;
            owed.push_back(&store[at..at + unit]);
            if !rest.is_empty() {
                owed.push_back(&rest);
            }
        }
        part %= request;
        while !owed.is_empty() {
            let bufs: Vec<_> = owed.iter().take(GATHER).map(|b| io::IoSlice::new(b)).collect();
            let mut sent = match s.try_send_vectored(&bufs) {
                Ok(Ok(n)) => n,
                Ok(Err(_)) => break,
                Err(e) if is_end(&e) => return Ok(()),
                Err(e) => return Err(e),
            };
            while let Some(front) = owed.front_mut() {
                let n = sent.min(front.len());
                *front = &front[n..];
                sent -= n;
                if !front.is_empty() {
                    break;
                }
                owed.pop_front();
            }
        }
    }
}

/// As [`answer`], with what each request brings put to another place, as a volume in memory has to: its last whole pages, if it has any.
fn store_into(places: Places, s: &TcpStream, request: usize, response: usize) -> io::Result<()> {
    let mut incoming = vec![0u8; CHUNK];
    let outgoing = vec![0u8; CHUNK];
    let Places { mut memory, unit, mut rng } = places;
    let store = memory.bytes_mut();
    let places = (store.len() / unit) as u64;
    let head = request - unit;
    let (mut part, mut owed, mut at) = (0, 0, 0);
    loop {
        let Some(n) = get(s, &mut incoming)? else { return Ok(()) };
        let mut chunk = &incoming[..n];
        while !chunk.is_empty() {
            if part < head {
                let (_, more) = chunk.split_at(chunk.len().min(head - part));
                part += chunk.len() - more.len();
                chunk = more;
                continue;
            }
            if part == head {
                at = rng.below(places) as usize * unit;
            }
            let (data, more) = chunk.split_at(chunk.len().min(request - part));
            let from = at + part - head;
            store[from..from + data.len()].copy_from_slice(data);
            part += data.len();
            chunk = more;
            if part == request {
                part = 0;
                owed += response;
            }
        }
        if !repay(s, &outgoing, &mut owed)? {
            return Ok(());
        }
    }
}

/// Requests of `request` bytes answered by `response` bytes, `depth` of them outstanding, for `time`
/// nanoseconds. With `memory` each answer comes from a place of its own in so many bytes, or each request's bytes are
/// put to one where requests are the longer; else all come from the same, which is in the cache.
///
/// # Errors
/// What the operating system said.
pub fn request_response(
    ends: Ends,
    request: usize,
    response: usize,
    depth: usize,
    memory: Option<usize>,
    time: Nanos,
) -> io::Result<Bare> {
    let (request, response, depth) = (request.max(1), response.max(1), depth.max(1));
    // Before the time begins: as much memory takes some to be written.
    let places = memory.map(|m| Places::new(m, request.max(response))).transpose()?;
    between(
        ends,
        move |s| match places {
            None => answer(&s, request, response),
            Some(p) if request > response => store_into(p, &s, request, response),
            Some(p) => answer_from(p, &s, request, response),
        },
        move |s, clock| {
            let outgoing = vec![0u8; request * depth];
            let mut incoming = vec![0u8; CHUNK];
            let mut b = Bare::default();
            let begun = clock.now();
            let mut sent = vec![begun; depth];
            let (mut got, mut head, mut t) = (0, 0, begun);
            put(s, &outgoing)?;
            while t < begun + time {
                let Some(n) = get(s, &mut incoming)? else {
                    return Err(broken("the far end closed the connection"));
                };
                t = clock.now();
                got += n;
                let done = got / response;
                got %= response;
                for _ in 0..done {
                    b.latency.record(t - sent[head]);
                    sent[head] = t;
                    head = if head + 1 == depth { 0 } else { head + 1 };
                }
                b.ops += done as u64;
                let mut left = done;
                while left > 0 {
                    let k = left.min(depth);
                    put(s, &outgoing[..k * request])?;
                    left -= k;
                }
            }
            b.bytes = b.ops * request.max(response) as u64;
            b.time = t - begun;
            Ok(b)
        },
    )
}

/// One-way transfer in pieces of `chunk` bytes for `time` nanoseconds.
///
/// # Errors
/// What the operating system said.
pub fn stream(ends: Ends, chunk: usize, time: Nanos) -> io::Result<Bare> {
    let chunk = chunk.max(1);
    between(
        ends,
        move |s| {
            let outgoing = vec![0u8; chunk];
            loop {
                match put(&s, &outgoing) {
                    Ok(()) => {}
                    Err(e) if is_end(&e) => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        },
        move |s, clock| {
            let mut incoming = vec![0u8; chunk];
            let mut b = Bare::default();
            let begun = clock.now();
            let mut t = begun;
            while t < begun + time {
                let Some(n) = get(s, &mut incoming)? else {
                    return Err(broken("the far end closed the connection"));
                };
                b.bytes += n as u64;
                t = clock.now();
            }
            b.ops = b.bytes / chunk as u64;
            b.time = t - begun;
            Ok(b)
        },
    )
}

/// A cache line that nothing else shares (128 bytes: lines are fetched in pairs).
#[repr(align(128))]
struct Line(AtomicU32);

const OVER: u32 = u32::MAX;
/// Round trips between two looks at the clock.
const BATCH: u32 = 64;

/// Bounces a cache line between the two cores for `time` nanoseconds and gives the round trip in
/// nanoseconds: the tenth percentile, which leaves out times when one end did not run.
///
/// Two virtual processors of one core take about 90 ns, of two cores about 300 ns.
///
/// # Errors
/// What the operating system said.
pub fn bounce(ends: Ends, time: Nanos) -> io::Result<f64> {
    let line = Arc::new(Line(AtomicU32::new(0)));
    let other = line.clone();
    let far = std::thread::Builder::new().name("bare-far".into()).spawn(move || {
        pin(ends.far)?;
        let mut k = 1u32;
        loop {
            match other.0.load(Ordering::Acquire) {
                OVER => return io::Result::Ok(()),
                v if v == k => {
                    other.0.store(k + 1, Ordering::Release);
                    k += 2;
                }
                _ => std::hint::spin_loop(),
            }
        }
    })?;
    let stop = line.clone();
    let near = std::thread::Builder::new().name("bare-near".into()).spawn(move || {
        pin(ends.near)?;
        let clock = Clock::new()?;
        let mut h = Histogram::default();
        let begun = clock.now();
        let (mut t, mut k) = (begun, 1u32);
        // The far end may be gone, or there may be one core for both: no batch may last for ever.
        while t < begun + time && k < OVER - 2 * BATCH {
            for _ in 0..BATCH {
                line.0.store(k, Ordering::Release);
                let mut spins = 0u32;
                while line.0.load(Ordering::Acquire) != k + 1 {
                    std::hint::spin_loop();
                    spins += 1;
                    if spins.is_multiple_of(1 << 20) && clock.now() > begun + time + CONNECT {
                        return Err(broken("the far end does not answer"));
                    }
                }
                k += 2;
            }
            let now = clock.now();
            h.record(now - t);
            t = now;
        }
        Ok(h.percentile(10.0) as f64 / f64::from(BATCH))
    })?;
    let panicked = |_| io::Error::other("a thread panicked");
    let result = near.join().map_err(panicked)?;
    stop.0.store(OVER, Ordering::Release);
    far.join().map_err(panicked)??;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::MILLIS;

    #[test]
    fn loops_run_at_any_size_and_depth() {
        let sizes = [
            (72, 4096, 1),
            (72, 4096, 32),
            (4168, 16, 8),
            (4096, 16, 2),
            (72, 1 << 20, 4),
            (72, 5000, 4),
            (131_144, 16, 4),
        ];
        for ((request, response, depth), memory) in
            sizes.into_iter().flat_map(|s| [(s, None), (s, Some(1 << 20))])
        {
            // On a busy machine the ends may not run at the same time for a while.
            let b = (0..10)
                .map(|i| {
                    let time = (20 * MILLIS) << i;
                    request_response(Ends::default(), request, response, depth, memory, time)
                        .unwrap()
                })
                .find(|b| b.ops > 0);
            let b = b.unwrap_or_else(|| panic!("{request} {response} {depth}: no answer"));
            assert!(b.iops() > 0.0);
            assert_eq!(b.latency.count(), b.ops);
            assert_eq!(b.bytes, b.ops * request.max(response) as u64);
        }
        // On a busy machine the far end may not have its turn at first.
        let some = (0..6).any(|i| {
            stream(Ends::default(), 128 << 10, (50 * MILLIS) << i)
                .is_ok_and(|b| b.bandwidth() > 0.0)
        });
        assert!(some, "no bytes in three seconds");
    }

    #[test]
    fn cores_can_be_told_apart() {
        let ns = (0..6).find_map(|i| bounce(Ends::default(), (20 * MILLIS) << i).ok());
        assert!(ns.is_some_and(|ns| ns > 1.0), "{ns:?}");
        let e = bounce(Ends { far: None, near: Some(1000) }, MILLIS);
        assert!(e.is_err());
    }
}
