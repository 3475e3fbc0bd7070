//! kill -9 at random moments: every acknowledged change is there, and the store opens.

use crate::support::*;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};
use weir_base::Prng;
use weir_control::model::{Command, Model};
use weir_control::store::MetaStore;

/// Set in the child: the data directory.
const CHILD: &str = "WEIR_TEST_CRASH_CHILD";
const CYCLES: u64 = 40;

/// Change number `n`, from the model before it: volumes come, grow and go, blobs are kept beside.
fn step(model: &mut Model, n: u64) {
    let name = format!("v{}", n % 16);
    let command = match model.volumes.get(&name) {
        None => Command::CreateVolume(volume(&name, "mem", 1 << 20)),
        Some(v) if v.size > 4 << 20 => {
            model.apply(delete_volume(&name), 0).expect("deleting");
            Command::ForgetVolume { name }
        }
        Some(v) => Command::PatchVolume {
            name,
            patch: weir_control::model::VolumePatch {
                size: Some(v.size + (2 << 20)),
                ..Default::default()
            },
        },
    };
    model.apply(command, u128::from(n)).expect("a step");
}

/// The model after `n` steps.
fn expected(n: u64) -> Model {
    let mut model = Model::default();
    model.apply(Command::CreatePool(ram_pool("mem", GIB)), 0).expect("a pool");
    for i in 0..n {
        step(&mut model, i);
    }
    model
}

/// How many steps led to this model; the counter is kept as a blob, in a transaction of its own.
fn steps_of(store: &MetaStore) -> u64 {
    let blob = store.blob("steps").expect("readable");
    blob.map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
}

fn child(dir: &Path) {
    let store = MetaStore::open(dir).expect("the store opens in the child");
    let mut model = store.load().expect("the model loads in the child");
    let mut out = std::io::stdout();
    if model.revision == 0 {
        let new = expected(0);
        store.commit(&model, &new).expect("the first change");
        model = new;
    }
    // Where the former child was: the model tells, as its revision counts.
    let mut n = steps_of(&store);
    while expected(n).revision < model.revision {
        n += 1;
    }
    loop {
        let mut new = model.clone();
        step(&mut new, n);
        store.commit(&model, &new).expect("a change");
        model = new;
        n += 1;
        writeln!(out, "change {n}").and_then(|()| out.flush()).expect("told");
        store.put_blob("steps", &n.to_le_bytes()).expect("a blob");
        writeln!(out, "blob {n}").and_then(|()| out.flush()).expect("told");
    }
}

#[test]
fn kill_nine_at_any_moment_loses_nothing_acknowledged() {
    if let Ok(dir) = std::env::var(CHILD) {
        return child(Path::new(&dir));
    }
    let dir = Scratch::new();
    let mut prng = Prng::new(0x5eed);
    let (mut at, mut cut_between) = (0, 0);
    for cycle in 0..CYCLES {
        let mut process = Process::new(std::env::current_exe().expect("our own path"))
            .args(["--exact", "crash::kill_nine_at_any_moment_loses_nothing_acknowledged"])
            .arg("--nocapture")
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let (tell, told) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                drop(tell.send(line));
            }
        });
        // Some are killed while they open the store, most after a few changes.
        let after = if cycle % 8 == 7 { 0 } else { prng.between(1, 20) };
        let (mut changes, mut blobs) = (0, 0);
        let mut note = |line: String| {
            // The first line is the test harness's own.
            match line.split_once(' ') {
                Some(("change", n)) => changes = n.parse().unwrap_or(changes),
                Some(("blob", n)) => blobs = n.parse().unwrap_or(blobs),
                _ => {}
            }
        };
        let end = Instant::now() + Duration::from_secs(60);
        for _ in 0..after {
            match told.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => note(line),
                Err(e) => panic!("cycle {cycle}: the child is stuck: {e}"),
            }
        }
        std::thread::sleep(Duration::from_micros(prng.below(4000)));
        process.kill().expect("kill -9");
        process.wait().expect("its end");
        reader.join().expect("the reader");
        told.try_iter().for_each(&mut note);

        let store = MetaStore::open(dir.path()).expect("the store opens after kill -9");
        let model = store.load().expect("the model loads after kill -9");
        let kept = steps_of(&store);
        assert!(kept >= blobs, "cycle {cycle}: blob {blobs} was acknowledged, {kept} is kept");
        if model.revision == 0 {
            assert_eq!((changes, blobs), (0, 0), "cycle {cycle}");
            continue;
        }
        // The model is exactly one of the sequence, at or after the last acknowledged step and
        // where the former cycle left it: a child that is killed between its first change and the
        // blob, and before it tells of either, leaves a blob of two cycles ago.
        let least = kept.max(changes).max(at);
        let n = (least..=least + 1).find(|n| expected(*n) == model);
        at = n.unwrap_or_else(|| {
            let revision = model.revision;
            panic!(
                "cycle {cycle}: change {least} was acknowledged, the model has revision {revision}"
            )
        });
        cut_between += u64::from(at != kept);
    }
    // The test is worth something only if the children got on and were cut in different places.
    assert!(at > CYCLES, "only {at} changes in all");
    assert!(cut_between > 0, "never cut between a change and its blob");
}
