//! Over iWARP on loopback, target and initiator on one reactor.

use crate::common::{bytes, check_clean, on_reactor, session_config, slice, verify};
use crate::target::{config, map, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_initiator_brp::{
    Error, Event, Keep, PortId, RejectReason, Session, SessionConfig, Status, Variant,
};
use weir_mem::Slice;
use weir_proto_brp::Features;
use weir_reactor::{sleep, spawn, timeout};
use weir_target_brp::TargetConfig;

#[test]
fn every_operation() {
    for (direct, integrity) in [(true, true), (false, true), (true, false), (false, false)] {
        on_reactor(|p| async move {
            let memory = Slice::heap(8 << 20);
            let t = serve(p.clone(), "127.0.0.1:0", config(), &memory);
            t.mood.direct.set(direct);
            let c = SessionConfig { integrity, ..session_config(&t) };
            let s = Session::connect(p, c).await.unwrap();
            let q = s.queue();
            let all = q.list().await.unwrap();
            let seen: Vec<_> = all.iter().map(|v| (v.volume, v.len, &*v.name)).collect();
            assert_eq!(seen, [(0, 8 << 20, "v"), (3, 8 << 20, "v")]);
            let d = q.open("v").await.unwrap();
            let info = d.info();
            assert_eq!((info.block_size, info.thin, info.uid), (512, true, [0x60; 16]));
            let same = q.open_number(3).await.unwrap();
            for len in [512, 4096, 16384, 65536, 1 << 20, 3 << 20] {
                let a = bytes(len, len as u64);
                d.write(512, slice(&a), len == 4096).await.unwrap();
                d.flush().await.unwrap();
                let b = Slice::heap(len).sub(0, len);
                same.read(512, b.clone()).await.unwrap();
                assert!(b.to_vec() == a, "{len} bytes");
            }
            // Several pieces, inline and described.
            for (pieces, size) in [(3usize, 1024), (40, 512), (200, 512)] {
                let data = bytes(pieces * size, 9);
                let out: Vec<Slice> = data.chunks(size).map(slice).collect();
                d.write_from(4096 - 512, &out, false).await.unwrap();
                let back: Vec<Slice> =
                    (0..pieces).map(|_| Slice::heap(size).sub(0, size)).collect();
                d.read_to(4096 - 512, &back).await.unwrap();
                let got: Vec<u8> = back.iter().flat_map(|s| s.to_vec()).collect();
                assert!(got == data, "{pieces} pieces");
            }
            d.discard(4096, 4096).await.unwrap();
            d.write_zeroes(8192, 4096, false).await.unwrap();
            let b = Slice::heap(8192);
            d.read(4096, b.clone()).await.unwrap();
            assert!(b.to_vec().iter().all(|x| *x == 0));
            let both = slice(&[vec![0; 512], vec![9; 512]].concat());
            assert_eq!(d.compare_and_write(4096, both.clone()).await, Ok(()));
            assert_eq!(d.compare_and_write(4096, both).await, Err(Error::Miscompare(0)));
            q.nop().await.unwrap();
            let e = d.read(8 << 20, slice(&[0; 512])).await;
            assert_eq!(e, Err(Error::Status(Status::OutOfRange)));
            let e = d.write(1, slice(&[0; 512]), false).await;
            assert_eq!(e, Err(Error::Status(Status::OutOfRange)));
            let e = q.open("nothing").await.err().unwrap();
            assert!(e.to_string().contains("no volume nothing"), "{e}");
            assert_eq!(s.figures().damaged, 0);
            drop((d, same));
            check_clean(&s, &t).await;
        });
    }
}

/// Making a file system on a large volume gives all of it back first.
#[test]
fn what_moves_no_data_is_one_command_however_long() {
    const LEN: usize = 8 << 20;
    for long in [true, false] {
        on_reactor(move |p| async move {
            let memory = Slice::heap(LEN);
            memory.fill(1);
            let known = Features::ALL;
            let features = if long { known } else { known.without(Features::LONG_RANGES) };
            let t = serve(p.clone(), "127.0.0.1:0", TargetConfig { features, ..config() }, &memory);
            let s = Session::connect(p, session_config(&t)).await.unwrap();
            let d = s.queue().open("v").await.unwrap();
            d.discard(4096, LEN as u64 - 4096).await.unwrap();
            assert_eq!(t.mood.ranges.get(), if long { 1 } else { 8 });
            d.write_zeroes(0, LEN as u64, true).await.unwrap();
            assert_eq!(t.mood.ranges.get(), if long { 2 } else { 16 });
            assert!(memory.to_vec().iter().all(|b| *b == 0));
            let e = d.discard(4096, LEN as u64).await;
            assert_eq!(e, Err(Error::Status(Status::OutOfRange)));
            drop(d);
            check_clean(&s, &t).await;
        });
    }
}

#[test]
fn all_variants_move_the_right_bytes() {
    let variants = [Variant::Brp1, Variant::Brp2, Variant::Brp3T, Variant::BRP3, Variant::Auto];
    for (i, variant) in variants.into_iter().enumerate() {
        for direct in [true, false] {
            on_reactor(|p| async move {
                let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
                t.mood.direct.set(direct);
                let c = SessionConfig { variant, channels: 1 + i % 3, ..session_config(&t) };
                let s = Session::connect(p, c).await.unwrap();
                let d = Rc::new(s.queue().open("v").await.unwrap());
                verify(d.clone(), 0, 1 << 20, 16, 60, i as u64).await;
                let f = s.channels();
                let merged: u64 = f.iter().map(|c| c.merged).sum();
                match variant {
                    Variant::Brp1 | Variant::Brp2 => assert_eq!(merged, 0, "{f:?}"),
                    // It has not learned anything yet.
                    Variant::Auto => {}
                    _ => assert!(merged > 100, "{variant:?} {f:?}"),
                }
                assert_eq!((s.figures().damaged, f.iter().map(|c| c.stale).sum()), (0, 0u64));
                drop(d);
                check_clean(&s, &t).await;
            });
        }
    }
}

#[test]
fn a_login_that_fails_says_why() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let c = SessionConfig { target: PortId([9; 16]), ..session_config(&t) };
        let e = Session::connect(p.clone(), c).await.err().unwrap();
        assert_eq!(e, Error::Rejected(RejectReason::NoTarget));
        t.access.set(weir_target_core::AccessMap::default());
        let e = Session::connect(p.clone(), session_config(&t)).await.err().unwrap();
        assert_eq!(e, Error::Rejected(RejectReason::NotAllowed));
        t.access.set(map(&[0]));
        let c = SessionConfig { addrs: vec!["127.0.0.1:1".into()], ..session_config(&t) };
        let e = Session::connect(p.clone(), c).await.err().unwrap();
        assert!(e.to_string().contains("reach"), "{e}");
        // The second address will do.
        let addrs = vec!["127.0.0.1:1".into(), t.addr.clone()];
        let s = Session::connect(p, SessionConfig { addrs, ..session_config(&t) }).await.unwrap();
        s.queue().nop().await.unwrap();
        check_clean(&s, &t).await;
    });
}

