//! Listening, connecting, and streams on their way between reactors.

use super::SimNetwork;
use super::pipe::{End, Pipe, SimStream};
use crate::core::Core;
use crate::fabric::Net;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use weir_reactor::{Completion, CompletionFuture, Token, complete, completion};
use weir_stream::{Accepted, Listener, Network, Parted, Stream};

/// Connections that wait at a listener; who asks for more gets no answer.
const BACKLOG: usize = 128;

pub(super) fn address(node: u32, port: u16) -> SocketAddr {
    let ip: IpAddr = Net::ip(node).parse().expect("an address of our own making");
    SocketAddr::new(ip, port)
}

pub(crate) struct ListeningInner {
    net: Rc<Net>,
    core: Rc<Core>,
    port: u16,
    queue: RefCell<VecDeque<SimStream>>,
    waiters: RefCell<Vec<Token>>,
}

impl ListeningInner {
    fn tell(&self) {
        self.waiters.take().into_iter().for_each(|t| complete(t, Completion::ok(0)));
    }
}

struct Listening(Rc<ListeningInner>);

impl Drop for Listening {
    fn drop(&mut self) {
        let inner = &self.0;
        if inner.core.is_alive() {
            inner.net.stream_listeners.borrow_mut().remove(&(inner.core.node, inner.port));
            inner.tell();
        }
        inner.queue.borrow_mut().clear();
    }
}

impl Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        address(self.0.core.node, self.0.port)
    }

    fn accept(&self) -> Accepted {
        let next = self.0.queue.borrow_mut().pop_front();
        match next {
            // It may have been reset meanwhile, of which some systems tell here.
            Some(s) if s.peer().is_none() && self.0.net.draw(|r| r.chance(1, 2)) => Accepted::Gone,
            Some(s) => Accepted::Stream(Box::new(s)),
            None => Accepted::Nobody,
        }
    }

    fn ready(&self) -> CompletionFuture {
        let (token, done) = completion();
        match self.0.queue.borrow().is_empty() {
            true => self.0.waiters.borrow_mut().push(token),
            false => complete(token, Completion::ok(0)),
        }
        done
    }
}

pub(super) fn listen(network: &SimNetwork, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
    let (net, core) = (network.net.clone(), network.core.clone());
    if address(core.node, addr.port()) != addr {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    let port = if addr.port() == 0 { net.fresh_port(core.node) } else { addr.port() };
    let key = (core.node, port);
    if net.stream_listeners.borrow().get(&key).is_some_and(|l| l.strong_count() > 0) {
        return Err(ErrorKind::AddrInUse.into());
    }
    let inner = Rc::new(ListeningInner {
        net: net.clone(),
        core,
        port,
        queue: RefCell::default(),
        waiters: RefCell::default(),
    });
    net.stream_listeners.borrow_mut().insert(key, Rc::downgrade(&inner));
    Ok(Box::new(Listening(inner)))
}

/// Somebody who connects.
struct Attempt {
    token: Token,
    /// `None` until there is an answer.
    outcome: RefCell<Option<io::Result<SimStream>>>,
    over: Cell<bool>,
}

impl Attempt {
    fn finish(&self, outcome: io::Result<SimStream>) {
        if !self.over.replace(true) {
            *self.outcome.borrow_mut() = Some(outcome);
            complete(self.token, Completion::ok(0));
        }
    }
}

/// Who waits has gone: what comes is for nobody.
struct Caller(Rc<Attempt>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.over.set(true);
        let late = self.0.outcome.take();
        drop(late);
    }
}

pub(super) async fn connect(network: SimNetwork, addr: SocketAddr) -> io::Result<Box<dyn Stream>> {
    let SimNetwork { net, core } = network;
    let Some((node, port)) = net.resolve(&addr.to_string(), core.node) else {
        return Err(ErrorKind::HostUnreachable.into());
    };
    let (token, done) = completion();
    let attempt = Rc::new(Attempt { token, outcome: RefCell::default(), over: Cell::default() });
    let caller = Caller(attempt.clone());
    let late = attempt.clone();
    core.after(net.config(|c| c.connect_timeout), move || {
        late.finish(Err(ErrorKind::TimedOut.into()));
    });
    let own = address(core.node, net.fresh_port(core.node));
    let (n, c, a) = (net.clone(), core.clone(), attempt.clone());
    core.after(net.delay(), move || ask(&n, &c, own, (node, port), &a));
    done.await;
    let outcome = attempt.outcome.take();
    drop(caller);
    outcome.unwrap_or_else(|| Err(ErrorKind::TimedOut.into())).map(|s| Box::new(s) as _)
}

