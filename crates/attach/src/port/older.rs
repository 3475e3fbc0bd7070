//! The claims of the version before this one: sockets with names in no file system. An attachment of that version sees nothing
//! else, and is seen by nothing else. For this one version only: to be removed with the next.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};
use std::path::Path;
use std::time::Duration;

/// Claims a port, given in hexadecimal, at these targets or as a whole. The names of these sockets are then this process's.
///
/// # Errors
/// Somebody has it all this time: that process, if it is to be seen.
pub(super) fn claim(
    hex: &str,
    to: &[SocketAddr],
    wait: Duration,
) -> Result<Vec<UnixListener>, Option<u32>> {
    let whole = format!("weir-attach/{hex}");
    let part = format!("{whole}@");
    let own: Vec<String> = match to {
        [] => vec![whole.clone()],
        some => some.iter().map(|at| format!("{part}{at}")).collect(),
    };
    // That version did not see these either.
    let across = |name: &str| if to.is_empty() { name.starts_with(&part) } else { name == whole };
    let mut kept = Vec::new();
    let mut waited = Duration::ZERO;
    loop {
        match bind(&own, &mut kept).map_or_else(Some, |()| holder(&across)) {
            None => return Ok(kept.into_iter().flatten().collect()),
            Some(_) if waited < wait => {
                std::thread::sleep(super::STEP);
                waited += super::STEP;
            }
            Some(pid) => return Err(pid),
        }
    }
}

/// Takes the names that are not `kept` yet, as far as they can be had. In error it is another attachment that has one.
fn bind(names: &[String], kept: &mut Vec<Option<UnixListener>>) -> Result<(), Option<u32>> {
    for name in &names[kept.len()..] {
        let at = net::SocketAddr::from_abstract_name(name);
        let bound = at.and_then(|at| UnixListener::bind_addr(&at));
        if bound.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse)
            && let Some(pid) = holder(&|n| n == name)
        {
            return Err(pid);
        }
        kept.push(bound.ok());
    }
    Ok(())
}

/// The attachment that has a name which is `meant`: its process, if that is to be seen.
fn holder(meant: &dyn Fn(&str) -> bool) -> Option<Option<u32>> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    listening(&sockets, meant).find_map(|socket| match process_of(socket) {
        // Anybody may take such a name; an attachment is root's.
        Some(pid) => is_root_s(pid).then_some(Some(pid)),
        None => Some(None),
    })
}

/// The sockets that listen at such names, by the lines of `/proc/net/unix`.
fn listening<'a>(
    sockets: &'a str,
    meant: &'a dyn Fn(&str) -> bool,
) -> impl Iterator<Item = &'a str> {
    /// `__SO_ACCEPTCON` (linux/net.h)
    const LISTENS: &str = "00010000";
    sockets.lines().filter_map(move |line| {
        // Address, references, protocol, flags, kind, state, number, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(7)?.strip_prefix('@')?;
        words.get(6).copied().filter(|_| words[3] == LISTENS && meant(name))
    })
}

fn process_of(socket: &str) -> Option<u32> {
    let wanted = format!("socket:[{socket}]");
    let has = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.filter_map(|f| fs::read_link(f.path()).ok()).any(|to| to == Path::new(&wanted))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        has(&process.path()).then_some(pid)
    })
}

/// Whether a process may be root's, or this one's user's: only a process that has ended has no user.
fn is_root_s(pid: u32) -> bool {
    let user = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
        line.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    user(&pid.to_string()).is_some_and(|of| of == 0 || Some(of) == user("self"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn old(name: &str) -> UnixListener {
        let at = net::SocketAddr::from_abstract_name(name).unwrap();
        UnixListener::bind_addr(&at).unwrap()
    }

    #[test]
    fn a_port_of_an_older_version_s_attachment_is_seen_and_shows() {
        // The names are the machine's.
        let hex = format!("{:016x}00000000000000bb", std::process::id());
        let name = format!("weir-attach/{hex}");
        let at = |n: u8| SocketAddr::from(([127, 0, 0, n], 5556));
        let me = Some(std::process::id());
        let part = old(&format!("{name}@{}", at(1)));
        assert_eq!(claim(&hex, &[], SHORT).unwrap_err(), me);
        assert_eq!(claim(&hex, &[at(2), at(1)], SHORT).unwrap_err(), me);
        drop(claim(&hex, &[at(2)], SHORT).unwrap());
        drop(part);
        let whole = old(&name);
        assert_eq!(claim(&hex, &[], SHORT).unwrap_err(), me);
        assert_eq!(claim(&hex, &[at(1)], SHORT).unwrap_err(), me);
        drop(whole);
        // Nor does that version take one of this.
        let is_free = |name: &str| {
            UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(name).unwrap()).is_ok()
        };
        let _kept = claim(&hex, &[at(1), at(2)], SHORT).unwrap();
        assert!(is_free(&name));
        for n in [1, 2] {
            assert!(!is_free(&format!("{name}@{}", at(n))));
        }
    }

    #[test]
    fn only_who_listens_has_a_port() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 11 @weir-attach/aa\n\
            0: 00000002 00000000 00000000 0001 01 12 @weir-attach/aa\n\
            0: 00000003 00000000 00010000 0001 01 13\n\
            0: 00000002 00000000 00010000 0001 01 14 /run/weir-attach/aa\n\
            0: 00000002 00000000 00010000 0001 01 15 @weir-attach/ab\n";
        let found: Vec<_> = listening(sockets, &|n| n == "weir-attach/aa").collect();
        assert_eq!(found, ["11"]);
        assert!(is_root_s(std::process::id()) && !is_root_s(u32::MAX));
    }
}
