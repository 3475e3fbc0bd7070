use super::*;
use crate::model::{
    CloneSpec, Command, DeviceKind, DeviceSpec, PoolSpec, Raid, Told, VolumeKind, VolumeSpec,
};

fn key(path: &str) -> KeySource {
    KeySource::File(path.into())
}

fn encrypted(path: &str) -> FormSpec {
    FormSpec { encryption: Some(EncryptionSpec { key: key(path) }), ..FormSpec::default() }
}

fn volume(name: &str, pool: &str, form: FormSpec) -> Command {
    Command::CreateVolume(VolumeSpec { form, ..VolumeSpec::new(name, pool, 1 << 20) })
}

/// Two protected pools, `safe` and `far`, a plain one, and volumes `v`, encrypted, and `w`, which is not.
fn model() -> Model {
    let mut m = Model::default();
    for (name, raid) in [("safe", Some(Raid::Zero)), ("far", Some(Raid::Zero)), ("plain", None)] {
        let device = DeviceSpec {
            kind: DeviceKind::File,
            path: Some(format!("/srv/{name}")),
            size: Some(1 << 30),
        };
        let spec = PoolSpec {
            name: name.into(),
            devices: vec![device],
            raid,
            overwrite: Default::default(),
            memory: None,
        };
        m.apply(Command::CreatePool(spec), 1).expect("a pool");
    }
    m.apply(volume("v", "safe", encrypted("/k")), 2).expect("encrypted");
    m.apply(volume("w", "safe", FormSpec::default()), 3).expect("plain");
    for name in ["v", "w"] {
        m.apply(Command::ReadyVolume { name: name.into() }, 0).expect("ready");
    }
    m
}

/// Seals what needs it; for whom.
fn seal(m: &mut Model, text: &str) -> Vec<Naa> {
    let mut all = Vec::new();
    for (naa, e) in m.unsealed() {
        e.sealed = Some(SealedKey { of: naa, text: text.into() });
        all.push(naa);
    }
    all
}

fn start(m: &mut Model, name: &str, spec: MigrationSpec) -> Result<Layout> {
    m.apply(Command::StartMigration { name: name.into(), spec }, 4)?;
    Ok(m.volumes[name].migration.as_ref().expect("on its way").layout.clone())
}

fn to(pool: &str) -> MigrationSpec {
    MigrationSpec { pool: Some(pool.into()), ..MigrationSpec::default() }
}

fn end(m: &mut Model, name: &str, moved: bool) {
    let told = moved.then_some(Told { write_cache: false, thin: true });
    m.apply(Command::EndMigration { name: name.into(), moved: told }, 0).expect("ended");
    m.apply(Command::ForgetMigration { name: name.into() }, 0).expect("forgotten");
}

#[test]
fn a_form_is_of_protected_pools_and_gets_a_key() {
    let mut m = model();
    let e = m.apply(volume("x", "plain", encrypted("/k")), 5).expect_err("a plain pool");
    assert_eq!(e.code, Code::Unsupported);
    let v = m.volumes["v"].naa;
    assert_eq!(seal(&mut m, "secret"), [v]);
    assert_eq!(seal(&mut m, "again"), []);
    assert_eq!(m.volumes["v"].form().words(), [("encryption", "aes-256-xts".to_string())]);
    assert!(m.volumes["w"].form().is_plain());
    // A plain form leaves no trace in what is kept, and a sealed key none in what is told.
    let kept = serde_json::to_string(&m.volumes["w"]).expect("JSON");
    assert!(!kept.contains("form"), "{kept}");
    let kept = serde_json::to_string(&m.volumes["v"]).expect("JSON");
    assert!(kept.contains("secret"));
    assert_eq!(serde_json::from_str::<Volume>(&kept).expect("back"), m.volumes["v"]);
    let told = m.volumes["v"].told_to_others();
    assert!(!serde_json::to_string(&told).expect("JSON").contains("secret"));
    assert!(!format!("{m:?}").contains("secret"));
}

#[test]
fn clones_have_the_form_of_what_they_are_made_of() {
    let mut m = model();
    seal(&mut m, "one");
    for (of, name) in [("v", "c"), ("w", "d")] {
        let spec = CloneSpec {
            volume: of.into(),
            snapshot: "s".into(),
            name: name.into(),
            read_only: false,
        };
        m.apply(Command::CloneVolume { spec, size: 1 << 20 }, 7).expect("cloned");
    }
    assert_eq!(
        m.volumes["c"].form(),
        m.volumes["v"].form(),
        "what it shares is read with that key"
    );
    assert!(m.volumes["d"].form().is_plain());
    let c = m.volumes["c"].naa;
    assert_eq!(seal(&mut m, "two"), [c], "and is wrapped for it");
}

