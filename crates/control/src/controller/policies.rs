//! Periodic snapshots: rules from the configuration to the pools, and how they stand.

use super::*;
use crate::live::{SnapshotOverdue, SnapshotRuleLive};
use crate::model::{Pool, SnapshotPolicySpec, SnapshotRule, Volume, VolumeState};

/// Rules of a pool's volumes: the volume's name, its identity, its rules.
pub type PoolRules = Vec<(String, String, Vec<SnapshotRule>)>;

/// What is overdue, as a fault.
pub(super) fn fault(pool: &str, o: &SnapshotOverdue) -> Fault {
    let (object, of) = match o.group {
        true => (format!("pool/{pool}"), format!("group `{}` in pool `{pool}`", o.name)),
        false => (format!("volume/{}", o.name), format!("volume `{}`", o.name)),
    };
    Fault {
        object,
        code: Code::SnapshotOverdue.as_str().to_string(),
        text: format!("periodic snapshots (every {}) of {of}: {}", o.every, o.reason),
        hint: "it is tried again every few minutes; `weir pool show` tells how the pool stands"
            .to_string(),
    }
}

fn rules_of(model: &Model, pool: &str) -> PoolRules {
    let has = |v: &&Volume| v.state == VolumeState::Ready && !v.snapshots.is_empty();
    let all = model.volumes_of_pool(pool).filter(has);
    all.map(|v| (v.name.clone(), v.dataset(), v.snapshots.clone())).collect()
}

impl Controller {
    /// Has the pools follow the rules of the configuration. What fails is tried again with the next sample. The caller
    /// holds `changes`, or is alone.
    pub(super) async fn put_rules(&self) {
        let model = self.model();
        // Of what is to be taken back no rule counts: it would make a snapshot of what goes, or delete one that another rule keeps.
        let before = self.owed().as_ref().map(|(_, old)| old.clone());
        let ruled = before.filter(|_| !has(Bug::RulesThoughOwed)).unwrap_or_else(|| model.clone());
        let is_up = |p: &&Pool| p.protection.is_some() && self.up().pools.contains(&p.name);
        let pools: Vec<&Pool> = model.pools.values().filter(is_up).collect();
        self.up().rules.retain(|name, _| pools.iter().any(|p| p.name == *name));
        for pool in pools {
            if self.closed(&pool.name).is_some() {
                continue;
            }
            let rules = rules_of(&ruled, &pool.name);
            // Of one that nothing is known of, it may have some.
            let known = self.up().rules.get(&pool.name).map(|known| *known == rules);
            if known.unwrap_or(rules.is_empty() && has(Bug::UnknownIsNone)) {
                continue;
            }
            match self.plane.set_snapshot_rules(pool, &rules).await {
                Ok(()) => drop(self.up().rules.insert(pool.name.clone(), rules)),
                Err(e) => tracing::warn!("pool {}: rules for snapshots: {e}", pool.name),
            }
        }
    }

    /// Gives volumes rules for periodic snapshots; none for none.
    pub async fn set_policy(
        self: &Arc<Self>,
        spec: SnapshotPolicySpec,
    ) -> Result<Vec<SnapshotRuleLive>> {
        let volumes = spec.volumes.clone();
        self.execute(Command::SetSnapshotRules(spec)).await?;
        let mut all = self.policies(None).await?;
        all.retain(|r| volumes.contains(&r.volume));
        Ok(all)
    }

    /// The rules of all volumes, or of one, and how they stand.
    pub async fn policies(&self, volume: Option<&str>) -> Result<Vec<SnapshotRuleLive>> {
        let model = self.model();
        if let Some(v) = volume {
            model.volume(v)?;
        }
        let mut found = Vec::new();
        for pool in model.pools.values().filter(|p| p.protection.is_some()) {
            let of = |v: &&Volume| !v.snapshots.is_empty() && volume.is_none_or(|n| n == v.name);
            let volumes: Vec<&Volume> = model.volumes_of_pool(&pool.name).filter(of).collect();
            if volumes.is_empty() {
                continue;
            }
            let is_up = self.up().pools.contains(&pool.name);
            let live = match is_up {
                true => self.check_open(&pool.name),
                false => Err(self.not_ready("pool", &pool.name)),
            };
            let live = match live {
                Ok(()) => self.plane.snapshot_rules(pool).await,
                Err(e) => Err(e),
            };
            for v in volumes {
                for rule in &v.snapshots {
                    let mut is = SnapshotRuleLive {
                        volume: v.name.clone(),
                        pool: pool.name.clone(),
                        rule: rule.to_string(),
                        ..SnapshotRuleLive::default()
                    };
                    match &live {
                        Ok(all) => {
                            let same = |r: &&SnapshotRuleLive| {
                                (&r.volume, &r.rule) == (&is.volume, &is.rule)
                            };
                            if let Some(r) = all.iter().find(same).cloned() {
                                is = SnapshotRuleLive { pool: pool.name.clone(), ..r };
                            }
                        }
                        Err(e) => is.trouble = Some(e.to_string()),
                    }
                    found.push(is);
                }
            }
        }
        found.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(found)
    }
}
