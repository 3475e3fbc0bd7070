//! The Terminate message (RFC 5040 section 4.8), in the standard's bit order and in siw's.

use core::fmt;

/// Layer, error type and error code of a Terminate (RFC 5040 section 4.8, RFC 5041, RFC 5044,
/// RFC 6581).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    /// 0 RDMAP, 1 DDP, 2 LLP (here MPA); four bits.
    pub layer: u8,
    /// Error type within the layer; four bits.
    pub etype: u8,
    /// Error code within layer and type.
    pub code: u8,
}

macro_rules! codes {
    ($($name:ident = $layer:literal, $etype:literal, $code:literal, $text:literal;)*) => {
        impl Code {
            $(#[doc = concat!("Layer ", $layer, ", type ", $etype, ", code ", $code, ": ", $text, ".")]
            pub const $name: Code = Code { layer: $layer, etype: $etype, code: $code };)*

            /// What the code means; `None` when no standard defines it.
            pub const fn text(self) -> Option<&'static str> {
                match (self.layer, self.etype, self.code) {
                    $(($layer, $etype, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    RDMAP_LOCAL = 0, 0, 0, "local catastrophic error";
    RDMAP_STAG = 0, 1, 0, "remote protection: invalid STag";
    RDMAP_BOUNDS = 0, 1, 1, "remote protection: base or bounds violation";
    RDMAP_ACCESS = 0, 1, 2, "remote protection: access rights violation";
    RDMAP_NOT_ASSOCIATED = 0, 1, 3, "remote protection: STag not associated with this stream";
    RDMAP_WRAP = 0, 1, 4, "remote protection: tagged offset wrap";
    RDMAP_PROTECTION_INVALIDATE = 0, 1, 9, "remote protection: STag cannot be invalidated";
    RDMAP_PROTECTION_UNSPECIFIED = 0, 1, 0xff, "remote protection: unspecified error";
    RDMAP_VERSION = 0, 2, 5, "remote operation: invalid RDMAP version";
    RDMAP_OPCODE = 0, 2, 6, "remote operation: unexpected opcode";
    RDMAP_STREAM = 0, 2, 7, "remote operation: catastrophic error of this stream";
    RDMAP_GLOBAL = 0, 2, 8, "remote operation: catastrophic error of the whole adapter";
    RDMAP_INVALIDATE = 0, 2, 9, "remote operation: STag cannot be invalidated";
    RDMAP_UNSPECIFIED = 0, 2, 0xff, "remote operation: unspecified error";
    DDP_LOCAL = 1, 0, 0, "local catastrophic error";
    DDP_STAG = 1, 1, 0, "tagged buffer: invalid STag";
    DDP_BOUNDS = 1, 1, 1, "tagged buffer: base or bounds violation";
    DDP_NOT_ASSOCIATED = 1, 1, 2, "tagged buffer: STag not associated with this stream";
    DDP_WRAP = 1, 1, 3, "tagged buffer: tagged offset wrap";
    DDP_TAGGED_VERSION = 1, 1, 4, "tagged buffer: invalid DDP version";
    DDP_QUEUE = 1, 2, 1, "untagged buffer: invalid queue number";
    DDP_NO_BUFFER = 1, 2, 2, "untagged buffer: no buffer for this message";
    DDP_MSN = 1, 2, 3, "untagged buffer: message number out of range";
    DDP_OFFSET = 1, 2, 4, "untagged buffer: invalid message offset";
    DDP_TOO_LONG = 1, 2, 5, "untagged buffer: message too long";
    DDP_UNTAGGED_VERSION = 1, 2, 6, "untagged buffer: invalid DDP version";
    MPA_LOST = 2, 0, 1, "TCP stream lost";
    MPA_CRC = 2, 0, 2, "CRC error";
    MPA_FRAMING = 2, 0, 3, "FPDU start or length wrong";
    MPA_STARTUP = 2, 0, 4, "bad start-up frame";
    MPA_LOCAL = 2, 0, 5, "local catastrophic error";
    MPA_IRD = 2, 0, 6, "insufficient IRD";
    MPA_RTR = 2, 0, 7, "no matching RTR frame";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(
            f,
            "{layer} {} (layer {} type {} code {:#x})",
            self.text().unwrap_or("undefined error"),
            self.layer,
            self.etype,
            self.code
        )
    }
}

/// How the control bits lie in their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the standard draws them: layer in the high nibble, M/D/R in the three high bits.
    Rfc,
    /// As Linux siw sends them from little-endian hosts: layer in the low nibble, M/D/R in the
    /// three low bits.
    Siw,
}

/// Most bytes of a Terminate's body.
pub(crate) const MAX_BODY: usize = 4 + 2 + 18 + 28;
/// DDP header bytes of a tagged and an untagged segment, without ULPDU_Length.
const TAGGED: usize = 14;
const UNTAGGED: usize = 18;
const READ_BODY: usize = 28;

/// Builds the body: control bytes, then the length and header of the offending FPDU, of which
/// `header` holds the first bytes from ULPDU_Length on (as much as there is, or nothing).
pub(crate) fn encode(code: Code, header: &[u8], order: Order) -> ([u8; MAX_BODY], usize) {
    let mut b = [0; MAX_BODY];
    let mut len = 4;
    // M and D: the header is included when it is there whole. R: a Read Request with its body.
    let (mut m, mut r) = (false, false);
    if let (Some(ulpdu), Some(ctrl)) = (header.first_chunk::<2>(), header.get(2..4)) {
        let tagged = ctrl[0] & crate::tx::DDP_TAGGED != 0;
        let ddp = if tagged { TAGGED } else { UNTAGGED };
        if let Some(ddp_header) = header.get(2..2 + ddp) {
            m = true;
            b[4..6].copy_from_slice(ulpdu);
            b[6..6 + ddp].copy_from_slice(ddp_header);
            len = 6 + ddp;
            let body = header.get(2 + ddp..2 + ddp + READ_BODY);
            if let (false, 1, Some(body)) = (tagged, ctrl[1] & 0x0f, body) {
                r = true;
                b[len..len + READ_BODY].copy_from_slice(body);
                len += READ_BODY;
            }
        }
    }
    b[1] = code.code;
    match order {
        Order::Rfc => {
            b[0] = code.layer << 4 | code.etype & 0x0f;
            b[2] = if m { 0xc0 } else { 0 } | if r { 0x20 } else { 0 };
        }
        Order::Siw => {
            b[0] = code.etype << 4 | code.layer & 0x0f;
            b[2] = if m { 0x03 } else { 0 } | if r { 0x04 } else { 0 };
        }
    }
    (b, len)
}

/// A Terminate that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateInfo {
    /// What the peer complains about, in the order that fits best.
    pub code: Code,
    /// The order that was assumed.
    pub order: Order,
    /// The other reading, when both give a defined code and no flag decides.
    pub other: Option<Code>,
    /// Control bytes as received.
    pub raw: [u8; 4],
    /// ULPDU length of the FPDU complained about (M).
    pub segment_len: Option<u16>,
    header: [u8; UNTAGGED + READ_BODY],
    header_len: u8,
}

impl TerminateInfo {
    /// The DDP header complained about (D), without ULPDU_Length, followed by the Read Request's
    /// body if that was included (R). Empty when the peer sent none.
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// Reads a Terminate's body (the FPDU's payload). `None` when it is too short to hold the
    /// control bytes; headers that are cut short are dropped, since the stream ends here anyway.
    pub fn decode(body: &[u8]) -> Option<TerminateInfo> {
        let raw = *body.first_chunk::<4>()?;
        let (high, low) = (raw[0] >> 4, raw[0] & 0x0f);
        let rfc = Code { layer: high, etype: low, code: raw[1] };
        let siw = Code { layer: low, etype: high, code: raw[1] };
        let (flags_rfc, flags_siw) = (raw[2] & 0xe0, raw[2] & 0x07);
        let mut other = None;
        let order = match (flags_rfc != 0, flags_siw != 0) {
            (true, false) => Order::Rfc,
            (false, true) => Order::Siw,
            _ if siw.text().is_none() || rfc == siw => Order::Rfc,
            _ if rfc.text().is_none() => Order::Siw,
            _ => {
                other = Some(siw);
                Order::Rfc
            }
        };
        let (code, m, d, r) = match order {
            Order::Rfc => (rfc, 0x80, 0x40, 0x20),
            Order::Siw => (siw, 0x01, 0x02, 0x04),
        };
        let mut info = TerminateInfo {
            code,
            order,
            other,
            raw,
            segment_len: None,
            header: [0; UNTAGGED + READ_BODY],
            header_len: 0,
        };
        let mut rest = &body[4..];
        if raw[2] & m != 0 {
            let Some((len, more)) = rest.split_first_chunk::<2>() else { return Some(info) };
            info.segment_len = Some(u16::from_be_bytes(*len));
            rest = more;
        }
        if raw[2] & d != 0 {
            let tagged = rest.first().is_some_and(|c| c & crate::tx::DDP_TAGGED != 0);
            let want = if tagged { TAGGED } else { UNTAGGED }
                + if raw[2] & r != 0 { READ_BODY } else { 0 };
            if let Some(h) = rest.get(..want) {
                info.header[..want].copy_from_slice(h);
                info.header_len = want as u8;
            }
        }
        Some(info)
    }
}

impl fmt::Display for TerminateInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer ended the stream: {}", self.code)?;
        if let Some(other) = self.other {
            write!(f, ", or, if its bits are swapped, {other}")?;
        }
        let [a, b, c, d] = self.raw;
        write!(f, "; control bytes {a:02x} {b:02x} {c:02x} {d:02x}")?;
        if let Some(len) = self.segment_len {
            write!(f, "; about a segment of {len} bytes")?;
        }
        if self.header_len > 0 {
            f.write_str(" with header ")?;
            for byte in self.header() {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
