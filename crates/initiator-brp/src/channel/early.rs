//! Checksums of data that the target writes by RDMA, taken piece by piece as it is placed.
//!
//! Taken when a large command completes, they would be of data that has left the caches meanwhile, and cost as much as
//! bringing it there once more.

use super::slot::Memory;
use super::{Channel, sums_of};
use std::collections::BTreeMap;
use weir_proto_brp::Command;
use weir_proto_brp::sums::PIECE;

/// What has come of one command's data.
#[derive(Default)]
pub(super) struct Early {
    /// Bytes that have come, all from the first one on.
    arrived: usize,
    /// Bytes of whole pieces that are summed.
    summed: usize,
    sums: Vec<u32>,
    /// Something came out of order, or twice.
    broken: bool,
}

impl Early {
    /// Nothing has come.
    pub(super) fn begin(&mut self) {
        self.arrived = 0;
        self.summed = 0;
        self.sums.clear();
        self.broken = false;
    }

    /// The checksums of all the data, if all of it has come in order.
    pub(super) fn sums(&self, len: usize) -> Option<&[u32]> {
        (!self.broken && len > 0 && self.summed == len).then_some(&self.sums)
    }

    /// `len` bytes are in their place, from byte `at` of the command's data on.
    fn placed(&mut self, command: &Command, memory: &Memory, at: usize, len: usize) {
        self.broken |= at != self.arrived;
        if self.broken {
            return;
        }
        self.arrived += len;
        let whole = command.len as usize;
        let left = (command.offset + self.arrived as u64) % PIECE;
        let upto = match self.arrived.checked_sub(left as usize) {
            _ if self.arrived == whole => whole,
            Some(n) => n,
            None => 0,
        };
        if upto > self.summed {
            let (from, sums) = (self.summed, &mut self.sums);
            sums_of(command.offset + from as u64, memory.iter(), from, upto - from, |s| {
                sums.push(s);
            });
            self.summed = upto;
        }
    }
}

/// Which command a registration belongs to, and where in its data the registered memory begins.
#[derive(Default)]
pub(super) struct Placing(BTreeMap<u32, (u16, usize)>);

impl Placing {
    pub(super) fn add(&mut self, key: u32, tag: u16, at: usize) {
        self.0.insert(key, (tag, at));
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.0.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Channel {
    /// Bytes have been placed in memory that was registered for a command.
    pub(super) fn placed(&self, key: u32, at: u64, len: usize) {
        let Some((tag, first)) = self.placing.borrow().0.get(&key).copied() else { return };
        let mut table = self.table.borrow_mut();
        let Some(s) = table.slots.get_mut(usize::from(tag)) else { return };
        s.early.placed(&s.command, &s.memory, first + at as usize, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;
    use weir_mem::Slice;
    use weir_proto_brp::{Op, sums};

    fn read(offset: u64, len: usize) -> Command {
        Command {
            op: Op::Read as u8,
            flags: 0,
            tag: 0,
            seq: 0,
            offset,
            len: len as u32,
            volume: 0,
            segments: 0,
            guard: 0,
        }
    }

    /// Data in some pieces of memory, and its checksums.
    fn some(rng: &mut Prng) -> (Command, Memory, Vec<u32>) {
        let len = 512 * (1 + rng.below(200) as usize);
        let mut data = vec![0; len];
        rng.fill(&mut data);
        let c = read(512 * rng.below(20), len);
        let cut = 512 * rng.below(len as u64 / 512) as usize;
        let mut memory = Memory::default();
        memory.set(&[Slice::copy_of(&data[..cut]), Slice::copy_of(&data[cut..])]);
        let mut wanted = Vec::new();
        sums::each(c.offset, &data, |s| wanted.push(s));
        (c, memory, wanted)
    }

    #[test]
    fn what_comes_in_order_is_summed_as_the_whole() {
        let mut rng = Prng::new(9);
        for _ in 0..300 {
            let (c, memory, wanted) = some(&mut rng);
            let (len, mut at) = (c.len as usize, 0);
            let mut early = Early::default();
            early.begin();
            while at < len {
                assert_eq!(early.sums(len), None);
                let n = (1 + rng.below(30_000) as usize).min(len - at);
                early.placed(&c, &memory, at, n);
                at += n;
            }
            assert_eq!(early.sums(len), Some(&wanted[..]));
        }
    }

    #[test]
    fn what_comes_twice_or_out_of_order_is_left_to_the_end() {
        let mut rng = Prng::new(10);
        for _ in 0..100 {
            let (c, memory, _) = some(&mut rng);
            let len = c.len as usize;
            let mut twice = Early::default();
            twice.placed(&c, &memory, 0, len);
            assert!(twice.sums(len).is_some());
            twice.placed(&c, &memory, 0, 1 + rng.below(len as u64) as usize);
            assert_eq!(twice.sums(len), None);
            let mut gap = Early::default();
            gap.placed(&c, &memory, 1, len - 1);
            gap.placed(&c, &memory, 0, 1);
            assert_eq!(gap.sums(len), None);
        }
    }
}
