//! `stripe`: a volume spread over several in equal units (S0: virtual disks striped over back ends).

use crate::pieces;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Arity, BuildContext, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind,
    Node, Param, ParamKind, Volume, check_range, join_parts,
};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// Units that one answer about allocation looks at.
const LOOK: u64 = 4096;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[Param::default(
    "unit",
    ParamKind::Size { min: 4096, max: 1 << 30, multiple: 4096 },
    "64KiB",
    "bytes on one volume before the next one's turn; a power of two",
)];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "stripe"
    }
    fn about(&self) -> &'static str {
        "spreads a volume over several in equal units; as long as the shortest, times their number"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        1..=256
    }
    fn check(&self, node: &Node<'_>) -> Result<(), GraphError> {
        let unit = node.size("unit")?;
        if !unit.is_power_of_two() {
            return Err(
                node.error(GraphErrorKind::Param, format!("`unit` {unit} is not a power of two"))
            );
        }
        Ok(())
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let unit = node.size("unit")?;
        let nature = pieces::nature(node, &children)?;
        let stripe = Stripe {
            n: children.len() as u64,
            children,
            shift: unit.trailing_zeros(),
            nature,
            len: Cell::new(0),
        };
        stripe.measure()?;
        if stripe.len.get() == 0 {
            return Err(node.error(
                GraphErrorKind::Children,
                format!("a volume below is shorter than one unit of {unit} bytes"),
            ));
        }
        Ok(Rc::new(stripe))
    }
}

struct Stripe {
    children: Vec<Rc<dyn Volume>>,
    n: u64,
    shift: u32,
    nature: Geometry,
    len: Cell<u64>,
}

impl Stripe {
    #[inline]
    fn unit(&self) -> u64 {
        1 << self.shift
    }

    /// Takes note of the children's lengths: whole units of the shortest, on all.
    fn measure(&self) -> Result<(), GraphError> {
        let shortest = self.children.iter().map(|c| c.geometry().len).min().unwrap_or(0);
        let rows = shortest >> self.shift;
        let len = (rows << self.shift).checked_mul(self.n).ok_or_else(|| {
            GraphError::new(GraphErrorKind::Children, "the volumes below are too long together")
        })?;
        self.len.set(len);
        Ok(())
    }

    /// Where a byte is: the child, and the offset there.
    #[inline]
    fn locate(&self, at: u64) -> (usize, u64) {
        let unit = at >> self.shift;
        let there = (unit / self.n) << self.shift | at & (self.unit() - 1);
        ((unit % self.n) as usize, there)
    }

    /// Number of units that a range touches, if the volume has it.
    #[inline]
    fn units(&self, at: u64, len: u64) -> Result<usize, IoError> {
        check_range(&self.geometry(), at, len)?;
        if len == 0 {
            return Ok(0);
        }
        Ok((((at + len - 1) >> self.shift) - (at >> self.shift) + 1) as usize)
    }

    /// Does something to every unit's part of a range: child, offset there, distance from `at`, length.
    #[inline]
    fn each<'a>(
        &'a self,
        at: u64,
        len: u64,
        io: impl Fn(&'a dyn Volume, u64, u64, u64) -> IoFuture<'a> + Unpin + 'a,
    ) -> IoFuture<'a> {
        let count = match self.units(at, len) {
            Ok(n) => n,
            Err(e) => return IoFuture::ready(Err(e)),
        };
        let first = at >> self.shift;
        join_parts(count, move |i| {
            let unit = first + i as u64;
            let begin = at.max(unit << self.shift);
            let end = (at + len).min((unit + 1) << self.shift);
            let (child, there) = self.locate(begin);
            io(&*self.children[child], there, begin - at, end - begin)
        })
    }

    /// The part of a range that is child `c`'s: it is in one piece there.
    fn share(&self, c: u64, at: u64, len: u64) -> Option<(u64, u64)> {
        let (first, last) = (at >> self.shift, (at + len - 1) >> self.shift);
        let unit = first + (c + self.n - first % self.n) % self.n;
        if unit > last {
            return None;
        }
        let end_unit = last - (last % self.n + self.n - c) % self.n;
        let begin = self.locate(at.max(unit << self.shift)).1;
        let end = self.locate((at + len - 1).min(((end_unit + 1) << self.shift) - 1)).1 + 1;
        Some((begin, end - begin))
    }

    /// Does something to every child's share of a range.
    fn each_child<'a>(
        &'a self,
        at: u64,
        len: u64,
        io: impl Fn(&'a dyn Volume, u64, u64) -> IoFuture<'a> + Unpin + 'a,
    ) -> IoFuture<'a> {
        match self.units(at, len) {
            Ok(0) => IoFuture::ready(Ok(())),
            Err(e) => IoFuture::ready(Err(e)),
            Ok(_) => {
                join_parts(self.children.len(), move |c| match self.share(c as u64, at, len) {
                    Some((there, n)) => io(&*self.children[c], there, n),
                    None => IoFuture::ready(Ok(())),
                })
            }
        }
    }
}

