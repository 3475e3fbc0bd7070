//! MODE SENSE and MODE SELECT.

use crate::initiator as i;
use crate::lu::Nexus;
use crate::sense::{Sense, SenseFormat};
use crate::status::ScsiError;
use crate::testbed::{BLOCKS, Bed, identity, sense};
use crate::{Features, Geometry};

/// MODE SENSE(6) of page and subpage with page control `pc`, no block descriptor, body only.
fn page(bed: &mut Bed, a: Nexus, pc: u8, page: u8, subpage: u8) -> Vec<u8> {
    let data = bed.raw(a, &[0x1a, 0x08, pc << 6 | page, subpage, 255, 0], &[]).unwrap();
    assert_eq!(usize::from(data[0]) + 1, data.len());
    assert_eq!(data[3], 0);
    data[4..].to_vec()
}

fn select(bed: &mut Bed, a: Nexus, pages: &[u8]) -> Result<Vec<u8>, ScsiError> {
    let list = [&[0; 4], pages].concat();
    bed.raw(a, i::mode_select_6(list.len() as u8).as_bytes(), &list)
}

const CONTROL: [u8; 12] = [0x0a, 0x0a, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];

#[test]
fn pages_golden() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut caching = [0; 20];
    caching[..2].copy_from_slice(&[0x08, 0x12]);
    caching[12] = 0x20;
    assert_eq!(page(&mut bed, a, 0, 0x08, 0), caching);
    assert_eq!(page(&mut bed, a, 0, 0x0a, 0), CONTROL);
    assert_eq!(page(&mut bed, a, 0, 0x01, 0)[..3], [0x01, 0x0a, 0xc0]);
    assert_eq!(page(&mut bed, a, 0, 0x0a, 1)[..5], [0x4a, 0x01, 0, 0x1c, 0x01]);
    assert_eq!(page(&mut bed, a, 0, 0x1c, 0)[..4], [0x1c, 0x0a, 0x08, 0]);
    // All pages, each with a length that is true, in ascending order.
    let all = page(&mut bed, a, 0, 0x3f, 0);
    let (mut rest, mut codes) = (&all[..], vec![]);
    while let [code, len, ..] = *rest {
        codes.push(code);
        rest = &rest[2 + usize::from(len)..];
    }
    assert_eq!(codes, [0x01, 0x02, 0x08, 0x0a, 0x1a, 0x1c]);
    let with_subpages = page(&mut bed, a, 0, 0x3f, 0xff);
    assert_eq!(with_subpages.len(), all.len() + 32);
    let control = page(&mut bed, a, 0, 0x0a, 0xff);
    assert_eq!(control, [page(&mut bed, a, 0, 0x0a, 0), page(&mut bed, a, 0, 0x0a, 1)].concat());
}

#[test]
fn headers_and_block_descriptors() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let six = bed.raw(a, &[0x1a, 0, 0x0a, 0, 255, 0], &[]).unwrap();
    assert_eq!(six[..12], [23, 0, 0x10, 8, 0, 0x10, 0, 0, 0, 0, 2, 0]);
    let ten = bed.raw(a, &[0x5a, 0, 0x0a, 0, 0, 0, 0, 1, 0, 0], &[]).unwrap();
    assert_eq!(ten[..16], [0, 26, 0, 0x10, 0, 0, 0, 8, 0, 0x10, 0, 0, 0, 0, 2, 0]);
    let long = bed.raw(a, &[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 1, 0, 0], &[]).unwrap();
    assert_eq!(long[..8], [0, 34, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[8..24], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(six[12..], CONTROL);
    assert_eq!(ten[16..], CONTROL);
    // Every allocation length, as hosts ask for 4 bytes first.
    for alloc in 0..=24u8 {
        let cut = bed.raw(a, &[0x1a, 0, 0x0a, 0, alloc, 0], &[]).unwrap();
        assert_eq!(cut, six[..usize::from(alloc)]);
    }
}

#[test]
fn refusals() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    // Saved values do not exist; the I/O hints subpage and unknown pages neither.
    assert_eq!(sense(bed.raw(a, &[0x1a, 0, 0xca, 0, 255, 0], &[])), Sense::SAVING_NOT_SUPPORTED);
    assert_eq!(sense(bed.run(a, i::mode_sense_10(0x0a, 5, true, 512))), Sense::cdb_byte(3));
    assert_eq!(sense(bed.run(a, i::mode_sense_10(0x3f, 5, true, 512))), Sense::cdb_byte(3));
    assert_eq!(sense(bed.run(a, i::mode_sense_10(0x19, 0, true, 512))), Sense::cdb_bit(2, 5));
}

