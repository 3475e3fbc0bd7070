//! Hosts with a secret: the real program on both sides.

use crate::common::Daemon;
use std::os::unix::fs::PermissionsExt;

const PORT: &str = "0000000000000001:0000000000000002";

fn file(d: &Daemon, name: &str, text: &str) -> String {
    let path = d.path(name);
    std::fs::write(&path, text).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    path
}

/// A short load as the host, by BRP.
fn load(d: &Daemon, more: &str) -> String {
    let at = d.port("brp0").expect("a port for BRP");
    format!(
        "bench --initiator brp --target {at} --volume v --initiator-port {PORT} --rw write --bs 4k --size 64k {more}"
    )
}

#[test]
fn a_host_with_a_secret_is_let_in_by_its_proof_only() {
    let mut d = Daemon::new("secret");
    d.start();
    d.ok("pool create p --device ram:64M");
    d.ok("volume create v --pool p --size 16M");
    let text = "only the host and the target know this";
    let (right, wrong) = (file(&d, "right", text), file(&d, "wrong", "somebody else knows this"));
    d.ok(&format!("host create h --port {PORT} --secret-file {right}"));
    d.ok("map create h v");

    d.ok(&load(&d, &format!("--secret-file {right}")));
    for bad in [String::new(), format!("--secret-file {wrong}")] {
        let (_, said) = d.fails(&load(&d, &bad), 5);
        assert!(said.contains("do not agree on a secret"), "{said}");
    }
    // SRP has no way to prove anything.
    let srp = d.target();
    d.fails(&format!("inquiry --target {srp} --volume v --initiator-port {PORT}"), 5);

    // Who was refused is counted and told.
    let ports = d.json("status")["live"]["ports"].clone();
    let counted = |name: &str, what: &str| {
        let all = ports.as_array().expect("ports");
        let port = all.iter().find(|p| p["name"] == name).expect("a port");
        port[what].as_u64().expect("a number")
    };
    assert!(counted("brp0", "rejects") >= 2 && counted("srp0", "rejects") >= 1, "{ports}");
    assert!(counted("brp0", "logins") >= 1 && counted("brp0", "commands") >= 16, "{ports}");
    assert_eq!(counted("srp0", "logins"), 0, "{ports}");
    let told = d.ok("events --json");
    for port in ["target/brp0", "target/srp0"] {
        let of_port = |l: &&str| l.contains("\"login.refused\"") && l.contains(port);
        let line = told.lines().find(of_port).unwrap_or_else(|| panic!("{port}: {told}"));
        assert!(line.contains("127.0.0.1") && line.contains(" refused"), "{line}");
    }

    // Nobody is told the secret, and the configuration is for its owner only.
    let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
    for said in [d.ok("host show h --json"), d.ok("host list --json"), d.log()] {
        assert!(!said.contains(&hex) && !said.contains(text), "{said}");
    }
    assert_eq!(d.json("host show h")["keyed"], true);

    // It survives a kill, may be replaced, and taken away.
    d.kill();
    d.start();
    d.ok(&load(&d, &format!("--secret-file {right}")));
    d.ok(&format!("host set h --secret-file {wrong}"));
    d.fails(&load(&d, &format!("--secret-file {right}")), 5);
    d.ok(&load(&d, &format!("--secret-file {wrong}")));
    d.ok("host set h --no-secret");
    d.ok(&load(&d, ""));
    d.fails(&load(&d, &format!("--secret-file {wrong}")), 5);

    let open = d.path("right");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    let (_, said) = d.fails(&format!("host set h --secret-file {open}"), 2);
    assert!(said.contains("others may read"), "{said}");
    d.stop();
}
