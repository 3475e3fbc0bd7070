//! The fence of a unit: ends what nexuses have under way, and waits until nothing of it can act any more.
//!
//! A command takes a [`Pass`] when it finds its unit, before it is admitted, and keeps it until its answer is with the
//! connection. Whenever it is about to touch the medium it shows the pass again: the data may have come a long time
//! after the admission. A fence makes the passes of some nexuses void, on every reactor, and then waits for two ends:
//!
//! * that of every I/O that had been let through, however long a device takes;
//! * that of the commands, until their answers have left. A host that takes nothing loses its connection after
//!   [`PATIENCE`], and with it whatever was still to be sent. A command that waits for its host holds nothing up.
//!
//! Passes that are void stay so though whoever fences goes away; then nobody waits for anything. A device may hang, and what waits for
//! it would be more with every host that comes, ends its commands and goes.
//!
//! Whoever fences changes the rules first: what comes later meets the new ones, since each reactor looks at them
//! before its next command. What runs to its end in one go needs no pass for the same reason.
//!
//! Passes are counted per view and reactor: no lock, no memory and nothing that cores share is needed per command.

use crate::pass::Round;
use crate::planted::{Bug, has};
use crate::unit::{Attached, Unit, UnitShared};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::{Arc, MutexGuard, PoisonError};
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_scsi::lu::Nexus;
use weir_reactor::{JoinHandle, LocalFuture, call, sleep, spawn, timeout, unless};

/// How long a host may take to receive what it is owed by commands that were fenced; then its connection ends. Shorter
/// than the time that hosts give a task management function (Linux: 5 s).
pub const PATIENCE: Nanos = 2 * SECONDS;

/// How often those that wait for a fence look whether anybody wants to know.
const LOOK: Nanos = 100 * MILLIS;

/// What becomes of commands whose passes are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// They ask for admission again, by rules that have changed.
    Again,
    /// Task management of this nexus has aborted them. Front ends without such a thing let them ask again.
    Aborted(Nexus),
    /// The unit is not there any more for the nexus.
    Gone,
}

impl End {
    /// The stronger of two counts. To a command of nexus `own` that is its host's own abort before those of others: the host
    /// has been told that nothing more is heard of the command.
    pub(crate) fn rank(self, own: Nexus) -> u8 {
        match self {
            End::Again => 0,
            End::Aborted(by) if by != own => 1,
            End::Aborted(_) => 2,
            End::Gone => 3,
        }
    }
}

/// Whose commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    /// Those of all nexuses.
    All,
    /// Those of these, and those that nexuses of the same ports before them have left with a device.
    Only(Vec<Nexus>),
}

impl Whom {
    fn means(&self, nexus: Nexus) -> bool {
        match self {
            Whom::All => true,
            Whom::Only(some) => some.contains(&nexus),
        }
    }
}

/// A channel of a front end, as fences see it.
pub trait Link {
    /// Looks at the access map again, if it has changed.
    fn refresh(&self);

    /// Ends when everything that was given to the connection so far has left, or can leave no more.
    fn sent(&self) -> LocalFuture<'static, ()>;

    /// Ends the connection at once: nothing more leaves by it.
    fn cut(&self, why: &str);

    /// Ends the connection, since the access map does not let its host in (any more), or not with what it has proved. Nothing of
    /// its commands that has not begun will have an effect. May be called while the channel looks at the map.
    fn bar(&self);
}

impl UnitShared {
    pub(crate) fn parting(&self) -> MutexGuard<'_, BTreeSet<Nexus>> {
        self.parting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody waits for a fence, on whatever reactor, as long as there is the other part of this.
type Fencer = std::sync::Weak<()>;

/// Waits until nobody wants to know of the end of a fence any more.
async fn gone(fencer: Fencer) {
    while fencer.strong_count() > 0 || has(Bug::FencesWaitOn) {
        sleep(LOOK).await;
    }
}

/// Waits for the end of fenced rounds of one view, and until its channel has sent what they left.
async fn ended(rounds: Vec<Rc<Round>>, link: Option<Weak<dyn Link>>) {
    for r in &rounds {
        r.off_the_medium().await;
    }
    if has(Bug::AnswersNotAwaited) {
        return;
    }
    let channel = || link.as_ref().and_then(Weak::upgrade);
    let answered = async {
        for r in &rounds {
            r.over().await;
        }
        let sent = channel().map(|l| l.sent());
        if let Some(sent) = sent {
            sent.await;
        }
    };
    if timeout(PATIENCE, answered).await.is_err()
        && let Some(l) = channel()
    {
        l.cut("the host does not receive the end of commands that were fenced");
    }
}

/// Waits until nothing of these views' passes, which are void, can reach a medium.
pub(crate) async fn off_the_media(views: Vec<Rc<Attached>>) {
    for a in views {
        for r in a.fence(End::Gone, 0) {
            r.off_the_medium().await;
        }
    }
}

/// One view of a unit by a channel.
pub(crate) struct User {
    pub(crate) nexus: Nexus,
    pub(crate) attached: Weak<Attached>,
    pub(crate) link: Option<Weak<dyn Link>>,
    /// It has lost the unit, and its last answers have left.
    quiet: Rc<Cell<bool>>,
}

impl User {
    pub(crate) fn new(nexus: Nexus, attached: &Rc<Attached>, link: Option<Weak<dyn Link>>) -> User {
        User { nexus, attached: Rc::downgrade(attached), link, quiet: Rc::default() }
    }

