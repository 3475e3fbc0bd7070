//! What a host may do that no host in good order does, and what the target makes of it.

use crate::common::{L0, on_reactor, session_config};
use crate::peer::{End, Peer};
use crate::target::{Served, config, medium, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{Access, Provider, Remote};
use weir_initiator_srp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_srp::command_builder::BufferSpec;
use weir_proto_srp::{Descriptor, RspCode, TaskFunction};
use weir_reactor::{run_async, sleep, spawn, timeout};
use weir_target_core::{End as Ended, Whom};
use weir_target_srp::TargetConfig;

/// Waits until `done`, or fails.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            sleep(MILLIS).await;
        }
    };
    assert!(timeout(20 * SECONDS, wait).await.is_ok(), "{what}");
}

/// Nothing is left of whoever was there, and the port can end.
pub(crate) async fn ends_whole(t: &Served) {
    until("the channels end", || t.port.census().channels == 0).await;
    t.port.check_idle().unwrap();
    let pool = t.port.census().data_pool;
    assert!(pool.iter().all(|c| c.free == c.total), "{pool:?}");
    t.target.leave().await;
}

/// An IRD of 0 is a host's right. It cannot have data fetched then, and no command of its waits for that.
#[test]
fn a_host_that_serves_no_read_is_told_so_and_holds_nothing() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let peer = Peer::enter(&p, &t, 0).await;
        peer.attention().await;
        let place = Descriptor { addr: 0, key: 0x77, len: 1 << 16 };
        peer.write(1, 0, 128, BufferSpec::Direct(place));
        assert_eq!(peer.next().await, (1, End::Code(RspCode::FieldsInvalid)));
        // A table that would have to be fetched.
        let table = Descriptor { addr: 0, key: 0x77, len: 16 * 300 };
        peer.write(2, 0, 128, BufferSpec::Indirect { table, total: 1 << 16, inline: &[] });
        assert_eq!(peer.next().await, (2, End::Code(RspCode::FieldsInvalid)));
        peer.write(3, 0, 1, Peer::immediate(&[5; 512]));
        assert_eq!(peer.next().await, (3, End::Status(0)));
        // It goes while the next one is on its way.
        peer.write(4, 0, 128, BufferSpec::Direct(place));
        drop(peer);
        ends_whole(&t).await;
    });
}

/// Whose messages are wrong again and again is answered for a while, and then disconnected; others notice nothing.
#[test]
fn a_host_that_breaks_the_protocol_again_and_again_is_disconnected() {
    const MOST: u64 = 64;
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let (wrong, other) = (Peer::enter(&p, &t, 0).await, {
            let port = weir_proto_srp::PortId::new(7, 7);
            Peer::enter_as(&p, &t, port, 0).await.unwrap()
        });
        wrong.attention().await;
        other.attention().await;
        for tag in 0..MOST {
            wrong.nonsense(tag);
            assert_eq!(wrong.next().await, (tag, End::Code(RspCode::FieldsInvalid)));
        }
        wrong.nonsense(MOST);
        while wrong.conn.is_open() {
            weir_reactor::sleep(weir_base::MILLIS).await;
        }
        other.write(1, 0, 1, Peer::immediate(&[5; 512]));
        assert_eq!(other.next().await, (1, End::Status(0)));
        drop((wrong, other));
        ends_whole(&t).await;
    });
}

/// What a port counts only grows: commands do not go with their channel.
#[test]
fn a_port_counts_logins_refusals_commands_and_task_management() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let counts = || t.target.counts().read();
        let port = weir_proto_srp::PortId::new(9, 9);
        let (one, other) =
            (Peer::enter(&p, &t, 0).await, Peer::enter_as(&p, &t, port, 0).await.unwrap());
        one.attention().await;
        for tag in 0..3 {
            one.write(tag, 0, 1, Peer::immediate(&[5; 512]));
            assert_eq!(one.next().await, (tag, End::Status(0)));
        }
        one.manage(7, TaskFunction::AbortTask, 99);
        assert_eq!(one.next().await, (7, End::Code(RspCode::Complete)));
        let before = counts();
        assert_eq!((before.logins, before.refused, before.tasks), (2, 0, 1));
        drop(one);
        until("its channel ends", || t.port.census().channels == 1).await;
        assert!(counts().commands >= 4, "they went with their channel: {:?}", counts());
        // Nobody knows it any more.
        t.access.set(weir_target_core::AccessMap::default());
        assert!(Peer::enter_as(&p, &t, port, 0).await.is_err());
        assert_eq!((counts().logins, counts().refused), (2, 1));
        let told = t.target.counts().take_refusals(std::time::Instant::now());
        assert!(told[0].contains(&port.to_string()) && told[0].contains("127.0.0.1"), "{told:?}");
        drop(other);
        ends_whole(&t).await;
    });
}

