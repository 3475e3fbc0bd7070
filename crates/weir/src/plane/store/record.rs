//! What a pool carries of the configuration, in a volume of its own that no host sees, and pools that are looked for by it.
//!
//! It comes in parts, each of which has two slots that take turns; the head of a slot is written when its content is durable
//! (docs/format.md, "The configuration").

use super::open::{Devices, Source, failed, reach_all, remote};
use super::{Node, OpenPool, reserved};
use crate::plane::devices::{Make, Owner, closed};
use crate::plane::local::{Local, on};
use std::path::Path;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::Volume;
use weir_control::model::{
    Carried, DatasetFound, Device, Pool, PoolFound, PoolId, RECORD_PARTS, RecordPart,
};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_mem::Slice;
use weir_store::{Options, StoreError};

/// Who has volumes of other nodes that are looked at for an import.
const TO_IMPORT: &str = "a pool to import";
/// What the volume is called on the devices.
const NAME: &str = ".config";
const BLOCK: u64 = 4096;
/// Bytes that are read and written at once.
const PIECE: usize = 256 << 10;
const MAGIC: &[u8; 8] = b"WRconf\x01\0";

/// Where the two slots of a content are in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slots {
    at: u64,
    /// Bytes of a slot.
    size: u64,
}

impl Slots {
    /// Those at the front. A program before kept all of the configuration there, some 50 000 volumes.
    pub(super) const FIRST: Slots = Slots { at: 0, size: 32 << 20 };
    /// Bytes of a slot of a part from 1 on.
    const PART: u64 = 8 << 20;

    /// Those of a part.
    fn of(part: u32) -> Slots {
        match part.checked_sub(1) {
            None => Slots::FIRST,
            Some(n) => {
                let at = Slots::FIRST.end() + u64::from(n) * 2 * Slots::PART;
                Slots { at, size: Slots::PART }
            }
        }
    }

    fn end(self) -> u64 {
        self.at + 2 * self.size
    }

    fn slot(self, n: u64) -> u64 {
        self.at + n * self.size
    }
}

/// Head of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// Counts what was written.
    number: u64,
    len: u64,
    sum: u64,
}

impl Head {
    fn encode(&self) -> Slice {
        let b = Slice::heap(BLOCK as usize);
        b.write_at(0, MAGIC);
        for (at, n) in [(8, self.number), (16, self.len), (24, self.sum)] {
            b.write_at(at, &n.to_le_bytes());
        }
        b
    }

    fn decode(b: &Slice, slots: Slots) -> Option<Head> {
        let word = |at| {
            let mut w = [0; 8];
            b.read_at(at, &mut w);
            w
        };
        let h = Head {
            number: u64::from_le_bytes(word(8)),
            len: u64::from_le_bytes(word(16)),
            sum: u64::from_le_bytes(word(24)),
        };
        (word(0) == *MAGIC && h.len <= slots.size - BLOCK).then_some(h)
    }
}

fn sum(head: u64, content: &[u8]) -> u64 {
    weir_codec::crc64(&[&head.to_le_bytes()[..], content].concat())
}

async fn read(v: &dyn Volume, at: u64, len: u64) -> IoResult<Vec<u8>> {
    let mut all = Vec::with_capacity(len as usize);
    while (all.len() as u64) < len {
        let left = len - all.len() as u64;
        let buf = Slice::heap(left.next_multiple_of(BLOCK).min(PIECE as u64) as usize);
        v.read(at + all.len() as u64, buf.clone()).await?;
        let mut piece = buf.to_vec();
        piece.truncate(left as usize);
        all.append(&mut piece);
    }
    Ok(all)
}

/// What two slots have.
pub(super) struct Newest {
    /// The newest content that is whole, with its number.
    pub(super) content: Option<(u64, Vec<u8>)>,
    /// How long the slots say theirs are: 0 of one without a head.
    pub(super) lens: [u64; 2],
    /// There may have been a newer one, which cannot be read.
    pub(super) doubtful: bool,
}

