//! The description of a graph: what is kept on disk and shown to people.

use super::{GraphError, GraphErrorKind, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the description that this program writes.
pub const VERSION: u32 = 1;

/// One volume as a directed acyclic graph of layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// [`VERSION`].
    pub version: u32,
    /// The volume's name, unique in the process: state that cores share is kept under it.
    pub name: String,
    /// The node that front ends see.
    pub top: String,
    /// All nodes, in any order.
    pub nodes: Vec<NodeSpec>,
}

/// One layer of a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name, unique in the graph.
    pub id: String,
    /// The registered kind of layer.
    pub kind: String,
    /// What the kind wants to know.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Value>,
    /// The nodes below, in the kind's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<String>,
}

impl NodeSpec {
    /// A node without parameters and children.
    pub fn new(id: &str, kind: &str) -> NodeSpec {
        NodeSpec {
            id: id.to_owned(),
            kind: kind.to_owned(),
            params: BTreeMap::new(),
            children: Vec::new(),
        }
    }

    /// With a parameter.
    #[must_use]
    pub fn param(mut self, name: &str, value: impl Into<Value>) -> NodeSpec {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// With one more node below.
    #[must_use]
    pub fn over(mut self, child: &str) -> NodeSpec {
        self.children.push(child.to_owned());
        self
    }
}

impl GraphSpec {
    /// A graph without nodes, whose top is to be the node `top`.
    pub fn new(name: &str, top: &str) -> GraphSpec {
        GraphSpec {
            version: VERSION,
            name: name.to_owned(),
            top: top.to_owned(),
            nodes: Vec::new(),
        }
    }

    /// With one more node.
    #[must_use]
    pub fn with(mut self, node: NodeSpec) -> GraphSpec {
        self.nodes.push(node);
        self
    }

    /// The node of that name.
    pub fn node(&self, id: &str) -> Option<&NodeSpec> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// The node of that name, to be changed.
    pub fn node_mut(&mut self, id: &str) -> Option<&mut NodeSpec> {
        self.nodes.iter_mut().find(|n| n.id == id)
    }

    /// As JSON, one line for each thing.
    #[expect(clippy::expect_used, reason = "these types always have a JSON form")]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings, numbers and lists have a JSON form")
    }

    /// From JSON.
    ///
    /// # Errors
    /// It is not JSON, not a graph, or of a version this program does not know. Whether the graph
    /// makes sense, [`Registry::validate`](super::Registry::validate) tells.
    pub fn from_json(text: &str) -> Result<GraphSpec, GraphError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let syntax = |e: serde_json::Error| {
            GraphError::new(GraphErrorKind::Syntax, format!("not a graph description: {e}"))
        };
        let head: Head = serde_json::from_str(text).map_err(syntax)?;
        if head.version != VERSION {
            return Err(GraphError::new(
                GraphErrorKind::Version,
                format!(
                    "the graph description has version {}, this program knows version {VERSION}",
                    head.version
                ),
            ));
        }
        serde_json::from_str(text).map_err(syntax)
    }

    /// Puts `node` on the edge from `above` to `below`, as `above`'s child and over `below`. With
    /// `above` absent it becomes the top, over the node that was.
    ///
    /// # Errors
    /// There is no such edge.
    pub fn insert(
        &mut self,
        node: NodeSpec,
        above: Option<&str>,
        below: &str,
    ) -> Result<(), GraphError> {
        let id = node.id.clone();
        self.redirect(above, below, &id)?;
        self.nodes.push(node.over(below));
        Ok(())
    }

    /// Takes a node of one child out: whoever stood on it stands on its child.
    ///
    /// # Errors
    /// There is no such node, or it has not exactly one child.
    pub fn remove(&mut self, id: &str) -> Result<(), GraphError> {
        let missing = || structure(format!("there is no node `{id}`"));
        let node = self.node(id).ok_or_else(missing)?;
        let [child] = node.children.as_slice() else {
            return Err(structure(format!(
                "`{id}` has {} children; only a node with one can be taken out",
                node.children.len()
            )));
        };
        let child = child.clone();
        self.nodes.retain(|n| n.id != id);
        for c in self.nodes.iter_mut().flat_map(|n| &mut n.children) {
            if c == id {
                c.clone_from(&child);
            }
        }
        if self.top == id {
            self.top = child;
        }
        Ok(())
    }

    fn redirect(&mut self, above: Option<&str>, below: &str, to: &str) -> Result<(), GraphError> {
        let Some(above) = above else {
            if self.top != below {
                return Err(structure(format!("the top is `{}`, not `{below}`", self.top)));
            }
            self.top = to.to_owned();
            return Ok(());
        };
        let node = self.node_mut(above);
        let node = node.ok_or_else(|| structure(format!("there is no node `{above}`")))?;
        let edge = node.children.iter_mut().find(|c| *c == below);
        *edge.ok_or_else(|| structure(format!("`{below}` is not below `{above}`")))? =
            to.to_owned();
        Ok(())
    }
}

fn structure(message: String) -> GraphError {
    GraphError::new(GraphErrorKind::Structure, message)
}
