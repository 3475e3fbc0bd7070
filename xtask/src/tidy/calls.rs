//! Calls that only some crates may make, and words that nobody may write.

use super::Finding;
use super::floors::floor_of_folder;
use super::rust::{Source, has_word};

/// Something that is banned outside a few crates.
struct Ban {
    /// Whole words; one is enough.
    words: &'static [&'static str],
    /// Modules that the words are names of, as others may have the same names; empty: words anywhere.
    of: &'static [&'static str],
    /// Folder names of the crates that may.
    allowed: &'static [&'static str],
    /// Tests may do it everywhere.
    tests_may: bool,
    why: &'static str,
}

/// Programs and tools, which talk to people and to the machine as a whole, may do more.
const BANS: &[Ban] = &[
    Ban {
        words: &["Instant::now", "SystemTime::now"],
        of: &[],
        // The registers' engine has tokio's clock. Simulations run the worst register instead.
        allowed: &["reactor", "uring", "cluster", "control", "weir", "sim-suites", "xtask", "fuzz"],
        tests_may: true,
        why: "time comes from the reactor's clock, which is virtual under simulation",
    },
    Ban {
        words: &[
            "TcpStream",
            "TcpListener",
            "UdpSocket",
            "ToSocketAddrs",
            "UnixStream",
            "UnixListener",
        ],
        of: &["std::net", "std::os::unix::net"],
        // The providers are the real network; the simulator stands in for them. The kernel's nbd driver wants a pair of
        // sockets for a device.
        allowed: &["uring", "fabric-verbs", "attach", "control", "weir", "xtask"],
        tests_may: true,
        why: "sockets come from the reactor, which are simulated ones under simulation",
    },
    Ban {
        words: &["thread::spawn", "thread::Builder", "thread::scope", "thread::sleep"],
        of: &[],
        allowed: &["reactor", "uring", "control", "attach", "bench", "weir", "sim-suites", "xtask"],
        tests_may: true,
        why: "one reactor per core; work is a task on it, waiting is its timer",
    },
    Ban {
        words: &["std::fs", "std::process"],
        of: &[],
        // Attaching is about the kernel's files and devices.
        allowed: &[
            "uring",
            "fabric-verbs",
            "attach",
            "bench",
            // The files of the registers' engine, which is not simulated.
            "cluster",
            "control",
            "weir",
            "sim-suites",
            "xtask",
        ],
        tests_may: true,
        why: "disks are reached through the reactor, where they are simulated under simulation",
    },
    Ban {
        words: &["thread_rng", "RandomState", "getrandom", "rand::random"],
        of: &[],
        // Providers' keys must be hard to guess; the simulator's need not.
        allowed: &["reactor", "uring", "fabric-verbs"],
        tests_may: false,
        why: "chance comes from the reactor's seed: one seed, one trace",
    },
    Ban {
        words: &["tokio", "axum"],
        of: &[],
        // The registers' engine runs on control-plane threads.
        allowed: &["cluster", "control", "weir", "xtask"],
        tests_may: false,
        why: "the data path runs on the reactor",
    },
    Ban {
        words: &["unsafe"],
        of: &[],
        allowed: &[
            "mem",
            "reactor",
            "uring",
            "stream",
            "fabric",
            "fabric-iwarp",
            "fabric-verbs",
            "block",
            "layers",
            "store",
            "target-core",
            "target-srp",
            "target-brp",
            "target-iscsi",
            "target-nvmf",
            "target-nbd",
            "initiator-srp",
            "initiator-brp",
            "initiator-iscsi",
            "initiator-nvmf",
            "attach",
            "sim",
        ],
        tests_may: false,
        why: "this crate does without unsafe code",
    },
    Ban {
        words: &["todo!", "unimplemented!", "dbg!"],
        of: &[],
        allowed: &[],
        tests_may: false,
        why: "finish it, or return an error that says what is missing",
    },
];

/// Floors whose order of work must not depend on chance.
const SEEDED_FLOORS: std::ops::RangeInclusive<u8> = 0..=5;

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in BANS {
        if ban.allowed.contains(&source.crate_name.as_str()) {
            continue;
        }
        for (line, word) in uses(ban, source) {
            if ban.tests_may && source.test[line] {
                continue;
            }
            findings.push(Finding::new(
                &source.path,
                line + 1,
                format!("`{word}` in {}: {}", source.crate_name, ban.why),
            ));
        }
    }
    findings.extend(hash_maps(source));
    findings.extend(ignored_tests(source));
    findings
}

