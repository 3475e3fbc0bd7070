//! What is done to a pool besides reading and writing: snapshots, clones, deletions, damage.

use super::forms::{Form, Formed, Forms};
use super::pool::Loaded;
use super::verdict::Verdict;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Prng};
use weir_block::Volume;
use weir_mem::{BufPool, Slice};
use weir_reactor::sleep;
use weir_sim::{SimMedium, Time};
use weir_store::{Pool, StoreError};

/// Blocks of the director's own volume that it uses.
const BLOCKS: u64 = 24;

/// A snapshot or clone that was acknowledged, and what it must hold.
struct Kept {
    name: String,
    form: Form,
    at: u64,
    bytes: Vec<u8>,
}

/// One per story; it outlives the pool's lives.
pub(crate) struct Director {
    rng: RefCell<Prng>,
    pub(crate) verdict: Verdict,
    kept: RefCell<Vec<Kept>>,
    /// Names that are being deleted: they may or may not be there.
    fading: RefCell<Vec<String>>,
    count: Cell<u64>,
    verified: Cell<u64>,
    /// Blocks of the director's volume whose data is lost.
    lost: RefCell<Vec<u64>>,
    /// Blocks that lost all copies, and medium errors that they gave.
    doubles: Cell<(u64, u64)>,
    /// A snapshot or clone is being made, reverted or deleted.
    busy: Cell<bool>,
    /// The volumes in a form that are open in this life.
    forms: RefCell<Rc<Forms>>,
    buffers: BufPool,
    stamps: RefCell<Prng>,
}

async fn read(v: &dyn Volume, at: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let buf = Slice::heap(len);
    v.read(at, buf.clone()).await?;
    Ok(buf.to_vec())
}

/// There is little space in a pool.
pub(crate) fn is_low(pool: &Pool) -> bool {
    let s = pool.status();
    s.free < s.total / 3
}

impl Director {
    pub(crate) fn new(rng: Prng, mut stamps: Prng, buffers: BufPool) -> Rc<Director> {
        Rc::new(Director {
            forms: RefCell::new(Forms::new(buffers.clone(), stamps.next_u64())),
            buffers,
            stamps: RefCell::new(stamps),
            rng: RefCell::new(rng),
            verdict: Verdict::default(),
            kept: RefCell::default(),
            fading: RefCell::default(),
            count: Cell::new(0),
            verified: Cell::new(0),
            lost: RefCell::default(),
            doubles: Cell::default(),
            busy: Cell::new(false),
        })
    }

    pub(crate) fn verified(&self) -> u64 {
        self.verified.get()
    }

    /// Blocks that lost all copies, and medium errors that they gave.
    pub(crate) fn doubles(&self) -> (u64, u64) {
        self.doubles.get()
    }

    /// A snapshot or clone is being made, reverted or deleted.
    pub(crate) fn busy(&self) -> bool {
        self.busy.get()
    }

    fn medium_error(&self) {
        let (blocks, errors) = self.doubles.get();
        self.doubles.set((blocks, errors + 1));
    }

    /// What was under way in a life that is over is not any more.
    pub(crate) fn is_over(&self) {
        self.busy.set(false);
        let stamp = self.stamps.borrow_mut().next_u64();
        self.forms.replace(Forms::new(self.buffers.clone(), stamp));
    }

    /// The volumes in a form that are open in this life.
    pub(crate) fn forms(&self) -> Rc<Forms> {
        self.forms.borrow().clone()
    }

    /// What snapshots and clones keep may have filled a pool that has few slabs.
    pub(crate) fn fills(&self, pool: &Pool) -> bool {
        !self.kept.borrow().is_empty() && is_low(pool)
    }

    fn open(&self, pool: &Pool, id: u32, form: Form) -> Option<Formed> {
        let f = self.forms().open(pool, id, form);
        f.inspect_err(|e| self.verdict.is_wrong(format!("dataset {id}: {e}"))).ok()
    }

    pub(super) fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    pub(super) fn name(&self, kind: &str) -> String {
        self.count.set(self.count.get() + 1);
        format!("{kind}{}", self.count.get())
    }

