//! PERSISTENT RESERVE IN.

use super::{PrType, Reservations};
use crate::cdb::PrIn;
use crate::data::Data;

impl Reservations {
    /// Appends the whole answer to `out`.
    pub(crate) fn pr_in(&self, action: PrIn, out: &mut Vec<u8>) {
        match action {
            PrIn::ReadKeys => {
                out.be32(self.generation);
                out.be32(0);
                for r in &self.registrations {
                    out.be64(r.key);
                }
                out.set_len32(4);
            }
            PrIn::ReadReservation => self.read_reservation(out),
            PrIn::ReportCapabilities => {
                // 2: CRH, SIP_C, ATP_C, PTPL_C. 3: TMV, PTPL_A. 4, 5: all six types.
                let active = 0x80 | u8::from(self.aptpl);
                out.extend_from_slice(&[0, 8, 0x1d, active, 0xea, 0x01, 0, 0]);
            }
            PrIn::ReadFullStatus => self.read_full_status(out),
        }
    }

    fn read_reservation(&self, out: &mut Vec<u8>) {
        out.be32(self.generation);
        let Some(kind) = self.kind else {
            out.be32(0);
            return;
        };
        out.be32(16);
        // With the all-registrants types there is no one holder to name.
        let holder = self.registrations.iter().find(|r| r.holder);
        out.be64(holder.map_or(0, |r| r.key));
        out.zeros(5);
        out.push(kind.code());
        out.zeros(2);
    }

    fn read_full_status(&self, out: &mut Vec<u8>) {
        out.be32(self.generation);
        out.be32(0);
        for r in &self.registrations {
            let holder = r.holder || self.kind.is_some_and(PrType::held_by_all);
            out.be64(r.key);
            out.zeros(4);
            // ALL_TG_PT is never set: every target port has a registration of its own.
            out.push(u8::from(holder));
            out.push(if holder { self.kind.map_or(0, PrType::code) } else { 0 });
            out.zeros(4);
            out.be16(r.who.target_port);
            let id = r.who.initiator.as_bytes();
            out.be32(id.len() as u32);
            out.extend_from_slice(id);
        }
        out.set_len32(4);
    }
}
