//! The configuration file of `weir serve`.

use crate::declare::Desired;
use crate::error::{Code, Error, Result};
use crate::model::{
    HostSecret, HostSpec, InitiatorId, KeySource, MapSpec, PoolSpec, Protocol, TargetSpec,
    VolumeSpec,
};
use crate::units;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

mod tokens;

pub use tokens::{READ_TOKEN, TOKEN, Tokens, token};

/// How reactors wait for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Poll while there is work, sleep when there is none.
    #[default]
    Adaptive,
    /// Always poll: lowest latency, whole cores.
    Busy,
    /// Sleep whenever there is nothing to do at once.
    Sleep,
}

/// The REST interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// TCP address to offer it on, besides the Unix socket in the data directory.
    pub tcp: Option<SocketAddr>,
    /// File with the token that TCP clients must send (`Authorization: Bearer …`), also on a loopback address. Left out:
    /// `api.token` in the data directory, which is made when it is not there.
    pub token_file: Option<PathBuf>,
    /// The same for clients that may only look (role *read*); `api-read.token`.
    pub read_token_file: Option<PathBuf>,
}

/// The file. Every key is optional; an unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the node keeps its configuration.
    pub data_dir: PathBuf,
    /// Addresses of the target port `srp0` (SRP); `brp0` speaks BRP at the same addresses and the next port. For more ports or more settings use `[[target]]` instead.
    pub listen: Vec<String>,
    /// Processor cores that get a reactor; empty: one core for every two that the machine has.
    pub cores: Vec<u16>,
    /// Memory for I/O buffers in bytes, all cores together.
    #[serde(deserialize_with = "units::size")]
    pub buffer_memory: u64,
    /// How reactors wait for work.
    pub poll: Poll,
    /// The REST interface.
    pub api: Api,
    /// As whom the node logs in at other nodes whose volumes its pools use. Left out: a number made of this machine and the data
    /// directory; `weir status` shows it.
    pub initiator_port: Option<InitiatorId>,
    /// File with the secret that the node proves there, where a host with one is asked for it.
    pub initiator_secret_file: Option<PathBuf>,
    /// What was read of that file.
    #[serde(skip)]
    pub initiator_secret: Option<HostSecret>,
    /// Commands that give keys of encrypted volumes: a program and its first arguments each. No others are run, whoever
    /// asks; those of volumes in this file need not be listed.
    pub key_commands: Vec<String>,
    /// Target ports.
    #[serde(rename = "target")]
    pub targets: Vec<TargetSpec>,
    /// Pools. Device paths that are not absolute begin at the data directory.
    #[serde(rename = "pool")]
    pub pools: Vec<PoolSpec>,
    /// Volumes.
    #[serde(rename = "volume")]
    pub volumes: Vec<VolumeSpec>,
    /// Hosts.
    #[serde(rename = "host")]
    pub hosts: Vec<HostSpec>,
    /// Mappings.
    #[serde(rename = "map")]
    pub maps: Vec<MapSpec>,
}

