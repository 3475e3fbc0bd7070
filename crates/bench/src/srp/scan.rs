//! Asking a target what it has.

use super::login::Login;
use crate::client::{ConnectError, ConnectKind};
use crate::engine::Place;
use std::rc::Rc;
use weir_initiator_srp::{Error, Queue, Session};
use weir_reactor::{PollMode, Reactor};
use weir_uring::Ring;

/// A logical unit that a target offers to this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The LUN as a small number.
    pub lun: u16,
    /// Names by which the unit can be called, best first: that which the target gave it (a vendor specific
    /// designator of VPD page 83h), the unit serial number, the product.
    pub names: Vec<String>,
    /// Vendor and product of its INQUIRY data.
    pub product: String,
    /// Unit serial number; empty when it has none.
    pub serial: String,
    /// Length in bytes; 0 when it would not tell.
    pub len: u64,
}

impl Found {
    /// Whether `name` calls this unit.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name)
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.names.first().map_or("without a name", String::as_str);
        let size = crate::units::size(self.len);
        write!(f, "LUN {} {name} ({}, serial {}, {size})", self.lun, self.product, self.serial)
    }
}

/// Logs in, lists the disks that the target shows to this host, logs out.
///
/// # Errors
/// The target cannot be reached, or refuses.
pub fn scan(login: &Login) -> Result<Vec<Found>, ConnectError> {
    let ring = Ring::new().map_err(|e| {
        let hint = "io_uring must be allowed (sysctl kernel.io_uring_disabled=0)";
        ConnectError::new(ConnectKind::Failed, "no connection can be made", e, hint)
    })?;
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let place = Place::alone(reactor.clone(), ring);
    let login = login.clone();
    let found = reactor.block_on(PollMode::default(), async move {
        let provider = login.provider(&place)?;
        let mut last = None;
        // Of several paths the first that is there.
        for mut config in login.sessions(login.initiator) {
            config.channels = 1;
            match Session::connect(provider.clone(), config).await {
                Ok(s) => {
                    let found = list(&s.queue()).await;
                    s.close().await;
                    last = Some(Ok(found));
                    break;
                }
                Err(e) => last = Some(Err(login.explain(e))),
            }
        }
        let found = last.unwrap_or_else(|| Ok(Ok(Vec::new())))?;
        found.map_err(|e| {
            let message = format!("the target at {} does not list its units", login.place());
            ConnectError::new(ConnectKind::Failed, message, e, "name the unit with --lun")
        })
    });
    reactor.shutdown();
    found
}

/// Lists the disks of a session.
///
/// # Errors
/// What the target said to REPORT LUNS, or that the path is down.
pub(super) async fn list(queue: &Queue) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    for unit in queue.scan().await? {
        let Some(lun) = unit.lun.index() else { continue };
        if unit.device_type != 0 {
            continue;
        }
        let serial = unit.serial.unwrap_or_default();
        let mut names = queue.names(unit.lun).await;
        names.push(serial.clone());
        names.push(unit.product.clone());
        names.retain(|n| !n.is_empty());
        let product = format!("{} {}", unit.vendor, unit.product);
        found.push(Found { lun, names, product, serial, len: unit.len });
    }
    Ok(found)
}
