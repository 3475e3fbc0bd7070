//! Instances of graphs.

use super::{BuildContext, GraphError, GraphSpec, HOSTS, JUNCTION, Metering, Node, NodeSpec};
use crate::{Junction, Metered, Volume};
use std::collections::BTreeMap;
use std::rc::Rc;

/// One layer's instance.
#[derive(Clone)]
pub(super) struct Built {
    pub(super) spec: NodeSpec,
    /// What the kind made.
    pub(super) bare: Rc<dyn Volume>,
    /// What the layers above stand on: the same, or a counter over it.
    pub(super) volume: Rc<dyn Volume>,
    /// What it is counted as.
    metered: Option<String>,
    /// What it was built over.
    pub(super) children: Vec<Rc<dyn Volume>>,
    junction: Option<Rc<Junction>>,
}

pub(super) type Nodes = BTreeMap<String, Built>;

/// What is to be below a junction.
pub(super) struct Swap {
    /// The node, or the graph for its top.
    pub(super) name: String,
    pub(super) junction: Rc<Junction>,
    pub(super) new: Rc<dyn Volume>,
}

/// A graph's instance on one reactor.
///
/// Front ends use [`top`](Graph::top), a [`Junction`] that stays the same when the graph is changed
/// ([`prepare`](Graph::prepare), [`apply`](Graph::apply)). Dropping the graph leaves the top usable
/// for whoever still holds it; state that cores share stays in [`Shared`](super::Shared).
pub struct Graph {
    pub(super) spec: GraphSpec,
    pub(super) nodes: Nodes,
    pub(super) top: Rc<Junction>,
}

impl Graph {
    /// Makes the instance on the present reactor.
    ///
    /// # Errors
    /// The description is wrong, or a layer could not be made; nothing is left then but shared state.
    pub fn build(spec: GraphSpec, ctx: &BuildContext<'_>) -> Result<Graph, GraphError> {
        let (nodes, _) = make(&spec, ctx, None)?;
        let top = nodes[&spec.top].volume.clone();
        Ok(Graph { spec, nodes, top: Rc::new(Junction::new(top)) })
    }

    /// What front ends use.
    pub fn top(&self) -> Rc<dyn Volume> {
        self.top.clone()
    }

    /// The junction that the top is.
    pub fn top_junction(&self) -> &Rc<Junction> {
        &self.top
    }

    /// The description that this is an instance of.
    pub fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// A node's volume as the layers above it see it.
    pub fn node(&self, id: &str) -> Option<Rc<dyn Volume>> {
        self.nodes.get(id).map(|b| b.volume.clone())
    }
}

/// A node's place: on whose child's place it stands, in order; nobody's at the top.
fn place<'a>(spec: &'a GraphSpec, id: &str) -> Vec<(&'a str, usize)> {
    let edges = spec.nodes.iter().flat_map(|n| {
        n.children.iter().enumerate().map(move |(i, c)| (c.as_str(), (n.id.as_str(), i)))
    });
    let mut all: Vec<_> = edges.filter(|(c, _)| *c == id).map(|(_, edge)| edge).collect();
    all.sort_unstable();
    all
}

/// Makes the nodes of `spec`, using those of `old` again that are the same down to the leaves, or down
/// to a junction in its old place. Gives what junctions of `old` are to be swapped to, the upper ones
/// first.
pub(super) fn make(
    spec: &GraphSpec,
    ctx: &BuildContext<'_>,
    graph: Option<&Graph>,
) -> Result<(Nodes, Vec<Swap>), GraphError> {
    let order = ctx.registry.validate(spec)?;
    let none = Nodes::new();
    let old = graph.map_or(&none, |g| &g.nodes);
    let mut nodes = Nodes::new();
    let mut swaps = Vec::new();
    for i in order {
        let n = &spec.nodes[i];
        let children: Vec<_> = n.children.iter().map(|c| nodes[c].volume.clone()).collect();
        let before = old.get(&n.id).filter(|b| b.spec.kind == n.kind);
        let junction = before.and_then(|b| b.junction.clone());
        let kept = match (before, junction) {
            (Some(b), Some(_)) if same(&b.children, &children) => Some(b),
            // One that moved is another one: it stood for something else.
            (Some(b), Some(junction))
                if graph.is_some_and(|g| place(&g.spec, &n.id) == place(spec, &n.id)) =>
            {
                let new = children[0].clone();
                swaps.push(Swap { name: n.id.clone(), junction, new });
                Some(b)
            }
            (Some(b), None) if b.spec == *n && same(&b.children, &children) => Some(b),
            _ => None,
        };
        let metered = match ctx.metering {
            Metering::Served if n.id == spec.top => Some(format!("{}/{HOSTS}", spec.name)),
            _ if ctx.registry.get(&n.kind)?.counts() => None,
            Metering::Off => None,
            Metering::Top if n.id != spec.top => None,
            Metering::Top | Metering::All | Metering::Served => {
                Some(format!("{}/{}", spec.name, n.id))
            }
        };
        let built = match kept {
            Some(b) if b.metered == metered => Built { spec: n.clone(), children, ..b.clone() },
            Some(b) => {
                let volume = meter(ctx, metered.as_deref(), &b.bare);
                Built { spec: n.clone(), children, volume, metered, ..b.clone() }
            }
            None => one(spec, n, ctx, children, metered)?,
        };
        nodes.insert(n.id.clone(), built);
    }
    // From the top down, as the graph stands now: the order that quiescing needs.
    let order = graph.map(|g| ctx.registry.validate(&g.spec)).transpose()?.unwrap_or_default();
    let height = |s: &Swap| {
        let i = graph.and_then(|g| g.spec.nodes.iter().position(|n| n.id == s.name));
        order.iter().position(|o| Some(*o) == i)
    };
    swaps.sort_by_key(|s| std::cmp::Reverse(height(s)));
    Ok((nodes, swaps))
}

fn same(a: &[Rc<dyn Volume>], b: &[Rc<dyn Volume>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Rc::ptr_eq(a, b))
}

fn meter(ctx: &BuildContext<'_>, metered: Option<&str>, bare: &Rc<dyn Volume>) -> Rc<dyn Volume> {
    let Some(key) = metered else { return bare.clone() };
    Rc::new(Metered::new(bare.clone(), ctx.shared.meters().counters(key)))
}

fn one(
    spec: &GraphSpec,
    n: &NodeSpec,
    ctx: &BuildContext<'_>,
    children: Vec<Rc<dyn Volume>>,
    metered: Option<String>,
) -> Result<Built, GraphError> {
    let (junction, bare) = if n.kind == JUNCTION {
        let j = Rc::new(Junction::new(children[0].clone()));
        (Some(j.clone()), j as Rc<dyn Volume>)
    } else {
        let kind = ctx.registry.get(&n.kind)?;
        let node = Node::new(&spec.name, n, kind);
        (None, kind.build(ctx, &node, children.clone()).map_err(|e| e.at(&n.id))?)
    };
    let volume = meter(ctx, metered.as_deref(), &bare);
    Ok(Built { spec: n.clone(), bare, volume, metered, children, junction })
}
