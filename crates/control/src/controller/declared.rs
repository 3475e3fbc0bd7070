//! What the configuration file declares, at a start and after it.

use super::keys::Warming;
use super::*;
use crate::declare::{self, Item, differences, is_otherwise};
use crate::model::{MapSpec, TargetSpec};

/// The fault of an object that is not as it is declared.
fn fault(object: &str) -> String {
    format!("declared/{object}")
}

/// How long a start waits for what is declared, and whatever else is done every few seconds for a later round of it.
const START: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_secs(5);
/// How long everything waits for the commands that give keys, and for devices of pools that are to get some. What needs none goes on
/// then.
const KEYS: Duration = Duration::from_secs(1);

/// What has to wait for keys and devices: pools and volumes, and all mappings of hosts that are to see one of those, since each gets the
/// lowest number that is free.
fn has_late<'a>(open: &'a Desired, late: &'a BTreeSet<String>) -> impl Fn(&Item<'_>) -> bool + 'a {
    let is_late =
        |i: &Item<'_>| late.contains(&i.object()) || i.needs().iter().any(|n| late.contains(n));
    let volumes = open.volumes.iter().filter(|v| is_late(&Item::Volume(v)));
    let volumes: BTreeSet<&str> = volumes.map(|v| v.name.as_str()).collect();
    let of_late = |m: &&MapSpec| volumes.contains(m.volume.as_str());
    let hosts: BTreeSet<&str> = open.maps.iter().filter(of_late).map(|m| m.host.as_str()).collect();
    move |i| match i {
        Item::Map(m) => hosts.contains(m.host.as_str()),
        other => is_late(other),
    }
}

/// A round is under way.
struct Declaring<'a>(&'a Controller);

impl Drop for Declaring<'_> {
    fn drop(&mut self) {
        // What the file lets be overwritten is what is there at the start. What gets its name later nobody knows.
        for spec in self.0.declared_open().pools.iter_mut().filter(|_| !has(Bug::LeaveForGood)) {
            spec.overwrite = Default::default();
        }
        self.0.declaring.store(false, Ordering::Release);
    }
}

impl Controller {
    /// Makes so what the configuration file declares at a start: each object by itself, its devices looked at as
    /// ever. One that cannot be made so stops nothing else: it is a fault, and is tried again every few seconds.
    pub async fn declare_at_start(self: &Arc<Self>, mut desired: Desired) {
        // The file says the same at every start, also when a pool was released, or the store is lost: that is no
        // leave to destroy it.
        for spec in desired.pools.iter_mut().filter(|_| !has(Bug::FileDestroysPools)) {
            spec.overwrite = spec.overwrite.without_pools();
        }
        *self.declared_file.lock().unwrap_or_else(PoisonError::into_inner) = desired.clone();
        *self.declared_now() = desired.clone();
        *self.reasons() = Desired { pools: Vec::new(), targets: Vec::new(), ..desired.clone() };
        *self.declared_open() = desired;
        self.declare_within(START).await;
    }

    /// Another declaration counts from here on. Of what of the one at the start is not so yet, that stays which the other
    /// declares, too, as the other has it: pools without leave to overwrite what may be there by then. So do target ports that are
    /// held back, if the other does not name them. The caller holds `changes`.
    pub(super) fn supersede(&self, desired: &Desired) {
        if has(Bug::RetriedForEver) {
            return;
        }
        self.reasons().take_over(desired);
        *self.declared_now() = desired.clone();
        let held = self.up().held.clone();
        let mut open = self.declared_open();
        let was: BTreeSet<String> = open.items().map(|i| i.object()).collect();
        let mut new = desired.clone();
        new.retain(|object| was.contains(object));
        for spec in &mut new.pools {
            spec.overwrite = Default::default();
        }
        let is_named = |t: &TargetSpec| desired.targets.iter().any(|d| d.name == t.name);
        new.targets.extend(
            open.targets.iter().filter(|t| held.contains(&t.name) && !is_named(t)).cloned(),
        );
        let faults: BTreeSet<String> = new.items().map(|i| fault(&i.object())).collect();
        *open = new;
        let declared = fault("");
        self.up().faults.retain(|o, _| !o.starts_with(&declared) || faults.contains(o));
    }

