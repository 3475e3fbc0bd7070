//! Volumes that move: the data plane's part of a migration.
//!
//! While a volume moves, the graph that hosts use has one layer on every reactor, `migrating`, which leads to a
//! [`weir_layers::migrate::Migration`] on one of them, its home. That one has the graphs of both places below
//! it. Graphs change one reactor after the other, at the start before anything is copied and in the end after
//! everything was decided: at both times it makes no difference to the data which way an I/O goes.

mod image;
mod leaf;

pub(crate) use leaf::{KIND, Kind};

use super::devices::{Wait, closed};
use super::graph;
use super::local::{Local, on};
use super::node::Node;
use leaf::Entrances;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::PoisonError;
use weir_base::{MILLIS, SECONDS};
use weir_block::{Graph, GraphSpec, Metering, SwapError};
use weir_control::dataplane::{Decision, Place};
use weir_control::live::MigrationProgress;
use weir_control::model::{self, Layout, Told, Volume};
use weir_control::{Code, Error, Result};
use weir_layers::migrate::{Held, Migration, Phase, Plan};
use weir_reactor::{Handle, LocalFuture, sleep};

/// How long I/O may be held back until what is in flight has ended at the cut-over.
const HOLD: u64 = 3 * SECONDS;
/// How long to wait for I/O of a destination that nobody wants any more.
const DRAIN: u64 = 5 * SECONDS;

/// A volume that moves, on its home reactor.
pub(crate) struct Moving {
    migration: Migration,
    told: Told,
    held: RefCell<Option<Held>>,
    /// Both places; they stay open as long as the migration uses them.
    _graphs: [Graph; 2],
}

/// The migrations of a reactor.
pub(crate) type Movings = RefCell<BTreeMap<String, Rc<Moving>>>;

fn not_moving(name: &str) -> Error {
    Error::new(Code::MigrationNotFound, format!("volume {name} is not being migrated"))
        .hint("`weir migrate list` shows what is")
}

fn io_error(what: String, e: impl std::fmt::Display) -> Error {
    Error::new(Code::IoError, what).because(e).hint("`weir status` tells what is not well")
}

/// Whether a new place of this layout reads as zeros.
fn is_clean(layout: &Layout) -> bool {
    matches!(layout, Layout::Store { .. } | Layout::File { .. })
}

impl Moving {
    /// Joins both places on the present reactor.
    fn join(local: &Local, here: GraphSpec, there: Made, plan: Plan) -> Result<Moving> {
        let name = here.name.clone();
        let wrong = |what: &str, e: &dyn std::fmt::Display| {
            Error::new(Code::IoError, format!("volume {name} cannot be moved: {what}")).because(e)
        };
        let build = |spec, what: &str| {
            let built = local.build_metered(Metering::Off, |ctx| Graph::build(spec, ctx));
            built.map_err(|e| wrong(what, &e))
        };
        let source = build(here, "where it is")?;
        let g = source.top().geometry();
        let told = there.told.unwrap_or(Told { write_cache: g.volatile_cache, thin: g.thin });
        let view = Volume { told: Some(told), ..there.volume };
        let destination = build(graph::bare(&view, &there.pool)?, "where it goes to")?;
        let made = Migration::new(source.top(), destination.top(), plan);
        let migration = made.map_err(|e| {
            Error::new(Code::InvalidRequest, format!("volume {name} cannot be moved there"))
                .because(e)
                .hint("choose a place that gives what this one gives")
        })?;
        Ok(Moving { migration, told, held: RefCell::default(), _graphs: [source, destination] })
    }

    fn progress(&self) -> MigrationProgress {
        let s = self.migration.status();
        let state = match s.phase {
            Phase::Waiting | Phase::Copying => "copying",
            Phase::Verifying => "verifying",
            Phase::Ready => "ready",
            Phase::Moved => "moved",
            Phase::Failed => "failed",
            Phase::Stopped => "stopped",
        };
        MigrationProgress {
            state: state.into(),
            reason: s.reason,
            waits: s.waits,
            done: s.done,
            total: s.total,
            copied: s.copied,
        }
    }
}

/// A place that was made for a volume to move to.
struct Made {
    volume: Volume,
    pool: model::Pool,
    told: Option<Told>,
}

