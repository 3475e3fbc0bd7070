//! Passes: what commands show before they touch the medium, and what is counted of them.
//!
//! See [`fence`](crate::fence) for what makes them void and who waits for them.

use crate::block_door::WriteGuard;
use crate::execute::Failure;
use crate::fence::{End, Whom};
use crate::members::number;
use crate::planted::{Bug, has};
use crate::transfer::Transfer;
use crate::unit::Attached;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use weir_proto_scsi::lu::{LuState, Nexus};
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_proto_scsi::status::ScsiError;
use weir_reactor::{WaitChannel, unless};

/// Passes that one fence makes void together.
#[derive(Default)]
pub(crate) struct Round {
    /// That of a command that is aside; 0 for those that commands share.
    number: u64,
    end: Cell<Option<End>>,
    passes: Cell<u32>,
    /// Commands that gave their passes back for a while.
    aside: Cell<u32>,
    /// Passes that were let through to the medium and are not back.
    inside: Cell<u32>,
    /// Those of them that write there.
    writing: Cell<u32>,
    /// Signalled with fewer passes, and when they are void.
    news: WaitChannel,
}

impl Round {
    fn end(&self, why: End, own: Nexus) {
        let now = self.end.get();
        if now.is_none_or(|e| e.rank(own) < why.rank(own)) {
            self.end.set(Some(why));
            self.tell();
        }
    }

    #[inline]
    fn tell(&self) {
        if self.news.waiting() > 0 {
            self.news.signal_all();
        }
    }

    /// Somebody looks at it yet.
    fn matters(&self) -> bool {
        self.passes.get() + self.aside.get() > 0
    }

    /// A pass is at the medium.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.get() > 0
    }

    /// Waits until none of the passes is at the medium; none will be again.
    pub(crate) async fn off_the_medium(&self) {
        while self.is_inside() {
            self.news.wait().await;
        }
    }

    /// A pass is at the medium to write there.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.get() > 0
    }

    /// Waits until none of the passes writes.
    pub(crate) async fn has_written(&self) {
        while self.is_writing() {
            self.news.wait().await;
        }
    }

    /// Waits for the end of the commands. One that is aside is waited for if it has been ended: it then waits for nobody
    /// itself.
    pub(crate) async fn over(&self) {
        let left = || self.passes.get() > 0 || (self.is_ended() && self.aside.get() > 0);
        while left() && !has(Bug::PassNotShown) {
            self.news.wait().await;
        }
    }

    /// Its commands have no answer of their own any more, not even those that have done their work.
    fn is_ended(&self) -> bool {
        matches!(self.end.get(), Some(End::Aborted(_) | End::Gone)) && !has(Bug::AsideNotEnded)
    }
}

/// The rounds of a view of a unit: that in force, and void ones whose commands have not ended.
#[derive(Default)]
pub(crate) struct Rounds {
    now: RefCell<Rc<Round>>,
    /// Those of commands that are aside, and that were turned over, too.
    void: RefCell<Vec<Rc<Round>>>,
    gone: Cell<bool>,
}

impl Rounds {
    /// Makes all passes of nexus `own` void, but that of the command aside whose number is `spared`. Gives the rounds that are to be waited for.
    fn fence(&self, why: End, own: Nexus, spared: u64) -> Vec<Rc<Round>> {
        let next = Rc::<Round>::default();
        if why == End::Gone || self.gone.get() {
            self.gone.set(true);
            next.end(End::Gone, own);
        }
        let old = self.now.replace(next);
        let mut void = self.void.borrow_mut();
        void.retain(|r| r.matters());
        if old.matters() {
            void.push(old);
        }
        let ended = |r: &&Rc<Round>| r.number == 0 || r.number != spared;
        let ended: Vec<_> = void.iter().filter(ended).cloned().collect();
        ended.iter().for_each(|r| r.end(why, own));
        ended
    }

    /// Gives those rounds of which something writes to the medium. Nothing is made void, and passes from here on are of another round:
    /// these come to an end.
    pub(crate) fn turn_over(&self) -> Vec<Rc<Round>> {
        if self.now.borrow().is_writing() {
            // A view that is gone has void passes only.
            let next = Rc::<Round>::default();
            next.end.set(self.now.borrow().end.get());
            let old = self.now.replace(next);
            let mut void = self.void.borrow_mut();
            void.retain(|r| r.matters());
            void.push(old);
        }
        self.void.borrow().iter().filter(|r| r.is_writing()).cloned().collect()
    }

    /// No pass of this view is good any more.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }
}

/// A command's claim to a unit, from the look-up of its LUN until its answer is posted.
pub struct Pass {
    attached: Rc<Attached>,
    round: Rc<Round>,
    /// The unit attention that the command has taken, and of which its host has not been told.
    taken: Cell<Option<Box<Sense>>>,
    /// The loss that the command's answer tells of.
    pub(crate) tells: Cell<u64>,
    /// By which its host knows the answer.
    pub(crate) tag: Option<u64>,
    /// The one that its command had when it was ended, and kept: who ended it waits for that.
    _kept: Option<Box<Pass>>,
}

