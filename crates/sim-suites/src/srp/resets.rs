//! Which commands may not have outlived a reset.

use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos};

/// By then a message sent on a network without faults has been received and looked at.
const ARRIVED: Nanos = 50 * MILLIS;

struct Reset {
    lun: u64,
    sent: Nanos,
    completed: Nanos,
}

/// Resets of logical units by any host of a world. Meaningful only where nothing delays messages much.
#[derive(Clone, Default)]
pub struct Resets(Option<Rc<RefCell<Vec<Reset>>>>);

impl std::fmt::Debug for Resets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Resets(checked)" } else { "Resets(not checked)" })
    }
}

impl Resets {
    /// Records resets if `check`; else never complains.
    pub fn new(check: bool) -> Resets {
        Resets(check.then(Rc::default))
    }

    /// A reset of `lun`, sent at `sent`, was answered as complete at `completed`.
    pub(super) fn completed(&self, lun: u64, sent: Nanos, completed: Nanos) {
        if let Some(all) = &self.0 {
            all.borrow_mut().push(Reset { lun, sent, completed });
        }
    }

    /// Why a command sent at `sent` should not have ended with GOOD at `ended`.
    pub(super) fn survived(&self, lun: u64, sent: Nanos, ended: Nanos) -> Option<String> {
        let all = self.0.as_ref()?.borrow();
        let r = all
            .iter()
            .find(|r| r.lun == lun && sent + ARRIVED < r.sent && r.completed + ARRIVED < ended)?;
        Some(format!("of {sent}..{ended} has outlived a reset of {}..{}", r.sent, r.completed))
    }
}
