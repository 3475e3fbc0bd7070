//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.
//!
//! Each returns whether the bytes got past the first checks. A failed assertion is the finding.

use crate::message::{self, Message};
use crate::register::{self, Register};

/// Registers and messages, with their round trips.
pub fn fuzz_records(data: &[u8]) -> bool {
    let mut reached = false;
    if let Ok(r) = Register::decode(data) {
        reached = true;
        assert!(data.len() <= register::MAX_LEN);
        // Nothing is carried that is not in the value: two registers that are equal are the same bytes.
        assert_eq!(r.encode(), data);
        assert!(r.partner_of(r.owner).is_some() && r.epoch.0 > 0);
    }
    if let Ok((pool, m)) = Message::decode(data) {
        reached = true;
        assert_eq!(data.len(), message::LEN);
        assert_eq!(m.encode(pool), data);
    }
    reached
}
