//! `weir apply`: a declaration is carried out object by object, or only on paper. One that cannot be keeps nothing
//! else from being done.

use super::*;
use crate::declare::{self, Difference, How, Item, UNKNOWN_SIZE, differences, is_there};
use crate::error::Problem;
use crate::model::{Action, DeviceFound, PoolSpec, TargetSpec, VolumeState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod prune;

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
    /// The configuration as far as it has come, where nothing is done.
    paper: Option<Arc<Model>>,
    report: ApplyReport,
}

impl Controller {
    /// Makes what is declared so, or says what that would change. What is not declared stays, unless it is to be
    /// pruned. Applying the same again changes nothing.
    ///
    /// # Errors
    /// Nothing was tried. What could not be made so is in the report.
    pub async fn apply(self: &Arc<Self>, spec: ApplySpec) -> Result<ApplyReport> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            let (desired, how) = spec.parts();
            let keyless = match how.dry_run {
                true => BTreeMap::new(),
                false => me.warm_each(&desired).await,
            };
            let _one = me.settled_turn().await?;
            let report = me.apply_locked(&desired, how, &keyless).await;
            if !how.dry_run {
                me.supersede();
            }
            Ok(report)
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
        finish(tokio::spawn(async move {
            me.warm_declared(&desired.volumes).await?;
            let _one = me.settled_turn().await?;
            let how = How::default();
            let rehearsal = How { dry_run: true, ..how };
            me.apply_locked(&desired, rehearsal, &BTreeMap::new()).await.whole()?;
            let report = me.apply_locked(&desired, how, &BTreeMap::new()).await;
            me.supersede();
            report.whole()
        }))
        .await
    }

    /// Has keys of new volumes ready. Gives the volumes that cannot have theirs.
    async fn warm_each(&self, desired: &Desired) -> BTreeMap<String, Error> {
        let mut keyless = BTreeMap::new();
        for spec in &desired.volumes {
            if let Err(e) = self.warm_declared(std::slice::from_ref(spec)).await {
                keyless.insert(spec.name.clone(), e);
            }
        }
        keyless
    }

    /// The caller holds `changes`.
    async fn apply_locked(
        &self,
        desired: &Desired,
        how: How,
        keyless: &BTreeMap<String, Error>,
    ) -> ApplyReport {
        let paper = how.dry_run.then(|| self.model());
        let report = ApplyReport { dry_run: how.dry_run, ..ApplyReport::default() };
        let mut run = Run { controller: self, paper, report };
        if how.prune {
            run.prune_access(desired).await;
        }
        for spec in &desired.pools {
            let command = declare::pool(&run.model(), spec);
            run.one(format!("pool/{}", spec.name), command).await;
        }
        for spec in &desired.volumes {
            match keyless.get(&spec.name) {
                Some(e) => run.failed(format!("volume/{}", spec.name), e),
                None => run.item(Item::Volume(spec)).await,
            }
        }
        run.all(desired.hosts.iter().map(Item::Host).collect()).await;
        run.all(desired.maps.iter().map(Item::Map).collect()).await;
        run.ports(&desired.targets).await;
        if how.prune {
            run.prune_data(desired, how).await;
        }
        run.report
    }

    /// What the configuration would be after a command, if it would be accepted. What only shows on devices is not
    /// looked at.
    async fn rehearse(&self, command: Command, paper: &Arc<Model>) -> Result<Arc<Model>> {
        let real = self.model();
        self.check_not_closed(&command, &real)?;
        let command = match command {
            Command::CreateMap(spec) => Command::CreateMap(self.known.choose_lun(spec, paper)),
            other => other,
        };
        let mut new = Model::clone(paper);
        self.drop_places(&command, &mut new)?;
        if new.apply(command.clone(), entropy()?)?.is_empty() {
            return Ok(paper.clone());
        }
        // A pool that is new is up by the time its volumes are made.
        if !matches!(&command, Command::CreateVolume(s) if !real.pools.contains_key(&s.pool)) {
            self.check_ready(&command, &real)?;
        }
        self.check_none_left(&real, &new)?;
        self.check_unused(&command, &real).await?;
        self.known.check(paper, &new)?;
        match &command {
            Command::CreatePool(PoolSpec { name, .. }) | Command::PatchPool { name, .. } => {
                assume_sizes(&mut new, name)?;
            }
            Command::DeleteVolume { name } => {
                drop(new.apply(Command::ForgetVolume { name: name.clone() }, 0)?);
            }
            _ => {}
        }
        Ok(Arc::new(new))
    }
}

