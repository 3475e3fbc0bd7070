//! What a SEND of the fabric takes by its size: two threads with a reactor each that send to and fro over one
//! connection.

use crate::bare::Ends;
use crate::histogram::Histogram;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use weir_base::Nanos;
use weir_fabric::{Connection, FabricError, Params, Provider, RecvQueue, SendFlags};
use weir_fabric_iwarp::{Config, CrcPolicy, Iwarp};
use weir_mem::Slice;
use weir_reactor::{CompletionQueue, PollMode, Reactor, Token, now, timeout};
use weir_uring::{Ring, TcpNetwork, pin_to_core};

/// Receives posted by each end.
const RECEIVES: u32 = 128;
/// What the completion queue calls the end of the connection.
const CLOSED: u32 = u32::MAX;
/// Longest message.
pub const LONGEST: usize = 32 << 10;
/// Each step of setting up takes less.
const PATIENCE: Nanos = 5 * weir_base::SECONDS;

/// What goes to and fro.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Bytes of each message, 1 to [`LONGEST`].
    pub bytes: usize,
    /// Messages one way, before as many come back; at most 64.
    pub burst: u32,
    /// How long, nanoseconds.
    pub time: Nanos,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A thread, a core or a ring.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The other end is gone or silent.
    #[error("the other end of the connection {0}")]
    Peer(&'static str),
}

/// One end of the connection.
struct End {
    conn: Rc<dyn Connection>,
    queue: Rc<dyn RecvQueue>,
    cq: CompletionQueue,
    buffers: Vec<Slice>,
}

/// Posted receives, and where their ends are told.
type Posted = (CompletionQueue, Vec<Slice>);

fn posted(p: &Iwarp) -> Result<(Params, Posted), SendError> {
    let recv_queue = p.recv_queue(RECEIVES as usize, LONGEST)?;
    let cq = CompletionQueue::new();
    let buffers: Vec<Slice> = (0..RECEIVES).map(|_| Slice::heap(LONGEST)).collect();
    for (i, b) in buffers.iter().enumerate() {
        recv_queue.post(b.clone(), cq.token(i as u32));
    }
    let params = Params { private_data: Vec::new(), recv_queue, reads_out: 1, reads_in: 1 };
    Ok((params, (cq, buffers)))
}

impl End {
    async fn accepted(p: &Iwarp, tell: mpsc::Sender<String>) -> Result<End, SendError> {
        let listener = p.listen("127.0.0.1:0")?;
        // Nobody listens only when the other end has failed.
        let _ = tell.send(listener.local_addr());
        let incoming = timeout(PATIENCE, listener.next()).await;
        let incoming = incoming.map_err(|_| SendError::Peer("does not connect"))??;
        let (params, posted) = posted(p)?;
        let queue = params.recv_queue.clone();
        Ok(End::new(incoming.accept(p, params).await?, queue, posted))
    }

    async fn connected(p: &Iwarp, addr: &str) -> Result<End, SendError> {
        let (params, posted) = posted(p)?;
        let queue = params.recv_queue.clone();
        Ok(End::new(p.connect(addr, params).await?.0, queue, posted))
    }

    /// Sends a burst.
    async fn send(&self, data: &Slice, burst: u32) {
        for _ in 0..burst {
            if !self.conn.send_slots().try_wait() {
                self.conn.send_slots().wait().await;
            }
            self.conn.send(&[], Some(data.clone()), SendFlags::default(), Token::NONE);
        }
    }

    /// An end whose completion queue also tells of the connection's end.
    fn new(conn: Rc<dyn Connection>, queue: Rc<dyn RecvQueue>, (cq, buffers): Posted) -> End {
        conn.on_closed(cq.token(CLOSED));
        End { conn, queue, cq, buffers }
    }

