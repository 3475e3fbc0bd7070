//! What a device says about itself: labels and the ring of superblocks, found, verified and mended.

use super::copies::LATER;
use super::device::Device;
use super::scrub::ScrubWatch;
use super::{Inner, StoreError, StoreResult, block_of};
use crate::format::BLOCK;
use crate::format::label::{LABELS, Label, Layout, SUPER_SLOTS};
use crate::format::superblock::{MemberState, Superblock};
use crate::format::{Block, FormatError};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{patience, sleep};

/// How long a read of a disk may take that is in no pool's service.
pub(crate) const A_WHILE: Nanos = 20 * SECONDS;

/// Why a disk has no label.
pub(crate) struct NoLabel {
    /// It may have one: a place where it would be cannot be read, or has a newer program's.
    pub(crate) in_doubt: bool,
    pub(crate) why: StoreError,
}

impl From<NoLabel> for StoreError {
    fn from(no: NoLabel) -> Self {
        match no.why {
            StoreError::Pool(why) if no.in_doubt => StoreError::Unread(why),
            why => why,
        }
    }
}

/// Reads `blocks` blocks of a disk that is in no service yet, so that nothing else tells when it does not answer: after
/// `limit` it is offline.
pub(crate) async fn read_raw(
    d: &Rc<dyn Disk>,
    block: u64,
    blocks: u64,
    limit: Nanos,
) -> IoResult<Slice> {
    // A read that was given up may still write to its memory, which is let go of then.
    let buf = Slice::heap(blocks as usize * BLOCK);
    let read = run(&**d, DiskOp::Read { offset: block * BLOCK as u64, buf: buf.clone() });
    match has(Bug::SilentDiskHoldsUp) {
        true => read.await?,
        false => patience(limit, read).await.unwrap_or(Err(IoError::Offline))?,
    }
    Ok(buf)
}

pub(crate) async fn read_block(d: &Rc<dyn Disk>, block: u64, limit: Nanos) -> IoResult<Box<Block>> {
    Ok(block_of(&read_raw(d, block, 1, limit).await?))
}

/// Reads a block of which it matters that it is not there: what cannot be read for a moment must not pass for missing.
pub(crate) async fn read_surely(
    d: &Rc<dyn Disk>,
    block: u64,
    pauses: &[Nanos],
    limit: Nanos,
) -> IoResult<Box<Block>> {
    let mut pauses = pauses.iter();
    loop {
        match read_block(d, block, limit).await {
            // What is beyond the end of a disk is there no later.
            Err(e) if !matches!(e, IoError::Offline | IoError::OutOfRange) => match pauses.next() {
                Some(pause) => sleep(*pause).await,
                None => return Err(e),
            },
            other => return other,
        }
    }
}

/// Reads a device's label from whichever copy is good. Where none is, the device is known by its superblocks, which
/// say everything that a label does.
///
/// # Errors
/// There is neither; why the first copy of the label is none. [`StoreError::Unread`]: there may be one, which cannot be read, or the
/// disk does not answer within 20 s.
pub async fn label_of(d: &Rc<dyn Disk>) -> StoreResult<Label> {
    Ok(label_within(d, A_WHILE).await?)
}

/// Where labels are on a disk of so many blocks, which are four at least.
fn label_blocks(blocks: u64) -> [u64; LABELS as usize] {
    [0, 1, blocks - 2, blocks - 1]
}

/// Whether a disk answers, and gives none of the places where a label may be. It is asked once: [`label_of`] asks again and again, for
/// seconds, during which the disk is open.
pub async fn is_unreadable(d: &Rc<dyn Disk>) -> bool {
    let blocks = d.len() / BLOCK as u64;
    if blocks < LABELS as u64 {
        return false;
    }
    for at in label_blocks(blocks) {
        let read = read_block(d, at, A_WHILE).await;
        if !matches!(read, Err(e) if !matches!(e, IoError::Offline | IoError::OutOfRange)) {
            return false;
        }
    }
    true
}

