//! Buffer descriptor tables: from two scatter-gather lists, the initiator's and ours, to RDMA
//! operations.
//!
//! One transfer covers a window of the command's data. Each RDMA operation names one remote range and
//! one local range, so the window is cut at the boundaries of both lists and at the largest operation.
use core::fmt;

use crate::types::Descriptor;

#[cfg(test)]
mod tests;

/// A piece of local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Segment {
    /// Where it starts, in the caller's terms (an address, an offset in a buffer).
    pub base: u64,
    /// Bytes.
    pub len: u32,
}

/// One RDMA READ or WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RdmaOp {
    /// Remote address.
    pub remote: u64,
    /// Remote key.
    pub key: u32,
    /// Index of the local segment.
    pub segment: usize,
    /// Where the local range starts: the segment's base and the offset in it.
    pub local: u64,
    /// Bytes, at least 1.
    pub len: u32,
}

/// Why a window cannot be transferred. Found before the first operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkError {
    /// The window ends behind the remote list.
    RemoteShort {
        /// Where the window ends.
        needed: u64,
        /// Bytes in the list.
        got: u64,
    },
    /// The window is longer than the local segments.
    LocalShort {
        /// Length of the window.
        needed: u64,
        /// Bytes in the segments.
        got: u64,
    },
    /// Offset and length of the window, or a remote or local range, exceed 64 bits.
    Wraps,
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WalkError::RemoteShort { needed, got } => {
                write!(f, "the transfer ends at byte {needed}, the descriptors at {got}")
            }
            WalkError::LocalShort { needed, got } => {
                write!(f, "the transfer is {needed} bytes, the local buffer {got}")
            }
            WalkError::Wraps => f.write_str("a range wraps around the address space"),
        }
    }
}

impl std::error::Error for WalkError {}

/// Iterator over the RDMA operations of a window. It allocates nothing; cloning it restarts nothing
/// and is cheap, so operations may be counted ahead.
#[derive(Debug, Clone)]
pub struct Walk<R, L> {
    remote: R,
    local: L,
    at_remote: Descriptor,
    at_local: Segment,
    /// Number of the segment after `at_local`.
    next_segment: usize,
    left: u64,
    max_op: u32,
}

impl<R, L> Walk<R, L>
where
    R: Iterator<Item = Descriptor> + Clone,
    L: Iterator<Item = Segment> + Clone,
{
    /// The operations for the `len` bytes of the command's data from `offset` on. Local memory is used
    /// from the start of the first segment. No operation is longer than `max_op` bytes; 0 means no
    /// limit.
    ///
    /// Both lists are checked as far as the window reaches before anything is yielded.
    pub fn new(
        remote: impl IntoIterator<IntoIter = R>,
        local: impl IntoIterator<IntoIter = L>,
        offset: u64,
        len: u64,
        max_op: u32,
    ) -> Result<Self, WalkError> {
        let (mut remote, local) = (remote.into_iter(), local.into_iter());
        let end = offset.checked_add(len).ok_or(WalkError::Wraps)?;
        check_remote(remote.clone(), end)?;
        check_local(local.clone(), len)?;
        let mut at_remote = Descriptor::default();
        let mut skip = offset;
        if len > 0 {
            for d in remote.by_ref() {
                if skip < u64::from(d.len) {
                    // `skip` is below a 32-bit length here.
                    at_remote = Descriptor {
                        addr: d.addr.wrapping_add(skip),
                        key: d.key,
                        len: d.len - skip as u32,
                    };
                    break;
                }
                skip -= u64::from(d.len);
            }
        }
        let max_op = if max_op == 0 { u32::MAX } else { max_op };
        Ok(Walk {
            remote,
            local,
            at_remote,
            at_local: Segment::default(),
            next_segment: 0,
            left: len,
            max_op,
        })
    }

    /// Bytes not yet covered by an operation.
    pub fn left(&self) -> u64 {
        self.left
    }
}

fn check_remote(list: impl Iterator<Item = Descriptor>, needed: u64) -> Result<(), WalkError> {
    let mut got = 0u64;
    if needed == 0 {
        return Ok(());
    }
    for d in list {
        if d.wraps() {
            return Err(WalkError::Wraps);
        }
        got = got.saturating_add(u64::from(d.len));
        if got >= needed {
            return Ok(());
        }
    }
    Err(WalkError::RemoteShort { needed, got })
}

fn check_local(list: impl Iterator<Item = Segment>, needed: u64) -> Result<(), WalkError> {
    let mut got = 0u64;
    if needed == 0 {
        return Ok(());
    }
    for s in list {
        if s.len > 0 && s.base.checked_add(u64::from(s.len) - 1).is_none() {
            return Err(WalkError::Wraps);
        }
        got = got.saturating_add(u64::from(s.len));
        if got >= needed {
            return Ok(());
        }
    }
    Err(WalkError::LocalShort { needed, got })
}

impl<R, L> Iterator for Walk<R, L>
where
    R: Iterator<Item = Descriptor>,
    L: Iterator<Item = Segment>,
{
    type Item = RdmaOp;

    #[inline]
    fn next(&mut self) -> Option<RdmaOp> {
        if self.left == 0 {
            return None;
        }
        // Both lists were found long enough, so neither ends before the window.
        while self.at_remote.len == 0 {
            self.at_remote = self.remote.next()?;
        }
        while self.at_local.len == 0 {
            self.at_local = self.local.next()?;
            self.next_segment += 1;
        }
        let window = u32::try_from(self.left).unwrap_or(u32::MAX);
        let len = self.at_remote.len.min(self.at_local.len).min(self.max_op).min(window);
        let op = RdmaOp {
            remote: self.at_remote.addr,
            key: self.at_remote.key,
            segment: self.next_segment - 1,
            local: self.at_local.base,
            len,
        };
        // The address may come to rest just behind the last byte of the address space.
        self.at_remote.addr = self.at_remote.addr.wrapping_add(u64::from(len));
        self.at_remote.len -= len;
        self.at_local.base = self.at_local.base.wrapping_add(u64::from(len));
        self.at_local.len -= len;
        self.left -= u64::from(len);
        Some(op)
    }
}
