//! `weir copy`.

use super::flow::{self, End, Plan};
use super::remote::{self, Remote};
use crate::cli::args::{CopyArgs, LoginArgs, Place};
use crate::cli::output;
use std::process::ExitCode;
use weir_control::{Code, Error, Result};
use weir_fabric_iwarp::Iwarp;

/// Runs the command.
pub(crate) fn copy(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let (crc, json) = (args.login.crc, args.json);
    let moved = remote::on_reactor(crc, move |provider| {
        Box::pin(async move {
            let from = open(&provider, &args.source, &args.login, false).await?;
            let to = open(&provider, &args.destination, &args.login, true).await?;
            let there = len(&from)?.saturating_sub(args.source_offset);
            let length = args.length.unwrap_or(there);
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
            let plan = Plan {
                from: args.source_offset,
                to: args.destination_offset,
                verify: args.verify,
                sparse: args.sparse,
                ..Plan::new(&args.flow, &unit, length)?
            };
            flow::run(from, to, plan).await
        })
    })?;
    output::show(json, &moved, |m| {
        let verified = if m.verified_bytes > 0 { ", read back and compared" } else { "" };
        format!("{} bytes copied{verified} in {:.2} s", m.bytes, m.seconds)
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn open(provider: &Iwarp, place: &Place, login: &LoginArgs, write: bool) -> Result<End> {
    let (target, lun, volume) = match place {
        Place::File(path) if write => return flow::output(path),
        Place::File(path) => return flow::input(path),
        Place::Lun(t, n) => (t, Some(*n), None),
        Place::Volume(t, name) => (t, None, Some(name.as_str())),
    };
    let channel = remote::connect(provider, *target, login, 256).await?;
    let lun = remote::find(&channel, lun, volume).await?;
    Ok(End::Unit(Remote::open(&channel, lun).await?))
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
