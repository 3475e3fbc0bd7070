//! Everything down at the end: hosts, then volumes, then pools. All of a kind ends side by side, and each step has its time, so that
//! what stands still delays only its own.
//!
//! A stop has two states. While it *stops*, no command gets a turn any more, and the change that has one goes on to its end. When
//! it is *down*, nothing is started again.

use super::*;
use crate::dataplane::LastState;
use crate::stopping::Stopping;
use tokio::sync::MutexGuard as Turn;

/// Until when target ports may end, from the begin of the stop. The data plane parts from hosts that stand still before.
const PORTS: Duration = Duration::from_secs(10);
/// The same for the change that is under way and for pools that are being opened. A device fails that has not answered for 20 s: what
/// waits for one comes to its end by then.
const CHANGES: Duration = Duration::from_secs(23);
/// The same for commands of hosts to volumes. They were admitted while ports ended, and may wait for a device since.
const VOLUMES: Duration = Duration::from_secs(33);
/// The same for pools: a device may be asked for the first time when its pool is closed, which is after ports have ended.
const POOLS: Duration = Duration::from_secs(41);

/// The same for the record of how pools were closed.
const RECORDS: Duration = Duration::from_secs(43);
/// The same for ports that a change under way has brought up.
const PORTS_AGAIN: Duration = Duration::from_secs(27);

/// How long the last events may take to be written, if so much of that is left.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// What could not be closed, and why: one line each.
type Left = Vec<String>;

/// Volumes to close, and pools with the volumes that each waits for.
#[derive(Default)]
struct Open {
    volumes: BTreeSet<String>,
    pools: BTreeMap<String, BTreeSet<String>>,
}

/// One that was closed, or could not be.
enum Closed {
    Volume(String, Result<()>),
    Pool(String, Result<Option<LastState>>),
}

pub(super) fn being_stopped() -> Error {
    Error::new(Code::NotReady, "the daemon is being stopped")
        .because("what it has begun ends, and nothing else is begun")
        .hint("ask again when it runs again")
}

pub(super) fn let_nobody_in(plane: &dyn DataPlane) {
    if !has(Bug::LetsInAtTheEnd) {
        plane.let_nobody_in();
    }
}

/// As `work`, until `until`.
async fn in_time<T>(until: Instant, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::new(Code::IoError, "it has not ended in time");
    timeout_at(until, work).await.map_err(late)?
}

impl Controller {
    /// Told when the node is being stopped.
    pub fn stopping(&self) -> &Stopping {
        &self.stopping
    }

