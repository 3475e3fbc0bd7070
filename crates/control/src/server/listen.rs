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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;

    /// Connections as they come.
    struct Coming(mpsc::UnboundedReceiver<DuplexStream>);

    impl Listener for Coming {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            match self.0.recv().await {
                Some(io) => (io, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Whether a request on this connection is answered within a second.
    async fn is_answered(io: &mut DuplexStream) -> bool {
        let mut answer = [0; 12];
        let done = timeout(Duration::from_secs(1), io.read_exact(&mut answer)).await;
        done.is_ok_and(|r| r.is_ok()) && answer == *b"HTTP/1.1 404"
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_there_is_no_room_waits() {
        let (send, come) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let served = serve(Coming(come), |_| Arc::from("test"), Router::new(), 2, stopped);
        let served = tokio::spawn(served);
        let mut all = Vec::new();
        for _ in 0..3 {
            let (mut ours, theirs) = duplex(4096);
            ours.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
            send.send(theirs).expect("it comes");
            all.push(ours);
        }
        let mut third = all.pop().expect("three");
        for io in &mut all {
            assert!(is_answered(io).await);
        }
        assert!(!is_answered(&mut third).await, "two are there");
        drop(all.pop());
        assert!(is_answered(&mut third).await);
        drop((all, third));
        stop.send(true).expect("it runs");
        served.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_for_half_a_minute_is_dropped() {
        let (mut ours, theirs) = duplex(16);
        let mut io = Taken { io: theirs, late: None };
        let writes = tokio::spawn(async move { io.write_all(&[7; 64]).await });
        let mut some = [0; 16];
        for _ in 0..3 {
            // Whoever takes a little is there.
            sleep(Duration::from_secs(29)).await;
            assert!(!writes.is_finished());
            ours.read_exact(&mut some[..1]).await.expect("some");
        }
        sleep(Duration::from_secs(31)).await;
        let ended = writes.await.expect("it ends").expect_err("nothing is taken");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }
}
