//! Explains any block of a pool's devices, for people and for tools.

use crate::StoreError;
use crate::engine::StoreResult;
use crate::engine::{label_of, parse_space, read_block, space_table, superblocks};
use crate::format::dataset::{DatasetRecord, RECORD};
use crate::format::label::{Label, SUPER_SLOTS};
use crate::format::log::{self, Entry};
use crate::format::page::{self, FANOUT, HEADER, Header, NodePtr, PageKind};
use crate::format::slab::{self, SlabHead, SlabRecord};
use crate::format::superblock::Superblock;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::{BLOCK, Block, MAX_LBA, blob, dead};
use std::rc::Rc;
use weir_disk::Disk;

/// A value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// An identity or a checksum: shown in hexadecimal.
    Hex(u128),
    /// True or false.
    Flag(bool),
    /// Anything else.
    Text(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(n) => write!(f, "{n}"),
            Value::Hex(n) => write!(f, "{n:016x}"),
            Value::Flag(b) => write!(f, "{b}"),
            Value::Text(t) => f.write_str(t),
        }
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}
impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Number(n.into())
    }
}
impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Flag(b)
    }
}
impl From<String> for Value {
    fn from(t: String) -> Value {
        Value::Text(t)
    }
}
impl From<&str> for Value {
    fn from(t: &str) -> Value {
        Value::Text(t.to_owned())
    }
}

/// Something on a device, explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub what: String,
    /// Its fields.
    pub fields: Vec<(&'static str, Value)>,
    /// What it consists of.
    pub parts: Vec<Item>,
}

