//! Making a pool: labels, the slabs' places, the first superblock.

use super::labels::{A_WHILE, label_within, superblocks};
use super::unended::{alone, late_of, quiet};
use super::{StoreError, StoreResult};
use crate::format::label::{LABELS, Label, Layout};
use crate::format::page::{self, Header, PAYLOAD, PageKind, seal};
use crate::format::slab::{self, Placement, SlabRecord};
use crate::format::superblock::{
    BlobRoot, MAX_DOMAIN, MAX_MEMBERS, Member, MemberState, Superblock, TableRoot, tag,
};
use crate::format::{BLOCK, DataSum, OF_CLUSTER, blob, zeroed};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::IoError;
use weir_codec::crc64;
use weir_disk::{Disk, DiskOp, run};
use weir_mem::Slice;

/// How a pool is made.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// Its identity: from a good source of chance.
    pub pool: u128,
    /// Copies of each block: 1 (RAID-0) or 2 (RAID-1, and RAID-10 from four devices on).
    pub copies: u8,
    /// Blocks in a slab, as a power of two: 6 to 20. 18 is 1 GiB.
    pub slab_shift: u8,
    /// Pages of the log on each device.
    pub log_pages: u64,
    /// Blocks on each device that replace ones which cannot be written any more.
    pub spares: u64,
    /// Checksum of the data in its maps.
    pub data_sum: DataSum,
    /// Use devices that hold another pool already, or may hold one.
    pub overwrite: bool,
    /// The node of each device, of a pool that two nodes share; else none.
    pub domains: Vec<u16>,
}

impl PoolSpec {
    /// Slabs, log and spares that suit devices of this many bytes in all.
    pub fn fitting(pool: u128, copies: u8, bytes: u64) -> PoolSpec {
        let slab_shift = match bytes {
            0..=0x3fff_ffff => 10,
            0x4000_0000..=0xf_ffff_ffff => 14,
            _ => 18,
        };
        // 512 MiB of log for a TiB that can be used.
        let usable = bytes / u64::from(copies.max(1));
        let log_pages = (usable / 2048 / BLOCK as u64).clamp(1024, 1 << 18);
        let data_sum = DataSum::default();
        PoolSpec {
            pool,
            copies,
            slab_shift,
            log_pages,
            spares: 256,
            data_sum,
            overwrite: false,
            domains: Vec::new(),
        }
    }
}

impl PoolSpec {
    /// What is wrong with the nodes of so many devices.
    fn wrong_domains(&self, devices: usize) -> Option<String> {
        let d = &self.domains;
        let is_pair = self.copies == 2 && devices == 2 && d.len() == 2 && d[0] != d[1];
        match d.iter().all(|d| (1..=MAX_DOMAIN).contains(d)) {
            _ if d.is_empty() => None,
            false => Some(format!("nodes have numbers from 1 to {MAX_DOMAIN}")),
            true if is_pair => None,
            true => Some(
                "a pool that two nodes share has two copies, and one device of each node".into(),
            ),
        }
    }
}

/// Pages for the table of slabs: enough for four times the slabs, and devices with all their spares in use.
fn table_pages(slabs: u64, devices: u64, spares: u64) -> u64 {
    let remaps = devices.saturating_mul(spares).saturating_mul(slab::REMAP as u64);
    (slabs * slab::RECORD as u64).saturating_add(remaps).saturating_mul(4).div_ceil(PAYLOAD as u64)
        + 2
}

/// Where the slabs of a pool go: on the devices with the most room, so that mirrored pairs form and
/// alternate.
pub(crate) fn place(
    room: &mut [u32],
    copies: usize,
    next: &mut [u32],
) -> Vec<[Option<Placement>; 2]> {
    let mut slabs = Vec::new();
    loop {
        let mut order: Vec<usize> = (0..room.len()).filter(|d| room[*d] > 0).collect();
        order.sort_by_key(|d| (std::cmp::Reverse(room[*d]), *d));
        if order.len() < copies {
            return slabs;
        }
        let mut slab = [None; 2];
        for (c, d) in slab.iter_mut().zip(order.into_iter().take(copies)) {
            *c = Some(Placement { device: d as u16, extent: next[d], filling: false });
            room[d] -= 1;
            next[d] += 1;
        }
        slabs.push(slab);
    }
}

/// Number of the superblock that a pool is made with.
pub const FIRST: u64 = 1;

