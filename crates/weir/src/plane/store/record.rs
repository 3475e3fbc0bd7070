//! What a pool carries of the configuration, in a volume of its own that no host sees, and pools that are looked for by it.
//!
//! Two slots take turns; the head of a slot is written when its content is durable (docs/format.md, "The configuration").

use super::open::{Devices, failed};
use super::{Node, OpenPool, reserved};
use crate::plane::devices::{Make, Owner};
use crate::plane::local::{Local, on};
use std::path::Path;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::Volume;
use weir_control::model::{DatasetFound, Device, Pool, PoolFound, PoolId};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_mem::Slice;
use weir_store::{Options, StoreError};

/// What the volume is called on the devices.
const NAME: &str = ".config";
/// Bytes of a slot: some 50 000 volumes.
const SLOT: u64 = 32 << 20;
const BLOCK: u64 = 4096;
/// Bytes that are read and written at once.
const PIECE: usize = 256 << 10;
const MAGIC: &[u8; 8] = b"WRconf\x01\0";

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

    fn decode(b: &Slice) -> Option<Head> {
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
        (word(0) == *MAGIC && h.len <= SLOT - BLOCK).then_some(h)
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

/// The newest content that is whole, with its number, and how long the slots say theirs are: 0 of one without a head.
pub(super) async fn newest(v: &dyn Volume) -> IoResult<(Option<(u64, Vec<u8>)>, [u64; 2])> {
    let (mut found, mut lens) = (None::<(u64, Vec<u8>)>, [0; 2]);
    for slot in 0..2 {
        let buf = Slice::heap(BLOCK as usize);
        v.read(slot * SLOT, buf.clone()).await?;
        let Some(h) = Head::decode(&buf) else { continue };
        lens[slot as usize] = h.len;
        if found.as_ref().is_some_and(|(n, _)| *n > h.number) {
            continue;
        }
        let content = match read(v, slot * SLOT + BLOCK, h.len).await {
            Ok(c) => c,
            // The other one may be whole.
            Err(IoError::Medium) => continue,
            Err(e) => return Err(e),
        };
        if sum(h.number, &content) == h.sum {
            found = Some((h.number, content));
        }
    }
    Ok((found, lens))
}

async fn write(v: &dyn Volume, content: &[u8]) -> IoResult {
    let (found, lens) = newest(v).await?;
    let number = match found {
        Some((_, old)) if old == content => return Ok(()),
        Some((n, _)) => n + 1,
        None => 1,
    };
    let at = number % 2 * SLOT;
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
    Ok(())
}

impl OpenPool {
    /// Has a volume that no host sees hold this, in place of what it held before.
    pub(super) async fn keep(
        &self,
        name: &str,
        content: &[u8],
    ) -> std::result::Result<(), StoreError> {
        if content.len() as u64 > SLOT - BLOCK {
            return Err(StoreError::Request(format!("{} bytes are too many", content.len())));
        }
        let id = match self.find(name) {
            Some(d) => d.id,
            None => self.pool.create_volume(name, 2 * SLOT, BLOCK as u32).await?,
        };
        let v = self.pool.volume(id)?;
        Ok(write(&*v, content).await?)
    }
}

async fn look(local: &Local, devices: Devices, force: bool) -> Result<PoolFound> {
    let refused = |what: String, why: String| {
        Error::new(Code::InvalidDevice, what).because(why).hint(
            "name all devices of the pool; `weir dump --device PATH label` tells what a device belongs to",
        )
    };
    let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
    for (path, held) in devices {
        let disk = local.disk(&*held?);
        let disk = disk.map_err(|e| refused(format!("{path} cannot be used"), e.to_string()))?;
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
    let mut record = None;
    let mut datasets = Vec::new();
    for d in opened.datasets() {
        if d.snapshot || d.deleting || d.name == reserved::NAME {
            continue;
        }
        if d.name == NAME {
            let v = opened.volume(d.id).map_err(|e| failed("a volume".into(), &e))?;
            match newest(&*v).await {
                Ok((found, _)) => record = found.map(|(_, content)| content),
                Err(e) => tracing::warn!("what the pool carries of its configuration: {e}"),
            }
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
    /// Has an open pool carry this of the configuration.
    pub(in crate::plane) async fn keep_in_store(
        &self,
        pool: &Pool,
        content: Vec<u8>,
    ) -> Result<()> {
        let name = pool.name.clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let what = format!("pool {name} cannot carry its configuration");
                p.keep(NAME, &content).await.map_err(|e| failed(what, &e))
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
            held.push((path, self.holds.hold_device(&Owner::Look, d, Make::Nothing).await));
        }
        let paths: Vec<String> = held.iter().map(|(path, _)| path.clone()).collect();
        let found = on(&home, move |local: Rc<Local>| {
            Box::pin(async move { look(&local, held, force).await })
        })
        .await;
        for path in paths {
            self.holds.release_path(&Owner::Look, Path::new(&path));
        }
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
                len: 2 * SLOT,
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
        Ram(Slice::heap(2 * SLOT as usize))
    }

    fn content(v: &Ram) -> Option<Vec<u8>> {
        now(newest(v)).expect("it is read").0.map(|(_, c)| c)
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
            now(write(&v, c)).expect("it is written");
            assert_eq!(content(&v).as_ref(), Some(c));
        }
        let number = |v: &Ram| now(newest(v)).expect("it is read").0.map(|(n, _)| n);
        assert_eq!(number(&v), Some(all.len() as u64));
        now(write(&v, &all[7])).expect("it is written");
        assert_eq!(number(&v), Some(all.len() as u64), "what is there already is not written");
        // The last one is number 8, in slot 0; a crash, or rot, leaves the one before.
        spoil(&v, BLOCK);
        assert_eq!(content(&v).as_ref(), Some(&all[6]));
        now(write(&v, b"again")).expect("it is written");
        assert_eq!((content(&v).as_deref(), number(&v)), (Some(&b"again"[..]), Some(8)));
        spoil(&v, 0);
        assert_eq!(content(&v).as_ref(), Some(&all[6]));
        spoil(&v, SLOT + BLOCK);
        assert_eq!(content(&v), None);
        now(write(&v, b"new")).expect("it is written");
        assert_eq!(content(&v).as_deref(), Some(&b"new"[..]));
    }
}
