//! `concat`: volumes one after the other.

use crate::pieces;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Arity, BuildContext, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind,
    Node, Volume, check_len, check_range, join_parts,
};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// The kind.
pub(crate) struct Kind;

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "concat"
    }
    fn about(&self) -> &'static str {
        "volumes one after the other; the last one can be resized"
    }
    fn children(&self) -> Arity {
        1..=usize::MAX
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let nature = pieces::nature(node, &children)?;
        let ends = children.iter().map(|_| Cell::new(0)).collect();
        let concat = Concat { children, ends, nature };
        concat.measure().map_err(|_| {
            node.error(GraphErrorKind::Children, "the volumes below are too long together")
        })?;
        Ok(Rc::new(concat))
    }
}

struct Concat {
    children: Vec<Rc<dyn Volume>>,
    /// Where each child's part ends; each starts where the one before ends.
    ends: Box<[Cell<u64>]>,
    nature: Geometry,
}

impl Concat {
    /// Takes note of the children's lengths, in whole blocks of this volume.
    fn measure(&self) -> IoResult {
        let mut end = 0u64;
        for (c, e) in self.children.iter().zip(&self.ends) {
            let len = c.geometry().len;
            end = end
                .checked_add(len - len % u64::from(self.nature.block_size))
                .ok_or(IoError::OutOfRange)?;
            e.set(end);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.ends.last().map_or(0, Cell::get)
    }

    fn start(&self, child: usize) -> u64 {
        if child == 0 { 0 } else { self.ends[child - 1].get() }
    }

    #[inline]
    fn child_of(&self, at: u64) -> usize {
        self.ends.partition_point(|e| e.get() <= at)
    }

    /// The children that a range touches, and whether it is one that the volume has.
    #[inline]
    fn touched(&self, at: u64, len: u64) -> Result<(usize, usize), IoError> {
        check_range(&self.geometry(), at, len)?;
        if len == 0 {
            return Ok((0, 0));
        }
        let first = self.child_of(at);
        let last =
            if at + len <= self.ends[first].get() { first } else { self.child_of(at + len - 1) };
        Ok((first, last - first + 1))
    }

    /// The part of `at..at + len` that is child `c`'s: where it begins there, how far it is from `at`,
    /// and its length.
    #[inline]
    fn part(&self, c: usize, at: u64, len: u64) -> (u64, u64, u64) {
        let start = self.start(c);
        let begin = at.max(start);
        let end = (at + len).min(self.ends[c].get());
        (begin - start, begin - at, end - begin)
    }

    /// Does something to every part of a range.
    #[inline]
    fn each<'a>(
        &'a self,
        at: u64,
        len: u64,
        io: impl Fn(&'a dyn Volume, u64, u64, u64) -> IoFuture<'a> + Unpin + 'a,
    ) -> IoFuture<'a> {
        match self.touched(at, len) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok((first, count)) => join_parts(count, move |i| {
                let (there, skip, n) = self.part(first + i, at, len);
                io(&*self.children[first + i], there, skip, n)
            }),
        }
    }
}

impl Volume for Concat {
    #[inline]
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len(), ..self.nature }
    }

    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.each(at, buf.len() as u64, move |child, there, skip, n| {
            child.read(there, buf.sub(skip as usize, n as usize))
        })
    }

    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.each(at, buf.len() as u64, move |child, there, skip, n| {
            child.write(there, buf.sub(skip as usize, n as usize), fua)
        })
    }

    fn flush(&self) -> IoFuture<'_> {
        join_parts(self.children.len(), |i| self.children[i].flush())
    }

    fn lost(&self) -> u64 {
        self.children.iter().map(|c| c.lost()).max().unwrap_or(0)
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.each(at, len, |child, there, _, n| child.discard(there, n))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.each(at, len, move |child, there, _, n| child.write_zeroes(there, n, unmap))
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        match self.touched(at, len as u64) {
            Ok((c, 1)) => self.children[c].direct(at - self.start(c), len),
            _ => None,
        }
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        match self.touched(at, len as u64) {
            Ok((c, 1)) => self.children[c].kept_sums(at - self.start(c), len, f),
            _ => false,
        }
    }

    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        match self.touched(at, data.len() as u64) {
            Ok((c, 1)) => self.children[c].write_now(at - self.start(c), data, sums),
            _ => false,
        }
    }

    fn direct_in_use(&self) -> Option<bool> {
        pieces::direct_in_use(&self.children)
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        match self.touched(at, len) {
            Ok((c, 1..)) => {
                let (there, _, n) = self.part(c, at, len);
                self.children[c].allocation(there, n)
            }
            _ => Allocation { mapped: true, len },
        }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        match self.touched(at, len) {
            Ok((c, 1..)) => {
                let (there, _, n) = self.part(c, at, len);
                self.children[c].find_allocation(there, n)
            }
            _ => Box::pin(std::future::ready(Allocation { mapped: true, len })),
        }
    }

    fn allocated(&self) -> Option<u64> {
        pieces::allocated(&self.children)
    }

    fn resize(&self, len: u64) -> IoResult {
        let last = self.children.len() - 1;
        let start = self.start(last);
        check_len(&self.nature, len)?;
        if len <= start {
            return Err(IoError::OutOfRange);
        }
        self.children[last].resize(len - start)?;
        self.measure()
    }
}
