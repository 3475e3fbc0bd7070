//! `weir write`.

use super::flow::{self, End, Plan};
use super::remote::{self, Remote};
use crate::cli::args::WriteArgs;
use crate::cli::output;
use std::process::ExitCode;
use weir_control::units::format_size;

/// Runs the command.
pub(crate) fn write(args: WriteArgs) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let login = remote::login(&args.login, &args.lun.target, None);
    let moved = remote::on_reactor(&login, move |provider| {
        Box::pin(async move {
            let from = if args.zero { End::Zeros } else { flow::input(&args.input)? };
            let unit = Remote::open(&provider, args.lun.wanted(), &args.login, args.flow.multipath)
                .await?;
            flow::check_range(&unit, args.offset, 0)?;
            let room = unit.len() - args.offset;
            let wanted = match (&from, args.length) {
                (_, Some(n)) => n,
                (End::File(f), None) => {
                    f.metadata().map_or(room, |m| if m.is_file() { m.len() } else { room })
                }
                _ => room,
            };
            flow::check_range(&unit, args.offset, unit.round_up(wanted))?;
            let plan = Plan {
                to: args.offset,
                exact: args.length.is_some(),
                verify: args.verify,
                quiet: json,
                ..Plan::new(&args.flow, &unit, wanted)?
            };
            flow::run(from, End::Unit(unit), plan).await
        })
    })?;
    output::show(json, &moved, |m| {
        let verified = if m.verified_bytes > 0 { ", read back and compared" } else { "" };
        let size = format_size(m.bytes);
        format!("{size} ({} bytes) written{verified} in {:.2} s", m.bytes, m.seconds)
    })?;
    Ok(ExitCode::SUCCESS)
}
