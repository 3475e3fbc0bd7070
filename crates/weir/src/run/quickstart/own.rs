//! What `weir quickstart` does as a host of its own: verify what is there, or write and verify that; measure.

use crate::cli::args::{Fabric, LoginArgs, Policy};
use crate::run::remote::{self, Remote, Wanted};
use serde::Serialize;
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use weir_base::Prng;
use weir_control::model::{InitiatorId, InitiatorPort, TargetPort};
use weir_control::{Code, Error, Result};
use weir_mem::Slice;
use weir_reactor::{clock, spawn};

/// Bytes of one verification I/O.
pub(super) const PIECE: u64 = 256 << 10;
/// Bytes that are written whole or not at all.
pub(super) const BLOCK: usize = 512;
/// Verification I/Os in flight.
const DEPTH: usize = 16;

#[derive(Debug, Default, Serialize)]
pub(super) struct Bench {
    pub(super) rw: &'static str,
    pub(super) bs: u64,
    pub(super) iodepth: usize,
    pub(super) runtime_seconds: f64,
    pub(super) iops: f64,
    pub(super) bw_bytes: f64,
    pub(super) clat_ns: Clat,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Clat {
    pub(super) mean: f64,
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

/// How far the first run of a volume has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody else has had it. What is written may be there, in part or not at all.
    Begun,
    /// Nobody else has had it, and all that is written is there.
    Written,
    /// What is written was verified, and others may have the volume since.
    Served,
    /// Others may have it, and what it holds was never known.
    Shown,
}

/// What an earlier run has written, or was about to; of a volume that was made by one.
#[derive(Debug, PartialEq, Eq)]
struct Note {
    seed: u64,
    len: u64,
    state: State,
}

/// Nothing of what it holds is known.
const SHOWN: Note = Note { seed: 0, len: 0, state: State::Shown };

impl Note {
    /// The one of the volume that has one of these names.
    fn read(marker: &Path, names: &[String]) -> Result<Option<Note>> {
        let bytes = match std::fs::read(marker) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                let what =
                    format!("the note of what was written, {}, cannot be read", marker.display());
                return Err(Error::new(Code::IoError, what).because(e));
            }
            Ok(bytes) => bytes,
        };
        let text = String::from_utf8_lossy(&bytes);
        let words: Vec<&str> = text.split_whitespace().collect();
        let (seed, len, state) = match *words {
            [seed, len, name, state] if names.iter().any(|n| n == name) => match state {
                "begun" => (seed, len, State::Begun),
                "written" => (seed, len, State::Written),
                "served" => (seed, len, State::Served),
                _ => (seed, len, State::Shown),
            },
            _ => return Ok(None),
        };
        Ok(match (seed.parse(), len.parse()) {
            (Ok(seed), Ok(len)) => Some(Note { seed, len, state }),
            _ => None,
        })
    }

    fn keep(&self, marker: &Path, name: &str) -> Result<()> {
        let state = match self.state {
            State::Begun => "begun",
            State::Written => "written",
            State::Served => "served",
            State::Shown => "shown",
        };
        let write = || -> std::io::Result<()> {
            let tmp = marker.with_extension("new");
            std::fs::write(&tmp, format!("{} {} {name} {state}\n", self.seed, self.len))?;
            std::fs::File::open(&tmp)?.sync_all()?;
            std::fs::rename(&tmp, marker)?;
            let dir = marker.parent().unwrap_or(Path::new("."));
            std::fs::File::open(dir)?.sync_all()
        };
        write().map_err(|e| {
            Error::new(Code::IoError, "the note of what was written cannot be kept").because(e)
        })
    }
}

/// Notes that a volume is made by the run with this port, and nothing is in it.
pub(super) fn begin(marker: &Path, port: InitiatorId) -> Result<()> {
    Note { seed: run_of(port), len: 0, state: State::Begun }.keep(marker, &serial(port))
}

/// The serial number of a volume that the run with this port makes.
pub(super) fn serial(port: InitiatorId) -> String {
    format!("{:016X}", run_of(port))
}

