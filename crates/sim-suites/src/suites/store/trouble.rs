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
    /// All devices, or one, fail reads, writes or flushes for a while and in one way, as an adapter has them do. Then all are well.
    Passing,
    /// One device fails, power goes at once, and when all is said to be well again another one fails.
    OneThenOther,
    /// What was written last cannot be read after a crash, and can be read again later.
    Unreadable,
}

impl Trouble {
    /// Whether a device may be ill, away or new.
    pub(crate) fn with_devices(self) -> bool {
        use Trouble::*;
        !matches!(self, None | BothCopies | Full | Snapshots | Unreadable)
    }

    pub(crate) fn draw(rng: &mut Prng) -> Trouble {
        match rng.below(32) {
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
            24..=27 => Trouble::Passing,
            28 | 29 => Trouble::OneThenOther,
            30 | 31 => Trouble::Unreadable,
            _ => Trouble::Lies,
        }
    }
}
