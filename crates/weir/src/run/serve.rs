//! `weir serve`.

use crate::cli::args::ServeArgs;
use crate::plane::{Node, NodeConfig};
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;
use std::sync::Arc;
use weir_control::config::{Config, Poll};
use weir_control::server::Server;
use weir_control::store::MetaStore;
use weir_control::{Code, Controller, Error, Result};
use weir_reactor::PollMode;

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    runtime()?.block_on(async {
        if let Some(copy) = &args.restore_from {
            // Read back, and done: what starts next finds it there.
            drop(MetaStore::restore(&config.data_dir, copy)?);
            tracing::warn!("the configuration store was made anew of {}", copy.display());
        }
        let unsummed = &args.measure_without_checksums;
        let daemon = Daemon::start(&config, unsummed, Declared::EachByItself).await?;
        let socket = daemon.server_socket();
        tracing::info!(data_dir = %config.data_dir.display(), api = %socket, "serving");
        for (object, text) in daemon.faults().await {
            tracing::error!(%object, "{text}");
        }
        let also = args.until_stdin_closes.then(stdin_closes);
        daemon
            .run(async {
                match also {
                    Some(closed) => tokio::select! {
                        () = signal() => {}
                        () = closed => {}
                    },
                    None => signal().await,
                }
            })
            .await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Ctrl-C or SIGTERM.
async fn signal() {
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    let terminated = async {
        match &mut term {
            Some(t) => {
                t.recv().await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
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

/// The runtime of the control plane.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("weir-control")
        .enable_all()
        .build()?)
}

/// A node with its control plane and REST interface.
pub(crate) struct Daemon {
    node: Arc<Node>,
    pub(crate) controller: Arc<Controller>,
    server: Server,
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
    }
}

/// What becomes of a node when something that is declared cannot be made so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    /// That is a fault of its own; all else is served.
    EachByItself,
    /// The node does not start.
    AllOrNothing,
}

impl Daemon {
    /// Brings everything up; the data of pools that are `unsummed` gets no checksums.
    pub(crate) async fn start(
        config: &Config,
        unsummed: &[String],
        declared: Declared,
    ) -> Result<Daemon> {
        // What is in it is the owner's; one that is there keeps the mode that it was given.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data_dir);
        made.map_err(|e| {
            let dir = config.data_dir.display();
            Error::new(Code::IoError, format!("the data directory {dir} cannot be made"))
                .because(e)
                .hint("choose another with --data-dir")
        })?;
        let tokens = config.tokens()?;
        let node = Node::start(&node_config(config, unsummed))?;
        let commands = config.key_commands();
        let controller =
            Controller::start_allowing(&config.data_dir, node.clone(), commands).await?;
        match declared {
            Declared::EachByItself => controller.declare_at_start(config.desired()).await,
            Declared::AllOrNothing => {
                controller.opened_all().await;
                drop(controller.declare(config.desired()).await?);
            }
        }
        let server = Server::bind(controller.clone(), config.api.tcp, tokens).await?;
        if let Some(address) = server.tcp_address() {
            let [admin, read] = config.token_files();
            let (admin, read) = (admin.display(), read.display());
            tracing::info!(%address, token = %admin, read_token = %read, "the REST interface is on TCP");
        }
        Ok(Daemon { node, controller, server })
    }

    fn server_socket(&self) -> String {
        self.server.socket().display().to_string()
    }

    /// What did not start.
    pub(crate) async fn faults(&self) -> Vec<(String, String)> {
        match self.controller.status().await {
            Ok(s) => s.faults.into_iter().map(|f| (f.object, f.text)).collect(),
            Err(e) => vec![("node".into(), e.to_string())],
        }
    }

    /// Serves until Ctrl-C or SIGTERM, then takes everything down in order.
    pub(crate) async fn run_until_signal(self) -> Result<()> {
        self.run(signal()).await
    }

    /// Serves until `stop` is done.
    pub(crate) async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Daemon { node, controller, server } = self;
        let served = server.run(stop).await;
        tracing::info!("stopping");
        let down = controller.shutdown().await;
        tokio::task::spawn_blocking(move || node.end())
            .await
            .map_err(|e| Error::new(Code::Internal, "the reactors did not end").because(e))?;
        served.and(down)
    }
}
