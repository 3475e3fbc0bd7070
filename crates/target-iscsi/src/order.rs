//! Commands in the order of their numbers, and places for them (RFC 7143 4.2.2.1).

use crate::conn::Conn;
use crate::planted::{Bug, has};
use crate::task::Task;
use std::rc::Rc;
use weir_proto_iscsi::NO_TAG;
use weir_proto_iscsi::bhs::{Request, Response};

/// Commands of one session at once; the window closes when all places are taken.
pub(crate) const DEPTH: u32 = 128;
/// Immediate commands at once, which have places of their own.
pub(crate) const IMMEDIATE: u32 = 8;

/// What is done when its turn has come.
pub(crate) enum Work {
    Command(Rc<Task>),
    Manage(Request),
    Nop(Request, Vec<u8>),
    Text(Request, Vec<u8>),
    Logout(Request),
}

/// A command's place in the session, until its answer has left.
pub(crate) struct Place {
    conn: Rc<Conn>,
    /// It counts in the window, and has not been given back.
    numbered: bool,
    immediate: bool,
}

impl Place {
    pub(crate) fn new(conn: &Rc<Conn>, immediate: bool) -> Place {
        conn.busy.set(conn.busy.get() + 1);
        conn.commands.set(conn.commands.get() + 1);
        let places = if immediate { &conn.immediate } else { &conn.taken };
        places.set(places.get() + 1);
        Place { conn: conn.clone(), numbered: !immediate, immediate }
    }

    /// Its answer is about to leave: another command may come in its place.
    pub(crate) fn free(&mut self) {
        if std::mem::take(&mut self.numbered) {
            self.conn.taken.set(self.conn.taken.get() - 1);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free();
        if self.immediate {
            self.conn.immediate.set(self.conn.immediate.get() - 1);
        }
        self.conn.busy.set(self.conn.busy.get() - 1);
        self.conn.news.signal_all();
    }
}

impl Conn {
    /// Numbers for a response that leaves now: ExpCmdSN and MaxCmdSN.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        let mut w = self.window.borrow_mut();
        let most = w.most(DEPTH.saturating_sub(self.taken.get()));
        (w.expected(), most)
    }

    /// A command that is numbered by `r` may come: it is immediate, or within the window and the first of its number.
    pub(crate) fn may_come(&self, r: &Request) -> bool {
        r.is_immediate() || self.window.borrow().has(r.cmd_sn())
    }

    /// Takes what has come. Gives what is to be done first, if its turn has come; more may follow.
    pub(crate) fn in_order(&self, r: &Request, work: Work) -> Option<Work> {
        match r.is_immediate() {
            true => Some(work),
            false if has(Bug::OutOfTurn) && self.window.borrow_mut().skip(r.cmd_sn()) => Some(work),
            false => {
                let passed = self.window.borrow_mut().pass(r.cmd_sn(), work);
                passed.unwrap_or_else(|work| {
                    // Its number was given up while its data came. Nobody hears of it (RFC 7143 4.2.2.1), and nothing stays of it.
                    if let Work::Command(t) = work {
                        self.forget(&t);
                    }
                    None
                })
            }
        }
    }

    /// The next whose turn has come.
    pub(crate) fn next_in_order(&self) -> Option<Work> {
        self.window.borrow_mut().due()
    }

    /// Nothing has been answered that would tell the initiator of places that are free: it is told by itself (RFC 7143 11.19).
    pub(crate) fn tell_window(&self) {
        let closed = {
            let w = self.window.borrow();
            w.told() == w.expected().wrapping_sub(1)
        };
        if closed && self.all_sealed() && self.taken.get() < DEPTH {
            self.push(Response::ping(NO_TAG), Vec::new());
        }
    }
}
