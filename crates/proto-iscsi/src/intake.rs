//! A connection's bytes, cut as they come, put together to PDUs and their data.

use crate::bhs::{LEN, Request};
use weir_codec::{Crc32c, crc32c};

/// Which digests PDUs have (RFC 7143 13.1). Those of the login phase have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// Behind the header and its additional segments.
    pub header: bool,
    /// Behind the data and their padding.
    pub data: bool,
}

/// The digest of some bytes as it is on the wire: the least significant byte comes first.
#[inline]
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).to_le_bytes()
}

/// Bytes that pad `len` bytes of data to a multiple of four.
#[inline]
pub const fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

/// Why a stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The header is not what its digest was made of.
    HeaderDigest,
    /// The data are not what their digest was made of.
    DataDigest,
    /// More data than was agreed on, this many bytes.
    TooLong(u32),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::HeaderDigest => f.write_str("a header does not have its digest"),
            Broken::DataDigest => f.write_str("data do not have their digest"),
            Broken::TooLong(n) => write!(f, "a PDU has {n} bytes of data, more than was agreed on"),
        }
    }
}

impl std::error::Error for Broken {}

/// What a piece of the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// The header of a PDU; [`Intake::additional`] has what belongs to it. If it has data, they come next.
    Head(Request),
    /// The next data of the PDU.
    Data(&'a [u8]),
    /// All of the PDU is there, and its digests are right.
    End,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Head,
    Data,
    /// Padding, and the digest of data.
    Tail,
    /// Nothing: the end is to be told.
    End,
}

/// One direction of one connection.
#[derive(Clone)]
pub struct Intake {
    digests: Digests,
    most: u32,
    at: At,
    /// Header, additional segments, digest.
    head: Vec<u8>,
    /// Data of the present PDU that are still to come.
    wanted: u32,
    sum: Crc32c,
    tail: [u8; 8],
    /// Bytes of the tail that are there, and that there will be.
    have: usize,
    want: usize,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Intake({} bytes of a header, {} of data to come)", self.head.len(), self.wanted)
    }
}

impl Intake {
    /// A connection whose PDUs have `most` bytes of data at most.
    pub fn new(digests: Digests, most: u32) -> Intake {
        Intake {
            digests,
            most,
            at: At::Head,
            head: Vec::with_capacity(LEN + 64),
            wanted: 0,
            sum: Crc32c::new(),
            tail: [0; 8],
            have: 0,
            want: 0,
        }
    }

    /// Bytes of the present PDU's data that are still to come.
    pub fn wanted(&self) -> usize {
        self.wanted as usize
    }

    /// True in the middle of a PDU.
    pub fn is_within(&self) -> bool {
        self.at != At::Head || !self.head.is_empty()
    }

    /// The additional header segments of the present PDU.
    pub fn additional(&self) -> &[u8] {
        let ahs = self.head.get(4).map_or(0, |n| usize::from(*n) * 4);
        self.head.get(LEN..LEN + ahs).unwrap_or_default()
    }

    /// Takes note of data, at most as many as are [wanted](Intake::wanted), that went past, straight to where they belong.
    pub fn passed(&mut self, data: &[u8]) {
        if self.digests.data {
            self.sum.update(data);
        }
        self.wanted = self.wanted.saturating_sub(u32::try_from(data.len()).unwrap_or(u32::MAX));
        if self.wanted == 0 {
            self.at = At::Tail;
        }
    }

    /// Bytes of the header that there will be, as far as is known.
    fn head_len(&self) -> usize {
        match self.head.get(4) {
            Some(n) => LEN + usize::from(*n) * 4 + if self.digests.header { 4 } else { 0 },
            None => LEN,
        }
    }

    fn header(&mut self) -> Result<Request, Broken> {
        if self.digests.header
            && let Some((head, sum)) = self.head.split_last_chunk::<4>()
            && digest(head) != *sum
        {
            return Err(Broken::HeaderDigest);
        }
        let bhs = self.head.first_chunk::<LEN>().map_or([0; LEN], |b| *b);
        let r = Request(bhs);
        if r.data_len() > self.most {
            return Err(Broken::TooLong(r.data_len()));
        }
        Ok(r)
    }

    /// Takes the next item from the front of `bytes`, and gives it with what is left of them; no item if they end before it is
    /// whole. An [`Item::End`] takes no bytes if there is nothing behind the data: it comes without any being left.
    ///
    /// # Errors
    /// The connection is to be closed. It is so from then on.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Item<'a>>, &'a [u8]), Broken> {
        let mut left = bytes;
        loop {
            match self.at {
                At::Head => {
                    // Twice: its length is known when the first part is there.
                    while self.head.len() < self.head_len() && !left.is_empty() {
                        let wanted = self.head_len() - self.head.len();
                        let (part, rest) = left.split_at(wanted.min(left.len()));
                        self.head.extend_from_slice(part);
                        left = rest;
                    }
                    if self.head.len() < self.head_len() {
                        return Ok((None, left));
                    }
                    let r = self.header()?;
                    self.wanted = r.data_len();
                    self.have = 0;
                    let has_data = self.wanted > 0;
                    let sum = if has_data && self.digests.data { 4 } else { 0 };
                    self.want = padding(self.wanted as usize) + sum;
                    self.sum = Crc32c::new();
                    self.at = if has_data { At::Data } else { At::End };
                    return Ok((Some(Item::Head(r)), left));
                }
                At::Data => {
                    if left.is_empty() {
                        return Ok((None, left));
                    }
                    let (data, rest) = left.split_at(self.wanted().min(left.len()));
                    self.passed(data);
                    return Ok((Some(Item::Data(data)), rest));
                }
                At::Tail => {
                    let (part, rest) = left.split_at((self.want - self.have).min(left.len()));
                    let free = self.tail.get_mut(self.have..).unwrap_or_default();
                    free.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                    self.have += part.len();
                    left = rest;
                    if self.have < self.want {
                        return Ok((None, left));
                    }
                    let tail = self.tail.get(..self.want).unwrap_or_default();
                    if self.digests.data
                        && let Some((pad, told)) = tail.split_last_chunk::<4>()
                    {
                        self.sum.update(pad);
                        if self.sum.finish().to_le_bytes() != *told {
                            return Err(Broken::DataDigest);
                        }
                    }
                    self.at = At::End;
                }
                At::End => {
                    self.at = At::Head;
                    self.head.clear();
                    return Ok((Some(Item::End), left));
                }
            }
        }
    }
}
