//! What happens by time: silence, sessions without channels, news of volumes.

use crate::channel::{Channel, Known};
use crate::planted::{Bug, has};
use crate::port::Port;
use std::rc::{Rc, Weak};
use weir_base::MILLIS;
use weir_proto_brp::control::{Event, EventKind, GoodbyeReason};
use weir_reactor::{contained, now, sleep};
use weir_target_core::Attached;

/// A volume as its host was last told of it.
#[derive(Clone)]
pub(crate) struct Seen {
    number: u16,
    guard: u32,
    len: u64,
    /// As long as this is kept, no other is made in its place.
    attached: Weak<Attached>,
}

impl Seen {
    fn of(k: &Known) -> Seen {
        Seen {
            number: k.number,
            guard: k.guard,
            len: k.attached.unit().volume().geometry().len,
            attached: Rc::downgrade(&k.attached),
        }
    }
}

/// How often.
const EVERY: u64 = 250 * MILLIS;

/// Looks at all channels again and again.
pub(crate) async fn tick(port: Rc<Port>) {
    loop {
        sleep(EVERY).await;
        for c in port.channels() {
            if let Err(p) = contained(|| c.look()) {
                c.broke(&p);
            }
        }
    }
}

impl Channel {
    fn look(self: &Rc<Self>) {
        let agreed = self.agreed.get();
        let unknown = self.port.shared.access.map().host(&self.name.session.initiator.0).is_none();
        // Without a connection, too: nobody may come back for it.
        if unknown && !has(Bug::UnknownRemembered) {
            return self.end_later(GoodbyeReason::NotAllowed);
        }
        let Some(conn) = self.conn() else {
            let forget = self.port.config.session_timeout.max(agreed.keep_alive);
            if now().saturating_sub(self.silent_since.get()) > forget {
                self.end_later(GoodbyeReason::Silent);
            }
            return;
        };
        // A ping may stand behind megabytes of data that we have asked for.
        let life = if has(Bug::OnlyMessagesAreLife) { 0 } else { conn.last_life() };
        let heard = self.last_heard.get().max(life);
        let silent = now().saturating_sub(heard);
        if agreed.keep_alive > 0 && silent > agreed.keep_alive {
            tracing::warn!(peer = %self.info().peer, "the host has been silent for too long");
            return self.close(GoodbyeReason::Silent, true);
        }
        self.refresh();
        if self.port.shared.sessions.is_first(&self.name) {
            self.news();
        }
    }

    /// Compares the volumes with what was last told of them.
    fn news(self: &Rc<Self>) {
        let present: Vec<_> = self.volumes().iter().map(Seen::of).collect();
        let before = self.seen.replace(present.clone());
        let same = |a: &Seen, b: &Seen| {
            // One that was away for a moment may be older than it was.
            (a.number, a.guard) == (b.number, b.guard) && a.attached.ptr_eq(&b.attached)
        };
        let mut events = self.events.borrow_mut();
        let kept =
            before.len() == present.len() && before.iter().zip(&present).all(|(a, b)| same(a, b));
        if !kept && !before.is_empty() {
            events.retain(|e| e.kind != EventKind::Volumes as u8);
            events.push(Event { kind: EventKind::Volumes as u8, volume: 0, value: 0 });
        }
        let mut any = !kept && !before.is_empty();
        for s in &present {
            let old = before.iter().find(|b| (b.number, b.guard) == (s.number, s.guard));
            if old.is_some_and(|b| b.len != s.len) {
                any = true;
                let kind = EventKind::Resized as u8;
                events.retain(|e| e.kind != kind || e.volume != s.number);
                events.push(Event { kind, volume: s.number, value: s.len });
            }
        }
        drop(events);
        if any {
            self.make_dirty();
        }
    }
}
