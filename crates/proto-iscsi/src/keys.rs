//! The operational keys: what each side says, and what holds then (RFC 7143 section 13).

use crate::intake::Digests;
use crate::text::{boolean, number, push};

/// What a target can do, and wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of data that it takes in one PDU: 512 to 2^24 - 1.
    pub max_recv: u32,
    /// Bytes of one sequence of Data-In or solicited Data-Out, at most.
    pub max_burst: u32,
    /// Unsolicited bytes of one command, at most.
    pub first_burst: u32,
    /// Whether it agrees to digests.
    pub digests: bool,
}

/// What holds on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Digests, from the first PDU of the full-feature phase on.
    pub digests: Digests,
    /// Bytes of data that the initiator takes in one PDU.
    pub max_send: u32,
    /// Bytes of data that this target takes in one PDU.
    pub max_recv: u32,
    /// Bytes of one sequence.
    pub max_burst: u32,
    /// Unsolicited bytes of one command.
    pub first_burst: u32,
    /// Nothing but immediate data is unsolicited.
    pub initial_r2t: bool,
    /// Data may come with a command.
    pub immediate_data: bool,
}

impl Params {
    /// What holds before anything was said (RFC 7143 section 13).
    pub fn new(offer: &Offer) -> Params {
        Params {
            digests: Digests::default(),
            max_send: 8192,
            max_recv: 8192.min(offer.max_recv),
            max_burst: 262_144,
            first_burst: 65_536,
            initial_r2t: true,
            immediate_data: true,
        }
    }
}

/// A value that a key cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadValue;

/// What a key is answered with.
enum Answer {
    Value(String),
    Nothing,
}

fn yes(b: bool) -> Answer {
    Answer::Value(if b { "Yes" } else { "No" }.to_owned())
}

/// A number within its range.
fn ranged(value: &str, least: u32, most: u32) -> Result<u32, BadValue> {
    number(value).filter(|n| (least..=most).contains(n)).ok_or(BadValue)
}

/// The first of the initiator's digests that this target can (RFC 7143 13.1).
fn pick_digest(value: &str, can: bool) -> Option<&'static str> {
    value.split(',').find_map(|v| match v {
        "CRC32C" if can => Some("CRC32C"),
        "None" => Some("None"),
        _ => None,
    })
}

/// Takes one key that the initiator says, and adds what the target answers to it. Keys that are not operational ones are
/// `NotUnderstood`.
///
/// # Errors
/// The value cannot be: the negotiation has failed.
pub fn answer(
    p: &mut Params,
    offer: &Offer,
    discovery: bool,
    (key, value): (&str, &str),
    out: &mut Vec<u8>,
) -> Result<(), BadValue> {
    const MOST: u32 = (1 << 24) - 1;
    // Discovery sessions move no data of commands (RFC 7143 section 13, "use").
    let irrelevant = discovery
        && matches!(
            key,
            "MaxConnections"
                | "InitialR2T"
                | "ImmediateData"
                | "MaxBurstLength"
                | "FirstBurstLength"
                | "MaxOutstandingR2T"
                | "DataPDUInOrder"
                | "DataSequenceInOrder"
        );
    if irrelevant {
        push(out, key, "Irrelevant");
        return Ok(());
    }
    let value = match key {
        "HeaderDigest" | "DataDigest" => {
            let picked = pick_digest(value, offer.digests).ok_or(BadValue)?;
            let on = picked == "CRC32C";
            match key {
                "HeaderDigest" => p.digests.header = on,
                _ => p.digests.data = on,
            }
            Answer::Value(picked.to_owned())
        }
        "MaxRecvDataSegmentLength" => {
            p.max_send = ranged(value, 512, MOST)?;
            Answer::Nothing
        }
        "MaxConnections" => {
            ranged(value, 1, 65_535)?;
            Answer::Value("1".to_owned())
        }
        "InitialR2T" => {
            p.initial_r2t = boolean(value).ok_or(BadValue)?;
            yes(p.initial_r2t)
        }
        "ImmediateData" => {
            p.immediate_data = boolean(value).ok_or(BadValue)?;
            yes(p.immediate_data)
        }
        "MaxBurstLength" => {
            p.max_burst = ranged(value, 512, MOST)?.min(offer.max_burst);
            Answer::Value(p.max_burst.to_string())
        }
        "FirstBurstLength" => {
            p.first_burst = ranged(value, 512, MOST)?.min(offer.first_burst);
            Answer::Value(p.first_burst.to_string())
        }
        "DefaultTime2Wait" => Answer::Value(ranged(value, 0, 3600)?.max(2).to_string()),
        // Nothing is kept of a session that has lost its connection.
        "DefaultTime2Retain" => {
            ranged(value, 0, 3600)?;
            Answer::Value("0".to_owned())
        }
        "MaxOutstandingR2T" => {
            ranged(value, 1, 65_535)?;
            Answer::Value("1".to_owned())
        }
        "DataPDUInOrder" | "DataSequenceInOrder" => {
            boolean(value).ok_or(BadValue)?;
            yes(true)
        }
        "ErrorRecoveryLevel" => {
            ranged(value, 0, 2)?;
            Answer::Value("0".to_owned())
        }
        // Obsolete; what is no is said to be no (RFC 7143 13.25).
        "IFMarker" | "OFMarker" => Answer::Value("No".to_owned()),
        "IFMarkInt" | "OFMarkInt" => Answer::Value("Reject".to_owned()),
        // RFC 7144: this target does what RFC 7143 says, level 1.
        "iSCSIProtocolLevel" => Answer::Value(ranged(value, 0, 31)?.min(1).to_string()),
        _ => Answer::Value("NotUnderstood".to_owned()),
    };
    if let Answer::Value(v) = value {
        push(out, key, &v);
    }
    Ok(())
}

/// When all has been said: what does not fit is made to (RFC 7143 13.14).
pub fn settle(p: &mut Params) {
    p.first_burst = p.first_burst.min(p.max_burst);
}
