//! What the load generator itself costs per I/O: `cost [SECONDS] [DEPTH]`. I/Os do nothing but let other tasks
//! run first, once through the engine and once in the plainest loop that measures latency.

use std::rc::Rc;
use weir_base::{Nanos, Prng, SECONDS};
use weir_bench::client::{BlockClient, ClientError, ConnectError, Geometry};
use weir_bench::engine::{Connector, Options, Place, run};
use weir_bench::job::JobSpec;
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, clock, spawn};
use weir_uring::Ring;

struct Nothing;

async fn step_back() {
    let mut first = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    })
    .await;
}

impl BlockClient for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry { len: 1 << 30, block_size: 512 }
    }
    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        std::hint::black_box((at, buf));
        step_back().await;
        Ok(())
    }
    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        self.read(at, buf).await
    }
    async fn flush(&self) -> Result<(), ClientError> {
        Ok(())
    }
    async fn trim(&self, at: u64, _len: u64, scratch: Slice) -> Result<(), ClientError> {
        self.read(at, scratch).await
    }
    async fn nop(&self) -> Result<(), ClientError> {
        step_back().await;
        Ok(())
    }
}

impl Connector for Nothing {
    type Client = Nothing;
    fn volumes(&self) -> usize {
        1
    }
    async fn connect(
        &self,
        _place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<Nothing>>>, ConnectError> {
        Ok(jobs.iter().map(|_| vec![Rc::new(Nothing)]).collect())
    }
    async fn disconnect(&self, _place: &Place) {}
}

/// The plainest loop: two clock readings and a sum.
fn plain(time: Nanos, depth: u32) -> Result<f64, std::io::Error> {
    let ring = Ring::new()?;
    let reactor = Reactor::new(Rc::new(ring));
    let n: u64 = reactor.block_on(PollMode::Busy, async move {
        let end = clock() + time;
        let tasks = (0..depth).map(|i| {
            spawn(async move {
                let buf = Slice::heap(4096);
                let mut rng = Prng::new(u64::from(i));
                let (mut n, mut latency) = (0u64, 0);
                loop {
                    let t = clock();
                    if t >= end {
                        break;
                    }
                    let at = rng.below(1 << 18) << 12;
                    if Nothing.read(at, buf.clone()).await.is_ok() {
                        n += 1;
                    }
                    latency += clock() - t;
                }
                std::hint::black_box(latency);
                n
            })
        });
        let mut n = 0;
        for t in tasks.collect::<Vec<_>>() {
            n += t.await.unwrap_or(0);
        }
        n
    });
    Ok(n as f64 * 1e9 / time as f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(2), |a| a.parse())?;
    let iodepth: u32 = args.next().map_or(Ok(32), |a| a.parse())?;
    let spec = JobSpec { iodepth, runtime: Some(seconds * SECONDS), ..JobSpec::default() };
    for _ in 0..3 {
        let plain = plain(seconds * SECONDS, iodepth)?;
        let engine: f64 = run(Nothing, &spec, &Options::default())?.iter().map(|r| r.iops()).sum();
        println!(
            "plain loop {:.0} ns, engine {:.0} ns per I/O of nothing",
            1e9 / plain,
            1e9 / engine
        );
    }
    Ok(())
}