/// The wish to connect is at the other machine.
fn ask(net: &Rc<Net>, core: &Rc<Core>, own: SocketAddr, (node, port): (u32, u16), a: &Rc<Attempt>) {
    if net.is_blocked(core.node, node) || !net.is_powered(node) {
        // Lost; its time runs out.
        return;
    }
    let found = net.stream_listeners.borrow().get(&(node, port)).and_then(std::rc::Weak::upgrade);
    let found = found.filter(|l| l.core.is_alive() && !net.hit(|c| c.refuse));
    let Some(listener) = found else {
        let a = a.clone();
        let refused = move || a.finish(Err(ErrorKind::ConnectionRefused.into()));
        return net.carry(node, core, net.delay(), Box::new(refused));
    };
    if listener.queue.borrow().len() >= BACKLOG {
        return;
    }
    let here = End::new(core.clone(), own);
    let there = End::new(listener.core.clone(), address(node, port));
    let pipe = Pipe::new(net, here, there);
    // Its ends are closed by whoever has them, or who was to have them.
    let mine = SimStream { pipe: pipe.clone(), side: 0 };
    let a = a.clone();
    net.carry(node, core, net.delay(), Box::new(move || a.finish(Ok(mine))));
    let l = listener.clone();
    listener.core.after(0, move || {
        l.queue.borrow_mut().push_back(SimStream { pipe, side: 1 });
        l.tell();
    });
}

// Between reactors.

/// Streams that were given up, by number, and what they are to say. Locked, since that may happen anywhere.
type GivenUp = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Streams that no reactor has, by number.
#[derive(Default)]
pub(crate) struct Partings {
    streams: RefCell<BTreeMap<u64, SimStream>>,
    given_up: GivenUp,
}

impl Partings {
    /// Closes those that were given up during the last turn.
    pub(crate) fn close(&self) {
        let all = {
            let mut v = self.given_up.lock().unwrap_or_else(|e| e.into_inner());
            if v.is_empty() {
                return;
            }
            std::mem::take(&mut *v)
        };
        for (number, bytes) in all {
            let stream = self.streams.borrow_mut().remove(&number);
            if let Some(s) = stream {
                s.pipe.last_words(s.side, &bytes);
            }
        }
    }

    pub(crate) fn node_died(&self, node: u32) {
        self.streams.borrow_mut().retain(|_, s| s.node() != node);
    }

    pub(crate) fn clear(&self) {
        let all = self.streams.take();
        drop(all);
    }
}

/// A stream on its way. It names it by number only, so that it may go to another core.
struct Number {
    number: u64,
    given_up: GivenUp,
    taken: bool,
}

impl Number {
    fn give_up(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.taken, true) {
            let mut v = self.given_up.lock().unwrap_or_else(|e| e.into_inner());
            v.push((self.number, bytes.to_vec()));
        }
    }
}

pub(super) fn part(stream: SimStream) -> Box<dyn Parted> {
    let net = stream.pipe.net.clone();
    let number = net.id();
    net.partings.streams.borrow_mut().insert(number, stream);
    Box::new(Number { number, given_up: net.partings.given_up.clone(), taken: false })
}

impl Drop for Number {
    fn drop(&mut self) {
        self.give_up(&[]);
    }
}

impl Parted for Number {
    fn join(mut self: Box<Self>, network: &dyn Network) -> Option<Box<dyn Stream>> {
        let SimNetwork { net, core } = network.as_any().downcast_ref::<SimNetwork>()?;
        let stream = net.partings.streams.borrow_mut().remove(&self.number)?;
        self.taken = true;
        assert_eq!(stream.node(), core.node, "joined on another node than it came to");
        stream.pipe.move_to(stream.side, core);
        Some(Box::new(stream))
    }

    fn refuse(mut self: Box<Self>, bytes: &[u8]) {
        self.give_up(bytes);
    }
}