/// More commands with tables of their own than there are buffers for both, all at once.
#[test]
fn commands_with_tables_never_wait_for_each_other() {
    on_reactor(|p| async move {
        const ENTRIES: usize = 300;
        const LEN: usize = 64 << 10;
        let c = TargetConfig { recv_buffers: 800, ..config() };
        let policy = weir_proto_srp::TargetPolicy { credits: 100, ..c.policy };
        let t = serve(p.clone(), "127.0.0.1:0", TargetConfig { policy, ..c }, &medium(1 << 20));
        let peer = Peer::enter(&p, &t, 4).await;
        peer.attention().await;
        assert!(peer.granted.credits >= 90, "{:?}", peer.granted);
        let memory = Slice::heap(2 * LEN);
        let at = peer.conn.register(&memory, Access::RemoteRead).unwrap();
        write_table(&memory, at, ENTRIES, LEN);
        let table = Descriptor { addr: at.addr, key: at.key, len: (16 * ENTRIES) as u32 };
        let spec = BufferSpec::Indirect { table, total: LEN as u32, inline: &[] };
        (0..90).for_each(|tag| peer.write(tag, 0, (LEN / 512) as u16, spec));
        for _ in 0..90 {
            assert_eq!(peer.next().await.1, End::Status(0));
        }
        drop(peer);
        ends_whole(&t).await;
    });
}

/// A table of entries that cover `len` bytes behind it, in the peer's own memory.
fn write_table(memory: &Slice, at: Remote, entries: usize, len: usize) {
    let each = len.div_ceil(entries);
    for i in 0..entries {
        let n = each.min(len.saturating_sub(i * each));
        let (addr, key) = (at.addr + (len + i * each) as u64, at.key);
        let d = Descriptor { addr, key, len: n as u32 };
        memory.write_at(16 * i, &d.to_bytes());
    }
}

/// Commands that wait for a buffer end with their connection, not when those before them have ended.
#[test]
fn waits_for_buffers_end_with_the_connection() {
    on_reactor(|p: Rc<dyn Provider>| async move {
        let c = TargetConfig { recv_buffers: 800, ..config() };
        let policy = weir_proto_srp::TargetPolicy { credits: 100, ..c.policy };
        let t = serve(p.clone(), "127.0.0.1:0", TargetConfig { policy, ..c }, &medium(1 << 20));
        let peer = Peer::enter(&p, &t, 4).await;
        peer.attention().await;
        let memory = Slice::heap(64 << 10);
        let at = peer.conn.register(&memory, Access::RemoteRead).unwrap();
        let place = Descriptor { addr: at.addr, key: at.key, len: 64 << 10 };
        t.mood.stall.set(true);
        (0..90).for_each(|tag| peer.write(tag, 0, 128, BufferSpec::Direct(place)));
        // A channel's share of 64 buffers of that size and of 4 larger ones is with writes that do not end.
        let begun = t.mood.begun.get();
        until("as many as it may have buffers for", || t.mood.begun.get() == begun + 34).await;
        let waiting = || t.port.census().data_pool.iter().map(|c| c.waiting).sum::<usize>();
        until("the others wait", || waiting() == 56).await;
        peer.conn.disconnect(true);
        until("nobody waits any more", || waiting() == 0).await;
        until("only those that write are left", || t.port.census().requests_busy == 34).await;
        t.mood.stall.set(false);
        drop(peer);
        ends_whole(&t).await;
    });
}

