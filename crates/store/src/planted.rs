//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A write is acknowledged when one half has it.
    AckAfterOneHalf,
    /// A write is acknowledged before the flush.
    AckBeforeFlush,
    /// Freed blocks are handed out before the checkpoint that frees them.
    ReuseBeforeCheckpoint,
    /// Recovery believes log entries without looking at the data.
    ReplayWithoutData,
    /// Recovery reads one half's log only.
    ReplayOneLog,
    /// Recovery does not bring data to the half that misses it.
    ServeBeforeRepair,
    /// The superblock is written without waiting for what it refers to.
    SuperblockBeforeFlush,
    /// A half that failed is left out without a record of that.
    NoMembershipRecord,
    /// Damage that was found and mended is told of no device.
    DamageUntold,
    /// Damage of a block is told of no device when other copies cannot be read, or the devices say that the medium is bad.
    LastCopyUntold,
    /// A scrub that did not read everything found nothing, if no damage was counted meanwhile.
    LeftOutIsClean,
    /// That a block is lost is remembered by its place, whatever is there later.
    LossByPlace,
    /// That a block is lost is told of the volume or snapshot in which it was found, and of no other that has it.
    LossOfOneOnly,
    /// A read that finds a block lost tells so, whatever was written there while it looked where that is.
    LossOfAnOlderEntry,
    /// A pool that goes on after it was suspended takes losses of its end for such of each instant of its log.
    LossBeforeItsTime,
    /// A loss is told of a volume that has got another map since somebody looked.
    LossOfAnotherMap,
    /// A trim is not logged.
    TrimNotLogged,
    /// A flush that failed is taken for success.
    FlushFailureIgnored,
    /// Reads are not verified.
    ReadUnverified,
    /// What was never written is known to be so though the pool is suspended and a write of it has not been decided.
    HolesUndecided,
    /// A change of the devices that nobody waits for any more gives its turn back before it is done.
    ChangeGivenUp,
    /// A drain gives up the slabs of its plan, whatever hosts have written since.
    GivenUpAsPlanned,
    /// What is moved when a drain is asked for is in its way, though it will be elsewhere.
    UnderWayIsInTheWay,
    /// A device that was to leave leaves though somebody has stopped that meanwhile.
    DismissedUnasked,
    /// Two that make something of one name at once both get it.
    NameTwice,
    /// Damaged data is answered with zeros.
    ZerosForDamage,
    /// A poisoned block is forgotten at the checkpoint.
    PoisonForgotten,
    /// Writes of parts of a block do not lock it.
    PartialWriteUnlocked,
    /// A checkpoint lets go of log pages that were written while it was made.
    LogCutTooFar,
    /// Recovery does not begin a new incarnation.
    SameIncarnation,
    /// A snapshot does not wait for writes under way.
    SnapshotInTheMiddle,
    /// What overwrites a snapshot's block frees it.
    DeadEntryLost,
    /// Bringing a device back leaves out a part of each slab.
    ResyncSkipsRegion,
    /// A device that was filled is not read again before it counts as current.
    FillNotProved,
    /// A slab's new place counts before its copy is complete.
    SwitchedBeforeCopied,
    /// What cannot be read ends all moves that were begun with its own.
    UnreadEndsMoves,
    /// A slab moves without what cannot be read, and may be on the device that it leaves.
    UnreadIsLeft,
    /// What a piece of a map that cannot be read leads to is taken for nothing.
    UnseenIsNothing,
    /// A piece of a map that is the same at the end as at the beginning counts as looked at, whatever was there in between.
    SeenAfterRevert,
    /// The same of what is moved, and nobody asks new places for what a walk has missed.
    LackingUnasked,
    /// A page counts as looked at when another one was that had its place, and was written in the same epoch.
    SeenByPlace,
    /// What all devices show to be wrong once is lost when its slab moves.
    WrongOnceIsLost,
    /// The same where the other device is dead.
    BesideDeadIsLost,
    /// What is shown wrong once, or cannot be read once, is missed by a device that is brought back.
    ResyncIsHasty,
    /// All doubtful blocks of a leaf are looked at before the first is again, however long that takes.
    ProvedTooLate,
    /// What a device in service says it cannot read is lost when its slab moves.
    BadIsLost,
    /// What was lost with a removed device is lost though that is not removed any more by the time that its slabs have moved.
    ReturnUnseen,
    /// A slab moves though its new place did not give a block back, as it was written there.
    HeldMoves,
    /// What a piece of a map leads to, and was given up with a removed device, is lost though that is not removed any more.
    LetGoStands,
    /// A block that cannot be read holds every slab that lacks anything.
    UnreadHoldsAll,
    /// A device that went its own way forgets that before the others know that it misses everything.
    WipedUntold,
    /// What a wipe that was cut off has left of a device's own history is believed.
    CutOffBelieved,
    /// Nothing on a disk is believed as the one that had its number went its own way.
    ForeignByNumber,
    /// That slabs go to a device, so that the pool can grow, is said to be stopped, and is not.
    StoppedGoesOn,
    /// A wipe is stopped while a power cut may bring back a part of the superblocks.
    WipedPerhaps,
    /// A removed device that was there, and is not at a start, counts as lost.
    LateStaysLost,
    /// A device that is filled and does not give back a block is waited for, whatever else it gives.
    EchoAwaited,
    /// What somebody has said not to come back is waited for still.
    DeadIsAway,
    /// A device that is drained and away is taken not to come back, though nobody has said so.
    AwayIsWrittenOff,
    /// What a device that has failed, and is to leave, has alone is lost, though it can be read.
    FailedIsDead,
    /// A device that answers counts as silent when its superblocks take long to read, or a write to it has not ended.
    IllIsSilent,
    /// A copy is wrong for good though a write to it is under way that was given up.
    LateIsLost,
    /// What a device that somebody has removed fails to read for a moment is lost, also for hosts.
    PassingIsLoss,
    /// The same in a move, when enough others are lost.
    GivenUpInHaste,
    /// A removed device that did not answer once counts as silent while slabs move, though it answers again.
    SilentForGood,
    /// A removed device that did not answer once counts as missing for hosts.
    SilentIsMissing,
    /// What is moved and cannot be read is waited for while a checkpoint waits.
    PausedUnderPin,
    /// Who has devices brought back takes back the removal of one that is read still.
    RemovalForgotten,
    /// A removal waits for what the removed device cannot read when the other one says that it has a bad block there.
    BadBlockStays,
    /// A device that was taken for lost counts as lost though it is found at a start.
    FoundStaysLost,
    /// What a device lacks of the use of blocks goes on lacking.
    HeadsNotMended,
    /// What is written while a slab moves goes to the old place only.
    MoveMissesWrites,
    /// What happened while a device was away is looked for from too late an epoch on.
    ResyncFromNow,
    /// Recovery begins a superblock when the one before it is on some devices only.
    SuperblockIncomplete,
    /// Damaged labels are left as they are.
    LabelsNotMended,
    /// Recovery that keeps the log lets pages count that it did not find to be whole.
    TailUnjudged,
    /// Recovery that keeps the log serves before the superblock that says so is durable.
    ServeBeforeSuperblock,
    /// The ring of the log is used again over pages of lives that are over and not merged.
    RingOverTail,
    /// A deleted snapshot hands its dead list to a snapshot that the checkpoint under way does not have.
    DeadListToNewSnapshot,
    /// Metadata is read where it has not arrived yet.
    ReadOnItsWay,
    /// Who mends a block and is given up leaves its write on the way, and the block without a pin.
    MendGivenUp,
    /// A mend is not read back.
    MendNotReadBack,
    /// Blocks are free after a checkpoint although somebody is still reading them.
    ReuseUnderReader,
    /// A write of several blocks does not lock the last one.
    LastBlockUnlocked,
    /// Snapshots of several volumes are made one after the other.
    SnapshotsOneByOne,
    /// A device is attached again while writes that were given up are on their way to it.
    AttachWithLateWrites,
    /// A superblock that tells of a failed device counts before it is durable.
    RecordedTooSoon,
    /// A block that cannot be read is lost for good.
    ErrorIsLoss,
    /// What recovery cannot read was not written.
    UnreadIsUnwritten,
    /// What failed with the whole pool is read as if it had not been done.
    UndecidedIsOld,
    /// A superblock that decides what failed is written where the one before it has not arrived.
    BegunLeftOut,
    /// What failed is decided on while the pool is being opened anew, which decides too.
    DecidedInTwoLives,
    /// What failed is decided on after a failed try to open the pool anew, which began superblocks.
    DecidedOverResume,
    /// What is suspended for another reason than a device's failure forgets which devices were current.
    SuspendedUnread,
    /// Who reads a snapshot that is being deleted goes by its map still.
    DeletedStillRead,
    /// What recovery reads well and may be in a device's cache only is not written again.
    LeftInCache,
    /// An older image of a device that was out of service gets what was written since that one failed, and no more.
    OldImageTrusted,
    /// What comes back by itself does so also against the operator's word.
    ReturnsUnasked,
    /// A device that joined with the newest superblock, which has not come to it, is taken for one that forgets.
    NewcomerIsBehind,
    /// A disk that is to join, or of a pool that is being opened, and does not answer is waited for without end.
    SilentDiskHoldsUp,
    /// The loss of a block is put down to whatever the volume has there by then.
    PoisonForAnother,
    /// Who waits for a read that was given up counts as a reader of the life in which it began.
    LateReadHoldsUp,
    /// A disk is taken as a new device while writes that were given up are on their way to it.
    TakenWithLateWrites,
    /// A pool that was made and used is made again, for whoever says that it was not.
    MadeTwice,
    /// What has a place for a label that cannot be read is free for a pool.
    UnreadIsFree,
    /// That a block was wrong once is never forgotten, however often it was read well since.
    WrongForEver,
    /// The place that a slab is moved to is no copy of what was written to it.
    MoveMissesReads,
    /// Space for a checkpoint is kept for what took effect, not for what is on its way.
    ComingNotCounted,
    /// Who waits for a checkpoint that fails is told that it was made.
    FailedIsMade,
    /// What was given up of a disk is known to the device of a pool only, and forgotten with it.
    LateOfDevice,
    /// The same of a disk that was opened anew by another name.
    LateByName,
    /// A device that has left the pool is kept.
    GoneIsKept,
    /// The life of a pool before it was resumed keeps its devices.
    HeldByOldLife,
    /// What a pool had when it was closed is not compared with what its devices have.
    LastNotCompared,
    /// A device that is there and cannot be read is one that is missing.
    UnreadIsMissing,
    /// A pool counts as closed in order though it lacks a device.
    LastLacking,
    /// The log says what is durable though the last checkpoint is being made.
    TellsAtTheEnd,
    /// A pool that is resumed gives a new volume the number of one that did not last.
    NumberTwice,
    /// A pool counts as closed while a checkpoint is being made still.
    ClosedOnTheWay,
    /// Superblocks that cannot be read are none.
    HiddenIsNone,
    /// Who brings a device back, or attaches one, takes for it whatever has its number by then, however it stands.
    DeviceByNumber,
    /// What is carried out to its end waits for whoever waits for that end.
    TurnInTheEnd,
    /// Superblocks that cannot be read are given up by force before the log is asked whether there were any.
    HiddenForgottenFirst,
    /// What was freed is overwritten also when the pool is closed, goes on in another life, or nobody waits for that.
    ShreddedLater,
    /// Of a pool that was suspended and closed it is decided still what failed.
    DecidedAfterClose,
    /// Who has a pool go on that is well waits for that, and upkeep behind him.
    ResumedTooEarly,
    /// A checkpoint that is under way when a device fails is to give the log another copy.
    LogOfThatCheckpoint,
    /// Discards may use up all the space that is kept for deletions.
    DiscardsTakeAll,
    /// To ask for a device to be brought back is to ask for whatever is attached in its place.
    AskedByNumber,
    /// Of snapshots that were made at once of one volume none is before another.
    TwinsAreOne,
    /// What was held back by a checkpoint or a snapshot does not look again whether there is space.
    HeldBackUncounted,
    /// When one of the blocks that are to be overwritten cannot be, the others are left.
    ShreddedToTheFirst,
    /// By force the newest superblock is given up where it could not be read, though it was brought there since.
    NewestForgotten,
    /// Who waits for readers forgets those that somebody before waited for and was given up.
    GraceForgets,
    /// A pool of which nobody waits any more that it is closed is closed in part.
    HalfClosed,
    /// A pool is opened while work of one that was given up is under way on its disks.
    OpenedBeside,
    /// A volume is made what a snapshot is while another one of that instant is being given back.
    RevertBesideTwin,
    /// While a volume is made smaller, also by what a snapshot is, it is written to beyond its new end, or gets another map.
    WrittenBeyondTheEnd,
    /// A part of a block is written with the rest of it as it was before its volume became what a snapshot is.
    PartOfAnother,
    /// What was written since the newest checkpoint is told as being a hole, as the map on disk has it.
    LoggedIsHole,
    /// What of a map is not in memory, or cannot be read, is told as being a hole.
    UnreadIsHole,
    /// What is written while it is found out how long a hole is counts as hole.
    HoleOutrun,
    /// A device joins by the name that another one goes by.
    NameOfTwo,
    /// An old copy of a device in sync lets the pool be opened, as if nothing newer of it could be anywhere.
    OldCopyPasses,
    /// Whether a pool may have gone on elsewhere is told by the number of devices, not by what has copies there.
    DevicesForCopies,
    /// A spare that takes a place as power goes is taken for a device that lost what it had.
    SpareIsBehind,
    /// The pool goes on with a device of which the one that failed need not know that it is in sync.
    CurrentUntold,
    /// The pool goes on though the superblock on its way names lost places of slabs only.
    NewPlaceUnasked,
    /// A table of slabs becomes part of a superblock though a place that it names has failed meanwhile.
    NewPlaceStays,
    /// A device that lacks the newest superblock is current, whatever the log says of who had that.
    OneBehindPasses,
    /// A superblock is not followed by one of the same content: an old copy of a device may lack no more than that one.
    WrittenOnce,
    /// A device that fails as a superblock is written for the second time is told of once only.
    FailureToldOnce,
    /// A log of which nothing can be read is read page by page to its end.
    UnreadToTheEnd,
    /// What of the log cannot be read says nothing.
    UnreadSaysNothing,
    /// A page of the log that cannot be read may say more wherever it is.
    UnreadAnywhere,
    /// A look at a block that cannot be read counts as one at which all its copies are wrong.
    BadIsWrong,
    /// A removal that is taken back ends only the moves off the device that is back.
    ReturnForItsOwn,
    /// Places that do not give back what is written there are room as others are.
    PoorIsRoom,
    /// A device is removed while its log is wiped to bring it back.
    RemovedAmidWipe,
    /// A drain that was stopped has failed for ever.
    StoppedIsFailed,
    /// A device is brought back that was asked for, though somebody has stopped that since.
    StillAsked,
    /// Who asks for a device right after he has stopped it asks in vain.
    AskedInVain,
    /// By force, too, an older device is out of sync that has the only copy of something.
    OlderIsOut,
    /// Of two disks that are the same device the first one is used.
    FirstOfTwo,
    /// A scrub takes what it has not read yet of a snapshot that is deleted for read.
    DeletedIsRead,
    /// A scrub follows what is left of a deleted clone, or of a revert, into what is somebody else's by now.
    GarbageIsFollowed,
    /// A volume is told to have lost what is left of one of its name, or of what it was before a revert.
    GarbageIsTold,
    /// A pool that looks whether it can be larger takes what is vacant after the next checkpoint for taken.
    LeavingIsTaken,
    /// A suspended pool goes on with disks that were put back to an earlier state meanwhile.
    ResumedFromBefore,
    /// A suspended pool writes what it decides on a disk that was put back to an earlier state.
    DecidedOnOlder,
    /// A suspended pool goes on though one of its halves was put back to an earlier state meanwhile.
    OneHalfIsAll,
    /// What fewer nodes have is acknowledged before that is kept.
    FewerNotAwaited,
    /// That fewer nodes have everything is told to nobody.
    FewerUntold,
    /// A node that does not own the pool any more goes on.
    FencedGoesOn,
    /// That more nodes have everything, and that this may have been kept, is forgotten.
    DoubtOfMoreForgotten,
    /// A pool is opened under the owner epoch of an opening before.
    EpochUsedAgain,
    /// The newest superblock is the one with the highest number, whoever owned the pool.
    NumberBeforeOwner,
    /// What any device says is believed, whoever is held to have everything.
    AnybodyIsAble,
    /// What a life of a pool was told of its owner, and of who has everything, only that one knows.
    KnownToOneLife,
    /// A node that has come into service counts when it is told of, not from the superblock on that says so.
    CountsWhenAsked,
    /// A pool that is resumed believes those that had everything when it was opened first.
    AbleOfTheFirst,
    /// Superblocks wait until it is kept that more nodes have everything.
    MoreAwaited,
    /// That more nodes have everything counts as kept, though fewer were told of since that was asked.
    OldAnswerCounts,
    /// Before anything of a half was read it is told that the other node has not got everything.
    ToldBeforeOpen,
    /// An owner that is none any more tells parts of blocks, where holes are, and what it was reading as it learned that.
    FencedTells,
    /// A node has everything though its log cannot be read.
    UnreadHasAll,
    /// Devices of nodes that are not held to have everything are not asked for what speaks against that.
    OthersUnasked,
    /// A page of the log of a newer owner is taken for one of an older.
    PageOfAnyOwner,
}

