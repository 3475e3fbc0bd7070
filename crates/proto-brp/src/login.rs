//! Logins: private data of the connection. A request fits the 56 bytes that every RDMA connection manager
//! carries.

use crate::types::{PortId, id_at, u16_at, u32_at, u64_at};
use core::fmt;

/// `BRPq`, the first bytes of a request.
const REQUEST: [u8; 4] = *b"BRPq";
/// `BRPr`, the first bytes of a response.
const RESPONSE: [u8; 4] = *b"BRPr";
/// `BRPx`, the first bytes of a reject.
const REJECT: [u8; 4] = *b"BRPx";
/// Bytes of a login request.
pub const REQUEST_LEN: usize = 56;
/// Bytes of a login response.
pub const RESPONSE_LEN: usize = 64;
/// Bytes of a login reject.
pub const REJECT_LEN: usize = 16;
/// The version that this library speaks.
pub const VERSION: u8 = 1;
/// Message lengths travel in units of so many bytes.
pub const LENGTH_UNIT: u32 = 64;
/// Keep-alive intervals travel in units of so many milliseconds.
pub const KEEP_ALIVE_UNIT: u64 = 100;

/// What a session can do besides single commands: asked for, then granted in part or whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u16);

impl Features {
    /// Checksums of messages and data.
    pub const INTEGRITY: Features = Features(1);
    /// Several commands in one message.
    pub const JUMBO: Features = Features(2);
    /// Several completions in one message.
    pub const COALESCE: Features = Features(4);
    /// Data of small reads behind their completions.
    pub const INLINE_READ: Features = Features(8);
    /// Data of small writes behind their commands.
    pub const INLINE_WRITE: Features = Features(16);
    /// The target runs the commands of the channel one after the other (S1's BRP-1, for comparison).
    pub const SERIAL: Features = Features(32);
    /// Other sessions of this initiator port stay. Without it the first channel of a new session ends them.
    pub const KEEP_OTHERS: Features = Features(64);
    /// Commands that move no data (DISCARD, WRITE ZEROES) may be of any length.
    pub const LONG_RANGES: Features = Features(128);
    /// Other sessions of this initiator port stay if they are of the same family: the upper halves of their numbers are the same.
    /// Whatever KEEP_OTHERS says, the first channel of a new session ends the rest.
    pub const SIBLINGS: Features = Features(1024);
    /// The initiator has a secret, and logs in with its proof only ([`crate::keyed`]). Bit 8 is kept for peers.
    pub const KEYED: Features = Features(512);
    /// Everything that makes a session better.
    pub const USUAL: Features = Features(1 | 2 | 4 | 8 | 16 | 128);
    /// All that this version knows.
    pub const ALL: Features = Features(255 | 512 | 1024);

    /// Whether all of `other` are here.
    #[inline]
    pub const fn has(self, other: Features) -> bool {
        other.0 & !self.0 == 0
    }

    /// Those of both.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// Those of either.
    pub const fn or(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Those that are not in `other`.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            "integrity",
            "jumbo",
            "coalesce",
            "inline-read",
            "inline-write",
            "serial",
            "keep-others",
            "long-ranges",
            "bit-8",
            "keyed",
            "siblings",
        ];
        let mut set = f.debug_set();
        for (i, n) in names.iter().enumerate() {
            if self.0 & 1 << i != 0 {
                set.entry(n);
            }
        }
        set.finish()
    }
}

/// Why private data is not what was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginError {
    /// It does not begin as BRP does, or is too short.
    NotBrp,
    /// A length or number in it cannot be.
    Value(&'static str),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginError::NotBrp => f.write_str("the private data is no BRP login"),
            LoginError::Value(what) => write!(f, "the login has an impossible {what}"),
        }
    }
}

impl std::error::Error for LoginError {}

/// What the numbers of sessions of one life of a host have in common, where they say that they are siblings.
pub const fn family(session: u64) -> u32 {
    (session >> 32) as u32
}

