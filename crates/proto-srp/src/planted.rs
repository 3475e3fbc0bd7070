//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A target keeps credits that are due from a host that has one left, which that keeps for task management.
    CreditKeptAtOne,
}
