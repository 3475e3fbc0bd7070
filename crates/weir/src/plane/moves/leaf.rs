//! A volume that moves as a leaf of the device graph, on whatever reactor.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_block::{
    Arity, BuildContext, GraphError, GraphErrorKind, LayerKind, Node, Param, ParamKind, Shared,
    Volume,
};
use weir_layers::remote::Entrance;

/// Name of the kind.
pub(crate) const KIND: &str = "migrating";

/// Ways to the migrations of the process, by volume.
#[derive(Default)]
pub(super) struct Entrances(Mutex<BTreeMap<String, Entrance>>);

impl Entrances {
    /// Those of the process.
    pub(super) fn of(shared: &Shared) -> Arc<Entrances> {
        shared.get_or("migrations", Entrances::default)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Entrance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self, volume: &str, entrance: Entrance) {
        self.all().insert(volume.to_owned(), entrance);
    }

    pub(super) fn close(&self, volume: &str) {
        self.all().remove(volume);
    }
}

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[Param::required("volume", ParamKind::Text, "the volume that moves")];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        KIND
    }
    fn about(&self) -> &'static str {
        "a volume that moves from one place to another"
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
        let volume = node.text("volume")?;
        let entrance = Entrances::of(ctx.shared).all().get(&volume).cloned();
        let none = || node.error(GraphErrorKind::Disk, format!("volume `{volume}` does not move"));
        // Also at home by way of a handle: what a host gives up is done on both sides or on none.
        entrance.map(|e| e.handle()).ok_or_else(none)
    }
}
