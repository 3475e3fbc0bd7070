//! The server's side of the handshake, in which a client finds and chooses an export: fixed newstyle (NBD protocol,
//! "Newstyle negotiation", "Handshake phase").
//!
//! Bytes in, [steps](Step) out; nothing here waits or panics. At [`Step::More`] fewer bytes than [`OPTION_DATA`] are
//! held, so that memory is bounded by this and by what is fed before the next step.
//!
//! There is no TLS, and there are no extended headers: such options are answered with `NBD_REP_ERR_UNSUP`. Of metadata
//! contexts there is `base:allocation`.

mod contexts;

use crate::flags;
use crate::structured::ALLOCATION;
use contexts::Query;
use std::mem;

/// Bytes of data of one option, at most. Longer data are skipped, and answered with `NBD_REP_ERR_TOO_BIG`.
pub const OPTION_DATA: usize = 64 << 10;
/// Bytes of data of one option that are skipped, at most. Longer ones end the connection.
pub const OPTION_SKIP: usize = 1 << 20;
/// Bytes of a name or description, at most (NBD protocol, "Conventions": strings).
pub const TEXT: usize = 4096;
/// Options of one connection, at most. One more ends it.
pub const OPTIONS: u32 = 64;

/// At the begin of the greeting
const GREETING_MAGIC: [u8; 8] = *b"NBDMAGIC";
/// In the greeting, and before each option
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
/// Before each reply to an option
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Bytes of an option before its data
const OPTION_HEAD: usize = 16;
/// Zeroes after the answer to EXPORT_NAME, if the client did not refuse them
const ZEROES: usize = 124;

/// Why a connection ends whose EXPORT_NAME has no name: no error can be told in answer to it.
const NO_NAME: &str = "the client asks for an export by what is no name";

/// Handshake flags of both sides: the server's are 16 bits, the client's 32.
const FIXED_NEWSTYLE: u8 = 1;
const NO_ZEROES: u8 = 1 << 1;

/// Options (NBD protocol, "Option types").
mod opt {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
    pub(super) const LIST_META_CONTEXT: u32 = 9;
    pub(super) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options (NBD protocol, "Option reply types").
mod rep {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    pub(super) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(super) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(super) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(super) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// What a client may be told of an export (NBD protocol, `NBD_REP_INFO`).
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const DESCRIPTION: u16 = 2;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// What a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The name that clients should use for it, which need not be the one asked for. It has at most [`TEXT`] bytes, and
    /// no NUL; any other is not told.
    pub name: String,
    /// Bytes.
    pub len: u64,
    /// Transmission flags, as in [`flags`]. [`flags::HAS_FLAGS`] is always sent; bits above 15 never are.
    pub flags: u64,
    /// Bytes of the least, the preferred and the largest request (NBD protocol, "Block size constraints"). The least
    /// is a power of two, of at most 64 KiB. The preferred is one too, of at least 512 bytes and the least. The
    /// largest is a multiple of the least, or `u32::MAX`.
    ///
    /// Only a client that asks is told, and only it must keep to them. Others may send requests of any length.
    pub block: (u32, u32, u32),
    /// For people, without NUL; at most [`TEXT`] bytes of it are sent. Empty if there is none.
    pub description: String,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed: [`Handshake::feed`].
    More,
    /// These bytes are to be sent.
    Send(Vec<u8>),
    /// The client asks which exports there are: answer with [`Handshake::list`].
    List,
    /// The client asks for an export: answer with [`Handshake::export`].
    Export {
        /// Its name. An empty one means the server's default export.
        name: String,
        /// The transmission phase begins, if there is such an export. Else the client only wants to know about it.
        go: bool,
    },
    /// The client asks what can be told of an export: answer with [`Handshake::contexts`].
    Contexts {
        /// Its name. An empty one means the server's default export.
        name: String,
    },
    /// The transmission phase begins, as was [agreed](Handshake::agreed). Its first bytes may be here already:
    /// [`Handshake::rest`].
    Begin,
    /// The connection is to be closed. The client wanted it, or there is a reason.
    End(Option<&'static str>),
}

/// What the two sides have agreed on for the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// Replies to reads and to questions for block status are structured.
    pub structured: bool,
    /// Block status of `base:allocation` can be asked for.
    pub allocation: bool,
}

/// The handshake on one connection.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// Fed, and not yet understood.
    got: Vec<u8>,
    /// To be sent before all else.
    send: Vec<u8>,
    at: At,
    /// Whether zeroes follow the answer to EXPORT_NAME.
    zeroes: bool,
    /// Options so far.
    options: u32,
    agreed: Agreed,
    /// The export of which the client wants the allocation.
    chosen: Option<String>,
}