/// Makes a pool on devices. What was on them is lost. What an earlier try of the same pool has left is made anew.
///
/// # Errors
/// A device is too small, holds another pool (but for [`PoolSpec::overwrite`]) or this one when it has been used, may hold one,
/// or cannot be written.
pub async fn create(disks: &[Rc<dyn Disk>], spec: &PoolSpec) -> StoreResult {
    let request = |m: String| Err(StoreError::Request(m));
    let copies = usize::from(spec.copies);
    if !(1..=2).contains(&copies) || disks.len() < copies || disks.len() > MAX_MEMBERS {
        return request(format!(
            "{} devices do not make a pool of {copies} copies: it takes at least as many devices as \
             copies, one or two copies, and at most {MAX_MEMBERS} devices",
            disks.len()
        ));
    }
    if let Some(why) = spec.wrong_domains(disks.len()) {
        return request(why);
    }
    let slabs_at_most: u64 =
        disks.iter().map(|d| (d.len() / BLOCK as u64) >> spec.slab_shift).sum();
    let mut layouts = Vec::new();
    for d in disks {
        let blocks = d.len() / BLOCK as u64;
        let table = table_pages(slabs_at_most, disks.len() as u64, spec.spares);
        let layout = Layout::plan(blocks, spec.slab_shift, spec.log_pages, table, spec.spares);
        let Some(layout) = layout else {
            return request(format!(
                "`{}` with {} bytes has no room for a log of {} pages and a slab of {} blocks",
                d.name(),
                d.len(),
                spec.log_pages,
                1u64 << spec.slab_shift
            ));
        };
        match label_within(d, A_WHILE).await {
            // What was begun of this very pool, and what somebody gives up.
            Ok(l) if l.pool == spec.pool => {
                let found = superblocks(d, &l, A_WHILE).await?;
                let used = found.newest().is_some_and(|s| s.seq > FIRST);
                if (used || found.in_doubt()) && !has(Bug::MadeTwice) {
                    let why = match used {
                        true => "has been used",
                        false => "may have been used: not all of its superblocks can be read",
                    };
                    return request(format!("`{}` is of this pool already, which {why}", d.name()));
                }
            }
            _ if spec.overwrite => {}
            Ok(l) => return request(format!("`{}` belongs to pool {:032x}", d.name(), l.pool)),
            Err(no) if no.in_doubt => return Err(no.why),
            Err(_) => {}
        }
        // What is made begins nothing that it does not wait for.
        let alone = alone(d, &Rc::default(), A_WHILE).await;
        if !alone || !quiet(&late_of(d), A_WHILE).await {
            return request(format!(
                "`{}` still has writes under way that were given up",
                d.name()
            ));
        }
        layouts.push(layout);
    }
    let mut room: Vec<u32> = layouts.iter().map(|l| l.extents).collect();
    let slabs = place(&mut room, copies, &mut vec![0; disks.len()]);
    let free = ((1u64 << spec.slab_shift) - slab::reserved(spec.slab_shift)) as u32;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(slabs.len() as u64).to_le_bytes());
    for copies in slabs {
        let mut p = [0; slab::RECORD];
        SlabRecord { copies, free, ..SlabRecord::default() }.put(&mut p);
        bytes.extend_from_slice(&p);
    }
    let id = |n: usize| crc64(&[&spec.pool.to_le_bytes()[..], &[n as u8, 0x5a]].concat());
    let members = layouts.iter().enumerate().map(|(n, l)| Member {
        device: id(n),
        state: MemberState::InSync,
        draining: false,
        leaving: false,
        written_off: false,
        since: 0,
        blocks: l.blocks,
        spares_used: 0,
        domain: spec.domains.get(n).copied().unwrap_or(0),
    });
    let first = Superblock {
        pool: spec.pool,
        lineage: id(255),
        parent_lineage: 0,
        seq: FIRST,
        incarnation: 1,
        owner_epoch: 0,
        epoch: 1,
        previous: 0,
        datasets: BlobRoot::default(),
        space: TableRoot { which: 0, len: bytes.len() as u64, crc: crc64(&bytes) },
        base_lsn: 1,
        base_chain: 0,
        turns: Vec::new(),
        log_set: [Some(0), (copies > 1).then_some(1)],
        copies: spec.copies,
        slab_shift: spec.slab_shift,
        log_pages: spec.log_pages,
        table_pages: layouts[0].table_pages,
        spares: spec.spares,
        next_dataset: 1,
        members: members.collect(),
        incompat: spec.data_sum.features() | if spec.domains.is_empty() { 0 } else { OF_CLUSTER },
        compat: 0,
    };
    for (n, (d, layout)) in disks.iter().zip(&layouts).enumerate() {
        let put = async |block: u64, b: &crate::format::Block| -> Result<(), IoError> {
            let op =
                DiskOp::Write { offset: block * BLOCK as u64, buf: Slice::copy_of(b), fua: false };
            run(&**d, op).await
        };
        for (i, part) in bytes.chunks(PAYLOAD).enumerate() {
            let mut b = zeroed();
            b[page::HEADER..page::HEADER + part.len()].copy_from_slice(part);
            let header = Header {
                kind: PageKind::Blob,
                level: 0,
                entry_format: 0,
                pool: tag(spec.pool),
                owner: blob::SPACE,
                index: i as u64,
                birth: 1,
                max_birth: 1,
                vbn: 0,
                count: 0,
            };
            seal(&mut b, &header);
            put(layout.table(0, i as u64), &b).await?;
        }
        for area in 0..2 {
            let at = layout.superblock(u64::from(area), first.seq);
            put(at, &first.encode(id(n), area)).await?;
        }
        run(&**d, DiskOp::Flush).await?;
    }
    // Labels last: what has no label is no part of a pool.
    for (n, (d, layout)) in disks.iter().zip(&layouts).enumerate() {
        for copy in 0..LABELS {
            let label = Label {
                pool: spec.pool,
                device: id(n),
                layout: *layout,
                incompat: 0,
                compat: 0,
                copy,
            };
            let op = DiskOp::Write {
                offset: layout.label(u64::from(copy)) * BLOCK as u64,
                buf: Slice::copy_of(&label.encode()[..]),
                fua: false,
            };
            run(&**d, op).await?;
        }
        run(&**d, DiskOp::Flush).await?;
    }
    Ok(())
}
