//! Connection set-up.
//!
//! An identifier of an incoming connection is born on the listening reactor's event channel. Whoever
//! accepts moves it to the channel of his own reactor (`rdma_migrate_id`) first, so that from then on the
//! connection belongs to one reactor alone. An event that the listening reactor fetched before that is
//! told by a flag.

use crate::cm::{CmEvent, CmId, ConnParam};
use crate::conn::{Conn, Events, State};
use crate::ffi::*;
use crate::provider::{Shared, Sink, Verbs, in_reactor};
use crate::recv::Queue;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_base::SECONDS;
use weir_fabric::{Connected, Connection, FabricError, Incoming, Listener, Params, Provider};
use weir_reactor::{LocalFuture, WaitChannel, now, sleep, spawn_task, timeout};

/// Limits of address and route resolution, for the kernel.
const RESOLVE_MILLIS: i32 = 2000;
const RESOLVE: u64 = 3 * SECONDS;
/// How long a peer may take to answer a request, or a connection manager to give up.
const ANSWER: u64 = 15 * SECONDS;
/// How long an accepted peer may take to confirm.
const CONFIRM: u64 = 30 * SECONDS;
/// 0.64 ms between tries when a receive was not posted (IB encoding); the default is the longest, 655 ms.
const RNR_TIMER: u8 = 12;

fn resolve(addr: &str) -> Result<SocketAddr, FabricError> {
    let bad = |why: String| FabricError::Address(addr.to_owned(), why);
    addr.to_socket_addrs()
        .map_err(|e| bad(format!("{e}; expected ip:port or [ipv6]:port")))?
        .next()
        .ok_or_else(|| bad("it names no address".into()))
}

fn own_queue(params: &Params) -> Result<Rc<Queue>, FabricError> {
    // The queue came from this provider's recv_queue(); find its own kind again.
    params
        .recv_queue
        .clone()
        .into_any()
        .downcast()
        .map_err(|_| FabricError::Unavailable("receive queue of another provider".into()))
}

// ---- listening

/// A listening address and the requests that came to it.
pub(crate) struct Listening {
    shared: Weak<Shared>,
    addr: SocketAddr,
    local: String,
    id: RefCell<Option<CmId>>,
    waiting: RefCell<VecDeque<Request>>,
    arrived: WaitChannel,
    closed: Cell<bool>,
}

fn bound(shared: &Shared, addr: SocketAddr) -> std::io::Result<CmId> {
    let id = CmId::new(&shared.channel)?;
    id.bind(addr)?;
    id.listen(i32::from(shared.config.backlog))?;
    Ok(id)
}

pub(crate) fn listen(shared: &Rc<Shared>, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
    let to = resolve(addr)?;
    let id = bound(shared, to).map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => ": no RDMA device has this address",
            _ => "",
        };
        FabricError::Address(addr.to_owned(), format!("{e}{hint}"))
    })?;
    let local = id.local().unwrap_or(to);
    let key = id.key();
    let l = Rc::new(Listening {
        shared: Rc::downgrade(shared),
        // The port that was chosen, for listening again.
        addr: local,
        local: local.to_string(),
        id: RefCell::new(Some(id)),
        waiting: RefCell::default(),
        arrived: WaitChannel::new(0),
        closed: Cell::new(false),
    });
    shared.set_sink(key, Sink::Listener(Rc::downgrade(&l)));
    Ok(Rc::new(Owner { shared: shared.clone(), listening: l }))
}

impl Listening {
    /// A peer wants to connect.
    pub(crate) fn request(&self, shared: &Shared, id: CmId, e: CmEvent) {
        if self.closed.get() || self.waiting.borrow().len() >= shared.config.half_open {
            // Dropping the identifier refuses; the peer may try again.
            return;
        }
        let peer = id.peer().map_or_else(|| "unknown".into(), |a| a.to_string());
        let state = Arc::new(Pending(AtomicBool::new(false)));
        shared.set_sink(id.key(), Sink::Pending(Arc::downgrade(&state)));
        let (reads_out, reads_in) = (e.reads_out, e.reads_in);
        let id = Some(id);
        let r = Request { id, private_data: e.private_data, peer, reads_out, reads_in, state };
        self.waiting.borrow_mut().push_back(r);
        self.arrived.signal();
    }

