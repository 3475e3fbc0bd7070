//! That the node is being stopped, known to all who have to do with it.

use crate::platform::{Instant, watch};
use std::sync::Arc;

/// Told once, for good. Whoever holds a clone can tell it and wait for it.
#[derive(Debug, Clone, Default)]
pub struct Stopping(Arc<watch::Sender<Option<Instant>>>);

impl Stopping {
    /// From here on the node is being stopped. Gives since when it is: what a stop may take counts from its first word.
    pub fn begin(&self) -> Instant {
        let mut since = Instant::now();
        self.0.send_if(|begun| {
            let first = begun.is_none();
            since = *begun.get_or_insert(since);
            first
        });
        since
    }

    /// It is.
    pub fn has_begun(&self) -> bool {
        self.0.look(Option::is_some)
    }

    /// Waits until it is.
    pub fn begun(&self) -> impl Future<Output = ()> + Send + use<> {
        let me = self.clone();
        async move {
            // The sender is there as long as this clone.
            let _ = me.0.subscribe().wait_for(Option::is_some).await;
        }
    }
}
