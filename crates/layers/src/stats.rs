//! `stats`: counts what passes, per core.

use std::rc::Rc;
use weir_block::{
    Arity, BuildContext, GraphError, GraphErrorKind, LayerKind, Metered, Node, Volume,
};

/// The kind.
pub(crate) struct Kind;

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "stats"
    }
    fn about(&self) -> &'static str {
        "counts I/Os, bytes, errors and latencies of what is below"
    }
    fn children(&self) -> Arity {
        1..=1
    }
    fn passes(&self) -> bool {
        true
    }
    fn counts(&self) -> bool {
        true
    }
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        mut children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let lower = children.pop();
        let lower =
            lower.ok_or_else(|| node.error(GraphErrorKind::Children, "nothing is below"))?;
        let key = format!("{}/{}", node.graph(), node.id());
        Ok(Rc::new(Metered::new(lower, ctx.shared.meters().counters(&key))))
    }
}
