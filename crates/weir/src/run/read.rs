//! `weir read`.

use super::flow::{self, End, Plan};
use super::remote::{self, Remote};
use crate::cli::args::ReadArgs;
use crate::cli::output;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use weir_control::{Code, Error};

/// Runs the command.
pub(crate) fn read(args: ReadArgs) -> anyhow::Result<ExitCode> {
    let to_stdout = args.output == Path::new("-");
    if args.json && to_stdout {
        return Err(Error::new(
            Code::InvalidRequest,
            "the data and the summary would both go to standard output",
        )
        .hint("name a file with --output")
        .into());
    }
    let (json, hex) = (args.json, args.hex);
    let login = remote::login(&args.login, &args.lun.target, None);
    let moved = remote::on_reactor(&login, move |provider| {
        Box::pin(async move {
            let unit = Remote::open(&provider, args.lun.wanted(), &args.login, args.flow.multipath)
                .await?;
            let length = args.length.unwrap_or(unit.len().saturating_sub(args.offset));
            flow::check_range(&unit, args.offset, length)?;
            let plan = Plan {
                from: args.offset,
                // What goes to the terminal is seen there.
                quiet: json || to_stdout && std::io::stdout().is_terminal(),
                ..Plan::new(&args.flow, &unit, length)?
            };
            let to = if hex { dump(args.offset) } else { flow::output(&args.output)? };
            flow::run(End::Unit(unit), to, plan).await
        })
    })?;
    if json {
        output::json(&moved)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what it is given in hexadecimal.
fn dump(offset: u64) -> End {
    End::Output(std::rc::Rc::new(std::cell::RefCell::new(Box::new(Hex { at: offset }))))
}

struct Hex {
    at: u64,
}

impl std::io::Write for Hex {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut out = std::io::stdout().lock();
        for line in bytes.chunks(16) {
            write!(out, "{:010x} ", self.at)?;
            for b in line {
                write!(out, " {b:02x}")?;
            }
            let text = line.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { '.' });
            writeln!(
                out,
                "{:pad$}  {}",
                "",
                text.collect::<String>(),
                pad = (16 - line.len()) * 3
            )?;
            self.at += line.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}
