//! `weir apply`: a declaration is carried out object by object, or only on paper. One that cannot be keeps nothing
//! else from being done.

use super::*;
use crate::declare::{self, Difference, How, Item, differences, is_there, may_become_free};
use crate::error::Problem;
use crate::model::{Action, Naa};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod paper;
mod prune;

use paper::Paper;

/// A change that has failed on a pool after so long says that devices do not answer: what else is to be done to that pool
/// would take as long each.
const LONG: Duration = Duration::from_secs(1);

/// What applying a declaration did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyReport {
    /// Nothing was done.
    pub dry_run: bool,
    /// What was created, changed or deleted, in order.
    pub applied: Vec<Applied>,
    /// What is not as it is declared, and why. All else is.
    pub failed: Vec<NotApplied>,
    /// Number of declared objects that were as declared already.
    pub unchanged: usize,
}

/// An object that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Its name with its kind in front, e.g. `volume/db-01`.
    pub object: String,
    /// What happened to it.
    pub action: Action,
    /// What is different.
    pub changes: Vec<Difference>,
    /// World-wide name of a volume that is deleted with its data, for `delete_data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub naa: Option<Naa>,
}

/// An object that could not be made as it is declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotApplied {
    /// Its name with its kind in front, e.g. `volume/db-01`.
    pub object: String,
    /// Why, and what to do about it.
    pub error: Problem,
}

impl ApplyReport {
    fn whole(self) -> Result<ApplyReport> {
        match self.failed.into_iter().next() {
            Some(first) => Err(first.error.into()),
            None => Ok(ApplyReport { failed: Vec::new(), ..self }),
        }
    }
}

/// The objects of a declaration are made so, one by one.
struct Run<'a> {
    controller: &'a Controller,
    how: &'a How,
    /// Where nothing is done.
    paper: Option<Paper>,
    /// Pools whose devices do not answer.
    stuck: BTreeMap<String, Error>,
    report: ApplyReport,
}

impl Controller {
    /// Makes what is declared so, or says what that would change. What is not declared stays, unless it is to be
    /// pruned. Applying the same again changes nothing. Each object has a turn of its own, so that other commands, and the
    /// end, need not wait for all.
    ///
    /// # Errors
    /// Nothing was tried. What could not be made so is in the report.
    pub async fn apply(self: &Arc<Self>, spec: ApplySpec) -> Result<ApplyReport> {
        let me = self.clone();
        finish(spawn(async move {
            let (desired, how) = spec.parts();
            if how.dry_run {
                let _one = me.settled_turn().await?;
                return me.rehearsed(&desired, &how).await;
            }
            let keyless = me.keyless(&desired).await;
            let _alone = me.applies.lock().await;
            let one = me.settled_turn().await?;
            me.supersede(&desired);
            drop(one);
            Ok(me.apply_each(&desired, &how, None, &keyless).await)
        }))
        .await
    }

    /// As [`apply`](Controller::apply), but nothing is begun if something of it cannot be, as far as that can be told
    /// before.
    ///
    /// # Errors
    /// The first thing that could not be made so.
    pub async fn declare(self: &Arc<Self>, desired: Desired) -> Result<ApplyReport> {
        let me = self.clone();
        finish(spawn(async move {
            me.keyless(&desired).await.into_values().next().map_or(Ok(()), Err)?;
            let _alone = me.applies.lock().await;
            let one = me.settled_turn().await?;
            let how = How::default();
            me.rehearsed(&desired, &How { dry_run: true, ..how.clone() }).await?.whole()?;
            me.supersede(&desired);
            drop(one);
            me.apply_each(&desired, &how, None, &BTreeMap::new()).await.whole()
        }))
        .await
    }

    /// What would be done. The caller holds `changes`.
    async fn rehearsed(&self, desired: &Desired, how: &How) -> Result<ApplyReport> {
        let known = self.known.on_paper(&self.plane.status().await?);
        let paper = Paper { model: self.model(), known };
        Ok(self.apply_each(desired, how, Some(paper), &BTreeMap::new()).await)
    }

