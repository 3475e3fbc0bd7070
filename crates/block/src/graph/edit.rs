//! Changes of a graph under I/O.

use super::build::{Nodes, Swap, make};
use super::{BuildContext, Graph, GraphError, GraphErrorKind, GraphSpec};
use crate::junction::{Quiesced, SwapError};
use std::rc::Rc;
use weir_base::Nanos;
use weir_reactor::timeout;

/// A change that is made but not in force.
///
/// 1. [`Graph::prepare`] builds the new layers beside the old ones; unchanged parts are shared. Hosts
///    notice nothing.
/// 2. [`quiesce`](Edit::quiesce) holds I/O back where something below changes, lets what is in flight
///    end, and flushes, so that what is taken out holds nothing back.
/// 3. [`Graph::commit`] swaps and lets I/O go on.
///
/// Dropping it at any time before 3 rolls back: the held I/O goes on to the old layers. Where several
/// reactors have instances of the graph, every one ends step 2 before the first begins step 3; should
/// one fail, all are dropped.
#[must_use]
pub struct Edit {
    spec: GraphSpec,
    pub(super) nodes: Nodes,
    swaps: Vec<Swap>,
    held: Vec<Quiesced>,
}

impl Edit {
    /// The description that it leads to.
    pub fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// The junctions whose lower part changes: names of nodes, or of the graph for its top.
    pub fn touches(&self) -> impl Iterator<Item = &str> {
        self.swaps.iter().map(|s| s.name.as_str())
    }

    /// Holds I/O back wherever something below changes and waits at most `limit` nanoseconds for what
    /// is in flight.
    ///
    /// # Errors
    /// I/O did not end in time, a flush failed, or the new layers do not fit. The old ones go on.
    pub async fn quiesce(&mut self, limit: Nanos) -> Result<(), GraphError> {
        self.hold(limit, true).await
    }

    /// As [`quiesce`](Edit::quiesce), but nothing is flushed: for a change of nothing but layers that hold no data
    /// back ([`LayerKind::passes`](super::LayerKind::passes)), one of which may be there to make flushes fail.
    ///
    /// # Errors
    /// As those of `quiesce`.
    pub async fn hold_back(&mut self, limit: Nanos) -> Result<(), GraphError> {
        self.hold(limit, false).await
    }

    async fn hold(&mut self, limit: Nanos, flush: bool) -> Result<(), GraphError> {
        // From the top down: what waits at a lower junction would keep an upper one from falling idle.
        let swaps = &self.swaps;
        let all = async {
            let mut held = Vec::with_capacity(swaps.len());
            for s in swaps {
                let one = match flush {
                    true => s.junction.quiesce().await,
                    false => s.junction.hold_back().await,
                };
                held.push(one.map_err(|e| refused(s, e))?);
            }
            Ok(held)
        };
        let held = timeout(limit, all).await.map_err(|_| {
            GraphError::new(
                GraphErrorKind::Timeout,
                "I/O in flight did not end in time; the graph was left as it was",
            )
        })??;
        self.check()?;
        self.held = held;
        Ok(())
    }

    /// True while I/O is held back.
    pub(super) fn is_held(&self) -> bool {
        self.held.len() == self.swaps.len()
    }

    fn check(&self) -> Result<(), GraphError> {
        self.swaps.iter().try_for_each(|s| s.junction.check(&*s.new).map_err(|e| refused(s, e)))
    }
}

fn refused(s: &Swap, e: SwapError) -> GraphError {
    GraphError::new(GraphErrorKind::Incompatible, e.to_string()).at(&s.name)
}

impl Graph {
    /// Builds what `spec` has and the present graph has not.
    ///
    /// # Errors
    /// The description is wrong or has another name, or a layer could not be made. Nothing is changed.
    pub fn prepare(&self, spec: GraphSpec, ctx: &BuildContext<'_>) -> Result<Edit, GraphError> {
        if spec.name != self.spec.name {
            return Err(GraphError::new(
                GraphErrorKind::Incompatible,
                format!("graph `{}` cannot become graph `{}`", self.spec.name, spec.name),
            ));
        }
        let (nodes, mut swaps) = make(&spec, ctx, Some(self))?;
        let new = nodes[&spec.top].volume.clone();
        if !Rc::ptr_eq(&self.top.current(), &new) {
            let top = Swap { name: spec.name.clone(), junction: self.top.clone(), new };
            swaps.insert(0, top);
        }
        let edit = Edit { spec, nodes, swaps, held: Vec::new() };
        edit.check()?;
        Ok(edit)
    }

    /// Puts a quiesced change in force.
    ///
    /// # Errors
    /// It is not quiesced, or the new layers do not fit any more; the old ones go on.
    pub fn commit(&mut self, edit: Edit) -> Result<(), GraphError> {
        if !edit.is_held() {
            return Err(GraphError::new(
                GraphErrorKind::Incompatible,
                "the change was not quiesced; the graph was left as it was",
            ));
        }
        edit.check()?;
        for s in &edit.swaps {
            s.junction.exchange(s.new.clone());
        }
        self.nodes = edit.nodes;
        self.spec = edit.spec;
        Ok(())
    }

    /// All steps, for a graph with an instance on one reactor only. Returns when I/O goes on.
    ///
    /// # Errors
    /// As the steps; the old graph goes on.
    pub async fn apply(
        &mut self,
        spec: GraphSpec,
        ctx: &BuildContext<'_>,
        limit: Nanos,
    ) -> Result<(), GraphError> {
        let mut edit = self.prepare(spec, ctx)?;
        edit.quiesce(limit).await?;
        self.commit(edit)
    }
}
