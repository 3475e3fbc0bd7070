use proptest::prelude::*;

use super::*;
use crate::command_builder::{BufferSpec, CommandBuilder};
use crate::types::EncodeError;

const CTX: IuContext =
    IuContext { max_iu_len: 8276, immediate_offset: Some(68), max_table_entries: 2048 };
const TAG: Tag = Tag(0x0807_0605_0403_0201);
const LUN: u64 = 0x0001_0000_0000_0000;
const CDB: [u8; 16] = *b"\x28\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";

fn d(n: u64, len: u32) -> Descriptor {
    Descriptor { addr: 0x1112_1314_1516_1700 + n, key: 0x2122_2324, len }
}

fn encode(b: &CommandBuilder<'_>) -> Vec<u8> {
    let mut out = vec![0xff; 9000];
    let n = b.encode(&mut out).unwrap();
    assert!(out[n..].iter().all(|&x| x == 0xff), "nothing behind the IU is touched");
    out.truncate(n);
    out
}

fn base() -> CommandBuilder<'static> {
    CommandBuilder::new(TAG, LUN, &CDB)
}

fn error(iu: &[u8]) -> CmdError {
    match Command::decode(iu, &CTX) {
        Err(IuError::Command { tag, error }) => {
            assert_eq!(tag, TAG);
            error
        }
        other => panic!("{other:?}"),
    }
}

