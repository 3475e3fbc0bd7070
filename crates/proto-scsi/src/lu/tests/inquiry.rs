//! INQUIRY, VPD pages, capacity.

use crate::initiator as i;
use crate::sense::Sense;
use crate::testbed::{BLOCKS, Bed, identity, sense};
use crate::{Features, Geometry, PortName, TargetPort};

#[test]
fn standard_inquiry_golden() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let data = bed.run(a, i::inquiry(255)).unwrap();
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0x00, 0x00, 0x06, 0x12, 91, 0x10, 0x10, 0x02]);
    assert_eq!(&data[8..36], b"WEIR    VOLUME          0001");
    assert_eq!(data[36..58], [0; 22]);
    assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x40]);
    assert_eq!(data[66..], [0; 30]);
    let parsed = i::parse_inquiry(&data).unwrap();
    assert_eq!((parsed.full_len, parsed.version, parsed.implicit_alua), (96, 6, true));
    assert_eq!((parsed.vendor.as_str(), parsed.product.as_str()), ("WEIR", "VOLUME"));
}

#[test]
fn rbc_has_its_own_type_and_no_sbc() {
    let mut g = Geometry::new(512, BLOCKS);
    g.features = Features::RBC;
    let mut bed = Bed::with(identity(), g);
    let a = bed.login(1);
    let data = bed.run(a, i::inquiry(255)).unwrap();
    assert_eq!(data[0], 0x0e);
    assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x09, 0x40, 0, 0]);
    assert_eq!(bed.run(a, i::vpd(0x80, 255)).unwrap()[0], 0x0e);
}

#[test]
fn every_page_at_every_allocation_length() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let pages = bed.run(a, i::vpd(0, 255)).unwrap();
    assert_eq!(pages, [0, 0, 0, 9, 0, 0x80, 0x83, 0x86, 0x87, 0x88, 0xb0, 0xb1, 0xb2]);
    for page in 0..=255u8 {
        if !pages[4..].contains(&page) {
            assert_eq!(sense(bed.run(a, i::vpd(page, 255))), Sense::cdb_byte(2));
            continue;
        }
        let full = bed.run(a, i::vpd(page, 4096)).unwrap();
        assert_eq!((full[0], full[1]), (0, page));
        assert_eq!(usize::from(u16::from_be_bytes([full[2], full[3]])) + 4, full.len());
        for alloc in 0..=full.len() as u16 {
            assert_eq!(bed.run(a, i::vpd(page, alloc)).unwrap(), full[..usize::from(alloc)]);
        }
    }
    let full = bed.run(a, i::inquiry(96)).unwrap();
    for alloc in 0..96 {
        assert_eq!(bed.run(a, i::inquiry(alloc)).unwrap(), full[..usize::from(alloc)]);
    }
}

#[test]
fn serial_and_designators() {
    let mut id = identity();
    id.eui64 = Some([1, 2, 3, 4, 5, 6, 7, 8]);
    let mut bed = Bed::with(id.clone(), Geometry::new(512, BLOCKS));
    let (a, b) = (bed.login_at(1, 1), bed.login_at(1, 2));
    let serial = bed.run(a, i::vpd(0x80, 255)).unwrap();
    assert_eq!(serial, *b"\x00\x80\x00\x04S-42");
    let page = bed.run(b, i::vpd(0x83, 255)).unwrap();
    assert_eq!(i::parse_naa(&page), Some(&id.naa[..]));
    let found: Vec<_> = i::parse_designators(&page)
        .unwrap()
        .map(|d| (d.association, d.kind, d.code_set, d.protocol, d.value.to_vec()))
        .collect();
    let name = b"naa.6ABCDEF0000000010000000000000002\0\0\0\0".to_vec();
    let want = [
        (0, 3, 1, None, id.naa.to_vec()),
        (0, 2, 1, None, vec![1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 1, 2, None, b"WEIR    S-42".to_vec()),
        (0, 8, 3, None, name),
        (1, 4, 1, Some(4), vec![0, 0, 0, 2]),
        (1, 5, 1, Some(4), vec![0, 0, 0, 20]),
        (1, 2, 1, Some(4), vec![2; 16]),
    ];
    assert_eq!(found, want);
    // The unit's own designators are the same on every path.
    let other = bed.run(a, i::vpd(0x83, 255)).unwrap();
    assert_eq!(i::parse_naa(&other), i::parse_naa(&page));
}

#[test]
fn ports_page_lists_every_port() {
    let mut id = identity();
    let name = "iqn.2026-01.org.example:weir,t,0x0001".to_owned();
    id.ports.push(TargetPort {
        relative_id: 3,
        group: 10,
        name: PortName::Name { protocol: 5, name },
    });
    let mut bed = Bed::with(id, Geometry::new(512, BLOCKS));
    let a = bed.login_at(1, 3);
    let page = bed.run(a, i::vpd(0x88, 512)).unwrap();
    let port = |n: u8| {
        let mut d = vec![0, 0, 0, n, 0, 0, 0, 0, 0, 0, 0, 20, 0x41, 0x92, 0, 16];
        d.extend_from_slice(&[n; 16]);
        d
    };
    let mut want = [port(1), port(2)].concat();
    want.extend_from_slice(&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 44, 0x53, 0x98, 0, 40]);
    want.extend_from_slice(b"iqn.2026-01.org.example:weir,t,0x0001\0\0\0");
    assert_eq!(page[4..], want);
    // Both transports appear among the version descriptors.
    let inquiry = bed.run(a, i::inquiry(96)).unwrap();
    assert_eq!(inquiry[64..68], [0x09, 0x40, 0x09, 0x60]);
}

