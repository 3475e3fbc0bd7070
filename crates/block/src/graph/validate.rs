//! Checks of a description, before anything is made.

use super::{GraphError, GraphErrorKind, GraphSpec, LayerKind, Node, Registry};
use std::collections::BTreeMap;

/// Most nodes of a graph.
pub const MAX_NODES: usize = 1024;
/// Most layers above each other.
pub const MAX_DEPTH: usize = 64;
/// Longest name of a graph or node, in bytes.
const MAX_NAME: usize = 64;

fn structure(message: String) -> GraphError {
    GraphError::new(GraphErrorKind::Structure, message)
}

fn check_name(what: &str, name: &str) -> Result<(), GraphError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) {
        return Err(structure(format!(
            "`{name}` is no name for a {what}: it takes 1 to {MAX_NAME} letters, digits, `.`, `_` and `-`"
        )));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    New,
    Open,
    Done,
}

struct Walk<'a> {
    spec: &'a GraphSpec,
    index: BTreeMap<&'a str, usize>,
    mark: Vec<Mark>,
    path: Vec<&'a str>,
    order: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, i: usize) -> Result<(), GraphError> {
        let node = &self.spec.nodes[i];
        self.path.push(&node.id);
        match self.mark[i] {
            Mark::Done => {}
            Mark::Open => {
                let start = self.path.iter().position(|p| *p == node.id).unwrap_or(0);
                let cycle = self.path[start..].join(" over ");
                return Err(structure(format!("a volume cannot stand on itself: {cycle}")));
            }
            Mark::New => {
                if self.path.len() > MAX_DEPTH {
                    return Err(structure(format!(
                        "more than {MAX_DEPTH} layers above each other"
                    )));
                }
                self.mark[i] = Mark::Open;
                for c in &node.children {
                    let child = self.index.get(c.as_str()).copied();
                    let child = child
                        .ok_or_else(|| structure(format!("there is no node `{c}`")).at(&node.id))?;
                    self.visit(child)?;
                }
                self.mark[i] = Mark::Done;
                self.order.push(i);
            }
        }
        self.path.pop();
        Ok(())
    }
}

impl Registry {
    /// Checks a description: names, edges, cycles, kinds, numbers of children, parameters. Gives the
    /// nodes' indices in an order in which every node comes after those below it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self, spec: &GraphSpec) -> Result<Vec<usize>, GraphError> {
        if spec.version != super::VERSION {
            return Err(GraphError::new(
                GraphErrorKind::Version,
                format!("version {} of a graph description is not known", spec.version),
            ));
        }
        check_name("graph", &spec.name)?;
        if spec.nodes.len() > MAX_NODES {
            return Err(structure(format!("more than {MAX_NODES} nodes")));
        }
        let mut index = BTreeMap::new();
        for (i, n) in spec.nodes.iter().enumerate() {
            check_name("node", &n.id)?;
            if index.insert(n.id.as_str(), i).is_some() {
                return Err(structure(format!("two nodes are called `{}`", n.id)));
            }
        }
        let top = index.get(spec.top.as_str()).copied();
        let top = top.ok_or_else(|| structure(format!("the top `{}` is no node", spec.top)))?;
        let mark = vec![Mark::New; spec.nodes.len()];
        let mut walk = Walk { spec, index, mark, path: Vec::new(), order: Vec::new() };
        walk.visit(top)?;
        if let Some(i) = walk.mark.iter().position(|m| *m == Mark::New) {
            let id = &spec.nodes[i].id;
            return Err(structure(format!("it is not below the top `{}`", spec.top)).at(id));
        }
        for n in &spec.nodes {
            let kind = self.get(&n.kind).map_err(|e| e.at(&n.id))?;
            let node = Node::new(&spec.name, n, kind);
            check_arity(&node, kind, n.children.len())?;
            node.check_params()?;
            kind.check(&node).map_err(|e| e.at(&n.id))?;
        }
        Ok(walk.order)
    }
}

fn check_arity(node: &Node<'_>, kind: &dyn LayerKind, n: usize) -> Result<(), GraphError> {
    let arity = kind.children();
    if arity.contains(&n) {
        return Ok(());
    }
    let wants = match (*arity.start(), *arity.end()) {
        (0, 0) => "is a leaf and stands on nothing".to_owned(),
        (a, b) if a == b => format!("stands on {a}"),
        (a, usize::MAX) => format!("stands on {a} or more"),
        (a, b) => format!("stands on {a} to {b}"),
    };
    Err(node.error(GraphErrorKind::Children, format!("`{}` {wants}, not on {n}", kind.name())))
}
