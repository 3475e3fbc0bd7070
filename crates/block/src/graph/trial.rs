//! A layer's first I/O, before hosts' I/O goes through it.
//!
//! It is done twice. In the rehearsal a second instance of the layer is over memory: it reads, writes, makes zeroes and
//! flushes, and nothing of hosts is at stake. In the trial the new layer is where it is to be, while hosts' I/O is held back:
//! it reads both ends of the volume, and flushes. Both can be given up at any time: a write to the volume itself could not,
//! as it might take effect after a newer one of a host.

use super::{BuildContext, Edit, GraphError, GraphErrorKind, Node};
use crate::{Geometry, IoFuture, Volume, check_range};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos};
use weir_mem::Slice;
use weir_reactor::timeout;

/// State that the instances of a rehearsal share is kept apart under this name, and forgotten at once.
const REHEARSAL: &str = "(rehearsal)";

fn wrong(id: &str, what: impl Into<String>) -> GraphError {
    GraphError::new(GraphErrorKind::Trial, what).at(id)
}

fn late(id: &str, step: &str, limit: Nanos) -> GraphError {
    wrong(id, format!("its first {step} did not end within {} ms", limit / 1_000_000))
}

/// A few blocks of memory, zeroes elsewhere, with the geometry of another volume.
struct Scratch {
    geometry: Geometry,
    blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Scratch {
    /// Each block of a range, with its place in the range.
    fn each(&self, at: u64, len: u64, mut f: impl FnMut(u64, usize)) -> IoFuture<'static> {
        let step = u64::from(self.geometry.block_size);
        let done = check_range(&self.geometry, at, len);
        if done.is_ok() {
            (0..len / step).for_each(|i| f(at + i * step, (i * step) as usize));
        }
        IoFuture::ready(done)
    }

    fn clear(&self, at: u64, len: u64) -> IoFuture<'static> {
        let done = check_range(&self.geometry, at, len);
        if let (Ok(()), Some(end)) = (done, at.checked_add(len)) {
            self.blocks.borrow_mut().retain(|k, _| !(at..end).contains(k));
        }
        IoFuture::ready(done)
    }
}

impl Volume for Scratch {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let (block, blocks) = (self.geometry.block_size as usize, self.blocks.borrow());
        self.each(at, buf.len() as u64, |k, i| match blocks.get(&k) {
            Some(b) => buf.write_at(i, b),
            None => buf.sub(i, block).fill(0),
        })
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        if self.geometry.read_only {
            return IoFuture::ready(Err(IoError::ReadOnly));
        }
        let block = self.geometry.block_size as usize;
        let mut blocks = self.blocks.borrow_mut();
        self.each(at, buf.len() as u64, |k, i| drop(blocks.insert(k, buf.sub(i, block).to_vec())))
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.clear(at, len)
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        self.clear(at, len)
    }
}

/// A second instance of a layer, over memory.
pub struct Rehearsal {
    id: String,
    over: Rc<dyn Volume>,
    scratch: Rc<Scratch>,
    step: Cell<&'static str>,
}

impl Edit {
    /// A second instance of the new node `id`, a layer over one other.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn rehearsal(&self, id: &str, ctx: &BuildContext<'_>) -> Result<Rehearsal, GraphError> {
        let node = self.nodes.get(id).ok_or_else(|| wrong(id, "it is not there"))?;
        let below = node.children.first().ok_or_else(|| wrong(id, "nothing is below"))?;
        let geometry = below.geometry();
        let scratch = Rc::new(Scratch { geometry, blocks: RefCell::default() });
        let kind = ctx.registry.get(&node.spec.kind)?;
        let node = Node::new(REHEARSAL, &node.spec, kind);
        let made = kind.build(ctx, &node, vec![scratch.clone()]);
        ctx.shared.forget(REHEARSAL);
        let over = made.map_err(|e| e.at(id))?;
        Ok(Rehearsal { id: id.to_owned(), over, scratch, step: Cell::new("read") })
    }

    /// The first I/O of the new node `id`, a layer over one other: reads both ends of the volume, and flushes. It must do
    /// what the volume below does. I/O is held back, so that both see the same.
    ///
    /// # Errors
    /// It failed where the volume below does not, gave other data, or took longer than `limit` nanoseconds.
    pub async fn trial(&self, id: &str, limit: Nanos) -> Result<(), GraphError> {
        if !self.is_held() {
            return Err(wrong(id, "it cannot be tried while I/O goes on"));
        }
        let node = self.nodes.get(id).ok_or_else(|| wrong(id, "it is not there"))?;
        let below = node.children.first().ok_or_else(|| wrong(id, "nothing is below"))?;
        let step = Cell::new("read");
        let done = timeout(limit, compare(id, &*node.bare, &**below, &step)).await;
        done.map_err(|_| late(id, step.get(), limit))?
    }
}

