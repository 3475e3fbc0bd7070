//! The typed client of the REST interface, over the Unix socket or TCP. One connection per request: the command line
//! makes one or two.

mod layers;
mod migrate;
mod notes;

use crate::controller::ApplyReport;
use crate::declare::ApplySpec;
use crate::error::{Code, Error, Problem, Result};
use crate::events::EventPage;
use crate::live::{ScrubLive, SnapshotLive, SnapshotRuleLive, Status, VolumeInfo};
use crate::model::{
    CloneSpec, DeviceAction, Host, HostPatch, HostSpec, ImportReport, ImportSpec, InitiatorPort,
    MapSpec, Mapping, PoolInfo, PoolPatch, PoolSpec, RekeySpec, SnapshotPolicySpec, TargetPort,
    TargetSpec, Volume, VolumePatch, VolumeSpec, check_name,
};
use crate::server::{ScrubSpec, SnapshotSpec};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Largest answer in bytes.
const MAX_ANSWER: usize = 256 << 20;
/// How long to try to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Where the daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// `HOST:PORT` for plain HTTP.
    Tcp(String),
}

impl FromStr for Endpoint {
    type Err = Error;

    /// `unix:/path`, a path with a slash, `http://host:port` or `host:port`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |reason: &str| {
            Error::new(Code::InvalidAddress, format!("`{text}` is not where a daemon could be"))
                .because(reason)
                .hint("write unix:/path/to/weir.sock or http://127.0.0.1:7400")
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Endpoint::Unix(path.into()));
        }
        if text.starts_with("https:") {
            return Err(wrong("the daemon speaks plain HTTP only"));
        }
        if let Some(rest) = text.strip_prefix("http://") {
            return tcp(rest.trim_end_matches('/')).ok_or_else(|| wrong("there is no HOST:PORT"));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(wrong(&format!("`{scheme}` is not spoken")));
        }
        if text.contains('/') {
            return Ok(Endpoint::Unix(text.into()));
        }
        tcp(text).ok_or_else(|| wrong("it is neither a path nor HOST:PORT"))
    }
}

fn tcp(text: &str) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let good = !host.is_empty() && port.parse::<u16>().is_ok() && !text.contains('/');
    good.then(|| Endpoint::Tcp(text.to_string()))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

/// A client of one daemon.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    notes: Arc<Mutex<Vec<String>>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A path from fixed words and names; names are checked, so that none can change the path's meaning.
fn path(kind: &str, names: &[(&str, &str)]) -> Result<String> {
    let mut path = format!("/v1/{kind}");
    for (what, name) in names {
        check_name(what, name)?;
        path.push('/');
        path.push_str(name);
    }
    Ok(path)
}

impl Client {
    /// A client of the daemon at `endpoint`; `token` is sent on TCP.
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Client {
        Client { endpoint, token, notes: Arc::default() }
    }

