use super::*;
use crate::fuzzing::{fuzz_handshake, talk, volume};
use proptest::prelude::*;

const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\0\x03";
/// The magic number before a reply.
const MAGIC: [u8; 8] = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9];
/// A client that wants no zeroes.
const CLIENT: [u8; 4] = [0, 0, 0, 3];

/// An option as it is on the wire.
fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &code.to_be_bytes()[..], &len, data].concat()
}

/// The data of INFO and GO.
fn wish(name: &[u8], kinds: &[u8]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend([0, *kind]));
    data
}

/// A reply: the low bytes of its option, kind and length, its data.
fn reply(option: u8, kind: [u8; 4], data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&MAGIC[..], &[0, 0, 0, option], &kind, &len.to_be_bytes(), data].concat()
}

const ACK: [u8; 4] = [0, 0, 0, 1];
const UNSUP: [u8; 4] = [0x80, 0, 0, 1];
const INVALID: [u8; 4] = [0x80, 0, 0, 3];
const UNKNOWN: [u8; 4] = [0x80, 0, 0, 6];
const TOO_BIG: [u8; 4] = [0x80, 0, 0, 9];

fn asked(name: &str, go: bool) -> Step {
    Step::Export { name: name.to_owned(), go }
}

/// What comes of these bytes after the greeting, with the flags of a client before them. Of the same bytes, cut at each
/// place, comes the same.
fn steps(stream: &[&[u8]]) -> (Vec<Step>, Vec<u8>) {
    let stream = [&CLIENT, &stream.concat()[..]].concat();
    let (mut steps, rest) = talk(&stream, |n| n);
    for at in 1..stream.len().min(300) {
        let mut first = true;
        let cut = |n| if std::mem::take(&mut first) { at } else { n };
        assert_eq!(talk(&stream, cut), (steps.clone(), rest.clone()), "cut at {at}");
    }
    assert_eq!(steps.remove(0), Step::Send(GREETING.to_vec()));
    (steps, rest)
}

/// The only answer to one option, and that the handshake goes on after it.
fn answer(code: u32, data: &[u8]) -> Vec<u8> {
    let (mut all, _) = steps(&[&option(code, data), &option(99, &[])]);
    assert_eq!(all.pop(), Some(Step::Send(reply(99, UNSUP, &[]))));
    let Some(Step::Send(bytes)) = all.pop() else { panic!("no answer: {all:?}") };
    assert!(all.len() <= 1);
    bytes
}

/// Why the connection ends, without an answer.
fn end(stream: &[&[u8]]) -> &'static str {
    let (all, _) = steps(stream);
    let [Step::End(Some(why))] = all[..] else { panic!("no end: {all:?}") };
    why
}

#[test]
fn a_client_with_unknown_flags_is_sent_away() {
    for flags in [[0, 0, 0, 4], [0, 0, 1, 3], [0x80, 0, 0, 0]] {
        let (all, _) = talk(&flags, |n| n);
        let why = "the client has flags that are not known";
        assert_eq!(all, [Step::Send(GREETING.to_vec()), Step::End(Some(why))]);
    }
}

#[test]
fn an_export_by_name_with_zeroes_and_without() {
    // 1 MiB; it has flags, and flushes are understood.
    let reply = [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5];
    let (all, rest) = steps(&[&option(1, b"vol"), b"next"]);
    assert_eq!(all, [asked("vol", true), Step::Send(reply.to_vec()), Step::Begin]);
    assert_eq!(rest, b"next");
    // Neither flag, and the one without the other.
    for flags in [0, 1] {
        let stream = [&[0, 0, 0, flags], &option(1, b"")[..], b"x"].concat();
        let (all, rest) = talk(&stream, |_| 1);
        let send = Step::Send([&reply[..], &[0; 124]].concat());
        assert_eq!(all[1..], [asked("", true), send, Step::Begin]);
        assert_eq!(rest, b"x");
    }
}

#[test]
fn a_name_that_cannot_be_answered_ends_the_connection() {
    let (all, _) = steps(&[&option(1, b"other"), b"next"]);
    let why = "the client wants an export that there is not";
    assert_eq!(all, [asked("other", true), Step::End(Some(why))]);
    assert_eq!(end(&[&option(1, b"v\0")]), NO_NAME);
    assert_eq!(end(&[&option(1, b"\xff")]), NO_NAME);
    assert_eq!(end(&[&option(1, &[b'a'; TEXT + 1])]), NO_NAME);
    assert_eq!(end(&[b"IHAVEOPT\0\0\0\x01\xff\xff\xff\xff"]), NO_NAME);
    let long = "a".repeat(TEXT);
    assert_eq!(steps(&[&option(1, long.as_bytes())]).0[0], asked(&long, true));
}

