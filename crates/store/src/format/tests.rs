use super::label::{Label, Layout};
use super::log::{Entry, PageBuilder, PageHead, decode_entries, decode_head};
use super::page::{FANOUT, Header, NodePtr, PAYLOAD, PageKind, seal};
use super::superblock::{BlobRoot, Member, MemberState, Superblock, TableRoot};
use super::tree::{FIRST_VBN, LEAF, MapEntry};
use super::turn::{MAX_TURNS, Turn};
use super::*;
use proptest::prelude::*;

fn node_ptr() -> impl Strategy<Value = NodePtr> {
    (4..MAX_VBN, 1..1000u32, 0..1000u32, any::<u64>()).prop_map(|(vbn, birth, more, crc)| NodePtr {
        vbn,
        birth,
        max_birth: birth + more,
        crc,
    })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..=log::NAME)
}

fn log_entry() -> impl Strategy<Value = Entry> {
    let lba = 0..MAX_LBA - 600;
    let crcs = proptest::collection::vec(any::<u32>(), 1..=log::MAX_RUN);
    prop_oneof![
        (any::<u32>(), lba.clone(), FIRST_VBN..MAX_VBN - 600, 0..=MAX_EPOCH, crcs).prop_map(
            |(dataset, lba, vbn, birth, crcs)| Entry::Write { dataset, lba, vbn, birth, crcs }
        ),
        (any::<u32>(), lba.clone(), 0..600u64).prop_map(|(dataset, lba, blocks)| Entry::Trim {
            dataset,
            lba,
            blocks
        }),
        (any::<u32>(), lba, 0..=MAX_EPOCH).prop_map(|(dataset, lba, birth)| Entry::Poison {
            dataset,
            lba,
            birth
        }),
        (any::<u32>(), any::<u32>(), any::<bool>(), 0..MAX_EPOCH, any::<u64>(), name()).prop_map(
            |(source, id, clone, epoch, created, name)| Entry::Snapshot {
                source,
                id,
                clone,
                epoch,
                created,
                name
            }
        ),
        (any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(device, from, spare)| Entry::Remap {
            device,
            from,
            spare
        }),
    ]
}

/// Turns after page `base` and epoch `epoch`.
fn turns(base: u64, epoch: u32, steps: &[[u32; 4]], chain: u64) -> Vec<Turn> {
    let (mut at, mut since) = (base, epoch);
    let step = |[a, b, c, e]: &[u32; 4]| {
        let end = at + u64::from(*a);
        let first = end + u64::from(*b);
        let sure = first + u64::from(*c);
        (at, since) = (sure, (since + e % 1000).min(MAX_EPOCH));
        Turn { end, first, sure, chain: chain ^ sure, epoch: since }
    };
    steps.iter().map(step).collect()
}

fn table(ptr: NodePtr, len: u64) -> BlobRoot {
    // Three levels of pointers hold a little less than 8 GiB.
    let len = len.min((FANOUT * FANOUT * FANOUT * PAYLOAD) as u64);
    BlobRoot { ptr, height: blob::levels(len).len() as u8 - 1, len }
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let member = (any::<u64>(), 0..5u8, any::<bool>(), 0..100u32, any::<u64>()).prop_map(
        |(device, state, draining, since, blocks)| Member {
            device,
            state: [
                MemberState::Gone,
                MemberState::InSync,
                MemberState::Syncing,
                MemberState::Out,
                MemberState::Spare,
            ][usize::from(state)],
            draining,
            leaving: since % 2 == 1,
            written_off: since % 3 == 1,
            since,
            blocks,
            spares_used: since,
            domain: (since % 64) as u16,
        },
    );
    let members = proptest::collection::vec(member, 1..=superblock::MAX_MEMBERS);
    let steps = proptest::collection::vec(any::<[u32; 4]>(), 0..=MAX_TURNS);
    let numbers = (any::<u128>(), any::<u64>(), any::<[u64; 4]>(), steps);
    (numbers, node_ptr(), node_ptr(), members).prop_map(|((pool, seq, x, steps), a, b, members)| {
        Superblock {
            pool,
            lineage: x[0],
            parent_lineage: x[1],
            seq,
            incarnation: (x[2] as u32).max(100),
            owner_epoch: x[3] as u32,
            epoch: a.max_birth.max(b.max_birth),
            previous: x[2] ^ x[3],
            datasets: table(a, 1 + x[0] % (8 << 30)),
            space: TableRoot { which: 1, len: 77, crc: b.crc },
            base_lsn: x[1] >> 8,
            base_chain: x[0] ^ 5,
            turns: turns(x[1] >> 8, a.max_birth.max(b.max_birth), &steps, x[2]),
            log_set: [Some((x[0] % members.len() as u64) as u16), None],
            copies: 2,
            slab_shift: 18,
            log_pages: 1 << 17,
            table_pages: 1 + x[1] % 1000,
            spares: x[2] % 1000,
            next_dataset: 9,
            members,
            incompat: if steps.is_empty() { 0 } else { KEPT_LOG },
            compat: x[3],
        }
    })
}

