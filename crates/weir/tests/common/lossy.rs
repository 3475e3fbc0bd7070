//! Disks that lose what was not flushed when power is cut: files in file systems of our own (FUSE), kept in memory, served
//! by a thread of the test.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_attach::disk::{Disk, Errno, Geometry, Request, check};
use weir_attach::fuse::{Mount, Queue, Shown};
use weir_base::{MILLIS, Prng};
use weir_mem::BufPool;
use weir_reactor::{PollMode, Reactor, sleep};
use weir_uring::Ring;

const SECTOR: usize = 512;
const BLOCK: usize = 4096;
/// The operating system's numbers of an I/O error, and of no space.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Writes that a disk holds; then it writes the oldest back by itself.
const CACHE: usize = 4096;

/// What a disk does with writes and flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// A flush makes durable what was written before.
    Flushes,
    /// Everything is durable at once.
    Honest,
    /// A flush is acknowledged, and does nothing, from [`Disks::begin`] on.
    Lies,
}

/// Whether there is power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// It has gone: nothing is answered any more.
    Gone,
    /// The machine is down: whatever still arrives is from before, and is refused.
    Off,
}

/// What cuts did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Cuts of all disks.
    pub cuts: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
    /// Writes that were not durable at a cut: kept all the same, lost, torn.
    pub kept: u64,
    pub lost: u64,
    pub torn: u64,
}

/// A disk: what survives, what is read, and what is between them.
struct Platter {
    medium: Vec<u8>,
    live: Vec<u8>,
    cache: VecDeque<(usize, Vec<u8>)>,
    /// Writes taken, and written back.
    taken: u64,
    back: u64,
}

impl Platter {
    fn new(len: usize) -> Platter {
        Platter {
            medium: vec![0; len],
            live: vec![0; len],
            cache: VecDeque::new(),
            taken: 0,
            back: 0,
        }
    }

    fn write(&mut self, at: usize, bytes: Vec<u8>, durable: bool) {
        self.live[at..at + bytes.len()].copy_from_slice(&bytes);
        self.cache.push_back((at, bytes));
        self.taken += 1;
        let most = if durable { 0 } else { CACHE };
        while self.cache.len() > most {
            self.write_back();
        }
    }

    fn write_back(&mut self) {
        if let Some((at, bytes)) = self.cache.pop_front() {
            self.medium[at..at + bytes.len()].copy_from_slice(&bytes);
            self.back += 1;
        }
    }

    /// What was not durable is gone.
    fn lose(&mut self) {
        self.back += self.cache.len() as u64;
        self.cache.clear();
        self.live.clone_from(&self.medium);
    }

    /// Writes back what was taken up to this count.
    fn flush(&mut self, taken: u64) {
        while self.back < taken && !self.cache.is_empty() {
            self.write_back();
        }
    }

    /// Of what was not durable a random part survives, each write whole, not at all, or torn.
    fn cut(&mut self, rng: &mut Prng, cuts: &mut Cuts) {
        // Each cut has its own temper, so that nothing, all, and patchworks of it survive.
        let survive = [0, 10, 50, 90, 100][rng.below(5) as usize];
        let tear = [0, 20, 60][rng.below(3) as usize];
        let all = std::mem::take(&mut self.cache);
        self.back = self.taken;
        for (at, bytes) in &all {
            let medium = &mut self.medium[*at..*at + bytes.len()];
            if rng.chance(survive, 100) {
                cuts.kept += 1;
                medium.copy_from_slice(bytes);
            } else if rng.chance(tear, 100) {
                cuts.torn += 1;
                let (shape, edge) = (rng.below(3), rng.below((bytes.len() / SECTOR) as u64 + 1));
                for (s, part) in bytes.chunks(SECTOR).enumerate() {
                    let written = match shape {
                        0 => (s as u64) < edge,
                        1 => s as u64 >= edge,
                        _ => rng.chance(1, 2),
                    };
                    if written {
                        medium[s * SECTOR..][..part.len()].copy_from_slice(part);
                    }
                }
            } else {
                cuts.lost += 1;
            }
        }
        for (at, bytes) in all {
            let range = at..at + bytes.len();
            self.live[range.clone()].copy_from_slice(&self.medium[range]);
        }
    }
}

