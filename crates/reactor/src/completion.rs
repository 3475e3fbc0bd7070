//! Completion slots: how a disk, a ring or a fabric tells a task that its operation is over.
//!
//! A [`Token`] is a plain number (slot and generation) that fits an io_uring `user_data` or a verbs
//! `wr_id`, so a late completion can never hit a slot that was used again.

use crate::executor::with;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Names one pending operation of the present reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Set in tokens of a completion queue.
pub(crate) const QUEUED: u64 = 1 << 63;

impl Token {
    /// Nobody waits: completing it does nothing.
    pub const NONE: Token = Token(u64::MAX);
}

/// What a completion says. The meaning of the fields is the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// 0 or positive: success. Negative: failure.
    pub result: i32,
    /// Bytes moved, or another number.
    pub len: u32,
    /// Where it came from (fabric: number of the connection).
    pub source: u32,
    /// More (fabric: an invalidated key).
    pub extra: u32,
}

impl Completion {
    /// Success with a number of bytes.
    pub fn ok(len: u32) -> Self {
        Completion { len, ..Completion::default() }
    }
    /// Failure with a negative code.
    pub fn error(code: i32) -> Self {
        Completion { result: if code < 0 { code } else { -1 }, ..Completion::default() }
    }
    /// True for success.
    pub fn is_ok(&self) -> bool {
        self.result >= 0
    }
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    Pending,
    Waiting(Waker),
    Done(Completion),
    /// The future was dropped; the slot waits for its completion to be free again.
    Abandoned,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    state: State,
}

#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    fn insert(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let s = &mut self.slots[index as usize];
        s.state = State::Pending;
        Token(u64::from(s.generation) << 32 | u64::from(index))
    }

    fn get(&mut self, t: Token) -> Option<&mut Slot> {
        let s = self.slots.get_mut(t.0 as u32 as usize)?;
        (u64::from(s.generation) == t.0 >> 32).then_some(s)
    }

    fn release(&mut self, t: Token) {
        let index = t.0 as u32;
        let s = &mut self.slots[index as usize];
        s.state = State::Free;
        // The top bit stays clear, so that no token equals NONE.
        s.generation = (s.generation + 1) & 0x7fff_ffff;
        self.free.push(index);
    }
}

/// Makes a slot: the token is for whoever will complete it, the future for whoever waits.
pub fn completion() -> (Token, CompletionFuture) {
    let token = with(|i| i.slots.borrow_mut().insert());
    (token, CompletionFuture { token, taken: false, _local: PhantomData })
}

/// Completes `token` on its own reactor. A stale token is ignored.
#[inline]
pub fn complete(token: Token, c: Completion) {
    if token == Token::NONE {
        return;
    }
    if token.0 & QUEUED != 0 {
        return crate::completion_queue::push(token, c);
    }
    let waker = with(|i| {
        let mut slots = i.slots.borrow_mut();
        let s = slots.get(token)?;
        match std::mem::take(&mut s.state) {
            State::Waiting(w) => {
                s.state = State::Done(c);
                Some(w)
            }
            State::Pending => {
                s.state = State::Done(c);
                None
            }
            State::Abandoned => {
                slots.release(token);
                None
            }
            done @ State::Done(_) => {
                debug_assert!(false, "completed twice");
                s.state = done;
                None
            }
            State::Free => None,
        }
    });
    if let Some(w) = waker {
        w.wake();
    }
}

/// Waits for a completion. Dropping it abandons the operation's result, not the operation.
///
/// It belongs to the reactor that made it:
///
/// ```compile_fail
/// fn send(_: impl Send) {}
/// send(weir_reactor::completion().1);
/// ```
pub struct CompletionFuture {
    token: Token,
    taken: bool,
    /// Its slot means nothing on another thread.
    _local: PhantomData<*const ()>,
}

impl CompletionFuture {
    /// The slot's name.
    pub fn token(&self) -> Token {
        self.token
    }
}

impl Future for CompletionFuture {
    type Output = Completion;
    #[inline]
    #[expect(clippy::expect_used, reason = "an invariant: a slot is given back with its future")]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let token = self.token;
        assert!(!self.taken, "polled after completion");
        let done = with(|i| {
            let mut slots = i.slots.borrow_mut();
            let s = slots.get(token).expect("the future owns its slot");
            match &s.state {
                State::Done(c) => {
                    let c = *c;
                    slots.release(token);
                    Some(c)
                }
                _ => {
                    s.state = State::Waiting(cx.waker().clone());
                    None
                }
            }
        });
        match done {
            Some(c) => {
                self.taken = true;
                Poll::Ready(c)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for CompletionFuture {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let token = self.token;
        crate::executor::try_with(|i| {
            let mut slots = i.slots.borrow_mut();
            if let Some(s) = slots.get(token) {
                match s.state {
                    State::Done(_) => slots.release(token),
                    _ => s.state = State::Abandoned,
                }
            }
        });
    }
}
