//! What a change makes of an object, in words.

use crate::model::{Device, DeviceKind, Form, Host, Model, Pool, TargetPort, Volume};
use crate::units::format_size;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Size of a device of which nobody has looked how large it is: enough for all.
pub(crate) const UNKNOWN_SIZE: u64 = 1 << 60;

/// One thing about an object that a change makes different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// What of the object, e.g. `size`. Of lists, such as ports, there is one of these for each element.
    pub what: String,
    /// What it was; left out if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What it is then; left out if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "{} {from} -> {to}", self.what),
            (Some(from), None) => write!(f, "without {} {from}", self.what),
            (None, Some(to)) => write!(f, "{} {to}", self.what),
            (None, None) => f.write_str(&self.what),
        }
    }
}

type Facts = Vec<(&'static str, String)>;

/// What an object (`volume/db-01`, `map/HOST/VOLUME`) is in one configuration and not in the other.
pub(crate) fn differences(object: &str, before: &Model, after: &Model) -> Vec<Difference> {
    let (was, is) = (facts(object, before), facts(object, after));
    let (was, is) = (was.unwrap_or_default(), is.unwrap_or_default());
    let mut all: Vec<Difference> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (what, _) in was.iter().chain(&is) {
        if !names.contains(what) {
            names.push(what);
        }
    }
    for what in names {
        let of = |here: &Facts, there: &Facts| {
            let only = here.iter().filter(|f| f.0 == what && !there.contains(f));
            only.map(|f| f.1.clone()).collect::<Vec<_>>()
        };
        let (gone, new) = (of(&was, &is), of(&is, &was));
        let one = |from, to| Difference { what: what.to_string(), from, to };
        match (&gone[..], &new[..]) {
            ([from], [to]) => all.push(one(Some(from.clone()), Some(to.clone()))),
            _ => {
                all.extend(gone.into_iter().map(|g| one(Some(g), None)));
                all.extend(new.into_iter().map(|n| one(None, Some(n))));
            }
        }
    }
    all.extend(other_secret(object, before, after));
    all
}

/// Whether there is such an object.
pub(crate) fn is_there(object: &str, model: &Model) -> bool {
    facts(object, model).is_some()
}

/// A secret is never shown, only that there is another.
fn other_secret(object: &str, before: &Model, after: &Model) -> Option<Difference> {
    let name = object.strip_prefix("host/")?;
    let (was, is) = (before.hosts.get(name)?, after.hosts.get(name)?);
    let other = was.keyed && is.keyed && was.secret != is.secret;
    other.then(|| Difference { what: "secret".into(), from: None, to: Some("another".into()) })
}

fn facts(object: &str, model: &Model) -> Option<Facts> {
    match object.split_once('/')? {
        ("pool", name) => model.pools.get(name).map(pool),
        ("volume", name) => model.volumes.get(name).map(volume),
        ("host", name) => model.hosts.get(name).map(host),
        ("target", name) => model.targets.get(name).map(target),
        ("map", pair) => {
            let (host, volume) = pair.split_once('/')?;
            let m = model.maps_of_host(host).find(|m| m.volume == volume)?;
            Some(vec![("LUN", m.lun.to_string())])
        }
        _ => None,
    }
}

fn device(d: &Device) -> String {
    let path = d.path.as_ref().map_or(String::new(), |p| format!(" {p}"));
    let told = !matches!(d.kind, DeviceKind::Dir | DeviceKind::Block | DeviceKind::Brp)
        && d.size != UNKNOWN_SIZE;
    let size = if told { format!(" {}", format_size(d.size)) } else { String::new() };
    format!("{}{path}{size}", d.kind.as_str())
}

fn pool(p: &Pool) -> Facts {
    let mut all = vec![(
        "protection",
        p.protection.as_ref().map_or("none".into(), |p| format!("raid {}", p.raid)),
    )];
    all.extend(p.protection.as_ref().map(|p| ("memory", p.memory.to_string())));
    all.extend(p.devices.iter().map(|d| ("device", device(d))));
    all
}

fn yes(what: &'static str, is: bool) -> Option<(&'static str, String)> {
    is.then(|| (what, "yes".to_string()))
}

fn volume(v: &Volume) -> Facts {
    let mut all = vec![
        ("pool", v.pool.clone()),
        ("size", format_size(v.size)),
        ("kind", v.kind.as_str().to_string()),
        ("block size", v.block_size.to_string()),
    ];
    let form: &Form = v.form();
    all.extend(form.words());
    all.extend(form.encryption.as_ref().map(|e| ("key", format!("from {}", e.key))));
    all.extend(yes("read only", v.read_only));
    all.extend(v.snapshots.iter().map(|s| ("snapshots", s.to_string())));
    all
}

fn host(h: &Host) -> Facts {
    let mut all: Facts = h.ports.iter().map(|p| ("port", p.to_string())).collect();
    all.extend(yes("any other port", h.allow_any));
    all.extend(yes("proves a secret", h.keyed));
    all
}

fn target(t: &TargetPort) -> Facts {
    let mut all: Facts = t.listen.iter().map(|a| ("address", a.clone())).collect();
    all.push(("protocol", format!("{:?}", t.protocol).to_lowercase()));
    all.push(("transport", format!("{:?}", t.transport).to_lowercase()));
    all.push(("channels", t.channels.to_string()));
    all.extend(t.cores.iter().map(|c| ("core", c.to_string())));
    all.push(("CRC", format!("{:?}", t.crc).to_lowercase()));
    all
}
