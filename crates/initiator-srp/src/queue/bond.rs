//! What binds a queue to one unit: commands go to a number only while that is known to be the unit's.
//!
//! A number is the target's to give to another unit, at any time. It says so by a unit attention, once for all channels of
//! a nexus, so everything that may mean it, and every login, makes what is known out of date (the session's *stamp*).
//! So does whatever may have taken such an attention away unseen: REPORT LUNS, REQUEST SENSE, commands that were given up or
//! aborted. Before the next command the unit's name is read again.

use super::Queue;
use crate::error::Error;
use crate::session::local::Stamp;
use crate::session::{LIFE, Record, is_life};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::unflushed::Ledger;
use weir_proto_scsi::Lun;
use weir_proto_scsi::identity::POWER_PAGE;
use weir_proto_scsi::initiator as build;
use weir_reactor::WaitChannel;

/// Bytes asked for of MODE SENSE.
const MODES: usize = 64;
/// A stamp that no session has.
const NEVER: Stamp = (u64::MAX, u64::MAX);

/// By what a unit is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// Its NAA designator.
    Naa(Vec<u8>),
    /// Its serial number, where it has no designator.
    Serial(String),
}

impl Name {
    fn bytes(&self) -> &[u8] {
        match self {
            Name::Naa(n) => n,
            Name::Serial(s) => s.as_bytes(),
        }
    }
}

/// What a handle has in common over all its paths to a unit.
pub(crate) struct Unit {
    pub(crate) name: Name,
    records: Vec<Arc<Record>>,
    ledger: Ledger,
}

impl Unit {
    /// The unit of this name by the sessions of these queues, which have its record in common from here on.
    pub(crate) fn new(name: Name, queues: &[Queue]) -> Rc<Unit> {
        let mut records: Vec<Arc<Record>> = Vec::new();
        for q in queues {
            let new = records.first().cloned().unwrap_or_default();
            let have = q.local.shared.record(name.bytes(), new);
            if !records.iter().any(|r| Arc::ptr_eq(r, &have)) {
                records.push(have);
            }
        }
        let ledger = Ledger::new(records.iter().map(|r| r.unflushed.clone()).collect());
        Rc::new(Unit { name, records, ledger })
    }

