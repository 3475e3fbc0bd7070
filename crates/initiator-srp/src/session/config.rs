//! Settings of a session.

use crate::channel::ChannelConfig;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_srp::PortId;
use weir_proto_srp::login::MultiChannelAction;

/// How commands reach channels (S3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueMode {
    /// A hardware queue on every core: a command starts and completes on the core that submits it, and no
    /// lock is taken.
    #[default]
    Multi,
    /// One queue for all cores behind one lock, and one channel: what S3 compares with.
    Single,
}

/// Settings of a session. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// Where the target port listens: `ip:port`, one or more. Channels are spread over them, and one that
    /// cannot be had at one address is tried at the next.
    pub addrs: Vec<String>,
    /// Our port.
    pub initiator: PortId,
    /// The target's port.
    pub target: PortId,
    /// Channels; 0 stands for one per reactor, at most 8.
    pub channels: usize,
    /// One queue per core, or one for all.
    pub queue_mode: QueueMode,
    /// Commands in flight per channel.
    pub depth: u16,
    /// Writes up to this many bytes go with the command; 0 turns that off.
    pub immediate: u32,
    /// RDMA READs of the target that a channel serves at once.
    pub reads: u16,
    /// Entries of an indirect table that travel in the command.
    pub inline_entries: u8,
    /// A command without an answer after this time is aborted; 0 waits for ever.
    pub command_timeout: Nanos,
    /// How long a task management function may take.
    pub task_timeout: Nanos,
    /// How often a command is sent again that was aborted for its time, ended with BUSY, TASK SET FULL,
    /// ABORTED COMMAND or a unit attention.
    pub retries: u32,
    /// Pause after the first failed attempt to log in again; a quarter more after each further one. So a target that is back is waited
    /// for no longer than about a quarter of the time that it was away.
    pub reconnect_min: Nanos,
    /// Longest pause between attempts to log in again.
    pub reconnect_max: Nanos,
    /// How long commands wait for a lost path before they fail; until then they wait to be sent again.
    pub fast_io_fail: Nanos,
    /// Ask the target to tell events of its units; see [`Session::notices`](crate::Session::notices).
    pub events: bool,
}

impl SessionConfig {
    /// A session between these ports with Linux's times and sizes.
    pub fn new(addr: &str, target: PortId, initiator: PortId) -> Self {
        let c = ChannelConfig::new(target, initiator);
        SessionConfig {
            addrs: vec![addr.to_owned()],
            initiator,
            target,
            channels: 0,
            queue_mode: QueueMode::Multi,
            depth: c.depth,
            immediate: c.immediate,
            reads: c.reads,
            inline_entries: c.inline_entries,
            command_timeout: c.command_timeout,
            task_timeout: c.task_timeout,
            retries: 5,
            reconnect_min: 100 * MILLIS,
            reconnect_max: 10 * SECONDS,
            fast_io_fail: 15 * SECONDS,
            events: true,
        }
    }

    /// The pause between attempts to log in again that comes after this one.
    pub(crate) fn longer(&self, pause: Nanos) -> Nanos {
        let (least, most) = (self.reconnect_min.max(1), self.reconnect_max);
        (pause + pause / 4 + 1).clamp(least, most.max(least))
    }

    /// Channels to log in with this many reactors.
    pub(crate) fn channel_count(&self, reactors: usize) -> usize {
        match (self.queue_mode, self.channels) {
            (QueueMode::Single, _) => 1,
            (QueueMode::Multi, 0) => reactors.clamp(1, 8),
            (QueueMode::Multi, n) => n,
        }
    }

    /// Settings of channel `index`.
    pub(crate) fn channel(&self, index: usize) -> ChannelConfig {
        ChannelConfig {
            target: self.target,
            initiator: self.initiator,
            action: if index == 0 {
                MultiChannelAction::Terminate
            } else {
                MultiChannelAction::Independent
            },
            queue: index as u16,
            depth: self.depth,
            immediate: self.immediate,
            reads: self.reads,
            inline_entries: self.inline_entries,
            command_timeout: self.command_timeout,
            task_timeout: self.task_timeout,
            // Once for all channels.
            events: self.events && index == 0,
        }
    }
}
