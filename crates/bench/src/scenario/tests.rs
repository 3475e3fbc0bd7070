use super::page::{Page, Section, Table};
use super::runner::Runner;
use super::target::{Medium, Target, Wanted, config};
use super::*;
use crate::plot::{Axis, Chart, Scale, Series};

fn setup(out: PathBuf) -> Setup {
    Setup {
        program: "/nonexistent/weir".into(),
        target: None,
        initiator: PortId::new(1, 2),
        runtime: 1_000_000_000,
        repeat: 3,
        out,
        unix_time: 1_426_587_630,
        version: "9.9".into(),
        command: "weir bench scenario demo".into(),
        say: |_| {},
    }
}

fn demo(_: &Runner<'_>) -> Result<Page, ScenarioError> {
    let mut table = Table::new(&["size", "read"]);
    table.row(vec!["4k".into(), "7".into()]);
    let chart = Chart {
        title: "demo".into(),
        x: Axis::new("size", Scale::Bytes),
        y: Axis::new("MB/s", Scale::Linear),
        series: vec![Series::new("read", vec![(512.0, 1.0), (4096.0, 7.0)])],
    };
    Ok(Page {
        intro: "What it is.".into(),
        method: "By hand.".into(),
        sections: vec![
            Section::Figure(String::new(), "a caption".into(), vec![chart]),
            Section::Table(table),
            Section::Text("a note".into()),
        ],
        data: serde_json::json!([1, 2]),
        frame: None,
        passed: 2,
        failed: 1,
    })
}

#[test]
fn names_are_unique_and_found() {
    for (i, s) in ALL.iter().enumerate() {
        assert_eq!(find(s.name).unwrap().title, s.title);
        assert!(ALL[..i].iter().all(|o| o.name != s.name && o.title != s.title));
    }
    assert!(find("nothing").is_none());
    let must = ["s0-fig5", "s0-fig6", "s0-fig7", "s0-zero", "s3-latency", "s3-iops", "srp-limits"];
    assert!(must.iter().all(|n| find(n).is_some()));
    let must =
        ["table1", "table2", "merge", "fig4", "fig5", "fig6", "fig7"].map(|n| format!("brp-{n}"));
    assert!(must.iter().all(|n| find(n).is_some()));
}

#[test]
fn a_page_has_figure_table_machine_and_command() {
    let dir = std::env::temp_dir().join(format!("weir-bench-page-{}", std::process::id()));
    let setup = setup(dir.join("docs"));
    let scenario = Scenario { name: "demo", title: "A demo", run: demo };
    let outcome = run(&scenario, &setup).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (2, 1));
    let md = std::fs::read_to_string(&outcome.page).unwrap();
    for part in [
        "# A demo",
        "What it is.",
        "![a caption](demo.svg)",
        "| 4k | 7 |",
        "a note",
        "2015-03-17",
        "median of 3 runs of 1.00 s",
        "```sh\nweir bench scenario demo\n```",
        "usable cores",
    ] {
        assert!(md.contains(part), "{part} is not in {md}");
    }
    assert!(std::fs::read_to_string(dir.join("docs/demo.svg")).unwrap().contains("<svg"));
    let json = std::fs::read_to_string(dir.join("docs/demo.json")).unwrap();
    let v: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((v["data"][1].as_u64(), v["failed"].as_u64()), (Some(2), Some(1)));
    assert!(outcome.text.contains("size  read\n4k       7"), "{}", outcome.text);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_target_that_cannot_start_says_so_and_leaves_nothing() {
    let setup = setup(std::env::temp_dir());
    let ours = format!("weir-bench-{}-", std::process::id());
    let wanted = Wanted {
        medium: Medium::Null,
        volumes: 2,
        size: 1 << 20,
        cores: vec![0],
        buffers: 64 << 20,
        listen: std::net::Ipv4Addr::LOCALHOST.into(),
    };
    assert!(matches!(Target::start(&setup, &wanted), Err(ScenarioError::System(..))));
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    assert!(left.into_iter().all(|e| !e.file_name().to_string_lossy().starts_with(&ours)));
    let t = config(&wanted, "127.0.0.1:7".parse().unwrap(), std::path::Path::new("/nowhere"));
    assert!(t.contains("listen = [\"127.0.0.1:7\"]") && t.contains("name = \"bench-1\""), "{t}");
    assert!(t.contains("kind = \"null\"") && t.contains("lun = 1"), "{t}");
}
