use super::*;
use crate::client::{ClientError, Geometry};
use crate::job::{Op, Rw, Verify};
use std::cell::{Cell, RefCell};
use weir_base::{MICROS, MILLIS, Nanos, SECONDS};
use weir_mem::Slice;
use weir_sim::World;

/// A volume in memory whose I/Os take a given time.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    block: u32,
    takes: Nanos,
    reads: Cell<u64>,
    writes: Cell<u64>,
    others: Cell<u64>,
    busy: Cell<u32>,
    most: Cell<u32>,
    /// Writes of which one byte is stored wrong, and reads that fail.
    spoil: Cell<Option<u64>>,
    drop: Cell<Option<u64>>,
    fail: Cell<Option<u64>>,
    lose_after: Cell<u64>,
}

impl Memory {
    fn new(len: usize, takes: Nanos) -> Rc<Memory> {
        Rc::new(Memory {
            bytes: RefCell::new(vec![0; len]),
            block: 512,
            takes,
            reads: Cell::new(0),
            writes: Cell::new(0),
            others: Cell::new(0),
            busy: Cell::new(0),
            most: Cell::new(0),
            spoil: Cell::new(None),
            drop: Cell::new(None),
            fail: Cell::new(None),
            lose_after: Cell::new(u64::MAX),
        })
    }

    async fn pass(&self) -> Result<(), ClientError> {
        self.busy.set(self.busy.get() + 1);
        self.most.set(self.most.get().max(self.busy.get()));
        if self.takes > 0 {
            weir_reactor::sleep(self.takes).await;
        }
        self.busy.set(self.busy.get() - 1);
        let n = self.reads.get() + self.writes.get() + self.others.get();
        if n > self.lose_after.get() { Err(ClientError::Lost) } else { Ok(()) }
    }
}

fn count(c: &Cell<u64>) -> u64 {
    c.replace(c.get() + 1)
}

impl BlockClient for Memory {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.bytes.borrow().len() as u64, block_size: self.block }
    }

    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let n = count(&self.reads);
        self.pass().await?;
        if self.fail.get() == Some(n) {
            return Err(ClientError::Io(weir_base::IoError::Medium));
        }
        let at = at as usize;
        buf.write_at(0, &self.bytes.borrow()[at..at + buf.len()]);
        Ok(())
    }

    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        let n = count(&self.writes);
        self.pass().await?;
        if self.drop.get() == Some(n) {
            return Ok(());
        }
        let at = at as usize;
        let mut bytes = self.bytes.borrow_mut();
        buf.read_at(0, &mut bytes[at..at + buf.len()]);
        if self.spoil.get() == Some(n) {
            bytes[at + 100] ^= 0x40;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), ClientError> {
        self.pass().await
    }

    async fn trim(&self, at: u64, len: u64, scratch: Slice) -> Result<(), ClientError> {
        assert!(scratch.len() >= 512);
        count(&self.others);
        self.pass().await?;
        self.bytes.borrow_mut()[at as usize..(at + len) as usize].fill(0);
        Ok(())
    }

    async fn nop(&self) -> Result<(), ClientError> {
        count(&self.others);
        self.pass().await
    }
}

/// Runs a job's copies on one volume under virtual time.
fn simulate(volume: &Rc<Memory>, spec: &JobSpec, options: Options) -> Vec<JobResult> {
    // These tests are about figures: on cores that are never taken away.
    let calm = weir_sim::Options { away: weir_sim::Odds::NEVER, ..weir_sim::Options::default() };
    let world = World::with(1, calm);
    let node = world.node("host");
    let (volume, spec) = (volume.clone(), spec.clone());
    let work = async move {
        let g = volume.geometry();
        let jobs = (0..spec.numjobs).map(|i| {
            let span = spec.span(g.len, g.block_size, i, spec.numjobs).unwrap();
            JobTask::new(i, &spec, vec![Lane::new(volume.clone(), span, &spec, 7)])
        });
        run_jobs(jobs.collect(), &options, &Progress::default()).await
    };
    world.run(&node, 3600 * SECONDS, work).unwrap()
}

fn one(volume: &Rc<Memory>, spec: &JobSpec) -> JobResult {
    JobResult::merge(&simulate(volume, spec, Options::default()))
}

