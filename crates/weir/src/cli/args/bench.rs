//! `weir bench`, with fio's vocabulary.

use super::{LoginArgs, Policy, PollMode};
use crate::cli::parse;
use crate::run::cores;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_control::{Code, Error};

/// Which initiator makes the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Initiator {
    /// SRP.
    Srp,
    /// BRP, without a SCSI layer.
    Brp,
}

/// When commands of BRP share a message (S1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrpVariant {
    /// When the initiator has learned that it is faster.
    Auto,
    /// Never, and the target runs one command at a time.
    #[value(name = "brp-1")]
    Brp1,
    /// Never.
    #[value(name = "brp-2")]
    Brp2,
    /// Always.
    #[value(name = "brp-3t")]
    Brp3t,
    /// From a fixed number of commands in flight on.
    #[value(name = "brp-3")]
    Brp3,
}

/// What the I/Os are, in fio's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadWrite {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Sequential reads and writes mixed.
    #[value(name = "rw", alias = "readwrite")]
    Rw,
    /// Random reads and writes mixed.
    Randrw,
    /// Sequential unmaps.
    Trim,
    /// Random unmaps.
    Randtrim,
    /// Commands without data (TEST UNIT READY).
    Nop,
}

/// How written data is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// Every block carries its address, a counter and a CRC32C; reads check it.
    Crc32c,
    /// Every block is a pattern made from its address; reads compare it.
    Pattern,
}

/// How the initiator hands commands to channels (S3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueMode {
    /// One queue per core.
    Multi,
    /// One queue and one lock for all, for comparison.
    Single,
}

/// `weir bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  weir bench --target 192.0.2.7 --volume fast --rw randread --bs 4k --iodepth 32 --runtime 5s\n  \
        weir bench --target 192.0.2.7 --volume db-01 --rw write --bs 1M --verify crc32c --size 1G --json\n  \
        weir bench --target 192.0.2.7 --target 192.0.3.7 --multipath round-robin --volume db-01\n  \
        weir bench scenario --list\n\nWriting destroys the data of the volume. JSON fields are named as fio names them."
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    /// Initiator that makes the load.
    #[arg(long, value_enum, default_value = "srp")]
    pub(crate) initiator: Initiator,
    /// The target's address, HOST or HOST:PORT (5555, where BRP takes the 5556 next to it). Repeated: further addresses of the same target port,
    /// over which the session's channels are spread; with --multipath further paths to the same volume.
    #[arg(long, short, value_parser = parse::target, value_name = "ADDRESS", required = true)]
    pub(crate) target: Vec<SocketAddr>,
    /// File with the secret of this host, with --initiator brp (docs/security.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Log in at each --target and use these paths to the volume, which may be on different targets: one
    /// at a time, or in turn. When one fails, its commands go over the others.
    #[arg(long, value_enum, value_name = "POLICY", num_args = 0..=1, default_missing_value = "active-passive")]
    pub(crate) multipath: Option<Policy>,
    /// The volume's name; its LUN is found by asking the target. May be repeated: the load is spread over all.
    #[arg(long, short, required_unless_present = "lun")]
    pub(crate) volume: Vec<String>,
    /// The LUN, instead of a volume's name. May be repeated.
    #[arg(long, value_parser = clap::value_parser!(u16).range(..=16383), conflicts_with = "volume")]
    pub(crate) lun: Vec<u16>,
    /// Name of the job in the output.
    #[arg(long, default_value = "bench")]
    pub(crate) name: String,

    /// What the I/Os are.
    #[arg(
        long,
        alias = "readwrite",
        value_enum,
        default_value = "randread",
        help_heading = "Load"
    )]
    pub(crate) rw: ReadWrite,
    /// Bytes per I/O.
    #[arg(long, visible_alias = "blocksize", default_value = "4k", value_parser = parse::size, help_heading = "Load")]
    pub(crate) bs: u64,
    /// I/Os in flight per job.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Load")]
    pub(crate) iodepth: u32,
    /// Jobs, each on a thread and with I/Os in flight of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Load")]
    pub(crate) numjobs: u32,
    /// Reads among mixed I/Os, in percent.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(..=100), help_heading = "Load")]
    pub(crate) rwmixread: u8,
    /// First byte of the range that is used.
    #[arg(long, default_value = "0", value_parser = parse::size, help_heading = "Load")]
    pub(crate) offset: u64,
    /// Length of the range that is used [default: to the end]; each job ends when it has moved so much, unless
    /// --time-based says otherwise.
    #[arg(long, value_parser = parse::size, help_heading = "Load")]
    pub(crate) size: Option<u64>,
    /// Bytes per second that each job may move.
    #[arg(long, value_parser = parse::size, help_heading = "Load")]
    pub(crate) rate: Option<u64>,
    /// I/Os per second that each job may make.
    #[arg(long, alias = "rate_iops", help_heading = "Load")]
    pub(crate) rate_iops: Option<u64>,
    /// Start of the random sequence; the same seed gives the same I/Os.
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    pub(crate) randseed: u64,
    /// Write what can be checked, and check what is read.
    #[arg(long, value_enum, help_heading = "Load")]
    pub(crate) verify: Option<Verify>,

    /// How long to measure [default: 10s, or until --size is done when that is given].
    #[arg(long, value_parser = parse::duration, help_heading = "Time")]
    pub(crate) runtime: Option<Duration>,
    /// Begin again at the end of --size until --runtime is over.
    #[arg(long, alias = "time_based", requires = "runtime", help_heading = "Time")]
    pub(crate) time_based: bool,
    /// Load before the measurement.
    #[arg(long, alias = "ramp_time", default_value = "0", value_parser = parse::duration, help_heading = "Time")]
    pub(crate) ramp_time: Duration,

    /// How commands reach the channels.
    #[arg(
        long,
        alias = "queue_mode",
        value_enum,
        default_value = "multi",
        help_heading = "Initiator"
    )]
    pub(crate) queue_mode: QueueMode,
    /// When commands share a message; for `--initiator brp`.
    #[arg(long, value_enum, default_value = "auto", help_heading = "Initiator")]
    pub(crate) variant: BrpVariant,
    /// Without checksums of messages and data; for `--initiator brp`.
    #[arg(long, help_heading = "Initiator")]
    pub(crate) no_integrity: bool,
    /// Largest I/O whose data travels in messages instead of by RDMA; for `--initiator brp`.
    #[arg(long, value_parser = parse::size, value_name = "SIZE", help_heading = "Initiator")]
    pub(crate) inline: Option<u64>,
    /// How jobs wait for answers. `busy` keeps a core each, also while the target is away.
    #[arg(long, value_enum, default_value = "adaptive", help_heading = "Initiator")]
    pub(crate) poll: PollMode,
    /// Processor cores of the jobs, e.g. 1,3.
    #[arg(
        long,
        alias = "cpus_allowed",
        value_delimiter = ',',
        value_name = "LIST",
        help_heading = "Initiator"
    )]
    pub(crate) cores: Vec<u16>,

    /// Write the JSON result to a file as well.
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Draw IOPS and latency over time into an SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) svg: Option<PathBuf>,
    /// Percentiles of the latency to give.
    #[arg(
        long,
        alias = "percentile_list",
        value_delimiter = ',',
        default_value = "1,5,10,20,30,40,50,60,70,80,90,95,99,99.5,99.9,99.95,99.99",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub(crate) percentile_list: Vec<f64>,

    #[command(flatten)]
    pub(crate) login: LoginArgs,

    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// What else `weir bench` does.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Redraw a figure of the founding documents, with a target started for it unless --target is given.
    Scenario(ScenarioArgs),
}

