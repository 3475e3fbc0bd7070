//! An attachment from its making to its end.

use crate::disk::{Disk, Geometry};
use crate::error::{Error, Kind};
use crate::fuse;
use crate::host::loopdev;
use crate::reach::{self, Failure, Paths, Reached, Wanted};
use crate::state::{Method, Place, State, started};
use crate::sys::{self, Signals};
use crate::volume::Volume;
use crate::workers::{MakeProvider, Workers};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What is to be attached, and how.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Where attachments are kept.
    pub run_dir: PathBuf,
    /// The attachment's name.
    pub name: String,
    /// Ways to the volume: the first that works is taken.
    pub ways: Vec<Wanted>,
    /// How; `None` takes the best that the kernel has.
    pub method: Option<Method>,
    /// Queues, a thread each.
    pub queues: usize,
    /// Our initiator port, for displays.
    pub initiator_port: String,
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
    len: Arc<AtomicU64>,
    workers: Workers,
    reached: Reached,
    events: Receiver<Event>,
    // Dropped last: what the kernel has is taken away from it.
    _cleanup: Cleanup,
}

/// Takes away from the kernel what it still has.
struct Cleanup {
    place: Place,
    device: Option<(Method, PathBuf)>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some((Method::Fuse, device)) = &self.device
            && is_ours(&self.place, device)
        {
            let _ = loopdev::clear(device);
        }
        let _ = sys::unmount(&self.place.disk(), true);
        self.place.remove();
    }
}

/// Whether the loop device has the file of this attachment.
pub(crate) fn is_ours(place: &Place, device: &Path) -> bool {
    let file = place.disk().join(fuse::FILE_NAME);
    loopdev::backing(device).is_some_and(|b| Path::new(&b) == file)
}

/// The method that is asked for, or the best that this machine has.
///
/// # Errors
/// What is missing.
fn choose(method: Option<Method>) -> Result<Method, Error> {
    if !sys::is_root() {
        return Err(Error::new(
            Kind::Denied,
            "only root can give this host a disk",
            "mounting and loop devices are for root",
            "run it as root",
        ));
    }
    match method {
        Some(Method::Ublk) => Err(Error::new(
            Kind::Unsupported,
            "ublk is not there yet",
            "this version attaches by FUSE and a loop device only",
            "use --method fuse",
        )),
        Some(Method::Fuse) | None => {
            fuse::probe()?;
            loopdev::probe()?;
            Ok(Method::Fuse)
        }
    }
}

/// Makes a disk of a volume. From here on SIGINT, SIGTERM and SIGHUP are held back for [`Attachment::serve`].
///
/// # Errors
/// Nothing is left behind then.
pub fn attach(spec: &Spec, provider: &MakeProvider) -> Result<Attachment, NotAttached> {
    let method = choose(spec.method)?;
    let place = Place::of(&spec.run_dir, &spec.name)?;
    place.create()?;
    let mut cleanup = Cleanup { place: place.clone(), device: None };
    sys::become_io_server();
    let signals = Signals::hold().map_err(|e| Error::system("signals cannot be held back", &e))?;
    let workers = Workers::start(spec.queues, &fuse::Queue::<Volume>::buffers(), provider)?;
    let (reached, way) = reach_one(&workers, &spec.ways)?;
    let made = present(&workers, &place, &mut cleanup, method);
    let (tell, events) = channel();
    let made = made.and_then(|p| {
        serve_queues(&workers, &p, &tell)?;
        let device =
            loopdev::configure(&p.mount.file(), p.geometry.block_size, p.geometry.read_only)?;
        cleanup.device = Some((method, device.clone()));
        Ok((p, device))
    });
    let (p, device) = match made {
        Ok(m) => m,
        Err(e) => {
            // The kernel's end first: nobody waits for what will not be answered.
            drop(cleanup);
            reached.close(&workers);
            return Err(e.into());
        }
    };
    let (protocol, targets) = describe(&spec.ways[way].paths);
    let me = std::process::id();
    let state = State {
        name: spec.name.clone(),
        volume: reached.name.clone().unwrap_or_else(|| spec.ways[way].which.to_string()),
        protocol: protocol.into(),
        targets,
        initiator_port: spec.initiator_port.clone(),
        identity: reached.identity.clone(),
        method,
        link: place.make_link(&device),
        device,
        size: p.geometry.len,
        block_size: p.geometry.block_size,
        read_only: p.geometry.read_only,
        queues: workers.len(),
        pid: me,
        started: started(me).unwrap_or(0),
    };
    place.write(&state)?;
    let resized = tell.clone();
    reached.on_resize(&workers, move |len| {
        let _ = resized.send(Event::Resized(len));
    })?;
    watch_signals(signals, tell)?;
    Ok(Attachment { place, state, len: p.len, workers, reached, events, _cleanup: cleanup })
}

