//! What the devices of a protected pool carry of the configuration, in parts, so that a change writes one or two of them however many
//! volumes there are.
//!
//! Part 0 is the pool itself. Each volume is in the part that its world-wide name says, with the LUNs under which hosts see it, each
//! host in the one that its own name says. What a part says, it says as of a [`Stamp`].

use super::*;
use crate::planted::{Bug, has};

/// Version of [`PoolRecord`]. Version 1 is all of it in part 0. What has another one is not understood.
pub(super) const VERSION: u32 = 2;
/// Parts for volumes and hosts, numbered from 1.
pub const RECORD_PARTS: u32 = 256;

/// When something was written: in which life of a configuration store, and as of which revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The life.
    pub life: String,
    /// The revision of the configuration.
    pub revision: u64,
}

/// What a pool's devices carry of the configuration: enough to use them on a node that knows nothing of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub(super) version: u32,
    pub(super) pool: String,
    pub(super) raid: Raid,
    #[serde(default)]
    pub(super) memory: MapMemory,
    pub(super) volumes: Vec<Volume>,
    /// Hosts that see some of the volumes, and as which LUNs.
    pub(super) hosts: Vec<Host>,
    pub(super) maps: Vec<Mapping>,
    /// The same of volumes that were left out when the pool was taken over, each with its host as it was then.
    #[serde(skip)]
    pub(super) aside: Vec<(Host, Mapping)>,
}

impl PoolRecord {
    /// As programs before kept it: all in one.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(&PoolRecord { version: 1, ..self.clone() }).ok()
    }

    /// Of a pool of which the part with the pool itself is lost.
    fn without_head() -> PoolRecord {
        PoolRecord {
            version: VERSION,
            pool: String::new(),
            raid: Raid::Zero,
            memory: MapMemory::default(),
            volumes: Vec::new(),
            hosts: Vec::new(),
            maps: Vec::new(),
            aside: Vec::new(),
        }
    }

    /// Hosts that see a volume, and as which LUNs.
    pub(super) fn seen_by(&self, volume: &str) -> Vec<(Host, u16)> {
        let of_map = |m: &Mapping| {
            let host = self.hosts.iter().find(|h| h.name == m.host)?;
            Some((host.clone(), m.lun))
        };
        let maps = self.maps.iter().filter(|m| m.volume == volume).filter_map(of_map);
        let aside = self.aside.iter().filter(|(_, m)| m.volume == volume);
        maps.chain(aside.map(|(host, m)| (host.clone(), m.lun))).collect()
    }
}

/// A part, to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPart {
    /// Its number.
    pub number: u32,
    /// What it says.
    pub content: Vec<u8>,
    /// Nothing older is to be left of it: it has wrapped keys, or had some.
    pub secret: bool,
}

/// What devices were found to carry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Carried {
    /// Parts by number, as bytes.
    pub parts: BTreeMap<u32, Vec<u8>>,
    /// Parts of which the newest cannot be read, or perhaps cannot.
    pub doubtful: Vec<u32>,
}

/// When a part was written, if it says.
fn stamp(part: &[u8]) -> Option<Stamp> {
    #[derive(Deserialize)]
    struct Stamped {
        stamp: Option<Stamp>,
    }
    serde_json::from_slice::<Stamped>(part).ok()?.stamp
}

impl Carried {
    /// Of a pool that carries one part only.
    pub fn one(content: Vec<u8>) -> Carried {
        Carried { parts: BTreeMap::from([(0, content)]), doubtful: Vec::new() }
    }

    /// When it was written, part by part. Those of programs that did not say are left out.
    pub fn stamps(&self) -> Vec<Stamp> {
        self.parts.values().filter_map(|c| stamp(c)).collect()
    }

    /// When the part with the pool itself was written, which says who took the pool over last.
    pub fn head_stamp(&self) -> Option<Stamp> {
        self.parts.get(&0).and_then(|c| stamp(c))
    }

    /// The volumes that were in that pool when this was written, as far as it makes sense: also of a newer program, and where a
    /// part of it cannot be read.
    pub fn holds(&self) -> BTreeSet<Naa> {
        let naa = |d: &serde_json::Value| {
            let volume = d.get("volume").unwrap_or(d);
            volume.get("naa")?.as_str()?.parse().ok()
        };
        let of_part = |content: &Vec<u8>| {
            let part: serde_json::Value = serde_json::from_slice(content).ok()?;
            Some(part.get("volumes")?.as_array()?.iter().filter_map(naa).collect::<Vec<Naa>>())
        };
        self.parts.values().filter_map(of_part).flatten().collect()
    }

    /// All volumes that are in that pool, if all of it can be read and makes sense.
    pub fn whole(&self) -> Option<BTreeSet<Naa>> {
        let is_whole = self.doubtful.is_empty() && self.parts.contains_key(&0);
        let record = self.record().ok().flatten().filter(|_| is_whole)?;
        Some(record.volumes.iter().map(|v| v.naa).collect())
    }