#[test]
fn rate_follows_from_depth_and_latency() {
    let m = Memory::new(1 << 20, 100 * MICROS);
    let spec = JobSpec { runtime: Some(SECONDS), iodepth: 4, ..JobSpec::default() };
    let r = one(&m, &spec);
    assert_eq!(m.most.get(), 4);
    assert_eq!(r.runtime, SECONDS);
    // 4 in flight, 100 us each; turns of the simulated reactor take a little.
    assert!((39_000.0..=40_000.0).contains(&r.iops()), "{}", r.iops());
    let h = &r.of(Op::Read).latency;
    assert!((100_000..104_000).contains(&h.percentile(50.0)), "{h:?}");
    assert_eq!(r.of(Op::Read).bytes, 4096 * r.of(Op::Read).ios);
    assert_eq!((r.of(Op::Write).ios, r.errors), (0, 0));
}

#[test]
fn mixed_jobs_keep_their_ratio() {
    let m = Memory::new(1 << 20, 10 * MICROS);
    let spec = JobSpec {
        rw: Rw::RandMixed,
        rwmixread: 70,
        runtime: Some(SECONDS),
        iodepth: 8,
        ..JobSpec::default()
    };
    let r = one(&m, &spec);
    let (reads, writes) = (r.of(Op::Read).ios as f64, r.of(Op::Write).ios as f64);
    assert!((reads / (reads + writes) - 0.7).abs() < 0.01, "{reads} {writes}");
    assert!(m.reads.get() >= r.of(Op::Read).ios && m.writes.get() >= r.of(Op::Write).ios);
}

#[test]
fn limits_of_rate_hold() {
    let m = Memory::new(1 << 20, 10 * MICROS);
    let base = JobSpec { runtime: Some(10 * SECONDS), iodepth: 8, ..JobSpec::default() };
    let r = one(&m, &JobSpec { rate_iops: Some(1000), ..base.clone() });
    assert!((995.0..=1001.0).contains(&r.iops()), "{}", r.iops());
    // The limit's waiting is no latency.
    let p99 = r.of(Op::Read).latency.percentile(99.0);
    assert!(p99 < MILLIS, "{p99}");
    let r = one(&m, &JobSpec { rate: Some(40 << 10), numjobs: 2, ..base });
    assert!((19.0..=20.1).contains(&r.iops()), "{}", r.iops());
}

#[test]
fn the_ramp_does_not_count() {
    let m = Memory::new(1 << 20, 100 * MICROS);
    let spec = JobSpec { runtime: Some(SECONDS), ramp: SECONDS, ..JobSpec::default() };
    let r = one(&m, &spec);
    assert_eq!(r.runtime, SECONDS);
    let (seen, counted) = (m.reads.get(), r.of(Op::Read).ios);
    assert!(seen > counted * 19 / 10, "{seen} {counted}");
}

#[test]
fn a_size_is_moved_once_in_order_or_at_random() {
    for rw in [Rw::Read, Rw::RandRead, Rw::Write, Rw::RandWrite, Rw::Trim, Rw::RandTrim] {
        let m = Memory::new(1 << 20, 5 * MICROS);
        let spec = JobSpec {
            rw,
            runtime: None,
            size: Some(512 << 10),
            offset: 256 << 10,
            iodepth: 3,
            ..JobSpec::default()
        };
        m.bytes.borrow_mut().fill(0xaa);
        let r = one(&m, &spec);
        assert_eq!(r.total().ios, 128, "{rw:?}");
        assert!(r.runtime > 0 && r.iops() > 0.0);
        let b = m.bytes.borrow();
        assert!(b[..256 << 10].iter().chain(&b[768 << 10..]).all(|x| *x == 0xaa), "{rw:?}");
        if rw.writes() {
            let blocks = b[256 << 10..768 << 10].chunks(4096);
            assert!(blocks.into_iter().all(|c| c.iter().any(|x| *x != 0xaa)), "{rw:?}");
        }
        if matches!(rw, Rw::Trim | Rw::RandTrim) {
            assert!(b[256 << 10..768 << 10].iter().all(|x| *x == 0), "{rw:?}");
        }
    }
}

