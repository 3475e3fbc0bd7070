//! What a unit tells the target that serves it, and hosts on the way: conditions, attentions, effects, pages.

use crate::cdb::decode;
use crate::initiator as i;
use crate::lu::{AluaState, Condition, UA_QUEUE_MAX, UaScope};
use crate::sense::{Sense, SenseKey};
use crate::status::ScsiError;
use crate::testbed::{BLOCKS, Bed, identity, port, sense};
use crate::{Features, Geometry, PortName, TargetPort};

/// SPC-4 table 306.
#[test]
fn access_states_have_their_codes() {
    let states = [
        (0x0, AluaState::ActiveOptimized),
        (0x1, AluaState::ActiveNonOptimized),
        (0x2, AluaState::Standby),
        (0x3, AluaState::Unavailable),
        (0xe, AluaState::Offline),
        (0xf, AluaState::Transitioning),
    ];
    for code in 0..=255 {
        let want = states.iter().find(|s| s.0 == code).map(|s| s.1);
        assert_eq!(AluaState::from_code(code), want);
        assert!(want.is_none_or(|s| s as u8 == code));
    }
}

#[test]
fn conditions_are_told_as_they_were_set() {
    let mut bed = Bed::new();
    for c in
        [Condition::Offline, Condition::Formatting(7), Condition::BecomingReady, Condition::Ready]
    {
        bed.lu.set_condition(c);
        assert_eq!(bed.lu.condition(), c);
    }
}

#[test]
fn attentions_are_shown_and_stay() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    bed.lu.raise_ua(UaScope::Only(a), Sense::CAPACITY_CHANGED);
    bed.lu.raise_ua(UaScope::Only(a), Sense::LU_RESET);
    for _ in 0..2 {
        assert_eq!(bed.lu.attentions(a), [Sense::CAPACITY_CHANGED, Sense::LU_RESET]);
        assert_eq!(bed.lu.attentions(b), []);
    }
    for n in 0..2 * UA_QUEUE_MAX as u8 {
        bed.lu.raise_ua(UaScope::All, Sense::new(SenseKey::UnitAttention, 0x80, n));
    }
    assert_eq!(bed.lu.attentions(a).len(), UA_QUEUE_MAX);
    assert_eq!(bed.lu.check_invariants(), Ok(()));
}

/// What a command has taken that ends without a word is told to the next one, before what came since.
#[test]
fn attentions_that_were_not_told_are_pending_again() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    let read = decode(i::read(0, 1, false).as_bytes(), &bed.lu.geometry()).unwrap();
    bed.lu.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
    let taken = bed.lu.admit(a, &read).unwrap_err().sense.unwrap();
    assert!(bed.lu.fast_path(a).reads);
    bed.lu.raise_ua(UaScope::All, Sense::INQUIRY_DATA_CHANGED);
    let before = bed.lu.generation();
    bed.lu.untold(a, taken);
    assert!(bed.lu.generation() > before && !bed.lu.fast_path(a).reads);
    // Once, whoever else says so.
    bed.lu.untold(a, taken);
    assert_eq!(bed.attentions(a), [Sense::CAPACITY_CHANGED, Sense::INQUIRY_DATA_CHANGED]);
    assert_eq!(bed.attentions(b), [Sense::CAPACITY_CHANGED, Sense::INQUIRY_DATA_CHANGED]);
    // A reset that came since is told in its place.
    bed.lu.raise_ua(UaScope::Only(a), Sense::LU_RESET);
    bed.lu.untold(a, Sense::POWER_ON);
    assert_eq!(bed.attentions(a), [Sense::LU_RESET]);
    for n in 0..UA_QUEUE_MAX as u8 {
        bed.lu.raise_ua(UaScope::Only(a), Sense::new(SenseKey::UnitAttention, 0x80, n));
    }
    bed.lu.untold(a, taken);
    assert_eq!(bed.lu.attentions(a).len(), UA_QUEUE_MAX);
    bed.lu.nexus_lost(a);
    bed.lu.untold(a, taken);
    assert_eq!(bed.lu.attentions(a), []);
    assert_eq!(bed.lu.check_invariants(), Ok(()));
}

/// Front ends whose hosts cannot be told: attentions are dropped even under UA_INTLCK, all other rules stand.
#[test]
fn unattended_commands_meet_every_rule_but_attentions() {
    let mut bed = Bed::new();
    let (a, b) = (bed.login(1), bed.login(2));
    let read = decode(i::read(0, 1, false).as_bytes(), &bed.lu.geometry()).unwrap();
    let before = bed.lu.generation();
    assert_eq!(bed.lu.admit_unattended(b, &read), Ok(()));
    assert_eq!(bed.lu.generation(), before, "nothing was pending, so what is cached holds");
    for interlock in [false, true] {
        if interlock {
            bed.interlock(a);
            // Others are told of that.
            bed.attentions(b);
        }
        bed.lu.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
        let before = bed.lu.generation();
        assert_eq!(bed.lu.admit_unattended(b, &read), Ok(()), "interlock {interlock}");
        assert!(bed.lu.generation() > before && bed.lu.fast_path(b).reads);
        assert_eq!(bed.attentions(b), []);
        assert_eq!(bed.attentions(a), [Sense::CAPACITY_CHANGED], "another's stay");
    }
    bed.run(a, i::reserve_6()).unwrap();
    assert_eq!(bed.lu.admit_unattended(b, &read), Err(ScsiError::RESERVATION_CONFLICT));
}