    /// All of it put together; none: there is nothing.
    ///
    /// # Errors
    /// Why it is of no use.
    pub(super) fn record(&self) -> Result<Option<PoolRecord>, String> {
        let no_sense = |e: serde_json::Error| format!("what the pool carries makes no sense: {e}");
        let head = self.parts.get(&0);
        let mut all: PoolRecord = match head {
            Some(head) => serde_json::from_slice(head).map_err(no_sense)?,
            None => PoolRecord::without_head(),
        };
        match all.version {
            1 => return Ok(Some(all)),
            VERSION => {}
            n => return Err(format!("they are of version {n}, of a newer program")),
        }
        for (_, content) in self.parts.range(1..) {
            let part: Found = serde_json::from_slice(content).map_err(no_sense)?;
            for d in part.volumes {
                let volume = &d.volume.name;
                let map = |(host, lun)| Mapping { host, lun, volume: volume.clone() };
                all.maps.extend(d.luns.into_iter().map(map));
                let map = |(host, lun): (Host, u16)| {
                    let name = host.name.clone();
                    (host, Mapping { host: name, lun, volume: volume.clone() })
                };
                all.aside.extend(d.seen_by.into_iter().map(map));
                all.volumes.push(d.volume);
            }
            all.hosts.extend(part.hosts);
        }
        if head.is_none() {
            // Volumes tell which pool they are in.
            let Some(v) = all.volumes.first() else { return Ok(None) };
            all.pool.clone_from(&v.pool);
        }
        all.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        all.hosts.sort_by(|a, b| a.name.cmp(&b.name));
        all.maps.sort();
        Ok(Some(all))
    }

    /// Why this program must not write in its place, if that is so: it does not understand it.
    pub fn foreign(&self) -> Option<String> {
        self.record().err()
    }
}

/// A part, as it is kept.
#[derive(Serialize)]
struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    stamp: Option<&'a Stamp>,
    #[serde(flatten)]
    what: &'a Said<'a>,
}

/// The part with the pool itself. Programs of version 1 find no volumes in it, and a version that they do not know.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    stamp: Option<&'a Stamp>,
    #[serde(flatten)]
    what: PoolRecord,
}

/// What a part says.
#[derive(Default, PartialEq, Eq, Serialize)]
struct Said<'a> {
    volumes: Vec<Described<'a>>,
    /// Without their secrets.
    hosts: Vec<Host>,
}

#[derive(PartialEq, Eq, Serialize)]
struct Described<'a> {
    volume: &'a Volume,
    luns: Vec<(&'a str, u16)>,
    /// Of one that was left out when the pool was taken over: hosts as they were then. Programs before know nothing of it.
    #[serde(skip_serializing_if = "is_none")]
    seen_by: &'a [(Host, u16)],
}

fn is_none(seen_by: &&[(Host, u16)]) -> bool {
    seen_by.is_empty()
}

#[derive(Deserialize)]
struct Found {
    volumes: Vec<FoundVolume>,
    hosts: Vec<Host>,
}

#[derive(Deserialize)]
struct FoundVolume {
    volume: Volume,
    luns: Vec<(String, u16)>,
    #[serde(default)]
    seen_by: Vec<(Host, u16)>,
}

fn part_of_volume(naa: Naa) -> u32 {
    1 + (naa.0 % u128::from(RECORD_PARTS)) as u32
}

/// FNV-1a of the name says it.
fn part_of_host(name: &str) -> u32 {
    let step = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
    1 + name.bytes().fold(0x811c_9dc5, step) % RECORD_PARTS
}

impl Said<'_> {
    fn has_keys(&self) -> bool {
        let there = |v: &Volume| v.migration.as_ref().map(|m| m.layout.form().encryption.is_some());
        self.volumes
            .iter()
            .any(|d| d.volume.form().encryption.is_some() || there(d.volume).unwrap_or_default())
    }

    fn bytes(&self, stamp: Option<&Stamp>) -> Result<Vec<u8>> {
        written(&Part { stamp, what: self })
    }
}

fn written<T: Serialize>(what: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(what).map_err(|e| {
        Error::new(Code::Internal, "what pools carry cannot be written as JSON").because(e)
    })
}

impl Model {
    /// What the devices of a protected pool are to carry of the configuration.
    ///
    /// # Errors
    /// There is no such pool, or it is a plain one.
    pub fn pool_record(&self, name: &str) -> Result<PoolRecord> {
        let mut record = self.record_head(name)?;
        for said in self.said(name).into_values() {
            record.hosts.extend(said.hosts);
            for Described { volume, luns, .. } in said.volumes {
                let map = |(host, lun): (&str, u16)| Mapping {
                    host: host.to_owned(),
                    lun,
                    volume: volume.name.clone(),
                };
                record.maps.extend(luns.into_iter().map(map));
                record.volumes.push(volume.clone());
            }
        }
        record.maps.sort();
        record.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        record.hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(record)
    }

