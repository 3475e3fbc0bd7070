//! Every layer against a model, by random operations in parallel.

use crate::common::{MemDisk, World, exercise, ram, run};
use std::rc::Rc;
use weir_base::Prng;
use weir_block::{GraphSpec, NodeSpec, Volume};

fn check(make: impl Fn(&mut Prng) -> (World, GraphSpec) + 'static, seeds: u64, steps: usize) {
    for seed in 1..=seeds {
        let (world, spec) = make(&mut Prng::new(seed));
        println!("seed {seed}: {}", spec.to_json());
        run(async move {
            let v = world.volume(spec);
            exercise(v, seed, 1 + seed % 4, steps).await;
            assert!(world.pool.is_whole(), "a bounce buffer leaked");
        });
    }
}

fn pick<T: Copy>(p: &mut Prng, of: &[T]) -> T {
    of[p.below(of.len() as u64) as usize]
}

#[test]
fn ram_volumes() {
    check(
        |p| {
            let block = pick(p, &["512", "4096"]);
            let len = p.between(1, 900) * 4096;
            let node = ram("r", len).param("block-size", block).param("thin", p.chance(1, 2));
            (World::new(), GraphSpec::new("v", "r").with(node))
        },
        12,
        150,
    );
}

/// Volumes below that take their time, so that parts of an I/O end in any order.
fn slow_disk(world: World, path: &str, len: usize, block: u32, p: &mut Prng) -> (World, NodeSpec) {
    let slow = pick(p, &[0, 1000, 50_000]);
    let disk = MemDisk::with(len, block, |d| d.slow.set(slow));
    (world.disk(path, disk), NodeSpec::new(path, "disk").param("path", path))
}

#[test]
fn disk_volumes() {
    check(
        |p| {
            let block = pick(p, &[512, 4096]);
            let len = p.between(1, 500) as usize * 4096 + pick(p, &[0, 512]);
            let (world, node) = slow_disk(World::new(), "d", len, block, p);
            let wish = if block == 4096 { "4096" } else { pick(p, &["auto", "512", "4096"]) };
            (world, GraphSpec::new("v", "d").with(node.param("block-size", wish)))
        },
        12,
        120,
    );
}

fn over_several(p: &mut Prng, top: NodeSpec) -> (World, GraphSpec) {
    let mut world = World::new();
    let mut spec = GraphSpec::new("v", &top.id);
    let mut top = top;
    for i in 0..p.between(1, 5) {
        let id = format!("c{i}");
        let len = p.between(16, 100) * 4096 + pick(p, &[0, 512, 1024]);
        let node = if p.chance(1, 2) {
            ram(&id, len)
        } else {
            let block = pick(p, &[512, 4096]);
            let (w, n) = slow_disk(world, &id, len as usize, block, p);
            world = w;
            n
        };
        spec = spec.with(node);
        top = top.over(&id);
    }
    (world, spec.with(top))
}

#[test]
fn concat_volumes() {
    check(|p| over_several(p, NodeSpec::new("top", "concat")), 25, 100);
}

#[test]
fn stripe_volumes() {
    check(
        |p| {
            let unit = pick(p, &["4KiB", "8KiB", "16KiB", "64KiB"]);
            over_several(p, NodeSpec::new("top", "stripe").param("unit", unit))
        },
        25,
        100,
    );
}

#[test]
fn linear_volumes() {
    check(
        |p| {
            let node = NodeSpec::new("top", "linear")
                .param("offset", p.between(0, 3) * 4096)
                .param("len", p.between(1, 100) * 4096)
                .over("r");
            (World::new(), GraphSpec::new("v", "top").with(node).with(ram("r", 104 * 4096)))
        },
        6,
        100,
    );
}

#[test]
fn delay_stats_and_fault_without_faults_change_nothing() {
    check(
        |p| {
            let slow = NodeSpec::new("slow", "delay").param("time", "1us").param("jitter", "20us");
            let fault = NodeSpec::new("fault", "fault").param("chance", 0u64);
            let spec = GraphSpec::new("v", "n")
                .with(NodeSpec::new("n", "stats").over("slow"))
                .with(slow.over("fault"))
                .with(fault.over("j"))
                .with(NodeSpec::new("j", "junction").over("r"))
                .with(ram("r", p.between(10, 200) * 4096));
            (World::new(), spec)
        },
        6,
        80,
    );
}

/// A stripe over concats over parts of one disk: everything at once.
#[test]
fn layers_over_layers() {
    check(
        |p| {
            let (world, d) = slow_disk(World::new(), "d", 300 * 4096, 512, p);
            let part = |i: u64| {
                NodeSpec::new(&format!("p{i}"), "linear")
                    .param("offset", i * 70 * 4096)
                    .param("len", (60 + i) * 4096)
                    .over("d")
            };
            let spec = GraphSpec::new("v", "top")
                .with(NodeSpec::new("top", "stripe").param("unit", "8KiB").over("a").over("b"))
                .with(NodeSpec::new("a", "concat").over("p0").over("p1"))
                .with(NodeSpec::new("b", "concat").over("p2").over("p3"))
                .with(part(0))
                .with(part(1))
                .with(part(2))
                .with(part(3))
                .with(d);
            (world, spec)
        },
        6,
        100,
    );
}

#[test]
fn null_keeps_nothing_and_checks_ranges() {
    run(async {
        let node = NodeSpec::new("n", "null").param("len", "1MiB");
        let v: Rc<dyn Volume> = World::new().volume(GraphSpec::new("v", "n").with(node.clone()));
        crate::common::write(&*v, 0, &[1; 4096]).await.unwrap();
        assert_eq!(crate::common::read(&*v, 0, 4096).await.unwrap(), [0; 4096]);
        assert_eq!((v.allocated(), v.allocation(0, 512).mapped), (Some(0), false));
        crate::common::edges(&*v).await;
        v.resize(2 << 20).unwrap();
        assert_eq!(v.geometry().len, 2 << 20);
        let node = node.param("reads", "untouched");
        let v = World::new().volume(GraphSpec::new("v", "n").with(node));
        assert_eq!(crate::common::read(&*v, 0, 512).await.unwrap(), [0xa5; 512]);
    });
}
