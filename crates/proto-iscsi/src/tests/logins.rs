//! Logins, as initiators go through them.

use super::OFFER;
use crate::bhs::Request;
use crate::chap::{Algorithm, response};
use crate::login::{Credentials, Login, Mutual, Step, status};
use crate::text::{binary, hexadecimal, pairs};

const SECRET: &[u8] = b"a secret of the host";

fn login() -> Login {
    Login::new(OFFER, 1, 128, (100..132).collect(), 77)
}

/// A request: T and C, both stages, text with `|` for NUL.
fn request(flags: u8, csg: u8, nsg: u8, text: &str) -> (Request, Vec<u8>) {
    let data = text.replace('|', "\0").into_bytes();
    let mut h = [0; 48];
    h[0] = 0x43;
    h[1] = flags | csg << 2 | nsg;
    let [_, a, b, c] = (data.len() as u32).to_be_bytes();
    h[5..8].copy_from_slice(&[a, b, c]);
    h[8..14].copy_from_slice(&[0, 2, 0x3d, 0, 0, 1]);
    h[27] = 5;
    h[31] = 9;
    (Request(h), data)
}

const WHO: &str = "InitiatorName=iqn.i|TargetName=iqn.t|SessionType=Normal|";

fn ask(l: &mut Login, flags: u8, csg: u8, nsg: u8, text: &str) -> Step {
    let (r, data) = request(flags, csg, nsg, text);
    l.request(r, &data)
}

/// The first request, admitted.
fn first(l: &mut Login, c: &Credentials, flags: u8, csg: u8, nsg: u8, text: &str) -> Step {
    match ask(l, flags, csg, nsg, &format!("{WHO}{text}")) {
        Step::Who(_) => l.admit(c.clone()),
        other => other,
    }
}

fn sent(step: Step) -> (u8, Vec<(String, String)>) {
    let Step::Send(r) = step else { panic!("{step:?}") };
    let all = pairs(&r.text).unwrap();
    (r.bhs[1], all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
}

fn value<'a>(all: &'a [(String, String)], key: &str) -> &'a str {
    &all.iter().find(|(k, _)| k == key).unwrap_or_else(|| panic!("no {key} in {all:?}")).1
}

fn refused(step: Step) -> u16 {
    let Step::Refused(r) = step else { panic!("{step:?}") };
    r.status()
}