#[test]
fn a_new_session_ends_older_ones_unless_it_says_otherwise() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let keep = SessionConfig { keep: Keep::All, ..session_config(&t) };
        let a = Session::connect(p.clone(), keep.clone()).await.unwrap();
        let b = Session::connect(p.clone(), keep).await.unwrap();
        assert_eq!(t.target.sessions().len(), 2);
        a.queue().nop().await.unwrap();
        let c = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        assert_eq!(t.target.sessions().len(), 1);
        c.queue().nop().await.unwrap();
        for s in [&a, &b] {
            assert!(s.events().contains(&Event::Lost), "{:?}", s.events());
            assert_eq!(s.queue().nop().await, Err(Error::Replaced));
            s.close().await;
        }
        check_clean(&c, &t).await;
    });
}

#[test]
fn slow_commands_are_aborted_and_their_slots_come_back() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let c = SessionConfig {
            command_timeout: 100 * MILLIS,
            abort_timeout: 10 * SECONDS,
            ..session_config(&t)
        };
        let s = Session::connect(p, c).await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        // One that holds the volume, one that waits behind it and has no effect yet.
        t.mood.stall.set(true);
        let first = {
            let d = d.clone();
            spawn(async move { d.write(0, slice(&[1; 512]), false).await })
        };
        sleep(300 * MILLIS).await;
        assert_eq!(s.figures().aborts, 1);
        t.mood.stall.set(false);
        // It was being written when the abort came, so it ends as it ends.
        assert_eq!(first.await, Some(Ok(())));
        // A future that is dropped.
        t.mood.stall.set(true);
        let read = timeout(10 * MILLIS, d.read(0, Slice::heap(4096))).await;
        assert!(read.is_err());
        sleep(20 * MILLIS).await;
        assert_eq!(s.census()[0].busy, 1, "its slot is taken till the target tells its end");
        t.mood.stall.set(false);
        sleep(50 * MILLIS).await;
        drop(d);
        check_clean(&s, &t).await;
    });
}

#[test]
fn news_of_volumes_reach_the_host_and_another_volume_under_the_number_is_refused() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let s = Session::connect(p, session_config(&t)).await.unwrap();
        let d = s.queue().open_number(0).await.unwrap();
        d.write(0, slice(&[1; 512]), false).await.unwrap();
        sleep(400 * MILLIS).await;
        t.access.set(map(&[5]));
        // The volume has another number now: found by its identity.
        d.read(0, Slice::heap(512).sub(0, 512)).await.unwrap();
        assert_eq!(d.info().volume, 5);
        sleep(600 * MILLIS).await;
        assert!(s.events().contains(&Event::Volumes), "{:?}", s.events());
        t.access.set(map(&[]));
        let e = d.read(0, Slice::heap(512).sub(0, 512)).await;
        assert_eq!(e, Err(Error::NoVolume("v".into())));
        t.access.set(weir_target_core::AccessMap::default());
        sleep(600 * MILLIS).await;
        assert!(t.target.sessions().is_empty(), "who is not allowed any more is sent away");
        s.close().await;
        t.port.check_idle().unwrap();
    });
}

#[test]
fn silence_ends_connections_of_both_sides_and_forgotten_sessions_go() {
    on_reactor(|p| async move {
        let c = TargetConfig { session_timeout: 300 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let c = SessionConfig { keep_alive: 300 * MILLIS, ..session_config(&t) };
        let s = Session::connect(p, c).await.unwrap();
        // Pings keep an idle connection alive.
        sleep(1500 * MILLIS).await;
        assert_eq!(s.figures().losses, 0);
        check_clean(&s, &t).await;
    });
}
