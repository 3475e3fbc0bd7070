//! Round trips, flipped bits, and what a second implementation would compare with.

use crate::command::{self, Command, Commands, Descriptor, Layout, flag};
use crate::completion::{self, Completion, Completions};
use crate::login::{Features, LoginReject, LoginRequest, LoginResponse, RejectReason};
use crate::message::{HEADER, Header, Kind, MessageError, seal};
use crate::sums;
use crate::types::{Op, PortId, Status};
use crate::volume::{PathState, VolumeInfo};
use proptest::prelude::*;

mod format;
mod logins;
mod slots;

fn write(tag: u16, offset: u64, len: u32) -> Command {
    Command {
        op: Op::Write as u8,
        flags: flag::INLINE_OUT,
        tag,
        seq: 7,
        offset,
        len,
        volume: 3,
        segments: 0,
        guard: 0xfeed_beef,
    }
}

/// A message of these commands, with data of each that brings some inline.
fn message(all: &[(Command, Vec<Descriptor>)], integrity: bool) -> Vec<u8> {
    let byte = |i: usize| (i * 7 + 3) as u8;
    let layout = Layout {
        commands: all.len(),
        descriptors: all.iter().map(|(_, d)| d.len()).sum(),
        sums: if integrity { all.iter().map(|(c, _)| c.sums_out()).sum() } else { 0 },
    };
    let data: usize = all.iter().map(|(c, _)| c.inline() as usize).sum();
    let mut b = layout.header(data as u32).encode().to_vec();
    all.iter().for_each(|(c, _)| b.extend(c.encode()));
    all.iter().flat_map(|(_, d)| d).for_each(|d| b.extend(d.encode()));
    let mut inline = Vec::new();
    for (c, _) in all {
        let mine: Vec<u8> = (0..c.data_out() as usize).map(byte).collect();
        if integrity && !mine.is_empty() {
            for half in mine.chunks(c.len as usize) {
                sums::each(c.offset, half, |s| b.extend(s.to_le_bytes()));
            }
        }
        if c.has(flag::INLINE_OUT) {
            inline.extend(mine);
        }
    }
    b.resize(layout.control(), 0);
    if integrity {
        seal(&mut b);
    }
    b.extend(inline);
    b
}

#[test]
fn one_write_is_these_bytes() {
    let b = message(&[(write(5, 0x1000, 8), Vec::new())], true);
    let h = Header::decode(&b, true).unwrap();
    assert_eq!((h.kind, h.count, h.extra, h.sums, h.data), (Kind::Commands, 1, 0, 1, 8));
    assert_eq!(b.len(), 16 + 32 + 8 + 8);
    assert_eq!(&b[4..16], [1, 0, 1, 0, 0, 0, 1, 0, 8, 0, 0, 0]);
    let command = [
        2, 2, 5, 0, 7, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 0xef, 0xbe, 0xed,
        0xfe, 0, 0, 0, 0,
    ];
    assert_eq!(&b[16..48], command);
    let sum = weir_codec::crc32c(&b[56..64]).to_le_bytes();
    assert_eq!(&b[48..56], [sum[0], sum[1], sum[2], sum[3], 0, 0, 0, 0]);
    assert_eq!(b[..4], weir_codec::crc32c(&b[4..56]).to_le_bytes());
}

#[test]
fn a_jumbo_gives_each_command_its_parts() {
    let d = |n: u32| Descriptor { addr: u64::from(n) << 12, key: n, len: n * 512 };
    let read = Command { op: Op::Read as u8, flags: 0, segments: 2, ..write(1, 512, 8192) };
    let cas = Command { op: Op::CompareAndWrite as u8, ..write(2, 4096 - 512, 1024) };
    let far = Command { flags: 0, segments: 1, ..write(3, 0, 65536) };
    let all = [
        (read, vec![d(1), d(2)]),
        (write(0, 4096, 4096), vec![]),
        (cas, vec![]),
        (far, vec![d(3)]),
    ];
    let b = message(&all, true);
    let h = Header::decode(&b, true).unwrap();
    let m = Commands::decode(&h, &b, true).unwrap();
    let items: Vec<_> = m.iter().collect();
    assert_eq!(items.len(), 4);
    for (i, (c, ds)) in items.iter().zip(&all) {
        assert_eq!(i.command, *c);
        let got: Vec<Descriptor> = i.descriptors.iter().map(Descriptor::decode).collect();
        assert_eq!(got, *ds);
    }
    let sizes: Vec<_> = items.iter().map(|i| (i.sums.len(), i.data.1)).collect();
    assert_eq!(sizes, [(0, 0), (1, 4096), (4, 2048), (16, 0)]);
    let (from, n) = items[1].data;
    assert_eq!(sums::verify(4096, &b[from..from + n], items[1].sums), None);
    let (from, _) = items[2].data;
    for half in 0..2 {
        let data = &b[from + half * 1024..][..1024];
        assert_eq!(sums::verify(4096 - 512, data, &items[2].sums[half * 2..][..2]), None);
    }
}