/// A channel asks to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// Lowest version that the initiator speaks.
    pub version_min: u8,
    /// Highest version that it speaks.
    pub version_max: u8,
    /// Wanted.
    pub features: Features,
    /// Initiator port: whose volumes these are to be.
    pub initiator: PortId,
    /// Target port; zero for whichever answers.
    pub target: PortId,
    /// Names the session among those of the initiator port. Chosen at random when the session is made, kept
    /// for all its channels and logins.
    pub session: u64,
    /// Number of the channel in the session.
    pub channel: u16,
    /// Command slots wanted.
    pub depth: u16,
    /// Longest message that the initiator receives, in units of 64 bytes.
    pub max_message: u16,
    /// A side that has heard nothing for so long closes the channel, in units of 100 ms; 0: never.
    pub keep_alive: u16,
}

impl LoginRequest {
    /// Writes the request.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut b = [0; REQUEST_LEN];
        b[..4].copy_from_slice(&REQUEST);
        b[4] = self.version_min;
        b[5] = self.version_max;
        b[6..8].copy_from_slice(&self.features.0.to_le_bytes());
        b[8..24].copy_from_slice(&self.initiator.0);
        b[24..40].copy_from_slice(&self.target.0);
        b[40..48].copy_from_slice(&self.session.to_le_bytes());
        b[48..50].copy_from_slice(&self.channel.to_le_bytes());
        b[50..52].copy_from_slice(&self.depth.to_le_bytes());
        b[52..54].copy_from_slice(&self.max_message.to_le_bytes());
        b[54..56].copy_from_slice(&self.keep_alive.to_le_bytes());
        b
    }

    /// Reads a request; what follows it is padding of the connection manager.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(b: &[u8]) -> Result<LoginRequest, LoginError> {
        if b.len() < REQUEST_LEN || b[..4] != REQUEST {
            return Err(LoginError::NotBrp);
        }
        let r = LoginRequest {
            version_min: b[4],
            version_max: b[5],
            features: Features(u16_at(b, 6)),
            initiator: PortId(id_at(b, 8)),
            target: PortId(id_at(b, 24)),
            session: u64_at(b, 40),
            channel: u16_at(b, 48),
            depth: u16_at(b, 50),
            max_message: u16_at(b, 52),
            keep_alive: u16_at(b, 54),
        };
        if r.version_min > r.version_max {
            return Err(LoginError::Value("range of versions"));
        }
        if r.depth == 0 {
            return Err(LoginError::Value("depth"));
        }
        if bytes(r.max_message) < crate::message::MIN_MESSAGE {
            return Err(LoginError::Value("message length"));
        }
        Ok(r)
    }
}

/// A channel is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// The version spoken from here on.
    pub version: u8,
    /// The target knows this channel from an earlier login. Whether that is one that the initiator knows of
    /// as well is told by `incarnation` and `memory`.
    pub resumed: bool,
    /// Granted.
    pub features: Features,
    /// Names this run of the target's program.
    pub incarnation: u64,
    /// Changes when the target's machine lost power: what its volatile caches had may be gone.
    pub power: u64,
    /// Command slots: tags go from 0 to one less.
    pub depth: u16,
    /// Messages that the initiator may send before one is given back.
    pub credits: u16,
    /// Longest message that the target receives, in units of 64 bytes.
    pub max_message: u16,
    /// As in the request, as the target will have it.
    pub keep_alive: u16,
    /// Most bytes that one command moves (COMPARE AND WRITE: of each half).
    pub max_len: u32,
    /// Most descriptors of one command.
    pub max_segments: u16,
    /// Most commands of one message.
    pub max_commands: u16,
    /// The target's port.
    pub target: PortId,
    /// Names what the target remembers of the channel's slots, within this incarnation.
    pub memory: u64,
}

