//! The conflict table of persistent reservations.

use super::PrType;
use crate::cdb::AccessClass;
use crate::planted::{Bug, has};

/// What a nexus is to a persistent reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Holds it; with the all-registrants types every registered nexus does.
    Holder,
    /// Registered, but not a holder.
    Registered,
    /// Not registered.
    Unregistered,
}

/// True when a command of `class` from a nexus of this standing ends with RESERVATION CONFLICT
/// under a reservation of type `kind` (SPC-4 tables 66 and 67, SBC-3 table 13).
pub fn conflicts(class: AccessClass, kind: PrType, standing: Standing) -> bool {
    if standing == Standing::Holder {
        return false;
    }
    let registered = standing == Standing::Registered;
    let shares = registered && kind.shared_by_registrants();
    match class {
        AccessClass::Always | AccessClass::PrRegister => false,
        AccessClass::ReadMedium if has(Bug::RegisteredMayRead) => {
            kind.exclusive_access() && !registered
        }
        AccessClass::ReadMedium => kind.exclusive_access() && !shares,
        AccessClass::WriteMedium | AccessClass::StartStop => !shares,
        AccessClass::ReadConfig => kind.exclusive_access() && !registered,
        // RESERVE and RELEASE from a registered nexus are GOOD and do nothing (CRH 1).
        AccessClass::PrManage | AccessClass::Spc2Reserve => !registered,
        AccessClass::PrReserve => true,
    }
}