/// An error if the layer failed and the volume below does not.
fn judge(id: &str, what: &str, over: IoResult, below: IoResult) -> Result<(), GraphError> {
    match (over, below) {
        (Err(e), Ok(())) => Err(wrong(id, format!("its first {what} failed: {e}"))),
        _ => Ok(()),
    }
}

/// Reads both ends by two ways, and flushes.
async fn compare(
    id: &str,
    over: &dyn Volume,
    below: &dyn Volume,
    step: &Cell<&'static str>,
) -> Result<(), GraphError> {
    let g = below.geometry();
    if over.geometry() != g {
        return Err(wrong(id, "it shows another geometry than the volume below"));
    }
    let block = g.block_size as usize;
    for at in [0, g.len.saturating_sub(u64::from(g.block_size))] {
        let (is, seen) = (Slice::heap(block), Slice::heap(block));
        step.set("read");
        let known = below.read(at, is.clone()).await;
        let read = over.read(at, seen.clone()).await;
        judge(id, "read", read, known)?;
        if known.is_ok() && read.is_ok() && is.to_vec() != seen.to_vec() {
            return Err(wrong(id, "its first read gave other data than are there"));
        }
    }
    step.set("flush");
    match over.flush().await {
        Ok(()) => Ok(()),
        failed => judge(id, "flush", failed, below.flush().await),
    }
}

impl Rehearsal {
    /// Does every kind of I/O. It must do what memory does.
    ///
    /// # Errors
    /// It did something else, or took longer than `limit` nanoseconds.
    pub async fn run(&self, limit: Nanos) -> Result<(), GraphError> {
        let done = timeout(limit, self.all()).await;
        done.map_err(|_| late(&self.id, self.step.get(), limit))?
    }

    async fn all(&self) -> Result<(), GraphError> {
        let g = self.scratch.geometry;
        let block = g.block_size as usize;
        let len = u64::from(g.block_size);
        let last = g.len.saturating_sub(len);
        compare(&self.id, &*self.over, &*self.scratch, &self.step).await?;
        let can = |what: &'static str| {
            self.step.set(what);
            move |r: IoResult| judge(&self.id, what, r, Ok(()))
        };
        for (i, at) in [0, last].into_iter().enumerate().filter(|_| !g.read_only) {
            let data = Slice::heap(block);
            data.write_at(0, &[i as u8 + 1; 512]);
            can("write")(self.over.write(at, data.clone(), i == 0).await)?;
            self.has(at, &data.to_vec(), "write")?;
            compare(&self.id, &*self.over, &*self.scratch, &self.step).await?;
            can("write of zeroes")(self.over.write_zeroes(at, len, i == 0).await)?;
            self.has(at, &vec![0; block], "write of zeroes")?;
            can("discard")(self.over.discard(at, len).await)?;
        }
        can("flush")(self.over.flush().await)
    }

    /// Whether memory has this now.
    fn has(&self, at: u64, data: &[u8], after: &str) -> Result<(), GraphError> {
        let blocks = self.scratch.blocks.borrow();
        let is = blocks.get(&at).map(Vec::as_slice);
        let same = is.map_or_else(|| data.iter().all(|b| *b == 0), |is| is == data);
        let what = || wrong(&self.id, format!("its first {after} left other data behind"));
        if same { Ok(()) } else { Err(what()) }
    }
}