    /// A command that changes the medium has ended well; without FUA it may be in a cache.
    #[inline]
    pub(super) fn written(&self, cache: Option<u64>) {
        if let Some(c) = cache {
            self.ledger.written(c);
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

/// A unit at a number of one session.
pub(crate) struct Bond {
    pub(crate) unit: Rc<Unit>,
    /// Where the unit was last found.
    lun: Cell<Option<Lun>>,
    /// When that was.
    seen: Cell<Stamp>,
    /// What its volatile cache is of; `None` without one.
    cache: Cell<Option<u64>>,
    looking: WaitChannel,
}

impl Bond {
    pub(crate) fn new(unit: Rc<Unit>) -> Rc<Bond> {
        Rc::new(Bond {
            unit,
            lun: Cell::new(None),
            seen: Cell::new(NEVER),
            cache: Cell::new(None),
            looking: WaitChannel::new(1),
        })
    }

    /// The unit may have this number; that is looked at before the next command.
    pub(crate) fn look_at(&self, lun: Option<Lun>) {
        self.lun.set(lun);
        self.seen.set(NEVER);
    }

    #[inline]
    pub(super) fn is_fresh(&self, lun: Lun, stamp: Stamp) -> bool {
        self.seen.get() == stamp && self.lun.get() == Some(lun)
    }

    #[inline]
    pub(super) fn cache(&self) -> Option<u64> {
        self.cache.get()
    }

    /// Whether a flush over this path says nothing of what a cache holds.
    pub(super) fn is_other(flushed: Option<u64>, cache: u64) -> bool {
        // Without a number of the target's losses are counted when it tells of them.
        flushed.is_some_and(|f| f != cache && !is_life(cache) && !is_life(f))
    }
}

impl Queue {
    /// A handle whose commands go to this unit only, as [`identify`](Queue::identify) told it: the unit's name is compared
    /// after every login and after every unit attention that may mean another unit. When another has its number they
    /// fail with [`Error::OtherUnit`]. A unit without a designator and a serial number is bound to its number alone.
    pub fn bind(&self, unit: &crate::LogicalUnit) -> Queue {
        let serial = unit.serial.clone().filter(|s| !s.is_empty());
        let name = match (&unit.naa, serial) {
            (Some(n), _) => Name::Naa(n.clone()),
            (None, Some(s)) => Name::Serial(s),
            (None, None) => return self.clone(),
        };
        let bond = Bond::new(Unit::new(name, std::slice::from_ref(self)));
        bond.look_at(Some(unit.lun));
        self.bound(bond)
    }

    pub(crate) fn bound(&self, bond: Rc<Bond>) -> Queue {
        Queue { local: self.local.clone(), bond: Some(bond) }
    }

    /// The same, for any unit.
    pub(crate) fn unbound(&self) -> Queue {
        Queue { local: self.local.clone(), bond: None }
    }

    #[inline]
    pub(super) fn is_fresh(&self, lun: Lun) -> bool {
        self.bond.as_ref().is_none_or(|b| b.is_fresh(lun, self.local.stamp()))
    }

    /// Makes sure that the unit has this number.
    pub(crate) async fn confirm(&self, lun: Lun) -> Result<(), Error> {
        let Some(b) = &self.bond else { return Ok(()) };
        let _one = b.looking.acquire(1).await;
        let any = self.unbound();
        loop {
            self.local.usable(None).await?;
            // Whatever is heard from here on makes what is found now out of date.
            let stamp = self.local.stamp();
            if b.is_fresh(lun, stamp) {
                return Ok(());
            }
            let same = b.lun.get() == Some(lun) && any.is_called(lun, &b.unit.name).await?;
            if !same {
                return Err(Error::OtherUnit);
            }
            for r in &b.unit.records {
                self.local.shared.numbered(lun, r);
            }
            let cache = any.cache_of(lun).await?;
            b.cache.set(cache);
            b.seen.set(stamp);
        }
    }

    async fn is_called(&self, lun: Lun, name: &Name) -> Result<bool, Error> {
        Ok(match name {
            Name::Naa(n) => self.naa(lun).await?.as_deref() == Some(n),
            Name::Serial(s) => {
                let page = self.page(lun, 0x80).await?;
                page.and_then(|b| build::parse_serial(&b)).as_ref() == Some(s)
            }
        })
    }

    /// What the unit's volatile cache is of: what its target says, else the login. `None` without a volatile cache.
    async fn cache_of(&self, lun: Lun) -> Result<Option<u64>, Error> {
        let cdb = build::mode_sense_6(0x08, 0, true, MODES as u8);
        let modes = match self.ask(lun, &cdb, MODES).await {
            Ok(b) => build::parse_write_cache(&b),
            // No caching page, as far as the host may know.
            Err(Error::Scsi { .. } | Error::Response(_)) => None,
            Err(e) => return Err(e),
        };
        if modes != Some(true) {
            return Ok(None);
        }
        let told = self.page(lun, POWER_PAGE).await?.and_then(|b| build::parse_power(&b));
        Ok(Some(match told {
            Some(n) => n & !LIFE,
            None => self.local.shared.life() | LIFE,
        }))
    }
}

/// True for commands that clear unit attentions, and end well: REQUEST SENSE, REPORT LUNS.
#[inline]
pub(super) fn takes_attentions(cdb: &[u8]) -> bool {
    matches!(cdb.first(), Some(0x03 | 0xa0))
}

/// True for commands without FUA that may leave data in a volatile cache.
#[inline]
pub(super) fn may_be_cached(cdb: &[u8]) -> bool {
    match cdb.first() {
        // WRITE, COMPARE AND WRITE; with FUA it is on the medium.
        Some(0x2a | 0xaa | 0x8a | 0x89) => cdb.get(1).is_some_and(|b| b & 0x08 == 0),
        // WRITE (6), WRITE AND VERIFY, WRITE SAME, UNMAP, XCOPY.
        Some(0x0a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 | 0x42 | 0x83) => true,
        _ => false,
    }
}

/// True for SYNCHRONIZE CACHE of the whole unit.
pub(super) fn flushes_all(cdb: &[u8]) -> bool {
    match cdb.first() {
        Some(0x35) => cdb.get(1..9).is_some_and(|b| b.iter().all(|x| *x == 0)),
        Some(0x91) => cdb.get(1..14).is_some_and(|b| b.iter().all(|x| *x == 0)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_in_a_cache_is_known_by_its_command() {
        assert!(may_be_cached(build::write(0, 1, false).as_bytes()));
        assert!(!may_be_cached(build::write(0, 1, true).as_bytes()));
        assert!(!may_be_cached(build::write(1 << 40, 1, true).as_bytes()));
        assert!(may_be_cached(build::write_same_16(0, 8, true, true).as_bytes()));
        assert!(may_be_cached(build::unmap(24).as_bytes()));
        assert!(!may_be_cached(build::read(0, 1, false).as_bytes()) && !may_be_cached(&[]));
        assert!(flushes_all(build::sync_cache(0, 0).as_bytes()));
        assert!(!flushes_all(build::sync_cache(8, 8).as_bytes()));
        assert!(!flushes_all(build::read(0, 0, false).as_bytes()));
    }
}
