//! Pools are opened side by side, in the background: one whose devices do not answer keeps nobody else waiting.

use super::*;
use crate::dataplane::{Inside, LastState};
use crate::model::{DeviceFound, DeviceSpec, Pool, PoolPatch};
use tokio::sync::OwnedMutexGuard;

/// How long pools may take to open before everything else goes on without them. Hosts are told meanwhile that their volumes are
/// becoming ready.
const SOON: Duration = Duration::from_millis(1500);
/// How long a command waits for a pool that is being opened.
const TURN: Duration = Duration::from_secs(10);
/// How long a pool may keep volumes waiting that carry no configuration themselves. Longer than it takes to find out that devices
/// do not answer: to be opened (20 s), at each of two reads (20 s), and under another name (5 s each).
const WORD: Duration = Duration::from_secs(120);
/// How long pools may keep a node waiting that is to be whole from the start.
const WHOLE: Duration = Duration::from_secs(60);

pub(super) fn being_opened(name: &str) -> Error {
    let hint = "its volumes come when it is; where that takes long, a device may not answer";
    Error::new(Code::NotReady, format!("pool `{name}` is being opened")).hint(hint)
}

/// A pool that is being opened.
struct Opening {
    /// As it was when that began.
    pool: Pool,
    begun: Instant,
    /// In this life.
    first: bool,
    task: JoinHandle<Result<Vec<DeviceFound>>>,
}

/// What is done with the devices of pools just now.
#[derive(Default)]
pub(super) struct Openings {
    all: Mutex<BTreeMap<String, Opening>>,
    /// Pools of which what their opening has found counts no more: they may be open.
    unknown: Mutex<BTreeSet<String>>,
    /// Pools that have been opened, and did not come to count as up: they are open until they are closed, whatever another
    /// opening finds.
    unclosed: Mutex<BTreeSet<String>>,
    /// Pools whose opening has begun once.
    known: Mutex<BTreeSet<String>>,
    /// Since when pools that are not open could not be opened.
    refused: Mutex<BTreeMap<String, Instant>>,
    /// One thing at a time with each pool.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// The turn to do something with the devices of a pool.
    fn pool_turn(&self, name: &str) -> impl Future<Output = OwnedMutexGuard<()>> + use<> {
        if has(Bug::OpenedBesideClose) {
            return Arc::<tokio::sync::Mutex<()>>::default().lock_owned();
        }
        let mut turns = lock(&self.opening.turns);
        // Nobody has, or waits for, the turns that are let go of.
        turns.retain(|n, t| n == name || Arc::strong_count(t) > 1);
        turns.entry(name.to_owned()).or_default().clone().lock_owned()
    }

    /// The turn of a pool for who keeps nobody else waiting.
    ///
    /// # Errors
    /// The pool is being opened, and that takes its time.
    pub(super) async fn pool_is_still(&self, name: &str) -> Result<OwnedMutexGuard<()>> {
        timeout(TURN, self.pool_turn(name)).await.map_err(|_| being_opened(name))
    }

    /// The same for who holds `changes`, and keeps all others waiting. What an opening before it has found counts no more: the
    /// pool is not as that left it. One that has not begun does not begin.
    ///
    /// # Errors
    /// The pool is being opened, and that takes its time.
    async fn take_turn(&self, name: &str) -> Result<OwnedMutexGuard<()>> {
        let turn = self.pool_is_still(name).await?;
        if !has(Bug::OldOpeningCounts)
            && let Some(o) = lock(&self.opening.all).remove(name)
        {
            o.task.abort();
            self.stopped.forget(&o.pool);
            lock(&self.opening.unknown).insert(name.to_owned());
            // It may have been opened.
            lock(&self.opening.unclosed).insert(name.to_owned());
        }
        Ok(turn)
    }

    /// A pool is being opened, or has been and nobody has looked at it yet.
    pub(super) fn is_opening(&self, name: &str) -> bool {
        if has(Bug::OpenedIsLost) {
            return lock(&self.opening.all).get(name).is_some_and(|o| !o.task.is_finished());
        }
        let waits = lock(&self.opening.all).contains_key(name)
            || lock(&self.opening.unknown).contains(name);
        waits && !self.up().pools.contains(name)
    }

    /// A protected pool is not up, or not looked into yet: it may carry what this configuration does not know.
    pub(super) fn is_unknown(&self, name: &str, model: &Model) -> bool {
        let is_protected = model.pools.get(name).is_some_and(|p| p.protection.is_some());
        self.is_opening(name) || is_protected && !self.up().pools.contains(name)
    }

