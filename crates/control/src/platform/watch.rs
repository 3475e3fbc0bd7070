//! A value that is waited for until it is as it should be.
//!
//! As Tokio's channel of this name, which wakes who waits in an order of its own chance: under one seed the order must be one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug)]
struct Shared<T> {
    /// The value, and whether anybody may change it yet.
    now: Mutex<(T, bool)>,
    changed: Notify,
}

impl<T> Shared<T> {
    fn now(&self) -> MutexGuard<'_, (T, bool)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who changes the value.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

/// Who waits for it.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        Receiver(self.0.clone())
    }
}

/// Nobody changes the value any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

/// Both ends of one.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Sender<T> {
        Sender::new(T::default())
    }
}

impl<T> Sender<T> {
    /// Nobody waits for it yet.
    pub fn new(value: T) -> Sender<T> {
        Sender(Arc::new(Shared { now: Mutex::new((value, true)), changed: Notify::new() }))
    }

    /// One more that waits.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver(self.0.clone())
    }

    /// Looks at the value.
    pub fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0.now().0)
    }

    /// The value is this.
    pub fn send(&self, value: T) {
        self.send_if(|now| {
            *now = value;
            true
        });
    }

    /// Changes the value. `change` says whether it has.
    pub fn send_if(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.0.now().0);
        if changed {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.now().1 = false;
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// Looks at the value.
    pub fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0.now().0)
    }
}

impl<T: Clone> Receiver<T> {
    /// Waits until the value is as it should be, and gives it.
    ///
    /// # Errors
    /// It will never be.
    pub async fn wait_for(&self, is_so: impl Fn(&T) -> bool) -> Result<T, Closed> {
        loop {
            let changed = self.0.changed.notified();
            {
                // What changes from here on wakes us.
                let now = self.0.now();
                match &*now {
                    (value, _) if is_so(value) => return Ok(value.clone()),
                    (_, false) => return Err(Closed),
                    _ => {}
                }
            }
            changed.await;
        }
    }
}