#[test]
fn written_data_is_verified() {
    for verify in [Verify::Crc32c, Verify::Pattern] {
        for rw in [Rw::Write, Rw::RandWrite, Rw::RandMixed, Rw::Mixed] {
            let m = Memory::new(1 << 20, 5 * MICROS);
            let spec = JobSpec {
                rw,
                verify: Some(verify),
                runtime: Some(20 * MILLIS),
                iodepth: 16,
                numjobs: 2,
                bs: 8192,
                ..JobSpec::default()
            };
            let r = one(&m, &spec);
            assert_eq!((r.verify.errors, r.errors), (0, 0), "{verify:?} {rw:?} {:?}", r.verify);
            assert!(r.verify.checked > 50, "{verify:?} {rw:?} {}", r.verify.checked);
        }
    }
}

#[test]
fn corrupted_and_lost_writes_are_caught() {
    for rw in [Rw::Write, Rw::RandWrite] {
        let spec = JobSpec {
            rw,
            verify: Some(Verify::Crc32c),
            runtime: None,
            size: Some(1 << 20),
            iodepth: 4,
            ..JobSpec::default()
        };
        let m = Memory::new(1 << 20, 5 * MICROS);
        m.spoil.set(Some(100));
        let r = one(&m, &spec);
        assert_eq!((r.verify.errors, r.verify.checked), (1, 256));
        assert!(matches!(r.verify.bad[0].fault, crate::verify::Fault::Checksum { .. }));
        let m = Memory::new(1 << 20, 5 * MICROS);
        // Whole blocks of an earlier run: only the last write shows that a new one was lost.
        one(&m, &spec);
        m.writes.set(0);
        m.drop.set(Some(33));
        let mut again = spec.clone();
        again.randseed = 99;
        let r = one_of_run(&m, &again, 8);
        assert_eq!(r.verify.errors, 1);
        assert!(matches!(r.verify.bad[0].fault, crate::verify::Fault::Stale { .. }));
    }
}

fn one_of_run(m: &Rc<Memory>, spec: &JobSpec, run: u64) -> JobResult {
    let world = World::new(2);
    let node = world.node("host");
    let (m, spec) = (m.clone(), spec.clone());
    let work = async move {
        let span = spec.span(1 << 20, 512, 0, 1).unwrap();
        let job = JobTask::new(0, &spec, vec![Lane::new(m, span, &spec, run)]);
        run_jobs(vec![job], &Options::default(), &Progress::default()).await
    };
    JobResult::merge(&world.run(&node, 3600 * SECONDS, work).unwrap())
}

#[test]
fn a_read_job_verifies_what_an_earlier_run_wrote() {
    let m = Memory::new(1 << 20, 5 * MICROS);
    let write = JobSpec {
        rw: Rw::Write,
        verify: Some(Verify::Crc32c),
        runtime: None,
        size: Some(512 << 10),
        ..JobSpec::default()
    };
    one(&m, &write);
    let read = JobSpec { rw: Rw::Read, ..write };
    let r = one(&m, &read);
    assert_eq!((r.verify.checked, r.verify.errors), (128, 0));
    // The second half was never written.
    let r = one(&m, &JobSpec { size: Some(1 << 20), ..read });
    assert_eq!((r.verify.checked, r.verify.errors), (256, 128));
    assert_eq!(r.verify.bad.len(), 8);
}

#[test]
fn errors_are_counted_and_the_first_is_told() {
    let m = Memory::new(1 << 20, 10 * MICROS);
    m.fail.set(Some(5));
    let spec = JobSpec { runtime: Some(10 * MILLIS), rw: Rw::Read, ..JobSpec::default() };
    let r = one(&m, &spec);
    assert_eq!(r.errors, 1);
    let first = r.first_error.clone().unwrap();
    assert!(first.contains("read at byte 20480") && first.contains("medium"), "{first}");
    assert!(!r.lost && r.of(Op::Read).ios > 500);
    // A lost connection ends the job.
    let m = Memory::new(1 << 20, 10 * MICROS);
    m.lose_after.set(50);
    let r = one(&m, &JobSpec { runtime: Some(SECONDS), iodepth: 4, ..JobSpec::default() });
    assert!(r.lost && r.errors >= 1 && r.of(Op::Read).ios < 60, "{r:?}");
}

