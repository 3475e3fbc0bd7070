//! What a crash hit: which writes were under way or not durable, and what else the pool was doing.

use super::pool::Story;
use weir_sim::SimMedium;
use weir_store::Work;
use weir_store::format::label::{Layout, SUPER_SLOTS};
use weir_store::format::log::decode_head;
use weir_store::format::superblock::Superblock;

/// Crashes, by what they hit. One counts under each heading that it belongs to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crashes {
    pub(crate) all: u64,
    kills: u64,
    in_recovery: u64,
    hit: Hit,
    quiet: u64,
    resync: u64,
    moves: u64,
    snapshots: u64,
    /// The newest superblock had turns: once, and more often.
    kept: [u64; 2],
    /// Recovery had logged verdicts anew, and no superblock said so.
    undrawn: u64,
    /// A superblock said so, and recovery had not come to its end.
    drawn: u64,
}

/// Places of a device that writes were on their way to.
#[derive(Debug, Clone, Copy, Default)]
struct Hit {
    labels: u64,
    superblocks: u64,
    log: u64,
    again: u64,
    slabs: u64,
    bitmaps: u64,
    maps: u64,
    tables: u64,
    dead: u64,
    data: u64,
}

impl Hit {
    /// What a block of a device is for; what lies in extents says itself what it is, data does not.
    fn of(&mut self, layout: &Layout, block: u64, content: &[u8]) -> &mut u64 {
        let (log, table) = (layout.log(0), layout.table(0, 0));
        let (log_end, table_end) = (log + layout.log_pages, table + 2 * layout.table_pages);
        let last = layout.superblock(1, 0);
        match block {
            b if b < 2 || b >= layout.label(2) => &mut self.labels,
            b if b < log || b >= last => &mut self.superblocks,
            // Of what a recovery logs anew, the slots used say so.
            b if b < log_end && content[7] & 0x80 != 0 => &mut self.again,
            b if b < log_end => &mut self.log,
            b if (table..table_end).contains(&b) => &mut self.slabs,
            _ if !content.starts_with(b"WRpg") => &mut self.data,
            _ => match content[4] {
                1 | 2 => &mut self.maps,
                3 | 4 => &mut self.tables,
                5 => &mut self.dead,
                _ => &mut self.bitmaps,
            },
        }
    }

    /// One for each heading that has any.
    fn add(&mut self, one: Hit) {
        self.labels += one.labels.min(1);
        self.superblocks += one.superblocks.min(1);
        self.log += one.log.min(1);
        self.again += one.again.min(1);
        self.slabs += one.slabs.min(1);
        self.bitmaps += one.bitmaps.min(1);
        self.maps += one.maps.min(1);
        self.tables += one.tables.min(1);
        self.dead += one.dead.min(1);
        self.data += one.data.min(1);
    }

    fn any(&self) -> bool {
        let all = [
            self.labels,
            self.superblocks,
            self.log,
            self.again,
            self.slabs,
            self.bitmaps,
            self.maps,
            self.tables,
            self.dead,
            self.data,
        ];
        all.iter().any(|n| *n > 0)
    }
}

impl Story {
    /// Looks at what a crash that comes now hits.
    pub(crate) fn note_crash(&mut self, kill: bool, recovering: bool) {
        let mut hit = Hit::default();
        for m in &self.media {
            let Some(layout) = self.layout(m.len()) else { continue };
            let mut places = Vec::new();
            m.each_at_risk(|at, len| places.push((at, len)));
            for (at, len) in places {
                let mut head = [0; 8];
                for block in at / 4096..(at + len).div_ceil(4096) {
                    m.peek(block * 4096, &mut head);
                    *hit.of(&layout, block, &head) += 1;
                }
            }
        }
        let kept = self.kept_log();
        let c = &mut self.crashes;
        c.all += 1;
        c.kills += u64::from(kill);
        c.in_recovery += u64::from(recovering);
        c.quiet += u64::from(!hit.any());
        c.hit.add(hit);
        c.snapshots += u64::from(self.director.busy());
        c.kept[0] += u64::from(kept.0 > 0);
        c.kept[1] += u64::from(kept.0 > 1);
        c.undrawn += u64::from(recovering && kept.1);
        c.drawn += u64::from(recovering && kept.0 > self.turns);
        self.turns = kept.0;
        let status = self.pool.borrow().as_ref().map(|p| p.status());
        match status.and_then(|s| s.work).map(|w| w.work) {
            Some(Work::Resync) => c.resync += 1,
            Some(_) => c.moves += 1,
            None => {}
        }
    }

    /// Whether a crash now may hit a superblock.
    pub(crate) fn superblock_at_risk(&self) -> bool {
        self.media.iter().any(|m| {
            let (Some(layout), mut hit) = (self.layout(m.len()), Hit::default()) else {
                return false;
            };
            m.each_at_risk(|at, _| *hit.of(&layout, at / 4096, &[0; 8]) += 1);
            hit.superblocks > 0
        })
    }

    /// The newest superblock of a device that can be seen.
    fn newest_on(&self, m: &SimMedium) -> Option<Superblock> {
        let layout = self.layout(m.len())?;
        let all = (0..2u8).flat_map(|a| (0..SUPER_SLOTS).map(move |s| (a, s)));
        let decoded = all.filter_map(|(area, slot)| {
            let b = block(m, layout.superblock(area.into(), slot));
            Superblock::decode_any(&b, area, slot).ok().map(|(_, s)| s)
        });
        decoded.max_by_key(|s| s.seq)
    }

