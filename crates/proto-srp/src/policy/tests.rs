use proptest::prelude::*;

use super::*;
use crate::port_id::PortId;

fn linux() -> LoginRequest {
    LoginRequest {
        tag: Tag(5),
        request_iu_len: 8260,
        formats: BufferFormats::BOTH,
        action: MultiChannelAction::Terminate,
        logout_solicited: false,
        credit_solicited: false,
        event_solicited: false,
        immediate: true,
        immediate_offset: 68,
        initiator: PortId::new(1, 2),
        target: PortId::new(3, 4),
    }
}

#[test]
fn a_linux_host_gets_what_it_asks() {
    let (rsp, n) = evaluate(&linux(), &TargetPolicy::default()).unwrap();
    assert_eq!(rsp.tag, Tag(5));
    assert_eq!((rsp.request_iu_len, rsp.response_iu_len), (8260, 512));
    assert_eq!(rsp.credits, 64);
    assert!(rsp.immediate_supported && rsp.solicit_supported);
    assert_eq!(rsp.result, MultiChannelResult::NoneTerminated);
    assert_eq!(n.immediate_offset, Some(68));
    assert_eq!(n.multichannel, MultiChannel::Terminate);
    let ctx = n.iu_context();
    assert_eq!(
        (ctx.max_iu_len, ctx.immediate_offset, ctx.max_table_entries),
        (8260, Some(68), 2048)
    );
}

#[test]
fn each_reason_for_a_reject() {
    let p = TargetPolicy::default();
    let with = |f: fn(&mut LoginRequest)| {
        let mut r = linux();
        f(&mut r);
        r
    };
    let reason = |r, p| evaluate(&r, &p).map(|_| ()).unwrap_err();
    assert_eq!(reason(with(|r| r.request_iu_len = 63), p), RejectReason::IuLength);
    assert_eq!(reason(with(|r| r.request_iu_len = 0), p), RejectReason::IuLength);
    assert_eq!(reason(with(|r| r.request_iu_len = 8277), p), RejectReason::IuLength);
    assert_eq!(reason(with(|r| r.request_iu_len = u32::MAX), p), RejectReason::IuLength);
    assert!(evaluate(&with(|r| r.request_iu_len = 64), &p).is_ok());
    assert!(evaluate(&with(|r| r.request_iu_len = 8276), &p).is_ok());
    for formats in [0x0001, 0x0008, 0x000e, 0x8006] {
        let r = LoginRequest { formats: BufferFormats(formats), ..linux() };
        assert_eq!(reason(r, p), RejectReason::BufferFormat);
    }
    for formats in [0, 2, 4, 6] {
        let r = LoginRequest { formats: BufferFormats(formats), ..linux() };
        assert!(evaluate(&r, &p).is_ok());
    }
    let second = with(|r| r.action = MultiChannelAction::Independent);
    let (rsp, n) = evaluate(&second, &p).unwrap();
    assert_eq!((rsp.result, n.multichannel), (MultiChannelResult::Maintained, MultiChannel::Keep));
    let single = TargetPolicy { multichannel: false, ..p };
    assert_eq!(reason(second, single), RejectReason::MultiChannelUnsupported);
    assert!(evaluate(&linux(), &single).is_ok());
    let odd = with(|r| r.action = MultiChannelAction::Reserved(2));
    assert_eq!(reason(odd, p), RejectReason::Unspecified);
}

#[test]
fn immediate_data_only_where_it_can_work() {
    let p = TargetPolicy::default();
    let grant = |offset, len, p: &TargetPolicy| {
        let r = LoginRequest { immediate_offset: offset, request_iu_len: len, ..linux() };
        let (rsp, n) = evaluate(&r, p).unwrap();
        assert_eq!(rsp.immediate_supported, n.immediate_offset.is_some());
        n.immediate_offset
    };
    assert_eq!(grant(67, 8260, &p), None);
    assert_eq!(grant(68, 8260, &p), Some(68));
    assert_eq!(grant(68, 68, &p), None);
    assert_eq!(grant(68, 69, &p), Some(68));
    assert_eq!(grant(u16::MAX, 8260, &p), None);
    assert_eq!(grant(68, 8260, &TargetPolicy { immediate: false, ..p }), None);
    let quiet = LoginRequest { immediate: false, ..linux() };
    assert_eq!(evaluate(&quiet, &p).unwrap().1.immediate_offset, None);
}

