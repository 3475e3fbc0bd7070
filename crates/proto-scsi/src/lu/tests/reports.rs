//! RSOC, RSTMF, REPORT LUNS, logs, buffers, START STOP, FORMAT UNIT.

use crate::cdb::{Command, decode, table};
use crate::initiator as i;
use crate::lu::{ControlContext, FormatRequest, SpaceUse};
use crate::sense::Sense;
use crate::testbed::{BLOCKS, Bed, identity, sense};
use crate::{Features, Geometry};
use std::collections::BTreeSet;

fn bed(features: Features) -> Bed {
    let mut g = Geometry::new(512, BLOCKS);
    g.features = features;
    Bed::with(identity(), g)
}

#[test]
fn opcode_list_is_what_decode_accepts() {
    for features in [Features::NONE, Features::THIN_DISK, Features::RBC, Features::FORMAT] {
        let mut bed = bed(features);
        let a = bed.login(1);
        let data = bed.run(a, i::report_opcodes_all(65536)).unwrap();
        assert_eq!(u32::from_be_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 4);
        let listed: BTreeSet<(u8, Option<u8>)> = data[4..]
            .chunks_exact(8)
            .map(|d| {
                assert_eq!((d[1], d[4], d[6]), (0, 0, 0));
                (d[0], (d[5] & 1 == 1).then_some(d[3]))
            })
            .collect();
        // A command is known if decoding does not end at its operation code or service action.
        let mut known = BTreeSet::new();
        for opcode in 0..=255u8 {
            for action in 0..32u8 {
                let mut cdb = [0; 16];
                (cdb[0], cdb[1]) = (opcode, action);
                let has_actions = matches!(opcode, 0x5e | 0x5f | 0x9e | 0xa3);
                let result = decode(&cdb, &bed.lu.geometry());
                if result == Err(Sense::INVALID_OPCODE) {
                    continue;
                }
                if has_actions && result != Err(Sense::cdb_bit(1, 4)) {
                    known.insert((opcode, Some(action)));
                } else if !has_actions {
                    known.insert((opcode, None));
                }
            }
        }
        assert_eq!(listed, known, "{features:?}");
    }
}

#[test]
fn one_command_reports_its_usage() {
    let mut bed = bed(Features::THIN_DISK);
    let a = bed.login(1);
    // Linux probes with INQUIRY, then chooses the way to discard by WRITE SAME.
    let inquiry = bed.run(a, i::report_opcode(0x12, None, 36)).unwrap();
    assert_eq!(inquiry, [0, 3, 0, 6, 0x12, 0x01, 0xff, 0xff, 0xff, 0]);
    let same = bed.run(a, i::report_opcode(0x93, None, 512)).unwrap();
    assert_eq!(same[..6], [0, 3, 0, 16, 0x93, 0x19]);
    let rc16 = bed.run(a, i::report_opcode(0x9e, Some(0x10), 512)).unwrap();
    assert_eq!(rc16[..6], [0, 3, 0, 16, 0x9e, 0x10]);
    let none = bed.run(a, i::report_opcode(0x83, None, 512)).unwrap();
    assert_eq!(none, [0, 1, 0, 0]);
    let no_action = bed.run(a, i::report_opcode(0x9e, Some(0x13), 512)).unwrap();
    assert_eq!(no_action, [0, 1, 0, 0]);
}

#[test]
fn option_must_fit_the_operation_code() {
    let mut bed = bed(Features::THIN_DISK);
    let a = bed.login(1);
    for e in table::TABLE.iter().filter(|e| e.offered(Features::THIN_DISK)) {
        let action = e.action.map(u16::from);
        let fits = bed.run(a, i::report_opcode(e.opcode, action, 512)).unwrap();
        assert_eq!((fits[1], usize::from(fits[3])), (3, fits.len() - 4), "{}", e.name);
        assert_eq!(fits[4], e.opcode);
        if let Some(action) = e.action {
            assert_eq!(fits[5] & 0x1f, action);
        }
        let other = if action.is_some() { None } else { Some(0) };
        let misfit = bed.run(a, i::report_opcode(e.opcode, other, 512));
        assert_eq!(sense(misfit), Sense::cdb_bit(2, 2), "{}", e.name);
        // Option 3 takes either.
        let mut either = i::report_opcode(e.opcode, action, 512).padded();
        either[2] = 3;
        assert_eq!(bed.raw(a, &either, &[]).unwrap(), fits);
        if e.action.is_none() {
            either[5] = 1;
            assert_eq!(bed.raw(a, &either, &[]).unwrap(), [0, 1, 0, 0]);
        }
    }
}

