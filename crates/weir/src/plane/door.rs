//! Target ports, whichever protocol they speak.

use std::sync::Arc;
use weir_control::model::Protocol;
use weir_target_core::{Frontend, PortSpec};

/// The front end of one port, for any reactor.
pub(crate) type Door = Arc<dyn Frontend>;

/// What speaks each protocol. A new one is a line here.
pub(crate) fn open(protocol: Protocol, port: PortSpec) -> Door {
    match protocol {
        Protocol::Srp => weir_target_srp::open(port),
        Protocol::Brp => weir_target_brp::open(port),
        Protocol::Nbd => weir_target_nbd::open(port),
        Protocol::Iscsi => weir_target_iscsi::open(port),
    }
}

/// Names this run of the program.
pub(super) fn incarnation() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |d| d.as_nanos() as u64) ^ u64::from(std::process::id()) << 48
}

/// Changes when the machine starts: what volatile caches had may be gone then, and only then.
pub(super) fn power() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // Where the kernel does not tell, every start counts as a loss of power.
    u64::from_str_radix(&hex, 16).unwrap_or_else(|_| incarnation())
}
