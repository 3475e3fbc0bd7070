//! From the initiator's memory into a buffer of ours.

use super::{Ended, LENT, PARALLEL_READS, Running, Stop, Task};
use weir_fabric::Remote;
use weir_mem::{Lent, Slice};
use weir_proto_brp::{Descriptor, Status, sums};
use weir_reactor::{CompletionFuture, completion};

impl Running<'_> {
    /// Brings all data of the command into one buffer of its own. With `check`, it is compared with the checksums of the
    /// command, in the order in which it comes, while it is in the caches.
    /// The buffer is the command's for as long as it keeps what comes with the data.
    pub(super) async fn fetch(
        &self,
        t: &Task,
        len: usize,
        check: bool,
    ) -> Result<(Slice, Option<Lent>), Stop> {
        let mut checked = check.then(|| Checked { sums: &t.parts.sums, ..Checked::default() });
        let mut held = None;
        let data = match &self.inline {
            Some(d) => d.clone(),
            None => {
                self.check_descriptors(t, len as u64)?;
                // A host that serves no READ can only bring its data in the message.
                if self.channel.conn().is_some_and(|c| c.reads_out() == 0) {
                    return Err(Status::Invalid.into());
                }
                let data = held.insert(self.buffer(len.max(1)).await?).sub(0, len);
                self.fetch_remote(t, &data, checked.as_mut()).await?;
                data
            }
        };
        match checked.and_then(|mut c| c.came(self.c.offset, &data, data.len())) {
            None => Ok((data, held)),
            Some(bad) => Err(Stop(Ended::Status(Status::Checksum, bad))),
        }
    }

    async fn fetch_remote(
        &self,
        t: &Task,
        data: &Slice,
        mut checked: Option<&mut Checked<'_>>,
    ) -> Result<(), Stop> {
        let Some(conn) = self.channel.conn() else { return Err(Stop(Ended::Lost)) };
        let mut pending: [Option<(CompletionFuture, usize)>; PARALLEL_READS] =
            [const { None }; PARALLEL_READS];
        let mut ok = true;
        let max = match checked {
            Some(_) => self.port.config.max_rdma.min(LENT as u32),
            None => self.port.config.max_rdma,
        };
        let (mut came, mut next) = (0, 0);
        for (from, n, remote) in pieces(&t.parts.descriptors, 0, data.len(), max) {
            if let Some((f, n)) = pending[next].take() {
                ok &= f.await.is_ok();
                came += n;
                if let Some(c) = checked.as_mut().filter(|_| ok) {
                    c.came(self.c.offset, data, came);
                }
            }
            if !ok || self.go_on().is_err() {
                break;
            }
            conn.send_slots().wait().await;
            conn.read_slots().wait().await;
            let (token, done) = completion();
            conn.read(data.sub(from, n), remote, token);
            pending[next] = Some((done, n));
            next = (next + 1) % PARALLEL_READS;
        }
        // Whatever was posted writes into the buffer until it completes.
        for i in 0..PARALLEL_READS {
            let Some((f, n)) = pending[(next + i) % PARALLEL_READS].take() else { continue };
            ok &= f.await.is_ok();
            came += n;
            if let Some(c) = checked.as_mut().filter(|_| ok) {
                c.came(self.c.offset, data, came);
            }
        }
        self.go_on()?;
        if ok { Ok(()) } else { Err(Status::Invalid.into()) }
    }

    pub(super) fn check(&self, data: &Slice, stored: &[[u8; 4]], base: usize) -> Result<(), Stop> {
        if !self.integrity() {
            return Ok(());
        }
        // SAFETY: the data has arrived whole; nobody writes to this buffer any more.
        match sums::verify(self.c.offset, unsafe { data.bytes() }, stored) {
            None => Ok(()),
            Some(bad) => Err(Stop(Ended::Status(Status::Checksum, bad + base as u32))),
        }
    }
}