/// Held while a command's I/O is under way.
#[must_use]
pub struct Inside<'a> {
    round: &'a Round,
    writes: bool,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        let r = self.round;
        r.inside.set(r.inside.get() - 1);
        if self.writes {
            r.writing.set(r.writing.get() - 1);
        }
        r.tell();
    }
}

impl Deref for Pass {
    type Target = Attached;
    #[inline]
    fn deref(&self) -> &Attached {
        &self.attached
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        if let Some(sense) = self.taken.take() {
            self.give_back(*sense);
        }
        self.round.passes.set(self.round.passes.get() - 1);
        self.round.tell();
    }
}

impl Attached {
    /// A pass for a command that has just come, and is for this unit.
    #[inline]
    pub fn pass(self: &Rc<Self>) -> Pass {
        self.one_more(None)
    }

    /// The same for one with this tag, which its host uses for one command at a time.
    #[inline]
    pub fn pass_of(self: &Rc<Self>, tag: u64) -> Pass {
        if let Some(answered) = self.answered.get()
            && (answered == tag || has(Bug::AnyIsHeard))
        {
            self.is_heard();
        }
        self.one_more(Some(tag))
    }

    fn one_more(self: &Rc<Self>, tag: Option<u64>) -> Pass {
        let round = self.rounds.now.borrow().clone();
        round.passes.set(round.passes.get() + 1);
        Pass {
            attached: self.clone(),
            round,
            taken: Cell::default(),
            tells: Cell::default(),
            tag,
            _kept: None,
        }
    }

    /// The passes so far are void from here on, but that of the command aside with this number.
    pub(crate) fn fence(&self, why: End, spared: u64) -> Vec<Rc<Round>> {
        let rounds = self.rounds.fence(why, self.nexus, spared);
        if why == End::Aborted(self.nexus) {
            self.gives_up(None);
        }
        if self.rounds.is_gone() {
            self.forget_rules();
        }
        rounds
    }
}

impl Pass {
    /// What became of the command, if it was fenced.
    #[inline]
    pub fn end(&self) -> Option<End> {
        self.round.end.get()
    }

    /// Sees whether the command is fenced, and counts for nothing.
    pub fn watch(&self) -> Watch {
        Watch(self.round.clone())
    }

    /// The command's answer is with the connection: its host is told of what it has taken, and of what was lost.
    #[inline]
    pub fn told(&self) {
        self.taken.set(None);
        let by_its_host = |e| matches!(e, End::Aborted(by) if by == self.nexus);
        // What it has given up it does not hear of.
        if self.tells.get() > 0
            && (!self.end().is_some_and(by_its_host) || has(Bug::GivenUpIsHeard))
        {
            self.loss_is_told();
        }
    }

    /// The command is refused: by a unit attention, perhaps, that is pending no more.
    pub(crate) fn refused(&self, e: &ScsiError) {
        if let Some(sense) = e.sense.filter(|s| s.key == SenseKey::UnitAttention) {
            self.taken.set(Some(Box::new(sense)));
        }
    }

    /// Runs `f` on the unit's state, and keeps which unit attention it takes.
    pub(crate) fn taking<R>(&self, f: impl FnOnce(&mut LuState) -> R) -> R {
        let nexus = self.attached.nexus;
        let (r, taken) = self.unit.shared.with(|s| {
            let before = s.attentions(nexus);
            let r = f(s);
            let after = s.attentions(nexus);
            (r, before.into_iter().find(|b| !after.iter().any(|a| a.same_code(b))))
        });
        if let Some(sense) = taken {
            self.taken.set(Some(Box::new(sense)));
        }
        r
    }

    /// Nobody hears of the command any more: what it has taken is told to the next one.
    #[cold]
    fn give_back(&self, sense: Sense) {
        if !has(Bug::AttentionLost) {
            self.unit.shared.with(|s| s.untold(self.attached.nexus, sense));
        }
    }

    /// Waits until the command is fenced; for ever, if it is not.
    async fn voided(&self) -> End {
        loop {
            if let Some(why) = self.end()
                && !has(Bug::PassNotShown)
            {
                return why;
            }
            self.round.news.wait().await;
        }
    }

    /// Waits for `f`, which is up to other commands, as long as this one has not been fenced.
    ///
    /// # Errors
    /// It has been.
    pub(crate) async fn unless_void<R>(&self, f: impl Future<Output = R>) -> Result<R, End> {
        let mut why = None;
        let void = async {
            why = Some(self.voided().await);
        };
        let done = unless(void, f).await;
        done.ok_or(why.unwrap_or(End::Again))
    }

    /// The same, and as long as it has not been stopped either.
    ///
    /// # Errors
    /// It has been, or was fenced.
    pub(crate) async fn unless_over<T: Transfer, R>(
        &self,
        t: &T,
        f: impl Future<Output = R>,
    ) -> Result<R, Failure> {
        match unless(t.halted(), self.unless_void(f)).await {
            Some(done) => Ok(done?),
            None => Err(Failure::Stop),
        }
    }