    fn record_head(&self, name: &str) -> Result<PoolRecord> {
        let pool = self.pool(name)?;
        let Some(p) = &pool.protection else {
            return Err(Error::new(Code::Unsupported, format!("`{name}` is a plain pool")));
        };
        let none = PoolRecord::without_head();
        Ok(PoolRecord { pool: name.to_string(), raid: p.raid, memory: p.memory, ..none })
    }

    /// What the parts from 1 on are to say, but for those that have nothing to say.
    fn said<'a>(&'a self, pool: &'a str) -> BTreeMap<u32, Said<'a>> {
        let mut luns: BTreeMap<&str, Vec<(&str, u16)>> = BTreeMap::new();
        let of_pool = |m: &&Mapping| self.volumes.get(&m.volume).is_some_and(|v| v.pool == pool);
        let mut hosts = BTreeSet::new();
        for m in self.maps.iter().filter(of_pool) {
            luns.entry(&m.volume).or_default().push((&m.host, m.lun));
            hosts.insert(m.host.as_str());
        }
        let mut all: BTreeMap<u32, Said<'_>> = BTreeMap::new();
        let left = self.pools.get(pool).map_or(&[][..], |p| &p.left);
        for l in left {
            let (mut luns, mut seen_by) = (Vec::new(), &l.seen_by[..]);
            if has(Bug::LeftByName) {
                luns = seen_by.iter().map(|(host, lun)| (host.name.as_str(), *lun)).collect();
                hosts.extend(luns.iter().map(|(host, _)| *host));
                seen_by = &[];
            }
            let said = all.entry(part_of_volume(l.volume.naa)).or_default();
            said.volumes.push(Described { volume: &l.volume, luns, seen_by });
        }
        for volume in self.volumes_of_pool(pool) {
            // One that is shown as it is stored, since what is said of it makes no sense here: that says more.
            let is_left = || left.iter().any(|l| l.volume.dataset() == volume.dataset());
            if volume.read_only && *volume.form() == Form::default() && is_left() {
                continue;
            }
            let luns = luns.remove(volume.name.as_str()).unwrap_or_default();
            let said = all.entry(part_of_volume(volume.naa)).or_default();
            said.volumes.push(Described { volume, luns, seen_by: &[] });
        }
        for host in hosts.into_iter().filter_map(|h| self.hosts.get(h)) {
            all.entry(part_of_host(&host.name)).or_default().hosts.push(host.without_secret());
        }
        all
    }

    /// The parts that are to be kept so that the devices of a protected pool carry what they should, where they carry what they
    /// should have by an earlier model: the pool itself last.
    ///
    /// # Errors
    /// There is no such pool, or it is a plain one.
    pub fn changed_parts(
        &self,
        pool: &str,
        before: &Model,
        stamp: &Stamp,
    ) -> Result<Vec<RecordPart>> {
        let (old, new) = (before.said(pool), self.said(pool));
        let none = Said::default();
        let mut parts = Vec::new();
        for number in 1..=RECORD_PARTS {
            let (old, new) = (old.get(&number).unwrap_or(&none), new.get(&number).unwrap_or(&none));
            if old != new {
                let secret = old.has_keys() || new.has_keys();
                parts.push(RecordPart { number, content: new.bytes(Some(stamp))?, secret });
            }
        }
        let head = self.record_head(pool)?;
        if before.record_head(pool).ok().as_ref() != Some(&head) {
            let content = written(&Head { stamp: Some(stamp), what: head })?;
            parts.push(RecordPart { number: 0, content, secret: false });
        }
        Ok(parts)
    }

    /// The same where they carry what was read from them.
    ///
    /// # Errors
    /// As [`changed_parts`](Model::changed_parts) has them.
    pub fn missing_parts(
        &self,
        pool: &str,
        there: &Carried,
        stamp: &Stamp,
    ) -> Result<Vec<RecordPart>> {
        let bare = |c: &[u8]| -> Option<serde_json::Value> {
            let mut v: serde_json::Value = serde_json::from_slice(c).ok()?;
            v.as_object_mut()?.remove("stamp");
            Some(v)
        };
        let same = |number: u32, content: &[u8]| match there.parts.get(&number) {
            Some(old) => !there.doubtful.contains(&number) && bare(old) == bare(content),
            None => false,
        };
        let (all, none) = (self.said(pool), Said::default());
        let mut parts = Vec::new();
        for number in 1..=RECORD_PARTS {
            let said = all.get(&number).unwrap_or(&none);
            let nothing = *said == none && !there.parts.contains_key(&number);
            if !nothing && !same(number, &said.bytes(None)?) {
                let content = said.bytes(Some(stamp))?;
                // What was there before is not known well enough.
                parts.push(RecordPart { number, content, secret: true });
            }
        }
        let head = self.record_head(pool)?;
        if !same(0, &written(&Head { stamp: None, what: head.clone() })?) {
            let content = written(&Head { stamp: Some(stamp), what: head })?;
            // A program before kept everything there.
            parts.push(RecordPart { number: 0, content, secret: true });
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests;