impl Item {
    fn new(what: impl Into<String>) -> Item {
        Item { what: what.into(), fields: Vec::new(), parts: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Item {
        self.fields.push((name, value.into()));
        self
    }

    fn hex(self, name: &'static str, value: impl Into<u128>) -> Item {
        self.with_value(name, Value::Hex(value.into()))
    }

    fn with_value(mut self, name: &'static str, value: Value) -> Item {
        self.fields.push((name, value));
        self
    }
}

fn of_label(l: &Label) -> Item {
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

fn of_pointer(p: &NodePtr) -> String {
    match p.is_none() {
        true => "none".into(),
        false => {
            format!("block {} born {} (at most {}) crc {:016x}", p.vbn, p.birth, p.max_birth, p.crc)
        }
    }
}

fn of_superblock(s: &Superblock) -> Item {
    let device = |d: Option<u16>| d.map_or("none".into(), |d| d.to_string());
    let mut item = Item::new("superblock")
        .with("seq", s.seq)
        .with("epoch", s.epoch)
        .with("incarnation", s.incarnation)
        .hex("lineage", s.lineage)
        .hex("parent_lineage", s.parent_lineage)
        .hex("previous", s.previous)
        .with("copies", u64::from(s.copies))
        .with("base_lsn", s.base_lsn)
        .hex("base_chain", s.base_chain)
        .with("log_devices", format!("{}, {}", device(s.log_set[0]), device(s.log_set[1])))
        .with("next_dataset", s.next_dataset)
        .with("datasets", of_pointer(&s.datasets.ptr))
        .with("datasets_bytes", s.datasets.len)
        .with("slab_table_copy", u64::from(s.space.which))
        .with("slab_table_bytes", s.space.len)
        .hex("slab_table_crc", s.space.crc)
        .hex("incompat", s.incompat);
    for (n, m) in s.members.iter().enumerate() {
        let d = Item::new(format!("device {n}"))
            .hex("device", m.device)
            .with("state", format!("{:?}", m.state).to_lowercase())
            .with("draining", m.draining)
            .with("since", m.since)
            .with("blocks", m.blocks)
            .with("spares_used", m.spares_used);
        item.parts.push(d);
    }
    item
}

fn of_entry(e: &Entry) -> Item {
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

fn of_log_page(b: &Block, tag: u64) -> Option<(u64, Item)> {
    let (head, crc) = log::decode_head(b, tag).ok()?;
    let mut item = Item::new("log page")
        .with("lsn", head.lsn)
        .with("incarnation", head.incarnation)
        .hex("previous", head.previous)
        .hex("crc", crc)
        .with("stable", head.stable)
        .with("base_seq", head.base_seq);
    match log::decode_entries(b) {
        Ok(all) => item.parts = all.iter().map(of_entry).collect(),
        Err(e) => item = item.with("wrong", e.to_string()),
    }
    Some((head.lsn, item))
}

fn of_map_entry(lba: u64, e: &MapEntry) -> Item {
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
fn of_page(b: &Block, shift: u8) -> Option<Item> {
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

fn of_slab(n: usize, s: &SlabRecord, shift: u8) -> Item {
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

fn of_dataset(r: &DatasetRecord) -> Item {
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

struct Member {
    disk: Rc<dyn Disk>,
    label: Label,
    /// In the newest superblock.
    number: Option<u16>,
}

/// Devices of a pool, to be looked into. Nothing is written.
pub struct Dump {
    members: Vec<Member>,
    newest: Option<Superblock>,
    slabs: Vec<SlabRecord>,
}

fn pool_error<T>(text: impl Into<String>) -> StoreResult<T> {
    Err(StoreError::Pool(text.into()))
}

impl Dump {
    /// Looks at the labels, the newest superblock, and the table of slabs as far as that is readable. Not all
    /// devices of the pool are needed.
    ///
    /// # Errors
    /// A disk has no label, or the disks belong to several pools.
    pub async fn open(disks: Vec<Rc<dyn Disk>>) -> StoreResult<Dump> {
        let mut members = Vec::new();
        let mut newest: Option<Superblock> = None;
        for disk in disks {
            let label = label_of(&disk).await?;
            for s in superblocks(&disk, &label).await {
                if newest.as_ref().is_none_or(|n| s.seq > n.seq) {
                    newest = Some(s);
                }
            }
            members.push(Member { disk, label, number: None });
        }
        let Some(first) = members.first() else { return pool_error("no devices were given") };
        let pool = first.label.pool;
        if let Some(m) = members.iter().find(|m| m.label.pool != pool) {
            return pool_error(format!(
                "`{}` belongs to another pool, {:032x}",
                m.disk.name(),
                m.label.pool
            ));
        }
        let mut slabs = Vec::new();
        if let Some(s) = &newest {
            for m in &mut members {
                let number = s.members.iter().position(|x| x.device == m.label.device);
                m.number = number.map(|n| n as u16);
            }
            let found: Vec<_> = members.iter().map(|m| (m.disk.clone(), m.label.layout)).collect();
            let bytes = space_table(&found, s).await;
            slabs = bytes.and_then(|b| parse_space(&b)).map_or(slabs, |(s, _)| s);
        }
        Ok(Dump { members, newest, slabs })
    }

    fn newest(&self) -> StoreResult<&Superblock> {
        self.newest.as_ref().map_or_else(|| pool_error("no device has a readable superblock"), Ok)
    }

    fn first(&self) -> StoreResult<&Member> {
        self.members.first().map_or_else(|| pool_error("no devices were given"), Ok)
    }

    /// The labels: every copy of every device.
    ///
    /// # Errors
    /// None now.
    pub async fn labels(&self) -> StoreResult<Item> {
        let mut all = Item::new("labels");
        for m in &self.members {
            for copy in 0..4 {
                let at = m.label.layout.label(copy);
                let item = match read_block(&m.disk, at).await {
                    Ok(b) => match Label::decode(&b) {
                        Ok(l) => of_label(&l),
                        Err(e) => Item::new("damaged label").with("wrong", e.to_string()),
                    },
                    Err(e) => Item::new("unreadable label").with("wrong", e.to_string()),
                };
                all.parts.push(item.with("on", m.disk.name()).with("at", at));
            }
        }
        Ok(all)
    }

    /// The superblocks of the first device, the newest first.
    ///
    /// # Errors
    /// It has none that is readable.
    pub async fn superblocks(&self) -> StoreResult<Item> {
        let m = self.first()?;
        self.newest()?;
        let mut all = Item::new("superblocks").with("on", m.disk.name());
        all.parts = superblocks(&m.disk, &m.label).await.iter().map(of_superblock).collect();
        Ok(all)
    }

    /// The pages of the log on the first device that are readable, in order; without `old`, those that count.
    ///
    /// # Errors
    /// There is no readable superblock.
    pub async fn log(&self, old: bool) -> StoreResult<Item> {
        let (m, s) = (self.first()?, self.newest()?);
        let mut pages = Vec::new();
        for i in 0..m.label.layout.log_pages {
            if let Ok(b) = read_block(&m.disk, m.label.layout.log(i)).await
                && let Some((lsn, item)) = of_log_page(&b, s.tag())
                && (old || lsn >= s.base_lsn)
            {
                pages.push((lsn, item));
            }
        }
        pages.sort_by_key(|(lsn, _)| *lsn);
        let mut all = Item::new("log")
            .with("on", m.disk.name())
            .with("base_lsn", s.base_lsn)
            .with("pages", pages.len() as u64);
        all.parts = pages.into_iter().map(|(_, i)| i).collect();
        Ok(all)
    }

    /// The table of slabs.
    ///
    /// # Errors
    /// No device that was given has it whole.
    pub fn slabs(&self) -> StoreResult<Item> {
        let s = self.newest()?;
        if self.slabs.is_empty() {
            return pool_error("no device that was given has a whole table of slabs");
        }
        let mut all = Item::new("slabs").with("slabs", self.slabs.len() as u64);
        let each = self.slabs.iter().enumerate();
        all.parts = each.map(|(n, r)| of_slab(n, r, s.slab_shift)).collect();
        Ok(all)
    }

    /// A verified metadata block, from whichever device that was given has it.
    async fn node(&self, ptr: &NodePtr, kind: PageKind) -> StoreResult<Box<Block>> {
        let s = self.newest()?;
        let slab = self.slabs.get((ptr.vbn >> s.slab_shift) as usize);
        let offset = ptr.vbn & ((1 << s.slab_shift) - 1);
        for p in slab.into_iter().flat_map(|s| s.copies.iter().flatten()) {
            let Some(m) = self.members.iter().find(|m| m.number == Some(p.device)) else {
                continue;
            };
            if p.extent >= m.label.layout.extents {
                continue;
            }
            let at = m.label.layout.extent(p.extent) + offset;
            if let Ok(b) = read_block(&m.disk, at).await
                && ptr.verify(&b, s.tag(), kind).is_ok()
            {
                return Ok(b);
            }
        }
        pool_error(format!("no device that was given has a good copy of block {}", ptr.vbn))
    }

    async fn records(&self) -> StoreResult<Vec<DatasetRecord>> {
        let root = self.newest()?.datasets;
        let (mut bytes, mut here) = (Vec::new(), vec![root.ptr]);
        if root.len == 0 {
            return Ok(Vec::new());
        }
        for level in (0..=root.height).rev() {
            let mut below = Vec::new();
            for ptr in &here {
                let kind = if level == 0 { PageKind::Blob } else { PageKind::BlobIndex };
                let b = self.node(ptr, kind).await?;
                if level == 0 {
                    bytes.extend_from_slice(&b[HEADER..]);
                } else {
                    let all = (0..FANOUT).filter_map(|i| tree::pointer(&b, i).ok());
                    below.extend(all.filter(|p| !p.is_none()));
                }
            }
            here = below;
        }
        bytes.truncate(root.len as usize);
        let all: Result<Vec<_>, _> = bytes.chunks_exact(RECORD).map(DatasetRecord::get).collect();
        all.or_else(|e| pool_error(format!("the table of datasets: {e}")))
    }

    /// Volumes and snapshots as of the newest superblock.
    ///
    /// # Errors
    /// A part of the table is on no device that was given.
    pub async fn datasets(&self) -> StoreResult<Item> {
        let mut all = Item::new("datasets").with("epoch", self.newest()?.epoch);
        all.parts = self.records().await?.iter().map(of_dataset).collect();
        Ok(all)
    }

    /// The way through the map of a dataset to a logical block, as of the newest superblock.
    ///
    /// # Errors
    /// There is no such dataset, or a part of the way is on no device that was given.
    pub async fn map(&self, dataset: u32, lba: u64) -> StoreResult<Item> {
        let record = self.records().await?.into_iter().find(|r| r.id == dataset);
        let Some(r) = record else {
            return Err(StoreError::Request(format!("the pool has no dataset {dataset}")));
        };
        let mut all = Item::new(format!("map of dataset {dataset}"))
            .with("lba", lba)
            .with("byte", lba.saturating_mul(BLOCK as u64));
        let (mut ptr, mut level) = (r.root.ptr, r.root.height);
        if lba >= MAX_LBA || lba >= tree::span(level) || ptr.is_none() {
            all.parts.push(of_map_entry(lba, &MapEntry::HOLE));
            return Ok(all);
        }
        loop {
            let kind = if level == 0 { PageKind::Leaf } else { PageKind::Inner };
            all.parts.push(Item::new(format!("level {level}")).with("node", of_pointer(&ptr)));
            let b = self.node(&ptr, kind).await?;
            if level == 0 {
                let e = tree::entry(&b, (lba % LEAF as u64) as usize);
                let mut entry = of_map_entry(lba, &e);
                if e.is_data() {
                    entry.parts = self.places(e.vbn);
                }
                all.parts.push(entry);
                return Ok(all);
            }
            level -= 1;
            let i = (lba / tree::span(level)) % FANOUT as u64;
            ptr = tree::pointer(&b, i as usize).or_else(|e| pool_error(e.to_string()))?;
            if ptr.is_none() {
                all.parts.push(of_map_entry(lba, &MapEntry::HOLE));
                return Ok(all);
            }
        }
    }

    /// Where the copies of a pool's block are.
    fn places(&self, vbn: u64) -> Vec<Item> {
        let Ok(s) = self.newest() else { return Vec::new() };
        let slab = self.slabs.get((vbn >> s.slab_shift) as usize);
        let offset = vbn & ((1 << s.slab_shift) - 1);
        let copies = slab.into_iter().flat_map(|s| s.copies.iter().flatten());
        copies
            .map(|p| {
                let item = Item::new("copy").with("device", u64::from(p.device));
                match self.members.iter().find(|m| m.number == Some(p.device)) {
                    Some(m) if p.extent < m.label.layout.extents => item
                        .with("at", m.label.layout.extent(p.extent) + offset)
                        .with("on", m.disk.name()),
                    _ => item.with("extent", p.extent).with("offset", offset),
                }
            })
            .collect()
    }

    /// Any block of the first device, by its number there: what place it is, and what is in it.
    ///
    /// # Errors
    /// The device has no such block, or it cannot be read.
    pub async fn block(&self, n: u64) -> StoreResult<Item> {
        let m = self.first()?;
        let y = &m.label.layout;
        if n >= y.blocks {
            return Err(StoreError::Request(format!(
                "`{}` has {} blocks, there is no block {n}",
                m.disk.name(),
                y.blocks
            )));
        }
        let b = read_block(&m.disk, n).await?;
        let tag = self.newest.as_ref().map_or(0, Superblock::tag);
        let mut item = Item::new(format!("block {n}")).with("on", m.disk.name());
        let area = (0..2u8)
            .find(|a| (y.superblock((*a).into(), 0)..).take(SUPER_SLOTS as usize).any(|x| x == n));
        if (0..4).any(|c| y.label(c) == n) {
            item = item.with("place", "label");
            item.parts.extend(Label::decode(&b).ok().map(|l| of_label(&l)));
        } else if let Some(area) = area {
            let slot = n - y.superblock(area.into(), 0);
            item = item.with("place", format!("superblock, area {area}, slot {slot}"));
            let s = Superblock::decode(&b, m.label.pool, m.label.device, area, slot);
            item.parts.extend(s.ok().map(|s| of_superblock(&s)));
        } else if n < y.table(0, 0) {
            item = item.with("place", format!("log, page {} of the ring", n - y.log(0)));
            item.parts.extend(of_log_page(&b, tag).map(|(_, i)| i));
        } else if n < y.spare(0) {
            let k = n - y.table(0, 0);
            let (copy, at) = (k / y.table_pages, k % y.table_pages);
            item = item.with("place", format!("table of slabs, copy {copy}, page {at}"));
            item.parts.extend(of_page(&b, y.slab_shift));
        } else if n < y.extent(0) {
            item = item.with("place", format!("spare block {}", n - y.spare(0)));
            item.parts.extend(of_page(&b, y.slab_shift));
        } else {
            let (extent, offset) =
                ((n - y.extent(0)) >> y.slab_shift, (n - y.extent(0)) & ((1 << y.slab_shift) - 1));
            if extent >= u64::from(y.extents) {
                return Ok(item.with("place", "rest of the device, not used"));
            }
            let here =
                |p: &slab::Placement| Some(p.device) == m.number && u64::from(p.extent) == extent;
            let slab = self.slabs.iter().position(|s| s.copies.iter().flatten().any(here));
            item = match slab {
                None => item.with("place", format!("extent {extent}, which holds no slab")),
                Some(s) => {
                    let vbn = ((s as u64) << y.slab_shift) + offset;
                    let what = match offset < slab::reserved(y.slab_shift) {
                        true => "metadata of its own",
                        false => "map, table or data",
                    };
                    item.with("place", format!("slab {s}, {what}"))
                        .with("slab", s as u64)
                        .with("pool_block", vbn)
                }
            };
            match of_page(&b, y.slab_shift) {
                Some(p) => item.parts.push(p),
                None if b.iter().all(|x| *x == 0) => item = item.with("content", "zeros"),
                None => item = item.with("content", "data of a volume, or never written"),
            }
        }
        if item.parts.is_empty() && !item.fields.iter().any(|(n, _)| *n == "content") {
            item = item.with("content", "nothing that is whole and belongs there");
        }
        Ok(item)
    }
}