#[test]
fn timeouts_descriptors() {
    let mut bed = bed(Features::THIN_DISK);
    let a = bed.login(1);
    let plain = bed.run(a, i::report_opcodes_all(65536)).unwrap();
    let mut cdb = i::report_opcodes_all(65536).padded();
    cdb[2] = 0x80;
    let timed = bed.raw(a, &cdb, &[]).unwrap();
    assert_eq!((timed.len() - 4) / 20, (plain.len() - 4) / 8);
    assert!(timed[4..].chunks_exact(20).all(|d| d[5] & 2 == 2 && d[8..10] == [0, 10]));
    let mut cdb = i::report_opcode(0x28, None, 512).padded();
    cdb[2] |= 0x80;
    let one = bed.raw(a, &cdb, &[]).unwrap();
    assert_eq!((one[1], one.len()), (0x83, 4 + 10 + 12));
    for alloc in 0..plain.len() as u32 {
        let cut = bed.run(a, i::report_opcodes_all(alloc)).unwrap();
        assert_eq!(cut, plain[..alloc as usize]);
    }
}

#[test]
fn task_management_functions() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let short = bed.raw(a, &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]).unwrap();
    assert_eq!(short, [0xd8, 0, 0, 0]);
    let long = bed.raw(a, &[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).unwrap();
    assert_eq!((long.len(), &long[..4]), (16, &[0xd8, 0, 0, 0x0c][..]));
    let less = bed.raw(a, &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], &[]);
    assert_eq!(sense(less), Sense::cdb_byte(6));
}

#[test]
fn report_luns_lists_what_the_nexus_sees() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let data = bed.run(a, i::report_luns(4096)).unwrap();
    let luns = i::parse_report_luns(&data).unwrap();
    assert_eq!(luns.iter().map(|l| l.index()).collect::<Vec<_>>(), [Some(0), Some(5)]);
    for alloc in 16..=24 {
        assert_eq!(bed.run(a, i::report_luns(alloc)).unwrap(), data[..alloc as usize]);
    }
    let well_known = bed.raw(a, &[0xa0, 0, 1, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).unwrap();
    assert_eq!(well_known, [0; 8]);
    let all = bed.raw(a, &[0xa0, 0, 2, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).unwrap();
    assert_eq!(all, data);
}

#[test]
fn log_pages() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut sense_page = |page: u8, subpage: u8, space: Option<SpaceUse>| {
        let cdb = [0x4d, 0, 0x40 | page, subpage, 0, 0, 0, 1, 0, 0];
        let Ok(Command::Control(c)) = decode(&cdb, &bed.lu.geometry()) else { panic!() };
        let ctx = ControlContext { luns: &[], space };
        let mut out = Vec::new();
        bed.lu.control(a, &c, &[], &ctx, &mut out).result.map(|()| out)
    };
    let space = Some(SpaceUse { used: 513, available: 4096 });
    assert_eq!(sense_page(0, 0, None).unwrap(), [0, 0, 0, 3, 0, 0x0d, 0x2f]);
    assert_eq!(sense_page(0, 0, space).unwrap(), [0, 0, 0, 4, 0, 0x0c, 0x0d, 0x2f]);
    let subpages = sense_page(0, 0xff, None).unwrap();
    assert_eq!(subpages, [0x40, 0xff, 0, 8, 0, 0, 0x0d, 0, 0x2f, 0, 0, 0xff]);
    let provisioning = sense_page(0x0c, 0, space).unwrap();
    assert_eq!(provisioning[..4], [0x0c, 0, 0, 24]);
    assert_eq!(provisioning[4..16], [0, 1, 3, 8, 0, 0, 0, 8, 1, 0, 0, 0]);
    assert_eq!(provisioning[16..], [0, 2, 3, 8, 0, 0, 0, 2, 1, 0, 0, 0]);
    assert_eq!(sense(sense_page(0x0c, 0, None)), Sense::cdb_bit(2, 5));
    assert_eq!(sense_page(0x0d, 0, None).unwrap().len(), 16);
    assert_eq!(sense_page(0x2f, 0, None).unwrap()[4..], [0, 0, 3, 4, 0, 0, 0xff, 0]);
    assert_eq!(sense(sense_page(0x2f, 1, None)), Sense::cdb_byte(3));
    assert_eq!(sense(sense_page(0x10, 0, None)), Sense::cdb_bit(2, 5));
}

