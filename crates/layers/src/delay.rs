//! `delay`: makes I/O slower, for tests and for seeing what latency does to a host.

use crate::select::{OPS, Select};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{Nanos, Prng};
use weir_block::{
    Arity, BuildContext, Filter, GraphError, GraphErrorKind, IoFuture, LayerKind, Node, Op, Param,
    ParamKind, Volume,
};
use weir_mem::Slice;
use weir_reactor::sleep;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required("time", ParamKind::Duration, "how much longer each I/O takes"),
    Param::default("jitter", ParamKind::Duration, "0ns", "up to how much longer still, at random"),
    Param::default("ops", OPS, "all", "which operations"),
    Param::default(
        "from",
        ParamKind::Size { min: 0, max: u64::MAX, multiple: 1 },
        "0",
        "first byte of the range that is slow",
    ),
    Param::optional(
        "len",
        ParamKind::Size { min: 1, max: u64::MAX, multiple: 1 },
        "its length; to the end if not given",
    ),
    Param::default("seed", ParamKind::Count { min: 0, max: u64::MAX }, "1", "of the jitter"),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "delay"
    }
    fn about(&self) -> &'static str {
        "makes I/O slower"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        1..=1
    }
    fn passes(&self) -> bool {
        true
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        mut children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let lower = children.pop();
        Ok(Rc::new(Delay {
            lower: lower.ok_or_else(|| node.error(GraphErrorKind::Children, "nothing is below"))?,
            select: Select::new(node)?,
            time: node.duration("time")?,
            jitter: node.duration("jitter")?,
            prng: RefCell::new(Prng::new(node.count("seed")?)),
        }))
    }
}

struct Delay {
    lower: Rc<dyn Volume>,
    select: Select,
    time: Nanos,
    jitter: Nanos,
    prng: RefCell<Prng>,
}

impl Delay {
    /// Waits, if this I/O is to, and then does `io`.
    fn after<'a>(
        &'a self,
        op: Op,
        at: u64,
        len: u64,
        io: impl FnOnce(&'a dyn Volume) -> IoFuture<'a> + 'a,
    ) -> IoFuture<'a> {
        if !self.select.hit(op, at, len) {
            return io(&*self.lower);
        }
        let time = self.time + self.prng.borrow_mut().between(0, self.jitter);
        IoFuture::new(async move {
            sleep(time).await;
            io(&*self.lower).await
        })
    }
}

impl Filter for Delay {
    fn lower(&self) -> &dyn Volume {
        &*self.lower
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.after(Op::Read, at, buf.len() as u64, move |v| v.read(at, buf))
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.after(Op::Write, at, buf.len() as u64, move |v| v.write(at, buf, fua))
    }

    fn keeps_sums(&self) -> bool {
        self.lower.keeps_sums()
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        self.after(Op::Read, at, buf.len() as u64, move |v| v.read_summed(at, buf, sums))
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        self.after(Op::Write, at, len, move |v| v.write_summed(at, buf, sums, fua))
    }

    fn flush(&self) -> IoFuture<'_> {
        self.after(Op::Flush, 0, 0, |v| v.flush())
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.after(Op::Discard, at, len, move |v| v.discard(at, len))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.after(Op::WriteZeroes, at, len, move |v| v.write_zeroes(at, len, unmap))
    }
}
