//! Tags as this initiator makes them: hardware queue and index, so that a response finds its command
//! without a table.
use crate::types::Tag;

/// What a tag of this initiator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InitiatorTag {
    /// A command: slot `index` of hardware queue `queue`.
    Command {
        /// Hardware queue, 0 to 32767.
        queue: u16,
        /// Slot in that queue.
        index: u16,
    },
    /// A task management function: a running number of 31 bits per channel.
    Task(u32),
}

/// Bit 31 marks task management, as Linux does.
const TASK: u32 = 1 << 31;

impl InitiatorTag {
    /// Number of hardware queues that tags can tell apart.
    pub const MAX_QUEUES: u16 = 1 << 15;

    /// The tag: queue × 65536 + index, or bit 31 and the number. Bits that do not fit are cut.
    #[inline]
    pub fn tag(self) -> Tag {
        Tag(u64::from(match self {
            InitiatorTag::Command { queue, index } => {
                (u32::from(queue) << 16 | u32::from(index)) & !TASK
            }
            InitiatorTag::Task(n) => n | TASK,
        }))
    }

    /// What a received tag says; `None` for one that this initiator never makes.
    #[inline]
    pub fn from_tag(tag: Tag) -> Option<Self> {
        let n = u32::try_from(tag.0).ok()?;
        Some(if n & TASK != 0 {
            InitiatorTag::Task(n & !TASK)
        } else {
            InitiatorTag::Command { queue: (n >> 16) as u16, index: n as u16 }
        })
    }

    /// The task management tag after this number: it wraps within 31 bits.
    pub fn next_task(n: u32) -> u32 {
        n.wrapping_add(1) & !TASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_what_linux_counts() {
        let t = InitiatorTag::Command { queue: 3, index: 0x1234 }.tag();
        assert_eq!(t.to_bytes(), [0x34, 0x12, 0x03, 0, 0, 0, 0, 0]);
        // Seen live from a little-endian host: 01 00 00 80, 02 00 00 80.
        assert_eq!(InitiatorTag::Task(1).tag().to_bytes(), [1, 0, 0, 0x80, 0, 0, 0, 0]);
        assert_eq!([0, 1, 41].map(InitiatorTag::next_task), [1, 2, 42]);
        assert_eq!(InitiatorTag::next_task(0x7fff_ffff), 0);
        assert_eq!(u32::from(InitiatorTag::MAX_QUEUES) << 16, TASK);
        // A queue that does not fit never turns a command into task management.
        let cut = InitiatorTag::Command { queue: InitiatorTag::MAX_QUEUES | 5, index: 6 };
        assert_eq!(cut.tag(), InitiatorTag::Command { queue: 5, index: 6 }.tag());
        assert_eq!(InitiatorTag::from_tag(Tag(1 << 32)), None);
        for t in [
            InitiatorTag::Command { queue: 0, index: 0 },
            InitiatorTag::Command { queue: 0x7fff, index: 0xffff },
            InitiatorTag::Task(0),
            InitiatorTag::Task(0x7fff_ffff),
        ] {
            assert_eq!(InitiatorTag::from_tag(t.tag()), Some(t));
        }
    }
}
