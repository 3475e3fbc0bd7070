//! Over iWARP on loopback, target and initiator on one reactor unless a test says otherwise.

use crate::common::{L0, check_clean, on_reactor, session_config, verify};
use crate::target::{config, medium, serve};
use weir_initiator_srp::{Error, PathState, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::Lun;

#[test]
fn every_operation_of_a_queue() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let s = Session::connect(p, session_config(&t)).await.unwrap();
        assert_eq!(s.state(), PathState::Running);
        let q = s.queue();
        let units = q.scan().await.unwrap();
        assert_eq!(units.len(), 2, "{units:?}");
        let u = &units[1];
        assert_eq!((u.lun, u.len, u.block_size), (Lun::from_index(3).unwrap(), 1 << 20, 512));
        assert_eq!((&*u.vendor, &*u.product), ("WEIR", "TEST"));
        assert_eq!(u.naa.as_deref(), Some(&[0x60; 16][..]));
        assert!(u.serial.is_some() && u.limits.is_some());
        q.test_unit_ready(L0).await.unwrap();
        let a: Vec<u8> = (0..16384).map(|i| (i * 7 % 251) as u8).collect();
        q.write(L0, 4096, Slice::copy_of(&a), true).await.unwrap();
        q.flush(L0).await.unwrap();
        let b = Slice::heap(16384);
        // The same medium under another number.
        q.read(u.lun, 4096, b.clone()).await.unwrap();
        assert!(b.to_vec() == a);
        // Several pieces: copied behind the command, and in a table.
        for pieces in [3usize, 40, 200] {
            let size = if pieces == 3 { 1024 } else { 512 };
            let bytes: Vec<u8> = (0..pieces * size).map(|i| (i * pieces) as u8).collect();
            let out: Vec<Slice> =
                bytes.chunks(size).map(|c| Slice::copy_of(c).sub(0, size)).collect();
            q.write_from(L0, 65536, &out, false).await.unwrap();
            let back: Vec<Slice> = (0..pieces).map(|_| Slice::heap(size).sub(0, size)).collect();
            q.read_to(L0, 65536, &back).await.unwrap();
            let got: Vec<u8> = back.iter().flat_map(|s| s.to_vec()).collect();
            assert!(got == bytes, "{pieces} pieces");
        }
        q.unmap(L0, &[(4096, 4096)]).await.unwrap();
        q.read(L0, 4096, b.clone()).await.unwrap();
        assert!(b.to_vec()[..4096].iter().all(|x| *x == 0) && b.to_vec()[4096..] == a[4096..]);
        q.write_zeroes(L0, 8192, 4096, false).await.unwrap();
        q.write_same(L0, 12288, 4096, Slice::copy_of(&a[..512]).sub(0, 512)).await.unwrap();
        q.read(L0, 4096, b.clone()).await.unwrap();
        assert!(b.to_vec()[4096..8192].iter().all(|x| *x == 0));
        assert!(b.to_vec()[8192..12288].chunks(512).all(|c| c == &a[..512]));
        let both = Slice::copy_of(&[&a[..512], &[9; 512]].concat()).sub(0, 1024);
        assert_eq!(q.compare_and_write(L0, 12288, both.clone()).await, Ok(true));
        assert_eq!(q.compare_and_write(L0, 12288, both).await, Ok(false));
        // Errors carry their sense.
        let e = q.read(L0, 1 << 20, b.clone()).await.unwrap_err();
        assert_eq!(e.sense().map(|s| (s.asc, s.ascq)), Some((0x21, 0)), "{e}");
        assert!(matches!(q.read(L0, 1, b.clone()).await, Err(Error::Invalid(_))));
        check_clean(Some(&s), &t).await;
        assert_eq!(q.read(L0, 0, b).await, Err(Error::Closed));
    });
}

#[test]
fn two_channels_share_the_work() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let s =
            Session::connect(p, SessionConfig { channels: 2, ..session_config(&t) }).await.unwrap();
        assert_eq!(s.figures().channels, 2);
        assert_eq!(t.target.nexuses()[0].channels, 2);
        verify(&s.queue(), 1 << 20, 8, 60, 1).await;
        let commands: Vec<u64> = t.target.local_channels().iter().map(|c| c.commands).collect();
        assert!(commands.iter().all(|n| *n > 100), "{commands:?}");
        check_clean(Some(&s), &t).await;
    });
}

#[test]
fn a_login_that_fails_says_why() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let other = weir_proto_srp::PortId::new(9, 9);
        let c = SessionConfig { target: other, ..session_config(&t) };
        let e = Session::connect(p.clone(), c).await.err().unwrap();
        assert!(e.to_string().contains("refused"), "{e}");
        let c = SessionConfig { addrs: vec!["127.0.0.1:1".into()], ..session_config(&t) };
        let e = Session::connect(p.clone(), c).await.err().unwrap();
        assert!(e.to_string().contains("reach"), "{e}");
        // The second address will do.
        let addrs = vec!["127.0.0.1:1".into(), t.addr.clone()];
        let s = Session::connect(p, SessionConfig { addrs, ..session_config(&t) }).await.unwrap();
        s.queue().test_unit_ready(L0).await.unwrap();
        check_clean(Some(&s), &t).await;
    });
}
