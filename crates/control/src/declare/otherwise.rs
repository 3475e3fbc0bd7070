//! Whether somebody wants an object otherwise than it is declared.

use super::Item;
use crate::model::{Host, HostSpec, Layout, Model, Pool, PoolSpec, Volume, VolumeSpec};

/// Whether a change gives something that is declared of an object another value, and not the declared one. What the declaration
/// leaves open says nothing: a volume that is to be larger may get another key meanwhile.
pub(crate) fn is_otherwise(item: &Item<'_>, old: &Model, new: &Model) -> bool {
    match item {
        Item::Pool(s) => {
            both(old.pools.get(&s.name), new.pools.get(&s.name), |w, is| pool(s, w, is))
        }
        Item::Volume(s) => {
            let (was, is) = (old.volumes.get(&s.name), new.volumes.get(&s.name));
            both(was, is, |was, is| volume(s, was, is))
        }
        Item::Host(s) => {
            both(old.hosts.get(&s.name), new.hosts.get(&s.name), |w, is| host(s, w, is))
        }
        Item::Map(s) => {
            let lun = |model: &Model| {
                model.maps_of_host(&s.host).find(|m| m.volume == s.volume).map(|m| m.lun)
            };
            both(lun(old).as_ref(), lun(new).as_ref(), |was, is| other(was, is, s.lun, |l| *l))
        }
        // Who changes a target port says all of it.
        Item::Target(s) => old.targets.get(&s.name) != new.targets.get(&s.name),
    }
}

/// What was and what is there; it is otherwise, too, if it is not there any more.
fn both<O>(was: Option<&O>, is: Option<&O>, then: impl Fn(Option<&O>, &O) -> bool) -> bool {
    match is {
        Some(is) => then(was, is),
        None => was.is_some(),
    }
}

/// Whether one part of it has changed, and is not as it is `wanted`. None is wanted where the declaration leaves it open.
fn other<O, T: PartialEq>(
    was: Option<&O>,
    is: &O,
    wanted: Option<T>,
    part: impl Fn(&O) -> T,
) -> bool {
    wanted.is_some_and(|w| part(is) != w && was.is_none_or(|was| part(was) != part(is)))
}

fn pool(s: &PoolSpec, was: Option<&Pool>, is: &Pool) -> bool {
    let raid = |p: &Pool| p.protection.as_ref().map(|p| p.raid);
    // Devices of a protected pool come and go by commands, and are not compared.
    let device = |i: usize| {
        let at = |p: &Pool| p.devices.get(i).map(|d| (d.kind, d.path.clone()));
        let size = |p: &Pool| p.devices.get(i).map(|d| d.size);
        let wanted = s.devices.get(i);
        let place = wanted.map(|d| Some((d.kind, d.path.clone())));
        other(was, is, Some(place.flatten()), at)
            || other(was, is, wanted.and_then(|d| d.size).map(Some), size)
    };
    other(was, is, Some(s.raid), raid)
        || other(was, is, s.memory.map(Some), |p| p.protection.as_ref().map(|p| p.memory))
        || s.raid.is_none() && (0..is.devices.len().max(s.devices.len())).any(device)
}

fn volume(s: &VolumeSpec, was: Option<&Volume>, is: &Volume) -> bool {
    let words = |v: &Volume, part: &str| {
        v.form().words().into_iter().find(|(p, _)| *p == part).map(|(_, how)| how)
    };
    let form = crate::model::Form::default().renewed(&s.form).unwrap_or_default();
    let is_formed = |part: &str| {
        let wanted = form.words().into_iter().find(|(p, _)| *p == part).map(|(_, how)| Some(how));
        other(was, is, wanted, |v| words(v, part))
    };
    let key = s.form.encryption.as_ref().map(|e| Some(e.key.to_string()));
    let stripe = |v: &Volume| match &v.layout {
        Layout::Stripe { chunk, columns } => Some((*chunk, columns.len())),
        _ => None,
    };
    other(was, is, Some(s.pool.clone()), |v| v.pool.clone())
        || other(was, is, Some(s.size), |v| v.size)
        || other(was, is, Some(s.read_only), |v| v.read_only)
        || other(was, is, s.kind, |v| v.kind)
        || other(was, is, s.block_size, |v| v.block_size)
        || other(was, is, s.serial.clone(), |v| v.serial.clone())
        || other(was, is, s.snapshots.clone(), |v| v.snapshots.clone())
        || other(was, is, key, |v| v.form().encryption.as_ref().map(|e| e.key.to_string()))
        || ["compression", "deduplication"].into_iter().any(is_formed)
        || other(was, is, s.chunk.map(Some), |v| stripe(v).map(|(chunk, _)| chunk))
        || other(was, is, s.columns.map(Some), |v| stripe(v).map(|(_, columns)| columns))
}

fn host(s: &HostSpec, was: Option<&Host>, is: &Host) -> bool {
    let all = was.iter().flat_map(|h| &h.ports).chain(&is.ports).chain(&s.ports);
    let is_other = |p| other(was, is, Some(s.ports.contains(p)), |h: &Host| h.ports.contains(p));
    all.into_iter().any(is_other)
        || other(was, is, Some(s.allow_any), |h| h.allow_any)
        || other(was, is, s.secret.clone().map(Some), |h| h.secret.clone())
}