#[test]
fn a_migration_keeps_the_form_with_another_key() {
    let mut m = model();
    seal(&mut m, "one");
    let there = start(&mut m, "v", to("far")).expect("begun");
    let e = there.form().encryption.clone().expect("encrypted");
    assert_eq!((e.key, e.sealed), (key("/k"), None));
    seal(&mut m, "two");
    end(&mut m, "v", true);
    let is = m.volumes["v"].form().encryption.clone().expect("encrypted");
    assert_eq!(is.sealed.expect("sealed").text, "two");

    // Out of it on demand only.
    let path = MigrationSpec { path: Some("/srv/x".into()), ..MigrationSpec::default() };
    for spec in [to("plain"), path.clone()] {
        assert_eq!(start(&mut m, "v", spec).expect_err("secret").code, Code::Unsupported);
    }
    for spec in [to("plain"), path, to("safe"), to("far")] {
        let spec = MigrationSpec { decrypt: true, ..spec };
        assert!(start(&mut m, "v", spec).expect("begun").form().is_plain());
        end(&mut m, "v", false);
    }
    // Into it.
    let spec = MigrationSpec { form: encrypted("/other"), ..to("far") };
    let there = start(&mut m, "w", spec).expect("begun");
    assert_eq!(there.form().encryption.as_ref().map(|e| &e.key), Some(&key("/other")));
    end(&mut m, "w", false);
    // What makes no sense.
    for (name, spec) in [
        ("w", MigrationSpec { reencrypt: true, ..to("far") }),
        ("w", MigrationSpec { decrypt: true, ..to("far") }),
        ("v", MigrationSpec { decrypt: true, reencrypt: true, ..to("far") }),
        ("v", MigrationSpec { decrypt: true, form: encrypted("/k"), ..to("safe") }),
        ("v", to("far")),
        ("w", to("safe")),
    ] {
        assert_eq!(start(&mut m, name, spec).expect_err("refused").code, Code::InvalidRequest);
    }
    let spec = MigrationSpec { form: encrypted("/k"), ..to("plain") };
    assert_eq!(start(&mut m, "w", spec).expect_err("plain").code, Code::Unsupported);
}

#[test]
fn within_a_pool_places_have_names_of_their_own() {
    let mut m = model();
    seal(&mut m, "one");
    let first = m.volumes["v"].dataset();
    for round in 0..3 {
        let old = m.volumes["v"].dataset();
        let spec = MigrationSpec { reencrypt: true, ..to("safe") };
        let Layout::Store { dataset, form, .. } = start(&mut m, "v", spec).expect("begun") else {
            panic!("a place in the store")
        };
        assert_eq!((dataset == old, dataset.len()), (false, old.len()), "round {round}");
        assert_eq!(form.encryption.expect("encrypted").sealed, None);
        seal(&mut m, "more");
        end(&mut m, "v", true);
        assert_eq!(m.volumes["v"].dataset(), dataset);
        assert_eq!(dataset == first, round % 2 == 1);
        assert_eq!(m.volumes["v"].kind, VolumeKind::Protected);
    }
}

#[test]
fn another_key_is_for_what_is_encrypted_and_stays_where_it_is() {
    let mut m = model();
    seal(&mut m, "one");
    let v = m.volumes["v"].naa;
    let rekey = |name: &str| Command::RekeyVolume {
        name: name.into(),
        key: key("/new"),
        sealed: SealedKey { of: v, text: "new".into() },
    };
    m.apply(rekey("v"), 0).expect("rekeyed");
    let e = m.volumes["v"].form().encryption.clone().expect("encrypted");
    assert_eq!((e.key, e.sealed.expect("sealed").text), (key("/new"), "new".into()));
    assert_eq!(m.clone().apply(rekey("w"), 0).expect_err("plain").code, Code::Unsupported);
    start(&mut m, "v", to("far")).expect("begun");
    assert_eq!(m.apply(rekey("v"), 0).expect_err("moving").code, Code::VolumeMigrating);
}

#[test]
fn a_declaration_says_it_and_never_changes_it() {
    let text = "[[volumes]]\nname = \"v\"\npool = \"safe\"\nsize = \"1M\"\nform.encryption.key = \"file:/k\"\n";
    let read = |t: &str| toml::from_str::<crate::declare::Desired>(t);
    let wish = read(text).expect("a declaration");
    assert_eq!(wish.volumes[0].form, encrypted("/k"));
    let of = |m: &Model, wish: &crate::declare::Desired| {
        wish.items().next().expect("a volume").command(m)
    };
    let m = model();
    assert_eq!(of(&m, &wish), Ok(None), "as it is");
    let other = read(&text.replace("/k", "/other")).expect("a declaration");
    assert_eq!(of(&m, &other).expect_err("another key").code, Code::ImmutableField);
    let plain = read(&text.replace("name = \"v\"", "name = \"w\"")).expect("a declaration");
    assert_eq!(of(&m, &plain).expect_err("not encrypted").code, Code::ImmutableField);
    assert!(read(&text.replace("file:/k", "k")).is_err());
    assert!(read(&text.replace("encryption", "encription")).is_err());
}
