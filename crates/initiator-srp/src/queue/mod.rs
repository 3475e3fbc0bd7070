//! A reactor's handle for I/O: SCSI commands that are tried again where that is right.

mod io;
mod retry;

pub(crate) use retry::{harmless, repeatable};

use crate::channel::{Outcome, Trouble, Unfinished};
use crate::error::Error;
use crate::session::PathState;
use crate::session::local::Local;
use retry::{Verdict, verdict};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::Cdb;
use weir_proto_srp::PortId;
use weir_reactor::{now, sleep};

/// A hardware queue (S3): the present reactor's handle for I/O on a session. Cloning gives another handle to
/// the same queue.
///
/// Commands complete on the reactor that submitted them. Their order is not kept. A future may be dropped:
/// the command is aborted, and may have been done, in part or not at all.
#[derive(Clone)]
pub struct Queue {
    local: Rc<Local>,
}

impl Queue {
    pub(crate) fn new(local: Rc<Local>) -> Queue {
        Queue { local }
    }

    /// State of the path, as far as it is known on this reactor.
    pub fn state(&self) -> PathState {
        self.local.state()
    }

    /// Counts logins; changes with each.
    pub(crate) fn generation(&self) -> u64 {
        self.local.generation()
    }

    /// Our port and the target's.
    pub(crate) fn ports(&self) -> (PortId, PortId) {
        let c = &self.local.shared.config;
        (c.initiator, c.target)
    }

    /// Sends any CDB with data each way (empty for none) and gives what the target answered, whatever it is.
    /// Only a loss of the path is made up for, by sending it again when that does no harm.
    ///
    /// # Errors
    /// There was no answer: the path is down, the command took too long, or whether it was done is in doubt.
    pub async fn raw(
        &self,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<Outcome, Error> {
        let mut aborted = 0;
        loop {
            match self.attempt(lun, cdb, data_out, data_in).await {
                Err(Error::TimedOut) if aborted < self.local.shared.config.retries => {
                    if !repeatable(cdb) {
                        return Err(Error::TimedOut);
                    }
                    aborted += 1;
                }
                other => return other,
            }
        }
    }

    /// Runs a command until it ends with GOOD, or for a reason that trying again does not remove.
    ///
    /// # Errors
    /// That reason.
    pub async fn execute(
        &self,
        lun: Lun,
        cdb: &Cdb,
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<Outcome, Error> {
        self.execute_on(lun, cdb.as_padded(), data_out, data_in, None).await
    }

    /// As [`execute`](Queue::execute) for a command that moves all of its data: quicker, since there is less to tell.
    ///
    /// # Errors
    /// As there, or [`Error::Short`].
    #[expect(
        clippy::manual_async_fn,
        reason = "the arguments of an `async fn` are moved once more"
    )]
    #[inline]
    pub fn transfer<'a>(
        &'a self,
        lun: Lun,
        cdb: &'a Cdb,
        data_out: &'a [Slice],
        data_in: &'a [Slice],
    ) -> impl Future<Output = Result<(), Error>> + use<'a> {
        async move {
            let mut first = None;
            if let Some(c) = self.local.channel()
                && let Some(sent) = c.try_command(lun.0, cdb.as_padded(), data_out, data_in)
            {
                let generation = self.local.generation();
                let ended = match sent {
                    Ok(index) => Trouble(c.in_flight(index)).await,
                    Err(e) => Some(Err(e)),
                };
                match ended {
                    None => return Ok(()),
                    Some(e) => first = Some((generation, e)),
                }
            }
            // On the heap, so that the way of a command that waits for nothing and ends well stays small.
            let rest = self.execute_on(lun, cdb.as_padded(), data_out, data_in, first);
            let o = Box::pin(rest).await?;
            io::whole(io::total(data_out), o.out_residual)?;
            io::whole(io::total(data_in), o.in_residual)
        }
    }

    /// Goes on with a command after `first`, what became of it when it was sent under that generation.
    #[cold]
    async fn execute_on(
        &self,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        first: Option<(u64, Result<Outcome, Unfinished>)>,
    ) -> Result<Outcome, Error> {
        let ended = self.attempt_on(lun, cdb, data_out, data_in, first).await;
        self.again(lun, cdb, data_out, data_in, ended).await
    }

    async fn again(
        &self,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        mut last: Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let shared = &self.local.shared;
        let (mut tries, mut generation) = (0, self.local.generation());
        loop {
            let v = match &last {
                Ok(o) if o.is_good() => return last,
                Ok(o) => verdict(o, cdb),
                Err(Error::TimedOut) if repeatable(cdb) => Verdict::Again,
                Err(_) => return last,
            };
            let spent = tries >= shared.config.retries;
            match v {
                Verdict::Fail => return last.and_then(|o| Err(Error::of(&o))),
                _ if spent => return last.and_then(|o| Err(Error::of(&o))),
                Verdict::Attention => {
                    shared.counts.unit_attentions.fetch_add(1, Ordering::Relaxed);
                }
                Verdict::Again => {}
                Verdict::Later => sleep(retry::pause(tries)).await,
            }
            last = self.attempt(lun, cdb, data_out, data_in).await;
            tries += 1;
            if self.local.generation() != generation {
                // A new login: what went wrong before has nothing to do with it, and it begins with a
                // unit attention.
                (tries, generation) = (0, self.local.generation());
            }
        }
    }

    /// Sends a command once for each time that the path is lost under it.
    async fn attempt(
        &self,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<Outcome, Error> {
        self.attempt_on(lun, cdb, data_out, data_in, None).await
    }

    /// As [`attempt`](Queue::attempt), after the command was sent once already.
    async fn attempt_on(
        &self,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        mut first: Option<(u64, Result<Outcome, Unfinished>)>,
    ) -> Result<Outcome, Error> {
        let mut lost = None;
        // When a command that changes the medium was last left with the target.
        let mut doubt = None;
        loop {
            let (generation, result) = match (first.take(), lost, self.local.channel()) {
                (Some(sent), ..) => sent,
                (None, None, Some(c)) => {
                    let generation = self.local.generation();
                    (generation, c.command(lun.0, cdb, data_out, data_in).await)
                }
                _ => match Box::pin(self.elsewhere(lost, lun, cdb, data_out, data_in)).await {
                    Ok(r) => r,
                    Err(e) => return Err(doubt.map_or(e, |at| Error::LostUnderWay { at })),
                },
            };
            match result {
                Ok(o) => return Ok(o),
                Err(Unfinished::InDoubt) if !repeatable(cdb) => return Err(Error::InDoubt),
                Err(e @ (Unfinished::InDoubt | Unfinished::NotSent)) => {
                    if e == Unfinished::InDoubt && !harmless(cdb) {
                        doubt = Some(now());
                    }
                    self.local.shared.counts.resent.fetch_add(1, Ordering::Relaxed);
                    // The target has ended what it had of the lost channels once it lets us log in again;
                    // a command sent again before that could be overtaken by itself.
                    lost = Some(generation);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// There is no channel here: waits for the path, or uses another reactor's channel.
    #[cold]
    async fn elsewhere(
        &self,
        lost: Option<u64>,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<(u64, Result<Outcome, Unfinished>), Error> {
        self.local.usable(lost).await?;
        let generation = self.local.generation();
        let result = match (self.local.channel(), self.local.away()) {
            (Some(c), _) => c.command(lun.0, cdb, data_out, data_in).await,
            (None, Some(h)) => self.local.forward(&h, lun.0, cdb, data_out, data_in).await,
            // The channels here are lost; that is about to be known.
            (None, None) => Err(Unfinished::NotSent),
        };
        Ok((generation, result))
    }
}
