//! What ends the daemon: Ctrl-C and SIGTERM.

use crate::cli::log;
use std::process::exit;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_control::{Code, Error, Result, Stopping};

/// How long a stop may take. Every step of it has a time of its own, which together are less: should one of them not keep it, the
/// process ends all the same.
const ALL: Duration = Duration::from_secs(45);

/// The signals, on a runtime of their own.
struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let both = runtime.block_on(async {
            Ok::<_, std::io::Error>((
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ))
        });
        let (terminate, interrupt) = both?;
        Ok(Signals { runtime, terminate, interrupt })
    }

    /// The exit code of the next one, as shells give it.
    async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
        tokio::select! { _ = terminate.recv() => 143, _ = interrupt.recv() => 130 }
    }

    /// Waits for the first one, or for somebody else who has the node stop; then for the second one, and no longer than the
    /// stop may take.
    fn wait(mut self, stopping: &Stopping) -> ! {
        let code = self.runtime.block_on(async {
            let (terminate, interrupt) = (&mut self.terminate, &mut self.interrupt);
            let by_signal = tokio::select! {
                _ = Signals::next(terminate, interrupt) => true,
                () = stopping.begun() => false,
            };
            stopping.begin();
            tracing::info!("stopping");
            let second = async {
                if !by_signal {
                    let _first = Signals::next(terminate, interrupt).await;
                    tracing::info!("a signal: it stops already, and another one ends it at once");
                }
                Signals::next(terminate, interrupt).await
            };
            match tokio::time::timeout(ALL, second).await {
                Ok(code) => {
                    tracing::warn!("a second signal: the process ends at once, as by a kill");
                    code
                }
                Err(_) => {
                    tracing::error!("left open: the stop has not ended in {} s", ALL.as_secs());
                    i32::from(Code::LeftOpen.kind().exit_code())
                }
            }
        });
        log::settle();
        exit(code)
    }
}

/// Has the first of these signals begin the stop that it gives, and the second one end the process at once, as by a kill. Comes
/// before everything that is to end in order. Nothing that holds up other threads holds this up.
pub(crate) fn watch() -> Result<Stopping> {
    let failed = |e| Error::new(Code::IoError, "signals cannot be waited for").because(e);
    let signals = Signals::new().map_err(failed)?;
    let stopping = Stopping::default();
    let told = stopping.clone();
    let thread = std::thread::Builder::new().name("weir-signals".into());
    thread.spawn(move || signals.wait(&told)).map_err(failed)?;
    Ok(stopping)
}
