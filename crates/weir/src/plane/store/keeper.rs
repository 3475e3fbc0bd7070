//! Periodic snapshots of a protected pool, made on its reactor.

use super::{Node, OpenPool, Pool};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_control::Result;
use weir_control::controller::PoolRules;
use weir_control::events::EventLog;
use weir_control::live::{SnapshotOverdue, SnapshotRuleLive};
use weir_store::policy::{Charge, Keeper, Key, News, period};

/// A keeper, with the names that its volumes have in the configuration.
pub(super) struct Kept {
    keeper: Rc<Keeper>,
    names: Rc<Names>,
}

#[derive(Default)]
struct Names(RefCell<BTreeMap<String, String>>);

impl Names {
    fn of(&self, dataset: &str) -> String {
        self.0.borrow().get(dataset).cloned().unwrap_or_else(|| dataset.to_owned())
    }

    fn who(&self, key: &Key) -> String {
        match key.group {
            true => format!("group `{}`", key.name),
            false => format!("volume `{}`", self.of(&key.name)),
        }
    }
}

/// Nanoseconds since 1970.
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

fn told(pool: &str, names: &Names, events: Option<&EventLog>, news: News) {
    let publish = |kind: &str, text: &str| {
        if let Some(e) = events {
            e.publish(kind, &format!("pool/{pool}"), text);
        }
    };
    match news {
        News::Made(volumes, name) => {
            for v in volumes {
                tracing::debug!("snapshot `{}@{name}` made", names.of(&v));
            }
        }
        News::Deleted(volume, name) => {
            tracing::debug!("snapshot `{}@{name}` deleted", names.of(&volume));
        }
        News::Trouble(key, why) => {
            let (who, every) = (names.who(&key), period(key.every));
            let text = format!("periodic snapshots (every {every}) of {who}: {why}");
            tracing::warn!("pool `{pool}`: {text}");
            publish("snapshot.overdue", &text);
        }
        News::Over(key) => {
            let (who, every) = (names.who(&key), period(key.every));
            let text = format!("periodic snapshots (every {every}) of {who}: they go on");
            tracing::info!("pool `{pool}`: {text}");
            publish("snapshot.resumed", &text);
        }
    }
}

impl OpenPool {
    async fn set_rules(&self, pool: &str, rules: PoolRules, events: Option<EventLog>) {
        let known = self.kept.borrow().as_ref().map(|k| (k.keeper.clone(), k.names.clone()));
        let (keeper, names) = match known {
            Some(k) => k,
            None if rules.is_empty() => return,
            None => {
                let names = Rc::new(Names::default());
                let (n, pool) = (names.clone(), pool.to_owned());
                let tell = move |news| told(&pool, &n, events.as_ref(), news);
                let keeper = Keeper::start(self.pool.clone(), clock, tell);
                let kept = Kept { keeper: keeper.clone(), names: names.clone() };
                *self.kept.borrow_mut() = Some(kept);
                (keeper, names)
            }
        };
        let mut charges = Vec::new();
        for (name, dataset, rules) in rules {
            names.0.borrow_mut().insert(dataset.clone(), name);
            let rules = rules.into_iter().map(|r| r.0).collect();
            charges.push(Charge { volume: dataset, rules });
        }
        keeper.set(charges).await;
    }

    /// Ends the making of snapshots. When this returns, nothing of it is under way.
    pub(super) async fn stop_keeper(&self) {
        let kept = self.kept.borrow_mut().take();
        if let Some(k) = kept {
            k.keeper.stop().await;
        }
    }

    /// What is overdue.
    pub(super) fn overdue(&self) -> Vec<SnapshotOverdue> {
        let kept = self.kept.borrow();
        let Some(k) = kept.as_ref() else { return Vec::new() };
        let is = |(key, reason): (Key, String)| SnapshotOverdue {
            name: if key.group { key.name.clone() } else { k.names.of(&key.name) },
            group: key.group,
            every: period(key.every),
            reason,
        };
        k.keeper.troubles().into_iter().map(is).collect()
    }
}

impl Node {
    pub(in crate::plane) async fn set_store_rules(
        &self,
        pool: &Pool,
        rules: &PoolRules,
        events: Option<EventLog>,
    ) -> Result<()> {
        let (name, rules) = (pool.name.clone(), rules.clone());
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                p.set_rules(&name, rules, events).await;
                Ok(())
            })
        })
        .await
    }

    pub(in crate::plane) async fn store_rules(&self, pool: &Pool) -> Result<Vec<SnapshotRuleLive>> {
        let name = pool.name.clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let kept = p.kept.borrow();
                let Some(k) = kept.as_ref() else { return Ok(Vec::new()) };
                let all = k.keeper.standing().into_iter().map(|s| SnapshotRuleLive {
                    volume: k.names.of(&s.volume),
                    pool: name.clone(),
                    rule: s.rule.to_string(),
                    last: s.last,
                    kept: s.kept,
                    next: s.next,
                    trouble: s.trouble,
                });
                Ok(all.collect())
            })
        })
        .await
    }
}
