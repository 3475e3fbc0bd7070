//! Changes that nobody gives up half-way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use weir_base::{IoError, IoResult};
use weir_block::IoFuture;
use weir_reactor::{spawn_task, try_current_id};

/// A change that is carried out to its end also when nobody waits for it any more: what it began takes effect some
/// time, and must not do so after later changes of the same chunk, from which its locks keep it apart.
pub(crate) struct ToTheEnd {
    /// `None`: it has ended.
    rest: Option<IoFuture<'static>>,
    begun: bool,
}

impl ToTheEnd {
    pub(crate) fn of<'a>(change: impl Future<Output = IoResult> + 'static) -> IoFuture<'a> {
        IoFuture::new(ToTheEnd { rest: Some(IoFuture::new(change)), begun: false })
    }
}

impl Future for ToTheEnd {
    type Output = IoResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult> {
        self.begun = true;
        let Some(f) = &mut self.rest else { return Poll::Ready(Err(IoError::Internal)) };
        let done = Pin::new(f).poll(cx);
        if done.is_ready() {
            self.rest = None;
        }
        done
    }
}

impl Drop for ToTheEnd {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take()
            && self.begun
            && try_current_id().is_some()
        {
            spawn_task(async move {
                let _ = rest.await;
            });
        }
    }
}
