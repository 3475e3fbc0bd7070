//! What the commands that need the data path do.

mod bench;
mod copy;
mod flow;
mod inquiry;
mod quickstart;
mod read;
mod remote;
mod serve;
mod write;

pub(crate) use bench::bench;
pub(crate) use copy::copy;
pub(crate) use inquiry::inquiry;
pub(crate) use quickstart::quickstart;
pub(crate) use read::read;
pub(crate) use serve::serve;
pub(crate) use write::write;

use weir_control::{Code, Error};

/// The error of a command whose data path is not part of this build.
fn absent(command: &str) -> anyhow::Error {
    Error::new(Code::Unsupported, format!("`weir {command}` is not in this build yet"))
        .because("the data path that it needs is not linked in")
        .hint("build a later version from source")
        .into()
}
