//! Port identifiers: 16 bytes, an identifier extension and a GUID (r16a order, IO class 0x0100).
use core::fmt;

/// SRP initiator or target port identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub [u8; 16]);

impl PortId {
    /// Identifier extension (bytes 0–7) and GUID (bytes 8–15).
    ///
    /// Initiator: `initiator_ext` and the interface half of the port's GID. Target: `id_ext` and
    /// `ioc_guid`.
    pub const fn new(extension: u64, guid: u64) -> Self {
        PortId((((extension as u128) << 64) | guid as u128).to_be_bytes())
    }

    /// The identifier extension, bytes 0–7.
    pub const fn extension(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The GUID, bytes 8–15.
    pub const fn guid(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// All bytes zero. A `siw` host without `initiator_ext` logs in so, and several such hosts would
    /// look like one: a target then tells them apart by their address.
    pub const fn is_zero(&self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// The SAM TransportID of this initiator port (SPC: protocol identifier 4, 24 bytes, the port
    /// identifier at offset 8), as PERSISTENT RESERVE and VPD pages carry it.
    pub fn transport_id(&self) -> [u8; 24] {
        let mut t = [0; 24];
        t[0] = 0x04;
        t[8..].copy_from_slice(&self.0);
        t
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{:016x}", self.extension(), self.guid())
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortId({self})")
    }
}

/// The text is not two halves of up to 16 hexadecimal digits with a colon between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortIdError;

impl fmt::Display for PortIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port identifier is two halves of 1 to 16 hex digits, as in 1:2c90300a1b2c3")
    }
}

impl std::error::Error for PortIdError {}

impl core::str::FromStr for PortId {
    type Err = PortIdError;

    fn from_str(s: &str) -> Result<Self, PortIdError> {
        let half = |h: &str| {
            let ok = (1..=16).contains(&h.len()) && h.bytes().all(|b| b.is_ascii_hexdigit());
            if !ok {
                return Err(PortIdError);
            }
            u64::from_str_radix(h, 16).map_err(|_| PortIdError)
        };
        let (e, g) = s.split_once(':').ok_or(PortIdError)?;
        Ok(PortId::new(half(e)?, half(g)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_text() {
        let p = PortId::new(0x0102_0304_0506_0708, 0xf1f2_f3f4_f5f6_f7f8);
        assert_eq!(p.0[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(p.0[8..], [0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8]);
        assert_eq!(p.extension(), 0x0102_0304_0506_0708);
        assert_eq!(p.guid(), 0xf1f2_f3f4_f5f6_f7f8);
        assert_eq!(p.to_string(), "0102030405060708:f1f2f3f4f5f6f7f8");
        assert_eq!(p.to_string().parse(), Ok(p));
        assert_eq!("1:2".parse(), Ok(PortId::new(1, 2)));
        for bad in ["", ":", "1:", ":1", "1", "+1:2", "1:00000000000000002", "g:1"] {
            assert_eq!(bad.parse::<PortId>(), Err(PortIdError), "{bad}");
        }
        assert!(PortId::default().is_zero() && !p.is_zero());
        let t = p.transport_id();
        assert_eq!((t[0], &t[1..8], &t[8..]), (4, &[0u8; 7][..], &p.0[..]));
    }
}
