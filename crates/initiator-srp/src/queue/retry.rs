//! Which ends of a command are worth another try.

use crate::channel::Outcome;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_scsi::sense::{Sense, SenseKey};
use weir_proto_scsi::status::Status;

/// What to do about a command that did not end with GOOD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fail,
    /// The unit told news instead of running it: send it again.
    Attention,
    /// Send it again.
    Again,
    /// Send it again in a while.
    Later,
}

pub(super) fn verdict(o: &Outcome, cdb: &[u8]) -> Verdict {
    if o.failure.is_some() {
        return Verdict::Fail;
    }
    match Status::from_code(o.status) {
        Some(Status::Busy | Status::TaskSetFull) => Verdict::Later,
        Some(Status::TaskAborted) if repeatable(cdb) => Verdict::Again,
        Some(Status::CheckCondition) => match Sense::parse(o.sense()) {
            // It was not run: the same command may be sent again whatever it is.
            Some(s) if s.key == SenseKey::UnitAttention => Verdict::Attention,
            Some(s) if s.key == SenseKey::AbortedCommand && repeatable(cdb) => Verdict::Again,
            Some(s)
                if s.same_code(&Sense::BECOMING_READY) || s.same_code(&Sense::ALUA_TRANSITION) =>
            {
                Verdict::Later
            }
            _ => Verdict::Fail,
        },
        _ => Verdict::Fail,
    }
}

/// How long to wait before try `n`: 1 ms, doubling up to 1 s.
pub(super) fn pause(n: u32) -> Nanos {
    (MILLIS << n.min(10)).min(SECONDS)
}

/// True for commands that may be run twice with the same effect as once, if nobody else writes meanwhile.
/// Others (COMPARE AND WRITE, reservations, mode changes, unknown ones) are not sent again when it is not
/// known whether they were done.
pub(crate) fn repeatable(cdb: &[u8]) -> bool {
    let action = cdb.get(1).map_or(0, |b| b & 0x1f);
    match cdb.first() {
        // TEST UNIT READY, REQUEST SENSE, INQUIRY, MODE SENSE, READ CAPACITY, REPORT LUNS, LOG SENSE.
        Some(0x00 | 0x03 | 0x12 | 0x1a | 0x5a | 0x25 | 0xa0 | 0x4d) => true,
        // READ, WRITE, WRITE AND VERIFY, VERIFY, SYNCHRONIZE CACHE, WRITE SAME, PRE-FETCH, UNMAP.
        Some(0x08 | 0x28 | 0xa8 | 0x88 | 0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e) => true,
        Some(0x2f | 0xaf | 0x8f | 0x35 | 0x91 | 0x41 | 0x93 | 0x34 | 0x90 | 0x42) => true,
        // PERSISTENT RESERVE IN; SERVICE ACTION IN (16): READ CAPACITY, GET LBA STATUS; MAINTENANCE IN.
        Some(0x5e | 0xa3) => true,
        Some(0x9e) => matches!(action, 0x10 | 0x12),
        _ => false,
    }
}

/// True for commands that leave the medium as it is: an old one that is still at a target does no harm.
pub(crate) fn harmless(cdb: &[u8]) -> bool {
    let action = cdb.get(1).map_or(0, |b| b & 0x1f);
    match cdb.first() {
        // TEST UNIT READY, REQUEST SENSE, INQUIRY, MODE SENSE, READ CAPACITY, REPORT LUNS, LOG SENSE.
        Some(0x00 | 0x03 | 0x12 | 0x1a | 0x5a | 0x25 | 0xa0 | 0x4d) => true,
        // READ, VERIFY, SYNCHRONIZE CACHE, PRE-FETCH.
        Some(0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f | 0x35 | 0x91 | 0x34 | 0x90) => true,
        Some(0x5e | 0xa3) => true,
        Some(0x9e) => matches!(action, 0x10 | 0x12),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto_scsi::cdb::PrOut;
    use weir_proto_scsi::initiator as build;

    #[test]
    fn what_changes_with_every_run_is_not_repeated() {
        for c in [
            build::read(0, 1, false),
            build::write(1 << 40, 1, true),
            build::sync_cache(0, 0),
            build::unmap(24),
            build::write_same_16(0, 8, false, true),
            build::read_capacity_16(32),
            build::inquiry(36),
            build::report_luns(256),
        ] {
            assert!(repeatable(c.as_bytes()), "{c:x?}");
        }
        for c in [
            build::compare_and_write(0, 1, false),
            build::pr_out(PrOut::Register, None, 24),
            build::reserve_6(),
            build::mode_select_6(24),
            build::start_stop(false, true),
        ] {
            assert!(!repeatable(c.as_bytes()), "{c:x?}");
        }
        assert!(!repeatable(&[]));
    }

    #[test]
    fn what_does_no_harm_may_be_repeated() {
        for op in 0..=255u8 {
            for action in 0..32 {
                assert!(!harmless(&[op, action]) || repeatable(&[op, action]), "{op:02x}");
            }
        }
        assert!(harmless(build::read(0, 1, false).as_bytes()));
        for c in
            [build::write(0, 1, true), build::unmap(24), build::write_same_16(0, 8, true, true)]
        {
            assert!(!harmless(c.as_bytes()), "{c:x?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_second() {
        assert_eq!([pause(0), pause(3), pause(40)], [MILLIS, 8 * MILLIS, SECONDS]);
    }
}
