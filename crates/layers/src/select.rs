//! Which I/O a test layer acts upon: by operation, by range.

use weir_block::{GraphError, Node, Op, ParamKind};

/// The words that select operations.
pub(crate) const OPS: ParamKind =
    ParamKind::Choices(&["read", "write", "flush", "discard", "write-zeroes", "all"]);

/// A selection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Select {
    ops: [bool; Op::ALL.len()],
    from: u64,
    to: u64,
}

impl Select {
    /// From the parameters `ops`, `from` and `len`.
    pub(crate) fn new(node: &Node<'_>) -> Result<Select, GraphError> {
        let words = node.choices("ops")?;
        let mut ops = [false; Op::ALL.len()];
        for op in Op::ALL {
            ops[op as usize] = words.iter().any(|w| w == op.name() || w == "all");
        }
        let from = node.size("from")?;
        let to = node.size_if_given("len")?.map_or(u64::MAX, |len| from.saturating_add(len));
        Ok(Select { ops, from, to })
    }

    /// True when the I/O is selected: a flush by its operation, others also by touching the range.
    #[inline]
    pub(crate) fn hit(&self, op: Op, at: u64, len: u64) -> bool {
        self.ops[op as usize]
            && (op == Op::Flush || (at < self.to && at.saturating_add(len) > self.from))
    }
}
