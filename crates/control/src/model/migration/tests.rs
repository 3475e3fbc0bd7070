use super::*;

fn pool(name: &str, kind: DeviceKind, path: Option<&str>, size: u64) -> Command {
    let device = DeviceSpec { kind, path: path.map(Into::into), size: Some(size) };
    let (name, devices) = (name.to_string(), vec![device]);
    Command::CreatePool(PoolSpec {
        name,
        devices,
        raid: None,
        overwrite: Default::default(),
        memory: None,
    })
}

fn model() -> Model {
    let mut m = Model::default();
    m.apply(pool("a", DeviceKind::File, Some("/srv/a"), 64 << 20), 1).unwrap();
    m.apply(pool("b", DeviceKind::File, Some("/srv/b"), 16 << 20), 2).unwrap();
    let text = r#"{"name":"v","pool":"a","size":"10M"}"#;
    m.apply(Command::CreateVolume(serde_json::from_str(text).unwrap()), 3).unwrap();
    m
}

fn start(m: &mut Model, spec: MigrationSpec) -> Result<Vec<Change>> {
    m.apply(Command::StartMigration { name: "v".into(), spec }, 0)
}

fn to(pool: &str) -> MigrationSpec {
    MigrationSpec { pool: Some(pool.into()), ..MigrationSpec::default() }
}

fn code<T>(r: Result<T>) -> Code {
    r.err().expect("an error").code
}

const TOLD: Told = Told { write_cache: true, thin: false };

#[test]
fn both_places_are_taken_until_one_is_forgotten() {
    let mut m = model();
    start(&mut m, to("b")).unwrap();
    assert_eq!(m.pool_info("b").unwrap().allocated, 10 << 20);
    assert_eq!(code(m.apply(Command::DeletePool { name: "b".into() }, 0)), Code::PoolInUse);
    assert_eq!(code(start(&mut m, to("b"))), Code::VolumeMigrating);
    let name = || "v".to_string();
    assert_eq!(code(m.apply(Command::DeleteVolume { name: name() }, 0)), Code::VolumeMigrating);
    assert_eq!(code(m.apply(Command::ForgetMigration { name: name() }, 0)), Code::Internal);

    let v = m.volume("v").unwrap().clone();
    let there = v.elsewhere(v.migration.as_ref().unwrap());
    assert_eq!((there.pool.as_str(), there.place, v.place), ("b", 1, 0));
    m.apply(Command::EndMigration { name: name(), moved: Some(TOLD) }, 0).unwrap();
    let v = m.volume("v").unwrap();
    assert_eq!((v.pool.as_str(), v.place, v.told), ("b", 1, Some(TOLD)));
    let old = v.migration.as_ref().unwrap();
    assert_eq!((old.pool.as_str(), old.place, old.stage), ("a", 0, MigrationStage::Leaving));
    assert_eq!(m.pool_info("a").unwrap().allocated, 10 << 20, "not given back yet");
    let end = Command::EndMigration { name: name(), moved: None };
    assert_eq!(code(m.apply(end, 0)), Code::VolumeMigrating, "it has moved");
    m.apply(Command::ForgetMigration { name: name() }, 0).unwrap();
    assert_eq!(m.pool_info("a").unwrap().allocated, 0);
    assert_eq!(m.volume("v").unwrap().migration, None);
    // Both, as a store writes and reads it.
    let text = serde_json::to_string(m.volume("v").unwrap()).unwrap();
    assert_eq!(&serde_json::from_str::<Volume>(&text).unwrap(), m.volume("v").unwrap());
}

#[test]
fn without_a_cut_over_everything_is_as_before() {
    let mut m = model();
    let before = m.volume("v").unwrap().clone();
    start(&mut m, to("b")).unwrap();
    let patch = MigrationPatch { rate: Some(5), paused: Some(true) };
    m.apply(Command::ChangeMigration { name: "v".into(), patch: patch.clone() }, 0).unwrap();
    let revision = m.revision;
    m.apply(Command::ChangeMigration { name: "v".into(), patch }, 0).unwrap();
    assert_eq!(m.revision, revision, "nothing new");
    m.apply(Command::EndMigration { name: "v".into(), moved: None }, 0).unwrap();
    m.apply(Command::ForgetMigration { name: "v".into() }, 0).unwrap();
    assert_eq!(m.volume("v").unwrap(), &before);
    assert_eq!(m.pool_info("b").unwrap().allocated, 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut m = model();
    assert_eq!(code(start(&mut m, to("a"))), Code::InvalidRequest);
    assert_eq!(code(start(&mut m, to("c"))), Code::PoolNotFound);
    assert_eq!(code(start(&mut m, MigrationSpec::default())), Code::InvalidRequest);
    m.apply(pool("null", DeviceKind::Null, None, 1 << 30), 5).unwrap();
    assert_eq!(code(start(&mut m, to("null"))), Code::InvalidLayout);
    m.apply(pool("small", DeviceKind::Ram, None, 4 << 20), 6).unwrap();
    assert_eq!(code(start(&mut m, to("small"))), Code::PoolFull);
    let path = |p: &str| MigrationSpec { path: Some(p.into()), ..MigrationSpec::default() };
    assert_eq!(code(start(&mut m, path("/srv/b"))), Code::DeviceInUse);
    assert_eq!(code(start(&mut m, path("srv"))), Code::InvalidDevice);
}

#[test]
fn an_image_is_a_volume_without_a_pool() {
    let mut m = model();
    let found =
        |size| ImageFound { path: "/srv/old".into(), size, block_size: 512, identity: None };
    let spec = |name: &str| AdoptSpec {
        name: name.into(),
        path: "/srv/old".into(),
        block_size: None,
        read_only: false,
        serial: None,
    };
    let adopt = |name: &str, size| Command::AdoptVolume { spec: spec(name), found: found(size) };
    let e = m.apply(adopt("i", 1000), 7).expect_err("not whole blocks");
    assert!(e.code == Code::InvalidSize && e.hint.contains("truncate -s 1024"), "{e}");
    m.apply(adopt("i", 8192), 7).unwrap();
    let v = m.volume("i").unwrap();
    assert_eq!((v.pool.as_str(), v.size, v.kind), (IMAGES, 8192, VolumeKind::Image));
    assert!(m.pool_at(&v.pool).is_ok() && m.pool(IMAGES).is_err());
    assert_eq!(code(m.apply(adopt("j", 8192), 8)), Code::DeviceInUse);
    let taken = pool("c", DeviceKind::File, Some("/srv/old"), 64 << 20);
    assert_eq!(code(m.apply(taken, 9)), Code::DeviceInUse);
    let patch = VolumePatch { size: Some(16384), ..VolumePatch::default() };
    let grow = Command::PatchVolume { name: "i".into(), patch };
    assert_eq!(code(m.apply(grow, 0)), Code::Unsupported);
}
