//! `weir check` and `weir dump`.

use super::remote::no_ring;
use crate::cli::args::{CheckArgs, DumpArgs, DumpWhat};
use crate::cli::output;
use crate::cli::progress::{Progress, Step};
use std::cell::Cell;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use weir_base::{BLOCK, MILLIS};
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_reactor::{LocalFuture, PollMode, Reactor, sleep, spawn};
use weir_store::dump::{Dump, Item, Value};
use weir_store::{Options, Report, StoreError, check_watched, repair};
use weir_uring::{FileDisk, OpenOptions, Ring};

fn failed(e: &StoreError) -> Error {
    let code = match e {
        StoreError::Unfinished(e) => return failed(e),
        StoreError::Io(_) => Code::IoError,
        StoreError::Pool(_) | StoreError::Unread(_) => Code::PoolDamaged,
        StoreError::Request(_) | StoreError::State(_) => Code::InvalidRequest,
    };
    Error::new(code, "the pool cannot be looked at").because(e).hint(
        "name all devices of the pool; `weir dump --device FILE label` says whose a device is",
    )
}

/// What is done to the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Reading,
    Writing,
}

/// The devices, open, and what keeps daemons from them meanwhile.
type Devices = (Vec<Rc<dyn Disk>>, Vec<File>);

fn open(ring: &Ring, paths: &[PathBuf], purpose: For) -> Result<Devices> {
    let read_only = purpose == For::Reading;
    let options = OpenOptions { create: false, len: None, direct: true, read_only };
    let (mut disks, mut locks): Devices = Default::default();
    for path in paths {
        let wrong = |e: &dyn std::fmt::Display| {
            let (what, hint) = match purpose {
                For::Reading => ("read", "name files and block devices that you may read"),
                For::Writing => ("written", "name files and block devices that you may write"),
            };
            Error::new(Code::IoError, format!("{} cannot be {what}", path.display()))
                .because(e)
                .hint(hint)
        };
        let lock =
            File::options().read(true).write(!read_only).open(path).map_err(|e| wrong(&e))?;
        let locked = match purpose {
            For::Reading => lock.try_lock_shared(),
            For::Writing => lock.try_lock(),
        };
        match locked {
            Ok(()) => locks.push(lock),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(Code::DeviceInUse, format!("{} is in use", path.display()))
                    .because("a daemon serves the pool, and changes what would be read")
                    .hint("use `weir scrub` while the pool is served, or stop the daemon"));
            }
            Err(TryLockError::Error(e)) => return Err(wrong(&e)),
        }
        disks.push(Rc::new(FileDisk::open(ring, path, options).map_err(|e| wrong(&e))?));
    }
    Ok((disks, locks))
}

fn with_devices<R: 'static>(
    paths: &[PathBuf],
    purpose: For,
    f: impl FnOnce(Vec<Rc<dyn Disk>>) -> LocalFuture<'static, Result<R>>,
) -> Result<R> {
    let ring = Ring::new().map_err(no_ring)?;
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let (disks, locks) = reactor.enter(|| open(&ring, paths, purpose))?;
    let work = f(disks);
    let result = reactor.block_on(PollMode::default(), work);
    reactor.shutdown();
    drop(locks);
    result
}

/// Runs `weir check`.
pub(crate) fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let (json, force, mend) = (args.json, args.force, args.repair);
    let purpose = if mend { For::Writing } else { For::Reading };
    let done = with_devices(&args.devices, purpose, move |disks| {
        Box::pin(async move {
            let watch = Rc::new(Cell::new((0, 0)));
            let seen = watch.clone();
            let shown = spawn(async move {
                let mut progress = Progress::new("pool", json);
                loop {
                    sleep(200 * MILLIS).await;
                    let (copies, all) = seen.get();
                    let (done, total) = (copies * BLOCK as u64, Some(all * BLOCK as u64));
                    let doing = "checked".into();
                    progress.show(Step { doing, done, total, ..Step::default() });
                }
            });
            let options = Options { force, ..Options::default() };
            let done = match mend {
                true => repair(disks, options, watch).await.map(|r| (Some(r.given_back), r.report)),
                false => check_watched(disks, options, watch).await.map(|r| (None, r)),
            };
            shown.cancel();
            done.map_err(|e| failed(&e))
        })
    })?;
    let (given_back, report) = done;
    output::show(json, &as_json(&report, given_back), |_| text(&report, given_back))?;
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(r: &Report, given_back: Option<u64>) -> serde_json::Value {
    let findings: Vec<_> = r
        .findings
        .iter()
        .map(|f| serde_json::json!({ "layer": f.layer, "block": f.vbn, "what": f.what }))
        .collect();
    let mut all = serde_json::json!({
        "clean": r.findings.is_empty(),
        "datasets": r.datasets,
        "blocks": r.blocks,
        "copies": r.copies,
        "findings": findings,
    });
    if let Some(n) = given_back {
        all["given_back"] = n.into();
    }
    all
}

