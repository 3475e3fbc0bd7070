//! How far one device has come, as its superblocks and its log tell, for whoever has to tell it from an old copy.

use super::copies::LATER;
use super::labels::{A_WHILE, label_of, read_each, superblocks};
use super::log::WINDOW;
use super::{StoreError, StoreResult};
use crate::format::label::{Label, Layout};
use crate::format::log::decode_head;
use crate::format::superblock::{MemberState, Superblock};
use crate::format::turn::Standing;
use crate::planted::{Bug, has};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoResult, Nanos};
use weir_disk::Disk;

/// Pages of one read.
const CHUNK: u64 = 64;

/// How far a device has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Its newest superblock's number.
    pub seq: u64,
    /// The newest superblock of which its log says that every device in sync has it; 0 if its log says nothing.
    pub had: u64,
    /// Every page of the log before this one is on all halves, as its log says; 0 if it says nothing.
    pub stable: u64,
    /// One more than the last page that it has; none if it is no half of the log.
    pub next: Option<u64>,
    /// It has pages that count beside the superblock.
    pub live: bool,
    /// Its log cannot be read where it seems to end: it may have come further, and say more.
    pub unread: bool,
}

/// What the newest superblock of a device says of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its number.
    pub seq: u64,
    /// The devices of the pool, in service or not, but for those that have left it.
    pub members: Vec<u64>,
}

/// Looks at the newest superblock of a device.
///
/// # Errors
/// It has no label or no readable superblock, or does not answer.
pub async fn told_by(d: &Rc<dyn Disk>) -> StoreResult<Told> {
    let label = label_of(d).await?;
    let s = newest(d, &label).await?;
    let there = s.members.iter().filter(|m| m.state != MemberState::Gone);
    Ok(Told { seq: s.seq, members: there.map(|m| m.device).collect() })
}

async fn newest(d: &Rc<dyn Disk>, label: &Label) -> StoreResult<Superblock> {
    let found = superblocks(d, label, A_WHILE).await?;
    found.newest().filter(|_| !found.in_doubt()).cloned().ok_or_else(|| {
        let text =
            format!("`{}` has no superblock, or not all that it may have can be read", d.name());
        StoreError::Pool(text)
    })
}

/// Looks how far a device has come.
///
/// # Errors
/// It has no label or no readable superblock, or does not answer.
pub async fn log_end(d: &Rc<dyn Disk>) -> StoreResult<LogEnd> {
    let label = label_of(d).await?;
    let s = newest(d, &label).await?;
    let mut end = LogEnd { seq: s.seq, had: 0, stable: 0, next: None, live: false, unread: false };
    let me = s.members.iter().position(|m| m.device == label.device);
    if !s.log_set.iter().flatten().any(|n| Some(usize::from(*n)) == me) {
        return Ok(end);
    }
    let half = half(d, &label.layout, &s, A_WHILE).await?;
    end.next = Some(half.next);
    (end.had, end.stable, end.live) = (half.had, half.stable, half.live);
    end.unread = half.unread;
    Ok(end)
}

/// What one half of the log says.
#[derive(Default)]
pub(super) struct Half {
    /// The newest superblock of which it says that every device in sync has it; 0: it says nothing.
    pub(super) had: u64,
    stable: u64,
    /// One more than the last page.
    pub(super) next: u64,
    /// It has pages that count beside the superblock.
    live: bool,
    /// The page after the last one cannot be read: there may be more. Without that page none behind it has been waited for, and
    /// what a page before the last one says, the last one says as well, or more.
    pub(super) unread: bool,
}

/// How a page is tried again when so many could not be read. A log of which nothing can be read takes no longer than one of them: it
/// is looked at several times before a pool opens.
fn patience(given_up: u64) -> &'static [Nanos] {
    if given_up == 0 { LATER } else { &[] }
}

/// Reads the pages that count beside a superblock on a device, which is a half of the log by it. Fails when it does not answer.
pub(super) async fn half(
    d: &Rc<dyn Disk>,
    layout: &Layout,
    s: &Superblock,
    limit: Nanos,
) -> IoResult<Half> {
    let (ring, mut lsn) = (s.log_pages.max(1), s.base_lsn);
    let last = lsn.saturating_add(ring);
    let mut half = Half { next: s.turns.last().map_or(lsn, |t| t.sure), ..Half::default() };
    let (mut given_up, mut gap) = (0, 0);
    // Those behind the last one, without a page that counts.
    let mut others = BTreeSet::new();
    // What is behind many pages that cannot be read is left out: it may say more in any case, and each may take seconds.
    while lsn < last
        && lsn <= half.next.saturating_add(WINDOW)
        && (gap < CHUNK || has(Bug::UnreadToTheEnd))
    {
        let n = CHUNK.min(ring - lsn % ring).min(last - lsn);
        let first = layout.log(lsn);
        let pages = read_each(d, first, n, &mut given_up, patience, limit).await?;
        gap = if pages.is_empty() { gap + n } else { 0 };
        for (page, block) in pages {
            let at = lsn + page;
            let head = decode_head(&block, s.tag()).ok().map(|(head, _)| head);
            let head = head.filter(|h| h.lsn == at).map(|h| (s.standing(&h), h));
            let Some((Standing::Counts, head)) = head else {
                if !matches!(head, Some((Standing::Newer, _))) {
                    others.insert(at);
                }
                continue;
            };
            (half.next, half.live) = (half.next.max(at + 1), true);
            (half.had, half.stable) = (half.had.max(head.base_seq), half.stable.max(head.stable));
        }
        others = others.split_off(&half.next);
        lsn += n;
    }
    let ends = others.contains(&half.next) && !has(Bug::UnreadAnywhere);
    half.unread = given_up > 0 && !ends && half.next < last;
    Ok(half)
}
