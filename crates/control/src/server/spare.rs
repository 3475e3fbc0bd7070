//! A listener that can take a connection though the process has no descriptor left.

use axum::serve::Listener;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::time::Duration;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};

/// How long it rests after an error that may pass.
const PAUSE: Duration = Duration::from_millis(50);

/// The socket of the operator. It keeps a descriptor back for who comes when there is no other: nobody can see to what uses
/// them all without it.
#[derive(Debug)]
pub(super) struct Spared {
    listener: UnixListener,
    spare: Option<File>,
}

impl Spared {
    pub(super) fn new(listener: UnixListener) -> Spared {
        Spared { listener, spare: None }
    }
}

/// The process, or the system, has no descriptor left.
fn none_left(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
}

impl Listener for Spared {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            if self.spare.is_none() {
                self.spare = File::open("/dev/null").ok();
            }
            let mut next = self.listener.accept().await;
            if next.as_ref().is_err_and(none_left) && self.spare.take().is_some() {
                // The kernel says so also when nobody waits. Then the next one is waited for with it at hand.
                next = tokio::select! {
                    biased;
                    next = self.listener.accept() => next,
                    () = std::future::ready(()) => continue,
                };
            }
            match next {
                Ok(accepted) => return accepted,
                // The peer is gone already, or somebody else was faster.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
