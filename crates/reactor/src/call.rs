//! Calls between reactors.

use crate::completion::{Completion, Token, completion};
use crate::executor::spawn_task;
use crate::mailbox::{Handle, handle};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// Completes the caller's token, also when the call is dropped undone because its reactor has ended.
struct Answer {
    caller: Handle,
    token: Token,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.caller.complete(self.token, Completion::ok(0));
    }
}

/// Runs `f` and the future that it gives on another reactor (or here), in a task of its own, and waits for the
/// result. `None`: that reactor has ended. A caller that is dropped meanwhile does not end the task.
///
/// For control paths: it allocates and takes an (uncontended) lock.
pub async fn call<R, F, Fut>(there: &Handle, f: F) -> Option<R>
where
    R: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    let (token, done) = completion();
    let answer = Answer { caller: handle(), token };
    let result = Arc::new(Mutex::new(None));
    let cell = result.clone();
    there.run(move || {
        spawn_task(async move {
            let r = f().await;
            *cell.lock().unwrap_or_else(PoisonError::into_inner) = Some(r);
            drop(answer);
        });
    });
    done.await;
    result.lock().unwrap_or_else(PoisonError::into_inner).take()
}