    /// Has keys of new volumes ready, and devices of pools answer. Gives what cannot have its own, by object.
    async fn keyless(self: &Arc<Self>, desired: &Desired) -> BTreeMap<String, Error> {
        let mut keys = self.warm_each(desired);
        keys.come().await;
        keys.failed
    }

    async fn apply_each(
        &self,
        desired: &Desired,
        how: &How,
        paper: Option<Paper>,
        keyless: &BTreeMap<String, Error>,
    ) -> ApplyReport {
        let report = ApplyReport { dry_run: how.dry_run, ..ApplyReport::default() };
        let mut run = Run { controller: self, how, paper, stuck: BTreeMap::new(), report };
        if how.prune {
            run.prune_access(desired).await;
        }
        let pools = desired.pools.iter().map(Item::Pool);
        for item in pools.chain(desired.volumes.iter().map(Item::Volume)) {
            match keyless.get(&item.object()) {
                Some(e) => run.failed(item.object(), e),
                None => run.item(item).await,
            }
        }
        run.all(desired.hosts.iter().map(Item::Host).collect()).await;
        run.all(desired.maps_in_order().map(Item::Map).collect()).await;
        run.ports(desired).await;
        if how.prune {
            run.prune_data(desired).await;
        }
        run.report
    }
}

/// The pool whose devices a command waits for.
fn pool_of(command: &Command, model: &Model) -> Option<String> {
    let of = |name: &String| model.volumes.get(name).map(|v| v.pool.clone());
    match command {
        Command::CreatePool(spec) => Some(spec.name.clone()),
        Command::PatchPool { name, .. } | Command::DeletePool { name } => Some(name.clone()),
        Command::CreateVolume(spec) => Some(spec.pool.clone()),
        Command::PatchVolume { name, .. } | Command::DeleteVolume { name } => of(name),
        Command::CreateMap(spec) => of(&spec.volume),
        Command::DeleteMap { volume, .. } => of(volume),
        _ => None,
    }
}

impl<'a> Run<'a> {
    fn model(&self) -> Arc<Model> {
        self.paper.as_ref().map_or_else(|| self.controller.model(), |p| p.model.clone())
    }

    /// The turn to do something about an object. On paper all is done in one.
    async fn turn(&self) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>> {
        match &self.paper {
            Some(_) => Ok(None),
            None => self.controller.settled_turn().await.map(Some),
        }
    }

    async fn change(&mut self, command: Command) -> Result<()> {
        if let Some(paper) = &mut self.paper {
            paper.model = self.controller.rehearse(command, paper).await?;
            return Ok(());
        }
        let pool = pool_of(&command, &self.model());
        if let Some((pool, e)) = pool.as_ref().and_then(|p| self.stuck.get_key_value(p)) {
            return Err(Error::new(Code::NotReady, "it was not tried")
                .because(format!("pool `{pool}` has kept this waiting in vain already: {e}"))
                .hint("see to the devices of the pool, then apply the file again"));
        }
        let begun = Instant::now();
        let done = self.controller.change(command).await.map(drop);
        if let (Err(e), Some(pool)) = (&done, pool)
            && e.code == Code::IoError
            && begun.elapsed() >= LONG
        {
            self.stuck.insert(pool, e.clone());
        }
        done
    }

    fn failed(&mut self, object: String, why: &Error) {
        if self.paper.is_none() {
            self.controller.unfulfilled(&object, why);
        }
        self.report.failed.push(NotApplied { object, error: why.problem() });
    }

    fn has_failed(&self, object: &str) -> bool {
        self.report.failed.iter().any(|f| f.object == object)
    }

    fn unchanged(&mut self, object: &str) {
        if self.paper.is_none() {
            self.controller.fulfil(object);
        }
        self.report.unchanged += 1;
    }

