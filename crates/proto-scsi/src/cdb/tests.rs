use super::table::{Entry, TABLE};
use super::*;
use crate::geometry::{Features, Geometry};
use crate::initiator as i;
use crate::sense::Sense;
use ControlCommand as C;
use proptest::prelude::*;

fn geometry() -> Geometry {
    let mut g = Geometry::new(512, 1 << 40);
    g.limits.max_transfer_blocks = 1 << 15;
    g
}

fn with(features: Features) -> Geometry {
    Geometry { features, ..geometry() }
}

fn ok(cdb: &[u8]) -> Command {
    decode(cdb, &geometry()).unwrap()
}

fn err(cdb: &[u8]) -> Sense {
    decode(cdb, &geometry()).unwrap_err()
}

/// A CDB of this entry that decodes, found among a few candidates.
fn witness(e: &Entry, g: &Geometry) -> Option<Vec<u8>> {
    let mut base = vec![0u8; usize::from(e.len)];
    base[0] = e.opcode;
    base[1] |= e.action.unwrap_or(0);
    let patches: [&[(usize, u8)]; 8] = [
        &[],
        &[(1, 0x10)],
        &[(8, 1)],
        &[(1, 0x0a)],
        &[(1, 0x03)],
        &[(2, 0x01)],
        &[(9, 64)],
        &[(13, 1)],
    ];
    patches.iter().find_map(|patch| {
        let mut c = base.clone();
        for (at, v) in *patch {
            *c.get_mut(*at)? |= v;
        }
        decode(&c, g).is_ok().then_some(c)
    })
}

#[test]
fn what_follows_a_short_cdb_is_not_looked_at() {
    // SRP's field has 16 bytes, and SAM says nothing of those beyond the command's length.
    for e in TABLE {
        let g = with(Features::THIN_DISK.with(Features::FORMAT));
        let short = witness(e, &g).unwrap();
        let mut long = [0xff; 16];
        long[..short.len()].copy_from_slice(&short);
        assert_eq!(decode(&long, &g), decode(&short, &g), "{}", e.name);
    }
}

#[test]
fn golden_reads_and_writes() {
    let read = |lba, blocks, fua, dpo| Command::Read { lba, blocks, fua, dpo };
    let write = |lba, blocks, fua, dpo| Command::Write { lba, blocks, fua, dpo };
    assert_eq!(ok(&[0x08, 0x01, 0x02, 0x03, 0x04, 0]), read(0x10203, 4, false, false));
    assert_eq!(ok(&[0x08, 0, 0, 9, 0, 0]), read(9, 256, false, false));
    assert_eq!(ok(&[0x0a, 0x1f, 0xff, 0xff, 1, 0]), write(0x1f_ffff, 1, false, false));
    assert_eq!(ok(&[0x28, 0x18, 0, 1, 0, 0, 0x1f, 0x01, 0, 0]), read(0x1_0000, 256, true, true));
    assert_eq!(
        ok(&[0x2a, 0x08, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0]),
        write(0xffff_ffff, 1, true, false)
    );
    // FUA_NV is obsolete and counts as FUA.
    assert_eq!(ok(&[0x2a, 0x02, 0, 0, 0, 1, 0, 0, 1, 0]), write(1, 1, true, false));
    assert_eq!(ok(&[0xa8, 0, 0, 0, 0, 7, 0, 0, 0x80, 0, 0, 0]), read(7, 0x8000, false, false));
    assert_eq!(
        ok(&[0x88, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0]),
        read(0x1_0000_0002, 3, false, false)
    );
    assert_eq!(
        ok(&[0x8a, 0x18, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0]),
        write((1 << 40) - 1, 1, true, true)
    );
}

