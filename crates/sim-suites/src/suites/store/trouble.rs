//! What goes wrong in a story besides crashes.

use weir_base::Prng;

/// The kind of trouble of one story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Crashes only.
    None,
    /// One device loses, misdirects and damages what was written.
    Latent,
    /// One device is not there any more after a crash.
    HalfLost,
    /// One device fails a write or a flush, or goes away, in service.
    DeviceFails,
    /// One device is slow beyond patience.
    Stall,
    /// All copies of some blocks are damaged.
    BothCopies,
    /// There is more to write than space.
    Full,
    /// Snapshots, clones and deletions.
    Snapshots,
    /// One device is away at times, also when the pool is opened, and comes back.
    Away,
    /// Devices are added, replaced, drained and removed, fail, and have spares.
    Devices,
    /// A new device swallows writes while it is filled.
    Lies,
}

impl Trouble {
    /// Whether a device may be ill, away or new.
    pub(crate) fn with_devices(self) -> bool {
        !matches!(self, Trouble::None | Trouble::BothCopies | Trouble::Full | Trouble::Snapshots)
    }

    pub(crate) fn draw(rng: &mut Prng) -> Trouble {
        match rng.below(24) {
            0 | 1 => Trouble::None,
            2..=5 => Trouble::Latent,
            6 | 7 => Trouble::HalfLost,
            8 | 9 => Trouble::DeviceFails,
            10 => Trouble::Stall,
            11 => Trouble::BothCopies,
            12 => Trouble::Full,
            13..=15 => Trouble::Snapshots,
            16..=18 => Trouble::Away,
            19..=21 => Trouble::Devices,
            _ => Trouble::Lies,
        }
    }
}