/// Every bit of the control part and every bit of inline data is covered by some checksum.
#[test]
fn every_flipped_bit_is_found() {
    let good = message(&[(write(1, 3584, 1024), vec![]), (write(2, 0, 512), vec![])], true);
    for bit in 0..good.len() * 8 {
        let mut b = good.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        let Ok(h) = Header::decode(&b, true) else { continue };
        if h.kind != Kind::Commands {
            // Any other kind is shorter.
            assert!(crate::control::check_alone(&h, &b, true).is_err());
            continue;
        }
        let Ok(m) = Commands::decode(&h, &b, true) else { continue };
        let bad = m.iter().any(|i| {
            let data = &b[i.data.0..][..i.data.1];
            sums::verify(i.command.offset, data, i.sums).is_some()
        });
        assert!(bad, "bit {bit} was changed and nobody saw it");
    }
}

#[test]
fn pieces_are_cut_at_blocks_of_the_volume() {
    let cases = [(0, 0, 0), (0, 1, 1), (4095, 2, 2), (512, 4096, 2), (4096, 8192, 2)];
    for (offset, len, n) in cases {
        assert_eq!(sums::count(offset, len), n, "{offset} {len}");
        let data = vec![1; len as usize];
        let mut seen = 0;
        sums::each(offset, &data, |_| seen += 1);
        assert_eq!(seen, n);
    }
    assert_eq!(sums::verify(0, &[1; 4096], &[]), Some(0), "a missing checksum is a wrong one");
}

#[test]
fn logins_are_these_bytes() {
    let r = LoginRequest {
        version_min: 1,
        version_max: 1,
        features: Features::USUAL,
        initiator: PortId([1; 16]),
        target: PortId([2; 16]),
        session: 0x0807_0605_0403_0201,
        channel: 3,
        depth: 256,
        max_message: 960,
        keep_alive: 50,
    };
    let b = r.encode();
    assert_eq!((&b[..8], b.len()), (&[b'B', b'R', b'P', b'q', 1, 1, 159, 0][..], 56));
    assert_eq!(b[40..], [1, 2, 3, 4, 5, 6, 7, 8, 3, 0, 0, 1, 0xc0, 3, 50, 0]);
    assert_eq!(LoginRequest::decode(&b), Ok(r));
    assert!(LoginRequest::decode(&b[..55]).is_err());
    let mut bad = b;
    bad[50..52].fill(0);
    assert!(LoginRequest::decode(&bad).is_err());
    let answer = LoginResponse {
        version: 1,
        resumed: true,
        features: Features::USUAL,
        incarnation: 5,
        power: 6,
        depth: 256,
        credits: 128,
        max_message: 960,
        keep_alive: 50,
        max_len: 1 << 20,
        max_segments: 256,
        max_commands: 64,
        target: PortId([2; 16]),
        memory: 0x0807_0605_0403_0201,
    };
    let b = answer.encode();
    assert_eq!((&b[..6], b[56..] == [1, 2, 3, 4, 5, 6, 7, 8]), (&b"BRPr\x01\x01"[..], true));
    assert_eq!(LoginResponse::decode(&b), Ok(answer));
    for reason in 0..8 {
        let x = LoginReject { reason: RejectReason::from_code(reason), version: 1 };
        assert_eq!(LoginReject::decode(&x.encode()), Ok(x));
        assert!(LoginResponse::decode(&x.encode()).is_err());
    }
}

#[test]
fn numbers_and_names() {
    for (i, op) in Op::ALL.iter().enumerate() {
        assert_eq!(Op::from_code(i as u8), Some(*op));
        assert_eq!(*op as usize, i);
    }
    assert_eq!(Op::from_code(9), None);
    for (i, s) in Status::ALL.iter().enumerate() {
        assert_eq!(Status::from_code(i as u8), Some(*s));
        assert!(!s.to_string().is_empty());
    }
    assert_eq!(Status::from_code(20), None);
    let v = VolumeInfo {
        len: 1 << 40,
        block_size: 512,
        granularity: 4096,
        thin: true,
        volatile_cache: true,
        state: PathState::Standby,
        uid: [9; 16],
        volume: 4,
        name: "ü".repeat(80),
        ..VolumeInfo::default()
    };
    let back = VolumeInfo::decode(&v.encode()).unwrap();
    assert_eq!(back.name, "ü".repeat(64), "a long name is cut at a character");
    assert_eq!((back.len, back.state, back.thin, back.read_only), (v.len, v.state, true, false));
}

