//! Descriptors: how many this process may have open, and how they are shared out.
//!
//! Devices, volumes and the channels of hosts come first. Whoever only connects, to the interface or to a target port, has a
//! share of what is left. So nobody of them keeps a host or the operator out.

use crate::error::{Code, Error};
use crate::model::{DeviceKind, Model, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Those of the process itself: log, store, sockets that listen, and what is open for a moment.
const OWN: u64 = 40;
/// The same for each reactor.
const REACTOR: u64 = 6;

/// Nobody needs more. Programs that are started from here may close them all one by one.
const MOST: u64 = 1 << 20;

/// Raises the limit of this process as far as it may.
pub fn raise() {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.map_or(MOST, |hard| hard.min(MOST));
    if now.current.is_some_and(|n| n < most) {
        // Where it cannot be raised it stays as it is, which is told if it matters.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..now });
    }
}

/// How many descriptors this process may have.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many it has now.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64)
}

/// How many each kind of visitor may have at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Connections to the socket in the data directory.
    pub socket: usize,
    /// Connections to the interface on TCP.
    pub tcp: usize,
    /// Connections to an address of a target port that have not logged in.
    pub half_open: usize,
}

impl Shares {
    /// Of a limit, where so many are used otherwise.
    fn of(limit: u64, used: u64) -> Shares {
        let left = limit.saturating_sub(used);
        let part = |n: u64, least: u64, most: usize| (left / n).clamp(least, most as u64) as usize;
        Shares {
            socket: part(8, 8, crate::server::UNIX_CONNECTIONS),
            tcp: part(16, 4, crate::server::TCP_CONNECTIONS),
            half_open: part(16, 8, HALF_OPEN),
        }
    }

    /// Of what this process has left now.
    pub fn now() -> Shares {
        Shares::of(limit(), open())
    }
}

/// Most connections to an address of a target port that have not logged in.
const HALF_OPEN: usize = 128;

/// What devices and volumes keep open.
fn disks(model: &Model, reactors: u64) -> u64 {
    let is_file = |k: DeviceKind| k.has_path();
    let pools = model.pools.values().map(|p| {
        let devices = p.devices.iter().filter(|d| is_file(d.kind)).count() as u64;
        if p.protection.is_some() { 2 * devices } else { devices }
    });
    let volumes = model.volumes.values().map(|v| match model.pools.get(&v.pool) {
        Some(p) if p.protection.is_some() => 0,
        // A file of its own.
        Some(p) if p.devices.iter().any(|d| d.kind == DeviceKind::Dir) => reactors + 1,
        Some(p) if p.devices.iter().all(|d| !is_file(d.kind)) => 0,
        Some(_) => reactors * v.layout.devices().len() as u64,
        None => reactors + 1,
    });
    pools.chain(volumes).sum()
}

/// What the configuration needs at most, and why it is short, if it is.
pub(crate) fn shortage(model: &Model, reactors: u64, limit: u64) -> Option<Error> {
    let disks = disks(model, reactors);
    let own = OWN + REACTOR * reactors;
    let shares = Shares::of(limit, own + disks);
    let ports = model.targets.values().filter(|t| t.transport != Transport::Verbs);
    let (channels, visitors) = ports.fold((0, 0), |(c, v), t| {
        (c + u64::from(t.channels), v + (t.listen.len() * (shares.half_open + 1)) as u64)
    });
    let visitors = visitors + (shares.socket + shares.tcp) as u64;
    let need = own + disks + channels + visitors;
    if need <= limit {
        return None;
    }
    let text = format!("this process may have {limit} descriptors, and may need {need}");
    let why = format!(
        "{channels} for channels of hosts, {disks} for devices and volumes, {visitors} for \
         connections without a login and the interface, {own} for itself"
    );
    Some(Error::new(Code::TooFewDescriptors, text).because(why).hint(
        "raise the hard limit (`LimitNOFILE=` of the unit, `ulimit -Hn`) and start again, or give target ports fewer `channels`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visitors_have_a_part_of_what_is_left() {
        let of = |limit, used| {
            let s = Shares::of(limit, used);
            (s.socket, s.tcp, s.half_open)
        };
        assert_eq!(of(20_000, 1000), (256, 64, 128));
        assert_eq!(of(1024, 60), (120, 60, 60));
        assert_eq!(of(300, 60), (30, 15, 15));
        assert_eq!(of(64, 100), (8, 4, 8), "some there are always");
    }
}