struct Shared {
    nature: Nature,
    power: Mutex<Power>,
    disks: Vec<Mutex<Platter>>,
    /// Disks that are pulled out: whatever is asked of them fails.
    pulled: Vec<AtomicBool>,
    /// Disks whose next flush fails, with what they had taken.
    loses: Vec<AtomicBool>,
    /// No disk has room for a write.
    full: AtomicBool,
    /// Nothing at all is answered while this is so, and when it has come to that.
    frozen: AtomicBool,
    still: AtomicBool,
    /// Requests that are being served.
    inside: AtomicU64,
    rng: Mutex<Prng>,
    flushes: AtomicU64,
    /// Everything is set up.
    begun: AtomicBool,
    stop: AtomicBool,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of the disks, for its queue.
struct Served {
    shared: Arc<Shared>,
    number: usize,
    len: u64,
}

impl Served {
    /// Serves what takes no time.
    fn now(&self, r: &Request) {
        let mut p = lock(&self.shared.disks[self.number]);
        let durable = self.shared.nature == Nature::Honest;
        match r {
            Request::Read { at, buf } => buf.write_at(0, &p.live[*at as usize..][..buf.len()]),
            Request::Write { at, buf, .. } => p.write(*at as usize, buf.to_vec(), durable),
            Request::WriteZeroes { at, len, .. } => {
                p.write(*at as usize, vec![0; *len as usize], durable);
            }
            Request::Flush | Request::Discard { .. } => {}
        }
    }

    /// How long it takes, in nanoseconds: requests pass each other.
    fn time(&self, r: &Request) -> u64 {
        let mut rng = lock(&self.shared.rng);
        match r {
            Request::Read { .. } => 0,
            Request::Flush => rng.between(MILLIS / 2, 6 * MILLIS),
            _ => rng.below(MILLIS),
        }
    }

    /// Waits until `f` was done while there was power.
    async fn powered<T>(&self, mut f: impl FnMut() -> T) -> Result<T, Errno> {
        loop {
            {
                // Power does not go in the middle of this.
                let power = lock(&self.shared.power);
                match *power {
                    Power::On => return Ok(f()),
                    Power::Off => return Err(Errno(EIO)),
                    Power::Gone => {}
                }
            }
            sleep(MILLIS).await;
        }
    }

    async fn serve(&self, r: &Request) -> Result<(), Errno> {
        if self.shared.pulled[self.number].load(Ordering::Acquire) {
            return Err(Errno(EIO));
        }
        let writes = matches!(r, Request::Write { .. } | Request::WriteZeroes { .. });
        if writes && self.shared.full.load(Ordering::Acquire) {
            return Err(Errno(ENOSPC));
        }
        if self.shared.nature != Nature::Honest {
            let taken = || lock(&self.shared.disks[self.number]).taken;
            let taken = self.powered(taken).await?;
            match self.time(r) {
                0 => {}
                t => sleep(t).await,
            }
            if matches!(r, Request::Flush) {
                if self.shared.loses[self.number].swap(false, Ordering::AcqRel) {
                    lock(&self.shared.disks[self.number]).lose();
                    return Err(Errno(EIO));
                }
                let lies =
                    self.shared.nature == Nature::Lies && self.shared.begun.load(Ordering::Acquire);
                return self
                    .powered(|| {
                        self.shared.flushes.fetch_add(1, Ordering::Relaxed);
                        if !lies {
                            lock(&self.shared.disks[self.number]).flush(taken);
                        }
                    })
                    .await;
            }
        }
        self.powered(|| self.now(r)).await
    }
}

impl Disk for Served {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len, block_size: 512, thin: false, read_only: false }
    }

    async fn run(&self, r: &Request) -> Result<(), Errno> {
        check(&self.geometry(), r)?;
        self.shared.inside.fetch_add(1, Ordering::AcqRel);
        let done = self.serve(r).await;
        self.shared.inside.fetch_sub(1, Ordering::AcqRel);
        done
    }
}

/// Disks behind one power switch.
pub struct Disks {
    shared: Arc<Shared>,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    thread: Option<JoinHandle<()>>,
    rng: Prng,
    cuts: Cuts,
}