#[test]
fn golden_others() {
    assert_eq!(
        ok(&[0x2f, 0x06, 0, 0, 0, 1, 0, 0, 9, 0]),
        Command::Verify { lba: 1, blocks: 9, bytchk: ByteCheck::CompareOne }
    );
    assert_eq!(
        ok(&[0x2e, 0x02, 0, 0, 0, 1, 0, 0, 9, 0]),
        Command::WriteVerify { lba: 1, blocks: 9, bytchk: ByteCheck::Compare }
    );
    assert_eq!(
        ok(&[0x35, 2, 0, 0, 0, 8, 0, 0, 0, 0]),
        Command::SyncCache { lba: 8, blocks: (1 << 40) - 8, immed: true }
    );
    assert_eq!(
        ok(&[0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0]),
        Command::WriteSame { lba: 5, blocks: 6, unmap: true, ndob: true, anchor: false }
    );
    assert_eq!(
        ok(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]),
        Command::Unmap { param_len: 24, anchor: false }
    );
    assert_eq!(
        ok(&[0x89, 0x08, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]),
        Command::CompareAndWrite { lba: 5, blocks: 2, fua: true }
    );
    assert_eq!(
        ok(&[0x5a, 0x08, 0x4a, 0x01, 0, 0, 0, 2, 0, 0]),
        Command::Control(ControlCommand::ModeSense {
            form: ModeForm::Ten,
            dbd: true,
            long_lba: false,
            pages: ModePages::Changeable,
            page: 0x0a,
            subpage: 1,
            alloc: 512
        })
    );
    assert_eq!(
        ok(&[0x5f, 0x05, 0x06, 0, 0, 0, 0, 0, 24, 0]),
        Command::Control(ControlCommand::PersistentReserveOut {
            action: PrOut::PreemptAndAbort,
            kind: 6,
            param_len: 24
        })
    );
    assert_eq!(
        ok(&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0]),
        Command::Control(ControlCommand::ReportTargetPortGroups { extended: true, alloc: 128 })
    );
}

#[test]
fn table_is_ordered_and_lengths_fit_the_group_code() {
    assert!(TABLE.windows(2).all(|w| (w[0].opcode, w[0].action) < (w[1].opcode, w[1].action)));
    for e in TABLE {
        let len = match e.opcode >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            g => panic!("group {g} of {}", e.name),
        };
        assert_eq!(e.len, len, "{}", e.name);
        assert_eq!(e.usage[0], e.opcode);
        assert!(e.usage[usize::from(e.len)..].iter().all(|b| *b == 0));
    }
    assert_eq!(table::name(&[0x9e, 0x10]), "READ CAPACITY(16)");
    assert_eq!(table::name(&[0xc0]), "(unknown command)");
}

#[test]
fn every_reserved_bit_of_every_command_is_refused_by_name() {
    let g = with(Features::THIN_DISK.with(Features::FORMAT).with(Features::ANCHOR));
    for e in TABLE {
        let base = witness(e, &g).unwrap_or_else(|| panic!("no valid CDB for {}", e.name));
        for byte in 1..usize::from(e.len) {
            for bit in 0..8 {
                let accepted = e.accepted >> (120 - 8 * byte as u32 + bit) & 1 == 1;
                let mut c = base.clone();
                c[byte] |= 1 << bit;
                if !accepted {
                    let want = Sense::cdb_bit(byte as u16, bit as u8);
                    assert_eq!(decode(&c, &g), Err(want), "{} {c:02x?}", e.name);
                }
                // A bit that is reported as evaluated is never refused as reserved.
                if e.usage[byte] >> bit & 1 == 1 {
                    assert!(accepted, "{} byte {byte} bit {bit}", e.name);
                }
            }
        }
    }
}

#[test]
fn naca_and_protection_fields_are_refused() {
    for e in TABLE {
        let g = with(Features::THIN_DISK.with(Features::FORMAT));
        let mut c = witness(e, &g).unwrap();
        let last = c.len() - 1;
        c[last] |= 0x04;
        assert_eq!(decode(&c, &g), Err(Sense::cdb_bit(last as u16, 2)), "{}", e.name);
    }
    for op in [0x28, 0x2a, 0x2e, 0x2f, 0x88, 0x8a, 0x8e, 0x8f, 0xa8, 0xaa, 0xae, 0xaf, 0x89, 0x93] {
        for protect in 1..8u8 {
            let mut c = [0; 16];
            (c[0], c[1]) = (op, protect << 5);
            let top = 7 - (protect << 5).leading_zeros() as u8;
            assert_eq!(err(&c), Sense::cdb_bit(1, top), "{op:x}");
        }
    }
}

