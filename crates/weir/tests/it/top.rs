//! `weir top` of the real program: on a terminal (of `script`, where that is installed), for files and for programs.

use crate::cli::Node;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// A node with volumes that are named alike.
fn node() -> Node {
    let n = Node::start();
    n.ok("pool create mem --device ram:1G");
    for i in 0..30 {
        n.ok(&format!("volume create a-volume-with-a-long-name-{i:02} --size 1M"));
    }
    n
}

#[test]
fn rounds_are_counted_and_each_is_one_object() {
    let n = node();
    let out = n.ok("top --json --count 3 --interval 100ms");
    let rounds: Vec<Value> =
        out.lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
    assert_eq!(rounds.len(), 3, "{out}");
    assert!(rounds.iter().all(|r| r["jobs"].is_array() && r["live"]["volumes"].is_array()));
    let text = n.ok("top --count 2 --interval 100ms --view volumes --sort name");
    assert_eq!(text.matches("VOLUME").count(), 2, "{text}");
    assert!(!text.contains('\x1b') && !text.contains("CORE"), "{text}");
    let (first, last) = (text.find("name-00"), text.find("name-29"));
    assert!(first.is_some() && first < last, "{text}");
    assert_eq!(n.weir("top --count 0").status.code(), Some(2));
    assert_eq!(n.weir("top --sort weight").status.code(), Some(2));
}

/// What the program writes to a terminal of 60 columns and 12 lines. Of `steps` each is something to wait for, and the key that
/// is pressed then.
fn on_a_terminal(n: &Node, before: &str, steps: &[(&str, &str)]) -> Option<String> {
    let line = format!(
        "stty cols 60 rows 12; {before} {} top --interval 100ms --sort name",
        env!("CARGO_BIN_EXE_weir")
    );
    let child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("WEIR_DATA_DIR", &n.dir)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIPPED: it needs `script`, which is not here");
        return None;
    };
    let (mut input, mut output) =
        (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let (mut all, mut from) = (Vec::new(), 0);
    let mut read = |all: &mut Vec<u8>| {
        let mut some = [0; 4096];
        let n = output.read(&mut some).expect("read");
        all.extend_from_slice(&some[..n]);
        n > 0
    };
    for (sign, key) in steps {
        while !String::from_utf8_lossy(&all[from..]).contains(sign) {
            assert!(read(&mut all), "no {sign}: {:?}", String::from_utf8_lossy(&all));
        }
        from = all.len();
        input.write_all(key.as_bytes()).expect("written");
    }
    while read(&mut all) {}
    assert!(child.wait().expect("its end").success());
    Some(String::from_utf8_lossy(&all).into_owned())
}

/// What is to be seen of a picture.
fn seen(picture: &str) -> Vec<String> {
    let mut text = picture.replace("\x1b[K", "").replace("\x1b[0m", "");
    for style in ["1", "31", "33"] {
        text = text.replace(&format!("\x1b[{style}m"), "");
    }
    text.split("\r\n").map(str::to_owned).collect()
}

#[test]
fn on_a_terminal_it_fits_and_listens_to_keys() {
    let n = node();
    let Some(out) =
        on_a_terminal(&n, "", &[("\x1b[1mVOLUME", "b"), ("POOL OF", "v"), ("VOLUME", "q")])
    else {
        return;
    };
    assert!(out.contains("\x1b[?1049h") && out.trim_end().ends_with("\x1b[?1049l"), "{out:?}");
    let pictures: Vec<&str> = out.split("\x1b[H").skip(1).collect();
    assert!(pictures.len() >= 3, "{out:?}");
    for p in &pictures {
        let p = p.split("\x1b[?").next().unwrap_or(p);
        let lines = seen(p);
        assert_eq!(lines.len(), 12, "{lines:?}");
        assert!(lines.iter().all(|l| l.chars().count() <= 60), "{lines:?}");
    }
    assert!(pictures[0].contains("\x1b[1mVOLUME"), "{:?}", pictures[0]);
    let bare = on_a_terminal(&n, "NO_COLOR=1", &[("VOLUME", "q")]).expect("as before");
    assert!(!bare.contains("\x1b[1m") && bare.contains("VOLUME"), "{bare:?}");
}
