//! The register of a pool: the small value that a consensus engine keeps, and changes by compare-and-set on its
//! version.
//!
//! # Format 1
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `WREG` |
//! | 4 | 1 | format: 1 |
//! | 5 | 1 | phase: 0 serving, 1 handing, 2 released |
//! | 6 | 1 | node that it is handed to, else 0 |
//! | 7 | 1 | reason of the last change |
//! | 8 | 8 | version |
//! | 16 | 8 | life of the writer |
//! | 24 | 4 | number of the change, of those of that life |
//! | 28 | 1 | number of the writer |
//! | 29 | 1 | owner |
//! | 30 | 1 | preferred owner |
//! | 31 | 1 | able: one bit a node, node 1 the lowest; never none |
//! | 32 | 16 | pool |
//! | 48 | 2 | the two nodes of the group |
//! | 50 | 1 | class: 1 media of both, 2 memory of both |
//! | 51 | 1 | copies that a write needs: 1 or 2 |
//! | 52 | 4 | owner epoch |
//! | 56 | 8 | power: changes when both nodes lost the pool |
//!
//! Little-endian. A program that does not know a format or a value refuses it: who misreads who owns a pool destroys it.

use crate::ids::{Epoch, Life, Node, Nodes, Version};
use core::fmt;

/// Most bytes that a register takes, in any format.
pub const MAX_LEN: usize = 512;
/// Bytes in the format written here.
pub const LEN: usize = 64;
const MAGIC: [u8; 4] = *b"WREG";
const FORMAT: u8 = 1;

/// Who made a change. With it a change whose outcome was in doubt is found in the register, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The node.
    pub node: Node,
    /// Its life.
    pub life: Life,
    /// Counts changes of that life.
    pub n: u32,
}

/// How far a pool is between two owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Its owner serves it, or is about to.
    Serving,
    /// Its owner has closed it, answers nothing of it any more, and leaves it to this node.
    Handing(Node),
    /// Its owner could not open it, and leaves it to whoever is able.
    Released,
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// When it is on the media of all able nodes (D1).
    Media,
    /// When it is in the memory of both nodes, with power attested (D2).
    Memory,
}

/// Why the register was changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The pool was made.
    Made = 0,
    /// The owner was silent.
    Silent = 1,
    /// The owner started anew.
    Restarted = 2,
    /// Handed over.
    Handed = 3,
    /// The one before could not open it.
    GaveUp = 4,
    /// Opened with fewer nodes than were able.
    OpenedWithFewer = 5,
    /// The partner, or the way to it, went.
    PartnerLost = 6,
    /// The devices of the owner itself failed.
    OwnDevices = 7,
    /// An operator wanted it.
    Operator = 8,
    /// The partner has everything again.
    Readmitted = 9,
}

impl Reason {
    fn from_code(code: u8) -> Option<Reason> {
        const ALL: [Reason; 10] = [
            Reason::Made,
            Reason::Silent,
            Reason::Restarted,
            Reason::Handed,
            Reason::GaveUp,
            Reason::OpenedWithFewer,
            Reason::PartnerLost,
            Reason::OwnDevices,
            Reason::Operator,
            Reason::Readmitted,
        ];
        ALL.get(usize::from(code)).copied()
    }
}

/// The register of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Register {
    /// One more with every change.
    pub version: Version,
    /// Who changed it last.
    pub writer: Writer,
    /// The pool.
    pub pool: u128,
    /// The two nodes that share it.
    pub group: [Node; 2],
    /// Owner epoch.
    pub epoch: Epoch,
    /// Whose engine may have it open for writing.
    pub owner: Node,
    /// Whose it is when both are able.
    pub preferred: Node,
    /// The nodes each of which has every acknowledged write by itself.
    pub able: Nodes,
    /// Between two owners.
    pub phase: Phase,
    /// Changes when both nodes lost the pool.
    pub power: u64,
    /// When a write is acknowledged.
    pub class: Class,
    /// Copies without which no write is acknowledged: 1 or 2.
    pub min_copies: u8,
    /// Why it was changed last.
    pub reason: Reason,
}

/// Why bytes are no register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterError {
    /// They do not begin as one does.
    NotOne,
    /// Of a format that this program does not know.
    Format(u8),
    /// So many bytes, which the format has not.
    Length(usize),
    /// A field that cannot be.
    Value(&'static str),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NotOne => f.write_str("this is no register of a pool"),
            RegisterError::Format(n) => {
                write!(f, "the register has format {n}, this program knows {FORMAT}: it is older")
            }
            RegisterError::Length(n) => write!(f, "the register has {n} bytes instead of {LEN}"),
            RegisterError::Value(what) => write!(f, "the register has an impossible {what}"),
        }
    }
}

impl std::error::Error for RegisterError {}

