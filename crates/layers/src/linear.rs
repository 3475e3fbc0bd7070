//! `linear`: a part of a volume.

use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Arity, BuildContext, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind,
    Node, Param, ParamKind, Volume, check_len, check_range,
};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::default(
        "offset",
        ParamKind::Size { min: 0, max: 1 << 62, multiple: 512 },
        "0",
        "where the part begins",
    ),
    Param::optional(
        "len",
        ParamKind::Size { min: 512, max: 1 << 62, multiple: 512 },
        "its length; all the rest if not given",
    ),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn about(&self) -> &'static str {
        "a part of a volume"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        1..=1
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        mut children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let wrong = |m: String| node.error(GraphErrorKind::Children, m);
        let lower = children.pop().ok_or_else(|| wrong("there is nothing below".into()))?;
        let g = lower.geometry();
        let offset = node.size("offset")?;
        if offset >= g.len {
            return Err(wrong(format!(
                "`offset` {offset} is beyond the {} bytes of the volume below",
                g.len
            )));
        }
        let len = node.size_if_given("len")?.unwrap_or(g.len - offset);
        if len > g.len - offset {
            return Err(wrong(format!(
                "{len} bytes at {offset} are more than the {} bytes of the volume below",
                g.len
            )));
        }
        if (offset | len) % u64::from(g.block_size) != 0 {
            return Err(wrong(format!(
                "`offset` and `len` must be multiples of the {}-byte blocks below",
                g.block_size
            )));
        }
        Ok(Rc::new(Linear { lower, offset, len: Cell::new(len) }))
    }
}

struct Linear {
    lower: Rc<dyn Volume>,
    offset: u64,
    len: Cell<u64>,
}

impl Linear {
    #[inline]
    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }
}

impl Volume for Linear {
    #[inline]
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len.get(), ..self.lower.geometry() }
    }

    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        match self.check(at, buf.len() as u64) {
            Ok(()) => self.lower.read(self.offset + at, buf),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        match self.check(at, buf.len() as u64) {
            Ok(()) => self.lower.write(self.offset + at, buf, fua),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    fn flush(&self) -> IoFuture<'_> {
        self.lower.flush()
    }

    fn lost(&self) -> u64 {
        self.lower.lost()
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        match self.check(at, len) {
            Ok(()) => self.lower.discard(self.offset + at, len),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        match self.check(at, len) {
            Ok(()) => self.lower.write_zeroes(self.offset + at, len, unmap),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        self.check(at, len as u64).ok()?;
        self.lower.direct(self.offset + at, len)
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        self.check(at, len as u64).is_ok() && self.lower.kept_sums(self.offset + at, len, f)
    }

    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        self.check(at, data.len() as u64).is_ok()
            && self.lower.write_now(self.offset + at, data, sums)
    }

    fn direct_in_use(&self) -> Option<bool> {
        self.lower.direct_in_use()
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        match self.check(at, len) {
            Ok(()) => self.lower.allocation(self.offset + at, len),
            Err(_) => Allocation { mapped: true, len },
        }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        match self.check(at, len) {
            Ok(()) => self.lower.find_allocation(self.offset + at, len),
            Err(_) => Box::pin(std::future::ready(Allocation { mapped: true, len })),
        }
    }

    /// Within the volume below, whose other parts may be others' volumes: it is never resized.
    fn resize(&self, len: u64) -> IoResult {
        let g = self.lower.geometry();
        check_len(&g, len)?;
        if len > g.len - self.offset {
            return Err(IoError::OutOfRange);
        }
        self.len.set(len);
        Ok(())
    }
}
