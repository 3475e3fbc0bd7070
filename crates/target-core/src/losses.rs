//! Which hosts know that a device has lost what it had taken.
//!
//! A device tells that by one flush that fails, and the next one may end well. So a flush of a host fails as long as there is a loss that
//! the host has not been told of: by whichever port it comes, and whoever's flush it was that the device has told. Each host
//! is told once, and once more if its connection was lost before it had used that flush's tag again.

use crate::access::NAMED;
use crate::members::number;
use crate::pass::Pass;
use crate::planted::{Bug, has};
use crate::unit::Attached;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::{IoError, IoResult};
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::transport_id::TransportId;

/// Hosts that are kept in mind.
const HOSTS: usize = 4096;

/// What the hosts of a unit know.
#[derive(Default)]
pub(crate) struct Losses {
    /// The last loss that a flush has found.
    last: AtomicU64,
    hosts: Mutex<Vec<Host>>,
}

/// Who is told.
#[derive(Clone, PartialEq, Eq)]
enum Who {
    /// A host by its name, whichever initiator ports it has.
    Named(Arc<str>),
    /// A port without one may be several machines', and each nexus counts.
    Port(TransportId, Nexus),
}

/// What a host knows.
struct Host {
    who: Who,
    /// The last loss that it was told of for sure.
    told: u64,
    /// The last one of which an answer may not have reached it, and the order of when that was found. It is told of that once more.
    perhaps: (u64, u64),
    answers: Vec<Answer>,
    /// Its views of the unit that there are.
    views: u32,
}

/// It has been answered, over a connection that may have been lost already.
struct Answer {
    /// The view that it was for.
    view: u64,
    loss: u64,
    /// Of what happened later this is higher.
    order: u64,
}

impl Host {
    /// The last loss that it has been told of: for sure, or by an answer of this view.
    fn told_by(&self, view: u64) -> u64 {
        let own = self.answers.iter().filter(|a| a.view == view);
        own.map(|a| a.loss).fold(self.told, u64::max)
    }
}

impl Losses {
    fn hosts(&self) -> MutexGuard<'_, Vec<Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// A flush has ended, and this is the volume's last loss. Gives the last one of the unit.
    fn found(&self, lost: u64) -> u64 {
        lost.max(self.last.fetch_max(lost, Ordering::AcqRel))
    }
}

/// The place of a host that has a view more, or less.
fn seen(hosts: &mut Vec<Host>, who: Who) -> &mut Host {
    if let Some(i) = hosts.iter().position(|h| h.who == who) {
        return &mut hosts[i];
    }
    // One that is gone may be this one, which has come back: it is told what that was not.
    let is_former = |h: &Host| match (&h.who, &who) {
        (Who::Port(a, _), Who::Port(b, _)) => h.views == 0 && a == b,
        _ => false,
    };
    let former = (0..hosts.len()).filter(|i| is_former(&hosts[*i])).min_by_key(|i| hosts[*i].told);
    if let Some(i) = former {
        hosts[i].who = who;
        return &mut hosts[i];
    }
    // So may one whose connection is not known to be lost.
    let port = |h: &&Host| matches!((&h.who, &who), (Who::Port(a, _), Who::Port(b, _)) if a == b);
    let same = hosts.iter().filter(port).map(|h| h.told).min();
    // What no host has been told may concern whoever comes: it may be one that was forgotten.
    let newcomer =
        || hosts.iter().flat_map(|h| h.answers.iter().map(|a| a.loss).chain([h.told])).max();
    let told = same.or_else(newcomer).unwrap_or(0);
    if hosts.len() >= HOSTS {
        // The oldest that are gone are forgotten first, and those that have a name last.
        let gone = |named| {
            let is_it = |h: &Host| h.views == 0 && matches!(h.who, Who::Named(_)) == named;
            hosts.iter().position(is_it)
        };
        if let Some(i) = gone(false).or_else(|| gone(true)) {
            hosts.remove(i);
        }
    }
    hosts.push(Host { who, told, perhaps: (0, 0), answers: Vec::new(), views: 0 });
    let last = hosts.len() - 1;
    &mut hosts[last]
}

impl Attached {
    fn who(&self, writer: Arc<str>) -> Who {
        match writer.starts_with(NAMED) {
            true => Who::Named(writer),
            false => Who::Port(self.port.clone(), self.nexus),
        }
    }