#[test]
fn ranges_and_limits() {
    let end = 1u64 << 40;
    for (lba, blocks) in [(end, 1), (end + 1, 0), (u64::MAX, 1), (u64::MAX, 0), (end - 1, 2)] {
        for cdb in [
            i::read(lba, blocks, false),
            i::write(lba, blocks, false),
            i::verify(lba, blocks, true),
        ] {
            assert_eq!(err(cdb.as_bytes()), Sense::LBA_OUT_OF_RANGE, "{lba} {blocks}");
        }
    }
    assert!(decode(i::read(end, 0, false).as_bytes(), &geometry()).is_ok());
    assert!(decode(i::read(0, 1 << 15, false).as_bytes(), &geometry()).is_ok());
    assert_eq!(err(i::read(0, (1 << 15) + 1, false).as_bytes()), Sense::cdb_byte(7));
    assert_eq!(err(i::read(1 << 33, (1 << 15) + 1, false).as_bytes()), Sense::cdb_byte(10));
    assert_eq!(err(i::compare_and_write(0, 129, false).as_bytes()), Sense::cdb_byte(13));
    assert!(decode(i::compare_and_write(0, 128, false).as_bytes(), &geometry()).is_ok());
    let max = geometry().limits.max_write_same_blocks as u32;
    assert!(decode(i::write_same_16(0, max, false, true).as_bytes(), &geometry()).is_ok());
    assert_eq!(err(i::write_same_16(0, max + 1, false, true).as_bytes()), Sense::cdb_byte(10));
    // Zero means to the end, which is too much here but not near the end.
    assert_eq!(err(i::write_same_16(0, 0, false, true).as_bytes()), Sense::cdb_byte(10));
    assert_eq!(
        ok(i::write_same_16(end - 5, 0, false, true).as_bytes()),
        Command::WriteSame { lba: end - 5, blocks: 5, unmap: false, ndob: false, anchor: false }
    );
    let mut g = geometry();
    g.limits.write_same_non_zero = true;
    let zero = i::write_same_16(end - 5, 0, false, true);
    assert_eq!(decode(zero.as_bytes(), &g), Err(Sense::cdb_byte(10)));
    assert_eq!(err(i::get_lba_status(end, 24).as_bytes()), Sense::LBA_OUT_OF_RANGE);
}