#[test]
fn policies_are_kept_sound() {
    let p = TargetPolicy { max_response_len: 0, credits: u32::MAX, ..TargetPolicy::default() };
    let (rsp, n) = evaluate(&linux(), &p).unwrap();
    assert_eq!((rsp.response_iu_len, n.response_iu_len), (56, 56));
    assert_eq!(rsp.credits, i32::MAX);
}

#[test]
fn an_initiator_checks_the_response() {
    let req = linux();
    let good = evaluate(&req, &TargetPolicy::default()).unwrap().0;
    let n = settle(&req, &good, 512).unwrap();
    assert_eq!((n.request_iu_len, n.response_iu_len, n.immediate_offset), (8260, 512, Some(68)));
    let bad = |f: fn(&mut LoginResponse)| {
        let mut r = good;
        f(&mut r);
        settle(&req, &r, 512)
    };
    assert_eq!(bad(|r| r.tag = Tag(6)), Err(ResponseError::Tag(Tag(6))));
    assert_eq!(bad(|r| r.request_iu_len = 63), Err(ResponseError::RequestIuLength(63)));
    assert_eq!(bad(|r| r.response_iu_len = 55), Err(ResponseError::ResponseIuLength(55)));
    assert_eq!(bad(|r| r.response_iu_len = 513), Err(ResponseError::ResponseIuLength(513)));
    let direct = BufferFormats::DIRECT;
    assert_eq!(bad(|r| r.formats = BufferFormats::DIRECT), Err(ResponseError::Formats(direct)));
    for credits in [i32::MIN, -1, 0, 1] {
        let rsp = LoginResponse { credits, ..good };
        assert_eq!(settle(&req, &rsp, 512), Err(ResponseError::Credits(credits)));
    }
    // Immediate data at an offset of 68 needs an IU that goes on behind it.
    assert_eq!(bad(|r| r.request_iu_len = 68).unwrap().immediate_offset, None);
    assert_eq!(bad(|r| r.request_iu_len = 69).unwrap().immediate_offset, Some(68));
    assert_eq!(bad(|r| r.request_iu_len = 64).unwrap().request_iu_len, 64);
    assert_eq!(bad(|r| r.request_iu_len = 64).unwrap().immediate_offset, None);
    assert_eq!(bad(|r| r.request_iu_len = 1 << 20).unwrap().request_iu_len, 8260);
    assert_eq!(bad(|r| r.immediate_supported = false).unwrap().immediate_offset, None);
    let quiet = LoginRequest { immediate: false, ..req };
    assert_eq!(settle(&quiet, &good, 512).unwrap().immediate_offset, None);
}

proptest! {
    /// Whatever a target grants, the initiator reads the same way, and the reasons are the rules.
    #[test]
    fn both_sides_agree(
        req in crate::login::tests::any_request(),
        immediate in any::<bool>(),
        multichannel in any::<bool>(),
    ) {
        let p = TargetPolicy { immediate, multichannel, ..TargetPolicy::default() };
        match evaluate(&req, &p) {
            Ok((rsp, n)) => {
                let host = settle(&req, &rsp, 512).unwrap();
                prop_assert_eq!(host.request_iu_len, n.request_iu_len);
                prop_assert_eq!(host.immediate_offset, n.immediate_offset);
                prop_assert_eq!(host.multichannel, n.multichannel);
                prop_assert!(rsp.request_iu_len >= req.request_iu_len);
            }
            Err(RejectReason::IuLength) => {
                prop_assert!(req.request_iu_len < 64 || req.request_iu_len > 8276);
            }
            Err(RejectReason::BufferFormat) => prop_assert!(req.formats.0 & !6 != 0),
            Err(RejectReason::MultiChannelUnsupported) => {
                prop_assert!(!multichannel && req.action == MultiChannelAction::Independent);
            }
            Err(RejectReason::Unspecified) => {
                prop_assert!(matches!(req.action, MultiChannelAction::Reserved(_)));
            }
            Err(other) => prop_assert!(false, "{other:?} needs the nexus table"),
        }
    }
}
