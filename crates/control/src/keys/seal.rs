//! A volume's own key, wrapped: AES-256-GCM-SIV (RFC 8452) under the key that a source gives, or that Argon2id (RFC 9106)
//! derives from its passphrase. What is sealed is bound to the volume, so that one volume's cannot be put in place of
//! another's.
//!
//! ```text
//! at  bytes
//!  0  1    version, 1
//!  1  1    derivation: 0 none, 1 Argon2id with one lane
//!  2  4    its memory in KiB, little-endian
//!  6  4    its passes, little-endian
//! 10  16   its salt, random also where it is not needed
//! 26  12   nonce, random
//! 38  8    check of the wrapping key: the first bytes of the tag of nothing, with the bytes before as associated data
//! 46  80   the volume's key of 64 bytes, encrypted, and the tag; the bytes before and the volume's world-wide name are
//!          associated data
//! 126 4    CRC32C of the bytes before, little-endian
//! ```

use super::material::Material;
use crate::model::Naa;
use aes_gcm_siv::aead::{Aead, Payload};
use aes_gcm_siv::{Aes256GcmSiv, KeyInit, Nonce};
use argon2::{Algorithm, Argon2, Params, Version};
use weir_codec::crc32c;
use zeroize::Zeroizing;

/// Bytes of a volume's own key.
pub const MASTER: usize = 64;
/// A volume's own key. It is wiped when it goes.
pub type Master = Zeroizing<[u8; MASTER]>;

const VERSION: u8 = 1;
const SALT: std::ops::Range<usize> = 10..26;
const NONCE: std::ops::Range<usize> = 26..38;
const CHECK: std::ops::Range<usize> = 38..46;
const WRAPPED: std::ops::Range<usize> = 46..126;
const LEN: usize = 130;
/// Memory in KiB and passes of new derivations: RFC 9106's second choice, for machines that have other things to do.
const ARGON: (u32, u32) = (64 << 10, 3);
/// The most that is accepted from the configuration.
const ARGON_MOST: (u32, u32) = (1 << 20, 64);
const CHECK_DOMAIN: &[u8] = b"weir key check 1";
const WRAP_DOMAIN: &[u8] = b"weir volume key 1";

/// Why a sealed key was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unsealed {
    /// The source gave another key than the one it was sealed with.
    WrongKey,
    /// It is not as it was made, or is another volume's.
    Damaged(&'static str),
}

fn derive(material: &Material, head: &[u8; LEN]) -> Result<Zeroizing<[u8; 32]>, Unsealed> {
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    match (material, head[1]) {
        (Material::Key(k), 0) => Ok(k.clone()),
        (Material::Passphrase(p), 1) => {
            let (memory, passes) = (number(2), number(6));
            if memory > ARGON_MOST.0 || passes > ARGON_MOST.1 {
                return Err(Unsealed::Damaged(
                    "the derivation of its key is out of all proportion",
                ));
            }
            let wrong = |_| Unsealed::Damaged("the derivation of its key makes no sense");
            let params = Params::new(memory, passes, 1, Some(32)).map_err(wrong)?;
            let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            let mut key = Zeroizing::new([0; 32]);
            argon.hash_password_into(p, &head[SALT], &mut *key).map_err(wrong)?;
            Ok(key)
        }
        // A key instead of a passphrase, or the other way round.
        (_, 0 | 1) => Err(Unsealed::WrongKey),
        _ => Err(Unsealed::Damaged("it names a derivation that this version does not know")),
    }
}

fn check(aes: &Aes256GcmSiv, bytes: &[u8; LEN]) -> Option<[u8; 8]> {
    let aad = [CHECK_DOMAIN, &bytes[..CHECK.start]].concat();
    let nonce = Nonce::try_from(&bytes[NONCE]).ok()?;
    let tag = aes.encrypt(&nonce, Payload { msg: b"", aad: &aad }).ok()?;
    tag.first_chunk().copied()
}

fn bound(bytes: &[u8; LEN], volume: Naa) -> Vec<u8> {
    [WRAP_DOMAIN, &bytes[..WRAPPED.start], &volume.0.to_be_bytes()].concat()
}

/// Wraps the key of a volume. `random` is used for salt and nonce. `None`: a cipher refused, which none does.
pub(super) fn seal(
    material: &Material,
    volume: Naa,
    master: &Master,
    random: &[u8; 28],
) -> Option<String> {
    let mut b = [0; LEN];
    b[0] = VERSION;
    if let Material::Passphrase(_) = material {
        b[1] = 1;
        b[2..6].copy_from_slice(&ARGON.0.to_le_bytes());
        b[6..10].copy_from_slice(&ARGON.1.to_le_bytes());
    }
    b[SALT.start..NONCE.end].copy_from_slice(random);
    let key = derive(material, &b).ok()?;
    let aes = Aes256GcmSiv::new((&*key).into());
    let sum = check(&aes, &b)?;
    b[CHECK].copy_from_slice(&sum);
    let nonce = Nonce::try_from(&b[NONCE]).ok()?;
    let aad = bound(&b, volume);
    let wrapped = aes.encrypt(&nonce, Payload { msg: &**master, aad: &aad }).ok()?;
    b[WRAPPED].copy_from_slice(wrapped.get(..WRAPPED.len())?);
    let crc = crc32c(&b[..WRAPPED.end]).to_le_bytes();
    b[WRAPPED.end..].copy_from_slice(&crc);
    Some(b.iter().map(|v| format!("{v:02x}")).collect())
}

