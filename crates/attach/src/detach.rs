//! The end of an attachment, by its own process or by another; also of one whose process was killed.

use crate::error::{Error, Kind};
use crate::host::{loopdev, users};
use crate::nbd;
use crate::state::{ELSEWHERE, Life, Made, Mapped, Method, Place, State};
use crate::sys;
use crate::ublk;
use crate::whose::{Whose, is_ours, whose};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long what was written may take to get to the volume.
const FLUSH: Duration = Duration::from_secs(30);
/// How long the kernel and the process may take to let go.
const LET_GO: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);

/// What was done, beside what was asked for.
#[derive(Debug)]
pub struct Detached<E> {
    /// What the reader should know, a sentence each.
    pub notes: Vec<String>,
    /// This was made elsewhere, and the process of the attachment has seen to it itself.
    pub seen_to: Option<Mapped>,
    /// This was made elsewhere, and could not be taken back.
    pub left: Option<Left<E>>,
}

/// What could not be taken back.
#[derive(Debug)]
pub struct Left<E> {
    /// What it is.
    pub made: Made,
    /// Why.
    pub why: E,
    /// It is known further on, and can be taken back by the next [`detach`].
    pub kept: bool,
}

/// Ends an attachment. By `force` also when it is in use or its target does not answer: what was written and has not
/// reached the volume is lost then. `undo` takes back what was made for the attachment elsewhere, and gives what the
/// reader should know; the process of the attachment has done it before if it could. What cannot be taken back is kept for
/// the next time; if there was nothing else any more, `force` gives it up.
///
/// # Errors
/// There is none, it is in use, or the kernel does not let go of it.
pub fn detach<E>(
    run_dir: &Path,
    name: &str,
    force: bool,
    undo: impl FnOnce(&Made) -> Result<String, E>,
) -> Result<Detached<E>, Error> {
    let place = Place::of(run_dir, name)?;
    if !place.exists() {
        return Err(no_such(run_dir, name));
    }
    if !sys::is_root() {
        let (message, why) = ("only root can take a disk away", "unmounting is for root");
        return Err(Error::new(Kind::Denied, message, why, "run it as root"));
    }
    let mut done = Detached { notes: Vec::new(), seen_to: None, left: None };
    let held = hold(&place, force)?;
    if !place.exists() {
        return Err(no_such(run_dir, name));
    }
    let first = place.owner();
    let is_elsewhere = first.is_some_and(|p| p.life() == Life::Elsewhere);
    if is_elsewhere && !force {
        return Err(elsewhere(&place));
    }
    let is_over = place.read().is_none() && end_maker(&place, force)?;
    // It may have been finished before its process was ended.
    let state = place.read();
    // The version before kept it with the state only, which goes with the disk.
    let made = place.made().or_else(|| state.as_ref().and_then(Made::of));
    let (owner, _held) = match &state {
        Some(state) => {
            take_disk(&place, state, force, &mut done.notes)?;
            // The process itself may take its part meanwhile.
            drop(held);
            see_end(state, &mut done.notes)?;
            (Some(state.process()), hold(&place, force)?)
        }
        None => {
            done.notes.push("it had never been finished, or has ended".into());
            take_unfinished(&place);
            (first, held)
        }
    };
    // The process itself may have removed its files. Then the name may be another attachment's already, with all that
    // was made for that.
    if place.owner() != owner {
        done.seen_to = state.and_then(|s| s.mapped);
        return Ok(done);
    }
    match made.map(|made| (undo(&made), made)) {
        Some((Err(why), made)) => {
            let kept = !(force && is_over);
            if kept {
                place.leave_made(Some(&made))
            } else {
                place.remove()
            }
            done.left = Some(Left { made, why, kept });
        }
        said => {
            done.notes.extend(said.and_then(|(text, _)| text.ok()));
            place.remove();
        }
    }
    Ok(done)
}

fn elsewhere(place: &Place) -> Error {
    Error::new(
        Kind::Busy,
        format!("it is not known whether the process of {} lives", place.name()),
        ELSEWHERE,
        "run this where it was attached, as in that container; --force takes it for one that has ended",
    )
}

fn no_such(run_dir: &Path, name: &str) -> Error {
    let all: Vec<String> = crate::state::list(run_dir).into_iter().map(|(n, _)| n).collect();
    let have = if all.is_empty() { "there is none".into() } else { all.join(", ") };
    let message = format!("there is no attachment {name}");
    Error::new(Kind::NotFound, message, have, "`weir attach --list` shows all")
}