    /// A declaration is being carried out.
    fn is_applying(&self) -> bool {
        self.applies.try_lock().is_err()
    }

    /// Tries what was declared at the start and is not so yet.
    pub(super) async fn declare_again(self: &Arc<Self>) {
        self.declare_within(ROUND).await;
    }

    /// The same; goes on by itself when the caller has waited so long.
    async fn declare_within(self: &Arc<Self>, longest: Duration) {
        if *self.declared_open() == Desired::default()
            || self.declaring.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let me = self.clone();
        // It goes on to its end, whoever waits.
        let round = platform::spawn(async move {
            let _over = Declaring(&me);
            me.try_declared().await;
        });
        // A command that gives no key holds up nothing else.
        let done = tokio::select! {
            biased;
            done = timeout(longest, round) => done,
            () = self.stopping.begun() => return,
        };
        if let Ok(Err(e)) = done {
            tracing::error!("what is declared: {e}");
        }
    }

    async fn try_declared(self: &Arc<Self>) {
        let open = self.declared_open().clone();
        let mut keys = self.warm_each(&open);
        let longest = if has(Bug::AllWaitForKeys) { Duration::MAX } else { KEYS };
        let _ = timeout(longest, keys.come()).await;
        let is_port = |i: &Item<'_>| matches!(i, Item::Target(_));
        let mut left: Vec<Item<'_>> = open.items().filter(|i| !is_port(i)).collect();
        loop {
            let (late, ready): (Vec<_>, Vec<_>) =
                left.into_iter().partition(has_late(&open, &keys.late));
            left = late;
            self.try_each(ready.iter().map(Item::object).collect(), &open, &keys).await;
            // A mapping that is not there gives nobody anything.
            if !ready.is_empty() || left.is_empty() {
                let waiting = left.iter().filter(|_| !has(Bug::PortsWaitForKeys));
                self.try_ports(&open, waiting.map(Item::object).collect()).await;
            }
            if left.is_empty() || !keys.next().await {
                break;
            }
        }
    }

    async fn try_each(&self, mut objects: Vec<String>, round: &Desired, keys: &Warming) {
        // What one of them takes another may leave, whichever comes first.
        loop {
            let (all, mut rest) = (objects.len(), Vec::new());
            for object in objects {
                if self.declare_one(&object, round, keys).await {
                    rest.push(object);
                }
            }
            if rest.is_empty() || rest.len() == all {
                break;
            }
            objects = rest;
        }
    }

    /// `waiting`: what is not tried before a key has come.
    async fn try_ports(&self, round: &Desired, waiting: BTreeSet<String>) {
        let Ok(_one) = self.settled_turn().await else { return };
        match has(Bug::DeclaredAsItWas) {
            true => self.declare_ports(round, &waiting).await,
            false => {
                let now = self.declared_open().clone();
                self.declare_ports(&now, &waiting).await;
            }
        }
    }

    /// True if it can be so once something else has been changed. `round`: what was declared when the round began.
    async fn declare_one(&self, object: &str, round: &Desired, keys: &Warming) -> bool {
        let turn = match has(Bug::DeclaredThoughOwed) {
            true => self.turn().await,
            false => self.settled_turn().await,
        };
        let Ok(_one) = turn else { return false };
        // Somebody has said otherwise meanwhile, or is about to.
        if !has(Bug::RetriedForEver) && (!self.is_declared(object) || self.is_applying()) {
            return false;
        }
        let now = match has(Bug::DeclaredAsItWas) || has(Bug::RetriedForEver) {
            true => round.only(object),
            false => self.declared_open().only(object),
        };
        let Some(item) = now.items().next() else { return false };
        let done = async {
            if let Some(e) = keys.failed.get(object) {
                return Err(e.clone());
            }
            let model = self.model();
            if let Some(lost) = item.lost(&model, |o| self.is_not_so(o, &model)) {
                return Err(declare::lacks(object, &lost));
            }
            let Some(command) = item.command(&model)? else { return Ok(()) };
            if !has(Bug::RetriesTakeInUse) {
                self.check_ports_free(&command, &model).await?;
            }
            self.try_change(command, false).await.map(drop)
        };
        match done.await {
            Ok(()) => self.fulfil(object),
            Err(e) => {
                self.unfulfilled(object, &e);
                return declare::may_become_free(&e);
            }
        }
        false
    }

