//! The form of stored data: what a volume of a protected pool is turned into before it is kept.
//!
//! A form is chosen when a place for the volume is made, and kept with that place: what is there can be read in that
//! form only. A clone has the form of what it was made of. A volume that moves gets a new place, which may have another.

use super::deduplication::agree;
use super::{
    Action, Change, Compression, CompressionSpec, Deduplication, DeduplicationSpec, KeySource,
    Layout, MigrationSpec, Model, Naa, ObjectKind, Pool, Volume,
};
use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What data goes through on its way to a protected pool, and back again. By default nothing: it is kept as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Form {
    /// How it is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// How it is deduplicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deduplication: Option<Deduplication>,
    /// How it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

/// How data is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
pub enum Cipher {
    /// XTS-AES with two keys of 256 bits (IEEE 1619), in sectors of 512 bytes.
    #[default]
    #[serde(rename = "aes-256-xts")]
    Aes256Xts,
}

impl Cipher {
    /// The word that JSON uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Cipher::Aes256Xts => "aes-256-xts",
        }
    }
}

/// How a volume is encrypted in a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Encryption {
    /// How.
    pub cipher: Cipher,
    /// Where the key comes from that the volume's own key is wrapped with.
    #[schema(value_type = String)]
    pub key: KeySource,
    /// The volume's own key, wrapped. Never told to anybody: left out of every answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub sealed: Option<SealedKey>,
}

impl Encryption {
    /// With a key that is yet to be made.
    fn new(key: KeySource) -> Encryption {
        Encryption { cipher: Cipher::default(), key, sealed: None }
    }
}

/// A volume's own key, wrapped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedKey {
    /// The volume that it was wrapped for.
    pub of: Naa,
    /// Hexadecimal digits.
    pub text: String,
}

impl std::fmt::Debug for SealedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedKey(of {})", self.of)
    }
}

/// The form that a volume is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FormSpec {
    /// Compress it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSpec>,
    /// Keep equal data only once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deduplication: Option<DeduplicationSpec>,
    /// Encrypt it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionSpec>,
}

/// The encryption that a volume is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EncryptionSpec {
    /// Where the key comes from: `file:/path`, or `command:/path arguments` for a program that prints it.
    #[schema(value_type = String)]
    pub key: KeySource,
}

/// Another key for an encrypted volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RekeySpec {
    /// Where the new key comes from.
    #[schema(value_type = String)]
    pub key: KeySource,
    /// Where the old key is now; left out: where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub old_key: Option<KeySource>,
}

static PLAIN: Form = Form { compression: None, deduplication: None, encryption: None };

impl FormSpec {
    /// Whether nothing is asked for.
    pub fn is_plain(&self) -> bool {
        *self == FormSpec::default()
    }
}

impl Form {
    /// Whether data is kept as it is.
    pub fn is_plain(&self) -> bool {
        *self == PLAIN
    }

    /// Bytes of address space that the stored volume needs, of a volume in which hosts see `size` bytes.
    pub fn stored_len(&self, size: u64) -> u64 {
        let size = self.deduplication.map_or(size, |d| d.stored_len(size));
        self.compression.map_or(size, |c| c.stored_len(size))
    }

    /// Bytes that hosts see of a stored volume of `stored` bytes; the reverse of [`stored_len`](Form::stored_len).
    pub fn seen_len(&self, stored: u64) -> u64 {
        let stored = self.compression.map_or(stored, |c| c.seen_len(stored));
        self.deduplication.map_or(stored, |d| d.seen_len(stored))
    }

    /// The form of a new place that a volume of this form moves to: the same but for what is asked for, with nothing in
    /// it that belongs to the old place only.
    pub(crate) fn renewed(&self, spec: &FormSpec) -> Result<Form> {
        let asked = spec.compression.map(CompressionSpec::wanted).transpose()?;
        let mut compression = asked.or(self.compression);
        let asked = spec.deduplication.map(DeduplicationSpec::wanted).transpose()?;
        let mut deduplication = asked.or(self.deduplication);
        let chunks =
            (spec.compression.and_then(|c| c.chunk), spec.deduplication.and_then(|d| d.chunk));
        agree(&mut compression, &mut deduplication, chunks)?;
        let key = spec.encryption.as_ref().map(|e| &e.key);
        let old = self.encryption.as_ref().map(|e| &e.key);
        Ok(Form {
            compression,
            deduplication,
            encryption: key.or(old).map(|k| Encryption::new(k.clone())),
        })
    }

    /// The form of the new place of a migration.
    pub(super) fn moved(&self, spec: &MigrationSpec) -> Result<Form> {
        let mut new = self.renewed(&spec.form)?;
        let wrong = |text: &str, hint: &str| {
            Err(Error::new(Code::InvalidRequest, text.to_string()).hint(hint))
        };
        if spec.decrypt && (spec.form.encryption.is_some() || spec.reencrypt) {
            return wrong(
                "it cannot be encrypted and decrypted at once",
                "leave one of the two out",
            );
        }
        if spec.decrypt && self.encryption.is_none() {
            return wrong("it is not encrypted", "leave --decrypt out");
        }
        if spec.reencrypt && new.encryption.is_none() {
            return wrong(
                "it is not encrypted",
                "say --encrypt and --key to have it encrypted in its new place",
            );
        }
        if spec.decrypt {
            new.encryption = None;
        }
        Ok(new)
    }

