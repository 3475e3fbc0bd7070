//! Filling the blocks of data that a leaf leads to.

use super::nodes::PROOFS;
use super::{Into, Walk};
use crate::engine::Inner;
use crate::engine::copies::{LATER, Look, SOON, Shown};
use crate::engine::dataset::Dataset;
use crate::engine::device::Device;
use crate::engine::meta::Effort;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::{BLOCK, Block};
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{IoFuture, join_parts};
use weir_mem::Slice;
use weir_reactor::{now, sleep};

/// Blocks that are copied with one read and one write at most.
const RUN: usize = 64;

/// Which try to bring a block it is.
#[derive(Debug, Clone, Copy)]
struct Try {
    is_first: bool,
    is_last: bool,
    /// How often what is wrong everywhere will be waited for.
    proofs: u32,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    /// It is there, or there is nothing to bring, or it is left out.
    Done,
    /// It is to be tried again soon.
    Later,
    /// All copies are wrong, and nobody knows for how long.
    Doubted,
}

/// A block that is to be brought: what the map says of it, and where it is to be.
type Wanted = (MapEntry, Rc<Device>, u64);

/// Blocks of a dataset that lie together.
struct Run {
    device: Rc<Device>,
    at: u64,
    blocks: Vec<(u64, MapEntry)>,
}

/// For how long doubtful blocks are looked at, one after the other, before they are looked at again: so many times what the proof takes.
const ENOUGH: u64 = 20;

impl Inner {
    /// Brings the blocks of a leaf, and gives those that the copy which is read does not have. The caller holds a pin.
    pub(super) async fn fill_leaf(
        self: &Rc<Self>,
        w: &Walk,
        ds: &Rc<Dataset>,
        index: u64,
        node: &Block,
    ) -> IoResult<Vec<u64>> {
        let after = self.own_after(ds);
        let mut all: Vec<(u64, MapEntry)> = (0..LEAF)
            .map(|k| (index * LEAF as u64 + k as u64, tree::entry(node, k)))
            .filter(|(_, e)| self.is_brought(w, after, e))
            .collect();
        all.sort_by_key(|(_, e)| e.vbn);
        let mut runs: Vec<Run> = Vec::new();
        for (lba, e) in all {
            let Some((device, at)) = self.destination(w.into, e.vbn) else { continue };
            let follows = |r: &&mut Run| {
                let n = r.blocks.len();
                n < RUN
                    && r.device.number == device.number
                    && r.at + n as u64 == at
                    && r.blocks[n - 1].1.vbn + 1 == e.vbn
            };
            match runs.last_mut().filter(follows) {
                Some(r) => r.blocks.push((lba, e)),
                None => runs.push(Run { device, at, blocks: vec![(lba, e)] }),
            }
        }
        let rest = RefCell::default();
        let (runs, ds, to) = (&runs, &**ds, &rest);
        join_parts(runs.len(), move |i| IoFuture::new(self.fill_run(w, ds, &runs[i], to))).await?;
        Ok(rest.into_inner())
    }

    /// Whether a walk brings what an entry of a map refers to, of which what was born `after` that is its own.
    fn is_brought(&self, w: &Walk, after: Option<u32>, e: &MapEntry) -> bool {
        e.is_data() && self.is_wanted(w, e.birth) && after.is_none_or(|after| e.birth > after)
    }

    fn is_good(&self, ds: &Dataset, block: &(u64, MapEntry), buf: &Slice, at: usize) -> bool {
        let id = self.identity(ds.family, block.0, block.1.birth, block.1.vbn);
        self.proves(&id, block.1.crc, buf, at * BLOCK)
    }