/// What comes next.
#[derive(Debug, Clone)]
enum At {
    /// The client's flags.
    Flags,
    /// An option.
    Option,
    /// The data of an option.
    Data {
        option: u32,
        len: usize,
    },
    /// Data that nobody wants.
    Skip {
        option: u32,
        left: usize,
    },
    /// The caller's answer to [`Step::List`].
    List,
    /// The caller's answer to [`Step::Export`].
    Export(Wish),
    /// The caller's answer to [`Step::Contexts`].
    Contexts {
        option: u32,
        query: Query,
    },
    Begin,
    End(Option<&'static str>),
}

/// What a client wants to know about which export.
#[derive(Debug, Clone)]
struct Wish {
    option: u32,
    name: String,
    canonical: bool,
    description: bool,
    block: bool,
}

impl Wish {
    /// Only the export, without a word about it.
    fn named(option: u32, name: &str) -> Wish {
        let name = name.to_owned();
        Wish { option, name, canonical: false, description: false, block: false }
    }

    /// Reads the data of INFO or GO: a name, and a list of what the client asks about. Unknown entries are ignored.
    fn decode(option: u32, data: &[u8]) -> Option<Wish> {
        let (len, rest) = data.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (name, rest) = rest.split_at_checked(len)?;
        let (count, rest) = rest.split_first_chunk::<2>()?;
        let (kinds, odd) = rest.as_chunks::<2>();
        if !odd.is_empty() || kinds.len() != usize::from(u16::from_be_bytes(*count)) {
            return None;
        }
        let asks = |kind: u16| kinds.contains(&kind.to_be_bytes());
        Some(Wish {
            canonical: asks(info::NAME),
            description: asks(info::DESCRIPTION),
            block: asks(info::BLOCK_SIZE),
            ..Wish::named(option, text(name)?)
        })
    }
}

/// A string of the protocol: UTF-8 of at most [`TEXT`] bytes, without NUL.
fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > TEXT || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The first [`TEXT`] bytes, or fewer so that no character is cut.
fn shortened(text: &str) -> &str {
    let end = (0..=TEXT.min(text.len())).rev().find(|&n| text.is_char_boundary(n));
    end.and_then(|n| text.get(..n)).unwrap_or_default()
}

impl Default for Handshake {
    fn default() -> Self {
        Handshake::new()
    }
}

impl Handshake {
    /// The begin of a connection. The first [step](Handshake::step) is to send the greeting.
    pub fn new() -> Handshake {
        let send = [&GREETING_MAGIC[..], &OPTION_MAGIC, &[0, FIXED_NEWSTYLE | NO_ZEROES]].concat();
        Handshake {
            got: Vec::new(),
            send,
            at: At::Flags,
            zeroes: true,
            options: 0,
            agreed: Agreed::default(),
            chosen: None,
        }
    }

    /// Takes bytes that the client sent, cut anywhere. After [`Step::End`] they are dropped.
    pub fn feed(&mut self, bytes: &[u8]) {
        if !matches!(self.at, At::End(_)) {
            self.got.extend_from_slice(bytes);
        }
    }

    /// What is to be done next. A question comes again until it is answered; the last step comes again for ever.
    ///
    /// Each run of bytes to be sent comes once, before the step that depends on it.
    pub fn step(&mut self) -> Step {
        loop {
            if !self.send.is_empty() {
                return Step::Send(mem::take(&mut self.send));
            }
            let next = match self.at {
                At::Flags => self.flags(),
                At::Option => self.option(),
                At::Data { option, len } => self.data(option, len),
                At::Skip { option, left } => self.skip(option, left),
                At::List => return Step::List,
                At::Export(ref wish) => {
                    let go = wish.option != opt::INFO;
                    return Step::Export { name: wish.name.clone(), go };
                }
                At::Contexts { ref query, .. } => {
                    return Step::Contexts { name: query.name.clone() };
                }
                At::Begin => return Step::Begin,
                At::End(why) => return Step::End(why),
            };
            match next {
                Some(at) => self.at = at,
                None => return Step::More,
            }
        }
    }

