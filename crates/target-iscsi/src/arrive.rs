//! What each kind of PDU does when its header is there, and when it is whole.

use crate::conn::Conn;
use crate::order::{IMMEDIATE, Work};
use crate::receive::{Last, Use};
use crate::send::{Aside, Data};
use crate::target::GROUP;
use crate::task::Task;
use crate::text::About;
use std::rc::Rc;
use weir_proto_iscsi::NO_TAG;
use weir_proto_iscsi::TEXT;
use weir_proto_iscsi::bhs::{Request, Response, Stat, op, reject};
use weir_proto_iscsi::discovery::Target;
use weir_proto_iscsi::sequence::unsolicited;
use weir_reactor::unless;

/// Bytes of text, or of a ping, that are kept: one more than a text may have shows that it has too many.
pub(crate) const KEPT: usize = TEXT + 1;

impl Conn {
    /// A header is there: what are its data for?
    pub(crate) fn head(self: &Rc<Self>, r: &Request, additional: &[u8]) -> Result<Use, Last> {
        match r.op() {
            op::DATA_OUT => self.data_out(r),
            op::COMMAND => self.command_head(r, additional),
            op::NOP_OUT | op::TEXT | op::TASK | op::LOGOUT => Ok(Use::Bytes(Vec::new())),
            op::LOGIN => Err(Last::Broken("a login within a session")),
            // Nothing is known of its data, nor whether it is numbered.
            op::SNACK => Err(self.breaks(r, reject::SNACK)),
            _ => Err(self.breaks(r, reject::UNSUPPORTED)),
        }
    }

    /// Rejects a PDU, and ends the session: recovery is of level 0.
    fn breaks(&self, r: &Request, reason: u8) -> Last {
        self.reject(r, reason);
        Last::Broken("what it sends breaks a rule")
    }

    fn reject(&self, r: &Request, reason: u8) {
        self.reject_by(r, reason, self.try_aside());
    }

    fn reject_by(&self, r: &Request, reason: u8, aside: Option<Aside>) {
        tracing::warn!(peer = %self.peer, op = r.op(), reason, "a PDU is rejected");
        // Who makes mistakes and does not hear of them makes no more.
        match aside {
            Some(aside) => {
                let data = Data::Bytes(r.0.to_vec());
                self.send_out(Response::reject(reason), data, None, Some(aside));
            }
            None => self.abort("it takes no answers"),
        }
    }

    fn command_head(self: &Rc<Self>, r: &Request, additional: &[u8]) -> Result<Use, Last> {
        // The window never offers more than there are places for: who has none lies.
        if !self.may_come(r) || !r.is_immediate() && self.waits() {
            // Silently (RFC 7143 4.2.2.1).
            return Ok(Use::None);
        }
        if r.is_immediate() && self.immediate.get() >= IMMEDIATE {
            self.reject(r, reject::IMMEDIATE);
            return Ok(Use::None);
        }
        let tasks = self.tasks.borrow();
        if r.itt() == NO_TAG || tasks.iter().any(|t| t.itt == r.itt() && !t.is_aborted()) {
            drop(tasks);
            return Err(self.breaks(r, reject::IN_PROGRESS));
        }
        drop(tasks);
        let (writes, data) = (r.flags() & 0x20 != 0, r.data_len());
        let expected = if writes { r.word20() } else { 0 };
        let last = r.is_final() || !writes;
        let Some(early) = unsolicited(&self.params.get(), expected, data, last) else {
            return Err(self.breaks(r, reject::PROTOCOL));
        };
        let t = Task::new(self, r, additional);
        if early > 0 {
            t.announce(data, early);
        }
        self.tasks.borrow_mut().push(t.clone());
        Ok(Use::Command(t))
    }

