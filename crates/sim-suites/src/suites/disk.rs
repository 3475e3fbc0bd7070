//! Concurrent I/O on one simulated disk through kills and power cuts. It checks the simulator and the block
//! history against each other, so that suites of real volumes can trust both.

use crate::load::{Load, Mix};
use crate::{Pass, Run, Wrong};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_mem::{BufPool, PoolConfig};
use weir_sim::{DiskConfig, Options, SimMedium, World};

/// Loads a disk through lives that end by kill or power cut. `acks_lie` plants a bug: what is
/// acknowledged is taken for durable.
pub(super) fn lives(
    run: &Run,
    config: DiskConfig,
    acks_lie: bool,
) -> Result<(World, Rc<Load>), Wrong> {
    let w = run.world(Options::default());
    let mut rng = w.rng(2);
    let classes = vec![(4096, 16)];
    let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
    let volatile = config.volatile_cache;
    let mix = Mix { think: rng.below(MILLIS / 2), volatile, ..Mix::default() };
    let load = Load::new(1, w.time(), mix);
    load.acks_lie.set(acks_lie);
    let n = w.node("node");
    n.attach(&SimMedium::new("d", mix.blocks * 512, config, rng.next_u64()));
    for _ in 0..rng.between(1, 5) {
        for _ in 0..rng.between(1, 5) {
            let (l, d) = (load.clone(), n.disk("d"));
            n.spawn(l.client(d, pool.clone(), rng.fork(), u64::MAX));
        }
        w.run_for(rng.between(MILLIS / 10, 20 * MILLIS));
        if rng.chance(1, 3) {
            n.kill();
            load.settle();
        } else {
            n.power_off();
            load.power_cut();
        }
        load.verdict()?;
        w.run_for(MILLIS);
        n.restart();
    }
    // Everything is read twice in the end: what was seen once must stay.
    for _ in 0..2 {
        w.run(&n, 10 * SECONDS, load.clone().read_all(n.disk("d"), pool.clone()))?;
    }
    load.verdict()?;
    if !pool.is_whole() || load.under_way() > 0 {
        return Err(Wrong(format!("leaked: {} under way, {:?}", load.under_way(), pool.census())));
    }
    Ok((w, load))
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let mut rng = Prng::new(run.seed ^ 0xd15c);
    let config = DiskConfig {
        volatile_cache: rng.chance(3, 4),
        pieces: rng.between(1, 5) as usize,
        ..DiskConfig::default()
    };
    let (w, load) = lives(run, config, false)?;
    let f = load.figures();
    let figures =
        vec![("blocks read", f.blocks_read), ("writes", f.writes), ("flushes", f.flushes)];
    Ok(Pass { trace: w.trace_hash(), figures })
}
