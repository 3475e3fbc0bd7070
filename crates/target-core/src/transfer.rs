//! How a command's data moves between a front end's peer and local memory.

use crate::pass::Pass;
use weir_mem::{Lent, Slice};

/// The command ends without status: it was aborted, or its peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop;

/// One command's data buffers at the initiator, as the front end sees them.
pub trait Transfer {
    /// The command begins with this pass, or begins anew with another one. Waits for the peer that do not end by themselves look at
    /// it: else a peer that is slow would be taken for one that stands still, and others' task management would cut it.
    fn begins(&mut self, _pass: &Pass) {}

    /// Bytes of the initiator's DATA-OUT buffer.
    fn out_len(&self) -> u64;

    /// Bytes of the initiator's DATA-IN buffer.
    fn in_len(&self) -> u64;

    /// The whole DATA-OUT buffer, where it came with the command.
    fn immediate(&self) -> Option<Slice>;

    /// True when delivered data must not change until it has left; see
    /// `weir_fabric::Connection::needs_stable_data`.
    fn needs_stable_data(&self) -> bool;

    /// True once the command is to end without further effect.
    fn stopped(&self) -> bool;

    /// Waits until the command is [`stopped`](Transfer::stopped).
    fn halted(&self) -> impl Future<Output = ()>;

    /// A buffer for `len` bytes out of what its host has a [share](weir_mem::Share) of, to move data through. The wait for
    /// one ends with the command, when it is aborted or its peer is gone; nobody waits for one who holds another
    /// ([`weir_mem::Purse`]).
    fn buffer(&mut self, len: usize) -> impl Future<Output = Result<Lent, Stop>>;

    /// How much of `len` bytes that may go in pieces to move in one step; see [`weir_mem::Share::piece`].
    fn piece(&self, len: usize) -> usize;

    /// Moves DATA-OUT from byte `at` on into the whole of `into`; the range is inside the buffer.
    fn fetch(&mut self, at: u64, into: Slice) -> impl Future<Output = Result<(), Stop>>;

    /// Moves `from` to byte `at` of DATA-IN; the range is inside the buffer. It may still be on its way when
    /// this returns; it is there before the status.
    fn deliver(&mut self, at: u64, from: Slice) -> impl Future<Output = Result<(), Stop>>;
}