fn bytes(text: &str) -> Option<[u8; LEN]> {
    let digits = text.as_bytes();
    let mut b = [0; LEN];
    if digits.len() != 2 * LEN {
        return None;
    }
    for (to, two) in b.iter_mut().zip(digits.chunks(2)) {
        let value = |d: u8| (d as char).to_digit(16);
        *to = (value(two[0])? << 4 | value(two[1])?) as u8;
    }
    Some(b)
}

/// Unwraps the key of a volume.
pub(super) fn open(material: &Material, volume: Naa, text: &str) -> Result<Master, Unsealed> {
    let b = bytes(text).ok_or(Unsealed::Damaged("it has not the right length"))?;
    if crc32c(&b[..WRAPPED.end]).to_le_bytes() != b[WRAPPED.end..] {
        return Err(Unsealed::Damaged("its checksum is wrong"));
    }
    if b[0] != VERSION {
        return Err(Unsealed::Damaged("it is of a version that is not known here"));
    }
    let key = derive(material, &b)?;
    let aes = Aes256GcmSiv::new((&*key).into());
    if check(&aes, &b).is_none_or(|c| c != b[CHECK]) {
        return Err(Unsealed::WrongKey);
    }
    let damaged = Unsealed::Damaged("it was changed, or is another volume's");
    let nonce = Nonce::try_from(&b[NONCE]).map_err(|_| damaged.clone())?;
    let aad = bound(&b, volume);
    let plain = aes.decrypt(&nonce, Payload { msg: &b[WRAPPED], aad: &aad });
    let plain = Zeroizing::new(plain.map_err(|_| damaged.clone())?);
    let mut master = Zeroizing::new([0; MASTER]);
    if plain.len() != MASTER {
        return Err(damaged);
    }
    master.copy_from_slice(&plain);
    Ok(master)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: Naa = Naa(6 << 124 | 7);

    fn key(n: u8) -> Material {
        Material::Key(Zeroizing::new([n; 32]))
    }

    fn words(text: &str) -> Material {
        Material::Passphrase(Zeroizing::new(text.as_bytes().to_vec()))
    }

    fn master() -> Master {
        Zeroizing::new(std::array::from_fn(|i| i as u8))
    }

    /// With another byte, and the checksum right again.
    fn changed(text: &str, at: usize) -> String {
        let mut b = bytes(text).expect("sealed");
        b[at] ^= 1;
        let crc = crc32c(&b[..WRAPPED.end]).to_le_bytes();
        b[WRAPPED.end..].copy_from_slice(&crc);
        b.iter().map(|v| format!("{v:02x}")).collect()
    }

    #[test]
    fn what_is_sealed_comes_back_with_its_key_only() {
        for (right, wrong) in [
            (key(1), key(2)),
            (words("correct horse"), words("correct mouse")),
            (key(3), words("correct horse")),
            (words("correct horse"), key(3)),
        ] {
            let text = seal(&right, VOLUME, &master(), &[9; 28]).expect("sealed");
            assert_eq!(text.len(), 2 * LEN);
            assert_eq!(open(&right, VOLUME, &text), Ok(master()));
            assert_eq!(open(&wrong, VOLUME, &text), Err(Unsealed::WrongKey));
            let other = open(&right, Naa(VOLUME.0 + 1), &text);
            assert!(matches!(other, Err(Unsealed::Damaged(_))), "{other:?}");
        }
    }

    #[test]
    fn damage_is_told_from_a_wrong_key() {
        let text = seal(&key(1), VOLUME, &master(), &[9; 28]).expect("sealed");
        for at in 0..2 * LEN {
            let mut t = text.clone().into_bytes();
            t[at] = if t[at] == b'0' { b'1' } else { b'0' };
            let t = String::from_utf8(t).expect("digits");
            let found = open(&key(1), VOLUME, &t);
            assert!(matches!(found, Err(Unsealed::Damaged(_))), "digit {at}: {found:?}");
        }
        for at in WRAPPED {
            let found = open(&key(1), VOLUME, &changed(&text, at));
            assert!(matches!(found, Err(Unsealed::Damaged(_))), "byte {at}: {found:?}");
        }
        for bad in ["", "zz", &text[2..], &"g".repeat(2 * LEN)] {
            assert!(matches!(open(&key(1), VOLUME, bad), Err(Unsealed::Damaged(_))));
        }
        // Nothing is computed for parameters that would take the machine down.
        let text = seal(&words("correct horse"), VOLUME, &master(), &[9; 28]).expect("sealed");
        let mut b = bytes(&text).expect("sealed");
        b[2..6].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc32c(&b[..WRAPPED.end]).to_le_bytes();
        b[WRAPPED.end..].copy_from_slice(&crc);
        let huge: String = b.iter().map(|v| format!("{v:02x}")).collect();
        let found = open(&words("correct horse"), VOLUME, &huge);
        assert!(matches!(found, Err(Unsealed::Damaged(_))), "{found:?}");
    }
}
