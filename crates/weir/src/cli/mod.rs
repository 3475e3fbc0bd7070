//! The command line.

pub(crate) mod args;
mod connect;
mod declared;
mod events;
mod exit_codes;
mod graph;
mod host;
mod key;
mod layer;
pub(crate) mod log;
mod map;
mod migrate;
pub(crate) mod output;
mod parse;
mod policy;
mod pool;
pub(crate) mod progress;
mod scrub;
mod snapshot;
mod status;
mod table;
pub(crate) mod target;
mod terminal;
mod top;
mod volume;

use crate::run;
use clap::{CommandFactory, Parser, Subcommand};
use connect::Connection;
pub(crate) use parse::DEFAULT_PORT;
use std::process::ExitCode;
use weir_control::Error;

/// A user-space storage server: pools, volumes, hosts, and an SRP target over software iWARP or RDMA adapters.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  weir quickstart\n  weir serve --config /etc/weir.toml\n  \
        weir volume create db-01 --size 100G\n  weir help exit-codes"
)]
struct Cli {
    /// Print JSON instead of text, and errors as JSON on standard error.
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    connection: Connection,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a data directory until Ctrl-C or SIGTERM.
    Serve(args::ServeArgs),
    /// From nothing to a served and verified volume, with a short benchmark.
    Quickstart(args::QuickstartArgs),
    /// Storage that volumes are made of.
    #[command(subcommand, visible_alias = "pools")]
    Pool(pool::Command),
    /// Volumes: create, resize, delete.
    #[command(subcommand, visible_alias = "volumes")]
    Volume(volume::Command),
    /// Keys of encrypted volumes.
    #[command(subcommand, visible_alias = "keys")]
    Key(key::Command),
    /// Snapshots of volumes of protected pools.
    #[command(subcommand, visible_alias = "snapshots")]
    Snapshot(snapshot::Command),
    /// Volumes made of snapshots.
    #[command(subcommand)]
    Clone(snapshot::CloneCommand),
    /// Volumes that move to another pool, file or disk while hosts use them.
    #[command(subcommand, visible_alias = "migrations")]
    Migrate(migrate::Command),
    /// Verification of protected pools while they are served.
    #[command(subcommand)]
    Scrub(scrub::Command),
    /// Show the layers that a volume is made of, with what passes each.
    #[command(
        after_help = "Examples:\n  weir graph db-01\n  weir graph db-01 --format svg > db-01.svg"
    )]
    Graph(graph::Args),
    /// Layers that come and go over volumes while hosts use them.
    #[command(subcommand, visible_alias = "layers")]
    Layer(layer::Command),
    /// Hosts: sets of initiator ports.
    #[command(subcommand, visible_alias = "hosts")]
    Host(host::Command),
    /// Which host sees which volume under which LUN.
    #[command(subcommand, visible_alias = "maps")]
    Map(map::Command),
    /// Target ports, and how hosts attach to each.
    #[command(subcommand, visible_alias = "targets")]
    Target(target::Command),
    /// Apply a declarative configuration file to a running daemon; twice is as good as once.
    Apply(declared::Args),
    /// What the daemon serves, who is logged in, what is not well.
    Status(status::Args),
    /// Live view of volumes, hosts and reactors.
    Top(top::Args),
    /// What happened; with --follow as it happens.
    Events(events::Args),
    /// Generate load on a target and measure.
    Bench(Box<args::BenchArgs>),
    /// Ask a LUN of any SRP target who it is.
    Inquiry(args::InquiryArgs),
    /// Read from a LUN of any SRP target.
    Read(args::ReadArgs),
    /// Write to a LUN of any SRP target.
    Write(args::WriteArgs),
    /// Copy between files and LUNs of SRP targets.
    Copy(args::CopyArgs),
    /// Verify a protected pool that no daemon serves, reading only.
    Check(args::CheckArgs),
    /// Explain any block of a protected pool's devices.
    Dump(args::DumpArgs),
    /// Give this host a disk: a volume of a Weir or SRP target.
    Attach(Box<args::AttachArgs>),
    /// Take an attached disk away.
    Detach(args::DetachArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  weir completions bash > /etc/bash_completion.d/weir")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the table of exit codes and error codes.
    #[command(after_help = exit_codes::table())]
    ExitCodes,
}

