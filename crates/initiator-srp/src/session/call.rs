//! Calls between reactors.

use std::future::Future;
use std::sync::{Arc, Mutex};
use weir_reactor::{Completion, Handle, Token, completion, spawn_task};

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

/// Runs `f` and the future that it gives on another reactor (or here), and waits for the result. `None`:
/// that reactor has ended.
///
/// For control paths: it allocates and takes an (uncontended) lock.
pub(crate) async fn call<R, F, Fut>(there: &Handle, f: F) -> Option<R>
where
    R: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    let (token, done) = completion();
    let answer = Answer { caller: weir_reactor::handle(), token };
    let result = Arc::new(Mutex::new(None));
    let cell = result.clone();
    there.run(move || {
        spawn_task(async move {
            let r = f().await;
            *cell.lock().unwrap_or_else(|e| e.into_inner()) = Some(r);
            drop(answer);
        });
    });
    done.await;
    result.lock().unwrap_or_else(|e| e.into_inner()).take()
}
