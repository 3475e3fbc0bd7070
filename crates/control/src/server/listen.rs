//! Connections of the interface: how many there may be, and how long each may take for what it sends and receives. Whoever
//! reaches an address, with a token or without, must not have the descriptors that hosts' connections need.

use super::extract::Failure;
use super::{BODY_TIME, END_TIME, HEADER_TIME, MAX_BODY, TAKE_TIME};
use crate::error::{Code, Error, MAX_BODY_HINT};
use crate::events::on_behalf_of;
use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Serves `app` on a listener until `stop` tells true, by `most` connections at once; more wait in the listener's queue.
/// What is under way then may take [`END_TIME`]. `by` tells whose a connection is.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    by: impl Fn(&L::Io) -> Arc<str>,
    app: Router,
    most: usize,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    let stopped = stop.clone();
    loop {
        let next = async {
            // It is never closed.
            let place = room.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, (io, _)) = next => {
                let by = by(&io);
                let served = on_behalf_of(by, connection(io, app.clone(), stopped.clone()));
                connections.spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Some(_) = connections.join_next() => {}
            // An error means that the sender is gone, which is a reason to stop as well.
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    drop(listener);
    let ended = timeout(END_TIME, async { while connections.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::warn!(connections = connections.len(), "the interface ends without them");
        connections.shutdown().await;
    }
}

async fn connection<I>(io: I, app: Router, mut stop: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let io = TokioIo::new(Taken { io, late: None });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .serve_connection(io, TowerToHyperService::new(app))
    );
    tokio::select! {
        r = served.as_mut() => return log(r),
        _ = stop.wait_for(|stop| *stop) => {}
    }
    served.as_mut().graceful_shutdown();
    log(served.await);
}

fn log(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the interface has ended");
    }
}

/// Has the body of a request there before the request is looked at.
pub(super) async fn with_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let refuse = |why: &str, hint: &str| {
        let e = Error::new(Code::InvalidRequest, "the request's body cannot be used");
        Failure(e.because(why).hint(hint)).into_response()
    };
    if body.size_hint().lower() > MAX_BODY as u64 {
        return refuse("it is too long", MAX_BODY_HINT);
    }
    match timeout(BODY_TIME, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(e)) => refuse(&e.to_string(), MAX_BODY_HINT),
        Err(_) => refuse(&format!("it has not come in {} s", BODY_TIME.as_secs()), "send it again"),
    }
}

/// A connection that ends when its peer takes nothing for [`TAKE_TIME`].
struct Taken<I> {
    io: I,
    /// Runs while the peer is waited for.
    late: Option<Pin<Box<Sleep>>>,
}

impl<I> Taken<I> {
    fn in_time<T>(&mut self, cx: &mut Context<'_>, p: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if p.is_ready() {
            self.late = None;
            return p;
        }
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(TAKE_TIME)));
        ready!(late.as_mut().poll(cx));
        late.as_mut().reset(Instant::now() + TAKE_TIME);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Taken<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Taken<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let p = Pin::new(&mut self.io).poll_write(cx, buf);
        self.in_time(cx, p)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let p = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.in_time(cx, p)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let p = Pin::new(&mut self.io).poll_flush(cx);
        self.in_time(cx, p)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let p = Pin::new(&mut self.io).poll_shutdown(cx);
        self.in_time(cx, p)
    }
}
