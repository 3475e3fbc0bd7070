//! Values of options.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_control::model::{DeviceGrow, DeviceKind, DeviceSpec, RemoteAddress};
use weir_control::units::parse_size;

/// Port of a target unless one is given.
pub(crate) const DEFAULT_PORT: u16 = 5555;

/// Where a key comes from.
pub(crate) fn key_source(text: &str) -> Result<weir_control::model::KeySource, String> {
    text.parse().map_err(|e: weir_control::Error| format!("{e}; {}", e.hint))
}

/// A size in bytes: `4096`, `512k`, `10G`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// A time: `5s`, `500ms`, `1m`, `2h`; a number alone is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write it like 5s, 500ms, 2m or 1h");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = number
        * match unit {
            "" | "s" => 1.0,
            "us" => 1e-6,
            "ms" => 1e-3,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The address of a target: `HOST`, `HOST:PORT`, `[IPv6]:PORT`.
pub(crate) fn target(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    let named =
        if text.contains(':') { text.to_string() } else { format!("{text}:{DEFAULT_PORT}") };
    let mut found = named.to_socket_addrs().map_err(|e| {
        format!("`{text}` is no address ({e}); write HOST:PORT, e.g. 192.0.2.7:{DEFAULT_PORT}")
    })?;
    found.next().ok_or_else(|| format!("`{text}` has no address"))
}

/// A device: `file:PATH[:SIZE]`, `dir:PATH`, `block:PATH`, `ram:SIZE`, `null:SIZE`, `brp://HOST[:PORT]/VOLUME`, or just `/dev/…`.
pub(crate) fn device(text: &str) -> Result<DeviceSpec, String> {
    let wrong = |why: &str| {
        format!(
            "`{text}` is not a device: {why}; write file:PATH:SIZE, dir:PATH, block:PATH, ram:SIZE, null:SIZE or brp://HOST/VOLUME"
        )
    };
    let (kind, rest) = match text.split_once(':') {
        Some(("file", rest)) => (DeviceKind::File, rest),
        Some(("dir", rest)) => (DeviceKind::Dir, rest),
        Some(("block", rest)) => (DeviceKind::Block, rest),
        Some(("ram", rest)) => (DeviceKind::Ram, rest),
        Some(("null", rest)) => (DeviceKind::Null, rest),
        Some(("brp", _)) => (DeviceKind::Brp, text),
        _ if text.starts_with("/dev/") => (DeviceKind::Block, text),
        _ => return Err(wrong(&format!("it does not say what it is, e.g. file:{text}"))),
    };
    if rest.is_empty() {
        return Err(wrong("something is missing behind the colon"));
    }
    let (path, size) = match kind {
        DeviceKind::Ram | DeviceKind::Null => (None, Some(size(rest)?)),
        DeviceKind::File => match rest.rsplit_once(':').map(|(p, s)| (p, parse_size(s))) {
            Some((path, Ok(size))) if !path.is_empty() => (Some(path), Some(size)),
            _ => (Some(rest), None),
        },
        DeviceKind::Dir | DeviceKind::Block | DeviceKind::Brp => (Some(rest), None),
    };
    let path = match path {
        None => None,
        Some(at) if kind.is_remote() => {
            let address = at.parse::<RemoteAddress>();
            let address = address.map_err(|e| format!("{e}; {}", e.hint))?;
            Some(address.to_string())
        }
        Some(p) => Some(absolute(p).map_err(|e| wrong(&e))?),
    };
    Ok(DeviceSpec { kind, path, size })
}

/// The path of a device that is there, as it is or written as for pools.
pub(crate) fn device_path(text: &str) -> Result<PathBuf, String> {
    let named = ["file:", "block:"].iter().find_map(|kind| text.strip_prefix(kind));
    match named.unwrap_or(text) {
        "" => Err(format!("`{text}` names no device; write PATH, file:PATH or block:PATH")),
        path => Ok(path.into()),
    }
}

/// The path from the root, without `.` and doubled slashes; symbolic links stay.
fn absolute(path: &str) -> Result<String, String> {
    let full = std::path::absolute(Path::new(path)).map_err(|e| e.to_string())?;
    let plain: std::path::PathBuf = full.components().collect();
    plain.to_str().map(str::to_string).ok_or_else(|| "the path is not UTF-8".to_string())
}

/// `INDEX:SIZE`: a device of a pool and its new size.
pub(crate) fn grow(text: &str) -> Result<DeviceGrow, String> {
    let (device, bytes) = match text.split_once(':') {
        Some((device, bytes)) => (device, Some(bytes)),
        None => (text, None),
    };
    let device = device
        .parse()
        .map_err(|_| format!("`{device}` is not the number of a device, as in 0:200G or 0"))?;
    Ok(DeviceGrow { device, size: bytes.map(size).transpose()? })
}

/// A new size, absolute or, with `+` in front, to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewSize {
    /// This size.
    To(u64),
    /// So much more.
    By(u64),
}

/// Reads a [`NewSize`].
pub(crate) fn new_size(text: &str) -> Result<NewSize, String> {
    match text.strip_prefix('+') {
        Some(more) => Ok(NewSize::By(size(more)?)),
        None => Ok(NewSize::To(size(text)?)),
    }
}

/// `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl Switch {
    /// As a truth value.
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
}
