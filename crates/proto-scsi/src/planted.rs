//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// Under Exclusive Access, one that is registered and no holder may read.
    RegisteredMayRead,
    /// PREEMPT takes away one of the registrations with the key that is named.
    PreemptFirstOnly,
    /// A unit attention is raised without the cached rules being made anew.
    AttentionBehindCache,
    /// An attention is raised for one of the nexuses of an initiator port.
    ToldOncePerHost,
    /// RELEASE tells nobody.
    ReleaseInSilence,
    /// LOGICAL UNIT RESET leaves the reservation of RESERVE(6).
    ResetKeepsReserve6,
    /// The reservation of RESERVE(6) stays when its holder does not see the unit any more.
    PartedKeepsReserve6,
    /// A holder that unregisters leaves its reservation in force.
    LeavingHolderHolds,
}
