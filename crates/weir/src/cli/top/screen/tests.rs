//! Pictures of `weir top` without a daemon or a terminal.

use super::super::super::table::width;
use super::super::rows::{Job, jobs};
use super::*;
use weir_control::live::{
    Fault, IoStats, Latency, LiveStatus, MigrationLive, Pace, PoolDeviceLive, PoolLive,
    PoolWorkLive, ScrubLive, Status, VolumeLive,
};

fn volume(i: u64) -> VolumeLive {
    let io = |iops: f64| IoStats {
        iops,
        bytes_per_second: iops * 4096.0,
        latency: Latency { p99_ns: 1000 * (1000 - i), ..Latency::default() },
        ..IoStats::default()
    };
    let (read, write) = (io(i as f64), io(2.0));
    VolumeLive {
        name: format!("a-volume-with-a-name-{i:04}"),
        read,
        write,
        ..VolumeLive::default()
    }
}

fn round(volumes: u64) -> Round {
    let live = LiveStatus { volumes: (0..volumes).map(volume).collect(), ..LiveStatus::default() };
    let status = Status {
        version: "0.1.0".into(),
        pid: 1,
        uptime_seconds: 1,
        data_dir: "/d".into(),
        revision: 1,
        pools: 1,
        volumes: volumes as usize,
        hosts: 0,
        maps: 0,
        starting: None,
        faults: Vec::new(),
        retries: 0,
        live,
    };
    Round { status, jobs: Vec::new() }
}

fn fault(n: usize) -> Fault {
    let text = "a device is gone and what is on it is not protected any more";
    Fault { object: format!("pool/p{n}"), code: "x".into(), text: text.into(), hint: "h".into() }
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|l| l.text.as_str()).collect()
}

#[test]
fn a_picture_never_is_larger_than_the_terminal() {
    let mut r = round(1000);
    for faults in [0, 2, 9] {
        r.status.faults = (0..faults).map(fault).collect();
        for columns in [0, 1, 7, 20, 40, 80, 200] {
            for lines in [0, 1, 2, 3, 4, 8, 24, 60] {
                for view in View::ALL {
                    let mut wish = Wish::new(view, Sort::Load);
                    wish.from = 990;
                    let (all, _) = screen(&r, &mut wish, (columns, lines));
                    assert_eq!(all.len(), lines, "{columns}x{lines} {view:?}");
                    let wide = all.iter().map(|l| width(&l.text)).max().unwrap_or(0);
                    assert!(wide <= columns, "{columns}x{lines} {view:?}: {:?}", texts(&all));
                }
            }
        }
    }
}

#[test]
fn the_busiest_comes_first_and_all_can_be_reached() {
    let r = round(1000);
    let mut wish = Wish::new(View::Volumes, Sort::Load);
    let of = |wish: &mut Wish| {
        let (lines, page) = screen(&r, wish, (120, 24));
        (texts(&lines).iter().map(|l| (*l).to_owned()).collect::<Vec<_>>(), page)
    };
    let (lines, page) = of(&mut wish);
    assert!(lines[0].starts_with("weir 0.1.0  501.5k IOPS"), "{lines:?}");
    assert!(lines[2].starts_with("VOLUME") && lines[3].contains("-0999"), "{lines:?}");
    assert!(lines[23].starts_with("volumes 1-20 of 1000, load first"), "{lines:?}");
    assert_eq!(page, 20);
    assert!(wish.key(Key::End, page));
    let (lines, page) = of(&mut wish);
    assert!(lines[22].contains("-0000") && lines[23].contains("981-1000 of 1000"), "{lines:?}");
    wish.key(Key::PageUp, page);
    wish.key(Key::Up, page);
    assert!(of(&mut wish).0[23].contains("960-979 of 1000"));
    wish.key(Key::Char('S'), page);
    wish.key(Key::Home, page);
    assert!(of(&mut wish).0[3].contains("-0000"), "reversed");
    wish.key(Key::Char('S'), page);
    wish.key(Key::Char('s'), page);
    assert_eq!(wish.sort, Sort::Name);
    assert!(of(&mut wish).0[3].contains("-0000"));
    wish.sort = Sort::Latency;
    assert!(of(&mut wish).0[3].contains("-0000"), "the slowest");
    assert!(wish.key(Key::Char('p'), page) && wish.view == View::Pools);
    assert!(wish.key(Key::Char('x'), page) && wish.view == View::Pools, "no key");
    assert!(wish.key(Key::Char(' '), page) && wish.held);
    assert!(of(&mut wish).0[23].contains("HELD"));
    assert!(!wish.key(Key::Char('q'), page));
}

