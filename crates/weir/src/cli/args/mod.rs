//! Arguments of the commands that need the data path, for `crate::run`.

mod attach;
mod bench;
mod offline;
mod tools;

pub(crate) use attach::*;
pub(crate) use bench::*;
pub(crate) use offline::*;
pub(crate) use tools::*;

use super::parse;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use weir_control::config::{Config, Poll};
use weir_control::{Code, Error};

/// How reactors wait for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PollMode {
    /// Poll while there is work, sleep when there is none.
    Adaptive,
    /// Always poll.
    Busy,
    /// Sleep whenever there is nothing to do at once.
    Sleep,
}

impl From<PollMode> for Poll {
    fn from(mode: PollMode) -> Poll {
        match mode {
            PollMode::Adaptive => Poll::Adaptive,
            PollMode::Busy => Poll::Busy,
            PollMode::Sleep => Poll::Sleep,
        }
    }
}

/// `weir serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir serve --config /etc/weir.toml\n  \
    weir serve --data-dir /var/lib/weir --listen 0.0.0.0:5555\n\nOptions given here win over the file. \
    The daemon's data directory is --data-dir, else `data_dir` in the file, else ./weir-data.")]
pub(crate) struct ServeArgs {
    /// Configuration file; docs/examples/weir.toml shows every key.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of the target port srp0, IP:PORT. May be repeated.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<SocketAddr>,
    /// TCP address for the REST interface, besides the socket in the data directory. Clients there send a token.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) api_tcp: Option<SocketAddr>,
    /// File with the token of TCP clients; left out: api.token in the data directory, made when it is not there.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_token_file: Option<PathBuf>,
    /// The same for TCP clients that may only look; left out: api-read.token in the data directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_read_token_file: Option<PathBuf>,
    /// Processor cores that get a reactor, e.g. 2,3.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) cores: Vec<u16>,
    /// Memory for I/O buffers, all cores together.
    #[arg(long, value_parser = parse::size, value_name = "SIZE")]
    pub(crate) buffer_memory: Option<u64>,
    /// How reactors wait for work.
    #[arg(long, value_enum)]
    pub(crate) poll: Option<PollMode>,
    /// Make the configuration store anew of its readable copy, config.json, where it is gone or damaged. Persistent
    /// reservations are in no copy; those of protected pools are on their devices.
    #[arg(long, value_name = "FILE")]
    pub(crate) restore_from: Option<PathBuf>,
    /// Also end, in order, when standard input is closed: for a program that starts a daemon through a pipe and
    /// must not leave it behind, however that program ends.
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
    /// Only to measure what checksums cost: data of this pool, which must be a new one, gets none, and can not be read by any other
    /// daemon. May be repeated.
    #[arg(long, hide = true, value_name = "POOL")]
    pub(crate) measure_without_checksums: Vec<String>,
    /// From the global `--data-dir`.
    #[arg(skip)]
    pub(crate) data_dir: Option<PathBuf>,
    /// It is on the command line, not in the environment only.
    #[arg(skip)]
    pub(crate) dir_is_meant: bool,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

impl ServeArgs {
    /// The configuration: defaults, then the file, then the command line.
    pub(crate) fn config(&self) -> weir_control::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => Config::default(),
        };
        if let Some(dir) = &self.data_dir {
            let is = |other: &Path| std::path::absolute(other).is_ok_and(|o| o == config.data_dir);
            // What the file does not name is as it is without one.
            let named = self.config.is_some() && !is(&Config::default().data_dir);
            if named && !self.dir_is_meant && !is(dir) {
                return Err(two_dirs(dir, &config.data_dir));
            }
            config.data_dir = dir.clone();
        }
        if !self.listen.is_empty() {
            config.targets.clear();
            config.listen = self.listen.iter().map(ToString::to_string).collect();
        }
        if self.api_tcp.is_some() {
            config.api.tcp = self.api_tcp;
        }
        if self.api_token_file.is_some() {
            config.api.token_file = self.api_token_file.clone();
        }
        if self.api_read_token_file.is_some() {
            config.api.read_token_file = self.api_read_token_file.clone();
        }
        if !self.cores.is_empty() {
            config.cores = self.cores.clone();
        }
        config.buffer_memory = self.buffer_memory.unwrap_or(config.buffer_memory);
        config.poll = self.poll.map_or(config.poll, Into::into);
        config.check()
    }
}

/// Clients go by the environment; a daemon that did so silently would begin anew where nothing is.
fn two_dirs(environment: &Path, file: &Path) -> Error {
    Error::new(Code::InvalidConfig, "two data directories are named")
        .because(format!(
            "WEIR_DATA_DIR is {}, and `data_dir` in the file {}",
            environment.display(),
            file.display()
        ))
        .hint("unset WEIR_DATA_DIR, or say with --data-dir which is meant")
}

/// `weir quickstart`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir quickstart\n  weir quickstart --once --json\n\n\
    Makes a pool on a sparse file and a volume in the data directory (--data-dir, default ./weir-data), serves it, \
    attaches to it over SRP, writes and verifies data, measures, says how other hosts attach, and serves until Ctrl-C. \
    Started again, it finds the data of before. --once ends after the measurement, with exit code 0 only if every \
    byte was verified.")]
pub(crate) struct QuickstartArgs {
    /// End after verification and benchmark instead of serving on.
    #[arg(long)]
    pub(crate) once: bool,
    /// Address to serve on; port 0 takes any free port. Without it: as the node has it, or 0.0.0.0:5555 if it is new.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Size of the volume.
    #[arg(long, default_value = "1G", value_parser = parse::size)]
    pub(crate) size: u64,
    /// How much to write and verify; at most the volume's size.
    #[arg(long, default_value = "64M", value_parser = parse::size, value_name = "SIZE")]
    pub(crate) verify_size: u64,
    /// How long the benchmark runs.
    #[arg(long, default_value = "3s", value_parser = parse::duration)]
    pub(crate) runtime: std::time::Duration,
    /// Processor cores that get a reactor, e.g. 0,1.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) cores: Vec<u16>,
    /// From the global `--data-dir`; none: `weir-data` in the working directory.
    #[arg(skip)]
    pub(crate) data_dir: Option<PathBuf>,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}
