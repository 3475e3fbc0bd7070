//! Writes that were given up and have not ended, disk by disk: as long as one is under way, whoever gets the disk gets what it
//! brings. So they belong to the disk, and not to the device, life or pool that gave them up.

use super::open::assemble;
use super::to_end::Works;
use super::{Inner, Options, StoreError, StoreResult};
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use weir_base::Nanos;
use weir_disk::Disk;
use weir_reactor::{CompletionFuture, local_or_default, now, patience};

/// Writes that were given up and have not ended: they may still change the disk.
pub(crate) type Late = Rc<RefCell<Vec<CompletionFuture>>>;

/// What may still come to a disk.
#[derive(Default)]
struct Known {
    late: Late,
    /// Where work is counted of those who opened a pool on it, or tried to: it goes on when they are given up.
    works: Vec<Weak<Works>>,
}

/// Those of the disks that the pools of this reactor write to, or did. A disk that was opened anew, or by another name, is known
/// by what it is.
#[derive(Default)]
struct Disks(RefCell<BTreeMap<String, Known>>);

impl Disks {
    fn with<T>(disk: &Rc<dyn Disk>, f: impl FnOnce(&mut Known) -> T) -> T {
        let disks = local_or_default::<Disks>();
        let mut all = disks.0.borrow_mut();
        // What nobody can add to any more, and where nothing is under way, is not kept.
        all.retain(|_, known| {
            known.works.retain(|w| w.strong_count() > 0);
            let late = Rc::strong_count(&known.late) > 1 || !known.late.borrow().is_empty();
            late || !known.works.is_empty()
        });
        let is = match has(Bug::LateByName) {
            true => disk.name().into(),
            false => disk.identity(),
        };
        f(all.entry(is.into_owned()).or_default())
    }
}

/// Those of a disk, whoever gave them up.
pub(crate) fn late_of(disk: &Rc<dyn Disk>) -> Late {
    if has(Bug::LateOfDevice) {
        return Late::default();
    }
    Disks::with(disk, |known| known.late.clone())
}

/// Waits until no work of others is under way on a disk, and has that of `mine` known from here on; false: `limit` was not enough.
pub(crate) async fn alone(disk: &Rc<dyn Disk>, mine: &Rc<Works>, limit: Nanos) -> bool {
    let all: Vec<_> =
        Disks::with(disk, |known| known.works.iter().filter_map(Weak::upgrade).collect());
    let others = async {
        for works in all.iter().filter(|w| !Rc::ptr_eq(w, mine)) {
            works.end().await;
        }
    };
    if !has(Bug::OpenedBeside) && patience(limit, others).await.is_err() {
        return false;
    }
    Disks::with(disk, |known| {
        let weak = Rc::downgrade(mine);
        if !known.works.iter().any(|w| w.ptr_eq(&weak)) {
            known.works.push(weak);
        }
    });
    true
}

/// Waits until all of these writes have ended; false: `limit` was not enough. They stay where they are meanwhile: somebody else
/// may wait for them, and whoever waits may be given up.
pub(crate) async fn quiet(late: &Late, limit: Nanos) -> bool {
    let ended = poll_fn(|cx| {
        let mut all = late.borrow_mut();
        all.retain_mut(|one| Pin::new(one).poll(cx).is_pending());
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    patience(limit, ended).await.is_ok()
}

/// A pool as of its newest checkpoint, on those of its disks that nothing is under way to any more: nothing may come after what
/// was given up. Another one that hangs is missing. `works`: where what is begun counts.
pub(super) async fn assemble_quiet(
    disks: Vec<Rc<dyn Disk>>,
    options: Options,
    works: Rc<Works>,
) -> StoreResult<Rc<Inner>> {
    let until = now().saturating_add(options.deadline);
    let (mut here, mut hangs) = (Vec::new(), None);
    for disk in disks {
        let left = || until.saturating_sub(now());
        match alone(&disk, &works, left()).await && quiet(&late_of(&disk), left()).await {
            true => here.push(disk),
            false => hangs = Some(disk.name().to_string()),
        }
    }
    assemble(here, options, works).await.map_err(|e| match hangs {
        Some(name) => StoreError::Pool(format!(
            "writes that were given up are still under way to `{name}`; try again later. Without it: {e}"
        )),
        None => e,
    })
}

impl Inner {
    /// Waits until no write to a disk that was given up is under way any more, nor work of another pool; false: the deadline was
    /// not enough.
    pub(crate) async fn is_disk_quiet(&self, disk: &Rc<dyn Disk>) -> bool {
        let limit = self.options.deadline;
        has(Bug::TakenWithLateWrites)
            || alone(disk, &self.works, limit).await && quiet(&late_of(disk), limit).await
    }
}
