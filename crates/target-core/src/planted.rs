//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A SCSI write lets go of the gate before it writes: a COMPARE AND WRITE does not wait for it.
    WriteNotCounted,
    /// The same for a write of a front end without SCSI.
    BlockWriteNotCounted,
    /// A command that was fenced while its data came writes it all the same, and fences wait only for what is at the medium.
    PassNotShown,
    /// A host gets all channels of a port, though others that are known have none.
    SeatsForWhoComesFirst,
    /// A login that has got the place of a channel that ended counts among those that wait for one.
    KeptWaitOn,
    /// Each port counts its nexuses from 1.
    PortsShareNexuses,
    /// A fence ends what is under way on one reactor only.
    FenceOneReactor,
    /// Nobody waits for the end of commands to volumes that are hidden.
    PartDoesNotWait,
    /// A fence does not wait until the answers of what it ended have left.
    AnswersNotAwaited,
    /// I/O that a lost channel left behind is not waited for by writes of the next one.
    LingeringForgotten,
    /// What writes when a connection is lost, and not its channel, is not waited for by other nexuses of the host.
    LostGoOnBeside,
    /// What a host has left at one target port is not waited for at another.
    LingeringByPort,
    /// What is left of one channel of a nexus is not waited for by its other channels.
    OwnNotAwaited,
    /// A fence of a nexus forgets what one of the same ports before it has left with a device.
    FormerNotFenced,
    /// A command that preempts and aborts its own key ends itself.
    FencerNotSpared,
    /// A command that waits for the end of others goes on waiting when it is ended, and who ended it does not wait for it.
    AsideNotEnded,
    /// A host that is given a secret goes on without having proved that it knows it.
    ProofNotAsked,
    /// A host that is deleted keeps its channels, and the places that they have.
    UnknownStay,
    /// A unit attention that a command has taken which ends without a word is told to nobody.
    AttentionLost,
    /// One that preempts its own key and has been ended by another is ended by itself as well.
    EndsItself,
    /// A number that is mapped, and whose volume is not there yet, is no number of the host's: its commands fail for good.
    AbsentIsUnknown,
    /// Writes of a host wait for what a channel that it has lost reads.
    ReadsLinger,
    /// What a host has left by one initiator port is not waited for by its others.
    LingeringByInitiator,
    /// A nexus that is lost gives its SPC-2 reservation up though a device has writes of it.
    LostFreesReservation,
    /// A host may give its SPC-2 reservation up while a device has writes of it by a channel that is lost.
    ReleasedBesideFormer,
    /// The same of a persistent reservation.
    BaredBesideFormer,
    /// A write that waits for what its host has left is answered when a fence wakes it.
    WokenAnswers,
    /// What waits for commands that were fenced goes on though nobody wants to know of it.
    FencesWaitOn,
    /// A loss is told by the flush that the device has failed, and by no other.
    LossToldOnce,
    /// An answer that left shortly before its connection was lost has told its host of a loss.
    LostAnswerTells,
    /// Whatever comes after an answer proves that it was heard.
    AnyIsHeard,
    /// So does an answer to what the host has given up.
    GivenUpIsHeard,
    /// A nexus that is lost is forgotten by the units of the reactor of its last channel only.
    ForgottenHere,
    /// A host is told of reservations while its former life is about to change them.
    KeptUnseen,
    /// What a host has left of a flush is not waited for by its next one.
    FlushesLeft,
}

impl Bug {
    /// Those that tests look for: hosts of no suite preempt and abort a key of their own, the judge of doors does not demand
    /// what a command may have taken that ended without a word, and two preemptors beside a slow device, or one of a host that
    /// has just come back, are rare. Units of suites come to all reactors at once. Hosts of no suite come back beside
    /// what they have lost, or by another port. Volumes that are mapped and not there are the control plane's, and so
    /// are hosts that are deleted.
    pub const TESTS: &[Bug] = &[
        Bug::SeatsForWhoComesFirst,
        Bug::KeptWaitOn,
        Bug::FencerNotSpared,
        Bug::AttentionLost,
        Bug::AsideNotEnded,
        Bug::FormerNotFenced,
        Bug::LostGoOnBeside,
        Bug::LingeringByPort,
        Bug::OwnNotAwaited,
        Bug::UnknownStay,
        Bug::AbsentIsUnknown,
        Bug::EndsItself,
        Bug::ReadsLinger,
        Bug::LingeringByInitiator,
        Bug::LostFreesReservation,
        Bug::ReleasedBesideFormer,
        Bug::BaredBesideFormer,
        Bug::WokenAnswers,
        Bug::FencesWaitOn,
        Bug::LossToldOnce,
        Bug::LostAnswerTells,
        Bug::AnyIsHeard,
        Bug::GivenUpIsHeard,
        Bug::ForgottenHere,
        Bug::KeptUnseen,
        Bug::FlushesLeft,
    ];
}
