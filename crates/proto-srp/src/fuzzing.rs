//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.
//!
//! Each returns whether the bytes got past the first checks, so that a harness can tell whether its
//! inputs reach anything. A failed assertion is the finding.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]
use weir_wire::Reader;

use crate::bdt::{Segment, Walk, WalkError};
use crate::cmd::{Buffer, Command, check_table};
use crate::command_builder::{BufferSpec, CommandBuilder};
use crate::iu::{Iu, IuContext, IuError, TargetIu};
use crate::login::{
    BufferFormats, Form, LoginReject, LoginRequest, LoginResponse, MultiChannelResult,
};
use crate::policy::{MIN_IMMEDIATE_OFFSET, TargetPolicy, evaluate, settle};
use crate::types::{DESCRIPTOR_LEN, Descriptor, DescriptorList};

/// Login IUs, their round trips and the decision about them.
pub fn fuzz_login(data: &[u8]) -> bool {
    let mut reached = false;
    for form in [Form::IbCm, Form::RdmaCm] {
        let Ok(req) = LoginRequest::decode(data, form) else { continue };
        reached = true;
        let mut bytes = [0xee; 64];
        let n = req.encode(form, &mut bytes).expect("64 bytes hold either form");
        assert_eq!(n, form.len());
        assert_eq!(LoginRequest::decode(&bytes, form), Ok(req), "padding or reserved bytes matter");
        judge(&req, data);
    }
    if let Ok((req, form)) = LoginRequest::decode_any(data) {
        assert_eq!(LoginRequest::decode(data, form), Ok(req));
    } else {
        assert!(data.len() < Form::RdmaCm.len() || !reached);
    }
    if let Ok(rsp) = LoginResponse::decode(data) {
        reached = true;
        assert_eq!(LoginResponse::decode(&rsp.to_bytes()), Ok(rsp));
    }
    if let Ok(rej) = LoginReject::decode(data) {
        reached = true;
        assert_eq!(LoginReject::decode(&rej.to_bytes()), Ok(rej));
    }
    reached
}

fn judge(req: &LoginRequest, data: &[u8]) {
    let last = data.last().copied().unwrap_or(0);
    let policy = TargetPolicy {
        immediate: last & 1 != 0,
        multichannel: last & 2 != 0,
        ..TargetPolicy::default()
    };
    let Ok((rsp, n)) = evaluate(req, &policy) else { return };
    assert_eq!(rsp.tag, req.tag);
    assert!(rsp.request_iu_len >= req.request_iu_len && rsp.request_iu_len <= policy.max_iu_len);
    assert!(rsp.formats.contains(req.formats) && rsp.formats == BufferFormats::BOTH);
    assert_eq!(rsp.immediate_supported, n.immediate_offset.is_some());
    assert!(rsp.result != MultiChannelResult::Reserved);
    if let Some(offset) = n.immediate_offset {
        assert!(req.immediate && policy.immediate && offset == req.immediate_offset);
        assert!(offset >= MIN_IMMEDIATE_OFFSET && u32::from(offset) < n.request_iu_len);
    }
    // The other side comes to the same agreement.
    let host = settle(req, &rsp, policy.max_response_len).expect("our own response is sound");
    assert_eq!(host.request_iu_len, n.request_iu_len);
    assert_eq!(host.response_iu_len, n.response_iu_len);
    assert_eq!(host.immediate_offset, n.immediate_offset);
    assert_eq!(host.multichannel, n.multichannel);
}

/// Information units of both directions and their round trips. The first 4 bytes choose what was
/// negotiated, the rest is the IU.
pub fn fuzz_iu(data: &[u8]) -> bool {
    let Some((&[flags, offset, cap, _], iu)) = data.split_first_chunk() else { return false };
    let ctx = IuContext {
        max_iu_len: if flags & 1 == 0 { 8276 } else { 276 },
        immediate_offset: (flags & 2 == 0).then_some(48 + u16::from(offset)),
        max_table_entries: if flags & 4 == 0 { 2048 } else { u32::from(cap) },
    };
    let to_target = match Iu::decode(iu, &ctx) {
        Ok(msg) => {
            assert!(iu.len() <= ctx.max_iu_len as usize);
            check_request(&msg, iu, &ctx);
            true
        }
        Err(e) => {
            let command = matches!(e, IuError::Command { .. });
            assert_eq!(e.answer().is_some(), command);
            if let Some((tag, _)) = e.answer() {
                assert_eq!(tag.to_bytes(), iu[8..16], "the answer goes to the request's tag");
            }
            command
        }
    };
    let to_initiator = match TargetIu::decode(iu) {
        Ok(msg) => {
            check_response(&msg);
            true
        }
        Err(_) => false,
    };
    assert!(!(to_target && to_initiator), "one IU for both directions");
    to_target || to_initiator
}

