//! Listening, connecting, accepting, refusing.

use super::connection::SimConnection;
use super::net::{Net, Verdicts};
use super::pair::{Pair, Phase, Side};
use super::recv::SimRecvQueue;
use super::{Inner, SimFabric};
use crate::core::Core;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use weir_base::MICROS;
use weir_fabric::{Connected, Connection, FabricError, Incoming, Listener, Params, Provider};
use weir_reactor::{Completion, LocalFuture, Token, WaitChannel, complete, completion};

/// Connection requests that wait at a listener; more are refused.
const BACKLOG: usize = 128;
/// Longest private data (RFC 5044, section 7.1: MPA).
const PRIVATE_MAX: usize = 512;

// Listening.

pub(crate) struct ListenerInner {
    net: Rc<Net>,
    core: Rc<Core>,
    port: u16,
    queue: RefCell<VecDeque<SimIncoming>>,
    /// Units: requests in the queue.
    arrived: WaitChannel,
}

impl Drop for ListenerInner {
    fn drop(&mut self) {
        if self.core.is_alive() {
            self.net.listeners.borrow_mut().remove(&(self.core.node, self.port));
        }
    }
}

pub(crate) struct SimListener(Rc<ListenerInner>);

impl SimListener {
    pub(crate) fn new(fabric: &Inner, addr: &str) -> Result<Rc<SimListener>, FabricError> {
        let (net, core) = (fabric.net.clone(), fabric.core.clone());
        let bad = |why: &str| FabricError::Address(addr.to_string(), why.to_string());
        let (node, port) = net.resolve(addr, core.node).ok_or_else(|| bad("no such address"))?;
        if node != core.node {
            return Err(bad("not an address of this node"));
        }
        let port = if port == 0 { net.fresh_port(node) } else { port };
        let key = (node, port);
        if net.listeners.borrow().get(&key).is_some_and(|l| l.strong_count() > 0) {
            return Err(bad("in use"));
        }
        let inner = Rc::new(ListenerInner {
            net: net.clone(),
            core,
            port,
            queue: RefCell::default(),
            arrived: WaitChannel::new(0),
        });
        net.listeners.borrow_mut().insert(key, Rc::downgrade(&inner));
        Ok(Rc::new(SimListener(inner)))
    }
}

impl Listener for SimListener {
    fn local_addr(&self) -> String {
        format!("{}:{}", Net::ip(self.0.core.node), self.0.port)
    }

    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>> {
        Box::pin(async {
            self.0.arrived.wait().await;
            let incoming = self.0.queue.borrow_mut().pop_front();
            let incoming = incoming.expect("a unit was taken for this request");
            Ok(Box::new(incoming) as Box<dyn Incoming>)
        })
    }
}

// Connecting.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Answered,
    GaveUp,
}

/// The connection and the acceptor's private data, or why there is none.
type Outcome = Result<(Rc<Pair>, Vec<u8>), FabricError>;

/// One connection request on its way.
pub(crate) struct Attempt {
    pub(crate) id: u64,
    /// `None`: a duplicate, behind which nobody is.
    client: Option<Rc<Core>>,
    client_node: u32,
    pub(crate) server_node: u32,
    params: Params,
    client_addr: String,
    server_addr: String,
    native_cm: bool,
    token: Token,
    state: Cell<State>,
    outcome: RefCell<Option<Outcome>>,
}

impl Attempt {
    /// On the client's core: the answer, or the lack of one.
    fn finish(&self, outcome: Outcome) {
        if self.state.get() == State::Waiting {
            self.state.set(State::Answered);
            *self.outcome.borrow_mut() = Some(outcome);
            complete(self.token, Completion::ok(0));
        }
    }

    /// Carries a refusal back from `node`.
    pub(crate) fn refused(self: &Rc<Self>, net: &Rc<Net>, node: u32, why: &str) {
        self.fail_from(net, node, FabricError::Unreachable(format!("{}: {why}", self.server_addr)));
    }

    fn fail_from(self: &Rc<Self>, net: &Rc<Net>, node: u32, error: FabricError) {
        if let Some(client) = &self.client {
            let a = self.clone();
            net.carry(node, client, net.delay(), Box::new(move || a.finish(Err(error))));
        }
    }
}

/// Gives up when the future that waits is dropped.
struct Caller {
    attempt: Rc<Attempt>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.attempt.state.get() == State::Waiting {
            self.attempt.state.set(State::GaveUp);
        }
        let outcome = self.attempt.outcome.take();
        if let Some(Ok((pair, _))) = outcome {
            pair.disconnect(0, true);
        }
    }
}

