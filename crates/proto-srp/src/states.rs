//! The five state machines of the target, by name: channel, I_T nexus, request, buffer descriptor
//! table and DMA (Guthridge, "A Scalable, High Performance InfiniBand-Attached SAN Volume
//! Controller", sections IV and V).
//!
//! A machine is an `async` task whose awaits are these states; the tables say which may follow which,
//! and the engine asserts them. Request and DMA states are named as in the paper, which shows the
//! other three machines only in words; theirs are named alike.
//!
//! | machine | main path |
//! |---|---|
//! | channel | FREE, RESOURCE WAIT, NEXUS WAIT, ACCEPT WAIT, ESTABLISHED, DISCONNECT WAIT, FLUSH WAIT, DRAIN WAIT, FREE |
//! | nexus | FREE, ACTIVE, (TERMINATE WAIT, ACTIVE), LOSS WAIT, FREE |
//! | request | FREE, RECV BUFFER WAIT, RECV WAIT, SUBMIT WAIT, PARTIALS WAIT, ACTIVE, DMA DRAIN WAIT, SEND QUEUE WAIT, SEND BUFFER WAIT, COMPLETION QUEUE WAIT, BDT WAIT, FREE |
//! | BDT | FREE, BUFFER WAIT, (SQR WAIT, CQR WAIT)…, FETCH WAIT, READY, FREE |
//! | DMA | IDLE, BDT WAIT, (SQR WAIT, CQR WAIT)…, XFER WAIT, IDLE |

#[cfg(test)]
mod tests;

