//! Devices that are missing, and those that only cannot be had.

use super::open::Devices;
use crate::plane::devices::Holds;
use std::path::PathBuf;
use std::sync::Arc;
use weir_control::Code;

/// Whether what is not `held` is nowhere, or something else has its name: what it is that others use, who opens the pool looks at.
/// `silent`: or does not answer, or cannot be opened.
pub(super) async fn are_gone(holds: &Arc<Holds>, held: &Devices, silent: bool) -> bool {
    for (path, e) in held.iter().filter_map(|(path, held)| Some((path, held.as_ref().err()?))) {
        let is_there = match e.code {
            // Something else may have its name: another pool's device, or a file system.
            Code::PoolDamaged | Code::InvalidDevice | Code::DeviceInUse => false,
            _ if silent => false,
            _ => {
                let path = PathBuf::from(path);
                let at = path.clone();
                let gone = |e: std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
                let look = move |_: &Arc<Holds>| Ok(std::fs::metadata(at).is_err_and(gone));
                !holds.helped(&path, look).await.unwrap_or(false)
            }
        };
        if is_there {
            return false;
        }
    }
    true
}
