//! Settings of a session.

use crate::merge::Variant;
use crate::siblings::Family;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_brp::{Features, PortId};

/// Longest message received, in bytes: what one FPDU of the iWARP provider carries.
pub(crate) const MESSAGE: usize = 61440;

/// What this host proves to know at login (docs/brp.md, "Keyed logins"); the target proves it in turn.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The secret: [`weir_proto_brp::keyed::SECRET_MIN`] to [`weir_proto_brp::keyed::SECRET_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// What nonces are drawn from: 32 bytes that nobody can guess, other ones for each session.
    pub seed: [u8; 32],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which other sessions of its initiator port a login leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Keep {
    /// None: it ends them.
    #[default]
    None,
    /// Those of this family. Others are of a former life of this host, and end. A target that knows no families ends all with the
    /// first of the family, and none with the others.
    Siblings(Family),
    /// All, whoever made them: what one that was killed has left with a device is not waited for.
    All,
}

/// Settings of a session. Times are in nanoseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// Where the target port listens: `ip:port`, one or more. Channels are spread over them, and one that
    /// cannot be had at one address is tried at the next.
    pub addrs: Vec<String>,
    /// Our port.
    pub initiator: PortId,
    /// The target's port; zero for whichever answers.
    pub target: PortId,
    /// Names the session; 0 draws a number when the session is made.
    pub session: u64,
    /// Channels; at least one per reactor, which 0 stands for.
    pub channels: usize,
    /// Commands in flight per channel.
    pub depth: u16,
    /// When commands share a message.
    pub variant: Variant,
    /// Checksums of messages and data.
    pub integrity: bool,
    /// Reads up to this size come behind their completions; 0 turns that off.
    pub inline_read: u32,
    /// Writes up to this size go behind their commands; 0 turns that off.
    pub inline_write: u32,
    /// RDMA READs of the target that a channel serves at once.
    pub reads: u16,
    /// Which other sessions of this initiator port are left alone.
    pub keep: Keep,
    /// A side that hears nothing for so long gives the connection up; 0: never.
    pub keep_alive: Nanos,
    /// A command without a completion after this time is aborted; 0 waits for ever.
    pub command_timeout: Nanos,
    /// How long the completion of an aborted command may take before the connection is given up.
    pub abort_timeout: Nanos,
    /// How often an I/O is tried again that met damaged data or a busy target.
    pub retries: u32,
    /// Pause after the first failed attempt to connect again; a quarter more after each further one. So a target that is back is waited
    /// for no longer than about a quarter of the time that it was away.
    pub reconnect_min: Nanos,
    /// Longest pause between attempts.
    pub reconnect_max: Nanos,
    /// How long commands wait for a lost path before they fail.
    pub fast_io_fail: Nanos,
    /// With a secret only targets that know it are logged in to.
    pub secret: Option<Secret>,
}

impl SessionConfig {
    /// A session with the port at `addr`, whichever that is.
    pub fn new(addr: &str, initiator: PortId) -> Self {
        SessionConfig {
            addrs: vec![addr.to_owned()],
            initiator,
            target: PortId::default(),
            session: 0,
            channels: 0,
            depth: 256,
            variant: Variant::Auto,
            integrity: true,
            inline_read: 16 << 10,
            inline_write: 16 << 10,
            reads: 16,
            keep: Keep::None,
            keep_alive: 5 * SECONDS,
            command_timeout: 30 * SECONDS,
            abort_timeout: 5 * SECONDS,
            retries: 5,
            reconnect_min: 20 * MILLIS,
            reconnect_max: 2 * SECONDS,
            fast_io_fail: 60 * SECONDS,
            secret: None,
        }
    }

    /// What is asked for at login. `beside`: another session of the family is logged in.
    pub(crate) fn features(&self, beside: bool) -> Features {
        let mut f = self.variant.features();
        let siblings = matches!(self.keep, Keep::Siblings(_));
        // To targets that know no families: those that know them pass over it.
        let all = self.keep == Keep::All || siblings && beside;
        for (on, feature) in [
            (self.integrity, Features::INTEGRITY),
            (self.inline_read > 0, Features::INLINE_READ),
            (self.inline_write > 0, Features::INLINE_WRITE),
            (all, Features::KEEP_OTHERS),
            (siblings, Features::SIBLINGS),
            (true, Features::LONG_RANGES),
            (self.secret.is_some(), Features::KEYED),
        ] {
            if on {
                f = f.or(feature);
            }
        }
        f
    }

    /// Channels with this many reactors.
    pub(crate) fn channel_count(&self, reactors: usize) -> usize {
        self.channels.max(reactors).max(1)
    }
}
