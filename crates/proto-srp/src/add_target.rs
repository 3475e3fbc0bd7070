//! The line that attaches a Linux host: what is written to `add_target` of its SRP initiator,
//! `/sys/class/infiniband_srp/srp-DEVICE-PORT/add_target`.
//!
//! Options of the RDMA/CM kind only (`dest=`); those of the IB/CM (`dgid`, `pkey`, `service_id`) name
//! no address and are refused with that explanation.
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use crate::port_id::PortId;

#[cfg(test)]
mod tests;

/// The options of one `add_target` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddTarget {
    /// `id_ext`: identifier extension of the target port.
    pub id_ext: u64,
    /// `ioc_guid`: GUID of the target port.
    pub ioc_guid: u64,
    /// `dest`: address and port of the target; IPv6 in brackets.
    pub dest: SocketAddr,
    /// `src`: the address of the host to connect from.
    pub src: Option<IpAddr>,
    /// `initiator_ext`: identifier extension of the initiator port. A `siw` host needs one of its own,
    /// since its GID leaves the rest of the initiator port identifier zero.
    pub initiator_ext: Option<u64>,
    /// `max_cmd_per_lun`: commands per logical unit, at least 1.
    pub max_cmd_per_lun: Option<u32>,
    /// `queue_size`: commands per channel, at least 1 (the host's default is 62).
    pub queue_size: Option<u32>,
    /// `cmd_sg_entries`: descriptors per command, 1 to 255 (default 12; 255 advised).
    pub cmd_sg_entries: Option<u32>,
    /// `allow_ext_sg`: 0 or 1; 1 lets tables be longer than what a command carries.
    pub allow_ext_sg: Option<u32>,
    /// `sg_tablesize`: segments per command, 1 to 2048.
    pub sg_tablesize: Option<u32>,
    /// `max_sect`: largest command in 512-byte sectors, at least 1 (default 1024).
    pub max_sect: Option<u32>,
    /// `tl_retry_count`: transport retries, 2 to 7.
    pub tl_retry_count: Option<u32>,
    /// `ch_count`: channels, at least 1.
    pub ch_count: Option<u32>,
}

/// Why a line is none that a Linux host would take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddTargetError {
    /// A mandatory option is not there.
    Missing(&'static str),
    /// An option is there twice.
    Duplicate(&'static str),
    /// A text that is no option, or one that this target does not need.
    Unknown(String),
    /// An option of the IB connection manager.
    IbCm(&'static str),
    /// An option with a value that it does not take.
    Value {
        /// The option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        wanted: &'static str,
    },
}

impl fmt::Display for AddTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddTargetError::Missing(o) => write!(f, "option {o}= is missing"),
            AddTargetError::Duplicate(o) => write!(f, "option {o}= is given twice"),
            AddTargetError::Unknown(t) => write!(f, "\"{t}\" is no option of add_target"),
            AddTargetError::IbCm(o) => {
                write!(f, "option {o}= belongs to the IB connection manager; give dest= instead")
            }
            AddTargetError::Value { option, value, wanted } => {
                write!(f, "{option}={value}: wanted {wanted}")
            }
        }
    }
}

impl std::error::Error for AddTargetError {}

/// Numeric options: name, smallest and largest value, and what that is in words. The host reads them
/// as signed 32-bit numbers.
const NUMBERS: [(&str, u32, u32, &str); 8] = [
    ("max_cmd_per_lun", 1, i32::MAX as u32, "a number of at least 1"),
    ("queue_size", 1, i32::MAX as u32, "a number of at least 1"),
    ("cmd_sg_entries", 1, 255, "a number from 1 to 255"),
    ("allow_ext_sg", 0, 1, "0 or 1"),
    ("sg_tablesize", 1, 2048, "a number from 1 to 2048"),
    ("max_sect", 1, i32::MAX as u32, "a number of at least 1"),
    ("tl_retry_count", 2, 7, "a number from 2 to 7"),
    ("ch_count", 1, i32::MAX as u32, "a number of at least 1"),
];

const HEX: &str = "1 to 16 hexadecimal digits";
const DEST: &str = "IPV4:PORT or [IPV6]:PORT of a host, port not 0";
const SRC: &str = "IPV4 or [IPV6] of the same family as dest";

impl AddTarget {
    /// With the mandatory options only.
    pub fn new(target: PortId, dest: SocketAddr) -> Self {
        AddTarget {
            id_ext: target.extension(),
            ioc_guid: target.guid(),
            dest,
            src: None,
            initiator_ext: None,
            max_cmd_per_lun: None,
            queue_size: None,
            cmd_sg_entries: None,
            allow_ext_sg: None,
            sg_tablesize: None,
            max_sect: None,
            tl_retry_count: None,
            ch_count: None,
        }
    }

    /// The target port identifier that the host will log in to.
    pub fn target(&self) -> PortId {
        PortId::new(self.id_ext, self.ioc_guid)
    }

    /// The line, checked. Without a newline.
    pub fn line(&self) -> Result<String, AddTargetError> {
        use fmt::Write as _;
        self.check()?;
        let mut s = format!(
            "id_ext={:016x},ioc_guid={:016x},dest={}",
            self.id_ext, self.ioc_guid, self.dest
        );
        // Writing to a String cannot fail.
        match self.src {
            Some(IpAddr::V4(a)) => _ = write!(s, ",src={a}"),
            Some(IpAddr::V6(a)) => _ = write!(s, ",src=[{a}]"),
            None => {}
        }
        if let Some(e) = self.initiator_ext {
            _ = write!(s, ",initiator_ext={e:016x}");
        }
        for ((name, ..), value) in NUMBERS.iter().zip(self.numbers()) {
            if let Some(n) = value {
                _ = write!(s, ",{name}={n}");
            }
        }
        Ok(s)
    }