/// Where a target port listens unless it is told otherwise.
pub const DEFAULT_LISTEN: &str = "0.0.0.0:5555";
/// The data directory unless it is told otherwise, from where the daemon was started.
pub const DEFAULT_DATA_DIR: &str = "weir-data";
/// Name of the target port that `listen` stands for.
pub const DEFAULT_TARGET: &str = "srp0";
/// Name of the target port that speaks BRP next to it, at the same addresses and the next port.
pub const DEFAULT_BRP_TARGET: &str = "brp0";
/// Least memory for buffers in bytes.
pub const MIN_BUFFER_MEMORY: u64 = 16 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            data_dir: DEFAULT_DATA_DIR.into(),
            listen: Vec::new(),
            cores: Vec::new(),
            buffer_memory: 256 << 20,
            poll: Poll::default(),
            api: Api::default(),
            initiator_port: None,
            initiator_secret_file: None,
            initiator_secret: None,
            key_commands: Vec::new(),
            targets: Vec::new(),
            pools: Vec::new(),
            volumes: Vec::new(),
            hosts: Vec::new(),
            maps: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(
                Code::InvalidConfig,
                format!("the configuration file {} cannot be read", path.display()),
            )
            .because(e)
            .hint("check the path, and that it is yours to read")
        })?;
        let mut config = Config::parse(&text)
            .map_err(|e| Error { message: format!("{} in {}", e.message, path.display()), ..e })?;
        let dir = path.parent().unwrap_or(Path::new("."));
        if let Some(file) = config.initiator_secret_file.take() {
            config.initiator_secret = Some(HostSecret::read(&dir.join(file))?);
        }
        for host in &mut config.hosts {
            if let Some(file) = host.secret_file.take() {
                host.secret = Some(HostSecret::read(&dir.join(file))?);
            }
        }
        Ok(config)
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text).map_err(|e| {
            Error::new(Code::InvalidConfig, "wrong configuration")
                .because(e.to_string().trim_end())
                .hint("docs/examples/weir.toml shows every key")
        })?;
        config.check()
    }

    /// Checks what the types do not say and makes paths absolute. Must be called after fields were changed by hand.
    pub fn check(mut self) -> Result<Config> {
        let wrong = |message: &str| Error::new(Code::InvalidConfig, message);
        if !self.listen.is_empty() && !self.targets.is_empty() {
            return Err(wrong("`listen` and `[[target]]` are both given")
                .because("`listen` is short for a single target port")
                .hint("move the addresses into a `[[target]]`"));
        }
        if self.buffer_memory < MIN_BUFFER_MEMORY {
            return Err(wrong("`buffer_memory` is too small")
                .because(format!("it is {}", units::format_size(self.buffer_memory)))
                .hint(format!("give at least {}", units::format_size(MIN_BUFFER_MEMORY))));
        }
        if let Some(memory) = machine_memory().filter(|m| self.buffer_memory > *m) {
            let [wanted, has] = [self.buffer_memory, memory].map(units::format_size);
            return Err(wrong("`buffer_memory` is more than the machine has")
                .because(format!("it is {wanted}, and there are {has}"))
                .hint("leave some for all else: give less"));
        }
        let mut cores = self.cores.clone();
        cores.sort_unstable();
        if cores.windows(2).any(|w| w[0] == w[1]) {
            return Err(wrong("`cores` names a core twice").hint("name each core once"));
        }
        if let Some(line) = self.key_commands.iter().find(|l| !l.starts_with('/')) {
            return Err(wrong("`key_commands` has a program without its path")
                .because(format!("`{}` does not begin with `/`", line.escape_debug()))
                .hint("write the whole path of the program"));
        }
        self.data_dir = std::path::absolute(&self.data_dir)
            .map_err(|e| wrong("`data_dir` is not a path").because(e))?;
        for device in self.pools.iter_mut().flat_map(|p| &mut p.devices) {
            if let Some(path) = &device.path
                && !device.kind.is_remote()
                && Path::new(path).is_relative()
            {
                device.path = Some(self.data_dir.join(path).display().to_string());
            }
        }
        Ok(self)
    }

    /// The declared part.
    pub fn desired(&self) -> Desired {
        let mut targets = self.targets.clone();
        if targets.is_empty() {
            let mut listen = self.listen.clone();
            if listen.is_empty() {
                listen.push(DEFAULT_LISTEN.to_string());
            }
            let port = |name: &str, listen, protocol| TargetSpec {
                name: name.to_string(),
                listen,
                protocol,
                ..TargetSpec::default()
            };
            let behind = listen.iter().map(|a| brp_address(a)).collect();
            targets.push(port(DEFAULT_TARGET, listen, Protocol::Srp));
            targets.push(port(DEFAULT_BRP_TARGET, behind, Protocol::Brp));
        }
        Desired {
            pools: self.pools.clone(),
            volumes: self.volumes.clone(),
            hosts: self.hosts.clone(),
            maps: self.maps.clone(),
            targets,
        }
    }

    /// Command lines that may be run for keys: those that are listed, and those of volumes in this file.
    pub fn key_commands(&self) -> Vec<String> {
        let of = |v: &VolumeSpec| match v.form.encryption.as_ref().map(|e| &e.key) {
            Some(KeySource::Command(line)) => Some(line.clone()),
            _ => None,
        };
        self.key_commands.iter().cloned().chain(self.volumes.iter().filter_map(of)).collect()
    }
}

/// Memory of this machine in bytes, where the kernel tells.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where BRP is served next to SRP at `listen`: the port behind it, so that one rule of a firewall covers both.
/// What is no address stays as it is, to be refused with the other.
fn brp_address(listen: &str) -> String {
    match listen.parse::<std::net::SocketAddr>() {
        Ok(a) if a.port() != 0 => {
            std::net::SocketAddr::new(a.ip(), a.port().wrapping_add(1)).to_string()
        }
        _ => listen.to_string(),
    }
}

#[cfg(test)]
mod tests;