/// What no other run has.
fn run_of(port: InitiatorId) -> u64 {
    port.0.iter().skip(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

/// What the initiator port of each run begins with.
const OWN: &[u8; 8] = b"WEIR  qs";

/// Whether an initiator port is of a run.
pub(super) fn is_port(port: &InitiatorPort) -> bool {
    port.key().starts_with(OWN)
}

/// An initiator port that nobody has had.
pub(super) fn port() -> Result<InitiatorId> {
    let mut port = [0; 16];
    port[..8].copy_from_slice(OWN);
    port[8..].copy_from_slice(&crate::seed::draw()?[..8]);
    Ok(InitiatorId(port))
}

pub(super) fn login(port: &TargetPort, own: InitiatorId) -> LoginArgs {
    LoginArgs {
        fabric: Fabric::Iwarp,
        id_ext: Some(port.id_ext),
        ioc_guid: Some(port.ioc_guid),
        initiator_port: Some(own),
        channels: None,
        crc: false,
        timeout: Duration::from_secs(30),
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Bytes that were there from an earlier run and proved right.
    pub(super) kept: u64,
    /// Bytes written now, read back and compared.
    pub(super) verified: u64,
    /// Why the volume was left as it is.
    pub(super) left_alone: Option<LeftAlone>,
}

impl Proof {
    fn left_alone(why: LeftAlone) -> Result<Proof> {
        Ok(Proof { left_alone: Some(why), ..Proof::default() })
    }
}

/// Why a volume is left as it is.
#[derive(Debug)]
pub(super) enum LeftAlone {
    Changed,
    Unknown,
    /// What was written a moment ago is not what is read. It is said where.
    Lost(String),
    /// That went wrong, and hosts have volumes.
    Failed(String),
}

impl std::fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LeftAlone::Changed => {
                f.write_str("it holds something else than an earlier run has written")
            }
            LeftAlone::Unknown => f.write_str("what it holds is not known, and others may use it"),
            LeftAlone::Lost(what) => write!(f, "data was lost: {what}"),
            LeftAlone::Failed(why) => write!(f, "it cannot be verified and measured: {why}"),
        }
    }
}

/// The host.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) address: SocketAddr,
    pub(super) login: LoginArgs,
    /// Of this run.
    pub(super) port: InitiatorId,
    /// The note of what was written.
    pub(super) marker: PathBuf,
    /// What the volume is called in notes: now, and by earlier versions.
    pub(super) names: [String; 2],
    /// How much is written when nobody has used the volume.
    pub(super) size: u64,
    /// Others see the volume.
    pub(super) seen: bool,
    /// It may not be written, by anybody.
    pub(super) read_only: bool,
    pub(super) runtime: Duration,
}

