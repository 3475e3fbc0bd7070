//! Memory for data of commands that wait for others.
//!
//! Buffers of the pool are not for them: those who run may wait for a buffer, and would wait for them.

use std::collections::VecDeque;
use weir_mem::Slice;

/// Data of so many bytes has memory that is used again. Longer data costs more than its memory does.
const SMALL: usize = 4096;
/// Pieces kept at most, which are 4 MiB; they stay until the port ends.
const MOST: usize = 1024;

/// Memory that is used again and again; what was given out first is usually free first.
#[derive(Default)]
pub(crate) struct Aside(VecDeque<Slice>);

impl Aside {
    /// Memory of `len` bytes that nobody else has. What it has in it is of somebody before: all of it is to be written.
    pub(crate) fn get(&mut self, len: usize) -> Slice {
        if len > SMALL {
            return Slice::heap(len).sub(0, len);
        }
        let first = self.0.pop_front();
        let free = first.as_ref().filter(|s| s.is_sole()).map(|s| s.sub(0, len));
        self.0.extend(first);
        free.unwrap_or_else(|| {
            let new = Slice::heap(SMALL);
            if self.0.len() < MOST {
                self.0.push_back(new.clone());
            }
            new.sub(0, len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_nobody_has_it() {
        let mut aside = Aside::default();
        let first = aside.get(100);
        assert_eq!(first.len(), 100);
        let place = first.as_ptr();
        // What sends or writes it keeps it, too.
        let under_way = first.clone();
        drop(first);
        let second = aside.get(SMALL);
        assert_ne!(second.as_ptr(), place);
        drop((under_way, second));
        let again: Vec<Slice> = (0..4).map(|_| aside.get(8)).collect();
        let mut places: Vec<_> = again.iter().map(Slice::as_ptr).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 4, "each has its own");
        assert_eq!(aside.get(SMALL + 1).len(), SMALL + 1);
    }

    #[test]
    fn no_more_than_so_much_is_kept() {
        let mut aside = Aside::default();
        let all: Vec<Slice> = (0..MOST + 10).map(|_| aside.get(1)).collect();
        assert!(aside.0.len() <= MOST);
        drop(all);
        for _ in 0..2 * MOST {
            aside.get(1);
        }
        assert!(aside.0.len() <= MOST);
    }
}