impl Bug {
    /// Those of a pool that two nodes share, for the suite `pair`.
    pub const PAIR: &[Bug] = &[
        Bug::FewerNotAwaited,
        Bug::FewerUntold,
        Bug::FencedGoesOn,
        Bug::DoubtOfMoreForgotten,
        Bug::EpochUsedAgain,
        Bug::ToldBeforeOpen,
        Bug::FencedTells,
        Bug::KnownToOneLife,
    ];
    /// Those that only tests of this crate look for, since no suite does what they need. Examples: to resume a pool whose
    /// device fails meanwhile, to put an older image in a device's place, to have a device hang before it is in service.
    pub const TESTS: &[Bug] = &[
        // Who owns a pool of two nodes, and who has everything (`owned`, `able`, `halves`).
        Bug::NumberBeforeOwner,
        Bug::AnybodyIsAble,
        Bug::CountsWhenAsked,
        Bug::AbleOfTheFirst,
        Bug::OldAnswerCounts,
        Bug::MoreAwaited,
        Bug::UnreadHasAll,
        Bug::OthersUnasked,
        Bug::PageOfAnyOwner,
        // Stories of snapshots by chance (`lines`), a device's first superblock (`devices`).
        Bug::DeletedStillRead,
        // Who is told of damage (`damage`).
        Bug::DamageUntold,
        Bug::LastCopyUntold,
        Bug::LeftOutIsClean,
        Bug::LossByPlace,
        Bug::LossOfOneOnly,
        Bug::LossOfAnOlderEntry,
        Bug::LossBeforeItsTime,
        Bug::LossOfAnotherMap,
        Bug::ChangeGivenUp,
        Bug::GivenUpAsPlanned,
        Bug::UnreadEndsMoves,
        Bug::UnreadIsLeft,
        Bug::UnseenIsNothing,
        Bug::SeenAfterRevert,
        Bug::LackingUnasked,
        Bug::SeenByPlace,
        Bug::WrongOnceIsLost,
        Bug::BesideDeadIsLost,
        Bug::ResyncIsHasty,
        Bug::ProvedTooLate,
        Bug::BadIsLost,
        Bug::ReturnUnseen,
        Bug::EchoAwaited,
        Bug::LateStaysLost,
        Bug::WipedUntold,
        Bug::CutOffBelieved,
        Bug::WipedPerhaps,
        Bug::ForeignByNumber,
        Bug::StoppedGoesOn,
        Bug::HeldMoves,
        Bug::LetGoStands,
        Bug::UnreadHoldsAll,
        Bug::DeadIsAway,
        Bug::AwayIsWrittenOff,
        Bug::FailedIsDead,
        Bug::IllIsSilent,
        Bug::LateIsLost,
        Bug::PassingIsLoss,
        Bug::GivenUpInHaste,
        Bug::SilentForGood,
        Bug::SilentIsMissing,
        Bug::PausedUnderPin,
        Bug::BadBlockStays,
        Bug::RemovalForgotten,
        Bug::FoundStaysLost,
        Bug::HeadsNotMended,
        Bug::UnderWayIsInTheWay,
        Bug::DismissedUnasked,
        Bug::NameTwice,
        Bug::NewcomerIsBehind,
        Bug::AttachWithLateWrites,
        Bug::DecidedInTwoLives,
        Bug::DecidedOverResume,
        Bug::LeftInCache,
        Bug::OldImageTrusted,
        Bug::ReturnsUnasked,
        Bug::SilentDiskHoldsUp,
        Bug::PoisonForAnother,
        Bug::LateReadHoldsUp,
        Bug::TakenWithLateWrites,
        Bug::MadeTwice,
        Bug::UnreadIsFree,
        Bug::WrongForEver,
        Bug::MoveMissesReads,
        Bug::ComingNotCounted,
        Bug::FailedIsMade,
        Bug::LateOfDevice,
        Bug::LateByName,
        Bug::LastNotCompared,
        Bug::UnreadIsMissing,
        Bug::GoneIsKept,
        Bug::HeldByOldLife,
        Bug::LastLacking,
        Bug::TellsAtTheEnd,
        Bug::NumberTwice,
        Bug::ClosedOnTheWay,
        Bug::HiddenIsNone,
        Bug::DeviceByNumber,
        Bug::HiddenForgottenFirst,
        Bug::ShreddedLater,
        Bug::DecidedAfterClose,
        Bug::ResumedTooEarly,
        Bug::AskedByNumber,
        Bug::LogOfThatCheckpoint,
        Bug::DiscardsTakeAll,
        Bug::HeldBackUncounted,
        Bug::ShreddedToTheFirst,
        Bug::NewestForgotten,
        Bug::GraceForgets,
        Bug::HalfClosed,
        // A story in which it waits takes hours of its time.
        Bug::TurnInTheEnd,
        Bug::OpenedBeside,
        Bug::RevertBesideTwin,
        Bug::WrittenBeyondTheEnd,
        Bug::PartOfAnother,
        Bug::LoggedIsHole,
        Bug::UnreadIsHole,
        Bug::HoleOutrun,
        Bug::NameOfTwo,
        Bug::OldCopyPasses,
        Bug::DevicesForCopies,
        Bug::SpareIsBehind,
        Bug::CurrentUntold,
        Bug::NewPlaceUnasked,
        Bug::NewPlaceStays,
        Bug::OneBehindPasses,
        Bug::WrittenOnce,
        Bug::FailureToldOnce,
        Bug::UnreadToTheEnd,
        Bug::UnreadSaysNothing,
        Bug::UnreadAnywhere,
        Bug::BadIsWrong,
        Bug::ReturnForItsOwn,
        Bug::PoorIsRoom,
        Bug::RemovedAmidWipe,
        Bug::StoppedIsFailed,
        Bug::StillAsked,
        Bug::AskedInVain,
        Bug::OlderIsOut,
        Bug::FirstOfTwo,
        Bug::LeavingIsTaken,
        Bug::DeletedIsRead,
        Bug::GarbageIsFollowed,
        Bug::GarbageIsTold,
        Bug::ResumedFromBefore,
        Bug::DecidedOnOlder,
        Bug::OneHalfIsAll,
    ];
}