prop_compose! {
    fn any_command()(
        (op, flags, tag, seq) in (0u8..12, any::<u8>(), any::<u16>(), any::<u32>()),
        offset in 0u64..100_000,
        len in prop_oneof![0u32..9000, Just(65_536)],
        ds in prop::collection::vec(any::<(u64, u32, u32)>(), 0..4),
    ) -> (Command, Vec<Descriptor>) {
        let ds: Vec<_> = ds.iter().map(|(addr, key, len)| Descriptor { addr: *addr, key: *key, len: *len }).collect();
        let segments = ds.len() as u16;
        (Command { op, flags, tag, seq, offset, len, volume: tag ^ 5, segments, guard: seq ^ 1 }, ds)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        all in prop::collection::vec(any_command(), 1..8),
        integrity: bool,
    ) {
        let b = message(&all, integrity);
        let h = Header::decode(&b, true).unwrap();
        let m = Commands::decode(&h, &b, integrity).unwrap();
        prop_assert_eq!(m.len(), all.len());
        for (i, (c, ds)) in m.iter().zip(&all) {
            prop_assert_eq!(i.command, *c);
            let got: Vec<Descriptor> = i.descriptors.iter().map(Descriptor::decode).collect();
            prop_assert_eq!(&got, ds);
            if integrity && c.has(flag::INLINE_OUT) && c.operation() == Some(Op::Write) {
                let data = &b[i.data.0..][..i.data.1];
                prop_assert_eq!(sums::verify(c.offset, data, i.sums), None);
            }
        }
        let longer = [&b[..], &[0]].concat();
        prop_assert!(Commands::decode(&h, &longer, integrity).is_err(), "a byte too many was taken");
        prop_assert!(Commands::decode(&h, &b[..b.len() - 1], integrity).is_err());
    }

    #[test]
    fn completions_come_back(
        all in prop::collection::vec((any::<u16>(), 0u8..20, any::<u32>(), 0usize..3, 0usize..600), 0..8),
        credits: u16,
        integrity: bool,
    ) {
        let layout = completion::Layout {
            completions: all.len(),
            sums: all.iter().map(|c| c.3).sum(),
        };
        let data: usize = all.iter().map(|c| c.4).sum();
        let mut b = layout.header(credits, data as u32).encode().to_vec();
        let entry = |c: &(u16, u8, u32, usize, usize)| Completion {
            tag: c.0,
            status: c.1,
            flags: if c.3 > 0 { completion::flag::SUMS } else { 0 },
            seq: c.2,
            inline: c.4 as u32,
            detail: c.3 as u32,
        };
        all.iter().for_each(|c| b.extend(entry(c).encode()));
        (0..layout.sums as u32).for_each(|s| b.extend(s.to_le_bytes()));
        b.resize(layout.control(), 0);
        if integrity {
            seal(&mut b);
        }
        (0..data).for_each(|i| b.push(i as u8));
        let h = Header::decode(&b, false).unwrap();
        prop_assert_eq!(h.extra, credits);
        prop_assert!(Header::decode(&b, true).is_err());
        let m = Completions::decode(&h, &b, integrity).unwrap();
        for (i, c) in m.iter().zip(&all) {
            prop_assert_eq!(i.completion, entry(c));
            prop_assert_eq!((i.sums.len(), i.data.len()), (c.3, c.4));
        }
        prop_assert!(Completions::decode(&h, &b[..b.len() - 1], integrity).is_err());
    }

    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::fuzzing::fuzz_login(&data);
        crate::fuzzing::fuzz_message(&data);
        crate::fuzzing::fuzz_slot(&data);
    }

    #[test]
    fn damaged_messages_are_survived(
        all in prop::collection::vec(any_command(), 0..4),
        at: prop::sample::Index,
        with: u8,
        choice: u8,
    ) {
        let mut b = vec![choice & !1];
        b.extend(message(&all, choice & 2 != 0));
        let k = 1 + at.index(b.len() - 1);
        b[k] = with;
        crate::fuzzing::fuzz_message(&b);
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let b = message(&[(write(1, 0, 512), vec![])], true);
    let h = Header::decode(&b, true).unwrap();
    let mut changed = b.clone();
    changed[20] ^= 1;
    let e = Commands::decode(&h, &changed, true).unwrap_err();
    assert!(matches!(e, MessageError::Check { .. }) && e.to_string().contains("changed"));
    assert_eq!(Commands::decode(&h, &b, false).unwrap_err(), MessageError::Counts("checksums"));
    let e = Header::decode(&b[..HEADER - 1], true).unwrap_err();
    assert!(matches!(e, MessageError::Short { needed: 16, got: 15 }));
    let more = command::Layout { commands: 1, descriptors: 1, sums: 0 }.header(0);
    let mut m = more.encode().to_vec();
    m.extend(write(1, 0, 0).encode());
    m.extend([0; 16]);
    let e = Commands::decode(&more, &m, false).unwrap_err();
    assert_eq!(e, MessageError::Counts("descriptors"));
}