    /// Waits until no pool is being opened any more, for a node that is to be whole from the start; a minute at most.
    pub async fn opened_all(self: &Arc<Self>) {
        let begun = Instant::now();
        while !lock(&self.opening.all).is_empty() && begun.elapsed() < WHOLE && !self.is_stopping()
        {
            if self.has_opened()
                && let Err(e) = self.bring_up_first().await
            {
                tracing::error!("what is to be up: {e}");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A protected pool is being opened for the first time in this life, and for not too long. It may carry a newer configuration, by
    /// which a volume that carries none is not where this one has it.
    pub(super) fn may_be_told_better(&self) -> Option<String> {
        let all = lock(&self.opening.all);
        let first = |(_, o): &(&String, &Opening)| {
            o.first && o.pool.protection.is_some() && o.begun.elapsed() < WORD
        };
        let found = all.iter().find(first).map(|(name, _)| name.clone());
        found.filter(|_| !has(Bug::ServedUntold))
    }

    /// Opens the devices of a pool when nothing else is done with them.
    pub(super) async fn plane_start(&self, pool: &Pool) -> Result<Vec<DeviceFound>> {
        let _turn = self.take_turn(&pool.name).await?;
        if pool.protection.is_some() {
            self.take_stopped().await?;
        }
        let done = self.plane.start_pool(pool, None).await;
        self.stopped.ended(pool, &done);
        self.list(&pool.name, &done);
        done
    }

    /// The same by force.
    pub(super) async fn plane_force(&self, pool: &Pool) -> Result<Vec<DeviceFound>> {
        let _turn = self.take_turn(&pool.name).await?;
        self.take_stopped().await?;
        self.stopped.forget(pool);
        let done = self.plane.force_pool(pool).await;
        self.list(&pool.name, &done);
        done
    }

    /// One that was opened is to be closed, also if it never comes to count as up.
    fn list<T>(&self, name: &str, done: &Result<T>) {
        if done.is_ok() && !has(Bug::OpenedUnlisted) {
            lock(&self.opening.unknown).insert(name.to_owned());
            lock(&self.opening.unclosed).insert(name.to_owned());
        }
    }

    /// One that was up is to be closed, which may fail.
    pub(super) fn is_unclosed(&self, name: &str) {
        lock(&self.opening.unclosed).insert(name.to_owned());
    }

    /// It counts as up, or is closed.
    pub(super) fn unlist(&self, name: &str) {
        lock(&self.opening.unknown).remove(name);
        lock(&self.opening.unclosed).remove(name);
    }

    /// Closes the devices of a pool when nothing else is done with them.
    pub(super) async fn plane_stop(&self, name: &str) -> Result<Option<LastState>> {
        let _turn = self.take_turn(name).await?;
        let last = self.plane.stop_pool(name).await?;
        self.unlist(name);
        Ok(last)
    }

    /// The same at the end of the process.
    pub(super) async fn plane_end(&self, name: &str) -> Result<Option<LastState>> {
        let _turn = self.take_turn(name).await?;
        let last = self.plane.end_pool(name).await?;
        self.unlist(name);
        Ok(last)
    }

    /// Takes devices for a pool when nothing else is done with those that it has: what is being opened lets go of all others.
    pub(super) async fn plane_admit(
        &self,
        pool: &str,
        devices: &[DeviceSpec],
        inside: Inside<'_>,
    ) -> Result<()> {
        let _turn = self.take_turn(pool).await?;
        self.plane.admit(pool, devices, inside).await
    }

    /// The same of what its devices have gained that are to grow.
    pub(super) async fn plane_admit_growth(&self, pool: &Pool, patch: &PoolPatch) -> Result<()> {
        let _turn = self.take_turn(&pool.name).await?;
        self.plane.admit_growth(pool, &patch.grow, &patch.overwrite).await
    }

    /// Takes back what was made of a pool when nothing else is done with its devices.
    pub(super) async fn plane_unmake(&self, pool: &Pool, made: bool) -> Result<()> {
        let _turn = self.take_turn(&pool.name).await?;
        self.plane.unmake_pool(pool, made).await?;
        self.unlist(&pool.name);
        Ok(())
    }

    fn begin_opening(&self, pool: &Pool) {
        let turn = self.pool_turn(&pool.name);
        let (plane, of) = (self.plane.clone(), pool.clone());
        let first = lock(&self.opening.known).insert(pool.name.clone());
        // At first it is looked for all devices: they may be late.
        let refused = lock(&self.opening.refused).get(&pool.name).copied();
        let samples = |since: Instant| since.elapsed().as_millis() / self.every.as_millis().max(1);
        let without = refused.and_then(|since| self.stopped.of(pool, samples(since)));
        let task = platform::spawn(async move {
            let _turn = turn.await;
            plane.start_pool(&of, without).await
        });
        lock(&self.opening.unknown).remove(&pool.name);
        let o = Opening { pool: pool.clone(), begun: Instant::now(), first, task };
        lock(&self.opening.all).insert(pool.name.clone(), o);
    }

    /// One that was being opened has been, or cannot be.
    pub(super) fn has_opened(&self) -> bool {
        lock(&self.opening.all).values().any(|o| o.task.is_finished())
    }

    /// Opens the pools that are not up, and waits a little for those whose opening begins now. The caller holds
    /// `changes`.
    pub(super) async fn open_pools(&self, model: &Model) {
        let soon = if has(Bug::OpenedInTurn) { Duration::from_secs(600) } else { SOON };
        let until = Instant::now() + soon;
        let taken = self.take_stopped().await;
        let before: BTreeSet<String> = lock(&self.opening.all).keys().cloned().collect();
        for (name, pool) in &model.pools {
            let wanted = !self.up().pools.contains(name) || self.is_behind(&format!("pool/{name}"));
            if !wanted || self.is_stopping() || before.contains(name) {
                continue;
            }
            match &taken {
                Err(e) if pool.protection.is_some() => {
                    self.fault(format!("pool/{name}"), e.clone());
                }
                _ => self.begin_opening(pool),
            }
        }
        let names: Vec<String> = lock(&self.opening.all).keys().cloned().collect();
        for name in names {
            let Some(mut o) = lock(&self.opening.all).remove(&name) else { continue };
            // One of before has had its time, and commands wait meanwhile.
            let until = if before.contains(&name) { Instant::now() } else { until };
            match timeout_at(until, &mut o.task).await {
                Ok(done) => {
                    // What it had written by then nobody knows.
                    let code = match has(Bug::BrokenOffIsNone) {
                        true => Code::Internal,
                        false => Code::PoolUnfinished,
                    };
                    let broke = |e| Error::new(code, "the opening of a pool broke off").because(e);
                    let done = done.map_err(broke).flatten();
                    self.opened(model, o.pool, done).await;
                }
                Err(_) => {
                    lock(&self.opening.all).insert(name.clone(), o);
                    let object = format!("pool/{name}");
                    if self.up().faults.contains_key(&object) {
                        // Why it could not be opened before says more.
                        continue;
                    }
                    self.fault(object, being_opened(&name));
                }
            }
        }
    }

    async fn opened(&self, model: &Model, pool: Pool, done: Result<Vec<DeviceFound>>) {
        self.stopped.ended(&pool, &done);
        self.list(&pool.name, &done);
        {
            let mut refused = lock(&self.opening.refused);
            match &done {
                Ok(_) => drop(refused.remove(&pool.name)),
                Err(_) => drop(refused.entry(pool.name.clone()).or_insert_with(Instant::now)),
            }
        }
        // What it has become meanwhile is opened by itself.
        if model.pools.get(&pool.name) != Some(&pool) {
            return;
        }
        let done = match done {
            Ok(sizes) => self.pool_started(&pool, sizes).await.map(drop),
            Err(e) => self.start_without_new(&pool, e).await,
        };
        if let Err(e) = done {
            self.fault(format!("pool/{}", pool.name), e);
        }
    }

    /// Gives openings until `until` to come to their ends. Gives the pools that may be open by now, and what is said of the others.
    pub(super) async fn end_openings(&self, until: Instant) -> (BTreeSet<String>, Vec<String>) {
        let all = std::mem::take(&mut *lock(&self.opening.all));
        let (mut open, mut left) = (lock(&self.opening.unknown).clone(), Vec::new());
        if !has(Bug::OpenForgotten) {
            open.extend(lock(&self.opening.unclosed).iter().cloned());
        }
        for (name, mut o) in all {
            match timeout_at(until, &mut o.task).await {
                Ok(done) => {
                    match &done {
                        Ok(done) => self.stopped.ended(&o.pool, done),
                        Err(_) => self.stopped.forget(&o.pool),
                    }
                    // What could not be opened is closed.
                    if !matches!(done, Ok(Err(_))) {
                        open.insert(name);
                    }
                }
                Err(_) => {
                    o.task.abort();
                    self.stopped.forget(&o.pool);
                    if has(Bug::OpeningsUnnamed) {
                        continue;
                    }
                    left.push(format!("pool `{name}` is being opened: its devices do not answer"));
                }
            }
        }
        (open, left)
    }
}
