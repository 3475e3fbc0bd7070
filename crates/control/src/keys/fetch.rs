//! Asking a source for its key.

use super::material::{MAX, Material};
use super::unavailable;
use crate::error::Result;
use crate::model::KeySource;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroizing;

/// How long a command may take.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// How much of what a command says on standard error is told.
const TOLD: usize = 500;
/// What is to be done about the key of a volume that is not there any more.
pub(super) const AWAY: &str = "put the key back where it was, or name where it is now with `weir volume rekey VOLUME --old-key SOURCE --key SOURCE`";
/// `O_NONBLOCK`: opening a pipe does not wait for a writer.
const NONBLOCK: i32 = 0o4000;

/// The key of a file.
pub(super) fn file(source: &KeySource, path: &str) -> Result<Material> {
    let no = |why: String, hint: &str| Err(unavailable(source, why).hint(hint));
    let opened = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path);
    let file = match opened {
        Ok(f) => f,
        Err(e) => {
            return no(e.to_string(), AWAY);
        }
    };
    let meta = match file.metadata() {
        Ok(m) if m.is_file() => m,
        Ok(_) => return no("it is not a file".into(), "name a file"),
        Err(e) => return no(e.to_string(), "see to the file system"),
    };
    if meta.mode() & 0o077 != 0 {
        return no(
            format!("others than its owner may use it (mode {:03o})", meta.mode() & 0o777),
            "take that away (chmod 600), and think about who has read it; `weir volume rekey` changes to another key",
        );
    }
    let own = std::fs::metadata("/proc/self").map_or(0, |m| m.uid());
    if meta.uid() != 0 && meta.uid() != own {
        return no(
            format!("it belongs to user {}", meta.uid()),
            "give it to root, or to the user that the daemon runs as",
        );
    }
    // More than is ever read, so that nothing of it stays behind in memory that was too small.
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * MAX));
    if let Err(e) = file.take(MAX as u64 + 1).read_to_end(&mut bytes) {
        return no(e.to_string(), "see to the file system");
    }
    parse(source, &bytes)
}

fn parse(source: &KeySource, bytes: &Zeroizing<Vec<u8>>) -> Result<Material> {
    Material::parse(bytes).map_err(|why| {
        unavailable(source, why).hint("`weir key new PATH` shows what a key looks like in a file")
    })
}

async fn all(from: Option<impl AsyncRead + Unpin>, most: usize) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * most));
    if let Some(f) = from {
        // What could be read counts.
        let _ = f.take(most as u64 + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The key that a command prints.
pub(super) async fn command(source: &KeySource, line: &str) -> Result<Material> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let no = |why: String| {
        Err(unavailable(source, why)
            .hint("run it by hand, as the daemon's user, to see what is wrong"))
    };
    let started = tokio::process::Command::new(program)
        .args(words)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match started {
        Ok(c) => c,
        Err(e) => return no(e.to_string()),
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let done = async { tokio::join!(all(out, MAX), all(err, MAX), child.wait()) };
    let Ok((key, said, status)) = tokio::time::timeout(LIMIT, done).await else {
        return no(format!("it did not end within {} s", LIMIT.as_secs()));
    };
    match status {
        Ok(s) if s.success() => parse(source, &key),
        Ok(s) => {
            let said: String = String::from_utf8_lossy(&said)
                .trim()
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(TOLD)
                .collect();
            no(format!(
                "it ended with {s}: {}",
                if said.is_empty() { "it said nothing" } else { &said }
            ))
        }
        Err(e) => no(e.to_string()),
    }
}
