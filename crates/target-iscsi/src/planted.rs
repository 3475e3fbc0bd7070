//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// Commands begin as they come, whatever their numbers.
    OutOfTurn,
    /// A write does not wait for the last of the data that it has asked for.
    LastDataNotAwaited,
    /// The status of a read is sent before the last of its data.
    StatusBeforeData,
    /// ABORT TASK is answered while the task may still write.
    AbortAnsweredEarly,
    /// LOGICAL UNIT RESET is answered while tasks may still write.
    ResetAnsweredEarly,
    /// A logout is answered while tasks of the session may still write.
    LogoutAnsweredEarly,
    /// A login leaves the session alone that it replaces.
    ReplacedGoesOn,
    /// Commands that wait for their turn stay when their session ends.
    UnbegunStay,
    /// The port does not forget a session that is over.
    SessionStays,
}
