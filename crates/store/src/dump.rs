//! Explains any block of a pool's devices, for people and for tools.

mod explain;

use crate::StoreError;
use crate::engine::StoreResult;
use crate::engine::{A_WHILE, label_of, parse_space, read_block, space_table, superblocks};
use crate::format::dataset::{DatasetRecord, Kind, RECORD};
use crate::format::label::{Label, SUPER_SLOTS};
use crate::format::page::{FANOUT, HEADER, NodePtr, PageKind};
use crate::format::slab::{self, SlabRecord};
use crate::format::superblock::Superblock;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::turn::Standing;
use crate::format::{BLOCK, Block, FormatError, MAX_LBA, blob};
use explain::{
    of_dataset, of_label, of_log_page, of_map_entry, of_page, of_pointer, of_slab, of_superblock,
};
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
            for s in superblocks(&disk, &label, A_WHILE).await.unwrap_or_default().all {
                if newest.as_ref().is_none_or(|n| s.rank() > n.rank()) {
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
            let bytes = space_table(&found, s, A_WHILE).await;
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
                let item = match read_block(&m.disk, at, A_WHILE).await {
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
        let found = superblocks(&m.disk, &m.label, A_WHILE).await.unwrap_or_default();
        all.parts = found.all.iter().map(of_superblock).collect();
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
            if let Ok(b) = read_block(&m.disk, m.label.layout.log(i), A_WHILE).await
                && let Some((head, item)) = of_log_page(&b, s.tag())
                && (old || s.standing(&head) == Standing::Counts)
            {
                pages.push((head.lsn, item));
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
            if let Ok(b) = read_block(&m.disk, at, A_WHILE).await
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
        let wrong = |e: FormatError| StoreError::Pool(format!("the table of datasets: {e}"));
        for level in (0..=root.height).rev() {
            let mut below = Vec::new();
            blob::check_level(root.len, level, here.len()).map_err(wrong)?;
            for (index, ptr) in (0..).zip(&here) {
                let kind = if level == 0 { PageKind::Blob } else { PageKind::BlobIndex };
                let b = self.node(ptr, kind).await?;
                blob::check_page(&b, blob::DATASETS, level, index).map_err(wrong)?;
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
        all.map_err(wrong)
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
        // What is left of a deleted one leads to what others have.
        let is_its = |birth: u32| r.kind != Kind::Garbage || birth > r.floor;
        let others = || Item::new("others'").with("since", "it was deleted, or reverted");
        let (mut ptr, mut level) = (r.root.ptr, r.root.height);
        if lba >= MAX_LBA || lba >= tree::span(level) || ptr.is_none() {
            all.parts.push(of_map_entry(lba, &MapEntry::HOLE));
            return Ok(all);
        }
        loop {
            let kind = if level == 0 { PageKind::Leaf } else { PageKind::Inner };
            if !is_its(ptr.birth) {
                all.parts.push(others());
                return Ok(all);
            }
            all.parts.push(Item::new(format!("level {level}")).with("node", of_pointer(&ptr)));
            let b = self.node(&ptr, kind).await?;
            if level == 0 {
                let e = tree::entry(&b, (lba % LEAF as u64) as usize);
                if (e.is_data() || e.is_poison()) && !is_its(e.birth) {
                    all.parts.push(others());
                    return Ok(all);
                }
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
        let b = read_block(&m.disk, n, A_WHILE).await?;
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
