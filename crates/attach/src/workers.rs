//! The reactors of an attachment, each on a thread of its own, and how the thread that directs them has them do
//! something.

use crate::error::{Error, Kind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{
    Handle, LocalFuture, PollMode, Reactor, WaitChannel, get_local, set_local, spawn_task,
};
use weir_uring::Ring;

/// How the names of their threads begin.
pub(crate) const THREAD: &str = "weir-attach-";

/// Makes a reactor's fabric.
pub type MakeProvider =
    Arc<dyn Fn(&Reactor, &Ring) -> Result<Rc<dyn Provider>, String> + Send + Sync>;

/// What a reactor has for the work that is sent to it.
pub struct Here {
    /// The reactor.
    pub reactor: Reactor,
    /// Its ring.
    pub ring: Ring,
    /// Its buffers.
    pub pool: BufPool,
    /// Its fabric.
    pub provider: Rc<dyn Provider>,
    /// Ends the run loop.
    stop: WaitChannel,
}

/// A reactor on a thread.
struct Worker {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// All reactors of an attachment.
pub struct Workers(Vec<Worker>);

impl Workers {
    /// Starts `n` reactors with these buffers each.
    ///
    /// # Errors
    /// The operating system has no ring, memory or thread, or there is no fabric.
    pub fn start(
        n: usize,
        buffers: &PoolConfig,
        provider: &MakeProvider,
    ) -> Result<Workers, Error> {
        let failed = |e: &dyn std::fmt::Display| {
            let hint = "io_uring must be allowed (sysctl kernel.io_uring_disabled=0)";
            Error::new(Kind::Failed, "a reactor does not start", e, hint)
        };
        let mut workers = Workers(Vec::new());
        for i in 0..n.max(1) {
            let (tell, told) = channel();
            let (buffers, provider) = (buffers.clone(), provider.clone());
            let thread = std::thread::Builder::new()
                .name(format!("{THREAD}{i}"))
                .spawn(move || run(&buffers, &provider, &tell))
                .map_err(|e| failed(&e))?;
            let handle = match told.recv() {
                Ok(Ok(h)) => h,
                Ok(Err(e)) => return Err(failed(&e)),
                Err(_) => return Err(failed(&"its thread ended")),
            };
            workers.0.push(Worker { handle, thread: Some(thread) });
        }
        Ok(workers)
    }

    /// Number of reactors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: there is one reactor at least.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has reactor `i` run `f`, and waits for its result. Not to be called on a reactor.
    ///
    /// # Errors
    /// The reactor has ended.
    pub fn call<R: Send + 'static>(
        &self,
        i: usize,
        f: impl FnOnce(Rc<Here>) -> LocalFuture<'static, R> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, told) = channel();
        self.0[i].handle.run(move || {
            let Some(here) = get_local::<Here>() else { return };
            let work = f(here);
            spawn_task(async move {
                let _ = tell.send(work.await);
            });
        });
        told.recv().map_err(|_| {
            Error::new(Kind::Failed, "a reactor has ended", "its thread is gone", "see the log")
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for w in &self.0 {
            w.handle.run(|| {
                if let Some(here) = get_local::<Here>() {
                    here.stop.signal();
                }
            });
        }
        for w in &mut self.0 {
            if let Some(t) = w.thread.take() {
                // A panic of the thread has been reported by itself.
                let _ = t.join();
            }
        }
    }
}

fn run(buffers: &PoolConfig, provider: &MakeProvider, tell: &Sender<Result<Handle, String>>) {
    let made = Ring::new().map_err(|e| e.to_string()).and_then(|ring| {
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let pool = reactor.enter(|| BufPool::new(buffers)).map_err(|e| e.to_string())?;
        let provider = provider(&reactor, &ring)?;
        Ok(Here { reactor, ring, pool, provider, stop: WaitChannel::new(0) })
    });
    let here = match made {
        Ok(h) => Rc::new(h),
        Err(e) => {
            let _ = tell.send(Err(e));
            return;
        }
    };
    let reactor = here.reactor.clone();
    let _ = tell.send(Ok(reactor.handle()));
    reactor.enter(|| set_local(here.clone()));
    reactor.block_on(PollMode::default(), async move { here.stop.wait().await });
    reactor.shutdown();
}
