//! TransportID: how persistent reservations name an initiator port (SPC-4 7.6.4).

use crate::sense::Sense;

/// Protocol identifiers (SPC-4 table 444).
pub mod protocol {
    /// Fibre Channel.
    pub const FCP: u8 = 0;
    /// SCSI RDMA protocol.
    pub const SRP: u8 = 4;
    /// iSCSI.
    pub const ISCSI: u8 = 5;
    /// SAS.
    pub const SAS: u8 = 6;
}

/// Longest TransportID accepted, in bytes: an iSCSI name of 223 bytes with its session id.
pub const TRANSPORT_ID_LEN_MAX: usize = 252;

/// The wire form of a TransportID: 24 bytes, for iSCSI 24 bytes or more. Equal bytes, same port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransportId(Box<[u8]>);

impl TransportId {
    /// An SRP initiator port.
    pub fn srp(initiator_port: [u8; 16]) -> TransportId {
        let mut b = [0; 24];
        b[0] = protocol::SRP;
        b[8..].copy_from_slice(&initiator_port);
        TransportId(Box::new(b))
    }

    /// An iSCSI initiator port: the name, and the session id if the port is meant rather than the
    /// device.
    ///
    /// Names are cut at 223 bytes, the longest that iSCSI allows.
    pub fn iscsi(name: &str, isid: Option<[u8; 6]>) -> TransportId {
        let name = &name.as_bytes()[..name.len().min(223)];
        let mut b = vec![protocol::ISCSI, 0, 0, 0];
        b.extend_from_slice(name);
        if let Some(isid) = isid {
            b[0] |= 0x40;
            b.extend_from_slice(b",i,0x");
            for byte in isid {
                for digit in [byte >> 4, byte & 15] {
                    b.push(b"0123456789abcdef"[usize::from(digit)]);
                }
            }
        }
        b.push(0);
        b.resize(b.len().next_multiple_of(4).max(24), 0);
        let len = (b.len() - 4) as u16;
        b[2..4].copy_from_slice(&len.to_be_bytes());
        TransportId(b.into())
    }

    /// The first TransportID of `list` and what follows it. `at` is where `list` begins in the
    /// parameter list, for the field pointer.
    pub fn parse(list: &[u8], at: usize) -> Result<(TransportId, &[u8]), Sense> {
        let at = at.min(usize::from(u16::MAX)) as u16;
        let header = list.first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let [first, _, hi, lo] = *header;
        let len = match first & 0x0f {
            protocol::ISCSI => {
                if first & 0xc0 > 0x40 {
                    return Err(Sense::list_bit(at, 7));
                }
                let len = 4 + usize::from(u16::from_be_bytes([hi, lo]));
                if !(24..=TRANSPORT_ID_LEN_MAX).contains(&len) || len % 4 != 0 {
                    return Err(Sense::list_byte(at.saturating_add(2)));
                }
                len
            }
            protocol::FCP | protocol::SRP | protocol::SAS => 24,
            _ => return Err(Sense::list_bit(at, 3)),
        };
        let (id, rest) = list.split_at_checked(len).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if first & 0x0f != protocol::ISCSI && first & 0xf0 != 0 {
            return Err(Sense::list_bit(at, 7));
        }
        Ok((TransportId(id.into()), rest))
    }

    /// The wire form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The protocol identifier, as in [`protocol`].
    pub fn protocol(&self) -> u8 {
        self.0.first().map_or(0, |b| b & 0x0f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srp_form_is_24_bytes_with_the_port_at_offset_8() {
        let id = TransportId::srp([7; 16]);
        let mut want = [0u8; 24];
        want[0] = 4;
        want[8..].fill(7);
        assert_eq!(id.as_bytes(), want);
        assert_eq!(TransportId::parse(&want, 28), Ok((id, &[][..])));
    }

    #[test]
    fn iscsi_form_is_padded_and_parses() {
        let id = TransportId::iscsi("iqn.2026-01.org.example:host", Some([0, 2, 0x3d, 0, 0, 1]));
        let b = id.as_bytes();
        assert_eq!(b[0], 0x45);
        assert_eq!(b.len() % 4, 0);
        assert_eq!(usize::from(b[3]) + 4, b.len());
        assert!(b[4..].starts_with(b"iqn.2026-01.org.example:host,i,0x00023d000001\0"));
        let mut two = b.to_vec();
        two.extend_from_slice(&[1, 2]);
        assert_eq!(TransportId::parse(&two, 0), Ok((id, &[1, 2][..])));
        let long = TransportId::iscsi(&"x".repeat(500), Some([0; 6]));
        assert!(long.as_bytes().len() <= TRANSPORT_ID_LEN_MAX);
        assert!(TransportId::parse(long.as_bytes(), 0).is_ok());
    }

    #[test]
    fn short_or_foreign_ids_are_refused() {
        assert_eq!(TransportId::parse(&[4; 3], 0), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(
            TransportId::parse(&[4, 0, 0, 0, 0], 0),
            Err(Sense::PARAMETER_LIST_LENGTH_ERROR)
        );
        assert_eq!(TransportId::parse(&[0x0f; 24], 28), Err(Sense::list_bit(28, 3)));
        assert_eq!(TransportId::parse(&[0x14; 24], 28), Err(Sense::list_bit(28, 7)));
        // iSCSI lengths are multiples of four.
        let mut odd = vec![0u8; 64];
        (odd[0], odd[3]) = (5, 21);
        assert_eq!(TransportId::parse(&odd, 28), Err(Sense::list_byte(30)));
        let mut huge = vec![0u8; 300];
        huge[0] = 5;
        huge[2] = 1;
        assert_eq!(TransportId::parse(&huge, 28), Err(Sense::list_byte(30)));
    }
}
