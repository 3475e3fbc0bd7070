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
