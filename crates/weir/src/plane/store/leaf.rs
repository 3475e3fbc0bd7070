//! `store`: a volume of a protected pool as a leaf of device graphs, on every reactor.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use weir_block::{
    Arity, BuildContext, GraphError, GraphErrorKind, LayerKind, Node, Param, ParamKind, Shared,
    Volume,
};
use weir_layers::remote::Entrance;

/// The name of the kind.
pub(crate) const KIND: &str = "store";

/// Volumes of protected pools that are open, by pool and name on the devices.
#[derive(Default)]
pub(super) struct Doors(Mutex<BTreeMap<(String, String), Entrance>>);

impl Doors {
    /// Those of the process.
    pub(super) fn of(shared: &Shared) -> Arc<Doors> {
        shared.get_or("store doors", Doors::default)
    }

    pub(super) fn open(&self, pool: &str, dataset: &str, entrance: Entrance) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((pool.to_owned(), dataset.to_owned()), entrance);
    }

    pub(super) fn close(&self, pool: &str, dataset: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&(pool.to_owned(), dataset.to_owned()));
    }

    fn find(&self, pool: String, dataset: String) -> Option<Entrance> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(pool, dataset)).cloned()
    }
}

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required("pool", ParamKind::Text, "the protected pool"),
    Param::required("dataset", ParamKind::Text, "the volume's name on the devices"),
    // For people to see; the layers of a form are at the volume's home.
    Param::optional("deduplication", ParamKind::Text, "how its data is deduplicated there"),
    Param::optional("compression", ParamKind::Text, "how its data is compressed there"),
    Param::optional("encryption", ParamKind::Text, "how its data is encrypted there"),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        KIND
    }
    fn about(&self) -> &'static str {
        "a volume of a protected pool, on the pool's reactor or by way of it"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        0..=0
    }
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        _children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let (pool, dataset) = (node.text("pool")?, node.text("dataset")?);
        let entrance = Doors::of(ctx.shared).find(pool.clone(), dataset.clone());
        entrance.and_then(|e| e.volume()).ok_or_else(|| {
            node.error(GraphErrorKind::Disk, format!("`{dataset}` of pool `{pool}` is not open"))
        })
    }
}
