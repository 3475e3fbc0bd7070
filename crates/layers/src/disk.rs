//! `disk`: a file or block device (or a simulated disk).

use crate::planted::{Bug, has};
use std::cell::{Cell, OnceCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Arity, BuildContext, DiskSpec, Geometry, GraphError, GraphErrorKind, IoFuture,
    LayerKind, Node, Param, ParamKind, Volume, check_len, check_range, join_parts,
};
use weir_disk::{Disk, DiskOp, Losses, run};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{LocalFuture, spawn};

/// Largest single transfer in bytes; a longer I/O is several in parallel. Below what Linux takes in
/// one call (2 GiB less a page), small enough that one I/O does not fill a device's queue.
const TRANSFER: u64 = 8 << 20;
/// Buffers of the reserve for memory that the disk cannot take: size and number.
const BOUNCE: (usize, usize) = (64 << 10, 2);

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required("path", ParamKind::Text, "file or block device"),
    Param::optional(
        "len",
        ParamKind::Size { min: 4096, max: 1 << 62, multiple: 512 },
        "capacity; all of the disk if not given",
    ),
    Param::default(
        "create",
        ParamKind::Flag,
        "false",
        "make a sparse file of `len` bytes if there is none, extend a shorter one",
    ),
    Param::default(
        "block-size",
        ParamKind::Choice(&["auto", "512", "4096"]),
        "auto",
        "logical block; the disk's own if auto; a smaller one than the disk's is refused",
    ),
    Param::default(
        "thin",
        ParamKind::Choice(&["auto", "yes", "no"]),
        "auto",
        "whether discard makes zeros and gives space back; auto: for sparse files",
    ),
    Param::default("read-only", ParamKind::Flag, "false", "refuse writes"),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "disk"
    }
    fn about(&self) -> &'static str {
        "a file or a block device"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        0..=0
    }
    fn check(&self, node: &Node<'_>) -> Result<(), GraphError> {
        if node.flag("create")? && node.size_if_given("len")?.is_none() {
            return Err(node.error(GraphErrorKind::Param, "`create` needs `len`"));
        }
        Ok(())
    }
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        _children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let path = node.text("path")?;
        let wrong = |m: String| node.error(GraphErrorKind::Disk, format!("`{path}` {m}"));
        let wish = DiskSpec {
            path: PathBuf::from(&path),
            create: node.flag("create")?,
            len: node.size_if_given("len")?,
            read_only: node.flag("read-only")?,
        };
        let disk = (ctx.open_disk)(&wish).map_err(|e| wrong(format!("cannot be opened: {e}")))?;
        let own = disk.block_size();
        let block_size = match node.text("block-size")?.as_str() {
            "512" => 512,
            "4096" => 4096,
            _ => own,
        };
        if block_size < own {
            return Err(wrong(format!(
                "has {own}-byte blocks and cannot be a volume of {block_size}-byte blocks; \
                 give the volume {own}-byte blocks"
            )));
        }
        let len = wish.len.unwrap_or(disk.len());
        if len > disk.len() {
            let has = disk.len();
            return Err(wrong(format!("has {has} bytes, less than the {len} that are asked for")));
        }
        let len = len - len % u64::from(block_size);
        if len == 0 {
            return Err(wrong("has no room for a block".into()));
        }
        let thin = match node.text("thin")?.as_str() {
            "yes" => true,
            "no" => false,
            _ => disk.is_thin(),
        };
        let geometry = Geometry {
            len,
            block_size,
            granularity: 4096.max(block_size),
            thin,
            volatile_cache: disk.volatile_cache(),
            read_only: wish.read_only,
        };
        let known = disk.losses();
        let notes = known.is_none();
        let losses = known.unwrap_or_default();
        Ok(Rc::new(DiskLeaf {
            before: losses.last(),
            losses,
            notes,
            disk,
            geometry: Cell::new(geometry),
            pool: ctx.pool.clone(),
            reserve: OnceCell::new(),
        }))
    }
}

