//! `weir detach`: the disk goes, then what was made for it at the daemon.

use super::{daemon, said};
use crate::cli::args::DetachArgs;
use crate::cli::output;
use std::process::ExitCode;
use weir_attach::detach::Detached;
use weir_attach::state::{Made, Mapped};
use weir_control::Error;

/// Runs `weir detach`.
pub(crate) fn detach(args: DetachArgs) -> anyhow::Result<ExitCode> {
    let undo = |made: &Made| {
        // What is taken from this port is taken from every attachment that has the port there by now.
        let _mine = weir_attach::port::claim(&made.initiator_port, &made.targets).map_err(said)?;
        daemon::take_back(&made.mapped, &made.initiator_port)
    };
    let done = weir_attach::detach::detach(&args.run.run_dir, &args.name, args.force, undo);
    let Detached { mut notes, seen_to, left } = done.map_err(said)?;
    notes.extend(seen_to.as_ref().map(daemon::seen_to));
    let (kept, given_up): (Vec<_>, Vec<_>) = left.into_iter().partition(|l| l.kept);
    notes.extend(given_up.iter().map(|l| daemon::stays(&l.made.mapped, &l.why)));
    let value = serde_json::json!({ "detached": args.name, "notes": notes });
    output::show(args.json, &value, |_| {
        let mut text = format!("{} is detached\n", args.name);
        for n in &notes {
            text.push_str(&format!("note: {n}\n"));
        }
        text
    })?;
    match kept.into_iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some(left) => Err(not_taken_back(&args, &left.made.mapped, left.why).into()),
    }
}

/// The disk is gone, and something else is not.
fn not_taken_back(args: &DetachArgs, m: &Mapped, why: Error) -> Error {
    let name = &args.name;
    let what =
        format!("volume {} may still be mapped to host {}, as it was for {name}", m.volume, m.host);
    let detach = args.run.detach(name);
    let by_hand = daemon::by_hand(m);
    Error::new(why.code, what).because(&why).hint(format!(
        "`{detach}` again takes it back later; or by hand: {by_hand}; `{detach} --force` then forgets it"
    ))
}
