//! Who a logical unit is: what INQUIRY and the VPD pages say about it.

/// A target port, as VPD pages 83h and 88h and REPORT TARGET PORT GROUPS describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPort {
    /// Relative target port identifier, 1..=65535, unique in the SCSI device.
    pub relative_id: u16,
    /// Target port group.
    pub group: u16,
    /// The port's name.
    pub name: PortName,
}

/// The name of a target port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortName {
    /// SRP: the 16-byte target port identifier.
    Srp([u8; 16]),
    /// A SCSI name string of another protocol, e.g. `iqn.…,t,0x0001` with protocol identifier 5.
    Name {
        /// Protocol identifier, 0..=15.
        protocol: u8,
        /// UTF-8 name; at most 250 bytes are used.
        name: String,
    },
}

impl PortName {
    /// Protocol identifier of the port.
    pub fn protocol(&self) -> u8 {
        match self {
            PortName::Srp(_) => crate::transport_id::protocol::SRP,
            PortName::Name { protocol, .. } => protocol & 0x0f,
        }
    }
}

/// Identity and fixed properties of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification, space padded.
    pub vendor: [u8; 8],
    /// Product identification, space padded.
    pub product: [u8; 16],
    /// Product revision level, space padded.
    pub revision: [u8; 4],
    /// Unit serial number: printable ASCII, at most [`SERIAL_LEN_MAX`] bytes.
    pub serial: String,
    /// The volume's name, at most [`LABEL_LEN_MAX`] bytes are shown; empty for none. A designator of
    /// vendor-specific type in VPD page 83h.
    pub label: String,
    /// NAA 6 designator: the same on every path and every controller.
    pub naa: [u8; 16],
    /// EUI-64 based designator, if the volume has one.
    pub eui64: Option<[u8; 8]>,
    /// Ports through which the unit is reached.
    pub ports: Vec<TargetPort>,
    /// True for rotating media; VPD page B1h.
    pub rotational: bool,
    /// What volatile caches are of: it changes when what they held may have been lost. Told in VPD page C0h, which is
    /// not there for `None`.
    pub power: Option<u64>,
    /// WCE after a reset: a volatile write cache is in use, so hosts send SYNCHRONIZE CACHE.
    pub write_cache: bool,
    /// TAS after a reset: tasks aborted by another nexus end with TASK ABORTED.
    pub task_aborted_status: bool,
    /// The volume may not be written.
    pub read_only: bool,
    /// Physical block is 2^n logical blocks.
    pub physical_block_exponent: u8,
    /// Lowest aligned LBA, 0..=3FFFh.
    pub lowest_aligned_lba: u16,
    /// Threshold exponent of VPD page B2h; 0 when there are no thresholds.
    pub threshold_exponent: u8,
    /// The device honours ORDERED tasks; if not, VPD page 86h says so.
    pub ordered_tasks: bool,
    /// The device honours HEAD OF QUEUE tasks; if not, VPD page 86h says so.
    pub head_of_queue_tasks: bool,
    /// First byte of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: ATS 80, ATSS 40, CACAS 20,
    /// CTSS 10, LURS 08, QTS 04.
    pub task_management: u8,
}

/// The vendor specific VPD page of [`Identity::power`]: [`POWER_MAGIC`], then the number, big endian.
pub const POWER_PAGE: u8 = 0xc0;

/// What the page begins with: other vendors have pages of this number.
pub const POWER_MAGIC: &[u8; 8] = b"WEIRPOWR";

/// Longest label in bytes.
pub const LABEL_LEN_MAX: usize = 128;

/// Longest unit serial number in bytes.
pub const SERIAL_LEN_MAX: usize = 64;

/// `text` as fixed, space-padded ASCII: longer text is cut, what is not printable becomes `_`.
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (o, c) in out.iter_mut().zip(text.chars()) {
        *o = printable(c);
    }
    out
}

fn printable(c: char) -> u8 {
    if c.is_ascii() && !c.is_ascii_control() { c as u8 } else { b'_' }
}

impl Identity {
    /// A solid-state disk with no volatile write cache, and no ports yet.
    pub fn new(vendor: &str, product: &str, revision: &str, serial: &str, naa: [u8; 16]) -> Self {
        Identity {
            vendor: ascii(vendor),
            product: ascii(product),
            revision: ascii(revision),
            label: String::new(),
            serial: serial.chars().take(SERIAL_LEN_MAX).map(|c| printable(c) as char).collect(),
            naa,
            eui64: None,
            ports: Vec::new(),
            rotational: false,
            power: None,
            write_cache: false,
            task_aborted_status: true,
            read_only: false,
            physical_block_exponent: 0,
            lowest_aligned_lba: 0,
            threshold_exponent: 0,
            ordered_tasks: false,
            head_of_queue_tasks: false,
            task_management: 0x80 | 0x40 | 0x10 | 0x08,
        }
    }

    /// A locally administered NAA 6 designator: IEEE company id, 36 and 64 bits of the vendor.
    pub const fn naa6(company_id: u32, high: u64, low: u64) -> [u8; 16] {
        let top = 6u64 << 60 | ((company_id as u64) & 0xff_ffff) << 36 | high & 0xf_ffff_ffff;
        ((top as u128) << 64 | low as u128).to_be_bytes()
    }

    /// The port with this relative identifier.
    pub fn port(&self, relative_id: u16) -> Option<&TargetPort> {
        self.ports.iter().find(|p| p.relative_id == relative_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_made_fit_for_inquiry() {
        assert_eq!(&ascii::<8>("WEIR"), b"WEIR    ");
        assert_eq!(&ascii::<4>("r\u{e9}sum\u{e9}"), b"r_su");
        let id = Identity::new("V", "P", "1", &"s".repeat(100), [0; 16]);
        assert_eq!(id.serial.len(), SERIAL_LEN_MAX);
    }

    #[test]
    fn naa6_has_its_nibble_company_and_vendor_parts() {
        let n = Identity::naa6(0x00_025a, 0xf_1234_5678, 0x1122_3344_5566_7788);
        assert_eq!(n[..8], [0x60, 0x00, 0x25, 0xaf, 0x12, 0x34, 0x56, 0x78]);
        assert_eq!(n[8..], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    }
}