impl Node {
    pub(super) fn moving_home(&self, name: &str) -> Option<Handle> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    async fn with_moving<R: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce(Rc<Moving>) -> LocalFuture<'static, Result<R>> + Send + 'static,
    ) -> Result<R> {
        let home = self.moving_home(name).ok_or_else(|| not_moving(name))?;
        let name = name.to_owned();
        on(&home, move |local: Rc<Local>| {
            Box::pin(async move {
                let found = local.moves.borrow().get(&name).cloned();
                match found {
                    Some(m) => f(m).await,
                    None => Err(not_moving(&name)),
                }
            })
        })
        .await
    }

    /// The reactor that a migration lives on: that of a protected pool of the two, if there is one.
    fn home_of(&self, here: &Place<'_>, there: &Place<'_>) -> Result<Handle> {
        for p in [there, here] {
            if Node::is_store(p.pool) {
                return self.store_home(&p.pool.name);
            }
        }
        let handles = self.handles();
        let turn = self.moves.lock().unwrap_or_else(PoisonError::into_inner).len();
        let at = turn % handles.len().max(1);
        let none = || Error::new(Code::Internal, "there is no reactor");
        handles.into_iter().nth(at).ok_or_else(none)
    }

    /// Gives a volume's graph another description on one reactor after the other. Nothing happens where it has that
    /// already, or is not open.
    pub(super) async fn regraph(&self, volume: &Volume, spec: &GraphSpec) -> Result<()> {
        for h in self.handles() {
            let (spec, name, size) = (spec.clone(), volume.name.clone(), volume.size);
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    if let Some(graph) =
                        local.graphs.borrow().get(&name).filter(|g| *g.spec() != spec)
                    {
                        graph.top_junction().show(size);
                    }
                    let changed = local.regraph(&name, spec, true).await;
                    changed.map_err(|e| io_error(format!("volume {name} cannot be changed"), e))
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Makes a place anew and opens what is below it.
    async fn make_place(&self, there: &Place<'_>) -> Result<()> {
        match &there.volume.layout {
            Layout::Store { dataset, .. } => {
                self.delete_in_store(dataset.clone(), there.pool).await?;
                self.make_in_store(there.volume, there.pool).await?;
                self.open_in_store(there.volume, there.pool).await
            }
            Layout::File { .. } => {
                self.clear_data(there.volume, there.pool).await?;
                self.make_own_file(there.volume, there.pool).await
            }
            Layout::Image { .. } => {
                self.hold_place(there.volume, there.pool, Wait::ForTheDead).await
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn begin_migration(
        &self,
        here: Place<'_>,
        there: Place<'_>,
        m: &model::Migration,
    ) -> Result<()> {
        let name = here.volume.name.clone();
        if self.moving_home(&name).is_some() {
            let phase = |m: Rc<Moving>| -> LocalFuture<'static, Result<Phase>> {
                Box::pin(async move { Ok(m.migration.status().phase) })
            };
            if !matches!(self.with_moving(&name, phase).await?, Phase::Waiting | Phase::Stopped) {
                return Ok(());
            }
            // An earlier try did not come to its begin, and could not be cleared up.
            self.finish_migration(here, there).await?;
        }
        let begun = self.try_begin(here, there, m).await;
        if begun.is_err()
            && let Err(e) = self.finish_migration(here, there).await
        {
            // Clearing up is tried again; what matters is why it did not begin.
            tracing::warn!("volume {name}: {e}");
        }
        begun
    }

    async fn try_begin(
        &self,
        here: Place<'_>,
        there: Place<'_>,
        m: &model::Migration,
    ) -> Result<()> {
        self.make_place(&there).await?;
        let name = here.volume.name.clone();
        let home = self.home_of(&here, &there)?;
        let source = graph::bare(here.volume, here.pool)?;
        let made =
            Made { volume: there.volume.clone(), pool: there.pool.clone(), told: here.volume.told };
        let plan = Plan {
            len: here.volume.size,
            clean: is_clean(&there.volume.layout),
            verify: m.verify,
            rate: m.rate,
            chunk: Plan::CHUNK,
            patience: Plan::PATIENCE,
        };
        let (entrances, paused) = (Entrances::of(&self.shared), m.paused);
        let name2 = name.clone();
        on(&home, move |local: Rc<Local>| {
            Box::pin(async move {
                let moving = Moving::join(&local, source, made, plan)?;
                moving.migration.set_paused(paused);
                entrances.open(&name2, moving.migration.entrance());
                local.moves.borrow_mut().insert(name2, Rc::new(moving));
                Ok(())
            })
        })
        .await?;
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), home);
        self.regraph(here.volume, &graph::moving(here.volume)).await?;
        self.with_moving(&name, |m| {
            Box::pin(async move {
                m.migration.begin();
                Ok(())
            })
        })
        .await
    }

    pub(super) async fn migration_progress(&self, name: &str) -> Result<Option<MigrationProgress>> {
        if self.moving_home(name).is_none() {
            return Ok(None);
        }
        match self.with_moving(name, |m| Box::pin(async move { Ok(Some(m.progress())) })).await {
            // It has ended a moment ago.
            Err(e) if e.code == Code::MigrationNotFound => Ok(None),
            r => r,
        }
    }

    pub(super) async fn tune(&self, name: &str, rate: u64, paused: bool) -> Result<()> {
        self.with_moving(name, move |m| {
            Box::pin(async move {
                m.migration.set_rate(rate);
                m.migration.set_paused(paused);
                Ok(())
            })
        })
        .await
    }

    pub(super) async fn hold(&self, name: &str) -> Result<Told> {
        let what = format!("volume {name} cannot be cut over yet");
        self.with_moving(name, move |m| {
            Box::pin(async move {
                let held = m.migration.hold(HOLD).await.map_err(|e| io_error(what, e))?;
                *m.held.borrow_mut() = Some(held);
                Ok(m.told)
            })
        })
        .await
    }

    pub(super) async fn decide(&self, name: &str, decision: Decision) -> Result<()> {
        let what = format!("volume {name} is not held");
        self.with_moving(name, move |m| {
            Box::pin(async move {
                let held = m.held.borrow_mut().take();
                let held = held.ok_or_else(|| Error::new(Code::Internal, what.clone()))?;
                match decision {
                    Decision::Moved => held.moved().map_err(|e: SwapError| io_error(what, e))?,
                    Decision::Stays => held.stays(),
                    Decision::Doubtful => held.doubtful(),
                }
                Ok(())
            })
        })
        .await
    }

    /// From now on the volume is `here` alone.
    pub(super) async fn finish_migration(&self, here: Place<'_>, there: Place<'_>) -> Result<()> {
        self.regraph(here.volume, &graph::spec(here.volume, here.pool)?).await?;
        self.drop_moving(&here.volume.name).await?;
        self.close_in_store(&there.volume.name, Some(there.volume.place)).await?;
        let (name, place) = (&there.volume.name, there.volume.place);
        closed(async { self.holds.release_volume(name, Some(place)) }).await;
        let place = graph::place(there.volume);
        self.shared.forget_nodes(&there.volume.name, |node| {
            node == place
                || node.starts_with(&format!("{place}-"))
                || (there.volume.place == 0 && node.starts_with("part-"))
        });
        Ok(())
    }

    /// Ends what is under way of a migration on its home reactor, and waits for that.
    pub(super) async fn drop_moving(&self, name: &str) -> Result<()> {
        let Some(home) = self.moving_home(name) else { return Ok(()) };
        let entrances = Entrances::of(&self.shared);
        let name2 = name.to_owned();
        on(&home, move |local: Rc<Local>| {
            Box::pin(async move {
                let found = local.moves.borrow().get(&name2).cloned();
                let Some(m) = found else { return Ok(()) };
                drop(m.held.borrow_mut().take());
                m.migration.stop();
                let mut waited = 0;
                while m.migration.under_way() > 0 {
                    if waited >= DRAIN {
                        return Err(Error::new(
                            Code::IoError,
                            format!("volume {name2}: the other place still has I/O under way"),
                        )
                        .hint("it is waited for; see to the device there"));
                    }
                    sleep(10 * MILLIS).await;
                    waited += 10 * MILLIS;
                }
                entrances.close(&name2);
                local.moves.borrow_mut().remove(&name2);
                Ok(())
            })
        })
        .await?;
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }
}
