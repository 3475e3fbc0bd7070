//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// ABORT TASK is answered while the task may still write.
    AbortAnsweredEarly,
    /// ABORT TASK ends one of the tasks with its tag.
    AbortFirstOnly,
    /// The units do not forget a nexus whose last channel has ended.
    NexusStays,
    /// A login that ends the channels of its nexus does not wait for their end.
    OldChannelsStay,
    /// PREEMPT AND ABORT does not end the preempted nexuses' commands.
    PreemptedGoOn,
    /// LOGICAL UNIT RESET ends its own nexus's commands only.
    ResetOwnOnly,
    /// A PREEMPT AND ABORT is answered though its own task set has been aborted meanwhile.
    PreemptorAnswers,
    /// A command waits for its descriptor table's buffer while it holds that of its data.
    TableHeldUp,
    /// Channels that a device holds up after their connections are lost may become all that a port has.
    LostTakeAll,
    /// A port that has ended keeps the nexuses of logins that were under way.
    StoppedKeepsNexuses,
    /// Task management of a unit leaves commands alone that came to its LUN before it was there.
    UnplacedGoOn,
    /// A host is not asked whether it is there on a channel that it has never used.
    UnusedNotAsked,
    /// A host that is silent has no time for the answer to what it is asked by chance just then.
    AnswerAtOnce,
    /// A login waits for a reactor that is held up as long as it takes.
    LoginWaitsOnAndOn,
    /// A login is answered though channels that it ends do not know of it yet.
    UnawareGoOn,
    /// A login that ends the channels of its host goes on with their nexus, and what that has reserved.
    TerminatedStays,
    /// A login that ends the channels of its nexus leaves those alone that are still being set up.
    JoiningStay,
    /// What a host had reserved stays so after a login that ends it, as long as one of its channels is being set up.
    JoiningHold,
    /// Logins that a later one of the host has ended wait all the same.
    SupersededWaits,
    /// Messages of a connection that was refused wait until no other one is being accepted.
    RefusedWaitedFor,
    /// A reset ends the reservation of RESERVE(6) while tasks before it have not ended.
    ResetFreesEarly,
    /// A login finds a channel ended that has its place at the port yet.
    SeatHeldOn,
    /// Task management goes on waiting for a device when its channel is lost, and keeps what that has of the port.
    LostManageOn,
    /// A reset whose channel is lost before it is over never ends the reservation of RESERVE(6).
    LostResetNever,
    /// A reset that is over ends the reservation of RESERVE(6) though a later one has not ended its holder's tasks.
    ResetsAlike,
    /// What the channels that a login has ended had reserved stays theirs if that was refused.
    RefusedFreesNothing,
    /// A reset is answered though the reservation of RESERVE(6) that it was to end is there until a later one is over.
    OutlivedIsDone,
}

impl Bug {
    /// Those that only tests look for: hosts of no suite fill a port with channels, and one seed in ten thousand of theirs
    /// meets a LUN that comes between a command and the abort of its task set. Targets of suites end with all that hosts have
    /// left, and their reactors stand still together.
    pub const TESTS: &[Bug] = &[
        Bug::LostTakeAll,
        Bug::UnplacedGoOn,
        Bug::UnusedNotAsked,
        Bug::LoginWaitsOnAndOn,
        Bug::UnawareGoOn,
        Bug::JoiningStay,
        Bug::JoiningHold,
        Bug::SupersededWaits,
        Bug::RefusedWaitedFor,
        Bug::TerminatedStays,
        Bug::AnswerAtOnce,
        Bug::ResetFreesEarly,
        Bug::SeatHeldOn,
        Bug::LostManageOn,
        Bug::LostResetNever,
        Bug::ResetsAlike,
        Bug::OutlivedIsDone,
        Bug::RefusedFreesNothing,
    ];
}
