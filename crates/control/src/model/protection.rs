//! Protected pools: what the pool store keeps copies, checksums and snapshots for.

use super::{DeviceKind, DeviceSpec};
use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize, de};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// How a protected pool keeps data on its devices. Written `"0"`, `"1"` and `"10"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
pub enum Raid {
    /// One copy, spread over all devices: damage is found and cannot be mended.
    #[schema(rename = "0")]
    Zero,
    /// Two copies on two devices.
    #[schema(rename = "1")]
    One,
    /// Two copies, spread over three or more devices.
    #[schema(rename = "10")]
    Ten,
}

impl Raid {
    /// Every one.
    pub const ALL: [Raid; 3] = [Raid::Zero, Raid::One, Raid::Ten];

    /// The number as people write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Raid::Zero => "0",
            Raid::One => "1",
            Raid::Ten => "10",
        }
    }

    /// Copies of each block.
    pub fn copies(self) -> u8 {
        match self {
            Raid::Zero => 1,
            Raid::One | Raid::Ten => 2,
        }
    }

    /// How many devices it is made of.
    fn devices(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Raid::Zero => 1..=MAX_DEVICES,
            Raid::One => 2..=2,
            Raid::Ten => 3..=MAX_DEVICES,
        }
    }
}

/// Most devices of a protected pool (docs/format.md: members of a superblock).
const MAX_DEVICES: usize = 32;

impl fmt::Display for Raid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Raid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Raid::ALL.into_iter().find(|r| r.as_str() == text).ok_or_else(|| {
            Error::new(Code::InvalidRequest, format!("`{text}` is not a way to protect a pool"))
                .hint("use 0 (one copy), 1 (two devices) or 10 (three or more devices)")
        })
    }
}

impl Serialize for Raid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Raid {
    /// The text, or in a configuration file also the number.
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Number(u64),
        }
        let text = match Written::deserialize(d)? {
            Written::Text(t) => t,
            Written::Number(n) => n.to_string(),
        };
        text.parse().map_err(de::Error::custom)
    }
}

/// How much of the maps of its volumes a protected pool keeps in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MapMemory {
    /// Half a GiB for each TiB that can be used: what is used often. Reads elsewhere take another read of 4 KiB.
    #[default]
    Lean,
    /// Everything: about 3.1 GiB for a TiB that is full.
    Full,
}

impl MapMemory {
    /// Every one.
    pub const ALL: [MapMemory; 2] = [MapMemory::Lean, MapMemory::Full];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            MapMemory::Lean => "lean",
            MapMemory::Full => "full",
        }
    }

    fn is_lean(&self) -> bool {
        *self == MapMemory::Lean
    }
}

impl fmt::Display for MapMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MapMemory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        MapMemory::ALL.into_iter().find(|m| m.as_str() == text).ok_or_else(|| {
            Error::new(Code::InvalidRequest, format!("`{text}` is not a size of memory for maps"))
                .hint("use lean (half a GiB for a TiB) or full (all maps, 3.1 GiB for a TiB)")
        })
    }
}

/// The identity of a protected pool, as the labels on its devices have it: 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub u128);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for PoolId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PoolId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        let wrong = || de::Error::custom("the identity of a pool has 32 hexadecimal digits");
        if text.len() != 32 {
            return Err(wrong());
        }
        u128::from_str_radix(&text, 16).map(PoolId).map_err(|_| wrong())
    }
}

/// What makes a pool a protected one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Protection {
    /// How data is kept.
    pub raid: Raid,
    /// Its identity on the devices.
    #[schema(value_type = String)]
    pub id: PoolId,
    /// Its devices carry labels. Until then they may be written over.
    pub formatted: bool,
    /// It may be made of devices that belong to another pool, whose data is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
    /// How much of its maps is kept in memory.
    #[serde(default, skip_serializing_if = "MapMemory::is_lean")]
    pub memory: MapMemory,
}

/// Checks what a protected pool is to be made of.
pub(super) fn check_devices(raid: Raid, devices: &[DeviceSpec]) -> Result<()> {
    let wrong = |m: String| Err(Error::new(Code::InvalidDevice, m));
    let (n, wanted) = (devices.len(), raid.devices());
    if !wanted.contains(&n) {
        let text = if wanted.start() == wanted.end() {
            format!("{}", wanted.end())
        } else {
            format!("{} to {}", wanted.start(), wanted.end())
        };
        return wrong(format!("a pool with --raid {raid} has {text} devices, not {n}")).map_err(
            |e: Error| e.hint("--raid 0: one or more devices; 1: two; 10: three or more"),
        );
    }
    devices.iter().try_for_each(check_kind)
}

/// Checks that a device can be one of a protected pool.
pub(super) fn check_kind(d: &DeviceSpec) -> Result<()> {
    if matches!(d.kind, DeviceKind::File | DeviceKind::Block | DeviceKind::Brp) {
        return Ok(());
    }
    let word = d.kind.as_str();
    Err(Error::new(Code::InvalidDevice, format!("a protected pool cannot have a `{word}` device"))
        .hint("use files, block devices and volumes of other nodes"))
}

/// What a device becomes in a protected pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceUse {
    /// A part of it.
    Member,
    /// Takes the place of a device that fails.
    Spare,
    /// Takes the place of the device with this number, which leaves when everything is off it.
    Replace(u16),
    /// It was a part of it before, and is brought up to date.
    Back,
}

/// Something to do about the devices of a protected pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub enum DeviceAction {
    /// Take a device in.
    Put {
        /// The device.
        device: DeviceSpec,
        /// As what.
        r#as: DeviceUse,
        /// What may be lost that is on it, in the words of the refusal without it.
        #[serde(default, skip_serializing_if = "super::Overwrite::is_nothing")]
        overwrite: super::Overwrite,
    },
    /// Move everything off a device, in the background.
    Drain {
        /// Its number.
        number: u16,
    },
    /// Stop what is being done about a device.
    Cancel {
        /// Its number.
        number: u16,
    },
    /// Let a device go that holds nothing.
    Remove {
        /// Its number.
        number: u16,
    },
    /// Bring every device back that is out of sync and answers.
    Resync,
    /// Have a suspended pool go on, when its devices are well again.
    Resume,
}

/// Longest name of a snapshot: with the volume's identity in front it is a name on the devices, of 63 bytes.
pub const MAX_SNAPSHOT_NAME: usize = 30;

/// Checks a snapshot's name.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    super::check_name("snapshot", name)?;
    if name.len() > MAX_SNAPSHOT_NAME {
        return Err(Error::new(
            Code::InvalidName,
            format!("`{name}` cannot be the name of a snapshot"),
        )
        .because(format!("it has {} characters", name.len()))
        .hint(format!("use up to {MAX_SNAPSHOT_NAME}")));
    }
    Ok(())
}

/// What a snapshot is called on the devices, of a volume by what that is called there.
pub fn snapshot_dataset(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// A volume to be made of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneSpec {
    /// The volume that has the snapshot.
    pub volume: String,
    /// The snapshot.
    pub snapshot: String,
    /// The new volume's name.
    pub name: String,
    /// Whether hosts may only read it.
    #[serde(default)]
    pub read_only: bool,
}