struct DiskLeaf {
    disk: Rc<dyn Disk>,
    geometry: Cell<Geometry>,
    pool: BufPool,
    /// For when the pool is empty: whoever holds its buffers may be waiting for us.
    reserve: OnceCell<BufPool>,
    losses: Arc<Losses>,
    /// The disk notes no flushes itself.
    notes: bool,
    /// The last loss of the time before this was built.
    before: u64,
}

impl DiskLeaf {
    #[inline]
    fn check(&self, at: u64, len: u64, write: bool) -> IoResult {
        let g = self.geometry.get();
        check_range(&g, at, len)?;
        if write && g.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }

    /// Devices take memory that is aligned as their blocks are.
    #[inline]
    fn takes(&self, buf: &Slice) -> bool {
        buf.as_ptr().addr() & (self.disk.block_size() as usize - 1) == 0
    }

    /// Memory for a part of an I/O whose own memory the disk does not take.
    async fn bounce(&self, len: usize) -> Result<Slice, IoError> {
        let wish = len.min(BOUNCE.0).min(self.pool.max_len());
        if let Some(s) = self.pool.try_alloc(wish) {
            return Ok(s);
        }
        let reserve = match self.reserve.get() {
            Some(r) => r,
            None => {
                let made = BufPool::new(&PoolConfig { classes: vec![BOUNCE] });
                let made = made.map_err(|_| IoError::Busy)?;
                self.reserve.get_or_init(|| made)
            }
        };
        Ok(reserve.alloc(len.min(BOUNCE.0)).await)
    }

    fn write_parts(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.parts(buf.len() as u64, move |from, n| DiskOp::Write {
            offset: at + from,
            buf: buf.sub(from as usize, n as usize),
            fua,
        })
    }

    /// A write that is durable when it ends. Where the device has no other means the kernel flushes it: then another flush may be told
    /// that this is lost, and this one of what others had written.
    async fn write_through(&self, at: u64, buf: Slice) -> IoResult {
        let before = self.losses.last();
        let done = match self.takes(&buf) {
            true => self.write_parts(at, buf, true).await,
            false => self.write_bounced(at, buf, true).await,
        };
        self.losses.note_write(&done);
        done?;
        if !self.losses.flushes_for_writes() {
            return Ok(());
        }
        self.losses.settled().await;
        match self.losses.last() == before || has(Bug::LossUnheeded) {
            true => Ok(()),
            false => Err(IoError::Path),
        }
    }

    async fn read_bounced(&self, at: u64, buf: Slice) -> IoResult {
        let mut done = 0;
        while done < buf.len() {
            let part = self.bounce(buf.len() - done).await?;
            run(&*self.disk, DiskOp::Read { offset: at + done as u64, buf: part.clone() }).await?;
            buf.copy_from(done, &part, 0, part.len());
            done += part.len();
        }
        Ok(())
    }

    async fn write_bounced(&self, at: u64, buf: Slice, fua: bool) -> IoResult {
        let mut done = 0;
        while done < buf.len() {
            let part = self.bounce(buf.len() - done).await?;
            part.copy_from(0, &buf, done, part.len());
            let n = part.len();
            run(&*self.disk, DiskOp::Write { offset: at + done as u64, buf: part, fua }).await?;
            done += n;
        }
        Ok(())
    }

    /// For a disk that has no operation for it.
    async fn write_zero_data(&self, at: u64, len: u64) -> IoResult {
        let mut done = 0;
        while done < len {
            let part = self.bounce((len - done).min(BOUNCE.0 as u64) as usize).await?;
            part.fill(0);
            let n = part.len() as u64;
            run(&*self.disk, DiskOp::Write { offset: at + done, buf: part, fua: false }).await?;
            done += n;
        }
        Ok(())
    }

