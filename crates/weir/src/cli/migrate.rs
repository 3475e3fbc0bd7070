//! `weir migrate`, and what `weir volume adopt` and `export` do.

use super::output::{self, Table};
use super::parse;
use super::progress::{self, Progress, Step};
use super::volume::{compressed, deduplicated};
use clap::{Args, Subcommand};
use std::time::Duration;
use weir_control::client::Client;
use weir_control::live::MigrationLive;
use weir_control::model::{
    AdoptSpec, Compressor, FormSpec, KeySource, MigrationPatch, MigrationSpec, Overwrite,
};
use weir_control::units::format_size;
use weir_control::{Code, Error};

/// How often progress is asked for.
const ASK: Duration = Duration::from_millis(200);

/// How a migration is to be done.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Bytes a second at most [default: as fast as possible].
    #[arg(long, value_parser = parse::size)]
    rate: Option<u64>,
    /// Do not read both sides and compare before the cut-over.
    #[arg(long)]
    no_verify: bool,
    /// Wait for the end and show how far it is; exit code 1 if it failed, 4 if it was cancelled.
    #[arg(long)]
    pub(super) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The volume.
    volume: String,
    /// The pool to move it to.
    #[arg(long, value_name = "POOL")]
    to: String,
    /// How to lay it out there; left out: what suits the pool.
    #[arg(long, short, value_enum)]
    kind: Option<super::volume::Kind>,
    /// Keep its data encrypted there; takes --key. What is encrypted already stays so without being told.
    #[arg(long, requires = "key")]
    encrypt: bool,
    /// Where the key comes from: file:/PATH, or command:/PATH ARGUMENTS.
    #[arg(long, value_name = "SOURCE", requires = "encrypt", value_parser = parse::key_source)]
    key: Option<KeySource>,
    /// Keep an encrypted volume's data as it is there, for whoever has the devices to read.
    #[arg(long, conflicts_with = "encrypt")]
    decrypt: bool,
    /// Compress it there by lz4, or zstd, or zstd:LEVEL. What is compressed already stays so without being told.
    #[arg(long, value_name = "ALGORITHM")]
    compress: Option<Compressor>,
    /// Bytes that are compressed together, a power of two from 8k to 128k [default: 32k].
    #[arg(long, value_parser = parse::size, requires = "compress")]
    compress_chunk: Option<u64>,
    /// Keep equal data only once there. What is deduplicated already stays so without being told.
    #[arg(long)]
    dedup: bool,
    /// Bytes that are compared as one, a power of two from 4k to 128k [default: 4k, or that of compression].
    #[arg(long, value_parser = parse::size, requires = "dedup")]
    dedup_chunk: Option<u64>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The volume.
    name: String,
    /// The file or block device that it becomes, byte by byte.
    #[arg(long, value_name = "PATH")]
    to: String,
    /// What may be destroyed that is there, in the words of the refusal without it, e.g. ext4,gpt.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', conflicts_with = "create")]
    overwrite: Vec<String>,
    /// Make the file; it must not be there yet.
    #[arg(long)]
    create: bool,
    /// In the end take the volume out of Weir's service, so that the file or device can be taken away.
    #[arg(long)]
    detach: bool,
    /// Leave to write what an encrypted volume holds for everybody to read.
    #[arg(long)]
    decrypt: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// The volume's name.
    name: String,
    /// The file or block device.
    #[arg(long)]
    path: String,
    /// Logical block size in bytes: 512 or 4096 [default: the device's, 512 for a file].
    #[arg(long, value_parser = super::volume::block_size)]
    block_size: Option<u32>,
    /// Hosts may only read it, and it is opened for reading only.
    #[arg(long)]
    read_only: bool,
    /// Unit serial number [default: made from the world-wide name].
    #[arg(long)]
    serial: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Move a volume to another pool while hosts use it.
    #[command(after_help = "Examples:\n  weir migrate start db-01 --to safe --wait\n  \
        weir migrate start db-01 --to fast --rate 200M")]
    Start(Start),
    /// List migrations: those under way, and the last ones that ended.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir migrate list")]
    List,
    /// Show how far a migration is, or how the last one ended.
    #[command(after_help = "Example:\n  weir migrate show db-01 --json")]
    Show {
        /// The volume.
        volume: String,
    },
    /// Give a migration another rate.
    #[command(after_help = "Examples:\n  weir migrate rate db-01 50M\n  weir migrate rate db-01 0")]
    Rate {
        /// The volume.
        volume: String,
        /// Bytes a second at most; 0: as fast as possible.
        #[arg(value_parser = parse::size)]
        rate: u64,
    },
    /// Let a migration wait. Hosts' writes still go to both sides.
    #[command(after_help = "Example:\n  weir migrate pause db-01")]
    Pause {
        /// The volume.
        volume: String,
    },
    /// Let a migration that waits go on.
    #[command(after_help = "Example:\n  weir migrate resume db-01")]
    Resume {
        /// The volume.
        volume: String,
    },
    /// End a migration before its cut-over: the volume stays where it is.
    #[command(after_help = "Example:\n  weir migrate cancel db-01")]
    Cancel {
        /// The volume.
        volume: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Start(args) => {
                let spec = MigrationSpec {
                    pool: Some(args.to),
                    kind: args.kind.map(Into::into),
                    form: FormSpec {
                        compression: compressed(args.compress, args.compress_chunk),
                        deduplication: deduplicated(args.dedup, args.dedup_chunk),
                        ..super::volume::encrypted(args.key)
                    },
                    decrypt: args.decrypt,
                    ..args.how.spec()
                };
                start(client, &args.volume, &spec, args.how.wait, json).await
            }
            Command::List => output::show(json, &client.migrations().await?, |m| table(m)),
            Command::Show { volume } => {
                output::show(json, &client.migration(&volume).await?, details)
            }
            Command::Rate { volume, rate } => {
                let patch = MigrationPatch { rate: Some(rate), ..MigrationPatch::default() };
                let m = client.tune_migration(&volume, &patch).await?;
                output::show(json, &m, |m| match m.rate {
                    0 => format!("volume {volume} moves as fast as it can"),
                    r => format!("volume {volume} moves with {}/s at most", format_size(r)),
                })
            }
            Command::Pause { volume } => wait(client, &volume, true, json).await,
            Command::Resume { volume } => wait(client, &volume, false, json).await,
            Command::Cancel { volume } => {
                let m = client.cancel_migration(&volume).await?;
                output::show(json, &m, |m| format!("volume {volume} stays in {}", m.from))
            }
        }
    }
}