#[test]
fn refusals_have_their_own_reason() {
    assert_eq!(err(&[]), Sense::INVALID_OPCODE);
    for op in [0x83, 0x84, 0xa4, 0x7f, 0x48, 0xc0] {
        assert_eq!(err(&[op; 16]), Sense::INVALID_OPCODE, "{op:x}");
    }
    // A known operation code with an unknown service action.
    assert_eq!(err(&[0x9e, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Sense::cdb_bit(1, 4));
    for action in 4..32 {
        assert_eq!(err(&[0x5e, action, 0, 0, 0, 0, 0, 0, 8, 0]), Sense::cdb_bit(1, 4));
    }
    // Too short for its operation code.
    assert_eq!(err(&[0x28, 0, 0, 0, 0]), Sense::cdb_byte(5));
    // Microcode download, saved mode pages, vendor mode pages, wrong reservation type and scope.
    for mode in [4, 5, 6, 7, 0x0d, 0x0e, 0x0f] {
        assert_eq!(err(&[0x3b, mode, 0, 0, 0, 0, 0, 0, 0, 0]), Sense::cdb_bit(1, 4));
    }
    assert_eq!(err(&[0x15, 0x11, 0, 0, 0, 0]), Sense::cdb_bit(1, 0));
    assert_eq!(err(&[0x15, 0x00, 0, 0, 0, 0]), Sense::cdb_bit(1, 4));
    for kind in [0, 2, 4, 9, 15] {
        assert_eq!(err(&[0x5f, 1, kind, 0, 0, 0, 0, 0, 24, 0]), Sense::cdb_bit(2, 3));
    }
    assert_eq!(err(&[0x5f, 1, 0x11, 0, 0, 0, 0, 0, 24, 0]), Sense::cdb_bit(2, 7));
    // Anchor without ANC_SUP, also on UNMAP; BYTCHK 10b; REPORT LUNS below 16 bytes.
    assert_eq!(err(&[0x41, 0x18, 0, 0, 0, 0, 0, 0, 1, 0]), Sense::cdb_bit(1, 4));
    assert_eq!(err(&[0x42, 0x01, 0, 0, 0, 0, 0, 0, 0, 0]), Sense::cdb_bit(1, 0));
    assert_eq!(err(&[0x2f, 0x04, 0, 0, 0, 0, 0, 0, 1, 0]), Sense::cdb_bit(1, 2));
    assert_eq!(err(&[0x2e, 0x06, 0, 0, 0, 0, 0, 0, 1, 0]), Sense::cdb_bit(1, 2));
    assert_eq!(err(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0]), Sense::cdb_byte(6));
    // Page code without EVPD; ejecting; standby.
    assert_eq!(err(&[0x12, 0, 0x80, 0, 36, 0]), Sense::cdb_byte(2));
    assert_eq!(err(&[0x1b, 0, 0, 0, 0x02, 0]), Sense::cdb_bit(4, 1));
    assert_eq!(err(&[0x1b, 0, 0, 0, 0x30, 0]), Sense::cdb_bit(4, 7));
}

#[test]
fn features_switch_commands_off() {
    let none = with(Features::NONE);
    for op in [0x41, 0x42, 0x93, 0x89, 0x04] {
        assert_eq!(decode(&[op; 16], &none), Err(Sense::INVALID_OPCODE), "{op:x}");
    }
    let rbc = with(Features::RBC);
    assert_eq!(decode(&[0x08, 0, 0, 0, 1, 0], &rbc), Err(Sense::INVALID_OPCODE));
    assert!(decode(&[0x08, 0, 0, 0, 1, 0], &none).is_ok());
    let no_unmap = with(Features::WRITE_SAME);
    let unmap = i::write_same_16(0, 1, true, true);
    assert_eq!(decode(unmap.as_bytes(), &no_unmap), Err(Sense::cdb_bit(1, 3)));
}

#[test]
fn anchors() {
    let g = with(Features::THIN_DISK.with(Features::ANCHOR));
    let same = |flags| decode(&[0x41, flags, 0, 0, 0, 9, 0, 0, 1, 0], &g);
    let anchored = Command::WriteSame { lba: 9, blocks: 1, unmap: true, ndob: false, anchor: true };
    assert_eq!(same(0x18), Ok(anchored));
    // Without UNMAP there is nothing to anchor.
    assert_eq!(same(0x10), Err(Sense::cdb_bit(1, 4)));
    let unmap = decode(&[0x42, 0x01, 0, 0, 0, 0, 0, 0, 24, 0], &g);
    assert_eq!(unmap, Ok(Command::Unmap { param_len: 24, anchor: true }));
}

#[test]
fn announced_lengths() {
    let g = geometry();
    let out = |c: i::Cdb| ok(c.as_bytes()).data_out_len(&g);
    let input = |c: i::Cdb| ok(c.as_bytes()).data_in_len(&g);
    assert_eq!((out(i::write(0, 9, false)), input(i::write(0, 9, false))), (9 * 512, 0));
    assert_eq!((out(i::read(0, 9, false)), input(i::read(0, 9, false))), (0, 9 * 512));
    assert_eq!(out(i::verify(0, 9, false)), 0);
    assert_eq!(out(i::verify(0, 9, true)), 9 * 512);
    assert_eq!(ok(&[0x2f, 0x06, 0, 0, 0, 0, 0, 0, 9, 0]).data_out_len(&g), 512);
    assert_eq!(ok(&[0x2f, 0x06, 0, 0, 0, 0, 0, 0, 0, 0]).data_out_len(&g), 0);
    assert_eq!(out(i::write_same_16(0, 9, true, true)), 512);
    assert_eq!(out(i::write_same_16(0, 9, true, false)), 0);
    assert_eq!(out(i::compare_and_write(0, 3, false)), 6 * 512);
    assert_eq!(out(i::unmap(40)), 40);
    assert_eq!(out(i::pr_out(PrOut::Register, None, 24)), 24);
    assert_eq!(input(i::inquiry(0x1234)), 0x1234);
    assert_eq!(input(i::read_capacity_10()), 8);
    assert_eq!(input(i::report_luns(16)), 16);
    assert_eq!((out(i::test_unit_ready()), input(i::test_unit_ready())), (0, 0));
}

#[test]
fn what_is_listed_decodes_and_what_decodes_is_listed() {
    let sets = [
        Features::NONE,
        Features::THIN_DISK,
        Features::THIN_DISK.with(Features::ANCHOR).with(Features::FORMAT),
        Features::RBC.with(Features::FORMAT),
    ];
    for features in sets {
        let g = with(features);
        for e in TABLE.iter().filter(|e| e.offered(features)) {
            assert!(witness(e, &g).is_some(), "{} is listed and never decodes", e.name);
        }
        for opcode in 0..=255u8 {
            let listed = |action| {
                table::entries(opcode)
                    .iter()
                    .any(|e| e.offered(features) && e.action.is_none_or(|a| a == action))
            };
            for byte1 in 0..=255u8 {
                for fill in [0, 1, 0x10, 0xff] {
                    let mut c = [fill; 16];
                    (c[0], c[1]) = (opcode, byte1);
                    (c[9], c[11], c[15]) = (0, 0, 0);
                    if decode(&c, &g).is_ok() {
                        assert!(listed(byte1 & 0x1f), "{c:x?} decodes and is not listed");
                    }
                }
            }
        }
    }
}

fn near(g: &Geometry, lba: u64, blocks: u64) -> bool {
    lba.checked_add(blocks).is_some_and(|end| end <= g.blocks)
}

proptest! {
    #[test]
    fn decode_is_total_and_ranges_hold(
        mut cdb in proptest::collection::vec(any::<u8>(), 0..20),
        entry in proptest::option::of(0..TABLE.len()),
        blocks in 0u64..1 << 34,
    ) {
        if let (Some(e), [op, one, ..]) = (entry.map(|i| &TABLE[i]), cdb.as_mut_slice()) {
            // Mostly real commands, with only bits that may be set.
            (*op, *one) = (e.opcode, *one & 0x1f | e.action.unwrap_or(0));
            for (b, accepted) in cdb.iter_mut().zip(e.accepted.to_be_bytes()) {
                *b &= accepted;
            }
        }
        let g = Geometry { blocks, ..geometry() };
        match decode(&cdb, &g) {
            Ok(Command::Read { lba, blocks, .. } | Command::Write { lba, blocks, .. }
                | Command::Verify { lba, blocks, .. } | Command::WriteVerify { lba, blocks, .. }) => {
                prop_assert!(near(&g, lba, blocks.into()) && blocks <= g.limits.max_transfer_blocks);
            }
            Ok(Command::SyncCache { lba, blocks, .. } | Command::PreFetch { lba, blocks, .. }
                | Command::WriteSame { lba, blocks, .. }) => prop_assert!(near(&g, lba, blocks)),
            Ok(Command::CompareAndWrite { lba, blocks, .. }) => {
                prop_assert!(near(&g, lba, blocks.into()) && blocks <= g.limits.max_caw_blocks);
            }
            Ok(Command::GetLbaStatus { lba, .. }) => prop_assert!(lba < g.blocks),
            Ok(_) => {}
            Err(s) => prop_assert_eq!(s.key as u8, 5),
        }
    }

    #[test]
    fn built_cdbs_decode_to_what_was_asked(lba in 0u64..1 << 40, blocks in 0u32..1 << 15, fua: bool) {
        prop_assume!(near(&geometry(), lba, blocks.into()));
        prop_assert_eq!(ok(i::read(lba, blocks, fua).as_bytes()), Command::Read { lba, blocks, fua, dpo: false });
        prop_assert_eq!(ok(i::write(lba, blocks, fua).as_bytes()), Command::Write { lba, blocks, fua, dpo: false });
    }
}

/// SBC-3 5.25: POWER CONDITION 1 is ACTIVE, 7 hands control back; LOEJ and the others are not offered here.
#[test]
fn start_stop_by_power_condition() {
    let start_stop = |b1: u8, b4: u8| match decode(&[0x1b, b1, 0, 0, b4, 0], &geometry()) {
        Ok(Command::Control(C::StartStop { action, immed })) => Ok((action, immed)),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e),
    };
    assert_eq!(start_stop(0, 0x01), Ok((StartStop::Start, false)));
    assert_eq!(start_stop(1, 0x00), Ok((StartStop::Stop, true)));
    for start in [0, 1] {
        assert_eq!(start_stop(0, 0x10 | start), Ok((StartStop::Start, false)));
        assert_eq!(start_stop(1, 0x70 | start), Ok((StartStop::LuControl, true)));
        for power in [2, 3, 4, 5, 6, 8, 0xa, 0xb, 0xf] {
            let refused = Err(Sense::cdb_bit(4, 7));
            assert_eq!(start_stop(0, power << 4 | start), refused, "{power}");
        }
    }
}

