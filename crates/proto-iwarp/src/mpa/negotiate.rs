//! What two ends agree on: CRC, read depths and who speaks first.

use super::{DEPTH_UNSPECIFIED, Enhanced, Error, Reply, Request};

/// Whether this end wants CRCs. MPA turns them on when either end asks (RFC 5044 section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrcPolicy {
    /// Does not ask; CRCs are used only because the peer asks.
    Off,
    /// Asks; as initiator, lives with a responder that answers without.
    Prefer,
    /// Asks; as initiator, fails when the responder answers without.
    Require,
}

/// What this end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether CRCs are wanted.
    pub crc: CrcPolicy,
    /// Most RDMA READs this end will have outstanding, 0..=0x3FFE.
    pub max_reads_out: u16,
    /// Most RDMA READs of the peer this end serves at once, 0..=0x3FFE.
    pub max_reads_in: u16,
}

/// The frame that opens RDMA mode in the peer-to-peer model (RFC 6581 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtr {
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
    /// Zero-length Send; it consumes a receive at the responder.
    Send,
}

/// What both ends agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// CRCs are sent and checked, both ways.
    pub crc: bool,
    /// RDMA READs this end may have outstanding.
    pub reads_out: u16,
    /// RDMA READs the peer may have outstanding at this end.
    pub reads_in: u16,
    /// Peer-to-peer was agreed: the frame with which the initiator begins.
    pub first_rtr: Option<Rtr>,
}

/// Why a responder refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The request asks for markers.
    Markers,
    /// The request's revision is 0 or above 2.
    Revision(u8),
    /// Peer-to-peer is asked for and no RTR frame offered.
    NoRtr,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::Markers => f.write_str("the peer asks for MPA markers, which are not offered"),
            Refusal::Revision(n) => write!(f, "the peer asks for MPA revision {n}; 1 and 2 exist"),
            Refusal::NoRtr => {
                f.write_str("the peer asks for the peer-to-peer model but offers no RTR frame")
            }
        }
    }
}

/// A refused request: why, and the frame that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub refusal: Refusal,
    /// To be sent before closing.
    pub reply: Reply,
}

impl core::fmt::Display for Reject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.refusal.fmt(f)
    }
}

impl std::error::Error for Reject {}

impl Policy {
    /// The request an initiator with this policy sends: revision 2, client-server model.
    pub fn request(&self, private_data: &[u8]) -> Request {
        Request {
            revision: 2,
            markers: false,
            crc: self.crc != CrcPolicy::Off,
            enhanced: Some(Enhanced {
                ird: self.max_reads_in.min(DEPTH_UNSPECIFIED - 1),
                ord: self.max_reads_out.min(DEPTH_UNSPECIFIED - 1),
                ..Enhanced::default()
            }),
            private_data: private_data.to_vec(),
        }
    }
}

/// The smaller of what the peer named and what this end has; all of the latter when the peer
/// leaves the depth open.
fn depth(peer: u16, mine: u16) -> u16 {
    if peer == DEPTH_UNSPECIFIED { mine } else { peer.min(mine) }
}

/// The depth to put into a reply: "not negotiated" is answered with the same.
fn answer(peer: u16, value: u16) -> u16 {
    if peer == DEPTH_UNSPECIFIED { DEPTH_UNSPECIFIED } else { value }
}

/// The reply that refuses `request`, for the consumer's reasons or ours (R set). Private data is
/// carried, though Linux siw does not show it to its consumer.
pub fn reject(request: &Request, private_data: &[u8]) -> Reply {
    // siw wants revision and S of its request back even in a reject. The depths carry no promise.
    let enhanced = request.enhanced.map(|e| Enhanced {
        peer_to_peer: false,
        rtr_send: false,
        rtr_write: false,
        rtr_read: false,
        ird: answer(e.ord, 0),
        ord: answer(e.ird, 0),
    });
    Reply {
        revision: if enhanced.is_some() { 2 } else { 1 },
        markers: false,
        crc: request.crc,
        reject: true,
        enhanced,
        private_data: private_data.to_vec(),
    }
}