    /// Everything that was kept is there and is as it was; lost blocks are still lost.
    pub(crate) async fn check(self: Rc<Self>, pool: Pool) {
        let n = self.kept.borrow().len();
        for k in 0..n {
            self.check_one(&pool, k).await;
        }
        if let Some(v) = pool.find("director").and_then(|id| pool.volume(id).ok()) {
            let lost = self.lost.borrow().clone();
            for at in lost {
                match read(&*v, at, 4096).await {
                    Err(IoError::Medium) => self.medium_error(),
                    other => self.verdict.is_wrong(format!(
                        "a lost block at {at} gave a medium error once, and now {:?}",
                        other.map(|b| b[..8].to_vec())
                    )),
                }
            }
        }
    }

    async fn check_one(&self, pool: &Pool, k: usize) {
        let (name, form, at, want) = {
            let kept = self.kept.borrow();
            let Some(x) = kept.get(k) else { return };
            (x.name.clone(), x.form, x.at, x.bytes.clone())
        };
        if self.fading.borrow().contains(&name) {
            return;
        }
        let Some(id) = pool.find(&name) else {
            return self.verdict.is_wrong(format!("{name} was acknowledged and is gone"));
        };
        let Some(v) = self.open(pool, id, form) else { return };
        match read(&*v.volume, at, want.len()).await {
            Ok(have) => {
                self.verified.set(self.verified.get() + 1);
                if let Some(i) = have.iter().zip(&want).position(|(a, b)| a != b) {
                    self.verdict.is_wrong(format!("{name} changed at byte {}", at + i as u64));
                }
            }
            Err(e) => self.verdict.is_wrong(format!("reading {name}: {e}")),
        }
    }

    /// Takes snapshots of volumes under load, one by one and together, clones and deletes them.
    pub(crate) async fn snapshots(
        self: Rc<Self>,
        pool: Pool,
        volumes: Vec<Rc<Loaded>>,
        time: Time,
    ) {
        loop {
            let pause = self.below(4 * MILLIS);
            sleep(pause).await;
            self.busy.set(true);
            let done = match self.below(10) {
                0..=4 => self.snapshot(&pool, &volumes, &time).await,
                5 | 6 => self.make_clone(&pool).await,
                7 => self.revert(&pool).await,
                _ => self.delete(&pool).await,
            };
            if done.is_none() {
                return;
            }
            self.busy.set(false);
            if self.verdict.get().is_err() {
                return;
            }
        }
    }

    async fn snapshot(&self, pool: &Pool, volumes: &[Rc<Loaded>], time: &Time) -> Option<()> {
        if self.kept.borrow().len() > 12 {
            return self.delete(pool).await;
        }
        let together = self.below(2) == 0;
        let first = self.below(volumes.len() as u64) as usize;
        let chosen: Vec<_> = match together {
            true => volumes.to_vec(),
            // Now and then two of one volume.
            false => vec![volumes[first].clone(); 1 + usize::from(self.below(4) == 0)],
        };
        let names: Vec<String> = chosen.iter().map(|_| self.name("s")).collect();
        let ids: Vec<u32> = chosen.iter().filter_map(|v| pool.find(&v.name)).collect();
        let wanted: Vec<(u32, &str)> =
            ids.iter().copied().zip(names.iter().map(String::as_str)).collect();
        let held: Vec<_> = chosen.iter().map(|v| v.load.hold()).collect();
        let start = time.now();
        let made = match pool.snapshot(&wanted, start).await {
            Ok(ids) => ids,
            Err(e) => return self.no_snapshot(pool, "a snapshot", &e),
        };
        let end = time.now();
        for ((id, v), name) in made.into_iter().zip(&chosen).zip(names) {
            let s = self.open(pool, id, v.form)?;
            let (form, (at, len)) = (v.form, v.load.extent());
            match read(&*s.volume, at, len).await {
                Ok(bytes) => {
                    v.load.check_copy(&bytes, start, end);
                    self.kept.borrow_mut().push(Kept { name, form, at, bytes });
                    self.verified.set(self.verified.get() + 1);
                }
                Err(e) => self.verdict.is_wrong(format!("reading a new snapshot: {e}")),
            }
        }
        drop(held);
        Some(())
    }

