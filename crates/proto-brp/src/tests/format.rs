//! The tables of docs/brp.md ("Messages" to "Events"), byte by byte: what a second implementation reads and writes.

use crate::command::{Command, Commands, flag};
use crate::completion::{self, Completion, Completions};
use crate::control::{Abort, Event, EventKind, GoodbyeReason, check_alone};
use crate::message::{ENOUGH, Header, Kind, MIN_MESSAGE, MessageError, aligned, seal};
use crate::types::{Op, Status};
use crate::volume::{PathState, VolumeInfo};
use crate::{sums, types::PortId};

/// A message of these parts, with its checksum where one was agreed.
fn sealed(header: Header, control: &[u8], integrity: bool) -> Vec<u8> {
    let mut b = [&header.encode()[..], control].concat();
    if integrity {
        seal(&mut b);
    }
    b
}

fn command(op: Op, flags: u8, offset: u64, len: u32) -> Command {
    let (tag, seq, volume, segments, guard) = (1, 1, 1, 0, 1);
    Command { op: op as u8, flags, tag, seq, offset, len, volume, segments, guard }
}

#[test]
fn every_kind_has_its_number_and_goes_one_way() {
    let kinds = [
        (0x01, Kind::Commands),
        (0x02, Kind::Abort),
        (0x03, Kind::Ping),
        (0x04, Kind::EventAck),
        (0x05, Kind::Logout),
        (0x06, Kind::Hello),
        (0x81, Kind::Completions),
        (0x83, Kind::Pong),
        (0x84, Kind::Event),
        (0x85, Kind::Goodbye),
        (0x86, Kind::Welcome),
        (0x87, Kind::Refused),
    ];
    for code in 0..=255u8 {
        let mut b = [0; 16];
        b[4] = code;
        let known = kinds.iter().find(|k| k.0 == code).map(|k| k.1);
        for to_target in [true, false] {
            let here = known.filter(|_| (code < 0x80) == to_target);
            let want = here.map(Header::new).ok_or(MessageError::Kind(code));
            assert_eq!(Header::decode(&b, to_target), want, "kind {code:#x}");
        }
    }
}