impl Own {
    fn on<R: Send + 'static>(
        &self,
        f: impl AsyncFnOnce(&Remote) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (address, login) = (self.address, self.login.clone());
        let [_, naa] = self.names.clone();
        let way = remote::login(&login, &[address], None);
        remote::on_reactor(&way, move |provider| {
            Box::pin(async move {
                let wanted = Wanted { targets: &[address], lun: Some(0), volume: None };
                let unit = Remote::open(&provider, wanted, &login, Policy::ActivePassive).await?;
                let name = unit.name().await?.map(|n| hex(&n));
                if name.as_ref() != Some(&naa) {
                    let what = "the volume that is to be verified is not the one that is served";
                    let why = format!("LUN 0 is {}", name.as_deref().unwrap_or("without a name"));
                    return Err(Error::new(Code::Internal, what).because(why));
                }
                let done = f(&unit).await?;
                unit.close();
                Ok(done)
            })
        })
    }

    /// Verifies what is there, or writes and verifies that.
    pub(super) fn verifies(&self) -> Result<Proof> {
        let me = self.clone();
        self.on(async move |unit| me.verifies_on(unit).await)
    }

    async fn verifies_on(&self, unit: &Remote) -> Result<Proof> {
        let note = Note::read(&self.marker, &self.names)?;
        let is_there = |n: &&Note| matches!(n.state, State::Served | State::Written);
        if let Some(n) = note.as_ref().filter(is_there) {
            let len = whole(unit, n.len);
            if len < n.len {
                // It was made smaller. What is behind that is nothing of this, should it grow again.
                self.keep(&Note { len, ..*n })?;
            }
            let kept = match verify(unit, n.seed, len, false).await {
                // Somebody uses the volume, or has: what is there is his.
                Err(e) if e.code == Code::DataMismatch => {
                    return Proof::left_alone(LeftAlone::Changed);
                }
                kept => kept?,
            };
            // A host may have had it since, and has it no more.
            if n.state == State::Written && !self.seen {
                match verify(unit, n.seed, unit.len(), true).await {
                    Err(e) if e.code == Code::DataMismatch => {
                        self.keep(&SHOWN)?;
                        return Proof::left_alone(LeftAlone::Unknown);
                    }
                    unused => drop(unused?),
                }
            }
            return Ok(Proof { kept, ..Proof::default() });
        }
        let own = note.filter(|n| n.state == State::Begun && !self.seen && !self.read_only);
        let Some(old) = own else { return Proof::left_alone(LeftAlone::Unknown) };
        // All of it, if another run has made it: a host may have had it since, and has it no more.
        let is_new = old.len == 0 && old.seed == run_of(self.port);
        let most = whole(unit, self.size);
        let len = if is_new { most } else { unit.len() };
        match verify(unit, old.seed, len, true).await {
            Err(e) if e.code == Code::DataMismatch => return Proof::left_alone(LeftAlone::Unknown),
            unused => drop(unused?),
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A run that goes on where one was cut off leaves nothing of another seed behind its end.
        let seed = if old.len > 0 { old.seed } else { since.map_or(1, |d| d.as_nanos() as u64) };
        let new = Note { seed, len: most, state: State::Begun };
        self.keep(&new)?;
        fill(unit, seed, new.len).await?;
        unit.flush().await?;
        self.keep(&Note { state: State::Written, ..new })?;
        let verified = verify(unit, seed, new.len, false).await?;
        Ok(Proof { verified, ..Proof::default() })
    }

    /// Whether all of the volume is read before others get it, since an earlier run was cut off.
    pub(super) fn goes_on(&self) -> Result<bool> {
        let note = Note::read(&self.marker, &self.names)?;
        let is_new = |n: &Note| n.len == 0 && n.seed == run_of(self.port);
        let was_cut_off = |n: Note| match n.state {
            State::Begun => !is_new(&n) && !self.read_only,
            State::Written => true,
            State::Served | State::Shown => false,
        };
        Ok(!self.seen && note.is_some_and(was_cut_off))
    }

    /// Keeps that the operator may give the volume to hosts from now on, though this run has not come to its end.
    pub(super) fn note_given(&self) -> Result<()> {
        match Note::read(&self.marker, &self.names)? {
            Some(n) if n.state == State::Written => self.keep(&Note { state: State::Served, ..n }),
            Some(n) if n.state == State::Begun => self.keep(&SHOWN),
            _ => Ok(()),
        }
    }

    fn keep(&self, note: &Note) -> Result<()> {
        self.names.first().map_or(Ok(()), |name| note.keep(&self.marker, name))
    }

    /// Whether others have had the volume, or may have.
    pub(super) fn was_served(&self) -> Result<bool> {
        let note = Note::read(&self.marker, &self.names)?;
        Ok(note.is_none_or(|n| matches!(n.state, State::Served | State::Shown)))
    }

    /// Keeps that others may have the volume from now on. What it holds was proved, or is not known.
    pub(super) fn note_served(&self, proved: bool) -> Result<()> {
        let note = Note::read(&self.marker, &self.names)?;
        match note {
            Some(n) if matches!(n.state, State::Served | State::Shown) => Ok(()),
            Some(n) if proved => self.keep(&Note { state: State::Served, ..n }),
            // That it is wrong stays known.
            Some(n) if n.state == State::Written => Ok(()),
            _ => self.keep(&SHOWN),
        }
    }

    /// Keeps that nobody got it after all.
    pub(super) fn note_kept_back(&self) -> Result<()> {
        match Note::read(&self.marker, &self.names)? {
            Some(n) => self.keep(&Note { state: State::Written, ..n }),
            None => Ok(()),
        }
    }

    /// 4 KiB random reads, 32 at once.
    pub(super) fn measures(&self) -> Result<Bench> {
        let runtime = self.runtime;
        self.on(async move |unit| measure(unit, runtime).await)
    }
}

/// As much as is written of so much: what a unit has of it, in whole blocks.
fn whole(unit: &Remote, len: u64) -> u64 {
    len.min(unit.len()).next_multiple_of(BLOCK as u64).min(unit.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |s, b| s + &format!("{b:02x}"))
}

