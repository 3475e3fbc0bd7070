//! Numbers and flags of PERSISTENT RESERVE OUT: revisions, holders, bits, ports.

use super::rules::{held, keys, out, out_list, register, three};
use crate::cdb::{PrIn, PrOut};
use crate::initiator::{self as i, PrRegister};
use crate::pr::Import;
use crate::status::ScsiError;
use crate::testbed::{Bed, initiator, port};

/// Of two exports on their way to the store the newer is kept: each change has a higher number.
#[test]
fn every_change_has_a_higher_revision() {
    let (mut bed, a, b, _) = three();
    let mut last = bed.lu.reservation_revision();
    for (n, action, key, new) in [
        (a, PrOut::Reserve, 0xa, 0),
        (a, PrOut::Release, 0xa, 0),
        (b, PrOut::Reserve, 0xb, 0),
        (a, PrOut::Preempt, 0xa, 0xb),
        (b, PrOut::RegisterAndIgnore, 0, 0xb),
        (b, PrOut::Clear, 0xb, 0),
    ] {
        bed.attentions(n);
        out(&mut bed, n, action, 1, key, new).unwrap();
        assert!(bed.lu.reservation_revision() > last, "{action:?}");
        last = bed.lu.reservation_revision();
    }
    // What a loss of power takes away goes under the number it had.
    bed.attentions(a);
    register(&mut bed, a, 0xa);
    let (kept, revision) = (bed.lu.export_reservations(), bed.lu.reservation_revision());
    let mut after = Bed::new();
    after.lu.import_reservations(&kept, Import::PowerOn).unwrap();
    let a = after.login(1);
    assert_eq!((keys(&mut after, a).len(), after.lu.reservation_revision()), (0, revision));
}

/// SPC-4 5.13.11.2.4: who takes over is the one holder, whoever stays registered.
#[test]
fn a_take_over_leaves_one_holder() {
    let (mut bed, a, b, c) = three();
    register(&mut bed, c, 0xc);
    out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
    out(&mut bed, b, PrOut::Preempt, 3, 0xb, 0xa).unwrap();
    assert_eq!(bed.lu.check_invariants(), Ok(()));
    assert_eq!(bed.run(c, i::read(0, 1, false)), Err(ScsiError::RESERVATION_CONFLICT));
    bed.run(b, i::read(0, 1, false)).unwrap();
    // All registrants: everybody holds, and nobody is the one.
    out(&mut bed, c, PrOut::Preempt, 8, 0xc, 0xb).unwrap();
    assert_eq!((bed.lu.check_invariants(), held(&mut bed, c)), (Ok(()), Some((0, 8))));
}

/// SPC-4 table 218: UNREG is bit 1 and APTPL bit 0 of byte 17.
#[test]
fn register_and_move_reads_its_flags() {
    for (unregister, aptpl) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut bed, a, b, _) = three();
        out(&mut bed, a, PrOut::Reserve, 1, 0xa, 0).unwrap();
        let list = i::pr_move_list(0xa, 0xbb, unregister, aptpl, 1, &initiator(2));
        out_list(&mut bed, a, PrOut::RegisterAndMove, 0, &list).unwrap();
        assert_eq!(bed.effects.persist, aptpl);
        let caps = bed.run(b, i::pr_in(PrIn::ReportCapabilities, 8)).unwrap();
        assert_eq!(caps[3], 0x80 | u8::from(aptpl));
        assert_eq!(keys(&mut bed, b).len(), 2 - usize::from(unregister));
    }
}

/// SPC-4 6.16.3: ALL_TG_PT is about the target ports that the initiator port can have logged in to: those of its protocol.
#[test]
fn all_target_ports_are_those_of_the_protocol() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let name = crate::PortName::Name { protocol: 5, name: "iqn.2026-01.org.example:t".into() };
    let other = crate::TargetPort { relative_id: 3, group: 30, name };
    bed.lu.set_ports(vec![port(1, 10), port(2, 20), other]);
    bed.attentions(a);
    let all = PrRegister { all_target_ports: true, ..PrRegister::default() };
    out_list(&mut bed, a, PrOut::Register, 0, &i::pr_out_list(0, 5, &all)).unwrap();
    assert_eq!(keys(&mut bed, a), [5, 5]);
}
