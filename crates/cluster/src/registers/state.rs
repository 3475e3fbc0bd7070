//! The registers themselves, without replication: what every copy of them does with a change.

use super::{Changed, Pool, Standing, follows};
use crate::planted::{Bug, has};
use std::collections::BTreeMap;
use weir_proto_cluster::{Register, Version};

/// Registers by pool. Two copies that take the same changes in the same order are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State(BTreeMap<Pool, Register>);

impl State {
    /// The register of `pool`.
    pub fn get(&self, pool: Pool) -> Option<Standing> {
        self.0.get(&pool).map(|r| (r.version, *r))
    }

    /// Puts `value` in if `expected` stands. Never in doubt.
    ///
    /// The very value that stands is answered as done: it is the same change, asked for again.
    pub fn change(&mut self, expected: Option<Version>, value: Register) -> Changed {
        self.change_with(expected, value, has(Bug::ChangeWithoutVersion))
    }

    /// The same. `blind` is a bug on purpose: engines ask for it on the thread that was given it.
    pub(super) fn change_with(
        &mut self,
        expected: Option<Version>,
        value: Register,
        blind: bool,
    ) -> Changed {
        let pool = value.pool;
        if let Err(why) = follows(pool, expected, &value) {
            return Changed::Refused(why);
        }
        let standing = self.get(pool);
        match standing {
            Some((version, register)) if register == value => return Changed::Done(version),
            _ if standing.map(|(version, _)| version) == expected || blind => {}
            _ => return Changed::Other(standing),
        }
        self.0.insert(pool, value);
        Changed::Done(value.version)
    }

    /// Puts a register in, as from a file or a snapshot that has it.
    pub(super) fn put(&mut self, register: Register) {
        self.0.insert(register.pool, register);
    }

    /// All registers.
    pub fn all(&self) -> impl Iterator<Item = &Register> {
        self.0.values()
    }
}