/// A host that comes back at once, again and again, does not keep the port from ending; nor does a device that hangs.
#[test]
fn a_port_ends_though_hosts_come_back_and_devices_hang() {
    on_reactor(|p| async move {
        let medium = medium(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium);
        let c = SessionConfig { reconnect_min: 1, reconnect_max: MILLIS, ..session_config(&t) };
        let s = Session::connect(p.clone(), SessionConfig { channels: 3, ..c }).await.unwrap();
        let q = s.queue();
        let writes = spawn(async move {
            let data = || Slice::copy_of(&[1; 512]).sub(0, 512);
            while q.write(L0, 0, data(), false).await.is_ok() {}
        });
        until("it writes", || t.mood.begun.get() > 10).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(SECONDS * 3600)).await;
        assert_eq!(left, Ok(true));
        let again = serve(p.clone(), &t.addr, config(), &medium);
        until("its address is free again, and the host comes back", || again.mood.begun.get() > 10)
            .await;
        again.mood.stall.set(true);
        until("a write hangs", || again.port.census().requests_busy > 0).await;
        let left = timeout(20 * SECONDS, again.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false), "it says that something was left behind");
        drop((s, writes));
    });
}

/// A port that goes without what a device does not end has not made it undone: whoever wants the volume's place waits for it.
#[test]
fn what_a_port_leaves_behind_is_waited_for() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let q = s.queue();
        q.test_unit_ready(L0).await.unwrap();
        t.mood.stall.set(true);
        let begun = t.mood.begun.get();
        let data = Slice::copy_of(&[1; 512]).sub(0, 512);
        let write = spawn(async move { q.write(L0, 0, data, false).await });
        until("a write hangs", || t.mood.begun.get() > begun).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false));
        let unit = t.unit.clone();
        let fence = spawn(async move { unit.fence(Whom::All, Ended::Gone).await });
        sleep(500 * MILLIS).await;
        assert!(!fence.is_finished(), "the end of a write is promised that is with the device yet");
        t.mood.stall.set(false);
        until("it has ended", || fence.is_finished()).await;
        until("its host is forgotten", || t.unit.with(|s| s.nexuses().count()) == 0).await;
        assert!(t.port.census().data_pool.iter().all(|c| c.free == c.total));
        s.close().await;
        drop(write);
    });
}

/// What a host writes by a port that was made again does not come before what the old port has left with the device.
#[test]
fn a_port_made_again_waits_for_what_the_old_one_has_left_behind() {
    on_reactor(|p| async move {
        let disk = medium(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &disk);
        let data = |byte| Slice::copy_of(&[byte; 512]).sub(0, 512);
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let q = s.queue();
        q.test_unit_ready(L0).await.unwrap();
        t.mood.delay.set(2 * SECONDS);
        let begun = t.mood.begun.get();
        let write = spawn(async move { q.write(L0, 0, data(1), false).await });
        until("a write is with the device", || t.mood.begun.get() > begun).await;
        t.mood.delay.set(0);
        let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false));
        s.close().await;
        let c = SessionConfig { addrs: vec![t.again(&p, config())], ..session_config(&t) };
        let s = Session::connect(p.clone(), c).await.unwrap();
        s.queue().write(L0, 0, data(2), false).await.unwrap();
        sleep(3 * SECONDS).await;
        assert_eq!(disk.lock().unwrap()[0], 2, "what was acknowledged last is there");
        s.close().await;
        drop(write);
    });
}

/// A table of a peer, which has to be fetched.
fn far_table(peer: &Peer) -> (Slice, BufferSpec<'static>) {
    const ENTRIES: usize = 300;
    const LEN: usize = 64 << 10;
    let memory = Slice::heap(2 * LEN);
    let at = peer.conn.register(&memory, Access::RemoteRead).unwrap();
    write_table(&memory, at, ENTRIES, LEN);
    let table = Descriptor { addr: at.addr, key: at.key, len: (16 * ENTRIES) as u32 };
    (memory, BufferSpec::Indirect { table, total: LEN as u32, inline: &[] })
}

