//! Devices of a pool that are not where they were, or in whose place something else may be: where they are by now.

use super::kind::may_be;
use super::known::{Known, Name, Standing, age, best_of};
use super::open::Found;
use super::seen::{Seen, is_still, see};
use crate::plane::devices::Owner;
use crate::plane::local::{Local, look};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use weir_control::Code;
use weir_control::model::{Device, DeviceKind, Pool};
use weir_reactor::spawn;
use weir_store::{LogEnd, Told};
use weir_uring::Identity;
use weir_uring::device::same_name;

/// Files looked at in a directory, at most.
const MOST_FILES: usize = 256;
/// Paths that are looked at side by side.
const AT_ONCE: usize = 16;

/// Where devices may be that are not where they were: all block devices, and what lies beside files that are.
async fn candidates(pool: &Pool) -> Vec<String> {
    let mut found = Vec::new();
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    for line in partitions.lines().skip(2) {
        found.extend(line.split_whitespace().nth(3).map(|name| format!("/dev/{name}")));
    }
    let files = pool.devices.iter().filter(|d| d.kind == DeviceKind::File);
    let dirs: BTreeSet<_> = files.filter_map(|d| Path::new(d.path.as_deref()?).parent()).collect();
    for dir in dirs {
        let at = dir.to_owned();
        let list = move || -> Option<Vec<String>> {
            let entries = std::fs::read_dir(at).ok()?.flatten();
            let files = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
            Some(files.take(MOST_FILES).map(|e| e.path().display().to_string()).collect())
        };
        // One that does not answer hides nothing of the others.
        found.extend(look(&dir.join("all"), list).await.flatten().unwrap_or_default());
    }
    found.retain(|p| pool.devices.iter().all(|d| d.path.as_ref() != Some(p)));
    found
}

/// A device of the pool that is there.
struct Here {
    found: Found,
    /// What it says to be.
    device: u64,
    standing: Standing,
}

/// What a path leads to, and what follows of that for the pool.
enum Elsewhere {
    /// A device of the pool that has got another name.
    Renamed(Box<Here>),
    /// Nothing that the pool lacks.
    Other,
    /// It carries the pool's label, and may be a copy of long ago.
    Copy,
    /// It did not answer, or cannot be read.
    Silent,
    /// It carries the pool's label, and how far it has come cannot be read.
    Unread,
    /// It is a device that the pool lacks, and cannot be had: why.
    Unusable(String),
    /// Somebody else has it, who may write to it: why it cannot be had.
    Used(String),
    /// It has what nobody else has: the pool went on with it.
    Newer,
}

impl Elsewhere {
    /// Why it is not used.
    fn why_not(&self) -> Option<String> {
        Some(match self {
            Elsewhere::Renamed(_) | Elsewhere::Other => return None,
            Elsewhere::Copy => "it carries the pool's label, and may be an old copy: `weir pool release` and `weir pool import` take it all the same".into(),
            Elsewhere::Silent => "it does not answer, or cannot be read, and may be a device that is missing: `weir pool attach` brings it back when it does".into(),
            Elsewhere::Unread => "it carries the pool's label, and how far it has come cannot be read: it may have what the others have not. `weir pool force` goes on without it".into(),
            Elsewhere::Unusable(why) => format!("it is a device that is missing, and cannot be used ({why})"),
            Elsewhere::Used(why) => format!("it is a device that is missing, or a copy, and in use ({why}): end its use there"),
            Elsewhere::Newer => "it has what the others have not, as the pool was used without them: `weir pool release` and `weir pool import` take it".into(),
        })
    }
}

/// A path at which a device could not be held, and whether somebody else uses it.
pub(super) struct Unheld {
    pub(super) path: String,
    pub(super) in_use: bool,
}

/// What keeps a pool from being opened without devices, or at all.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// One that was not read may be a device that is missing.
    pub(super) silent: bool,
    /// One has what the others have not, or is being changed by somebody else.
    pub(super) ahead: bool,
    /// What has more than all that is there and says to be a device that is there as well: which of the two is right, nobody knows.
    pub(super) newer: Option<String>,
}