    /// Brings what lies together, as far as one read has it; the other blocks are put into `rest`.
    async fn fill_run(
        &self,
        w: &Walk,
        ds: &Dataset,
        r: &Run,
        rest: &RefCell<Vec<u64>>,
    ) -> IoResult {
        let limit = self.options.deadline;
        let n = r.blocks.len();
        let buf = Slice::heap(n * BLOCK);
        self.upkeep.add_done(n as u64);
        // What is there already is proved; else a current copy is read. What is not good is looked for elsewhere.
        let from = match w.prove {
            true => Some((r.device.clone(), r.at)),
            false => self.choose(r.blocks[0].1.vbn),
        };
        let mut read = false;
        if let Some((d, at)) = from {
            match d.read(at, &buf, limit).await {
                Ok(()) => read = true,
                Err(IoError::Offline) if !w.prove => self.device_failed(&d, IoError::Offline),
                Err(_) => {}
            }
        }
        // From where on blocks are to be written.
        let mut from = 0;
        for (i, b) in r.blocks.iter().enumerate() {
            match read && self.is_good(ds, b, &buf, i) {
                true if w.prove => self.brought(w, b.1.vbn),
                true => self.seen_good(b.1.vbn, 1),
                false => {
                    rest.borrow_mut().push(b.0);
                    if !w.prove {
                        self.write_part(w, r, &buf, from, i).await?;
                    }
                    from = i + 1;
                }
            }
        }
        match w.prove {
            true => Ok(()),
            false => self.write_part(w, r, &buf, from, n).await,
        }
    }

    async fn write_part(&self, w: &Walk, r: &Run, buf: &Slice, from: usize, to: usize) -> IoResult {
        match to - from {
            0 => Ok(()),
            n => {
                let part = buf.sub(from * BLOCK, n * BLOCK);
                let (vbn, to) = (r.blocks[from].1.vbn, (&r.device, r.at + from as u64));
                self.write_filled(w, vbn, to, &part).await
            }
        }
    }

    /// Brings blocks of a leaf from whatever copies verify. What none gives now is tried again after pauses, all of it at once; what is
    /// wrong everywhere, and would be gone with the move, after so long that this proves it.
    pub(super) async fn fill_rest(&self, w: &Walk, ds: &Dataset, mut rest: Vec<u64>) -> IoResult {
        let mut doubted = Vec::new();
        for (n, pause) in LATER.iter().map(Some).chain([None]).enumerate() {
            let mut later = Vec::new();
            let try_ = Try { is_first: n == 0, is_last: pause.is_none(), proofs: PROOFS };
            for lba in rest {
                self.upkeep_goes_on().await?;
                match self.fill_one(w, ds, lba, try_).await? {
                    Brought::Done => {}
                    Brought::Later => later.push(lba),
                    Brought::Doubted => doubted.push(lba),
                }
            }
            rest = later;
            match pause.filter(|_| !rest.is_empty()) {
                Some(pause) => sleep(*pause).await,
                None => break,
            }
        }
        while !doubted.is_empty() {
            doubted = self.prove(w, ds, doubted).await?;
        }
        Ok(())
    }

    /// Looks at doubtful blocks until it is proved what they are, at as many as that is known of. Gives the others: looks at one
    /// block that are far apart prove nothing.
    async fn prove(&self, w: &Walk, ds: &Dataset, mut doubted: Vec<u64>) -> IoResult<Vec<u64>> {
        let mut others = Vec::new();
        for proofs in (0..PROOFS).rev() {
            if doubted.is_empty() {
                break;
            }
            sleep(self.options.proof).await;
            let (begun, is_first) = (now(), proofs + 1 == PROOFS);
            let try_ = Try { is_first: false, is_last: true, proofs };
            for (n, lba) in std::mem::take(&mut doubted).into_iter().enumerate() {
                let takes_long = now().saturating_sub(begun) > ENOUGH * self.options.proof;
                if is_first && n > 0 && takes_long && !has(Bug::ProvedTooLate) {
                    others.push(lba);
                    continue;
                }
                self.upkeep_goes_on().await?;
                if self.fill_one(w, ds, lba, try_).await? == Brought::Doubted {
                    doubted.push(lba);
                }
            }
        }
        Ok(others)
    }