/// The newest content that is whole.
pub(super) async fn newest(v: &dyn Volume, slots: Slots) -> IoResult<Newest> {
    let mut found = Newest { content: None, lens: [0; 2], doubtful: false };
    let mut lost = None::<u64>;
    for slot in 0..2 {
        let buf = Slice::heap(BLOCK as usize);
        match v.read(slots.slot(slot), buf.clone()).await {
            Ok(()) => {}
            // The other one may be whole.
            Err(IoError::Medium) => {
                lost = Some(u64::MAX);
                continue;
            }
            Err(e) => return Err(e),
        }
        let Some(h) = Head::decode(&buf, slots) else {
            if buf.to_vec().iter().any(|b| *b != 0) {
                lost = Some(u64::MAX);
            }
            continue;
        };
        found.lens[slot as usize] = h.len;
        if found.content.as_ref().is_some_and(|(n, _)| *n > h.number) {
            continue;
        }
        let content = match read(v, slots.slot(slot) + BLOCK, h.len).await {
            Ok(c) if sum(h.number, &c) == h.sum => c,
            Ok(_) | Err(IoError::Medium) => {
                lost = lost.max(Some(h.number));
                continue;
            }
            Err(e) => return Err(e),
        };
        found.content = Some((h.number, content));
    }
    found.doubtful = lost > found.content.as_ref().map(|(n, _)| *n);
    Ok(found)
}

/// `both`: nothing older is left in the other slot either.
async fn write(v: &dyn Volume, slots: Slots, content: &[u8], both: bool) -> IoResult {
    let mut times = if both { 2 } else { 1 };
    loop {
        let Newest { content: found, lens, .. } = newest(v, slots).await?;
        let number = match found {
            Some((_, old)) if old == content && times == 1 && !both => return Ok(()),
            Some((n, _)) => n + 1,
            None => 1,
        };
        let at = slots.slot(number % 2);
        let len = content.len() as u64;
        for (n, piece) in (0..).zip(content.chunks(PIECE)) {
            let buf = Slice::heap(piece.len().next_multiple_of(BLOCK as usize));
            buf.write_at(0, piece);
            v.write(at + BLOCK + n * PIECE as u64, buf, true).await?;
        }
        let head = Head { number, len, sum: sum(number, content) };
        v.write(at, head.encode(), true).await?;
        let (end, was) = (len.next_multiple_of(BLOCK), lens[(number % 2) as usize]);
        if was > end {
            v.discard(at + BLOCK + end, was.next_multiple_of(BLOCK) - end).await?;
        }
        times -= 1;
        if times == 0 {
            return Ok(());
        }
    }
}

/// What comes of a part that cannot be read for a reason that says nothing of what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    /// Nothing is told: it is tried again.
    Fails,
    /// That part is in doubt.
    IsInDoubt,
}

/// What a volume carries of the configuration.
async fn carried(v: &dyn Volume, unread: Unread) -> IoResult<Carried> {
    let mut all = Carried::default();
    let len = v.geometry().len;
    for number in 0..=RECORD_PARTS {
        let slots = Slots::of(number);
        if slots.end() > len {
            break;
        }
        let found = match newest(v, slots).await {
            Err(e) if unread == Unread::IsInDoubt => {
                tracing::warn!("part {number} of what the pool carries of its configuration: {e}");
                all.doubtful.push(number);
                continue;
            }
            found => found?,
        };
        if found.doubtful {
            all.doubtful.push(number);
        }
        all.parts.extend(found.content.map(|(_, c)| (number, c)));
    }
    Ok(all)
}

impl OpenPool {
    /// Has a volume that no host sees hold this, in place of what it held before.
    pub(super) async fn keep(
        &self,
        name: &str,
        slots: Slots,
        content: &[u8],
    ) -> std::result::Result<(), StoreError> {
        let v = self.hidden(name, slots.end()).await?;
        fits(slots, content)?;
        Ok(write(&*v, slots, content, false).await?)
    }

