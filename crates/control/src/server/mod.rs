//! The REST interface, `/v1/…`, over a Unix socket and, if wanted, TCP.
//!
//! Who may open the socket (mode 0600) may do everything. On TCP a token is asked for, also on a loopback address: that of
//! role *admin*, or that of role *read*, which may only GET. Web pages are kept out by what browsers say of them
//! (`guard`). docs/security.md.

mod events;
mod extract;
mod guard;
mod keys;
mod layers;
mod listen;
mod metrics;
mod migrate;
mod notes;
mod openapi;
mod policies;
mod protect;
mod routes;
mod spare;

pub use openapi::document as openapi_document;
pub use protect::{ScrubSpec, SnapshotSpec, SnapshotWish};

use crate::Controller;
use crate::config::Tokens;
use crate::descriptors::Shares;
use crate::error::{Code, Error, Result};
use axum::response::{IntoResponse, Response};
use spare::Spared;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Name of the socket in the data directory.
pub const SOCKET: &str = "weir.sock";
/// Largest request body in bytes.
pub const MAX_BODY: usize = 8 << 20;
/// Most connections to the socket at once, fewer where descriptors are few; more wait.
pub const UNIX_CONNECTIONS: usize = 256;
/// The same on TCP.
pub const TCP_CONNECTIONS: usize = 64;
/// How long a connection may be without a request, or with a part of its header.
pub const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long the body of a request may be on its way.
pub const BODY_TIME: Duration = Duration::from_secs(30);
/// How long a client may take nothing of its answer.
pub const TAKE_TIME: Duration = Duration::from_secs(30);
/// How long requests may take that are in flight when the interface ends.
pub const END_TIME: Duration = Duration::from_secs(8);

/// The bound sockets of the interface. Bind first, tell the world, then [`run`](Server::run): also while the controller's start is under
/// way. What changes something waits for the end of that, or is refused.
#[derive(Debug)]
pub struct Server {
    controller: Arc<Controller>,
    unix: UnixListener,
    socket: PathBuf,
    tcp: Option<(TcpListener, Tokens)>,
}

impl Server {
    /// Binds the Unix socket in the controller's data directory and the TCP address, if one is given, which needs tokens. The controller
    /// holds the data directory's lock, so that a socket left by a crash can be replaced.
    pub async fn bind(
        controller: Arc<Controller>,
        tcp: Option<SocketAddr>,
        tokens: Option<Tokens>,
    ) -> Result<Server> {
        let socket = controller.data_dir().join(SOCKET);
        let unix = bind_unix(&socket)?;
        let tcp = match (tcp, tokens) {
            (None, _) => None,
            (Some(address), None) => {
                let message = format!("there is no token for the interface at {address}");
                return Err(Error::new(Code::InvalidConfig, message).hint("set `api.token_file`"));
            }
            (Some(address), Some(tokens)) => {
                let listener = TcpListener::bind(address).await.map_err(|e| {
                    Error::new(Code::IoError, format!("cannot listen on {address}"))
                        .because(e)
                        .hint("use another address for `api.tcp`")
                })?;
                Some((listener, tokens))
            }
        };
        Ok(Server { controller, unix, socket, tcp })
    }

    /// The Unix socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The address that the TCP side really has.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(l, _)| l.local_addr().ok())
    }

    /// Serves until `stop` is done; requests in flight may take [`END_TIME`] then. What they have begun to change goes on.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let (tell, told) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            stop.await;
            tell.send_replace(true);
        });
        let app = routes::router(self.controller.clone(), told.clone())
            .layer(axum::middleware::from_fn(listen::with_body));
        let of = |io: &UnixStream| match io.peer_cred() {
            Ok(peer) => format!("uid:{}", peer.uid()).into(),
            Err(_) => "socket".into(),
        };
        let shares = Shares::now();
        let unix = Spared::new(self.unix);
        let unix = listen::serve(unix, of, app.clone(), shares.socket, told.clone());
        match self.tcp {
            None => unix.await,
            Some((listener, tokens)) => {
                let failed = |e| Error::new(Code::IoError, "the REST interface failed").because(e);
                let app = guard::guarded(app, tokens, listener.local_addr().map_err(failed)?);
                // Each has its own connections: whoever keeps those of one busy leaves the other as it is.
                // Whose it is is known when a token has come.
                let of = |_: &TcpStream| "tcp".into();
                tokio::join!(unix, listen::serve(listener, of, app, shares.tcp, told));
            }
        }
        drop(std::fs::remove_file(&self.socket));
        Ok(())
    }
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    let failed = |e: std::io::Error| {
        Error::new(Code::IoError, format!("cannot listen on {}", path.display()))
            .because(e)
            .hint("a socket's path has at most 107 bytes; name a shorter data directory")
    };
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    // Bound under another name and moved into place once its mode is right: nobody else can connect in between.
    let new = path.with_extension("new");
    drop(std::fs::remove_file(&new));
    let listener = UnixListener::bind(&new).map_err(failed)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    Ok(listener)
}

/// A response that never fails to be made.
pub(crate) type Reply<T> = std::result::Result<T, extract::Failure>;

impl From<Error> for extract::Failure {
    fn from(e: Error) -> Self {
        extract::Failure(e)
    }
}

impl IntoResponse for extract::Failure {
    fn into_response(self) -> Response {
        extract::problem(&self.0)
    }
}