    /// Something happened to the listener itself: it is made anew when its device is back.
    pub(crate) fn event(self: &Rc<Self>, shared: &Shared, e: &CmEvent) {
        if e.kind != RDMA_CM_EVENT_DEVICE_REMOVAL {
            return;
        }
        if let Some(old) = self.id.take() {
            shared.forget_id(old.key());
        }
        let (me, verbs) = (Rc::downgrade(self), self.shared.clone());
        spawn_task(async move {
            loop {
                sleep(SECONDS).await;
                let (Some(l), Some(shared)) = (me.upgrade(), verbs.upgrade()) else { return };
                if l.closed.get() {
                    return;
                }
                if let Ok(id) = bound(&shared, l.addr) {
                    shared.set_sink(id.key(), Sink::Listener(Rc::downgrade(&l)));
                    *l.id.borrow_mut() = Some(id);
                    return;
                }
            }
        });
    }
}

/// What the user holds: when it goes, the listener ends and refuses who waits.
struct Owner {
    shared: Rc<Shared>,
    listening: Rc<Listening>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.listening.closed.set(true);
        if let Some(id) = self.listening.id.take() {
            self.shared.forget_id(id.key());
        }
        self.listening.waiting.take();
        self.listening.arrived.signal();
    }
}

impl Listener for Owner {
    fn local_addr(&self) -> String {
        self.listening.local.clone()
    }

    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>> {
        Box::pin(async move {
            loop {
                self.listening.arrived.wait().await;
                let next = self.listening.waiting.borrow_mut().pop_front();
                match next {
                    Some(r) if r.state.is_gone() => {}
                    Some(r) => return Ok(Box::new(r) as Box<dyn Incoming>),
                    None => {
                        return Err(FabricError::Unavailable("the listener was closed".into()));
                    }
                }
            }
        })
    }
}

/// Whether the peer of a request has given up meanwhile.
pub(crate) struct Pending(AtomicBool);

