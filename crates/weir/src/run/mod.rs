//! What the commands that need the data path do.

mod attach;
mod bench;
mod copy;
pub(crate) mod cores;
mod flow;
mod inquiry;
mod offline;
mod quickstart;
mod read;
mod remote;
mod secret;
mod serve;
mod signals;
mod write;

pub(crate) use attach::{attach, detach};
pub(crate) use bench::bench;
pub(crate) use copy::copy;
pub(crate) use inquiry::inquiry;
pub(crate) use offline::{check, dump};
pub(crate) use quickstart::quickstart;
pub(crate) use read::read;
pub(crate) use remote::Wanted;
pub(crate) use serve::serve;
pub(crate) use write::write;
