//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A command that is given up between a login and its being sent again goes with its old length.
    GivenUpKeepsItsData,
    /// A flush does not tell of writes that were lost with the target's power.
    LostCacheNotTold,
    /// What was written by one handle is not known to the others.
    LostCacheByHandle,
    /// A command that is sent again after a loss has a new sequence number.
    ResentAsNew,
    /// A target is silent while no message of it is whole, whatever else comes from it or is taken by it.
    OnlyMessagesAreLife,
    /// The time that a target is away counts as that of the commands that wait for it.
    OutageCounts,
    /// A command has all its time again after each login.
    LoginIsBegin,
    /// A target is away also between connections of moments, however often they come.
    MomentsAreOutages,
    /// A channel whose login was given up stays, with its memory and tasks.
    GivenUpLogsInForEver,
}

impl Bug {
    /// Those that only tests look for. Between a login and the first message after it there is little time to give up. Links of no
    /// suite are slow. No target is away for longer than a command may take, or ends each connection.
    pub const TESTS: &[Bug] = &[
        Bug::GivenUpKeepsItsData,
        Bug::OnlyMessagesAreLife,
        Bug::OutageCounts,
        Bug::LoginIsBegin,
        Bug::MomentsAreOutages,
        Bug::GivenUpLogsInForEver,
    ];
}