    /// Nothing is to be begun any more.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.has_begun() && !has(Bug::GoesOnAfterEnd)
    }

    /// Everything has been taken down, or is about to be: what is under way starts nothing any more.
    pub(super) fn is_down(&self) -> bool {
        self.up().down && !has(Bug::GoesOnAfterEnd)
    }

    /// The turn of a command, when it comes. There is none while the node is being stopped.
    pub(super) async fn turn(&self) -> Result<Turn<'_, ()>> {
        let one = if has(Bug::TurnsWhileStopping) || has(Bug::GoesOnAfterEnd) {
            self.changes.lock().await
        } else {
            tokio::select! {
                biased;
                () = self.stopping.begun() => return Err(being_stopped()),
                one = self.changes.lock() => one,
            }
        };
        self.check_up()?;
        Ok(one)
    }

    /// Takes everything down in order: target ports, volumes, pools. The configuration stays as it is. Ends within 43 s,
    /// whatever does not. A pool whose volumes have not ended stays open. A port that has not ended is no error: its hosts are cut off,
    /// and their commands end with the volumes.
    ///
    /// # Errors
    /// [`Code::LeftOpen`]: something could not be closed. All of that is named, here and in the log.
    pub async fn shutdown(self: &Arc<Self>) -> Result<()> {
        let me = self.clone();
        finish(spawn(async move {
            let down = me.clone().take_down().await;
            me.end_damage().await;
            let text = match &down {
                Ok(()) => "weir has stopped, and everything is closed".to_string(),
                Err(e) => format!("weir has stopped: {e}"),
            };
            me.events.publish(crate::events::STOPPED, "node", &text);
            let until = (me.stopping.begin() + RECORDS).min(Instant::now() + LAST_EVENTS);
            me.events.written(until.saturating_duration_since(Instant::now())).await;
            down
        }))
        .await
    }

    async fn take_down(self: Arc<Self>) -> Result<()> {
        let begun = self.stopping.begin();
        let_nobody_in(&*self.plane);
        self.clearings.end();
        // While pools are open.
        let (ports, (), (mut opened, mut left), one) = tokio::join!(
            self.end_ports(begun + PORTS),
            self.last_damage(),
            self.end_openings(begun + CHANGES),
            timeout_at(begun + CHANGES, self.changes.lock()),
        );
        // Those among them that it was waiting for itself.
        let (more, unopened) = self.end_openings(begun + CHANGES).await;
        opened.extend(more);
        left.extend(unopened);
        if one.is_err() {
            left.push("a change that was under way has not ended in time".into());
        }
        if one.is_ok() && !has(Bug::OwedAtTheEnd) {
            match in_time(begun + CHANGES, self.settle_store()).await {
                // A pool that was refused may be open, and the configuration has it no more.
                Ok(Some((command, present, back))) => {
                    let refused =
                        present.pools.values().filter(|p| !back.pools.contains_key(&p.name));
                    for pool in refused.cloned() {
                        opened.insert(pool.name.clone());
                        if matches!(command, Command::CreatePool(_)) {
                            self.up().refused.insert(pool.name.clone(), (pool, begun));
                        }
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    left.push(format!(
                        "a change that was refused is not taken back, and counts: {e}"
                    ));
                }
            }
        }
        if one.is_ok() && !has(Bug::SizesUnrecorded) {
            left.extend(self.record_sizes(begun + CHANGES).await);
        }
        // The last: its devices may hang.
        if one.is_ok() {
            let _ = timeout_at(begun + CHANGES, self.take_refused_away(true)).await;
        }
        opened.extend(self.up().refused.keys().cloned());
        // What that change has brought up goes as well.
        let more = self.end_ports((Instant::now() + PORTS).min(begun + PORTS_AGAIN)).await;
        for port in ports.into_iter().chain(more) {
            tracing::warn!("hosts are cut off: {port}");
        }
        let open = self.all_open(opened, one.is_err());
        let (unclosed, closed) = self.close_all(open, begun).await;
        left.extend(unclosed);
        if let Err(e) = in_time(begun + RECORDS, self.keep_stopped(closed)).await {
            tracing::warn!(
                "how pools were closed is not recorded, and none starts by itself without a device: {e}"
            );
        }
        drop(one);
        if left.is_empty() {
            return Ok(());
        }
        left.iter().for_each(|l| tracing::error!("left open: {l}"));
        Err(Error::new(Code::LeftOpen, "not everything could be closed")
            .because(left.join("; "))
            .hint("it is as after a kill: the next start takes it up, and nothing acknowledged is lost"))
    }

    /// Records that volumes are smaller, as hosts see them, which could not be recorded before. Gives which cannot be yet.
    async fn record_sizes(&self, until: Instant) -> Left {
        let model = self.model();
        let mut left = Left::new();
        // One that became larger does so at the next start.
        for v in model.volumes.values().filter(|v| v.cut.is_some_and(|c| c.open)) {
            let name = &v.name;
            let seen = self.up().volumes.contains(name) && self.closed(&v.pool).is_none();
            if seen
                && self.owed().is_none()
                && let Err(e) = in_time(until, self.record_size(name)).await
            {
                left.push(format!("the size of volume `{name}` is not recorded: {e}"));
            }
        }
        left
    }

    /// Ends all target ports.
    async fn end_ports(self: &Arc<Self>, until: Instant) -> Left {
        let mut all = JoinSet::new();
        let mut names = std::mem::take(&mut self.up().targets);
        names.append(&mut self.up().strays);
        for name in names {
            let me = self.clone();
            all.spawn(async move {
                let ended = in_time(until, me.plane.stop_target(&name)).await;
                ended.map_err(|e| format!("target port `{name}`: {e}"))
            });
        }
        let broken = |e: platform::Broken| Err(format!("a target port: {e}"));
        let all = all.join_all().await.into_iter();
        all.filter_map(|ended| ended.unwrap_or_else(broken).err()).collect()
    }

    /// From here on nothing is started. Gives what is open. `all`: a change is under way that may open any volume.
    fn all_open(&self, opened: BTreeSet<String>, all: bool) -> Open {
        let model = self.model();
        let mut up = self.up();
        up.down = true;
        up.faults.clear();
        up.rules.clear();
        up.records = Default::default();
        let mut open = Open { volumes: std::mem::take(&mut up.volumes), ..Open::default() };
        open.volumes.extend(std::mem::take(&mut up.half_closed).into_keys());
        if all {
            open.volumes.extend(model.volumes.keys().cloned());
        }
        // One that the configuration does not have may be in any pool.
        let is_in = |name: &String, pool: &String| {
            let volume = model.volumes.get(name);
            volume.is_none_or(|v| {
                v.pool == *pool || v.migration.as_ref().is_some_and(|m| m.pool == *pool)
            })
        };
        let to_stop = std::mem::take(&mut up.to_stop);
        let pools = std::mem::take(&mut up.pools).into_iter().chain(opened);
        for pool in pools.chain(to_stop.keys().cloned()) {
            let left = to_stop.get(&pool);
            let waits = |v: &&String| is_in(v, &pool) || left.is_some_and(|l| l.contains(*v));
            let waits = open.volumes.iter().filter(waits).cloned().collect();
            open.pools.insert(pool, waits);
        }
        open
    }

    /// Closes volumes, and each pool when all of its own are closed.
    async fn close_all(self: &Arc<Self>, open: Open, begun: Instant) -> (Left, Vec<LastState>) {
        let (mut all, mut left, mut pools) = (JoinSet::new(), Left::new(), open.pools);
        let mut last = Vec::new();
        for name in open.volumes {
            let me = self.clone();
            all.spawn(async move {
                let closed = in_time(begun + VOLUMES, me.plane.end_volume(&name)).await;
                Closed::Volume(name, closed)
            });
        }
        loop {
            let ready = |(_, waits): &(String, BTreeSet<String>)| {
                waits.is_empty() || has(Bug::PoolsBeforeVolumes)
            };
            let (now, later): (BTreeMap<_, _>, _) = pools.into_iter().partition(ready);
            pools = later;
            for name in now.into_keys() {
                let me = self.clone();
                let close = async move {
                    let closed = in_time(begun + POOLS, me.plane_end(&name)).await;
                    Closed::Pool(name, closed)
                };
                match has(Bug::PoolsInTurn) {
                    true => left.extend(close.await.why_not()),
                    false => all.spawn(close),
                }
            }
            let Some(closed) = all.join_next().await else { break };
            // One that broke off has said so by itself, and what waits for it stays open.
            let Ok(closed) = closed else { continue };
            if let Closed::Volume(name, Ok(())) = &closed {
                for waits in pools.values_mut() {
                    waits.remove(name);
                }
            }
            if let Closed::Pool(name, Ok(state)) = &closed {
                let model = self.model();
                let is_protected = model.pools.get(name).is_some_and(|p| p.protection.is_some());
                if state.is_none() && is_protected {
                    tracing::warn!(pool = %name, "closed, but not whole: should a device be missing at the next start, it waits for that");
                }
                last.extend(*state);
            }
            left.extend(closed.why_not());
        }
        for (name, waits) in pools {
            let waits: Vec<String> = waits.into_iter().map(|v| format!("`{v}`")).collect();
            left.push(format!(
                "pool `{name}` is not closed: it waits for volumes {}",
                waits.join(", ")
            ));
        }
        (left, last)
    }
}

impl Closed {
    fn why_not(self) -> Option<String> {
        match self {
            Closed::Volume(name, closed) => closed.err().map(|e| format!("volume `{name}`: {e}")),
            Closed::Pool(name, closed) => closed.err().map(|e| format!("pool `{name}`: {e}")),
        }
    }
}
