//! `steady`: keeps what hosts were told of a volume true over one that is different.
//!
//! Hosts learn once that a volume has no volatile write cache, or gives space back and reads zeros there, and rely on
//! it. When its data moves to a place of another kind, this layer stands above that place.

use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_block::{
    Arity, BuildContext, Filter, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind, Node,
    Param, ParamKind, Volume, make_durable,
};
use weir_mem::Slice;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required(
        "write-cache",
        ParamKind::Flag,
        "whether hosts know of a volatile cache; false over one that has it: writes go through it",
    ),
    Param::required(
        "thin",
        ParamKind::Flag,
        "whether hosts know that discarded blocks read as zeros; true over one where they do not: zeros are written",
    ),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "steady"
    }
    fn about(&self) -> &'static str {
        "keeps what hosts were told of a volume true over a different one"
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
        let lower = children.pop();
        let lower =
            lower.ok_or_else(|| node.error(GraphErrorKind::Children, "nothing is below"))?;
        let (told_cache, told_thin) = (node.flag("write-cache")?, node.flag("thin")?);
        let g = lower.geometry();
        Ok(Rc::new(Steady {
            through: g.volatile_cache && !told_cache,
            zeroing: told_thin && !g.thin,
            told_cache,
            told_thin,
            lower,
        }))
    }
}

struct Steady {
    lower: Rc<dyn Volume>,
    told_cache: bool,
    told_thin: bool,
    /// Everything is durable when it is acknowledged, which the volume below does not do by itself.
    through: bool,
    /// Discarding writes zeros.
    zeroing: bool,
}

impl Steady {
    /// Durable when it is over, where that was promised.
    fn durable<'a>(&'a self, io: IoFuture<'a>) -> IoFuture<'a> {
        if !self.through {
            return io;
        }
        let since = self.lower.lost();
        IoFuture::new(async move {
            io.await?;
            match has(Bug::LossUnheeded) {
                true => self.lower.flush().await,
                false => make_durable(&*self.lower, since).await,
            }
        })
    }
}

impl Filter for Steady {
    fn lower(&self) -> &dyn Volume {
        &*self.lower
    }

    fn geometry(&self) -> Geometry {
        let g = self.lower.geometry();
        Geometry { volatile_cache: self.told_cache, thin: self.told_thin, ..g }
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.lower.write(at, buf, fua || self.through)
    }

    /// Nothing that was acknowledged was in a cache, where writes go through.
    fn lost(&self) -> u64 {
        if self.through { 0 } else { self.lower.lost() }
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        let io = match self.zeroing {
            true => self.lower.write_zeroes(at, len, true),
            false => self.lower.discard(at, len),
        };
        self.durable(io)
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.durable(self.lower.write_zeroes(at, len, unmap))
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        self.lower.direct(at, len)
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        self.lower.kept_sums(at, len, f)
    }

    /// What is written past this layer would not be durable.
    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        !self.through && self.lower.write_now(at, data, sums)
    }

    fn direct_in_use(&self) -> Option<bool> {
        self.lower.direct_in_use()
    }
}
