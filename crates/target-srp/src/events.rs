//! Asynchronous events (SRP_AER_REQ): news of a host's units, told without waiting for its next command.
//!
//! Only to a channel whose login asked for them (AESOLNT); what they tell is a pending unit attention, which
//! stays pending. The units are looked at every [`event_period`](crate::TargetConfig::event_period), and only
//! those in which something has changed.

use crate::channel::Channel;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_fabric::SendFlags;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::{SENSE_LEN_MAX, Sense, SenseFormat};
use weir_proto_srp::misc::{AER_REQ_LEN, EventRequest};
use weir_reactor::{Token, sleep, spawn_task};

/// Most events that wait to be told; the oldest give way. A host that cannot follow reads the unit attentions.
const WAITING: usize = 64;

/// What a channel has been told, and what is still to be told.
#[derive(Default)]
pub(crate) struct Events {
    /// Units at the last look: the generation of their state, and the attentions pending then.
    seen: RefCell<Vec<(Lun, u64, Vec<Sense>)>>,
    waiting: RefCell<VecDeque<(Lun, Sense)>>,
}

impl Events {
    fn push(&self, lun: Lun, sense: Sense) {
        let mut w = self.waiting.borrow_mut();
        if !w.iter().any(|(l, s)| *l == lun && s.same_code(&sense)) {
            if w.len() == WAITING {
                w.pop_front();
            }
            w.push_back((lun, sense));
        }
    }
}

impl Channel {
    /// Looks for events as long as the channel lives.
    pub(crate) async fn watch_events(channel: Rc<Channel>) {
        let period = channel.port().config.event_period;
        // What was so at the login is no news.
        channel.look_for_events();
        channel.events.waiting.borrow_mut().clear();
        loop {
            sleep(period).await;
            if channel.is_lost() {
                return;
            }
            channel.look_for_events();
            channel.tell_event();
        }
    }

    /// Notes what has changed since the last look.
    fn look_for_events(&self) {
        let port = self.port();
        self.view.refresh(&port.shared.access, &port.units);
        let luns = self.view.luns();
        let mut seen = self.events.seen.borrow_mut();
        if !seen.iter().map(|(l, ..)| l).eq(&luns) {
            // One for the whole inventory; a host looks at all of it.
            self.events.push(Lun::ZERO, Sense::REPORT_LUNS_CHANGED);
        }
        let mut before = std::mem::take(&mut *seen);
        for lun in luns {
            let Some(a) = self.view.find(lun) else { continue };
            let shared = a.unit().shared();
            let generation = shared.generation();
            let old = before.iter().position(|(l, ..)| *l == lun).map(|i| before.swap_remove(i));
            let pending = match old {
                Some((_, g, known)) if g == generation => known,
                Some((.., known)) => {
                    let pending = shared.with(|s| s.attentions(self.view.nexus()));
                    let new = pending.iter().filter(|s| !known.iter().any(|k| k.same_code(s)));
                    for s in new.filter(|s| !s.same_code(&Sense::REPORT_LUNS_CHANGED)) {
                        self.events.push(lun, *s);
                    }
                    pending
                }
                None => shared.with(|s| s.attentions(self.view.nexus())),
            };
            seen.push((lun, generation, pending));
        }
    }

    /// Tells the next event, if the host has been heard and owes no answer to an earlier request.
    pub(crate) fn tell_event(self: &Rc<Self>) {
        if self.is_lost() || self.served.get() == 0 || self.has_asked() {
            return;
        }
        let Some((lun, sense)) = self.events.waiting.borrow_mut().pop_front() else { return };
        if !self.begin_asking() {
            return;
        }
        tracing::info!(peer = %self.peer, channel = self.id, lun = lun.0, sense = %sense, "event");
        let me = self.clone();
        spawn_task(async move {
            me.conn.send_slots().wait().await;
            let mut bytes = [0; SENSE_LEN_MAX];
            let n = sense.encode(SenseFormat::Fixed, &mut bytes);
            let r = EventRequest {
                tag: me.new_tag(),
                delta: me.take_credits(),
                lun: lun.0,
                sense: &bytes[..n],
                solicited: true,
            };
            let mut iu = [0; AER_REQ_LEN + SENSE_LEN_MAX];
            match r.encode(&mut iu, me.response_len) {
                Ok(n) => {
                    let flags = SendFlags { solicited: true, ..SendFlags::default() };
                    me.conn.send(&iu[..n], None, flags, Token::NONE);
                }
                // The shortest length that a login may agree on has room for it.
                Err(_) => me.conn.send_slots().signal(),
            }
        });
    }
}
