//! Vital product data pages (SPC-4 7.8, SBC-3 6.6).

use super::LuState;
use crate::data::Data;
use crate::geometry::Features;
use crate::identity::{POWER_MAGIC, POWER_PAGE, PortName, TargetPort};
use crate::pr::PortPair;
use crate::sense::Sense;

/// Supported pages, ascending.
const PAGES: &[u8] = &[0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0xb0, 0xb1, 0xb2];

/// Associations of a designator.
const LOGICAL_UNIT: u8 = 0x00;
const TARGET_PORT: u8 = 0x10;

/// Code sets of a designator.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;

impl LuState {
    /// Appends VPD page `page` as seen through the target port of `who`.
    pub(super) fn vpd(&self, who: &PortPair, page: u8, out: &mut Vec<u8>) -> Result<(), Sense> {
        out.extend_from_slice(&[self.peripheral(), page, 0, 0]);
        match page {
            0x00 => {
                out.extend_from_slice(PAGES);
                out.extend(self.identity.power.map(|_| POWER_PAGE));
            }
            0x80 => out.extend_from_slice(self.identity.serial.as_bytes()),
            0x83 => self.device_identification(who, out),
            0x86 => self.extended_inquiry(out),
            0x87 => self.mode_page_policy(out),
            0x88 => self.scsi_ports(out),
            0xb0 => self.block_limits(out),
            0xb1 => self.block_characteristics(out),
            0xb2 => self.provisioning(out),
            POWER_PAGE => {
                let power = self.identity.power.ok_or(Sense::cdb_byte(2))?;
                out.extend_from_slice(POWER_MAGIC);
                out.extend_from_slice(&power.to_be_bytes());
            }
            _ => return Err(Sense::cdb_byte(2)),
        }
        out.set_len16(2);
        Ok(())
    }

    fn device_identification(&self, who: &PortPair, out: &mut Vec<u8>) {
        let id = &self.identity;
        designator(out, BINARY, LOGICAL_UNIT | 3, &id.naa);
        if let Some(eui) = &id.eui64 {
            designator(out, BINARY, LOGICAL_UNIT | 2, eui);
        }
        let mut vendor = id.vendor.to_vec();
        vendor.extend_from_slice(id.serial.as_bytes());
        designator(out, ASCII, LOGICAL_UNIT | 1, &vendor);
        designator(out, UTF8, LOGICAL_UNIT | 8, &naa_name(&id.naa));
        if !id.label.is_empty() {
            // Vendor specific (type 0): the volume's name, for tools that are given one.
            let len = id.label.len().min(crate::identity::LABEL_LEN_MAX);
            designator(out, UTF8, LOGICAL_UNIT, &id.label.as_bytes()[..len]);
        }
        if let Some(port) = id.port(who.target_port) {
            let relative = u32::from(port.relative_id).to_be_bytes();
            port_designator(out, port, BINARY, 4, &relative);
            let group = u32::from(port.group).to_be_bytes();
            port_designator(out, port, BINARY, 5, &group);
            port_name(out, port);
        }
    }

    fn extended_inquiry(&self, out: &mut Vec<u8>) {
        let id = &self.identity;
        // Simple tasks; ordered and head of queue only if they are honoured.
        let tasks = 0x01 | u8::from(id.ordered_tasks) << 1 | u8::from(id.head_of_queue_tasks) << 2;
        let volatile_cache = 0x01;
        // 4: no protection checks; 7: none of LUICLR and the like.
        out.extend_from_slice(&[0, tasks, volatile_cache]);
        out.zeros(0x3c - 3);
    }

    fn mode_page_policy(&self, out: &mut Vec<u8>) {
        // All pages and subpages: shared by all nexuses.
        out.extend_from_slice(&[0x3f, 0xff, 0x00, 0x00]);
    }

