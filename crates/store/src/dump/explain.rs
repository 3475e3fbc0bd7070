//! Structures of the format as items.

use super::Item;
use crate::format::Block;
use crate::format::dataset::DatasetRecord;
use crate::format::label::Label;
use crate::format::log::{self, Entry, PageHead};
use crate::format::page::{self, FANOUT, Header, NodePtr, PageKind};
use crate::format::slab::{self, SlabHead, SlabRecord};
use crate::format::superblock::Superblock;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::{blob, dead};

pub(super) fn of_label(l: &Label) -> Item {
    let y = &l.layout;
    Item::new("label")
        .hex("pool", l.pool)
        .hex("device", l.device)
        .with("copy", u64::from(l.copy))
        .with("blocks", y.blocks)
        .with("slab_blocks", 1u64 << y.slab_shift)
        .with("slabs", y.extents)
        .with("log_pages", y.log_pages)
        .with("table_pages", y.table_pages)
        .with("spares", y.spares)
        .with("first_log_block", y.log(0))
        .with("first_table_block", y.table(0, 0))
        .with("first_spare_block", y.spare(0))
        .with("first_slab_block", y.extent(0))
        .hex("incompat", l.incompat)
        .hex("compat", l.compat)
}

pub(super) fn of_pointer(p: &NodePtr) -> String {
    match p.is_none() {
        true => "none".into(),
        false => {
            format!("block {} born {} (at most {}) crc {:016x}", p.vbn, p.birth, p.max_birth, p.crc)
        }
    }
}

pub(super) fn of_superblock(s: &Superblock) -> Item {
    let device = |d: Option<u16>| d.map_or("none".into(), |d| d.to_string());
    let mut item = Item::new("superblock")
        .with("seq", s.seq)
        .with("epoch", s.epoch)
        .with("incarnation", s.incarnation)
        .with("owner_epoch", s.owner_epoch)
        .hex("lineage", s.lineage)
        .hex("parent_lineage", s.parent_lineage)
        .hex("previous", s.previous)
        .with("copies", u64::from(s.copies))
        .with("base_lsn", s.base_lsn)
        .hex("base_chain", s.base_chain)
        .with("log_devices", format!("{}, {}", device(s.log_set[0]), device(s.log_set[1])))
        .with("table_pages", s.table_pages)
        .with("spares", s.spares)
        .with("next_dataset", s.next_dataset)
        .with("datasets", of_pointer(&s.datasets.ptr))
        .with("datasets_bytes", s.datasets.len)
        .with("slab_table_copy", u64::from(s.space.which))
        .with("slab_table_bytes", s.space.len)
        .hex("slab_table_crc", s.space.crc)
        .hex("incompat", s.incompat);
    for (n, t) in s.turns.iter().enumerate() {
        let t = Item::new(format!("turn {n}"))
            .with("end", t.end)
            .with("first", t.first)
            .with("sure", t.sure)
            .hex("chain", t.chain)
            .with("epoch", t.epoch);
        item.parts.push(t);
    }
    for (n, m) in s.members.iter().enumerate() {
        let d = Item::new(format!("device {n}"))
            .hex("device", m.device)
            .with("state", format!("{:?}", m.state).to_lowercase())
            .with("draining", m.draining)
            .with("since", m.since)
            .with("blocks", m.blocks)
            .with("spares_used", m.spares_used)
            .with("node", u64::from(m.domain));
        item.parts.push(d);
    }
    item
}

pub(super) fn of_entry(e: &Entry) -> Item {
    match e {
        Entry::Write { dataset, lba, vbn, birth, crcs } => Item::new("write")
            .with("dataset", *dataset)
            .with("lba", *lba)
            .with("block", *vbn)
            .with("blocks", crcs.len() as u64)
            .with("birth", *birth),
        Entry::Trim { dataset, lba, blocks } => {
            Item::new("trim").with("dataset", *dataset).with("lba", *lba).with("blocks", *blocks)
        }
        Entry::Poison { dataset, lba, birth } => {
            Item::new("poison").with("dataset", *dataset).with("lba", *lba).with("birth", *birth)
        }
        Entry::Snapshot { source, id, clone, epoch, created, name } => Item::new("snapshot")
            .with("source", *source)
            .with("id", *id)
            .with("clone", *clone)
            .with("epoch", *epoch)
            .with("created", *created)
            .with("name", String::from_utf8_lossy(name).into_owned()),
        Entry::Remap { device, from, spare } => Item::new("remap")
            .with("device", u64::from(*device))
            .with("from", *from)
            .with("spare", *spare),
    }
}

pub(super) fn of_log_page(b: &Block, tag: u64) -> Option<(PageHead, Item)> {
    let (head, crc) = log::decode_head(b, tag).ok()?;
    let mut item = Item::new("log page")
        .with("lsn", head.lsn)
        .with("incarnation", head.incarnation)
        .hex("previous", head.previous)
        .hex("crc", crc)
        .with("stable", head.stable)
        .with("base_seq", head.base_seq)
        .with("recovery", head.recovery);
    match log::decode_entries(b) {
        Ok(all) => item.parts = all.iter().map(of_entry).collect(),
        Err(e) => item = item.with("wrong", e.to_string()),
    }
    Some((head, item))
}

