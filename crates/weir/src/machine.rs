//! What this machine is called where it logs in.

/// A number for this machine. Clones and containers of one image may have one machine-id, or none: the hardware's number
/// and the host's name tell them apart.
pub(crate) fn machine() -> u64 {
    let files = ["/etc/machine-id", "/sys/class/dmi/id/product_uuid", "/proc/sys/kernel/hostname"];
    number_of(&files.map(|f| std::fs::read_to_string(f).unwrap_or_default()))
}

/// A number for what is known of a machine: the same for the same, and never 0.
fn number_of(known: &[String]) -> u64 {
    fnv(known.iter().flat_map(|s| s.trim().bytes().chain([0]))) | 1
}

/// FNV-1a.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The initiator port of what has this name on this machine: identifier extension, which begins with two letters for its kind, and
/// GUID.
pub(crate) fn port_of(kind: [u8; 2], name: impl IntoIterator<Item = u8>) -> (u64, u64) {
    let hash = fnv(name);
    let kind = u64::from(u16::from_be_bytes(kind)) << 48;
    (kind | (hash & 0xffff_ffff_ffff) ^ hash >> 48, machine())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By default an attachment's initiator port has this number, and a login ends what is there of its port.
    #[test]
    fn machines_of_one_image_have_numbers_of_their_own() {
        let number = |known: [&str; 3]| number_of(&known.map(str::to_string));
        let first = number(["e2c5", "4c4c", "alpha"]);
        assert_eq!(number(["e2c5\n", "4c4c\n", "alpha\n"]), first, "files end with a new line");
        // A clone on other hardware, one with another name, containers without either number.
        let others = [["e2c5", "7d11", "alpha"], ["e2c5", "4c4c", "beta"], ["", "", "alpha"]];
        let mut all: Vec<u64> = others.into_iter().map(number).collect();
        all.extend([first, number(["", "", "beta"]), number(["", "", ""])]);
        // What one file says does not pass for what another one says.
        all.extend([number(["e2c5", "", "4c4calpha"]), number(["e2c54c4c", "", "alpha"])]);
        assert!(all.iter().all(|n| *n != 0));
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n, "two machines have one number");
        assert_eq!(machine(), machine(), "it is the machine's, not the process's");
    }
}
