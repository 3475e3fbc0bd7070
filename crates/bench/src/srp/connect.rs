//! Sessions for jobs.

use super::disk::SrpDisk;
use super::login::Login;
use crate::client::{ConnectError, ConnectKind};
use crate::engine::{Connector, Meeting, Place};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use weir_fabric::Provider;
use weir_initiator_srp::{ChannelError, Queue, QueueMode, Session};
use weir_proto_scsi::Lun;
use weir_proto_srp::PortId;
use weir_reactor::{get_local, set_local};

/// Which sessions jobs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sessions {
    /// One for all jobs.
    #[default]
    Shared,
    /// One for each job, with an initiator port of its own and one channel: as many hosts as jobs.
    PerJob,
}

/// What a load through SRP needs besides a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrpOptions {
    /// The units, as small numbers.
    pub luns: Vec<u16>,
    /// I/Os in flight of all jobs together: queues are made for them.
    pub in_flight: u32,
    /// Jobs.
    pub jobs: u32,
    /// Which sessions jobs use.
    pub sessions: Sessions,
    /// Channels of a shared session; 0: one per thread, at most 8.
    pub channels: usize,
    /// How commands reach channels (S3).
    pub queue_mode: QueueMode,
}

impl SrpOptions {
    /// One shared session for a job and its copies on these units.
    pub fn new(luns: Vec<u16>, spec: &crate::job::JobSpec) -> SrpOptions {
        SrpOptions {
            luns,
            in_flight: spec.iodepth.saturating_mul(spec.numjobs),
            jobs: spec.numjobs,
            sessions: Sessions::Shared,
            channels: 0,
            queue_mode: QueueMode::Multi,
        }
    }
}

/// Reaches logical units of one SRP target.
pub struct Srp {
    login: Login,
    options: SrpOptions,
    /// One, or one for each path.
    shared: Vec<Session>,
    joined: Meeting,
    logged_in: Meeting,
    failed: Mutex<Option<ConnectError>>,
}

/// The sessions that end on the present reactor.
#[derive(Default)]
struct Open(RefCell<Vec<Session>>);

impl Srp {
    /// A way to the units of `options`.
    pub fn new(login: Login, options: SrpOptions) -> Srp {
        let mut shared = Vec::new();
        for mut config in login.sessions(login.initiator) {
            config.channels = options.channels;
            config.queue_mode = options.queue_mode;
            // Threads are not known yet, and jobs may be spread unevenly: every channel can take all.
            config.depth = options.in_flight.clamp(1, 4096) as u16;
            shared.push(Session::new(config));
        }
        Srp {
            login,
            options,
            shared,
            joined: Meeting::default(),
            logged_in: Meeting::default(),
            failed: Mutex::new(None),
        }
    }

    fn failure(&self) -> Option<ConnectError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs the shared sessions in, together with the other threads.
    async fn join(
        &self,
        place: &Place,
        provider: &Rc<dyn Provider>,
    ) -> Result<Vec<Session>, ConnectError> {
        let gone = || {
            let why = "another thread of the load generator did not start";
            ConnectError::new(ConnectKind::Failed, "there was no login", why, "its error says more")
        };
        for s in &self.shared {
            s.join(provider.clone());
        }
        if !place.meet(&self.joined).await {
            return Err(gone());
        }
        if place.worker == 0
            && let Err(e) = log_in(&self.shared).await
        {
            let e = self.login.explain(e);
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
        if !place.meet(&self.logged_in).await {
            return Err(gone());
        }
        match self.failure() {
            Some(e) => Err(e),
            None => Ok(self.shared.clone()),
        }
    }

    /// Sessions of a job's own.
    async fn own(
        &self,
        provider: &Rc<dyn Provider>,
        job: u32,
    ) -> Result<Vec<Session>, ConnectError> {
        let mine = self.login.initiator;
        // Another extension: another initiator port of the same machine.
        let ext = mine.extension() ^ (u64::from(job) + 1) << 40;
        let mut all = Vec::new();
        for mut config in self.login.sessions(PortId::new(ext, mine.guid())) {
            config.channels = 1;
            config.depth =
                (self.options.in_flight / self.options.jobs.max(1)).clamp(1, 4096) as u16;
            let s = Session::new(config);
            s.join(provider.clone());
            all.push(s);
        }
        match log_in(&all).await {
            Ok(()) => Ok(all),
            Err(e) => {
                for s in all {
                    s.close().await;
                }
                Err(self.login.explain(e))
            }
        }
    }

    async fn open(&self, sessions: &[Session], lun: u16) -> Result<Rc<SrpDisk>, ConnectError> {
        let Some(wire) = Lun::from_index(lun) else {
            return Err(ConnectError::new(
                ConnectKind::NoVolume,
                format!("{lun} is no LUN"),
                "LUNs are numbers from 0 to 16383",
                "give another --lun",
            ));
        };
        let mut queues: Vec<Queue> = sessions.iter().map(Session::queue).collect();
        let disk = match (self.login.multipath, queues.len()) {
            (None, 1) => SrpDisk::open(queues.remove(0), wire).await,
            (policy, _) => SrpDisk::open_paths(queues, wire, policy.unwrap_or_default()).await,
        };
        disk.map(Rc::new).map_err(|e| self.login.no_disk(lun, &e))
    }
}

/// Logs several paths in. One is enough to begin with; the others are tried again and again.
///
/// # Errors
/// None could be logged in: why the last could not.
pub(super) async fn log_in(sessions: &[Session]) -> Result<(), ChannelError> {
    let mut failed = Vec::new();
    for s in sessions {
        if let Err(e) = s.login().await {
            failed.push((s, e));
        }
    }
    if failed.len() == sessions.len()
        && let Some((_, e)) = failed.pop()
    {
        return Err(e);
    }
    for (s, e) in failed {
        tracing::warn!(target = %s.config().addrs.join(", "), error = %e, "a path is down");
        s.login_later();
    }
    Ok(())
}

impl Connector for Srp {
    type Client = SrpDisk;

    fn volumes(&self) -> usize {
        self.options.luns.len()
    }

    async fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<SrpDisk>>>, ConnectError> {
        let open = Rc::new(Open::default());
        set_local(open.clone());
        let provider = self.login.provider(place)?;
        let shared = match self.options.sessions {
            Sessions::Shared => Some(self.join(place, &provider).await?),
            Sessions::PerJob => None,
        };
        // One thread closes for all.
        if let Some(s) = shared.as_ref().filter(|_| place.worker == 0) {
            open.0.borrow_mut().extend_from_slice(s);
        }
        let mut all = Vec::new();
        for (job, volumes) in jobs {
            let sessions = match &shared {
                Some(s) => s.clone(),
                None => {
                    let s = self.own(&provider, *job).await?;
                    open.0.borrow_mut().extend_from_slice(&s);
                    s
                }
            };
            let mut disks = Vec::new();
            for v in volumes {
                disks.push(self.open(&sessions, self.options.luns[*v]).await?);
            }
            all.push(disks);
        }
        Ok(all)
    }

    async fn disconnect(&self, _place: &Place) {
        let Some(open) = get_local::<Open>() else { return };
        for s in open.0.take() {
            s.close().await;
        }
    }
}