proptest! {
    #[test]
    fn log_pages_survive_and_every_flipped_bit_shows(
        entries in proptest::collection::vec(log_entry(), 0..12),
        lsn in 1..u64::MAX,
        bit in 0..BLOCK * 8,
    ) {
        let head = PageHead {
            pool: 0xabcd, incarnation: 4, owner_epoch: 0, lsn, previous: 99, stable: lsn / 2,
            base_seq: 7, recovery: lsn % 2 == 0,
        };
        let mut b = PageBuilder::default();
        let kept: Vec<Entry> = entries.into_iter().filter(|e| b.push(e)).collect();
        let (mut page, crc) = b.seal(&head);
        prop_assert_eq!(decode_head(&page, 0xabcd), Ok((head, crc)));
        prop_assert_eq!(decode_entries(&page), Ok(kept));
        prop_assert!(decode_head(&page, 0xabce).is_err());
        page[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode_head(&page, 0xabcd).is_err());
    }

    #[test]
    fn superblocks_survive_and_every_flipped_bit_shows(s in superblock(), bit in 0..BLOCK * 8) {
        let slot = s.seq % label::SUPER_SLOTS;
        let mut b = s.encode(42, 1);
        prop_assert_eq!(Superblock::decode(&b, s.pool, 42, 1, slot), Ok(s.clone()));
        prop_assert!(Superblock::decode(&b, s.pool, 43, 1, slot).is_err());
        prop_assert!(Superblock::decode(&b, s.pool, 42, 0, slot).is_err());
        b[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&b, s.pool, 42, 1, slot).is_err());
    }

    #[test]
    fn labels_survive_and_layouts_do_not_overlap(
        blocks in 300..10_000_000u64, shift in 6..20u8, log in 16..5000u64, spares in 0..500u64,
    ) {
        let Some(layout) = Layout::plan(blocks, shift, log, 3, spares) else { return Ok(()) };
        let l = Label { pool: 5, device: 6, layout, incompat: 0, compat: 1, copy: 3 };
        prop_assert_eq!(Label::decode(&l.encode()), Ok(l));
        let marks = [
            layout.label(0), layout.label(1), layout.superblock(0, 0), layout.superblock(0, 63),
            layout.log(0), layout.log(log - 1), layout.table(0, 0),
            layout.table(1, 2), layout.spare(0), layout.extent(0),
            layout.extent(layout.extents - 1) + (1 << shift) - 1, layout.superblock(1, 64),
            layout.superblock(1, 127), layout.label(2), layout.label(3),
        ];
        for w in marks.windows(2) {
            prop_assert!(w[0] < w[1] || (spares == 0 && w[0] == w[1]), "{marks:?}");
        }
        prop_assert_eq!(layout.label(3), blocks - 1);
    }

    #[test]
    fn metadata_pages_survive_and_every_flipped_bit_shows(
        ptr in node_ptr(), owner in any::<u64>(), i in 0..LEAF, bit in 0..BLOCK * 8,
    ) {
        let mut b = zeroed();
        let e = MapEntry { vbn: ptr.vbn, birth: ptr.birth, crc: 0xdead_beef };
        tree::set_entry(&mut b, i, e);
        let header = Header {
            kind: PageKind::Leaf, level: 0, entry_format: 0, pool: 1, owner, index: 3,
            birth: ptr.birth, max_birth: ptr.max_birth, vbn: ptr.vbn, count: 0,
        };
        let ptr = NodePtr { crc: seal(&mut b, &header), ..ptr };
        prop_assert_eq!(ptr.verify(&b, 1, PageKind::Leaf), Ok(header));
        prop_assert!(ptr.verify(&b, 2, PageKind::Leaf).is_err());
        prop_assert!(ptr.verify(&b, 1, PageKind::Inner).is_err());
        let stale = NodePtr { birth: ptr.birth - 1, ..ptr };
        prop_assert!(stale.verify(&b, 1, PageKind::Leaf).is_err());
        prop_assert_eq!(tree::entry(&b, i), e);
        prop_assert_eq!(tree::check_leaf(&b, ptr.max_birth), Ok(()));
        prop_assert!(tree::check_leaf(&b, ptr.birth - 1).is_err());
        b[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(ptr.verify(&b, 1, PageKind::Leaf).is_err());
    }

    #[test]
    fn nothing_panics_on_noise(bytes in proptest::collection::vec(any::<u8>(), 0..BLOCK)) {
        crate::fuzzing::fuzz_super(&bytes);
        crate::fuzzing::fuzz_log(&bytes);
        crate::fuzzing::fuzz_pages(&bytes);
    }
}

