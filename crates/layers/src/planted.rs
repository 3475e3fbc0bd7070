//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// What hosts change during a migration does not reach the destination.
    ChangesNotMirrored,
    /// It does also where the copier has not been yet.
    MirroredTooFar,
    /// A change that failed at the source is not made good at the destination.
    FailedChangeForgotten,
    /// The copier does not lock what it copies.
    CopiedUnlocked,
    /// The cut-over does not flush the destination.
    CutOverUnflushed,
    /// What is empty at the source is left out of a destination that is not.
    HolesLeftOut,
    /// What changes while a destination does not answer is not made good there.
    StallForgotten,
    /// A destination that did not answer is used again before what was given up has ended.
    LateWritesForgotten,
    /// Hosts wait for the destination however long it takes.
    WaitedForEver,
    /// The copier has its piece locked while it waits for its rate, so hosts wait for that too.
    LockedForTheRate,
    /// A compressed chunk is overwritten in its area.
    FormOverwritten,
    /// The compressed forms of a chunk are given back before its data is written as it is.
    FormsGivenBackFirst,
    /// What was a chunk's data is given back before what is new is written.
    OldGivenBackFirst,
    /// A short last chunk is compressed together with what the codec's buffer held.
    TailNotZeroed,
    /// A chunk refers to a slot of another group before that is counted.
    RecordBeforeCount,
    /// Records that were found empty are not looked at again by a recount, though they were written meanwhile.
    EmptyGroupsStay,
    /// Who asks for the cut-over waits as long as the destination of a migration in doubt takes.
    DoubtHoldsUp,
    /// An answer gives the memory of an I/O of another reactor back, though a device at home still has it.
    LentMemoryReturned,
    /// What a flush is told that nobody waits for any more is forgotten.
    GivenUpForgotten,
    /// A flush that ends well proves that what was written before is durable, though another one was told that it is lost.
    LossUnheeded,
}

impl Bug {
    /// Those of migrations.
    pub const MIGRATE: &[Bug] = &[
        Bug::ChangesNotMirrored,
        Bug::MirroredTooFar,
        Bug::FailedChangeForgotten,
        Bug::CopiedUnlocked,
        Bug::CutOverUnflushed,
        Bug::HolesLeftOut,
        Bug::StallForgotten,
        Bug::LateWritesForgotten,
        Bug::WaitedForEver,
        Bug::LockedForTheRate,
    ];
    /// Those of compression.
    pub const COMPRESS: &[Bug] = &[
        Bug::FormOverwritten,
        Bug::FormsGivenBackFirst,
        Bug::OldGivenBackFirst,
        Bug::TailNotZeroed,
    ];
    /// Those that only tests of this crate look for.
    pub const TESTS: &[Bug] = &[
        Bug::EmptyGroupsStay,
        Bug::LentMemoryReturned,
        Bug::RecordBeforeCount,
        Bug::DoubtHoldsUp,
        Bug::GivenUpForgotten,
        Bug::LossUnheeded,
    ];
}