/// Keeps others from ending the attachment meanwhile. By force it goes on without: one that waits in the kernel for ever
/// must not be in the way of that.
fn hold(place: &Place, force: bool) -> Result<Option<File>, Error> {
    match place.lock(LET_GO) {
        Ok(held) => Ok(held),
        Err(_) if force => Ok(None),
        Err(e) => Err(Error::new(
            Kind::Busy,
            format!("the attachment {} is being detached by another", place.name()),
            e,
            "wait a moment; if it stays, use --force",
        )),
    }
}

/// Sees to it that nobody is making the attachment any more. True: nobody was.
fn end_maker(place: &Place, force: bool) -> Result<bool, Error> {
    let owner = place.owner();
    match owner.filter(|p| p.is_alive()) {
        None if owner.is_some() || force => Ok(true),
        Some(p) if force => {
            let _ = sys::kill(p.pid, libc::SIGKILL);
            wait_for("the process does not end", || !p.is_alive())?;
            Ok(false)
        }
        _ => Err(Error::new(
            Kind::Busy,
            format!("the attachment {} is not finished", place.name()),
            "another `weir attach` is making it, or was killed doing so",
            "wait a moment; if it stays, use --force",
        )),
    }
}

/// Takes away what the kernel has of an attachment that was never finished.
fn take_unfinished(place: &Place) {
    place.remove_link();
    let maker = place.maker();
    match maker.as_ref().and_then(|m| m.disk.as_ref()) {
        Some((Method::Fuse, device)) if is_ours(place, device, false) => {
            place.take_link(device, true);
            let _ = loopdev::clear(device, None);
        }
        _ => {}
    }
    let noted = maker.as_ref().and_then(|m| match &m.disk {
        Some((Method::Ublk, disk)) => ublk::Device::of(disk).filter(|d| d.is_of(m.process.pid)),
        _ => None,
    });
    let left = maker.iter().flat_map(|m| ublk::Device::left_by(m.process.pid));
    if noted.is_some() {
        for (_, disk) in maker.iter().flat_map(|m| &m.disk) {
            place.take_link(disk, true);
        }
    }
    for d in noted.into_iter().chain(left) {
        let _ = d.stop();
        d.delete();
    }
    let _ = sys::unmount(&place.disk(), true);
}

/// Takes the disk away. At a success without force it is certainly gone, so that its process may be ended.
fn take_disk(
    place: &Place,
    state: &State,
    force: bool,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let alive = state.is_alive();
    let claim = if force { None } else { quiet(place, state, alive)? };
    match state.life() {
        _ if alive => {}
        Life::Elsewhere => {
            notes.push(format!(
                "its process {} may go on: it is one of another pid namespace",
                state.pid
            ));
        }
        _ => notes.push(format!(
            "its process {} had ended before; what it had not written to the volume then is lost",
            state.pid
        )),
    }
    nameless(place, state, || {
        if alive && force {
            // With its process, whatever waits for it ends.
            let _ = sys::kill(state.pid, libc::SIGKILL);
            wait_for("the process does not end", || !state.is_alive())?;
        }
        take_away(place, state, force, claim, notes)
    })
}

/// Sees to it that the process ends whose disk is gone.
fn see_end(state: &State, notes: &mut Vec<String>) -> Result<(), Error> {
    let ended = wait_for("the process does not end", || !state.is_alive());
    if ended.is_err() {
        let _ = sys::kill(state.pid, libc::SIGKILL);
        notes.push(format!("its process {} did not end by itself and was killed", state.pid));
        wait_for("the process does not end", || !state.is_alive())?;
    }
    if let (Method::Ublk, Some(d)) = (state.method, ublk::Device::of(&state.device))
        && d.whose(state.pid, false) == Whose::Ours
    {
        d.delete();
    }
    Ok(())
}

/// As the process of the attachment itself, which ends once the kernel has let go.
pub(crate) fn detach_own(place: &Place, state: &State) -> Result<(), Error> {
    let claim = quiet(place, state, true)?;
    nameless(place, state, || take_away(place, state, false, claim, &mut Vec::new()))
}

/// Does what frees the device while that has no name in /dev/weir: another attachment may get it at once. The name comes
/// back if the device stays.
fn nameless(
    place: &Place,
    state: &State,
    free: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let device = &state.device;
    let named = place.take_link(device, whose(place, state) != Whose::NotOurs);
    let done = free();
    let stays = named && done.is_err() && whose(place, state) != Whose::NotOurs;
    match (done, stays.then(|| place.make_link(device))) {
        (Err(mut e), Some(Err(no_name))) => {
            e.reason = format!("{}\n{}: {}", e.reason, no_name.message, no_name.reason);
            Err(e)
        }
        (done, _) => done,
    }
}

