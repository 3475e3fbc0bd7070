//! Encrypted volumes: a key for each before it is made durable, and another one on demand.

use super::*;
use crate::dataplane::Work;
use crate::declare::Item;
use crate::model::{KeySource, RekeySpec, Volume, VolumeSpec, VolumeState};

fn source(spec: &VolumeSpec) -> Option<&KeySource> {
    spec.form.encryption.as_ref().map(|e| &e.key)
}

/// What of a declaration cannot be tried yet: volumes that are being given keys, and pools whose devices are being asked.
#[derive(Default)]
pub(super) struct Warming {
    all: JoinSet<(String, Result<()>)>,
    /// Those whose key has not come, or whose devices have not answered, by object.
    pub(super) late: BTreeSet<String>,
    /// Why others cannot be.
    pub(super) failed: BTreeMap<String, Error>,
}

impl Warming {
    /// Waits until one more can be tried, or cannot be. False: none is to come. May be given up, and called again.
    pub(super) async fn next(&mut self) -> bool {
        let Some(done) = self.all.join_next().await else { return false };
        if let Ok((object, done)) = done {
            self.late.remove(&object);
            self.failed.extend(done.err().map(|e| (object, e)));
        }
        true
    }

    /// The same for all of them.
    pub(super) async fn come(&mut self) {
        while self.next().await {}
    }
}

impl Controller {
    /// Has the keys ready that a command needs, before others have to wait for it.
    pub(super) async fn warm_for(&self, command: &Command) -> Result<()> {
        match command {
            Command::CreateVolume(spec) => self.warm(source(spec)).await,
            _ => Ok(()),
        }
    }

    pub(super) async fn warm(&self, source: Option<&KeySource>) -> Result<()> {
        match source {
            Some(s) => self.keys.warm(s).await,
            None => Ok(()),
        }
    }

    /// The same, side by side, for all volumes of a declaration that are not there yet, and for devices that pools are to get.
    pub(super) fn warm_each(self: &Arc<Self>, declared: &Desired) -> Warming {
        let (model, mut w) = (self.model(), Warming::default());
        let mut wait = |object: String, work: Work<'static, ()>| {
            w.late.insert(object.clone());
            w.all.spawn(async move { (object, work.await) });
        };
        for s in declared.volumes.iter().filter(|s| !model.volumes.contains_key(&s.name)) {
            if let Some(key) = source(s).cloned() {
                let me = self.clone();
                wait(
                    format!("volume/{}", s.name),
                    Box::pin(async move { me.warm(Some(&key)).await }),
                );
            }
        }
        for item in declared.items().filter(|i| matches!(i, Item::Pool(_))) {
            if let Ok(Some(command)) = item.command(&model) {
                let me = self.clone();
                // They are looked at again in the turn of the pool.
                let asked = async move { me.ask_for(&command).await };
                wait(item.object(), Box::pin(asked));
            }
        }
        w
    }

    /// The same for what is made of a volume, or of its snapshot.
    pub(super) async fn warm_of(&self, volume: &str) -> Result<()> {
        let model = self.model();
        let found = model.volumes.get(volume).and_then(|v| v.form().encryption.as_ref());
        self.warm(found.map(|e| &e.key)).await
    }

    /// Gives everything in the model that is encrypted a key that is wrapped for it.
    pub(super) async fn seal(&self, model: &mut Model) -> Result<()> {
        for (naa, e) in model.unsealed() {
            e.sealed = Some(self.keys.seal(naa, e).await?);
        }
        Ok(())
    }

    /// Starts the commands that give keys of volumes that are not up, all at once.
    pub(super) fn start_keys(&self, model: &Model) {
        let up = self.up().volumes.clone();
        let waits = |v: &&Volume| v.state != VolumeState::Deleting && !up.contains(&v.name);
        for v in model.volumes.values().filter(waits) {
            if let Some(e) = &v.form().encryption {
                self.keys.start(&e.key);
            }
        }
    }

    /// Wraps the own key of an encrypted volume with another key, also of one that is not up. Its data stays as it is.
    pub async fn rekey(self: &Arc<Self>, name: String, spec: RekeySpec) -> Result<Volume> {
        let me = self.clone();
        finish(spawn(async move {
            let now = me.model();
            let old = spec.old_key.as_ref().unwrap_or(&now.encrypted(&name)?.key);
            me.warm(Some(old)).await?;
            me.warm(Some(&spec.key)).await?;
            let _one = me.settled_turn().await?;
            let model = me.model();
            let present = model.encrypted(&name)?;
            let old = spec.old_key.as_ref().unwrap_or(&present.key);
            let volume = model.volume(&name)?;
            if !me.up().pools.contains(&volume.pool) {
                // Its devices would keep the key as the old one wraps it.
                return Err(me.not_ready("pool", &volume.pool));
            }
            let naa = volume.naa;
            let sealed = me.keys.reseal(naa, present, old, &spec.key).await?;
            let command = Command::RekeyVolume { name: name.clone(), key: spec.key, sealed };
            let now = me.change(command).await?;
            me.forget_keys(&now).await?;
            Ok(now.volume(&name)?.clone())
        }))
        .await
    }

    /// Has nothing in the data directory hold keys as they were wrapped before.
    pub(super) async fn forget_keys(&self, model: &Arc<Model>) -> Result<()> {
        let (store, model) = (self.store.clone(), model.clone());
        let done = blocking(move || store.forget_past(&model)).await;
        done.map_err(|e| {
            Error::new(e.code, "the data directory may still hold keys as they were wrapped before")
                .because(e)
                .hint("make room on its file system, then do it again")
        })
    }
}