    fn scsi_ports(&self, out: &mut Vec<u8>) {
        for port in &self.identity.ports {
            out.be16(0);
            out.be16(port.relative_id);
            out.be16(0);
            // No initiator port TransportID.
            out.be16(0);
            out.be16(0);
            let at = out.len();
            out.be16(0);
            port_name(out, port);
            out.set_len16(at);
        }
    }

    fn block_limits(&self, out: &mut Vec<u8>) {
        let (features, l) = (self.geometry.features, &self.geometry.limits);
        let has = |f| features.contains(f);
        out.push(u8::from(l.write_same_non_zero));
        out.push(if has(Features::COMPARE_AND_WRITE) { l.max_caw_blocks } else { 0 });
        out.be16(l.optimal_granularity_blocks);
        out.be32(l.max_transfer_blocks);
        out.be32(l.optimal_transfer_blocks);
        // Maximum prefetch length: no limit.
        out.be32(0);
        if has(Features::UNMAP) {
            out.be32(l.max_unmap_blocks);
            out.be32(l.max_unmap_descriptors);
            out.be32(l.unmap_granularity_blocks);
            let valid = if l.unmap_granularity_blocks == 0 { 0 } else { 0x8000_0000 };
            out.be32(valid | l.unmap_alignment_lba & 0x7fff_ffff);
        } else {
            out.zeros(16);
        }
        out.be64(if has(Features::WRITE_SAME) { l.max_write_same_blocks } else { 0 });
        // No atomic writes.
        out.zeros(0x3c - 40);
    }

    fn block_characteristics(&self, out: &mut Vec<u8>) {
        // 1 is solid state, 0 does not tell. 7: form factor not reported; 8: FUAB, SYNCHRONIZE
        // CACHE and FUA mean what SBC-3 says.
        out.be16(u16::from(!self.identity.rotational));
        out.extend_from_slice(&[0, 0, 0x02]);
        out.zeros(0x3c - 5);
    }

    fn provisioning(&self, out: &mut Vec<u8>) {
        let has = |f| self.geometry.features.contains(f);
        let mut flags = 0;
        if has(Features::UNMAP) {
            // LBPU, and LBPRZ: zeros.
            flags |= 0x80 | 0x04;
        }
        if has(Features::WRITE_SAME_UNMAP) && has(Features::WRITE_SAME) {
            flags |= 0x40 | 0x20;
        }
        if has(Features::ANCHOR) {
            flags |= 0x02;
        }
        let kind = if has(Features::UNMAP) { 2 } else { 0 };
        out.extend_from_slice(&[self.identity.threshold_exponent, flags, kind, 0]);
    }
}

/// `naa.` and the designator in hex, NUL padded to a multiple of four.
fn naa_name(naa: &[u8; 16]) -> Vec<u8> {
    let mut name = b"naa.".to_vec();
    hex(naa, &mut name);
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    name
}

fn hex(bytes: &[u8], out: &mut Vec<u8>) {
    for b in bytes {
        for digit in [b >> 4, b & 15] {
            out.push(b"0123456789ABCDEF"[usize::from(digit)]);
        }
    }
}

fn designator(out: &mut Vec<u8>, code_set: u8, kind: u8, value: &[u8]) {
    out.extend_from_slice(&[code_set, kind, 0, value.len() as u8]);
    out.extend_from_slice(value);
}

fn port_designator(out: &mut Vec<u8>, port: &TargetPort, code_set: u8, kind: u8, value: &[u8]) {
    let protocol = port.name.protocol() << 4;
    // PIV: the protocol identifier is valid.
    designator(out, protocol | code_set, 0x80 | TARGET_PORT | kind, value);
}

/// The designator of a target port's name.
fn port_name(out: &mut Vec<u8>, port: &TargetPort) {
    match &port.name {
        PortName::Srp(id) => port_designator(out, port, BINARY, 2, id),
        PortName::Name { name, .. } => {
            let mut end = name.len().min(250);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            let mut name = name.as_bytes()[..end].to_vec();
            name.push(0);
            name.resize(name.len().next_multiple_of(4), 0);
            port_designator(out, port, UTF8, 8, &name);
        }
    }
}
