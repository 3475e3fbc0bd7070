//! Disks that writes are under way to which nobody waits for any more: as long as one is, whoever gets the disk gets what it
//! brings.

use super::Inner;
use super::device::{Device, Late, quiet};
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::rc::Rc;
use weir_disk::Disk;

/// A disk that was written to, and is a device of the pool no more or not yet.
struct Former {
    name: String,
    /// Only to tell it from others.
    at: *const (),
    late: Late,
}

/// The disks of a pool that writes may be under way to, but for its devices.
#[derive(Default)]
pub(crate) struct Unended(RefCell<Vec<Former>>);

fn address(disk: &Rc<dyn Disk>) -> *const () {
    Rc::as_ptr(disk).cast()
}

impl Unended {
    /// What is on its way to this device counts from here on, whatever becomes of it.
    pub(crate) fn note(&self, d: &Device) {
        let Some(disk) = &d.disk else { return };
        let mut all = self.0.borrow_mut();
        if !all.iter().any(|f| Rc::ptr_eq(&f.late, &d.late)) {
            let (name, late) = (disk.name().to_string(), d.late.clone());
            all.push(Former { name, at: address(disk), late });
        }
    }

    /// The pool is opened anew, and the disks are the same.
    pub(crate) fn like(&self, other: &Unended) {
        self.0.replace(other.0.take());
    }
}

impl Inner {
    /// Waits until no write to a disk that was given up is under way any more; false: the deadline was not enough.
    pub(crate) async fn is_disk_quiet(&self, disk: &Rc<dyn Disk>) -> bool {
        if has(Bug::TakenWithLateWrites) {
            return true;
        }
        for d in self.devices.borrow().iter() {
            self.unended.note(d);
        }
        // Of others that are quiet nothing is kept. A device in service is noted again.
        self.unended.0.borrow_mut().retain(|f| {
            let here = f.at == address(disk) || f.name == disk.name();
            here || !f.late.borrow().is_empty()
        });
        let its = |f: &&Former| f.at == address(disk) || f.name == disk.name();
        let lates: Vec<Late> =
            self.unended.0.borrow().iter().filter(its).map(|f| f.late.clone()).collect();
        for late in lates {
            if !quiet(&late, self.options.deadline).await {
                return false;
            }
        }
        true
    }
}