/// Gives new devices of a pool that nobody has looked at a size.
fn assume_sizes(model: &mut Model, name: &str) -> Result<()> {
    let devices = &model.pool(name)?.devices;
    let size = |d: &crate::model::Device| DeviceFound {
        size: if d.new && d.size == 0 { UNKNOWN_SIZE } else { d.size },
        labelled: d.labelled,
        identity: d.identity.clone(),
    };
    let sizes = devices.iter().map(size).collect();
    model.apply(Command::SizePool { name: name.to_string(), sizes }, 0).map(drop)
}

/// What may be free once something else of the same declaration has been changed.
fn may_become_free(e: &Error) -> bool {
    matches!(e.code, Code::PortInUse | Code::LunInUse)
}

impl Run<'_> {
    fn model(&self) -> Arc<Model> {
        self.paper.clone().unwrap_or_else(|| self.controller.model())
    }

    async fn change(&mut self, command: Command) -> Result<()> {
        match &self.paper {
            None => self.controller.change(command).await.map(drop),
            Some(paper) => {
                self.paper = Some(self.controller.rehearse(command, paper).await?);
                Ok(())
            }
        }
    }

    fn failed(&mut self, object: String, why: &Error) {
        self.report.failed.push(NotApplied { object, error: why.problem() });
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
        self.report.applied.push(Applied { object, action, changes });
    }

    /// Carries out the command for an object.
    async fn one(&mut self, object: String, command: Result<Option<Command>>) {
        if let Err(e) = self.tried(object.clone(), command).await {
            self.failed(object, &e);
        }
    }

    /// The same; what failed is not in the report yet.
    async fn tried(&mut self, object: String, command: Result<Option<Command>>) -> Result<()> {
        let before = self.model();
        if let Some(command) = command? {
            self.change(command).await?;
        }
        match self.model().revision == before.revision {
            true => self.report.unchanged += 1,
            false => self.done(object, &before),
        }
        Ok(())
    }

    async fn item(&mut self, item: Item<'_>) {
        if let Err(e) = self.try_item(&item).await {
            self.failed(item.object(), &e);
        }
    }

    async fn try_item(&mut self, item: &Item<'_>) -> Result<()> {
        let model = self.model();
        let is_lost =
            |n: &String| !is_there(n, &model) && self.report.failed.iter().any(|f| f.object == *n);
        if let Some(lost) = item.needs().into_iter().find(is_lost) {
            return Err(Error::new(Code::NotReady, format!("`{}` needs `{lost}`", item.object()))
                .because(format!("`{lost}` could not be made"))
                .hint(format!("correct `{lost}`, then apply the file again")));
        }
        self.tried(item.object(), item.command(&model)).await
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
    async fn ports(&mut self, specs: &[TargetSpec]) {
        let before = self.model();
        let (fit, wrong) = before.fitting_targets(specs, &[]);
        for (name, e) in &wrong {
            self.failed(format!("target/{name}"), e);
        }
        let done = match fit.is_empty() {
            true => Ok(()),
            false => self.change(Command::PutTargets { put: fit.clone(), gone: Vec::new() }).await,
        };
        for spec in &fit {
            let (object, after) = (format!("target/{}", spec.name), self.model());
            let fault = self.controller.up().faults.get(&object).cloned();
            let is_so = before.targets.get(&spec.name) == after.targets.get(&spec.name);
            match (&done, fault.filter(|_| self.paper.is_none())) {
                (Err(e), _) => self.failed(object, e),
                (Ok(()), Some(e)) => {
                    let hint = format!("{}; it is tried again every few seconds", e.hint);
                    self.failed(object, &e.hint(hint));
                }
                (Ok(()), None) if is_so => self.report.unchanged += 1,
                (Ok(()), None) => self.done(object, &before),
            }
        }
    }
}