    /// Brings a block from whatever copy verifies. What cannot be read now may be readable later. So it is given up only if somebody
    /// has removed the device that may have it, or if what is filled loses nothing by that. What is wrong may be shown so for a moment
    /// only. The caller holds no pin.
    async fn fill_one(
        &self,
        w: &Walk,
        ds: &Dataset,
        lba: u64,
        Try { is_first, is_last, proofs }: Try,
    ) -> IoResult<Brought> {
        loop {
            let wanted = match self.wanted_now(w, ds, lba).await {
                Ok(Some(wanted)) => wanted,
                Ok(None) => return Ok(Brought::Done),
                // It was read a moment ago.
                Err(_) if !is_last => return Ok(Brought::Later),
                Err(e) => return self.leave_out_all(w, e).map(|()| Brought::Done),
            };
            let (entry, d, at) = &wanted;
            let mut seen = self.look_at(ds, lba, *entry, &[]).await;
            // Each of these may take as long as a device has to answer, and who stops this does not wait for all.
            if seen.is_given_up() {
                self.upkeep_goes_on().await?;
            }
            if seen.is_given_up() && self.ask_removed(w).await {
                self.upkeep_goes_on().await?;
                seen = self.look_at(ds, lba, *entry, &[]).await;
            }
            // Not each of many is waited for; but each of those of which this is the end.
            let patient = !Inner::patience(w.lost.get() + w.unread.get()).is_empty();
            let patient = patient || seen.is_given_up() && !has(Bug::GivenUpInHaste);
            let again = match seen.look {
                Look::Wrong => is_first,
                _ => seen.passing().is_some() && !is_last,
            };
            if again && patient {
                return Ok(Brought::Later);
            }
            let pin = self.pins.pin();
            match self.wanted_now(w, ds, lba).await {
                Ok(Some((now, to, place)))
                    if (now, to.number, place) == (*entry, d.number, *at) => {}
                Ok(Some(_)) => continue,
                Ok(None) => return Ok(Brought::Done),
                Err(e) => return self.leave_out_all(w, e).map(|()| Brought::Done),
            }
            let (mut stays, mut is_read) = (false, true);
            let is_given_up = seen.is_given_up() && w.into == Into::Moves;
            if w.into == Into::Moves {
                seen = seen.give_up();
                let left = self.leaver(self.space.borrow().slab_of(entry.vbn));
                is_read = left.as_ref().is_some_and(|d| d.is_readable()) && !is_given_up;
                // What a device in service does not give it may give some day.
                stays = matches!(seen.look, Look::Unread(_))
                    && left.is_some_and(|d| !d.is_written_off());
            }
            let mut is_left_out = stays && !has(Bug::BadIsLost);
            let is_wrong = matches!(seen.look, Look::Wrong);
            let is_bad = is_wrong || matches!(seen.look, Look::Unread(IoError::Medium));
            let shown = if is_wrong { Shown::Wrong } else { Shown::Bad };
            // Nothing of that would be left, whichever device it is that shows it.
            if is_bad
                && !stays
                && seen.is_shown
                && (is_read || !has(Bug::BesideDeadIsLost))
                && !(is_given_up && has(Bug::GivenUpInHaste))
                && !(w.into != Into::Moves && has(Bug::ResyncIsHasty))
                && !has(Bug::WrongOnceIsLost)
                && !self.is_proved((entry.vbn, entry.crc), shown, seen.begun)
            {
                match (w.prove, proofs) {
                    // Whoever proves all tells.
                    (false, _) => return Ok(Brought::Done),
                    (true, 0) => is_left_out = true,
                    (true, _) => return Ok(Brought::Doubted),
                }
            }
            let one = Slice::heap(BLOCK);
            match self.take(seen, &one, &pin, ds).await {
                Ok(()) if w.prove => {
                    if !self.put_right(w, entry.vbn, (d, *at), &one).await? {
                        return Ok(Brought::Done);
                    }
                }
                Ok(()) => self.write_filled(w, entry.vbn, (d, *at), &one).await?,
                // No copy has it. What the new place holds stays: it may be read some day.
                Err(IoError::Medium) if !is_left_out => w.lost.set(w.lost.get() + 1),
                Err(e) => return self.leave_out(w, entry.vbn, e).map(|()| Brought::Done),
            }
            self.brought(w, entry.vbn);
            return Ok(Brought::Done);
        }
    }

