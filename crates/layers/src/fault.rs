//! `fault`: makes I/O fail, lie or damage data, for tests of everything above.

use crate::select::{OPS, Select};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use weir_base::{IoError, Prng};
use weir_block::{
    Arity, BuildContext, Filter, GraphError, GraphErrorKind, IoFuture, LayerKind, Node, Op, Param,
    ParamKind, Volume,
};
use weir_mem::Slice;

/// The words for errors that the `error` parameter takes, with what they stand for. Besides there are
/// `lost` (a write or zeroing that succeeds and does nothing), `corrupt` (a read that succeeds with one bit flipped)
/// and `corrupt-write` (a write of data with one bit flipped). Checksums that go with data are left as they are.
pub const FAULT_ERRORS: [(&str, IoError); 8] = [
    ("medium", IoError::Medium),
    ("no-space", IoError::NoSpace),
    ("busy", IoError::Busy),
    ("aborted", IoError::Aborted),
    ("offline", IoError::Offline),
    ("path", IoError::Path),
    ("read-only", IoError::ReadOnly),
    ("internal", IoError::Internal),
];

const WORDS: &[&str] = &[
    "medium",
    "no-space",
    "busy",
    "aborted",
    "offline",
    "path",
    "read-only",
    "internal",
    "lost",
    "corrupt",
    "corrupt-write",
];

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::default("error", ParamKind::Choice(WORDS), "medium", "what goes wrong"),
    Param::default("ops", OPS, "all", "with which operations"),
    Param::default(
        "from",
        ParamKind::Size { min: 0, max: u64::MAX, multiple: 1 },
        "0",
        "first byte of the range where it does",
    ),
    Param::optional(
        "len",
        ParamKind::Size { min: 1, max: u64::MAX, multiple: 1 },
        "its length; to the end if not given",
    ),
    Param::default("chance", ParamKind::Chance, "1", "how probable it is for each I/O"),
    Param::default("skip", ParamKind::Count { min: 0, max: u64::MAX }, "0", "I/Os spared at first"),
    Param::optional("count", ParamKind::Count { min: 1, max: u64::MAX }, "how often at most"),
    Param::default(
        "when",
        ParamKind::Choice(&["before", "after"]),
        "before",
        "whether an I/O fails without effect, or after it was done",
    ),
    Param::default("on", ParamKind::Flag, "true", "whether it begins at once, or is switched on"),
    Param::default("seed", ParamKind::Count { min: 0, max: u64::MAX }, "1", "of the chance"),
];

/// Turns a `fault` layer on and off, on all cores together: the shared state of its node
/// ([`Shared::get`](weir_block::Shared::get) of `graph/node/fault`).
pub struct FaultSwitch {
    on: AtomicBool,
    hits: AtomicU64,
}

impl FaultSwitch {
    /// Faults happen from now on, or no more.
    pub fn set(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// How many have happened.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Error(IoError),
    Lost,
    Corrupt,
    CorruptWrite,
}

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "fault"
    }
    fn about(&self) -> &'static str {
        "makes I/O fail, lie or damage data"
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
    fn harm(&self, node: &Node<'_>) -> Result<Option<&'static str>, GraphError> {
        Ok(match node.text("error")?.as_str() {
            "lost" => Some("loses writes that hosts believe in"),
            "corrupt" => Some("gives hosts damaged data"),
            "corrupt-write" => Some("damages what hosts write"),
            _ => None,
        })
    }
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        mut children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let lower = children.pop();
        let word = node.text("error")?;
        let on = node.flag("on")?;
        let switch = ctx.shared.get_or(&node.key(), || FaultSwitch {
            on: AtomicBool::new(on),
            hits: AtomicU64::new(0),
        });
        Ok(Rc::new(Fault {
            lower: lower.ok_or_else(|| node.error(GraphErrorKind::Children, "nothing is below"))?,
            what: what(&word).ok_or_else(|| {
                node.error(GraphErrorKind::Param, format!("`error`: no fault is called `{word}`"))
            })?,
            select: Select::new(node)?,
            // Probabilities in 2^32nds: exact at both ends.
            chance: (node.chance("chance")? * f64::from(1u32 << 31) * 2.0) as u64,
            skip: Cell::new(node.count("skip")?),
            left: Cell::new(node.count_if_given("count")?.unwrap_or(u64::MAX)),
            after: node.text("when")? == "after",
            prng: RefCell::new(Prng::new(node.count("seed")?)),
            switch,
        }))
    }
}

