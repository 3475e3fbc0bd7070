//! The first commands of real hosts, in their order, with what they need to hear.

use crate::initiator as i;
use crate::lun::{Lun, execute_no_lu};
use crate::sense::Sense;
use crate::testbed::{BLOCKS, Bed, identity, initiator, nexus, sense};

/// Linux 6.12: scsi_scan from LUN 0 on, then sd_revalidate_disk.
#[test]
fn linux_scans_and_attaches() {
    let mut out = Vec::new();
    let luns = [Lun::from_index(1).unwrap()];
    // LUN 0 has no volume: INQUIRY of 36 bytes, then REPORT LUNS with 4096 bytes.
    execute_no_lu(
        i::inquiry(36).as_bytes(),
        Lun::ZERO,
        Sense::LU_NOT_SUPPORTED,
        &luns,
        &identity(),
        &mut out,
    )
    .unwrap();
    assert_eq!((out[0] >> 5, out[0] & 0x1f), (1, 0x1f));
    let report = i::report_luns(4096);
    execute_no_lu(
        report.as_bytes(),
        Lun::ZERO,
        Sense::LU_NOT_SUPPORTED,
        &luns,
        &identity(),
        &mut out,
    )
    .unwrap();
    assert_eq!(i::parse_report_luns(&out).unwrap(), luns);

    let mut bed = Bed::new();
    let a = nexus(1, 1);
    bed.lu.nexus_added(a, initiator(1), 1).unwrap();
    // INQUIRY 36, then additional length + 5; the unit attention waits.
    let first = bed.run(a, i::inquiry(36)).unwrap();
    let full = i::parse_inquiry(&first).unwrap().full_len;
    assert_eq!(bed.run(a, i::inquiry(full as u16)).unwrap().len(), full);
    // A scan that begins at LUN 5 has the LUN in the CDB, as SCSI-2 wanted.
    assert_eq!(bed.raw(a, &[0x12, 5 << 5, 0, 0, 36, 0], &[]).unwrap(), first);
    // VPD 00 first with 4 bytes, then whole; then the pages that are listed.
    assert_eq!(bed.run(a, i::vpd(0, 4)).unwrap().len(), 4);
    for page in bed.run(a, i::vpd(0, 255)).unwrap()[4..].to_vec() {
        bed.run(a, i::vpd(page, 255)).unwrap();
    }
    // The first command that can is told of the power on, and repeated.
    assert_eq!(sense(bed.run(a, i::test_unit_ready())), Sense::POWER_ON_OR_RESET);
    bed.run(a, i::test_unit_ready()).unwrap();
    let capacity = i::parse_capacity_16(&bed.run(a, i::read_capacity_16(32)).unwrap()).unwrap();
    assert_eq!((capacity.last_lba, capacity.block_size), (BLOCKS - 1, 512));
    // Write protect bit from page 3F, 4 bytes; caching page header first, then its length.
    assert_eq!(bed.run(a, i::mode_sense_6(0x3f, 0, false, 4)).unwrap()[2] & 0x80, 0);
    let header = bed.run(a, i::mode_sense_6(0x08, 0, false, 4)).unwrap();
    let len = header[0] + 1;
    let caching = bed.run(a, i::mode_sense_6(0x08, 0, false, len)).unwrap();
    let page = &caching[4 + usize::from(caching[3])..];
    assert_eq!((page[0] & 0x3f, page[2] & 0x04), (0x08, 0), "write through");
    // Protection of the control page, I/O hints, opcodes.
    assert!(bed.run(a, i::mode_sense_6(0x0a, 0, false, 36)).is_ok());
    assert_eq!(sense(bed.run(a, i::mode_sense_10(0x0a, 5, true, 512))).asc, 0x24);
    assert_eq!(bed.run(a, i::report_opcode(0x12, None, 36)).unwrap()[1] & 7, 3);
    assert_eq!(bed.run(a, i::report_opcode(0x93, None, 36)).unwrap()[1] & 7, 3);
    assert_eq!(bed.run(a, i::report_opcode(0x41, None, 36)).unwrap()[1] & 7, 3);
    // The ALUA handler needs relative port and group of the path, then the groups.
    let ids = bed.run(a, i::vpd(0x83, 255)).unwrap();
    let kinds: Vec<u8> = i::parse_designators(&ids).unwrap().map(|d| d.kind).collect();
    assert!(kinds.contains(&4) && kinds.contains(&5));
    let groups = bed.run(a, i::report_target_port_groups(128)).unwrap();
    assert_eq!(groups[4] >> 4, 1);
}

/// Writing "write back" to sd's cache_type: MODE SENSE, then MODE SELECT of what came.
#[test]
fn linux_switches_the_write_cache() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let sensed = bed.run(a, i::mode_sense_6(0x08, 0, false, 64)).unwrap();
    let offset = 4 + usize::from(sensed[3]);
    let mut page = sensed[offset..].to_vec();
    page[2] |= 0x04;
    page[0] &= 0x3f;
    let list = [&[0; 4][..], &page].concat();
    bed.raw(a, i::mode_select_6(list.len() as u8).as_bytes(), &list).unwrap();
    assert!(bed.lu.write_cache_enabled());
}

/// Windows: INQUIRY 255, VPD 00/80/83/B0/B1/B2, READ CAPACITY, MODE SENSE 3F with 192 bytes.
#[test]
fn windows_attaches() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    assert_eq!(bed.run(a, i::inquiry(255)).unwrap().len(), 96);
    for page in [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2] {
        assert!(bed.run(a, i::vpd(page, 255)).is_ok());
    }
    assert!(bed.run(a, i::read_capacity_10()).is_ok());
    assert!(bed.run(a, i::mode_sense_6(0x3f, 0, false, 192)).is_ok());
    assert!(bed.run(a, i::mode_sense_6(0x1a, 0, false, 192)).is_ok());
    assert!(bed.run(a, i::verify(0, 1, false)).is_ok());
    // ODX is probed and absent.
    assert_eq!(sense(bed.run(a, i::vpd(0x8f, 255))), Sense::cdb_byte(2));
    assert_eq!(sense(bed.raw(a, &[0x84; 16], &[])), Sense::INVALID_OPCODE);
}

/// ESXi: NAA name, ports page, ATS limits, task management functions, thin provisioning, no XCOPY.
#[test]
fn esxi_attaches() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let ids = bed.run(a, i::vpd(0x83, 255)).unwrap();
    assert_eq!(i::parse_naa(&ids).unwrap()[0] >> 4, 6);
    assert!(bed.run(a, i::vpd(0x88, 255)).is_ok());
    let limits = i::parse_block_limits(&bed.run(a, i::vpd(0xb0, 64)).unwrap()).unwrap();
    assert!(limits.max_caw_blocks >= 1);
    assert!(bed.raw(a, &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]).is_ok());
    assert!(bed.run(a, i::reserve_6()).is_ok());
    assert!(bed.run(a, i::release_6()).is_ok());
    let copy = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
    assert_eq!(sense(bed.raw(a, &copy, &[])), Sense::INVALID_OPCODE);
    assert_eq!(bed.run(a, i::report_opcode(0x83, Some(1), 64)).unwrap(), [0, 1, 0, 0]);
}