#[test]
fn a_client_leaves() {
    for data in [&b""[..], b"bye"] {
        let (all, rest) = steps(&[&option(2, data), b"more"]);
        assert_eq!(all, [Step::Send(reply(2, ACK, &[])), Step::End(None)]);
        assert_eq!(rest, b"");
    }
}

#[test]
fn the_list_of_exports() {
    let server = [0, 0, 0, 2];
    let bytes = [
        reply(3, server, b"\0\0\0\x03vola volume"),
        reply(3, server, b"\0\0\0\x04none"),
        reply(3, ACK, &[]),
    ];
    assert_eq!(answer(3, &[]), bytes.concat());
    assert_eq!(answer(3, b"x"), reply(3, INVALID, &[]));
}

/// A handshake that has greeted, and got these bytes.
fn fed(stream: &[u8]) -> Handshake {
    let mut shake = Handshake::default();
    assert_eq!(shake.step(), Step::Send(GREETING.to_vec()));
    shake.feed(&[&CLIENT, stream].concat());
    shake
}

#[test]
fn a_list_has_what_clients_can_read() {
    let mut shake = fed(&option(3, &[]));
    assert_eq!(shake.step(), Step::List);
    let long = "a".repeat(TEXT + 1);
    // A character of two bytes is astride of the limit.
    let description = format!("{}é", "a".repeat(TEXT - 1));
    shake.list(&[(&long, ""), ("n\0", ""), ("v", &description)]);
    let data = [b"\0\0\0\x01v", "a".repeat(TEXT - 1).as_bytes()].concat();
    let bytes = [reply(3, [0, 0, 0, 2], &data), reply(3, ACK, &[])];
    assert_eq!(shake.step(), Step::Send(bytes.concat()));
    assert_eq!(shake.step(), Step::More);
    let mut shake = fed(&option(3, &[]));
    assert_eq!(shake.step(), Step::List);
    shake.list(&[]);
    assert_eq!(shake.step(), Step::Send(reply(3, ACK, &[])));
}

