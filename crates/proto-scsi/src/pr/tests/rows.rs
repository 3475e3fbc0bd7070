//! One test per row of the conflict table (facts of SPC-4 tables 66 and 67, SBC-3 table 13), each
//! through decode, admit and control, with the table written out as it stands there.

use crate::cdb::{PrIn, PrOut};
use crate::initiator::{self as i, Cdb, PrRegister};
use crate::lu::Nexus;
use crate::pr::PrType;
use crate::status::{ScsiError, Status};
use crate::testbed::Bed;
use crate::{Features, Geometry};

/// `(type, registered)` of the columns, in the order of the strings below. The sender is never
/// the one holder; with the all-registrants types every registered nexus is one of the holders.
const COLUMNS: [(PrType, bool); 12] = [
    (PrType::WriteExclusive, false),
    (PrType::WriteExclusive, true),
    (PrType::ExclusiveAccess, false),
    (PrType::ExclusiveAccess, true),
    (PrType::WriteExclusiveRegistrantsOnly, false),
    (PrType::WriteExclusiveRegistrantsOnly, true),
    (PrType::WriteExclusiveAllRegistrants, false),
    (PrType::WriteExclusiveAllRegistrants, true),
    (PrType::ExclusiveAccessRegistrantsOnly, false),
    (PrType::ExclusiveAccessRegistrantsOnly, true),
    (PrType::ExclusiveAccessAllRegistrants, false),
    (PrType::ExclusiveAccessAllRegistrants, true),
];

const HOLDER_KEY: u64 = 0xa;
const OTHER_KEY: u64 = 0xb;

/// A unit that initiator 1 has reserved, and initiator 2, registered or not.
fn reserved(kind: PrType, registered: bool) -> (Bed, Nexus, Nexus) {
    let mut g = Geometry::new(512, crate::testbed::BLOCKS);
    g.features = g.features.with(Features::FORMAT);
    let mut bed = Bed::with(crate::testbed::identity(), g);
    let (holder, other) = (bed.login(1), bed.login(2));
    pr(&mut bed, holder, PrOut::Register, None, 0, HOLDER_KEY).unwrap();
    if registered {
        pr(&mut bed, other, PrOut::Register, None, 0, OTHER_KEY).unwrap();
    }
    pr(&mut bed, holder, PrOut::Reserve, Some(kind), HOLDER_KEY, 0).unwrap();
    (bed, holder, other)
}

fn pr(
    bed: &mut Bed,
    n: Nexus,
    action: PrOut,
    kind: Option<PrType>,
    key: u64,
    action_key: u64,
) -> Result<Vec<u8>, ScsiError> {
    let list = i::pr_out_list(key, action_key, &PrRegister::default());
    bed.raw(n, i::pr_out(action, kind, 24).as_bytes(), &list)
}

fn conflict<T>(result: Result<T, ScsiError>) -> char {
    match result {
        Err(e) if e.status == Status::ReservationConflict => 'C',
        Err(e) => panic!("neither admitted nor in conflict: {e}"),
        Ok(_) => '-',
    }
}

/// Sends every command from the nexus that is not the holder, under all columns; then from the
/// holder, which is never in conflict.
fn row(want: &str, commands: &[(&[u8], &[u8])]) {
    for (cdb, data) in commands {
        let name = crate::cdb::table::name(cdb);
        let got: String = COLUMNS
            .iter()
            .map(|(kind, registered)| {
                let (mut bed, _, other) = reserved(*kind, *registered);
                conflict(bed.raw(other, cdb, data))
            })
            .collect();
        assert_eq!(got, want, "{name}");
        for (kind, _) in COLUMNS {
            let (mut bed, holder, _) = reserved(kind, true);
            assert_eq!(conflict(bed.raw(holder, cdb, data)), '-', "{name} by the holder, {kind:?}");
        }
    }
}

fn rows(want: &str, cdbs: &[Cdb]) {
    let commands: Vec<_> = cdbs.iter().map(|c| (c.as_bytes(), &[][..])).collect();
    row(want, &commands);
}

#[test]
fn row_reads() {
    rows(
        "--CC----C-C-",
        &[
            i::read(0, 1, false),
            i::verify(0, 1, false),
            i::verify(0, 1, true),
            i::get_lba_status(0, 24),
        ],
    );
    row(
        "--CC----C-C-",
        &[(&[0x08, 0, 0, 0, 1, 0], &[]), (&[0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])],
    );
}

