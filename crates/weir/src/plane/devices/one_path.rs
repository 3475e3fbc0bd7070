//! One disk that several block devices lead to, as a LUN does by two paths: it is one device of one pool or volume.

use super::admit::kept_open_by;
use super::label::Label;
use super::sameness::{Claim, Sameness};
use super::{Entry, Holds, Owner, Taken, Waited, check_waited, in_use, lock, unusable};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use weir_control::model::PoolId;
use weir_control::{Code, Error, Result};
use weir_uring::device::{PAGE, other_paths, used_by};
use weir_uring::{Held, Identity};

/// How often the end of a device is compared before it is another one's for sure.
const LOOKS: u32 = 3;
/// The number of no device.
const NONE: u32 = u32::MAX;

const HINT: &str = "name one path to each disk, or its multipath device";

/// What no other disk has. Where a crash leaves it, it is a label of the pool that the device was for.
fn mark(pool: PoolId) -> Label {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(time.as_nanos()).unwrap_or_default();
    let size = time.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    Label { pool, device: NONE, size }
}

fn is_mark(page: &[u8]) -> bool {
    Label::decode(page).is_ok_and(|l| l.is_some_and(|l| l.device == NONE))
}

fn one_disk(held: &Held, path: &Path, (owner, twin): (&Owner, &Held), seen: Sameness) -> Error {
    let name = held.lasting_name().unwrap_or_default();
    let twin = format!("one disk with `{}` of {owner}: `{name}`", twin.path().display());
    let why = match seen {
        Sameness::Unknown => format!("it may be {twin}, and not enough of both can be read"),
        _ => format!("it is {twin}"),
    };
    in_use(path, why).hint(format!(
        "{HINT}; two disks that say to be one can be told apart by LVM or the device mapper"
    ))
}

/// Whether two may be one, as far as can be told without a look at what is in them.
fn may_be_one(a: &Held, b: &Held) -> bool {
    let names = a.lasting_name().zip(b.lasting_name());
    a.is_block() == b.is_block()
        && a.last_len() == b.last_len()
        && names.is_none_or(|(a, b)| weir_uring::device::same_name(a, b))
}

impl Holds {
    /// Whatever else is held that is no directory, also what has lost its name.
    fn others(&self, held: &Held) -> Vec<(Owner, Arc<Held>)> {
        let of = |e: &Entry| (e.owner.clone(), e.held.clone());
        let mut all: Vec<_> = lock(&self.entries).iter().map(of).collect();
        all.extend(self.all_yielded());
        all.retain(|(_, h)| h.identity() != held.identity() && !h.is_directory());
        all
    }

    /// Refuses a disk that is held by another path, as the names of both tell. One that `its_own` pool has had may come back by
    /// another: that pool sees whether it is in service.
    pub(crate) fn check_disk(
        &self,
        held: &Arc<Held>,
        path: &Path,
        its_own: Option<&Owner>,
    ) -> Result<()> {
        let twin = |(owner, h): &(Owner, Arc<Held>)| Some(owner) != its_own && h.shares_disk(held);
        match self.others(held).into_iter().find(twin) {
            Some((owner, twin)) => Err(one_disk(held, path, (&owner, &twin), Sameness::Same)),
            None => self.check_claims(held, path, false),
        }
    }

    /// Refuses a disk that somebody else has by another path, as its name tells. It may be a process that has ended, or this one:
    /// what it has given up may still come to the disk by that path. One that `comes_back` is known by its label, and different disks
    /// of one name by what is in them.
    pub(super) fn check_claims(
        &self,
        held: &Arc<Held>,
        path: &Path,
        comes_back: bool,
    ) -> Result<()> {
        let Some(name) = held.lasting_name().filter(|_| held.is_block()) else { return Ok(()) };
        let ours: Vec<_> = self.others(held).into_iter().map(|(_, h)| h.identity()).collect();
        let others = other_paths(held.identity(), name);
        let mut others = others.into_iter().filter(|(_, identity)| !ours.contains(identity));
        let is_it = |(other, identity): &(PathBuf, Identity)| {
            // Neither a process nor a loop device has it for himself.
            let is_used =
                || used_by(*identity).or_else(|| kept_open_by(other, *identity)).is_some();
            match self.silent.claim(other, *identity, is_used()) {
                Claim::None => false,
                Claim::Had(Some(twin)) if comes_back => {
                    self.silent.sameness(held, &twin) != Sameness::Other
                }
                Claim::Had(_) => true,
            }
        };
        match others.find(is_it) {
            Some((other, _)) => Err(in_use(
                path,
                format!("it is one disk with `{}`, which is in use: `{name}`", other.display()),
            )
            .hint(format!("end that use, or wait until its last writes have ended; {HINT}"))),
            None => Ok(()),
        }
    }

