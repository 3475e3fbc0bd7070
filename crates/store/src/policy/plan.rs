//! What is due over all volumes of a pool.

use super::Rule;
use std::collections::BTreeMap;

/// A volume and its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The volume's name in the pool.
    pub volume: String,
    /// Its rules, each with another period.
    pub rules: Vec<Rule>,
}

/// Who has snapshots made together: a group, or a volume by itself; and the period.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The group's name, or the volume's.
    pub name: String,
    /// It is a group.
    pub group: bool,
    /// Seconds between snapshots.
    pub every: u64,
}

/// Snapshots to be made at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Whose they are.
    pub key: Key,
    /// The volumes, by name in the pool.
    pub volumes: Vec<String>,
    /// What the snapshot of each is called.
    pub name: String,
}

impl Key {
    /// Of a rule of a volume.
    pub fn of(volume: &str, rule: &Rule) -> Key {
        Key {
            name: rule.group.clone().unwrap_or_else(|| volume.to_string()),
            group: rule.group.is_some(),
            every: rule.policy.every(),
        }
    }
}

/// Names of snapshots in the order in which they were made, by volume. A volume without an entry is not there.
pub(super) type There = BTreeMap<String, Vec<String>>;

/// What is to be made now, groups first. Of a group nothing is due while one of its volumes has the snapshot
/// of this period: what has the same name is of one instant. Volumes that are not there are left out.
pub(super) fn due(charges: &[Charge], there: &There, now: u64) -> Vec<Due> {
    let mut found: BTreeMap<Key, Option<Due>> = BTreeMap::new();
    for (c, names) in charges.iter().filter_map(|c| Some((c, there.get(&c.volume)?))) {
        for rule in &c.rules {
            let key = Key::of(&c.volume, rule);
            let name = rule.policy.due(names.iter().map(String::as_str), now);
            let first = || name.clone().map(|name| Due { key: key.clone(), volumes: vec![], name });
            let entry = found.entry(key.clone()).or_insert_with(first);
            match (entry.as_mut(), name) {
                (Some(d), Some(_)) => d.volumes.push(c.volume.clone()),
                (None, _) => {}
                (Some(_), None) => *entry = None,
            }
        }
    }
    let mut all: Vec<Due> = found.into_values().flatten().collect();
    all.sort_by_key(|d| !d.key.group);
    all
}

/// Snapshots that are too many, oldest first: volume, name, and the rule that they are of.
pub(super) fn excess(charges: &[Charge], there: &There) -> Vec<(String, String, Key)> {
    let mut all = Vec::new();
    for (c, names) in charges.iter().filter_map(|c| Some((c, there.get(&c.volume)?))) {
        for rule in &c.rules {
            let key = Key::of(&c.volume, rule);
            for name in rule.policy.excess(names.iter().map(String::as_str)) {
                all.push((c.volume.clone(), name.to_string(), key.clone()));
            }
        }
    }
    all
}
