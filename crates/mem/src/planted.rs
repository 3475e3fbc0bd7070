//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A host may have whatever is free.
    NoShareOfHost,
    /// What is given to one who does not wait any more stays his.
    ShareNotGivenBack,
}

impl Bug {
    /// Those that only tests look for: hosts of suites that stop waiting are few.
    pub const TESTS: &[Bug] = &[Bug::ShareNotGivenBack];
}