pub(crate) async fn connect(
    fabric: Rc<Inner>,
    addr: String,
    params: Params,
) -> Result<Connected, FabricError> {
    let (net, core) = (fabric.net.clone(), fabric.core.clone());
    assert!(params.private_data.len() <= PRIVATE_MAX, "private data longer than {PRIVATE_MAX}");
    own_queue(&params);
    let Some((node, port)) = net.resolve(&addr, core.node) else {
        return Err(FabricError::Address(addr, "no such address".to_string()));
    };
    let (token, done) = completion();
    let attempt = Rc::new(Attempt {
        id: net.id(),
        client: Some(core.clone()),
        client_node: core.node,
        server_node: node,
        params,
        client_addr: format!("{}:{}", Net::ip(core.node), net.fresh_port(core.node)),
        server_addr: format!("{}:{port}", Net::ip(node)),
        native_cm: fabric.native_cm.get(),
        token,
        state: Cell::new(State::Waiting),
        outcome: RefCell::new(None),
    });
    let caller = Caller { attempt: attempt.clone() };
    let late = attempt.clone();
    core.after(net.config(|c| c.connect_timeout), move || {
        let why = format!("{}: no answer", late.server_addr);
        late.finish(Err(FabricError::Unreachable(why)));
    });
    if net.hit(|c| c.refuse) {
        attempt.refused(&net, node, "connection refused");
    } else {
        if net.hit(|c| c.duplicate) {
            let ghost = Rc::new(Attempt {
                id: net.id(),
                client: None,
                client_node: attempt.client_node,
                server_node: node,
                params: attempt.params.clone(),
                client_addr: attempt.client_addr.clone(),
                server_addr: attempt.server_addr.clone(),
                native_cm: attempt.native_cm,
                token: Token::NONE,
                state: Cell::new(State::GaveUp),
                outcome: RefCell::new(None),
            });
            travel(&net, &core, ghost, port);
        }
        travel(&net, &core, attempt.clone(), port);
    }
    done.await;
    let outcome = attempt.outcome.take();
    drop(caller);
    let (pair, private) = outcome.expect("completed with an outcome")?;
    if !pair.open(0) {
        return Err(FabricError::Unreachable(pair.ends[0].reason.borrow().clone()));
    }
    Ok((SimConnection::new(pair, 0) as Rc<dyn Connection>, private))
}

fn own_queue(params: &Params) {
    let own = params.recv_queue.clone().into_any().is::<SimRecvQueue>();
    assert!(own, "the receive queue is another provider's");
}

/// The request on its way to the listener. The connecting core carries it: if that dies, so does it.
fn travel(net: &Rc<Net>, from: &Rc<Core>, attempt: Rc<Attempt>, port: u16) {
    let (n, f) = (net.clone(), from.clone());
    from.after(net.delay(), move || {
        let node = attempt.server_node;
        if n.is_blocked(f.node, node) || !n.is_powered(node) {
            // Lost; the connector's time runs out.
            return;
        }
        let listener = n.listeners.borrow().get(&(node, port)).and_then(std::rc::Weak::upgrade);
        match listener.filter(|l| l.core.is_alive()) {
            Some(l) => {
                let (l2, n2) = (l.clone(), n.clone());
                l.core.after(0, move || arrive(&n2, &l2, attempt));
            }
            None => attempt.refused(&n, node, "nothing listens there"),
        }
    });
}

fn padded(net: &Net, private: &[u8]) -> Vec<u8> {
    let mut v = private.to_vec();
    if net.hit(|c| c.pad) {
        let zeros = net.draw(|r| r.below(140)) as usize;
        v.resize((v.len() + zeros).min(PRIVATE_MAX), 0);
    }
    v
}

fn arrive(net: &Rc<Net>, listener: &Rc<ListenerInner>, attempt: Rc<Attempt>) {
    let mut queue = listener.queue.borrow_mut();
    if queue.len() >= BACKLOG {
        attempt.refused(net, listener.core.node, "too many connection requests");
        return;
    }
    queue.push_back(SimIncoming {
        id: attempt.id,
        private: padded(net, &attempt.params.private_data),
        peer: attempt.client_addr.clone(),
        native_cm: attempt.native_cm,
        reads: attempt.params.reads_in,
        verdicts: net.verdicts.clone(),
        decided: false,
    });
    drop(queue);
    net.attempts.borrow_mut().insert(attempt.id, attempt);
    listener.arrived.signal();
}

// Accepting and refusing.

/// A connection request at its listener. It names the request by number only, so that it may go to
/// another core.
struct SimIncoming {
    id: u64,
    private: Vec<u8>,
    peer: String,
    native_cm: bool,
    reads: u16,
    verdicts: Verdicts,
    decided: bool,
}

