//! `weir inquiry`, `read`, `write` and `copy`: tools of the initiator side, for any SRP target.

use crate::cli::parse;
use clap::{Args, ValueEnum};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_control::model::{Hex64, InitiatorId};
use weir_control::{Code, Error};

/// Which fabric to reach the target by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fabric {
    /// iWARP in user space over TCP.
    Iwarp,
    /// An RDMA adapter by way of the verbs library.
    Verbs,
}

/// How to log in to a target. The same for every tool.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoginArgs {
    /// Fabric to reach the target by.
    #[arg(
        long,
        visible_alias = "transport",
        value_enum,
        default_value = "iwarp",
        help_heading = "Login"
    )]
    pub(crate) fabric: Fabric,
    /// First half of the target port identifier [default: whatever the target has, where it allows that].
    #[arg(long, value_name = "HEX", help_heading = "Login")]
    pub(crate) id_ext: Option<Hex64>,
    /// Second half of the target port identifier [default: as above].
    #[arg(long, value_name = "HEX", help_heading = "Login")]
    pub(crate) ioc_guid: Option<Hex64>,
    /// Initiator port to log in as [default: made from machine and process].
    #[arg(long, value_name = "EXT:GUID", help_heading = "Login")]
    pub(crate) initiator_port: Option<InitiatorId>,
    /// RDMA channels [default: the number of cores, at most 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Login")]
    pub(crate) channels: Option<u16>,
    /// Ask for MPA's CRC on the iWARP stream.
    #[arg(long, help_heading = "Login")]
    pub(crate) crc: bool,
    /// Give up a command that takes longer.
    #[arg(long, default_value = "30s", value_parser = parse::duration, value_name = "TIME", help_heading = "Login")]
    pub(crate) timeout: Duration,
}

/// How commands use several paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// One path at a time, the others when it fails.
    ActivePassive,
    /// All of the best paths in turn.
    RoundRobin,
}

/// Which LUN of which target.
#[derive(Debug, Clone, Args)]
pub(crate) struct LunArgs {
    /// The target's address, HOST or HOST:PORT (5555). Repeated: further paths to the same unit.
    #[arg(long, short, value_parser = parse::target, value_name = "ADDRESS", required = true)]
    pub(crate) target: Vec<SocketAddr>,
    /// The LUN, on the first path that is there [default: 0, or that of --volume].
    #[arg(long, short, value_parser = clap::value_parser!(u16).range(..=16383), conflicts_with = "volume")]
    pub(crate) lun: Option<u16>,
    /// The volume's name; its LUN is found by asking the target.
    #[arg(long, short)]
    pub(crate) volume: Option<String>,
}

impl LunArgs {
    /// The unit.
    pub(crate) fn wanted(&self) -> crate::run::Wanted<'_> {
        crate::run::Wanted { targets: &self.target, lun: self.lun, volume: self.volume.as_deref() }
    }
}

/// `weir inquiry`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir inquiry --target 192.0.2.7\n  weir inquiry --target 192.0.2.7 --lun 3 --page 0x83\n  \
    weir inquiry --target 192.0.2.7 --all --json"
)]
pub(crate) struct InquiryArgs {
    #[command(flatten)]
    pub(crate) lun: LunArgs,
    /// Every LUN that the target reports.
    #[arg(long, conflicts_with_all = ["lun", "volume"])]
    pub(crate) all: bool,
    /// A vital product data page, e.g. 0x83 [default: standard data and all pages that are known].
    #[arg(long, value_parser = page, value_name = "PAGE")]
    pub(crate) page: Option<u8>,
    /// Print the bytes instead of their meaning.
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

fn page(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_suffix('h')).unwrap_or(text);
    u8::from_str_radix(digits, 16)
        .map_err(|_| format!("`{text}` is not a page; write two hexadecimal digits, e.g. 0x83"))
}

