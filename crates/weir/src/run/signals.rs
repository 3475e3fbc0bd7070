//! What ends the daemon: Ctrl-C and SIGTERM.

use std::process::exit;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use weir_control::{Code, Error, Result, Stopping};

/// How long a stop may take. Every step of it has a time of its own, which together are less: should one of them not keep it, the
/// process ends all the same.
const ALL: Duration = Duration::from_secs(45);

/// Has the first of these signals begin the stop that it gives, and the second one end the process at once, as by a kill. Comes
/// before everything that is to end in order. Must be called on a Tokio runtime.
pub(crate) fn watch() -> Result<Stopping> {
    let failed = |e| Error::new(Code::IoError, "signals cannot be waited for").because(e);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stopping = Stopping::default();
    let told = stopping.clone();
    tokio::spawn(async move {
        // Exit codes as shells give them for the two.
        let mut next =
            async || tokio::select! { _ = terminate.recv() => 143, _ = interrupt.recv() => 130 };
        next().await;
        told.begin();
        let code = next().await;
        tracing::warn!("a second signal: the process ends at once, as by a kill");
        exit(code);
    });
    let begun = stopping.begun();
    tokio::spawn(async move {
        begun.await;
        tracing::info!("stopping");
        // Nothing that holds up the threads of the runtime holds up this one.
        std::thread::spawn(|| {
            std::thread::sleep(ALL);
            tracing::error!("left open: the stop has not ended in {} s", ALL.as_secs());
            exit(i32::from(Code::LeftOpen.kind().exit_code()));
        });
    });
    Ok(stopping)
}
