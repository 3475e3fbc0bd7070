//! The claim of an initiator port on this machine. Two sessions of one port end each other at a target, and what is mapped for
//! one is the other's, so each port is one attachment's: whatever its run directory, and for as long as its process lives.

use crate::error::{Error, Kind};
use crate::sys;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

/// How long one that ends may take to let go.
const WAIT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);

/// An initiator port that is this process's. The kernel gives it back when the process ends.
#[derive(Debug)]
pub struct PortClaim(#[allow(dead_code)] UnixListener);

/// Claims an initiator port, as far as it goes `to` one target only: whoever gives two attachments one port may have them at
/// different targets.
///
/// # Errors
/// Another process of this machine (of this network namespace) has it.
pub fn claim(port: &str, to: Option<std::net::SocketAddr>) -> Result<PortClaim, Error> {
    let name = name(port, to);
    let mut waited = Duration::ZERO;
    loop {
        let address = SocketAddr::from_abstract_name(&name);
        match address.and_then(|at| UnixListener::bind_addr(&at)) {
            Ok(listener) => return Ok(PortClaim(listener)),
            Err(e) if e.kind() != io::ErrorKind::AddrInUse => {
                return Err(Error::system(format!("initiator port {port} cannot be claimed"), &e));
            }
            Err(_) if waited < WAIT => {
                std::thread::sleep(STEP);
                waited += STEP;
            }
            Err(_) => {
                let why = match sys::listener(name.as_bytes()) {
                    Some(pid) => format!("process {pid} has it, for another attachment"),
                    None => "another attachment has it, whose process is not to be seen".into(),
                };
                return Err(Error::new(
                    Kind::Busy,
                    format!("initiator port {port} is in use on this machine"),
                    why,
                    "give this one another --name, which makes another port, or another --initiator-port",
                ));
            }
        }
    }
}

/// The name of its socket, which is in no file system.
fn name(port: &str, to: Option<std::net::SocketAddr>) -> String {
    let port: String = port.chars().filter(char::is_ascii_hexdigit).collect();
    match to {
        None => format!("weir-attach/{}", port.to_ascii_lowercase()),
        Some(at) => format!("weir-attach/{}@{at}", port.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_attachment_s_as_long_as_it_keeps_it() {
        let port = format!("{:016x}:0000000000000001", std::process::id());
        let first = claim(&port, None).unwrap();
        let e = claim(&port, None).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(e.kind == Kind::Busy && e.reason.contains(&pid), "{e:?}");
        assert!(e.hint.contains("--name") && e.hint.contains("--initiator-port"), "{e:?}");
        drop(first);
        let _again = claim(&port, None).unwrap();
        // At another target it is another session.
        let at = |n: u8| Some(std::net::SocketAddr::from(([127, 0, 0, n], 5556)));
        let _one = claim(&port, at(1)).unwrap();
        let _two = claim(&port, at(2)).unwrap();
        assert!(claim(&port, at(2)).is_err());
    }
}
