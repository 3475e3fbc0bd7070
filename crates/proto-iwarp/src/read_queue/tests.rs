use super::*;
use crate::terminate::Code;
use crate::{Fault, Op};

fn seg(stag: u32, to: u64, total: u32, last_segment: bool) -> Segment {
    Segment { op: Op::ReadResponse, last_segment, stag, to, msn: 0, mo: 0, total }
}

#[test]
fn responses_come_in_the_order_of_requests() {
    let mut q = Outbound::new(2);
    assert_eq!(q.accept(&seg(1, 0, 8, true)), Err(Reason::UnexpectedResponse));
    assert_eq!(q.issue(1, 0, 4096, 'a'), Some(1));
    assert_eq!(q.issue(2, 500, 10, 'b'), Some(2));
    assert!(!q.has_room());
    assert_eq!(q.issue(3, 0, 10, 'c'), None);

    let first = seg(1, 0, 1000, false);
    let second = seg(1, 1000, 3096, true);
    assert_eq!(q.accept(&first), Ok(Response { token: 'a', at: 0 }));
    assert_eq!(q.accept(&first), Ok(Response { token: 'a', at: 0 }), "another part of it");
    assert_eq!(q.complete(), None);
    assert_eq!(q.accept(&second), Ok(Response { token: 'a', at: 1000 }));
    assert_eq!(q.accept(&second), Ok(Response { token: 'a', at: 1000 }));
    assert_eq!(q.complete(), Some('a'));
    assert_eq!(q.complete(), None);
    assert!(q.has_room());
    assert_eq!(q.issue(3, 0, 0, 'c'), Some(3));
    assert_eq!(q.accept(&seg(2, 500, 10, true)), Ok(Response { token: 'b', at: 0 }));
    assert_eq!(q.complete(), Some('b'));
    assert_eq!(q.accept(&seg(3, 0, 0, true)), Ok(Response { token: 'c', at: 0 }));
    assert_eq!(q.complete(), Some('c'));
    assert!(q.is_empty());
}

#[test]
fn foreign_responses_are_refused() {
    let mut q = Outbound::new(4);
    q.issue(7, 0x100, 100, ()).expect("room");
    q.issue(8, 0, 100, ()).expect("room");
    let mismatch = |stag, to, expected_to| {
        Err(Reason::ResponseMismatch { stag, to, expected_stag: 7, expected_to })
    };
    assert_eq!(q.accept(&seg(8, 0, 100, true)), mismatch(8, 0, 0x100));
    assert_eq!(q.accept(&seg(8, 0x100, 100, true)), mismatch(8, 0x100, 0x100));
    assert_eq!(q.accept(&seg(7, 0x101, 99, true)), mismatch(7, 0x101, 0x100));
    let size = |got| Err(Reason::ResponseSize { got, asked: 100 });
    assert_eq!(q.accept(&seg(7, 0x100, 101, true)), size(101));
    assert_eq!(q.accept(&seg(7, 0x100, 101, false)), size(101));
    assert_eq!(q.accept(&seg(7, 0x100, 99, true)), size(99));
    assert!(q.accept(&seg(7, 0x100, 60, false)).is_ok());
    assert_eq!(q.accept(&seg(7, 0x100, 40, true)), mismatch(7, 0x100, 0x100 + 60));
    assert_eq!(q.accept(&seg(7, 0x100 + 60, 41, true)), size(101));
    assert!(q.accept(&seg(7, 0x100 + 60, 40, true)).is_ok());
    assert_eq!(q.complete(), Some(()));
}

#[test]
fn sizes_do_not_overflow() {
    let mut q = Outbound::new(1);
    q.issue(1, u64::MAX - 10, u32::MAX, ()).expect("room");
    assert!(q.accept(&seg(1, u64::MAX - 10, 20, false)).is_ok());
    assert!(q.accept(&seg(1, 9, u32::MAX - 20, true)).is_ok());
    assert_eq!(q.complete(), Some(()));
    assert_eq!(q.issue(1, 0, 1, ()), Some(2));
    assert!(q.accept(&seg(1, 0, u32::MAX, false)).is_err());
}

#[test]
fn a_lost_stream_gives_all_reads_back() {
    let mut q = Outbound::new(3);
    for i in 0..3 {
        q.issue(i, 0, 10, i).expect("room");
    }
    q.accept(&seg(0, 0, 5, false)).expect("part");
    assert_eq!(q.drain().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((q.len(), q.complete()), (0, None));
    assert!(q.has_room());
}

#[test]
fn what_waits_is_counted() {
    let mut q = Outbound::new(2);
    assert_eq!((q.len(), q.is_empty()), (0, true));
    for n in 1..=2 {
        q.issue(n, 0, 8, ()).expect("room");
        assert_eq!((q.len(), q.is_empty()), (n as usize, false));
    }
    let mut q = Inbound::new(2);
    let r = Request { sink_stag: 1, sink_to: 0, size: 1, src_stag: 2, src_to: 0 };
    for n in 1..=2 {
        q.push(r).expect("room");
        assert_eq!((q.len(), q.is_empty()), (n, false));
    }
}

/// RFC 5041 section 7: a wrong STag and a wrong offset in it are different errors of a tagged buffer.
#[test]
fn a_foreign_response_is_told_by_what_is_wrong_with_it() {
    let mut q = Outbound::new(1);
    q.issue(7, 0x100, 100, ()).expect("room");
    let mut code = |s: Segment| Fault::in_segment(q.accept(&s).expect_err("refused"), &s).code();
    assert_eq!(code(seg(8, 0x100, 100, true)), Code::DDP_STAG);
    assert_eq!(code(seg(7, 0x101, 100, true)), Code::DDP_BOUNDS);
    assert_eq!(code(seg(7, 0x100, 101, true)), Code::DDP_BOUNDS);
    let none = Outbound::<()>::new(1).accept(&seg(7, 0x100, 100, true)).expect_err("refused");
    assert_eq!(Fault::in_segment(none, &seg(7, 0x100, 100, true)).code(), Code::RDMAP_OPCODE);
}

#[test]
fn no_reads_where_none_were_agreed() {
    assert_eq!(Outbound::new(0).issue(1, 0, 1, ()), None);
    let r = Request { sink_stag: 1, sink_to: 0, size: 1, src_stag: 2, src_to: 0 };
    assert_eq!(Inbound::new(0).push(r), Err(Reason::ReadQueueFull(0)));
}

#[test]
fn the_peers_reads_are_limited_and_keep_their_numbers() {
    let mut q = Inbound::new(2);
    let r = |size| Request { sink_stag: 1, sink_to: 0, size, src_stag: 2, src_to: 0 };
    assert_eq!((q.done(), q.is_empty()), (None, true));
    q.push(r(1)).expect("room");
    q.push(r(2)).expect("room");
    assert_eq!((q.front(), q.front_msn(), q.last_msn()), (Some(&r(1)), 1, 2));
    assert_eq!(q.done(), Some(r(1)));
    assert_eq!((q.front(), q.front_msn()), (Some(&r(2)), 2));
    q.push(r(3)).expect("room");
    assert_eq!(q.push(r(4)), Err(Reason::ReadQueueFull(2)));
    assert_eq!((q.last_msn(), q.len()), (4, 2));
}
