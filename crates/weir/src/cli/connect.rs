//! Where the daemon is.

use clap::Args;
use std::path::{Path, PathBuf};
use weir_control::client::{Client, Endpoint};
use weir_control::config::{self, DEFAULT_DATA_DIR, TOKEN};
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

    /// Token for a daemon on TCP; --token-file keeps it out of the list of processes.
    #[arg(
        long,
        global = true,
        env = "WEIR_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Daemon"
    )]
    pub(crate) token: Option<String>,

    /// File with the token for a daemon on TCP. Without it and --token: api.token in the data directory, if it may be read.
    #[arg(
        long,
        global = true,
        env = "WEIR_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Daemon",
        conflicts_with = "token",
        value_parser = token_file
    )]
    pub(crate) token_file: Option<Token>,

    /// Notes are printed as JSON.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// A token that was read from a file.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

fn token_file(path: &str) -> weir_control::Result<Token> {
    config::token(Path::new(path)).map(Token)
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
        let endpoint = self.endpoint();
        let token = match &endpoint {
            Endpoint::Unix(_) => None,
            Endpoint::Tcp(_) => self.tcp_token(),
        };
        Client::new(endpoint, token)
    }

    /// The token that is given, else that of a daemon whose data directory is here.
    fn tcp_token(&self) -> Option<String> {
        let given = self.token.clone().or_else(|| self.token_file.clone().map(|t| t.0));
        let dirs = match &self.data_dir {
            Some(dir) => vec![dir.as_path()],
            None => vec![Path::new(DEFAULT_DATA_DIR), Path::new(SYSTEM_DATA_DIR)],
        };
        given.or_else(|| dirs.iter().find_map(|d| config::token(&d.join(TOKEN)).ok()))
    }

    /// Runs `f` with a client on a small runtime, and prints the notes of the daemon's answers after it.
    pub(crate) fn run<F: Future<Output = anyhow::Result<()>>>(
        &self,
        f: impl FnOnce(Client) -> F,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = self.client();
        let done = runtime.block_on(f(client.clone()));
        client.notes().iter().for_each(|n| super::output::note(self.json, n));
        done
    }
}
