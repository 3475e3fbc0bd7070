//! The kernel's FUSE messages (linux/fuse.h, version 7): as much of them as a file system of one file needs. Sans-IO;
//! all numbers are in the machine's own order.

use crate::disk::MAX_IO;

/// Bytes before the data of a write: header and arguments.
pub(crate) const HEAD: usize = IN_HEADER + 40;
/// Bytes of a request's header.
pub(crate) const IN_HEADER: usize = 40;
/// Bytes of a reply's header.
pub(crate) const OUT_HEADER: usize = 16;
/// The root directory, and the file.
pub(crate) const ROOT: u64 = 1;
/// The one file.
pub(crate) const FILE: u64 = 2;
/// Block that the file system names as its own.
pub(crate) const BLOCK: u32 = 4096;

/// Major version.
const MAJOR: u32 = 7;
/// What is known here: as of Linux 4.20, which brought requests of a MiB.
const MINOR: u32 = 28;

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

/// Requests of asynchronous I/O that the kernel may have with us at once.
const BACKGROUND: u16 = 1024;

/// What the kernel asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ask<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u32,
    },
    Lookup {
        parent: u64,
        name: &'a [u8],
    },
    GetAttr {
        node: u64,
    },
    SetAttr {
        node: u64,
    },
    Open {
        node: u64,
    },
    Release,
    Read {
        at: u64,
        len: u32,
    },
    Write {
        at: u64,
        len: u32,
    },
    Sync,
    Allocate {
        at: u64,
        len: u64,
        mode: u32,
    },
    StatFs,
    OpenDir {
        node: u64,
    },
    ReadDir {
        from: u64,
        len: u32,
    },
    /// No reply is expected.
    Silent,
    Destroy,
    /// Anything else.
    Other,
}

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    opcode: u32,
    pub(crate) unique: u64,
    node: u64,
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    b.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

impl Header {
    /// Reads a header; `None` when it is cut short.
    pub(crate) fn parse(b: &[u8]) -> Option<Header> {
        Some(Header {
            len: u32_at(b, 0)?,
            opcode: u32_at(b, 4)?,
            unique: u64_at(b, 8)?,
            node: u64_at(b, 16)?,
        })
    }

    /// True for a write, whose data follows the arguments.
    pub(crate) fn is_write(&self) -> bool {
        self.opcode == 16
    }

    /// Reads what follows the header in `b`, the whole message but for the data of a write. `None` when it is cut
    /// short.
    pub(crate) fn ask<'a>(&self, b: &'a [u8]) -> Option<Ask<'a>> {
        let a = b.get(IN_HEADER..)?;
        Some(match self.opcode {
            1 => Ask::Lookup { parent: self.node, name: a.split(|c| *c == 0).next()? },
            // FORGET, INTERRUPT, BATCH_FORGET. An interrupted request is answered in its time.
            2 | 36 | 42 => Ask::Silent,
            3 => Ask::GetAttr { node: self.node },
            4 => Ask::SetAttr { node: self.node },
            14 => Ask::Open { node: self.node },
            15 => Ask::Read { at: u64_at(a, 8)?, len: u32_at(a, 16)? },
            16 => Ask::Write { at: u64_at(a, 8)?, len: u32_at(a, 16)? },
            17 => Ask::StatFs,
            18 | 29 => Ask::Release,
            // FSYNC, and FLUSH: a descriptor of the file is closed.
            20 | 25 => Ask::Sync,
            26 => Ask::Init {
                major: u32_at(a, 0)?,
                minor: u32_at(a, 4)?,
                readahead: u32_at(a, 8)?,
                flags: u32_at(a, 12)?,
            },
            27 => Ask::OpenDir { node: self.node },
            28 => Ask::ReadDir { from: u64_at(a, 8)?, len: u32_at(a, 16)? },
            38 => Ask::Destroy,
            43 => Ask::Allocate { at: u64_at(a, 8)?, len: u64_at(a, 16)?, mode: u32_at(a, 24)? },
            _ => Ask::Other,
        })
    }
}

