//! A panic in what is done for one host ends its connection; a panic in what all share ends the program. In a process of
//! its own, since that is decided once for all of a process.

#[path = "it/common.rs"]
#[allow(dead_code, reason = "shared with another test, which uses the rest")]
mod common;
#[path = "it/peer.rs"]
#[allow(dead_code, reason = "shared with another test, which uses the rest")]
mod peer;
#[path = "it/target.rs"]
#[allow(dead_code, reason = "shared with another test, which uses the rest")]
mod target;

use common::on_reactor;
use peer::{Peer, command, login};
use std::any::Any;
use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::thread::LocalKey;
use target::{config, serve};
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_fabric::{
    Access, Connected, Connection, FabricError, Incoming, Listener, Params, Provider, RecvQueue,
    Remote, SendFlags, Tap,
};
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor, flag};
use weir_proto_brp::{Features, LoginRequest, Op, Status};
use weir_reactor::{LocalFuture, Token, WaitChannel, contain_panics, sleep, timeout};

thread_local! {
    /// So many messages and READs of the target make it panic.
    static SENDS: Cell<u32> = const { Cell::new(0) };
}

fn due(of: &'static LocalKey<Cell<u32>>) -> bool {
    let n = of.get();
    of.set(n.saturating_sub(1));
    n > 0
}

/// A provider whose connections panic when they are told to: an error in the target's own code, as seen from outside.
struct Shaky(Rc<dyn Provider>);
struct ShakyListener(Rc<dyn Listener>);
struct ShakyIncoming(Box<dyn Incoming>);
struct ShakyConnection(Rc<dyn Connection>);

impl Provider for Shaky {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn as_any(&self) -> &dyn Any {
        self.0.as_any()
    }
    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        self.0.recv_queue(depth, len)
    }
    fn register_region(&self, base: NonNull<u8>, len: usize) -> Result<(), FabricError> {
        self.0.register_region(base, len)
    }
    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        Ok(Rc::new(ShakyListener(self.0.listen(addr)?)))
    }
    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        self.0.connect(addr, params)
    }
}

impl Listener for ShakyListener {
    fn local_addr(&self) -> String {
        self.0.local_addr()
    }
    fn next(&self) -> LocalFuture<'_, Result<Box<dyn Incoming>, FabricError>> {
        Box::pin(async {
            let next = self.0.next().await?;
            Ok(Box::new(ShakyIncoming(next)) as Box<dyn Incoming>)
        })
    }
}

impl Incoming for ShakyIncoming {
    fn private_data(&self) -> &[u8] {
        self.0.private_data()
    }
    fn peer(&self) -> String {
        self.0.peer()
    }
    fn peer_serves_reads(&self) -> u16 {
        self.0.peer_serves_reads()
    }
    fn accept(
        self: Box<Self>,
        provider: &dyn Provider,
        params: Params,
    ) -> LocalFuture<'static, Result<Rc<dyn Connection>, FabricError>> {
        let accepted = self.0.accept(provider, params);
        Box::pin(async { Ok(Rc::new(ShakyConnection(accepted.await?)) as Rc<dyn Connection>) })
    }
    fn reject(self: Box<Self>, private_data: &[u8]) {
        self.0.reject(private_data);
    }
}

impl Connection for ShakyConnection {
    fn qp(&self) -> u32 {
        self.0.qp()
    }
    fn peer(&self) -> String {
        self.0.peer()
    }
    fn send_slots(&self) -> &WaitChannel {
        self.0.send_slots()
    }
    fn read_slots(&self) -> &WaitChannel {
        self.0.read_slots()
    }
    fn reads_out(&self) -> u16 {
        self.0.reads_out()
    }
    fn last_life(&self) -> Nanos {
        self.0.last_life()
    }
    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token) {
        assert!(!due(&SENDS), "an error on purpose");
        self.0.send(head, data, flags, token);
    }
    fn write(&self, local: Slice, remote: Remote, token: Token) {
        self.0.write(local, remote, token);
    }
    fn read(&self, local: Slice, remote: Remote, token: Token) {
        assert!(!due(&SENDS), "an error on purpose");
        self.0.read(local, remote, token);
    }
    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError> {
        self.0.register(local, access)
    }
    fn deregister(&self, key: u32) {
        self.0.deregister(key);
    }
    fn set_tap(&self, tap: Option<Rc<dyn Tap>>) -> bool {
        self.0.set_tap(tap)
    }
    fn disconnect(&self, now: bool) {
        self.0.disconnect(now);
    }
    fn is_open(&self) -> bool {
        self.0.is_open()
    }
    fn on_closed(&self, token: Token) {
        self.0.on_closed(token);
    }
    fn close_reason(&self) -> String {
        self.0.close_reason()
    }
}

