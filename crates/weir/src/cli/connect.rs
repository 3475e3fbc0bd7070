//! Where the daemon is.

use clap::Args;
use std::path::{Path, PathBuf};
use weir_control::client::{Client, Endpoint};
use weir_control::config::DEFAULT_DATA_DIR;
use weir_control::server::SOCKET;

/// Where a system-wide daemon keeps its data.
const SYSTEM_DATA_DIR: &str = "/var/lib/weir";

#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// The daemon's address: unix:PATH or http://HOST:PORT.
    #[arg(
        long,
        global = true,
        env = "WEIR_SERVER",
        value_name = "ADDRESS",
        help_heading = "Daemon"
    )]
    pub(crate) server: Option<Endpoint>,

    /// The daemon's data directory; its socket is in it. Without this and --server: ./weir-data, else /var/lib/weir.
    #[arg(long, global = true, env = "WEIR_DATA_DIR", value_name = "DIR", help_heading = "Daemon")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Token for a daemon on TCP.
    #[arg(
        long,
        global = true,
        env = "WEIR_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Daemon"
    )]
    pub(crate) token: Option<String>,
}

impl Connection {
    fn endpoint(&self) -> Endpoint {
        if let Some(endpoint) = &self.server {
            return endpoint.clone();
        }
        let in_dir = |dir: &Path| dir.join(SOCKET);
        if let Some(dir) = &self.data_dir {
            return Endpoint::Unix(in_dir(dir));
        }
        let here = in_dir(Path::new(DEFAULT_DATA_DIR));
        let system = in_dir(Path::new(SYSTEM_DATA_DIR));
        Endpoint::Unix(if !here.exists() && system.exists() { system } else { here })
    }

    /// A client of the daemon.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.endpoint(), self.token.clone())
    }

    /// Runs `f` with a client on a small runtime.
    pub(crate) fn run<F: Future<Output = anyhow::Result<()>>>(
        &self,
        f: impl FnOnce(Client) -> F,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(f(self.client()))
    }
}
