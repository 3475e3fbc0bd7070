//! The copies of a block: read, verified, and what may be concluded from that.
//!
//! An error of a read is no fact about the block: a path fails and comes back, memory is short for a moment. So only copies
//! that were *read* and are wrong prove anything, and what cannot be read is tried again. Of a device that somebody has removed,
//! errors that last count as loss where something is moved, and nowhere else: a removal must end. A device that is there is never
//! taken for missing by anybody else, whether it answers just now or not.

use super::Inner;
use super::device::Device;
use super::locks::Pin;
use crate::format::BLOCK;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_mem::Slice;
use weir_reactor::{now, sleep};

/// Copies of a block: the device, and the block there.
pub(super) type Copies = Vec<(Rc<Device>, u64)>;

/// What a look at all copies of a block came to.
pub(super) enum Look {
    /// A copy verifies. With those that are damaged: read and wrong, or the device says that it cannot read the place.
    Good(Slice, Copies),
    /// Every copy was read, and is wrong.
    Wrong,
    /// No copy verifies, and one that might cannot be read: nobody knows what it holds.
    Unread(IoError),
}

/// What a look has shown of a block without a good copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    /// Every copy is wrong.
    Wrong,
    /// Devices say that they cannot read it.
    Bad,
}

/// What a look at all copies of a block came to, before anybody is told of it: it may be repeated.
pub(super) struct Seen {
    pub(super) look: Look,
    /// Copies that are damaged, if none is good.
    pub(super) bad: Copies,
    /// The checksum that the block should have.
    pub(super) sum: u64,
    /// What it comes to without the devices that somebody has given up, if they could not be read.
    without: Option<Look>,
    /// A copy showed something else, or that its medium is bad. Else there is no copy.
    pub(super) is_shown: bool,
    /// When it began.
    pub(super) begun: Nanos,
}

impl Seen {
    /// What somebody has given up, and could not be read, does not count any more.
    pub(super) fn give_up(self) -> Seen {
        match self.without {
            Some(look) => Seen { look, without: None, ..self },
            None => self,
        }
    }

    /// Only what somebody has given up may have it still.
    pub(super) fn is_given_up(&self) -> bool {
        self.without.is_some()
    }

    /// Why no copy is good, if that may pass.
    pub(super) fn passing(&self) -> Option<IoError> {
        match self.look {
            Look::Unread(e) if e != IoError::Offline => Some(e),
            _ => None,
        }
    }
}

/// Which copies are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// One after the other until one is good.
    First,
    /// All current ones, so that the damaged ones can be mended.
    All,
}

/// Pauses after which a host's read of what could not be read is tried again: it should not wait for long.
pub(super) const SOON: &[Nanos] = &[20 * MILLIS, 200 * MILLIS];
/// The same where giving up costs more than time.
pub(super) const LATER: &[Nanos] = &[20 * MILLIS, 200 * MILLIS, 1000 * MILLIS, 3000 * MILLIS];

/// Which of two reasons says more: one that may pass before one that does not.
fn worse(a: Option<IoError>, b: IoError) -> Option<IoError> {
    match (a, b) {
        (Some(IoError::Offline), _) | (_, IoError::Offline) => Some(IoError::Offline),
        (Some(a), IoError::Medium) => Some(a),
        (_, b) => Some(b),
    }
}

impl Inner {
    /// Reads the copies of a block, which should have checksum `sum`, until one satisfies `good`, or all current ones; if none
    /// does, again after each of `pauses`. Damage is told by [`conclude`](Inner::conclude).
    pub(super) async fn look(
        &self,
        (vbn, sum): (u64, u64),
        good: impl Fn(&Slice) -> bool,
        which: Which,
        pauses: &[Nanos],
    ) -> Seen {
        let mut pauses = pauses.iter();
        loop {
            let seen = self.look_once((vbn, sum), &good, which).await;
            match seen.passing().and_then(|_| pauses.next()) {
                Some(pause) => sleep(*pause).await,
                None if has(Bug::PassingIsLoss) => return seen.give_up(),
                None => return seen,
            }
        }
    }

