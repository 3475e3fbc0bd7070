//! The NBD protocol: the transmission phase as Linux's driver speaks it, requests of 28 bytes and simple replies of 16
//! (NBD protocol, "Transmission phase"; linux/nbd.h), and the server's side of the [handshake](Handshake) before it. A
//! socket that the driver was given has no handshake. Clients may choose structured [replies](structured).
//!
//! Bytes in, requests out; nothing here waits or panics, and nothing of the transmission phase allocates.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod fuzzing;
pub mod handshake;
mod intake;
pub mod structured;

pub use handshake::{Agreed, Export, Handshake, Step};
pub use intake::{Intake, Item};

/// Bytes of a request before its data.
pub const REQUEST: usize = 28;
/// Bytes of a reply before its data.
pub const REPLY: usize = 16;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Flags that the driver, or a client in the handshake, is told about the export.
pub mod flags {
    /// The others mean something.
    pub const HAS_FLAGS: u64 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u64 = 1 << 1;
    /// Flushes are understood: there is a volatile cache.
    pub const FLUSH: u64 = 1 << 2;
    /// Forced unit access is understood.
    pub const FUA: u64 = 1 << 3;
    /// Discards are understood.
    pub const TRIM: u64 = 1 << 5;
    /// Writes of zeroes are understood.
    pub const WRITE_ZEROES: u64 = 1 << 6;
    /// Reads can be answered in one piece.
    pub const DF: u64 = 1 << 7;
    /// Asking for data ahead is understood.
    pub const CACHE: u64 = 1 << 10;
    /// A flush on one connection covers what was done on all; several connections may be used.
    pub const MULTI_CONN: u64 = 1 << 8;
}

/// What the driver wants. Addresses and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Data from the medium.
    Read,
    /// Data to the medium, which follows the request.
    Write {
        /// It is on the medium at the end.
        fua: bool,
    },
    /// The end of the connection, which is not answered.
    Disconnect,
    /// Everything that was answered before is on the medium at the end.
    Flush,
    /// Space may be given back.
    Trim {
        /// That is on the medium at the end.
        fua: bool,
    },
    /// Zeroes are read there afterwards.
    WriteZeroes {
        /// They are on the medium at the end.
        fua: bool,
        /// Space may be given back.
        unmap: bool,
    },
    /// Data will be read soon.
    Cache,
    /// Where there is space behind the range.
    BlockStatus {
        /// Of its begin only.
        one: bool,
    },
    /// Something else, which is answered with an error.
    Unknown(u16),
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What is wanted.
    pub op: Op,
    /// Names the request in its reply; the driver's own.
    pub cookie: [u8; 8],
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// The stream makes no sense; the connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// What was there in place of a request's magic number.
    pub found: u32,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x} is no begin of an NBD request", self.found)
    }
}

impl std::error::Error for Broken {}

const FUA: u16 = 1;
const NO_HOLE: u16 = 1 << 1;
const REQ_ONE: u16 = 1 << 3;

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// It does not begin as one.
    pub fn decode(b: &[u8; REQUEST]) -> Result<Request, Broken> {
        let [m0, m1, m2, m3, f0, f1, t0, t1, c0, c1, c2, c3, c4, c5, c6, c7, rest @ ..] = *b;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3] = rest;
        let found = u32::from_be_bytes([m0, m1, m2, m3]);
        if found != REQUEST_MAGIC {
            return Err(Broken { found });
        }
        let flags = u16::from_be_bytes([f0, f1]);
        let fua = flags & FUA != 0;
        let op = match u16::from_be_bytes([t0, t1]) {
            0 => Op::Read,
            1 => Op::Write { fua },
            2 => Op::Disconnect,
            3 => Op::Flush,
            4 => Op::Trim { fua },
            5 => Op::Cache,
            7 => Op::BlockStatus { one: flags & REQ_ONE != 0 },
            6 => Op::WriteZeroes { fua, unmap: flags & NO_HOLE == 0 },
            other => Op::Unknown(other),
        };
        Ok(Request {
            op,
            cookie: [c0, c1, c2, c3, c4, c5, c6, c7],
            at: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// The request as it is on the wire.
    pub fn encode(&self) -> [u8; REQUEST] {
        let (code, flags) = match self.op {
            Op::Read => (0, 0),
            Op::Write { fua } => (1, u16::from(fua)),
            Op::Disconnect => (2, 0),
            Op::Flush => (3, 0),
            Op::Trim { fua } => (4, u16::from(fua)),
            Op::WriteZeroes { fua, unmap } => (6, u16::from(fua) | if unmap { 0 } else { NO_HOLE }),
            Op::Cache => (5, 0),
            Op::BlockStatus { one } => (7, if one { REQ_ONE } else { 0 }),
            Op::Unknown(code) => (code, 0),
        };
        let mut b = [0; REQUEST];
        let mut put = |at: usize, bytes: &[u8]| {
            b.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        put(0, &REQUEST_MAGIC.to_be_bytes());
        put(4, &u16::to_be_bytes(flags));
        put(6, &u16::to_be_bytes(code));
        put(8, &self.cookie);
        put(16, &self.at.to_be_bytes());
        put(24, &self.len.to_be_bytes());
        b
    }

    /// Bytes of data that follow the request.
    pub fn payload(&self) -> u32 {
        if matches!(self.op, Op::Write { .. }) { self.len } else { 0 }
    }
}

/// A reply: `error` is 0, or an error number that the protocol knows. The data of a read that went well follow it.
pub fn reply(cookie: [u8; 8], error: u32) -> [u8; REPLY] {
    let [m0, m1, m2, m3] = REPLY_MAGIC.to_be_bytes();
    let [e0, e1, e2, e3] = error.to_be_bytes();
    let [c0, c1, c2, c3, c4, c5, c6, c7] = cookie;
    [m0, m1, m2, m3, e0, e1, e2, e3, c0, c1, c2, c3, c4, c5, c6, c7]
}

/// The protocol's number for an error of the operating system: those that it knows are the same, others are EIO.
pub fn error_number(errno: i32) -> u32 {
    match errno {
        // EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, EOPNOTSUPP, ESHUTDOWN
        1 | 5 | 12 | 22 | 28 | 75 | 95 | 108 => errno.unsigned_abs(),
        // EROFS
        30 => 1,
        _ => 5,
    }
}

#[cfg(test)]
mod tests;
