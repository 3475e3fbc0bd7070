//! Reservations as bytes that survive power loss and go along with a take-over.
//!
//! Layout, big-endian: version 1 (1), flags (1, bit 0 APTPL), type (1, 0 none), reserved (1),
//! PRGENERATION (4), revision (8), count (4), then per registration key (8), relative target port
//! (2), flags (1, bit 0 holder), reserved (1), TransportID. The store adds the checksum.

use super::{PortPair, PrType, REGISTRATIONS_MAX, Registration, Reservations};
use crate::data::Data;
use crate::transport_id::TransportId;
use weir_wire::{Reader, Short};

const VERSION: u8 = 1;

/// Why reservations are read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Import {
    /// After a loss of power: what was not registered with APTPL is gone, PRGENERATION starts
    /// again at 0.
    PowerOn,
    /// Another controller takes the unit over while hosts go on: everything is kept.
    TakeOver,
}

/// Bytes that are not exported reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportError {
    /// The version of the layout is not known here.
    Version(u8),
    /// The bytes end too early.
    Short(Short),
    /// The content contradicts itself; the text says how.
    Invalid(&'static str),
}

impl core::fmt::Display for ImportError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ImportError::Version(v) => write!(f, "stored reservations have version {v}, not 1"),
            ImportError::Short(s) => write!(f, "stored reservations are cut short: {s}"),
            ImportError::Invalid(why) => write!(f, "stored reservations are inconsistent: {why}"),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<Short> for ImportError {
    fn from(short: Short) -> Self {
        ImportError::Short(short)
    }
}

impl Reservations {
    /// Appends the whole state to `out`.
    pub(crate) fn export(&self, out: &mut Vec<u8>) {
        let kind = self.kind.map_or(0, PrType::code);
        out.extend_from_slice(&[VERSION, u8::from(self.aptpl), kind, 0]);
        out.be32(self.generation);
        out.be64(self.revision);
        out.be32(self.registrations.len() as u32);
        for r in &self.registrations {
            out.be64(r.key);
            out.be16(r.who.target_port);
            out.extend_from_slice(&[u8::from(r.holder), 0]);
            out.extend_from_slice(r.who.initiator.as_bytes());
        }
    }

    /// Reads what [`Reservations::export`] wrote. Total: any bytes give a state or an error.
    pub(crate) fn import(bytes: &[u8], why: Import) -> Result<Reservations, ImportError> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if version != VERSION {
            return Err(ImportError::Version(version));
        }
        let aptpl = r.u8()? & 1 != 0;
        let code = r.u8()?;
        let kind = PrType::from_code(code);
        if kind.is_none() && code != 0 {
            return Err(ImportError::Invalid("unknown reservation type"));
        }
        r.skip(1)?;
        let generation = r.u32()?;
        let revision = r.u64()?;
        let count = r.u32()? as usize;
        if count > REGISTRATIONS_MAX {
            return Err(ImportError::Invalid("too many registrations"));
        }
        let mut registrations = Vec::new();
        for _ in 0..count {
            let key = r.u64()?;
            let target_port = r.u16()?;
            let holder = r.u8()? & 1 != 0;
            r.skip(1)?;
            let (initiator, rest) = TransportId::parse(r.rest(), 0)
                .map_err(|_| ImportError::Invalid("malformed TransportID"))?;
            r.skip(r.remaining() - rest.len())?;
            let who = PortPair { initiator, target_port };
            registrations.push(Registration { who, key, holder });
        }
        if r.remaining() != 0 {
            return Err(ImportError::Invalid("bytes after the last registration"));
        }
        let state = Reservations { generation, revision, aptpl, kind, registrations };
        state.check().map_err(ImportError::Invalid)?;
        Ok(match why {
            Import::TakeOver => state,
            Import::PowerOn if aptpl => Reservations { generation: 0, ..state },
            Import::PowerOn => Reservations { revision, ..Reservations::default() },
        })
    }
}