    /// In words: for people, and for the device graph. Keys are not told, nor where they are.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let d = self.deduplication.map(|d| ("deduplication", d.to_string()));
        let c = self.compression.map(|c| ("compression", c.to_string()));
        let e = self.encryption.as_ref().map(|e| ("encryption", e.cipher.as_str().to_string()));
        d.into_iter().chain(c).chain(e).collect()
    }

    /// What is asked for, in a pool that can give it.
    pub(super) fn wanted(spec: &FormSpec, pool: &Pool, volume: &str) -> Result<Form> {
        if !spec.is_plain() && pool.protection.is_none() {
            return Err(Error::new(
                Code::Unsupported,
                format!("volume `{volume}` cannot be kept in that form"),
            )
            .because(format!("pool `{}` is a plain pool, which keeps data as it is", pool.name))
            .hint("name a pool that was made with --raid"));
        }
        PLAIN.renewed(spec)
    }
}

impl Layout {
    /// The form in which a volume is kept there.
    pub fn form(&self) -> &Form {
        match self {
            Layout::Store { form, .. } => form,
            _ => &PLAIN,
        }
    }

    /// The same place with another form, if it can have one.
    pub(super) fn with_form(mut self, new: Form) -> Layout {
        if let Layout::Store { form, .. } = &mut self {
            *form = new;
        }
        self
    }

    /// The same place under another name than that of `here`, which is in the same pool. World-wide names begin with 6
    /// (SPC-5, NAA IEEE Registered Extended), so one that begins with 7 is nobody's, and of the same length.
    pub(super) fn beside(mut self, here: &Layout) -> Layout {
        if let (Layout::Store { dataset: new, .. }, Layout::Store { dataset: old, .. }) =
            (&mut self, here)
            && new == old
        {
            let first = if old.starts_with('7') { '6' } else { '7' };
            *new = old.chars().skip(1).fold(String::from(first), |mut s, c| {
                s.push(c);
                s
            });
        }
        self
    }
}

impl Volume {
    /// The form in which it is kept where it is.
    pub fn form(&self) -> &Form {
        self.layout.form()
    }

    /// Refuses to move it out of its encryption unless that was said.
    pub(super) fn check_stays_secret(&self, spec: &MigrationSpec, to: &Layout) -> Result<()> {
        if self.form().encryption.is_none() || to.form().encryption.is_some() || spec.decrypt {
            return Ok(());
        }
        Err(Error::new(Code::Unsupported, format!("volume `{}` is encrypted", self.name))
            .because("it would be readable there for whoever has the device")
            .hint("name a protected pool, or repeat it with --decrypt if that is wanted"))
    }

    /// What it is called on the devices of a protected pool.
    pub fn dataset(&self) -> String {
        match &self.layout {
            Layout::Store { dataset, .. } => dataset.clone(),
            _ => self.naa.to_string(),
        }
    }

    /// The volume as it is told to others: without wrapped keys.
    pub fn told_to_others(&self) -> Volume {
        let mut v = self.clone();
        for e in v.encryptions_mut() {
            e.sealed = None;
        }
        v
    }

    /// Its encryption where it is, and in its other place.
    fn encryptions_mut(&mut self) -> impl Iterator<Item = &mut Encryption> {
        let there = self.migration.as_mut().map(|m| &mut m.layout);
        [Some(&mut self.layout), there].into_iter().flatten().filter_map(|l| match l {
            Layout::Store { form, .. } => form.encryption.as_mut(),
            _ => None,
        })
    }
}

impl Model {
    /// Everything that is encrypted and lacks a key that is wrapped for its own volume, to be given one.
    pub(crate) fn unsealed(&mut self) -> impl Iterator<Item = (Naa, &mut Encryption)> {
        self.volumes.values_mut().flat_map(|v| {
            let naa = v.naa;
            let lacks = move |e: &&mut Encryption| e.sealed.as_ref().is_none_or(|s| s.of != naa);
            v.encryptions_mut().filter(lacks).map(move |e| (naa, e))
        })
    }

    /// The encryption of a volume that can be given another key now.
    pub(crate) fn encrypted(&self, name: &str) -> Result<&Encryption> {
        let volume = self.usable(name)?;
        self.check_still(name)?;
        volume.form().encryption.as_ref().ok_or_else(|| {
            Error::new(Code::Unsupported, format!("volume `{name}` is not encrypted"))
                .because("what is encrypted is chosen when a volume is made, or moves")
                .hint(format!(
                    "`weir migrate start {name} --to POOL --encrypt --key SOURCE` moves it to a place where it is"
                ))
        })
    }

    /// Its own key is wrapped anew, with a key from elsewhere.
    pub(super) fn rekey_volume(
        &mut self,
        name: &str,
        key: KeySource,
        sealed: SealedKey,
    ) -> Result<Vec<Change>> {
        self.encrypted(name)?;
        let Some(v) = self.volumes.get_mut(name) else { return Ok(Vec::new()) };
        for e in v.encryptions_mut() {
            e.key = key.clone();
            e.sealed = Some(sealed.clone());
        }
        let text = format!("volume `{name}` has another key, from {key}");
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }
}

#[cfg(test)]
mod tests;
