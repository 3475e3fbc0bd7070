use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("weir-keys-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    fn put(&self, name: &str, bytes: &[u8], mode: u32) -> KeySource {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        KeySource::File(path.display().to_string())
    }

    /// A program that does this.
    fn program(&self, name: &str, script: &str) -> KeySource {
        let KeySource::File(path) =
            self.put(name, format!("#!/bin/sh\n{script}\n").as_bytes(), 0o700)
        else {
            unreachable!("a file")
        };
        KeySource::Command(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

const VOLUME: Naa = Naa(6 << 124 | 5);

fn with(key: &KeySource, sealed: Option<SealedKey>) -> Encryption {
    Encryption { cipher: crate::model::Cipher::default(), key: key.clone(), sealed }
}

/// A ring that runs these sources' commands.
fn allowing(all: &[&KeySource]) -> KeyRing {
    let line = |s: &&KeySource| s.to_string().trim_start_matches("command:").to_string();
    KeyRing::allowing(all.iter().map(line).collect())
}

async fn refusal(source: &KeySource) -> Error {
    allowing(&[source]).seal(VOLUME, &with(source, None)).await.expect_err("refused")
}

#[tokio::test]
async fn a_key_file_is_made_and_used() {
    let dir = Dir::new("made");
    let path = dir.0.join("v.key");
    new_key_file(&path).expect("made");
    let text = std::fs::read_to_string(&path).expect("there");
    assert_eq!((text.len(), text.ends_with('\n')), (65, true));
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(new_key_file(&path).expect_err("twice").code, Code::IoError);
    let ring = KeyRing::default();
    let source = KeySource::File(path.display().to_string());
    let sealed = ring.seal(VOLUME, &with(&source, None)).await.expect("sealed");
    let master = ring.master(&with(&source, Some(sealed.clone()))).await.expect("open");
    // A clone gets the same, wrapped for itself.
    let clone = Naa(VOLUME.0 + 1);
    let other = ring.seal(clone, &with(&source, Some(sealed.clone()))).await.expect("sealed");
    assert_ne!(other, sealed);
    assert_eq!(ring.master(&with(&source, Some(other))).await.expect("open"), master);
    // Whatever is made twice is different.
    let again = ring.seal(VOLUME, &with(&source, None)).await.expect("sealed");
    assert_ne!(ring.master(&with(&source, Some(again))).await.expect("open"), master);
}

#[tokio::test]
async fn another_key_opens_after_a_rekey_and_the_old_one_does_not() {
    let dir = Dir::new("rekey");
    let old = dir.put("old", b"correct horse battery", 0o600);
    let new = dir.put("new", "0f".repeat(32).as_bytes(), 0o400);
    let ring = KeyRing::default();
    let sealed = ring.seal(VOLUME, &with(&old, None)).await.expect("sealed");
    let master = ring.master(&with(&old, Some(sealed.clone()))).await.expect("open");
    let again =
        ring.reseal(VOLUME, &with(&old, Some(sealed.clone())), &old, &new).await.expect("resealed");
    assert_eq!(ring.master(&with(&new, Some(again.clone()))).await.expect("open"), master);
    let e = ring.master(&with(&old, Some(again))).await.expect_err("old");
    assert_eq!(e.code, Code::WrongKey);
    // The old key is somewhere else by now.
    let moved = dir.put("moved", b"correct horse battery\n", 0o600);
    drop(std::fs::remove_file(dir.0.join("old")));
    let lost = ring.reseal(VOLUME, &with(&old, Some(sealed.clone())), &old, &new).await;
    assert_eq!(lost.expect_err("gone").code, Code::KeyUnavailable);
    ring.reseal(VOLUME, &with(&old, Some(sealed)), &moved, &new).await.expect("resealed");
}

#[tokio::test]
async fn files_that_others_read_and_that_are_no_keys_are_refused() {
    let dir = Dir::new("refused");
    for mode in [0o644, 0o640, 0o604, 0o660] {
        let e = refusal(&dir.put("open", b"a secret that others read", mode)).await;
        assert_eq!(e.code, Code::KeyUnavailable);
        assert!(e.to_string().contains("others than its owner"), "{e}");
        assert!(!format!("{e:?}").contains("secret"), "{e:?}");
    }
    for bad in [&b"short"[..], b"", &[0; 16], &[b'x'; 5000]] {
        assert_eq!(refusal(&dir.put("bad", bad, 0o600)).await.code, Code::KeyUnavailable);
    }
    let e = refusal(&KeySource::File(dir.0.display().to_string())).await;
    assert!(e.to_string().contains("not a file"), "{e}");
    assert!(
        refusal(&KeySource::File("/nowhere/at/all".into())).await.to_string().contains("/nowhere")
    );
}

#[tokio::test]
async fn a_command_gives_a_key_or_says_why_not() {
    let dir = Dir::new("command");
    let count = dir.0.join("count");
    let good =
        dir.program("good", &format!("echo x >> {}\necho {}", count.display(), "0f".repeat(32)));
    let ring = allowing(&[&good]);
    let sealed = ring.seal(VOLUME, &with(&good, None)).await.expect("sealed");
    ring.master(&with(&good, Some(sealed.clone()))).await.expect("open");
    assert_eq!(
        std::fs::read_to_string(&count).expect("ran"),
        "x\n",
        "one answer serves for a while"
    );
    ring.warm(&good).await.expect("asked anew");
    assert_eq!(std::fs::read_to_string(&count).expect("ran"), "x\nx\n");
    // The same key from a file.
    let file = dir.put("file", "0f".repeat(32).as_bytes(), 0o600);
    ring.master(&with(&file, Some(sealed))).await.expect("open");

    let e = refusal(&dir.program("bad", "echo no such key >&2; exit 3")).await;
    assert!(e.to_string().contains("no such key") && e.to_string().contains('3'), "{e}");
    assert_eq!(refusal(&dir.program("silent", "exit 0")).await.code, Code::KeyUnavailable);
    let e = refusal(&dir.program("much", "yes secret")).await;
    assert!(!format!("{e:?}").contains("secret"), "{e:?}");
    assert_eq!(
        refusal(&KeySource::Command("/nowhere/at/all".into())).await.code,
        Code::KeyUnavailable
    );
    // Arguments are words; there is no shell and no environment.
    let args = dir.program("args", "test \"$#\" = 2 && test -z \"$HOME\" && echo \"$1 $2\"");
    let KeySource::Command(line) = &args else { unreachable!("a command") };
    let ring = allowing(&[&args]);
    let args = KeySource::Command(format!("{line} $(id) correct-horse-battery"));
    let sealed = ring.seal(VOLUME, &with(&args, None)).await.expect("sealed");
    let file = dir.put("file", b"$(id) correct-horse-battery", 0o600);
    ring.master(&with(&file, Some(sealed))).await.expect("open");
}

/// What takes long holds nobody up, and its answer serves the next one who asks.
#[tokio::test]
async fn a_slow_command_is_waited_for_beside_everything_else() {
    let dir = Dir::new("slow");
    let slow = dir.program("slow", &format!("sleep 6; echo {}", "0f".repeat(32)));
    let ring = allowing(&[&slow]);
    let began = Instant::now();
    let e = ring.seal(VOLUME, &with(&slow, None)).await.expect_err("not yet");
    assert_eq!(e.code, Code::KeyUnavailable);
    assert!(began.elapsed() < Duration::from_millis(5500), "{:?}", began.elapsed());
    ring.warm(&slow).await.expect("in the end");
    ring.seal(VOLUME, &with(&slow, None)).await.expect("at once");
    assert!(began.elapsed() < Duration::from_millis(11_500), "it ran once: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_command_that_is_not_listed_is_not_run() {
    let dir = Dir::new("listed");
    let ran = dir.0.join("ran");
    let script = format!("echo $* >> {}; echo {}", ran.display(), "0f".repeat(32));
    let KeySource::Command(path) = dir.program("get", &script) else { unreachable!("a command") };
    let ring = KeyRing::allowing(vec![format!("{path} --node a"), String::new()]);
    for bad in ["", " --node", " --node b", " --node ab", "2 --node a", " x --node a"] {
        let source = KeySource::Command(format!("{path}{bad}"));
        ring.start(&source);
        for e in [
            ring.warm(&source).await.expect_err(bad),
            ring.seal(VOLUME, &with(&source, None)).await.expect_err(bad),
        ] {
            assert_eq!(e.code, Code::KeyUnavailable);
            assert!(e.hint.contains("key_commands"), "{e:?}");
        }
    }
    assert!(!ran.exists());
    let good = KeySource::Command(format!("{path}  --node a --id 7"));
    ring.seal(VOLUME, &with(&good, None)).await.expect("listed");
    assert_eq!(std::fs::read_to_string(&ran).expect("ran"), "--node a --id 7\n");
}