    /// A snapshot was not made.
    fn no_snapshot(&self, pool: &Pool, what: &str, e: &StoreError) -> Option<()> {
        let s = pool.status();
        if matches!(e, StoreError::Io(IoError::NoSpace)) && self.fills(pool) {
            return Some(());
        }
        self.verdict.is_wrong(format!("{what}: {e}; {} of {} bytes are free", s.free, s.total));
        None
    }

    fn pick(&self, kind: &str) -> Option<(String, Form, u64, Vec<u8>)> {
        let n = self.below(64) as usize;
        let kept = self.kept.borrow();
        let all: Vec<_> = kept
            .iter()
            .filter(|k| k.name.starts_with(kind) && !self.fading.borrow().contains(&k.name))
            .collect();
        let k = all.get(n % all.len().max(1))?;
        Some((k.name.clone(), k.form, k.at, k.bytes.clone()))
    }

    /// A clone holds what its snapshot holds, also after writes to it, and the snapshot stays.
    async fn make_clone(&self, pool: &Pool) -> Option<()> {
        let Some((origin, form, at, mut bytes)) = self.pick("s") else { return Some(()) };
        let name = self.name("c");
        let id = pool.find(&origin)?;
        match pool.clone_snapshot(id, &name).await {
            Ok(_) => {}
            Err(_) => return Some(()),
        }
        let v = self.open(pool, pool.find(&name)?, form)?.volume;
        match read(&*v, at, bytes.len()).await {
            Ok(have) if have == bytes => {}
            Ok(_) => self.verdict.is_wrong(format!("{name} is not what {origin} is")),
            Err(e) => self.verdict.is_wrong(format!("reading {name}: {e}")),
        }
        self.fading.borrow_mut().push(name.clone());
        for _ in 0..self.below(4) {
            let block = self.below(bytes.len() as u64 / 512) as usize * 512;
            let fill = self.below(256) as u8;
            let buf = Slice::copy_of(&[fill; 512]);
            if let Err(e) = v.write(at + block as u64, buf, false).await {
                let s = pool.status();
                if e == IoError::NoSpace && self.fills(pool) {
                    // What the clone holds now stays open.
                    return Some(());
                }
                let (free, all) = (s.free, s.total);
                self.verdict
                    .is_wrong(format!("writing {name}: {e}; {free} of {all} bytes are free"));
                return None;
            }
            bytes[block..block + 512].fill(fill);
        }
        self.fading.borrow_mut().retain(|f| *f != name);
        self.kept.borrow_mut().push(Kept { name, form, at, bytes });
        Some(())
    }

    /// A clone is reverted to a snapshot of its own.
    async fn revert(&self, pool: &Pool) -> Option<()> {
        let Some((clone, form, at, bytes)) = self.pick("c") else { return Some(()) };
        let id = pool.find(&clone)?;
        let name = self.name("r");
        let made = pool.snapshot(&[(id, &name)], 0).await;
        let snapshot = match made {
            Ok(ids) => *ids.first()?,
            Err(e) => return self.no_snapshot(pool, "a snapshot of a clone", &e),
        };
        // From here until it is reverted, its content is open.
        self.fading.borrow_mut().push(clone.clone());
        let formed = self.open(pool, id, form)?;
        let v = formed.volume.clone();
        let some = (bytes.len() / 512).min(9) * 512;
        v.write(at, Slice::copy_of(&vec![0x77; some]), false).await.ok()?;
        if self.below(2) == 0 {
            pool.checkpoint().await.ok()?;
        }
        v.write_zeroes(at, 512, true).await.ok()?;
        let still = formed.hold().await;
        let reverted = pool.revert(id, snapshot).await;
        drop(still);
        if let Err(e) = reverted {
            self.verdict.is_wrong(format!("reverting {clone}: {e}"));
            return None;
        }
        match read(&*v, at, bytes.len()).await {
            Ok(have) if have == bytes => {}
            Ok(_) => self.verdict.is_wrong(format!("{clone} was reverted and is not what it was")),
            Err(e) => self.verdict.is_wrong(format!("reading {clone}: {e}")),
        }
        self.fading.borrow_mut().retain(|f| *f != clone);
        // Its snapshot would keep it from being deleted.
        let _ = pool.delete(snapshot).await;
        Some(())
    }