    /// One operation on the disk.
    #[inline]
    fn one(&self, op: DiskOp) -> IoFuture<'_> {
        IoFuture::new(run(&*self.disk, op))
    }

    /// Does `op(from, len)` for a range in transfers of bounded size.
    #[inline]
    fn parts<'a>(&'a self, len: u64, op: impl Fn(u64, u64) -> DiskOp + Unpin + 'a) -> IoFuture<'a> {
        if len <= TRANSFER {
            return self.one(op(0, len));
        }
        join_parts(len.div_ceil(TRANSFER) as usize, move |i| {
            let from = i as u64 * TRANSFER;
            self.one(op(from, TRANSFER.min(len - from)))
        })
    }
}

impl Volume for DiskLeaf {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let len = buf.len() as u64;
        match self.check(at, len, false) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) if !self.takes(&buf) => IoFuture::new(self.read_bounced(at, buf)),
            Ok(()) => self.parts(len, move |from, n| DiskOp::Read {
                offset: at + from,
                buf: buf.sub(from as usize, n as usize),
            }),
        }
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        match self.check(at, len, true) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) if fua => IoFuture::new(self.write_through(at, buf)),
            Ok(()) if !self.takes(&buf) => IoFuture::new(self.write_bounced(at, buf, false)),
            Ok(()) => self.write_parts(at, buf, false),
        }
    }

    /// Also for a disk without a volatile cache: a file's metadata may still be on its way.
    fn flush(&self) -> IoFuture<'_> {
        if !self.notes {
            return self.one(DiskOp::Flush);
        }
        let (disk, losses) = (self.disk.clone(), self.losses.clone());
        let told = async move { losses.flush(run(&*disk, DiskOp::Flush)).await };
        if has(Bug::GivenUpForgotten) {
            return IoFuture::new(told);
        }
        // What it is told is kept also if nobody waits for it any more.
        let told = spawn(told);
        IoFuture::new(async move { told.await.unwrap_or(Err(IoError::Aborted)) })
    }

    fn lost(&self) -> u64 {
        let last = self.losses.last();
        if last > self.before { last } else { 0 }
    }

    /// A disk's own discard may leave the old data readable, so a thin volume punches a hole.
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        if self.geometry.get().thin {
            return self.write_zeroes(at, len, true);
        }
        match self.check(at, len, true) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) => IoFuture::new(async move {
                match run(&*self.disk, DiskOp::Discard { offset: at, len }).await {
                    // It is advice: a disk may have no use for it.
                    Err(IoError::Unsupported) => Ok(()),
                    r => r,
                }
            }),
        }
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        match self.check(at, len, true) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) => IoFuture::new(async move {
                match run(&*self.disk, DiskOp::WriteZeroes { offset: at, len, unmap }).await {
                    Err(IoError::Unsupported) => self.write_zero_data(at, len).await,
                    r => r,
                }
            }),
        }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let whole = Allocation { mapped: true, len };
        if len == 0 || self.check(at, len, false).is_err() {
            return Box::pin(std::future::ready(whole));
        }
        Box::pin(async move {
            let e = self.disk.extent(at, len).await;
            // Blocks that are only in part a hole are mapped.
            let block = u64::from(self.geometry.get().block_size);
            if e.mapped {
                Allocation { mapped: true, len: e.len.next_multiple_of(block).min(len) }
            } else if e.len < block {
                Allocation { mapped: true, len: block.min(len) }
            } else {
                Allocation { mapped: false, len: e.len / block * block }
            }
        })
    }

    fn allocated(&self) -> Option<u64> {
        self.disk.allocated()
    }

    fn resize(&self, len: u64) -> IoResult {
        let mut g = self.geometry.get();
        check_len(&g, len)?;
        if g.read_only {
            return Err(IoError::ReadOnly);
        }
        if len != self.disk.len() {
            self.disk.set_len(len)?;
        }
        g.len = len;
        self.geometry.set(g);
        Ok(())
    }
}
