//! What a job does, in fio's words.

use weir_base::Nanos;
use weir_reactor::PollMode;

/// What the I/Os are (fio: `rw`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes mixed.
    Mixed,
    /// Random reads and writes mixed.
    RandMixed,
    /// Sequential unmaps.
    Trim,
    /// Random unmaps.
    RandTrim,
    /// Commands without data.
    Nop,
}

impl Rw {
    /// The word that names it.
    pub fn name(self) -> &'static str {
        match self {
            Rw::Read => "read",
            Rw::Write => "write",
            Rw::RandRead => "randread",
            Rw::RandWrite => "randwrite",
            Rw::Mixed => "rw",
            Rw::RandMixed => "randrw",
            Rw::Trim => "trim",
            Rw::RandTrim => "randtrim",
            Rw::Nop => "nop",
        }
    }

    /// True when addresses are drawn, not counted up.
    pub fn is_random(self) -> bool {
        matches!(self, Rw::RandRead | Rw::RandWrite | Rw::RandMixed | Rw::RandTrim)
    }

    /// True when some I/Os are writes.
    pub fn writes(self) -> bool {
        matches!(self, Rw::Write | Rw::RandWrite | Rw::Mixed | Rw::RandMixed)
    }

    /// True when nothing but writes happens.
    pub fn only_writes(self) -> bool {
        matches!(self, Rw::Write | Rw::RandWrite)
    }
}

/// The kind of one I/O. Results are kept apart by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// Data to us.
    Read,
    /// Data to the volume.
    Write,
    /// UNMAP.
    Trim,
    /// TEST UNIT READY, or what another protocol has in its place.
    Nop,
}

impl Op {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Trim, Op::Nop];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Trim => "trim",
            Op::Nop => "nop",
        }
    }
}

/// How data is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Every block carries its address, the number of the write and a CRC32C.
    Crc32c,
    /// Every block holds bytes that follow from its address.
    Pattern,
}

impl Verify {
    /// The word that names it.
    pub fn name(self) -> &'static str {
        match self {
            Verify::Crc32c => "crc32c",
            Verify::Pattern => "pattern",
        }
    }
}

/// A job and its copies.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Name in the output.
    pub name: String,
    /// What the I/Os are.
    pub rw: Rw,
    /// Bytes per I/O, a multiple of the volume's block size. Ignored by [`Rw::Nop`].
    pub bs: u32,
    /// I/Os in flight per copy, from 1 on.
    pub iodepth: u32,
    /// Copies, from 1 on.
    pub numjobs: u32,
    /// First byte of the range that is used.
    pub offset: u64,
    /// Length of that range in bytes; `None`: to the end of the volume.
    pub size: Option<u64>,
    /// End after this many nanoseconds of measurement. `None`: when each copy has moved `size` bytes.
    pub runtime: Option<Nanos>,
    /// Begin again when `size` bytes are done, until `runtime` is over.
    pub time_based: bool,
    /// Nanoseconds of load before the measurement.
    pub ramp: Nanos,
    /// Reads among mixed I/Os, in percent, 0 to 100.
    pub rwmixread: u8,
    /// Bytes per second that each copy may move.
    pub rate: Option<u64>,
    /// I/Os per second that each copy may make.
    pub rate_iops: Option<u64>,
    /// Start of the random sequences.
    pub randseed: u64,
    /// Whether and how data is checked.
    pub verify: Option<Verify>,
    /// How reactors wait while the load runs.
    pub poll: PollMode,
}

impl Default for JobSpec {
    /// 4 KiB random reads one at a time for ten seconds.
    fn default() -> Self {
        JobSpec {
            name: "bench".into(),
            rw: Rw::RandRead,
            bs: 4096,
            iodepth: 1,
            numjobs: 1,
            offset: 0,
            size: None,
            runtime: Some(10 * weir_base::SECONDS),
            time_based: true,
            ramp: 0,
            rwmixread: 50,
            rate: None,
            rate_iops: None,
            randseed: 1,
            verify: None,
            poll: PollMode::default(),
        }
    }
}

/// Why a job cannot run on a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The block size of the job does not fit the volume's.
    #[error(
        "the I/O size of {bs} bytes is not a multiple of the volume's block size, {block} bytes"
    )]
    BlockSize {
        /// Of the job.
        bs: u32,
        /// Of the volume.
        block: u32,
    },
    /// Offset or size are outside the volume.
    #[error(
        "the range of {size} bytes from byte {offset} on does not fit the volume, which has {len} bytes"
    )]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
        /// Bytes of the volume.
        len: u64,
    },
    /// The range, or a copy's part of it, is shorter than one I/O.
    #[error("a range of {0} bytes for each job has no room for one I/O of {1} bytes")]
    NoRoom(u64, u32),
    /// Offset is no multiple of the volume's block size.
    #[error("the offset {0} is not a multiple of the volume's block size, {1} bytes")]
    Offset(u64, u32),
    /// There are more I/Os in flight than blocks they could go to.
    #[error("{0} I/Os in flight need as many blocks to be checked apart, but there are {1}")]
    TooDeep(u32, u64),
}

