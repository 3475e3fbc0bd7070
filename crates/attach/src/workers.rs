//! The reactors of an attachment, each on a thread of its own, and how the thread that directs them has them do
//! something.

use crate::error::{Error, Kind};
use crate::signals::Signals;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_fabric::Provider;
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{
    Handle, LocalFuture, PollMode, Reactor, WaitChannel, get_local, set_local, spawn_task,
};
use weir_uring::Ring;

/// How the names of their threads begin.
pub(crate) const THREAD: &str = "weir-attach-";

/// How often who waits for a reactor looks whether it is to go on.
const LOOK: Duration = Duration::from_millis(20);
/// How long a reactor may take with what is to end, once somebody has asked for the end of all.
const END: Duration = Duration::from_secs(2);

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
pub struct Workers {
    all: Vec<Worker>,
    /// What ends the waiting for them.
    signals: Option<Signals>,
}

impl Workers {
    /// Starts `n` reactors with these buffers each. Until there is a disk nobody waits for them after a signal.
    ///
    /// # Errors
    /// The operating system has no ring, memory or thread, or there is no fabric.
    pub fn start(
        n: usize,
        buffers: &PoolConfig,
        provider: &MakeProvider,
        signals: &Signals,
    ) -> Result<Workers, Error> {
        let failed = |e: &dyn std::fmt::Display| {
            let hint = "io_uring must be allowed (sysctl kernel.io_uring_disabled=0)";
            Error::new(Kind::Failed, "a reactor does not start", e, hint)
        };
        let mut workers = Workers { all: Vec::new(), signals: Some(signals.clone()) };
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
            workers.all.push(Worker { handle, thread: Some(thread) });
        }
        Ok(workers)
    }

    /// Number of reactors.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Never: there is one reactor at least.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// There is a disk: what is to be done for it is waited for, whatever signal comes.
    pub(crate) fn made(&mut self) {
        self.signals = None;
    }

    /// What ends the waiting, if it is to end now.
    pub(crate) fn asked(&self) -> Option<Error> {
        self.signals.as_ref().filter(|s| s.is_asked()).map(Signals::reason)
    }

    /// Has reactor `i` run `f`, and waits for its result. Not to be called on a reactor.
    ///
    /// # Errors
    /// The reactor has ended, or a signal came before there was a disk.
    pub fn call<R: Send + 'static>(
        &self,
        i: usize,
        f: impl FnOnce(Rc<Here>) -> LocalFuture<'static, R> + Send + 'static,
    ) -> Result<R, Error> {
        self.call_for(Duration::ZERO, i, f)
    }

    /// The same for what ends something: that has some time also after a signal.
    pub(crate) fn call_to_end<R: Send + 'static>(
        &self,
        i: usize,
        f: impl FnOnce(Rc<Here>) -> LocalFuture<'static, R> + Send + 'static,
    ) -> Result<R, Error> {
        self.call_for(END, i, f)
    }

    fn call_for<R: Send + 'static>(
        &self,
        mut more: Duration,
        i: usize,
        f: impl FnOnce(Rc<Here>) -> LocalFuture<'static, R> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, told) = channel();
        self.all[i].handle.run(move || {
            let Some(here) = get_local::<Here>() else { return };
            let work = f(here);
            spawn_task(async move {
                let _ = tell.send(work.await);
            });
        });
        loop {
            match told.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => {
                    let (what, why) = ("a reactor has ended", "its thread is gone");
                    return Err(Error::new(Kind::Failed, what, why, "see the log"));
                }
                Err(RecvTimeoutError::Timeout) => match self.asked() {
                    Some(why) if more.is_zero() => return Err(why),
                    Some(_) => more = more.saturating_sub(LOOK),
                    None => {}
                },
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for w in &self.all {
            w.handle.run(|| {
                if let Some(here) = get_local::<Here>() {
                    here.stop.signal();
                }
            });
        }
        for w in &mut self.all {
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
