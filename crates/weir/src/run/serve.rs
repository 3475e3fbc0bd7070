//! `weir serve`.

use crate::cli::args::ServeArgs;
use crate::plane::{Node, NodeConfig, initiator_of};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use weir_control::config::{Config, Poll};
use weir_control::server::Server;
use weir_control::store::MetaStore;
use weir_control::{Code, Controller, Error, Result, Stopping};
use weir_reactor::PollMode;

/// How long calls that may block are waited for when everything has ended.
const LAST: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    on_runtime(async move |stopping| {
        if let Some(copy) = &args.restore_from {
            // Read back, and done: what starts next finds it there.
            drop(MetaStore::restore(&config.data_dir, copy)?);
            tracing::warn!("the configuration store was made anew of {}", copy.display());
        }
        if args.until_stdin_closes {
            let (closed, stopping) = (stdin_closes(), stopping.clone());
            tokio::spawn(async move {
                closed.await;
                stopping.begin();
            });
        }
        let unsummed = &args.measure_without_checksums;
        let started = Daemon::start(&config, unsummed, Declared::EachByItself, &stopping).await?;
        let Some(daemon) = started else { return Ok(ExitCode::SUCCESS) };
        let socket = daemon.socket.display();
        tracing::info!(data_dir = %config.data_dir.display(), api = %socket, "serving");
        let faults = tokio::select! {
            faults = daemon.faults() => faults,
            () = stopping.begun() => Vec::new(),
        };
        for (object, text) in faults {
            tracing::error!(%object, "{text}");
        }
        daemon.run().await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The end of standard input.
fn stdin_closes() -> impl Future<Output = ()> + Send {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of standard input cannot be given up, and would hold the runtime's end up.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = tell.send(());
    });
    async {
        let _ = told.await;
    }
}

/// Runs a daemon on the runtime of the control plane. Signals end it in order from the first moment on.
pub(crate) fn on_runtime(
    f: impl AsyncFnOnce(Stopping) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    // Not on the runtime: a runtime of its own cannot be started there.
    let stopping = super::signals::watch()?;
    // Two disks that hang would take both of its threads.
    weir_uring::never_wait();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("weir-control")
        .on_thread_start(weir_uring::never_wait)
        .enable_all()
        .build()?;
    let done = runtime.block_on(f(stopping));
    // A call into a file system that hangs would keep the process from its end.
    runtime.shutdown_timeout(LAST);
    done
}

/// A node with its control plane and REST interface.
pub(crate) struct Daemon {
    node: Arc<Node>,
    pub(crate) controller: Arc<Controller>,
    /// The interface, which answers until the stop.
    served: JoinHandle<Result<()>>,
    socket: PathBuf,
    stopping: Stopping,
}

/// What a daemon's configuration means for its reactors.
fn node_config(config: &Config, unsummed: &[String]) -> NodeConfig {
    let cores = if config.cores.is_empty() {
        let machine = std::thread::available_parallelism().map_or(1, usize::from);
        // Not bound: on a shared machine the scheduler knows better which cores are free.
        vec![None; machine.div_ceil(2)]
    } else {
        config.cores.iter().map(|c| Some(*c)).collect()
    };
    let poll = match config.poll {
        Poll::Adaptive => PollMode::default(),
        Poll::Busy => PollMode::Busy,
        Poll::Sleep => PollMode::Sleep,
    };
    NodeConfig {
        cores,
        poll,
        buffer_memory: config.buffer_memory,
        unsummed: unsummed.iter().cloned().collect(),
        initiator: config.initiator_port.unwrap_or_else(|| initiator_of(&config.data_dir)),
        secret: config.initiator_secret.clone(),
    }
}

/// What becomes of a node when something that is declared cannot be made so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    /// That is a fault of its own; all else is served.
    EachByItself,
    /// It is what `weir quickstart` makes: the node does not start. When the start is over, that command says.
    Quickstart,
}

