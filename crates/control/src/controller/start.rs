//! The start of a node. From the first moment it is known what it has and how far it is. Nobody changes anything before it is over:
//! what is configured is in effect then, or a fault.

use super::take_down::being_stopped;
use super::*;
use crate::live::Starting;

/// How long a command waits for the end of the start. Most starts take less.
const PATIENCE: Duration = Duration::from_secs(15);

/// How far the start is.
pub(super) struct Start {
    begun: Instant,
    since_ms: u64,
    /// What is to be before it is over, or a fault.
    declared: Desired,
    /// What the program does when that is so.
    work: Mutex<Option<String>>,
    over: watch::Sender<bool>,
}

impl Start {
    fn new(declared: Desired) -> Start {
        Start {
            begun: Instant::now(),
            since_ms: platform::calendar().as_millis() as u64,
            declared,
            work: Mutex::default(),
            over: watch::Sender::new(false),
        }
    }

    /// Since it began.
    pub(super) fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}

fn not_over(work: Option<String>) -> Error {
    Error::new(Code::Starting, "the daemon is starting")
        .because(work.unwrap_or_else(|| "what is configured is not in effect yet".into()))
        .hint("ask again in a moment; `weir status` says what it waits for")
}

impl Controller {
    /// Opens the store in `data_dir` and brings everything in it up. What does not start is a fault in
    /// [`status`](Self::status) and is tried again every few seconds; the rest runs. Must be called on a Tokio runtime.
    ///
    /// # Errors
    /// The store cannot be used, or it is gone.
    pub async fn start(data_dir: &Path, plane: Arc<dyn DataPlane>) -> Result<Arc<Controller>> {
        let none = Desired::default();
        let c = Self::open(data_dir, plane, Vec::new(), none, Stopping::default()).await?;
        c.come_up().await?;
        c.started();
        Ok(c)
    }

    /// The same on a store that is open already.
    ///
    /// # Errors
    /// The store cannot be used.
    pub async fn start_on(
        store: MetaStore,
        data_dir: &Path,
        plane: Arc<dyn DataPlane>,
        key_commands: Vec<String>,
    ) -> Result<Arc<Controller>> {
        let (none, stopping) = (Desired::default(), Stopping::default());
        let c = Self::open_on(store, data_dir, plane, key_commands, none, stopping).await?;
        c.come_up().await?;
        c.started();
        Ok(c)
    }

    /// Opens the store in `data_dir` for a node that is to be as it is `declared`, and brings nothing up yet: that comes with
    /// [`come_up`](Self::come_up), then [`declare_at_start`](Self::declare_at_start) or [`declare`](Self::declare). With
    /// [`started`](Self::started) the start is over. Only commands that begin with the words of one of `key_commands` may be run for
    /// keys of encrypted volumes, whoever asks. When `stopping` begins meanwhile, no more is brought up.
    ///
    /// Target ports that are here, and can be where they are declared to be elsewhere, listen nowhere before hosts and mappings have
    /// been made as declared. A port that cannot be where it is declared to be listens where it was.
    ///
    /// # Errors
    /// The store cannot be used, or it is gone.
    pub async fn open(
        data_dir: &Path,
        plane: Arc<dyn DataPlane>,
        key_commands: Vec<String>,
        declared: Desired,
        stopping: Stopping,
    ) -> Result<Arc<Controller>> {
        let dir = data_dir.to_path_buf();
        let store = blocking(move || MetaStore::open(&dir)).await?;
        Self::open_on(store, data_dir, plane, key_commands, declared, stopping).await
    }