/// A reply, up to its data.
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// Success, followed by `data` bytes that are sent behind it.
    pub(crate) fn head(unique: u64, data: usize) -> [u8; OUT_HEADER] {
        Reply::header(unique, OUT_HEADER + data, 0)
    }

    /// A failure with this error number, positive; or success without anything.
    pub(crate) fn error(unique: u64, errno: i32) -> [u8; OUT_HEADER] {
        Reply::header(unique, OUT_HEADER, -errno)
    }

    /// A write's success.
    pub(crate) fn written(unique: u64, len: u32) -> [u8; OUT_HEADER + 8] {
        let mut b = [0; OUT_HEADER + 8];
        b[..OUT_HEADER].copy_from_slice(&Reply::header(unique, OUT_HEADER + 8, 0));
        b[OUT_HEADER..OUT_HEADER + 4].copy_from_slice(&len.to_ne_bytes());
        b
    }

    fn header(unique: u64, len: usize, error: i32) -> [u8; OUT_HEADER] {
        let mut b = [0; OUT_HEADER];
        b[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        b[4..8].copy_from_slice(&error.to_ne_bytes());
        b[8..].copy_from_slice(&unique.to_ne_bytes());
        b
    }

    fn new() -> Reply {
        Reply(vec![0; OUT_HEADER])
    }

    fn u64(mut self, n: u64) -> Reply {
        self.0.extend(n.to_ne_bytes());
        self
    }

    fn u32(mut self, n: u32) -> Reply {
        self.0.extend(n.to_ne_bytes());
        self
    }

    fn u16(mut self, n: u16) -> Reply {
        self.0.extend(n.to_ne_bytes());
        self
    }

    fn zeros(mut self, n: usize) -> Reply {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    /// The bytes of the reply to request `unique`.
    pub(crate) fn finish(mut self, unique: u64) -> Vec<u8> {
        let header = Reply::header(unique, self.0.len(), 0);
        self.0[..OUT_HEADER].copy_from_slice(&header);
        self.0
    }

    /// The answer to INIT; `None` when the kernel is too old.
    pub(crate) fn init(major: u32, minor: u32, readahead: u32, flags: u32) -> Option<Reply> {
        if major > MAJOR {
            // It asks again with ours.
            return Some(Reply::new().u32(MAJOR).u32(MINOR).zeros(56));
        }
        if major < MAJOR || minor < MINOR || flags & MAX_PAGES == 0 {
            return None;
        }
        let pages = (MAX_IO / 4096) as u16;
        let wanted = flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES);
        let r = Reply::new().u32(MAJOR).u32(MINOR).u32(readahead).u32(wanted);
        let r = r.u16(BACKGROUND).u16(BACKGROUND / 4 * 3).u32(MAX_IO as u32);
        // Granularity of times, pages of a request, alignment of mappings, and what is not used.
        Some(r.u32(1).u16(pages).u16(0).zeros(32))
    }

    fn attr(self, node: u64, size: u64, read_only: bool) -> Reply {
        const DIR: u32 = 0o040_000;
        const REG: u32 = 0o100_000;
        let (mode, links, size) = match (node, read_only) {
            (ROOT, _) => (DIR | 0o500, 2, 0),
            (_, true) => (REG | 0o400, 1, size),
            (_, false) => (REG | 0o600, 1, size),
        };
        let r = self.u64(node).u64(size).u64(size / 512).zeros(24).zeros(12);
        r.u32(mode).u32(links).zeros(12).u32(BLOCK).u32(0)
    }

    /// Attributes, good for ever: whoever changes them tells the kernel.
    pub(crate) fn attributes(node: u64, size: u64, read_only: bool) -> Reply {
        Reply::new().u64(FOR_EVER).zeros(8).attr(node, size, read_only)
    }

    /// What a name stands for.
    pub(crate) fn entry(node: u64, size: u64, read_only: bool) -> Reply {
        let r = Reply::new().u64(node).u64(1).u64(FOR_EVER).u64(FOR_EVER).zeros(8);
        r.attr(node, size, read_only)
    }

    /// An open file or directory.
    pub(crate) fn opened() -> Reply {
        Reply::new().zeros(16)
    }

    /// The file system's size.
    pub(crate) fn statfs(size: u64) -> Reply {
        let blocks = size.div_ceil(u64::from(BLOCK));
        Reply::new().u64(blocks).zeros(16).u64(1).u64(0).u32(BLOCK).u32(255).u32(BLOCK).zeros(28)
    }

    /// What is in the directory, from entry `from` on, in at most `len` bytes.
    pub(crate) fn directory(name: &str, from: u64, len: u32) -> Reply {
        let all: [(u64, u32, &[u8]); 3] =
            [(ROOT, 4, b"."), (ROOT, 4, b".."), (FILE, 8, name.as_bytes())];
        let mut r = Reply::new();
        for (i, (node, kind, name)) in all.into_iter().enumerate().skip(from as usize) {
            let padded = name.len().next_multiple_of(8);
            if r.0.len() - OUT_HEADER + 24 + padded > len as usize {
                break;
            }
            r = r.u64(node).u64(i as u64 + 1).u32(name.len() as u32).u32(kind);
            r.0.extend(name);
            r = r.zeros(padded - name.len());
        }
        r
    }
}