async fn wait(client: Client, volume: &str, paused: bool, json: bool) -> anyhow::Result<()> {
    let patch = MigrationPatch { paused: Some(paused), ..MigrationPatch::default() };
    let m = client.tune_migration(volume, &patch).await?;
    output::show(json, &m, |m| {
        format!("the migration of volume {volume} {}", if m.paused { "waits" } else { "goes on" })
    })
}

impl How {
    pub(super) fn spec(&self) -> MigrationSpec {
        MigrationSpec { rate: self.rate, no_verify: self.no_verify, ..MigrationSpec::default() }
    }
}

/// `weir volume export`.
pub(crate) async fn export(client: Client, args: Export, json: bool) -> anyhow::Result<()> {
    if !args.overwrite.is_empty() {
        let what = args.overwrite.join(", ");
        output::confirm(args.yes, &format!("Destroy what is in {}: {what}?", args.to))?;
    }
    let spec = MigrationSpec {
        path: Some(args.to),
        create: args.create,
        detach: args.detach,
        decrypt: args.decrypt,
        overwrite: Overwrite(args.overwrite),
        ..args.how.spec()
    };
    start(client, &args.name, &spec, args.how.wait, json).await
}

/// `weir volume adopt`.
pub(crate) async fn adopt(client: Client, args: Adopt, json: bool) -> anyhow::Result<()> {
    let spec = AdoptSpec {
        name: args.name,
        path: args.path,
        block_size: args.block_size,
        read_only: args.read_only,
        serial: args.serial,
    };
    let volume = client.adopt(&spec).await?;
    output::show(json, &volume, |v| {
        format!("volume {} is {}: {}, naa.{}", v.name, spec.path, format_size(v.size), v.naa)
    })
}