fn check_request(msg: &Iu<'_>, iu: &[u8], ctx: &IuContext) {
    assert_eq!(msg.tag().to_bytes(), iu[8..16]);
    let mut out = [0xee; 64];
    match msg {
        Iu::Command(c) => check_command(c, iu, ctx),
        Iu::TaskManagement(t) => {
            let n = t.encode(&mut out).expect("64 bytes hold it");
            assert_eq!(Iu::decode(&out[..n], ctx), Ok(*msg));
        }
        Iu::InitiatorLogout(l) => assert_eq!(Iu::decode(&l.to_bytes(), ctx), Ok(*msg)),
        Iu::CreditResponse(c) => assert_eq!(Iu::decode(&c.to_bytes(), ctx), Ok(*msg)),
        Iu::EventResponse(e) => assert_eq!(Iu::decode(&e.to_bytes(), ctx), Ok(*msg)),
    }
}

fn check_buffer(b: &Buffer<'_>, iu: &[u8], ctx: &IuContext) {
    match *b {
        Buffer::None => {}
        Buffer::Direct(d) => assert!(!d.wraps()),
        Buffer::Indirect { table, total, entries, inline } => {
            assert_eq!(u64::from(table.len), u64::from(entries) * DESCRIPTOR_LEN as u64);
            assert!(entries <= ctx.max_table_entries && inline.len() <= entries as usize);
            let fetch = b.missing_table().map_or(0, |d| {
                assert!(!d.wraps() && d.key == table.key);
                d.len
            });
            assert_eq!(inline.as_bytes().len() as u64 + u64::from(fetch), u64::from(table.len));
            assert!(iu.as_ptr_range().contains(&inline.as_bytes().as_ptr()) || inline.is_empty());
            if fetch == 0 {
                assert_eq!(check_table(inline, total), Ok(()));
                // A whole table moves all of its data, in whatever pieces.
                let local = [Segment { base: 0, len: total }];
                let walk = Walk::new(b.descriptors(), local, 0, total.into(), 0);
                let moved: u64 = walk.expect("a checked table").map(|op| u64::from(op.len)).sum();
                assert_eq!(moved, u64::from(total));
            }
        }
        Buffer::Immediate { data } => {
            let offset = usize::from(ctx.immediate_offset.expect("only when negotiated"));
            assert_eq!(data, &iu[offset..offset + data.len()]);
        }
    }
}

fn spec<'a>(b: &Buffer<'a>, inline: &'a [Descriptor], ctx: &IuContext) -> BufferSpec<'a> {
    match *b {
        Buffer::None => BufferSpec::None,
        Buffer::Direct(d) => BufferSpec::Direct(d),
        Buffer::Indirect { table, total, .. } => BufferSpec::Indirect { table, total, inline },
        Buffer::Immediate { data } => {
            BufferSpec::Immediate { offset: ctx.immediate_offset.unwrap_or(0), data }
        }
    }
}

fn check_command(c: &Command<'_>, iu: &[u8], ctx: &IuContext) {
    assert!((16..=268).contains(&c.cdb.len()) && c.cdb.len().is_multiple_of(4));
    assert!(!matches!(c.data_in, Buffer::Immediate { .. }));
    check_buffer(&c.data_out, iu, ctx);
    check_buffer(&c.data_in, iu, ctx);
    let out_list: Vec<_> = c.data_out.descriptors().collect();
    let in_list: Vec<_> = c.data_in.descriptors().collect();
    let mut build = CommandBuilder::new(c.tag, c.lun, c.cdb)
        .attribute(c.attribute)
        .data_out(spec(&c.data_out, &out_list, ctx))
        .data_in(spec(&c.data_in, &in_list, ctx));
    build.solicit = c.solicit;
    let mut out = vec![0xee; iu.len()];
    let n = build.encode(&mut out).expect("no longer than what was decoded");
    assert_eq!(Command::decode(&out[..n], ctx), Ok(*c));
}