    fn is_there(&self) -> bool {
        let has_link = || self.link.as_ref().is_some_and(|l| l.strong_count() > 0);
        self.attached.strong_count() > 0 || (has_link() && !self.quiet.get())
    }

    /// Ends its commands and waits for that. One that has lost the unit may have ended the last of them by itself: then
    /// their answers may yet be on their way.
    fn end(&self, why: End, spared: u64, fencer: Fencer) -> JoinHandle<()> {
        let rounds = self.attached.upgrade().map_or_else(Vec::new, |a| a.fence(why, spared));
        let (attached, link, quiet) =
            (self.attached.clone(), self.link.clone(), self.quiet.clone());
        spawn(async move {
            if !quiet.get() && unless(gone(fencer), ended(rounds, link)).await.is_some() {
                quiet.set(attached.strong_count() == 0);
            }
        })
    }
}

impl Unit {
    pub(crate) fn add_user(&self, user: User) {
        let mut users = self.users.borrow_mut();
        users.retain(User::is_there);
        users.push(user);
    }

    fn refresh_links(&self) {
        // A refresh adds users.
        let links: Vec<_> = self.users.borrow().iter().filter_map(|u| u.link.clone()).collect();
        links.iter().filter_map(Weak::upgrade).for_each(|l| l.refresh());
    }

    /// The fence on this reactor.
    async fn fence_here(self: Rc<Self>, whom: Whom, why: End, spared: u64, fencer: Fencer) {
        if why == End::Gone {
            // Whoever is idle lets go of the unit, too.
            self.refresh_links();
        }
        let mut waits = Vec::new();
        for u in self.users.borrow().iter().filter(|u| whom.means(u.nexus)) {
            waits.push(u.end(why, spared, fencer.clone()));
        }
        for w in waits {
            w.await;
        }
    }

    /// Has the unit's channels on this reactor look at the access map, and waits for the end of the commands of those
    /// that lost it. Gives those that see it.
    async fn part_here(self: Rc<Self>, fencer: Fencer) -> Vec<Nexus> {
        self.refresh_links();
        let (mut seeing, mut waits) = (Vec::new(), Vec::new());
        for u in self.users.borrow().iter() {
            if u.attached.upgrade().is_none_or(|a| a.rounds.is_gone()) {
                waits.push(u.end(End::Gone, 0, fencer.clone()));
            } else {
                seeing.push(u.nexus);
            }
        }
        for w in waits {
            w.await;
        }
        seeing
    }
}

impl UnitShared {
    /// Ends what these nexuses have under way on this unit, through all ports and on all reactors, and waits until
    /// nothing of it can reach the medium and its answers have left. The rules by which later commands are admitted must
    /// have been changed before. A command that fences must have given its own pass back.
    pub async fn fence(self: &Arc<Self>, whom: Whom, why: End) {
        self.fence_beside(whom, why, 0).await;
    }

    /// As [`fence`](UnitShared::fence), but for the command aside with this number.
    pub(crate) async fn fence_beside(&self, whom: Whom, why: End, spared: u64) {
        let whom = match whom {
            Whom::All => Whom::All,
            Whom::Only(some) => Whom::Only(self.with_former(some)),
        };
        self.everywhere(move |unit, fencer| unit.fence_here(whom, why, spared, fencer)).await;
    }

    /// After a change of the access map: waits until what nexuses have under way that lost this unit has ended. Then they
    /// hold no SPC-2 reservation of it.
    pub async fn part(self: &Arc<Self>) {
        if has(Bug::PartDoesNotWait) {
            return;
        }
        let seeing = self.everywhere(Unit::part_here).await.concat();
        // One that has got the unit back meanwhile is not among those that part any more.
        self.parting().retain(|n| {
            let sees = seeing.contains(n);
            if !sees {
                self.with(|s| s.nexus_parted(*n));
            }
            sees && self.with(|s| s.ports_of(*n).is_some())
        });
    }

    /// Runs `f` on every reactor's side of the unit at once, and gives what all have found. `f` is told whether anybody waits for that.
    async fn everywhere<F, Fut, R>(&self, f: F) -> Vec<R>
    where
        F: FnOnce(Rc<Unit>, Fencer) -> Fut + Send + Clone + 'static,
        Fut: Future<Output = R> + 'static,
        R: Send + 'static,
    {
        let (mut waits, fencer) = (Vec::new(), Arc::new(()));
        let most = if has(Bug::FenceOneReactor) { 1 } else { usize::MAX };
        for (number, there) in self.members.all().into_iter().take(most) {
            let (f, fencer) = (f.clone(), Arc::downgrade(&fencer));
            waits.push(spawn(async move {
                // A reactor that has ended has nothing under way.
                let found = call(&there, move || async move {
                    let unit = Unit::find(number)?;
                    Some(f(unit, fencer).await)
                });
                found.await.flatten()
            }));
        }
        let mut all = Vec::new();
        for w in waits {
            all.extend(w.await.flatten());
        }
        all
    }
}
