//! Memory of one reactor that another one works with.
//!
//! A [`Slice`] counts its references without atomics, so it cannot leave its reactor. Instead the owner
//! keeps it in a table here, and the other reactor gets its address with a [`Claim`]; slices made from
//! that address keep the claim, and its drop tells the owner, who then lets go.

use crate::channel::{Outcome, Unfinished};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};
use weir_mem::{Backing, Slice};
use weir_reactor::{Handle, handle, local_or_default};

/// Names a loan: the owner's reactor, and a number that is never used again.
pub(crate) type Name = (u32, u64);

type Answer = Result<Outcome, Unfinished>;

#[derive(Default)]
struct Entry {
    kept: Vec<Slice>,
    /// The other reactor has let go.
    returned: bool,
    /// The future here has let go.
    left: bool,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

/// What the present reactor has lent.
#[derive(Default)]
struct Loans {
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
    numbers: Cell<u64>,
}

impl Loans {
    fn here() -> Rc<Loans> {
        local_or_default()
    }

    fn release(&self, index: u32) {
        let kept = {
            let mut all = self.entries.borrow_mut();
            let e = &mut all[index as usize];
            if !e.returned || !e.left {
                return;
            }
            e.answer = None;
            e.waker = None;
            std::mem::take(&mut e.kept)
        };
        self.free.borrow_mut().push(index);
        let mut kept = kept;
        kept.clear();
        // The room is used again.
        self.entries.borrow_mut()[index as usize].kept = kept;
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        // The reactor ends while another one may still use its memory: better lost than used after.
        for e in self.entries.get_mut() {
            if !e.returned {
                std::mem::forget(std::mem::take(&mut e.kept));
            }
        }
    }
}

/// The owner's side of a loan.
pub(super) struct Loan {
    loans: Rc<Loans>,
    index: u32,
    name: Name,
}

/// The borrower's side. Dropping it gives the memory back.
pub(crate) struct Claim {
    /// `None` once given back.
    owner: Option<Handle>,
    index: u32,
    name: Name,
}

/// Lends slices; they live until the claim is dropped, and the loan.
pub(super) fn lend<'a>(slices: impl Iterator<Item = &'a Slice>) -> (Loan, Claim) {
    let loans = Loans::here();
    let index = loans.free.borrow_mut().pop().unwrap_or_else(|| {
        let mut all = loans.entries.borrow_mut();
        all.push(Entry::default());
        all.len() as u32 - 1
    });
    let number = loans.numbers.get() + 1;
    loans.numbers.set(number);
    {
        let mut all = loans.entries.borrow_mut();
        let e = &mut all[index as usize];
        e.kept.extend(slices.cloned());
        (e.returned, e.left) = (false, false);
    }
    let owner = handle();
    let name = (owner.id(), number);
    (Loan { loans, index, name }, Claim { owner: Some(owner), index, name })
}

impl Loan {
    /// Owner and number of the loan.
    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// True once the answer has come.
    pub(super) fn is_answered(&self) -> bool {
        let all = self.loans.entries.borrow();
        let e = &all[self.index as usize];
        e.left || e.answer.is_some()
    }

    /// Waits for the other reactor's answer.
    pub(super) async fn answer(&self) -> Answer {
        std::future::poll_fn(|cx| {
            let mut all = self.loans.entries.borrow_mut();
            let e = &mut all[self.index as usize];
            match e.answer.take() {
                Some(a) => {
                    e.left = true;
                    Poll::Ready(a)
                }
                None => {
                    e.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.loans.entries.borrow_mut()[self.index as usize].left = true;
        self.loans.release(self.index);
    }
}

/// Runs on the owner's reactor.
fn settle(index: u32, answer: Option<Answer>, returned: bool) {
    let loans = Loans::here();
    let waker = {
        let mut all = loans.entries.borrow_mut();
        let Some(e) = all.get_mut(index as usize) else { return };
        e.returned |= returned;
        match answer {
            Some(a) if !e.left => {
                e.answer = Some(a);
                e.waker.take()
            }
            _ => None,
        }
    };
    if let Some(w) = waker {
        w.wake();
    }
    loans.release(index);
}

impl Claim {
    /// Owner and number of the loan.
    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// Sends the answer, and gives the memory back by the same message if `returned`.
    pub(super) fn answer(mut self, answer: Answer, returned: bool) {
        let index = self.index;
        if returned {
            if let Some(owner) = self.owner.take() {
                owner.run(move || settle(index, Some(answer), true));
            }
        } else {
            self.answer_only(answer);
        }
    }

    /// Sends the answer; the memory is still in use.
    pub(super) fn answer_only(&self, answer: Answer) {
        let index = self.index;
        if let Some(owner) = &self.owner {
            owner.run(move || settle(index, Some(answer), false));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let index = self.index;
        if let Some(owner) = self.owner.take() {
            owner.run(move || settle(index, None, true));
        }
    }
}

/// Addresses of lent memory: mostly one piece or none.
pub(crate) enum Lent {
    None,
    One(Piece),
    Many(Vec<Piece>),
}

/// One address.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    ptr: NonNull<u8>,
    len: u32,
}

// SAFETY: an address and a length; what they mean on another thread is the business of `slices`.
unsafe impl Send for Piece {}

impl Lent {
    /// The addresses of slices that are being lent.
    pub(super) fn of(slices: &[Slice]) -> Lent {
        let piece = |s: &Slice| {
            // A slice is never at address 0.
            let ptr = NonNull::new(s.as_ptr()).unwrap_or(NonNull::dangling());
            Piece { ptr, len: s.len() as u32 }
        };
        match slices {
            [] => Lent::None,
            [s] => Lent::One(piece(s)),
            many => Lent::Many(many.iter().map(piece).collect()),
        }
    }

    /// Slices of the present reactor that keep the claim for as long as they live.
    pub(super) fn slices(&self, claim: &Rc<Claim>) -> Vec<Slice> {
        let slice = |p: &Piece| {
            let backing: Backing = claim.clone();
            // SAFETY: the owner keeps the slice that the address was taken from until the claim is dropped
            // (and for ever when its reactor ends before); device memory is nowhere referred to by Rust
            // references while it is lent. The mailbox orders the accesses of both threads.
            unsafe { Slice::from_raw(p.ptr, p.len, backing) }
        };
        match self {
            Lent::None => Vec::new(),
            Lent::One(p) => vec![slice(p)],
            Lent::Many(all) => all.iter().map(slice).collect(),
        }
    }
}
