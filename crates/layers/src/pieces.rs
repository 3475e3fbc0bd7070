//! What layers over several volumes have in common.

use std::rc::Rc;
use weir_block::{Geometry, GraphError, GraphErrorKind, Node, Volume};

/// The nature of a volume made of several: the coarsest blocks, the weakest promises. The length is
/// left 0.
pub(crate) fn nature(node: &Node<'_>, children: &[Rc<dyn Volume>]) -> Result<Geometry, GraphError> {
    let none = || node.error(GraphErrorKind::Children, "there is nothing below");
    let first = children.first().ok_or_else(none)?;
    let mut g = Geometry { len: 0, ..first.geometry() };
    for c in children {
        let c = c.geometry();
        g.block_size = g.block_size.max(c.block_size);
        g.granularity = g.granularity.max(c.granularity);
        g.thin &= c.thin;
        g.volatile_cache |= c.volatile_cache;
        g.read_only |= c.read_only;
    }
    Ok(g)
}

/// Sum of what is in use below, where all of them know.
pub(crate) fn allocated(children: &[Rc<dyn Volume>]) -> Option<u64> {
    children.iter().map(|c| c.allocated()).sum()
}

/// Whether direct memory of any is in use; not known unless all know.
pub(crate) fn direct_in_use(children: &[Rc<dyn Volume>]) -> Option<bool> {
    children.iter().try_fold(false, |any, c| Some(any | c.direct_in_use()?))
}
