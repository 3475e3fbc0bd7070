//! Paths of one program with one initiator port: sessions that a login is not to end, while it ends those of former lives.

use crate::config::{Keep, SessionConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_proto_brp::PortId;

/// A family of sessions: the upper half of their numbers tells targets that they are of one life of their host.
#[derive(Clone)]
pub struct Family(Arc<Members>);

struct Members {
    number: u32,
    /// How many are logged in, by initiator port.
    here: Mutex<BTreeMap<PortId, usize>>,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Family({:08x})", self.0.number)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Family {}

impl Family {
    /// One with this number, which no other life of the host may have.
    pub fn new(number: u32) -> Family {
        Family(Arc::new(Members { number, here: Mutex::default() }))
    }

    fn here(&self) -> MutexGuard<'_, BTreeMap<PortId, usize>> {
        self.0.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a session of this family: as drawn or given, but for its upper half.
    pub(crate) fn name(&self, session: u64) -> u64 {
        u64::from(self.0.number) << 32 | session & u64::from(u32::MAX)
    }

    /// A session of this port is logged in from here on, or is no more.
    pub(crate) fn count(&self, port: PortId, is: bool) {
        let mut all = self.here();
        let n = all.entry(port).or_default();
        *n = if is { *n + 1 } else { n.saturating_sub(1) };
    }

    /// Sessions of this port that are logged in, or were and come back.
    pub(crate) fn of(&self, port: &PortId) -> usize {
        self.here().get(port).copied().unwrap_or(0)
    }
}

/// Makes sessions paths of one program, which leave each other alone where they have one initiator port. Whatever else is logged in by
/// their ports is of a former life, and ends. `life` is drawn anew for each life of the program: no two may have the same.
pub fn as_paths(paths: &mut [SessionConfig], life: u32) {
    let family = Family::new(life);
    let ports: Vec<PortId> = paths.iter().map(|p| p.initiator).collect();
    for p in paths {
        let shared = ports.iter().filter(|o| **o == p.initiator).count() > 1;
        p.keep = if shared { Keep::Siblings(family.clone()) } else { Keep::None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_with_one_port_are_siblings() {
        let path = |port: u8| SessionConfig::new("192.0.2.1:5556", PortId([port; 16]));
        let mut all = [path(1), path(2), path(1)];
        as_paths(&mut all, 1);
        assert!(matches!(all[0].keep, Keep::Siblings(_)) && all[0].keep == all[2].keep);
        assert_eq!(all[1].keep, Keep::None);
        let mut again = [path(1), path(1)];
        as_paths(&mut again, 2);
        assert_ne!(again[0].keep, all[0].keep, "another life");
        let mut one = [path(1)];
        as_paths(&mut one, 3);
        assert_eq!(one[0].keep, Keep::None);
    }

    #[test]
    fn a_family_names_its_sessions() {
        let f = Family::new(0x1234_5678);
        assert_eq!(f.name(0xffff_ffff_0000_0007), 0x1234_5678_0000_0007);
        let (a, b) = (PortId([1; 16]), PortId([2; 16]));
        f.count(a, true);
        f.clone().count(a, true);
        f.count(a, false);
        assert_eq!((f.of(&a), f.of(&b)), (1, 0));
    }
}
