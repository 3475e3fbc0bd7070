//! Several things at once.

use std::future::poll_fn;
use std::task::Poll;

/// Drives all of them at once; gives their results in their order.
pub(super) async fn together<F: Future>(all: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = all.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (run, done) in running.iter_mut().zip(&mut done) {
            let Some(future) = run else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(t) => (*run, *done) = (None, Some(t)),
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}