fn pattern(seed: u64, at: u64, buf: &mut [u8]) {
    Prng::new(seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(buf);
}

/// Runs `f` for every piece of the first `size` bytes, several at once, until it fails for one. The last one may be shorter.
async fn pieces<F, Fut>(size: u64, f: F) -> Result<()>
where
    F: Fn(u64, Slice) -> Fut + Clone + 'static,
    Fut: Future<Output = Result<()>> + 'static,
{
    let failed = Rc::new(Cell::new(false));
    let workers: Vec<_> = (0..DEPTH as u64)
        .map(|w| {
            let (f, failed) = (f.clone(), failed.clone());
            spawn(async move {
                let buf = Slice::heap(PIECE as usize);
                let mut at = w * PIECE;
                while at < size && !failed.get() {
                    let done = f(at, buf.sub(0, PIECE.min(size - at) as usize)).await;
                    done.inspect_err(|_| failed.set(true))?;
                    at += DEPTH as u64 * PIECE;
                }
                Result::<()>::Ok(())
            })
        })
        .collect();
    let mut all = Ok(());
    for w in workers {
        let ended = || Err(Error::new(Code::Internal, "a part of the verification was cut off"));
        all = all.and(w.await.unwrap_or_else(ended));
    }
    all
}

async fn fill(unit: &Remote, seed: u64, size: u64) -> Result<()> {
    let unit = unit.clone();
    pieces(size, move |at, buf| {
        let unit = unit.clone();
        async move {
            let mut v = vec![0; buf.len()];
            pattern(seed, at, &mut v);
            buf.write_at(0, &v);
            unit.write(at, buf).await
        }
    })
    .await
}

/// Compares with what is written with that seed; zeros will do where it is `perhaps` not written.
async fn verify(unit: &Remote, seed: u64, size: u64, perhaps: bool) -> Result<u64> {
    let unit = unit.clone();
    pieces(size, move |at, buf| {
        let unit = unit.clone();
        async move {
            buf.fill(0);
            unit.read(at, buf.clone()).await?;
            let mut v = vec![0; buf.len()];
            pattern(seed, at, &mut v);
            let is = buf.to_vec();
            let blocks = is.chunks(BLOCK).zip(v.chunks(BLOCK)).enumerate();
            let wrong = |&(_, (is, v)): &(usize, (&[u8], &[u8]))| {
                is != v && !(perhaps && is.iter().all(|b| *b == 0))
            };
            match blocks.into_iter().find(wrong) {
                None => Ok(()),
                Some((i, _)) => Err(Error::new(
                    Code::DataMismatch,
                    format!(
                        "at byte {} of the volume is not what was written",
                        at + (i * BLOCK) as u64
                    ),
                )),
            }
        }
    })
    .await?;
    Ok(size)
}

async fn measure(unit: &Remote, runtime: Duration) -> Result<Bench> {
    const BS: u64 = 4096;
    const IODEPTH: usize = 32;
    // A volume of an operator's may be smaller than what is read at once.
    let blocks = unit.len() / BS;
    let runtime = if blocks == 0 { Duration::ZERO } else { runtime };
    let end = clock() + runtime.as_nanos() as u64;
    let begun = clock();
    let workers: Vec<_> = (0..IODEPTH)
        .map(|w| {
            let unit = unit.clone();
            spawn(async move {
                let buf = Slice::heap(BS as usize);
                let mut rng = Prng::new(w as u64);
                let mut lat = Vec::new();
                let mut t = clock();
                while t < end {
                    unit.read(rng.below(blocks) * BS, buf.clone()).await?;
                    let now = clock();
                    lat.push((now - t) as u32);
                    t = now;
                }
                Result::<Vec<u32>>::Ok(lat)
            })
        })
        .collect();
    let mut lat: Vec<u32> = Vec::new();
    for w in workers {
        lat.extend(w.await.unwrap_or_else(|| Ok(Vec::new()))?);
    }
    let seconds = (clock() - begun) as f64 / 1e9;
    lat.sort_unstable();
    let at =
        |p: usize| lat.get(lat.len().saturating_sub(1) * p / 100).copied().map_or(0, u64::from);
    let mean = lat.iter().map(|l| f64::from(*l)).sum::<f64>() / lat.len().max(1) as f64;
    let iops = lat.len() as f64 / seconds;
    Ok(Bench {
        rw: "randread",
        bs: BS,
        iodepth: IODEPTH,
        runtime_seconds: seconds,
        iops,
        bw_bytes: iops * BS as f64,
        clat_ns: Clat { mean, p50: at(50), p99: at(99), max: at(100) },
    })
}