/// Lines, from 0, and words.
fn uses(ban: &Ban, source: &Source) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    if ban.of.is_empty() {
        for (line, code) in source.code.iter().enumerate() {
            found.extend(ban.words.iter().filter(|w| has_word(code, w)).map(|word| (line, *word)));
        }
    } else {
        let code = source.code.join("\n");
        for module in ban.of {
            for (line, names) in names_of(&code, module) {
                found.extend(ban.words.iter().filter(|w| has_word(names, w)).map(|w| (line, *w)));
            }
        }
    }
    found
}

/// What is named of a module: `std::net::X` gives `X`, `use std::net::{X, Y}` gives all between the
/// braces, `use std::net as n;` and `use std::net::*` give the rest of the file, as anything may follow.
fn names_of<'a>(code: &'a str, module: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(module) {
        let line = code[..at].matches('\n').count();
        let in_name = |c: char| c.is_alphanumeric() || c == '_';
        if code[..at].ends_with(in_name) {
            continue;
        }
        let rest = code[at + module.len()..].trim_start();
        let names = match rest.strip_prefix("::").map(str::trim_start) {
            Some(list) if list.starts_with('{') => {
                &list[..list.find(';').or(list.find('}')).unwrap_or(list.len())]
            }
            Some(name) if name.starts_with(in_name) => {
                &name[..name.find(|c| !in_name(c)).unwrap_or(name.len())]
            }
            _ if rest.starts_with(in_name) && !rest.starts_with("as ") => continue,
            _ => rest,
        };
        found.push((line, names));
    }
    found
}

/// The standard hash tables order their keys by chance, unless given a hasher.
fn hash_maps(source: &Source) -> Vec<Finding> {
    let floor = floor_of_folder(&source.crate_name);
    let own_hasher = |code: &String| {
        ["with_hasher", "BuildHasher", "BuildHasherDefault"].iter().any(|word| has_word(code, word))
    };
    if !floor.is_some_and(|floor| SEEDED_FLOORS.contains(&floor))
        || source.code.iter().any(own_hasher)
    {
        return Vec::new();
    }
    let lines = source.code.iter().enumerate().filter(|(line, _)| !source.test[*line]);
    lines
        .filter_map(|(line, code)| {
            let word = ["HashMap", "HashSet"].into_iter().find(|word| has_word(code, word))?;
            Some(Finding::new(
                &source.path,
                line + 1,
                format!(
                    "`{word}` iterates in an order of chance: use a BTree one, or a fixed hasher"
                ),
            ))
        })
        .collect()
}

