//! Persistent reservations (SPC-4 5.13): who is registered, who holds what, and what follows.
//!
//! Everything here speaks of [`PortPair`]s, never of logins: registrations belong to the pair of
//! initiator port and target port and outlive any nexus.

mod conflict;
mod info;
mod out;
mod persist;

pub use conflict::{Standing, conflicts};
pub use persist::{Import, ImportError};

pub(crate) use out::{PrChange, PrRequest};

use crate::transport_id::TransportId;

/// Most registrations of a logical unit; beyond it REGISTER ends with 5/55/04.
pub const REGISTRATIONS_MAX: usize = 1024;

/// Type of a persistent reservation (SPC-4 table 65). The discriminant is the wire code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the standard's own and say it all.
pub enum PrType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl PrType {
    /// All types, by ascending code.
    pub const ALL: [PrType; 6] = [
        PrType::WriteExclusive,
        PrType::ExclusiveAccess,
        PrType::WriteExclusiveRegistrantsOnly,
        PrType::ExclusiveAccessRegistrantsOnly,
        PrType::WriteExclusiveAllRegistrants,
        PrType::ExclusiveAccessAllRegistrants,
    ];

    /// The type with this code.
    pub fn from_code(code: u8) -> Option<PrType> {
        PrType::ALL.into_iter().find(|t| t.code() == code)
    }

    /// The wire code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Every registered nexus has access (registrants only, all registrants).
    pub fn shared_by_registrants(self) -> bool {
        self.code() >= 5
    }

    /// Every registered nexus is a holder.
    pub fn held_by_all(self) -> bool {
        self.code() >= 7
    }

    /// Reads by others are forbidden too.
    pub fn exclusive_access(self) -> bool {
        matches!(
            self,
            PrType::ExclusiveAccess
                | PrType::ExclusiveAccessRegistrantsOnly
                | PrType::ExclusiveAccessAllRegistrants
        )
    }
}

/// An I_T nexus as reservations know it: initiator port and relative target port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortPair {
    /// Initiator port.
    pub initiator: TransportId,
    /// Relative target port identifier.
    pub target_port: u16,
}

/// One registered pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) who: PortPair,
    /// Never 0.
    pub(crate) key: u64,
    /// Holds the reservation. False for all while the type is held by all registrants.
    pub(crate) holder: bool,
}

/// All registrations and the reservation of a logical unit.
///
/// Invariants: pairs are distinct; keys are not 0; with a reservation of types 1, 3, 5 and 6
/// exactly one registration is the holder, otherwise none is; types 7 and 8 exist only while
/// somebody is registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reservations {
    /// PRGENERATION.
    pub(crate) generation: u32,
    /// Counts every change, so that a store keeps the newest of two exports.
    pub(crate) revision: u64,
    /// State survives power loss.
    pub(crate) aptpl: bool,
    pub(crate) kind: Option<PrType>,
    pub(crate) registrations: Vec<Registration>,
}

impl Reservations {
    fn position(&self, who: &PortPair) -> Option<usize> {
        self.registrations.iter().position(|r| r.who == *who)
    }

    /// The key with which `who` is registered.
    pub(crate) fn key_of(&self, who: &PortPair) -> Option<u64> {
        self.position(who).map(|i| self.registrations[i].key)
    }

    /// True when anybody is registered.
    pub(crate) fn any_registered(&self) -> bool {
        !self.registrations.is_empty()
    }

    /// Relation of `who` to the registrations and the reservation.
    pub(crate) fn standing(&self, who: &PortPair) -> Standing {
        match self.registrations.iter().find(|r| r.who == *who) {
            None => Standing::Unregistered,
            Some(r) if r.holder || self.kind.is_some_and(PrType::held_by_all) => Standing::Holder,
            Some(_) => Standing::Registered,
        }
    }

    /// The type of a reservation under which `who` may write and others may not.
    fn serves(&self, who: &PortPair) -> Option<PrType> {
        let class = crate::cdb::AccessClass::WriteMedium;
        self.kind.filter(|k| !conflicts(class, *k, self.standing(who)))
    }

    /// Whether `who` loses by what is to come what keeps others out of its way.
    pub(crate) fn ends_for(&self, who: &PortPair, next: &Reservations) -> bool {
        self.serves(who).is_some_and(|kind| next.serves(who) != Some(kind))
    }

    /// Checks the invariants of the type; for tests and fuzzing.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let holders = self.registrations.iter().filter(|r| r.holder).count();
        let want = usize::from(self.kind.is_some_and(|k| !k.held_by_all()));
        if holders != want {
            return Err("number of holders does not fit the reservation type");
        }
        if self.kind.is_some() && self.registrations.is_empty() {
            return Err("a reservation without registrations");
        }
        if self.registrations.iter().any(|r| r.key == 0) {
            return Err("registered with key 0");
        }
        for (i, r) in self.registrations.iter().enumerate() {
            if self.registrations[..i].iter().any(|q| q.who == r.who) {
                return Err("a pair registered twice");
            }
        }
        if self.registrations.len() > REGISTRATIONS_MAX {
            return Err("too many registrations");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
