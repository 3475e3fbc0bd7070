//! `weir attach` by a daemon whose addresses are another's here, as of one behind a tunnel or in a container; and beside a host for all
//! ports. For root with /dev/fuse and loop devices, as `attach`.

use crate::attach::{Target, can, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A volume that everybody sees as LUN 0, and one that nobody does.
fn volumes(seen: &str, unseen: &str) -> String {
    format!(
        "[[pool]]\nname = \"mem\"\ndevices = [{{ kind = \"ram\", size = \"256M\" }}]\n\
         [[volume]]\nname = \"{seen}\"\npool = \"mem\"\nsize = \"64M\"\n\
         [[volume]]\nname = \"{unseen}\"\npool = \"mem\"\nsize = \"64M\"\n\
         [[host]]\nname = \"anyone\"\nallow_any = true\n\
         [[map]]\nhost = \"anyone\"\nvolume = \"{seen}\"\n"
    )
}

/// A tunnel to a daemon's socket; at its other end there is another daemon at the port that this one says it listens at.
fn tunnel(socket: PathBuf, (said, is): (u16, u16)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut daemon = UnixStream::connect(&socket).expect("the daemon");
            let mut asks =
                (client.try_clone().expect("a handle"), daemon.try_clone().expect("one"));
            std::thread::spawn(move || std::io::copy(&mut asks.0, &mut asks.1));
            std::thread::spawn(move || {
                let mut answer = vec![0; 1 << 20];
                while let Ok(n @ 1..) = daemon.read(&mut answer) {
                    let text = String::from_utf8_lossy(&answer[..n]).into_owned();
                    let at = |port: u16| format!("127.0.0.1:{port}");
                    // Its two ports in a row.
                    let text = text.replace(&at(said), "FIRST").replace(&at(said + 1), "SECOND");
                    let text = text.replace("FIRST", &at(is)).replace("SECOND", &at(is + 1));
                    if client.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    at
}

#[test]
fn the_volume_of_another_daemon_at_that_address_is_refused() {
    if !can() {
        return;
    }
    let what = volumes("elsewhere", "elsewhere-2");
    let (asked, other) = (Target::declared(&what), Target::declared(&what));
    let at = tunnel(asked.dir.join("data/weir.sock"), (asked.port, other.port));
    for which in ["elsewhere", "--lun 0 --name elsewhere"] {
        for protocol in ["brp", "srp"] {
            let line = format!("--server http://{at} attach {which} --protocol {protocol}");
            let refused = asked.fails(&line, 3);
            assert!(refused.contains("than the daemon"), "{line}: {refused}");
        }
    }
    // What it does not show itself is not what another one has there.
    asked.ok("map delete anyone elsewhere");
    for protocol in ["brp", "srp"] {
        let line = format!("attach --lun 0 --name elsewhere --protocol {protocol}");
        let refused = asked.fails(&format!("--server http://{at} {line}"), 3);
        assert!(refused.contains("nothing as LUN 0"), "{line}: {refused}");
    }
    // The same way to where it is said.
    asked.ok("map create anyone elsewhere");
    let at = tunnel(asked.dir.join("data/weir.sock"), (asked.port, asked.port));
    let said = asked.ok(&format!("--server http://{at} attach elsewhere --json"));
    let a = serde_json::from_str(&said).expect("JSON");
    asked.ok("detach elsewhere");
    asked.all_gone(&a);
}

/// The attachment's port is known to be logged in, and is let in as the host for all once its own is gone.
#[test]
fn what_was_made_beside_a_host_for_all_goes_with_the_attachment() {
    if !can() {
        return;
    }
    let target = Target::declared(&volumes("forall", "beside"));
    for _ in 0..2 {
        let a = target.attach("beside");
        assert_eq!(a["mapped"]["lun"], 1, "everybody sees another volume as LUN 0: {a}");
        wait_for("its login is known", || target.ok("status --json").contains("attach-beside"));
        // What is known of hosts is looked at every second.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let said = target.ok("detach beside");
        assert!(said.contains("which is deleted"), "{said}");
        target.all_gone(&a);
        assert!(!target.ok("host list").contains("attach-beside"));
    }
    // Another volume of that name is not what the port knows as LUN 1.
    target.ok("volume delete beside --yes");
    target.ok("volume create beside --pool mem --size 64M");
    let a = target.attach("beside");
    assert_eq!(a["mapped"]["lun"], 2, "{a}");
    target.ok("detach beside");
    target.all_gone(&a);
}
