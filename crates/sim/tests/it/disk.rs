//! Simulated disks: what they keep, and everything that they do wrong.

use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, SECONDS};
use weir_disk::{Disk, DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{completion, now, spawn};
use weir_sim::{DiskConfig, Latency, Next, Node, SimDisk, SimMedium, World};

const LEN: u64 = 1 << 20;

fn world(seed: u64, config: DiskConfig) -> (World, Node, SimMedium) {
    let w = World::new(seed);
    let n = w.node("n");
    let m = SimMedium::new("d", LEN, config, seed);
    n.attach(&m);
    (w, n, m)
}

fn play<T: 'static, F: Future<Output = T> + 'static>(
    w: &World,
    n: &Node,
    f: impl FnOnce(Rc<SimDisk>) -> F,
) -> T {
    match w.run(n, 100 * SECONDS, f(n.disk("d"))) {
        Ok(v) => v,
        Err(s) => panic!("seed {}: {s}", w.seed()),
    }
}

async fn write(d: &dyn Disk, offset: u64, len: usize, value: u8) -> IoResult {
    let buf = Slice::heap(len);
    buf.fill(value);
    run(d, DiskOp::Write { offset, buf, fua: false }).await
}

async fn read(d: &dyn Disk, offset: u64, len: usize) -> IoResult<Vec<u8>> {
    let buf = Slice::heap(len);
    run(d, DiskOp::Read { offset, buf: buf.clone() }).await?;
    Ok(buf.to_vec())
}

#[test]
fn reads_see_what_was_written_also_after_a_restart_and_in_another_world() {
    let (w, n, m) = world(1, DiskConfig::default());
    play(&w, &n, |d| async move {
        write(&*d, 4096, 8192, 7).await.expect("written");
        assert_eq!(read(&*d, 0, 16384).await.expect("read")[4095..4097], [0, 7]);
    });
    n.kill();
    n.restart();
    play(&w, &n, |d| async move {
        assert_eq!(read(&*d, 4096, 8192).await.expect("read"), [7; 8192]);
    });
    drop(w);
    let w = World::new(2);
    let other = w.node("other");
    other.attach(&m);
    play(&w, &other, |d| async move {
        assert_eq!(read(&*d, 4096, 8192).await.expect("read"), [7; 8192]);
        assert_eq!(d.allocated(), Some(8192));
    });
}

#[test]
fn operations_pass_each_other_and_take_time() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let (w, n, _) = world(seed, DiskConfig::default());
        let order = play(&w, &n, |d| async move {
            let order: Rc<RefCell<Vec<u64>>> = Rc::default();
            let start = now();
            let all: Vec<_> = (0..4)
                .map(|i| {
                    let (d, order) = (d.clone(), order.clone());
                    spawn(async move {
                        write(&*d, i * 4096, 4096, 1).await.expect("written");
                        order.borrow_mut().push(i);
                    })
                })
                .collect();
            for t in all {
                t.await;
            }
            assert!(now() > start);
            order.take()
        });
        orders.insert(order);
    }
    assert!(orders.len() > 10, "{}", orders.len());
}

#[test]
fn bad_ranges_and_alignment_are_refused() {
    let (w, n, _) = world(1, DiskConfig { block_size: 4096, ..DiskConfig::default() });
    play(&w, &n, |d| async move {
        for (at, len) in
            [(512, 4096), (0, 512), (LEN, 4096), (LEN - 4096, 8192), (u64::MAX - 4095, 4096)]
        {
            assert_eq!(write(&*d, at, len, 1).await, Err(IoError::OutOfRange), "{at} {len}");
            assert_eq!(read(&*d, at, len).await, Err(IoError::OutOfRange));
        }
        assert_eq!(
            run(&*d, DiskOp::Discard { offset: 100, len: 1 }).await,
            Err(IoError::OutOfRange)
        );
        d.set_len(2 * LEN).expect("it can grow");
        write(&*d, LEN, 4096, 3).await.expect("written");
        d.set_len(LEN).expect("it can shrink");
        d.set_len(2 * LEN).expect("it can grow again");
        assert_eq!(read(&*d, LEN, 4096).await.expect("read"), [0; 4096]);
    });
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_a_random_part_of_the_rest() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..150 {
        let (w, n, m) = world(seed, DiskConfig::default());
        play(&w, &n, |d| async move {
            write(&*d, 0, 4096, 1).await.expect("written");
            run(&*d, DiskOp::Flush).await.expect("flushed");
            let buf = Slice::heap(4096);
            buf.fill(5);
            run(&*d, DiskOp::Write { offset: 8192, buf, fua: true }).await.expect("forced");
            write(&*d, 0, 4096, 2).await.expect("written");
        });
        n.power_off();
        assert_eq!(m.counts().power_cuts, 1);
        n.restart();
        let v = play(&w, &n, |d| async move {
            assert_eq!(read(&*d, 8192, 4096).await.expect("read"), [5; 4096]);
            read(&*d, 0, 4096).await.expect("read")
        });
        match (v.contains(&1), v.contains(&2)) {
            (true, true) => torn += 1,
            (true, false) => lost += 1,
            (false, true) => kept += 1,
            _ => panic!("flushed data is gone"),
        }
    }
    assert!(lost > 20 && kept > 20 && torn > 3, "{lost} {kept} {torn}");
}

