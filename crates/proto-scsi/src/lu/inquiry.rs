//! Standard INQUIRY data (SPC-4 6.6.2).

use super::LuState;
use crate::data::Data;
use crate::geometry::Features;
use crate::transport_id::protocol;

impl LuState {
    /// Qualifier 0 and device type: 00h disk, 0Eh simplified disk.
    pub(super) fn peripheral(&self) -> u8 {
        if self.is_rbc() { 0x0e } else { 0x00 }
    }

    pub(super) fn is_rbc(&self) -> bool {
        self.geometry.features.contains(Features::RBC)
    }

    pub(super) fn standard_inquiry(&self, out: &mut Vec<u8>) {
        const LEN: usize = 96;
        let id = &self.identity;
        let multi_port = if id.ports.len() > 1 { 0x10 } else { 0 };
        // Version SPC-4; hierarchical LUNs, format 2; TPGS implicit; command queuing.
        out.extend_from_slice(&[self.peripheral(), 0, 0x06, 0x12]);
        out.extend_from_slice(&[(LEN - 5) as u8, 0x10, multi_port, 0x02]);
        out.extend_from_slice(&id.vendor);
        out.extend_from_slice(&id.product);
        out.extend_from_slice(&id.revision);
        out.zeros(58 - out.len());
        // SAM-5, SPC-4, then SBC-3 unless the unit is RBC, then the transports.
        out.be16(0x00a0);
        out.be16(0x0460);
        if !self.is_rbc() {
            out.be16(0x04c0);
        }
        for (transport, descriptor) in [(protocol::SRP, 0x0940), (protocol::ISCSI, 0x0960)] {
            if id.ports.iter().any(|p| p.name.protocol() == transport) {
                out.be16(descriptor);
            }
        }
        out.zeros(LEN - out.len());
    }
}