#[test]
fn changeable_masks() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut caching = [0; 20];
    caching[..3].copy_from_slice(&[0x08, 0x12, 0x04]);
    assert_eq!(page(&mut bed, a, 1, 0x08, 0), caching);
    assert_eq!(page(&mut bed, a, 1, 0x0a, 0), [0x0a, 0x0a, 0x04, 0, 0x28, 0x40, 0, 0, 0, 0, 0, 0]);
    let extension = page(&mut bed, a, 1, 0x0a, 1);
    assert_eq!(extension[..4], [0x4a, 0x01, 0, 0x1c]);
    assert!(extension[4..].iter().all(|b| *b == 0));
}

#[test]
fn every_changeable_bit_changes_and_every_other_is_refused() {
    for code in [0x01u8, 0x02, 0x08, 0x0a, 0x1a, 0x1c] {
        let mut probe = Bed::new();
        let a = probe.login(1);
        let current = page(&mut probe, a, 0, code, 0);
        let mask = page(&mut probe, a, 1, code, 0);
        for bit in 8..current.len() * 8 {
            let mut bed = Bed::new();
            let (a, b) = (bed.login(1), bed.login(2));
            let mut wanted = current.clone();
            wanted[bit / 8] ^= 0x80 >> (bit % 8);
            let done = select(&mut bed, a, &wanted);
            if bit >= 16 && mask[bit / 8] & (0x80 >> (bit % 8)) != 0 {
                done.unwrap();
                assert_eq!(page(&mut bed, a, 0, code, 0), wanted);
                assert_eq!(page(&mut bed, a, 2, code, 0), current, "the default stays");
                assert_eq!(bed.attentions(b), [Sense::MODE_PARAMETERS_CHANGED]);
                assert_eq!(bed.attentions(a), []);
                bed.lu.lu_reset(None);
                bed.attentions(a);
                assert_eq!(page(&mut bed, a, 0, code, 0), current, "reset restores");
            } else {
                let at = 4 + bit as u16 / 8;
                assert_eq!(sense(done), Sense::list_byte(at), "page {code:x} bit {bit}");
                assert_eq!(bed.attentions(b), []);
            }
        }
    }
}

#[test]
fn select_is_whole_or_not_at_all() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut caching = page(&mut bed, a, 0, 0x08, 0);
    caching[2] |= 0x04;
    let mut control = CONTROL;
    control[3] = 0x20;
    let both = [&caching[..], &control].concat();
    assert_eq!(sense(select(&mut bed, a, &both)), Sense::list_byte(4 + 20 + 3));
    assert!(!bed.lu.write_cache_enabled());
    control[3] = 0x10;
    control[2] = 0x04;
    select(&mut bed, a, &[&caching[..], &control].concat()).unwrap();
    assert!(bed.lu.write_cache_enabled());
    assert_eq!(bed.lu.sense_format(), SenseFormat::Descriptor);
    assert!(!bed.lu.fast_path(a).write_through);
    assert_eq!(bed.lu.fast_path(a).sense, SenseFormat::Descriptor);
    // Turning the cache off wants it written back first.
    caching[2] = 0;
    select(&mut bed, a, &caching).unwrap();
    assert!(bed.effects.flush && bed.effects.ua_raised && bed.effects.generation_changed);
}

