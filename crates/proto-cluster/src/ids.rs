//! Numbers that must not be mixed up.

use core::fmt;

/// Number of a node in its cluster, from 1 to 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u8);

impl Node {
    /// Most nodes of a cluster.
    pub const MAX: u8 = 8;

    /// The node with this number, if there can be one.
    pub const fn new(number: u8) -> Option<Node> {
        if number >= 1 && number <= Node::MAX { Some(Node(number)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nodes(u8);

impl Nodes {
    /// No node.
    pub const NONE: Nodes = Nodes(0);

    /// This one alone.
    pub const fn only(node: Node) -> Nodes {
        Nodes(1 << (node.0 - 1))
    }

    /// From bits, of which that of node 1 is the lowest.
    pub const fn from_bits(bits: u8) -> Nodes {
        Nodes(bits)
    }

    /// As bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether `node` is one of them.
    pub const fn has(self, node: Node) -> bool {
        self.0 & Nodes::only(node).0 != 0
    }

    /// Whether all of `other` are here.
    pub const fn covers(self, other: Nodes) -> bool {
        other.0 & !self.0 == 0
    }

    /// These and `node`.
    #[must_use]
    pub const fn with(self, node: Node) -> Nodes {
        Nodes(self.0 | Nodes::only(node).0)
    }

    /// These without `node`.
    #[must_use]
    pub const fn without(self, node: Node) -> Nodes {
        Nodes(self.0 & !Nodes::only(node).0)
    }

    /// Those of either.
    #[must_use]
    pub const fn or(self, other: Nodes) -> Nodes {
        Nodes(self.0 | other.0)
    }

    /// How many.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries((1..=Node::MAX).filter_map(Node::new).filter(|n| self.has(*n)))
            .finish()
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($of:ty);)+) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $of);)+
    };
}

numbers! {
    /// One run of a node's daemon, chosen at random when it starts.
    Life(u64);
    /// Counts how often a pool was opened, by whomever. The guard of every command to a device of the partner.
    Epoch(u32);
    /// Counts changes of a register.
    Version(u64);
    /// Counts sessions of an owner to its partner's devices, within an owner epoch.
    Session(u32);
}