pub(super) fn of_map_entry(lba: u64, e: &MapEntry) -> Item {
    let item = Item::new(format!("lba {lba}"));
    match e {
        e if e.is_data() => {
            item.with("block", e.vbn).with("birth", e.birth).hex("crc", u128::from(e.crc))
        }
        e if e.is_poison() => item.with("state", "its data is lost").with("birth", e.birth),
        e if *e == MapEntry::HOLE => item.with("state", "hole"),
        _ => item.with("state", "zeros"),
    }
}

/// A metadata page by itself; `None`: it is none.
pub(super) fn of_page(b: &Block, shift: u8) -> Option<Item> {
    let h = Header::get(b).ok()?;
    let kind = match h.kind {
        PageKind::Leaf => "map leaf",
        PageKind::Inner => "inner node of a map",
        PageKind::Blob => "part of a table",
        PageKind::BlobIndex => "index of a table",
        PageKind::Dead => "page of a dead list",
        PageKind::SlabMeta => "head of a slab's metadata",
        PageKind::Bitmap => "bitmap of a slab",
    };
    let mut item = Item::new(kind)
        .with("whole", page::open(b).is_ok())
        .hex("pool_tag", h.pool)
        .with("owner", h.owner)
        .with("level", u64::from(h.level))
        .with("index", h.index)
        .with("birth", h.birth)
        .with("max_birth", h.max_birth)
        .with("block", h.vbn)
        .hex("crc", page::claimed_crc(b));
    match h.kind {
        PageKind::Leaf => {
            let used = (0..LEAF).map(|i| (i, tree::entry(b, i)));
            let used = used.filter(|(_, e)| *e != MapEntry::HOLE);
            let first = h.index.saturating_mul(LEAF as u64);
            item.parts = used.map(|(i, e)| of_map_entry(first + i as u64, &e)).collect();
        }
        PageKind::Inner | PageKind::BlobIndex => {
            for i in 0..FANOUT {
                match tree::pointer(b, i) {
                    Ok(p) if p.is_none() => {}
                    Ok(p) => {
                        item.parts.push(Item::new(format!("child {i}")).with("to", of_pointer(&p)))
                    }
                    Err(e) => item
                        .parts
                        .push(Item::new(format!("child {i}")).with("wrong", e.to_string())),
                }
            }
        }
        PageKind::Dead => match dead::decode(b) {
            Ok((older, list)) => {
                item = item.with("older", of_pointer(&older)).with("blocks", list.len() as u64);
                let one = |(vbn, birth): &(u64, u32)| {
                    Item::new(format!("block {vbn}")).with("birth", *birth)
                };
                item.parts = list.iter().map(one).collect();
            }
            Err(e) => item = item.with("wrong", e.to_string()),
        },
        PageKind::SlabMeta => match SlabHead::decode(b, shift) {
            Ok(head) => {
                let newest = head.regions.iter().max().copied().unwrap_or(0);
                item = item
                    .with("bitmap_pages", head.bitmaps.len() as u64)
                    .with("regions", head.regions.len() as u64)
                    .with("newest_region", newest);
            }
            Err(e) => item = item.with("wrong", e.to_string()),
        },
        PageKind::Bitmap => {
            let used: u64 =
                (0..slab::BITS / 64).map(|i| u64::from(slab::bits(b, i).count_ones())).sum();
            item = item.with("bits_set", used);
        }
        PageKind::Blob => {
            let table = match h.owner {
                blob::DATASETS => "datasets",
                blob::SPACE => "slabs",
                _ => "unknown",
            };
            item = item.with("table", table);
        }
    }
    Some(item)
}

pub(super) fn of_slab(n: usize, s: &SlabRecord, shift: u8) -> Item {
    let mut item = Item::new(format!("slab {n}"))
        .with("first_block", (n as u64) << shift)
        .with("free", s.free)
        .with("metadata_copy", s.which.map_or("never used".to_string(), |w| w.to_string()))
        .with("birth", s.birth);
    for p in s.copies.iter().flatten() {
        let place = Item::new("copy")
            .with("device", u64::from(p.device))
            .with("extent", p.extent)
            .with("filling", p.filling);
        item.parts.push(place);
    }
    item
}

pub(super) fn of_dataset(r: &DatasetRecord) -> Item {
    Item::new(format!("dataset {}", r.id))
        .with("name", String::from_utf8_lossy(&r.name).into_owned())
        .with("kind", format!("{:?}", r.kind).to_lowercase())
        .with("deleting", r.deleting)
        .with("family", r.family)
        .with("parent", r.parent)
        .with("epoch", r.epoch)
        .with("floor", r.floor)
        .with("bytes", r.len)
        .with("block_size", r.block_size)
        .with("map", of_pointer(&r.root.ptr))
        .with("height", u64::from(r.root.height))
        .with("mapped", r.mapped)
        .with("dead_list", of_pointer(&r.dead))
        .with("dead", r.dead_count)
        .with("created", r.created)
}