    /// A volume that no host sees, of so many bytes at least.
    async fn hidden(
        &self,
        name: &str,
        len: u64,
    ) -> std::result::Result<Rc<weir_store::StoreVolume>, StoreError> {
        let id = match self.find(name) {
            Some(d) => {
                if d.len < len {
                    self.pool.resize(d.id, len).await?;
                }
                d.id
            }
            None => self.pool.create_volume(name, len, BLOCK as u32).await?,
        };
        self.pool.volume(id)
    }

    /// Has the devices carry parts of the configuration, one after the other.
    async fn keep_parts(&self, parts: &[RecordPart]) -> std::result::Result<(), StoreError> {
        // One who was given up may still be at it.
        let _one = self.recording.acquire(1).await;
        let v = self.hidden(NAME, Slots::of(RECORD_PARTS).end()).await?;
        let written = self.write_parts(&v, parts).await;
        // A pool never overwrites in place: what was there is on the devices until that is done. Also what a part had that was
        // not written to its end; and what is left undone is done the next time.
        let before = self.before.borrow().clone();
        let gone = self.pool.shred(&before).await;
        if matches!(gone, Ok(()) | Err(StoreError::Io(IoError::Medium))) {
            self.before.take();
        }
        written.and(gone)
    }

    /// Notes where secrets were.
    async fn write_parts(
        &self,
        v: &weir_store::StoreVolume,
        parts: &[RecordPart],
    ) -> std::result::Result<(), StoreError> {
        for part in parts {
            let slots = Slots::of(part.number);
            fits(slots, &part.content)?;
            if part.secret {
                let lens = newest(v, slots).await?.lens;
                for (slot, len) in (0..).zip(lens).filter(|(_, len)| *len > 0) {
                    let places = v.places(slots.slot(slot), BLOCK + len).await?;
                    self.before.borrow_mut().extend(places);
                }
            }
            write(v, slots, &part.content, part.secret).await?;
        }
        Ok(())
    }

    async fn carried(&self) -> std::result::Result<Carried, StoreError> {
        let Some(d) = self.find(NAME) else { return Ok(Carried::default()) };
        let v = self.pool.volume(d.id)?;
        Ok(carried(&*v, Unread::Fails).await?)
    }
}

fn fits(slots: Slots, content: &[u8]) -> std::result::Result<(), StoreError> {
    match content.len() as u64 <= slots.size - BLOCK {
        true => Ok(()),
        false => Err(StoreError::Request(format!("{} bytes are too many", content.len()))),
    }
}

async fn look(local: &Rc<Local>, devices: Devices, force: bool) -> Result<PoolFound> {
    let refused = |what: String, why: String| {
        Error::new(Code::InvalidDevice, what).because(why).hint(
            "name all devices of the pool; `weir dump --device PATH label` tells what a device belongs to",
        )
    };
    let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
    for (path, found) in reach_all(local, TO_IMPORT, devices).await {
        let disk = found?.disk;
        weir_store::label_of(&disk)
            .await
            .map_err(|e| refused(format!("{path} is no device of a pool"), e.to_string()))?;
        disks.push(disk);
    }
    let options = Options { read_only: true, force, ..Options::default() };
    let opened = weir_store::Pool::open(disks, options).await.map_err(|e| {
        Error::new(Code::PoolDamaged, "there is no pool to take over")
            .because(e)
            .hint("name all devices of the pool; if some are gone for good, --force goes on without them, and what only they had is lost")
    })?;
    let status = opened.status();
    let mut record = Carried::default();
    let mut datasets = Vec::new();
    for d in opened.datasets() {
        if d.snapshot || d.deleting || d.name == reserved::NAME {
            continue;
        }
        if d.name == NAME {
            let v = opened.volume(d.id).map_err(|e| failed("a volume".into(), &e))?;
            let what = "what the pool carries of its configuration cannot be read";
            let found = carried(&*v, Unread::IsInDoubt).await;
            record = found.map_err(|e| failed(what.into(), &e.into()))?;
            continue;
        }
        datasets.push(DatasetFound { name: d.name, size: d.len, block_size: d.block_size });
    }
    // There is nothing that it could write.
    let _ = opened.close().await;
    Ok(PoolFound {
        id: PoolId(status.pool),
        copies: status.copies,
        members: status.devices.len(),
        record,
        datasets,
    })
}