/// Reads the command line, runs the command and gives the exit code.
pub(crate) fn main() -> ExitCode {
    weir_control::store::explain_damage();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let json = cli.json;
    dispatch(cli).unwrap_or_else(|e| fail(&e, json))
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { json, mut connection, command } = cli;
    connection.json = json;
    let done = |result: anyhow::Result<()>| result.map(|()| ExitCode::SUCCESS);
    match command {
        Command::Serve(mut args) => {
            args.json = json;
            args.data_dir = connection.data_dir;
            args.dir_is_meant = is_given("--data-dir");
            log::log_to_stderr("info")?;
            run::serve(args)
        }
        Command::Quickstart(mut args) => {
            args.json = json;
            args.data_dir = connection.data_dir;
            log::log_to_stderr("warn")?;
            run::quickstart(args)
        }
        Command::Bench(mut args) => {
            args.json = json;
            if let Some(args::BenchCommand::Scenario(s)) = &mut args.command {
                s.json = json;
            }
            args.check()?;
            run::bench(*args)
        }
        Command::Inquiry(mut args) => {
            args.json = json;
            run::inquiry(args)
        }
        Command::Read(mut args) => {
            args.json = json;
            run::read(args)
        }
        Command::Write(mut args) => {
            args.json = json;
            run::write(args)
        }
        Command::Copy(mut args) => {
            args.json = json;
            args.check()?;
            run::copy(args)
        }
        Command::Check(mut args) => {
            args.json = json;
            run::check(args)
        }
        Command::Dump(mut args) => {
            args.json = json;
            run::dump(args)
        }
        Command::Key(c) => done(c.run(json)),
        Command::Snapshot(c) => done(connection.run(|client| c.run(client, json))),
        Command::Clone(c) => done(connection.run(|client| c.run(client, json))),
        Command::Migrate(c) => done(connection.run(|client| c.run(client, json))),
        Command::Scrub(c) => done(connection.run(|client| c.run(client, json))),
        Command::Graph(c) => done(connection.run(|client| c.run(client, json))),
        Command::Layer(c) => done(connection.run(|client| c.run(client, json))),
        Command::Attach(mut args) => {
            args.json = json;
            args.check()?;
            run::attach(*args, || Ok(connection.client()))
        }
        Command::Detach(mut args) => {
            args.json = json;
            run::detach(args)
        }
        Command::Pool(c) => done(connection.run(|client| c.run(client, json))),
        Command::Volume(c) => done(connection.run(|client| c.run(client, json))),
        Command::Host(c) => done(connection.run(|client| c.run(client, json))),
        Command::Map(c) => done(connection.run(|client| c.run(client, json))),
        Command::Target(c) => done(connection.run(|client| c.run(client, json))),
        Command::Apply(c) => done(connection.run(|client| c.run(client, json))),
        Command::Status(c) => done(connection.run(|client| c.run(client, json))),
        Command::Top(c) => done(connection.run(|client| c.run(client, json))),
        Command::Events(c) => done(connection.run(|client| c.run(client, json))),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
            done(output::text(&String::from_utf8_lossy(&script)))
        }
        Command::ExitCodes if json => done(output::json(&exit_codes::json())),
        Command::ExitCodes => done(output::text(&exit_codes::table())),
    }
}

/// Whether an option is on the command line itself.
fn is_given(option: &str) -> bool {
    let is_it = |a: std::ffi::OsString| {
        let a = a.to_string_lossy();
        a.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    std::env::args_os().any(is_it)
}

/// What is wrong with the command line; help and version, which come this way too, are output.
fn usage(e: &clap::Error) -> ExitCode {
    // What could not be read as a whole may have it all the same.
    let json = std::env::args_os().any(|a| a == "--json");
    if !json || !e.use_stderr() {
        drop(e.print());
        return u8::try_from(e.exit_code()).unwrap_or(2).into();
    }
    let text = e.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let (message, reason) = text.split_once('\n').unwrap_or((text, ""));
    let problem = Error::new(weir_control::Code::InvalidRequest, message.trim())
        .because(reason.trim())
        .hint("`weir help` shows the commands, and --help behind one how it is used");
    fail(&problem.into(), true)
}

/// Prints an error (what, why, what to do) and gives the exit code.
fn fail(e: &anyhow::Error, json: bool) -> ExitCode {
    if output::is_broken_pipe(e) {
        // Whoever reads our output has seen enough.
        return ExitCode::SUCCESS;
    }
    let known = e.downcast_ref::<Error>();
    let code = known.map_or(1, |e| e.kind().exit_code());
    if json || log::is_json_on_stderr() {
        let problem = known
            .cloned()
            .unwrap_or_else(|| Error::new(weir_control::Code::Internal, e.to_string()));
        let problem = serde_json::json!({ "error": problem.problem(), "exit_code": code });
        say(&format!("{problem}\n"));
        return code.into();
    }
    let text = match known {
        None => format!("error: {e:#}\n"),
        Some(e) => {
            let mut text = format!("error: {}\n", e.message);
            if !e.reason.is_empty() {
                text += &format!("   why: {}\n", e.reason.replace('\n', "\n        "));
            }
            if !e.hint.is_empty() {
                text += &format!("    do: {}\n", e.hint);
            }
            text
        }
    };
    say(&text);
    code.into()
}

/// To standard error, after what was logged. That nobody reads it changes no exit code.
pub(crate) fn say(text: &str) {
    if !log::say(text) {
        drop(std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()));
    }
}

#[cfg(test)]
mod tests;
