//! The command line without a daemon.

use super::args::{BenchCommand, Place};
use super::*;
use clap::Parser;
use std::time::Duration;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("weir").chain(line.split_whitespace()))
}

fn bench(line: &str) -> args::BenchArgs {
    match parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).command {
        Command::Bench(args) => *args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_definition_is_consistent_and_every_command_has_an_example() {
    fn walk(c: &clap::Command, path: &str) {
        let path = format!("{path} {}", c.get_name());
        assert!(c.get_about().is_some(), "{path} has no description");
        let leaf = c.get_subcommands().next().is_none();
        let help = c.get_after_help().map(ToString::to_string).unwrap_or_default();
        let exempt = path.ends_with("exit-codes");
        assert!(!leaf || exempt || help.contains("Example"), "{path} has no example");
        for a in c.get_arguments() {
            assert!(a.get_help().is_some(), "{path}: {} has no help", a.get_id());
        }
        // Every example that begins with the command's own words can be parsed.
        for line in help.lines().map(str::trim).filter(|l| l.starts_with(path.trim())) {
            let line = line.split(" > ").next().unwrap_or(line).split(" | ").next().unwrap_or(line);
            let words = line.split_whitespace();
            match Cli::try_parse_from(words) {
                Err(e) if e.kind() != clap::error::ErrorKind::DisplayHelp => {
                    panic!("the example `{line}`: {e}")
                }
                _ => {}
            }
        }
        c.get_subcommands().for_each(|s| walk(s, &path));
    }
    let command = Cli::command();
    command.clone().debug_assert();
    walk(&command, "");
}

#[test]
fn bench_speaks_fio() {
    let b = bench(
        "bench --initiator srp --target 127.0.0.1:5555 --volume v --rw randread --bs 4k --iodepth 32 \
         --numjobs 1 --runtime 5s --json",
    );
    assert_eq!((b.bs, b.iodepth, b.numjobs), (4096, 32, 1));
    assert_eq!(b.runtime, Some(Duration::from_secs(5)));
    assert_eq!(b.target, ["127.0.0.1:5555".parse().unwrap()]);
    assert!(b.check().is_ok());
    let b = bench(
        "bench --target 127.0.0.1 --lun 3 --rw=randrw --rwmixread=70 --time_based --runtime=60 \
         --ramp_time=2 --rate=100m --rate_iops=5 --size=1g --offset=4k --verify=crc32c --queue_mode single",
    );
    assert_eq!(b.target[0].port(), 5555);
    assert_eq!((b.rwmixread, b.rate, b.rate_iops), (70, Some(100 << 20), Some(5)));
    assert_eq!(b.ramp_time, Duration::from_secs(2));
    assert_eq!(b.percentile_list.len(), 17);
    for bad in ["--bs 0", "--bs 1000", "--bs 1g", "--size 512", "--percentile_list 101"] {
        let b = bench(&format!("bench --target 127.0.0.1 --lun 0 {bad}"));
        assert!(!b.check().unwrap_err().hint.is_empty(), "{bad}");
    }
    for bad in ["", "--target 127.0.0.1", "--target 127.0.0.1 --lun 0 --rw dance", "--lun 1"] {
        assert!(parse(&format!("bench {bad}")).is_err(), "{bad}");
    }
    let b = bench("bench scenario s0-fig5 --repeat 1");
    let Some(BenchCommand::Scenario(s)) = b.command else { panic!("a scenario") };
    assert_eq!((s.name.as_deref(), s.repeat), (Some("s0-fig5"), 1));
    assert!(parse("bench scenario").is_err(), "a name or --list");
}

#[test]
fn devices_as_people_write_them() {
    use weir_control::model::DeviceKind;
    let d = |t: &str| parse::device(t).unwrap_or_else(|e| panic!("{e}"));
    let f = d("file:/a/b.img:10G");
    assert_eq!(
        (f.kind, f.path.as_deref(), f.size),
        (DeviceKind::File, Some("/a/b.img"), Some(10 << 30))
    );
    assert_eq!(d("file:/a/b:c").path.as_deref(), Some("/a/b:c"), "a colon in a name");
    assert_eq!(d("file:/a//b/./c").path.as_deref(), Some("/a/b/c"));
    assert_eq!(d("/dev/sdb").kind, DeviceKind::Block);
    assert_eq!(d("block:/dev/disk/by-id/x:y").path.as_deref(), Some("/dev/disk/by-id/x:y"));
    assert_eq!(d("ram:4G").size, Some(4 << 30));
    assert!(d("dir:thin").path.unwrap().ends_with("/thin"));
    for bad in ["", "x", "/srv/a.img", "ram:", "ram:/x", "null:lots", "file:"] {
        assert!(parse::device(bad).is_err(), "{bad}");
    }
}

#[test]
fn times_addresses_and_places() {
    assert_eq!(parse::duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(parse::duration("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(parse::duration("2h"), Ok(Duration::from_secs(7200)));
    for bad in ["", "s", "5x", "-1", "1e400", "."] {
        assert!(parse::duration(bad).is_err(), "{bad}");
    }
    assert_eq!(parse::target("[::1]:7"), Ok("[::1]:7".parse().unwrap()));
    assert_eq!(parse::target("::1"), Ok("[::1]:5555".parse().unwrap()));
    assert!(parse::target("192.0.2.1:x").is_err());
    let place = |t: &str| t.parse::<Place>();
    let at = vec!["192.0.2.7:5555".parse().unwrap()];
    assert_eq!(place("srp://192.0.2.7/3"), Ok(Place::Lun(at.clone(), 3)));
    assert_eq!(place("srp://192.0.2.7:5555/db-01"), Ok(Place::Volume(at.clone(), "db-01".into())));
    let two = [at, vec!["[::1]:7".parse().unwrap()]].concat();
    let paths = place("srp://192.0.2.7,[::1]:7/0").unwrap();
    assert_eq!(paths, Place::Lun(two, 0));
    assert_eq!(place(&paths.to_string()), Ok(paths));
    assert_eq!(place("disk.img"), Ok(Place::File("disk.img".into())));
    for bad in [
        "",
        "-",
        "srp://",
        "srp://192.0.2.7",
        "srp://192.0.2.7/",
        "srp:///1",
        "srp://192.0.2.7/16384",
        "srp://192.0.2.7,/1",
        "srp://192.0.2.7/99999",
        "iscsi://x/1",
    ] {
        assert!(place(bad).is_err(), "{bad}");
    }
    let copy = |line: &str| match parse(line).unwrap().command {
        Command::Copy(args) => args.check(),
        other => panic!("{other:?}"),
    };
    assert!(
        copy("copy a b").is_err() && copy("copy srp://192.0.2.7/1 srp://192.0.2.7:5555/1").is_err()
    );
    assert!(copy("copy a srp://192.0.2.7/1").is_ok());
}

#[test]
fn serve_takes_the_file_and_then_the_command_line() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/weir.toml");
    let config = |line: &str| {
        let cli = parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let Command::Serve(mut args) = cli.command else { panic!("{line}") };
        args.data_dir = cli.connection.data_dir;
        args.dir_is_meant = !line.contains("--data-dir /tmp/environment");
        args.config()
    };
    // As it comes from the environment, beside a file that names another one.
    let e = config(&format!("serve --config {example} --data-dir /tmp/environment")).unwrap_err();
    assert!(e.reason.contains("WEIR_DATA_DIR is /tmp/environment"), "{e}");
    assert!(config("serve --data-dir /tmp/environment").is_ok());
    let c = config(&format!("serve --config {example}")).unwrap();
    assert_eq!((c.cores.as_slice(), c.buffer_memory), (&[2, 3][..], 512 << 20));
    let c = config(&format!(
        "serve --config {example} --data-dir /tmp/x --cores 0,1 --listen 127.0.0.1:1 --poll busy --buffer-memory 64M"
    ))
    .unwrap();
    assert_eq!((c.cores.as_slice(), c.buffer_memory), (&[0, 1][..], 64 << 20));
    assert_eq!(c.data_dir, std::path::Path::new("/tmp/x"));
    assert_eq!(c.poll, weir_control::config::Poll::Busy);
    assert_eq!(c.desired().targets[0].listen, ["127.0.0.1:1"]);
    let c =
        config("serve --api-tcp 0.0.0.0:7400 --data-dir /tmp/x --api-token-file /etc/t").unwrap();
    assert_eq!(
        c.token_files().map(|f| f.display().to_string()),
        ["/etc/t", "/tmp/x/api-read.token"]
    );
}

#[test]
fn the_manual_has_the_table_of_exit_codes() {
    let manual = include_str!("../../../../docs/cli.md");
    assert!(
        manual.contains(exit_codes::table().trim_end()),
        "put this in:\n{}",
        exit_codes::table()
    );
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(parse(&format!("completions {shell}")).is_ok(), "{shell}");
    }
}