/// A command has taken a unit attention, waits for its table, and is aborted: nothing more is heard of it. The attention is told to
/// the next one.
#[test]
fn an_attention_that_was_not_told_stays() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let peer = Peer::enter(&p, &t, 4).await;
        let (memory, spec) = far_table(&peer);
        for (tag, cdb) in [(1, 0x2A), (11, 0x03)] {
            let mut sent = [0; 10];
            (sent[0], sent[4]) = (cdb, 18);
            sent[8] = 128 * u8::from(cdb == 0x2A);
            let cdb = if cdb == 0x2A { &sent[..] } else { &sent[..6] };
            peer.send(tag, cdb, spec);
            peer.manage(tag + 1, TaskFunction::AbortTask, tag);
            assert_eq!(peer.next().await, (tag + 1, End::Code(RspCode::Complete)));
        }
        peer.attention().await;
        peer.send(3, &[0; 6], BufferSpec::None);
        assert_eq!(peer.next().await, (3, End::Status(0)), "once");
        drop((peer, memory));
        ends_whole(&t).await;
    });
}

/// Commands find no unit at their LUN and wait for their tables, which come one by one. The unit comes, and the host aborts its task
/// set there: nothing more is heard of those that have not been answered.
#[test]
fn a_task_set_has_the_commands_that_came_before_the_unit() {
    use TaskFunction::{AbortTaskSet, ClearTaskSet, LunReset};
    const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 128, 0];
    for function in [AbortTaskSet, ClearTaskSet, LunReset] {
        on_reactor(move |p| async move {
            let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
            t.show(&[]);
            let peer = Peer::enter(&p, &t, 1).await;
            let (memory, spec) = far_table(&peer);
            (0..25).for_each(|tag| peer.send(tag, &WRITE, spec));
            while t.port.census().requests_busy < 20 {
                run_async().await;
            }
            t.show(&[(0, "v")]);
            peer.manage(100, function, 0);
            let mut before = 0;
            while peer.next().await != (100, End::Code(RspCode::Complete)) {
                before += 1;
            }
            assert!(before < 25, "none of them was aborted");
            peer.send(101, &[0x12, 0, 0, 0, 36, 0], BufferSpec::None);
            assert_eq!(peer.next().await, (101, End::Status(0)), "nothing else is heard");
            drop((peer, memory));
            ends_whole(&t).await;
        });
    }
}

/// A volume is mapped, and comes later, as after a start of which its pool takes its time: its host is told to wait.
#[test]
fn what_is_mapped_and_not_there_yet_is_becoming_ready() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        t.show(&[(0, "v"), (5, "later")]);
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let q = s.queue();
        q.test_unit_ready(L0).await.unwrap();
        let [five, six] = [5, 6].map(|n| Lun::from_index(n).unwrap());
        assert!(q.test_unit_ready(six).await.is_err(), "nobody has mapped it");
        let e = q.test_unit_ready(five).await.expect_err("it is not there");
        assert!(e.sense().is_some_and(|s| s.same_code(&Sense::BECOMING_READY)), "{e}");
        t.add("later", [0x61; 16], &medium(1 << 20));
        t.access.touch();
        q.read(five, 0, Slice::heap(512).sub(0, 512)).await.expect("it is read");
        s.close().await;
    });
}

/// A login waits for a channel that it ends, and its port ends meanwhile. The units forget the host all the same, and what it had
/// reserved is others'.
#[test]
fn a_login_that_finds_its_port_gone_leaves_nothing_behind() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let peer = Peer::enter(&p, &t, 0).await;
        peer.attention().await;
        peer.send(1, &[0x16, 0, 0, 0, 0, 0], BufferSpec::None);
        assert_eq!(peer.next().await, (1, End::Status(0)), "RESERVE(6)");
        t.mood.stall.set(true);
        let begun = t.mood.begun.get();
        // VERIFY of one block: it reads.
        peer.send(2, &[0x2F, 0, 0, 0, 0, 0, 0, 0, 1, 0], BufferSpec::None);
        until("it is with the device", || t.mood.begun.get() > begun).await;
        let c = session_config(&t);
        let login = spawn(Session::connect(p.clone(), c));
        until("the channel is ended", || !peer.conn.is_open()).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false));
        t.mood.stall.set(false);
        assert!(login.await.expect("it ends").is_err());
        until("its host is forgotten", || t.unit.with(|s| s.nexuses().count()) == 0).await;
        let c = SessionConfig { addrs: vec![t.again(&p, config())], ..session_config(&t) };
        let s = Session::connect(p.clone(), c).await.unwrap();
        let data = Slice::copy_of(&[1; 512]).sub(0, 512);
        s.queue().write(L0, 0, data, false).await.unwrap();
        s.close().await;
    });
}
