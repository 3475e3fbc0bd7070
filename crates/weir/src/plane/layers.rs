//! Layers that come and go under I/O.
//!
//! A new layer is rehearsed over memory, then the change is made ready on every reactor, I/O is held back on every reactor, and then the new layer is tried on every
//! reactor, before the first of them lets I/O go on through it.

use super::graph;
use super::local::{Local, on};
use super::node::Node;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::{Edit, GraphError, GraphErrorKind, GraphSpec, Junction, Metering};
use weir_control::dataplane::LayerTrial;
use weir_control::live::{LayerKindLive, LayerParamLive};
use weir_control::model::{Pool, Volume, VolumeLayer};
use weir_control::{Code, Error, Result};
use weir_reactor::{LocalFuture, sleep, spawn_task, timeout};

/// How long I/O in flight may take, in nanoseconds.
const QUIESCE: u64 = 10 * SECONDS;
/// How long a new layer's first I/O may take. Hosts wait meanwhile.
const TRIAL: u64 = 10 * SECONDS;
/// How long I/O is held back for a decision.
const HELD: u64 = 20 * SECONDS;

/// Changes that wait for a decision, by volume, with numbers that tell one from the next.
#[derive(Default)]
pub(crate) struct Edits {
    held: RefCell<BTreeMap<String, (u64, Edit)>>,
    made: std::cell::Cell<u64>,
}

impl Edits {
    /// Keeps a change until it is taken, at most for [`HELD`].
    fn keep(local: &Rc<Local>, volume: String, edit: Edit) {
        let number = local.edits.made.get() + 1;
        local.edits.made.set(number);
        local.edits.held.borrow_mut().insert(volume.clone(), (number, edit));
        let local = local.clone();
        spawn_task(async move {
            sleep(HELD).await;
            let mut held = local.edits.held.borrow_mut();
            if held.get(&volume).is_some_and(|(n, _)| *n == number) {
                tracing::warn!("volume {volume}: a change of layers was not decided upon in time");
                held.remove(&volume);
            }
        });
    }

    fn take(&self, volume: &str) -> Option<Edit> {
        self.held.borrow_mut().remove(volume).map(|(_, e)| e)
    }
}

/// What a wrong layer is to whoever asked for it.
fn wrong(volume: &str, e: &GraphError) -> Error {
    use GraphErrorKind as K;
    let what = format!("the layers over volume `{volume}` are as they were");
    match e.kind() {
        K::UnknownKind | K::Param | K::Structure => {
            Error::new(Code::InvalidRequest, what).because(e).hint("`weir layer kinds` explains them")
        }
        K::Unsuitable => Error::new(Code::Unsupported, what).because(e).hint(
            "`weir layer kinds` shows what can come and go; --force puts in what damages data, for tests",
        ),
        K::Trial => Error::new(Code::LayerFailed, what)
            .because(e)
            .hint("hosts saw nothing of it; --force puts a layer in that is to fail, for tests"),
        _ => Error::new(Code::LayerFailed, what).because(e).hint("`weir status` tells what is not well"),
    }
}

fn not_open(volume: &str) -> Error {
    Error::new(Code::NotReady, format!("volume `{volume}` is not open"))
        .hint("`weir status` says why")
}

/// Waits until nothing is under way any more of what had passed a junction before.
pub(crate) async fn still(top: &Rc<Junction>) -> std::result::Result<(), String> {
    match timeout(QUIESCE, top.hold_back()).await {
        Ok(Ok(held)) => {
            drop(held);
            Ok(())
        }
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("I/O under way does not end".into()),
    }
}

impl Local {
    /// Gives an open volume's graph another description, unless it has that already. What is below is flushed, unless nothing
    /// but layers changes that hold nothing back, of which one may be there to make flushes fail.
    pub(crate) async fn regraph(
        &self,
        name: &str,
        spec: GraphSpec,
        flush: bool,
    ) -> std::result::Result<(), GraphError> {
        let ready = {
            let graphs = self.graphs.borrow();
            match graphs.get(name) {
                Some(g) if *g.spec() != spec => Some(self.build(|ctx| g.prepare(spec, ctx))?),
                _ => None,
            }
        };
        let Some(mut edit) = ready else { return Ok(()) };
        match flush {
            true => edit.quiesce(QUIESCE).await?,
            false => edit.hold_back(QUIESCE).await?,
        }
        match self.graphs.borrow_mut().get_mut(name) {
            Some(g) => g.commit(edit),
            None => Ok(()),
        }
    }
}

impl Node {
    /// Runs `f` on all reactors at once; the first failure is what comes out, after all have ended.
    pub(super) async fn on_all<F>(&self, f: F) -> Result<()>
    where
        F: FnOnce(Rc<Local>) -> LocalFuture<'static, Result<()>> + Clone + Send + 'static,
    {
        let mut all = tokio::task::JoinSet::new();
        for h in self.handles() {
            let f = f.clone();
            all.spawn(async move { on(&h, f).await });
        }
        let mut done = Ok(());
        while let Some(one) = all.join_next().await {
            let one = one
                .map_err(|e| Error::new(Code::Internal, "a reactor's work broke off").because(e));
            done = done.and(one.and_then(|r| r));
        }
        done
    }

