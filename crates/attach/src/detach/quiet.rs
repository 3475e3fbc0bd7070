//! That nobody uses a disk, and that what was written to it is on the volume.

use super::STEP;
use crate::error::{Error, Kind};
use crate::host::users::{self, Lookers};
use crate::state::{Place, State};
use crate::sys;
use crate::whose::{Whose, whose};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long what was written may take to get to the volume.
const FLUSH: Duration = Duration::from_secs(30);
/// Who has a disk open at so many looks on end, for 2 s, uses it. Others only look at it, as udev does after every change, or have it by
/// chance, as a process that was just started and has yet the files of another.
const PASSING: u32 = 21;
const LOOK: Duration = Duration::from_millis(100);

/// Why a disk is not quiet.
enum Not {
    /// These processes have it open; 0 is one that is not seen.
    Open(Vec<u32>, Error),
    /// Something that does not pass.
    Other(Error),
}

impl From<Error> for Not {
    fn from(e: Error) -> Not {
        Not::Other(e)
    }
}

/// Sees to it that nobody uses the disk, and that what was written to it is on the volume. As long as the file is kept it
/// cannot be mounted, or become part of something; there is none where the disk is gone with its process, or is another's.
pub(super) fn quiet(place: &Place, state: &State, alive: bool) -> Result<Option<File>, Error> {
    let mut lookers = Lookers::new(PASSING);
    loop {
        match once(place, state, alive) {
            Ok(claim) => return Ok(claim),
            Err(Not::Open(by, e)) if lookers.keep(&by) => return Err(e),
            Err(Not::Open(..)) => std::thread::sleep(LOOK),
            Err(Not::Other(e)) => return Err(e),
        }
    }
}

fn once(place: &Place, state: &State, alive: bool) -> Result<Option<File>, Not> {
    if !is_still(place, state)? {
        return Ok(None);
    }
    let claim = claim(state, alive);
    // It may have become another's just before. Who has it open keeps it what it is.
    if !is_still(place, state)? {
        return Ok(None);
    }
    let claim = claim?;
    unused(state)?;
    if alive && claim.is_some() {
        flush(state)?;
        // Who has only opened it meanwhile is not kept out by that, and may have written.
        unused(state)?;
    }
    Ok(claim)
}

/// Whether the disk is this attachment's. That it is not must be certain.
fn is_still(place: &Place, state: &State) -> Result<bool, Error> {
    match whose(place, state) {
        Whose::Ours => Ok(true),
        Whose::NotOurs => Ok(false),
        Whose::Unknown(why) => Err(unknown(state, why)),
    }
}

pub(super) fn unknown(state: &State, why: String) -> Error {
    Error::new(
        Kind::Failed,
        format!("it is not known whether {} is the disk of {}", state.device.display(), state.name),
        why,
        "--force ends its process all the same, and what is not written yet is lost",
    )
}

/// Takes the disk for this process; none: the kernel has none by that name, or its process has ended. That it is somebody else's the
/// kernel knows best: a mount may be in another namespace.
fn claim(state: &State, alive: bool) -> Result<Option<File>, Not> {
    let flags = libc::O_EXCL | libc::O_CLOEXEC;
    match OpenOptions::new().read(true).custom_flags(flags).open(&state.device) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
            unused(state)?;
            let why =
                "it is mounted where this process cannot see it, or somebody has it for themselves";
            Err(Not::Open(vec![0], in_use(state, why.into())))
        }
        Err(e) if alive && !is_gone(&state.device, &e) => {
            let message = format!("{} cannot be looked at", state.device.display());
            Err(Error::system(message, &e).into())
        }
        Err(_) => Ok(None),
    }
}

/// Whether this error, when a disk was opened, says that there is none.
fn is_gone(device: &Path, e: &io::Error) -> bool {
    let listed = || {
        let name = device.file_name().unwrap_or_default();
        !sys::shows_disks() || Path::new("/sys/block").join(name).exists()
    };
    match e.raw_os_error() {
        Some(libc::ENXIO | libc::ENODEV) => true,
        Some(libc::ENOENT) => !listed(),
        _ => false,
    }
}

fn unused(state: &State) -> Result<(), Not> {
    let mut uses = users::lasting(&state.device);
    let passing = uses.is_empty();
    let opened = users::opened(&state.device, state.pid);
    let by: Vec<u32> = opened.iter().map(|o| o.pid).collect();
    uses.extend(opened.into_iter().map(|o| o.text));
    match uses.is_empty() {
        true => Ok(()),
        false if passing => Err(Not::Open(by, in_use(state, uses.join("\n")))),
        false => Err(in_use(state, uses.join("\n")).into()),
    }
}

fn in_use(state: &State, why: String) -> Error {
    Error::new(
        Kind::Busy,
        format!("the disk of {} is in use", state.name),
        why,
        "unmount it and end what uses it; --force takes it away all the same, and what is not written yet is lost",
    )
}

/// Has everything written that the kernel still has, and flushed by the target.
fn flush(state: &State) -> Result<(), Error> {
    let failed = |why: String| {
        let message = format!("what was written to {} cannot be flushed", state.name);
        let hint = "see the log of the attachment; --force gives up what is not on the volume";
        Error::new(Kind::Failed, message, why, hint)
    };
    // By a process of its own (coreutils): it may wait in the kernel for ever, and a process with a thread there cannot end.
    let mut sync = Command::new("sync")
        .arg(&state.device)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("`sync` cannot be run: {e}")))?;
    for _ in 0..FLUSH.as_millis() / STEP.as_millis() {
        match sync.try_wait().map_err(|e| failed(e.to_string()))? {
            Some(done) if done.success() => return Ok(()),
            Some(_) => {
                let mut why = String::new();
                if let Some(mut said) = sync.stderr.take() {
                    drop(said.read_to_string(&mut why));
                }
                return Err(failed(why.trim().to_owned()));
            }
            None => std::thread::sleep(STEP),
        }
    }
    // This process may go on for long after the target is back.
    let reaped =
        std::thread::Builder::new().name("weir-flush".into()).spawn(move || drop(sync.wait()));
    drop(reaped);
    Err(Error::new(
        Kind::Busy,
        format!("what was written to {} is not on the volume yet", state.name),
        format!("the target has not answered for {} s", FLUSH.as_secs()),
        "bring the target back, or use --force and lose what is not written",
    ))
}