/// SPC-4 6.33: REPORT LUNS clears its own attention. What was cached holds when there was none.
#[test]
fn report_luns_moves_the_generation_when_it_clears_something() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    bed.run(a, i::report_luns(64)).unwrap();
    assert!(!bed.effects.generation_changed);
    bed.lu.raise_ua(UaScope::All, Sense::REPORT_LUNS_CHANGED);
    bed.lu.raise_ua(UaScope::All, Sense::CAPACITY_CHANGED);
    bed.run(a, i::report_luns(64)).unwrap();
    assert!(bed.effects.generation_changed);
    assert_eq!(bed.lu.attentions(a), [Sense::CAPACITY_CHANGED]);
}

/// SBC-3 6.5.5: with WCE 0 every write is durable before its status; turning it off writes the cache back.
#[test]
fn the_write_cache_decides_when_writes_are_durable() {
    let id = crate::Identity { write_cache: true, ..identity() };
    let mut bed = Bed::with(id, Geometry::new(512, BLOCKS));
    let a = bed.login(1);
    let set = |bed: &mut Bed, page: &[u8]| {
        let list = [&[0; 4][..], page].concat();
        bed.raw(a, i::mode_select_6(list.len() as u8).as_bytes(), &list).unwrap();
        (bed.effects.flush, bed.effects.ua_raised, bed.lu.fast_path(a).write_through)
    };
    let caching = bed.run(a, i::mode_sense_6(0x08, 0, true, 255)).unwrap()[4..].to_vec();
    let mut off = caching.clone();
    off[2] &= !0x04;
    assert!(!bed.lu.fast_path(a).write_through);
    assert_eq!(set(&mut bed, &caching), (false, false, false), "nothing changes");
    assert_eq!(set(&mut bed, &off), (true, true, true));
    assert_eq!(set(&mut bed, &caching), (false, true, false));
    // Another page changes while the cache is on: nothing is written back for it.
    let mut control = bed.run(a, i::mode_sense_6(0x0a, 0, true, 255)).unwrap()[4..].to_vec();
    control[2] ^= 0x04;
    assert_eq!(set(&mut bed, &control), (false, true, false));
    assert!(bed.lu.write_cache_enabled());
}

/// SPC-4 7.5.1: with SPF set a page has a subpage code and a header of four bytes.
#[test]
fn subpages_are_selected_by_their_own_code() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let select = |bed: &mut Bed, pages: &[u8]| {
        let list = [&[0; 4][..], pages].concat();
        bed.raw(a, i::mode_select_6(list.len() as u8).as_bytes(), &list)
    };
    let extension = bed.run(a, i::mode_sense_6(0x0a, 1, true, 255)).unwrap()[4..].to_vec();
    assert_eq!((extension[0], extension[1], extension.len()), (0x4a, 1, 32));
    select(&mut bed, &extension).unwrap();
    for at in 1..32 {
        let mut other = extension.clone();
        other[at] ^= 0x80;
        // A subpage that is not there is pointed at by its page, all else by itself.
        let want = if at == 1 { 4 } else { 4 + at as u16 };
        assert_eq!(sense(select(&mut bed, &other)), Sense::list_byte(want), "byte {at}");
    }
    assert_eq!(sense(select(&mut bed, &extension[..1])), Sense::PARAMETER_LIST_LENGTH_ERROR);
}

/// SPC-4 table 453: LONGLBA is bit 0 of byte 4, and says how long block descriptors are.
#[test]
fn select_10_takes_a_short_descriptor_without_longlba() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    for (flags, len) in [(0u8, 8u8), (0xfe, 8)] {
        let mut list = vec![0, 0, 0, 0, flags, 0, 0, len, 0, 0, 0, 0, 0, 0, 2, 0];
        let cdb = [0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        bed.raw(a, &cdb, &list).unwrap();
        list[4] = 1;
        assert!(bed.raw(a, &cdb, &list).is_err(), "8 bytes are no long descriptor");
    }
}

/// SPC-4 table 139: MULTIP says that there are several ports.
#[test]
fn multip_needs_a_second_port() {
    for (n, byte) in [(0, 0), (1, 0), (2, 0x10)] {
        let mut bed = Bed::new();
        let a = bed.login(1);
        bed.lu.set_ports((1..=n).map(|p| port(p, 10)).collect());
        assert_eq!(bed.run(a, i::inquiry(36)).unwrap()[6], byte, "{n} ports");
    }
}

