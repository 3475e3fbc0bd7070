//! A reactor's handle for I/O: SCSI commands that are tried again where that is right.

mod bond;
mod io;
mod retry;

pub(crate) use bond::{Bond, Name, Unit};
pub(crate) use retry::{harmless, repeatable};

use crate::channel::{Outcome, Trouble, Unfinished};
use crate::error::Error;
use crate::planted::{Bug, has};
use crate::session::local::Local;
use crate::session::{PathState, Shared};
use retry::{Verdict, verdict};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use weir_base::unflushed::Begun;
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::Cdb;
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_proto_srp::PortId;
use weir_reactor::{call, now, sleep};

/// A hardware queue (S3): the present reactor's handle for I/O on a session. Cloning gives another handle to
/// the same queue.
///
/// Commands complete on the reactor that submitted them. Their order is not kept. A future may be dropped:
/// the command is aborted, and may have been done, in part or not at all.
#[derive(Clone)]
pub struct Queue {
    local: Rc<Local>,
    /// The one unit that commands may go to.
    bond: Option<Rc<Bond>>,
}

/// A command that takes attentions away: from its end on, however it ends, what was known is out of date.
struct Taken<'a>(&'a Shared);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !has(Bug::UnseenIsUnsaid) {
            self.0.renumbered();
        }
    }
}

impl Queue {
    pub(crate) fn new(local: Rc<Local>) -> Queue {
        Queue { local, bond: None }
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
                && self.is_fresh(lun)
                && self.is_plain(cdb.as_bytes())
                && let Some(sent) = c.try_command(lun.0, cdb.as_padded(), data_out, data_in)
            {
                let (generation, cache) = (self.local.generation(), self.cache());
                let ended = match sent {
                    Ok(index) => Trouble(c.in_flight(index)).await,
                    Err(e) => Some(Err(e)),
                };
                match ended {
                    None => {
                        self.written(cdb.as_bytes(), cache);
                        return Ok(());
                    }
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

    /// Waits until every command of the session that was given up before, by dropping its future, has been answered or
    /// aborted, or its channel has ended. What a lost channel left with the target may still be done, until the next
    /// login.
    pub async fn given_up(&self) {
        let id = self.local.shared.id;
        // Commands of one reactor may go by a channel of another.
        for h in self.local.shared.reactors() {
            call(&h, move || async move {
                if let Some(l) = Local::find(id) {
                    l.given_up().await;
                }
            })
            .await;
        }
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
        let _taken = bond::takes_attentions(cdb).then(|| Taken(&self.local.shared));
        let begun = self.flush_begins(cdb);
        // What the unit's cache was of when the command was sent.
        let cache = Cell::new(None);
        let fresh = || {
            cache.set(self.cache());
            self.is_fresh(lun)
        };
        // When a command that changes the medium was last left with the target.
        let mut doubt = None;
        loop {
            let (generation, result) = match (first.take(), lost, self.local.channel()) {
                (Some(sent), ..) => {
                    cache.set(self.cache());
                    sent
                }
                (None, None, Some(c)) if self.is_fresh(lun) => {
                    let generation = self.local.generation();
                    (generation, c.command_if(lun.0, cdb, data_out, data_in, fresh).await)
                }
                _ => {
                    match Box::pin(self.elsewhere(lost, lun, cdb, data_out, data_in, &cache)).await
                    {
                        Ok(r) => r,
                        Err(e) => return Err(doubt.map_or(e, |at| Error::LostUnderWay { at })),
                    }
                }
            };
            match result {
                Ok(o) => {
                    match begun {
                        _ if !o.is_good() => self.heed(lun, cdb, &o),
                        Some(b) => self.flushed(&b, cache.get())?,
                        None => self.written(cdb, cache.get()),
                    }
                    return Ok(o);
                }
                // It is looked at who has the number, and then it is sent.
                Err(Unfinished::Stale) => {}
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

    fn cache(&self) -> Option<u64> {
        self.bond.as_ref().and_then(|b| b.cache())
    }

    /// Nothing is to be looked at before the command is sent, nor when it has ended well.
    #[inline]
    fn is_plain(&self, cdb: &[u8]) -> bool {
        !bond::takes_attentions(cdb) && (self.bond.is_none() || !bond::flushes_all(cdb))
    }

    fn flush_begins(&self, cdb: &[u8]) -> Option<Begun> {
        let b = self.bond.as_ref().filter(|_| bond::flushes_all(cdb))?;
        Some(b.unit.ledger().begin())
    }

    fn flushed(&self, begun: &Begun, cache: Option<u64>) -> Result<(), Error> {
        let Some(b) = &self.bond else { return Ok(()) };
        let whole = b.unit.ledger().flushed(begun, |c| Bond::is_other(cache, c));
        if whole || has(Bug::LostCacheNotTold) { Ok(()) } else { Err(Error::LostCache) }
    }

    /// A command has ended well that was sent when the unit's cache was this.
    #[inline]
    fn written(&self, cdb: &[u8], cache: Option<u64>) {
        if let Some(b) = &self.bond
            && cache.is_some()
            && bond::may_be_cached(cdb)
        {
            b.unit.written(cache);
        }
    }

    /// A command did not end with GOOD: takes note of news of the unit.
    #[cold]
    fn heed(&self, lun: Lun, cdb: &[u8], o: &Outcome) {
        let Some(sense) = Sense::parse(o.sense()) else { return };
        match (sense.key, &self.bond) {
            (SenseKey::UnitAttention, _) => self.local.shared.heed(lun, &sense),
            (SenseKey::HardwareError | SenseKey::MediumError, Some(b))
                if bond::flushes_all(cdb) =>
            {
                b.unit.ledger().failed();
            }
            _ => {}
        }
    }

    /// There is no channel here, or it is not known who has the number: waits for the path, looks at the unit, or uses
    /// another reactor's channel.
    #[cold]
    async fn elsewhere(
        &self,
        lost: Option<u64>,
        lun: Lun,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        cache: &Cell<Option<u64>>,
    ) -> Result<(u64, Result<Outcome, Unfinished>), Error> {
        self.local.usable(lost).await?;
        self.confirm(lun).await?;
        let fresh = || {
            cache.set(self.cache());
            self.is_fresh(lun)
        };
        let generation = self.local.generation();
        let result = match (self.local.channel(), self.local.away()) {
            (Some(c), _) => c.command_if(lun.0, cdb, data_out, data_in, fresh).await,
            (None, Some(_)) if !fresh() => Err(Unfinished::Stale),
            (None, Some(h)) => {
                let as_of = self.bond.is_some().then(|| self.local.stamp());
                self.local.forward(&h, lun.0, cdb, data_out, data_in, as_of).await
            }
            // The channels here are lost; that is about to be known.
            (None, None) => Err(Unfinished::NotSent),
        };
        Ok((generation, result))
    }
}