/// `weir bench scenario`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir bench scenario --list\n  weir bench scenario s0-fig5 --out docs/benchmarks"
)]
pub(crate) struct ScenarioArgs {
    /// The scenario.
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// List the scenarios.
    #[arg(long)]
    pub(crate) list: bool,
    /// Directory for the page and its figures.
    #[arg(long, default_value = "docs/benchmarks", value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Time per point of a figure.
    #[arg(long, default_value = "2s", value_parser = parse::duration)]
    pub(crate) runtime: Duration,
    /// Measurements per point; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeat: u32,
    /// Measure this target instead of one started for the purpose.
    #[arg(long, short, value_parser = parse::target, value_name = "ADDRESS")]
    pub(crate) target: Option<SocketAddr>,

    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

impl BenchArgs {
    /// What the parser cannot see.
    pub(crate) fn check(&self) -> weir_control::Result<()> {
        let wrong = |message: &str| Error::new(Code::InvalidRequest, message);
        let runtime = match &self.command {
            Some(BenchCommand::Scenario(s)) => Some(s.runtime),
            None => self.runtime,
        };
        if runtime.is_some_and(|t| t.is_zero()) {
            return Err(wrong("--runtime is no time at all")
                .because("nothing would be measured")
                .hint("give it some, e.g. --runtime 10s"));
        }
        if self.command.is_some() {
            return Ok(());
        }
        cores::check(&self.cores, Code::InvalidRequest)?;
        if self.bs == 0 || !self.bs.is_multiple_of(512) || self.bs > 64 << 20 {
            return Err(wrong("--bs is not a size that a command can have")
                .because(format!("it is {} bytes", self.bs))
                .hint("use a multiple of 512 up to 64M"));
        }
        if self.size.is_some_and(|s| s < self.bs) {
            return Err(wrong("--size is smaller than --bs").hint("use a larger --size"));
        }
        if let Some(p) = self.percentile_list.iter().find(|p| !(0.0..=100.0).contains(*p)) {
            return Err(wrong("--percentile-list has something that is no percentile")
                .because(format!("{p} is not between 0 and 100"))
                .hint("write e.g. 50,99,99.9"));
        }
        if self.verify == Some(Verify::Crc32c) && !self.bs.is_multiple_of(4096) && self.bs != 512 {
            return Err(wrong("--verify crc32c needs whole blocks")
                .because(format!("--bs is {} bytes", self.bs))
                .hint("use 512 or a multiple of 4k"));
        }
        if matches!(self.rw, ReadWrite::Nop) && self.verify.is_some() {
            return Err(
                wrong("commands without data cannot be verified").hint("leave --verify out")
            );
        }
        Ok(())
    }
}
