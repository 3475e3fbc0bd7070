//! Rules for periodic snapshots: part of a volume, followed by the pool that holds it.

use super::*;
use serde::de;
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;
use weir_store::policy::{MOST_IN_GROUP, PREFIX, Rule};

/// Most rules of a volume.
pub const MAX_RULES: usize = 8;

/// A rule for periodic snapshots. Written `every=10m,keep=24` or `every=10m,keep=24,group=NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SnapshotRule(pub Rule);

impl fmt::Display for SnapshotRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SnapshotRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(SnapshotRule).map_err(|e: weir_store::policy::PolicyError| {
            Error::new(Code::InvalidRequest, e.to_string())
                .hint("`weir help snapshot policy set` explains rules")
        })
    }
}

impl Serialize for SnapshotRule {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SnapshotRule {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// Which periodic snapshots volumes are to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPolicySpec {
    /// Volumes of protected pools.
    pub volumes: Vec<String>,
    /// Their rules from now on, each with another period; none: no periodic snapshots. Snapshots that were made stay.
    #[schema(value_type = Vec<String>)]
    pub rules: Vec<SnapshotRule>,
}

/// Refuses a name for a snapshot that rules give.
pub fn check_own_name(name: &str) -> Result<()> {
    check_snapshot_name(name)?;
    if !name.starts_with(PREFIX) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidName, format!("`{name}` cannot be the name of a snapshot"))
        .because(format!("periodic snapshots have names that begin with `{PREFIX}`"))
        .hint("choose another name"))
}

impl Model {
    /// Gives volumes these rules, if all of them can have them.
    pub(super) fn set_rules(&mut self, spec: SnapshotPolicySpec) -> Result<Vec<Change>> {
        if spec.volumes.is_empty() {
            return Err(
                Error::new(Code::InvalidRequest, "no volume is named").hint("name at least one")
            );
        }
        let mut new = self.volumes.clone();
        let mut changes = Vec::new();
        for name in &spec.volumes {
            let mut volume = self.usable(name)?.clone();
            self.check_still(name)?;
            if volume.snapshots != spec.rules {
                volume.snapshots.clone_from(&spec.rules);
                changes.push(Change::new(
                    ObjectKind::Volume,
                    Action::Updated,
                    name,
                    rules_text(&volume),
                ));
                new.insert(name.clone(), volume);
            }
        }
        for name in &spec.volumes {
            self.check_rules(&new[name], &new)?;
        }
        for c in &changes {
            check_groups(&new[&c.name], self.volumes.get(&c.name), &new)?;
        }
        self.volumes = new;
        Ok(changes)
    }

    /// Checks the rules of a volume among others, of which it is one.
    pub(super) fn check_rules(
        &self,
        volume: &Volume,
        all: &BTreeMap<String, Volume>,
    ) -> Result<()> {
        let rules = &volume.snapshots;
        if rules.is_empty() {
            return Ok(());
        }
        let name = &volume.name;
        if self.volumes.contains_key(name) {
            // Its old place could not be given back with snapshots in it.
            self.check_still(name)?;
        }
        if self.pool_at(&volume.pool)?.protection.is_none() {
            return Err(Error::new(
                Code::Unsupported,
                format!("volume `{name}` cannot have periodic snapshots"),
            )
            .because(format!("pool `{}` is a plain pool", volume.pool))
            .hint("make one with `weir pool create NAME --raid 1 --device … --device …`"));
        }
        let wrong = |why: String| wrong(name, why);
        if rules.len() > MAX_RULES {
            return Err(wrong(format!("there are {}", rules.len()))
                .hint(format!("a volume has up to {MAX_RULES}")));
        }
        for (i, r) in rules.iter().enumerate() {
            let every = r.0.policy.every();
            if rules[..i].iter().any(|o| o.0.policy.every() == every) {
                return Err(wrong(format!("two have the period of `{r}`"))
                    .hint("give each rule of a volume another period"));
            }
            let Some(group) = &r.0.group else { continue };
            let mates = all.values().filter(|v| v.pool == volume.pool && is_mate(v, r)).count();
            if mates > MOST_IN_GROUP {
                return Err(wrong(format!("group `{group}` would have {mates} volumes")).hint(
                    format!("up to {MOST_IN_GROUP} volumes can have their snapshots together"),
                ));
            }
        }
        Ok(())
    }
}

fn wrong(name: &str, why: String) -> Error {
    Error::new(
        Code::InvalidRequest,
        format!("volume `{name}` cannot have these rules for snapshots"),
    )
    .because(why)
}

/// Whether a volume has its snapshots together with those of a rule that has a group, if both are in one pool.
fn is_mate(volume: &Volume, rule: &SnapshotRule) -> bool {
    let together =
        |o: &SnapshotRule| o.0.group == rule.0.group && o.0.policy.every() == rule.0.policy.every();
    rule.0.group.is_some() && volume.snapshots.iter().any(together)
}

/// Refuses rules by which a volume would be in a group with volumes of other pools, `all` being there. Pools that carry such groups
/// are imported all the same: there each has an instant of its own; so have those that `before` was in.
pub(super) fn check_groups(
    volume: &Volume,
    before: Option<&Volume>,
    all: &BTreeMap<String, Volume>,
) -> Result<()> {
    let was = |r: &&SnapshotRule| before.is_some_and(|b| is_mate(b, r));
    for r in volume.snapshots.iter().filter(|r| !was(r)) {
        let Some(other) = all.values().find(|v| v.pool != volume.pool && is_mate(v, r)) else {
            continue;
        };
        let why = format!(
            "group `{}` has volume `{}` of pool `{}`, and `{}` is in pool `{}`",
            r.0.group.as_deref().unwrap_or_default(),
            other.name,
            other.pool,
            volume.name,
            volume.pool
        );
        return Err(wrong(&volume.name, why).hint(
            "a group's snapshots are of one instant, which pools do not share: give the group another name",
        ));
    }
    Ok(())
}

fn rules_text(volume: &Volume) -> String {
    let rules: Vec<String> = volume.snapshots.iter().map(ToString::to_string).collect();
    match rules.is_empty() {
        true => format!("volume `{}` has no periodic snapshots any more", volume.name),
        false => format!("volume `{}` has periodic snapshots: {}", volume.name, rules.join(" ")),
    }
}
