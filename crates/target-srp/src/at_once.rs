//! Commands that end where they were received.
//!
//! A command that waits for nothing (its volume is memory, its descriptor is at hand, the send queue has
//! room) passes through the states of its machines without stopping in any. It is run to its response
//! right from the bytes on the wire, without a request structure, a receive buffer or a task. Everything
//! else, and everything while a trace is kept, goes the way of [`Request`](crate::request::Request).

use crate::channel::Channel;
use std::rc::Weak;
use weir_fabric::{Remote, SendFlags, Tap};
use weir_proto_scsi::lun::Lun;
use weir_proto_srp::{Buffer, Command, Iu, Response};
use weir_reactor::{Token, contained};
use weir_target_core::AtOnce;

/// What a channel shows its connection.
pub(crate) struct AtOnceTap(pub(crate) Weak<Channel>);

impl Tap for AtOnceTap {
    #[inline]
    fn message(&self, bytes: &[u8]) -> bool {
        let Some(channel) = self.0.upgrade() else { return false };
        let taken = contained(|| match Iu::decode(bytes, &channel.context) {
            // By reference: what has just been written as fields is not moved as a whole.
            Ok(Iu::Command(ref c)) => channel.at_once(c).is_some(),
            _ => false,
        });
        taken.unwrap_or_else(|p| {
            channel.broke(&p);
            true
        })
    }
}

impl Channel {
    /// Runs a command if that needs no waiting. `None`: nothing has been done.
    #[inline]
    fn at_once(&self, c: &Command<'_>) -> Option<()> {
        // What came before and was not looked at yet comes first: it may be a task management function.
        let port = self.port();
        if !self.is_established() || port.has_unseen() || port.trace.is_on() {
            return None;
        }
        let data = match c.data_out {
            Buffer::None => None,
            Buffer::Immediate { data } => Some(data),
            _ => return None,
        };
        let target = match c.data_in {
            Buffer::None => None,
            Buffer::Direct(d) if d.len <= port.config.max_rdma.max(4096) => Some(d),
            _ => return None,
        };
        let needs_stable = target.is_some() && self.conn.needs_stable_data();
        // One slot for the data, one for the response.
        let slots = if target.is_some() { 2 } else { 1 };
        if needs_stable || !self.can_charge() || !self.conn.send_slots().try_wait_n(slots) {
            return None;
        }
        self.view.refresh(&port.shared.access, &port.units);
        let in_len = target.map_or(0, |d| d.len);
        let attached = self.view.find(Lun(c.lun));
        let done = attached.and_then(|a| a.execute_at_once(&self.view, c.cdb, in_len, data));
        let Some(done) = done else {
            self.conn.send_slots().signal_n(slots);
            return None;
        };
        let charged = self.charge();
        assert!(charged, "a credit was there");
        if let Some(d) = target
            && let AtOnce::Deliver(slice) = done
        {
            self.conn.write(slice, Remote { key: d.key, addr: d.addr }, Token::NONE);
        }
        let solicited = c.solicit.wants(true);
        let iu = Response::good(c.tag, self.release(), solicited);
        let flags = SendFlags { solicited, invalidate: None };
        self.conn.send(&iu, None, flags, Token::NONE);
        self.heard();
        Some(())
    }
}