/// SPC-4 7.3: of all pages only the list of pages has a subpage, FFh.
#[test]
fn log_pages_have_no_other_subpages() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let mut log = |page: u8, subpage: u8| {
        bed.raw(a, &[0x4d, 0, 0x40 | page, subpage, 0, 0, 0, 0, 255, 0], &[])
    };
    assert!(log(0, 0).is_ok() && log(0, 0xff).is_ok() && log(0x0d, 0).is_ok());
    for (page, subpage) in [(0, 1), (0, 0xfe), (0x0d, 0xff), (0x0d, 1), (0x2f, 0xff)] {
        assert_eq!(sense(log(page, subpage)), Sense::cdb_byte(3), "{page:#x} {subpage:#x}");
    }
}

/// SPC-4 6.18: the whole capacity that READ BUFFER tells can be written and read back.
#[test]
fn the_echo_buffer_holds_what_it_says() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let told = bed.raw(a, &[0x3c, 0x0b, 0, 0, 0, 0, 0, 0, 4, 0], &[]).unwrap();
    assert_eq!(told, [1, 0, 0x10, 0]);
    let data: Vec<u8> = (0..4097u32).map(|n| (n * 7) as u8).collect();
    bed.raw(a, &[0x3b, 0x0a, 0, 0, 0, 0, 0, 0x10, 0, 0], &data[..4096]).unwrap();
    let back = bed.raw(a, &[0x3c, 0x0a, 0, 0, 0, 0, 0, 0x10, 1, 0], &[]).unwrap();
    assert!(back == data[..4096]);
    let more = bed.raw(a, &[0x3b, 0x0a, 0, 0, 0, 0, 0, 0x10, 1, 0], &data);
    assert_eq!(sense(more), Sense::cdb_byte(6));
}

#[test]
fn the_power_page_is_there_when_it_has_something_to_tell() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    assert_eq!(sense(bed.run(a, i::vpd(0xc0, 255))), Sense::cdb_byte(2));
    let id = crate::Identity { power: Some(0x0102_0304_0506_0708), ..identity() };
    let mut bed = Bed::with(id, Geometry::new(512, BLOCKS));
    let a = bed.login(1);
    let page = bed.run(a, i::vpd(0xc0, 255)).unwrap();
    assert_eq!(page[..4], [0, 0xc0, 0, 16]);
    assert_eq!(i::parse_power(&page), Some(0x0102_0304_0506_0708));
    assert!(bed.run(a, i::vpd(0, 255)).unwrap()[4..].contains(&0xc0));
}

/// SBC-3 tables 195 and 198: lengths are fixed; each feature has its own bit.
#[test]
fn block_pages_tell_each_feature_by_itself() {
    let flags = |features: Features| {
        let g = Geometry { features, ..Geometry::new(512, BLOCKS) };
        let mut bed = Bed::with(identity(), g);
        let a = bed.login(1);
        let b1 = bed.run(a, i::vpd(0xb1, 255)).unwrap();
        assert_eq!((b1.len(), b1[..4] == [0, 0xb1, 0, 0x3c]), (64, true));
        bed.run(a, i::vpd(0xb2, 255)).unwrap()[5]
    };
    // LBPU and LBPRZ; LBPWS and LBPWS10, for which WRITE SAME must be there; ANC_SUP.
    assert_eq!(flags(Features::UNMAP), 0x84);
    assert_eq!(flags(Features::UNMAP.with(Features::WRITE_SAME)), 0x84);
    assert_eq!(flags(Features::UNMAP.with(Features::WRITE_SAME_UNMAP)), 0x84);
    let both = Features::WRITE_SAME.with(Features::WRITE_SAME_UNMAP);
    assert_eq!(flags(Features::UNMAP.with(both)), 0xe4);
    assert_eq!(flags(Features::UNMAP.with(Features::ANCHOR)), 0x86);
}

/// A name of a port is at most 250 bytes in a designator, and cut between characters.
#[test]
fn long_port_names_are_cut_at_a_character() {
    let mut bed = Bed::new();
    let a = bed.login(1);
    let name = format!("n{}", "\u{fc}".repeat(130));
    let name = PortName::Name { protocol: 4, name };
    bed.lu.set_ports(vec![TargetPort { relative_id: 1, group: 10, name }]);
    let ids = bed.run(a, i::vpd(0x83, 1000)).unwrap();
    let told = i::parse_designators(&ids).unwrap().find(|d| d.association == 1 && d.kind == 8);
    let told = told.expect("a name of the port").value;
    let want = format!("n{}\0\0\0", "\u{fc}".repeat(124));
    assert_eq!(core::str::from_utf8(told), Ok(&want[..]));
}