    /// Target ports, all at once: one may take the address of another. Hosts and mappings have been tried by now: those that
    /// are held back are let go of, if hosts have what is declared for them. The caller holds `changes`.
    async fn declare_ports(&self, declared: &Desired, waiting: &BTreeSet<String>) {
        let object = |name: &str| format!("target/{name}");
        if self.is_applying() && !has(Bug::RetriedForEver) {
            return;
        }
        let is_open =
            |s: &&TargetSpec| self.is_declared(&object(&s.name)) || has(Bug::RetriedForEver);
        let open: Vec<TargetSpec> = declared.targets.iter().filter(is_open).cloned().collect();
        let closed = {
            let (model, prefix) = (self.model(), fault(""));
            let reasons = self.reasons().clone();
            let mut failed: BTreeSet<String> = {
                let up = self.up();
                up.faults.keys().filter_map(|o| o.strip_prefix(&prefix)).map(String::from).collect()
            };
            // What is not declared any more, or was changed since, may still not be as it is to be for what is held back.
            let other = reasons.items().filter(|i| !i.is_so(&model)).map(|i| i.object());
            failed.extend(other.filter(|_| !has(Bug::ReasonsForgotten)));
            let failed = failed.iter().map(String::as_str);
            declare::exposes(&reasons, &model, failed, waiting).map(|o| ports::exposed(&o))
        };
        let plan = self.plan_ports(&self.model(), &open, Vec::new(), closed.as_ref());
        for (name, e) in &plan.wrong {
            self.unfulfilled(&object(name), e);
        }
        let Some(command) = plan.command() else { return };
        let done = self.try_change(command, false).await;
        for spec in &plan.put {
            match &done {
                Ok(_) => self.fulfil(&object(&spec.name)),
                Err(e) => self.unfulfilled(&object(&spec.name), e),
            }
        }
    }

    /// Tells that an object is not as it was declared at the start, if it is still to be.
    pub(super) fn unfulfilled(&self, object: &str, why: &Error) {
        let e = Error::new(
            why.code,
            format!("`{object}` is not as the configuration file declares it"),
        )
        .because(why)
        .hint(match why.hint.as_str() {
            "" => "it is tried again every few seconds".to_string(),
            hint => format!("{hint}; it is tried again every few seconds"),
        });
        let key = fault(object);
        let open = self.declared_open();
        if !open.names(object) && !has(Bug::RetriedForEver) {
            return;
        }
        let known = self.up().faults.insert(key.clone(), e.clone());
        drop(open);
        if known.as_ref() != Some(&e) {
            self.events.publish("error", &key, &e.to_string());
        }
    }

    /// Whether an object is declared, and is not so: it could not be, or somebody has made another of its name.
    fn is_not_so(&self, object: &str, model: &Model) -> bool {
        if has(Bug::AnyOfItsName) {
            return self.up().faults.contains_key(&fault(object));
        }
        let declared = self.declared_now();
        declared.items().find(|i| i.object() == object).is_some_and(|i| !i.is_so(model))
    }

    /// Whether an object is to be as it was declared at the start, and is not so yet.
    fn is_declared(&self, object: &str) -> bool {
        self.declared_open().names(object)
    }

    /// An object is as it is declared, or somebody has changed it since: that counts more, until the next start.
    pub(super) fn fulfil(&self, object: &str) {
        let mut open = self.declared_open();
        open.retain(|o| o != object);
        self.up().faults.remove(&fault(object));
        let model = self.model();
        let mut reasons = self.reasons();
        // An initiator port that was to leave another host for one that is gone still has that host's volumes.
        let is_host = object.starts_with("host/") && !has(Bug::GoneHostIsFulfilled);
        let is_gone = || !is_host && !declare::is_there(object, &model);
        let is_so = |i: &Item<'_>| i.is_so(&model) || is_gone();
        if reasons.items().find(|i| i.object() == object).is_some_and(|i| is_so(&i)) {
            reasons.retain(|o| o != object);
        }
    }

