//! The data plane: reactors on threads, and what the control plane asks of them.

mod devices;
mod door;
#[cfg(test)]
mod ends;
mod graph;
mod layers;
mod local;
mod moves;
mod node;
#[cfg(test)]
mod other_pool;
mod ports;
mod remote;
mod seam;
mod sizes;
mod status;
mod store;
mod unanswered;
mod watchdog;

pub(crate) use node::{Node, NodeConfig};
pub(crate) use remote::initiator_of;
