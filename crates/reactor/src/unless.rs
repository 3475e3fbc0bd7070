//! Waits that end when something else happens.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Runs `future` until it is done, or `stop` is: then it is given up where it stands, and `None` comes back. Where both
/// are done, `future` counts.
///
/// `future` may be a pinned reference, so that it can be gone on with.
pub async fn unless<F: Future>(stop: impl Future<Output = ()>, future: F) -> Option<F::Output> {
    let (mut stop, mut future) = (pin!(stop), pin!(future));
    poll_fn(move |cx| match future.as_mut().poll(cx) {
        Poll::Ready(v) => Poll::Ready(Some(v)),
        Poll::Pending => stop.as_mut().poll(cx).map(|()| None),
    })
    .await
}
