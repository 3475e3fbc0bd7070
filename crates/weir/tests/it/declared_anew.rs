//! A configuration file declares a pool and says that another pool's label may be overwritten, as it had to when the pool was made.
//! That is no leave to destroy the pool by a start: the real program, files as devices.

use crate::common::{Daemon, noise};

/// The pool with a volume and its data.
fn node(name: &str) -> (Daemon, Vec<u8>) {
    let mut d = Daemon::new(name);
    let declared = format!(
        r#"
[[pool]]
name = "safe"
raid = "0"
devices = [{{ kind = "file", path = "{}", size = "128M" }}]
overwrite = ["weir"]
"#,
        d.path("disk")
    );
    std::fs::write(d.path("weir.toml"), declared).expect("written");
    d.start();
    d.ok("volume create v --pool safe --size 4M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(7, 256 << 10);
    std::fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    (d, data)
}

/// The daemon is started, and the pool taken over as the documents say.
fn is_there(mut d: Daemon, data: &[u8]) {
    d.start();
    d.tried_again();
    let faults = d.json("status")["faults"].to_string();
    assert!(faults.contains("declared/pool/safe"), "it is not as declared: {faults}");
    d.json(&format!("pool import --device file:{}", d.path("disk")));
    assert!(d.read("v", data.len()) == data);
}

#[test]
fn a_pool_that_was_released_is_not_made_anew_by_a_start() {
    let (mut d, data) = node("declared-released");
    d.ok("pool release safe --yes");
    d.stop();
    is_there(d, &data);
}

#[test]
fn a_pool_of_a_lost_data_directory_is_not_made_anew_by_a_start() {
    let (mut d, data) = node("declared-lost");
    d.stop();
    for lost in ["weir.redb", "config.json", "weir.lock"] {
        std::fs::remove_file(d.path(lost)).expect("it was there");
    }
    is_there(d, &data);
}

/// A plain pool is declared with a volume for a host, and deleted by commands: the next start makes all of it again, over the file that
/// it had, and so does the start after that.
#[test]
fn a_declared_pool_that_was_deleted_is_made_again_over_its_file() {
    let mut d = Daemon::new("declared-again");
    let declared = format!(
        r#"
[[pool]]
name = "x"
devices = [{{ kind = "file", path = "{}", size = "64M" }}]

[[volume]]
name = "db"
pool = "x"
size = "4M"

[[host]]
name = "h"
allow_any = true

[[map]]
host = "h"
volume = "db"
"#,
        d.path("disk")
    );
    std::fs::write(d.path("weir.toml"), declared).expect("written");
    d.start();
    d.ok("map delete h db");
    d.ok("volume delete db --yes");
    d.ok("pool delete x");
    let data = noise(8, 64 << 10);
    std::fs::write(d.path("data"), &data).expect("written");
    for _ in 0..2 {
        d.stop();
        d.start();
        d.write("db", &d.path("data"));
        assert!(d.read("db", data.len()) == data);
        assert_eq!(d.json("pool show x")["capacity"], 64 << 20);
        assert_eq!(d.json("status")["faults"].to_string(), "[]");
    }
}
