//! Sense data: what a CHECK CONDITION says, and its two wire forms (SPC-4 4.5).

/// Sense key (SPC-4 table 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the standard's own and say it all.
pub enum SenseKey {
    NoSense = 0x0,
    RecoveredError = 0x1,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    BlankCheck = 0x8,
    VendorSpecific = 0x9,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Reserved = 0xc,
    VolumeOverflow = 0xd,
    Miscompare = 0xe,
    Completed = 0xf,
}

impl SenseKey {
    /// The key in the low four bits of `byte`.
    pub fn from_bits(byte: u8) -> SenseKey {
        match byte & 0x0f {
            0x0 => SenseKey::NoSense,
            0x1 => SenseKey::RecoveredError,
            0x2 => SenseKey::NotReady,
            0x3 => SenseKey::MediumError,
            0x4 => SenseKey::HardwareError,
            0x5 => SenseKey::IllegalRequest,
            0x6 => SenseKey::UnitAttention,
            0x7 => SenseKey::DataProtect,
            0x8 => SenseKey::BlankCheck,
            0x9 => SenseKey::VendorSpecific,
            0xa => SenseKey::CopyAborted,
            0xb => SenseKey::AbortedCommand,
            0xc => SenseKey::Reserved,
            0xd => SenseKey::VolumeOverflow,
            0xe => SenseKey::Miscompare,
            _ => SenseKey::Completed,
        }
    }
}

/// Which field of a CDB or parameter list was wrong (SPC-4 4.5.2.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldPointer {
    /// True: the field is in the CDB. False: in the parameter list.
    pub in_cdb: bool,
    /// Byte that holds the field's most significant bit.
    pub byte: u16,
    /// Most significant bit of the field in that byte, 0..=7, if one bit can be named.
    pub bit: Option<u8>,
}

/// One sense: key, code and qualifier, and what goes with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// INFORMATION: an LBA, or for a miscompare the offset of the first differing byte.
    pub info: Option<u64>,
    /// The field at fault, with ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
    /// Progress of a long operation in 65536ths, with NOT READY or NO SENSE. `field` goes first.
    pub progress: Option<u16>,
    /// True: reports the error of an earlier command (response codes 71h and 73h).
    pub deferred: bool,
}

/// Wire form of sense data, chosen by D_SENSE of the Control mode page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SenseFormat {
    /// 70h/71h, 18 bytes. INFORMATION above 32 bits is left out, for it has no room.
    #[default]
    Fixed,
    /// 72h/73h, 8 bytes and descriptors.
    Descriptor,
}

/// Longest sense that [`Sense::encode`] makes, in bytes.
pub const SENSE_LEN_MAX: usize = 28;

impl Sense {
    /// A sense without further information.
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Sense {
        Sense { key, asc, ascq, info: None, field: None, progress: None, deferred: false }
    }

    /// The same sense with an INFORMATION field.
    pub const fn with_info(mut self, info: u64) -> Sense {
        self.info = Some(info);
        self
    }

    /// The same sense with a progress indication (65536ths).
    pub const fn with_progress(mut self, progress: u16) -> Sense {
        self.progress = Some(progress);
        self
    }

    /// INVALID FIELD IN CDB that points at a whole byte.
    pub const fn cdb_byte(byte: u16) -> Sense {
        let mut s = Sense::INVALID_FIELD_IN_CDB;
        s.field = Some(FieldPointer { in_cdb: true, byte, bit: None });
        s
    }

    /// INVALID FIELD IN CDB that points at a field by its most significant bit.
    pub const fn cdb_bit(byte: u16, bit: u8) -> Sense {
        let mut s = Sense::INVALID_FIELD_IN_CDB;
        s.field = Some(FieldPointer { in_cdb: true, byte, bit: Some(bit) });
        s
    }

    /// INVALID FIELD IN PARAMETER LIST that points at a whole byte.
    pub const fn list_byte(byte: u16) -> Sense {
        let mut s = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
        s.field = Some(FieldPointer { in_cdb: false, byte, bit: None });
        s
    }

    /// INVALID FIELD IN PARAMETER LIST that points at a field by its most significant bit.
    pub const fn list_bit(byte: u16, bit: u8) -> Sense {
        let mut s = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
        s.field = Some(FieldPointer { in_cdb: false, byte, bit: Some(bit) });
        s
    }