/// SPC-4 6.15: PREVENT has two bits, of which the upper is obsolete.
#[test]
fn prevent_allow_takes_one_bit() {
    let decoded = |b4| decode(&[0x1e, 0, 0, 0, b4, 0], &geometry());
    for prevent in [false, true] {
        let want = Command::Control(C::PreventAllow { prevent });
        assert_eq!(decoded(u8::from(prevent)), Ok(want));
        assert_eq!(decoded(2 | u8::from(prevent)), Err(Sense::cdb_bit(4, 1)));
    }
}

/// IMMED is bit 1 of byte 1 (SBC-3 5.8, 5.22): status before the work is done.
#[test]
fn immediate_is_what_the_bit_says() {
    for (opcode, len) in [(0x34, 10), (0x90, 16), (0x35, 10), (0x91, 16)] {
        for bit in [0, 0x02] {
            let mut cdb = vec![0; len];
            (cdb[0], cdb[1]) = (opcode, bit);
            let got = match decode(&cdb, &geometry()) {
                Ok(Command::PreFetch { immed, .. } | Command::SyncCache { immed, .. }) => immed,
                other => panic!("{other:?}"),
            };
            assert_eq!(got, bit != 0, "{opcode:#x}");
        }
    }
}

/// How many bytes go either way is what the CDB says, before anything of the unit is looked at.
#[test]
fn lengths_are_those_of_the_cdb() {
    let mut g = geometry();
    g.features = g.features.with(Features::FORMAT);
    let lens = |cdb: &[u8]| {
        let c = decode(cdb, &g).unwrap();
        (c.data_out_len(&g), c.data_in_len(&g))
    };
    assert_eq!(lens(&[0x15, 0x10, 0, 0, 24, 0]), (24, 0), "MODE SELECT(6)");
    assert_eq!(lens(&[0x55, 0x10, 0, 0, 0, 0, 0, 1, 2, 0]), (0x102, 0), "MODE SELECT(10)");
    assert_eq!(lens(&[0x04, 0, 0, 0, 0, 0]), (0, 0), "FORMAT UNIT");
    assert_eq!(lens(&[0x04, 0x10, 0, 0, 0, 0]), (4, 0), "with a short list");
    assert_eq!(lens(&[0x04, 0x30, 0, 0, 0, 0]), (8, 0), "with a long one");
    assert_eq!(lens(&[0x3b, 0x0a, 0, 0, 0, 0, 0, 1, 2, 0]), (0x102, 0), "WRITE BUFFER");
    let lba_status = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0];
    assert_eq!(lens(&lba_status), (0, 0x102), "GET LBA STATUS");
}
