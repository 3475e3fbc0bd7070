//! The end of an attachment, by its own process or by another; also of one whose process was killed.

mod quiet;

use quiet::{quiet, unknown};

use crate::error::{Error, Kind};
use crate::host::{loopdev, users};
use crate::nbd;
use crate::state::{ELSEWHERE, Home, Life, Made, Mapped, Method, Place, State};
use crate::sys;
use crate::ublk;
use crate::whose::{self, Whose, whose};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long the kernel and the process may take to let go.
const LET_GO: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);
/// After so many looks a directory of nobody is one.
const NOBODY: u32 = 50;

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
    let is_elsewhere = place.life() == Some(Life::Elsewhere);
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
            see_end(&place, state, force, &mut done.notes)?;
            (Some(state.process()), hold(&place, force)?)
        }
        None => {
            done.notes.push("it had never been finished, or has ended".into());
            take_unfinished(&place, force)?;
            (first, held)
        }
    };
    // The process itself may have removed its files. Then the name may be another attachment's already, with all that
    // was made for that.
    if place.owner() != owner {
        done.seen_to = state.and_then(|s| s.mapped);
        return Ok(done);
    }
    let undone = made.map(|made| (undo(&made), made));
    // That takes a while, and by force others are not kept out meanwhile.
    if place.owner() != owner {
        done.notes.extend(undone.and_then(|(said, _)| said.ok()));
        return Ok(done);
    }
    match undone {
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
    let all: Vec<String> = crate::state::list(run_dir).into_iter().map(|l| l.name).collect();
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
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(Error::new(
            Kind::Busy,
            format!("the attachment {} is being detached by another", place.name()),
            e,
            "wait a moment; if it stays, use --force",
        )),
        Err(e) => Err(Error::new(
            Kind::Failed,
            format!("the files of {} cannot be locked, and others be kept from them", place.name()),
            e,
            "use a --run-dir where files can be locked, as on a tmpfs; --force goes on all the same",
        )),
    }
}

/// Sees to it that nobody is making the attachment any more. True: nobody was.
fn end_maker(place: &Place, force: bool) -> Result<bool, Error> {
    // Whose a directory is is written down as soon as it is there, unless that process was killed before.
    let is_nobodys = |_| {
        std::thread::sleep(STEP);
        place.owner().is_none()
    };
    if place.owner().is_none() && (0..NOBODY).all(is_nobodys) {
        return Ok(true);
    }
    match (place.owner(), place.life()) {
        (Some(_), Some(Life::Ended)) => Ok(true),
        (Some(p), Some(Life::Alive)) if force => {
            let _ = sys::kill(p.pid, libc::SIGKILL);
            wait_for("the process does not end", || !p.is_alive())?;
            Ok(false)
        }
        _ if force => Ok(true),
        _ => Err(Error::new(
            Kind::Busy,
            format!("the attachment {} is not finished", place.name()),
            "another `weir attach` is making it, or was killed doing so",
            "wait a moment; if it stays, use --force",
        )),
    }
}