fn text(r: &Report, given_back: Option<u64>) -> String {
    let mut out = format!(
        "{} volumes and snapshots, {} blocks referred to, {} copies read and verified\n",
        r.datasets, r.blocks, r.copies
    );
    for f in &r.findings {
        out.push_str(&format!("block {}, {}: {}\n", f.vbn, f.layer, f.what));
    }
    let leaks = r.leaks().count();
    match given_back {
        Some(0) if leaks > 0 => out.push_str(
            "nothing was given back: what the damaged blocks refer to cannot be told from what nothing refers to; \
             restore or delete the volumes that they are of first\n",
        ),
        Some(n) => out.push_str(&format!("{n} blocks given back that nothing referred to\n")),
        None if leaks > 0 => out.push_str(&format!(
            "{leaks} blocks are in use for nothing; `weir check --repair` gives them back\n"
        )),
        None => {}
    }
    out.push_str(&match r.findings.len() {
        0 => "everything is as it should be".to_string(),
        n => format!("{n} findings"),
    });
    out
}

/// Runs `weir dump`.
pub(crate) fn dump(args: DumpArgs) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let what = args.what.clone();
    let item = with_devices(&args.devices, For::Reading, move |disks| {
        Box::pin(async move {
            let d = Dump::open(disks).await.map_err(|e| failed(&e))?;
            let item = match what.unwrap_or(DumpWhat::Superblock) {
                DumpWhat::Label => d.labels().await,
                DumpWhat::Superblock => d.superblocks().await,
                DumpWhat::Log { old } => d.log(old).await,
                DumpWhat::Slab => d.slabs(),
                DumpWhat::Datasets => d.datasets().await,
                DumpWhat::Map { dataset, lba } => d.map(dataset, lba).await,
                DumpWhat::Block { number } => d.block(number).await,
            };
            item.map_err(|e| failed(&e))
        })
    })?;
    output::show(json, &item_json(&item), |_| {
        let mut out = String::new();
        draw(&item, 0, &mut out);
        out
    })?;
    Ok(ExitCode::SUCCESS)
}

fn item_json(i: &Item) -> serde_json::Value {
    let mut map = serde_json::Map::new();
    map.insert("what".into(), i.what.clone().into());
    for (name, value) in &i.fields {
        let value = match value {
            Value::Number(n) => (*n).into(),
            Value::Flag(b) => (*b).into(),
            v => v.to_string().into(),
        };
        map.insert((*name).into(), value);
    }
    if !i.parts.is_empty() {
        map.insert("parts".into(), i.parts.iter().map(item_json).collect());
    }
    map.into()
}

fn draw(i: &Item, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    let fields: Vec<String> = i.fields.iter().map(|(n, v)| format!("{n} {v}")).collect();
    let line = format!("{pad}{}: {}", i.what, fields.join(", "));
    // Short ones on a line, long ones a field on each.
    if line.len() <= 110 {
        out.push_str(line.trim_end_matches([':', ' ']));
        out.push('\n');
    } else {
        out.push_str(&format!("{pad}{}\n", i.what));
        for (n, v) in &i.fields {
            out.push_str(&format!("{pad}  {n}: {v}\n"));
        }
    }
    i.parts.iter().for_each(|p| draw(p, depth + 1, out));
}
