//! The node's ports: made, ended and made again.

use super::{BRP, Local, Node, identity, port_id};
use crate::Wrong;
use crate::suites::scene::Port;
use std::cell::Cell;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_reactor::{Handle, call, get_local, sleep, spawn_task};
use weir_sim::{Node as Machine, World};
use weir_target_brp as brp;
use weir_target_core::Access;
use weir_target_srp as srp;

/// What every port of the run is made from.
pub(super) struct Recipe {
    pub(super) srp: srp::TargetConfig,
    pub(super) brp: brp::TargetConfig,
    pub(super) tas: bool,
    /// BRP ports so far: each is another run of the port to its hosts, as the program has it.
    pub(super) made: Cell<u64>,
}

impl Recipe {
    pub(super) fn srp(&self, port: u8, access: &Arc<Access>, cores: usize) -> srp::Target {
        let config = srp::TargetConfig {
            port_id: weir_proto_srp::PortId(port_id(port)),
            relative_port: u16::from(port),
            ..self.srp.clone()
        };
        srp::Target::new(config, access.clone(), identity(0, self.tas), cores)
    }

    pub(super) fn brp(&self, access: &Arc<Access>) -> brp::Target {
        self.made.set(self.made.get() + 1);
        let config = brp::TargetConfig {
            incarnation: self.made.get(),
            port_id: weir_initiator_brp::PortId(port_id(BRP)),
            relative_port: u16::from(BRP),
            ..self.brp.clone()
        };
        brp::Target::new(config, access.clone())
    }
}

/// Where a port listens.
pub(super) fn address(port: u8) -> String {
    format!("0.0.0.0:{port}")
}

/// Does something with a port on a reactor.
async fn on<P: Port + Send, R: Send + 'static>(
    h: &Handle,
    port: &P,
    what: impl AsyncFnOnce(P, &Local) -> R + Send + 'static,
) -> Option<R> {
    let port = port.clone();
    let done = call(h, move || async move {
        let l = get_local::<Local>()?;
        Some(what(port, &l).await)
    });
    done.await.flatten()
}

impl Node {
    /// Ends a port, which hosts' commands have so long for, and makes it again, as the program does when its settings
    /// are changed.
    pub(in crate::suites::doors) async fn remake(&self, port: u8, patience: Nanos) {
        let j = &self.judge;
        j.disturbed();
        if port == BRP {
            let old = self.brp.borrow().clone();
            let new = self.ports.brp(&self.access);
            self.replace_port(port, &old, &new, patience).await;
            *self.brp.borrow_mut() = new;
        } else {
            let i = usize::from(port) - 1;
            let old = self.srp.borrow()[i].clone();
            let new = self.ports.srp(port, &self.access, self.machine.cores());
            self.replace_port(port, &old, &new, patience).await;
            self.srp.borrow_mut()[i] = new;
        }
        j.disturbed();
        j.count("ports made again");
    }

    async fn replace_port<P: Port + Send>(&self, port: u8, old: &P, new: &P, patience: Nanos) {
        let reactors = self.reactors();
        for h in &reactors {
            on(h, old, async |p, _| p.close_here()).await;
        }
        for h in &reactors {
            let ended = on(h, old, async move |p, _| p.leave_here_within(patience).await).await;
            if ended != Some(true) {
                self.judge.left_behind(port, self.keeper.slow > 0);
            }
        }
        for h in &reactors {
            let joined = on(h, new, async |p, l| {
                p.serve(l.provider.clone(), l.units.clone(), l.pool.clone())
            });
            if let Some(Err(e)) = joined.await {
                self.judge.wrong(format!("port {port} does not start again: {e}"));
            }
        }
        let listens =
            on(&reactors[0], new, async move |p, l| p.take_logins(&*l.provider, &address(port)));
        if let Some(Err(e)) = listens.await {
            self.judge.wrong(format!("port {port} does not listen again: {e}"));
        }
        self.knows_nobody(port, old);
    }

    /// A port that has ended soon knows nobody any more: neither whom it had let in, nor who was logging in at its end. Their
    /// nexuses would hold units reserved.
    fn knows_nobody<P: Port>(&self, port: u8, old: &P) {
        let (judge, old) = (self.judge.clone(), old.clone());
        spawn_task(async move {
            // Logins go from one reactor to another, and wait for each other's ends.
            sleep(100 * MILLIS).await;
            let known = old.known();
            if !known.is_empty() {
                judge.wrong(format!("port {port} has ended and still knows {known:?}"));
            }
        });
    }
}

/// Ends a port for good, and looks for anything left. Channels of hosts that do not come back may take up to `patience`.
pub(super) fn close<P: Port>(
    w: &World,
    machine: &Machine,
    name: &str,
    port: &P,
    patience: Nanos,
) -> Result<(), Wrong> {
    for core in 0..machine.cores() {
        let channels = || machine.enter_on(core, || port.channels_here());
        w.run_until(patience, || channels() == 0)
            .map_err(|s| Wrong(format!("channels stay at {name}, of {:?}: {s}", port.known())))?;
        let idle = machine.enter_on(core, || port.check_here());
        idle.map_err(|e| Wrong(format!("{name}, core {core}: {e}")))?;
        let p = port.clone();
        let left = machine.spawn_on(core, async move { p.leave_here().await });
        w.run_until(10 * SECONDS, || left.is_finished())?;
    }
    match port.known() {
        known if known.is_empty() => Ok(()),
        known => Err(Wrong(format!("{name} still knows: {known:?}"))),
    }
}