    /// True when key, code and qualifier are equal, whatever else they carry.
    pub fn same_code(&self, other: &Sense) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }

    /// Writes the sense in `format` and returns its length: at most [`SENSE_LEN_MAX`], and less
    /// than the full sense when `out` is shorter.
    pub fn encode(&self, format: SenseFormat, out: &mut [u8]) -> usize {
        let mut b = [0u8; SENSE_LEN_MAX];
        let len = match format {
            SenseFormat::Fixed => self.fixed(&mut b),
            SenseFormat::Descriptor => self.descriptor(&mut b),
        };
        let n = len.min(out.len());
        out[..n].copy_from_slice(&b[..n]);
        n
    }

    /// The three sense-key specific bytes, if there are any.
    fn specific(&self) -> Option<[u8; 3]> {
        const SKSV: u8 = 0x80;
        if let Some(f) = self.field {
            let bit = f.bit.map_or(0, |bit| 0x08 | (bit & 7));
            let [hi, lo] = f.byte.to_be_bytes();
            return Some([SKSV | (u8::from(f.in_cdb) << 6) | bit, hi, lo]);
        }
        self.progress.map(|p| {
            let [hi, lo] = p.to_be_bytes();
            [SKSV, hi, lo]
        })
    }

    fn fixed(&self, b: &mut [u8; SENSE_LEN_MAX]) -> usize {
        b[0] = 0x70 | u8::from(self.deferred);
        b[2] = self.key as u8;
        if let Some(Ok(info)) = self.info.map(u32::try_from) {
            b[0] |= 0x80;
            b[3..7].copy_from_slice(&info.to_be_bytes());
        }
        b[7] = 0x0a;
        b[12] = self.asc;
        b[13] = self.ascq;
        if let Some(s) = self.specific() {
            b[15..18].copy_from_slice(&s);
        }
        18
    }

    fn descriptor(&self, b: &mut [u8; SENSE_LEN_MAX]) -> usize {
        b[0] = 0x72 | u8::from(self.deferred);
        b[1] = self.key as u8;
        b[2] = self.asc;
        b[3] = self.ascq;
        let mut at = 8;
        if let Some(info) = self.info {
            b[at + 1] = 0x0a;
            b[at + 2] = 0x80;
            b[at + 4..at + 12].copy_from_slice(&info.to_be_bytes());
            at += 12;
        }
        if let Some(s) = self.specific() {
            b[at] = 0x02;
            b[at + 1] = 0x06;
            b[at + 4..at + 7].copy_from_slice(&s);
            at += 8;
        }
        b[7] = (at - 8) as u8;
        at
    }

    /// Reads sense data of either form, current or deferred. `None` if the bytes are not sense
    /// data or end before code and qualifier.
    pub fn parse(b: &[u8]) -> Option<Sense> {
        let first = *b.first()?;
        match first & 0x7f {
            0x70 | 0x71 => Sense::parse_fixed(b),
            0x72 | 0x73 => Sense::parse_descriptor(b),
            _ => None,
        }
        .map(|mut s| {
            s.deferred = first & 1 == 1;
            s
        })
    }

    fn parse_fixed(b: &[u8]) -> Option<Sense> {
        let mut s = Sense::new(SenseKey::from_bits(*b.get(2)?), 0, 0);
        if b[0] & 0x80 != 0 {
            let info = b.get(3..7)?.try_into().ok()?;
            s.info = Some(u64::from(u32::from_be_bytes(info)));
        }
        // The additional length says how far the fields beyond byte 7 are valid.
        let end = 8 + usize::from(b.get(7).copied().unwrap_or(0));
        let b = &b[..b.len().min(end)];
        s.asc = b.get(12).copied().unwrap_or(0);
        s.ascq = b.get(13).copied().unwrap_or(0);
        if let Some(specific) = b.get(15..18) {
            s.set_specific(specific);
        }
        Some(s)
    }

    fn parse_descriptor(b: &[u8]) -> Option<Sense> {
        let mut s = Sense::new(SenseKey::from_bits(*b.get(1)?), *b.get(2)?, *b.get(3)?);
        let end = 8 + usize::from(b.get(7).copied().unwrap_or(0));
        let mut rest = b.get(8..b.len().min(end)).unwrap_or(&[]);
        while let [kind, len, ..] = *rest {
            let Some(d) = rest.get(..2 + usize::from(len)) else { break };
            match (kind, d.len()) {
                (0x00, 12) if d[2] & 0x80 != 0 => {
                    s.info = d[4..12].try_into().ok().map(u64::from_be_bytes);
                }
                (0x02, 8) => s.set_specific(&d[4..7]),
                _ => {}
            }
            rest = &rest[d.len()..];
        }
        Some(s)
    }

    fn set_specific(&mut self, b: &[u8]) {
        let [flags, hi, lo] = *b else { return };
        if flags & 0x80 == 0 {
            return;
        }
        let value = u16::from_be_bytes([hi, lo]);
        match self.key {
            SenseKey::IllegalRequest => {
                self.field = Some(FieldPointer {
                    in_cdb: flags & 0x40 != 0,
                    byte: value,
                    bit: (flags & 0x08 != 0).then_some(flags & 7),
                });
            }
            SenseKey::NotReady | SenseKey::NoSense => self.progress = Some(value),
            _ => {}
        }
    }
}

