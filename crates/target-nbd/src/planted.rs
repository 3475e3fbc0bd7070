//! Bugs on purpose, for the proof of the test suites. Without the feature `planted` there are none.

weir_base::planted_bugs! {
    /// A write is answered while its device has it.
    WriteNotAwaited,
    /// A read is answered before its data have come: its client gets what another request has left in the buffer.
    ReadNotAwaited,
    /// A write that is to be durable is one like any other.
    FuaIgnored,
    /// A flush is answered without one.
    FlushIgnored,
    /// Writes are not shown to the unit: who hides a volume does not wait for them.
    WritesUnseen,
    /// Clients get volumes that the access map does not show them.
    HiddenIsExported,
    /// The units do not forget a host whose last connection has ended.
    NexusStays,
    /// A connection that is over keeps its place at the port.
    ConnectionStays,
}