    /// Turns of the newest superblock that can be seen, and whether a later recovery has left pages.
    fn kept_log(&self) -> (usize, bool) {
        let newest = self.media.iter().filter_map(|m| self.newest_on(m)).max_by_key(|s| s.seq);
        let Some(s) = newest else { return (0, false) };
        let left = |m: &SimMedium| {
            let Some(layout) = self.layout(m.len()) else { return false };
            (0..layout.log_pages).any(|n| {
                decode_head(&block(m, layout.log(n)), s.tag())
                    .is_ok_and(|(h, _)| h.recovery && h.incarnation > s.incarnation)
            })
        };
        (s.turns.len(), self.media.iter().any(left))
    }

    /// Whether a device has a slot of superblocks of which nothing tells what it holds: one copy cannot be read, and the other is
    /// damaged, as by the power that went while it was written. Then only somebody who asks for it goes on without that.
    pub(crate) fn hides_superblock(&self, m: &SimMedium) -> bool {
        let Some(layout) = self.layout(m.len()) else { return false };
        (0..SUPER_SLOTS).any(|slot| {
            let at = |area: u8| layout.superblock(area.into(), slot) * 4096;
            let unread = |area: u8| m.is_bad(at(area), 4096);
            let damaged = |area: u8| {
                let mut b = [0; 4096];
                m.peek(at(area), &mut b);
                b != [0; 4096] && Superblock::decode_any(&b, area, slot).is_err()
            };
            let told = |area: u8| !unread(area) && !damaged(area);
            (unread(0) || unread(1)) && !told(0) && !told(1)
        })
    }

    /// Whether another device lacks the newest superblock, and not all of this one's log can be read, which tells whether the other
    /// had it. Then only somebody who asks for it goes on.
    pub(crate) fn hides_log(&self, m: &SimMedium) -> bool {
        let Some(layout) = self.layout(m.len()) else { return false };
        let newest = |m: &SimMedium| self.newest_on(m).map_or(0, |s| s.seq);
        let last = self.media.iter().map(newest).max();
        let others = self.media.iter().filter(|other| other.name() != m.name());
        others.map(newest).any(|n| Some(n) < last)
            && (0..layout.log_pages).any(|n| m.is_bad(layout.log(n) * 4096, 4096))
    }

    /// Whether a device has lost superblocks that it had: it has none that is nearly as new as those of others, or as their log
    /// says that all had. One that is being written may be on some only.
    pub(crate) fn lacks_superblock(&self, m: &SimMedium) -> bool {
        let newest = |m: &SimMedium| self.newest_on(m).map_or(0, |s| s.seq);
        let own = newest(m);
        self.media.iter().any(|other| own + 1 < newest(other) || own < self.told_by_log(other))
    }

    /// The newest superblock of which the log on a device says that it was on all that are in sync.
    fn told_by_log(&self, m: &SimMedium) -> u64 {
        let (Some(s), Some(layout)) = (self.newest_on(m), self.layout(m.len())) else { return 0 };
        let heads = (0..layout.log_pages)
            .filter_map(|n| decode_head(&block(m, layout.log(n)), s.tag()).ok());
        heads.map(|(h, _)| h.base_seq).filter(|told| *told <= s.seq).max().unwrap_or(0)
    }

    /// How a device of this size is laid out.
    pub(crate) fn layout(&self, len: u64) -> Option<Layout> {
        let y = self.like?;
        Layout::plan(len / 4096, y.slab_shift, y.log_pages, y.table_pages, y.spares)
    }
}

/// A block of a device as it is there.
fn block(m: &SimMedium, number: u64) -> Box<[u8; 4096]> {
    let mut b = Box::new([0; 4096]);
    m.peek(number * 4096, &mut b[..]);
    b
}

impl Crashes {
    /// As figures of a run.
    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        let h = &self.hit;
        vec![
            ("crashes", self.all),
            ("crashes by kill", self.kills),
            ("crashes by power cut", self.all - self.kills),
            ("crashes inside recovery", self.in_recovery),
            ("crashes inside recovery, after it logged anew, before its superblock", self.undrawn),
            ("crashes inside recovery, after its superblock", self.drawn),
            ("crashes with the log of lives before not merged", self.kept[0]),
            ("crashes with that of several lives", self.kept[1]),
            ("crashes with nothing on its way", self.quiet),
            ("crashes with on its way: data", h.data),
            ("crashes with on its way: log pages", h.log),
            ("crashes with on its way: log pages of recovery", h.again),
            ("crashes with on its way: map nodes", h.maps),
            ("crashes with on its way: bitmaps", h.bitmaps),
            ("crashes with on its way: table of slabs", h.slabs),
            ("crashes with on its way: table of volumes", h.tables),
            ("crashes with on its way: dead lists", h.dead),
            ("crashes with on its way: superblocks", h.superblocks),
            ("crashes with on its way: labels", h.labels),
            ("crashes while a device is brought back", self.resync),
            ("crashes while slabs move", self.moves),
            ("crashes while a snapshot or clone is made or deleted", self.snapshots),
        ]
    }
}