impl Pending {
    pub(crate) fn gone(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A connection request. Dropping its identifier refuses it.
struct Request {
    id: Option<CmId>,
    private_data: Vec<u8>,
    peer: String,
    /// READs that the peer serves, and issues.
    reads_out: u8,
    reads_in: u8,
    state: Arc<Pending>,
}

impl Incoming for Request {
    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn peer_serves_reads(&self) -> u16 {
        u16::from(self.reads_out)
    }

    fn accept(
        self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>> {
        let provider = provider.as_any().downcast_ref::<Verbs>().cloned();
        Box::pin(async move {
            let provider = provider
                .ok_or_else(|| FabricError::Unavailable("provider of another kind".into()))?;
            let conn = accept(&provider.0, *self, &params).await?;
            // Whoever accepts goes on in this very poll and comes to know the connection; tasks that wait
            // for messages run after.
            conn.release_early();
            Ok(conn as Rc<dyn Connection>)
        })
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        if let Some(id) = self.id.take()
            && id.reject(private_data).is_err()
        {
            // Too long for the transport: at least the refusal arrives.
            let _ = id.reject(&[]);
        }
    }
}

// ---- both sides

/// A connection in set-up: goes down when its future is dropped or fails.
struct Attempt(Option<Rc<Conn>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(c) = self.0.take()
            && in_reactor()
        {
            c.fail("the set-up did not succeed");
            spawn_task(async move { c.tear_down(false).await });
        }
    }
}

impl Attempt {
    #[expect(clippy::expect_used, reason = "taken by value once; nothing received leads here")]
    fn conn(&self) -> &Rc<Conn> {
        self.0.as_ref().expect("present until it succeeds")
    }

    /// The connection is established.
    #[expect(clippy::expect_used, reason = "taken by value once; nothing received leads here")]
    fn succeed(mut self, reads: u8) -> Rc<Conn> {
        let c = self.0.take().expect("succeeds once");
        c.established(u16::from(reads));
        spawn_task(c.clone().supervise());
        c
    }
}

/// An identifier's entry among the sinks, taken out if the set-up ends before a connection owns it.
struct Entry {
    shared: Rc<Shared>,
    id: Option<CmId>,
}

impl Entry {
    fn new(shared: &Rc<Shared>, id: CmId, events: &Rc<Events>) -> Entry {
        shared.set_sink(id.key(), Sink::Events(events.clone()));
        Entry { shared: shared.clone(), id: Some(id) }
    }

    #[expect(clippy::expect_used, reason = "taken by value once; nothing received leads here")]
    fn id(&self) -> &CmId {
        self.id.as_ref().expect("present until a connection owns it")
    }

    #[expect(clippy::expect_used, reason = "taken by value once; nothing received leads here")]
    fn take(mut self) -> CmId {
        self.id.take().expect("taken once")
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.shared.forget_id(id.key());
        }
    }
}

async fn next_event(events: &Events, limit: u64, what: &str) -> Result<CmEvent, FabricError> {
    let end = now() + limit;
    loop {
        if let Some(e) = events.take() {
            return Ok(e);
        }
        let left = end.saturating_sub(now());
        if left == 0 || timeout(left, events.bell.wait()).await.is_err() {
            return Err(FabricError::Unreachable(format!("{what}: no answer in time")));
        }
    }
}

/// Events of the set-up of `conn`; fails when the connection does.
async fn next_of(conn: &Conn, limit: u64, what: &str) -> Result<CmEvent, FabricError> {
    let end = now() + limit;
    loop {
        if let Some(e) = conn.events.take() {
            return Ok(e);
        }
        if conn.state.get() > State::Open {
            return Err(FabricError::Unreachable(format!("{what}: {}", conn.close_reason())));
        }
        let left = end.saturating_sub(now());
        if left == 0 || timeout(left, conn.events.bell.wait()).await.is_err() {
            return Err(FabricError::Unreachable(format!("{what}: no answer in time")));
        }
    }
}

fn prepare(
    shared: &Rc<Shared>,
    id: &CmId,
    peer: String,
    queue: Rc<Queue>,
    events: Rc<Events>,
) -> Result<Attempt, FabricError> {
    // SAFETY: the identifier lives, and with it its device.
    let device = unsafe { shared.device(id.device()) }?;
    let attempt = Attempt(Some(Conn::new(shared, &device, peer, events)));
    let conn = attempt.conn();
    let unavailable =
        |e: String| FabricError::Unavailable(format!("RDMA device {}: {e}", device.ctx.name));
    conn.make_qp(queue, shared.config.send_queue).map_err(unavailable)?;
    bring_to(conn, id, IBV_QPS_INIT, 0, 0)?;
    conn.post_own_receives().map_err(unavailable)?;
    Ok(attempt)
}

fn bring_to(
    conn: &Conn,
    id: &CmId,
    state: i32,
    reads_in: u8,
    reads_out: u8,
) -> Result<(), FabricError> {
    let qp = conn.qp.borrow();
    let Some(qp) = qp.as_ref() else {
        return Err(FabricError::Unavailable("the connection is closed".into()));
    };
    id.bring_to(qp, state, |a, mask| {
        if mask & IBV_QP_MAX_DEST_RD_ATOMIC != 0 {
            a.max_dest_rd_atomic = reads_in;
        }
        if mask & IBV_QP_MAX_QP_RD_ATOMIC != 0 {
            a.max_rd_atomic = reads_out;
        }
        if mask & IBV_QP_MIN_RNR_TIMER != 0 {
            a.min_rnr_timer = RNR_TIMER;
        }
    })
    .map_err(|e| {
        FabricError::Protocol(format!("cannot bring the queue pair to state {state}: {e}"))
    })
}

fn small(n: u16) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

async fn accept(
    shared: &Rc<Shared>,
    mut request: Request,
    params: &Params,
) -> Result<Rc<Conn>, FabricError> {
    let queue = own_queue(params)?;
    let gone = || FabricError::Unreachable("the peer gave up".into());
    let mut id = request.id.take().ok_or_else(gone)?;
    let events = Events::new();
    id.migrate(&shared.channel)
        .map_err(|e| FabricError::Unavailable(format!("cannot move the connection here: {e}")))?;
    let entry = Entry::new(shared, id, &events);
    if request.state.is_gone() {
        return Err(gone());
    }
    let attempt = prepare(shared, entry.id(), request.peer.clone(), queue, events)?;
    let conn = attempt.conn();
    let limits = conn.limits;
    let reads_in = small(params.reads_in).min(request.reads_in).min(limits.reads_in);
    let reads_out = small(params.reads_out).min(request.reads_out).min(limits.reads_out);
    bring_to(conn, entry.id(), IBV_QPS_RTR, reads_in, reads_out)?;
    bring_to(conn, entry.id(), IBV_QPS_RTS, reads_in, reads_out)?;
    let id = entry.take();
    let p =
        ConnParam { private_data: &params.private_data, reads_in, reads_out, srq: conn.uses_srq() };
    let accepted = match conn.qp.borrow().as_ref() {
        Some(qp) => id.accept(&p, qp),
        None => Err(std::io::ErrorKind::NotConnected.into()),
    };
    *conn.id.borrow_mut() = Some(id);
    accepted.map_err(|e| FabricError::Unreachable(format!("cannot accept: {e}")))?;
    loop {
        let e = next_of(conn, CONFIRM, "the peer did not confirm").await?;
        match e.kind {
            RDMA_CM_EVENT_ESTABLISHED => return Ok(attempt.succeed(reads_out)),
            RDMA_CM_EVENT_ADDR_CHANGE => {}
            _ => return Err(FabricError::Unreachable(e.describe(shared.lib))),
        }
    }
}

pub(crate) async fn connect(
    shared: Rc<Shared>,
    addr: &str,
    params: Params,
) -> Result<Connected, FabricError> {
    let to = resolve(addr)?;
    let queue = own_queue(&params)?;
    let failed = |e: std::io::Error| FabricError::Unreachable(format!("{addr}: {e}"));
    let events = Events::new();
    let entry = Entry::new(&shared, CmId::new(&shared.channel).map_err(failed)?, &events);
    let expect = |e: CmEvent, kind: i32| match e.kind {
        k if k == kind => Ok(()),
        _ => Err(FabricError::Unreachable(format!("{addr}: {}", e.describe(shared.lib)))),
    };
    entry.id().resolve_addr(to, RESOLVE_MILLIS).map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::ENODEV) => ": no RDMA device leads there",
            _ => "",
        };
        FabricError::Unreachable(format!("{addr}: {e}{hint}"))
    })?;
    expect(next_event(&events, RESOLVE, addr).await?, RDMA_CM_EVENT_ADDR_RESOLVED)?;
    entry.id().resolve_route(RESOLVE_MILLIS).map_err(failed)?;
    expect(next_event(&events, RESOLVE, addr).await?, RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    let attempt = prepare(&shared, entry.id(), to.to_string(), queue, events)?;
    let conn = attempt.conn();
    let limits = conn.limits;
    let reads_in = small(params.reads_in).min(limits.reads_in);
    let reads_out = small(params.reads_out).min(limits.reads_out);
    let id = entry.take();
    let p =
        ConnParam { private_data: &params.private_data, reads_in, reads_out, srq: conn.uses_srq() };
    let asked = match conn.qp.borrow().as_ref() {
        Some(qp) => id.connect(&p, qp),
        None => Err(std::io::ErrorKind::NotConnected.into()),
    };
    *conn.id.borrow_mut() = Some(id);
    asked.map_err(failed)?;
    loop {
        let e = next_of(conn, ANSWER, addr).await?;
        match e.kind {
            // IB and RoCE: the queue pair follows, then the peer is told.
            RDMA_CM_EVENT_CONNECT_RESPONSE => {
                let id = conn.id.borrow();
                let Some(id) = id.as_ref() else {
                    return Err(failed(std::io::ErrorKind::NotConnected.into()));
                };
                // Its rights follow from what was asked for; before that it had none.
                bring_to(conn, id, IBV_QPS_INIT, 0, 0)?;
                bring_to(conn, id, IBV_QPS_RTR, reads_in.min(e.reads_in), 0)?;
                bring_to(conn, id, IBV_QPS_RTS, 0, reads_out.min(e.reads_out))?;
                id.establish().map_err(failed)?;
            }
            RDMA_CM_EVENT_ESTABLISHED => {}
            RDMA_CM_EVENT_ADDR_CHANGE => continue,
            RDMA_CM_EVENT_REJECTED => return Err(rejected(&e, addr, conn.limits.iwarp)),
            _ => {
                let why = e.describe(shared.lib);
                return Err(FabricError::Unreachable(format!("{addr}: {why}")));
            }
        }
        let c = attempt.succeed(reads_out.min(e.reads_out));
        c.release_early();
        return Ok((c as Rc<dyn Connection>, e.private_data));
    }
}

/// `IB_CM_REJ_CONSUMER_DEFINED`: the peer's program refused, not its kernel.
const BY_PROGRAM: i32 = 28;

fn rejected(e: &CmEvent, addr: &str, iwarp: bool) -> FabricError {
    let by_program = match iwarp {
        true => e.status == -libc::ECONNRESET || !e.private_data.is_empty(),
        false => e.status == BY_PROGRAM,
    };
    if by_program {
        FabricError::Rejected(e.private_data.clone())
    } else {
        let status = e.status;
        FabricError::Unreachable(format!("{addr}: nothing listens there (status {status})"))
    }
}