    /// The shell command that attaches a host through its RDMA device and port.
    pub fn command(&self, device: &str, port: u32) -> Result<String, AddTargetError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if device.is_empty() || !device.bytes().all(plain) {
            let wanted = "the name of an RDMA device, such as siw0";
            return Err(AddTargetError::Value { option: "device", value: device.into(), wanted });
        }
        let line = self.line()?;
        Ok(format!("echo {line} > /sys/class/infiniband_srp/srp-{device}-{port}/add_target"))
    }

    /// Values in the order of [`NUMBERS`].
    fn numbers(&self) -> [Option<u32>; NUMBERS.len()] {
        [
            self.max_cmd_per_lun,
            self.queue_size,
            self.cmd_sg_entries,
            self.allow_ext_sg,
            self.sg_tablesize,
            self.max_sect,
            self.tl_retry_count,
            self.ch_count,
        ]
    }

    /// Whether a host would take these options.
    pub fn check(&self) -> Result<(), AddTargetError> {
        let bad =
            |option, value: String, wanted| Err(AddTargetError::Value { option, value, wanted });
        let ip = self.dest.ip();
        if self.dest.port() == 0 || ip.is_unspecified() || ip.is_multicast() {
            return bad("dest", self.dest.to_string(), DEST);
        }
        if let Some(src) = self.src
            && src.is_ipv4() != ip.is_ipv4()
        {
            return bad("src", src.to_string(), SRC);
        }
        for (&(option, min, max, wanted), value) in NUMBERS.iter().zip(self.numbers()) {
            if let Some(n) = value
                && !(min..=max).contains(&n)
            {
                return bad(option, n.to_string(), wanted);
            }
        }
        Ok(())
    }
}

/// A field that an option sets once.
fn once<T>(slot: &mut Option<T>, option: &'static str, value: T) -> Result<(), AddTargetError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(AddTargetError::Duplicate(option)),
    }
}

fn hex(option: &'static str, value: &str) -> Result<u64, AddTargetError> {
    let digits = value.strip_prefix("0x").or(value.strip_prefix("0X")).unwrap_or(value);
    if (1..=16).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && let Ok(n) = u64::from_str_radix(digits, 16)
    {
        return Ok(n);
    }
    Err(AddTargetError::Value { option, value: value.into(), wanted: HEX })
}

fn parse_src(value: &str) -> Option<IpAddr> {
    match value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => value.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

impl FromStr for AddTarget {
    type Err = AddTargetError;

    fn from_str(s: &str) -> Result<Self, AddTargetError> {
        let (mut id_ext, mut ioc_guid, mut dest, mut src, mut initiator_ext) =
            (None, None, None, None, None);
        let mut numbers = [None; NUMBERS.len()];
        for part in s.split([',', '\n']).filter(|p| !p.is_empty()) {
            let unknown = || AddTargetError::Unknown(part.into());
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let bad =
                |option, wanted| AddTargetError::Value { option, value: value.into(), wanted };
            match name {
                "id_ext" => once(&mut id_ext, "id_ext", hex("id_ext", value)?)?,
                "ioc_guid" => once(&mut ioc_guid, "ioc_guid", hex("ioc_guid", value)?)?,
                "initiator_ext" => {
                    let n = hex("initiator_ext", value)?;
                    once(&mut initiator_ext, "initiator_ext", n)?;
                }
                "dest" => {
                    let a: SocketAddr = value.parse().map_err(|_| bad("dest", DEST))?;
                    once(&mut dest, "dest", a)?;
                }
                "src" => {
                    let a = parse_src(value).ok_or_else(|| bad("src", SRC))?;
                    once(&mut src, "src", a)?;
                }
                "dgid" => return Err(AddTargetError::IbCm("dgid")),
                "pkey" => return Err(AddTargetError::IbCm("pkey")),
                "service_id" => return Err(AddTargetError::IbCm("service_id")),
                _ => {
                    let i = NUMBERS.iter().position(|n| n.0 == name).ok_or_else(unknown)?;
                    let (option, _, _, wanted) = NUMBERS[i];
                    let n: u32 = value.parse().map_err(|_| bad(option, wanted))?;
                    once(&mut numbers[i], option, n)?;
                }
            }
        }
        let missing = AddTargetError::Missing;
        let [
            max_cmd_per_lun,
            queue_size,
            cmd_sg_entries,
            allow_ext_sg,
            sg_tablesize,
            max_sect,
            tl_retry_count,
            ch_count,
        ] = numbers;
        let t = AddTarget {
            id_ext: id_ext.ok_or(missing("id_ext"))?,
            ioc_guid: ioc_guid.ok_or(missing("ioc_guid"))?,
            dest: dest.ok_or(missing("dest"))?,
            src,
            initiator_ext,
            max_cmd_per_lun,
            queue_size,
            cmd_sg_entries,
            allow_ext_sg,
            sg_tablesize,
            max_sect,
            tl_retry_count,
            ch_count,
        };
        t.check()?;
        Ok(t)
    }
}