/// Seconds.
const FOR_EVER: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, node: u64, args: &[u8]) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(((IN_HEADER + args.len()) as u32).to_ne_bytes());
        b.extend(opcode.to_ne_bytes());
        b.extend(77u64.to_ne_bytes());
        b.extend(node.to_ne_bytes());
        b.resize(IN_HEADER, 0);
        b.extend(args);
        b
    }

    #[test]
    fn requests_are_read() {
        let mut args = Vec::new();
        for n in [9u64, 4096] {
            args.extend(n.to_ne_bytes());
        }
        args.extend(8192u32.to_ne_bytes());
        args.resize(40, 0);
        let b = message(15, FILE, &args);
        let h = Header::parse(&b).unwrap();
        assert_eq!((h.unique, h.is_write()), (77, false));
        assert_eq!(h.ask(&b), Some(Ask::Read { at: 4096, len: 8192 }));
        let b = message(1, ROOT, b"volume\0");
        let h = Header::parse(&b).unwrap();
        assert_eq!(h.ask(&b), Some(Ask::Lookup { parent: ROOT, name: b"volume" }));
        let b = message(9999, ROOT, b"");
        assert_eq!(Header::parse(&b).unwrap().ask(&b), Some(Ask::Other));
    }

    #[test]
    fn what_is_cut_short_is_no_request() {
        for opcode in 0..64 {
            let whole = message(opcode, FILE, &[1; 64]);
            for n in 0..whole.len() {
                let Some(h) = Header::parse(&whole[..n]) else { continue };
                let _ = h.ask(&whole[..n]);
            }
        }
        let b = message(15, FILE, &[0; 19]);
        assert_eq!(Header::parse(&b).unwrap().ask(&b), None);
        assert_eq!(Header::parse(&b[..23]), None);
    }

    #[test]
    fn replies_have_the_lengths_of_the_kernels_structures() {
        let len = |r: Reply| {
            let b = r.finish(5);
            assert_eq!(u32_at(&b, 0), Some(b.len() as u32));
            assert_eq!(u64_at(&b, 8), Some(5));
            b.len() - OUT_HEADER
        };
        let flags = MAX_PAGES | ASYNC_DIO;
        assert_eq!(len(Reply::init(7, 45, 0, flags).unwrap()), 64);
        assert_eq!(len(Reply::init(8, 0, 0, 0).unwrap()), 64);
        assert!(Reply::init(7, 27, 0, flags).is_none() && Reply::init(7, 45, 0, 0).is_none());
        assert_eq!(len(Reply::attributes(FILE, 1, false)), 104);
        assert_eq!(len(Reply::entry(FILE, 1, false)), 128);
        assert_eq!(len(Reply::opened()), 16);
        assert_eq!(len(Reply::statfs(1)), 80);
        assert_eq!(len(Reply::directory("volume", 0, 4096)), 3 * 24 + 3 * 8);
        assert_eq!(len(Reply::directory("volume", 3, 4096)), 0);
        assert_eq!(len(Reply::directory("volume", 0, 40)), 32);
        assert_eq!(len(Reply::directory("volume", u64::MAX, 4096)), 0);
        assert_eq!(Reply::error(5, libc::EIO)[4..8], (-libc::EIO).to_ne_bytes());
    }
}
