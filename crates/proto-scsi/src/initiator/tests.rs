use super::*;
use crate::cdb::{Command, PrIn, PrOut, decode};
use crate::lba_status::{self, LbaStatus, Provisioning};
use crate::lun::Lun;
use crate::pr::PrType;
use crate::{Geometry, TransportId};
use proptest::prelude::*;

#[test]
fn cdbs_golden() {
    assert_eq!(test_unit_ready().as_bytes(), [0; 6]);
    assert_eq!(inquiry(36).as_bytes(), [0x12, 0, 0, 0, 36, 0]);
    assert_eq!(vpd(0x83, 0x1234).as_bytes(), [0x12, 1, 0x83, 0x12, 0x34, 0]);
    assert_eq!(
        read(0x1234_5678, 0xabcd, true).as_bytes(),
        [0x28, 8, 0x12, 0x34, 0x56, 0x78, 0, 0xab, 0xcd, 0]
    );
    assert_eq!(
        write(0x1_0000_0000, 1, false).as_bytes(),
        [0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    );
    // A long transfer at a low address also takes the 16-byte form.
    assert_eq!(read(0, 0x1_0000, false).as_bytes()[0], 0x88);
    assert_eq!(read_capacity_16(32).as_bytes()[..2], [0x9e, 0x10]);
    assert_eq!(report_luns(4096).as_bytes(), [0xa0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0]);
    assert_eq!(mode_sense_10(0x0a, 5, true, 512).as_bytes(), [0x5a, 8, 0x0a, 5, 0, 0, 0, 2, 0, 0]);
    assert_eq!(pr_in(PrIn::ReadFullStatus, 8).as_bytes(), [0x5e, 3, 0, 0, 0, 0, 0, 0, 8, 0]);
    let preempt = pr_out(PrOut::Preempt, Some(PrType::ExclusiveAccess), 24);
    assert_eq!(preempt.as_bytes(), [0x5f, 4, 3, 0, 0, 0, 0, 0, 24, 0]);
    assert_eq!(
        report_opcode(0x93, None, 36).as_bytes(),
        [0xa3, 0x0c, 1, 0x93, 0, 0, 0, 0, 0, 36, 0, 0]
    );
    assert_eq!(sync_cache(0, 0).len(), 10);
}

#[test]
fn every_builder_makes_a_cdb_that_decodes() {
    let g = Geometry::new(512, 1 << 20);
    let all = [
        test_unit_ready(),
        request_sense(true, 252),
        inquiry(36),
        vpd(0, 255),
        report_luns(16),
        read_capacity_10(),
        read_capacity_16(32),
        read(0, 1, true),
        write(0, 1, true),
        verify(0, 1, true),
        sync_cache(0, 0),
        write_same_16(0, 1, true, false),
        unmap(24),
        compare_and_write(0, 1, true),
        get_lba_status(0, 24),
        mode_sense_6(0x3f, 0xff, true, 255),
        mode_sense_10(8, 0, false, 255),
        mode_select_6(24),
        start_stop(true, true),
        report_opcodes_all(4096),
        report_opcode(0x28, None, 64),
        report_target_port_groups(128),
        reserve_6(),
        release_6(),
        pr_in(PrIn::ReportCapabilities, 8),
        pr_out(PrOut::Reserve, Some(PrType::WriteExclusive), 24),
    ];
    for cdb in all {
        assert!(decode(cdb.as_bytes(), &g).is_ok(), "{cdb:?}");
        assert_eq!(decode(&cdb.padded(), &g), decode(cdb.as_bytes(), &g));
    }
    let same = decode(write_same_16(7, 8, true, false).as_bytes(), &g);
    let want = Command::WriteSame { lba: 7, blocks: 8, unmap: true, ndob: true, anchor: false };
    assert_eq!(same, Ok(want));
}

#[test]
fn parameter_lists_golden() {
    let to = TransportId::srp([3; 16]);
    let list = pr_out_list(
        1,
        2,
        &PrRegister { aptpl: true, all_target_ports: true, initiators: std::slice::from_ref(&to) },
    );
    assert_eq!(list[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(list[16..28], [0, 0, 0, 0, 0x0d, 0, 0, 0, 0, 0, 0, 24]);
    assert_eq!(list[28..], *to.as_bytes());
    let list = pr_move_list(1, 2, true, true, 0x1234, &to);
    assert_eq!(list[16..24], [0, 3, 0x12, 0x34, 0, 0, 0, 24]);
    assert_eq!(list.len(), 48);
    assert_eq!(unmap_list(&vec![(0, 1); 5000]).len(), 8 + 4095 * 16);
}

#[test]
fn answers_cut_short() {
    assert!(parse_capacity_10(&[0; 7]).is_err());
    assert_eq!(parse_capacity_16(&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 0]).unwrap().last_lba, 9);
    assert!(parse_capacity_16(&[0; 11]).is_err());
    assert!(parse_inquiry(&[0; 35]).is_err());
    assert!(parse_report_luns(&[0; 7]).is_err());
    // The length field says more than arrived, or less.
    let two = [0, 0, 0, 80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(parse_report_luns(&two).unwrap(), [Lun(1 << 48)]);
    let none = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(parse_report_luns(&none).unwrap(), []);
    assert_eq!(vpd_body(&[0, 0x83, 0, 9, 1, 2], 0x83), Some(&[1, 2][..]));
    assert_eq!(vpd_body(&[0, 0x80, 0, 1, 1], 0x83), None);
    assert_eq!(parse_designators(&[0, 0x83, 0, 6, 1, 3, 0, 4, 1, 2]).unwrap().count(), 0);
    assert_eq!(parse_provisioning(&[0, 0xb2, 0, 1, 0]), None);
    let limits = parse_block_limits(&[0, 0xb0, 0, 0x3c, 0, 7]).unwrap();
    assert_eq!((limits.max_caw_blocks, limits.max_transfer_blocks), (7, 0));
    assert!(parse_pr_keys(&[0; 7]).is_err());
    assert_eq!(parse_pr_reservation(&[0; 8]).unwrap().held, None);
    assert!(parse_pr_reservation(&[0, 0, 0, 0, 0, 0, 0, 16, 0]).is_err());
}

/// SBC-3 table 69: the high half of byte 13 is P_I_EXPONENT, bits 7 and 6 of byte 14 LBPME and LBPRZ.
#[test]
fn capacity_is_read_field_by_field() {
    let read = |b13, b14| {
        let b = [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 0, 0, b13, b14, 0xff];
        let c = parse_capacity_16(&b).unwrap();
        (c.physical_exponent, c.thin, c.unmapped_zeros)
    };
    assert_eq!(read(0xf3, 0x80), (3, true, false));
    assert_eq!(read(0x0f, 0x40), (15, false, true));
    assert_eq!(read(0xf0, 0x3f), (0, false, false));
}

/// SPC-4 table 139: qualifier and type share byte 0, TPGS is bits 5 and 4 of byte 5.
#[test]
fn inquiry_is_read_field_by_field() {
    let read = |first, flags| {
        let mut b = [0; 36];
        (b[0], b[2], b[4], b[5]) = (first, 6, 91, flags);
        b[8..14].copy_from_slice(b"WEIR  ");
        let i = parse_inquiry(&b).unwrap();
        assert_eq!((i.version, i.full_len, &i.vendor[..]), (6, 96, "WEIR"));
        (i.qualifier, i.device_type, i.implicit_alua, i.explicit_alua)
    };
    assert_eq!(read(0x2e, 0x10), (1, 0x0e, true, false));
    assert_eq!(read(0x7f, 0x20), (3, 0x1f, false, true));
    assert_eq!(read(0x00, 0xcf), (0, 0, false, false));
}

/// The page comes with its own number, and names as it was named; what else comes is not taken for it.
#[test]
fn names_of_a_unit_are_read_from_their_pages() {
    let serial = [0, 0x80, 0, 6, b'S', b'-', b'4', b'2', b' ', b' '];
    assert_eq!(parse_serial(&serial).as_deref(), Some("S-42"));
    assert_eq!(parse_serial(&[0, 0x83, 0, 1, b'S']), None);
    let mut power = [0, 0xc0, 0, 16].to_vec();
    power.extend_from_slice(b"WEIRPOWR");
    power.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(parse_power(&power), Some(0x0102_0304_0506_0708));
    assert_eq!(parse_power(&power[..19]), None);
    power[4] = b'X';
    assert_eq!(parse_power(&power), None, "a page of another vendor");
}

/// SPC-4 table 452, SBC-3 6.5.5: the page begins behind header and block descriptors; WCE is bit 2 of byte 2.
#[test]
fn the_write_cache_is_read_from_the_caching_page() {
    let page = |code, flags| vec![code, 0x12, flags, 0];
    let with = |descriptors: usize, page: &[u8]| {
        let mut b = vec![0, 0, 0x10, descriptors as u8];
        b.resize(4 + descriptors, 0xff);
        b.extend_from_slice(page);
        parse_write_cache(&b)
    };
    for descriptors in [0, 8, 16] {
        assert_eq!(with(descriptors, &page(0x08, 0x04)), Some(true));
        // PS is set where a page can be saved.
        assert_eq!(with(descriptors, &page(0x88, 0x04)), Some(true));
        assert_eq!(with(descriptors, &page(0x08, 0xfb)), Some(false));
        assert_eq!(with(descriptors, &page(0x0a, 0x04)), None);
        assert_eq!(with(descriptors, &[0x08, 0x12]), None, "cut short");
        assert_eq!(with(descriptors, &[0x08, 0, 0x04]), None, "without content");
    }
    assert_eq!(parse_write_cache(&[0, 0, 0]), None);
}

/// SBC-3 tables 192 and 198.
#[test]
fn limits_are_read_field_by_field() {
    let mut b = vec![0, 0xb0, 0, 60];
    b.extend((4..64u8).collect::<Vec<_>>());
    let l = parse_block_limits(&b).unwrap();
    assert_eq!((l.max_caw_blocks, l.max_transfer_blocks), (5, 0x0809_0a0b));
    assert_eq!((l.max_unmap_blocks, l.max_unmap_descriptors), (0x1415_1617, 0x1819_1a1b));
    assert_eq!(l.max_write_same_blocks, 0x2425_2627_2829_2a2b);
    let read = |flags, kind| {
        let p = parse_provisioning(&[0, 0xb2, 0, 4, 0, flags, kind, 0]).unwrap();
        (p.unmap, p.write_same_unmap, p.kind)
    };
    assert_eq!(read(0x80, 0xfa), (true, false, 2));
    assert_eq!(read(0x40, 0xf8), (false, true, 0));
    assert_eq!(read(0x3f, 0x01), (false, false, 1));
}

#[test]
fn a_cdb_is_padded_with_zeros() {
    for cdb in [inquiry(36), read(5, 6, true), report_luns(16), write(1 << 40, 1, false)] {
        let mut want = [0; 16];
        want[..cdb.len()].copy_from_slice(cdb.as_bytes());
        assert_eq!((cdb.padded(), cdb.as_padded()), (want, &want));
    }
}

proptest! {
    #[test]
    fn lba_status_round_trips(list in proptest::collection::vec((any::<u64>(), any::<u32>(), 0u8..3), 0..9)) {
        let list: Vec<_> = list
            .into_iter()
            .map(|(lba, blocks, s)| LbaStatus { lba, blocks, status: Provisioning::from_bits(s).unwrap() })
            .collect();
        let mut out = Vec::new();
        lba_status::encode(&list, u32::MAX, &mut out);
        prop_assert_eq!(parse_lba_status(&out).unwrap(), list);
    }
}
