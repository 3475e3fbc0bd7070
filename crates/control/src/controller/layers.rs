//! Layers that come and go under I/O.
//!
//! The data plane makes the change ready, holds hosts' I/O back and tries the new layer; then the change is made durable;
//! then the data plane carries it out and I/O goes on. So what was not tried is never found after a restart, and what
//! hosts use is never forgotten by one.

use super::*;
use crate::dataplane::LayerTrial;
use crate::live::{LayerKindLive, LayerLive};
use crate::model::LayerChange;

/// How long I/O is held back for a change of the configuration.
const COMMIT: Duration = Duration::from_secs(5);

impl Controller {
    /// The kinds of layers there are, and which of them can be put over volumes.
    pub fn layer_kinds(&self) -> Vec<LayerKindLive> {
        self.plane.layer_kinds()
    }

    /// The layers over a volume, the uppermost first.
    pub async fn layers(&self, volume: &str) -> Result<Vec<LayerLive>> {
        let model = self.model();
        let v = model.volume(volume)?;
        // One that is not up has layers all the same.
        let graph = match self.up().volumes.contains(volume) {
            true => Some(()),
            false => None,
        };
        let graph = match graph {
            Some(()) => self.plane.graph(volume).await.unwrap_or_default(),
            None => Default::default(),
        };
        let live = v.layers.iter().map(|l| {
            let id = l.node();
            let node = graph.nodes.iter().find(|n| n.id == id).cloned();
            let in_use = node.is_some();
            let node = node.unwrap_or_default();
            LayerLive {
                name: l.name.clone(),
                kind: l.kind.clone(),
                params: l.params.clone(),
                node: id,
                in_use,
                read: node.read,
                write: node.write,
                in_flight: node.in_flight,
            }
        });
        Ok(live.collect())
    }

    /// Changes the layers over a volume under I/O, wholly or not at all, and gives those after it.
    pub async fn change_layers(
        self: &Arc<Self>,
        volume: String,
        change: LayerChange,
    ) -> Result<Vec<LayerLive>> {
        let (me, name) = (self.clone(), volume.clone());
        finish(spawn(async move {
            let _one = me.settled_turn().await?;
            let done = me.change_layers_now(&name, change).await;
            if let Err(e) = &done {
                me.events.publish("error", &format!("volume/{name}"), &e.to_string());
            }
            done
        }))
        .await?;
        self.layers(&volume).await
    }

    async fn change_layers_now(&self, name: &str, change: LayerChange) -> Result<()> {
        let old = self.model();
        let mut new = Model::clone(&old);
        let forced = change.is_forced();
        let command = Command::ChangeLayers { name: name.to_string(), change };
        self.check_not_closed(&command, &old)?;
        let changes = new.apply(command.clone(), 0)?;
        self.check_ready(&command, &old)?;
        let (was, is) = (old.volume(name)?, new.volume(name)?.clone());
        let pool = old.pool_at(&was.pool)?;
        let is_new = |l: &&crate::model::VolumeLayer| !was.layers.contains(l);
        let node = is.layers.iter().find(is_new).map(crate::model::VolumeLayer::node);
        let trial = LayerTrial { node, forced };
        self.plane.hold_layers(was, &is, pool, &trial).await?;
        let mut commit = std::pin::pin!(self.commit(&old, new));
        match timeout(COMMIT, &mut commit).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) => {
                self.plane.decide_layers(was, &is, pool, false).await?;
                return Err(e);
            }
            Err(_) => {
                // Hosts do not wait for a slow disk of the configuration.
                self.plane.decide_layers(was, &is, pool, false).await?;
                commit.await?;
            }
        }
        if let Err(e) = self.plane.decide_layers(was, &is, pool, true).await {
            self.undo(&command, &old).await?;
            return Err(e);
        }
        for c in &changes {
            let object = format!("{}/{}", c.kind, c.name);
            self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
        }
        Ok(())
    }
}
