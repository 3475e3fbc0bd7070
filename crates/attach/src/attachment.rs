//! An attachment from its making to its end.

mod claimed;
mod ways;

use claimed::Cleanup;
pub use claimed::{Claimed, Noting, claim};

use crate::aside::{Aside, aside};
use crate::disk::{Disk, Geometry};
use crate::error::{Error, Kind};
use crate::fuse;
use crate::fuse::Shown;
use crate::host::{diskseq, loopdev};
use crate::nbd;
use crate::reach::{self, Failure, Paths, Reached, Wanted};
use crate::signals::Signals;
use crate::state::{Mapped, Method, Place, Process, State};
use crate::sys;
use crate::ublk;
use crate::volume::Volume;
use crate::whose::{Whose, whose};
use crate::workers::{MakeProvider, Workers};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use ways::reach_one;
use weir_mem::PoolConfig;

/// What is to be attached, and how.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Ways to the volume: the first that works is taken.
    pub ways: Vec<Wanted>,
    /// Queues, a thread each.
    pub queues: usize,
    /// Our initiator port, for displays.
    pub initiator_port: String,
    /// What was made at the daemon of this machine for it, for who takes it away.
    pub mapped: Option<Mapped>,
}

/// Why there is no attachment: what each way to the volume said, with its number in [`Spec::ways`].
#[derive(Debug, Clone)]
pub enum NotAttached {
    /// No way led to the volume.
    Unreached(Vec<(usize, Failure)>),
    /// Something else.
    Other(Error),
}

impl From<Error> for NotAttached {
    fn from(e: Error) -> NotAttached {
        NotAttached::Other(e)
    }
}

/// How often is looked whether a disk is there yet.
const LOOK: Duration = Duration::from_secs(2);

/// News for the thread that directs.
enum Event {
    /// The kernel has ended a queue: the disk was taken away.
    Ended,
    /// The volume has another length.
    Resized(u64),
    /// Somebody wants us to end.
    Signal,
}

/// A disk of this host.
pub struct Attachment {
    place: Place,
    state: State,
    /// What is known of it is not all written down.
    unwritten: bool,
    len: Arc<AtomicU64>,
    workers: Workers,
    reached: Reached,
    events: Receiver<Event>,
    // Dropped last: what the kernel has is taken away from it.
    _cleanup: Cleanup,
}

/// Makes a disk of a volume. Until there is one a signal ends that; then [`Attachment::serve`] hears them.
///
/// # Errors
/// Nothing is left behind then.
pub fn attach(
    claimed: Claimed,
    spec: &Spec,
    provider: &MakeProvider,
    signals: &Signals,
) -> Result<Attachment, NotAttached> {
    let Claimed { method, named, mut cleanup } = claimed;
    let (place, mark) = (cleanup.place.clone(), cleanup.mark.clone());
    let file = fuse::file_name(mark.as_deref());
    sys::become_io_server();
    // Who stops what serves a disk stops the disk, and the nbd driver ends one by that.
    sys::ignore_stops();
    let mut workers = Workers::start(spec.queues, &buffers(method), provider, signals)?;
    let (reached, way) = reach_one(&workers, &spec.ways)?;
    let (tell, events) = channel();
    let mut apart = Aside::default();
    let made = geometry(&workers).and_then(|g| {
        let shown = Shown { name: file.clone(), len: Arc::new(AtomicU64::new(g.len)) };
        let device = match method {
            Method::Fuse => make_loop(&workers, &place, g, &shown, &tell, &mut apart)?,
            Method::Nbd => make_nbd(&workers, &place, g, &tell)?,
            Method::Ublk => make_ublk(&workers, g, &mut cleanup, &tell, &mut apart)?,
        };
        cleanup.device = Some((method, device.clone()));
        // By nbd it stays the same, whoever has the device.
        let diskseq = diskseq(&device).filter(|_| method != Method::Nbd);
        place.has(method, &device, diskseq)?;
        let link = named.then(|| place.make_link(&device)).transpose()?;
        Ok((g, shown.len, device, diskseq, link))
    });
    let (g, len, device, diskseq, link) = match made {
        Ok(m) => m,
        Err(e) => {
            reached.close(&workers);
            // The reactors before what they serve: a device of ublk ends only when nobody has it open.
            drop(workers);
            apart.end();
            // It may have become a disk all the same.
            let noted = || place.maker().and_then(|m| m.disk);
            cleanup.device = cleanup.device.take().or_else(noted);
            drop(cleanup);
            return Err(e.into());
        }
    };
    // Somebody may use it already: from here on it is taken away only if nobody does.
    workers.made();
    let (protocol, targets) = describe(&spec.ways[way].paths);
    let me = Process::me();
    let thread = nbd::Device::of(&device).and_then(nbd::Device::thread);
    let state = State {
        name: place.name().to_owned(),
        volume: reached.name.clone().unwrap_or_else(|| spec.ways[way].which.to_string()),
        protocol: protocol.into(),
        targets,
        initiator_port: spec.initiator_port.clone(),
        identity: reached.identity.clone(),
        method,
        link,
        device,
        size: g.len,
        block_size: g.block_size,
        read_only: g.read_only,
        queues: workers.len(),
        pid: me.pid,
        started: me.started,
        home: me.home,
        mapped: spec.mapped.clone(),
        thread,
        diskseq,
        mark,
    };
    let resized = tell.clone();
    let begun = place.write(&state).and_then(|()| {
        reached.on_resize(&workers, move |len| {
            let _ = resized.send(Event::Resized(len));
        })
    });
    signals.tell(move |_| drop(tell.send(Event::Signal)));
    let unwritten = begun.is_err();
    let _cleanup = cleanup;
    let attachment =
        Attachment { place, state, unwritten, len, workers, reached, events, _cleanup };
    match begun {
        Ok(()) => Ok(attachment),
        Err(e) => {
            tracing::error!(error = %e, "there is a disk, and nobody can know of it");
            attachment.withdraw().ok_or(NotAttached::Other(e))
        }
    }
}

