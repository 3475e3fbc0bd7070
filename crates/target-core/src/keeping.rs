//! Reservations that are being made durable.
//!
//! They come into force when they last, also if the channel of their command has ended meanwhile. The host may have come back by
//! then. Of reservations it is told nothing that such a command is about to change. Its own changes take turns with that anyway.

use crate::execute::Failure;
use crate::linger::is_same;
use crate::pass::Pass;
use crate::planted::{Bug, has};
use crate::transfer::Transfer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::MILLIS;
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::sleep;

/// Whose they are: its writer and its initiator port.
type Host = (Arc<str>, TransportId);

/// The host whose reservations of a unit are being made durable. Those of one host at a time are.
#[derive(Default)]
pub(crate) struct Keeping(Mutex<Option<Host>>);

/// Until what is being made durable is in force, or given up.
#[must_use]
pub(crate) struct Kept<'a>(&'a Keeping);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl Keeping {
    fn lock(&self) -> MutexGuard<'_, Option<Host>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, host: Host) -> Kept<'_> {
        *self.lock() = Some(host);
        Kept(self)
    }

    fn is_of(&self, (writer, port): &Host) -> bool {
        let all = self.lock();
        all.as_ref().is_some_and(|(w, p)| is_same((w, p), (writer, port)))
    }
}

impl Pass {
    /// Reservations of this host are about to be made durable. It has the turn to change them.
    pub(crate) fn begin_to_keep(&self) -> Kept<'_> {
        self.unit.shared.keeping.begin((self.writer(), self.port.clone()))
    }

    /// Waits while reservations of this host are being made durable.
    ///
    /// # Errors
    /// The command was fenced or stopped meanwhile.
    pub(crate) async fn wait_for_keeping<T: Transfer>(&self, t: &T) -> Result<(), Failure> {
        let host = (self.writer(), self.port.clone());
        let kept = async {
            while self.unit.shared.keeping.is_of(&host) && !has(Bug::KeptUnseen) {
                sleep(MILLIS).await;
            }
        };
        self.unless_over(t, kept).await
    }
}