    /// The same on a store that is open already.
    ///
    /// # Errors
    /// The store cannot be used.
    pub async fn open_on(
        store: MetaStore,
        data_dir: &Path,
        plane: Arc<dyn DataPlane>,
        key_commands: Vec<String>,
        declared: Desired,
        stopping: Stopping,
    ) -> Result<Arc<Controller>> {
        let carried_out = has(Bug::OpenCutIsMade);
        let targets = declared.targets.clone();
        let (store, model, held, known, damage, kept, events) = blocking(move || {
            let mut model = store.load()?;
            let before = model.clone();
            let named = model.identify_pools(entropy()?);
            let kept = if carried_out { Vec::new() } else { model.keep_sizes() };
            match model.number_targets() | named | !kept.is_empty() {
                true => store.commit(&before, &model)?,
                false => store.export(&model),
            }
            let held = ports::moved(&model, &targets);
            let known = known::Known::load(&store, &model)?;
            let damage = damage::Book::load(&store)?;
            let events = store.dir().map_or_else(EventLog::default, EventLog::open);
            Ok((Arc::new(store), model, held, known, damage, kept, events))
        })
        .await?;
        let text = format!("weir {} has started", env!("CARGO_PKG_VERSION"));
        events.publish("node.started", "node", &text);
        for note in store.notes() {
            tracing::warn!("{note}");
            events.publish("error", "configuration", note);
        }
        for (name, text) in kept {
            tracing::warn!("{text}");
            events.publish("volume.size", &format!("volume/{name}"), &text);
        }
        let reservations = ReservationStore::start(store.clone())?;
        let keys = Arc::new(KeyRing::allowing(key_commands));
        plane.attach(Hooks { reservations, events: events.clone(), keys: keys.clone() });
        // When the stop begins, whatever else is waited for then, the start included.
        let (begun, ports) = (stopping.begun(), Arc::downgrade(&plane));
        platform::spawn(async move {
            begun.await;
            if let Some(ports) = ports.upgrade() {
                take_down::let_nobody_in(&*ports);
            }
        });
        let controller = Arc::new(Controller {
            data_dir: data_dir.to_path_buf(),
            store,
            plane,
            events,
            model: RwLock::new(Arc::new(model)),
            changes: tokio::sync::Mutex::new(()),
            up: Mutex::new(Up { held, ..Up::default() }),
            samples: Mutex::default(),
            paces: Mutex::default(),
            told: Mutex::default(),
            damage: Mutex::new(damage),
            keys,
            moves: Mutex::default(),
            known,
            cuts: Mutex::default(),
            applies: tokio::sync::Mutex::default(),
            declared_open: Mutex::default(),
            declaring: AtomicBool::new(false),
            declared_now: Mutex::default(),
            declared_file: Mutex::default(),
            reasons: Mutex::default(),
            owed: Mutex::default(),
            retries: AtomicU64::new(0),
            cut_over: tokio::sync::Notify::new(),
            clearings: clearing::Clearings::default(),
            opening: opening::Openings::default(),
            stopped: stopped::Stopped::default(),
            every: sampling::every(),
            stopping,
            start: Start::new(declared),
        });
        controller.tell_pools();
        Ok(controller)
    }

    /// Brings up what is in the store: pools, volumes, then hosts and mappings, then target ports. What does not start is a fault and
    /// is tried again every few seconds; the rest runs.
    ///
    /// # Errors
    /// It broke off.
    pub async fn come_up(self: &Arc<Self>) -> Result<()> {
        self.bring_up_first().await?;
        platform::spawn(sampling::sample_loop(Arc::downgrade(self)));
        platform::spawn(migrate::migration_loop(Arc::downgrade(self)));
        Ok(())
    }

    /// The start is over: what is configured and declared is in effect, or a fault. Commands that have waited for that go on.
    pub fn started(&self) {
        self.start.over.send(true);
    }

    /// Waits until the start is over.
    ///
    /// # Errors
    /// [`Code::Starting`]: that takes long.
    pub async fn after_start(&self) -> Result<()> {
        let over = self.start.over.subscribe();
        tokio::select! {
            biased;
            // The sender is there as long as the controller.
            _ = over.wait_for(|over| *over || has(Bug::CommandsWhileStarting)) => Ok(()),
            () = self.stopping.begun() => Err(being_stopped()),
            () = sleep(PATIENCE) => Err(not_over(self.start_work())),
        }
    }

    /// All that is configured is in effect, or a fault, and the start is over when this is done as well. It is told to who asks.
    pub fn starts_with(&self, work: &str) {
        *self.start.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(work.into());
    }

    fn start_work(&self) -> Option<String> {
        self.start.work.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the start waits for, if it is not over.
    pub(super) fn starting(&self, model: &Model) -> Option<Starting> {
        if self.start.over.look(|over| *over) {
            return None;
        }
        let up = self.up();
        let pools = model.pools.keys().filter(|name| !up.pools.contains(*name));
        let work = self.start_work();
        let declared = self.start.declared.items().filter(|i| work.is_none() && !i.is_so(model));
        Some(Starting {
            since_ms: self.start.since_ms,
            pools: pools.cloned().collect(),
            declared: declared.map(|i| i.object()).collect(),
            work,
        })
    }
}
