//! Commands of one reactor over a channel of another.
//!
//! Where a reactor has no channel of its own, its commands go by mailbox to one that has. Its memory is
//! [lent](lend) meanwhile, its future is woken by a message back. Costs two messages and a task per
//! command; with a channel on each reactor none of this is used.

pub(crate) mod lend;
pub(crate) mod single;

use crate::channel::{Outcome, Unfinished};
use crate::session::local::{Local, Stamp};
use lend::{Claim, Lent, Loan, Name};
use std::rc::Rc;
use std::sync::Arc;
use weir_mem::Slice;
use weir_proto_scsi::{Sense, SenseKey};
use weir_reactor::{Handle, spawn_task};

/// Longest CDB that is forwarded, in bytes.
const CDB: usize = 32;

/// A command on its way to the reactor of a channel.
pub(crate) struct Request {
    session: u64,
    lun: u64,
    cdb: [u8; CDB],
    cdb_len: u8,
    /// What was known of the path and its units when it was found to be the right unit's.
    as_of: Option<Stamp>,
    data_out: Lent,
    data_in: Lent,
    answer: Answer,
}

impl Request {
    /// Who sent it, for cancelling.
    pub(crate) fn sender(&self) -> Name {
        self.answer.sender()
    }
}

/// The way back. A request that is dropped answers that it was not sent, or that it is in doubt.
pub(crate) struct Answer {
    claim: Option<Claim>,
    started: bool,
}

impl Answer {
    fn sender(&self) -> Name {
        self.claim.as_ref().map_or(Name::default(), Claim::name)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(c) = self.claim.take() {
            let e = if self.started { Unfinished::InDoubt } else { Unfinished::NotSent };
            c.answer(Err(e), true);
        }
    }
}

/// Tells the other reactor when the future that waits here is dropped.
struct Cancel<'a> {
    there: &'a Handle,
    session: u64,
    loan: &'a Loan,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if self.loan.is_answered() {
            return;
        }
        let (session, sender) = (self.session, self.loan.name());
        self.there.run(move || {
            if let Some(l) = Local::find(session) {
                l.cancel_guest(sender);
            }
        });
    }
}

impl Local {
    /// Runs a command over a channel of reactor `there`, or through the one queue of all.
    pub(crate) async fn forward(
        &self,
        there: &Handle,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        as_of: Option<Stamp>,
    ) -> Result<Outcome, Unfinished> {
        if cdb.len() > CDB {
            return Err(Unfinished::Invalid("a CDB for another reactor has at most 32 bytes"));
        }
        let session = self.shared.id;
        let (loan, claim) = lend::lend(data_out.iter().chain(data_in));
        let mut bytes = [0; CDB];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let request = Request {
            session,
            lun,
            cdb: bytes,
            cdb_len: cdb.len() as u8,
            as_of,
            data_out: Lent::of(data_out),
            data_in: Lent::of(data_in),
            answer: Answer { claim: Some(claim), started: false },
        };
        let cancel = Cancel { there, session, loan: &loan };
        match &self.shared.single {
            Some(q) => single::submit(q, there, session, request),
            None => there.run(move || request.start()),
        }
        let result = loan.answer().await;
        drop(cancel);
        result
    }

    /// The sender does not wait any more.
    fn cancel_guest(&self, sender: Name) {
        if let Some(q) = &self.shared.single {
            q.remove(sender);
        }
        let task = self.guests.borrow_mut().remove(&sender);
        if let Some(t) = task {
            weir_reactor::cancel(t);
        }
    }
}

/// Gives a place of the one queue back.
struct Place(Option<Arc<single::SingleQueue>>, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(q) = self.0.take() {
            single::finished(&q, self.1);
        }
    }
}

impl Request {
    /// Starts the command on the present reactor.
    pub(crate) fn start(self) {
        let Some(local) = Local::find(self.session) else { return };
        let sender = self.sender();
        let place = Place(local.shared.single.clone(), self.session);
        let l = local.clone();
        let task = spawn_task(async move {
            let _place = place;
            let Request { lun, cdb, cdb_len, as_of, data_out, data_in, mut answer, .. } = self;
            let Some(c) = l.channel_here() else {
                l.guests.borrow_mut().remove(&sender);
                return;
            };
            let Some(claim) = answer.claim.take().map(Rc::new) else { return };
            // From here on the claim is kept by the slices as well as by this task.
            let mut doubt = Doubt { claim: Some(claim.clone()) };
            let result = {
                let (out, inp) = (data_out.slices(&claim), data_in.slices(&claim));
                drop(claim);
                let fresh = || as_of.is_none_or(|s| s == l.stamp());
                c.command_if(lun, &cdb[..usize::from(cdb_len)], &out, &inp, fresh).await
            };
            l.guests.borrow_mut().remove(&sender);
            let attention = |s: Sense| s.key == SenseKey::UnitAttention;
            if result.as_ref().is_ok_and(|o| Sense::parse(o.sense()).is_some_and(attention)) {
                // Whoever sent it may not wait for the answer any more.
                l.shared.renumbered();
            }
            doubt.answer(result);
        });
        local.guests.borrow_mut().insert(sender, task);
    }
}

/// A command that runs for another reactor. Dropped, it is in doubt.
struct Doubt {
    claim: Option<Rc<Claim>>,
}

impl Doubt {
    fn answer(&mut self, result: Result<Outcome, Unfinished>) {
        match self.claim.take().map(Rc::try_unwrap) {
            // Nobody else has the memory: answer and return are one message.
            Some(Ok(claim)) => claim.answer(result, true),
            Some(Err(shared)) => shared.answer_only(result),
            None => {}
        }
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.answer(Err(Unfinished::InDoubt));
    }
}
