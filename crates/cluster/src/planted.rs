//! Bugs on purpose, for the proof of the history checker. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A change whose outcome is not known is told as one that did not happen.
    DoubtTakenForFailure,
    /// A read is answered from the copy at hand, which may be behind.
    StaleReadBelieved,
    /// A change is made whatever version stands.
    ChangeWithoutVersion,
    /// What is applied is not on the disk when it is answered: a kill takes it back, and a leader that starts again reads it.
    AppliedNotKept,
    /// A leader that starts again leads at once, and does not know what it decided last.
    LeadKept,
    /// All members of etcd share one time, and the first that is silent takes it.
    FirstIsAll,
}

impl Bug {
    /// Those that need processes which are killed.
    pub const KILLS: &[Bug] = &[Bug::AppliedNotKept];

    /// Those that tests of one thing catch, with the bug and without.
    pub const TESTS: &[Bug] = &[Bug::LeadKept, Bug::FirstIsAll];
}
