//! Streams of I/Os as S2's load generators make them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoResult, Nanos, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{clock, spawn};

/// Sizes in bytes, and how many of how many I/Os have it.
pub(super) type Sizes = &'static [(u32, u32)];

/// IOmeter's file server.
pub(super) const FILE_SERVER: Sizes = &[
    (512, 10),
    (1 << 10, 5),
    (2 << 10, 5),
    (4 << 10, 60),
    (8 << 10, 2),
    (16 << 10, 4),
    (32 << 10, 4),
    (64 << 10, 10),
];
/// IOmeter's web server.
pub(super) const WEB_SERVER: Sizes = &[
    (512, 22),
    (1 << 10, 15),
    (2 << 10, 8),
    (4 << 10, 23),
    (8 << 10, 15),
    (16 << 10, 2),
    (32 << 10, 6),
    (64 << 10, 7),
    (128 << 10, 1),
    (512 << 10, 1),
];
pub(super) const EIGHT: Sizes = &[(8 << 10, 1)];
pub(super) const MEBIBYTE: Sizes = &[(1 << 20, 1)];
pub(super) const FOUR: Sizes = &[(4 << 10, 1)];
const SIXTY_FOUR: Sizes = &[(64 << 10, 1)];
/// Largest I/O in bytes.
const LARGEST: usize = 1 << 20;

/// I/Os of one kind, so many in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// The volume, from 0.
    volume: usize,
    random: bool,
    /// Percent.
    reads: u32,
    sizes: Sizes,
    depth: u32,
}

impl Stream {
    pub(super) fn at_random(reads: u32, sizes: Sizes, depth: u32) -> Stream {
        Stream { volume: 0, random: true, reads, sizes, depth }
    }

    /// Of 4 or 64 KiB.
    pub(super) fn in_a_row(reads: u32, size: u32, depth: u32) -> Stream {
        let sizes = if size == 4 << 10 { FOUR } else { SIXTY_FOUR };
        Stream { volume: 0, random: false, reads, sizes, depth }
    }

    /// The same on the second volume.
    pub(super) fn of_log(self) -> Stream {
        Stream { volume: 1, ..self }
    }

    /// Size of the next I/O.
    fn size(&self, rng: &mut Prng) -> u32 {
        let all: u32 = self.sizes.iter().map(|s| s.1).sum();
        let mut n = rng.below(u64::from(all.max(1))) as u32;
        for (size, share) in self.sizes {
            match n.checked_sub(*share) {
                Some(left) => n = left,
                None => return *size,
            }
        }
        512
    }
}

/// Streams that run together.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) streams: Vec<Stream>,
}

impl Load {
    pub(super) fn one(s: Stream) -> Load {
        Load { streams: vec![s] }
    }
}

/// What a stream did, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) bytes: f64,
}

impl Figures {
    pub(super) fn rate(&self) -> f64 {
        self.reads + self.writes
    }
}

struct Count {
    from: Nanos,
    until: Nanos,
    reads: Cell<u64>,
    writes: Cell<u64>,
    bytes: Cell<u64>,
    cursor: Cell<u64>,
    rng: RefCell<Prng>,
}

async fn slot(v: Rc<dyn Volume>, s: Stream, c: Rc<Count>, buf: Slice) -> IoResult {
    let len = v.geometry().len;
    while clock() < c.until {
        let (size, read, at) = {
            let mut rng = c.rng.borrow_mut();
            let size = u64::from(s.size(&mut rng));
            let at = match s.random {
                true => rng.below(len / size) * size,
                false => {
                    let at = c.cursor.get();
                    c.cursor.set(if at + 2 * size > len { 0 } else { at + size });
                    at
                }
            };
            (size, rng.chance(u64::from(s.reads), 100), at)
        };
        let part = buf.sub(0, size as usize);
        match read {
            true => v.read(at, part).await?,
            false => v.write(at, part, false).await?,
        }
        let now = clock();
        if now >= c.from && now < c.until {
            let cell = if read { &c.reads } else { &c.writes };
            cell.set(cell.get() + 1);
            c.bytes.set(c.bytes.get() + size);
        }
        weir_reactor::run_async().await;
    }
    Ok(())
}

/// Runs a load on volumes for `time` after `ramp`; gives what each stream did.
pub(super) async fn run(
    volumes: &[Rc<dyn Volume>],
    load: &Load,
    ramp: Nanos,
    time: Nanos,
) -> IoResult<Vec<Figures>> {
    let from = clock() + ramp;
    let mut running = Vec::new();
    for (n, s) in load.streams.iter().enumerate() {
        let c = Rc::new(Count {
            from,
            until: from + time,
            reads: Cell::new(0),
            writes: Cell::new(0),
            bytes: Cell::new(0),
            cursor: Cell::new(0),
            rng: RefCell::new(Prng::new(n as u64 + 1)),
        });
        let mut tasks = Vec::new();
        for _ in 0..s.depth {
            let buf = Slice::heap(LARGEST);
            let mut part = [0; 512];
            for at in (0..LARGEST).step_by(512) {
                c.rng.borrow_mut().fill(&mut part);
                buf.write_at(at, &part);
            }
            tasks.push(spawn(slot(volumes[s.volume].clone(), *s, c.clone(), buf)));
        }
        running.push((c, tasks));
    }
    let mut found = Vec::new();
    for (c, tasks) in running {
        for t in tasks {
            t.await.unwrap_or(Ok(()))?;
        }
        let per_second = |n: &Cell<u64>| n.get() as f64 / (time as f64 / 1e9);
        found.push(Figures {
            reads: per_second(&c.reads),
            writes: per_second(&c.writes),
            bytes: per_second(&c.bytes),
        });
    }
    Ok(found)
}

#[cfg(test)]
pub(super) fn shares(s: &Stream, n: usize) -> std::collections::BTreeMap<u32, usize> {
    let mut rng = Prng::new(3);
    let mut all = std::collections::BTreeMap::new();
    for _ in 0..n {
        *all.entry(s.size(&mut rng)).or_default() += 1;
    }
    all
}
