//! What is below a device that comes to somebody, above it and beside it: whose that is.

use super::admit::kept;
use super::{Holds, Owner, belongs, in_use, unusable};
use std::path::{Path, PathBuf};
use weir_control::{Code, Result};
use weir_uring::device::{
    Below, Extent, PAGE, Part, above, below, below_bytes, node_of, soon_at, unclear_loops,
    used_beside,
};
use weir_uring::{Held, Identity};

fn made_of(part: &Part) -> String {
    format!("{} is made of `{}`", part.of.display(), part.name.display())
}

/// What it is made of. A loop device that does not answer is no use by others.
fn below_of(held: &Held, path: &Path) -> Result<Below> {
    below(held.identity(), held.path()).map_err(|why| unusable(path, why))
}

/// Refuses what a loop device may show beside these, which does not say what it is made of: who takes bytes anew asks for certainty.
fn check_clear(parts: &[Part], path: &Path) -> Result<()> {
    // These are the way down, by whatever names.
    let is_one = |node: &PathBuf| parts.iter().any(|part| part.of == *node);
    let number = |part: &Part| std::fs::metadata(&part.of).ok().and_then(|m| Identity::of(&m));
    let own: Vec<_> = parts.iter().filter_map(number).collect();
    for part in parts {
        let unclear = unclear_loops(part.identity, &own);
        if let Some(node) = unclear.into_iter().find(|node| !is_one(node)) {
            let why = format!(
                "{}, and {} may be: it does not say what it is made of",
                made_of(part),
                node.display()
            );
            return Err(in_use(path, why));
        }
    }
    Ok(())
}

/// Refuses bytes of `this` that a partition has as well.
fn check_no_partition(bytes: Extent, this: Identity, path: &Path) -> Result<()> {
    match bytes.partitions().into_iter().find(|p| *p != this) {
        None => Ok(()),
        Some(p) => {
            let name = node_of(p).unwrap_or_else(|| "a partition".into());
            Err(in_use(path, format!("{} has some of these bytes", name.display())))
        }
    }
}

fn is_of(part: &Part, held: &Held) -> bool {
    let of = std::fs::metadata(&part.of).ok().and_then(|m| Identity::of(&m));
    of == Some(held.identity())
}

/// To whom something comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To<'a> {
    /// Somebody who has not had it, or of whom nothing tells that.
    New,
    /// The pool that its label tells, which may have had it before a directory around it became another's. If it sees itself what is in
    /// service, it is named: then it may still have the same by another device, which has failed.
    Back(Option<&'a Owner>),
}

impl<'a> To<'a> {
    /// Who may have it by another device.
    pub(super) fn its_own(self) -> Option<&'a Owner> {
        match self {
            To::New => None,
            To::Back(owner) => owner,
        }
    }
}

impl Holds {
    /// Refuses what is in a directory of a pool of this node; of what comes back the files of volumes only, as at a start.
    pub(super) fn check_inside_none(&self, path: &Path, is: Identity, to: To<'_>) -> Result<()> {
        match to {
            To::New => self.check_outside(path),
            To::Back(_) => self.check_no_file(path, is),
        }
    }

    /// Refuses a loop device, or what is made of one, that shows what somebody has: the kernel gives it to both.
    pub(super) fn check_below(&self, held: &Held, path: &Path, to: To<'_>) -> Result<()> {
        let Below { parts, beside } = below_of(held, path)?;
        // It is claimed by its own pool then.
        let is_own = |bytes: Extent| {
            let has = |i: &Identity| self.has(*i, |owner| Some(owner) == to.its_own());
            bytes.had_by().iter().any(has)
        };
        if to == To::New {
            check_clear(&parts, path)?;
        }
        for part in parts {
            self.check_part_unused(&part, path, to, is_own)?;
        }
        self.check_beside(&beside, path, to.its_own())?;
        match kept(|| used_beside(&beside, is_own)) {
            Some(why) => Err(in_use(path, format!("what it is made of is in use: {why}"))),
            None => Ok(()),
        }
    }

    fn check_part_unused(
        &self,
        part: &Part,
        path: &Path,
        to: To<'_>,
        is_own: impl Fn(Extent) -> bool,
    ) -> Result<()> {
        let inside = || self.check_inside_none(&part.name, part.identity, to);
        self.check_part(part, path, to.its_own(), inside)?;
        match kept(|| part.used_by(&is_own)) {
            Some(why) => Err(in_use(path, format!("{}, which is in use: {why}", made_of(part)))),
            None => Ok(()),
        }
    }

