//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// What the other node lost with its power is told to nobody.
    LossIsNone,
    /// What is lost does not come back.
    NothingReturns,
    /// One whose connection was down for long goes on as if nothing had been.
    HealedUnlooked,
    /// A flush is done when it is sent.
    FlushIsNothing,
}
