//! Login responses (RFC 7143 11.13).

use super::Login;
use crate::bhs::{Bhs, LEN, op, put};
use crate::intake::padding;

/// Status class and detail (RFC 7143 11.13.5).
pub mod status {
    /// The initiator breaks a rule.
    pub const INITIATOR_ERROR: u16 = 0x0200;
    /// It could not be authenticated.
    pub const AUTHENTICATION: u16 = 0x0201;
    /// It is not allowed to come here.
    pub const NOT_ALLOWED: u16 = 0x0202;
    /// There is no such target.
    pub const NOT_FOUND: u16 = 0x0203;
    /// The target was here, and has gone for good.
    pub const REMOVED: u16 = 0x0204;
    /// It speaks no version that the target does.
    pub const VERSION: u16 = 0x0205;
    /// There are too many connections.
    pub const TOO_MANY: u16 = 0x0206;
    /// A key is missing that must be there.
    pub const MISSING: u16 = 0x0207;
    /// The session takes no other connection.
    pub const NOT_IN_SESSION: u16 = 0x0208;
    /// There are no sessions of this type.
    pub const SESSION_TYPE: u16 = 0x0209;
    /// There is no such session.
    pub const NO_SESSION: u16 = 0x020a;
    /// What was sent has no place in a login.
    pub const INVALID: u16 = 0x020b;
    /// The target has failed.
    pub const TARGET_ERROR: u16 = 0x0300;
    /// The target is not there just now.
    pub const UNAVAILABLE: u16 = 0x0301;
    /// The target has no more resources.
    pub const RESOURCES: u16 = 0x0302;
}

/// A response as it is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginResponse {
    /// Its header.
    pub bhs: Bhs,
    /// Its text.
    pub text: Vec<u8>,
}

impl LoginResponse {
    /// All of it: login PDUs have no digests.
    pub fn bytes(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(LEN + self.text.len() + 3);
        b.extend_from_slice(&self.bhs);
        b.extend_from_slice(&self.text);
        b.resize(b.len() + padding(self.text.len()), 0);
        b
    }

    /// Status class and detail.
    pub fn status(&self) -> u16 {
        u16::from_be_bytes([self.bhs[36], self.bhs[37]])
    }
}

impl Login {
    /// A response to the present request; it takes a status number.
    pub(super) fn answer(&mut self, grants: bool, text: Vec<u8>) -> LoginResponse {
        let mut bhs = [0; LEN];
        bhs[0] = op::LOGIN_RESPONSE;
        let Some(r) = self.now else { return LoginResponse { bhs, text } };
        // The stages are repeated; NSG means something with T only.
        bhs[1] = (self.stage << 2) | if grants { 0x80 | r.flags() & 3 } else { 0 };
        let [_, a, b, c] = (text.len() as u32).to_be_bytes();
        put(&mut bhs, 5, &[a, b, c]);
        // ISID, TSIH, ITT.
        put(&mut bhs, 8, &r.0[8..20]);
        put(&mut bhs, 24, &self.stat_sn.to_be_bytes());
        self.stat_sn = self.stat_sn.wrapping_add(1);
        let exp = self.cmd_sn();
        put(&mut bhs, 28, &exp.to_be_bytes());
        put(&mut bhs, 32, &exp.wrapping_add(self.slots).wrapping_sub(1).to_be_bytes());
        LoginResponse { bhs, text }
    }
}