impl Daemon {
    /// Brings everything up; the data of pools that are `unsummed` gets no checksums. The interface answers as soon as it is known
    /// what the node has. None: the node was stopped before it was up, and everything is closed again.
    pub(crate) async fn start(
        config: &Config,
        unsummed: &[String],
        declared: Declared,
        stopping: &Stopping,
    ) -> Result<Option<Daemon>> {
        super::cores::check(&config.cores, Code::InvalidConfig)?;
        let daemon = Daemon::open(config, unsummed, declared, stopping).await?;
        let up = tokio::select! {
            biased;
            // What is under way of it goes on to its end.
            () = stopping.begun() => Ok(()),
            up = daemon.come_up(config, declared) => up,
        };
        // What waits in it for the stop may be first to hear of it.
        if up.is_ok() && !stopping.has_begun() {
            if declared == Declared::EachByItself {
                daemon.controller.started();
            }
            return Ok(Some(daemon));
        }
        stopping.begin();
        let ended = daemon.run().await;
        up.and(ended).map(|()| None)
    }

    /// A node that answers, and serves no host yet.
    async fn open(
        config: &Config,
        unsummed: &[String],
        declared: Declared,
        stopping: &Stopping,
    ) -> Result<Daemon> {
        // What is in it is the owner's; one that is there keeps the mode that it was given.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data_dir);
        made.map_err(|e| {
            let dir = config.data_dir.display();
            Error::new(Code::IoError, format!("the data directory {dir} cannot be made"))
                .because(e)
                .hint("choose another with --data-dir")
        })?;
        weir_control::descriptors::raise();
        let tokens = config.tokens()?;
        let node = Node::start(&node_config(config, unsummed))?;
        let opened = async {
            let (commands, mut desired) = (config.key_commands(), config.desired());
            if declared == Declared::Quickstart && config.listen.is_empty() {
                // Ports that are there stay. One that is to listen elsewhere does so from the first moment on.
                desired.targets.clear();
            }
            let (dir, s) = (&config.data_dir, stopping.clone());
            let controller =
                Controller::open(dir, node.clone(), commands, desired, s.clone()).await?;
            let server = Server::bind(controller.clone(), config.api.tcp, tokens).await?;
            if let Some(address) = server.tcp_address() {
                let [admin, read] = config.token_files();
                let (admin, read) = (admin.display(), read.display());
                tracing::info!(%address, token = %admin, read_token = %read, "the REST interface is on TCP");
            }
            Ok((controller, server))
        };
        let (controller, server) = match opened.await {
            Ok(opened) => opened,
            Err(e) => {
                end(node).await;
                return Err(e);
            }
        };
        let socket = server.socket().to_path_buf();
        tracing::info!(api = %socket.display(), "starting; the interface answers");
        let s = stopping.clone();
        let served = tokio::spawn(async move {
            let served = server.run(s.begun()).await;
            // Also when it ends by itself, which it does when it fails.
            s.begin();
            served
        });
        Ok(Daemon { node, controller, served, socket, stopping: stopping.clone() })
    }

    async fn come_up(&self, config: &Config, declared: Declared) -> Result<()> {
        self.controller.come_up().await?;
        match declared {
            Declared::EachByItself => self.controller.declare_at_start(config.desired()).await,
            Declared::Quickstart => {
                self.controller.opened_all().await;
                super::quickstart::declare(&self.controller, config).await?;
            }
        }
        Ok(())
    }

    /// What did not start.
    pub(crate) async fn faults(&self) -> Vec<(String, String)> {
        match self.controller.status().await {
            Ok(s) => s.faults.into_iter().map(|f| (f.object, f.text)).collect(),
            Err(e) => vec![("node".into(), e.to_string())],
        }
    }

    /// Serves until the node is being stopped, then takes everything down in order.
    pub(crate) async fn run(self) -> Result<()> {
        let Daemon { node, controller, served, stopping, .. } = self;
        let down = async {
            stopping.begun().await;
            controller.shutdown().await
        };
        // Requests that are under way may be waited for by nothing that is taken down, nor the other way round.
        let (served, down) = tokio::join!(served, down);
        end(node).await;
        let broke = |e| Error::new(Code::Internal, "the interface broke off").because(e);
        down.and(served.map_err(broke).flatten())
    }
}

/// Ends the reactors. One that does not end has nothing of a pool any more, or that has been said: it ends with the process.
async fn end(node: Arc<Node>) {
    match tokio::task::spawn_blocking(move || node.end()).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::warn!("{e}"),
        Err(e) => tracing::error!("the end of the reactors broke off: {e}"),
    }
}