/// A walk over units of the volumes below, as long as they are of one kind.
struct Run {
    at: u64,
    end: u64,
    /// Units that may still be looked at.
    left: usize,
    len: u64,
    found: Option<Allocation>,
}

impl Run {
    /// The next piece: volume, where there, how long.
    fn next(&mut self, s: &Stripe) -> Option<(usize, u64, u64)> {
        let n = (s.unit() - (self.at & (s.unit() - 1))).min(self.end - self.at);
        if n == 0 || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let (child, there) = s.locate(self.at);
        Some((child, there, n))
    }

    /// Adds what is so there, of a piece of `n` bytes; true if the walk goes on.
    fn add(&mut self, a: Allocation, n: u64) -> bool {
        match &mut self.found {
            None => self.found = Some(a),
            Some(f) if f.mapped == a.mapped => f.len += a.len,
            Some(_) => return false,
        }
        self.at += a.len;
        a.len >= n
    }

    fn end(self) -> Allocation {
        self.found.unwrap_or(Allocation { mapped: true, len: self.len })
    }
}

impl Stripe {
    fn run(&self, at: u64, len: u64) -> Result<Run, IoError> {
        self.units(at, len)?;
        Ok(Run { at, end: at + len, left: LOOK as usize, len, found: None })
    }
}

impl Volume for Stripe {
    #[inline]
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len.get(), ..self.nature }
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
        self.each_child(at, len, |child, there, n| child.discard(there, n))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.each_child(at, len, move |child, there, n| child.write_zeroes(there, n, unmap))
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        if self.units(at, len as u64) != Ok(1) {
            return None;
        }
        let (child, there) = self.locate(at);
        self.children[child].direct(there, len)
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        let (child, there) = self.locate(at);
        self.units(at, len as u64) == Ok(1) && self.children[child].kept_sums(there, len, f)
    }

    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        let (child, there) = self.locate(at);
        self.units(at, data.len() as u64) == Ok(1)
            && self.children[child].write_now(there, data, sums)
    }

    fn direct_in_use(&self) -> Option<bool> {
        pieces::direct_in_use(&self.children)
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        let Ok(mut run) = self.run(at, len) else { return Allocation { mapped: true, len } };
        while let Some((child, there, n)) = run.next(self) {
            let a = self.children[child].allocation(there, n);
            if !run.add(a, n) {
                break;
            }
        }
        run.end()
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        Box::pin(async move {
            let Ok(mut run) = self.run(at, len) else { return Allocation { mapped: true, len } };
            while let Some((child, there, n)) = run.next(self) {
                let a = self.children[child].find_allocation(there, n).await;
                if !run.add(a, n) {
                    break;
                }
            }
            run.end()
        })
    }

    fn allocated(&self) -> Option<u64> {
        pieces::allocated(&self.children)
    }

    /// To whole units on every volume below, or not at all.
    fn resize(&self, len: u64) -> IoResult {
        let row = self.unit() * self.n;
        if len == 0 || !len.is_multiple_of(row) {
            return Err(IoError::OutOfRange);
        }
        let (old, new) = (self.len.get() / self.n, len / self.n);
        for (i, c) in self.children.iter().enumerate() {
            if let Err(e) = c.resize(new) {
                // What was grown goes back; what was cut off is lost either way.
                for done in &self.children[..i] {
                    let _ = done.resize(old);
                }
                let _ = self.measure();
                return Err(e);
            }
        }
        self.measure().map_err(|_| IoError::OutOfRange)
    }
}