/// As [`label_of`]; a disk of which a read takes longer than `limit` does not answer.
pub(crate) async fn label_within(d: &Rc<dyn Disk>, limit: Nanos) -> Result<Label, NoLabel> {
    let silent = || NoLabel { in_doubt: true, why: no_label(d, IoError::Offline) };
    let blocks = d.len() / BLOCK as u64;
    if blocks < LABELS as u64 {
        // Its copies would not fit.
        return Err(NoLabel { in_doubt: false, why: no_label(d, IoError::OutOfRange) });
    }
    let mut why = None;
    let (mut newer, mut unread) = (false, false);
    // The last of them is asked for as long as all of them together may be out of reach for a moment.
    let copies = label_blocks(blocks);
    for (n, at) in copies.into_iter().enumerate() {
        let read = match n + 1 == copies.len() {
            true => read_surely(d, at, LATER, limit).await,
            false => read_block(d, at, limit).await,
        };
        let text = match read {
            Ok(b) => match Label::decode(&b) {
                Ok(l) => return Ok(l),
                Err(e) => {
                    newer |= matches!(e, FormatError::Version(_) | FormatError::Feature(_));
                    e.to_string()
                }
            },
            // It does not answer at all.
            Err(IoError::Offline) => return Err(silent()),
            Err(e) => {
                unread |= !has(Bug::UnreadIsFree);
                e.to_string()
            }
        };
        why.get_or_insert(text);
    }
    // A label of a newer program is no damaged one.
    if !newer && let Some(l) = label_by_ring(d, limit).await.map_err(|_| silent())? {
        return Ok(l);
    }
    Err(NoLabel { in_doubt: newer || unread, why: no_label(d, why.unwrap_or_default()) })
}

fn no_label(d: &Rc<dyn Disk>, why: impl std::fmt::Display) -> StoreError {
    StoreError::Pool(format!("`{}` has no label of a pool: {why}", d.name()))
}

/// The label that follows from a device's newest superblock. Fails when it does not answer.
async fn label_by_ring(d: &Rc<dyn Disk>, limit: Nanos) -> IoResult<Option<Label>> {
    let blocks = d.len() / BLOCK as u64;
    let Some(last) = blocks.checked_sub(2 + SUPER_SLOTS) else { return Ok(None) };
    let mut newest: Option<(u64, Superblock)> = None;
    for (area, first) in [(0, 2), (1, last)] {
        for (slot, b) in ring(d, first, limit).await? {
            if let Ok((device, s)) = Superblock::decode_any(&b, area, slot)
                && newest.as_ref().is_none_or(|(_, n)| n.rank() < s.rank())
            {
                newest = Some((device, s));
            }
        }
    }
    Ok(newest.and_then(|(device, s)| {
        let size = s.members.iter().find(|m| m.device == device)?.blocks;
        let layout = Layout::plan(size, s.slab_shift, s.log_pages, s.table_pages, s.spares)?;
        let label = Label { pool: s.pool, device, layout, incompat: 0, compat: 0, copy: 0 };
        (size <= blocks).then_some(label)
    }))
}

/// What can be read of blocks side by side: which one, and what it holds. Fails when the disk does not answer. `given_up`: how many
/// could not be read so far, by which `pauses` says how one is tried again.
pub(super) async fn read_each(
    d: &Rc<dyn Disk>,
    first: u64,
    blocks: u64,
    given_up: &mut u64,
    pauses: impl Fn(u64) -> &'static [Nanos],
    limit: Nanos,
) -> IoResult<Vec<(u64, Box<Block>)>> {
    match read_raw(d, first, blocks, limit).await {
        Ok(buf) => {
            let each = (0..blocks).map(|n| (n, buf.sub(n as usize * BLOCK, BLOCK)));
            return Ok(each.map(|(n, b)| (n, block_of(&b))).collect());
        }
        Err(IoError::Offline) => return Err(IoError::Offline),
        Err(_) => {}
    }
    let mut found = Vec::new();
    for n in 0..blocks {
        match read_surely(d, first + n, pauses(*given_up), limit).await {
            Ok(b) => found.push((n, b)),
            Err(IoError::Offline) => return Err(IoError::Offline),
            Err(_) => *given_up += 1,
        }
    }
    Ok(found)
}

