//! Bugs on purpose, for the proof of tests. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// Each damage that is found is told by an event of its own, and written to the store at once.
    EachDamageTold,
    /// What was found damaged last before the end, or before a pool is let go of, is told by nobody.
    LastUntold,
    /// A pool that was to be released, and could not be closed in order, is taken for one that is open still.
    ClosedStaysUp,
    /// A configuration is in force before it is durable, and stays so if it cannot be made durable.
    InForceBeforeDurable,
    /// What is cut off a volume is thrown away while the change that cuts it off, or one that deletes it, is under way.
    CutAmongChanges,
    /// What a deleted volume had is thrown away while all other changes wait.
    ClearedAmongChanges,
    /// Nobody asks what has become of space that was being given back.
    ClearedUnasked,
    /// Files and disks of volumes in image mode are opened one after the other, whether they answer or not.
    ImagesOneByOne,
    /// What is cut off a volume is thrown away by a change that failed and is to be taken back.
    CutThoughOwed,
    /// What a pool carries of volumes that were left out when it was taken over is overwritten.
    LeftOutIsOverwritten,
    /// Faults stay of what is not in the configuration any more.
    FaultsOfNothing,
    /// A volume that was left out is seen by whoever has the names of its hosts here.
    LeftByName,
    /// What cannot be read of what a pool carries when it is taken over is lost.
    UnreadIsLost,
    /// A volume is served from a pool whose devices say that it is not there any more.
    ServedWhereNoMore,
    /// A volume moves to where another one is.
    PlaceTakenOver,
    /// What was written in a life of a copy is known as far as the revision has been counted since.
    LivesGoOn,
    /// A pool that carries a newer configuration may be written to by the older one.
    NewerIsOpen,
    /// A target port that was refused, and could not be stopped, listens until the next start.
    RefusedListens,
    /// A volume that was opened with less than it is to have, in a pool that was closed, stays so when that is open.
    OpenedSmaller,
    /// A volume is moved while hosts see it otherwise than it is to be.
    MovedBehind,
    /// The old place of a volume is cleared though what it has moved to does not open.
    ClearedUnopened,
    /// It is forgotten whose space is being thrown away.
    ClearedUnknown,
    /// A snapshot is deleted of which a volume is yet to be made.
    OriginDeleted,
    /// A snapshot is taken or deleted though the next start may find a change that was refused.
    ActsInDoubt,
    /// A stop leaves a pool open whose last opening failed, though one before did not.
    OpenForgotten,
    /// A pool of which it is not known what rules it follows is taken for one that follows none.
    UnknownIsNone,
    /// Rules count that are to be taken back.
    RulesThoughOwed,
    /// What was refused stands in the way of a new pool of its name.
    RefusedIsPassed,
    /// The size of a volume is recorded that hosts do not see yet.
    UnseenIsRecorded,
    /// A volume of which devices hold less than it has is made larger, though it was not to be.
    ShortIsGrown,
    /// A start takes what a volume of a protected pool was to be larger by for its own, though that was refused.
    GainedIsForgotten,
    /// A pool whose creation was refused stays on its devices when it cannot be taken away at once.
    UnmadeOnce,
    /// A stop leaves sizes that could not be recorded before as they are.
    SizesUnrecorded,
    /// What was made of a volume that did not come to be is nobody's when it cannot be taken away at once.
    MadeIsForgotten,
    /// A change that failed, and could not be taken back, stays in the configuration.
    UndoneHalf,
    /// What was declared at the start is tried again though somebody has said otherwise since.
    RetriedForEver,
    /// A host whose connection is lost knows nothing any more.
    NumbersForgotten,
    /// What a host knows by a number is told by the names of volume and host.
    NumbersByName,
    /// A host gets a number by which the host for all ports has another volume.
    NumbersOfAll,
    /// What hosts saw by a change that was taken back is not known.
    UndoneIsUnknown,
    /// Which volumes a newer pool has is known only while it is here.
    NewerForgotten,
    /// What pools failed to carry is taken for never written to them.
    KeptThoughFailed,
    /// A host that an import tells of is the one that has its name here.
    HostsByName,
    /// A volume that could not be closed where it was of old is taken for closed.
    CloseOnce,
    /// Of a pool that was let go of while it was not there counts what its devices say.
    LetGoIsForgotten,
    /// What a configuration file says may be overwritten is overwritten at every start, pools with it.
    FileDestroysPools,
    /// What a configuration file says may be overwritten at the start may be overwritten whenever it is tried again.
    LeaveForGood,
    /// A pool that was closed and opened again is taken to follow the rules for snapshots that it followed before.
    RulesOfFormerLife,
    /// What a volume has in a pool that is not there is waited for, though the pool is to go.
    LostIsWaitedFor,
    /// A device that a pool was to get, and that cannot be had, keeps the pool from starting.
    NewKeepsAllDown,
    /// A host that logs in while a command takes a mapping away knows nothing.
    LateIsOverlooked,
    /// A node that takes a pool over and changes nothing of its configuration leaves no mark on it.
    TenureUnmarked,
    /// What the data plane could not be put back to after a change that failed is left as it is until the next start.
    UndoneOnce,
    /// What the data plane could not be put back to is put back while the volume moves.
    PutBackInFlight,
    /// A volume that could not be closed is opened beside what is left of it.
    OpenedTwice,
    /// What there is of a volume that could not be opened everywhere is left there, and the volume opened beside it.
    OpenedBesidePart,
    /// A volume gets its former size where the one that hosts have seen cannot be recorded.
    SizeTakenBack,
    /// What does not close is tried again without a rest, while commands wait.
    ClosesWithoutRest,
    /// What is in use of a pool that was to be taken over stays in use when that is taken back.
    UndoneStaysInUse,
    /// Commands that change nothing of the configuration look at one that is to be taken back.
    TurnThoughOwed,
    /// What waits while everything is taken down is begun after that.
    GoesOnAfterEnd,
    /// Hosts log in while everything is taken down.
    LetsInAtTheEnd,
    /// Commands that wait for their turn get it while the node is being stopped.
    TurnsWhileStopping,
    /// Commands get through while the node starts.
    CommandsWhileStarting,
    /// Devices are looked at for the first time while all others wait.
    AskedAmongChanges,
    /// At the end pools are closed whose volumes have not ended.
    PoolsBeforeVolumes,
    /// At the end pools are closed one after another: one that hangs keeps the others open.
    PoolsInTurn,
    /// Nobody is told of a pool whose devices did not answer until the end.
    OpeningsUnnamed,
    /// A stop in the midst of a start comes after all that the start waits for.
    StopWaitsForStart,
    /// A volume that hosts wait for, and that could not be closed, is not opened again when it is.
    ClosedForGood,
    /// Volumes that do not close rest one by one: there is always one that has rested.
    EachRestsByItself,
    /// A pool that was not taken over stays open when one of its volumes could not be closed.
    LeftOpen,
    /// While mappings are waited for that do not get through, no others are put in force.
    OtherMappingsRest,
    /// What an opening has found counts though the pool was closed since.
    OldOpeningCounts,
    /// A pool that has been opened and not been looked at yet is taken for one that is not there.
    OpenedIsLost,
    /// The configuration follows what a reactor has said of its pools that is held up since.
    NamesOfBefore,
    /// A pool is open, and nobody opens its volumes.
    OpenedWithoutVolumes,
    /// A device that is removed takes a name along that another one has got.
    NameOfAnother,
    /// Volumes are served from where an older configuration may have them while a pool is opened that knows better.
    ServedUntold,
    /// What is slow to open keeps everything else from starting.
    OpenedInTurn,
    /// That the data of some volumes may be deleted is leave to delete that of all.
    SomeConfirmedIsAll,
    /// That the data of a volume may be deleted is leave to delete that of another of its name.
    ConfirmedByName,
    /// Target ports that a file moves listen where they were until what it declares has been tried.
    MovedListenBefore,
    /// What an object rests on is only lost if it is not there at all.
    LostIfNotThere,
    /// What an object needs is as declared once somebody has made another of that name.
    AnyOfItsName,
    /// New target ports listen though hosts are not as they are declared.
    PortsBesideWrongHosts,
    /// Target ports that a file does not name are removed under the hosts that are logged in there.
    PortsPrunedInUse,
    /// That a pool was closed in order once is never forgotten by the store.
    StoppedForEver,
    /// That a pool was closed in order counts though it has been opened since.
    StoppedThoughOpened,
    /// A copy of the configuration that is put back says that pools were closed in order.
    CopyVouches,
    /// What is declared is tried as it was when the round began, whatever was declared since.
    DeclaredAsItWas,
    /// Nothing that is declared is made before all keys have come.
    AllWaitForKeys,
    /// What is declared is judged by a change that was refused and is to be taken back.
    DeclaredThoughOwed,
    /// What is tried again takes volumes from hosts that are logged in.
    RetriesTakeInUse,
    /// A host that is gone is as it is declared.
    GoneHostIsFulfilled,
    /// Whatever is changed of an object, what is declared of it is not tried any more.
    AnyChangeFulfils,
    /// Whatever part of an object is changed, nothing of what is declared of it is tried any more.
    AnyPartFulfils,
    /// That a volume has been moved says nothing about where it is wanted.
    MovingIsNoWish,
    /// What tells target ports apart, and is in no list of differences, says nothing when it is changed.
    PortsGoByFacts,
    /// What is declared and has no fault is not tried again.
    OpenUntried,
    /// Ports are held back for mappings that wait for a key.
    PortsWaitForKeys,
    /// A mapping that is not there gives nobody anything, though another has its number.
    NumberOfAnother,
    /// A volume whose deletion could not end at once is made anew as it is declared.
    DeletedComesBack,
    /// A size that was refused, and is to be taken back, is told as one that hosts see.
    SizeToldThoughOwed,
    /// How pools were closed is read anew when giving that away failed, though the data directory is another one by then.
    RecordsReadAnew,
    /// An opening that failed when it had begun to write counts as none.
    UnfinishedIsNone,
    /// The same of an opening that broke off.
    BrokenOffIsNone,
    /// A pool is opened without devices that may be late.
    NobodyIsLate,
    /// What was to be made smaller, and is not known to be, is so after a start.
    OpenCutIsMade,
    /// At the end nothing is taken back that could not be before.
    OwedAtTheEnd,
    /// A pool that is not declared goes before it is known what it carries.
    PrunedBesideOpening,
    /// What is not declared goes though something that is declared needs it.
    PrunedThoughNeeded,
    /// A host that was logged in a moment ago counts as gone.
    AwayIsGone,
    /// A declaration takes volumes from initiator ports that are logged in.
    PortsTakenInUse,
    /// What is held back by something that is not as declared is let go of by a declaration that does not name that.
    ReasonsForgotten,
    /// A store whose file system does not answer is told as well.
    HungIsWell,
    /// An error is told of each time that something is tried again.
    ToldEachTime,
    /// What a volume has in a plain pool that is not up is taken for nothing when it is deleted.
    AwayIsEmpty,
    /// A pool that was opened, and does not count as up, is in no list of what is to be closed.
    OpenedUnlisted,
    /// A pool is closed, or opened again, while it is being opened.
    OpenedBesideClose,
    /// A pool is let go of under the hosts that are logged in.
    ReleasedInUse,
    /// Whoever asks for a change, the daemon has made it by itself.
    NobodyAsked,
    /// After a kill events get numbers that were given to others.
    NumbersAgain,
    /// Hosts that come and go push all other events out.
    LoginsPushOut,
}