fn out_error(iu: &[u8]) -> DescriptorError {
    match error(iu) {
        CmdError::Descriptor(Direction::Out, e) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn fixed_part_offset_by_offset() {
    let mut c = base().attribute(TaskAttribute::Ordered);
    c.solicit = Solicit { on_success: true, on_failure: true };
    let iu = encode(&c);
    assert_eq!(iu.len(), 48);
    assert_eq!(iu[0..2], [2, 6]);
    assert_eq!(iu[2..8], [0; 6]);
    assert_eq!(iu[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(iu[16..20], [0; 4]);
    assert_eq!(iu[20..28], [0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(iu[28..32], [0, 2, 0, 0]);
    assert_eq!(iu[32..48], CDB);
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!((c.tag, c.lun, c.attribute), (TAG, LUN, TaskAttribute::Ordered));
    assert_eq!((c.data_out, c.data_in), (Buffer::None, Buffer::None));
    assert_eq!(c.cdb, CDB);
    assert!(c.solicit.on_success && c.solicit.on_failure);
    assert!(c.solicit.wants(true) && c.solicit.wants(false));
    for (bits, a) in [
        (0, TaskAttribute::Simple),
        (1, TaskAttribute::HeadOfQueue),
        (2, TaskAttribute::Ordered),
        (4, TaskAttribute::Aca),
    ] {
        assert_eq!(encode(&base().attribute(a))[29], bits);
    }
    for (byte, success, failure) in [(2, true, false), (4, false, true), (0xf9, false, false)] {
        let s = Solicit::from_byte(byte);
        assert_eq!((s.wants(true), s.wants(false)), (success, failure));
    }
}

#[test]
fn direct_offset_by_offset() {
    let iu = encode(&base().data_in(BufferSpec::Direct(d(0, 0x3132_3334))));
    assert_eq!(iu.len(), 64);
    assert_eq!(iu[5..8], [0x01, 0, 0]);
    assert_eq!(iu[48..56], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0]);
    assert_eq!(iu[56..60], [0x21, 0x22, 0x23, 0x24]);
    assert_eq!(iu[60..64], [0x31, 0x32, 0x33, 0x34]);
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!(c.data_in, Buffer::Direct(d(0, 0x3132_3334)));
    assert_eq!((c.data_in.len(), c.data_out.len()), (0x3132_3334, 0));
    let iu = encode(&base().data_out(BufferSpec::Direct(d(0, 8))));
    assert_eq!(iu[5], 0x10);
    assert_eq!(Command::decode(&iu, &CTX).unwrap().data_out, Buffer::Direct(d(0, 8)));
}

/// The remote ranges of a command are where its data goes, whatever the form; none means no data.
#[test]
fn a_direct_buffer_is_its_one_range() {
    let iu = encode(&base().data_in(BufferSpec::Direct(d(0, 512))));
    let c = Command::decode(&iu, &CTX).unwrap();
    assert!(c.data_in.descriptors().eq([d(0, 512)]));
    assert!(!c.data_in.is_empty() && c.data_out.is_empty());
    let iu = encode(&base().data_in(BufferSpec::Direct(d(0, 0))));
    assert!(Command::decode(&iu, &CTX).unwrap().data_in.is_empty());
}

#[test]
fn lists_know_how_long_they_are() {
    let bytes = [d(0, 1).to_bytes(), d(1, 2).to_bytes(), d(2, 3).to_bytes()].concat();
    for n in 0..=3 {
        let list = DescriptorList::new(&bytes[..16 * n]).unwrap();
        assert_eq!((list.len(), list.is_empty(), list.iter().len()), (n, n == 0, n));
    }
    assert!(DescriptorList::new(&bytes[..47]).is_none());
}

/// SRP-2: the descriptors end where immediate data may begin, and not a byte later.
#[test]
fn immediate_data_begins_behind_the_descriptors() {
    let iu = encode(&base().data_out(BufferSpec::Immediate { offset: 52, data: &[7; 8] }));
    let at = |offset| {
        let ctx = IuContext { immediate_offset: Some(offset), ..CTX };
        Command::decode(&iu, &ctx).map(|c| c.data_out)
    };
    assert_eq!(at(52), Ok(Buffer::Immediate { data: &[7; 8] }));
    for offset in 44..52 {
        let error = CmdError::Descriptor(
            Direction::Out,
            DescriptorError::ImmediateOverlap { offset, end: 52 },
        );
        assert_eq!(at(offset), Err(IuError::Command { tag: TAG, error }));
    }
}

#[test]
fn the_short_way_writes_the_same() {
    let place = Descriptor { addr: 0x0102_0304_0506_0708, key: 0x1122_3344, len: 0x5566_7788 };
    let iu = encode(&base().data_in(BufferSpec::Direct(place)));
    assert_eq!(crate::command_builder::direct_in(TAG, LUN, &CDB, place), *iu);
}

#[test]
fn indirect_offset_by_offset() {
    let list = [d(0, 100), d(256, 200)];
    let spec = BufferSpec::Indirect { table: d(4096, 32), total: 300, inline: &list };
    let iu = encode(&base().data_out(spec));
    assert_eq!(iu.len(), 48 + 20 + 32);
    assert_eq!(iu[5..8], [0x20, 2, 0]);
    assert_eq!(iu[48..64], d(4096, 32).to_bytes());
    assert_eq!(iu[64..68], [0, 0, 1, 44]);
    assert_eq!(iu[68..84], d(0, 100).to_bytes());
    assert_eq!(iu[84..100], d(256, 200).to_bytes());
    let c = Command::decode(&iu, &CTX).unwrap();
    let Buffer::Indirect { table, total, entries, inline } = c.data_out else { panic!() };
    assert_eq!((table, total, entries, inline.len()), (d(4096, 32), 300, 2, 2));
    assert!(c.data_out.descriptors().eq(list));
    assert_eq!(c.data_out.missing_table(), None);
    assert_eq!(inline.get(1), Some(list[1]));
    assert_eq!(inline.get(2), None);
    assert_eq!(inline.as_bytes(), &iu[68..]);
    let iu = encode(&base().data_in(spec));
    assert_eq!(iu[5..8], [0x02, 0, 2]);
}

#[test]
fn a_table_partly_inline_names_what_to_fetch() {
    let list = [d(0, 100)];
    let table = d(4096, 160);
    let spec = BufferSpec::Indirect { table, total: 5000, inline: &list };
    let iu = encode(&base().data_in(spec));
    let c = Command::decode(&iu, &CTX).unwrap();
    let rest = Descriptor { addr: table.addr + 16, key: table.key, len: 144 };
    assert_eq!(c.data_in.missing_table(), Some(rest));
    assert_eq!(c.data_in.len(), 5000);
    let none = BufferSpec::Indirect { table, total: 5000, inline: &[] };
    let iu = encode(&base().data_in(none));
    assert_eq!(iu.len(), 68);
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!(c.data_in.missing_table(), Some(table));
    assert_eq!(c.data_in.descriptors().count(), 0);
}

#[test]
fn immediate_offset_by_offset() {
    let data = [0xab; 100];
    let iu = encode(&base().data_out(BufferSpec::Immediate { offset: 68, data: &data }));
    assert_eq!(iu.len(), 168);
    assert_eq!(iu[5..8], [0x30, 0, 0]);
    assert_eq!(iu[48..52], [0, 0, 0, 100]);
    assert_eq!(iu[52..68], [0; 16]);
    assert_eq!(iu[68..], data);
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!(c.data_out, Buffer::Immediate { data: &data });
    assert_eq!(c.data_out.len(), 100);
    // The same with the data gathered by the send.
    let gather = base().data_out(BufferSpec::ImmediateGather { offset: 68, len: 100 });
    let mut head = [0xff; 68];
    assert_eq!(gather.encode(&mut head), Ok(168));
    assert_eq!(head, iu[..68]);
    // Without data.
    let iu = encode(&base().data_out(BufferSpec::Immediate { offset: 68, data: &[] }));
    assert!(Command::decode(&iu, &CTX).unwrap().data_out.is_empty());
}

#[test]
fn both_directions_out_first() {
    let list = [d(0, 10)];
    let indirect = BufferSpec::Indirect { table: d(16, 16), total: 10, inline: &list };
    let iu = encode(&base().data_out(indirect).data_in(BufferSpec::Direct(d(32, 20))));
    assert_eq!(iu[5..8], [0x21, 1, 0]);
    assert_eq!(iu.len(), 48 + 36 + 16);
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!((c.data_out.len(), c.data_in), (10, Buffer::Direct(d(32, 20))));
    // Immediate out and direct in: 48 + 4 + 16 ends exactly at the offset.
    let imm = BufferSpec::Immediate { offset: 68, data: &[1, 2, 3] };
    let iu = encode(&base().data_out(imm).data_in(BufferSpec::Direct(d(32, 20))));
    let c = Command::decode(&iu, &CTX).unwrap();
    assert_eq!(c.data_out, Buffer::Immediate { data: &[1, 2, 3] });
    assert_eq!(c.data_in, Buffer::Direct(d(32, 20)));
    // Indirect in does not fit below it.
    let c = base().data_out(imm).data_in(indirect);
    let e = EncodeError::ImmediateOffset { offset: 68, end: 88 };
    assert_eq!(c.encode(&mut [0; 200]), Err(e));
    let mut iu = encode(&base().data_in(indirect));
    iu[5] = 0x32;
    iu.splice(48..48, [0, 0, 0, 1]);
    assert_eq!(out_error(&iu), DescriptorError::ImmediateOverlap { offset: 68, end: 88 });
}

#[test]
fn long_cdbs() {
    for (len, extra) in [(0, 0), (6, 0), (16, 0), (17, 4), (32, 16), (265, 252), (268, 252)] {
        let cdb: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
        let c = CommandBuilder::new(TAG, LUN, &cdb).data_in(BufferSpec::Direct(d(0, 5)));
        let iu = encode(&c);
        assert_eq!((usize::from(iu[31]), iu.len()), (extra, 64 + extra));
        let c = Command::decode(&iu, &CTX).unwrap();
        assert_eq!(c.cdb.len(), 16 + extra);
        assert!(c.cdb.starts_with(&cdb) && c.cdb[len..].iter().all(|&b| b == 0));
        assert_eq!(c.data_in, Buffer::Direct(d(0, 5)));
    }
    let cdb = [0; 269];
    let c = CommandBuilder::new(TAG, LUN, &cdb);
    assert_eq!(c.encode(&mut [0; 400]), Err(EncodeError::CdbTooLong(269)));
    // The low two bits of the length byte are reserved.
    let mut iu = encode(&base());
    iu[31] = 3;
    assert_eq!(Command::decode(&iu, &CTX).unwrap().cdb, CDB);
    iu[31] = 4;
    assert_eq!(error(&iu), CmdError::CdbTruncated { needed: 52, got: 48 });
}

#[test]
fn reserved_values_and_bits() {
    for a in [3, 5, 6, 7] {
        let mut iu = encode(&base());
        iu[29] = a;
        assert_eq!(error(&iu), CmdError::Attribute(a));
    }
    for f in 4..16 {
        let mut iu = encode(&base());
        iu[5] = f << 4;
        assert_eq!(error(&iu), CmdError::Format(Direction::Out, f));
        iu[5] = f;
        assert_eq!(error(&iu), CmdError::Format(Direction::In, f));
    }
    let mut iu = encode(&base());
    iu[5] = 3;
    assert_eq!(error(&iu), CmdError::Format(Direction::In, 3));
    // Everything reserved set: no difference. Counts matter for indirect tables only.
    let direct = base().data_in(BufferSpec::Direct(d(0, 5)));
    let iu = encode(&direct);
    let mut noisy = iu.clone();
    noisy[1] |= 0xf9;
    noisy[2..5].fill(0xff);
    noisy[6..8].fill(0xff);
    noisy[16..20].fill(0xff);
    noisy[28] = 0xff;
    noisy[29] |= 0xf8;
    noisy[30] = 0xff;
    assert_eq!(Command::decode(&noisy, &CTX), Command::decode(&iu, &CTX));
}

#[test]
fn every_length_is_checked() {
    let list = [d(0, 100), d(256, 200)];
    let indirect = BufferSpec::Indirect { table: d(4096, 32), total: 300, inline: &list };
    for spec in [BufferSpec::Direct(d(0, 4)), indirect] {
        let iu = encode(&base().data_out(spec).data_in(spec));
        for n in 0..iu.len() {
            match Command::decode(&iu[..n], &CTX) {
                Err(IuError::Short { iu: IuType::Command, needed: 48, got }) if n < 48 => {
                    assert_eq!(got, n);
                }
                Err(IuError::Command { error: CmdError::Descriptor(_, e), .. }) if n >= 48 => {
                    assert!(matches!(e, DescriptorError::Truncated { got, .. } if got == n));
                }
                other => panic!("{n}: {other:?}"),
            }
        }
    }
    let imm = BufferSpec::Immediate { offset: 68, data: &[1; 10] };
    let iu = encode(&base().data_out(imm));
    for n in 52..78 {
        let want = DescriptorError::ImmediateTruncated { needed: 78, got: n };
        assert_eq!(out_error(&iu[..n]), want);
    }
    let mut iu = iu;
    iu[48..52].fill(0xff);
    let needed = 68 + u64::from(u32::MAX);
    assert_eq!(out_error(&iu), DescriptorError::ImmediateTruncated { needed, got: 78 });
    let ctx = IuContext { immediate_offset: None, ..CTX };
    let e = Command::decode(&iu, &ctx).unwrap_err();
    let want = CmdError::Descriptor(Direction::Out, DescriptorError::ImmediateNotNegotiated);
    assert_eq!(e, IuError::Command { tag: TAG, error: want });
}

#[test]
fn tables_that_lie() {
    let list = [d(0, 100), d(256, 200)];
    let with = |table: Descriptor, total: u32, count: u8| {
        let spec = BufferSpec::Indirect { table: d(4096, 32), total: 300, inline: &list };
        let mut iu = encode(&base().data_out(spec));
        iu[48..64].copy_from_slice(&table.to_bytes());
        iu[64..68].copy_from_slice(&total.to_be_bytes());
        iu[6] = count;
        iu
    };
    assert!(Command::decode(&with(d(0, 32), 300, 2), &CTX).is_ok());
    assert_eq!(out_error(&with(d(0, 33), 300, 2)), DescriptorError::TableLength(33));
    let long = DescriptorError::TableTooLong { entries: 2049, max: 2048 };
    assert_eq!(out_error(&with(d(0, 2049 * 16), 300, 2)), long);
    assert!(Command::decode(&with(d(0, 2048 * 16), 300, 2), &CTX).is_ok());
    let count = DescriptorError::CountExceedsTable { count: 2, entries: 1 };
    assert_eq!(out_error(&with(d(0, 16), 300, 2)), count);
    let short = DescriptorError::TotalExceedsTable { total: 301, sum: 300 };
    assert_eq!(out_error(&with(d(0, 32), 301, 2)), short);
    assert!(Command::decode(&with(d(0, 32), 299, 2), &CTX).is_ok());
    // A table that is not whole cannot be judged yet, but what is there must not wrap.
    assert!(Command::decode(&with(d(0, 48), u32::MAX, 2), &CTX).is_ok());
    let wrap = Descriptor { addr: u64::MAX - 30, key: 1, len: 32 };
    assert_eq!(out_error(&with(wrap, 300, 2)), DescriptorError::Wraps);
    for table_len in [32, 48] {
        let mut iu = with(d(0, table_len), 300, 2);
        iu[84..100].copy_from_slice(&wrap.to_bytes());
        assert_eq!(out_error(&iu), DescriptorError::Wraps);
    }
    let mut iu = encode(&base().data_out(BufferSpec::Direct(wrap)));
    assert_eq!(out_error(&iu), DescriptorError::Wraps);
    // The last byte of the address space may be used.
    iu[48..64].copy_from_slice(&Descriptor { len: 31, ..wrap }.to_bytes());
    assert!(Command::decode(&iu, &CTX).is_ok());
    // An empty table for no data.
    let empty = with(d(0, 0), 0, 0);
    assert!(Command::decode(&empty, &CTX).unwrap().data_out.is_empty());
    let short = DescriptorError::TotalExceedsTable { total: 1, sum: 0 };
    assert_eq!(out_error(&with(d(0, 0), 1, 0)), short);
}

#[test]
fn fetched_tables_are_checked_whole() {
    let bytes = [d(0, u32::MAX).to_bytes(), d(1, u32::MAX).to_bytes()].concat();
    let list = DescriptorList::new(&bytes).unwrap();
    assert_eq!(check_table(list, u32::MAX), Ok(()));
    assert_eq!(list.total(), 2 * u64::from(u32::MAX));
    assert!(DescriptorList::new(&bytes[1..]).is_none());
    let sum = 0;
    let e = DescriptorError::TotalExceedsTable { total: 5, sum };
    assert_eq!(check_table(DescriptorList::EMPTY, 5), Err(e));
}

#[test]
fn the_builder_refuses_what_cannot_be_said() {
    let many = vec![d(0, 1); 256];
    let spec =
        |inline, table_len| BufferSpec::Indirect { table: d(0, table_len), total: 1, inline };
    let mut out = [0; 9000];
    let c = base().data_in(spec(&many, 4096));
    assert_eq!(c.encode(&mut out), Err(EncodeError::TooManyDescriptors(256)));
    let c = base().data_in(spec(&many[..255], 4096));
    assert_eq!(c.encode(&mut out), Ok(48 + 20 + 255 * 16));
    let c = base().data_in(spec(&many[..2], 16));
    assert_eq!(c.encode(&mut out), Err(EncodeError::TableLength(16)));
    let c = base().data_in(spec(&many[..2], 40));
    assert_eq!(c.encode(&mut out), Err(EncodeError::TableLength(40)));
    let imm = BufferSpec::Immediate { offset: 68, data: &[1] };
    assert_eq!(base().data_in(imm).encode(&mut out), Err(EncodeError::ImmediateDataIn));
    let low = BufferSpec::Immediate { offset: 51, data: &[1] };
    let e = EncodeError::ImmediateOffset { offset: 51, end: 52 };
    assert_eq!(base().data_out(low).encode(&mut out), Err(e));
    for n in 0..69 {
        let e = base().data_out(imm).encode(&mut out[..n]);
        assert!(matches!(e, Err(EncodeError::TooSmall { needed, .. }) if needed > n));
    }
}

/// A command with any mix of buffers that SRP can say.
#[derive(Debug, Clone)]
enum AnyBuffer {
    None,
    Direct(Descriptor),
    Indirect(Vec<Descriptor>, u32),
    Immediate(Vec<u8>),
}

fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    (0u64..1 << 60, any::<u32>(), 0u32..1 << 20).prop_map(|(addr, key, len)| Descriptor {
        addr,
        key,
        len,
    })
}

fn any_buffer(immediate: bool) -> impl Strategy<Value = AnyBuffer> {
    prop_oneof![
        Just(AnyBuffer::None),
        any_descriptor().prop_map(AnyBuffer::Direct),
        (proptest::collection::vec(any_descriptor(), 0..20), 0u32..4)
            .prop_map(|(l, more)| AnyBuffer::Indirect(l, more)),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(move |v| {
            if immediate { AnyBuffer::Immediate(v) } else { AnyBuffer::None }
        }),
    ]
}

impl AnyBuffer {
    fn spec(&self, offset: u16) -> BufferSpec<'_> {
        match self {
            AnyBuffer::None => BufferSpec::None,
            AnyBuffer::Direct(d) => BufferSpec::Direct(*d),
            AnyBuffer::Immediate(data) => BufferSpec::Immediate { offset, data },
            AnyBuffer::Indirect(list, more) => BufferSpec::Indirect {
                table: Descriptor { addr: 4096, key: 7, len: (list.len() as u32 + more) * 16 },
                total: list.iter().map(|d| d.len).sum(),
                inline: list,
            },
        }
    }
}

proptest! {
    #[test]
    fn the_short_way_reads_what_the_long_way_reads(
        mut iu in proptest::collection::vec(any::<u8>(), 48..128),
        form in 0usize..4,
        plain in any::<bool>(),
        len in 0u32..64,
    ) {
        iu[5] = [0, 1, 0x30, iu[5]][form];
        if plain {
            iu[29] = 0;
            iu[31] = 0;
            if form == 2 && iu.len() > 52 {
                iu[48..52].copy_from_slice(&len.to_be_bytes());
            }
        }
        let ctx = IuContext { immediate_offset: Some(68), ..CTX };
        if let Some(c) = Command::plain(&iu, &ctx) {
            prop_assert_eq!(Ok(c), Command::any(&iu, &ctx));
        }
    }

    #[test]
    fn commands_round_trip(
        ids in (any::<u64>(), any::<u64>(), 0u8..4, 0u8..4),
        cdb in proptest::collection::vec(any::<u8>(), 0..60),
        data_out in any_buffer(true),
        data_in in any_buffer(false),
        change in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (tag, lun, attribute, solicit) = ids;
        // Room for the longest descriptors that may stand before the data.
        let offset = 48 + 44 + 4 + 20 + 20 * 16;
        let mut c = CommandBuilder::new(Tag(tag), lun, &cdb)
            .data_out(data_out.spec(offset))
            .data_in(data_in.spec(offset));
        c.attribute = TaskAttribute::from_bits([0, 1, 2, 4][usize::from(attribute)]).unwrap();
        c.solicit = Solicit::from_byte(solicit << 1);
        let mut iu = vec![0; 4096];
        let n = c.encode(&mut iu).unwrap();
        iu.truncate(n);
        let ctx = IuContext { immediate_offset: Some(offset), ..CTX };
        let got = Command::decode(&iu, &ctx).unwrap();
        prop_assert_eq!((got.tag, got.lun, got.attribute), (c.tag, c.lun, c.attribute));
        prop_assert_eq!(got.solicit, c.solicit);
        prop_assert!(got.cdb.starts_with(&cdb));
        for (b, got) in [(&data_out, got.data_out), (&data_in, got.data_in)] {
            match (b, got) {
                (AnyBuffer::None, Buffer::None) => {}
                (AnyBuffer::Direct(d), Buffer::Direct(g)) => prop_assert_eq!(*d, g),
                (AnyBuffer::Immediate(v), Buffer::Immediate { data }) => {
                    prop_assert_eq!(&v[..], data);
                }
                (AnyBuffer::Indirect(l, more), Buffer::Indirect { entries, inline, .. }) => {
                    prop_assert_eq!(entries as usize, l.len() + *more as usize);
                    prop_assert!(inline.iter().eq(l.iter().copied()));
                    let fetch = got.missing_table().map_or(0, |d| d.len);
                    prop_assert_eq!(fetch, more * 16);
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
        // The same with a few bytes changed: whatever it is now, it is handled.
        let mut data = vec![0, 20, 0, 0];
        data.extend_from_slice(&iu);
        for (at, byte) in change {
            let at = at.index(data.len());
            data[at] = byte;
        }
        crate::fuzzing::fuzz_iu(&data);
    }
}
