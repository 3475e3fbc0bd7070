//! Names of hosts and initiators.

/// Longest name, in bytes (RFC 7143 section 4.2.7.2; NVMe base specification 2.0, section 4.5).
pub const MAX_NAME: usize = 223;

/// A name as it is compared: of iSCSI `iqn.…`, `eui.` and 16 hexadecimal digits, or `naa.` and 16 or 32 (RFC 7143 section 4.2.7),
/// in lower case (RFC 3722); of NVMe `nqn.…`, byte by byte, but for its first part. `None`: it is none.
pub fn canonical(name: &str) -> Option<String> {
    let (kind, rest) = name.split_once('.')?;
    let kind = kind.to_ascii_lowercase();
    let is_hex = |n: usize| rest.len() == n && rest.bytes().all(|b| b.is_ascii_hexdigit());
    let good = match kind.as_str() {
        "iqn" | "nqn" => !rest.is_empty(),
        "eui" => is_hex(16),
        "naa" => is_hex(16) || is_hex(32),
        _ => false,
    };
    // A comma parts a name from a session in a TransportID.
    let plain = name.bytes().all(|b| b.is_ascii_graphic() && !b",\"'\\".contains(&b));
    if !good || !plain || name.len() > MAX_NAME {
        return None;
    }
    Some(if kind == "nqn" { format!("nqn.{rest}") } else { name.to_ascii_lowercase() })
}

/// The same of an iSCSI initiator.
pub fn iscsi(name: &str) -> Option<String> {
    canonical(name).filter(|n| !n.starts_with("nqn."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_their_protocols_say() {
        let some = |n: &str| Some(n.to_owned());
        assert_eq!(iscsi("IQN.2026-11.A.B"), some("iqn.2026-11.a.b"));
        assert_eq!(iscsi("eui.0123456789ABCDEF"), some("eui.0123456789abcdef"));
        assert_eq!(canonical("NQN.2014-08.x:A"), some("nqn.2014-08.x:A"));
        assert_eq!(iscsi("nqn.2014-08.x:A"), None);
        for bad in ["foo", "iqn.", "eui.1", "naa.0", "iqn.a b", "iqn.a,i,0x1", "iqn.ä", "xyz.a", ""]
        {
            assert_eq!(canonical(bad), None, "{bad}");
        }
        assert!(canonical(&format!("iqn.{}", "x".repeat(219))).is_some());
        assert!(canonical(&format!("iqn.{}", "x".repeat(220))).is_none());
    }
}
