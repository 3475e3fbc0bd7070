//! A unit as Weir's initiators reach it, by either protocol.

use super::unit::BLOCK;
use std::rc::Rc;
use weir_initiator_brp as brp;
use weir_initiator_srp as srp;
use weir_mem::Slice;

/// How an I/O ended that did not end well.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ended {
    /// For want of a path, or of patience.
    Path,
    /// The flush told of lost writes.
    LostCache,
    /// In no way that it should.
    Wrong(String),
}

/// A handle.
#[derive(Clone)]
pub(super) enum Way {
    Srp(Rc<srp::Multipath>, srp::Queue),
    Brp(Rc<brp::Multipath>),
}

fn of_srp(e: srp::Error) -> Ended {
    match e {
        srp::Error::LostCache => Ended::LostCache,
        e if e.is_path() => Ended::Path,
        e => Ended::Wrong(e.to_string()),
    }
}

fn of_brp(e: brp::Error) -> Ended {
    match e {
        brp::Error::LostCache => Ended::LostCache,
        e if e.is_path() => Ended::Path,
        brp::Error::Status(brp::Status::Aborted | brp::Status::Busy) => Ended::Path,
        e => Ended::Wrong(e.to_string()),
    }
}

impl Way {
    pub(super) async fn write(&self, block: usize, data: &[u8]) -> Result<(), Ended> {
        let (at, buf) = ((block * BLOCK) as u64, Slice::copy_of(data).sub(0, data.len()));
        match self {
            Way::Srp(m, _) => m.write(at, buf, false).await.map_err(of_srp),
            Way::Brp(m) => m.write(at, buf, false).await.map_err(of_brp),
        }
    }

    /// Asks which units there are, as others on the same host do at any time.
    pub(super) async fn scan(&self) -> Result<(), Ended> {
        match self {
            Way::Srp(_, any) => any.scan().await.map(drop).map_err(of_srp),
            Way::Brp(_) => Ok(()),
        }
    }

    pub(super) async fn flush(&self) -> Result<(), Ended> {
        match self {
            Way::Srp(m, _) => m.flush().await.map_err(of_srp),
            Way::Brp(m) => m.flush().await.map_err(of_brp),
        }
    }
}

/// A session, of all cores of a host.
#[derive(Clone)]
pub(super) enum Session {
    Srp(srp::Session),
    Brp(brp::Session),
}

impl Session {
    /// Logs in; another may be tried meanwhile.
    pub(super) async fn login(&self) -> bool {
        match self {
            Session::Srp(s) => s.login().await.is_ok(),
            Session::Brp(s) => s.login().await.is_ok(),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Session::Srp(s) => s.close().await,
            Session::Brp(s) => s.close().await,
        }
    }

    /// Commands and registrations that the present core's channels hold.
    pub(super) fn held(&self) -> usize {
        let srp = |c: &srp::ChannelCensus| c.busy + c.registrations + c.waiting;
        let brp = |c: &brp::ChannelCensus| c.busy + c.registrations + c.waiting;
        match self {
            Session::Srp(s) => s.census().iter().map(srp).sum(),
            Session::Brp(s) => s.census().iter().map(brp).sum(),
        }
    }

    /// A handle of the present core over these sessions.
    pub(super) async fn open(all: &[Session], id: &[u8; 16]) -> Result<Way, String> {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for s in all {
            match s {
                Session::Srp(s) => one.push(s.queue()),
                Session::Brp(s) => other.push(s.queue()),
            }
        }
        if other.is_empty() {
            // Looks by the clock would take the unit attentions that commands are to meet.
            let config = srp::MultipathConfig {
                check_every: 2 * weir_base::SECONDS,
                no_path: 300 * weir_base::SECONDS,
                ..Default::default()
            };
            let any = one[0].clone();
            let m = srp::Multipath::open(one, id, config).await;
            return m.map(|m| Way::Srp(Rc::new(m), any)).map_err(|e| e.to_string());
        }
        let m = brp::Multipath::open(other, id).await;
        m.map(|m| Way::Brp(Rc::new(m))).map_err(|e| e.to_string())
    }
}
