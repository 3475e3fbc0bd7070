//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A unit attention is answered by sending the command again, whatever it says.
    AttentionPassedOver,
    /// What has been told, or taken away, unseen counts for nothing.
    UnseenIsUnsaid,
    /// A flush does not tell of writes that were lost with the target's power.
    LostCacheNotTold,
    /// A command that gets its slot when the channel has ended waits for a credit all the same.
    CreditOfTheEnded,
    /// Whoever has climbed the ladder for a command takes the one that has its slot now for it.
    SlotIsCommand,
    /// A reset ends also what may not have come to the target before it.
    ResetBeforeItCame,
    /// A path whose time is up while its login is told to reactors stays one that fails.
    LateIsLast,
}

impl Bug {
    /// Those that only tests look for: in the suites no channel or reactor stands still that long beside others that do not.
    pub const TESTS: &[Bug] = &[Bug::ResetBeforeItCame, Bug::LateIsLast];
}
