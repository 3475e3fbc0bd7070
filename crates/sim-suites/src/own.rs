//! Bugs on purpose in what the suites themselves stand for. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A device is opened while writes of a process that was killed are on their way to it.
    OpenDoesNotWait,
}