macro_rules! machine {
    (
        $(#[$doc:meta])*
        $name:ident from $start:ident {
            $( $(#[$vdoc:meta])* $variant:ident $text:literal => [$($next:ident),* $(,)?], )+
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )+
        }

        impl $name {
            /// The state in which the machine starts and ends.
            pub const START: $name = $name::$start;

            /// Every state.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The name as traces and documents show it.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// The states that may come next.
            pub const fn successors(self) -> &'static [$name] {
                match self { $($name::$variant => &[$($name::$next),*]),+ }
            }

            /// Whether `next` may follow this state.
            #[inline]
            pub const fn may_follow(self, next: $name) -> bool {
                /// A bit per successor.
                const fn mask(list: &[$name]) -> u32 {
                    let mut m = 0;
                    let mut i = 0;
                    while i < list.len() {
                        m |= 1 << list[i] as u32;
                        i += 1;
                    }
                    m
                }
                let allowed = match self {
                    $($name::$variant => const { mask(&[$($name::$next),*]) }),+
                };
                allowed & (1 << next as u32) != 0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

machine! {
    /// SRP channel: from the connection request to the last resource given back.
    ChannelState from Free {
        /// No connection. Waits for a connection request.
        Free "FREE" => [ResourceWait, RejectWait],
        /// Waits for a queue pair, room in the completion queue and posted receives.
        ResourceWait "RESOURCE WAIT" => [NexusWait, RejectWait, DrainWait],
        /// Waits for the nexus machine: the I_T nexus is found or made, and the channels that the
        /// login's multi-channel action ends are gone.
        NexusWait "NEXUS WAIT" => [AcceptWait, RejectWait, DrainWait],
        /// The login is refused. Waits until the reject is with the connection manager.
        RejectWait "REJECT WAIT" => [DrainWait, Free],
        /// The login response is sent. Waits for ESTABLISHED; receives that complete before are held.
        AcceptWait "ACCEPT WAIT" => [Established, DisconnectWait, FlushWait, DrainWait],
        /// In use. Waits for messages, the peer's disconnect, an error, or our own wish to end.
        Established "ESTABLISHED" => [LogoutWait, DisconnectWait, FlushWait, DrainWait],
        /// We end the channel. Waits until the T_LOGOUT is sent, or cannot be.
        LogoutWait "LOGOUT WAIT" => [DisconnectWait, FlushWait, DrainWait],
        /// Waits until the peer has disconnected too, or a timeout.
        DisconnectWait "DISCONNECT WAIT" => [FlushWait, DrainWait],
        /// The queue pair is in the error state. Waits until all posted work has come back.
        FlushWait "FLUSH WAIT" => [DrainWait],
        /// Waits until every request of the channel has let go of it.
        DrainWait "DRAIN WAIT" => [Free],
    }
}

machine! {
    /// SCSI I_T nexus: one per pair of initiator port and target port, whatever number of channels.
    NexusState from Free {
        /// No channel, nothing known of the initiator. Waits for a login.
        Free "FREE" => [Active],
        /// At least one channel. Waits for logins and for channels to go.
        Active "ACTIVE" => [TerminateWait, LossWait],
        /// A login with multi-channel action "terminate". Waits until the older channels are gone.
        TerminateWait "TERMINATE WAIT" => [Active, LossWait],
        /// The last channel is gone. Waits until every task of the nexus has ended and the logical
        /// units have heard of the I_T nexus loss; a login meanwhile waits with it.
        LossWait "LOSS WAIT" => [Active, Free],
    }
}

machine! {
    /// One SRP_CMD, SRP_TSK_MGMT or other message of a host.
    RequestState from Free {
        /// In the pool. Waits for START: the port comes on line, or the last round is over.
        Free "FREE" => [RecvBufferWait],
        /// Waits for a receive buffer: there are fewer of them than requests.
        RecvBufferWait "RECV BUFFER WAIT" => [RecvWait, Free],
        /// The buffer is posted. Waits for a message of a host. A message that takes no answer and
        /// no work (an answer to us, a malformed one) ends here; one that is answered at once goes
        /// to the send states, an ABORT TASK to where it waits for its victim.
        RecvWait "RECV WAIT" => [
            SubmitWait, SendHoldWait, AsyncHoldWait, AsyncWait, DmaDrainWait, SendQueueWait,
            BdtWait, Free,
        ],
        /// In the tag table. Waits until the command processor takes it.
        SubmitWait "SUBMIT WAIT" => [PartialsWait, Datc, DmaDrainWait, AsyncHoldWait, AsyncWait],
        /// Waits until the BDT machine has copied the inline descriptors, so that the receive buffer
        /// can go back.
        PartialsWait "PARTIALS WAIT" => [Active, Datc, DmaDrainWait],
        /// Waits for the command processor to direct transfers and to give the final status.
        Active "ACTIVE" => [DmaDrainWait, Datc],
        /// Deferred abort target command: an abort has met this command where it could not be told at
        /// once. Waits until the command processor has heard of the abort and lets go.
        Datc "DATC" => [DmaDrainWait, AsyncHoldWait, AsyncWait],
        /// Waits until no RDMA operation of this request is under way.
        DmaDrainWait "DMA DRAIN WAIT" => [
            SendQueueWait, SendHoldWait, AsyncHoldWait, AsyncWait, BdtWait,
        ],
        /// The answer is ready but held: an abort's until its victim is gone, a victim's until the
        /// abort has decided that it still may be sent.
        SendHoldWait "SEND HOLD WAIT" => [SendQueueWait, AsyncHoldWait, AsyncWait, BdtWait],
        /// Waits for a slot in the send queue.
        SendQueueWait "SEND QUEUE WAIT" => [SendBufferWait, AsyncHoldWait, AsyncWait, BdtWait],
        /// Waits for a send buffer.
        SendBufferWait "SEND BUFFER WAIT" => [
            CompletionQueueWait, AsyncHoldWait, AsyncWait, BdtWait,
        ],
        /// Waits for a slot in the completion queue; with it the answer is posted.
        CompletionQueueWait "COMPLETION QUEUE WAIT" => [BdtWait, AsyncHoldWait, AsyncWait],
        /// Ends without an answer (aborted, channel lost) but is held. Waits until those that still
        /// refer to it, such as an abort, have let go.
        AsyncHoldWait "ASYNC HOLD WAIT" => [AsyncWait, BdtWait],
        /// Waits for a turn of its own on the run queue, outside the context of whoever ended it.
        AsyncWait "ASYNC WAIT" => [BdtWait, Free],
        /// Waits until the BDT machine has given back the descriptor table.
        BdtWait "BDT WAIT" => [Free],
    }
}

machine! {
    /// Fetch of one command's buffer descriptor table, in parallel with the command's submission.
    BdtState from Free {
        /// No table. Waits for a command with data.
        Free "FREE" => [BufferWait],
        /// Waits for a buffer to hold the table; inline entries are copied into it.
        BufferWait "BUFFER WAIT" => [Ready, SqrWait, Failed],
        /// Waits for a slot in the send queue, within the negotiated number of RDMA READs.
        SqrWait "SQR WAIT" => [CqrWait, FetchWait, Failed],
        /// Waits for a slot in the completion queue; with it an RDMA READ of the table is posted.
        CqrWait "CQR WAIT" => [SqrWait, FetchWait, Failed],
        /// Waits until every READ of the table is complete.
        FetchWait "FETCH WAIT" => [Ready, Failed],
        /// The table is whole and checked. Waits for the request to let it go.
        Ready "READY" => [Free],
        /// There will be no table: a bad one, an abort, a lost channel. Waits for the request to let
        /// it go.
        Failed "FAILED" => [Free],
    }
}

machine! {
    /// One transfer between local buffers and the initiator's memory.
    DmaState from Idle {
        /// In the pool. Waits for a transfer.
        Idle "IDLE" => [BdtWait],
        /// Waits for the descriptor table.
        BdtWait "BDT WAIT" => [SqrWait, AsyncWait],
        /// Waits for a slot in the send queue, within the negotiated number of RDMA READs.
        SqrWait "SQR WAIT" => [CqrWait, XferWait, AsyncWait],
        /// Waits for a slot in the completion queue; with it an RDMA operation is posted, and the
        /// loop goes on until all are.
        CqrWait "CQR WAIT" => [SqrWait, XferWait, AsyncWait],
        /// Waits until every RDMA operation posted is complete.
        XferWait "XFER WAIT" => [Idle],
        /// Nothing was posted: zero length, or aborted before the start. Waits for a turn of its own
        /// on the run queue to call back.
        AsyncWait "ASYNC WAIT" => [Idle],
    }
}
