use super::page::{About, page, together};
use super::*;

fn found(ms: f64, read: u64) -> Found {
    Found { ms, traffic: Traffic { read, written: 0 } }
}

#[test]
fn a_power_run_has_all_queries_between_the_refresh_functions() {
    let all = steps();
    let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
    let mut wanted = vec!["RF1".to_owned()];
    wanted.extend((1..=22).map(|i| format!("Q{i}")));
    wanted.push("RF2".into());
    assert_eq!(names, wanted);
    for s in &all[1..23] {
        let sql = s.sql.trim();
        assert!(sql.ends_with(';') && sql.matches(';').count() == 1, "{}: {sql}", s.name);
        assert!(!s.text.is_empty());
    }
    let odd = queries("-- Q1 and Q2 are two: of many\n\n-- Q7: x\nselect 1;\n-- Q8 is not: here\n");
    assert_eq!((odd.len(), odd[0].name.as_str()), (1, "Q7"));
    assert!(WHOLE.iter().all(|w| names.contains(w)));
}

#[test]
fn rows_are_in_the_specifications_proportions() {
    let [suppliers, parts, customers, orders] = ROWS;
    assert_eq!((parts, customers, orders), (20 * suppliers, 15 * suppliers, 150 * suppliers));
    // A whole number of refreshes, and of keys in eights.
    assert!(orders.is_multiple_of(1000) && orders.is_multiple_of(8));
}

#[test]
fn only_one_pool_is_without_checksums_and_all_have_their_devices() {
    let text = config("127.0.0.1:1".parse().unwrap(), Path::new("/x"), &[1]);
    for kind in KINDS {
        assert_eq!(text.matches(&format!("/x/devices/{}-", pool(kind))).count(), 4, "{text}");
    }
    assert_eq!(text.matches("raid = \"10\"").count(), 3);
    assert_eq!(pool(Kind::Plain), "plain");
}

#[test]
fn too_little_memory_is_said() {
    let said = enough("MemTotal: 9 kB\nMemAvailable:    2048000 kB\n").unwrap_err();
    assert!(said.contains("7g") || said.contains("7 GiB"), "{said}");
    assert_eq!(enough("MemAvailable: 20480000 kB\n"), Ok(()));
}

#[test]
fn names_of_snapshots_are_found() {
    let json = r#"[{"name":"auto-1s-a","volume":"v"},{"name":"auto-1s-b"}]"#;
    assert_eq!(snapshots(json), ["auto-1s-a", "auto-1s-b"]);
    assert!(snapshots("nonsense").is_empty());
}

#[test]
fn another_answer_is_an_error() {
    let (step, mut answers) = (&steps()[1], Vec::new());
    for kind in KINDS {
        same(&mut answers, 1, step, kind, "A|1".into()).unwrap();
    }
    let e = same(&mut answers, 1, step, Kind::Sums, "A|2".into()).unwrap_err();
    assert!(e.to_string().contains("Q1 has another answer with checksums"), "{e}");
}

#[test]
fn tables_that_come_from_a_cache_are_an_error() {
    let steps: Vec<Step> = steps().into_iter().skip(1).take(2).collect();
    let runs = |read: u64| -> Vec<Runs> {
        vec![std::array::from_fn(|_| vec![found(1.0, 1000), found(1.0, read)]), Runs::default()]
    };
    reached(&steps, &runs(950), 1000).unwrap();
    let e = reached(&steps, &runs(10), 1000).unwrap_err();
    assert!(e.to_string().contains("Q1 read 10 bytes"), "{e}");
}

#[test]
fn costs_are_of_rates_and_the_page_has_all_queries() {
    let steps = steps();
    let of = |i: usize| -> Runs {
        let t = 10.0 + i as f64;
        [vec![found(t, 1)], vec![found(t / 0.9, 1)], vec![found(t / 0.9 / 0.95, 1)]]
    };
    let runs: Vec<Runs> = (0..steps.len()).map(of).collect();
    let (mean, sum) = together(&runs[..2], 0, 0);
    assert!((mean - 110f64.sqrt()).abs() < 1e-9 && (sum - 21.0).abs() < 1e-9, "{mean} {sum}");
    let about = About {
        version: "15".into(),
        in_memory: true,
        loaded: 30 * SECONDS,
        largest: 1 << 20,
        bytes: 1 << 24,
        versions: 5,
    };
    let p = page(&about, &steps, &runs);
    assert_eq!((p.passed, p.failed), (72, 0));
    for key in ["power_checksums_cost_percent", "power_versions_cost_percent"] {
        let wanted = if key.contains("checksums") { 10.0 } else { 5.0 };
        assert!((p.data[key].as_f64().unwrap() - wanted).abs() < 1e-6, "{key}");
    }
    assert_eq!(p.data["queries"].as_array().map(Vec::len), Some(24));
}
