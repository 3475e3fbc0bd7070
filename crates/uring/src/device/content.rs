//! What is in a device, before it is given to somebody new: signatures, and data that has none.

use super::signature::{self, Bytes};
use super::{Held, PAGE, blkid};
use std::collections::BTreeMap;
use std::io;

/// Bytes at both ends of a device that are looked at for data without a signature.
const ENDS: u64 = 1 << 20;
/// Pieces of one page, spread over the rest, that are looked at too.
const SAMPLES: u64 = 1024;

/// Something that was found: its kind in one word, such as `ext4`, and more about it if there is more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The word for it.
    pub kind: String,
    /// Its label or version; empty for none.
    pub about: String,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.about.as_str() {
            "" => f.write_str(&self.kind),
            about => write!(f, "{} ({about})", self.kind),
        }
    }
}

/// Whether something that may be found in a device is called so. Where libblkid is not installed its words are not known.
pub fn is_kind(word: &str) -> bool {
    let is_it = |kind: &str| kind.eq_ignore_ascii_case(word);
    is_it("data") || signature::kinds().any(is_it) || blkid::knows(word)
}

/// What is in a device. Empty: nothing that anybody would miss, as far as can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// What it was recognised as.
    pub found: Vec<Found>,
    /// It has bytes other than zero, whatever they are.
    pub data: bool,
}

impl Contents {
    /// The words for all that is there; `data` where there is nothing but bytes of no known kind.
    pub fn kinds(&self) -> Vec<String> {
        match self.found.is_empty() && self.data {
            true => vec!["data".into()],
            false => self.found.iter().map(|f| f.kind.clone()).collect(),
        }
    }

    /// For messages: everything with what is known of it.
    pub fn told(&self) -> String {
        if self.found.is_empty() && self.data {
            return "data of no known kind".into();
        }
        let all: Vec<String> = self.found.iter().map(Found::to_string).collect();
        all.join(", ")
    }
}

/// A device as bytes, read page by page and kept.
struct Pages<'a> {
    held: &'a Held,
    /// Where they begin in it, a multiple of [`PAGE`].
    from: u64,
    len: u64,
    read: BTreeMap<u64, Vec<u8>>,
}

impl Pages<'_> {
    /// Bytes that are read at once.
    const PIECE: u64 = 16 * PAGE;

    fn piece(&mut self, at: u64) -> io::Result<&[u8]> {
        let first = at / Self::PIECE * Self::PIECE;
        if !self.read.contains_key(&first) {
            let left = self.len.saturating_sub(first).next_multiple_of(PAGE);
            let take = Self::PIECE.min(left) as usize;
            self.read.insert(first, self.held.read_up_to(self.from + first, take)?);
        }
        Ok(self.read.get(&first).map_or(&[], Vec::as_slice))
    }
}

impl Bytes for Pages<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len && at + (out.len() as u64) < self.len {
            let from = at + out.len() as u64;
            let piece = self.piece(from)?;
            let start = (from % Self::PIECE) as usize;
            let take = piece.get(start..).unwrap_or_default();
            let take = &take[..take.len().min(len - out.len())];
            if take.is_empty() {
                break;
            }
            out.extend_from_slice(take);
        }
        Ok(out)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// The places of samples, spread over so many bytes.
pub(super) fn sampled(len: u64) -> impl Iterator<Item = u64> {
    let step = (len / SAMPLES).max(Pages::PIECE);
    (0..len).step_by(step as usize)
}

/// Whether there is a byte other than zero: at both ends, at places spread over the rest.
fn has_data(pages: &mut Pages<'_>) -> io::Result<bool> {
    let len = pages.len;
    let mut places: Vec<u64> = (0..ENDS.min(len)).step_by(Pages::PIECE as usize).collect();
    places.extend((len.saturating_sub(ENDS)..len).step_by(Pages::PIECE as usize));
    places.extend(len.checked_sub(1));
    places.extend(sampled(len));
    for at in places {
        let kept = pages.read.len();
        if !is_zero(pages.piece(at)?) {
            return Ok(true);
        }
        if kept > 256 {
            pages.read.clear();
        }
    }
    Ok(false)
}

/// What is in some of its bytes: from a multiple of [`PAGE`], so many.
pub(super) fn look(held: &Held, (from, len): (u64, u64)) -> io::Result<Contents> {
    if held.is_directory() || len == 0 {
        return Ok(Contents::default());
    }
    let mut pages = Pages { held, from, len, read: BTreeMap::new() };
    let mut found = signature::find(&mut pages)?;
    for f in blkid::probe(held, (from, len)).unwrap_or_default() {
        if found.iter().all(|known| known.kind != f.kind) {
            found.push(f);
        }
    }
    found.sort();
    let data = !found.is_empty() || has_data(&mut pages)?;
    Ok(Contents { found, data })
}
