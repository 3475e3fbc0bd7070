//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A write is admitted where a read would be.
    WriteAdmittedAsRead,
    /// A command that is sent again is run again although its end is known.
    DoneIsRunAgain,
    /// A command whose guard is that of another volume is run.
    GuardNotCompared,
    /// A login does not wait for the commands of the connection before.
    DrainSkipped,
    /// A host is told that a write failed while a device still has the one that it sent before.
    VerdictBesideFormer,
    /// Who proves nothing keeps hosts with a secret out.
    CrowdKeepsOut,
    /// A host is silent while no message of it is whole, whatever else comes from it.
    OnlyMessagesAreLife,
    /// A host's channels that its login ends count against it at a full port.
    OwnKeepOut,
    /// Logins of a channel that is ending wait for that, however long it takes.
    EndingKeepsLogins,
    /// A channel that is over takes one with it that has its name by now.
    GoneByName,
    /// A channel without a connection is remembered for a host that has been deleted.
    UnknownRemembered,
    /// A path of a host that has several leaves sessions of its former lives alone.
    FormerLivesStay,
    /// A login waits for the reactor of its channel, however long that is held up.
    LoginWaitsOnAndOn,
    /// A login waits for what lost connections have left that reads.
    ReadsHoldUp,
    /// What a lost connection has left ends the command that has its slot by now.
    FormerEnds,
    /// Commands of a lost connection that have no request wait on for one.
    WaitingStay,
    /// Commands of a serial session wait for their turn though their connection is lost.
    TurnAwaited,
    /// A flush under way is forgotten by the next login, and with it an error that it is told.
    FlushForgotten,
    /// A flush that its host has given up tells it of a loss.
    GivenUpIsTold,
    /// A completion that waits for the end of the turn goes by a connection that was made in it.
    RepliesStay,
    /// News that were told by a connection that is lost have arrived.
    ToldIsHeard,
}

impl Bug {
    /// Those that only tests look for: hosts of no suite prove what they know, links of no suite are slow, and no port of theirs
    /// is full. Their hosts have one path by BRP.
    pub const TESTS: &[Bug] = &[
        Bug::CrowdKeepsOut,
        Bug::OnlyMessagesAreLife,
        Bug::OwnKeepOut,
        // What waits is counted nowhere.
        Bug::EndingKeepsLogins,
        Bug::LoginWaitsOnAndOn,
        Bug::FormerLivesStay,
        Bug::UnknownRemembered,
        Bug::GoneByName,
        // Devices of suites end all that they have begun.
        Bug::ReadsHoldUp,
        Bug::FormerEnds,
        Bug::WaitingStay,
        Bug::TurnAwaited,
        Bug::FlushForgotten,
        Bug::GivenUpIsTold,
        // What hosts of suites see stays.
        Bug::ToldIsHeard,
    ];
}
