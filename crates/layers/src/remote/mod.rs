//! A volume that lives on one reactor, used from others.
//!
//! [`Home`] is its owner on its own reactor; an [`Entrance`] may be given to any thread and makes a [`Volume`](weir_block::Volume)
//! there: the volume itself at home, elsewhere a handle that sends each I/O to the home reactor and completes it
//! where it was submitted.
//!
//! A pooled record carries an I/O there and back. Records that are under way lie on lock-free stacks; the
//! receiving reactor is rung when a stack was empty, so many I/Os of one turn cost one message. Buffers belong to
//! the submitter: the record holds a count on them until nothing at home refers to their memory any more, also
//! when the I/O's future was dropped long before, or when a device keeps a buffer of an operation that was given
//! up. Nothing is allocated for an I/O.

mod home;
mod port;
mod record;

pub use home::{Entrance, Home};