/// What can be read of an area of superblocks: slot and block. Fails when the disk does not answer.
async fn ring(d: &Rc<dyn Disk>, first: u64, limit: Nanos) -> IoResult<Vec<(u64, Box<Block>)>> {
    read_each(d, first, SUPER_SLOTS, &mut 0, Inner::patience, limit).await
}

/// What is known of the superblocks of a device.
#[derive(Default)]
pub(crate) struct Superblocks {
    /// Those that could be read, the newest first.
    pub(crate) all: Vec<Superblock>,
    /// Slots of which nobody knows what they hold, a bit each.
    hidden: u64,
    /// Slots of which an area has neither a superblock nor nothing, a bit each: what was there cannot be read, or is damaged.
    unclear: u64,
}

const _: () = assert!(SUPER_SLOTS == u64::BITS as u64);

impl Superblocks {
    pub(crate) fn newest(&self) -> Option<&Superblock> {
        self.all.first()
    }

    /// There may be the one of this number, and it was not read.
    pub(crate) fn may_hide(&self, seq: u64) -> bool {
        self.hidden >> (seq % SUPER_SLOTS) & 1 != 0
    }

    /// There may have been the one of this number: not both areas have another one in its place, or nothing.
    pub(crate) fn is_unclear(&self, seq: u64) -> bool {
        self.unclear >> (seq % SUPER_SLOTS) & 1 != 0
    }

    /// There may be others than those that were read, also newer ones.
    pub(crate) fn in_doubt(&self) -> bool {
        self.hidden != 0
    }

    /// Slots that may have others than those that were read.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = u64> + use<> {
        let hidden = self.hidden;
        (0..SUPER_SLOTS).filter(move |slot| hidden >> slot & 1 != 0)
    }
}

/// The superblocks of a device. Fails when it does not answer, a read within `limit` each. What else cannot be read must not
/// pass for missing either, so it is told.
pub(crate) async fn superblocks(
    d: &Rc<dyn Disk>,
    label: &Label,
    limit: Nanos,
) -> IoResult<Superblocks> {
    let mut found = Superblocks::default();
    let (mut unread, mut told) = (0u64, 0u64);
    for area in 0..2u8 {
        let (mut read, before) = (0u64, std::mem::take(&mut told));
        for (slot, b) in ring(d, label.layout.superblock(u64::from(area), 0), limit).await? {
            let bit = 1 << slot;
            match Superblock::decode(&b, label.pool, label.device, area, slot) {
                // A newer one would be in both areas before anybody goes by it.
                Ok(s) => {
                    told |= bit;
                    if !found.all.contains(&s) {
                        found.all.push(s);
                    }
                }
                // A newer program's.
                Err(FormatError::Version(_) | FormatError::Feature(_)) => continue,
                Err(_) if b.iter().all(|x| *x == 0) => told |= bit,
                Err(_) => {}
            }
            read |= bit;
        }
        unread |= !read;
        found.unclear |= !told;
        told |= before;
    }
    if !has(Bug::HiddenIsNone) {
        found.hidden = unread & !told;
    }
    found.all.sort_by_key(|s| std::cmp::Reverse(s.age()));
    Ok(found)
}

impl Inner {
    /// Devices that belong to the pool and answer, also those that are out of sync.
    fn own_devices(&self) -> Vec<Rc<Device>> {
        let own = |d: &Rc<Device>| d.usable() && d.state.get() != MemberState::Gone;
        self.devices.borrow().iter().filter(|d| own(d)).cloned().collect()
    }

