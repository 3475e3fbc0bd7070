//! The REST interface, `/v1/…`, over a Unix socket and, if wanted, TCP.
//!
//! Who may open the socket (mode 0600) may do everything. On TCP a token is asked for, except on a loopback address
//! without one; there the `Host` header must be a loopback name, so that no web page can reach the interface by
//! pointing its own name at 127.0.0.1.

mod extract;
mod keys;
mod layers;
mod metrics;
mod migrate;
mod openapi;
mod policies;
mod protect;
mod routes;

pub use openapi::document as openapi_document;
pub use protect::{ScrubSpec, SnapshotSpec, SnapshotWish};

use crate::Controller;
use crate::error::{Code, Error, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};

/// Name of the socket in the data directory.
pub const SOCKET: &str = "weir.sock";
/// Largest request body in bytes.
pub const MAX_BODY: usize = 8 << 20;

/// The bound sockets of the interface. Bind first, tell the world, then [`run`](Server::run).
#[derive(Debug)]
pub struct Server {
    controller: Arc<Controller>,
    unix: UnixListener,
    socket: PathBuf,
    tcp: Option<(TcpListener, Option<String>)>,
}

impl Server {
    /// Binds the Unix socket in the controller's data directory and the TCP address, if one is given. The controller
    /// holds the data directory's lock, so that a socket left by a crash can be replaced.
    pub async fn bind(
        controller: Arc<Controller>,
        tcp: Option<SocketAddr>,
        token: Option<String>,
    ) -> Result<Server> {
        let socket = controller.data_dir().join(SOCKET);
        let unix = bind_unix(&socket)?;
        let tcp = match tcp {
            None => None,
            Some(address) if !address.ip().is_loopback() && token.is_none() => {
                return Err(Error::new(
                    Code::InvalidConfig,
                    format!("{address} is open to the network and there is no token"),
                )
                .hint("set a token, or use 127.0.0.1"));
            }
            Some(address) => {
                let listener = TcpListener::bind(address).await.map_err(|e| {
                    Error::new(Code::IoError, format!("cannot listen on {address}"))
                        .because(e)
                        .hint("use another address for `api.tcp`")
                })?;
                Some((listener, token))
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

    /// Serves until `stop` is done, then ends the requests in flight.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let (tell, told) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            stop.await;
            tell.send_replace(true);
        });
        let stopped = |mut told: tokio::sync::watch::Receiver<bool>| async move {
            // An error means that the sender is gone, which is a reason to stop as well.
            drop(told.wait_for(|stop| *stop).await);
        };
        let app = routes::router(self.controller.clone(), told.clone());
        let failed = |e| Error::new(Code::IoError, "the REST interface failed").because(e);
        let unix = axum::serve(self.unix, app.clone())
            .with_graceful_shutdown(stopped(told.clone()))
            .into_future();
        let result = match self.tcp {
            None => unix.await.map_err(failed),
            Some((listener, token)) => {
                let tcp = axum::serve(listener, guarded(app, token))
                    .with_graceful_shutdown(stopped(told))
                    .into_future();
                tokio::try_join!(unix, tcp).map(drop).map_err(failed)
            }
        };
        drop(std::fs::remove_file(&self.socket));
        result
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

fn guarded(app: Router, token: Option<String>) -> Router {
    let token: Option<Arc<str>> = token.map(Into::into);
    app.layer(middleware::from_fn(move |request: Request, next: Next| {
        let token = token.clone();
        async move {
            match allowed(request.headers(), token.as_deref()) {
                Ok(()) => next.run(request).await,
                Err(e) => extract::Failure(e).into_response(),
            }
        }
    }))
}

fn allowed(headers: &HeaderMap, token: Option<&str>) -> Result<()> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    match token {
        Some(token) => {
            let sent = text(header::AUTHORIZATION).strip_prefix("Bearer ").unwrap_or("");
            // Compared in constant time.
            let differs = sent.bytes().zip(token.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
            if sent.len() == token.len() && differs == 0 {
                return Ok(());
            }
            Err(Error::new(Code::Unauthorized, "the request has not the right token")
                .hint("send `Authorization: Bearer TOKEN`, or set WEIR_TOKEN for the command line"))
        }
        None => {
            let host = text(header::HOST);
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            if matches!(name, "localhost" | "[::1]") || name.starts_with("127.") {
                return Ok(());
            }
            Err(Error::new(Code::Unauthorized, format!("`{host}` is not a loopback name"))
                .hint("connect to 127.0.0.1, or set `api.token_file`"))
        }
    }
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
