//! The configuration file.

use super::*;

#[test]
fn the_example_shows_every_key_and_is_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/weir.toml");
    let config = Config::load(&path).unwrap();
    assert!(!config.pools.is_empty() && !config.volumes.is_empty() && !config.hosts.is_empty());
    assert!(!config.maps.is_empty() && !config.targets.is_empty());
    // What it declares can be made, but for the sizes of devices that only the data plane finds out.
    let mut model = crate::model::Model::default();
    let desired = config.desired();
    for spec in &desired.pools {
        let command = crate::declare::Item::Pool(spec).command(&model).unwrap().unwrap();
        model.apply(command, 1).unwrap();
        let sizes = vec![(1 << 44).into(); spec.devices.len()];
        model.apply(crate::model::Command::SizePool { name: spec.name.clone(), sizes }, 2).unwrap();
    }
    let items = || desired.items().skip(desired.pools.len());
    for (i, item) in items().enumerate() {
        let command = item.command(&model).unwrap().unwrap();
        model.apply(command, 3 + i as u128).unwrap_or_else(|e| panic!("{}: {e}", item.object()));
    }
    for item in items() {
        let again = item.command(&model).unwrap();
        assert!(again.is_none_or(|c| model.apply(c, 9).unwrap().is_empty()), "{}", item.object());
    }
    // Every key of the types is in the example, commented out or not.
    let text = std::fs::read_to_string(&path).unwrap();
    for key in [
        "data_dir",
        "listen",
        "cores",
        "buffer_memory",
        "poll",
        "tcp",
        "token_file",
        "read_token_file",
        "key_commands",
        "transport",
        "id_ext",
        "ioc_guid",
        "channels",
        "crc",
        "devices",
        "kind",
        "path",
        "size",
        "block_size",
        "chunk",
        "columns",
        "read_only",
        "serial",
        "ports",
        "allow_any",
        "host",
        "volume",
        "lun",
    ] {
        assert!(text.contains(&format!("{key} =")), "{key} is missing from the example");
    }
}

#[test]
fn an_empty_file_is_a_node_with_a_target_port_for_each_protocol() {
    let config = Config::parse("").unwrap();
    assert_eq!(config.poll, Poll::Adaptive);
    assert!(config.data_dir.is_absolute());
    let desired = config.desired();
    assert_eq!(desired.targets[0].name, DEFAULT_TARGET);
    assert_eq!(desired.targets[0].listen, [DEFAULT_LISTEN]);
    assert_eq!(desired.targets[1].protocol, crate::model::Protocol::Brp);
    assert_eq!(desired.targets[1].listen, ["0.0.0.0:5556"]);
}

#[test]
fn sizes_and_paths() {
    let config = Config::parse(
        "data_dir = '/x'\nbuffer_memory = '64M'\n[[pool]]\nname = 'p'\n\
         devices = [{ kind = 'file', path = 'a.img', size = '1G' }, { kind = 'ram', size = 1048576 }]",
    )
    .unwrap();
    assert_eq!(config.buffer_memory, 64 << 20);
    let devices = &config.pools[0].devices;
    assert_eq!(devices[0].path.as_deref(), Some("/x/a.img"));
    assert_eq!((devices[0].size, devices[1].size), (Some(1 << 30), Some(1 << 20)));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, says) in [
        ("dta_dir = 'x'", "dta_dir"),
        ("poll = 'sometimes'", "sometimes"),
        ("buffer_memory = 'lots'", "lots"),
        ("buffer_memory = 4096", "4 KiB"),
        ("cores = [1, 2, 1]", "core twice"),
        ("key_commands = ['kmip-get']", "does not begin with"),
        ("[[volume]]\nname = 'v'", "pool"),
        ("[[host]]\nname = 'h'\nports = ['1']", "not an initiator port"),
        ("listen = ['0.0.0.0:1']\n[[target]]\nname = 't'\nlisten = []", "both given"),
        ("x = [", "line 1"),
    ] {
        let e = Config::parse(text).unwrap_err();
        assert_eq!(e.code, Code::InvalidConfig, "{text}");
        assert!(e.to_string().contains(says), "{text}: {e}");
        assert!(!e.hint.is_empty(), "{text}");
    }
    let e = Config::load(Path::new("/nonexistent/weir.toml")).unwrap_err();
    assert!(e.message.contains("/nonexistent/weir.toml") && !e.reason.is_empty());
}

#[test]
fn tokens_are_made_private_and_must_be_strong() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("weir-token-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut config = Config { data_dir: dir.clone(), ..Config::default() };
    assert_eq!(config.tokens().unwrap(), None, "without TCP there is nothing to guard");
    assert!(!dir.join(TOKEN).exists());
    config.api.tcp = Some("127.0.0.1:7400".parse().unwrap());
    let made = config.tokens().unwrap().unwrap();
    for (name, token) in [(TOKEN, &made.admin), (READ_TOKEN, &made.read)] {
        let mode = std::fs::metadata(dir.join(name)).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, token.len()), (0o600, 64), "{name}");
    }
    assert_ne!(made.admin, made.read);
    assert_eq!(config.tokens().unwrap(), Some(made.clone()), "kept");
    assert!(!format!("{made:?}").contains(&made.admin));
    // One that is named is not made.
    let path = dir.join("mine");
    config.api.token_file = Some(path.clone());
    let says = |config: &Config| config.tokens().unwrap_err().to_string();
    assert!(says(&config).contains("mine"));
    std::fs::write(&path, "0123456789abcdef0123\n").unwrap();
    assert!(says(&config).contains("others than its owner"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(config.tokens().unwrap().unwrap().admin, "0123456789abcdef0123");
    config.api.read_token_file = Some(path.clone());
    assert!(says(&config).contains("the same"));
    std::fs::write(&path, "short\n").unwrap();
    assert!(says(&config).contains("16 or more"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn commands_for_keys_are_those_of_the_file() {
    let volume = "[[volume]]\nname = 'v'\npool = 'p'\nsize = '1G'\n\
                  [volume.form.encryption]\nkey = 'command:/usr/bin/other --id 7'";
    let c = Config::parse(&format!("key_commands = ['/usr/bin/kmip-get --node a']\n{volume}"));
    assert_eq!(c.unwrap().key_commands(), ["/usr/bin/kmip-get --node a", "/usr/bin/other --id 7"]);
}