    /// Writes a damaged label or superblock anew. A spare does not take its place: whoever looks for it does not know of
    /// spares yet.
    async fn mend_fixed(&self, d: &Rc<Device>, at: u64, want: &Slice) -> bool {
        if !d.usable() {
            return false;
        }
        self.found_damaged(d, at, 0, None);
        for _ in 0..2 {
            if !d.usable() || self.options.read_only || self.check_running().is_err() {
                return false;
            }
            if self.rewrite(d, at, want).await {
                self.count(|c| c.repaired += 1);
                self.works.damage.good(d, at, 1);
                return true;
            }
        }
        false
    }

    /// Reads all copies of the labels of all devices and writes damaged ones anew, before they are the last. No device may leave
    /// meanwhile, and get back the label that was taken from it.
    pub(crate) async fn mend_labels(self: Rc<Self>, watch: Option<Rc<ScrubWatch>>) {
        if has(Bug::LabelsNotMended) {
            return;
        }
        for d in self.own_devices() {
            let (mut copies, mut unread) = (Vec::new(), Vec::new());
            for copy in 0..LABELS {
                let buf = Slice::heap(BLOCK);
                let limit = self.options.deadline;
                match d.read(d.layout.label(u64::from(copy)), &buf, limit).await {
                    Ok(()) => copies.push(Label::decode(&block_of(&buf)).ok()),
                    Err(IoError::Offline) => {
                        watch.iter().for_each(|w| w.mark(&d));
                        self.device_failed(&d, IoError::Offline);
                        break;
                    }
                    Err(e) => {
                        watch.iter().for_each(|w| w.mark(&d));
                        copies.push(None);
                        // Only of the medium does that say something.
                        unread.extend((e != IoError::Medium).then_some(copy));
                    }
                }
            }
            if copies.len() < usize::from(LABELS) {
                continue;
            }
            let own = |l: &&Label| (l.pool, l.device, l.layout) == (self.pool, d.id, d.layout);
            let plain = d.label(self.pool, 0);
            // Features that this program does not know stay.
            let like = copies.iter().flatten().find(own).copied().unwrap_or(plain);
            for (copy, found) in (0..LABELS).zip(&copies) {
                let label = Label { copy, ..like };
                if *found == Some(label) || unread.contains(&copy) {
                    continue;
                }
                let at = d.layout.label(u64::from(copy));
                let done = self.mend_fixed(&d, at, &Slice::copy_of(&label.encode()[..])).await;
                if let Some(w) = &watch {
                    w.mark(&d);
                    let text =
                        format!("copy {copy} on device {} was damaged: {}", d.number, word(done));
                    w.find("labels", 0, text);
                }
            }
        }
    }

    /// Empties the slots of superblocks of which nobody knows what they hold, where somebody chose to go on without that: it
    /// must not be found later, and be newer than what is written now.
    pub(super) async fn forget_hidden(&self) -> IoResult {
        // That one is known by now, and has been brought to all.
        let newest = self.durable.borrow().seq % SUPER_SLOTS;
        let known = |slot: &u64| *slot == newest && !has(Bug::NewestForgotten);
        for d in self.current_devices() {
            for slot in d.hidden.take().into_iter().filter(|slot| !known(slot)) {
                for area in 0..2 {
                    let at = d.layout.superblock(area, slot);
                    let zeros = Slice::heap(BLOCK);
                    zeros.fill(0);
                    d.write(at, &zeros, self.options.deadline).await?;
                }
                d.flush(self.options.deadline).await?;
            }
        }
        Ok(())
    }

    /// Brings the newest superblock to the devices in sync that do not have it, as the life that was writing it did not. The
    /// next one is begun when all have it: who lacks two is taken for one that forgets.
    pub(crate) async fn complete_super(&self) -> IoResult {
        if has(Bug::SuperblockIncomplete) {
            return Ok(());
        }
        if self.options.read_only {
            return self.check_running();
        }
        let newest = self.durable.borrow().clone();
        // Also where it reads well: after a flush that failed, a device shows from its cache what the medium never got. One
        // area after the other, as a power cut may tear what is being written.
        for area in 0..2 {
            let mut touched = 0;
            for d in self.current_devices() {
                touched |= 1 << d.number;
                let want = Slice::copy_of(&newest.encode(d.id, area)[..]);
                let at = d.layout.superblock(u64::from(area), newest.seq);
                self.count(|c| c.media_writes += 1);
                if let Err(e) = d.write(at, &want, self.options.deadline).await {
                    self.device_failed(&d, e);
                }
            }
            self.flush_devices(touched).await;
        }
        self.check_running()?;
        // Whoever is left has it by now.
        self.devices.borrow().iter().for_each(|d| d.untold.set(false));
        Ok(())
    }