    /// Answers [`Step::List`] with the name and description of each export, in this order; without the question it
    /// does nothing. A name that is longer than [`TEXT`], or has a NUL, is left out: no client could ask for it. Of a
    /// description, which has no NUL, at most [`TEXT`] bytes are sent.
    pub fn list(&mut self, all: &[(&str, &str)]) {
        if !matches!(self.at, At::List) {
            return;
        }
        for (name, description) in all {
            let Some(name) = text(name.as_bytes()) else { continue };
            let len = u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes();
            let description = shortened(description).as_bytes();
            self.reply(opt::LIST, rep::SERVER, &[&len, name.as_bytes(), description]);
        }
        self.reply(opt::LIST, rep::ACK, &[]);
        self.at = At::Option;
    }

    /// Answers [`Step::Export`]; without the question it does nothing. `None`: there is no such export, or not for this
    /// client. A client that used EXPORT_NAME cannot be told so: the connection ends.
    pub fn export(&mut self, export: Option<&Export>) {
        let wish = match mem::replace(&mut self.at, At::Option) {
            At::Export(wish) => wish,
            other => {
                self.at = other;
                return;
            }
        };
        let old = wish.option == opt::EXPORT_NAME;
        let Some(e) = export else {
            if old {
                self.at = At::End(Some("the client wants an export that there is not"));
            } else {
                self.reply(wish.option, rep::ERR_UNKNOWN, &[]);
            }
            return;
        };
        let one_piece = if self.agreed.structured { flags::DF } else { 0 };
        let [.., f0, f1] = (e.flags | one_piece | flags::HAS_FLAGS).to_be_bytes();
        if old {
            self.send.extend_from_slice(&e.len.to_be_bytes());
            self.send.extend_from_slice(&[f0, f1]);
            self.send.resize(self.send.len() + if self.zeroes { ZEROES } else { 0 }, 0);
        } else {
            self.inform(&wish, e, [f0, f1]);
        }
        if wish.option != opt::INFO {
            self.agreed.allocation = self.chosen.as_ref() == Some(&wish.name);
            self.at = At::Begin;
        }
    }