    fn with_host<R>(&self, f: impl FnOnce(&mut Host) -> R) -> R {
        let who = self.who(self.writer());
        f(seen(&mut self.unit.shared.losses.hosts(), who))
    }

    /// There is this view.
    pub(crate) fn is_seen(&self) {
        self.with_host(|h| h.views += 1);
    }

    /// There is it no more.
    fn is_unseen(&self) {
        self.with_host(|h| h.views = h.views.saturating_sub(1));
    }

    /// Its host has another name from now on, which knows no more than it has known.
    pub(crate) fn is_renamed(&self, to: &Arc<str>) {
        let (from, to) = (self.who(self.writer()), self.who(to.clone()));
        let mut hosts = self.unit.shared.losses.hosts();
        let was = seen(&mut hosts, from);
        was.views = was.views.saturating_sub(1);
        let (told, own) = (was.told, was.answers.extract_if(.., |a| a.view == self.number));
        let own: Vec<Answer> = own.collect();
        let is = seen(&mut hosts, to);
        if is.views == 0 {
            is.told = is.told.min(told);
        }
        is.answers.extend(own);
        is.views += 1;
    }

    /// The last loss that the host was told of.
    fn told_of(&self) -> u64 {
        self.with_host(|h| h.told_by(self.number))
    }

    /// The host is told of a loss by an answer that leaves by this view's connection.
    fn tells_of(&self, loss: u64, tag: Option<u64>) {
        // What leaves by a connection that is lost already tells nobody.
        if self.rounds.is_gone() {
            return;
        }
        self.with_host(|h| {
            let loss = loss.max(h.told_by(self.number));
            h.answers.retain(|a| a.view != self.number);
            h.answers.push(Answer { view: self.number, loss, order: number() });
        });
        self.answered.set(tag);
    }

    /// The tag of the last answer that tells of a loss is used again. The host has not given the command up, so it has that answer.
    /// What comes later otherwise may have been sent before, and an answer that is sent may never arrive.
    #[cold]
    pub(crate) fn is_heard(&self) {
        self.answered.set(None);
        self.with_host(|h| {
            for a in h.answers.extract_if(.., |a| a.view == self.number) {
                h.told = h.told.max(a.loss);
            }
        });
    }

    /// The host has given the command with this tag up, or all of them (`None`). An answer that tells of a loss may have come too late,
    /// and was thrown away then.
    #[cold]
    pub(crate) fn gives_up(&self, tag: Option<u64>) {
        let Some(answered) = self.answered.get() else { return };
        if tag.is_none_or(|t| t == answered) && !has(Bug::GivenUpIsHeard) {
            self.answered.set(None);
            self.with_host(|h| h.answers.retain(|a| a.view != self.number));
        }
    }

    /// The connection is lost.
    pub(crate) fn told_perhaps(&self) {
        if self.unit.shared.losses.last() == 0 {
            return;
        }
        for h in self.unit.shared.losses.hosts().iter_mut() {
            for a in h.answers.extract_if(.., |a| a.view == self.number) {
                // Two that were lost at once have told it nothing.
                let again = h.perhaps.0 >= a.loss && h.perhaps.1 < a.order;
                match again || has(Bug::LostAnswerTells) {
                    true => h.told = h.told.max(a.loss),
                    false => h.perhaps = (a.loss, number()),
                }
            }
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.is_unseen();
    }
}

impl Pass {
    /// Everything written before is durable afterwards. Whoever fails by this has to say so to the host, and then call
    /// [`told`](Pass::told).
    ///
    /// # Errors
    /// What the volume says, and [`IoError::Internal`] for a loss that the host had not been told of when this began: it must not
    /// repeat the flush for it.
    pub async fn flush(&self) -> IoResult {
        let (volume, losses) = (&self.unit.volume, &self.unit.shared.losses);
        let told = if losses.last() > 0 { self.told_of() } else { 0 };
        let done = volume.flush().await;
        let last = losses.found(volume.lost());
        if last <= told || has(Bug::LossToldOnce) {
            return done;
        }
        self.tells.set(last);
        Err(IoError::Internal)
    }

    /// The command's answer, which tells of a loss, is with the connection.
    #[cold]
    pub(crate) fn loss_is_told(&self) {
        self.tells_of(self.tells.replace(0), self.tag);
    }
}