#[test]
fn identity_is_part_of_a_checksum() {
    let data = [7; BLOCK];
    let id = Identity { pool: 1, family: 2, lba: 3, birth: 4, vbn: 5 };
    let data_crc = |id: &Identity, data: &[u8]| DataSum::Crc32k.masked(id, data);
    let crc = data_crc(&id, &data);
    let others = [
        Identity { pool: 9, ..id },
        Identity { family: 9, ..id },
        Identity { lba: 9, ..id },
        Identity { birth: 9, ..id },
        Identity { vbn: 9, ..id },
    ];
    assert!(others.iter().all(|o| data_crc(o, &data) != crc));
    let mut other = data;
    other[4095] ^= 1;
    assert_ne!(data_crc(&id, &other), crc);
}

#[test]
fn blocks_that_end_with_their_own_checksum_are_told_apart() {
    let id = Identity { pool: 1, family: 2, lba: 3, birth: 4, vbn: 5 };
    let sums = |sum: DataSum| {
        [1, 2].map(|n| {
            let mut data = [n; BLOCK];
            let own = weir_codec::crc32c(&data[..BLOCK - 4]);
            data[BLOCK - 4..].copy_from_slice(&own.to_le_bytes());
            sum.masked(&id, &data)
        })
    };
    let [a, b] = sums(DataSum::of(DATA_CRC32K));
    assert_ne!(a, b);
    let [a, b] = sums(DataSum::of(0));
    assert_eq!(a, b, "why pools that were made with CRC32C are not made any more");
}

#[test]
fn sizes_are_as_documented() {
    assert_eq!((LEAF, page::FANOUT, log::SLOTS), (336, 126, 126));
    assert_eq!(tree::span(1), 336 * 126);
    assert_eq!((tree::height_for(1), tree::height_for(336), tree::height_for(337)), (0, 0, 1));
    assert!(tree::span(tree::MAX_HEIGHT) >= MAX_LBA);
    assert_eq!(slab::bitmap_pages(18), 9);
    for shift in 6..=20 {
        let regions = (1u64 << shift) / slab::region_blocks(shift);
        let bytes = slab::bitmap_pages(shift) * 8 + regions * 4;
        assert!(bytes <= page::PAYLOAD as u64, "{shift}: {bytes}");
    }
    assert_eq!(blob::levels(0), Vec::<u64>::new());
    assert_eq!(blob::levels(4033), [2, 1]);
    assert!(log::write_slots(log::MAX_RUN) <= log::SLOTS);
    assert_eq!(log::blocks_in(log::write_slots(100)), 105);
}

#[test]
fn unknown_features_are_refused() {
    let layout = Layout::plan(10_000, 8, 64, 2, 16).unwrap();
    for bit in 0..64 {
        let incompat = 1u64 << bit;
        let l = Label { pool: 5, device: 6, layout, incompat, compat: 0, copy: 0 };
        match Label::decode(&l.encode()) {
            Ok(found) => assert!(incompat & INCOMPAT != 0 && found == l, "bit {bit}"),
            Err(e) => assert_eq!((incompat & INCOMPAT, e), (0, FormatError::Feature(incompat))),
        }
    }
    assert_eq!(INCOMPAT, 0b1111, "a new feature is documented in docs/format.md");
}