impl Disks {
    /// Mounts `n` disks of `len` bytes below `dir`.
    ///
    /// # Errors
    /// Why this machine does not let us.
    pub fn mount(
        dir: &Path,
        n: usize,
        len: u64,
        nature: Nature,
        seed: u64,
    ) -> Result<Disks, String> {
        let shared = Arc::new(Shared {
            nature,
            power: Mutex::new(Power::On),
            disks: (0..n).map(|_| Mutex::new(Platter::new(len as usize))).collect(),
            pulled: (0..n).map(|_| AtomicBool::new(false)).collect(),
            loses: (0..n).map(|_| AtomicBool::new(false)).collect(),
            full: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            still: AtomicBool::new(false),
            inside: AtomicU64::new(0),
            rng: Mutex::new(Prng::new(seed ^ 1)),
            flushes: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let dirs: Vec<PathBuf> = (0..n).map(|i| dir.join(format!("m{i}"))).collect();
        let mut mounts = Vec::new();
        for d in &dirs {
            std::fs::create_dir_all(d).map_err(|e| e.to_string())?;
            match Mount::new(d) {
                Ok(m) => mounts.push(m),
                Err(e) => {
                    dirs.iter().take(mounts.len()).for_each(|d| unmount(d));
                    return Err(e.to_string());
                }
            }
        }
        let files = mounts.iter().map(|m| m.file("volume")).collect();
        let (tell, told) = mpsc::channel();
        let s = shared.clone();
        let thread = std::thread::spawn(move || serve(s, mounts, len, tell));
        let mut disks = Disks {
            shared,
            dirs,
            files,
            thread: Some(thread),
            rng: Prng::new(seed),
            cuts: Cuts::default(),
        };
        match told.recv() {
            Ok(Ok(())) => Ok(disks),
            Ok(Err(e)) => Err(e),
            Err(_) => {
                let ended = disks.thread.take().map(JoinHandle::join);
                Err(format!("the server of disks ended: {ended:?}"))
            }
        }
    }

    /// The disks, as files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Everything is set up and durable: disks that lie do so from here on.
    pub fn begin(&self) {
        for d in &self.shared.disks {
            let mut d = lock(d);
            let all = d.taken;
            d.flush(all);
        }
        self.shared.begun.store(true, Ordering::Release);
    }

    /// The switch, for another thread.
    pub fn switch(&self) -> Switch {
        Switch(self.shared.clone())
    }

    /// The machine is down, its process has ended: what was not durable is decided, and power is back.
    pub fn cut(&mut self) {
        // What the old process has left in the kernel comes before this, and is refused like it.
        for f in &self.files {
            let refused = File::options().write(true).open(f).and_then(|f| f.sync_all());
            assert!(refused.is_err(), "the disks are off");
        }
        while self.shared.inside.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for d in &self.shared.disks {
            lock(d).cut(&mut self.rng, &mut self.cuts);
        }
        self.cuts.cuts += 1;
        *lock(&self.shared.power) = Power::On;
    }

    /// What cuts did so far.
    pub fn cuts(&self) -> Cuts {
        Cuts { flushes: self.shared.flushes.load(Ordering::Relaxed), ..self.cuts }
    }
}

/// The power switch.
#[derive(Clone)]
pub struct Switch(Arc<Shared>);

impl Switch {
    /// Power goes: no disk answers any more. Then `kill` ends whoever uses them; only then they are off, so that nobody has
    /// seen them fail.
    pub fn off(&self, kill: impl FnOnce()) {
        *lock(&self.0.power) = Power::Gone;
        kill();
        std::thread::sleep(Duration::from_millis(20));
        *lock(&self.0.power) = Power::Off;
    }
}

/// Disks that take their time.
impl Switch {
    /// From now on nothing is answered, until [`answer`](Switch::answer).
    pub fn hold(&self) {
        *lock(&self.0.power) = Power::Gone;
    }

    /// What was held is done, late.
    pub fn answer(&self) {
        *lock(&self.0.power) = Power::On;
    }

    /// From now on the file systems answer nothing at all, not even to whoever opens a disk, until [`thaw`](Switch::thaw).
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Release);
        while !self.0.still.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// They answer again.
    pub fn thaw(&self) {
        self.0.frozen.store(false, Ordering::Release);
    }

    /// As [`freeze`](Switch::freeze), until the end of what is given, however that comes.
    pub fn frozen(&self) -> Frozen {
        self.freeze();
        Frozen(self.clone())
    }

    /// Whether writes find no room from now on.
    pub fn fill(&self, full: bool) {
        self.0.full.store(full, Ordering::Release);
    }

    /// The next flush of a disk fails: its cache is lost, and the flush after that ends well.
    pub fn lose_cache(&self, number: usize) {
        self.0.loses[number].store(true, Ordering::Release);
    }

    /// Requests that are held.
    pub fn held(&self) -> u64 {
        self.0.inside.load(Ordering::Acquire)
    }
}

/// File systems that answer nothing.
pub struct Frozen(Switch);

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

/// The disks, for a thread that pulls them out and lets them rot.
impl Switch {
    /// Takes a disk out of its slot, or puts it back.
    pub fn pull(&self, number: usize, out: bool) {
        self.0.pulled[number].store(out, Ordering::Release);
    }