#[test]
fn row_writes() {
    rows(
        "CCCCC-C-C-C-",
        &[
            i::write(0, 1, false),
            i::unmap(24),
            i::write_same_16(0, 1, true, true),
            i::compare_and_write(0, 1, false),
            i::sync_cache(0, 0),
            i::mode_select_6(0),
        ],
    );
    row(
        "CCCCC-C-C-C-",
        &[
            (&[0x04, 0, 0, 0, 0, 0], &[]),
            (&[0x1d, 0x04, 0, 0, 0, 0], &[]),
            (&[0x1e, 0, 0, 0, 1, 0], &[]),
            (&[0x2e, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]),
            (&[0x3b, 0x0a, 0, 0, 0, 0, 0, 0, 2, 0], &[1, 2]),
        ],
    );
}

#[test]
fn row_mode_sense_and_reports() {
    rows(
        "--C-----C-C-",
        &[i::mode_sense_6(0x3f, 0, false, 255), i::mode_sense_10(8, 0, true, 255)],
    );
    rows("--C-----C-C-", &[i::report_opcodes_all(4096)]);
    row(
        "--C-----C-C-",
        &[
            (&[0x3c, 0x0b, 0, 0, 0, 0, 0, 0, 4, 0], &[]),
            (&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]),
        ],
    );
}

#[test]
fn row_start_stop() {
    rows("------------", &[i::start_stop(true, false)]);
    rows("CCCCC-C-C-C-", &[i::start_stop(false, false)]);
    row("CCCCC-C-C-C-", &[(&[0x1b, 0, 0, 0, 0x70, 0], &[])]);
}

#[test]
fn row_always() {
    rows(
        "------------",
        &[
            i::inquiry(36),
            i::report_luns(16),
            i::request_sense(false, 18),
            i::test_unit_ready(),
            i::read_capacity_10(),
            i::read_capacity_16(32),
            i::report_target_port_groups(64),
            i::pr_in(PrIn::ReadKeys, 64),
            i::pr_in(PrIn::ReadReservation, 64),
            i::pr_in(PrIn::ReportCapabilities, 64),
            i::pr_in(PrIn::ReadFullStatus, 64),
        ],
    );
    row(
        "------------",
        &[(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 64, 0], &[]), (&[0x1e, 0, 0, 0, 0, 0], &[])],
    );
}

/// The rows of PERSISTENT RESERVE OUT, with the key that the sender really has.
fn pr_row(want: &str, action: PrOut, action_key: u64, same_type: bool) {
    let got: String = COLUMNS
        .iter()
        .map(|(kind, registered)| {
            let (mut bed, _, other) = reserved(*kind, *registered);
            let key = if *registered { OTHER_KEY } else { 0 };
            let other_kind = PrType::ALL.into_iter().find(|k| k != kind);
            let kind = if same_type { Some(*kind) } else { other_kind };
            conflict(pr(&mut bed, other, action, kind, key, action_key))
        })
        .collect();
    assert_eq!(got, want, "{action:?}");
}

#[test]
fn row_pr_register() {
    pr_row("------------", PrOut::Register, 7, true);
    pr_row("------------", PrOut::RegisterAndIgnore, 7, true);
}

#[test]
fn row_pr_clear_preempt_release() {
    pr_row("C-C-C-C-C-C-", PrOut::Clear, 0, true);
    pr_row("C-C-C-C-C-C-", PrOut::Release, 0, true);
    pr_row("C-C-C-C-C-C-", PrOut::Preempt, HOLDER_KEY, true);
    pr_row("C-C-C-C-C-C-", PrOut::PreemptAndAbort, HOLDER_KEY, true);
}

#[test]
fn row_pr_reserve() {
    // Only the all-registrants types let another registered nexus reserve, with the same type.
    pr_row("CCCCCCC-CCC-", PrOut::Reserve, 0, true);
    pr_row("CCCCCCCCCCCC", PrOut::Reserve, 0, false);
}

#[test]
fn row_pr_register_and_move() {
    for (kind, registered) in COLUMNS {
        let (mut bed, _, other) = reserved(kind, registered);
        let key = if registered { OTHER_KEY } else { 0 };
        let list = i::pr_move_list(key, 9, false, false, 1, &crate::testbed::initiator(3));
        let cdb = i::pr_out(PrOut::RegisterAndMove, None, list.len() as u32);
        assert_eq!(conflict(bed.raw(other, cdb.as_bytes(), &list)), 'C', "{kind:?}");
    }
}

#[test]
fn row_reserve_and_release_6() {
    rows("C-C-C-C-C-C-", &[i::reserve_6(), i::release_6()]);
}