    /// Answers [`Step::Contexts`]; without the question it does nothing. `there`: there is such an export, for this client.
    pub fn contexts(&mut self, there: bool) {
        let (option, query) = match mem::replace(&mut self.at, At::Option) {
            At::Contexts { option, query } => (option, query),
            other => {
                self.at = other;
                return;
            }
        };
        let sets = option == opt::SET_META_CONTEXT;
        let has = if sets { query.chooses_allocation() } else { query.lists_allocation() };
        if sets {
            self.chosen = (there && has).then_some(query.name);
        }
        if !there {
            return self.reply(option, rep::ERR_UNKNOWN, &[]);
        }
        if has {
            let id = if sets { ALLOCATION } else { 0 };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), contexts::ALLOCATION.as_bytes()];
            self.reply(option, rep::META_CONTEXT, &parts);
        }
        self.reply(option, rep::ACK, &[]);
    }

    /// What was agreed on, at [`Step::Begin`].
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Bytes that were fed after the handshake's last: the begin of the transmission phase.
    pub fn rest(self) -> Vec<u8> {
        self.got
    }

    /// The replies to INFO or GO.
    fn inform(&mut self, wish: &Wish, e: &Export, flags: [u8; 2]) {
        let option = wish.option;
        let mut tell = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            self.reply(option, rep::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        tell(info::EXPORT, [&e.len.to_be_bytes(), &flags, &[]]);
        if let (true, Some(name)) = (wish.canonical, text(e.name.as_bytes())) {
            tell(info::NAME, [name.as_bytes(), &[], &[]]);
        }
        if wish.description && !e.description.is_empty() {
            tell(info::DESCRIPTION, [shortened(&e.description).as_bytes(), &[], &[]]);
        }
        if wish.block {
            let (least, preferred, largest) = e.block;
            let sizes = [least, preferred, largest].map(u32::to_be_bytes);
            tell(info::BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        }
        self.reply(option, rep::ACK, &[]);
    }

    /// One reply: which option it answers, what it says, and its data.
    fn reply(&mut self, option: u32, kind: u32, data: &[&[u8]]) {
        let len: usize = data.iter().map(|d| d.len()).sum();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.send.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
        for field in [option, kind, len] {
            self.send.extend_from_slice(&field.to_be_bytes());
        }
        data.iter().for_each(|d| self.send.extend_from_slice(d));
    }

    /// Takes so many bytes off the front of what was fed, if they are there.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.got.first_chunk::<N>()?;
        self.got.drain(..N);
        Some(taken)
    }

    /// Reads the client's flags. It says what comes next, as those after it do: `None` if more bytes are needed.
    fn flags(&mut self) -> Option<At> {
        let [0, 0, 0, flags] = self.take::<4>()? else {
            return Some(At::End(Some("the client has flags that are not known")));
        };
        if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Some(At::End(Some("the client has flags that are not known")));
        }
        // A client without FIXED_NEWSTYLE is served all the same, as the protocol allows.
        self.zeroes = flags & NO_ZEROES == 0;
        Some(At::Option)
    }

    /// Reads the begin of an option.
    fn option(&mut self) -> Option<At> {
        let head = self.take::<OPTION_HEAD>()?;
        let [magic @ .., o0, o1, o2, o3, l0, l1, l2, l3] = head;
        if magic != OPTION_MAGIC {
            return Some(At::End(Some("no option begins where one should")));
        }
        if self.options == OPTIONS {
            return Some(At::End(Some("the client sends too many options")));
        }
        self.options += 1;
        let option = u32::from_be_bytes([o0, o1, o2, o3]);
        let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        Some(if option == opt::EXPORT_NAME && len > TEXT {
            At::End(Some(NO_NAME))
        } else if len <= OPTION_DATA {
            At::Data { option, len }
        } else if len <= OPTION_SKIP {
            At::Skip { option, left: len }
        } else {
            At::End(Some("the data of an option are far too long"))
        })
    }

    /// Drops data of an option that are too long.
    fn skip(&mut self, option: u32, left: usize) -> Option<At> {
        let n = left.min(self.got.len());
        self.got.drain(..n);
        if n < left {
            self.at = At::Skip { option, left: left - n };
            return None;
        }
        if option == opt::SET_META_CONTEXT {
            // It takes back what was chosen before, also when it fails.
            self.chosen = None;
        }
        self.reply(option, rep::ERR_TOO_BIG, &[]);
        Some(At::Option)
    }

    /// Reads the data of an option, and answers if the caller need not be asked.
    fn data(&mut self, option: u32, len: usize) -> Option<At> {
        if self.got.len() < len {
            return None;
        }
        let rest = self.got.split_off(len);
        let data = mem::replace(&mut self.got, rest);
        let error = match option {
            opt::EXPORT_NAME => {
                return Some(match text(&data) {
                    Some(name) => At::Export(Wish::named(option, name)),
                    None => At::End(Some(NO_NAME)),
                });
            }
            // Data with it are ignored, as the protocol advises.
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                return Some(At::End(None));
            }
            opt::LIST if data.is_empty() => return Some(At::List),
            opt::LIST => rep::ERR_INVALID,
            opt::STRUCTURED_REPLY if data.is_empty() && !self.agreed.structured => {
                self.agreed.structured = true;
                self.reply(option, rep::ACK, &[]);
                return Some(At::Option);
            }
            opt::STRUCTURED_REPLY => rep::ERR_INVALID,
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                if option == opt::SET_META_CONTEXT {
                    self.chosen = None;
                }
                match Query::decode(&data).filter(|_| self.agreed.structured) {
                    Some(query) => return Some(At::Contexts { option, query }),
                    None => rep::ERR_INVALID,
                }
            }
            opt::INFO | opt::GO => match Wish::decode(option, &data) {
                Some(wish) => return Some(At::Export(wish)),
                None => rep::ERR_INVALID,
            },
            _ => rep::ERR_UNSUP,
        };
        self.reply(option, error, &[]);
        Some(At::Option)
    }

    /// Bytes that are held, of those that were fed.
    pub(crate) fn held(&self) -> usize {
        self.got.len()
    }
}

#[cfg(test)]
mod tests;
