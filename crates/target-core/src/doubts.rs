//! Whether a client is there yet, asked as another connection of its host comes: while that is asked nothing new of it begins, so
//! that what it left cannot come upon what the newcomer writes.

use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos};
use weir_reactor::{Handle, WaitChannel, call, now, sleep, spawn, timeout};

/// How often is looked whether a question has been answered: less often, the longer it takes.
const LOOK: Nanos = MILLIS;
const LONGEST: Nanos = 20 * MILLIS;

/// What is asked about one connection.
pub struct Doubts {
    asked: Cell<u32>,
    /// Signalled when nothing is asked any more.
    cleared: WaitChannel,
}

impl Default for Doubts {
    fn default() -> Self {
        Doubts { asked: Cell::new(0), cleared: WaitChannel::new(0) }
    }
}

impl Doubts {
    /// Somebody asks, until the answer is dropped. `handed`: bytes that the connection has given to the system so far.
    pub fn raise(self: &Rc<Self>, handed: u64) -> Doubt {
        self.asked.set(self.asked.get() + 1);
        Doubt { of: self.clone(), handed }
    }

    /// Somebody asks now.
    pub fn are_raised(&self) -> bool {
        self.asked.get() > 0
    }

    /// Waits until nobody asks.
    pub async fn cleared(&self) {
        while self.are_raised() {
            self.cleared.wait().await;
        }
    }
}

/// A question about one connection.
pub struct Doubt {
    of: Rc<Doubts>,
    handed: u64,
}

impl Doubt {
    /// Its client is there: it has acknowledged bytes that went after the question. The system of one that is gone answers them
    /// with a reset (RFC 9293, section 3.10.7.4; RFC 1122, section 4.2.2.13). `handed`: bytes given to the system by now,
    /// `unacknowledged`: those of them that have not arrived as far as is known.
    pub fn is_refuted(&self, handed: u64, unacknowledged: u64) -> bool {
        handed > self.handed + unacknowledged
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.of.asked.set(self.of.asked.get() - 1);
        if !self.of.are_raised() {
            self.of.cleared.signal_all();
        }
    }
}

/// Waits until questions are answered, each looked at by `is_answered`, for as long as `limit`. Gives those that are open then.
pub async fn answers<Q>(
    mut open: Vec<Q>,
    limit: Nanos,
    mut is_answered: impl FnMut(&mut Q) -> bool,
) -> Vec<Q> {
    let (until, mut look) = (now() + limit, LOOK);
    loop {
        open.retain_mut(|q| !is_answered(q));
        if open.is_empty() || now() >= until {
            return open;
        }
        sleep(look).await;
        look = (look * 3 / 2).min(LONGEST);
    }
}

/// Asks all of `reactors` side by side. True when each has said yes within `limit`; one that has ended has nothing to say no for.
pub async fn ask_each<F, Fut>(reactors: Vec<Handle>, limit: Nanos, ask: F) -> bool
where
    F: FnOnce() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = bool> + 'static,
{
    let asked = reactors.into_iter().map(|there| {
        let ask = ask.clone();
        spawn(async move { call(&there, ask).await.unwrap_or(true) })
    });
    let asked: Vec<_> = asked.collect();
    let all = async {
        let mut yes = true;
        for a in asked {
            // One that broke has not said so.
            yes &= a.await.unwrap_or(false);
        }
        yes
    };
    timeout(limit, all).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_after_the_question_tells() {
        let all = Rc::new(Doubts::default());
        let (one, two) = (all.raise(100), all.raise(200));
        assert!(all.are_raised());
        assert!(!one.is_refuted(100, 0), "nothing has gone since");
        assert!(!one.is_refuted(150, 50) && one.is_refuted(150, 49) && !two.is_refuted(150, 0));
        drop(one);
        assert!(all.are_raised());
        drop(two);
        assert!(!all.are_raised());
    }
}
