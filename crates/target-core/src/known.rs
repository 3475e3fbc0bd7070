//! Which units know a nexus.
//!
//! A unit comes to one reactor after the other. The last channel of a nexus may end where a unit has not come yet that another
//! channel has seen elsewhere. So units that forget it are not looked for on a reactor.

use crate::access::Access;
use crate::planted::{Bug, has};
use crate::unit::UnitShared;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_proto_scsi::lu::Nexus;

/// The units of one nexus, by their address, which is no other unit's as long as this is here.
type Units = BTreeMap<usize, Weak<UnitShared>>;

/// What channels have made each nexus known to.
#[derive(Default)]
pub(crate) struct Known(Mutex<BTreeMap<Nexus, Units>>);

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Known({} nexuses)", self.lock().len())
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nexus, Units>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A unit is about to know it. No other lock is taken in here: the caller may have the unit's.
    pub(crate) fn add(&self, nexus: Nexus, unit: &Arc<UnitShared>) {
        let mut all = self.lock();
        let units = all.entry(nexus).or_default();
        // Those that are no more are looked for now and then: a host may see thousands.
        if units.len().is_power_of_two() {
            units.retain(|_, u| u.strong_count() > 0);
        }
        units.insert(Arc::as_ptr(unit).addr(), Arc::downgrade(unit));
    }
}

fn tell(units: Units, nexus: Nexus) {
    // Also at the end of a reactor, when none is here.
    let here = weir_reactor::try_current_id();
    let is_here = |u: &UnitShared| u.members.all().iter().any(|(_, h)| Some(h.id()) == here);
    let units = units.into_values().filter_map(|u| u.upgrade());
    for u in units.filter(|u| !has(Bug::ForgottenHere) || is_here(u)) {
        u.nexus_lost(nexus);
    }
}

impl Access {
    /// The last channel of a nexus is over: all units that know it are told, whichever reactors have them.
    pub fn nexus_lost(&self, nexus: Nexus) {
        let units = self.known.lock().remove(&nexus);
        tell(units.unwrap_or_default(), nexus);
    }

    /// The same of a nexus of which channels are there yet, which see nothing any more; [`nexus_lost`](Access::nexus_lost) follows.
    pub fn nexus_over(&self, nexus: Nexus) {
        let units = self.known.lock().get(&nexus).cloned();
        tell(units.unwrap_or_default(), nexus);
    }
}
