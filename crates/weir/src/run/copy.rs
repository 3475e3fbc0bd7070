//! `weir copy`.

use super::flow::{self, End, Plan};
use super::remote::{self, Remote, Wanted};
use crate::cli::args::{CopyArgs, Place};
use crate::cli::output;
use std::process::ExitCode;
use std::rc::Rc;
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_fabric::Provider;

/// Runs the command.
pub(crate) fn copy(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let login = remote::login(&args.login, &[], None);
    let moved = remote::on_reactor(&login, move |provider| {
        Box::pin(async move {
            let from = open(&provider, &args.source, &args, false).await?;
            let to = open(&provider, &args.destination, &args, true).await?;
            let there = len(&from)?.saturating_sub(args.source_offset);
            let length = match (args.length, &from, &to) {
                (Some(n), ..) => n,
                // It ends when it ends.
                (None, End::Input(_), End::Unit(u)) => {
                    u.len().saturating_sub(args.destination_offset)
                }
                _ => there,
            };
            if length > there {
                return Err(Error::new(
                    Code::InvalidRequest,
                    "the source is shorter than --length",
                )
                .because(format!("{there} bytes are left from --source-offset on"))
                .hint("use a smaller --length"));
            }
            if let End::Unit(u) = &from {
                flow::check_range(u, args.source_offset, u.round_up(length))?;
            }
            if let End::Unit(u) = &to {
                flow::check_range(u, args.destination_offset, u.round_up(length))?;
            }
            let unit = match (&from, &to) {
                (End::Unit(u), _) | (_, End::Unit(u)) => u.clone(),
                _ => return Err(Error::new(Code::InvalidRequest, "neither end is on a target")),
            };
            if let (End::Unit(a), End::Unit(b)) = (&from, &to)
                && overlap(args.source_offset, args.destination_offset, length)
                && same(a, b).await?
            {
                return Err(Error::new(Code::InvalidRequest, "source and destination overlap")
                    .because("both are on one unit")
                    .hint("copy by way of a file"));
            }
            if args.verify && matches!(to, End::Output(_)) {
                return Err(Error::new(
                    Code::InvalidRequest,
                    "the destination cannot be read back",
                )
                .because("it is a stream")
                .hint("leave --verify out, or copy to a file"));
            }
            let plan = Plan {
                from: args.source_offset,
                to: args.destination_offset,
                // A file may become shorter meanwhile.
                exact: args.length.is_some() || matches!(from, End::Unit(_) | End::File(_)),
                verify: args.verify,
                quiet: json,
                sparse: args.sparse,
                ..Plan::new(&args.flow, &unit, length)?
            };
            flow::run(from, to, plan).await
        })
    })?;
    output::show(json, &moved, |m| {
        let verified = if m.verified_bytes > 0 { ", read back and compared" } else { "" };
        let size = format_size(m.bytes);
        format!("{size} ({} bytes) copied{verified} in {:.2} s", m.bytes, m.seconds)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether two ranges of so many bytes have some in common.
fn overlap(a: u64, b: u64, length: u64) -> bool {
    a < b.saturating_add(length) && b < a.saturating_add(length)
}

/// Whether two ways lead to one unit, as far as units have names.
async fn same(a: &Remote, b: &Remote) -> Result<bool> {
    let name = a.name().await?;
    Ok(name.is_some() && name == b.name().await?)
}

async fn open(
    provider: &Rc<dyn Provider>,
    place: &Place,
    args: &CopyArgs,
    write: bool,
) -> Result<End> {
    let wanted = match place {
        Place::File(path) if write => return flow::output(path),
        Place::File(path) => return flow::input(path),
        Place::Lun(t, n) => Wanted { targets: t, lun: Some(*n), volume: None },
        Place::Volume(t, name) => Wanted { targets: t, lun: None, volume: Some(name) },
    };
    Ok(End::Unit(Remote::open(provider, wanted, &args.login, args.flow.multipath).await?))
}

fn len(end: &End) -> Result<u64> {
    match end {
        End::Unit(u) => Ok(u.len()),
        End::File(f) => {
            use std::io::{Seek, SeekFrom};
            // Also right for block devices.
            (&**f)
                .seek(SeekFrom::End(0))
                .map_err(|e| Error::new(Code::IoError, "the file has no length").because(e))
        }
        _ => Ok(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_that_have_a_byte_in_common() {
        for (a, b, length, common) in [
            (0, 0, 4096, true),
            (0, 4095, 4096, true),
            (0, 4096, 4096, false),
            (0, 8192, 4096, false),
            (1 << 20, 0, 1 << 30, true),
            (7, 7, 0, false),
            (u64::MAX - 512, u64::MAX - 1024, 1024, true),
            (u64::MAX - 512, u64::MAX - 1024, 512, false),
        ] {
            assert_eq!(overlap(a, b, length), common, "{a} {b} {length}");
            assert_eq!(overlap(b, a, length), common, "{b} {a} {length}");
        }
    }
}