    async fn look_once(
        &self,
        (vbn, sum): (u64, u64),
        good: impl Fn(&Slice) -> bool,
        which: Which,
    ) -> Seen {
        let (begun, mut is_shown) = (now(), false);
        let copies = self.copies_of(vbn).into_iter().flatten();
        let mut copies: Vec<_> = copies.map(|(d, at)| (d.is_current_to_read(), d, at)).collect();
        let old = copies.len();
        // What is out of date may still have it, and so may the place that the slab moves to; the proof tells.
        copies.sort_by_key(|(current, ..)| !current);
        if !has(Bug::MoveMissesReads) {
            copies.extend(self.moving_to(vbn).map(|(d, at)| (false, d, at)));
        }
        let (mut bad, mut data) = (Vec::new(), None);
        // Why copies could not be read, and those on what somebody has given up.
        let (mut unread, mut given_up) = (None, None);
        for (n, (current, d, at)) in copies.into_iter().enumerate() {
            if data.is_some() && (!current || which == Which::First) {
                continue;
            }
            let why = if d.is_written_off() { &mut given_up } else { &mut unread };
            if !d.is_readable() {
                if !d.is_written_off() || d.disk.is_some() && !has(Bug::SilentIsMissing) {
                    *why = worse(*why, IoError::Offline);
                }
                continue;
            }
            // What a write brings that was given up may come yet: asked before it is read.
            let is_late = !current && !d.is_quiet(0).await && !has(Bug::LateIsLost);
            let buf = Slice::heap(BLOCK);
            let read = d.read(at, &buf, self.options.deadline).await;
            // A new place shows what was there before.
            is_shown |= n < old && matches!(read, Ok(()) | Err(IoError::Medium));
            match read {
                Ok(()) if good(&buf) => {
                    self.works.damage.good(&d, at, 1);
                    data.get_or_insert(buf);
                }
                // What it did not get while it went out of service is not damaged.
                Ok(()) if current && d.is_current_to_read() => bad.push((d, at)),
                Ok(()) if is_late => *why = worse(*why, IoError::Path),
                Ok(()) => {}
                Err(e) => {
                    if e == IoError::Offline {
                        self.device_failed(&d, e);
                    }
                    self.found_unread(&d, at, sum, e);
                    *why = worse(*why, e);
                    if e == IoError::Medium && current {
                        bad.push((d, at));
                    }
                }
            }
        }
        // Another life has begun that may use what this one freed: what is wrong here proves nothing.
        let is_over = self.over.get() || self.superseded.get();
        let all = match (unread, given_up) {
            // What may pass where it is in service is waited for, whatever the removed one does.
            (Some(e), Some(IoError::Offline)) if e != IoError::Medium => Some(e),
            (_, given_up) => given_up.map_or(unread, |e| worse(unread, e)),
        };
        let mut without = given_up.map(|_| unread.map_or(Look::Wrong, Look::Unread));
        let look = match (data, all) {
            (Some(data), _) => {
                self.seen_good(vbn, 1);
                Look::Good(data, std::mem::take(&mut bad))
            }
            (None, Some(e)) if !has(Bug::ErrorIsLoss) || e == IoError::Offline => Look::Unread(e),
            _ if is_over => Look::Unread(IoError::Offline),
            _ => Look::Wrong,
        };
        if is_over {
            bad.clear();
        }
        let waits = unread.is_some() && has(Bug::BadBlockStays);
        if is_over || waits || !matches!(look, Look::Unread(_)) {
            without = None;
        }
        Seen { look, bad, sum, without, is_shown, begun }
    }

    /// How patient something is that looks at many blocks, of which `given_up` could not be read: if all of them waited, nothing
    /// would ever end.
    pub(super) fn patience(given_up: u64) -> &'static [Nanos] {
        if given_up < 8 { LATER } else { &[] }
    }

    /// Whether a block of which every copy is wrong was so before, [`Options::proof`](super::Options::proof) ago: what a
    /// device shows for a moment proves nothing. `begun`: when it was looked at now. The same of what cannot be read, which proves
    /// nothing of what could be.
    pub(super) fn is_proved(&self, (vbn, crc): (u64, u32), shown: Shown, begun: Nanos) -> bool {
        /// Blocks that are remembered.
        const MOST: usize = 4096;
        /// For how long one is: so many times what the proof takes.
        const FRESH: u64 = 60;
        let shown = if has(Bug::BadIsWrong) { Shown::Wrong } else { shown };
        let (key, mut wrong) = ((vbn, crc, shown), self.wrong.borrow_mut());
        if let Some(first) = wrong.get(&key) {
            let since = begun.saturating_sub(*first);
            let proved = has(Bug::ErrorIsLoss) || since >= self.options.proof;
            // Two moments that are far apart, of which nobody knows what was between them, prove no more than one.
            let is_late = since > FRESH * self.options.proof && !has(Bug::WrongForEver);
            if proved && !is_late {
                wrong.remove(&key);
                return true;
            }
            if !is_late {
                return false;
            }
        }
        if has(Bug::ErrorIsLoss) {
            return true;
        }
        if wrong.len() >= MOST && !wrong.contains_key(&key) {
            let oldest = wrong.iter().min_by_key(|(_, t)| **t).map(|(k, _)| *k);
            oldest.map(|k| wrong.remove(&k));
        }
        wrong.insert(key, now());
        false
    }

    /// Blocks were read well: that they were wrong before proves nothing any more.
    #[inline]
    pub(super) fn seen_good(&self, vbn: u64, blocks: u64) {
        self.found_well(vbn, blocks);
        if !self.wrong.borrow().is_empty() && !has(Bug::WrongForEver) {
            let mut wrong = self.wrong.borrow_mut();
            let of = |vbn| (vbn, 0, Shown::Wrong);
            let all: Vec<_> = wrong.range(of(vbn)..of(vbn + blocks)).map(|(k, _)| *k).collect();
            for k in &all {
                wrong.remove(k);
            }
        }
    }

    /// Mends damaged copies of a block of which another is good.
    pub(super) async fn mend_all(&self, bad: Copies, data: &Slice, pin: &Pin) {
        for (d, at) in bad {
            self.mend(&d, at, data, pin).await;
        }
    }
}

/// The error that tells of a look without a good copy.
pub(super) fn told(look: Look) -> IoResult<(Slice, Copies)> {
    match look {
        Look::Good(data, bad) => Ok((data, bad)),
        Look::Wrong => Err(IoError::Medium),
        Look::Unread(e) => Err(e),
    }
}
