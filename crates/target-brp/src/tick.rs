//! What happens by time: silence, sessions without channels, news of volumes.

use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use std::rc::Rc;
use weir_base::MILLIS;
use weir_proto_brp::control::{Event, EventKind, GoodbyeReason};
use weir_reactor::{contained, now, sleep};

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
        let size = |k: &crate::channel::Known| k.attached.unit().volume().geometry().len;
        let present: Vec<_> = self.volumes().iter().map(|k| (k.number, k.guard, size(k))).collect();
        let before = self.seen.replace(present.clone());
        if before == present {
            return;
        }
        let same = |a: &(u16, u32, u64), b: &(u16, u32, u64)| (a.0, a.1) == (b.0, b.1);
        let mut events = self.events.borrow_mut();
        let kept =
            before.len() == present.len() && before.iter().zip(&present).all(|(a, b)| same(a, b));
        if !kept && !before.is_empty() {
            events.retain(|e| e.kind != EventKind::Volumes as u8);
            events.push(Event { kind: EventKind::Volumes as u8, volume: 0, value: 0 });
        }
        for (number, guard, len) in &present {
            let old = before.iter().find(|(n, g, _)| (n, g) == (number, guard));
            if old.is_some_and(|(.., l)| l != len) {
                let kind = EventKind::Resized as u8;
                events.retain(|e| e.kind != kind || e.volume != *number);
                events.push(Event { kind, volume: *number, value: *len });
            }
        }
        drop(events);
        self.make_dirty();
    }
}
