//! A connection's bytes, cut as they come, put together to requests and their data.

use crate::{Broken, REQUEST, Request};

/// What a piece of the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A request. If it has data, they come next, as [`Item::Data`] until nothing is [wanted](Intake::wanted) any more.
    Request(Request),
    /// The next data of the request before.
    Data(&'a [u8]),
}

/// One direction of one connection.
#[derive(Debug, Clone)]
pub struct Intake {
    head: [u8; REQUEST],
    have: usize,
    /// Data of the present request that are still to come.
    wanted: u32,
}

impl Default for Intake {
    fn default() -> Self {
        Intake::new()
    }
}

impl Intake {
    /// The begin of a connection.
    pub const fn new() -> Intake {
        Intake { head: [0; REQUEST], have: 0, wanted: 0 }
    }

    /// Bytes of the present request's data that are still to come.
    pub fn wanted(&self) -> usize {
        self.wanted as usize
    }

    /// True in the middle of a request or its data, where a connection must not end.
    pub fn is_within(&self) -> bool {
        self.have > 0 || self.wanted > 0
    }

    /// Takes note of `n` bytes of data, at most as many as are [wanted](Intake::wanted), that went past, straight to where they belong.
    pub fn passed(&mut self, n: usize) {
        self.wanted = self.wanted.saturating_sub(u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Takes the next item from the front of `bytes`, and gives it with what is left of them; no item if they end within a
    /// request.
    ///
    /// # Errors
    /// No request begins there. It is so from then on.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Item<'a>>, &'a [u8]), Broken> {
        if self.wanted > 0 && !bytes.is_empty() {
            let (data, rest) = bytes.split_at(self.wanted().min(bytes.len()));
            self.passed(data.len());
            return Ok((Some(Item::Data(data)), rest));
        }
        let free = self.head.get_mut(self.have..).unwrap_or_default();
        let (taken, rest) = bytes.split_at(free.len().min(bytes.len()));
        free.iter_mut().zip(taken).for_each(|(to, from)| *to = *from);
        self.have += taken.len();
        if self.have < REQUEST {
            return Ok((None, rest));
        }
        let request = Request::decode(&self.head)?;
        self.have = 0;
        self.wanted = request.payload();
        Ok((Some(Item::Request(request)), rest))
    }
}