    /// Flips a bit in each block of a disk that is drawn by chance, `percent` of all that hold anything. Returns how many.
    pub fn rot(&self, number: usize, percent: u64, rng: &mut Prng) -> u64 {
        let mut p = lock(&self.0.disks[number]);
        // On the medium, not in a cache that would be written over it.
        let all = p.taken;
        p.flush(all);
        let mut flipped = 0;
        for at in (0..p.live.len()).step_by(BLOCK) {
            let holds = p.live[at..at + BLOCK].iter().any(|b| *b != 0);
            if holds && rng.chance(percent, 100) {
                let (byte, bit) = (at + rng.below(BLOCK as u64) as usize, 1 << rng.below(8));
                p.live[byte] ^= bit;
                p.medium[byte] ^= bit;
                flipped += 1;
            }
        }
        flipped
    }
}

/// Whether file systems can be mounted here.
///
/// # Errors
/// Why not.
pub fn can_mount() -> Result<(), String> {
    if !weir_attach::is_root() {
        return Err("only root can mount file systems".to_owned());
    }
    let d = super::Daemon::new("mount-probe");
    Disks::mount(&d.dir, 1, 4096, Nature::Honest, 0).map(drop)
}

fn unmount(dir: &Path) {
    drop(Command::new("umount").arg("-l").arg(dir).output());
}

impl Drop for Disks {
    fn drop(&mut self) {
        *lock(&self.shared.power) = Power::Off;
        self.shared.frozen.store(false, Ordering::Release);
        self.dirs.iter().for_each(|d| unmount(d));
        self.shared.stop.store(true, Ordering::Release);
        if let Some(t) = self.thread.take() {
            drop(t.join());
        }
    }
}

/// The thread that answers the kernel.
fn serve(
    shared: Arc<Shared>,
    mounts: Vec<Mount>,
    len: u64,
    tell: mpsc::Sender<Result<(), String>>,
) {
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let s = shared.clone();
    let started = reactor.enter(|| {
        let pool = BufPool::new(&Queue::<Served>::buffers()).map_err(|e| e.to_string())?;
        let length = Arc::new(AtomicU64::new(len));
        let mut queues = Vec::new();
        for (number, m) in mounts.iter().enumerate() {
            let disk = Rc::new(Served { shared: s.clone(), number, len });
            let connection = m.connection().map_err(|e| e.to_string())?;
            let (p, l) = (pool.clone(), Shown { name: "volume".into(), len: length.clone() });
            queues.push(Queue::start(&reactor, &ring, p, connection, disk, l, || {}));
        }
        Ok(queues)
    });
    let queues = match started {
        Ok(q) => q,
        Err(e) => return drop(tell.send(Err(e))),
    };
    drop(tell.send(Ok(())));
    reactor.block_on(PollMode::Sleep, async move {
        while !shared.stop.load(Ordering::Acquire) {
            while shared.frozen.load(Ordering::Acquire) {
                shared.still.store(true, Ordering::Release);
                std::thread::sleep(Duration::from_millis(1));
            }
            shared.still.store(false, Ordering::Release);
            sleep(10 * MILLIS).await;
        }
        drop(queues);
    });
    reactor.shutdown();
    drop(mounts);
}