    /// Notes what an object is that was something else before.
    fn done(&mut self, object: String, before: &Model) {
        let after = self.model();
        let action = match (is_there(&object, before), is_there(&object, &after)) {
            (_, false) => Action::Deleted,
            (false, true) => Action::Created,
            (true, true) => Action::Updated,
        };
        let changes = differences(&object, before, &after);
        let volume = object.strip_prefix("volume/").and_then(|n| before.volumes.get(n));
        let naa = volume.filter(|_| action == Action::Deleted).map(|v| v.naa);
        self.report.applied.push(Applied { object, action, changes, naa });
    }

    /// Carries out the command for an object. The caller has the turn.
    async fn tried(&mut self, object: String, command: Option<Command>) -> Result<()> {
        let before = self.model();
        if let Some(command) = command {
            self.change(command).await?;
        }
        match self.model().revision == before.revision {
            true => self.unchanged(&object),
            false => self.done(object, &before),
        }
        Ok(())
    }

    async fn item(&mut self, item: Item<'_>) {
        if let Err(e) = self.try_item(&item).await {
            self.failed(item.object(), &e);
        }
    }

    /// What failed is not in the report yet.
    async fn try_item(&mut self, item: &Item<'_>) -> Result<()> {
        let _one = self.turn().await?;
        let model = self.model();
        if let Some(lost) = item.lost(&model, |o| self.has_failed(o)) {
            return Err(declare::lacks(&item.object(), &lost));
        }
        let command = item.command(&model)?;
        if let Some(command) = &command {
            self.controller.check_ports_free(command, &model).await?;
        }
        self.tried(item.object(), command).await
    }

    /// All of one kind. What one of them takes another may leave, whichever comes first.
    async fn all(&mut self, mut items: Vec<Item<'_>>) {
        loop {
            let (before, mut rest) = (self.report.applied.len(), Vec::new());
            for item in items {
                match self.try_item(&item).await {
                    Err(e) if may_become_free(&e) => rest.push((item, e)),
                    Err(e) => self.failed(item.object(), &e),
                    Ok(()) => {}
                }
            }
            if self.report.applied.len() == before {
                rest.iter().for_each(|(item, e)| self.failed(item.object(), e));
                return;
            }
            items = rest.into_iter().map(|(item, _)| item).collect();
        }
    }

    /// Target ports, all at once: one may take the address of another.
    async fn ports(&mut self, desired: &Desired) {
        // A file that names no port at all says nothing of them.
        if desired.targets.is_empty() {
            return;
        }
        if let Err(e) = self.try_ports(desired).await {
            for spec in &desired.targets {
                self.failed(format!("target/{}", spec.name), &e);
            }
        }
    }

    async fn try_ports(&mut self, desired: &Desired) -> Result<()> {
        let _one = self.turn().await?;
        let before = self.model();
        let gone = match self.how.prune {
            true => self.ports_to_go(desired, &before).await,
            false => Vec::new(),
        };
        let failed = self.report.failed.iter().map(|f| f.object.as_str());
        let closed = declare::exposes(desired, &before, failed, &BTreeSet::new())
            .map(|o| ports::exposed(&o));
        let plan = self.controller.plan_ports(&before, &desired.targets, gone, closed.as_ref());
        for (name, e) in plan.wrong.iter().chain(&plan.stay) {
            self.failed(format!("target/{name}"), e);
        }
        let done = match plan.command() {
            Some(command) => self.change(command).await,
            None => Ok(()),
        };
        let after = self.model();
        for name in plan.put.iter().map(|s| &s.name).chain(&plan.gone) {
            let object = format!("target/{name}");
            let fault = self.controller.up().faults.get(&object).cloned();
            let is_so = before.targets.get(name) == after.targets.get(name);
            match (&done, fault.filter(|_| self.paper.is_none())) {
                (Err(e), _) => self.failed(object, e),
                (Ok(()), Some(e)) => {
                    let hint = format!("{}; it is tried again every few seconds", e.hint);
                    self.failed(object, &e.hint(hint));
                }
                (Ok(()), None) if is_so => self.unchanged(&object),
                (Ok(()), None) => self.done(object, &before),
            }
        }
        Ok(())
    }
}