    /// What the last checkpoint has for a block that is to be brought.
    async fn wanted_now(&self, w: &Walk, ds: &Dataset, lba: u64) -> IoResult<Option<Wanted>> {
        let _pin = self.pins.pin();
        if ds.is_stale() {
            return Ok(None);
        }
        let (index, i) = (lba / LEAF as u64, (lba % LEAF as u64) as usize);
        let leaf = self.node_now(w, ds, (0, index), Effort::Once).await?;
        let entry = leaf.map(|(_, node)| tree::entry(&node, i));
        let Some(entry) = entry.filter(|e| self.is_brought(w, self.own_after(ds), e)) else {
            return Ok(None);
        };
        Ok(self.destination(w.into, entry.vbn).map(|(d, at)| (entry, d, at)))
    }

    /// Writes blocks from `vbn` on to where they are to be.
    pub(super) async fn write_filled(
        &self,
        w: &Walk,
        vbn: u64,
        (d, at): (&Rc<Device>, u64),
        data: &Slice,
    ) -> IoResult {
        if !d.is_written() {
            return Err(IoError::Offline);
        }
        self.count(|c| c.media_writes += (data.len() / BLOCK) as u64);
        match d.write(at, data, self.options.deadline).await {
            Ok(()) => Ok(()),
            Err(IoError::Medium) => {
                // Some block cannot be written there: each by itself, with a spare if need be.
                for i in 0..(data.len() / BLOCK) as u64 {
                    let one = data.sub(i as usize * BLOCK, BLOCK);
                    self.put_right(w, vbn + i, (d, at + i), &one).await?;
                }
                Ok(())
            }
            Err(e) => {
                self.device_failed(d, e);
                Err(e)
            }
        }
    }

    /// Writes a block where another was found, and sees to it that it is there. False: it is left out, as the device does not give it
    /// back there.
    pub(super) async fn put_right(
        &self,
        w: &Walk,
        vbn: u64,
        (d, at): (&Rc<Device>, u64),
        data: &Slice,
    ) -> IoResult<bool> {
        if !d.is_written() {
            return Err(IoError::Offline);
        }
        let pin = self.pins.pin();
        self.mend(d, at, data, &pin).await;
        let mut given = self.given_back(d, at, data).await;
        if let Err(IoError::Path) = given
            && !has(Bug::EchoAwaited)
        {
            // A path that fails is none of the block's. It is filled once more.
            self.gives_anything(d).await?;
            // What takes everything and gives nothing back is no copy.
            self.mend_by_spare(d, at, data, &pin).await;
            given = self.given_back(d, at, data).await;
        }
        match given {
            Ok(true) => Ok(true),
            Err(e) if !matches!(e, IoError::Medium | IoError::Offline | IoError::Path) => Err(e),
            Err(IoError::Path) if has(Bug::EchoAwaited) => Err(IoError::Path),
            Err(IoError::Path) if w.into == Into::Moves => {
                self.upkeep.shun(d, at);
                self.not_given_back(w, vbn).map(|()| false)
            }
            _ => {
                // It does not hold what is written, and has no spare blocks: it is of no use.
                self.device_failed(d, IoError::Medium);
                Err(IoError::Offline)
            }
        }
    }

    /// Whether a device gives a block back as it was written.
    async fn given_back(&self, d: &Device, at: u64, data: &Slice) -> IoResult<bool> {
        let mut pauses = SOON.iter();
        loop {
            let have = Slice::heap(data.len());
            match (d.read(at, &have, self.options.deadline).await, pauses.next()) {
                (Ok(()), _) => return Ok(have.to_vec() == data.to_vec()),
                (Err(IoError::Path), Some(pause)) => sleep(*pause).await,
                (Err(e), _) => return Err(e),
            }
        }
    }

    /// A device gives what it has elsewhere.
    async fn gives_anything(&self, d: &Device) -> IoResult {
        d.read(d.layout.label(0), &Slice::heap(BLOCK), self.options.deadline).await
    }
}
