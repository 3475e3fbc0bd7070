//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// What the other node lost with its power is told to nobody.
    LossIsNone,
    /// What is lost does not come back.
    NothingReturns,
    /// One whose connection was down for long goes on as if nothing had been.
    HealedUnlooked,
    /// What comes back is the volume that has the name now, whichever that is.
    AnyVolumeReturns,
    /// A flush is done when it is sent.
    FlushIsNothing,
}

impl Bug {
    /// Those that only tests look for: in no suite another volume gets a name.
    pub const TESTS: &[Bug] = &[Bug::AnyVolumeReturns];
}