/// The part of a volume that a job works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// I/Os of the job's size that fit.
    pub blocks: u64,
}

impl JobSpec {
    /// The part of a volume of `len` bytes with blocks of `block` bytes that the copy `index` of those
    /// `sharers` that work on it uses. All share the whole range, unless data is checked: then each has
    /// a part of its own, so that it knows what must be there.
    ///
    /// # Errors
    /// The job does not fit the volume.
    pub fn span(&self, len: u64, block: u32, index: u32, sharers: u32) -> Result<Span, JobError> {
        if self.rw == Rw::Nop {
            return Ok(Span { start: 0, blocks: 1 });
        }
        if self.bs == 0 || !self.bs.is_multiple_of(block) {
            return Err(JobError::BlockSize { bs: self.bs, block });
        }
        if !self.offset.is_multiple_of(u64::from(block)) {
            return Err(JobError::Offset(self.offset, block));
        }
        let size = self.size.unwrap_or_else(|| len.saturating_sub(self.offset));
        if self.offset.checked_add(size).is_none_or(|end| end > len) {
            return Err(JobError::Range { offset: self.offset, size, len });
        }
        let bs = u64::from(self.bs);
        let (mut start, mut blocks) = (self.offset, size / bs);
        if self.verify.is_some() && sharers > 1 {
            blocks /= u64::from(sharers);
            start += u64::from(index) * blocks * bs;
        }
        if blocks == 0 {
            return Err(JobError::NoRoom(size / u64::from(sharers.max(1)), self.bs));
        }
        if self.verify.is_some() && blocks < u64::from(self.iodepth) {
            return Err(JobError::TooDeep(self.iodepth, blocks));
        }
        Ok(Span { start, blocks })
    }

    /// I/Os after which a copy is done; `None`: when time is up.
    pub fn limit(&self, span: Span) -> Option<u64> {
        match self.runtime {
            Some(_) if self.time_based || self.size.is_none() => None,
            _ => Some(span.blocks),
        }
    }

    /// Bytes that one I/O moves.
    pub fn bytes_per_io(&self) -> u64 {
        if self.rw == Rw::Nop { 0 } else { u64::from(self.bs) }
    }

    /// What fio would call this job, as one line for people.
    pub fn summary(&self) -> String {
        let mut s = format!(
            "{}: rw={}, bs={}, iodepth={}, numjobs={}",
            self.name,
            self.rw.name(),
            crate::units::size(u64::from(self.bs)),
            self.iodepth,
            self.numjobs
        );
        if matches!(self.rw, Rw::Mixed | Rw::RandMixed) {
            s += &format!(", rwmixread={}", self.rwmixread);
        }
        if let Some(v) = self.verify {
            s += &format!(", verify={}", v.name());
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_and_divided() {
        let mut j = JobSpec { bs: 4096, ..JobSpec::default() };
        assert_eq!(j.span(1 << 20, 512, 0, 1), Ok(Span { start: 0, blocks: 256 }));
        assert_eq!(j.span(1 << 20, 512, 1, 2), Ok(Span { start: 0, blocks: 256 }));
        j.verify = Some(Verify::Crc32c);
        assert_eq!(j.span(1 << 20, 512, 1, 2), Ok(Span { start: 1 << 19, blocks: 128 }));
        j.iodepth = 200;
        assert_eq!(j.span(1 << 20, 512, 1, 2), Err(JobError::TooDeep(200, 128)));
        j.iodepth = 1;
        j.size = Some(2 << 20);
        assert!(matches!(j.span(1 << 20, 512, 0, 1), Err(JobError::Range { .. })));
        j.offset = u64::MAX - 511;
        assert!(matches!(j.span(1 << 20, 512, 0, 1), Err(JobError::Range { .. })));
        j.offset = 100;
        assert_eq!(j.span(1 << 20, 512, 0, 1), Err(JobError::Offset(100, 512)));
        j.offset = 0;
        j.size = Some(2048);
        assert!(matches!(j.span(1 << 20, 512, 0, 1), Err(JobError::NoRoom(..))));
        j.bs = 512;
        assert_eq!(j.span(1 << 20, 4096, 0, 1), Err(JobError::BlockSize { bs: 512, block: 4096 }));
    }

    #[test]
    fn a_job_ends_by_time_or_by_size() {
        let span = Span { start: 0, blocks: 10 };
        let limit = |runtime, size, time_based| {
            JobSpec { runtime, size, time_based, ..JobSpec::default() }.limit(span)
        };
        assert_eq!(limit(Some(1), None, false), None);
        assert_eq!(limit(Some(1), Some(40960), false), Some(10));
        assert_eq!(limit(Some(1), Some(40960), true), None);
        assert_eq!(limit(None, Some(40960), false), Some(10));
    }
}