#[test]
fn echo_buffer() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    let write = |len: u8| [0x3b, 0x0a, 0, 0, 0, 0, 0, 0, len, 0];
    let read = [0x3c, 0x0a, 0, 0, 0, 0, 0, 0x10, 0, 0];
    assert_eq!(sense(bed.raw(a, &read, &[])), Sense::COMMAND_SEQUENCE_ERROR);
    bed.raw(a, &write(5), b"hello").unwrap();
    assert_eq!(bed.raw(a, &read, &[]).unwrap(), b"hello");
    assert_eq!(sense(bed.raw(b, &read, &[])), Sense::COMMAND_SEQUENCE_ERROR);
    bed.raw(b, &write(3), b"you").unwrap();
    assert_eq!(sense(bed.raw(a, &read, &[])), Sense::ECHO_BUFFER_OVERWRITTEN);
    assert_eq!(bed.raw(b, &read, &[]).unwrap(), b"you");
    assert_eq!(sense(bed.raw(a, &write(3), b"no")), Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(
        sense(bed.raw(a, &[0x3b, 0x0a, 0, 0, 0, 0, 0, 0x10, 1, 0], &[0; 4097])),
        Sense::cdb_byte(6)
    );
    // Writing again ends the warning; a third writer ends both contents, a reset everything.
    bed.raw(a, &write(2), b"me").unwrap();
    assert_eq!(bed.raw(a, &read, &[]).unwrap(), b"me");
    bed.raw(b, &write(3), b"you").unwrap();
    bed.lu.nexus_lost(b);
    let b = bed.login(2);
    assert_eq!(sense(bed.raw(b, &read, &[])), Sense::COMMAND_SEQUENCE_ERROR);
    assert_eq!(sense(bed.raw(a, &read, &[])), Sense::ECHO_BUFFER_OVERWRITTEN);
    bed.raw(b, &write(3), b"new").unwrap();
    bed.lu.lu_reset(Some(a));
    assert_eq!(bed.attentions(b), [Sense::LU_RESET]);
    for n in [a, b] {
        assert_eq!(sense(bed.raw(n, &read, &[])), Sense::COMMAND_SEQUENCE_ERROR);
    }
    let descriptor = bed.raw(a, &[0x3c, 0x0b, 0, 0, 0, 0, 0, 0, 4, 0], &[]).unwrap();
    assert_eq!(descriptor, [1, 0, 0x10, 0]);
    assert_eq!(bed.raw(a, &[0x3c, 0x03, 0, 0, 0, 0, 0, 0, 4, 0], &[]).unwrap(), [0; 4]);
}

#[test]
fn stop_flushes_and_the_unit_stays_ready() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.run(a, i::start_stop(false, false)).unwrap();
    assert!(bed.effects.flush);
    assert!(bed.run(a, i::test_unit_ready()).is_ok());
    bed.run(a, i::start_stop(true, true)).unwrap();
    assert!(!bed.effects.flush);
    bed.raw(a, &[0x1d, 0x04, 0, 0, 0, 0], &[]).unwrap();
    bed.raw(a, &[0x1e, 0, 0, 0, 1, 0], &[]).unwrap();
}

#[test]
fn format_unit_asks_the_caller_to_format() {
    let mut bed = bed(Features::THIN_DISK.with(Features::FORMAT));
    let a = bed.login(1);
    let mut send = |flags: u8, list: &[u8]| {
        let done = bed.raw(a, &[0x04, flags, 0, 0, 0, 0], list);
        done.map(|_| bed.effects.format).map_err(|e| e.sense.unwrap())
    };
    let wait = Ok(Some(FormatRequest { immed: false }));
    assert_eq!(send(0, &[]), wait);
    assert_eq!(send(0x10, &[0, 0, 0, 0]), wait);
    assert_eq!(send(0x10, &[0, 0x82, 0, 0]), Ok(Some(FormatRequest { immed: true })));
    assert_eq!(send(0x38, &[0; 8]), wait);
    assert_eq!(send(0x38, &[0; 4]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    assert_eq!(send(0x10, &[1, 0, 0, 0]), Err(Sense::list_bit(0, 2)));
    assert_eq!(send(0x10, &[0, 0x40, 0, 0]), Err(Sense::list_byte(1)));
    assert_eq!(send(0x10, &[0, 0x88, 0, 0]), Err(Sense::list_bit(1, 3)));
    assert_eq!(send(0x10, &[0, 0, 0, 4]), Err(Sense::list_byte(2)));
    assert_eq!(send(0x20, &[]), Err(Sense::cdb_bit(1, 5)));
}
