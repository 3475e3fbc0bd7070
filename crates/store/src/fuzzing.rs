//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.
//!
//! Each returns whether the bytes got past the first checks. Checksums are put right first, since no fuzzer
//! guesses them: what is tested is everything behind them.

// Here a panic is how a finding is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

use crate::format::page::{self, Header, NodePtr, PageKind};
use crate::format::{BLOCK, Block, dataset, dead, label, log, slab, superblock, tree, zeroed};

fn block(data: &[u8]) -> Box<Block> {
    let mut b = zeroed();
    let n = data.len().min(BLOCK);
    b[..n].copy_from_slice(&data[..n]);
    b
}

fn reseal_tail(b: &mut Block) {
    let crc = weir_codec::crc64(&b[..BLOCK - 8]);
    b[BLOCK - 8..].copy_from_slice(&crc.to_le_bytes());
}

/// Labels and superblocks.
pub fn fuzz_super(data: &[u8]) -> bool {
    let mut b = block(data);
    let mut reached = label::Label::decode(&b).is_ok();
    reseal_tail(&mut b);
    if let Ok(l) = label::Label::decode(&b) {
        reached = true;
        let again = label::Label::decode(&l.encode());
        assert_eq!(again, Ok(l), "a label survives its own encoding");
        let y = l.layout;
        assert!(y.extent(y.extents - 1) + (1 << y.slab_shift) <= y.superblock(1, 0));
    }
    let word = |at: usize| {
        let mut w = [0; 16];
        w.copy_from_slice(&b[at..at + 16]);
        u128::from_le_bytes(w)
    };
    let (pool, device, slot) = (word(32), word(128) as u64, word(64) as u64 % label::SUPER_SLOTS);
    if let Ok(s) = superblock::Superblock::decode(&b, pool, device, b[12], slot) {
        reached = true;
        let e = s.encode(device, b[12]);
        let again = superblock::Superblock::decode(&e, pool, device, b[12], slot);
        assert_eq!(again.as_ref(), Ok(&s), "a superblock survives its own encoding");
        assert!(superblock::Superblock::decode(&e, pool, device ^ 1, b[12], slot).is_err());
        assert!(superblock::Superblock::decode(&e, pool ^ 1, device, b[12], slot).is_err());
        assert!(superblock::Superblock::decode(&e, pool, device, b[12], slot ^ 1).is_err());
    }
    reached
}

/// Log pages and their entries.
pub fn fuzz_log(data: &[u8]) -> bool {
    let mut b = block(data);
    b[..4].copy_from_slice(b"WRlg");
    b[4..6].copy_from_slice(&1u16.to_le_bytes());
    let crc = weir_codec::crc64(&b[..56]).rotate_left(1) ^ weir_codec::crc64(&b[64..]);
    b[56..64].copy_from_slice(&crc.to_le_bytes());
    let mut tag = [0; 8];
    tag.copy_from_slice(&b[8..16]);
    let Ok((head, crc)) = log::decode_head(&b, u64::from_le_bytes(tag)) else { return false };
    assert!(log::decode_head(&b, head.pool ^ 1).is_err());
    let Ok(entries) = log::decode_entries(&b) else { return true };
    let mut builder = log::PageBuilder::default();
    for e in &entries {
        assert!(builder.push(e), "what came out of a page fits a page");
    }
    let (again, _) = builder.seal(&head);
    let (head2, _) = log::decode_head(&again, head.pool).expect("just sealed");
    assert_eq!((head2, log::decode_entries(&again)), (head, Ok(entries)));
    let _ = crc;
    true
}

/// Map nodes, dead lists, slab metadata and the records of tables.
pub fn fuzz_pages(data: &[u8]) -> bool {
    let mut b = block(data);
    b[..4].copy_from_slice(b"WRpg");
    let mut reached = false;
    if let Ok(h) = Header::get(&b) {
        let crc = page::seal(&mut b, &h);
        assert_eq!(page::open(&b), Ok(h));
        let ptr = NodePtr { vbn: h.vbn, birth: h.birth, max_birth: h.max_birth, crc };
        assert_eq!(ptr.verify(&b, h.pool, h.kind), Ok(h));
        let stale = NodePtr { birth: h.birth ^ 1, ..ptr };
        assert!(stale.verify(&b, h.pool, h.kind).is_err());
        reached = true;
        match h.kind {
            PageKind::Leaf => {
                if tree::check_leaf(&b, h.max_birth).is_ok() {
                    for i in 0..tree::LEAF {
                        let e = tree::entry(&b, i);
                        tree::set_entry(&mut b, i, e);
                        assert!(e.birth <= h.max_birth && tree::entry(&b, i) == e);
                    }
                }
            }
            PageKind::Inner | PageKind::BlobIndex => {
                if tree::check_inner(&b, h.max_birth).is_ok() {
                    for i in 0..page::FANOUT {
                        assert!(tree::pointer(&b, i).is_ok());
                    }
                }
            }
            PageKind::Dead => {
                if let Ok((older, list)) = dead::decode(&b) {
                    let (again, _) = dead::encode(&h, older, &list);
                    assert_eq!(dead::decode(&again), Ok((older, list)));
                }
            }
            PageKind::SlabMeta => {
                for shift in [6, 8, 12, 18, 20] {
                    if let Ok(s) = slab::SlabHead::decode(&b, shift) {
                        let (again, _) = s.encode(&h);
                        assert_eq!(slab::SlabHead::decode(&again, shift), Ok(s));
                    }
                }
            }
            PageKind::Blob | PageKind::Bitmap => {}
        }
    }
    for at in [0, 64] {
        if let Ok(d) = dataset::DatasetRecord::get(&b[at..at + dataset::RECORD]) {
            let mut p = [0; dataset::RECORD];
            d.put(&mut p);
            assert_eq!(dataset::DatasetRecord::get(&p), Ok(d));
            reached = true;
        }
        if let Ok(s) = slab::SlabRecord::get(&b[at..at + slab::RECORD]) {
            let mut p = [0; slab::RECORD];
            s.put(&mut p);
            assert_eq!(slab::SlabRecord::get(&p), Ok(s));
        }
    }
    reached
}