#[test]
fn clients_that_never_wait_let_others_run() {
    let m = Memory::new(1 << 20, 0);
    let spec = JobSpec { rw: Rw::Nop, runtime: Some(MILLIS), iodepth: 2, ..JobSpec::default() };
    let r = one(&m, &spec);
    assert!(r.of(Op::Nop).ios > 100 && r.of(Op::Nop).bytes == 0);
}

#[test]
fn samples_cover_the_run() {
    let m = Memory::new(1 << 20, 100 * MICROS);
    let spec = JobSpec { runtime: Some(SECONDS), numjobs: 2, ..JobSpec::default() };
    let options = Options { sample_every: 100 * MILLIS, ..Options::default() };
    let r = JobResult::merge(&simulate(&m, &spec, options));
    assert!((9..=10).contains(&r.samples.len()), "{}", r.samples.len());
    assert!(r.samples.iter().all(|s| (1900..=2010).contains(&s.ios)), "{:?}", r.samples);
}

#[test]
fn volumes_are_spread_over_jobs() {
    let spec = |numjobs| JobSpec { numjobs, ..JobSpec::default() };
    assert_eq!(volumes_of(5, &spec(8), 4), [1]);
    assert_eq!(volumes_of(0, &spec(2), 5), [0, 2, 4]);
    assert_eq!(volumes_of(1, &spec(2), 5), [1, 3]);
    assert_eq!(sharers(&spec(8), 4, 1, 5), (2, 1));
    assert_eq!(sharers(&spec(2), 5, 4, 0), (1, 0));
}

/// Makes volumes in memory on real reactors.
struct Local {
    volumes: usize,
    refuse: Option<usize>,
}

impl Connector for Local {
    type Client = Memory;

    fn volumes(&self) -> usize {
        self.volumes
    }

    async fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<Memory>>>, ConnectError> {
        if self.refuse == Some(place.worker) {
            let kind = crate::client::ConnectKind::Refused;
            return Err(ConnectError::new(kind, "no", "because", "do"));
        }
        let make = |_: &usize| Memory::new(1 << 16, 20 * MICROS);
        Ok(jobs.iter().map(|(_, volumes)| volumes.iter().map(make).collect()).collect())
    }

    async fn disconnect(&self, _place: &Place) {}
}

#[test]
fn threads_run_their_jobs_and_report_in_order() {
    let spec = JobSpec {
        numjobs: 5,
        rw: Rw::RandWrite,
        verify: Some(Verify::Crc32c),
        runtime: Some(50 * MILLIS),
        poll: PollMode::default(),
        ..JobSpec::default()
    };
    let options = Options { cores: vec![], ..Options::default() };
    let r = run(Local { volumes: 3, refuse: None }, &spec, &options).unwrap();
    assert_eq!(r.iter().map(|r| r.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(r.iter().all(|r| r.of(Op::Write).ios > 0 && r.verify.checked > 0 && r.errors == 0));
}

#[test]
fn what_cannot_start_says_why() {
    let spec = JobSpec { numjobs: 2, runtime: Some(SECONDS), ..JobSpec::default() };
    let run = |l, spec: &JobSpec, cores: &[usize]| {
        run(l, spec, &Options { cores: cores.to_vec(), ..Options::default() }).unwrap_err()
    };
    let e = run(Local { volumes: 1, refuse: Some(0) }, &spec, &[]);
    assert!(matches!(e, RunError::Connect(_)), "{e}");
    let e = run(Local { volumes: 3, refuse: None }, &spec, &[]);
    assert_eq!(e, RunError::TooManyVolumes(3, 2));
    let big = JobSpec { size: Some(1 << 30), ..spec.clone() };
    let e = run(Local { volumes: 1, refuse: None }, &big, &[]);
    assert!(matches!(e, RunError::Job(JobError::Range { .. })), "{e}");
    let e = run(Local { volumes: 1, refuse: None }, &spec, &[1000, 0]);
    assert!(matches!(&e, RunError::Start(s) if s.contains("core 1000")), "{e}");
}
