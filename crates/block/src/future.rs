//! Futures of block I/O in recycled memory.

use std::alloc::Layout;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};
use weir_base::IoResult;
use weir_reactor::vital;

/// Sizes of slots, in bytes; larger futures go to the heap each time.
const CLASSES: [usize; 5] = [128, 256, 512, 1024, 2048];
const ALIGN: usize = 16;
/// Free slots kept for each size and thread.
const KEEP: usize = 4096;

thread_local! {
    static FREE: RefCell<[Vec<NonNull<u8>>; CLASSES.len()]> = const {
        RefCell::new([const { Vec::new() }; CLASSES.len()])
    };
}

fn class_of(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN {
        return None;
    }
    CLASSES.iter().position(|c| layout.size() <= *c)
}

#[expect(clippy::expect_used, reason = "a table of this file")]
fn slot_layout(class: usize) -> Layout {
    Layout::from_size_align(CLASSES[class], ALIGN).expect("sizes are small and aligned")
}

fn allocate(layout: Layout) -> NonNull<u8> {
    let (layout, recycled) = match class_of(layout) {
        Some(c) => (slot_layout(c), FREE.with(|f| f.borrow_mut()[c].pop())),
        None => (layout, None),
    };
    recycled.unwrap_or_else(|| {
        // SAFETY: the layout is not of size zero (see IoFuture::new).
        let p = unsafe { std::alloc::alloc(layout) };
        NonNull::new(p).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
    })
}

fn release(p: NonNull<u8>, layout: Layout) {
    let layout = match class_of(layout) {
        Some(c) => {
            let kept = FREE.try_with(|f| {
                let free = &mut f.borrow_mut()[c];
                let room = free.len() < KEEP;
                if room {
                    free.push(p);
                }
                room
            });
            if kept == Ok(true) {
                return;
            }
            slot_layout(c)
        }
        None => layout,
    };
    // SAFETY: allocated in `allocate` with this very layout.
    unsafe { std::alloc::dealloc(p.as_ptr(), layout) };
}

/// The future of one block I/O: either known at once, or a state machine in a recycled slot.
#[must_use]
pub struct IoFuture<'a>(Inner<'a>);

enum Inner<'a> {
    Ready(IoResult),
    Slot(NonNull<dyn Future<Output = IoResult> + 'a>),
}

impl<'a> IoFuture<'a> {
    /// Completes at once.
    #[inline]
    pub fn ready(result: IoResult) -> Self {
        IoFuture(Inner::Ready(result))
    }

    /// Completes when `future` does.
    #[inline]
    pub fn new<F: Future<Output = IoResult> + 'a>(future: F) -> Self {
        let layout = Layout::new::<F>();
        if layout.size() == 0 {
            // Such a future has no state, so it is a constant; a slot of one byte would do as well.
            let p: *mut F = Box::into_raw(Box::new(future));
            // SAFETY: a box of size zero: the pointer is dangling but aligned and never freed.
            return IoFuture(Inner::Slot(unsafe { NonNull::new_unchecked(p) }));
        }
        let p = allocate(layout).cast::<F>();
        // SAFETY: freshly allocated with room and alignment for F.
        unsafe { p.as_ptr().write(future) };
        IoFuture(Inner::Slot(p))
    }

    /// The result, when it is known without waiting.
    #[inline]
    pub fn result(&self) -> Option<IoResult> {
        match self.0 {
            Inner::Ready(r) => Some(r),
            Inner::Slot(_) => None,
        }
    }
}

impl Future for IoFuture<'_> {
    type Output = IoResult;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult> {
        match &mut self.0 {
            Inner::Ready(r) => Poll::Ready(*r),
            // A front end that waits for it may panic without harm; this may not.
            // SAFETY: the slot holds a live future that is never moved until it is dropped in place.
            Inner::Slot(p) => vital(|| unsafe { Pin::new_unchecked(p.as_mut()) }.poll(cx)),
        }
    }
}

impl Drop for IoFuture<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Inner::Slot(p) = self.0 {
            // SAFETY: the slot holds a live future; this is its one drop.
            unsafe {
                let layout = Layout::for_value(p.as_ref());
                std::ptr::drop_in_place(p.as_ptr());
                if layout.size() > 0 {
                    release(p.cast(), layout);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn poll(f: &mut IoFuture<'_>) -> Poll<IoResult> {
        Pin::new(f).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn slots_are_used_again_and_drop_what_they_hold() {
        let held = Rc::new(());
        let make = || {
            let h = held.clone();
            IoFuture::new(async move {
                std::future::pending::<()>().await;
                drop(h);
                Ok(())
            })
        };
        let mut a = make();
        assert!(poll(&mut a).is_pending());
        let Inner::Slot(p) = a.0 else { unreachable!() };
        let first = p.cast::<u8>();
        drop(a);
        assert_eq!(Rc::strong_count(&held), 1);
        let b = make();
        let Inner::Slot(p) = b.0 else { unreachable!() };
        assert_eq!(first, p.cast::<u8>());
    }

    #[test]
    fn large_and_empty_futures_work_too() {
        let big = [1u8; 5000];
        let mut f = IoFuture::new(async move {
            std::future::ready(()).await;
            if big[4999] == 1 { Ok(()) } else { Err(weir_base::IoError::Internal) }
        });
        assert_eq!(poll(&mut f), Poll::Ready(Ok(())));
        let mut f = IoFuture::new(std::future::ready(Ok(())));
        assert_eq!(poll(&mut f), Poll::Ready(Ok(())));
        assert_eq!(IoFuture::ready(Ok(())).result(), Some(Ok(())));
    }
}