    /// Refuses bytes of a device that its `pool` has not had yet, if anything else shows some of them, or may. Whether somebody has
    /// that now does not matter: it may be a pool's or a volume's that is not up. In its pool the device has this number.
    pub(super) fn check_gained_below(
        &self,
        held: &Held,
        (path, pool, number): (&Path, Option<&str>, u32),
        bytes: Extent,
    ) -> Result<()> {
        let found = below_bytes((held.identity(), held.path()), bytes);
        let Below { parts, beside } = found.map_err(|why| unusable(path, why))?;
        check_no_partition(bytes, held.identity(), path)?;
        check_clear(&parts, path)?;
        let of_parts = parts.iter().flat_map(|part| &part.beside);
        if let Some((node, _)) = beside.iter().chain(of_parts).next() {
            return Err(in_use(path, format!("{} shows some of these bytes", node.display())));
        }
        for part in &parts {
            check_no_partition(part.bytes, part.identity, path)?;
            self.check_part_unused(part, path, To::New, |_| false)?;
        }
        self.check_labels_below(held, &parts, (path, pool, Some(number)), || 0)
    }

    /// Refuses a device of a pool of which nothing tells that it is this one, if another device which that pool has shows some of the
    /// bytes that it had.
    pub(super) fn check_not_twice(
        &self,
        held: &Held,
        path: &Path,
        (owner, had): (&Owner, u64),
    ) -> Result<()> {
        let bytes = Extent::of(held.identity(), 0, had);
        let found = below_bytes((held.identity(), held.path()), bytes);
        let Below { parts, mut beside } = found.map_err(|why| unusable(path, why))?;
        beside.extend(above(bytes));
        for part in parts {
            beside.push((part.name, part.bytes));
            beside.extend(part.beside);
        }
        let has = |i: &Identity| *i != held.identity() && self.has(*i, |other| other == owner);
        match beside.iter().find(|(_, bytes)| bytes.had_by().iter().any(has)) {
            Some((node, _)) => {
                let why = format!("{} shows some of it, another device of {owner}", node.display());
                Err(in_use(path, why))
            }
            None => Ok(()),
        }
    }

    /// As [`check_below`](Holds::check_below) where what somebody has comes to them again: it refuses what others have of this node,
    /// above it or below, up or not.
    /// What is beside it may be `its_own`, such as a device of the pool that comes back by another path. So many of its first bytes are
    /// `for_hosts`, as its own label behind them tells: labels in them are what those have written.
    pub(super) fn check_below_again(
        &self,
        held: &Held,
        path: &Path,
        its_own: Option<&Owner>,
        for_hosts: impl Fn() -> Result<u64>,
    ) -> Result<()> {
        self.check_above(held, path, its_own)?;
        let Below { parts, beside } = below_of(held, path)?;
        for part in &parts {
            self.check_part(part, path, its_own, || self.check_no_file(&part.name, part.identity))?;
        }
        self.check_beside(&beside, path, its_own)?;
        let pool = match its_own {
            Some(Owner::Pool(name)) => Some(name.as_str()),
            _ => None,
        };
        self.check_labels_below(held, &parts, (path, pool, None), || for_hosts().unwrap_or(0))
    }

    fn check_image_beside(&self, beside: &(PathBuf, Extent), path: &Path) -> Result<()> {
        let (node, bytes) = (beside.0.display(), beside.1);
        self.check_image(&beside.0, &bytes.had_by(), None, None).map_err(|e| match e.code {
            Code::IoError => unusable(path, format!("{node}: {}", e.reason)),
            _ => {
                let why = format!("{node} shows some of what it is made of: {}", e.reason);
                in_use(path, why).hint(e.hint)
            }
        })
    }

    /// Refuses what others have by loop devices that show what this is made of.
    fn check_beside(
        &self,
        beside: &[(PathBuf, Extent)],
        path: &Path,
        but: Option<&Owner>,
    ) -> Result<()> {
        for (node, bytes) in beside {
            if let Some(owner) = self.owner_among(bytes.had_by(), but) {
                let why = format!(
                    "{} shows some of what it is made of, and belongs to {owner}",
                    node.display()
                );
                return Err(in_use(path, why));
            }
        }
        Ok(())
    }

    /// Refuses what belongs to others of this node, up or not, but for one owner; and where it is `inside` of what is theirs.
    fn check_part(
        &self,
        part: &Part,
        path: &Path,
        but: Option<&Owner>,
        inside: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if let Some(owner) = self.owner_below(part, but) {
            let why = format!("{}, which belongs to {owner}", made_of(part));
            return Err(in_use(path, why));
        }
        // Where that is not up, its path tells.
        self.known_as(part, inside).map_err(|e| match e.code {
            // Nobody was found to have it: that could not be asked.
            Code::IoError => unusable(path, format!("{}: {}", made_of(part), e.reason)),
            _ => in_use(path, format!("{}, {e}", made_of(part))),
        })
    }

