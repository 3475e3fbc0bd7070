//! What a target tells of a volume.

use crate::types::{id_at, u16_at, u32_at, u64_at};

/// Bytes of one description.
pub const VOLUME_INFO: usize = 192;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 128;

/// What may be done with a volume by the path that tells this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum PathState {
    /// Best path.
    #[default]
    Optimized = 0,
    /// It works, another is better.
    NonOptimized = 1,
    /// Not now; another path serves the volume.
    Standby = 2,
    /// Not at all.
    Unavailable = 3,
}

impl PathState {
    /// From the number on the wire; an unknown one is no good.
    pub fn from_code(code: u8) -> PathState {
        match code {
            0 => PathState::Optimized,
            1 => PathState::NonOptimized,
            2 => PathState::Standby,
            _ => PathState::Unavailable,
        }
    }
}

/// Size and nature of a volume: the data of GEOMETRY, and one entry of LIST.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeInfo {
    /// Capacity in bytes, a multiple of the block size.
    pub len: u64,
    /// Logical block in bytes.
    pub block_size: u32,
    /// Unit in which space is given back, in bytes.
    pub granularity: u32,
    /// Discarded ranges read as zeros and give space back.
    pub thin: bool,
    /// Completed writes may be lost with power until a flush.
    pub volatile_cache: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// The volume keeps the initiator's checksums.
    pub keeps_sums: bool,
    /// What commands to this volume carry as their guard.
    pub guard: u32,
    /// Identity of the volume: the same on every path.
    pub uid: [u8; 16],
    /// Its number for this initiator port.
    pub volume: u16,
    /// This path's state.
    pub state: PathState,
    /// Its name, at most 128 bytes of UTF-8.
    pub name: String,
}

impl VolumeInfo {
    /// Writes the description. A longer name is cut at a character.
    pub fn encode(&self) -> [u8; VOLUME_INFO] {
        let mut b = [0; VOLUME_INFO];
        b[..8].copy_from_slice(&self.len.to_le_bytes());
        b[8..12].copy_from_slice(&self.block_size.to_le_bytes());
        b[12..16].copy_from_slice(&self.granularity.to_le_bytes());
        let flags = u32::from(self.thin)
            | u32::from(self.volatile_cache) << 1
            | u32::from(self.read_only) << 2
            | u32::from(self.keeps_sums) << 3;
        b[16..20].copy_from_slice(&flags.to_le_bytes());
        b[20..24].copy_from_slice(&self.guard.to_le_bytes());
        b[24..40].copy_from_slice(&self.uid);
        b[40..42].copy_from_slice(&self.volume.to_le_bytes());
        b[42] = self.state as u8;
        let mut n = self.name.len().min(NAME_MAX);
        while !self.name.is_char_boundary(n) {
            n -= 1;
        }
        b[43] = n as u8;
        b[48..48 + n].copy_from_slice(&self.name.as_bytes()[..n]);
        b
    }

    /// Reads a description. `None` when it is too short or its name is no text.
    pub fn decode(b: &[u8]) -> Option<VolumeInfo> {
        if b.len() < VOLUME_INFO || usize::from(b[43]) > NAME_MAX {
            return None;
        }
        let name = core::str::from_utf8(b.get(48..48 + usize::from(b[43]))?).ok()?;
        let flags = u32_at(b, 16);
        Some(VolumeInfo {
            len: u64_at(b, 0),
            block_size: u32_at(b, 8),
            granularity: u32_at(b, 12),
            thin: flags & 1 != 0,
            volatile_cache: flags & 2 != 0,
            read_only: flags & 4 != 0,
            keeps_sums: flags & 8 != 0,
            guard: u32_at(b, 20),
            uid: id_at(b, 24),
            volume: u16_at(b, 40),
            state: PathState::from_code(b[42]),
            name: name.to_owned(),
        })
    }
}
