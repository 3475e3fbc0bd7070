//! Taking turns across reactors, first come first served. For rare commands: it takes a lock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_reactor::{Completion, Handle, Token, completion};

#[derive(Default)]
struct State {
    taken: bool,
    waiting: VecDeque<(Handle, Token)>,
}

/// Something that one at a time may do.
#[derive(Default)]
pub(crate) struct Turns(Mutex<State>);

/// A turn, or a place in the queue for one; ends when it is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// Names the place in the queue: a reactor, and a number there.
    place: Option<(u32, Token)>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn.
    pub(crate) async fn take(&self) -> Turn<'_> {
        let (token, mine) = completion();
        let turn = {
            let mut s = self.lock();
            if !std::mem::replace(&mut s.taken, true) {
                return Turn { turns: self, place: None };
            }
            let here = weir_reactor::handle();
            let place = Some((here.id(), token));
            s.waiting.push_back((here, token));
            // Whoever gives up waiting passes on what it may have been given meanwhile.
            Turn { turns: self, place }
        };
        mine.await;
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut s = self.turns.lock();
        let before = s.waiting.len();
        s.waiting.retain(|(there, t)| Some((there.id(), *t)) != self.place);
        if s.waiting.len() < before {
            return;
        }
        match s.waiting.pop_front() {
            Some((there, token)) => there.complete(token, Completion::ok(0)),
            None => s.taken = false,
        }
    }
}