fn what(word: &str) -> Option<What> {
    match word {
        "lost" => Some(What::Lost),
        "corrupt" => Some(What::Corrupt),
        "corrupt-write" => Some(What::CorruptWrite),
        _ => FAULT_ERRORS.iter().find(|(w, _)| *w == word).map(|(_, e)| What::Error(*e)),
    }
}

struct Fault {
    lower: Rc<dyn Volume>,
    what: What,
    select: Select,
    chance: u64,
    skip: Cell<u64>,
    left: Cell<u64>,
    after: bool,
    prng: RefCell<Prng>,
    switch: Arc<FaultSwitch>,
}

impl Fault {
    /// Whether this I/O is struck.
    fn strikes(&self, op: Op, at: u64, len: u64) -> bool {
        let can = match self.what {
            What::Error(_) => true,
            What::Lost => matches!(op, Op::Write | Op::WriteZeroes),
            What::Corrupt => op == Op::Read && len > 0,
            What::CorruptWrite => op == Op::Write && len > 0,
        };
        if !can || !self.switch.on.load(Relaxed) || !self.select.hit(op, at, len) {
            return false;
        }
        if self.skip.get() > 0 {
            self.skip.set(self.skip.get() - 1);
            return false;
        }
        if self.left.get() == 0 || !self.prng.borrow_mut().chance(self.chance, 1 << 32) {
            return false;
        }
        self.left.set(self.left.get() - 1);
        self.switch.hits.fetch_add(1, Relaxed);
        true
    }

    fn io<'a>(
        &'a self,
        op: Op,
        at: u64,
        len: u64,
        io: impl FnOnce(&'a dyn Volume) -> IoFuture<'a> + 'a,
    ) -> IoFuture<'a> {
        if !self.strikes(op, at, len) {
            return io(&*self.lower);
        }
        match self.what {
            What::Error(e) if self.after => IoFuture::new(async move {
                // An error from below is the truer one.
                io(&*self.lower).await?;
                Err(e)
            }),
            What::Error(e) => IoFuture::ready(Err(e)),
            What::Lost => IoFuture::ready(Ok(())),
            What::Corrupt | What::CorruptWrite => io(&*self.lower),
        }
    }

    /// A read, whose data may be changed afterwards.
    fn reading<'a>(
        &'a self,
        at: u64,
        buf: Slice,
        io: impl FnOnce(&'a dyn Volume) -> IoFuture<'a> + 'a,
    ) -> IoFuture<'a> {
        let len = buf.len() as u64;
        if self.what != What::Corrupt {
            return self.io(Op::Read, at, len, io);
        }
        if !self.strikes(Op::Read, at, len) {
            return io(&*self.lower);
        }
        IoFuture::new(async move {
            io(&*self.lower).await?;
            self.flip(&buf);
            Ok(())
        })
    }

    /// A write, whose data may be changed before.
    fn writing<'a>(
        &'a self,
        at: u64,
        buf: Slice,
        io: impl FnOnce(&'a dyn Volume, Slice) -> IoFuture<'a> + 'a,
    ) -> IoFuture<'a> {
        let len = buf.len() as u64;
        if self.what != What::CorruptWrite {
            return self.io(Op::Write, at, len, move |v| io(v, buf));
        }
        if !self.strikes(Op::Write, at, len) {
            return io(&*self.lower, buf);
        }
        let changed = Slice::copy_of(&buf.to_vec()).sub(0, buf.len());
        self.flip(&changed);
        io(&*self.lower, changed)
    }

    fn flip(&self, buf: &Slice) {
        let bit = self.prng.borrow_mut().below(buf.len() as u64 * 8);
        let mut byte = [0];
        buf.read_at((bit / 8) as usize, &mut byte);
        byte[0] ^= 1 << (bit % 8);
        buf.write_at((bit / 8) as usize, &byte);
    }
}

impl Filter for Fault {
    fn lower(&self) -> &dyn Volume {
        &*self.lower
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.reading(at, buf.clone(), move |v| v.read(at, buf))
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.writing(at, buf, move |v, buf| v.write(at, buf, fua))
    }

    fn keeps_sums(&self) -> bool {
        self.lower.keeps_sums()
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        self.reading(at, buf.clone(), move |v| v.read_summed(at, buf, sums))
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        self.writing(at, buf, move |v, buf| v.write_summed(at, buf, sums, fua))
    }

    fn flush(&self) -> IoFuture<'_> {
        self.io(Op::Flush, 0, 0, |v| v.flush())
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.io(Op::Discard, at, len, move |v| v.discard(at, len))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.io(Op::WriteZeroes, at, len, move |v| v.write_zeroes(at, len, unmap))
    }
}