    /// Receives a burst. False: the connection has ended.
    async fn receive(&self, burst: u32) -> bool {
        for _ in 0..burst {
            let (user, c) = self.cq.next().await;
            let Some(b) = self.buffers.get(user as usize).filter(|_| c.is_ok()) else {
                return false;
            };
            self.queue.post(b.clone(), self.cq.token(user));
        }
        true
    }
}

/// Runs one end on a thread's reactor.
fn on_reactor<T: 'static, F: Future<Output = Result<T, SendError>> + 'static>(
    core: Option<usize>,
    work: impl FnOnce(Iwarp) -> F,
) -> Result<T, SendError> {
    core.map_or(Ok(()), pin_to_core)?;
    let ring = Ring::new()?;
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let config = Config { crc: CrcPolicy::Off, ..Config::default() };
    let iwarp = Iwarp::new(&reactor, TcpNetwork::new(&ring), config);
    let found = reactor.block_on(PollMode::Busy, work(iwarp));
    reactor.shutdown();
    found
}

/// Times of whole exchanges: from the first send of a burst to the last message of the other's burst, nanoseconds.
/// Half of it is what S1 and `ib_send_lat` call the latency of a send.
///
/// # Errors
/// An end could not be set up, or the connection broke.
pub fn ping_pong(ends: Ends, x: Exchange) -> Result<Histogram, SendError> {
    let x = Exchange { bytes: x.bytes.clamp(1, LONGEST), burst: x.burst.clamp(1, 64), ..x };
    let (tell, told) = mpsc::channel();
    let far = std::thread::Builder::new().name("send-far".into()).spawn(move || {
        on_reactor(ends.far, move |p| async move {
            let end = End::accepted(&p, tell).await?;
            let data = Slice::heap(x.bytes);
            while end.receive(x.burst).await {
                end.send(&data, x.burst).await;
            }
            Ok(())
        })
    })?;
    let near = std::thread::Builder::new().name("send-near".into()).spawn(move || {
        let addr = told.recv().map_err(|_| SendError::Peer("did not start"))?;
        on_reactor(ends.near, move |p| async move {
            let end = End::connected(&p, &addr).await?;
            let data = Slice::heap(x.bytes);
            let mut h = Histogram::default();
            let last = Cell::new(now());
            let over = last.get() + x.time;
            // A part of the time to warm up.
            let from = last.get() + x.time / 8;
            while last.get() < over {
                end.send(&data, x.burst).await;
                if !end.receive(x.burst).await {
                    return Err(SendError::Peer("closed it"));
                }
                let t = now();
                if last.get() > from {
                    h.record(t - last.get());
                }
                last.set(t);
            }
            end.conn.disconnect(false);
            while end.receive(1).await {}
            Ok(h)
        })
    })?;
    let panicked = |_| std::io::Error::other("a thread panicked");
    let found = near.join().map_err(panicked)?;
    let served = far.join().map_err(panicked)?;
    // What the near end says comes first: the far one's failure follows from it, or tells why it got no address.
    match (found, served) {
        (Err(SendError::Peer("did not start")), Err(e)) => Err(e),
        (found, _) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::MILLIS;

    #[test]
    fn messages_go_to_and_fro_at_any_size_and_burst() {
        for (bytes, burst) in [(1, 1), (64, 8), (1024, 1), (LONGEST, 2), (LONGEST, 64)] {
            // On a busy machine the ends may not run at the same time for a while.
            let found = (0..6).map(|i| {
                let time = (40 * MILLIS) << i;
                ping_pong(Ends::default(), Exchange { bytes, burst, time }).unwrap()
            });
            let h = found.into_iter().find(|h| h.count() > 0);
            assert!(h.is_some_and(|h| h.min() > 0), "{bytes} x {burst}");
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error_of_either_end() {
        let x = Exchange { bytes: 64, burst: 1, time: MILLIS };
        for ends in [Ends { far: Some(4000), near: None }, Ends { far: None, near: Some(4000) }] {
            assert!(ping_pong(ends, x).is_err());
        }
    }
}