    async fn delete(&self, pool: &Pool) -> Option<()> {
        let kind = if self.below(2) == 0 { "c" } else { "s" };
        let Some((name, ..)) = self.pick(kind) else { return Some(()) };
        let id = pool.find(&name)?;
        self.fading.borrow_mut().push(name.clone());
        self.forms().close(id).await;
        match pool.delete(id).await {
            Ok(()) => {
                self.kept.borrow_mut().retain(|k| k.name != name);
                if pool.find(&name).is_some() {
                    self.verdict.is_wrong(format!("{name} was deleted and is there"));
                }
            }
            // It has clones. After other errors nobody knows.
            Err(StoreError::Request(_)) => self.fading.borrow_mut().retain(|f| *f != name),
            Err(_) => return None,
        }
        Some(())
    }

    /// Damages all copies of blocks of the director's volume: each is lost, and stays lost until it is written.
    pub(crate) async fn damage(self: Rc<Self>, pool: Pool, media: Vec<SimMedium>) {
        let Some(v) = pool.find("director").and_then(|id| pool.volume(id).ok()) else {
            return self.verdict.is_wrong("the director's volume is gone".into());
        };
        for round in 0..8 {
            let at = self.below(BLOCKS) * 4096;
            let fresh = Slice::heap(4096);
            fresh.fill(round as u8 + 1);
            self.lost.borrow_mut().retain(|l| *l != at);
            // What is written again is there again.
            if let Err(e) = v.write(at, fresh.clone(), false).await {
                return self.verdict.is_wrong(format!("writing a block: {e}"));
            }
            match read(&*v, at, 4096).await {
                Ok(b) if b == fresh.to_vec() => {}
                other => {
                    self.verdict.is_wrong(format!("a block just written: {:?}", other.map(|_| ())))
                }
            }
            // The log has a stable page after this, so that what is damaged is known to have been there.
            if pool.checkpoint().await.is_err() {
                return;
            }
            let Ok(places) = v.locate(at).await else { return };
            let mut damaged = Vec::new();
            for (device, byte) in places {
                let (m, mut b) = (media[usize::from(device)].clone(), vec![0; 4096]);
                m.peek(byte, &mut b);
                b[0] ^= 0x40;
                m.poke(byte, &b[..1]);
                damaged.push((m, byte, b));
            }
            self.lost.borrow_mut().push(at);
            self.doubles.set((self.doubles.get().0 + 1, self.doubles.get().1));
            let mut told = 0;
            for _ in 0..2 {
                // Only what is wrong for longer is lost for good.
                sleep(2 * MILLIS).await;
                // Who had read a good copy before that may have mended the other one with it.
                for (m, byte, b) in &damaged {
                    let mut now = vec![0; 4096];
                    m.peek(*byte, &mut now);
                    // What is known to be lost is not kept: another block may have its place by now.
                    if now[1..] == b[1..] {
                        m.poke(*byte, &b[..1]);
                    }
                }
                match read(&*v, at, 4096).await {
                    Err(IoError::Medium) => {
                        self.medium_error();
                        told += 1;
                    }
                    other => self.verdict.is_wrong(format!(
                        "a block without a good copy was read: {:?}",
                        other.map(|b| b[..8].to_vec())
                    )),
                }
            }
            // The power may go before it is told.
            if self.below(2) == 0 && told == 2 {
                // The copies come good again, as marginal ones do: the answer stays.
                for (m, byte, b) in damaged {
                    let mut now = vec![0; 4096];
                    m.peek(byte, &mut now);
                    if now == b {
                        m.poke(byte, &[b[0] ^ 0x40]);
                    }
                }
            }
        }
    }
}