fn describe(paths: &Paths) -> (&'static str, Vec<String>) {
    match paths {
        Paths::Brp(all) => ("brp", all.iter().flat_map(|c| c.addrs.clone()).collect()),
        Paths::Srp(all, _) => ("srp", all.iter().flat_map(|c| c.addrs.clone()).collect()),
    }
}

/// Buffers of each reactor: queues of ublk and nbd have their own.
fn buffers(method: Method) -> PoolConfig {
    match method {
        Method::Fuse => fuse::Queue::<Volume>::buffers(),
        Method::Ublk | Method::Nbd => PoolConfig { classes: vec![(4096, 16)] },
    }
}

fn geometry(workers: &Workers) -> Result<Geometry, Error> {
    let g = workers.call(0, |_| Box::pin(async { reach::volume().map(|v| v.geometry()) }))?;
    g.ok_or_else(|| {
        Error::new(Kind::Failed, "the volume is gone", "its session has ended", "try again")
    })
}

/// A FUSE file, a queue of it on every reactor, and a loop device.
fn make_loop(
    workers: &Workers,
    place: &Place,
    g: Geometry,
    shown: &Shown,
    tell: &Sender<Event>,
    apart: &mut Aside,
) -> Result<PathBuf, Error> {
    let mount = fuse::Mount::new(&place.disk())?;
    for i in 0..workers.len() {
        let (connection, shown, tell) = (mount.connection()?, shown.clone(), tell.clone());
        workers.call(i, move |here| {
            if let Some(disk) = reach::volume() {
                let ended = move || {
                    let _ = tell.send(Event::Ended);
                };
                let pool = here.pool.clone();
                fuse::Queue::start(&here.reactor, &here.ring, pool, connection, disk, shown, ended);
            }
            Box::pin(async {})
        })?;
    }
    let file = mount.file(&shown.name);
    let won = |device: &Path| place.about_to_have(Method::Fuse, device);
    apart.run(
        || workers.asked(),
        won,
        move |won| loopdev::configure(&file, g.block_size, g.read_only, won),
    )
}

/// A device of the nbd driver with a connection for every reactor.
fn make_nbd(
    workers: &Workers,
    place: &Place,
    g: Geometry,
    tell: &Sender<Event>,
) -> Result<PathBuf, Error> {
    let failed = |e: &std::io::Error| Error::system("there are no sockets for the nbd driver", e);
    let mut theirs = Vec::new();
    for i in 0..workers.len() {
        let (their, ours) = nbd::sockets().map_err(|e| failed(&e))?;
        theirs.push(their);
        workers.call(i, move |here| {
            if let Some(disk) = reach::volume() {
                // The disk ends when all of them have.
                nbd::Queue::start(&here.reactor, &here.ring, ours, disk, || {});
            }
            Box::pin(async {})
        })?;
    }
    let (place, tell) = (place.clone(), tell.clone());
    let won = move |device: &Path| place.about_to_have(Method::Nbd, device);
    nbd::connect(g, theirs, won, move || {
        let _ = tell.send(Event::Ended);
    })
}

