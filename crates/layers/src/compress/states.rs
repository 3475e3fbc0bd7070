//! What is known of chunks: two bytes each, of the parts of the volume that were used last.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// Chunks of a page of what is known.
const PAGE: u64 = 2048;

/// Where a chunk's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is, in the area for that. `empty`: there is surely nothing in it.
    Raw { empty: bool },
    /// Compressed, in one of the two areas for that.
    Packed { area: u8, blocks: u8, generation: u8 },
}

/// What is known of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) form: Form,
    /// It waits for its other areas to be given back.
    pub(crate) stale: bool,
}

impl State {
    fn to_bits(self) -> u16 {
        let form = match self.form {
            Form::Raw { empty } => 1 | u16::from(empty) << 2,
            Form::Packed { area, blocks, generation } => {
                2 | u16::from(area & 1) | u16::from(blocks & 31) << 2 | u16::from(generation) << 7
            }
        };
        form | u16::from(self.stale) << 15
    }

    fn of_bits(bits: u16) -> Option<State> {
        let form = match bits & 3 {
            0 => return None,
            1 => Form::Raw { empty: bits & 4 != 0 },
            kind => Form::Packed {
                area: (kind & 1) as u8,
                blocks: (bits >> 2 & 31) as u8,
                generation: (bits >> 7) as u8,
            },
        };
        Some(State { form, stale: bits >> 15 == 1 })
    }
}

#[derive(Default)]
struct Pages {
    map: BTreeMap<u64, Box<[u16; PAGE as usize]>>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

/// What is known.
pub(crate) struct States {
    pages: RefCell<Pages>,
    most: usize,
}

impl States {
    /// Keeps as much as fits so many bytes.
    pub(crate) fn new(bytes: usize) -> States {
        States { pages: RefCell::default(), most: (bytes / (PAGE as usize * 2)).max(1) }
    }

    pub(crate) fn get(&self, chunk: u64) -> Option<State> {
        let pages = self.pages.borrow();
        let page = pages.map.get(&(chunk / PAGE))?;
        State::of_bits(page[(chunk % PAGE) as usize])
    }

    /// `None`: it has to be found out again.
    pub(crate) fn set(&self, chunk: u64, state: Option<State>) {
        let (page, at) = (chunk / PAGE, (chunk % PAGE) as usize);
        let bits = state.map_or(0, State::to_bits);
        let mut pages = self.pages.borrow_mut();
        if let Some(p) = pages.map.get_mut(&page) {
            p[at] = bits;
            return;
        }
        if state.is_none() {
            return;
        }
        let mut memory = None;
        if pages.map.len() >= self.most
            && let Some(oldest) = pages.order.pop_front()
        {
            memory = pages.map.remove(&oldest);
        }
        let mut memory = memory.unwrap_or_else(|| Box::new([0; PAGE as usize]));
        memory.fill(0);
        memory[at] = bits;
        pages.map.insert(page, memory);
        pages.order.push_back(page);
    }

    /// Nothing is known of any chunk.
    pub(crate) fn clear(&self) {
        let mut pages = self.pages.borrow_mut();
        pages.map.clear();
        pages.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_fit_two_bytes() {
        for stale in [false, true] {
            for empty in [false, true] {
                let s = State { form: Form::Raw { empty }, stale };
                assert_eq!(State::of_bits(s.to_bits()), Some(s));
            }
            for area in 0..2 {
                for blocks in 1..32 {
                    for generation in [0, 1, 127, 128, 255] {
                        let s = State { form: Form::Packed { area, blocks, generation }, stale };
                        assert_eq!(State::of_bits(s.to_bits()), Some(s));
                    }
                }
            }
        }
        assert_eq!(State::of_bits(0), None);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten() {
        let states = States::new(2 * 4096);
        let s = State { form: Form::Raw { empty: true }, stale: false };
        for page in 0..5 {
            states.set(page * PAGE + 3, Some(s));
            assert_eq!(states.get(page * PAGE + 3), Some(s));
            assert_eq!(states.get(page * PAGE + 4), None, "a page that is used again is clean");
        }
        let known = (0..5).filter(|p| states.get(p * PAGE + 3).is_some()).count();
        assert_eq!(known, 2);
        states.set(4 * PAGE + 3, None);
        assert_eq!(states.get(4 * PAGE + 3), None);
        states.clear();
        assert_eq!(states.get(3 * PAGE + 3), None);
    }
}
