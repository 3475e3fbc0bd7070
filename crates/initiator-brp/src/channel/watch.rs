//! What happens by time: keep-alive, commands that take too long, paths that are down for too long.

use super::slot::State;
use super::{Channel, Path};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_brp::{Header, Kind};
use weir_reactor::{now, sleep};

/// Looks at a channel again and again.
pub(super) async fn watch(channel: Rc<Channel>) {
    let c = &channel.config;
    let shortest = [c.keep_alive / 4, c.command_timeout / 8, c.fast_io_fail / 4];
    let every = shortest.into_iter().filter(|t| *t > 0).min().unwrap_or(SECONDS);
    let every = every.clamp(5 * MILLIS, SECONDS);
    loop {
        sleep(every).await;
        match channel.path() {
            Path::Up => channel.look(),
            Path::Blocked => {
                if now().saturating_sub(channel.lost_at.get()) >= channel.config.fast_io_fail {
                    channel.set_path(Path::Failing);
                }
            }
            Path::Failing => {}
            Path::Replaced | Path::Stale | Path::Closed => return,
        }
    }
}

impl Channel {
    /// When the target last showed by the connection itself that it is there.
    fn life(&self) -> Nanos {
        self.conn.borrow().as_ref().map_or(0, |c| c.last_life())
    }

    fn look(&self) {
        let (now, alive) = (now(), self.limits.get().keep_alive);
        if alive > 0 {
            // An answer may stand behind megabytes of data, and our ping behind those that the target has asked for.
            let life = if has(Bug::OnlyMessagesAreLife) { 0 } else { self.life() };
            let heard = self.last_heard.get().max(life);
            if now.saturating_sub(heard) >= alive {
                tracing::warn!(channel = self.index, "the target has been silent for too long");
                return self.disconnect(true);
            }
            let quiet = self.last_sent.get().min(self.last_heard.get());
            if now.saturating_sub(quiet) >= alive / 3 {
                self.ping.set(self.ping.get().wrapping_add(1));
                self.send_header(Header { count: self.ping.get(), ..Header::new(Kind::Ping) });
            }
        }
        if self.config.command_timeout > 0 {
            self.expire(now);
        }
    }

    /// Aborts commands that take too long; gives the connection up when that does not help.
    fn expire(&self, now: Nanos) {
        let (limit, patience) = (self.config.command_timeout, self.config.abort_timeout);
        let mut hopeless = false;
        for (tag, s) in self.table.borrow_mut().slots.iter_mut().enumerate() {
            if !matches!(s.state, State::Sent | State::Orphan) {
                continue;
            }
            let age = now.saturating_sub(s.started);
            if age >= limit && !s.asked {
                (s.expired, s.asked) = (true, true);
                tracing::warn!(channel = self.index, tag, "a command takes too long");
                self.shared.note_abort();
                self.aborts.borrow_mut().push_back(tag as u16);
            }
            hopeless |= age >= limit + patience && s.state == State::Sent;
        }
        if hopeless {
            tracing::error!(channel = self.index, "an abort is not answered");
            self.give_up_expired();
            return self.disconnect(true);
        }
        self.pump(true);
    }

    /// Commands whose abort was not answered end for those who wait; their slots stay taken.
    fn give_up_expired(&self) {
        let mut wakers = Vec::new();
        for s in self.table.borrow_mut().slots.iter_mut() {
            if s.state == State::Sent && s.expired {
                let timed_out = super::Outcome::Lost(crate::error::Error::TimedOut);
                wakers.extend(s.orphan(timed_out));
            }
        }
        wakers.into_iter().for_each(|w| w.wake());
    }
}
