//! Tasks that end by themselves, are waited for, or are ended.

use super::{is_simulated, nanos};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use weir_reactor::TaskId;

/// Starts a task. It goes on when nobody waits for it.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    if !is_simulated() {
        return JoinHandle(Handle::Tokio(tokio::spawn(work)));
    }
    let (tell, done) = oneshot::channel();
    let task = weir_reactor::spawn_task(async move { drop(tell.send(work.await)) });
    JoinHandle(Handle::Reactor(done, task))
}

/// Runs `work` where it may block its thread.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    match is_simulated() {
        true => spawn(async move { work() }),
        false => JoinHandle(Handle::Tokio(tokio::task::spawn_blocking(work))),
    }
}

/// Waits for a task, and gives what it ended with.
#[derive(Debug)]
pub struct JoinHandle<T>(Handle<T>);

#[derive(Debug)]
enum Handle<T> {
    Tokio(tokio::task::JoinHandle<T>),
    Reactor(oneshot::Receiver<T>, TaskId),
}

impl<T> JoinHandle<T> {
    /// Ends the task where it waits.
    pub fn abort(&self) {
        self.abort_handle().abort();
    }

    /// What ends it.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(match &self.0 {
            Handle::Tokio(h) => Aborts::Tokio(h.abort_handle()),
            Handle::Reactor(_, task) => Aborts::Reactor(*task),
        })
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Handle::Tokio(h) => h.is_finished(),
            Handle::Reactor(done, _) => !done.is_empty() || done.is_terminated(),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Handle::Tokio(h) => Pin::new(h).poll(cx).map_err(|e| Broken(e.to_string())),
            Handle::Reactor(done, _) => {
                Pin::new(done).poll(cx).map_err(|_| Broken("the task was ended".into()))
            }
        }
    }
}

/// A task did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Ends a task.
#[derive(Debug)]
pub struct AbortHandle(Aborts);

#[derive(Debug)]
enum Aborts {
    Tokio(tokio::task::AbortHandle),
    Reactor(TaskId),
}

impl AbortHandle {
    /// Ends it where it waits.
    pub fn abort(&self) {
        match &self.0 {
            Aborts::Tokio(h) => h.abort(),
            Aborts::Reactor(task) => end(*task),
        }
    }
}

/// Ends a task of this reactor. Those of others have ended with them.
fn end(task: TaskId) {
    if weir_reactor::try_current_id() == Some(task.reactor()) {
        weir_reactor::cancel(task);
    }
}

/// A reactor's timer, for those who may be sent elsewhere: a task of its own has it.
pub(super) struct Alarm(oneshot::Receiver<()>, TaskId);

impl Alarm {
    pub(super) fn after(d: Duration) -> Alarm {
        let (ring, rings) = oneshot::channel();
        let task = weir_reactor::spawn_task(async move {
            weir_reactor::sleep(nanos(d)).await;
            let _ = ring.send(());
        });
        Alarm(rings, task)
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx).map(drop)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        end(self.1);
    }
}

/// Tasks that are waited for together, and end with the set.
#[derive(Debug)]
pub struct JoinSet<T>(Vec<JoinHandle<T>>);

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet(Vec::new())
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// None yet.
    pub fn new() -> JoinSet<T> {
        JoinSet::default()
    }

    /// Starts one more.
    pub fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.0.push(spawn(work));
    }

    /// Waits for the next to end; none is left: `None`. May be given up, and called again.
    pub async fn join_next(&mut self) -> Option<Result<T, Broken>> {
        if self.0.is_empty() {
            return None;
        }
        let next = poll_fn(|cx| {
            let mut all = self.0.iter_mut().enumerate();
            let ended = all.find_map(|(i, task)| match Pin::new(task).poll(cx) {
                Poll::Ready(done) => Some((i, done)),
                Poll::Pending => None,
            });
            ended.map_or(Poll::Pending, Poll::Ready)
        });
        let (i, done) = next.await;
        self.0.swap_remove(i);
        Some(done)
    }

    /// Waits for all.
    pub async fn join_all(mut self) -> Vec<Result<T, Broken>> {
        let mut all = Vec::with_capacity(self.0.len());
        while let Some(done) = self.join_next().await {
            all.push(done);
        }
        all
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