/// `weir read`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir read --target 192.0.2.7 --volume db-01 --length 1M > first-megabyte\n  \
    weir read --target 192.0.2.7 --lun 0 --offset 4k --length 512 --hex\n  \
    weir read --target 192.0.2.7 --target 192.0.3.7 --volume db-01 --output disk.img"
)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) lun: LunArgs,
    /// First byte, a multiple of the block size.
    #[arg(long, default_value = "0", value_parser = parse::size)]
    pub(crate) offset: u64,
    /// How many bytes, a multiple of the block size [default: to the end].
    #[arg(long, value_parser = parse::size)]
    pub(crate) length: Option<u64>,
    /// Where to put them; `-` is standard output.
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Print them in hexadecimal instead.
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// From the global `--json`: a summary on standard output, so `--output` must be a file.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// `weir write`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir write --target 192.0.2.7 --volume db-01 --input disk.img\n  \
    weir write --target 192.0.2.7 --lun 0 --offset 1M --zero --length 1M"
)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) lun: LunArgs,
    /// First byte, a multiple of the block size.
    #[arg(long, default_value = "0", value_parser = parse::size)]
    pub(crate) offset: u64,
    /// How many bytes at most [default: all of the input].
    #[arg(long, value_parser = parse::size)]
    pub(crate) length: Option<u64>,
    /// Where they come from; `-` is standard input. The last block is filled up with zeroes.
    #[arg(long, short, default_value = "-", value_name = "FILE", conflicts_with = "zero")]
    pub(crate) input: PathBuf,
    /// Write zeroes.
    #[arg(long, requires = "length")]
    pub(crate) zero: bool,
    /// Read back and compare.
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// How many bytes per command, how many commands at once.
#[derive(Debug, Clone, Args)]
pub(crate) struct FlowArgs {
    /// Bytes per command.
    #[arg(long, default_value = "256k", value_parser = parse::size)]
    pub(crate) bs: u64,
    /// With several addresses: how they are used.
    #[arg(long, value_enum, default_value = "active-passive", value_name = "POLICY")]
    pub(crate) multipath: Policy,
    /// Commands in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) iodepth: u32,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A LUN of a target: `srp://HOST:PORT/LUN`, with several addresses between commas if there are several paths.
    Lun(Vec<SocketAddr>, u16),
    /// A volume of a target: `srp://HOST:PORT/NAME`.
    Volume(Vec<SocketAddr>, String),
    /// A file or block device.
    File(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let Some(rest) = text.strip_prefix("srp://") else {
            if text.is_empty() || text == "-" || text.contains("://") {
                return Err(format!("`{text}` is neither a file nor srp://HOST[:PORT]/LUN"));
            }
            return Ok(Place::File(text.into()));
        };
        let (host, unit) = rest
            .split_once('/')
            .filter(|(h, u)| !h.is_empty() && !u.is_empty())
            .ok_or_else(|| format!("`{text}` lacks a part; write srp://HOST[:PORT]/LUN"))?;
        let target = host.split(',').map(parse::target).collect::<Result<Vec<_>, _>>()?;
        match unit.parse::<u16>() {
            Ok(lun) if lun <= 16383 => Ok(Place::Lun(target, lun)),
            Ok(lun) => Err(format!("{lun} cannot be a LUN; the largest is 16383")),
            // A name of digits only cannot be told from a LUN; such a volume is named by its LUN.
            Err(_) if unit.bytes().all(|b| b.is_ascii_digit()) => {
                Err(format!("{unit} cannot be a LUN; the largest is 16383"))
            }
            Err(_) => Ok(Place::Volume(target, unit.to_string())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Lun(target, lun) => write!(f, "srp://{}/{lun}", addresses(target)),
            Place::Volume(target, name) => write!(f, "srp://{}/{name}", addresses(target)),
            Place::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Addresses between commas.
pub(crate) fn addresses(all: &[SocketAddr]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(",")
}

/// `weir copy`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir copy disk.img srp://192.0.2.7/db-01\n  \
    weir copy srp://192.0.2.7/0 srp://192.0.2.8:5555/0 --verify\n  \
    weir copy srp://192.0.2.7,192.0.3.7/db-01 disk.img")]
pub(crate) struct CopyArgs {
    /// From: a file, a block device, srp://HOST:PORT/LUN or srp://HOST:PORT/VOLUME;
    /// HOST:PORT,HOST:PORT for several paths.
    pub(crate) source: Place,
    /// To: the same.
    pub(crate) destination: Place,
    /// How many bytes [default: all of the source].
    #[arg(long, value_parser = parse::size)]
    pub(crate) length: Option<u64>,
    /// First byte at the source.
    #[arg(long, default_value = "0", value_parser = parse::size)]
    pub(crate) source_offset: u64,
    /// First byte at the destination.
    #[arg(long, default_value = "0", value_parser = parse::size)]
    pub(crate) destination_offset: u64,
    /// Do not write blocks of zeroes but unmap them; the destination must read as zeroes there.
    #[arg(long)]
    pub(crate) sparse: bool,
    /// Read back and compare.
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

impl CopyArgs {
    /// What the parser cannot see.
    pub(crate) fn check(&self) -> weir_control::Result<()> {
        if self.source == self.destination {
            return Err(Error::new(Code::InvalidRequest, "source and destination are the same")
                .because(format!("both are {}", self.source))
                .hint("name another destination"));
        }
        if let (Place::File(_), Place::File(_)) = (&self.source, &self.destination) {
            return Err(Error::new(Code::InvalidRequest, "neither end is on a target")
                .because("`weir copy` is for LUNs of SRP targets")
                .hint("use `cp` or `dd`, or name one end as srp://HOST[:PORT]/LUN"));
        }
        Ok(())
    }
}
