//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A target keeps credits that are due from a host that has one left, which that keeps for task management.
    CreditKeptAtOne,
}

impl Bug {
    /// Those that only tests look for: ports of suites give a host more credits than one.
    pub const TESTS: &[Bug] = &[Bug::CreditKeptAtOne];
}