impl Node {
    /// What an open pool carries of the configuration.
    pub(in crate::plane) async fn record_in_store(&self, pool: &Pool) -> Result<Carried> {
        let name = pool.name.clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let what = format!("what pool {name} carries of its configuration cannot be read");
                p.carried().await.map_err(|e| failed(what, &e))
            })
        })
        .await
    }

    /// Has an open pool carry these parts of the configuration.
    pub(in crate::plane) async fn keep_in_store(
        &self,
        pool: &Pool,
        parts: Vec<RecordPart>,
    ) -> Result<()> {
        let name = pool.name.clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let what = format!("pool {name} cannot carry its configuration");
                p.keep_parts(&parts).await.map_err(|e| failed(what, &e))
            })
        })
        .await
    }

    /// Looks at devices for a pool.
    pub(in crate::plane) async fn look_for_store(
        &self,
        devices: Vec<Device>,
        force: bool,
    ) -> Result<PoolFound> {
        let Some(home) = self.handles().first().cloned() else {
            return Err(Error::new(Code::Internal, "there is no reactor"));
        };
        let mut held = Devices::new();
        for d in &devices {
            let path = d.path.clone().unwrap_or_default();
            let by = (&Owner::Look, None);
            if d.kind.is_remote() {
                held.push(remote(d));
                continue;
            }
            let found = self.holds.hold_device(by, d, Make::Nothing).await;
            held.push((path, found.map(Source::Held)));
        }
        let paths: Vec<String> = held.iter().map(|(path, _)| path.clone()).collect();
        let found = on(&home, move |local: Rc<Local>| {
            Box::pin(async move { look(&local, held, force).await })
        })
        .await;
        let release = |path: String| self.holds.release_path(&Owner::Look, Path::new(&path));
        closed(async { paths.into_iter().for_each(release) }).await;
        self.remotes.let_go(TO_IMPORT).await;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use weir_block::{Geometry, IoFuture};

    /// Both slots, in memory.
    struct Ram(Slice);

    impl Volume for Ram {
        fn geometry(&self) -> Geometry {
            Geometry {
                len: Slots::FIRST.end(),
                block_size: BLOCK as u32,
                granularity: BLOCK as u32,
                thin: true,
                volatile_cache: false,
                read_only: false,
            }
        }

        fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
            buf.copy_from(0, &self.0, at as usize, buf.len());
            IoFuture::ready(Ok(()))
        }

        fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
            self.0.copy_from(at as usize, &buf, 0, buf.len());
            IoFuture::ready(Ok(()))
        }

        fn flush(&self) -> IoFuture<'_> {
            IoFuture::ready(Ok(()))
        }
        fn lost(&self) -> u64 {
            0
        }

        fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
            self.write_zeroes(at, len, true)
        }

        fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
            self.0.sub(at as usize, len as usize).fill(0);
            IoFuture::ready(Ok(()))
        }
    }

    /// Memory answers at once.
    fn now<T>(f: impl Future<Output = T>) -> T {
        match pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(v) => v,
            Poll::Pending => panic!("memory does not wait"),
        }
    }

    fn volume() -> Ram {
        Ram(Slice::heap(Slots::FIRST.end() as usize))
    }

    fn content(v: &Ram) -> Option<Vec<u8>> {
        now(newest(v, Slots::FIRST)).expect("it is read").content.map(|(_, c)| c)
    }

    fn spoil(v: &Ram, at: u64) {
        let b = Slice::heap(BLOCK as usize);
        b.fill(0x55);
        now(v.write(at, b, true)).expect("it is written");
    }

    #[test]
    fn the_newest_whole_content_counts() {
        let v = volume();
        assert_eq!(content(&v), None);
        // Of none, less and more than a block and a piece.
        let all = [0, 1, 4096, 4097, PIECE, PIECE + 5, 3 * PIECE, 7].map(|n| vec![n as u8 | 1; n]);
        for c in &all {
            now(write(&v, Slots::FIRST, c, false)).expect("it is written");
            assert_eq!(content(&v).as_ref(), Some(c));
        }
        let of = |v: &Ram| now(newest(v, Slots::FIRST)).expect("it is read");
        let number = |v: &Ram| of(v).content.map(|(n, _)| n);
        assert!(!of(&v).doubtful);
        assert_eq!(number(&v), Some(all.len() as u64));
        now(write(&v, Slots::FIRST, &all[7], false)).expect("it is written");
        assert_eq!(number(&v), Some(all.len() as u64), "what is there already is not written");
        // The last one is number 8, in slot 0; a crash, or rot, leaves the one before.
        spoil(&v, BLOCK);
        assert_eq!(content(&v).as_ref(), Some(&all[6]));
        assert!(of(&v).doubtful, "there was a newer one");
        now(write(&v, Slots::FIRST, b"again", false)).expect("it is written");
        assert_eq!((content(&v).as_deref(), number(&v)), (Some(&b"again"[..]), Some(8)));
        spoil(&v, 0);
        assert_eq!(content(&v).as_ref(), Some(&all[6]));
        spoil(&v, Slots::FIRST.slot(1) + BLOCK);
        assert_eq!(content(&v), None);
        now(write(&v, Slots::FIRST, b"new", false)).expect("it is written");
        assert_eq!(content(&v).as_deref(), Some(&b"new"[..]));
        // What is not to be found any more is in neither slot.
        now(write(&v, Slots::FIRST, b"an old key", true)).expect("it is written");
        now(write(&v, Slots::FIRST, b"a new key", true)).expect("it is written");
        let all = v.0.to_vec();
        assert!(!all.windows(10).any(|w| w == b"an old key"));
        assert_eq!(content(&v).as_deref(), Some(&b"a new key"[..]));
    }

    /// A volume that cannot be read.
    struct Unreadable(Ram, IoError);

    impl Volume for Unreadable {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn read(&self, _at: u64, _buf: Slice) -> IoFuture<'_> {
            IoFuture::ready(Err(self.1))
        }

        fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
            self.0.write(at, buf, fua)
        }

        fn flush(&self) -> IoFuture<'_> {
            self.0.flush()
        }
        fn lost(&self) -> u64 {
            0
        }

        fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
            self.0.discard(at, len)
        }

        fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
            self.0.write_zeroes(at, len, unmap)
        }
    }

    /// Whoever looks at a pool to take it over would write over it.
    #[test]
    fn what_cannot_be_read_is_in_doubt_and_not_nothing() {
        for e in [IoError::Path, IoError::Offline, IoError::Busy, IoError::Medium] {
            let v = Unreadable(volume(), e);
            let found = now(carried(&v, Unread::IsInDoubt)).expect("it is told");
            assert_eq!((found.doubtful, found.parts.len()), (vec![0], 0), "{e:?}");
            let open = now(carried(&v, Unread::Fails));
            assert_eq!(open.is_err(), e != IoError::Medium, "{e:?}");
        }
    }

    #[test]
    fn parts_do_not_meet() {
        let mut end = 0;
        for part in 0..=RECORD_PARTS {
            let slots = Slots::of(part);
            assert_eq!(slots.at, end);
            end = slots.end();
        }
        assert_eq!(end, (64 << 20) + (256 << 24));
    }
}