/// Tests that do not run are no tests.
fn ignored_tests(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, code) in source.code.iter().enumerate() {
        let compact: String = code.split_whitespace().collect();
        let attribute = ["#[ignore]", "#[ignore="].iter().any(|mark| compact.contains(mark))
            || (compact.contains("cfg_attr(") && has_word(&compact, "ignore"));
        if attribute {
            let text = "`#[ignore]`: a test that does not run is no test";
            findings.push(Finding::new(&source.path, line + 1, text));
        }
    }
    for (line, comment) in source.comments.iter().enumerate() {
        let comment = comment.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
        if let Some(info) = comment.strip_prefix("```")
            && info.split(',').any(|word| word.trim() == "ignore")
        {
            let text = "an ignored example: make it `no_run`, `text`, or let it run";
            findings.push(Finding::new(&source.path, line + 1, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::rust::read;
    use super::super::testing::text;
    use super::*;

    fn found(path: &str, content: &str) -> String {
        text(&check(&read(path, content)))
    }

    const LAYER: &str = "crates/layers/src/qos.rs";
    const PROTO: &str = "crates/proto-srp/src/lib.rs";

    #[test]
    fn each_ban_finds_its_sample() {
        let cases = [
            (LAYER, "let t = std::time::Instant::now();", "Instant::now"),
            (LAYER, "let t = SystemTime::now();", "SystemTime::now"),
            (LAYER, "use std::net::{SocketAddr, TcpStream};", "TcpStream"),
            (LAYER, "use std::os::unix::net::UnixStream;", "UnixStream"),
            (LAYER, "use std::net::{\n    IpAddr,\n    TcpListener,\n};", "TcpListener"),
            (LAYER, "let s = std::net::UdpSocket::bind(a);", "UdpSocket"),
            (LAYER, "use std::net;\nfn f(s: net::TcpStream) {}", "TcpStream"),
            (LAYER, "use std::net as n;\nfn f(s: n::TcpStream) {}", "TcpStream"),
            (LAYER, "use std::net::*;\nfn f(s: TcpStream) {}", "TcpStream"),
            (LAYER, "thread::spawn(f);", "thread::spawn"),
            (LAYER, "std::thread::sleep(d);", "thread::sleep"),
            (LAYER, "let f = std::fs::read(p);", "std::fs"),
            (LAYER, "let x = rand::thread_rng();", "thread_rng"),
            (LAYER, "let s = RandomState::new();", "RandomState"),
            (LAYER, "tokio::spawn(f);", "tokio"),
            (LAYER, "use std::collections::HashMap;", "HashMap"),
            (LAYER, "use std::collections::{BTreeMap, HashSet};", "HashSet"),
            (PROTO, "let x = unsafe { y() };", "unsafe"),
            ("crates/base/src/lib.rs", "unsafe impl Send for X {}", "unsafe"),
            ("xtask/src/main.rs", "unsafe { x() }", "unsafe"),
            ("xtask/src/main.rs", "todo!()", "todo!"),
            (LAYER, "    unimplemented!(\"x\")", "unimplemented!"),
            (LAYER, "let x = dbg!(y);", "dbg!"),
            (LAYER, "#[ignore]", "ignore"),
            (LAYER, "#[ignore = \"slow\"]", "ignore"),
            (LAYER, "#[cfg_attr(miri, ignore)]", "ignore"),
            (LAYER, "/// ```ignore", "ignored example"),
            (LAYER, "//! ```rust,ignore", "ignored example"),
        ];
        for (path, content, want) in cases {
            let text = found(path, content);
            assert!(text.contains(want), "{content}: {text}");
            assert_eq!(text.lines().count(), 1, "{content}: {text}");
        }
    }

    #[test]
    fn what_looks_alike_passes() {
        let cases = [
            (LAYER, "/// Unlike Instant::now, tokio and unsafe code."),
            (LAYER, "let s = \"Instant::now() todo! std::fs\";"),
            (LAYER, "let now = reactor.now();"),
            (LAYER, "use std::net::SocketAddr;"),
            (LAYER, "use crate::sim::TcpStream;"),
            (
                LAYER,
                "use std::net::{IpAddr, SocketAddr};\nuse weir_uring::{TcpListener, TcpStream};",
            ),
            (LAYER, "let a = std::net::Ipv4Addr::LOCALHOST;\nTcpStream::connect(a);"),
            (LAYER, "let x = unsafe { y() };"),
            (PROTO, "#![forbid(unsafe_code)]"),
            ("crates/reactor/src/clock.rs", "Instant::now()"),
            ("crates/control/src/api.rs", "tokio::spawn(f); let m = HashMap::new();"),
            (LAYER, "let m: HashMap<u8, u8, X> = HashMap::with_hasher(X);"),
            (LAYER, "/// ```no_run"),
            (LAYER, "fn ignore(x: u8) {}"),
            ("xtask/src/main.rs", "use std::fs; let m = HashMap::new();"),
        ];
        for (path, content) in cases {
            assert_eq!(found(path, content), "", "{content}");
        }
    }

    #[test]
    fn tests_may_do_some_things() {
        let module = |line: &str| format!("#[cfg(test)]\nmod tests {{\n    {line}\n}}\n");
        for line in ["Instant::now();", "thread::spawn(f);", "std::fs::read(p);", "HashMap::new();"]
        {
            assert_eq!(found(LAYER, &module(line)), "", "{line}");
            assert_eq!(found("crates/layers/tests/it.rs", line), "", "{line}");
        }
        for line in ["tokio::spawn(f);", "todo!();", "#[ignore]", "thread_rng();"] {
            assert_ne!(found(LAYER, &module(line)), "", "{line}");
        }
        assert_ne!(found(PROTO, &module("unsafe { x() }")), "");
    }
}