/// A device of the ublk driver with a queue for every reactor.
fn make_ublk(
    workers: &Workers,
    g: Geometry,
    cleanup: &mut Cleanup,
    tell: &Sender<Event>,
    apart: &mut Aside,
) -> Result<PathBuf, Error> {
    let device = ublk::Device::add(workers.len(), g, cleanup.mark.as_deref())?;
    // By the name that its disk will have.
    let disk = device.disk();
    cleanup.device = Some((Method::Ublk, disk.clone()));
    cleanup.place.about_to_have(Method::Ublk, &disk)?;
    let file = device.open()?;
    for i in 0..workers.len() {
        let failed = |e: &std::io::Error| Error::system("a queue of ublk cannot be served", e);
        let (connection, tell) = (file.try_clone().map_err(|e| failed(&e))?, tell.clone());
        let started = workers.call(i, move |here| {
            let ended = move || {
                let _ = tell.send(Event::Ended);
            };
            let started = match reach::volume() {
                Some(disk) => {
                    ublk::Queue::start(&here.ring, connection.into(), i as u16, disk, ended)
                }
                None => Err(std::io::Error::other("the volume is gone")),
            };
            Box::pin(async { started })
        })?;
        started.map_err(|e| failed(&e))?;
    }
    apart.run(|| workers.asked(), |_| Ok(()), move |_| device.start())
}

impl Attachment {
    /// What it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Serves the disk until it is detached. A signal has it try to detach itself; while the disk is in use it goes on.
    pub fn serve(mut self) {
        loop {
            let event = match self.events.recv_timeout(LOOK) {
                Ok(event) => event,
                Err(RecvTimeoutError::Disconnected) => break,
                // Somebody else may have taken its file from a loop device: its process is not told of that.
                Err(RecvTimeoutError::Timeout) if self.is_cleared() => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.unwritten = self.unwritten && self.place.write(&self.state).is_err();
                    continue;
                }
            };
            match event {
                Event::Ended => break,
                Event::Resized(len) => self.resize(len),
                Event::Signal => {
                    self.detach();
                }
            }
        }
        tracing::info!(name = self.state.name, "the disk is gone, the attachment ends");
        self.reached.close(&self.workers);
    }

    /// Ends an attachment of which nobody can be told. Where its disk is in use already it gives it back, to be served all the
    /// same.
    #[must_use]
    pub fn withdraw(self) -> Option<Attachment> {
        if !self.detach() {
            return Some(self);
        }
        self.reached.close(&self.workers);
        None
    }

    /// Takes the disk away, unless it is in use. False: the attachment goes on.
    fn detach(&self) -> bool {
        let (place, state) = (self.place.clone(), self.state.clone());
        let done = aside(move || crate::detach::detach_own(&place, &state));
        if let Err(e) = &done {
            tracing::error!(why = %e.reason, "{}; the attachment goes on", e.message);
        }
        done.is_ok()
    }

    /// Whether a loop device is certainly not this disk any more.
    fn is_cleared(&self) -> bool {
        self.state.method == Method::Fuse && whose(&self.place, &self.state) == Whose::NotOurs
    }

    /// The volume has another length.
    fn resize(&mut self, len: u64) {
        if whose(&self.place, &self.state) != Whose::Ours {
            tracing::error!(
                "the volume has another size, and the disk may be another's: it is left alone"
            );
            return;
        }
        tracing::info!(from = self.state.size, to = len, "the volume has another size");
        self.len.store(len, Ordering::Release);
        let file = self.place.disk().join(fuse::file_name(self.state.mark.as_deref()));
        let (device, block_size) = (self.state.device.clone(), self.state.block_size);
        let done = self.reached.set_len(&self.workers, len).and_then(|()| {
            aside(move || {
                let failed = |e: std::io::Error| Error::system("the disk keeps its old size", &e);
                set_len(&device, &file, block_size, len).map_err(failed)
            })
        });
        if let Err(e) = done {
            tracing::error!(error = %e, "a new size was not taken over");
            return;
        }
        self.state.size = len;
        if let Err(e) = self.place.write(&self.state) {
            tracing::error!(error = %e, "the new size is not written down yet");
            self.unwritten = true;
        }
    }
}

/// Has the kernel take over a new length of a disk, whose file that is where it has one.
fn set_len(device: &Path, file: &Path, block_size: u32, len: u64) -> std::io::Result<()> {
    if let Some(d) = ublk::Device::of(device) {
        return d.resize(len);
    }
    if let Some(d) = nbd::Device::of(device) {
        return d.resize(len, block_size);
    }
    // The file's length is the volume's; the kernel learns it from the answer.
    std::fs::OpenOptions::new().write(true).open(file)?.set_len(len)?;
    loopdev::update_capacity(device)
}
