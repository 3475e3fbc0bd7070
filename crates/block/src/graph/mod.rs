//! The device graph: description, checks, instances on reactors, changes under I/O.

mod build;
mod context;
mod edit;
mod error;
mod node;
mod registry;
mod render;
mod spec;
mod trial;
mod validate;
mod value;

pub use build::Graph;
pub use context::{BuildContext, DiskOpener, DiskSpec, HOSTS, Metering, Shared};
pub use edit::Edit;
pub use error::{GraphError, GraphErrorKind};
pub use node::{IfAbsent, Node, Param, ParamKind};
pub use registry::{Arity, JUNCTION, LayerKind, Registry};
pub use spec::{GraphSpec, NodeSpec, VERSION};
pub use trial::Rehearsal;
pub use validate::{MAX_DEPTH, MAX_NODES};
pub use value::Value;

#[cfg(test)]
mod tests;