/// What open-iscsi 2.1 sends when no CHAP is configured: one request is all.
#[test]
fn linux_logs_in_with_one_request() {
    let mut l = login();
    let text = "InitiatorAlias=h|HeaderDigest=None|DataDigest=CRC32C,None|DefaultTime2Wait=2|\
        DefaultTime2Retain=0|IFMarker=No|OFMarker=No|ErrorRecoveryLevel=0|InitialR2T=No|\
        ImmediateData=Yes|MaxBurstLength=16776192|FirstBurstLength=262144|MaxOutstandingR2T=1|\
        MaxConnections=1|DataPDUInOrder=Yes|DataSequenceInOrder=Yes|\
        MaxRecvDataSegmentLength=262144|";
    assert_eq!(first(&mut l, &Credentials::default(), 0x80, 1, 3, text), Step::Accept);
    let r = l.accept(0x1234);
    assert_eq!(r.bhs[1], 0x87);
    assert_eq!((&r.bhs[8..16], r.status()), (&[0, 2, 0x3d, 0, 0, 1, 0x12, 0x34][..], 0));
    assert_eq!((r.bhs[27], r.bhs[31], r.bhs[35]), (9, 5, 132), "StatSN, ExpCmdSN, MaxCmdSN");
    let all = pairs(&r.text).unwrap();
    let want = [
        ("HeaderDigest", "None"),
        ("DataDigest", "CRC32C"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("IFMarker", "No"),
        ("OFMarker", "No"),
        ("ErrorRecoveryLevel", "0"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "1048576"),
        ("FirstBurstLength", "65536"),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("TargetPortalGroupTag", "1"),
        ("MaxRecvDataSegmentLength", "262144"),
    ];
    assert_eq!(all, want);
    assert!(r.text.ends_with(&[0]));
    let p = l.params();
    assert_eq!((p.max_send, p.max_recv, p.max_burst), (262_144, 262_144, 1 << 20));
    assert!(!p.initial_r2t && p.immediate_data && !p.digests.header && p.digests.data);
    assert_eq!((l.cmd_sn(), l.stat_sn()), (5, 10));
}

#[test]
fn each_key_has_its_rule() {
    let table = [
        ("HeaderDigest=None,CRC32C", Some("None")),
        ("HeaderDigest=X,CRC32C", Some("CRC32C")),
        ("DataDigest=X", None),
        ("MaxConnections=8", Some("1")),
        ("MaxConnections=0", None),
        ("InitialR2T=Yes", Some("Yes")),
        ("InitialR2T=maybe", None),
        ("ImmediateData=No", Some("No")),
        ("MaxBurstLength=512", Some("512")),
        ("MaxBurstLength=0x100000", Some("1048576")),
        ("MaxBurstLength=511", None),
        ("MaxBurstLength=16777216", None),
        ("FirstBurstLength=100000", Some("65536")),
        ("DefaultTime2Wait=0", Some("2")),
        ("DefaultTime2Wait=30", Some("30")),
        ("DefaultTime2Retain=20", Some("0")),
        ("DefaultTime2Retain=3601", None),
        ("MaxOutstandingR2T=16", Some("1")),
        ("DataPDUInOrder=No", Some("Yes")),
        ("DataSequenceInOrder=No", Some("Yes")),
        ("ErrorRecoveryLevel=2", Some("0")),
        ("ErrorRecoveryLevel=3", None),
        ("IFMarker=Yes", Some("No")),
        ("OFMarkInt=1~2", Some("Reject")),
        ("iSCSIProtocolLevel=2", Some("1")),
        ("X-org.example.key=1", Some("NotUnderstood")),
        ("MaxRecvDataSegmentLength=100", None),
    ];
    for (pair, want) in table {
        let step = first(&mut login(), &Credentials::default(), 0, 1, 0, &format!("{pair}|"));
        match want {
            Some(v) => {
                assert_eq!(value(&sent(step).1, pair.split('=').next().unwrap()), v, "{pair}")
            }
            None => assert_eq!(refused(step), status::INITIATOR_ERROR, "{pair}"),
        }
    }
    // Discovery moves no data of commands.
    let mut l = login();
    let text = "InitiatorName=iqn.i|SessionType=Discovery|MaxBurstLength=5|MaxConnections=1|";
    assert!(
        matches!(ask(&mut l, 0x80, 1, 3, text), Step::Who(c) if c.discovery && c.target.is_none())
    );
    assert_eq!(l.admit(Credentials::default()), Step::Accept);
    let r = l.accept(1);
    let all = pairs(&r.text).unwrap();
    assert_eq!(all[..2], [("MaxBurstLength", "Irrelevant"), ("MaxConnections", "Irrelevant")]);
    assert!(all.iter().all(|(k, _)| *k != "TargetPortalGroupTag"));
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let none = Credentials::default();
    let by = |flags, csg, nsg, text: &str| refused(ask(&mut login(), flags, csg, nsg, text));
    assert_eq!(by(0x80, 1, 3, "TargetName=t|"), status::MISSING);
    assert_eq!(by(0x80, 1, 3, "InitiatorName=i|"), status::MISSING);
    assert_eq!(by(0x80, 1, 3, "InitiatorName=i|SessionType=Odd|"), status::SESSION_TYPE);
    assert_eq!(by(0x80, 1, 3, "InitiatorName=a b|TargetName=t|"), status::INITIATOR_ERROR);
    let long = format!("InitiatorName={}|TargetName=t|", "i".repeat(224));
    assert_eq!(by(0x80, 1, 3, &long), status::INITIATOR_ERROR);
    for (flags, csg, nsg) in
        [(0x80, 1, 1), (0x80, 1, 0), (0x80, 0, 2), (0xc0, 1, 3), (0, 3, 0), (0, 2, 0)]
    {
        assert_eq!(by(flags, csg, nsg, WHO), status::INITIATOR_ERROR, "{flags:x} {csg} {nsg}");
    }
    assert_eq!(by(0x80, 1, 3, "garbage"), status::INITIATOR_ERROR);
    let (mut r, data) = request(0x80, 1, 3, WHO);
    r.0[3] = 1;
    assert_eq!(refused(login().request(r, &data)), status::VERSION);
    r.0[0] = 0x41;
    assert!(matches!(login().request(r, &data), Step::End(_)));
    // Twice, or another one in the second request.
    let twice = "MaxConnections=1|MaxConnections=1|";
    assert_eq!(refused(first(&mut login(), &none, 0x80, 1, 3, twice)), status::INITIATOR_ERROR);
    for second in ["InitiatorName=iqn.other|", "MaxBurstLength=1024|", "AuthMethod=None|"] {
        let mut l = login();
        sent(first(&mut l, &none, 0, 1, 0, "MaxBurstLength=1024|"));
        assert_eq!(refused(ask(&mut l, 0x80, 1, 3, second)), status::INITIATOR_ERROR, "{second}");
    }
    let mut l = login();
    sent(first(&mut l, &none, 0, 1, 0, ""));
    let (mut r, _) = request(0x80, 1, 3, "");
    r.0[13] ^= 1;
    assert_eq!(refused(l.request(r, &[])), status::INITIATOR_ERROR, "another ISID");
}

#[test]
fn text_may_span_requests_but_not_grow_for_ever() {
    let mut l = login();
    let (flags, all) = sent(ask(&mut l, 0x40, 1, 0, "InitiatorName=iq"));
    assert_eq!((flags & 0x80, all.len()), (0, 0));
    sent(ask(&mut l, 0x40, 1, 0, "n.i|Target"));
    let Step::Who(c) = ask(&mut l, 0x80, 1, 3, "Name=iqn.t|") else { panic!() };
    assert_eq!((c.initiator.as_str(), c.target.as_deref()), ("iqn.i", Some("iqn.t")));
    assert_eq!(l.admit(Credentials::default()), Step::Accept);
    let mut l = login();
    let step = (0..10).map(|_| ask(&mut l, 0x40, 1, 0, &"x".repeat(1000))).last().unwrap();
    assert_eq!(refused(step), status::INITIATOR_ERROR);
    let mut l = login();
    let step = (0..100).map(|_| ask(&mut l, 0x40, 1, 0, "")).last().unwrap();
    assert_eq!(refused(step), status::INITIATOR_ERROR);
}

fn keyed() -> Credentials {
    Credentials { secret: Some(SECRET.to_vec()), mutual: None }
}

/// Up to the challenge. Gives what the target asks.
fn challenged(l: &mut Login, c: &Credentials, algorithms: &str) -> (Algorithm, u8, Vec<u8>) {
    let (flags, all) = sent(first(l, c, 0x80, 0, 1, "AuthMethod=CHAP,None|"));
    assert_eq!((flags & 0x80, value(&all, "AuthMethod")), (0, "CHAP"));
    let (_, all) = sent(ask(l, 0, 0, 0, &format!("CHAP_A={algorithms}|")));
    let a = Algorithm::from_code(value(&all, "CHAP_A").parse().unwrap()).unwrap();
    (a, value(&all, "CHAP_I").parse().unwrap(), binary(value(&all, "CHAP_C")).unwrap())
}

#[test]
fn who_knows_the_secret_is_let_in() {
    for algorithms in ["5", "6", "7,5", "8,7,6,5"] {
        let mut l = login();
        let (a, id, challenge) = challenged(&mut l, &keyed(), algorithms);
        assert!(challenge.len() >= 16);
        let r = hexadecimal(&response(a, id, SECRET, &challenge));
        let (flags, _) = sent(ask(&mut l, 0x80, 0, 1, &format!("CHAP_N=me|CHAP_R={r}|")));
        assert_eq!(flags, 0x81, "{algorithms}");
        assert_eq!(ask(&mut l, 0x80, 1, 3, "MaxBurstLength=65536|"), Step::Accept);
    }
}

#[test]
fn who_does_not_is_not() {
    let auth = status::AUTHENTICATION;
    // Without the stage; without the method.
    assert_eq!(refused(first(&mut login(), &keyed(), 0x80, 1, 3, "")), auth);
    assert_eq!(refused(first(&mut login(), &keyed(), 0x80, 0, 1, "AuthMethod=None|")), auth);
    // It says nothing, and wants to go on.
    let (flags, _) = sent(first(&mut login(), &keyed(), 0x80, 0, 3, ""));
    assert_eq!(flags & 0x80, 0);
    // No algorithm that is known; a wrong response; no name; a response out of turn.
    let answers = |text: &dyn Fn(Algorithm, u8, &[u8]) -> String| {
        let mut l = login();
        let (a, id, c) = challenged(&mut l, &keyed(), "7");
        refused(ask(&mut l, 0x80, 0, 1, &text(a, id, &c)))
    };
    let right = |a, id, c: &[u8]| hexadecimal(&response(a, id, SECRET, c));
    assert_eq!(
        answers(&|a, id, c| format!(
            "CHAP_N=me|CHAP_R={}|",
            hexadecimal(&response(a, id, b"x", c))
        )),
        auth
    );
    assert_eq!(answers(&|a, id, c| format!("CHAP_N=|CHAP_R={}|", right(a, id, c))), auth);
    assert_eq!(answers(&|a, id, c| format!("CHAP_R={}|", right(a, id, c))), auth);
    // It wants a proof of a target that has no secret of its own.
    let mutual = |a, id, c: &[u8]| {
        format!("CHAP_N=me|CHAP_R={}|CHAP_I=1|CHAP_C={}|", right(a, id, c), hexadecimal(&[9; 16]))
    };
    assert_eq!(answers(&mutual), auth);
    let mut l = login();
    sent(first(&mut l, &keyed(), 0, 0, 0, "AuthMethod=CHAP|"));
    assert_eq!(refused(ask(&mut l, 0, 0, 0, "CHAP_A=1,2|")), auth);
    let mut l = login();
    sent(first(&mut l, &keyed(), 0, 0, 0, "AuthMethod=CHAP|"));
    assert_eq!(refused(ask(&mut l, 0x80, 0, 1, "CHAP_N=me|CHAP_R=0x00|")), auth);
    // A host without a secret has nothing to prove it by.
    assert_eq!(
        refused(first(&mut login(), &Credentials::default(), 0, 0, 0, "AuthMethod=CHAP|")),
        auth
    );
    let step = first(&mut login(), &Credentials::default(), 0x80, 0, 1, "AuthMethod=CHAP,None|");
    let (flags, all) = sent(step);
    assert_eq!((flags, value(&all, "AuthMethod")), (0x81, "None"));
}

#[test]
fn a_target_proves_its_own_secret_and_no_other() {
    let own: &[u8] = b"a secret of the target";
    let with = |secret: &[u8]| {
        let mutual = Some(Mutual { name: "weir".into(), secret: secret.to_vec() });
        Credentials { mutual, ..keyed() }
    };
    let asks = |c: &Credentials, theirs: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut l = login();
        let (a, id, challenge) = challenged(&mut l, c, "5");
        let r = hexadecimal(&response(a, id, SECRET, &challenge));
        let theirs = hexadecimal(&theirs(&challenge));
        ask(&mut l, 0x80, 0, 1, &format!("CHAP_N=me|CHAP_R={r}|CHAP_I=200|CHAP_C={theirs}|"))
    };
    let (flags, all) = sent(asks(&with(own), &|_| vec![3; 24]));
    assert_eq!((flags, value(&all, "CHAP_N")), (0x81, "weir"));
    let want = hexadecimal(&response(Algorithm::Md5, 200, own, &[3; 24]));
    assert_eq!(value(&all, "CHAP_R"), want);
    // Its own challenge, given back.
    assert_eq!(refused(asks(&with(own), &|c| c.to_vec())), status::AUTHENTICATION);
    assert_eq!(refused(asks(&with(SECRET), &|_| vec![3; 24])), status::AUTHENTICATION);
    assert_eq!(refused(asks(&with(own), &|_| vec![3; 8])), status::INITIATOR_ERROR);
}
