//! Keys of encrypted volumes.
//!
//! As with LUKS there are two: each place of a volume has a random key of its own, which encrypts its data and never
//! changes; it is kept in the configuration, wrapped with a key that a source gives (a file, or a command that asks a
//! key manager). Another source takes another wrapping, and no data is touched. Keys are wiped from memory when they are
//! no longer needed; the volume's own key is needed as long as it is open.

mod fetch;
mod material;
mod seal;

pub use seal::{MASTER, Master};

use crate::error::{Code, Error, Result};
use crate::model::{Encryption, KeySource, Naa, SealedKey};
use crate::platform::{Instant, entropy, sleep, spawn, spawn_blocking, timeout_at, watch};
use material::Material;
use seal::Unsealed;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long a key that a command gave is good for others who want it.
const FRESH: Duration = Duration::from_secs(10);
/// The same for what it said instead of giving one.
const FRESH_REFUSAL: Duration = Duration::from_secs(1);
/// How long a command is waited for while changes wait: it goes on, and its answer serves the next try.
const PATIENCE: Duration = Duration::from_secs(2);

type Answer = Option<Result<Arc<Material>>>;

/// A command that was started.
struct Asked {
    began: Instant,
    answer: watch::Receiver<Answer>,
}

/// Gets keys from their sources. Commands run beside everything else, each once at a time.
#[derive(Default)]
pub struct KeyRing {
    asked: Arc<Mutex<BTreeMap<KeySource, Asked>>>,
    /// Programs with their first arguments.
    allowed: Vec<String>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyRing(..)")
    }
}

fn unavailable(source: &KeySource, why: impl std::fmt::Display) -> Error {
    Error::new(Code::KeyUnavailable, format!("no key from {source}")).because(why)
}

fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    entropy(&mut *bytes)
        .map_err(|e| Error::new(Code::IoError, "no random bits for a new key").because(e))?;
    Ok(bytes)
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match spawn_blocking(f).await {
        Ok(r) => r,
        Err(e) => Err(Error::new(Code::Internal, "work on a key broke off").because(e)),
    }
}

fn lock(all: &Mutex<BTreeMap<KeySource, Asked>>) -> MutexGuard<'_, BTreeMap<KeySource, Asked>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the answer of a command until then.
async fn answer(
    source: &KeySource,
    asked: (Instant, watch::Receiver<Answer>),
    patience: Duration,
) -> Result<Arc<Material>> {
    let (began, answer) = asked;
    let known = async { answer.wait_for(Option::is_some).await.ok().flatten() };
    match timeout_at(began + patience, known).await {
        Ok(Some(a)) => a,
        Ok(None) => Err(unavailable(source, "the command broke off").hint("try again")),
        Err(_) => {
            let text = format!("it has not answered for {} s", began.elapsed().as_secs());
            Err(unavailable(source, text)
                .hint("see to the key manager; it is waited for, and asked again"))
        }
    }
}

impl KeyRing {
    /// A ring that runs these commands: a program and its first arguments each. The default runs none.
    pub fn allowing(allowed: Vec<String>) -> KeyRing {
        KeyRing { allowed, ..KeyRing::default() }
    }

    /// Whether a command may be run: whoever may change the configuration must not run programs by that.
    fn permits(&self, source: &KeySource, line: &str) -> Result<()> {
        let begins = |with: &String| {
            let mut words = line.split_whitespace();
            let mut with = with.split_whitespace().peekable();
            with.peek().is_some() && with.all(|w| words.next() == Some(w))
        };
        match self.allowed.iter().any(begins) {
            true => Ok(()),
            false => Err(unavailable(source, "the daemon may not run this command").hint(
                "list it under `key_commands` in the daemon's configuration file (`weir serve --config`)",
            )),
        }
    }

    /// The command of a source, which is started if it does not run and has not just answered; `anew`: also if it has.
    fn ask(
        &self,
        source: &KeySource,
        line: &str,
        anew: bool,
    ) -> (Instant, watch::Receiver<Answer>) {
        let mut all = lock(&self.asked);
        if let Some(a) = all.get(source) {
            let runs = a.answer.look(Option::is_none);
            if runs || !anew {
                return (a.began, a.answer.clone());
            }
        }
        let (tell, heard) = watch::channel(None);
        let began = Instant::now();
        let asked = Asked { began, answer: heard.clone() };
        all.insert(source.clone(), asked);
        let (ring, source, line) = (self.asked.clone(), source.clone(), line.to_string());
        spawn(async move {
            let found = fetch::command(&source, &line).await.map(Arc::new);
            let fresh = if found.is_ok() { FRESH } else { FRESH_REFUSAL };
            // Nobody may be waiting any more.
            tell.send(Some(found));
            sleep(fresh).await;
            let mut all = lock(&ring);
            if all.get(&source).is_some_and(|a| a.began == began) {
                all.remove(&source);
            }
        });
        (began, heard)
    }