pub(super) async fn start(
    client: Client,
    volume: &str,
    spec: &MigrationSpec,
    wait: bool,
    json: bool,
) -> anyhow::Result<()> {
    let mut m = client.start_migration(volume, spec).await?;
    if !wait {
        return output::show(json, &m, |m| {
            format!(
                "volume {volume} moves to {}; `weir migrate show {volume}` tells how far it is",
                m.to
            )
        });
    }
    let over = async {
        let mut progress = Progress::new(volume, json);
        while !m.is_over() {
            progress.show(step(&m));
            tokio::time::sleep(ASK).await;
            m = client.migration(volume).await?;
        }
        Ok::<_, Error>(m)
    };
    let ends = format!(
        "`weir migrate show {volume}` tells how far, `weir migrate cancel {volume}` ends it"
    );
    let m = progress::while_wanted(json, ends, over).await?;
    output::show(json, &m, |m| {
        format!(
            "volume {volume}: {}, {} of {} copied in {} s",
            ended(m),
            format_size(m.copied),
            format_size(m.total),
            m.seconds
        )
    })?;
    let reason = m.reason.unwrap_or_default();
    match m.state.as_str() {
        "done" => Ok(()),
        "cancelled" => Err(Error::new(
            Code::MigrationCancelled,
            format!("the migration of volume {volume} was cancelled"),
        )
        .hint("the volume is where it was")
        .into()),
        _ => Err(Error::new(
            Code::MigrationFailed,
            format!("the migration of volume {volume} failed"),
        )
        .because(reason)
        .hint("the volume is where it was, with all its data; see to the cause and start again")
        .into()),
    }
}

fn step(m: &MigrationLive) -> Step {
    let paused = m.paused.then(|| "paused".to_owned());
    Step {
        doing: m.state.clone(),
        done: m.done,
        total: Some(m.total),
        rate: Some(m.pace.bytes_per_second),
        left: m.pace.seconds_left,
        note: paused.or(m.reason.clone()),
    }
}

/// How fast it goes on, and how long yet; nothing of what is over.
fn goes(m: &MigrationLive) -> [String; 2] {
    let dash = || "-".to_owned();
    if m.is_over() {
        return [dash(), dash()];
    }
    let left = m.pace.seconds_left.map_or_else(dash, progress::seconds);
    [progress::rate(m.pace.bytes_per_second), left]
}

fn ended(m: &MigrationLive) -> String {
    match m.state.as_str() {
        "done" => format!("moved to {}", m.to),
        other => format!("{other}, still in {}", m.from),
    }
}

fn limit(m: &MigrationLive) -> String {
    if m.rate == 0 { "no limit".into() } else { format!("{}/s", format_size(m.rate)) }
}

fn state(m: &MigrationLive) -> String {
    match (m.paused && !m.is_over(), m.is_over()) {
        (true, _) => format!("{} (paused)", m.state),
        _ => m.state.clone(),
    }
}

fn table(all: &[MigrationLive]) -> String {
    if all.is_empty() {
        return "no migrations; `weir migrate start --help` shows how to begin one".into();
    }
    let mut t = Table::new(&[
        "VOLUME", "FROM", "TO", "STATE", ">DONE", ">COPIED", ">RATE", ">LEFT", "LIMIT", "REASON",
    ]);
    for m in all {
        let [rate, left] = goes(m);
        t.row(vec![
            m.volume.clone(),
            m.from.clone(),
            m.to.clone(),
            state(m),
            format!("{} %", progress::percent(m.done, m.total)),
            format_size(m.copied),
            rate,
            left,
            limit(m),
            m.reason.clone().unwrap_or_default(),
        ]);
    }
    t.text()
}

fn details(m: &MigrationLive) -> String {
    let percent = progress::percent(m.done, m.total);
    let [rate, left] = goes(m);
    let mut fields = vec![
        ("volume", m.volume.clone()),
        ("from", m.from.clone()),
        ("to", m.to.clone()),
        ("state", state(m)),
        ("done", format!("{} of {} ({percent} %)", format_size(m.done), format_size(m.total))),
        ("copied", format!("{} that were not empty", format_size(m.copied))),
        ("rate", rate),
        ("left", left),
        ("limit", limit(m)),
        ("verify", if m.verify { "before the cut-over" } else { "no" }.into()),
        ("time", progress::seconds(m.seconds)),
    ];
    if m.detach {
        fields.push(("in the end", "out of Weir's service".into()));
    }
    if let Some(why) = &m.reason {
        fields.push(("reason", why.clone()));
    }
    output::fields(&fields)
}
