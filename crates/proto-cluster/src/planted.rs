//! Bugs on purpose, for the proof of the model. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A write is acknowledged when one node has it, whoever is able.
    AckBeforePartner,
    /// A write is acknowledged without the partner while the register is being told that it is out.
    AckBeforeDrop,
    /// A pool that was opened with fewer nodes than were able is served before the register says so.
    ServeBeforeDrop,
    /// A node that is not able takes over.
    TakeWithoutAble,
    /// The gate of a device lets commands of any epoch and session run.
    GuardNotChecked,
    /// A gate that has just started believes whoever logs in first.
    GateTrustsItself,
    /// A gate says that it is drained while commands of older epochs are under way.
    DrainSkipped,
    /// A gate goes by the epoch alone, so that commands of a session that was ended still run.
    OldSessionRuns,
    /// A node's own engine opens the pool without a look at the gates of its devices.
    EngineBesideGate,
    /// Who takes over does not wait until the lease of the old owner is over.
    NoWaitForLease,
    /// The wait for the old owner's lease leaves out how much clocks differ.
    DriftForgotten,
    /// A node that has just started has granted nothing.
    GrantForgottenAtStart,
    /// A node that has taken over goes on granting the beats of the one before.
    GrantByOwner,
    /// Reads are answered without a lease.
    ReadWithoutLease,
    /// A lease begins when the grant came.
    LeaseFromReceipt,
    /// A lease is judged by the time of the last event, so that a stop is forgiven.
    LeaseForgivesPauses,
    /// A grant that was given to an older epoch or life counts.
    GrantOfOldEpoch,
    /// The partner is able again before it has been filled.
    ReadmitBeforeCopy,
    /// While a readmission is in doubt the owner keeps the duties of one.
    ReadmitDoubtIgnored,
    /// A partner that is filled, and that the register is not asked for yet, need not have what is written.
    DutiesWhenProposed,
    /// The session of a partner that was dropped goes on when it is heard again.
    ReadmitOverOldSession,
    /// A change in doubt is taken for one that did not happen.
    DoubtTakenForFailure,
    /// A change in doubt is taken for one that happened.
    DoubtTakenForSuccess,
    /// What an older read says replaces what is known.
    StaleReadBelieved,
    /// A change that lost is made again on top of what stands.
    ChangeWithoutVersion,
    /// The owner opens its pool again under the epoch that it has.
    NoEpochStep,
    /// The last able node is taken out when its devices fail.
    LastAbleDropped,
    /// A pool is handed over before its engine has closed.
    HandOverWithoutClose,
}
