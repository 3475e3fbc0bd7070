//! Asking a target what it has.

use super::connect::Login;
use super::disk::command;
use crate::client::{ConnectError, ConnectKind};
use crate::engine::Place;
use std::rc::Rc;
use weir_initiator_srp::Channel;
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator as scsi;
use weir_proto_srp::login::MultiChannelAction;
use weir_reactor::{PollMode, Reactor};
use weir_uring::Ring;

/// Bytes that answers have room for.
const ROOM: usize = 16 << 10;

/// A logical unit that a target offers to this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The LUN as a small number.
    pub lun: u16,
    /// Names by which the unit can be called, best first: designators that name a volume, the unit
    /// serial number, the product.
    pub names: Vec<String>,
    /// Vendor and product of its INQUIRY data.
    pub product: String,
    /// Unit serial number.
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
        write!(f, "LUN {}: {}", self.lun, self.names.first().map_or("", String::as_str))?;
        write!(f, " ({}, serial {}, {} bytes)", self.product, self.serial, self.len)
    }
}

/// Logs in, lists the logical units of the target, logs out.
///
/// # Errors
/// The target cannot be reached, or refuses.
pub fn scan(login: &Login) -> Result<Vec<Found>, ConnectError> {
    let ring = Ring::new().map_err(|e| {
        let hint = "io_uring must be allowed (sysctl kernel.io_uring_disabled=0)";
        ConnectError::new(ConnectKind::Failed, "no connection can be made", e, hint)
    })?;
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let place = Place { reactor: reactor.clone(), ring, worker: 0, workers: 1 };
    let login = login.clone();
    let found = reactor.block_on(PollMode::default(), async move {
        let provider = login.provider(&place);
        let action = MultiChannelAction::Independent;
        let c = login.channel(&*provider, login.initiator, action, 0, 4).await?;
        let found = list(&c).await;
        c.disconnect();
        found.map_err(|e| {
            let message = format!("the target at {} does not list its units", login.address);
            ConnectError::new(ConnectKind::Failed, message, e, "name the unit with --lun")
        })
    });
    reactor.shutdown();
    found
}

async fn list(c: &Rc<Channel>) -> Result<Vec<Found>, crate::client::ClientError> {
    let buf = Slice::heap(ROOM);
    let ask = async |lun: u64, cdb: scsi::Cdb| {
        buf.fill(0);
        command(c, lun, &cdb, None, Some(buf.clone()), 0).await.map(|()| buf.to_vec())
    };
    let answer = ask(Lun::ZERO.0, scsi::report_luns(ROOM as u32)).await?;
    let mut found = Vec::new();
    for lun in scsi::parse_report_luns(&answer).unwrap_or_default() {
        let Some(index) = lun.index() else { continue };
        let inquiry = ask(lun.0, scsi::inquiry(255)).await.ok();
        let inquiry = inquiry.and_then(|b| scsi::parse_inquiry(&b).ok());
        // Only disks; LUN 0 may be there for REPORT LUNS alone.
        let Some(inquiry) = inquiry.filter(|i| (i.qualifier, i.device_type) == (0, 0)) else {
            continue;
        };
        let page = ask(lun.0, scsi::vpd(0x80, 255)).await.ok();
        let serial = page.and_then(|b| scsi::parse_serial(&b)).unwrap_or_default();
        let page = ask(lun.0, scsi::vpd(0x83, 4096)).await.unwrap_or_default();
        let mut names = designated(&page);
        names.push(serial.clone());
        names.push(inquiry.product.clone());
        names.retain(|n| !n.is_empty());
        let capacity = ask(lun.0, scsi::read_capacity_16(32)).await.ok();
        let capacity = capacity.and_then(|b| scsi::parse_capacity_16(&b).ok());
        let len = capacity
            .map_or(0, |c| c.last_lba.saturating_add(1).saturating_mul(u64::from(c.block_size)));
        let product = format!("{} {}", inquiry.vendor, inquiry.product);
        found.push(Found { lun: index, names, product, serial, len });
    }
    Ok(found)
}

/// Names of the logical unit in VPD page 83h that people gave: vendor specific designators (type 0) in
/// ASCII or UTF-8.
fn designated(page: &[u8]) -> Vec<String> {
    let Some(all) = scsi::parse_designators(page) else { return Vec::new() };
    all.filter(|d| (d.association, d.kind) == (0, 0) && matches!(d.code_set, 2 | 3))
        .filter_map(|d| std::str::from_utf8(d.value).ok())
        .map(|s| s.trim_matches(['\0', ' ']).to_owned())
        .collect()
}