impl LoginResponse {
    /// Writes the response.
    pub fn encode(&self) -> [u8; RESPONSE_LEN] {
        let mut b = [0; RESPONSE_LEN];
        b[..4].copy_from_slice(&RESPONSE);
        b[4] = self.version;
        b[5] = u8::from(self.resumed);
        b[6..8].copy_from_slice(&self.features.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        b[16..24].copy_from_slice(&self.power.to_le_bytes());
        b[24..26].copy_from_slice(&self.depth.to_le_bytes());
        b[26..28].copy_from_slice(&self.credits.to_le_bytes());
        b[28..30].copy_from_slice(&self.max_message.to_le_bytes());
        b[30..32].copy_from_slice(&self.keep_alive.to_le_bytes());
        b[32..36].copy_from_slice(&self.max_len.to_le_bytes());
        b[36..38].copy_from_slice(&self.max_segments.to_le_bytes());
        b[38..40].copy_from_slice(&self.max_commands.to_le_bytes());
        b[40..56].copy_from_slice(&self.target.0);
        b[56..].copy_from_slice(&self.memory.to_le_bytes());
        b
    }

    /// Reads a response; what follows it is padding.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(b: &[u8]) -> Result<LoginResponse, LoginError> {
        if b.len() < RESPONSE_LEN || b[..4] != RESPONSE {
            return Err(LoginError::NotBrp);
        }
        let r = LoginResponse {
            version: b[4],
            resumed: b[5] & 1 != 0,
            features: Features(u16_at(b, 6)),
            incarnation: u64_at(b, 8),
            power: u64_at(b, 16),
            depth: u16_at(b, 24),
            credits: u16_at(b, 26),
            max_message: u16_at(b, 28),
            keep_alive: u16_at(b, 30),
            max_len: u32_at(b, 32),
            max_segments: u16_at(b, 36),
            max_commands: u16_at(b, 38),
            target: PortId(id_at(b, 40)),
            memory: u64_at(b, 56),
        };
        if r.depth == 0 || r.max_segments == 0 || r.max_commands == 0 || r.max_len == 0 {
            return Err(LoginError::Value("limit"));
        }
        // One for commands, one for everything else.
        if r.credits < 2 {
            return Err(LoginError::Value("number of credits"));
        }
        if bytes(r.max_message) < crate::message::MIN_MESSAGE {
            return Err(LoginError::Value("message length"));
        }
        Ok(r)
    }
}

/// Bytes of a message length in units.
#[inline]
pub fn bytes(units: u16) -> usize {
    units as usize * LENGTH_UNIT as usize
}

/// A message length in units, rounded down.
pub fn units(bytes: usize) -> u16 {
    u16::try_from(bytes / LENGTH_UNIT as usize).unwrap_or(u16::MAX)
}

/// Why a login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RejectReason {
    /// Something else; the target's log says more.
    Unspecified = 0,
    /// No common version.
    Version = 1,
    /// No such target port here.
    NoTarget = 2,
    /// The target does not know the initiator port.
    NotAllowed = 3,
    /// No room for another channel.
    Resources = 4,
    /// What was lost with the last connection has not ended yet: try again.
    Draining = 5,
    /// A field cannot be.
    Invalid = 6,
    /// The sides do not agree on a secret: one of them has none, or the two differ.
    Secret = 7,
}

impl RejectReason {
    /// From the number on the wire; an unknown one is unspecified.
    pub fn from_code(code: u8) -> RejectReason {
        match code {
            1 => RejectReason::Version,
            2 => RejectReason::NoTarget,
            3 => RejectReason::NotAllowed,
            4 => RejectReason::Resources,
            5 => RejectReason::Draining,
            6 => RejectReason::Invalid,
            7 => RejectReason::Secret,
            _ => RejectReason::Unspecified,
        }
    }

    /// True when the same login may be let in later.
    pub fn is_passing(self) -> bool {
        matches!(self, RejectReason::Unspecified | RejectReason::Resources | RejectReason::Draining)
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectReason::Unspecified => "no reason given",
            RejectReason::Version => "no common version of the protocol",
            RejectReason::NoTarget => "another target port is at this address",
            RejectReason::NotAllowed => "the target does not know this initiator port",
            RejectReason::Resources => "no room for another channel",
            RejectReason::Draining => "commands of the lost connection have not ended yet",
            RejectReason::Invalid => "the login has a field that cannot be",
            RejectReason::Secret => {
                "host and target do not agree on a secret (one of them has none, or they differ)"
            }
        })
    }
}

/// A channel is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginReject {
    /// Why.
    pub reason: RejectReason,
    /// Highest version that the target speaks.
    pub version: u8,
}

impl LoginReject {
    /// Writes the reject.
    pub fn encode(&self) -> [u8; REJECT_LEN] {
        let mut b = [0; REJECT_LEN];
        b[..4].copy_from_slice(&REJECT);
        b[4] = self.version;
        b[5] = self.reason as u8;
        b
    }

    /// Reads a reject.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(b: &[u8]) -> Result<LoginReject, LoginError> {
        if b.len() < REJECT_LEN || b[..4] != REJECT {
            return Err(LoginError::NotBrp);
        }
        Ok(LoginReject { version: b[4], reason: RejectReason::from_code(b[5]) })
    }
}
