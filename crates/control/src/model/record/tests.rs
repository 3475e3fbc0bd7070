//! What pools carry, in parts.

use super::*;
use crate::model::import::tests::{found, node};

fn stamp(revision: u64) -> Stamp {
    Stamp { life: "a life".into(), revision }
}

fn keep(there: &mut Carried, parts: Vec<RecordPart>) -> Vec<u32> {
    let numbers = parts.iter().map(|p| p.number).collect();
    there.parts.extend(parts.into_iter().map(|p| (p.number, p.content)));
    numbers
}

#[test]
fn a_change_writes_the_parts_that_it_concerns_and_no_others() {
    let mut m = node();
    for n in 0..1000u128 {
        let spec = VolumeSpec { name: format!("n{n:04}"), ..spec_of(&m, "a") };
        m.apply(Command::CreateVolume(spec), n * 0x9e37_79b9_7f4a_7c15_f39d).expect("a volume");
    }
    let mut there = Carried::default();
    let parts = m.missing_parts("safe", &there, &stamp(1)).expect("parts");
    let all = keep(&mut there, parts);
    assert!(all.len() > 200 && all.last() == Some(&0), "the pool itself last");
    assert_eq!(there.record(), Ok(m.pool_record("safe").ok()));
    assert_eq!(m.missing_parts("safe", &there, &stamp(2)).expect("parts"), []);

    // A volume, a mapping, a host: each is in one part.
    let before = m.clone();
    let spec = VolumeSpec { name: "one".into(), ..spec_of(&m, "a") };
    m.apply(Command::CreateVolume(spec), 77).expect("a volume");
    let parts = m.changed_parts("safe", &before, &stamp(2)).expect("parts");
    assert_eq!(keep(&mut there, parts), [part_of_volume(m.volumes["one"].naa)]);
    let before = m.clone();
    let map = MapSpec { host: "h".into(), volume: "n0001".into(), lun: None };
    m.apply(Command::CreateMap(map), 0).expect("a mapping");
    let parts = m.changed_parts("safe", &before, &stamp(3)).expect("parts");
    assert_eq!(keep(&mut there, parts), [part_of_volume(m.volumes["n0001"].naa)]);
    assert_eq!(there.record(), Ok(m.pool_record("safe").ok()));
    // One that is gone is in none.
    let before = m.clone();
    m.apply(Command::DeleteVolume { name: "one".into() }, 0).expect("being deleted");
    m.apply(Command::ForgetVolume { name: "one".into() }, 0).expect("forgotten");
    keep(&mut there, m.changed_parts("safe", &before, &stamp(4)).expect("parts"));
    assert_eq!(there.record(), Ok(m.pool_record("safe").ok()));
    let revisions: BTreeSet<u64> = there.stamps().iter().map(|s| s.revision).collect();
    assert!(revisions.iter().eq(&[1, 3, 4]), "{revisions:?}");
    // What cannot be read is written anew.
    there.doubtful.push(0);
    let parts = m.missing_parts("safe", &there, &stamp(5)).expect("parts");
    assert_eq!(parts.iter().map(|p| p.number).collect::<Vec<_>>(), [0]);
}

fn spec_of(m: &Model, like: &str) -> VolumeSpec {
    let v = &m.volumes[like];
    VolumeSpec::new("", &v.pool, v.size)
}

#[test]
fn records_of_programs_before_are_read_and_theirs_are_told_apart() {
    let m = node();
    let old = Carried::one(m.pool_record("safe").expect("a record").bytes().expect("bytes"));
    let record = old.record().expect("it makes sense").expect("there is one");
    assert_eq!(record.volumes.len(), found(&m).datasets.len());
    assert_eq!(old.stamps(), []);
    // The head is what such a program takes for a record of a newer version.
    let parts = m.missing_parts("safe", &Carried::default(), &stamp(1)).expect("parts");
    let head = parts.iter().find(|p| p.number == 0).expect("a head");
    let seen: PoolRecord = serde_json::from_slice(&head.content).expect("all that it looks for");
    assert_eq!(seen.version, 2);
    // It is replaced last, when everything else is there.
    let parts = m.missing_parts("safe", &old, &stamp(1)).expect("parts");
    assert_eq!(parts.last().map(|p| (p.number, p.secret)), Some((0, true)));
    assert!(Carried::one(b"{".to_vec()).record().is_err());
}