    /// The same for one that is used already, if it comes to its owner by this. Different disks may have one name, as of a program that
    /// gives the same to all: they go on as before. Where that cannot be seen, its own label tells that it is the owner's.
    pub(crate) fn check_disk_again(
        &self,
        taken: &Taken,
        its_own: Option<&Owner>,
        is_labelled: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        // What was there before was looked at then, and may be in service.
        if taken.is_kept() {
            return Ok(());
        }
        let held = taken.held();
        let twin = |(owner, h): &(Owner, Arc<Held>)| Some(owner) != its_own && h.shares_disk(held);
        let twins: Vec<_> = self.others(held).into_iter().filter(twin).collect();
        let mut unknown = None;
        for (owner, twin) in twins {
            match self.silent.sameness(held, &twin) {
                Sameness::Other => {}
                seen => {
                    let refused = one_disk(held, taken.path(), (&owner, &twin), seen);
                    if seen == Sameness::Same {
                        return Err(refused);
                    }
                    unknown.get_or_insert(refused);
                }
            }
        }
        // Others are let go of by now: reading this one may hang. That it cannot be read is no use by others.
        match unknown {
            Some(refused) if !is_labelled()? => Err(refused),
            _ => Ok(()),
        }
    }

    /// Whether a device carries the label of its owner, a protected pool, and of no other.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn is_labelled_for(&self, owner: &Owner, held: &Held, path: &Path) -> Result<bool> {
        let Owner::Pool(name) = owner else { return Ok(false) };
        match self.check_belongs(held, path, Some(name)) {
            Err(e) if e.code != Code::IoError => Ok(false),
            found => found,
        }
    }

    /// Refuses a new device that something else which is held leads to as well, also where the system does not tell: what is in its
    /// last page is seen there, or is written to it if there is nothing yet. After that it is as it was.
    pub(crate) fn check_alone(
        &self,
        held: &Held,
        path: &Path,
        pool: PoolId,
        waited: &Waited<'_>,
    ) -> Result<()> {
        let io = |e: std::io::Error| unusable(path, e);
        let place = (held.len().map_err(io)? / PAGE * PAGE).checked_sub(PAGE);
        let others = self.others(held).into_iter().map(|(_, h)| h);
        let others: Vec<_> = others.filter(|h| may_be_one(h, held)).collect();
        let Some(place) = place.filter(|_| !others.is_empty()) else { return Ok(()) };
        let read = || held.read(place, PAGE as usize).map_err(io);
        let refused = |why: String| in_use(path, why).hint(HINT);
        // Somebody may write there by the other path meanwhile.
        for _ in 0..LOOKS {
            let was = read()?;
            if !is_mark(&was) && was.iter().all(|b| *b == 0) {
                break;
            }
            if let Some(h) = self.silent.showing(&others, place, &was) {
                return Err(refused(format!(
                    "it is one disk with `{}`, or a copy of it: they end alike",
                    h.path().display()
                )));
            }
        }
        // What others have written stays, whoever they are.
        let was = read()?;
        if !is_mark(&was) && was.iter().any(|b| *b != 0) {
            return Ok(());
        }
        let mark = mark(pool).encode();
        check_waited(path, waited)?;
        held.write(place, &mark).map_err(io)?;
        let twin = self.silent.showing(&others, place, &mark);
        // Another one that is looked at now may have put its own there, or a host its data.
        let is_alone = read().is_ok_and(|now| now == mark);
        if is_alone {
            held.write(place, &[0; PAGE as usize]).map_err(io)?;
        }
        match twin {
            Some(h) => Err(refused(format!(
                "it is one disk with `{}`, which shows what is written to it",
                h.path().display()
            ))),
            None if is_alone => Ok(()),
            None => Err(refused(
                "something else writes to it, as if it were one disk with another device".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wait;
    use super::*;

    #[test]
    fn no_two_marks_are_alike_and_no_label_is_one() {
        let (a, b) = (mark(PoolId(7)), mark(PoolId(7)));
        assert!(a != b && is_mark(&a.encode()) && is_mark(&b.encode()));
        assert!(!is_mark(&Label { device: 0, ..a }.encode()) && !is_mark(&[0; PAGE as usize]));
    }

    /// The process has ended between the mark and what was there before.
    #[test]
    fn a_mark_that_a_crash_has_left_is_in_the_way_of_other_pools_only() {
        let path = std::env::temp_dir().join(format!("weir-mark-{}", std::process::id()));
        let mut content = vec![0; 1 << 20];
        content.extend(mark(PoolId(7)).encode());
        std::fs::write(&path, content).expect("a file");
        let holds = Arc::<Holds>::default();
        let held = holds.take(&Owner::Look, &path, false, Wait::No).expect("taken");
        assert!(holds.check_again(&held, &path, &Owner::Look, (Some(PoolId(7)), None)).is_ok());
        assert!(holds.check_again(&held, &path, &Owner::Look, (Some(PoolId(8)), None)).is_err());
        std::fs::remove_file(&path).expect("removed");
    }
}
