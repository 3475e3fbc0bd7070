//! A login that ends its host's older channels, wherever they live.

use crate::nexus::ChannelRef;
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::target::{self, TargetShared};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weir_proto_scsi::lu::Nexus;
use weir_proto_srp::misc::LogoutReason;
use weir_reactor::spawn_task;

/// What a login is to end.
pub(crate) struct Ending {
    shared: Arc<TargetShared>,
    /// Nexuses of its host that are over.
    former: Vec<Nexus>,
    /// Channels that do not know of it yet.
    unaware: AtomicUsize,
    /// The login has come to nothing.
    refused: AtomicBool,
}

impl Ending {
    /// Some commands of these channels may begin yet.
    pub(crate) fn are_unaware(&self) -> bool {
        self.unaware.load(Ordering::SeqCst) > 0
    }

    /// What the host had reserved is free, but for units of which a device has writes of it yet.
    fn free(&self) {
        target::over(&self.shared, &self.former);
    }

    /// The login is refused. What it was to free is free when all channels know that they have ended: nobody joins their nexus any more,
    /// and the host need not come again.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
        if !self.are_unaware() {
            self.free();
        }
    }
}

/// A channel that is to end does not know of it yet. None of its commands that has not begun will have an effect when this is gone.
struct Unaware(Arc<Ending>);

impl Drop for Unaware {
    fn drop(&mut self) {
        let was_last = self.0.unaware.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.0.refused.load(Ordering::SeqCst) && !has(Bug::RefusedFreesNothing) {
            self.0.free();
        }
    }
}

/// Begins to end channels wherever they live, side by side.
pub(crate) fn terminate(
    shared: &Arc<TargetShared>,
    all: &[ChannelRef],
    former: Vec<Nexus>,
) -> Arc<Ending> {
    let (unaware, refused) = (AtomicUsize::new(all.len()), AtomicBool::new(false));
    let ending = Arc::new(Ending { shared: shared.clone(), former, unaware, refused });
    let (target, reactors) = (shared.spread.id(), shared.spread.reactors());
    for c in all.iter().copied() {
        // A reactor that has ended has no channels.
        let unaware = Unaware(ending.clone());
        let Some(there) = reactors.iter().find(|h| h.id() == c.reactor) else { continue };
        there.run(move || {
            spawn_task(async move {
                let channel = Port::local(target)
                    .and_then(|p| p.channels().into_iter().find(|x| x.id == c.channel));
                if let Some(channel) = channel {
                    let reason = Some(LogoutReason::MultiChannelAction);
                    channel.close("a new login of its host ends it", reason);
                }
                drop(unaware);
            });
        });
    }
    ending
}
