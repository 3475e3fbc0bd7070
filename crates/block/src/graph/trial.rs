//! A layer's first I/O, before hosts' I/O goes through it.

use super::{Edit, GraphError, GraphErrorKind};
use crate::{Geometry, Volume};
use std::rc::Rc;
use weir_base::{IoResult, Nanos};
use weir_mem::Slice;
use weir_reactor::timeout;

/// A layer, and what it stands on.
struct Trial<'a> {
    id: &'a str,
    over: Rc<dyn Volume>,
    below: Rc<dyn Volume>,
}

impl Edit {
    /// Does the first I/O of the new node `id`, a layer over one other: reads both ends of the volume, flushes, and writes
    /// to the first block what is there. It must do what the volume below does. On every reactor I/O must be
    /// held back, since else somebody might write that block meanwhile.
    ///
    /// # Errors
    /// It failed where the volume below does not, gave other data, or took longer than `limit` nanoseconds. What it
    /// wrote wrong is put right.
    pub async fn trial(&self, id: &str, limit: Nanos) -> Result<(), GraphError> {
        let wrong = |what: String| GraphError::new(GraphErrorKind::Trial, what).at(id);
        if !self.is_held() {
            return Err(wrong("it cannot be tried while I/O goes on".into()));
        }
        let node = self.nodes.get(id).ok_or_else(|| wrong("it is not there".into()))?;
        let below = node.children.first().cloned();
        let below = below.ok_or_else(|| wrong("nothing is below".into()))?;
        let trial = Trial { id, over: node.bare.clone(), below };
        let late = || wrong(format!("its first I/O did not end within {} ms", limit / 1_000_000));
        timeout(limit, trial.run()).await.map_err(|_| late())?
    }
}

impl Trial<'_> {
    /// An error if the layer failed and the volume below does not.
    async fn judge(
        &self,
        what: &str,
        over: IoResult,
        below: impl AsyncFnOnce() -> IoResult,
    ) -> Result<(), GraphError> {
        let Err(e) = over else { return Ok(()) };
        match below().await {
            Ok(()) => Err(self.wrong(format!("its first {what} failed: {e}"))),
            Err(_) => Ok(()),
        }
    }

    fn wrong(&self, what: String) -> GraphError {
        GraphError::new(GraphErrorKind::Trial, what).at(self.id)
    }

    async fn run(&self) -> Result<(), GraphError> {
        let g: Geometry = self.below.geometry();
        let block = g.block_size as usize;
        let last = g.len.saturating_sub(u64::from(g.block_size));
        for at in [last, 0] {
            let (is, seen) = (Slice::heap(block), Slice::heap(block));
            let known = self.below.read(at, is.clone()).await;
            let read = self.over.read(at, seen.clone()).await;
            self.judge("read", read, async || known).await?;
            let readable = known.is_ok() && read.is_ok();
            if readable && is.to_vec() != seen.to_vec() {
                return Err(self.wrong("its first read gave other data than are there".into()));
            }
            if readable && at == 0 && !g.read_only {
                self.write(at, is).await?;
            }
        }
        let flushed = self.over.flush().await;
        self.judge("flush", flushed, async || self.below.flush().await).await
    }

    /// Writes what is there.
    async fn write(&self, at: u64, is: Slice) -> Result<(), GraphError> {
        let written = self.over.write(at, is.clone(), false).await;
        self.judge("write", written, async || self.below.write(at, is.clone(), false).await)
            .await?;
        let now = Slice::heap(is.len());
        if self.below.read(at, now.clone()).await.is_ok() && now.to_vec() == is.to_vec() {
            return Ok(());
        }
        let mended = self.below.write(at, is, true).await;
        let so = mended
            .map_or_else(|e| format!("could not be put right: {e}"), |()| "was put right".into());
        Err(self.wrong(format!("its first write left other data in the first block, which {so}")))
    }
}