    fn data_out(self: &Rc<Self>, r: &Request) -> Result<Use, Last> {
        let tasks = self.tasks.borrow();
        let its = |t: &&Rc<Task>| t.itt == r.itt() && !t.is_aborted();
        let Some(t) = tasks.iter().find(its).cloned() else {
            // Its command has ended before its data came: by an error, or by task management.
            return Ok(Use::None);
        };
        drop(tasks);
        if t.is_done() {
            return Ok(Use::None);
        }
        match t.takes(r) {
            Ok(_) => Ok(Use::DataOut(t)),
            Err(_) => Err(self.breaks(r, reject::PROTOCOL)),
        }
    }

    /// A PDU is whole.
    pub(crate) async fn whole(self: &Rc<Self>, r: &Request, what: Use) -> Result<(), Last> {
        let work = match what {
            Use::None => return Ok(()),
            Use::DataOut(t) => {
                t.has_come(r);
                return Ok(());
            }
            Use::Command(t) => {
                t.has_begun_to_come(r.data_len(), r.is_final() || t.out_len == 0);
                Work::Command(t)
            }
            Use::Bytes(_) if !self.may_come(r) => return Ok(()),
            Use::Bytes(b) => match r.op() {
                op::NOP_OUT => Work::Nop(*r, b),
                op::TEXT => Work::Text(*r, b),
                op::TASK => Work::Manage(*r),
                _ => Work::Logout(*r),
            },
        };
        let turns = unless(self.halt.wait(), self.turns.acquire(1)).await;
        let _turns = turns.ok_or(Last::Stopped)?;
        let mut next = self.in_order(r, work);
        while let Some(work) = next {
            self.turn(work).await?;
            next = self.next_in_order();
        }
        Ok(())
    }

    /// Its turn has come.
    pub(crate) async fn turn(self: &Rc<Self>, work: Work) -> Result<(), Last> {
        if matches!(work, Work::Nop(..) | Work::Text(..)) {
            // Who sends no commands is not let in for longer than others.
            self.look();
        }
        match work {
            Work::Command(t) => self.begin_or_put_off(t),
            Work::Manage(r) => self.begin_to_manage(r).await?,
            // The answer to our ping: that it came is all.
            Work::Nop(r, _) if r.itt() == NO_TAG => {}
            Work::Nop(r, mut data) => {
                let aside = self.aside().await.ok_or(Last::Stopped)?;
                data.truncate(self.params.get().max_send as usize);
                data.truncate(TEXT);
                let head = Response::new(op::NOP_IN, 0x80, r.itt(), Stat::Takes);
                let head = head.with32(20, NO_TAG).with_data(data.len());
                self.send_out(head, Data::Bytes(data), None, Some(aside));
            }
            Work::Text(r, data) => {
                let aside = self.aside().await.ok_or(Last::Stopped)?;
                let mut params = self.params.get();
                let target = self.target();
                let about =
                    About { target: &target, offer: &crate::greet::OFFER, discovery: false };
                let done = self.texts.borrow_mut().request(&r, &data, &about, &mut params);
                self.params.set(params);
                match done {
                    Ok((head, text)) => self.send_out(head, Data::Bytes(text), None, Some(aside)),
                    Err(reason) => self.reject_by(&r, reason, Some(aside)),
                }
            }
            Work::Logout(r) => {
                // Of the session, or of its only connection: that is the same. Recovery needs a higher level.
                let code = match r.flags() & 0x7f {
                    0 | 1 => 0,
                    _ => 2,
                };
                let head = Response::new(op::LOGOUT_RESPONSE, 0x80, r.itt(), Stat::Takes);
                let head = head.with(2, &[code]);
                if code == 0 {
                    return Err(Last::LoggedOut(head));
                }
                let aside = self.aside().await.ok_or(Last::Stopped)?;
                self.send_out(head, Data::Bytes(Vec::new()), None, Some(aside));
            }
        }
        Ok(())
    }

    /// What SendTargets tells.
    fn target(&self) -> Target {
        let shared = &self.port.shared;
        let portals = crate::greet::portals(shared, &*self.stream);
        Target { name: shared.name.clone(), portals, group: GROUP }
    }
}
