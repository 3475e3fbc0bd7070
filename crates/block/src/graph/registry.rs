//! The kinds of layers there are.

use super::{BuildContext, GraphError, GraphErrorKind, Node, NodeSpec, Param};
use crate::Volume;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// The kind that every registry has: a [`Junction`](crate::Junction) over one child. A change of the
/// graph below it leaves everything above alone.
pub const JUNCTION: &str = "junction";

/// How many volumes a layer stands on.
pub type Arity = RangeInclusive<usize>;

/// A kind of layer: what it is called, what it wants to know, and how an instance is made.
///
/// Kinds have no state of their own: one value serves all graphs and cores.
pub trait LayerKind: Sync {
    /// Its name in descriptions.
    fn name(&self) -> &'static str;

    /// What it does, in a sentence.
    fn about(&self) -> &'static str;

    /// What it wants to know. Whatever is not listed is refused.
    fn params(&self) -> &'static [Param] {
        &[]
    }

    /// How many volumes it stands on; `0..=0` for a leaf.
    fn children(&self) -> Arity;

    /// Checks what the list of parameters cannot express, without making anything.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self, _node: &Node<'_>) -> Result<(), GraphError> {
        Ok(())
    }

    /// True for a kind that counts what passes by itself, as `graph/node`; the graph's own
    /// [`Metering`](super::Metering) leaves it alone.
    fn counts(&self) -> bool {
        false
    }

    /// True for a layer over one volume that may come and go while hosts use what is below: it shows the volume's
    /// geometry as it is, keeps every block in its place, holds no data back, and what it did to I/O ends with it.
    fn passes(&self) -> bool {
        false
    }

    /// What this instance does to hosts' data by intent, if anything: whoever puts it under hosts must insist.
    ///
    /// # Errors
    /// A parameter cannot be read.
    fn harm(&self, _node: &Node<'_>) -> Result<Option<&'static str>, GraphError> {
        Ok(None)
    }

    /// Makes the layer's instance on the present reactor. State that all cores' instances share
    /// belongs to [`BuildContext::shared`] under [`Node::key`].
    ///
    /// # Errors
    /// A resource was refused, or the volumes below do not suit.
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError>;
}

/// The kinds of layers that graphs may use.
pub struct Registry {
    kinds: Vec<&'static dyn LayerKind>,
}

impl Default for Registry {
    fn default() -> Self {
        Registry::new()
    }
}

impl Registry {
    /// Only the [`JUNCTION`].
    pub fn new() -> Registry {
        Registry { kinds: vec![&JunctionKind] }
    }

    /// With one more kind.
    ///
    /// # Panics
    /// When its name is taken.
    #[must_use]
    pub fn with(mut self, kind: &'static dyn LayerKind) -> Registry {
        assert!(self.get(kind.name()).is_err(), "two kinds of layer called `{}`", kind.name());
        self.kinds.push(kind);
        self
    }

    /// The kind of that name.
    ///
    /// # Errors
    /// [`GraphErrorKind::UnknownKind`].
    pub fn get(&self, name: &str) -> Result<&'static dyn LayerKind, GraphError> {
        self.kinds.iter().find(|k| k.name() == name).copied().ok_or_else(|| {
            let names: Vec<_> = self.kinds.iter().map(|k| k.name()).collect();
            GraphError::new(
                GraphErrorKind::UnknownKind,
                format!("there is no layer `{name}`; there are {}", names.join(", ")),
            )
        })
    }

    /// Why a kind of layer cannot be put over a volume that hosts use; none: it can.
    pub fn refusal(&self, kind: &dyn LayerKind) -> Option<&'static str> {
        match kind.children() {
            _ if kind.passes() => None,
            c if *c.end() == 0 => {
                Some("keeps data of its own, which would take the place of the volume's")
            }
            c if *c.end() > 1 => Some("puts several volumes together"),
            _ => Some("changes what hosts see of the volume, or has no effect there"),
        }
    }

    /// Whether a layer may be put over a volume that hosts use.
    ///
    /// # Errors
    /// What speaks against it: the kind, a parameter, or, unless `insisted`, what it does to data.
    pub fn check_passing(&self, spec: &NodeSpec, insisted: bool) -> Result<(), GraphError> {
        let kind = self.get(&spec.kind).map_err(|e| e.at(&spec.id))?;
        let node = Node::new("", spec, kind);
        if let Some(why) = self.refusal(kind) {
            let message = format!("`{}` {why}, so it cannot come and go under hosts", kind.name());
            return Err(node.error(GraphErrorKind::Unsuitable, message));
        }
        node.check_params()?;
        kind.check(&node).map_err(|e| e.at(&spec.id))?;
        match kind.harm(&node)? {
            Some(harm) if !insisted => {
                Err(node.error(GraphErrorKind::Unsuitable, format!("it {harm}")))
            }
            _ => Ok(()),
        }
    }

    /// All kinds with their parameters, as a table in Markdown.
    pub fn reference(&self) -> String {
        let mut out =
            String::from("| layer | parameter | value; default | meaning |\n|---|---|---|---|\n");
        for k in self.kinds() {
            let _ = writeln!(out, "| **{}** | | | {} |", k.name(), k.about());
            for p in k.params() {
                let _ = writeln!(out, "| | `{}` | {} | {} |", p.name, p.describe(), p.help);
            }
        }
        out
    }

    /// All kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static dyn LayerKind> + '_ {
        self.kinds.iter().copied()
    }
}

struct JunctionKind;

impl LayerKind for JunctionKind {
    fn name(&self) -> &'static str {
        JUNCTION
    }
    fn about(&self) -> &'static str {
        "a place where what is below can be changed under I/O, without touching what is above"
    }
    fn children(&self) -> Arity {
        1..=1
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        // Graphs make junctions themselves, because they keep them to swap at; this serves a caller
        // that builds a single node.
        let child = children.into_iter().next();
        let child =
            child.ok_or_else(|| node.error(GraphErrorKind::Children, "a junction has a child"))?;
        Ok(Rc::new(crate::Junction::new(child)))
    }
}
