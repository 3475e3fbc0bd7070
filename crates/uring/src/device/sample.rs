//! A device that is no file of this machine, as far as it is looked at to see what is in it: its ends and samples, in memory.

use super::content::{Contents, sampled};
use super::{Held, HoldError, PAGE};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes at the front that are taken: where the signatures are that libblkid knows.
const FRONT: u64 = 4 << 20;
/// The same at the end.
const END: u64 = 2 << 20;
/// Bytes of a piece.
const PIECE: u64 = 16 * PAGE;

/// The parts of a device in which something would be found, with holes between.
#[derive(Debug)]
pub struct Sample {
    file: File,
    len: u64,
}

impl Sample {
    /// Of a device of so many bytes, a multiple of [`PAGE`], of which nothing is known yet.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn of(len: u64) -> io::Result<Sample> {
        // SAFETY: the name ends in 0; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(c"weir-sample".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made a moment ago, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len)?;
        Ok(Sample { file, len })
    }

    /// What is to be [put](Sample::put): first byte and length of each part.
    pub fn places(&self) -> Vec<(u64, usize)> {
        let mut all: Vec<u64> = (0..FRONT.min(self.len)).step_by(PIECE as usize).collect();
        let end = self.len.saturating_sub(END) / PIECE * PIECE;
        all.extend((end..self.len).step_by(PIECE as usize));
        all.extend(sampled(self.len).map(|at| at / PIECE * PIECE));
        all.sort_unstable();
        all.dedup();
        let part = |at: u64| (at, PIECE.min(self.len - at) as usize);
        all.into_iter().filter(|at| *at < self.len).map(part).collect()
    }

    /// What is at a place.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn put(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match bytes.iter().all(|b| *b == 0) {
            true => Ok(()),
            false => self.file.write_all_at(bytes, at),
        }
    }

    /// What is in the device. Reads files; not for reactors.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub fn contents(&self) -> io::Result<Contents> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let held = Held::beside(&path).map_err(|e| match e {
            HoldError::Io(e) => e,
            e => io::Error::other(e),
        })?;
        held.contents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of a device with these bytes at these places.
    fn found(len: u64, parts: &[(u64, &[u8])]) -> Vec<String> {
        let sample = Sample::of(len).expect("memory");
        for (at, n) in sample.places() {
            let mut piece = vec![0; n];
            for (from, bytes) in parts {
                for (i, b) in (0..).zip(*bytes) {
                    if let Some(to) = (from + i).checked_sub(at).filter(|to| *to < n as u64) {
                        piece[to as usize] = *b;
                    }
                }
            }
            sample.put(at, &piece).expect("memory");
        }
        sample.contents().expect("read").kinds()
    }

    #[test]
    fn what_is_in_it_is_found_as_in_a_file() {
        let (small, large) = (1 << 20, 8 << 40);
        for len in [small, large] {
            assert!(found(len, &[]).is_empty());
            assert_eq!(found(len, &[(1080, b"\x53\xef")]), ["ext2"]);
            assert_eq!(found(len, &[(len - 4096, b"WeirPool")]), ["weir"]);
            assert_eq!(found(len, &[(len - 9, b"x")]), ["data"]);
            // What samples meet, and only that.
            let step = (len / 1024).max(PIECE);
            assert_eq!(found(len, &[(5 * step + 7, b"x")]), ["data"]);
        }
    }
}