    /// Waits while a COMPARE AND WRITE of the range is between its read and its write, then lets a write of the command's
    /// begin.
    ///
    /// # Errors
    /// It was fenced or stopped meanwhile.
    #[inline]
    pub(crate) async fn write_gate<T: Transfer>(
        &self,
        at: u64,
        len: u64,
        t: &T,
    ) -> Result<WriteGuard<'_>, Failure> {
        let gate = self.unit.write_gate(at, len);
        let writing = match self.unit.is_compared(at, len) {
            // Rare, and not to make every request's memory larger.
            true => Box::pin(self.unless_over(t, gate)).await?,
            false => gate.await,
        };
        Ok(WriteGuard(writing, self.begin_to_write(t)?))
    }

    /// Lets the command's I/O begin, unless it has been fenced since it was admitted.
    ///
    /// # Errors
    /// Why not: the command has no further effect.
    #[inline]
    pub fn enter(&self) -> Result<Inside<'_>, End> {
        match self.round.end.get() {
            Some(end) if !has(Bug::PassNotShown) => Err(end),
            _ => {
                self.round.inside.set(self.round.inside.get() + 1);
                Ok(Inside { round: &self.round, writes: false })
            }
        }
    }

    /// The same for I/O that changes the medium: what a host has left of that is waited for.
    ///
    /// # Errors
    /// Why not: the command has no further effect.
    #[inline]
    pub fn enter_to_write(&self) -> Result<Inside<'_>, End> {
        let mut inside = self.enter()?;
        self.round.writing.set(self.round.writing.get() + 1);
        inside.writes = true;
        Ok(inside)
    }

    /// The same for a flush, whose end may tell of a loss: what its host flushes next waits for that.
    ///
    /// # Errors
    /// As [`enter`](Pass::enter).
    pub fn enter_to_flush(&self) -> Result<Inside<'_>, End> {
        if has(Bug::FlushesLeft) { self.enter() } else { self.enter_to_write() }
    }

    /// A new pass for a command that may ask again.
    pub fn renew(&mut self) {
        *self = self.attached.one_more(self.tag);
    }

    /// Gives the pass back for the time in which the command, which has done its work, waits for the end of others. One that
    /// has been ended waits for nobody, and keeps it: who ended it waits for its answer already.
    pub fn aside(self) -> Aside {
        let round = Rc::new(Round { number: number(), ..Round::default() });
        if let Some(why) = self.end() {
            round.end(why, self.attached.nexus);
        }
        round.aside.set(1);
        let attached = self.attached.clone();
        attached.rounds.void.borrow_mut().push(round.clone());
        let ended = self.round.is_ended().then_some(self);
        Aside { attached, round, ended }
    }
}

/// A look at a pass, for waits that are up to the command's peer.
pub struct Watch(Rc<Round>);

impl Watch {
    /// The command has been fenced.
    pub fn is_void(&self) -> bool {
        self.0.end.get().is_some()
    }

    /// Waits until it has.
    pub async fn voided(&self) {
        while !self.is_void() {
            self.0.news.wait().await;
        }
    }
}

/// The place of a pass that was given back: fences are seen by its command, but its own, and wait for it only if they end
/// it. Then it stops waiting.
///
/// Two commands that wait for the end of each other's nexuses would otherwise wait for ever.
pub struct Aside {
    attached: Rc<Attached>,
    round: Rc<Round>,
    /// The pass, if it was void before.
    ended: Option<Pass>,
}

impl Aside {
    /// As [`UnitShared::fence`](crate::UnitShared::fence), for what this command ends: all these nexuses' commands but
    /// itself, though it may be one of them. Once this one is ended nobody is promised anything: what was ended stays so, and is
    /// not waited for.
    pub async fn fence(&self, whom: Whom, why: End) {
        let spared = if has(Bug::FencerNotSpared) { 0 } else { self.round.number };
        let ended = async {
            while !self.round.is_ended() {
                self.round.news.wait().await;
            }
        };
        // Begun on every reactor before anything is waited for.
        unless(ended, self.attached.unit.shared.fence_beside(whom, why, spared)).await;
    }

    /// The pass again. [`Pass::end`] tells of fences since then: one that has ended the command must not be answered after.
    pub fn back(mut self) -> Pass {
        let kept = self.ended.take().map(Box::new);
        if has(Bug::EndsItself)
            && let Some(pass) = kept
        {
            return *pass;
        }
        self.round.passes.set(self.round.passes.get() + 1);
        let (attached, round) = (self.attached.clone(), self.round.clone());
        let (taken, tells) = (Cell::default(), Cell::default());
        Pass { attached, round, taken, tells, tag: None, _kept: kept }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.round.aside.set(self.round.aside.get() - 1);
        self.round.tell();
    }
}