    /// The kinds of layers there are.
    pub(super) fn kinds_of_layers(&self) -> Vec<LayerKindLive> {
        let registry = super::local::registry();
        let live = |k: &'static dyn weir_block::LayerKind| LayerKindLive {
            kind: k.name().into(),
            about: k.about().into(),
            params: k
                .params()
                .iter()
                .map(|p| LayerParamLive {
                    name: p.name.into(),
                    value: p.describe(),
                    help: p.help.into(),
                })
                .collect(),
            refused: registry.refusal(k).map(Into::into),
        };
        registry.kinds().map(live).collect()
    }

    pub(super) async fn hold_for_layers(
        &self,
        was: &Volume,
        is: &Volume,
        pool: &Pool,
        trial: &LayerTrial,
    ) -> Result<()> {
        let spec = graph::spec(is, pool)?;
        if let Some(node) = trial.node.as_ref().and_then(|n| spec.node(n)) {
            let registry = super::local::registry();
            registry.check_passing(node, trial.forced).map_err(|e| wrong(&is.name, &e))?;
        }
        let tried = self.hold_and_try(spec, trial).await;
        if tried.is_err() {
            self.let_go(is).await?;
            self.forget_layers(is, was);
        }
        tried
    }

    async fn hold_and_try(&self, spec: GraphSpec, trial: &LayerTrial) -> Result<()> {
        let name = spec.name.clone();
        let tried = trial.node.clone().filter(|_| !trial.forced);
        if let Some(node) = tried.clone() {
            let (name, spec) = (name.clone(), spec.clone());
            self.on_all(move |local: Rc<Local>| {
                Box::pin(async move {
                    let made = {
                        let graphs = local.graphs.borrow();
                        let graph = graphs.get(&name).ok_or_else(|| not_open(&name))?;
                        local.build(|ctx| graph.prepare(spec, ctx)?.rehearsal(&node, ctx))
                    };
                    let rehearsal = made.map_err(|e| wrong(&name, &e))?;
                    rehearsal.run(TRIAL).await.map_err(|e| wrong(&name, &e))
                })
            })
            .await?;
        }
        self.on_all({
            let name = name.clone();
            move |local: Rc<Local>| {
                Box::pin(async move {
                    let edit = {
                        let graphs = local.graphs.borrow();
                        let graph = graphs.get(&name).ok_or_else(|| not_open(&name))?;
                        local.build(|ctx| graph.prepare(spec, ctx)).map_err(|e| wrong(&name, &e))
                    };
                    let mut edit = edit?;
                    edit.hold_back(QUIESCE).await.map_err(|e| wrong(&name, &e))?;
                    Edits::keep(&local, name, edit);
                    Ok(())
                })
            }
        })
        .await?;
        let Some(node) = tried else { return Ok(()) };
        self.on_all(move |local: Rc<Local>| {
            Box::pin(async move {
                // Out of the table meanwhile, so that it is not let go of in the middle.
                let edit = local.edits.take(&name).ok_or_else(|| not_open(&name))?;
                let tried = edit.trial(&node, TRIAL).await.map_err(|e| wrong(&name, &e));
                Edits::keep(&local, name, edit);
                tried
            })
        })
        .await
    }

    /// Lets the I/O of a volume go on as before.
    async fn let_go(&self, volume: &Volume) -> Result<()> {
        let name = volume.name.clone();
        self.on_all(move |local: Rc<Local>| {
            Box::pin(async move {
                drop(local.edits.take(&name));
                Ok(())
            })
        })
        .await
    }

    /// Forgets what was kept for layers that `gone` has and `left` has not.
    fn forget_layers(&self, gone: &Volume, left: &Volume) {
        let ids = gone.layers.iter().filter(|l| !left.layers.contains(l)).map(VolumeLayer::node);
        for id in ids {
            self.shared.forget_nodes(&gone.name, |node| node == id);
            self.shared.meters().forget_key(&format!("{}/{id}", gone.name));
        }
    }

    pub(super) async fn decide_for_layers(
        &self,
        was: &Volume,
        is: &Volume,
        pool: &Pool,
        keep: bool,
    ) -> Result<()> {
        if !keep {
            self.let_go(is).await?;
            self.forget_layers(is, was);
            return Ok(());
        }
        let (spec, name) = (graph::spec(is, pool)?, is.name.clone());
        self.on_all(move |local: Rc<Local>| {
            Box::pin(async move {
                let done = match local.edits.take(&name) {
                    Some(edit) => match local.graphs.borrow_mut().get_mut(&name) {
                        Some(graph) => graph.commit(edit),
                        None => return Err(not_open(&name)),
                    },
                    None => local.regraph(&name, spec, false).await,
                };
                done.map_err(|e| wrong(&name, &e))
            })
        })
        .await?;
        self.forget_layers(was, is);
        Ok(())
    }

    /// The description that a volume is opened with: without its layers if they cannot be made, since what is below
    /// them is the same without.
    pub(super) fn spec_to_open(&self, volume: &Volume, pool: &Pool) -> Result<GraphSpec> {
        let spec = graph::spec(volume, pool)?;
        if volume.layers.is_empty() {
            return Ok(spec);
        }
        let layers: Vec<_> = volume.layers.iter().filter_map(|l| spec.node(&l.node())).collect();
        let registry = super::local::registry();
        let bad = layers.into_iter().find_map(|n| registry.check_passing(n, true).err());
        let Some(e) = bad else { return Ok(spec) };
        let text = format!("volume `{}` is opened without its layers: {e}", volume.name);
        tracing::error!("{text}");
        if let Some(h) = self.hooks.get() {
            h.events.publish("error", &format!("volume/{}", volume.name), &text);
        }
        graph::bare(volume, pool)
    }
}

/// How layers of served volumes are counted.
pub(crate) const METERING: Metering = Metering::Served;