#[test]
fn what_is_told_about_an_export() {
    let info = [0, 0, 0, 3];
    for code in [6, 7] {
        let export = reply(code, info, &[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5]);
        let name = reply(code, info, b"\0\x01vol");
        let description = reply(code, info, b"\0\x02a volume");
        let block = reply(code, info, &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
        let ack = reply(code, ACK, &[]);
        for (kinds, parts) in [
            (&[][..], vec![&export, &ack]),
            (&[0, 77], vec![&export, &ack]),
            (&[1], vec![&export, &name, &ack]),
            (&[2], vec![&export, &description, &ack]),
            (&[3], vec![&export, &block, &ack]),
            (&[3, 2, 1, 0, 3, 2], vec![&export, &name, &description, &block, &ack]),
        ] {
            let bytes: Vec<u8> = parts.into_iter().flatten().copied().collect();
            let send = Step::Send(bytes);
            let (all, rest) = steps(&[&option(code.into(), &wish(b"", kinds)), b"next"]);
            if code == 7 {
                assert_eq!(all, [asked("", true), send, Step::Begin]);
                assert_eq!(rest, b"next");
            } else {
                assert_eq!(all, [asked("", false), send]);
            }
        }
    }
}

#[test]
fn an_export_without_what_is_asked_about() {
    let mut shake = fed(&option(6, &wish(b"v", &[1, 2])));
    assert_eq!(shake.step(), asked("v", false));
    let (name, description) = ("a".repeat(TEXT + 1), String::new());
    let flags = flags::READ_ONLY | 1 << 16;
    shake.export(Some(&Export { name, description, flags, ..volume() }));
    let export = reply(6, [0, 0, 0, 3], &[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 3]);
    assert_eq!(shake.step(), Step::Send([export, reply(6, ACK, &[])].concat()));
    assert_eq!(shake.step(), Step::More);
}

#[test]
fn an_unknown_export_can_be_asked_for_again() {
    for code in [6, 7] {
        let stream = [option(code, &wish(b"other", &[3])), option(7, &wish(b"vol", &[]))];
        let (all, _) = steps(&[&stream.concat()]);
        assert_eq!(all[0], asked("other", code == 7));
        assert_eq!(all[1], Step::Send(reply(code as u8, UNKNOWN, &[])));
        assert_eq!(all[2], asked("vol", true));
        assert_eq!(all[4..], [Step::Begin]);
    }
}

#[test]
fn a_wish_that_makes_no_sense() {
    for code in [6, 7] {
        let invalid = reply(code, INVALID, &[]);
        let mut short = wish(b"vol", &[3]);
        while short.pop().is_some() {
            assert_eq!(answer(code.into(), &short), invalid, "{} bytes", short.len());
        }
        for extra in [&b"x"[..], b"xy"] {
            let data = [&wish(b"vol", &[3]), extra].concat();
            assert_eq!(answer(code.into(), &data), invalid);
        }
        for name in [&b"v\0"[..], b"\xc3", &[b'a'; TEXT + 1]] {
            assert_eq!(answer(code.into(), &wish(name, &[])), invalid);
        }
        assert_eq!(answer(code.into(), b"\xff\xff\xff\xffvol\0\0"), invalid);
        let unknown = reply(code, UNKNOWN, &[]);
        assert_eq!(answer(code.into(), &wish(&[b'a'; TEXT], &[])), unknown);
    }
}

#[test]
fn options_that_are_not_there() {
    // None; PEEK_EXPORT, STARTTLS, EXTENDED_HEADERS; none.
    for code in [0, 4, 5, 11, 12] {
        for data in [&b""[..], b"data"] {
            assert_eq!(answer(code.into(), data), reply(code, UNSUP, &[]));
        }
    }
    let (all, _) = steps(&[&option(0x0102_0304, &[])]);
    let bytes = [&MAGIC[..], &[1, 2, 3, 4], &UNSUP, &[0; 4]].concat();
    assert_eq!(all, [Step::Send(bytes)]);
}

#[test]
fn what_is_no_option_ends_the_connection() {
    let why = "no option begins where one should";
    assert_eq!(end(&[b"IHAVEOPS\0\0\0\x02\0\0\0\0"]), why);
    assert_eq!(end(&[&[0; 16]]), why);
}

#[test]
fn long_data_are_skipped_and_longer_ones_end_the_connection() {
    assert_eq!(answer(11, &[7; OPTION_DATA]), reply(11, UNSUP, &[]));
    assert_eq!(answer(11, &[7; OPTION_DATA + 1]), reply(11, TOO_BIG, &[]));
    for code in [3, 7] {
        assert_eq!(answer(code.into(), &vec![7; OPTION_SKIP]), reply(code, TOO_BIG, &[]));
    }
    let why = "the data of an option are far too long";
    assert_eq!(end(&[b"IHAVEOPT\0\0\0\x07\0\x10\0\x01"]), why);
    assert_eq!(end(&[b"IHAVEOPT\0\0\0\x02\xff\xff\xff\xff"]), why);
}

#[test]
fn what_is_skipped_is_not_held() {
    let mut shake = fed(b"IHAVEOPT\0\0\0\x07\0\x10\0\0");
    for _ in 0..1023 {
        shake.feed(&[0; 1024]);
        assert_eq!((shake.step(), shake.held()), (Step::More, 0));
    }
    shake.feed(&[0; 1025]);
    assert_eq!(shake.step(), Step::Send(reply(7, TOO_BIG, &[])));
    assert_eq!((shake.step(), shake.held()), (Step::More, 1));
}

#[test]
fn so_many_options_and_no_more() {
    let many = option(11, &[]).repeat(OPTIONS as usize);
    let (all, _) = steps(&[&many]);
    assert_eq!(all, vec![Step::Send(reply(11, UNSUP, &[])); 64]);
    let (all, _) = steps(&[&many, &option(2, &[])]);
    assert_eq!(all.len(), 65);
    assert_eq!(all[64], Step::End(Some("the client sends too many options")));
}

#[test]
fn the_last_option_may_begin() {
    let many = option(11, &[]).repeat(OPTIONS as usize - 1);
    let (all, rest) = steps(&[&many, &option(7, &wish(b"vol", &[])), b"next"]);
    assert_eq!((all.last(), &rest[..]), (Some(&Step::Begin), &b"next"[..]));
}

#[test]
fn an_answer_without_a_question_does_nothing() {
    let mut shake = fed(&[]);
    shake.export(Some(&volume()));
    shake.list(&[("vol", "")]);
    assert_eq!(shake.step(), Step::More);
    shake.feed(&option(2, &[]));
    assert_eq!(shake.step(), Step::Send(reply(2, ACK, &[])));
    assert_eq!(shake.step(), Step::End(None));
    shake.export(Some(&volume()));
    assert_eq!(shake.step(), Step::End(None));
    assert_eq!(shake.rest(), b"");
}

/// Options as clients send them, good and bad.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just(b"vol".to_vec()),
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    let data = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..40),
        (name, prop::collection::vec(0u8..5, 0..6)).prop_map(|(name, kinds)| wish(&name, &kinds)),
    ];
    (0u32..13, data).prop_map(|(code, data)| option(code, &data))
}

