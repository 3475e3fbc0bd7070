//! The secret of this host.

use std::path::Path;
use weir_control::Result;
use weir_control::model::HostSecret;
use weir_initiator_brp::Secret;

/// Reads it, for sessions to prove.
///
/// # Errors
/// The file cannot be used.
pub(crate) fn read(path: &Path) -> Result<Secret> {
    let secret = HostSecret::read(path)?;
    Ok(Secret { bytes: secret.bytes().to_vec(), seed: crate::seed::draw()? })
}
