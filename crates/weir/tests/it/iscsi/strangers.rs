//! Other people's programs.

use super::client::name;
use super::{MIB, iscsi, volume};
use crate::common::{noise, texts};
use std::process::{Command, Output};

const WHO: &str = "iqn.2026-01.org.example:stranger";

/// `None`: it is not installed.
fn run(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).output() {
        Ok(o) => Some(o),
        Err(_) => {
            println!("SKIPPED: {program} is not installed");
            None
        }
    }
}

#[test]
fn other_peoples_initiators_do_verified_work() {
    let (d, at) = iscsi("iscsi-strangers");
    volume(&d, "v", "64M", 512);
    let target = name(&d);
    let url = format!("iscsi://{at}/{target}/0");
    if let Some(o) = run("iscsi-ls", &["-i", WHO, "-s", &format!("iscsi://{at}")]) {
        let (out, err) = texts(&o);
        assert!(o.status.success() && out.contains(&target) && out.contains("Lun:0"), "{out}{err}");
        let o = run("iscsi-inq", &["-i", WHO, &url]).expect("it comes with iscsi-ls");
        let (out, err) = texts(&o);
        assert!(o.status.success() && out.contains("Vendor:"), "{out}{err}");
    }
    let (image, back) = (d.path("image"), d.path("back"));
    std::fs::write(&image, noise(9, 64 * MIB)).unwrap();
    let knows = |o: &Output| !texts(o).1.contains("Unknown protocol");
    let copy = ["convert", "-n", "-f", "raw", "-O", "raw", &image, &url];
    let Some(o) = run("qemu-img", &copy) else { return };
    if !knows(&o) {
        println!("SKIPPED: qemu-img cannot speak iSCSI");
        return;
    }
    assert!(o.status.success(), "{o:?}");
    let o = run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &back]).unwrap();
    assert!(o.status.success(), "{o:?}");
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&image).unwrap());
    let work = [
        "write -P 0xab 1M 3M",
        "flush",
        "read -P 0xab 1M 3M",
        "write -z 2M 1M",
        "discard 8M 4M",
        "read -P 0 2M 1M",
    ];
    let mut args = vec!["-f", "raw"];
    work.iter().for_each(|w| args.extend(["-c", w]));
    args.push(&url);
    let o = run("qemu-io", &args).unwrap();
    let text = texts(&o).0;
    assert!(o.status.success() && !text.contains("failed"), "{text} {o:?}");
}

/// Tests of libiscsi that want what the standards do not; docs/iscsi.md says why of each.
const WRONG: [&str; 5] = [
    "CompareAndWrite, Test Simple",
    "CompareAndWrite, Test Miscompare",
    "WriteSame10, Test UnmapUntilEnd",
    "WriteSame16, Test Unmap",
    "iSCSIdatasn, Test iSCSIDataSnInvalid",
];

/// The conformance tests of libiscsi, for SCSI and for iSCSI.
#[test]
fn the_conformance_tests_of_libiscsi_pass() {
    let (d, at) = iscsi("iscsi-cu");
    volume(&d, "v", "64M", 512);
    volume(&d, "w", "64M", 4096);
    for lun in [0, 1] {
        let url = format!("iscsi://{at}/{}/{lun}", name(&d));
        let args = ["-d", "-n", "-i", WHO, "-t", "ALL", &url];
        let Some(o) = run("iscsi-test-cu", &args) else { return };
        let (out, err) = texts(&o);
        assert!(out.contains("Run Summary"), "{out}{err}");
        let failed =
            out.lines().filter_map(|l| l.strip_prefix("Suite ")?.strip_suffix(" had failures:"));
        let ours: Vec<&str> = failed.filter(|f| !WRONG.contains(f)).collect();
        assert!(ours.is_empty(), "{ours:?}: {out}{err}");
    }
}
