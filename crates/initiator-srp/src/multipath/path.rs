//! One path to a unit: what is known of it.

use crate::error::Error;
use crate::queue::{Bond, Queue, Unit};
use crate::session::PathState;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::Nanos;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::lu::AluaState;
use weir_proto_scsi::sense::Sense;
use weir_reactor::now;

/// Bytes asked for of REPORT TARGET PORT GROUPS.
const GROUPS: usize = 1024;

/// What a path is good for, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathCondition {
    /// Commands run; with the access state of the target port, if the unit tells.
    Up(Option<AluaState>),
    /// The session is not logged in, or commands failed and no look has been taken since.
    Down,
    /// The target does not have the unit for this host.
    Missing,
}

pub(super) struct Path {
    /// Its commands go to the unit only, whoever has its number.
    pub(super) queue: Queue,
    bond: Rc<Bond>,
    /// The unit's number on this path, where it was last found.
    pub(super) lun: Cell<Option<Lun>>,
    pub(super) condition: Cell<PathCondition>,
    /// PREF of the port's group.
    preferred: Cell<bool>,
    /// Login in which the unit was last recognised.
    verified: Cell<u64>,
    /// Since when the path has been good without a break.
    pub(super) good_since: Cell<Nanos>,
    pub(super) commands: Cell<u64>,
    pub(super) failures: Cell<u64>,
}

impl Path {
    pub(super) fn new(queue: Queue, unit: Rc<Unit>) -> Path {
        let bond = Bond::new(unit);
        Path {
            queue: queue.bound(bond.clone()),
            bond,
            lun: Cell::new(None),
            condition: Cell::new(PathCondition::Down),
            preferred: Cell::new(false),
            verified: Cell::new(0),
            good_since: Cell::new(0),
            commands: Cell::new(0),
            failures: Cell::new(0),
        }
    }

    /// True while the session is the one in which the unit was recognised.
    #[inline]
    fn is_known(&self) -> bool {
        self.queue.state() == PathState::Running && self.verified.get() == self.queue.generation()
    }

    /// Its session has logged in, and the unit was not recognised since.
    pub(super) fn awaits_look(&self) -> bool {
        self.queue.state() == PathState::Running && !self.is_known()
    }

    /// How good the path is, smaller is better; `None`: commands would not run.
    #[inline]
    pub(super) fn rank(&self) -> Option<(u8, bool)> {
        let PathCondition::Up(access) = self.condition.get() else { return None };
        if !self.is_known() {
            return None;
        }
        let access = match access {
            None | Some(AluaState::ActiveOptimized) => 0,
            Some(AluaState::ActiveNonOptimized) => 1,
            Some(_) => return None,
        };
        Some((access, !self.preferred.get()))
    }

    pub(super) fn set(&self, c: PathCondition) {
        let was = self.condition.replace(c);
        if !matches!(was, PathCondition::Up(_)) {
            self.good_since.set(now());
        }
    }

    /// A command failed here for a reason that is the path's.
    pub(super) fn failed(&self, e: &Error) {
        self.failures.set(self.failures.get() + 1);
        self.set(match e.sense().and_then(refused) {
            Some(c) => c,
            None if *e == Error::OtherUnit => PathCondition::Missing,
            None => PathCondition::Down,
        });
    }

    /// Looks at the path: is the unit there, does it take commands, how good is the port?
    pub(super) async fn check(&self, naa: &[u8]) {
        let queue = &self.queue;
        if queue.state() != PathState::Running {
            return self.set(PathCondition::Down);
        }
        let generation = queue.generation();
        let good = matches!(self.condition.get(), PathCondition::Up(_));
        let found = if good && self.is_known() { Ok(()) } else { self.find(naa).await };
        let looked = match (found, self.lun.get()) {
            (Ok(()), Some(lun)) => self.look(lun, naa).await,
            (Err(e), _) => Err(e),
            (Ok(()), None) => Ok(PathCondition::Missing),
        };
        self.set(match looked {
            Ok(c) => c,
            Err(e) => match e.sense().and_then(refused) {
                Some(c) => c,
                None if matches!(e, Error::Invalid(_) | Error::OtherUnit) => PathCondition::Missing,
                None => PathCondition::Down,
            },
        });
        self.verified.set(generation);
    }

    /// Whether the unit takes commands, and the access state of the port.
    async fn look(&self, lun: Lun, naa: &[u8]) -> Result<PathCondition, Error> {
        let access = match self.access(lun, naa).await {
            Ok(a) => a,
            // A unit without asymmetric access does not know the command.
            Err(Error::Scsi { .. } | Error::Invalid(_)) => None,
            Err(e) => return Err(e),
        };
        if matches!(access, None | Some(AluaState::ActiveOptimized | AluaState::ActiveNonOptimized))
        {
            self.queue.test_unit_ready(lun).await?;
        }
        Ok(PathCondition::Up(access))
    }

    async fn access(&self, lun: Lun, naa: &[u8]) -> Result<Option<AluaState>, Error> {
        let page = self.queue.page(lun, 0x83).await?;
        // Also where the target tells nobody that it has given the number away.
        if let Some(n) = page.as_deref().and_then(build::parse_naa)
            && n != naa
        {
            return Err(Error::OtherUnit);
        }
        let Some(group) = page.and_then(|b| build::parse_port_group(&b)) else { return Ok(None) };
        let cdb = build::report_target_port_groups(GROUPS as u32);
        let b = self.queue.ask(lun, &cdb, GROUPS).await?;
        let groups = build::parse_port_groups(&b)
            .map_err(|_| Error::Invalid("REPORT TARGET PORT GROUPS data is cut short".into()))?;
        let mine = groups.into_iter().find(|g| g.id == group);
        self.preferred.set(mine.is_some_and(|g| g.preferred));
        Ok(mine.and_then(|g| g.state))
    }

    /// Finds the unit; it may have another number than last time.
    async fn find(&self, naa: &[u8]) -> Result<(), Error> {
        let queue = self.queue.unbound();
        if let Some(lun) = self.lun.get() {
            self.bond.look_at(Some(lun));
            match self.queue.confirm(lun).await {
                Err(Error::OtherUnit) => {}
                other => return other,
            }
        }
        self.lun.set(None);
        self.bond.look_at(None);
        for lun in queue.luns().await? {
            match queue.naa(lun).await {
                Ok(Some(n)) if n == naa => {
                    queue.forget(lun);
                    self.lun.set(Some(lun));
                    self.bond.look_at(Some(lun));
                    return self.queue.confirm(lun).await;
                }
                Ok(_) | Err(Error::Scsi { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::Invalid("the unit is not on this path".into()))
    }
}

/// What sense data of a command that was refused, and so not run, says of the path.
pub(super) fn refused(s: &Sense) -> Option<PathCondition> {
    let states = [
        (Sense::ALUA_STANDBY, PathCondition::Up(Some(AluaState::Standby))),
        (Sense::ALUA_UNAVAILABLE, PathCondition::Up(Some(AluaState::Unavailable))),
        (Sense::ALUA_TRANSITION, PathCondition::Up(Some(AluaState::Transitioning))),
        (Sense::OFFLINE, PathCondition::Up(Some(AluaState::Offline))),
        (Sense::LU_NOT_SUPPORTED, PathCondition::Missing),
        (Sense::BECOMING_READY, PathCondition::Missing),
    ];
    states.iter().find(|(x, _)| x.same_code(s)).map(|(_, c)| *c)
}