fn one_of_two() {
    on_reactor(|p| async move {
        let shaky: Rc<dyn Provider> = Rc::new(Shaky(p.clone()));
        let t = serve(shaky, "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let features = Features::USUAL.or(Features::KEEP_OTHERS);
        let enter = async |session| {
            let login = LoginRequest { features, session, ..login() };
            Peer::enter(&p, &t, login, 1).await.unwrap()
        };
        let (a, b) = (enter(1).await, enter(2).await);
        let v = (a.volume().await, b.volume().await).0;
        let mut news = Vec::new();
        // While its message is looked at, on the way to the volume, and while its answer is sent.
        for (round, direct, inline) in [(1, true, true), (2, false, true), (3, false, false)] {
            t.mood.direct.set(direct);
            let victim = enter(9 + u64::from(round)).await;
            victim.volume().await;
            let write = Command { len: 512, guard: v.guard, ..command(Op::Write, 1) };
            SENDS.set(1);
            if inline {
                let write = Command { flags: flag::INLINE_OUT, ..write };
                victim.send(&[(write, &[], &[7; 512])]);
            } else {
                let place = [Descriptor { addr: 0, key: 1, len: 512 }];
                victim.send(&[(Command { segments: 1, ..write }, &place, &[])]);
            }
            assert_eq!(victim.next().await, None, "no answer, and the end of the connection");
            assert!(!victim.conn.is_open());
            let (broken, new) = t.target.broken();
            assert_eq!(broken, u64::from(round));
            news.extend(new);
            for other in [&a, &b] {
                let flags = flag::INLINE_IN;
                let read = Command { flags, len: 512, seq: round, ..command(Op::Read, 1) };
                let read = Command { guard: v.guard, ..read };
                other.send(&[(read, &[], &[])]);
                let got = other.completions(1, &[read]).await;
                assert_eq!((got[0].0.status, &got[0].1[..]), (Status::Ok as u8, &[7; 512][..]));
            }
        }
        assert!(news.len() == 3 && news[0].contains("an error on purpose"), "{news:?}");
        drop((a, b));
        let left = timeout(20 * SECONDS, async {
            while t.port.census().requests_busy > 0 {
                sleep(MILLIS).await;
            }
            t.port.check_idle().unwrap();
            t.target.leave().await;
        });
        assert!(left.await.is_ok(), "nothing is held for those that are gone");
    });
}

fn in_the_volume() {
    on_reactor(|p| async move {
        let shaky: Rc<dyn Provider> = Rc::new(Shaky(p.clone()));
        let t = serve(shaky, "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        t.mood.broken.set(true);
        let peer = Peer::enter(&p, &t, login(), 1).await.unwrap();
        let v = peer.volume().await;
        let read =
            Command { flags: flag::INLINE_IN, len: 512, guard: v.guard, ..command(Op::Read, 1) };
        t.mood.direct.set(false);
        peer.send(&[(read, &[], &[])]);
        peer.next().await;
    });
}

/// The test runs itself again for what ends a process.
const CASE: &str = "WEIR_TEST_CASE";

#[test]
fn a_panic_for_one_host_ends_its_connection_and_one_of_what_all_share_the_program() {
    match std::env::var(CASE).as_deref() {
        Ok("volume") => {
            contain_panics(|_| false, std::process::abort);
            in_the_volume();
        }
        Ok(_) => {
            contain_panics(|_| false, std::process::abort);
            one_of_two();
        }
        Err(_) => {
            let run = |case: &str| {
                let me = std::env::current_exe().unwrap();
                std::process::Command::new(me)
                    .args(["--nocapture"])
                    .env(CASE, case)
                    .output()
                    .unwrap()
            };
            let one = run("host");
            assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
            let all = run("volume");
            let text = String::from_utf8_lossy(&all.stderr).into_owned();
            assert!(all.status.code().is_none(), "ended by a signal: {:?} {text}", all.status);
            assert!(text.contains("broken on purpose"), "{text}");
        }
    }
}