fn check_response(msg: &TargetIu<'_>) {
    let mut out = vec![0xee; 1 << 16];
    match msg {
        TargetIu::Response(r) => {
            for max in [usize::MAX, 56] {
                let n = r.encode(&mut out, max).expect("56 bytes hold the fixed part");
                assert!(n <= max);
                let TargetIu::Response(back) = TargetIu::decode(&out[..n]).expect("own encoding")
                else {
                    panic!("a response stays a response");
                };
                assert!(r.sense.starts_with(back.sense));
                assert!(back.sense.len() == r.sense.len() || n == max || n == out.len());
                assert_eq!(crate::rsp::Response { sense: r.sense, ..back }, *r);
            }
        }
        TargetIu::CreditRequest(c) => assert_eq!(TargetIu::decode(&c.to_bytes()), Ok(*msg)),
        TargetIu::TargetLogout(l) => assert_eq!(TargetIu::decode(&l.to_bytes()), Ok(*msg)),
        TargetIu::EventRequest(e) => {
            let n = e.encode(&mut out, usize::MAX).expect("64 KiB hold it");
            let cut = n == out.len();
            assert!(cut || TargetIu::decode(&out[..n]) == Ok(*msg));
        }
    }
}

/// Walks over arbitrary lists. Header: offset 8, length 8, largest operation 4, number of segments 1;
/// then that many segments of 12 bytes, then descriptors.
pub fn fuzz_bdt(data: &[u8]) -> bool {
    let mut r = Reader::new(data);
    let (Ok(offset), Ok(len), Ok(max_op), Ok(count)) = (r.u64(), r.u64(), r.u32(), r.u8()) else {
        return false;
    };
    let mut local = Vec::new();
    for _ in 0..count {
        let (Ok(base), Ok(len)) = (r.u64(), r.u32()) else { return false };
        local.push(Segment { base, len });
    }
    let (table, _) = r.rest().as_chunks::<DESCRIPTOR_LEN>();
    let remote = DescriptorList::new(table.as_flattened()).expect("whole entries");
    let remote_ranges: Vec<_> =
        remote.iter().map(|d| (u128::from(d.addr), d.len, u64::from(d.key))).collect();
    let local_ranges: Vec<_> =
        local.iter().enumerate().map(|(i, s)| (u128::from(s.base), s.len, i as u64)).collect();
    let mut walk = match Walk::new(remote, local.iter().copied(), offset, len, max_op) {
        Ok(walk) => walk,
        Err(WalkError::RemoteShort { .. }) => {
            let end = u128::from(offset) + u128::from(len);
            assert!(total(&remote_ranges) < end);
            return true;
        }
        Err(WalkError::LocalShort { .. }) => {
            assert!(total(&local_ranges) < u128::from(len));
            return true;
        }
        Err(WalkError::Wraps) => {
            let past = |l: &[(u128, u32, u64)]| l.iter().any(|r| r.0 + u128::from(r.1) > 1 << 64);
            let window = offset.checked_add(len).is_none();
            assert!(window || past(&remote_ranges) || past(&local_ranges));
            return true;
        }
    };
    let mut at = 0u64;
    // Huge windows in tiny operations would never end; the bound leaves most of them whole.
    for op in walk.by_ref().take(4096) {
        assert!(op.len > 0 && (max_op == 0 || op.len <= max_op));
        for byte in [0, u64::from(op.len) - 1] {
            let here = u128::from(at + byte);
            let (addr, key) = locate(&remote_ranges, u128::from(offset) + here);
            assert_eq!((addr, key), (u128::from(op.remote + byte), u64::from(op.key)));
            let (base, segment) = locate(&local_ranges, here);
            assert_eq!((base, segment), (u128::from(op.local + byte), op.segment as u64));
        }
        at += u64::from(op.len);
    }
    assert_eq!(at + walk.left(), len);
    true
}

fn total(ranges: &[(u128, u32, u64)]) -> u128 {
    ranges.iter().map(|r| u128::from(r.1)).sum()
}

/// Where byte `at` of concatenated ranges lies.
fn locate(ranges: &[(u128, u32, u64)], mut at: u128) -> (u128, u64) {
    for &(base, len, name) in ranges {
        if at < u128::from(len) {
            return (base + at, name);
        }
        at -= u128::from(len);
    }
    panic!("byte {at} behind the end of the list");
}