    /// What can be read of an area of superblocks of a device in service. One that does not answer is none any more: nothing on
    /// it is damaged, and whoever records that must not wait for it.
    async fn own_ring(&self, d: &Rc<Device>, area: u8) -> IoResult<Vec<(u64, Box<Block>)>> {
        let (first, limit) = (d.layout.superblock(u64::from(area), 0), self.options.deadline);
        let (mut found, mut from, mut n) = (Vec::new(), 0, SUPER_SLOTS);
        while from < SUPER_SLOTS {
            // A read that was given up may still write to its memory.
            let buf = Slice::heap(n as usize * BLOCK);
            match d.read(first + from, &buf, limit).await {
                Ok(()) => {
                    let each = (0..n).map(|k| (from + k, buf.sub(k as usize * BLOCK, BLOCK)));
                    found.extend(each.map(|(slot, b)| (slot, block_of(&b))));
                }
                Err(IoError::Offline) => {
                    self.device_failed(d, IoError::Offline);
                    return Err(IoError::Offline);
                }
                // One by one.
                Err(_) if n > 1 => {
                    n = 1;
                    continue;
                }
                Err(IoError::Medium) => {}
                // Of one that may pass nothing is judged.
                Err(e) => return Err(e),
            }
            from += n;
        }
        Ok(found)
    }

    /// Reads the superblocks that this life has written, and writes damaged ones anew.
    pub(crate) async fn scrub_rings(self: Rc<Self>, watch: Rc<ScrubWatch>) {
        let _only = self.super_lock.acquire(1).await;
        let mut all = vec![self.durable.borrow().clone()];
        let mut rings = Vec::new();
        for d in self.own_devices() {
            if d.is_current() {
                for area in 0..2u8 {
                    let Ok(found) = self.own_ring(&d, area).await else {
                        watch.mark(&d);
                        break;
                    };
                    let good = |(slot, b): (u64, Box<Block>)| {
                        Superblock::decode(&b, self.pool, d.id, area, slot).ok()
                    };
                    let found: Vec<Superblock> = found.into_iter().filter_map(good).collect();
                    rings.push((d.clone(), area, found));
                }
            }
        }
        // From the newest to the one before, as long as some device has it.
        while let Some(s) = all.last() {
            let before = |b: &&Superblock| {
                b.seq + 1 == s.seq && b.chain() == s.previous && b.incarnation == s.incarnation
            };
            let Some(b) = rings.iter().flat_map(|(.., found)| found).find(before) else { break };
            let b = b.clone();
            all.push(b);
        }
        for (d, area, found) in rings {
            for s in all.iter().take(SUPER_SLOTS as usize) {
                // Before that it was not written everything.
                let me = s.members.get(usize::from(d.number));
                if !me.is_some_and(|m| m.device == d.id && m.state == MemberState::InSync) {
                    break;
                }
                if found.contains(s) || !d.usable() {
                    continue;
                }
                let at = d.layout.superblock(u64::from(area), s.seq);
                let done =
                    self.mend_fixed(&d, at, &Slice::copy_of(&s.encode(d.id, area)[..])).await;
                let text = format!(
                    "number {} in area {area} of device {} was damaged: {}",
                    s.seq,
                    d.number,
                    word(done)
                );
                watch.mark(&d);
                watch.find("superblocks", 0, text);
            }
        }
    }
}

fn word(mended: bool) -> &'static str {
    if mended { "mended" } else { "not mended" }
}