    /// Starts the command of a source, if it is one, to be waited for together with others.
    pub(crate) fn start(&self, source: &KeySource) {
        if let KeySource::Command(line) = source
            && self.permits(source, line).is_ok()
        {
            let _ = self.ask(source, line, false);
        }
    }

    /// Waits for the command of a source, if it is one, as long as it may take; what it gives is then at hand for a while.
    /// To be called where nobody else has to wait.
    pub(crate) async fn warm(&self, source: &KeySource) -> Result<()> {
        let KeySource::Command(line) = source else { return Ok(()) };
        self.permits(source, line)?;
        let asked = self.ask(source, line, true);
        answer(source, asked, 2 * fetch::LIMIT).await.map(drop)
    }

    async fn material(&self, source: &KeySource) -> Result<Arc<Material>> {
        match source {
            KeySource::File(path) => {
                let (source, path) = (source.clone(), path.clone());
                blocking(move || fetch::file(&source, &path).map(Arc::new)).await
            }
            KeySource::Command(line) => {
                self.permits(source, line)?;
                let asked = self.ask(source, line, false);
                answer(source, asked, PATIENCE).await
            }
        }
    }

    /// The own key of a volume, as it is encrypted in one of its places.
    pub async fn master(&self, encryption: &Encryption) -> Result<Master> {
        self.unwrap(encryption, &encryption.key).await
    }

    async fn unwrap(&self, encryption: &Encryption, from: &KeySource) -> Result<Master> {
        let Some(sealed) = encryption.sealed.clone() else {
            return Err(Error::new(Code::Internal, "an encrypted volume has no key")
                .hint("it was not made to its end; delete it"));
        };
        let material = self.material(from).await?;
        let opened = blocking(move || Ok(seal::open(&material, sealed.of, &sealed.text))).await?;
        opened.map_err(|e| match e {
            Unsealed::WrongKey => Error::new(Code::WrongKey, format!("{from} gives another key"))
                .because("it is not the one that the volume's own key was wrapped with")
                .hint("put the right key there, or name where it is with `weir volume rekey VOLUME --old-key SOURCE --key SOURCE`"),
            Unsealed::Damaged(why) => {
                Error::new(Code::KeyDamaged, "the volume's own key, which is wrapped in the configuration, is damaged")
                    .because(why)
                    .hint("restore the configuration store from a backup; without that key the data is lost")
            }
        })
    }

    async fn wrap(&self, with: &KeySource, volume: Naa, master: Master) -> Result<SealedKey> {
        // Nothing was wrapped with it yet.
        let material = self.material(with).await.map_err(|e| match e.hint == fetch::AWAY {
            true => e.hint("`weir key new PATH` makes a new key there; or name where there is one"),
            false => e,
        })?;
        let salt = random::<28>()?;
        let text = blocking(move || Ok(seal::seal(&material, volume, &master, &salt))).await?;
        let text = text.ok_or_else(|| Error::new(Code::Internal, "a key could not be wrapped"))?;
        Ok(SealedKey { of: volume, text })
    }

    /// Gives what is encrypted and has no key of its own a random one; what has one that is wrapped for another volume
    /// (it was made of its snapshot) gets it wrapped for this one.
    pub(crate) async fn seal(&self, volume: Naa, encryption: &Encryption) -> Result<SealedKey> {
        let master = match &encryption.sealed {
            Some(_) => self.master(encryption).await?,
            None => random::<MASTER>()?,
        };
        self.wrap(&encryption.key, volume, master).await
    }

    /// The own key of a volume, wrapped with another key. `old`: where the present one is now.
    pub(crate) async fn reseal(
        &self,
        volume: Naa,
        encryption: &Encryption,
        old: &KeySource,
        new: &KeySource,
    ) -> Result<SealedKey> {
        let master = self.unwrap(encryption, old).await?;
        self.wrap(new, volume, master).await
    }
}

/// Makes a file with a new random key, for its owner only. It must not be there yet.
pub fn new_key_file(path: &Path) -> Result<()> {
    let key = random::<{ material::KEY }>()?;
    let mut text = Zeroizing::new(String::with_capacity(4 * material::KEY));
    for byte in key.iter() {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text.push('\n');
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(|e| {
        Error::new(Code::IoError, format!("no key was written to {}", path.display()))
            .because(e)
            .hint("name a path in a directory that is there, under which there is nothing yet")
    })
}

#[cfg(test)]
mod tests;