impl SimIncoming {
    fn refuse(&mut self, private: &[u8]) {
        if !std::mem::replace(&mut self.decided, true) {
            let mut v = self.verdicts.lock().unwrap_or_else(|e| e.into_inner());
            v.push((self.id, private.to_vec()));
        }
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}

impl Net {
    /// Sends refusals that were pronounced during the last turn.
    pub(crate) fn send_refusals(self: &Rc<Self>) {
        let all = {
            let mut v = self.verdicts.lock().unwrap_or_else(|e| e.into_inner());
            if v.is_empty() {
                return;
            }
            std::mem::take(&mut *v)
        };
        for (id, private) in all {
            let attempt = self.attempts.borrow_mut().remove(&id);
            if let Some(a) = attempt {
                let node = a.server_node;
                a.fail_from(self, node, FabricError::Rejected(padded(self, &private)));
            }
        }
    }
}

impl Incoming for SimIncoming {
    fn private_data(&self) -> &[u8] {
        &self.private
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn native_cm(&self) -> bool {
        self.native_cm
    }

    fn peer_serves_reads(&self) -> u16 {
        self.reads
    }

    fn accept(
        mut self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>> {
        self.decided = true;
        let Some(fabric) = provider.as_any().downcast_ref::<SimFabric>() else {
            panic!("accepted with the {} provider, but it came through sim", provider.name());
        };
        own_queue(&params);
        assert!(params.private_data.len() <= PRIVATE_MAX, "private data longer than {PRIVATE_MAX}");
        let fabric = fabric.0.clone();
        let attempt = fabric.net.attempts.borrow_mut().remove(&self.id);
        Box::pin(accept(fabric, attempt, self.peer.clone(), params))
    }

    fn reject(mut self: Box<Self>, private_data: &[u8]) {
        self.refuse(private_data);
    }
}

/// Closes what was accepted when the future is dropped before its end.
struct Acceptor(Option<Rc<Pair>>);

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Some(pair) = self.0.take() {
            pair.disconnect(1, true);
        }
    }
}

async fn accept(
    fabric: Rc<Inner>,
    attempt: Option<Rc<Attempt>>,
    peer: String,
    params: Params,
) -> Result<Rc<dyn Connection>, FabricError> {
    let (net, core) = (&fabric.net, &fabric.core);
    let gone = || FabricError::Unreachable(format!("{peer} has gone"));
    let attempt = attempt.ok_or_else(gone)?;
    assert_eq!(attempt.server_node, core.node, "accepted on another node than it came to");
    let (token, established) = completion();
    let private = padded(net, &params.private_data);
    let lost = attempt.client.is_none() || net.hit(|c| c.half_open);
    // A ghost has no core; its end is put on ours and is down from the start.
    let client_core = attempt.client.clone().unwrap_or_else(|| core.clone());
    let pair = Pair::new(
        net.clone(),
        Side {
            core: client_core,
            peer: attempt.server_addr.clone(),
            params: attempt.params.clone(),
        },
        Side { core: core.clone(), peer: attempt.client_addr.clone(), params },
        token,
    );
    core.say(|| format!("qp {} accepts {peer}", pair.ends[1].qp));
    let mut guard = Acceptor(Some(pair.clone()));
    let client_alive = attempt.client.as_ref().is_some_and(|c| c.is_alive());
    if lost || !client_alive {
        pair.never_was(0);
    } else {
        answer(net, &attempt, &pair, private);
    }
    // Either the answer is out and that is enough, or the connector must have said that it has it.
    if net.draw(|r| r.chance(1, 2)) {
        let p = pair.clone();
        core.after(net.draw(|r| r.below(20 * MICROS)), move || p.established(1));
    }
    let p = pair.clone();
    core.after(net.config(|c| c.connect_timeout), move || {
        if p.ends[1].phase.get() == Phase::Setup && !p.is_established(1) {
            // The answer may be under way yet: whoever takes it later must learn that nobody is there any more.
            p.down_and_tell(1, "the connector never confirmed", "the acceptor gave up");
        }
    });
    established.await;
    guard.0 = None;
    drop(guard);
    if !pair.open(1) {
        return Err(gone());
    }
    Ok(SimConnection::new(pair, 1))
}

/// Carries the acceptance to the connector.
fn answer(net: &Rc<Net>, attempt: &Rc<Attempt>, pair: &Rc<Pair>, private: Vec<u8>) {
    let Some(client) = attempt.client.clone() else { return };
    let (n, a, p) = (net.clone(), attempt.clone(), pair.clone());
    let run = move || {
        if a.state.get() != State::Waiting {
            // Too late: the connector has gone and says so.
            p.disconnect(0, true);
            return;
        }
        p.established(0);
        a.finish(Ok((p.clone(), private)));
        let (p2, server) = (p.clone(), p.ends[1].core.clone());
        n.carry(a.client_node, &server, n.delay(), Box::new(move || p2.established(1)));
    };
    net.carry(attempt.server_node, &client, net.delay(), Box::new(run));
}