/// The devices of a pool that are there, and the look for the others.
pub(super) struct Search<'a> {
    local: &'a Rc<Local>,
    owner: &'a Owner,
    pool: &'a Pool,
    id: u128,
    known: Known,
    here: Vec<Here>,
    doubt: Doubt,
    /// Paths that are not used, and why.
    unused: Vec<(String, String)>,
}

impl<'a> Search<'a> {
    /// Of the devices that are where they were, with what their labels say that they are.
    pub(super) async fn new(
        local: &'a Rc<Local>,
        owner: &'a Owner,
        (pool, id): (&'a Pool, u128),
        ours: Vec<(Found, u64)>,
        unused: Vec<(String, String)>,
    ) -> Search<'a> {
        let (known, doubt) = (Known::default(), Doubt::default());
        let mut s = Search { local, owner, pool, id, known, here: Vec::new(), doubt, unused };
        for (found, device) in ours {
            let end = weir_store::log_end(&found.disk).await.ok();
            // What can be read counts. How far the device has come is not known, unless all can.
            end.iter().for_each(|end| s.known.add(end));
            let end = end.filter(|end| !end.unread);
            let name = Name::of(s.recorded(&found.path), found.name.as_deref());
            s.add(Here { found, device, standing: Standing { end, name } });
        }
        s
    }

    /// What was used, what was not, and what is in doubt.
    pub(super) fn end(self) -> (Vec<Found>, Vec<(String, String)>, Doubt) {
        (self.here.into_iter().map(|h| h.found).collect(), self.unused, self.doubt)
    }

    /// What the configuration has of the device at a path.
    fn known_at(&self, path: &str) -> Option<&Device> {
        self.pool.devices.iter().find(|d| d.path.as_deref() == Some(path))
    }

    /// What the device at a path was told from others by.
    fn recorded(&self, path: &str) -> Option<&str> {
        self.known_at(path)?.identity.as_deref()
    }

    fn add(&mut self, new: Here) {
        new.standing.end.iter().for_each(|end| self.known.add(end));
        self.here.push(new);
    }

    fn at(&self, device: u64) -> Option<&Here> {
        self.here.iter().find(|h| h.device == device)
    }

    /// Whether a device is there, and no old copy of it.
    fn is_sure(&self, device: u64) -> bool {
        self.at(device).is_some_and(|h| !self.known.doubts(&h.standing))
    }

    /// Does without what is at a path, where `other` is the device that it says to be.
    fn leave_out(&mut self, gone: Here, other: &str) {
        let path = gone.found.path.clone();
        tracing::warn!(pool = %self.pool.name, "{path} is left out: it is a copy of {other}");
        // Whoever has to may look at it.
        drop(gone);
        self.local.holds.release_path(self.owner, Path::new(&path));
        self.unused.push((path, format!("it is a copy of the device at {other}, and left out")));
    }