    /// A change has been made of an object: nothing of what is declared of it is tried any more, if all of it is so, or somebody wants
    /// some of it otherwise. What the node changes by itself says nothing.
    pub(super) fn changed(&self, object: &str, command: &Command, old: &Model, new: &Model) {
        let by_itself = matches!(
            command,
            Command::AdoptSize { .. } | Command::NameDevices { .. } | Command::SizePool { .. }
        );
        let is_other = || {
            let declared = self.declared_open().only(object);
            let by_facts = |i: &Item<'_>| {
                let is_port = matches!(i, Item::Target(_));
                has(Bug::AnyPartFulfils) || is_port && has(Bug::PortsGoByFacts)
            };
            match declared.items().next().filter(|i| !by_facts(i)) {
                Some(item) => item.is_so(new) || is_otherwise(&item, old, new),
                None => !differences(object, old, new).is_empty(),
            }
        };
        if !by_itself && is_other() || has(Bug::AnyChangeFulfils) {
            self.fulfil(object);
        }
    }

    /// Whether anything of what was declared at the start is not so yet.
    pub(super) fn has_declared_open(&self) -> bool {
        *self.declared_open() != Desired::default() && !has(Bug::OpenUntried)
    }

    /// What hosts are to have before ports listen that the file of the start moves, and have not had yet since.
    fn reasons(&self) -> MutexGuard<'_, Desired> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn declared_now(&self) -> MutexGuard<'_, Desired> {
        self.declared_now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn declared_open(&self) -> MutexGuard<'_, Desired> {
        self.declared_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next start makes of an object (`volume/db-01`, `map/HOST/VOLUME`) that is not as the configuration
    /// file declares it.
    pub fn declared_otherwise(&self, object: &str) -> Option<String> {
        let file = self.declared_file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let model = self.model();
        let item = file.items().find(|i| i.object() == object)?;
        let mut next = Model::clone(&model);
        let applied = match at_start(&file, &item, &model) {
            Ok(None) => return None,
            Ok(Some(command)) => next.apply(command, 0),
            Err(e) => Err(e),
        };
        let (what, then) = match item {
            // A node has some without a file that says so.
            Item::Target(_) => (
                format!(
                    "`{object}` is not as the file, the options or the defaults of the daemon declare it"
                ),
                "unless they are changed",
            ),
            _ => (
                format!(
                    "`{object}` is declared in the configuration file that the daemon has read at its start"
                ),
                "unless the file is changed",
            ),
        };
        let is_there = declare::is_there(object, &model);
        Some(match applied {
            Ok(changes) if changes.is_empty() => return None,
            Ok(_) if is_there => {
                let all: Vec<String> =
                    differences(object, &model, &next).iter().map(ToString::to_string).collect();
                match all.is_empty() {
                    true => return None,
                    false => {
                        format!("{what}: {then}, the next start puts it back ({})", all.join(", "))
                    }
                }
            }
            Ok(_) if matches!(item, Item::Pool(s) if s.raid.is_some()) => format!(
                "{what}: {then}, it is a fault after the next start unless its devices are blank; \
                 `weir pool import` takes in a pool that was released, with its data"
            ),
            Ok(_) => format!("{what}: {then}, the next start makes it again"),
            Err(e) => format!("{what}: {then}, it is a fault after the next start ({e})"),
        })
    }
}

/// What a start does to have an object as the file declares it.
fn at_start(file: &Desired, item: &Item<'_>, model: &Model) -> Result<Option<Command>> {
    if let Item::Target(spec) = item {
        let (put, wrong) = model.fitting_targets(&file.targets, &[]);
        return match wrong.into_iter().find(|(name, _)| *name == spec.name) {
            Some((_, e)) => Err(e),
            None => Ok(Some(Command::PutTargets { put, gone: Vec::new() })),
        };
    }
    // What cannot be as declared keeps from being made what needs it.
    let fails = |object: &str| {
        let found = file.items().find(|i| i.object() == object);
        found.is_some_and(|i| match i.command(model) {
            Ok(Some(command)) => model.clone().apply(command, 0).is_err(),
            Ok(None) => false,
            Err(_) => true,
        })
    };
    match item.lost(model, fails) {
        Some(lost) => Err(declare::lacks(&item.object(), &lost)),
        None => item.command(model),
    }
}
