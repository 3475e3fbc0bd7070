//! Volumes that are not served: which, why, and that somebody sees to them.

use super::*;
use crate::live::VolumeInfo;
use crate::model::{IMAGES, Volume, VolumeState};

impl Up {
    /// Whether a volume is to be opened and is not yet, whatever may be wrong.
    fn wants(&self, v: &Volume) -> bool {
        v.state == VolumeState::Ready && v.newer_in.is_none() && !self.volumes.contains(&v.name)
    }

    /// The same of one of which nothing is known to be wrong: its pool is up.
    fn is_about_to_open(&self, v: &Volume) -> bool {
        let pool_is_up = v.pool == IMAGES || self.pools.contains(&v.pool);
        let known = self.faults.contains_key(&format!("volume/{}", v.name));
        self.wants(v) && pool_is_up && !known
    }

    /// The same of a port.
    fn is_about_to_listen(&self, target: &str) -> bool {
        let known = self.faults.contains_key(&format!("target/{target}"));
        !self.targets.contains(target) && !self.held.contains(target) && !known
    }
}

impl Controller {
    /// How many volumes are not served because of what is wrong with an object: a pool.
    pub(super) fn waiting_for(&self, model: &Model, object: &str) -> usize {
        let Some(pool) = object.strip_prefix("pool/") else { return 0 };
        let up = self.up();
        let waits = |v: &&Volume| v.pool == pool && up.wants(v);
        if up.pools.contains(pool) { 0 } else { model.volumes.values().filter(waits).count() }
    }

    /// A volume as it is, and why it is not served, if so.
    pub fn volume_info(&self, volume: &Volume) -> VolumeInfo {
        let up = self.up();
        let fault = |object: String| up.faults.get(&object).map(ToString::to_string);
        let is_up = up.volumes.contains(&volume.name);
        let why = || match &volume.newer_in {
            Some(n) => format!("pool {} had it as of a newer configuration", n.pool),
            None => fault(format!("volume/{}", volume.name))
                .or_else(|| fault(format!("pool/{}", volume.pool)))
                .unwrap_or_else(|| "it is about to be opened".into()),
        };
        let not_served = (!is_up && volume.state == VolumeState::Ready).then(why);
        VolumeInfo { volume: volume.told_to_others(), not_served }
    }

    /// Volumes that are not open yet though their pools are, and ports that do not listen yet: whoever waits for a node sees that
    /// it is not over.
    pub(super) fn being_served(&self, model: &Model) -> Vec<Fault> {
        let up = self.up();
        let mut waiting = BTreeMap::<String, usize>::new();
        let mut images = Vec::new();
        for v in model.volumes.values().filter(|v| up.is_about_to_open(v)) {
            match v.pool == IMAGES {
                true => images.push(v.name.clone()),
                false => *waiting.entry(v.pool.clone()).or_default() += 1,
            }
        }
        let fault = |object: String, text: String| Fault {
            object,
            code: Code::NotReady.as_str().to_string(),
            text,
            hint: "nothing is to be done; where that takes long, a device may not answer".into(),
        };
        let of_pool = |(pool, n): (String, usize)| {
            let many = if n == 1 { "" } else { "s" };
            let text = format!("what is in pool `{pool}` is being opened: {n} volume{many}");
            fault(format!("pool/{pool}"), text)
        };
        let image =
            |v: String| fault(format!("volume/{v}"), format!("volume `{v}` is being opened"));
        let port =
            |t: &String| fault(format!("target/{t}"), format!("target port `{t}` is being opened"));
        let ports = model.targets.keys().filter(|t| up.is_about_to_listen(t)).map(port);
        let volumes = waiting.into_iter().map(of_pool).chain(images.into_iter().map(image));
        volumes.chain(ports).collect()
    }

    /// Whether anything is not as the configuration wants it: what is told, and volumes that nothing is told of.
    pub(super) fn is_wanting(&self) -> bool {
        let model = self.model();
        let up = self.up();
        let waits = || {
            let waits = |v: &Volume| {
                up.is_about_to_open(v) || self.is_to_be_deleted(v) || up.differs(&v.name)
            };
            model.volumes.values().any(waits)
                || model.targets.keys().any(|t| up.is_about_to_listen(t))
        };
        let told_only = has(Bug::OpenedWithoutVolumes) || has(Bug::ClosedForGood);
        !up.faults.is_empty()
            || !up.refused.is_empty()
            || up.strays.iter().any(|t| !model.targets.contains_key(t))
            || !told_only && waits()
    }
}