#[test]
fn a_header_is_these_bytes() {
    let h = Header {
        kind: Kind::Pong,
        flags: 0x11,
        count: 0x0302,
        extra: 0x0504,
        sums: 0x0706,
        data: 0x0b0a_0908,
    };
    let b = h.encode();
    assert_eq!(b, [0, 0, 0, 0, 0x83, 0x11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(Header::decode(&b, false), Ok(h));
    assert_eq!(h.alone(false), b, "without integrity the checksum is 0");
    let sum = weir_codec::crc32c(&b[4..]).to_le_bytes();
    assert_eq!((&h.alone(true)[..4], &h.alone(true)[4..]), (&sum[..], &b[4..]));
    for (len, control) in [(0, 0), (1, 8), (7, 8), (8, 8), (9, 16), (4095, 4096)] {
        assert_eq!(aligned(len), control);
    }
}

/// "The length of the message shall be exactly what header and entries add up to."
#[test]
fn a_message_that_is_a_header_is_nothing_else() {
    for integrity in [false, true] {
        let ping = Header { count: 3, ..Header::new(Kind::Ping) };
        let b = ping.alone(integrity);
        assert_eq!(check_alone(&ping, &b, integrity), Ok(()));
        assert!(check_alone(&ping, &[&b[..], &[0]].concat(), integrity).is_err());
        for h in [Header { sums: 1, ..ping }, Header { data: 1, ..ping }] {
            let b = h.alone(integrity);
            let e = Err(MessageError::Counts("parts"));
            assert_eq!(check_alone(&h, &b, integrity), e);
            assert_eq!(check_alone(&h, &[&b[..], &[0; 8]].concat(), integrity), e);
        }
    }
    let b = Header::new(Kind::Ping).encode();
    assert!(check_alone(&Header::new(Kind::Ping), &b, true).is_err(), "0 is no checksum");
}

/// "COMMANDS, ABORT and EVENT shall have at least one entry."
#[test]
fn a_message_without_an_entry_is_none() {
    for integrity in [false, true] {
        let of = |kind| (Header::new(kind), Header::new(kind).alone(integrity));
        let (h, b) = of(Kind::Commands);
        let commands = Commands::decode(&h, &b, integrity).map(drop);
        let (h, b) = of(Kind::Abort);
        let aborts = Abort::decode_all(&h, &b, integrity).map(drop);
        let (h, b) = of(Kind::Event);
        let events = Event::decode_all(&h, &b, integrity).map(drop);
        assert_eq!([commands, aborts, events], [const { Err(MessageError::Empty) }; 3]);
    }
}

#[test]
fn aborts_are_these_bytes() {
    let a = Abort { tag: 0x0201, seq: 0x0807_0605 };
    let b = a.message(false);
    assert_eq!(b[..16], [0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(b[16..], [1, 2, 0, 0, 5, 6, 7, 8]);
    assert_eq!(a.message(true)[..4], weir_codec::crc32c(&b[4..]).to_le_bytes());
    let h = Header { count: 2, ..Header::new(Kind::Abort) };
    for integrity in [false, true] {
        let two = sealed(h, &[1, 2, 0, 0, 5, 6, 7, 8, 9, 0, 0, 0, 3, 0, 0, 0], integrity);
        let all: Vec<Abort> = Abort::decode_all(&h, &two, integrity).unwrap().collect();
        assert_eq!(all, [a, Abort { tag: 9, seq: 3 }]);
        assert!(Abort::decode_all(&h, &two[..24], integrity).is_err());
        assert!(Abort::decode_all(&h, &[&two[..], &[0; 8]].concat(), integrity).is_err());
        for h in [Header { sums: 1, ..h }, Header { data: 1, ..h }] {
            let b = sealed(h, &two[16..], integrity);
            let e = Abort::decode_all(&h, &b, integrity).err();
            assert_eq!(e, Some(MessageError::Counts("parts")));
        }
    }
}

#[test]
fn events_are_these_bytes() {
    let kinds = [
        EventKind::Resized,
        EventKind::PathState,
        EventKind::Volumes,
        EventKind::Leaving,
        EventKind::Damage,
    ];
    for code in 0..=255u8 {
        let want = code.checked_sub(1).and_then(|n| kinds.get(usize::from(n)).copied());
        assert_eq!(EventKind::from_code(code), want);
        assert!(want.is_none_or(|k| k as u8 == code));
    }
    let e = Event { kind: 1, volume: 0x0302, value: 0x0f0e_0d0c_0b0a_0908 };
    let other = Event { kind: 77, volume: 0, value: 1 };
    assert_eq!(e.encode(), [1, 0, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11, 12, 13, 14, 15]);
    for integrity in [false, true] {
        let b = Event::message(&[e, other], 0x0605, integrity);
        let h = Header::decode(&b, false).unwrap();
        assert_eq!(h, Header { count: 2, extra: 0x0605, ..Header::new(Kind::Event) });
        assert_eq!(b, sealed(h, &[e.encode(), other.encode()].concat(), integrity));
        // An unknown kind is for the receiver to pass over, not an error of the message.
        let all: Vec<Event> = Event::decode_all(&h, &b, integrity).unwrap().collect();
        assert_eq!(all, [e, other]);
    }
}

#[test]
fn goodbyes_tell_why() {
    let reasons = [
        GoodbyeReason::Unspecified,
        GoodbyeReason::Leaving,
        GoodbyeReason::Protocol,
        GoodbyeReason::Silent,
        GoodbyeReason::Replaced,
        GoodbyeReason::NotAllowed,
    ];
    for code in 0..=255u8 {
        let want = reasons.get(usize::from(code)).copied().unwrap_or(GoodbyeReason::Unspecified);
        assert_eq!(GoodbyeReason::from_code(code), want);
        assert!(want == GoodbyeReason::Unspecified || want as u8 == code);
    }
}

#[test]
fn completions_are_these_bytes() {
    let c = Completion {
        tag: 0x0201,
        status: 3,
        flags: 4,
        seq: 0x0807_0605,
        inline: 0x0c0b_0a09,
        detail: 0x100f_0e0d,
    };
    let b = c.encode();
    assert_eq!(b, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(Completion::decode(&b), c);
    let ok = Completion::new(7, 9, Status::Busy, 5);
    assert_eq!(ok.encode(), [7, 0, 6, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
}

/// The detail counts checksums only where the flag says so: else it is an address, or a piece.
#[test]
fn a_detail_is_no_number_of_checksums_without_the_flag() {
    let miscompare = Completion::new(1, 1, Status::Miscompare, 700);
    assert_eq!(miscompare.sums(), 0);
    let all = completion::flag::SUMS | completion::flag::REPLAYED | completion::flag::LENT;
    assert_eq!(Completion { flags: all & !completion::flag::SUMS, ..miscompare }.sums(), 0);
    assert_eq!(Completion { flags: all, ..miscompare }.sums(), 700);
    let h = completion::Layout { completions: 1, sums: 0 }.header(2, 0);
    let b = sealed(h, &miscompare.encode(), true);
    let m = Completions::decode(&h, &b, true).unwrap();
    assert_eq!(
        m.iter().map(|i| (i.completion, i.sums.len())).collect::<Vec<_>>(),
        [(miscompare, 0)]
    );
}

#[test]
fn coalesced_completions_get_their_own_parts() {
    let read = |tag, sums, inline| Completion {
        flags: completion::flag::SUMS,
        inline,
        ..Completion::new(tag, 1, Status::Ok, sums)
    };
    let all = [read(1, 1, 2), Completion::new(2, 1, Status::Ok, 0), read(3, 2, 3)];
    let h = completion::Layout { completions: 3, sums: 3 }.header(1, 5);
    let sums = [[1u8; 4], [2; 4], [3; 4]].concat();
    let mut b = sealed(h, &[&all.map(|c| c.encode()).concat()[..], &sums, &[0; 4]].concat(), true);
    b.extend([10, 11, 12, 13, 14]);
    let m = Completions::decode(&h, &b, true).unwrap();
    assert_eq!((m.len(), m.is_empty()), (3, false));
    let got: Vec<_> = m.iter().map(|i| (i.completion, i.sums.concat(), i.data)).collect();
    assert_eq!(got[0], (all[0], vec![1; 4], &[10, 11][..]));
    assert_eq!(got[1], (all[1], vec![], &[][..]));
    assert_eq!(got[2], (all[2], [[2; 4], [3; 4]].concat(), &[12, 13, 14][..]));
    assert_eq!(got.len(), 3);
    // Parts that do not add up are nobody's.
    for (h, what) in
        [(Header { sums: 4, ..h }, "checksums"), (Header { data: 6, ..h }, "bytes of inline data")]
    {
        let mut b = b.clone();
        b.resize(b.len() + usize::from(h.data == 6), 0);
        let e = Completions::decode(&h, &b, false).unwrap_err();
        assert_eq!(e, MessageError::Counts(what));
    }
    let credits = completion::Layout::default().header(8, 0);
    let b = credits.alone(true);
    let m = Completions::decode(&credits, &b, true).unwrap();
    assert_eq!((m.len(), m.is_empty(), m.iter().next()), (0, true, None));
}

#[test]
fn commands_of_a_message_are_counted() {
    for n in 1..4 {
        let h = Header { count: n, ..Header::new(Kind::Commands) };
        let one = command(Op::Nop, 0, 0, 0).encode();
        let b = sealed(h, &one.repeat(usize::from(n)), true);
        let m = Commands::decode(&h, &b, true).unwrap();
        assert_eq!((m.len(), m.is_empty()), (usize::from(n), false));
    }
}

/// Which way the data of each operation goes, and how much of it.
#[test]
fn data_goes_as_the_table_of_operations_says() {
    // Bytes of three blocks of the volume: one of the first, all of the second, one of the third.
    let way = |op| {
        let c = command(op, 0, 4095, 4098);
        (c.data_out(), c.sums_out(), c.data_in())
    };
    assert_eq!(way(Op::Write), (4098, 3, 0));
    assert_eq!(way(Op::CompareAndWrite), (8196, 6, 0), "each half has its own checksums");
    for op in [Op::Read, Op::Geometry, Op::List] {
        assert_eq!(way(op), (0, 0, 4098));
    }
    for op in [Op::Nop, Op::Flush, Op::Discard, Op::WriteZeroes] {
        assert_eq!(way(op), (0, 0, 0));
    }
    let repeatable = Op::ALL.iter().filter(|op| !op.is_repeatable()).collect::<Vec<_>>();
    assert_eq!(
        repeatable,
        [&Op::CompareAndWrite],
        "done twice in a row, it alone tells another end"
    );
}

/// "A whole completion with its checksums and inline data has to fit into the message length": what a command
/// says of its answer is the length of that message.
#[test]
fn a_command_knows_the_length_of_its_answer() {
    let answers = [
        (command(Op::Read, flag::INLINE_IN, 0, 512), 512),
        (command(Op::Read, flag::INLINE_IN | flag::STABLE, 4095, 4098), 4098),
        (command(Op::Read, 0, 0, 1 << 20), 0),
        (command(Op::Geometry, 0, 0, 192), 192),
        (command(Op::List, 0, 0, 10 * 192), 10 * 192),
        (command(Op::List, flag::INLINE_IN, 0, 192), 192),
        (command(Op::Write, flag::INLINE_OUT, 0, 512), 0),
        (command(Op::Flush, 0, 0, 0), 0),
    ];
    for (c, inline) in answers {
        for integrity in [false, true] {
            let mut b = [0; 32].to_vec();
            if integrity {
                sums::each(c.offset, &vec![0; c.data_in() as usize], |s| b.extend(s.to_le_bytes()));
            }
            b.resize(b.len().next_multiple_of(8) + inline, 0);
            assert_eq!(c.answer_len(integrity), b.len() as u64, "{c:?}");
        }
    }
}

/// A message that the least receive buffer holds may get more: else nothing would ever be put together.
#[test]
fn what_the_least_buffer_holds_is_not_yet_enough() {
    const { assert!(ENOUGH >= MIN_MESSAGE) };
}

#[test]
fn statuses_and_operations_have_their_numbers() {
    for (i, s) in Status::ALL.iter().enumerate() {
        assert_eq!(*s as usize, i);
    }
    let port = PortId([0; 16]);
    assert!(port.is_zero() && !PortId([1; 16]).is_zero());
}

#[test]
fn a_description_of_a_volume_is_these_bytes() {
    let v = VolumeInfo {
        len: 0x0807_0605_0403_0201,
        block_size: 0x0c0b_0a09,
        granularity: 0x100f_0e0d,
        guard: 0x1817_1615,
        uid: core::array::from_fn(|i| 0x19 + i as u8),
        volume: 0x2a29,
        state: PathState::Standby,
        name: "db".to_owned(),
        ..VolumeInfo::default()
    };
    let mut want = [0; 192];
    (0..42).for_each(|i| want[i] = i as u8 + 1);
    want[16..20].fill(0);
    (want[42], want[43], want[48], want[49]) = (2, 2, b'd', b'b');
    assert_eq!(v.encode(), want);
    assert_eq!(VolumeInfo::decode(&want), Some(v.clone()));
    let flags: [fn(&mut VolumeInfo) -> &mut bool; 4] =
        [|v| &mut v.thin, |v| &mut v.volatile_cache, |v| &mut v.read_only, |v| &mut v.keeps_sums];
    for (bit, flag) in flags.iter().enumerate() {
        let mut v = v.clone();
        *flag(&mut v) = true;
        let b = v.encode();
        assert_eq!(b[16..20], [1 << bit, 0, 0, 0]);
        assert_eq!(VolumeInfo::decode(&b), Some(v));
    }
    for (code, state) in [PathState::Optimized, PathState::NonOptimized, PathState::Standby]
        .into_iter()
        .chain([PathState::Unavailable; 2])
        .enumerate()
    {
        assert_eq!(PathState::from_code(code as u8), state);
    }
    assert_eq!(PathState::from_code(255), PathState::Unavailable);
}

#[test]
fn a_description_that_cannot_be_is_none() {
    let v = VolumeInfo { name: "n".repeat(128), ..VolumeInfo::default() };
    let b = v.encode();
    assert_eq!(VolumeInfo::decode(&b), Some(v));
    assert_eq!(VolumeInfo::decode(&b[..191]), None);
    // LIST gives one behind the other.
    assert!(VolumeInfo::decode(&[b, b].concat()).is_some());
    // A longer name is cut at a character, and never in it.
    let v = VolumeInfo { name: format!("n{}", "\u{fc}".repeat(80)), ..VolumeInfo::default() };
    let back = VolumeInfo::decode(&v.encode()).unwrap();
    assert_eq!(back.name, format!("n{}", "\u{fc}".repeat(63)));
    let mut longer = b;
    longer[43] = 129;
    assert_eq!(VolumeInfo::decode(&longer), None);
    let mut noise = b;
    noise[48] = 0xff;
    assert_eq!(VolumeInfo::decode(&noise), None);
}
