//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// What comes right behind a start-up frame is lost.
    EarlyLost,
    /// What was to be sent has all gone, though the stream took less.
    ShortIsWhole,
    /// What is received in part is forgotten when the rest comes.
    CarryLost,
    /// The end of the peer's direction is nothing.
    EndIsSilence,
    /// What waited for a posted receive is forgotten.
    StalledLost,
}