    /// Where the daemon is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let connecting = async {
            Ok::<Box<dyn Stream>, std::io::Error>(match &self.endpoint {
                Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
                Endpoint::Tcp(address) => Box::new(TcpStream::connect(address).await?),
            })
        };
        let start = "start it with `weir serve`, or say where it is with --server or --data-dir";
        let failed = |why: String| {
            Error::new(
                Code::DaemonUnreachable,
                format!("cannot reach the daemon at {}", self.endpoint),
            )
            .because(why)
            .hint(start)
        };
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(failed(e.to_string())
                    .hint("run it as the user that the daemon runs as, or as root"))
            }
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", CONNECT.as_secs()))),
        }
    }

    /// Sends a request and gives the answer's bytes, or the problem that the daemon sent as an error.
    async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes> {
        let broke = |e: &dyn fmt::Display| {
            Error::new(Code::DaemonUnreachable, format!("the daemon at {} hung up", self.endpoint))
                .because(e)
                .hint("see whether it still runs; a change may or may not have been made")
        };
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| broke(&e))?;
        let driver = tokio::spawn(connection);
        let host = match &self.endpoint {
            Endpoint::Unix(_) => "localhost",
            Endpoint::Tcp(address) => address,
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let (Some(token), Endpoint::Tcp(_)) = (&self.token, &self.endpoint) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request =
            request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(|e| {
                Error::new(Code::InvalidRequest, "the request cannot be made").because(e)
            })?;
        let answer = sender.send_request(request).await.map_err(|e| broke(&e))?;
        let status = answer.status();
        self.keep_notes(answer.headers());
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let bytes = body.map_err(|e| broke(&e))?.to_bytes();
        drop(sender);
        driver.abort();
        if status.is_success() { Ok(bytes) } else { Err(self.problem(status, &bytes)) }
    }

    fn problem(&self, status: StatusCode, bytes: &[u8]) -> Error {
        match serde_json::from_slice::<Problem>(bytes) {
            Ok(problem) => problem.into(),
            Err(_) => Error::new(
                Code::DaemonUnreachable,
                format!("{} answered with status {status}", self.endpoint),
            )
            .because("the answer is not one of weir's")
            .hint("check the address given with --server"),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        decode(&self.call(Method::GET, path, None).await?)
    }

    async fn send<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
    ) -> Result<T> {
        let body = serde_json::to_vec(body)
            .map_err(|e| Error::new(Code::Internal, "the request cannot be written").because(e))?;
        decode(&self.call(method, path, Some(body)).await?)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, None).await.map(drop)
    }

    /// All pools.
    pub async fn pools(&self) -> Result<Vec<PoolInfo>> {
        self.get("/v1/pools").await
    }

    /// One pool.
    pub async fn pool(&self, name: &str) -> Result<PoolInfo> {
        self.get(&path("pools", &[("pool", name)])?).await
    }

    /// Creates a pool.
    pub async fn create_pool(&self, spec: &PoolSpec) -> Result<PoolInfo> {
        self.send(Method::POST, "/v1/pools", spec).await
    }

    /// Changes a pool.
    pub async fn patch_pool(&self, name: &str, patch: &PoolPatch) -> Result<PoolInfo> {
        self.send(Method::PATCH, &path("pools", &[("pool", name)])?, patch).await
    }

    /// Opens a protected pool without devices that may have what the others have not.
    pub async fn force_pool(&self, name: &str) -> Result<PoolInfo> {
        let path = path("pools", &[("pool", name)])? + "/force";
        decode(&self.call(Method::POST, &path, None).await?)
    }

    /// Lets go of a protected pool and its volumes, which stay on its devices; by `force` also under hosts that are logged in.
    pub async fn release_pool(&self, name: &str, force: bool) -> Result<()> {
        let force = if force { "?force=true" } else { "" };
        let path = path("pools", &[("pool", name)])? + "/release" + force;
        self.call(Method::POST, &path, None).await.map(drop)
    }

    /// Takes a pool over from devices.
    pub async fn import_pool(&self, spec: &ImportSpec) -> Result<ImportReport> {
        self.send(Method::POST, "/v1/imports", spec).await
    }

    /// Does something about the devices of a protected pool.
    pub async fn pool_device(&self, name: &str, action: &DeviceAction) -> Result<PoolInfo> {
        self.send(Method::POST, &(path("pools", &[("pool", name)])? + "/devices"), action).await
    }

    /// How the scrub of a pool stands; none if there was none since the pool was opened.
    pub async fn scrub(&self, pool: &str) -> Result<Option<ScrubLive>> {
        self.get(&(path("pools", &[("pool", pool)])? + "/scrub")).await
    }

    /// Begins a scrub.
    pub async fn start_scrub(&self, pool: &str, spec: &ScrubSpec) -> Result<Option<ScrubLive>> {
        self.send(Method::POST, &(path("pools", &[("pool", pool)])? + "/scrub"), spec).await
    }

    /// Ends a scrub.
    pub async fn stop_scrub(&self, pool: &str) -> Result<Option<ScrubLive>> {
        let path = path("pools", &[("pool", pool)])? + "/scrub";
        decode(&self.call(Method::DELETE, &path, None).await?)
    }

    /// All snapshots, or those of one volume.
    pub async fn snapshots(&self, volume: Option<&str>) -> Result<Vec<SnapshotLive>> {
        match volume {
            None => self.get("/v1/snapshots").await,
            Some(v) => {
                check_name("volume", v)?;
                self.get(&format!("/v1/snapshots?volume={v}")).await
            }
        }
    }

    /// Makes snapshots at one instant.
    pub async fn create_snapshots(&self, spec: &SnapshotSpec) -> Result<Vec<SnapshotLive>> {
        self.send(Method::POST, "/v1/snapshots", spec).await
    }

    /// The rules for periodic snapshots of all volumes or of one, and how they stand.
    pub async fn policies(&self, volume: Option<&str>) -> Result<Vec<SnapshotRuleLive>> {
        match volume {
            None => self.get("/v1/snapshot-policies").await,
            Some(v) => {
                check_name("volume", v)?;
                self.get(&format!("/v1/snapshot-policies?volume={v}")).await
            }
        }
    }

    /// Gives volumes rules for periodic snapshots.
    pub async fn set_policy(&self, spec: &SnapshotPolicySpec) -> Result<Vec<SnapshotRuleLive>> {
        self.send(Method::PUT, "/v1/snapshot-policies", spec).await
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, volume: &str, name: &str) -> Result<()> {
        self.delete(&path("snapshots", &[("volume", volume), ("snapshot", name)])?).await
    }

    /// Makes a volume what it was at its newest snapshot.
    pub async fn revert(&self, volume: &str, name: &str) -> Result<Volume> {
        let path = path("snapshots", &[("volume", volume), ("snapshot", name)])? + "/revert";
        decode(&self.call(Method::POST, &path, None).await?)
    }

    /// Makes a volume of a snapshot.
    pub async fn create_clone(&self, spec: &CloneSpec) -> Result<Volume> {
        self.send(Method::POST, "/v1/clones", spec).await
    }

    /// Deletes a pool.
    pub async fn delete_pool(&self, name: &str) -> Result<()> {
        self.delete(&path("pools", &[("pool", name)])?).await
    }

    /// All volumes.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        self.get("/v1/volumes").await
    }

    /// One volume.
    pub async fn volume(&self, name: &str) -> Result<VolumeInfo> {
        self.get(&path("volumes", &[("volume", name)])?).await
    }

    /// Creates a volume.
    pub async fn create_volume(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.send(Method::POST, "/v1/volumes", spec).await
    }

    /// Changes a volume.
    pub async fn patch_volume(&self, name: &str, patch: &VolumePatch) -> Result<Volume> {
        self.send(Method::PATCH, &path("volumes", &[("volume", name)])?, patch).await
    }

    /// Wraps the own key of an encrypted volume with another key.
    pub async fn rekey(&self, name: &str, spec: &RekeySpec) -> Result<Volume> {
        self.send(Method::POST, &(path("volumes", &[("volume", name)])? + "/rekey"), spec).await
    }

    /// Deletes a volume. Gives it if that goes on, since its devices take long to give its space back.
    pub async fn delete_volume(&self, name: &str) -> Result<Option<Volume>> {
        let path = path("volumes", &[("volume", name)])?;
        let body = self.call(Method::DELETE, &path, None).await?;
        if body.is_empty() { Ok(None) } else { decode(&body).map(Some) }
    }

    /// All hosts.
    pub async fn hosts(&self) -> Result<Vec<Host>> {
        self.get("/v1/hosts").await
    }

    /// One host.
    pub async fn host(&self, name: &str) -> Result<Host> {
        self.get(&path("hosts", &[("host", name)])?).await
    }

    /// Creates a host.
    pub async fn create_host(&self, spec: &HostSpec) -> Result<Host> {
        self.send(Method::POST, "/v1/hosts", spec).await
    }

    /// Changes a host.
    pub async fn patch_host(&self, name: &str, patch: &HostPatch) -> Result<Host> {
        self.send(Method::PATCH, &path("hosts", &[("host", name)])?, patch).await
    }

    /// Deletes a host.
    pub async fn delete_host(&self, name: &str) -> Result<()> {
        self.delete(&path("hosts", &[("host", name)])?).await
    }

    /// All mappings.
    pub async fn maps(&self) -> Result<Vec<Mapping>> {
        self.get("/v1/maps").await
    }

    /// One mapping.
    pub async fn map(&self, host: &str, volume: &str) -> Result<Mapping> {
        self.get(&path("maps", &[("host", host), ("volume", volume)])?).await
    }

    /// Maps a volume to a host.
    pub async fn create_map(&self, spec: &MapSpec) -> Result<Mapping> {
        self.send(Method::POST, "/v1/maps", spec).await
    }

    /// Takes a mapping away.
    pub async fn delete_map(&self, host: &str, volume: &str, force: bool) -> Result<()> {
        let path = path("maps", &[("host", host), ("volume", volume)])?;
        self.delete(&if force { path + "?force=true" } else { path }).await
    }

    /// Takes a mapping away that was for one initiator port of the host: whoever logs in by another keeps it, also while they are
    /// away for a moment. By `force` also while that port is logged in.
    pub async fn delete_map_of(
        &self,
        host: &str,
        volume: &str,
        port: InitiatorPort,
        force: bool,
    ) -> Result<()> {
        let path = path("maps", &[("host", host), ("volume", volume)])?;
        self.delete(&format!("{path}?port={port}&force={force}")).await
    }

    /// All target ports.
    pub async fn targets(&self) -> Result<Vec<TargetPort>> {
        self.get("/v1/targets").await
    }

    /// One target port.
    pub async fn target(&self, name: &str) -> Result<TargetPort> {
        self.get(&path("targets", &[("target", name)])?).await
    }

    /// Creates or changes a target port.
    pub async fn put_target(&self, spec: &TargetSpec) -> Result<TargetPort> {
        self.send(Method::POST, "/v1/targets", spec).await
    }

    /// Deletes a target port.
    pub async fn delete_target(&self, name: &str) -> Result<()> {
        self.delete(&path("targets", &[("target", name)])?).await
    }

    /// Makes what is declared so, or tells what that would change. What could not be made so is in the report.
    pub async fn apply(&self, spec: &ApplySpec) -> Result<ApplyReport> {
        self.send(Method::POST, "/v1/apply", spec).await
    }

    /// What the node is and does.
    pub async fn status(&self) -> Result<Status> {
        self.get("/v1/status").await
    }

    /// Prometheus metrics.
    pub async fn metrics(&self) -> Result<String> {
        let bytes = self.call(Method::GET, "/v1/metrics", None).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Events after number `after`; waits up to `wait` for the first.
    pub async fn events(&self, after: u64, wait: Duration) -> Result<EventPage> {
        self.get(&format!("/v1/events?after={after}&wait_ms={}", wait.as_millis())).await
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| {
        Error::new(Code::Internal, "the daemon's answer cannot be read")
            .because(e)
            .hint("use the version of weir that the daemon has; `weir status` shows it")
    })
}
