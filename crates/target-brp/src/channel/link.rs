//! A channel as fences see it.

use super::Channel;
use std::rc::Rc;
use weir_base::{MICROS, Nanos};
use weir_proto_brp::control::GoodbyeReason;
use weir_reactor::{LocalFuture, completion, sleep};
use weir_target_core::Link;

/// How often a fence looks whether completions have gone.
const LOOK: Nanos = 100 * MICROS;

impl Link for Channel {
    fn refresh(&self) {
        self.refresh();
    }

    fn sent(&self) -> LocalFuture<'static, ()> {
        let me = self.me.clone();
        Box::pin(async move {
            // Completions leave at the end of the turn, or when there is room.
            let waits = |c: &Rc<Channel>| c.conn().is_some() && !c.replies.is_empty();
            while me.upgrade().is_some_and(|c| waits(&c)) {
                sleep(LOOK).await;
            }
            let Some(conn) = me.upgrade().and_then(|c| c.conn()) else { return };
            conn.send_slots().wait().await;
            let (token, done) = completion();
            conn.flush(token);
            done.await;
        })
    }

    fn cut(&self, why: &str) {
        if let Some(conn) = self.conn() {
            tracing::warn!(peer = %conn.peer(), why, "closing a connection");
            conn.disconnect(true);
        }
    }

    fn bar(&self) {
        match self.me.upgrade() {
            // Nobody is to go on with it.
            Some(me) if self.view.is_unknown() => me.end_later(GoodbyeReason::NotAllowed),
            _ => self.close(GoodbyeReason::NotAllowed, false),
        }
    }
}