#[test]
fn block_limits_golden() {
    let mut g = Geometry::new(512, BLOCKS);
    g.limits.write_same_non_zero = true;
    g.limits.unmap_alignment_lba = 3;
    let mut bed = Bed::with(identity(), g);
    let a = bed.login(1);
    let b0 = bed.run(a, i::vpd(0xb0, 64)).unwrap();
    assert_eq!(b0[..4], [0, 0xb0, 0, 0x3c]);
    assert_eq!(b0[4..8], [1, 128, 0, 8]);
    assert_eq!(b0[8..12], 32768u32.to_be_bytes());
    assert_eq!(b0[12..16], 2048u32.to_be_bytes());
    assert_eq!(b0[20..24], 0x0010_0000u32.to_be_bytes());
    assert_eq!(b0[24..28], 256u32.to_be_bytes());
    assert_eq!(b0[28..32], 8u32.to_be_bytes());
    assert_eq!(b0[32..36], 0x8000_0003u32.to_be_bytes());
    assert_eq!(b0[36..44], 0x0080_0000u64.to_be_bytes());
    assert_eq!(b0[44..], [0; 20]);
    let parsed = i::parse_block_limits(&b0).unwrap();
    assert_eq!((parsed.max_transfer_blocks, parsed.max_caw_blocks), (32768, 128));
    assert_eq!((parsed.max_unmap_descriptors, parsed.max_write_same_blocks), (256, 0x80_0000));
    let b1 = bed.run(a, i::vpd(0xb1, 64)).unwrap();
    assert_eq!((b1.len(), &b1[4..9]), (64, &[0, 1, 0, 0, 2][..]));
}

#[test]
fn what_is_not_offered_is_not_reported() {
    let mut g = Geometry::new(4096, BLOCKS);
    g.features = Features::NONE;
    let mut id = identity();
    id.rotational = true;
    let mut bed = Bed::with(id, g);
    let a = bed.login(1);
    let b0 = bed.run(a, i::vpd(0xb0, 64)).unwrap();
    assert_eq!(b0[5], 0);
    assert_eq!(b0[20..44], [0; 24]);
    assert_eq!(bed.run(a, i::vpd(0xb2, 8)).unwrap()[4..8], [0; 4]);
    assert_eq!(bed.run(a, i::vpd(0xb1, 8)).unwrap()[4..6], [0, 0]);
    assert_eq!(bed.run(a, i::read_capacity_16(32)).unwrap()[14], 0);
}

#[test]
fn provisioning_agrees_with_read_capacity() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let b2 = bed.run(a, i::vpd(0xb2, 8)).unwrap();
    assert_eq!(b2, [0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
    let p = i::parse_provisioning(&b2).unwrap();
    assert!(p.unmap && p.write_same_unmap && p.kind == 2);
    let c = i::parse_capacity_16(&bed.run(a, i::read_capacity_16(32)).unwrap()).unwrap();
    assert!(c.thin && c.unmapped_zeros);
}

#[test]
fn capacities() {
    let mut id = identity();
    id.physical_block_exponent = 3;
    id.lowest_aligned_lba = 0x3ffe;
    let mut bed = Bed::with(id, Geometry::new(512, 0x1_0000_0000));
    let a = bed.login(1);
    let ten = bed.run(a, i::read_capacity_10()).unwrap();
    assert_eq!(ten, [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
    let full = bed.run(a, i::read_capacity_16(32)).unwrap();
    let mut want = [0u8; 32];
    want[4..8].fill(0xff);
    want[10] = 2;
    want[13] = 3;
    want[14..16].copy_from_slice(&[0xff, 0xfe]);
    assert_eq!(full, want);
    for alloc in 0..=32 {
        assert_eq!(bed.run(a, i::read_capacity_16(alloc)).unwrap(), full[..alloc as usize]);
    }
    bed.lu.resize(0x1_0000_0001);
    bed.attentions(a);
    assert_eq!(bed.run(a, i::read_capacity_10()).unwrap()[..4], [0xff; 4]);
    bed.lu.resize(8);
    bed.attentions(a);
    assert_eq!(bed.run(a, i::read_capacity_10()).unwrap(), [0, 0, 0, 7, 0, 0, 2, 0]);
}

#[test]
fn extended_inquiry_tells_the_task_attributes() {
    let mut id = identity();
    let mut bed = Bed::with(id.clone(), Geometry::new(512, BLOCKS));
    let a = bed.login(1);
    let page = bed.run(a, i::vpd(0x86, 255)).unwrap();
    assert_eq!((page.len(), &page[..8]), (64, &[0, 0x86, 0, 0x3c, 0, 1, 1, 0][..]));
    id.ordered_tasks = true;
    id.head_of_queue_tasks = true;
    let mut bed = Bed::with(id, Geometry::new(512, BLOCKS));
    let a = bed.login(1);
    assert_eq!(bed.run(a, i::vpd(0x86, 255)).unwrap()[5], 7);
    assert_eq!(bed.run(a, i::vpd(0x87, 255)).unwrap(), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
}