    /// Refuses what others have by something that is made of it.
    pub(super) fn check_above(
        &self,
        held: &Held,
        path: &Path,
        its_own: Option<&Owner>,
    ) -> Result<()> {
        for (node, bytes) in above(Extent::all(held.identity())) {
            if let Some(owner) = self.owner_among(bytes.had_by(), its_own) {
                let why = format!("{} is made of it, which belongs to {owner}", node.display());
                return Err(in_use(path, why));
            }
        }
        Ok(())
    }

    /// Who has one of these, but for one owner.
    fn owner_among(
        &self,
        all: impl IntoIterator<Item = Identity>,
        but: Option<&Owner>,
    ) -> Option<Owner> {
        all.into_iter().find_map(|identity| {
            let held = self.owner_of(identity).map(|(owner, _)| owner);
            held.or_else(|| self.yielded_of(identity)).filter(|owner| Some(owner) != but)
        })
    }

    /// Who has those bytes that a loop device is made of, by themselves or by another device that shows some of them.
    fn owner_below(&self, part: &Part, but: Option<&Owner>) -> Option<Owner> {
        let beside = part.beside.iter().map(|(_, bytes)| *bytes);
        let all = std::iter::once(part.bytes).chain(beside).flat_map(Extent::had_by);
        self.owner_among(all, but)
    }

    fn known_as(&self, part: &Part, inside: impl Fn() -> Result<()>) -> Result<()> {
        let there = soon_at(&part.name).map_err(|e| unusable(&part.name, e))?;
        let there = there.filter(|t| t.identity == part.identity);
        let lasting = there.as_ref().and_then(|t| t.lasting.as_deref());
        self.check_image(&part.name, &part.bytes.had_by(), lasting, None)?;
        match there {
            Some(_) => inside(),
            None => Ok(()),
        }
    }

    /// Refuses a loop device that shows some of what, as a label says, is a device of a pool of this node, but for this one: also where
    /// it does not show that label. What cannot be read is not judged here. And what is new where something that shows the same is a
    /// volume which is not up.
    pub(crate) fn check_belongs_below(
        &self,
        held: &Held,
        path: &Path,
        pool: Option<&str>,
        to: To<'_>,
    ) -> Result<()> {
        let Below { parts, beside } = below_of(held, path)?;
        self.check_labels_below(held, &parts, (path, pool, None), || 0)?;
        let all = parts.iter().map(|p| p.beside.as_slice()).chain([beside.as_slice()]);
        all.filter(|_| to == To::New).flatten().try_for_each(|b| self.check_image_beside(b, path))
    }

    /// The same of what it was found to be made of. With a number, also what is another device of its own pool.
    fn check_labels_below(
        &self,
        held: &Held,
        all: &[Part],
        (path, pool, number): (&Path, Option<&str>, Option<u32>),
        for_hosts: impl Fn() -> u64,
    ) -> Result<()> {
        for part in all {
            let there = soon_at(&part.name).map_err(|e| unusable(path, e))?;
            if there.is_none_or(|t| t.identity != part.identity) {
                continue;
            }
            let Ok(below) = Held::beside(&part.name) else { continue };
            // Beside these bytes there may be other pools' devices.
            let shown = belongs::spans(&below, path).unwrap_or_default().into_iter();
            let shown = shown.filter(|s| part.bytes.meets(part.identity, s.from, s.to));
            // Where something else is between them, nothing tells where its first bytes are.
            let first = || match is_of(part, held) {
                true => part.bytes.first(for_hosts()),
                false => part.bytes.first(0),
            };
            let shown = shown.filter(|s| !first().meets(part.identity, s.at, s.at + PAGE));
            // What another device shows that is up is its owner's, or written by hosts: it says nothing of these bytes.
            let page = |at| Extent::of(part.identity, at, at + PAGE);
            let shown = shown.filter(|s| !self.is_of_others(page(s.at), held.identity()));
            let labels: Vec<_> = shown.map(|s| s.label).collect();
            let is_twin = |_| match number {
                Some(_) => self.check_no_twin(&labels, path, (pool, number)),
                None => Ok(()),
            };
            self.check_labels(&labels, path, pool).and_then(is_twin).map_err(|e| {
                in_use(path, format!("{}: {}", made_of(part), e.reason)).hint(e.hint)
            })?;
        }
        Ok(())
    }

    /// Whether somebody of this node has these bytes by something else than `this`, for good.
    fn is_of_others(&self, bytes: Extent, this: Identity) -> bool {
        let shown = above(bytes).into_iter().map(|(_, bytes)| bytes);
        let mut all = std::iter::once(bytes).chain(shown).flat_map(Extent::had_by);
        all.any(|identity| identity != this && self.has(identity, |owner| *owner != Owner::Look))
    }
}