#[test]
fn select_lengths_and_descriptors() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut send = |list: &[u8]| {
        let cdb = i::mode_select_6(list.len() as u8);
        bed.raw(a, cdb.as_bytes(), list).map(|_| ()).map_err(|e| e.sense.unwrap())
    };
    let short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(send(&[]), Ok(()));
    for n in 1..4 {
        assert_eq!(send(&[0; 3][..n]), short);
    }
    assert_eq!(send(&[0; 4]), Ok(()));
    for n in 1..12 {
        assert_eq!(send(&[&[0; 4], &CONTROL[..n]].concat()), short, "{n}");
    }
    // A page with PS set, as MODE SENSE might have given it.
    let mut ps = CONTROL;
    ps[0] |= 0x80;
    assert_eq!(send(&[&[0; 4][..], &ps].concat()), Ok(()));
    assert_eq!(send(&[0, 0, 0, 0, 0x19, 0x00]), Err(Sense::list_byte(4)));
    let with = |d: [u8; 8]| [&[0, 0, 0, 8][..], &d, &CONTROL].concat();
    assert_eq!(send(&with([0, 0x10, 0, 0, 0, 0, 2, 0])), Ok(()));
    assert_eq!(send(&with([0, 0, 0, 0, 0, 0, 2, 0])), Ok(()));
    assert_eq!(send(&with([0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0])), Ok(()));
    assert_eq!(send(&with([0, 0x20, 0, 0, 0, 0, 2, 0])), Err(Sense::list_byte(4)));
    assert_eq!(send(&with([0, 0x10, 0, 0, 0, 0, 0x10, 0])), Err(Sense::list_byte(9)));
    assert_eq!(send(&[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]), Err(Sense::list_byte(3)));
    assert_eq!(send(&[0, 0, 0, 8, 0, 0, 0]), short);
}

#[test]
fn select_10_with_a_long_descriptor() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut list = vec![0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let mut control = CONTROL;
    control[4] = 0x08;
    list.extend_from_slice(&control);
    let cdb = [0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    // Fewer bytes than announced.
    assert_eq!(sense(bed.raw(a, &cdb, &list[..20])), Sense::PARAMETER_LIST_LENGTH_ERROR);
    bed.raw(a, &cdb, &list).unwrap();
    assert!(bed.lu.write_protected());
    assert_eq!(sense(bed.run(a, i::write(0, 1, false))), Sense::WRITE_PROTECTED);
    assert!(bed.run(a, i::read(0, 1, false)).is_ok());
    list[21] = 1;
    assert_eq!(sense(bed.raw(a, &cdb, &list)), Sense::list_byte(20));
}

#[test]
fn rbc_has_page_06_with_inverted_cache_bit() {
    let mut g = Geometry::new(512, 0x12_3456_789a);
    g.features = Features::RBC;
    let mut bed = Bed::with(identity(), g);
    let a = bed.login(1);
    let want = [0x06, 0x0b, 0x01, 2, 0, 0x12, 0x34, 0x56, 0x78, 0x9a, 0, 0x03, 0];
    // Without DBD there is no block descriptor either.
    let data = bed.raw(a, &[0x1a, 0, 0x3f, 0, 255, 0], &[]).unwrap();
    assert_eq!(data[..4], [16, 0, 0x10, 0]);
    assert_eq!(data[4..], want);
    assert_eq!(page(&mut bed, a, 0, 0x06, 0), want);
    assert_eq!(sense(bed.run(a, i::mode_sense_6(0x08, 0, true, 20))), Sense::cdb_bit(2, 5));
    let mut on = want;
    on[2] = 0;
    select(&mut bed, a, &on).unwrap();
    assert!(bed.lu.write_cache_enabled());
    assert_eq!(page(&mut bed, a, 1, 0x06, 0)[2], 0x01);
    on[3] = 4;
    assert_eq!(sense(select(&mut bed, a, &on)), Sense::list_byte(4 + 3));
    // A disk does not know the page.
    let mut disk = Bed::with(identity(), Geometry::new(512, BLOCKS));
    let a = disk.login(1);
    assert_eq!(sense(select(&mut disk, a, &want)), Sense::list_byte(4));
}
