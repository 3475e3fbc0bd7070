//! `null`: a volume that keeps nothing, to measure everything else.

use std::cell::Cell;
use std::rc::Rc;
use weir_base::IoResult;
use weir_block::{
    Allocation, Arity, BuildContext, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind,
    Node, Param, ParamKind, Volume, check_len, check_range,
};
use weir_mem::Slice;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required(
        "len",
        ParamKind::Size { min: 4096, max: 1 << 62, multiple: 512 },
        "capacity to report",
    ),
    Param::default("block-size", ParamKind::Choice(&["512", "4096"]), "512", "logical block"),
    Param::default(
        "reads",
        ParamKind::Choice(&["zeros", "untouched"]),
        "zeros",
        "what a read gives; `untouched` leaves the buffer with whatever an earlier I/O left in it, \
         which is quicker, and a leak of data between hosts: for measurements only",
    ),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "null"
    }
    fn about(&self) -> &'static str {
        "drops writes and reads as zeros"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        0..=0
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        _children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let len = node.size("len")?;
        let block_size = if node.text("block-size")? == "512" { 512 } else { 4096 };
        if len % u64::from(block_size) != 0 {
            return Err(node.error(
                GraphErrorKind::Param,
                format!("`len` {len} is not a multiple of the block size {block_size}"),
            ));
        }
        let geometry = Geometry {
            len,
            block_size,
            granularity: 4096,
            thin: true,
            volatile_cache: false,
            read_only: false,
        };
        let zeros = node.text("reads")? == "zeros";
        Ok(Rc::new(Null { geometry: Cell::new(geometry), zeros }))
    }
}

struct Null {
    geometry: Cell<Geometry>,
    zeros: bool,
}

impl Null {
    fn check(&self, at: u64, len: u64) -> IoFuture<'_> {
        IoFuture::ready(check_range(&self.geometry.get(), at, len))
    }
}

impl Volume for Null {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        if self.zeros {
            buf.fill(0);
        }
        self.check(at, buf.len() as u64)
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.check(at, buf.len() as u64)
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.check(at, len)
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        self.check(at, len)
    }
    fn allocation(&self, _at: u64, len: u64) -> Allocation {
        Allocation { mapped: false, len }
    }
    fn allocated(&self) -> Option<u64> {
        Some(0)
    }
    fn resize(&self, len: u64) -> IoResult {
        let mut g = self.geometry.get();
        check_len(&g, len)?;
        g.len = len;
        self.geometry.set(g);
        Ok(())
    }
}
