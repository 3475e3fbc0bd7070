//! What can be wrong with a graph.

use std::fmt;

/// The class of a [`GraphError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphErrorKind {
    /// The text is no graph description.
    Syntax,
    /// The description is of a version that this program does not know.
    Version,
    /// Names, edges, cycles, sizes of the graph itself.
    Structure,
    /// No layer of that kind is registered.
    UnknownKind,
    /// A parameter is missing, unknown, of the wrong type or out of range.
    Param,
    /// The number or nature of the volumes below does not suit the layer.
    Children,
    /// A disk could not be opened or does not suit.
    Disk,
    /// Memory or another resource of the machine was refused.
    Resource,
    /// The new graph cannot take the place of the old one.
    Incompatible,
    /// The layer may not be put where it is wanted.
    Unsuitable,
    /// A layer's first I/O did not do what the volume below does.
    Trial,
    /// The change was given up because I/O did not end in time.
    Timeout,
}

/// Why a graph cannot be read, built or changed: a sentence for people, a kind for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphError {
    kind: GraphErrorKind,
    node: Option<String>,
    message: String,
}

impl GraphError {
    /// An error of the graph as a whole.
    pub fn new(kind: GraphErrorKind, message: impl Into<String>) -> GraphError {
        GraphError { kind, node: None, message: message.into() }
    }

    /// Says which node it is about, unless that is known already.
    #[must_use]
    pub fn at(mut self, node: &str) -> GraphError {
        self.node.get_or_insert_with(|| node.to_owned());
        self
    }

    /// The class.
    pub fn kind(&self) -> GraphErrorKind {
        self.kind
    }

    /// The node that it is about.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(n) => write!(f, "node `{n}`: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for GraphError {}