proptest! {
    #[test]
    fn every_talk_is_understood(
        seed: u8,
        flags in 0u8..5,
        all in prop::collection::vec(any_option(), 0..70),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let data = [&[seed, 0, 0, 0, flags], &all.concat()[..], &noise].concat();
        fuzz_handshake(&data);
    }

    #[test]
    fn an_export_is_found(
        seed: u8,
        tries in 0usize..64,
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let tries = option(7, &wish(b"other", &[1])).repeat(tries);
        let go = option(7, &wish(b"vol", &[1, 2, 3]));
        let data = [&[seed, 0, 0, 0, 1], &tries[..], &go, &noise].concat();
        prop_assert!(fuzz_handshake(&data));
    }

    #[test]
    fn no_bytes_do_harm(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_handshake(&data);
        fuzz_handshake(&[&[1, 0, 0, 0, 3], &data[..]].concat());
        fuzz_handshake(&[&b"\x01\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x20"[..], &data].concat());
    }
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
fn query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for q in queries {
        data.extend((q.len() as u32).to_be_bytes());
        data.extend(q.as_bytes());
    }
    data
}

/// What was agreed on after these options and GO.
fn agreed(options: &[Vec<u8>], go: &str) -> (Agreed, u64) {
    let mut h = Handshake::new();
    h.feed(&CLIENT);
    options.iter().for_each(|o| h.feed(o));
    h.feed(&option(7, &wish(go.as_bytes(), &[])));
    let mut last = Vec::new();
    loop {
        match h.step() {
            Step::Send(bytes) => last = bytes,
            Step::Contexts { name } => h.contexts(name == "vol"),
            Step::Export { .. } => h.export(Some(&volume())),
            Step::Begin => {
                let flags = u16::from_be_bytes([last[30], last[31]]);
                return (h.agreed(), flags.into());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn replies_are_structured_for_who_asks() {
    let (simple, flags) = agreed(&[], "vol");
    assert_eq!((simple, flags & crate::flags::DF), (Agreed::default(), 0));
    let (all, flags) = agreed(&[option(8, &[]), option(10, &query("vol", &[CONTEXT]))], "vol");
    assert_eq!(all, Agreed { structured: true, allocation: true });
    assert_ne!(flags & crate::flags::DF, 0);
    // Of another export nothing was chosen, nor of one that is not there, and a later choice is the one.
    let none = |options: &[Vec<u8>], go: &str| !agreed(options, go).0.allocation;
    let choose = |name: &str, q: &[&str]| option(10, &query(name, q));
    assert!(none(&[option(8, &[]), choose("vol", &[CONTEXT])], "other"));
    assert!(none(&[option(8, &[]), choose("other", &[CONTEXT])], "other"));
    assert!(none(&[option(8, &[]), choose("vol", &[CONTEXT]), choose("vol", &[])], "vol"));
    assert!(none(&[option(8, &[]), choose("vol", &["base:"])], "vol"));
    assert!(none(&[choose("vol", &[CONTEXT])], "vol"));
}

const CONTEXT: &str = "base:allocation";

#[test]
fn contexts_are_listed_and_chosen() {
    let told = |code: u8, q: &[u8]| {
        let (mut all, _) = steps(&[&option(8, &[]), &option(code.into(), q)]);
        assert_eq!(all.remove(0), Step::Send(reply(8, ACK, &[])));
        let Some(Step::Send(bytes)) = all.pop() else { panic!("{all:?}") };
        bytes
    };
    let context = |id| [&[0, 0, 0, id], CONTEXT.as_bytes()].concat();
    for code in [9, 10] {
        let context = context(code - 9);
        let there = [reply(code, [0, 0, 0, 4], &context), reply(code, ACK, &[])].concat();
        assert_eq!(told(code, &query("vol", &["other:x", CONTEXT])), there);
        assert_eq!(told(code, &query("vol", &["base:allocatio"])), reply(code, ACK, &[]));
        assert_eq!(told(code, &query("none", &[CONTEXT])), reply(code, UNKNOWN, &[]));
        for bad in [&[][..], &query("vol", &["x"])[1..], &[query("vol", &[]), vec![0]].concat()] {
            assert_eq!(told(code, bad), reply(code, INVALID, &[]));
        }
        // Only with structured replies.
        let all = option(code.into(), &query("vol", &[CONTEXT]));
        assert_eq!(answer(code.into(), &all[16..]), reply(code, INVALID, &[]));
    }
    let all = [reply(9, [0, 0, 0, 4], &context(0)), reply(9, ACK, &[])].concat();
    assert_eq!(
        (told(9, &query("vol", &[])), told(9, &query("vol", &["base:"]))),
        (all.clone(), all)
    );
    // Twice, or with data.
    assert_eq!(told(8, &[]), reply(8, INVALID, &[]));
    assert_eq!(answer(8, &[1]), reply(8, INVALID, &[]));
}