impl Register {
    /// The register of a pool that is made: its maker owns it, under an epoch that no engine has.
    pub fn made(pool: u128, group: [Node; 2], writer: Writer) -> Register {
        let able = Nodes::only(group[0]).with(group[1]);
        Register {
            version: Version(1),
            writer,
            pool,
            group,
            epoch: Epoch(1),
            owner: writer.node,
            preferred: writer.node,
            able,
            phase: Phase::Serving,
            power: 0,
            class: Class::Media,
            min_copies: 1,
            reason: Reason::Made,
        }
    }

    /// Writes it.
    pub fn encode(&self) -> [u8; LEN] {
        let (phase, to) = match self.phase {
            Phase::Serving => (0, 0),
            Phase::Handing(to) => (1, to.number()),
            Phase::Released => (2, 0),
        };
        let class = match self.class {
            Class::Media => 1,
            Class::Memory => 2,
        };
        let mut b = [0; LEN];
        b[..4].copy_from_slice(&MAGIC);
        b[4..8].copy_from_slice(&[FORMAT, phase, to, self.reason as u8]);
        b[8..16].copy_from_slice(&self.version.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.writer.life.0.to_le_bytes());
        b[24..28].copy_from_slice(&self.writer.n.to_le_bytes());
        b[28] = self.writer.node.number();
        b[29] = self.owner.number();
        b[30] = self.preferred.number();
        b[31] = self.able.bits();
        b[32..48].copy_from_slice(&self.pool.to_le_bytes());
        b[48] = self.group[0].number();
        b[49] = self.group[1].number();
        b[50] = class;
        b[51] = self.min_copies;
        b[52..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        b[56..].copy_from_slice(&self.power.to_le_bytes());
        b
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or one that this program must not act on.
    pub fn decode(b: &[u8]) -> Result<Register, RegisterError> {
        if b.len() < 5 || b[..4] != MAGIC {
            return Err(RegisterError::NotOne);
        }
        if b[4] != FORMAT {
            return Err(RegisterError::Format(b[4]));
        }
        if b.len() != LEN {
            return Err(RegisterError::Length(b.len()));
        }
        let node = |at: usize, what| Node::new(b[at]).ok_or(RegisterError::Value(what));
        let phase = match (b[5], b[6]) {
            (0, 0) => Phase::Serving,
            (1, _) => Phase::Handing(node(6, "next owner")?),
            (2, 0) => Phase::Released,
            _ => return Err(RegisterError::Value("phase")),
        };
        let class = match b[50] {
            1 => Class::Media,
            2 => Class::Memory,
            _ => return Err(RegisterError::Value("class")),
        };
        let r = Register {
            version: Version(u64_at(b, 8)),
            writer: Writer {
                node: node(28, "writer")?,
                life: Life(u64_at(b, 16)),
                n: u32_at(b, 24),
            },
            pool: u128::from(u64_at(b, 32)) | u128::from(u64_at(b, 40)) << 64,
            group: [node(48, "group")?, node(49, "group")?],
            epoch: Epoch(u32_at(b, 52)),
            owner: node(29, "owner")?,
            preferred: node(30, "preferred owner")?,
            able: Nodes::from_bits(b[31]),
            phase,
            power: u64_at(b, 56),
            class,
            min_copies: b[51],
            reason: Reason::from_code(b[7]).ok_or(RegisterError::Value("reason"))?,
        };
        r.check()?;
        Ok(r)
    }

    /// What holds in every register that may be acted on.
    fn check(&self) -> Result<(), RegisterError> {
        let both = Nodes::only(self.group[0]).with(self.group[1]);
        let wrong = [
            (self.group[0] == self.group[1], "group"),
            (!both.has(self.owner), "owner"),
            (!both.has(self.preferred), "preferred owner"),
            (self.able.is_empty() || !both.covers(self.able), "set of able nodes"),
            (!matches!(self.min_copies, 1 | 2), "number of copies"),
            // The last numbers could not be followed by another.
            (matches!(self.version, Version(0 | u64::MAX)), "version"),
            (matches!(self.epoch, Epoch(0 | u32::MAX)), "owner epoch"),
            (
                matches!(self.phase, Phase::Handing(to) if !both.has(to) || to == self.owner),
                "next owner",
            ),
        ];
        match wrong.iter().find(|(bad, _)| *bad) {
            Some((_, what)) => Err(RegisterError::Value(what)),
            None => Ok(()),
        }
    }

    /// The node of the group that `node` is not; `None` when it is none of the two.
    pub fn partner_of(&self, node: Node) -> Option<Node> {
        match self.group {
            [a, b] if a == node => Some(b),
            [a, b] if b == node => Some(a),
            _ => None,
        }
    }
}

/// Bytes `at..at + 4`, which there are.
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(bytes)
}

/// Bytes `at..at + 8`, which there are.
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(bytes)
}