macro_rules! named {
    ($($name:ident = $key:ident $asc:literal $ascq:literal $doc:literal;)*) => {
        impl Sense {
            $(#[doc = $doc] pub const $name: Sense = Sense::new(SenseKey::$key, $asc, $ascq);)*
        }

        /// Every named sense with its meaning, for messages and tests.
        pub const NAMED: &[(Sense, &str)] = &[$((Sense::$name, $doc)),*];
    };
}

named! {
    NO_SENSE = NoSense 0x00 0x00 "no additional sense information";
    NOT_READY = NotReady 0x04 0x00 "not ready, cause not reportable";
    BECOMING_READY = NotReady 0x04 0x01 "in process of becoming ready";
    NEEDS_START = NotReady 0x04 0x02 "initializing command required (START)";
    FORMAT_IN_PROGRESS = NotReady 0x04 0x04 "format in progress";
    ALUA_TRANSITION = NotReady 0x04 0x0a "asymmetric access state transition";
    ALUA_STANDBY = NotReady 0x04 0x0b "target port in standby state";
    ALUA_UNAVAILABLE = NotReady 0x04 0x0c "target port in unavailable state";
    OFFLINE = NotReady 0x04 0x12 "logical unit offline";
    MEDIUM_NOT_PRESENT = NotReady 0x3a 0x00 "medium not present";
    WRITE_FAULT = MediumError 0x03 0x00 "peripheral device write fault";
    WRITE_ERROR = MediumError 0x0c 0x00 "write error";
    UNRECOVERED_READ_ERROR = MediumError 0x11 0x00 "unrecovered read error";
    READ_ERROR_RESEND_FAILED = MediumError 0x11 0x13 "read error, failed retransmission request";
    READ_ERROR_MARKED_BAD = MediumError 0x11 0x14 "read error, LBA marked bad by application client";
    INTERNAL_TARGET_FAILURE = HardwareError 0x44 0x00 "internal target failure";
    PARAMETER_LIST_LENGTH_ERROR = IllegalRequest 0x1a 0x00 "parameter list length error";
    INVALID_OPCODE = IllegalRequest 0x20 0x00 "invalid command operation code";
    LBA_OUT_OF_RANGE = IllegalRequest 0x21 0x00 "logical block address out of range";
    INVALID_FIELD_IN_CDB = IllegalRequest 0x24 0x00 "invalid field in CDB";
    LU_NOT_SUPPORTED = IllegalRequest 0x25 0x00 "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = IllegalRequest 0x26 0x00 "invalid field in parameter list";
    PARAMETER_VALUE_INVALID = IllegalRequest 0x26 0x02 "parameter value invalid";
    INVALID_RELEASE = IllegalRequest 0x26 0x04 "invalid release of persistent reservation";
    TOO_MANY_TARGET_DESCRIPTORS = IllegalRequest 0x26 0x06 "too many target descriptors";
    UNSUPPORTED_TARGET_DESCRIPTOR = IllegalRequest 0x26 0x07 "unsupported target descriptor type";
    TOO_MANY_SEGMENTS = IllegalRequest 0x26 0x08 "too many segment descriptors";
    UNSUPPORTED_SEGMENT = IllegalRequest 0x26 0x09 "unsupported segment descriptor type";
    COMMAND_SEQUENCE_ERROR = IllegalRequest 0x2c 0x00 "command sequence error";
    SAVING_NOT_SUPPORTED = IllegalRequest 0x39 0x00 "saving parameters not supported";
    INSUFFICIENT_REGISTRATION_RESOURCES = IllegalRequest 0x55 0x04 "insufficient registration resources";
    INVALID_FIELD_IN_COMMAND_IU = IllegalRequest 0x0e 0x03 "invalid field in command information unit";
    BECAME_READY = UnitAttention 0x28 0x00 "not ready to ready change, medium may have changed";
    POWER_ON_OR_RESET = UnitAttention 0x29 0x00 "power on, reset, or bus device reset occurred";
    POWER_ON = UnitAttention 0x29 0x01 "power on occurred";
    BUS_RESET = UnitAttention 0x29 0x02 "SCSI bus reset occurred";
    LU_RESET = UnitAttention 0x29 0x03 "bus device reset function (logical unit reset) occurred";
    INTERNAL_RESET = UnitAttention 0x29 0x04 "device internal reset";
    NEXUS_LOSS = UnitAttention 0x29 0x07 "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = UnitAttention 0x2a 0x01 "mode parameters changed";
    RESERVATIONS_PREEMPTED = UnitAttention 0x2a 0x03 "reservations preempted";
    RESERVATIONS_RELEASED = UnitAttention 0x2a 0x04 "reservations released";
    REGISTRATIONS_PREEMPTED = UnitAttention 0x2a 0x05 "registrations preempted";
    ALUA_STATE_CHANGED = UnitAttention 0x2a 0x06 "asymmetric access state changed";
    ALUA_TRANSITION_FAILED = UnitAttention 0x2a 0x07 "implicit asymmetric access state transition failed";
    CAPACITY_CHANGED = UnitAttention 0x2a 0x09 "capacity data has changed";
    COMMANDS_CLEARED = UnitAttention 0x2f 0x00 "commands cleared by another initiator";
    THIN_SOFT_THRESHOLD = UnitAttention 0x38 0x07 "thin provisioning soft threshold reached";
    INQUIRY_DATA_CHANGED = UnitAttention 0x3f 0x03 "inquiry data has changed";
    REPORT_LUNS_CHANGED = UnitAttention 0x3f 0x0e "reported LUNs data has changed";
    WRITE_PROTECTED = DataProtect 0x27 0x00 "write protected";
    SPACE_ALLOCATION_FAILED = DataProtect 0x27 0x07 "space allocation failed write protect";
    COPY_TARGET_NOT_REACHABLE = CopyAborted 0x0d 0x02 "copy target device not reachable";
    ABORTED_COMMAND = AbortedCommand 0x00 0x00 "aborted command";
    COMMUNICATION_FAILURE = AbortedCommand 0x08 0x00 "logical unit communication failure";
    WRITE_ERROR_NOT_ENOUGH_DATA = AbortedCommand 0x0c 0x0d "write error, not enough unsolicited data";
    GUARD_CHECK_FAILED = AbortedCommand 0x10 0x01 "logical block guard check failed";
    APP_TAG_CHECK_FAILED = AbortedCommand 0x10 0x02 "logical block application tag check failed";
    REF_TAG_CHECK_FAILED = AbortedCommand 0x10 0x03 "logical block reference tag check failed";
    ECHO_BUFFER_OVERWRITTEN = AbortedCommand 0x3f 0x0f "echo buffer overwritten";
    PROTOCOL_CRC_ERROR = AbortedCommand 0x47 0x05 "protocol service CRC error";
    DATA_PHASE_ERROR = AbortedCommand 0x4b 0x00 "data phase error";
    MISCOMPARE = Miscompare 0x1d 0x00 "miscompare during verify operation";
}

impl core::fmt::Display for Sense {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let name = NAMED.iter().find(|(s, _)| s.same_code(self)).map(|(_, n)| *n);
        write!(
            f,
            "{:x}/{:02x}/{:02x} {}",
            self.key as u8,
            self.asc,
            self.ascq,
            name.unwrap_or("(no name here)")
        )?;
        if let Some(p) = self.field {
            let place = if p.in_cdb { "CDB" } else { "parameter list" };
            write!(f, ", {place} byte {}", p.byte)?;
            if let Some(bit) = p.bit {
                write!(f, " bit {bit}")?;
            }
        }
        if let Some(info) = self.info {
            write!(f, ", information {info:#x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