/// Sees to it that nobody uses the disk, and that what was written to it is on the volume. As long as the file is kept it
/// cannot be mounted, or become part of something; there is none where the disk is gone with its process, or is another's.
fn quiet(place: &Place, state: &State, alive: bool) -> Result<Option<File>, Error> {
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

fn unknown(state: &State, why: String) -> Error {
    Error::new(
        Kind::Failed,
        format!("it is not known whether {} is the disk of {}", state.device.display(), state.name),
        why,
        "--force ends its process all the same, and what is not written yet is lost",
    )
}

/// Takes the disk for this process; none: the kernel has none by that name, or its process has ended. That it is somebody else's the
/// kernel knows best: a mount may be in another namespace.
fn claim(state: &State, alive: bool) -> Result<Option<File>, Error> {
    let flags = libc::O_EXCL | libc::O_CLOEXEC;
    match OpenOptions::new().read(true).custom_flags(flags).open(&state.device) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
            unused(state)?;
            Err(in_use(
                state,
                "it is mounted where this process cannot see it, or somebody has it for themselves"
                    .into(),
            ))
        }
        Err(e) if alive && !is_gone(&state.device, &e) => {
            let message = format!("{} cannot be looked at", state.device.display());
            Err(Error::system(message, &e))
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

fn unused(state: &State) -> Result<(), Error> {
    let uses = users::of(&state.device, state.pid);
    if uses.is_empty() { Ok(()) } else { Err(in_use(state, uses.join("\n"))) }
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

/// Takes the disk away from the kernel, and from this process, which has claimed it.
fn take_away(
    place: &Place,
    state: &State,
    force: bool,
    claim: Option<File>,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let device = &state.device;
    let ours = match whose(place, state) {
        Whose::Ours => true,
        Whose::NotOurs => false,
        Whose::Unknown(why) if force => {
            notes.push(format!("{} may be its disk yet: {why}", device.display()));
            false
        }
        Whose::Unknown(why) => return Err(unknown(state, why)),
    };
    match state.method {
        Method::Fuse => {
            if ours {
                let failed =
                    |e| Error::system(format!("{} cannot be cleared", device.display()), &e);
                loopdev::clear(device, claim).map_err(failed)?;
                let gone = || loopdev::is_free(device) || whose(place, state) == Whose::NotOurs;
                if wait_for("", gone).is_err() {
                    if !force {
                        return Err(Error::new(
                            Kind::Busy,
                            format!("somebody has opened {} meanwhile", device.display()),
                            users::of(device, state.pid).join("\n"),
                            "it is cleared when they close it; run `weir detach` again then",
                        ));
                    }
                    notes.push(format!(
                        "{} is still in use and gives errors; it goes away when it is closed",
                        device.display()
                    ));
                }
            }
            unmount(place, force)
        }
        Method::Nbd => {
            let serves = ours && state.is_alive();
            let Some(d) = nbd::Device::of(device).filter(|_| serves) else { return Ok(()) };
            d.disconnect()
                .map_err(|e| Error::system(format!("{} is not let go of", device.display()), &e))
        }
        Method::Ublk => {
            let Some(d) = ublk::Device::of(device).filter(|_| ours) else {
                return Ok(());
            };
            d.stop()
                .map_err(|e| Error::system(format!("{} cannot be stopped", device.display()), &e))
        }
    }
}

fn unmount(place: &Place, force: bool) -> Result<(), Error> {
    let dir = place.disk();
    let mut last = Ok(());
    let unmounted = wait_for("", || {
        last = sys::unmount(&dir, force);
        match &last {
            Ok(()) => true,
            // Not mounted, or not there.
            Err(e) => matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)),
        }
    });
    match (unmounted, last) {
        (Err(_), Err(e)) => {
            Err(Error::system(format!("{} cannot be unmounted", dir.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Waits until something is so.
fn wait_for(otherwise: &str, mut so: impl FnMut() -> bool) -> Result<(), Error> {
    let steps = LET_GO.as_millis() / STEP.as_millis();
    for _ in 0..steps {
        if so() {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    let why = format!("it had {} s", LET_GO.as_secs());
    Err(Error::new(Kind::Failed, otherwise, why, "see the log of the attachment"))
}

#[cfg(test)]
mod tests;
