//! Metadata contexts that a client asks for (NBD protocol, "Metadata querying").

use super::text;

/// The context that there is: whether space is behind a range.
pub(super) const ALLOCATION: &str = "base:allocation";
/// The namespace of contexts that it is in.
const BASE: &str = "base:";

/// What a client asks about an export.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub(super) name: String,
    queries: Vec<String>,
}

impl Query {
    /// Reads the data of LIST_META_CONTEXT or SET_META_CONTEXT. `None`: they are none.
    pub(super) fn decode(data: &[u8]) -> Option<Query> {
        let (name, rest) = string(data)?;
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let mut queries = Vec::new();
        // Each has at least the bytes of its length, so there are no more than data for them.
        for _ in 0..u32::from_be_bytes(*count) {
            let (query, more) = string(rest)?;
            queries.push(query.to_owned());
            rest = more;
        }
        rest.is_empty().then(|| Query { name: name.to_owned(), queries })
    }

    /// The context is listed for this.
    pub(super) fn lists_allocation(&self) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|q| q == ALLOCATION || q == BASE)
    }

    /// The context is chosen by this.
    pub(super) fn chooses_allocation(&self) -> bool {
        self.queries.iter().any(|q| q == ALLOCATION)
    }
}

/// A string behind its length, and what is behind it.
fn string(data: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (bytes, rest) = rest.split_at_checked(len)?;
    Some((text(bytes)?, rest))
}