#[test]
fn a_disk_without_volatile_cache_keeps_completed_writes() {
    for seed in 0..50 {
        let (w, n, _) = world(seed, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
        play(&w, &n, |d| async move { write(&*d, 0, 8192, 2).await.expect("written") });
        n.power_off();
        n.restart();
        let v = play(&w, &n, |d| async move { read(&*d, 0, 8192).await.expect("read") });
        assert_eq!(v, [2; 8192]);
    }
}

#[test]
fn writes_under_way_at_a_kill_are_in_part_there_and_flushable() {
    let mut partial = 0;
    for seed in 0..80 {
        let (w, n, _) = world(seed, DiskConfig { pieces: 8, ..DiskConfig::default() });
        let d = n.disk("d");
        n.spawn(async move { write(&*d, 0, 4096, 3).await });
        w.run_for(60_000);
        n.kill();
        n.restart();
        let before = play(&w, &n, |d| async move {
            let v = read(&*d, 0, 4096).await.expect("read");
            run(&*d, DiskOp::Flush).await.expect("flushed");
            v
        });
        partial += u32::from(before.contains(&3) && before.contains(&0));
        n.power_off();
        n.restart();
        let after = play(&w, &n, |d| async move { read(&*d, 0, 4096).await.expect("read") });
        assert_eq!(before, after, "what was read and flushed stays");
    }
    assert!(partial > 5, "{partial}");
}

#[test]
fn buffers_are_read_between_submission_and_completion() {
    let mut changed = 0;
    for seed in 0..60 {
        let (w, n, _) = world(seed, DiskConfig::default());
        changed += play(&w, &n, |d| async move {
            let buf = Slice::heap(4096);
            buf.fill(1);
            let (token, done) = completion();
            d.submit(DiskOp::Write { offset: 0, buf: buf.clone(), fua: false }, token);
            weir_reactor::sleep(20_000).await;
            buf.fill(2);
            done.await;
            u32::from(read(&*d, 0, 4096).await.expect("read").contains(&2))
        });
    }
    assert!(changed > 10, "{changed}");
}

#[test]
fn read_errors_on_a_range_last_until_it_is_written() {
    let (w, n, m) = world(1, DiskConfig::default());
    m.fail_reads(4096, 8192);
    play(&w, &n, |d| async move {
        assert!(read(&*d, 0, 4096).await.is_ok());
        assert_eq!(read(&*d, 0, 8192).await, Err(IoError::Medium));
        write(&*d, 4096, 4096, 1).await.expect("written");
        assert!(read(&*d, 0, 8192).await.is_ok());
        assert_eq!(read(&*d, 8192, 512).await, Err(IoError::Medium));
        write(&*d, 8192, 512, 1).await.expect("written");
        assert!(read(&*d, 8192, 512).await.is_ok());
        assert_eq!(read(&*d, 8704, 512).await, Err(IoError::Medium));
    });
    assert_eq!(m.counts().read_errors, 3);
}

#[test]
fn faults_on_demand_happen_once_each_and_are_counted() {
    let (w, n, m) = world(1, DiskConfig::default());
    for f in [Next::LostWrite, Next::ReadError, Next::WriteError, Next::FlushError] {
        m.next_is(f);
    }
    let m2 = m.clone();
    play(&w, &n, |d| async move {
        assert_eq!(read(&*d, 0, 512).await, Err(IoError::Medium));
        assert!(read(&*d, 0, 512).await.is_ok());
        // The first write fails and is lost as well; the second is an honest one.
        assert_eq!(write(&*d, 0, 512, 1).await, Err(IoError::Medium));
        assert_eq!(read(&*d, 0, 512).await.expect("read"), [0; 512]);
        assert!(write(&*d, 0, 512, 1).await.is_ok());
        m2.next_is(Next::LostWrite);
        assert!(write(&*d, 0, 512, 2).await.is_ok(), "it lies");
        assert_eq!(read(&*d, 0, 512).await.expect("read"), [1; 512]);
        assert_eq!(run(&*d, DiskOp::Flush).await, Err(IoError::Medium));
        assert!(run(&*d, DiskOp::Flush).await.is_ok());
        m2.next_is(Next::MisdirectedWrite);
        assert!(write(&*d, 8192, 512, 3).await.is_ok(), "it lies");
        assert_eq!(read(&*d, 8192, 512).await.expect("read"), [0; 512]);
        let all = read(&*d, 0, LEN as usize).await.expect("read");
        assert_eq!(all.iter().filter(|b| **b == 3).count(), 512, "it is somewhere else");
        m2.rot(0, 512, 1);
        let v = read(&*d, 0, 512).await.expect("read");
        let flipped: u32 = v.iter().map(|b| (b ^ 1).count_ones()).sum();
        assert!(flipped == 1 || all[..512].contains(&3), "one bit");
    });
    let c = m.counts();
    assert_eq!(
        (
            c.lost_writes,
            c.misdirected_writes,
            c.read_errors,
            c.write_errors,
            c.flush_errors,
            c.rotten_bits
        ),
        (2, 1, 1, 1, 1, 1)
    );
}

#[test]
fn full_offline_and_stalled_disks() {
    let (w, n, m) = world(1, DiskConfig::default());
    m.set_space(Some(8192));
    let m2 = m.clone();
    play(&w, &n, |d| async move {
        assert!(write(&*d, 0, 8192, 1).await.is_ok());
        assert_eq!(write(&*d, 8192, 512, 1).await, Err(IoError::NoSpace));
        assert!(write(&*d, 0, 8192, 2).await.is_ok(), "what has space can be written again");
        run(&*d, DiskOp::WriteZeroes { offset: 0, len: 4096, unmap: true }).await.expect("zeroed");
        assert!(write(&*d, 8192, 512, 1).await.is_ok());
        m2.set_offline(true);
        assert_eq!(read(&*d, 0, 512).await, Err(IoError::Offline));
        assert_eq!(run(&*d, DiskOp::Flush).await, Err(IoError::Offline));
        m2.set_offline(false);
        m2.stall(500 * MILLIS);
        let t = now();
        assert!(read(&*d, 0, 512).await.is_ok());
        assert!(now() - t >= 500 * MILLIS);
        m2.stall(0);
        let t = now();
        assert!(read(&*d, 0, 512).await.is_ok());
        assert!(now() - t < 100 * MILLIS);
    });
}

#[test]
fn what_missed_a_piece_while_the_disk_was_away_fails() {
    let latency = Latency::uniform(MILLIS, 0);
    let config = DiskConfig { write: latency, read: latency, ..DiskConfig::default() };
    let (w, n, m) = world(11, config);
    let mut missed = 0;
    for at in 0..16 {
        let (gone, back) = (m.clone(), m.clone());
        w.after(at * MILLIS / 16, move |_| gone.set_offline(true));
        w.after((at + 1) * MILLIS / 16, move |_| back.set_offline(false));
        let value = 1 + at as u8;
        missed += play(&w, &n, |d| async move {
            match write(&*d, 0, 65536, value).await {
                Ok(()) => assert_eq!(read(&*d, 0, 65536).await, Ok(vec![value; 65536]), "{at}"),
                Err(e) => assert_eq!(e, IoError::Offline),
            }
            let all = read(&*d, 0, 65536).await.expect("it is back");
            u32::from(all.contains(&value) && all.iter().any(|b| *b != value))
        });
    }
    assert!(missed > 0, "some of a write was missed at times");
}

#[test]
fn a_power_cut_of_the_medium_alone_fails_what_is_under_way() {
    let (w, n, m) = world(3, DiskConfig::default());
    let d = n.disk("d");
    let h = n.spawn(async move { write(&*d, 0, 4096, 3).await });
    w.run_for(1000);
    m.power_cut();
    w.run_until(SECONDS, || h.is_finished()).expect("it ends");
    assert_eq!(w.run(&n, SECONDS, h).expect("it has ended"), Some(Err(IoError::Offline)));
}

#[test]
fn one_seed_one_trace_with_disks() {
    let run = |seed: u64| {
        let config = DiskConfig { lost_write: weir_sim::Odds::one_in(5), ..DiskConfig::default() };
        let (w, n, m) = world(seed, config);
        play(&w, &n, |d| async move {
            for i in 0..20u64 {
                let _ = write(&*d, i * 512, 1024, i as u8).await;
            }
        });
        n.power_off();
        let mut v = vec![0; 20 * 512];
        m.peek(0, &mut v);
        (w.trace_hash(), v, m.counts())
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}