/// How much of a command's data has been compared with its checksums.
#[derive(Default)]
struct Checked<'a> {
    sums: &'a [[u8; 4]],
    /// Bytes, in whole pieces.
    done: usize,
    /// Pieces of them.
    pieces: usize,
    /// The first bad one.
    bad: Option<u32>,
}

impl Checked<'_> {
    /// The first `len` bytes of the data, which lies at `offset` of the volume, are there; tells what is bad so far.
    fn came(&mut self, offset: u64, data: &Slice, len: usize) -> Option<u32> {
        let part = ((offset + len as u64) % sums::PIECE) as usize;
        let upto = if len == data.len() { len } else { len.saturating_sub(part) };
        if upto > self.done {
            let at = offset + self.done as u64;
            let new = data.sub(self.done, upto - self.done);
            let stored = self.sums.get(self.pieces..).unwrap_or_default();
            // SAFETY: this part has arrived; nobody writes to it any more.
            if let Some(bad) = sums::verify(at, unsafe { new.bytes() }, stored) {
                self.bad.get_or_insert(self.pieces as u32 + bad);
            }
            self.pieces += sums::count(at, new.len() as u64);
            self.done = upto;
        }
        self.bad
    }
}

/// The RDMA operations for `len` bytes from byte `at` of the memory that `list` describes: (offset from `at`,
/// length, remote place).
pub(super) fn pieces(
    list: &[Descriptor],
    at: usize,
    len: usize,
    max: u32,
) -> impl Iterator<Item = (usize, usize, Remote)> + '_ {
    let max = (max as usize).max(4096);
    let (mut i, mut skip, mut done) = (0, at, 0);
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        loop {
            let d = list.get(i)?;
            let own = d.len as usize;
            if skip >= own {
                skip -= own;
                i += 1;
                continue;
            }
            let n = (own - skip).min(len - done).min(max);
            let remote = Remote { key: d.key, addr: d.addr.wrapping_add(skip as u64) };
            let from = done;
            done += n;
            skip += n;
            return Some((from, n, remote));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_cover_the_data_once() {
        let d = |addr, len| Descriptor { addr, key: 7, len };
        let list = [d(1000, 100), d(0, 0), d(5000, 9000), d(1, 4096)];
        let all: Vec<_> = pieces(&list, 50, 10_000, 4096).collect();
        let sizes: Vec<_> = all.iter().map(|(from, n, r)| (*from, *n, r.addr)).collect();
        assert_eq!(
            sizes,
            [
                (0, 50, 1050),
                (50, 4096, 5000),
                (4146, 4096, 9096),
                (8242, 808, 13192),
                (9050, 950, 1)
            ]
        );
        assert_eq!(pieces(&list, 0, 0, 0).count(), 0);
        // A list that is too short gives what there is; its sum was checked before.
        assert_eq!(pieces(&list[..1], 0, 200, 0).map(|p| p.1).sum::<usize>(), 100);
    }

    #[test]
    fn data_are_compared_as_they_come() {
        let mut rng = weir_base::Prng::new(4);
        for round in 0..200 {
            let (offset, len) = (512 * rng.below(16), 512 * (1 + rng.below(100)) as usize);
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            let mut stored = Vec::new();
            sums::each(offset, &bytes, |s| stored.push(s.to_le_bytes()));
            let wrong = (round % 2 == 1).then(|| rng.below(stored.len() as u64) as usize);
            if let Some(w) = wrong {
                stored[w][1] ^= 4;
            }
            let data = Slice::copy_of(&bytes);
            let mut c = Checked { sums: &stored, ..Checked::default() };
            let mut came = 0;
            while came < len {
                came = len.min(came + 1 + rng.below(20_000) as usize);
                c.came(offset, &data, came);
            }
            assert_eq!(
                (c.came(offset, &data, len), c.pieces),
                (wrong.map(|w| w as u32), stored.len())
            );
            // One that is missing counts as wrong.
            let mut short = Checked { sums: &stored[1..], ..Checked::default() };
            assert!(short.came(offset, &data, len).is_some());
        }
    }
}