/// Takes away what the kernel has of an attachment that was never finished.
fn take_unfinished(place: &Place, force: bool) -> Result<(), Error> {
    let Some(maker) = place.maker() else {
        let _ = sys::unmount(&place.disk(), true);
        return Ok(());
    };
    let mark = maker.mark.as_deref();
    let noted = match &maker.disk {
        Some((Method::Ublk, disk)) => ublk::Device::of(disk),
        _ => None,
    };
    let noted = noted.filter(|d| d.is_of(maker.process.pid, mark));
    let mut left = Vec::from_iter(noted);
    // By its number it is another process in another pid namespace, and one with another method has none of these.
    let is_here = maker.process.home.pid_namespace == Home::here().pid_namespace;
    let by_ublk = maker.disk.as_ref().is_none_or(|(method, _)| *method == Method::Ublk);
    if mark.is_some() || (is_here && by_ublk) {
        left.extend(ublk::Device::left_by(maker.process.pid, mark));
    }
    // It may have become a disk just before.
    let used = left.iter().map(|d| d.disk()).find(|disk| !force && whose::is_open(disk));
    if let Some(disk) = used {
        return Err(Error::new(
            Kind::Busy,
            format!("{}, which {} was about to have, is in use", disk.display(), place.name()),
            users::of(&disk, maker.process.pid).join("\n"),
            "end what uses it; --force takes it away all the same",
        ));
    }
    match &maker.disk {
        Some((Method::Fuse, device)) => {
            let is_left = || whose::is_left(place, &maker, device);
            if let Some(open) = loopdev::open_if(device, is_left) {
                place.take_link(device, true);
                let _ = loopdev::clear(device, Some(open));
            }
        }
        Some((Method::Ublk, disk)) if noted.is_some() => drop(place.take_link(disk, true)),
        _ => {}
    }
    place.remove_link();
    for d in left {
        let _ = d.stop();
        d.delete();
    }
    let _ = sys::unmount(&place.disk(), true);
    // A process that was killed may have waited for that, and the device get its file from it yet.
    if let Some((Method::Fuse, device)) = &maker.disk {
        let is_free = || loopdev::backing(device).is_ok_and(|b| b.is_none());
        let _ = wait_for("", || !(is_free() && whose::is_taken(device)));
        if let Some(open) = loopdev::open_if(device, || whose::is_left(place, &maker, device)) {
            let _ = loopdev::clear(device, Some(open));
        }
    }
    Ok(())
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
    match place.life() {
        _ if alive => {}
        Some(Life::Elsewhere) => {
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
    nameless(place, state, |condemned| {
        if alive && force {
            // With its process, whatever waits for it ends.
            let _ = sys::kill(state.pid, libc::SIGKILL);
            wait_for("the process does not end", || !state.is_alive())?;
        }
        take_away(place, state, force, claim, notes, condemned)
    })
}

/// Sees to it that the process ends whose disk is gone. One that stays has its disk yet, unless the kernel says that it has not.
fn see_end(
    place: &Place,
    state: &State,
    force: bool,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let ended = wait_for("the process does not end", || !state.is_alive());
    if ended.is_err() {
        if !force && !whose::has_gone(place, state) {
            return Err(Error::new(
                Kind::Busy,
                format!("process {} of {} does not end", state.pid, state.name),
                format!("{} may be its disk yet", state.device.display()),
                "see its log; --force ends it, and what is not written yet is lost",
            ));
        }
        let _ = sys::kill(state.pid, libc::SIGKILL);
        notes.push(format!("its process {} did not end by itself and was killed", state.pid));
        wait_for("the process does not end", || !state.is_alive())?;
    }
    if let (Method::Ublk, Some(d)) = (state.method, ublk::Device::of(&state.device))
        && d.whose(state.pid, false, state.mark.as_deref()) == Whose::Ours
    {
        d.delete();
    }
    Ok(())
}

/// As the process of the attachment itself, which ends once the kernel has let go.
pub(crate) fn detach_own(place: &Place, state: &State) -> Result<(), Error> {
    let claim = quiet(place, state, true)?;
    nameless(place, state, |condemned| {
        take_away(place, state, false, claim, &mut Vec::new(), condemned)
    })
}

/// Does what frees the device while that has no name in /dev/weir: another attachment may get it at once. The name comes
/// back if the device stays, unless `free` says that it is condemned: the kernel takes it away when nobody has it open any more.
fn nameless(
    place: &Place,
    state: &State,
    free: impl FnOnce(&mut bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut condemned = false;
    let device = &state.device;
    let named = place.take_link(device, whose(place, state) != Whose::NotOurs);
    let done = free(&mut condemned);
    let stays = named && done.is_err() && !condemned && whose(place, state) != Whose::NotOurs;
    match (done, stays.then(|| place.show_link(device))) {
        (Err(mut e), Some(Err(no_name))) => {
            e.reason = format!("{}\n{}: {}", e.reason, no_name.message, no_name.reason);
            Err(e)
        }
        (done, _) => done,
    }
}

/// Takes the disk away from the kernel, and from this process, which has claimed it.
fn take_away(
    place: &Place,
    state: &State,
    force: bool,
    claim: Option<File>,
    notes: &mut Vec<String>,
    condemned: &mut bool,
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
                *condemned = true;
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