    /// Of several that say to be one device the newest counts.
    pub(super) fn leave_copies_out(&mut self) {
        let mut all = std::mem::take(&mut self.here);
        while !all.is_empty() {
            let device = all[0].device;
            let (mut same, rest): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|h| h.device == device);
            all = rest;
            // The first of those that are alike.
            let Some(n) = best_of(same.iter().map(|h| &h.standing)) else { continue };
            let best = same.remove(n);
            for copy in same {
                // It may have what the other one has not.
                self.doubt.silent |= copy.standing.end.is_none();
                self.leave_out(copy, &best.found.path);
            }
            self.here.push(best);
        }
    }

    /// Whether a device of the pool is not there, as the newest of those says that are. That as many are there as the
    /// configuration names says nothing: one out of service may have got the name of another.
    async fn lacks_one(&self) -> bool {
        self.here.len() < self.pool.devices.len()
            || self.newest().await.is_some_and(|t| t.members.iter().any(|m| self.at(*m).is_none()))
    }

    /// What the newest of those says that are there.
    async fn newest(&self) -> Option<Told> {
        let mut newest: Option<Told> = None;
        for h in &self.here {
            let told = weir_store::told_by(&h.found.disk).await.ok();
            newest = newest.into_iter().chain(told).max_by_key(|t| t.seq);
        }
        newest
    }

    /// Whether anything is to be looked for.
    pub(super) async fn is_due(&self) -> bool {
        self.here.iter().any(|h| self.known.doubts(&h.standing)) || self.lacks_one().await
    }

    /// What is at these paths. One that does not answer keeps only itself waiting.
    async fn see_all(&self, paths: Vec<String>) -> Vec<(String, Seen)> {
        let own: Rc<[Identity]> = self.here.iter().filter_map(|h| h.found.identity).collect();
        let mut all = Vec::new();
        for some in paths.chunks(AT_ONCE) {
            let look = |path: &String| {
                let seen = see(self.local.clone(), path.clone(), self.id, own.clone());
                (path.clone(), spawn(seen))
            };
            let looks: Vec<_> = some.iter().map(look).collect();
            for (path, look) in looks {
                all.push((path, look.await.unwrap_or(Seen::Silent)));
            }
        }
        all
    }

    /// Looks for devices that are not there, or of which there may be an old copy, by other names than they had. What could not be
    /// held may still be read.
    pub(super) async fn look(&mut self, unheld: Vec<Unheld>) {
        let mut paths = candidates(self.pool).await;
        paths.extend(unheld.iter().map(|u| u.path.clone()));
        let in_use = |path: &str| unheld.iter().any(|u| u.in_use && u.path == path);
        let mut seen = self.see_all(paths).await;
        // So nothing is found to be a copy only when its better has come.
        seen.sort_by_key(|(_, seen)| Reverse(seen.end().map(age)));
        let mut doubts = Vec::new();
        for (path, seen) in seen {
            let (device, end) = (seen.device(), seen.end().copied());
            let in_use = in_use(&path) && !seen.is_nothing_missing();
            match self.judge(&path, seen).await {
                Elsewhere::Renamed(new) => self.take(*new),
                doubt => doubts.push((path, device, end, in_use, doubt)),
            }
        }
        // Each may be found by a later path to be a device that is there.
        for (path, device, end, in_use, doubt) in doubts {
            if device.is_some_and(|d| self.is_sure(d)) {
                continue;
            }
            if let Some(h) = device.and_then(|d| self.at(d))
                && end.is_some_and(|end| self.known.is_behind(&end))
            {
                let text = format!("{path} has more than {}, and says to be it", h.found.path);
                self.doubt.newer.get_or_insert(text);
            }
            let is_ahead =
                matches!(doubt, Elsewhere::Used(_) | Elsewhere::Newer | Elsewhere::Unread);
            self.doubt.silent |= matches!(doubt, Elsewhere::Silent | Elsewhere::Unusable(_));
            self.doubt.ahead |= is_ahead || in_use;
            // Of one of its own, why it cannot be had says more.
            let is_told = self.unused.iter().any(|(p, _)| *p == path);
            if !(is_told && matches!(doubt, Elsewhere::Copy)) {
                self.unused.extend(doubt.why_not().map(|why| (path, why)));
            }
        }
    }

    /// Has what was found count, instead of what may be an old copy of it.
    fn take(&mut self, new: Here) {
        let path = new.found.path.clone();
        if let Some(n) = self.here.iter().position(|h| h.device == new.device) {
            let old = self.here.remove(n);
            self.leave_out(old, &path);
        }
        // It could not be had before, and can by now.
        self.unused.retain(|(p, _)| *p != path);
        self.add(new);
    }

    /// Whether a device that was seen elsewhere is the very one that was where now is `at`, or one that is missing, by its name: of
    /// one that is there, by what is recorded of its path; of one that is missing, by what is recorded of nothing that is there.
    /// Where nothing is recorded, one of its kind passes that is as new as the others for sure.
    fn is_it(&self, at: Option<&Here>, path: &str, name: Option<&str>, end: &LogEnd) -> bool {
        let passes = |d: &Device| match d.identity.as_deref() {
            None => self.known.proves(end) && may_be(d, path, name),
            Some(r) => name.is_some_and(|n| same_name(r, n)),
        };
        let is_there = |path: Option<&str>, recorded: Option<&str>| {
            self.here.iter().any(|h| match (recorded, h.found.name.as_deref()) {
                (None, _) => path == Some(h.found.path.as_str()),
                (Some(r), name) => name.is_some_and(|n| same_name(r, n)),
            })
        };
        match at {
            // Both have the name: a path to the same disk, or names that say too little.
            Some(h) if h.standing.name == Name::Recorded => false,
            Some(h) => self.known_at(&h.found.path).is_some_and(passes),
            None => self
                .pool
                .devices
                .iter()
                .any(|d| passes(d) && !is_there(d.path.as_deref(), d.identity.as_deref())),
        }
    }

    /// Opens what was seen at a path if it is a device of the pool that is not there yet, or of which an old copy is there: the very
    /// disk or file that the pool had. Where the system does not tell disks from each other, one passes that is as new as the
    /// others for sure.
    async fn judge(&self, path: &str, seen: Seen) -> Elsewhere {
        let l = match seen {
            Seen::Silent => return Elsewhere::Silent,
            Seen::Own | Seen::Foreign | Seen::Closed => return Elsewhere::Other,
            Seen::Ours(l) => l,
        };
        if self.is_sure(l.device) {
            return Elsewhere::Other;
        }
        // One that has left the pool is none that it lacks.
        let Some(end) = l.end else {
            let has_left = l.has_left(self.newest().await.as_ref());
            return if has_left { Elsewhere::Copy } else { Elsewhere::Unread };
        };
        let at = self.at(l.device);
        let may = self.known.agrees(&end)
            && at.is_none_or(|h| self.known.may_displace(&h.standing, &end));
        if !may {
            // Of one that is there nobody needs to know of copies.
            return if at.is_some() { Elsewhere::Other } else { Elsewhere::Copy };
        }
        // Whether it can be used says nothing of what it has.
        let is_newer = self.known.is_behind(&end);
        let is_it = self.is_it(at, path, l.name.as_deref(), &end);
        let if_no_other = if is_newer { Elsewhere::Newer } else { Elsewhere::Copy };
        let (holds, by, to) = (self.local.holds.clone(), self.owner.clone(), path.to_owned());
        let held = match look(Path::new(path), move || holds.hold_now(&by, &to)).await {
            None => return Elsewhere::Silent,
            Some(Err(e)) if e.code == Code::DeviceInUse => return Elsewhere::Used(e.reason),
            // That it cannot be used does not make it a copy.
            Some(Err(e)) if is_it && !is_newer => return Elsewhere::Unusable(e.reason),
            Some(Err(_)) => return if_no_other,
            Some(Ok(held)) => held.keep(),
        };
        // Another one may have the path since.
        let name = held.lasting_name().map(str::to_owned);
        let disk = self.local.disk(Path::new(path), &held).ok().filter(|_| is_it && name == l.name);
        let otherwise = match disk {
            Some(disk) if is_still(&disk, (self.id, l.device), &end).await => {
                let standing = Standing { end: Some(end), name: Name::Recorded };
                let (identity, held) = (Some(held.identity()), Arc::downgrade(&held));
                let (path, remote) = (path.into(), std::rc::Weak::new());
                let found = Found { path, disk, name, identity, held, remote };
                return Elsewhere::Renamed(Box::new(Here { found, device: l.device, standing }));
            }
            Some(_) => Elsewhere::Silent,
            None => if_no_other,
        };
        self.local.holds.release_path(self.owner, Path::new(path));
        otherwise
    }
}