#[test]
fn each_view_has_its_key_and_no_two_the_same() {
    let mut letters: Vec<char> = View::ALL.iter().filter_map(|v| v.name().chars().next()).collect();
    let all = letters.len();
    letters.sort_unstable();
    letters.dedup();
    assert_eq!(letters.len(), all);
    assert!(!letters.iter().any(|c| "qsS ".contains(*c)));
    assert!(letters.iter().all(|c| KEYS.contains(&format!("{c} "))), "{KEYS}");
    let mut sort = Sort::Load;
    for _ in 0..6 {
        sort = sort.next();
    }
    assert_eq!(sort, Sort::Load);
}

/// A pool under repair, and a volume that moves.
fn busy() -> Round {
    let pace = Pace { bytes_per_second: 100 << 20, seconds_left: Some(75) };
    let mut r = round(1);
    let device = |state: &str| PoolDeviceLive { state: state.into(), ..PoolDeviceLive::default() };
    let work =
        PoolWorkLive { work: "resync".into(), device: 1, done: 1 << 30, total: 4 << 30, pace };
    let scrub = ScrubLive {
        state: "running".into(),
        blocks: 256,
        of_blocks: 1024,
        pace,
        ..ScrubLive::default()
    };
    r.status.live.pools = vec![
        PoolLive { name: "quiet".into(), state: "healthy".into(), ..PoolLive::default() },
        PoolLive {
            name: "safe".into(),
            state: "degraded".into(),
            total: 10 << 30,
            free: 5 << 30,
            devices: vec![device("in-sync"), device("syncing")],
            work: Some(work),
            scrub: Some(scrub),
            ..PoolLive::default()
        },
    ];
    let moving = MigrationLive {
        volume: "db-01".into(),
        state: "copying".into(),
        done: 1,
        total: 2,
        paused: true,
        ..MigrationLive::default()
    };
    let over =
        MigrationLive { volume: "old".into(), state: "done".into(), ..MigrationLive::default() };
    r.jobs = jobs(&r.status, &[moving, over]);
    r
}

#[test]
fn pools_and_jobs_tell_what_is_under_way() {
    let r = busy();
    let job = |j: &Job| (j.job.clone(), j.object.clone());
    let is = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        r.jobs.iter().map(job).collect::<Vec<_>>(),
        [is("migration", "volume/db-01"), is("scrub", "pool/safe"), is("resync", "pool/safe")]
    );
    let text = listing(&r, Some(View::Jobs), Sort::Load);
    assert!(text.contains("1m 15s") && text.contains("100 MiB/s"), "{text}");
    assert!(text.contains("copying (paused)  50 %") && text.contains("device 1"), "{text}");
    let text = listing(&r, Some(View::Pools), Sort::Load);
    assert!(text.contains("50.0 %") && text.contains("1/2"), "{text}");
    assert!(text.contains("scrub 25 %, resync 25 %"), "{text}");
    let pools = rows::of(View::Pools, &r, Sort::Load, false).rows;
    assert_eq!((pools[0].style, pools[1].style), (Style::Bad, Style::Plain));
    // Everything at once, for a file.
    let text = listing(&r, None, Sort::Name);
    for word in ["VOLUME", "POOL ", "JOB", "HOST", "CORE", "POOL OF"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = serde_json::to_value(&r).expect("JSON");
    assert_eq!((&json["version"], &json["jobs"][2]["seconds_left"]), (&"0.1.0".into(), &75.into()));
}

#[test]
fn without_colours_there_are_no_codes_but_those_of_places() {
    let mut r = busy();
    r.status.faults = vec![fault(0)];
    let (lines, _) = screen(&r, &mut Wish::new(View::Pools, Sort::Load), (100, 10));
    let (with, without) = (drawn(&lines, true), drawn(&lines, false));
    assert!(with.contains("\x1b[31mFAULT pool/p0") && with.contains("\x1b[1mPOOL"), "{with:?}");
    let bare = without.replace("\x1b[H", "").replace("\x1b[K", "");
    assert!(!bare.contains('\x1b') && !bare.ends_with('\n'), "{bare:?}");
    assert_eq!(bare.split('\n').count(), 10);
}
