//! Who asked for what is under way.

use crate::platform::{self, JoinHandle};
use std::sync::Arc;

/// Nobody asked for it: the daemon does it by itself.
pub const ITSELF: &str = "weir";

tokio::task_local! {
    static BY: Arc<str>;
}

/// The one that the present task works for.
pub(super) fn whom() -> Arc<str> {
    BY.try_with(Arc::clone).unwrap_or_else(|_| ITSELF.into())
}

/// Does `work` for `by`: `uid:1000`, `token:admin`.
pub(crate) async fn on_behalf_of<F: Future>(by: Arc<str>, work: F) -> F::Output {
    BY.scope(by, work).await
}

/// A task that works for the one that the present task works for, and goes on without it.
pub(crate) fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    if crate::planted::has(crate::planted::Bug::NobodyAsked) {
        return platform::spawn(work);
    }
    platform::spawn(BY.scope(whom(), work))
}