fn reach_one(workers: &Workers, ways: &[Wanted]) -> Result<(Reached, usize), NotAttached> {
    let mut failed = Vec::new();
    for (i, way) in ways.iter().enumerate() {
        match reach::reach(workers, way) {
            Ok(r) => return Ok((r, i)),
            Err(e @ (Failure::NoVolume(_) | Failure::Other(_))) => {
                // Another protocol would find the same.
                return Err(NotAttached::Unreached(vec![(i, e)]));
            }
            Err(e) => failed.push((i, e)),
        }
    }
    Err(NotAttached::Unreached(failed))
}

fn describe(paths: &Paths) -> (&'static str, Vec<String>) {
    match paths {
        Paths::Brp(all) => ("brp", all.iter().flat_map(|c| c.addrs.clone()).collect()),
        Paths::Srp(all, _) => ("srp", all.iter().flat_map(|c| c.addrs.clone()).collect()),
    }
}

/// A mounted file system that nobody serves yet.
struct Presented {
    mount: fuse::Mount,
    geometry: Geometry,
    len: Arc<AtomicU64>,
}

fn present(
    workers: &Workers,
    place: &Place,
    cleanup: &mut Cleanup,
    method: Method,
) -> Result<Presented, Error> {
    debug_assert_eq!((method, cleanup.device.is_none()), (Method::Fuse, true));
    let geometry =
        workers.call(0, |_| Box::pin(async { reach::volume().map(|v| v.geometry()) }))?;
    let geometry = geometry.ok_or_else(|| {
        Error::new(Kind::Failed, "the volume is gone", "its session has ended", "try again")
    })?;
    let mount = fuse::Mount::new(&place.disk())?;
    let len = Arc::new(AtomicU64::new(geometry.len));
    Ok(Presented { mount, geometry, len })
}

/// Starts a queue on every reactor.
fn serve_queues(workers: &Workers, p: &Presented, tell: &Sender<Event>) -> Result<(), Error> {
    for i in 0..workers.len() {
        let (connection, len, tell) = (p.mount.connection()?, p.len.clone(), tell.clone());
        workers.call(i, move |here| {
            if let Some(disk) = reach::volume() {
                let ended = move || {
                    let _ = tell.send(Event::Ended);
                };
                let pool = here.pool.clone();
                fuse::Queue::start(&here.reactor, &here.ring, pool, connection, disk, len, ended);
            }
            Box::pin(async {})
        })?;
    }
    Ok(())
}

fn watch_signals(signals: Signals, tell: Sender<Event>) -> Result<(), Error> {
    let watch = move || {
        loop {
            signals.wait();
            if tell.send(Event::Signal).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("weir-signals".into()).spawn(watch);
    thread.map(drop).map_err(|e| Error::system("no thread for signals", &e))
}

impl Attachment {
    /// What it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Serves the disk until it is detached. A signal has it try to detach itself; while the disk is in use it goes on.
    pub fn serve(mut self) {
        while let Ok(event) = self.events.recv() {
            match event {
                Event::Ended => break,
                Event::Resized(len) => self.resize(len),
                Event::Signal => match crate::detach::detach_own(&self.place, &self.state) {
                    Ok(()) => {}
                    Err(e) => {
                        tracing::error!(why = %e.reason, "{}; the attachment goes on", e.message);
                    }
                },
            }
        }
        tracing::info!(name = self.state.name, "the disk is gone, the attachment ends");
        self.reached.close(&self.workers);
    }

    /// The volume has another length.
    fn resize(&mut self, len: u64) {
        tracing::info!(from = self.state.size, to = len, "the volume has another size");
        self.len.store(len, Ordering::Release);
        let done = self.reached.set_len(&self.workers, len).and_then(|()| {
            let failed = |e: &std::io::Error| Error::system("the disk keeps its old size", e);
            // The file's length is the volume's; the kernel learns it from the answer.
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(self.place.disk().join(fuse::FILE_NAME))
                .map_err(|e| failed(&e))?;
            file.set_len(len).map_err(|e| failed(&e))?;
            loopdev::update_capacity(&self.state.device).map_err(|e| failed(&e))
        });
        if let Err(e) = done {
            tracing::error!(error = %e, "a new size was not taken over");
            return;
        }
        self.state.size = len;
        if let Err(e) = self.place.write(&self.state) {
            tracing::error!(error = %e, "the new size was not written down");
        }
    }
}