/// Responder: what to answer to `request`, and what is agreed once that answer is sent.
///
/// A request without IRD/ORD words gets a revision 1 reply without them, and the policy's depths
/// count: such a peer settles depths above MPA.
pub fn respond(
    request: &Request,
    policy: &Policy,
    private_data: &[u8],
) -> Result<(Reply, Negotiated), Reject> {
    let refuse = |refusal| Err(Reject { refusal, reply: reject(request, &[]) });
    if !(1..=2).contains(&request.revision) {
        return refuse(Refusal::Revision(request.revision));
    }
    if request.markers {
        return refuse(Refusal::Markers);
    }
    let crc = request.crc || policy.crc != CrcPolicy::Off;
    let mut agreed = Negotiated {
        crc,
        reads_out: policy.max_reads_out,
        reads_in: policy.max_reads_in,
        first_rtr: None,
    };
    let mut enhanced = None;
    if let Some(e) = &request.enhanced {
        if e.peer_to_peer {
            agreed.first_rtr = match (e.rtr_write, e.rtr_read, e.rtr_send) {
                (true, _, _) => Some(Rtr::Write),
                (_, true, _) => Some(Rtr::Read),
                (_, _, true) => Some(Rtr::Send),
                _ => return refuse(Refusal::NoRtr),
            };
        }
        agreed.reads_out = depth(e.ird, policy.max_reads_out);
        agreed.reads_in = depth(e.ord, policy.max_reads_in);
        // A zero-length READ as RTR needs a place in the read queue.
        if agreed.first_rtr == Some(Rtr::Read) {
            agreed.reads_in = agreed.reads_in.max(1);
        }
        enhanced = Some(Enhanced {
            peer_to_peer: e.peer_to_peer,
            rtr_send: agreed.first_rtr == Some(Rtr::Send),
            rtr_write: agreed.first_rtr == Some(Rtr::Write),
            rtr_read: agreed.first_rtr == Some(Rtr::Read),
            ird: answer(e.ord, agreed.reads_in),
            // ORD 0 would leave siw without an inbound read queue for good.
            ord: answer(e.ird, agreed.reads_out.max(e.ird.min(1))),
        });
    }
    let reply = Reply {
        revision: if enhanced.is_some() { 2 } else { 1 },
        markers: false,
        crc,
        reject: false,
        enhanced,
        private_data: private_data.to_vec(),
    };
    Ok((reply, agreed))
}

/// Initiator: checks `reply` against the `request` that was sent, and gives what was agreed.
pub fn conclude(request: &Request, reply: &Reply, policy: &Policy) -> Result<Negotiated, Error> {
    if reply.revision == 0 || reply.revision > request.revision {
        return Err(Error::Revision(reply.revision));
    }
    if reply.reject {
        return Err(Error::Rejected);
    }
    if reply.markers {
        return Err(Error::Markers);
    }
    if policy.crc == CrcPolicy::Require && !reply.crc {
        return Err(Error::NoCrc);
    }
    let mut agreed = Negotiated {
        crc: reply.crc,
        reads_out: policy.max_reads_out,
        reads_in: policy.max_reads_in,
        first_rtr: None,
    };
    let Some(asked) = &request.enhanced else { return Ok(agreed) };
    let Some(got) = &reply.enhanced else { return Err(Error::NotEnhanced) };
    if asked.ird != DEPTH_UNSPECIFIED && got.ord != DEPTH_UNSPECIFIED {
        if got.ord > asked.ird {
            return Err(Error::InsufficientIrd { wanted: got.ord, offered: asked.ird });
        }
        agreed.reads_in = got.ord;
    }
    agreed.reads_out = depth(got.ird, depth(asked.ord, policy.max_reads_out));
    if asked.peer_to_peer {
        agreed.first_rtr = Some(
            match (
                got.peer_to_peer,
                asked.rtr_write && got.rtr_write,
                asked.rtr_read && got.rtr_read,
                asked.rtr_send && got.rtr_send,
            ) {
                (true, true, _, _) => Rtr::Write,
                (true, _, true, _) => Rtr::Read,
                (true, _, _, true) => Rtr::Send,
                _ => return Err(Error::NoRtr),
            },
        );
    }
    Ok(agreed)
}
