//! `weir volume`.

use super::migrate;
use super::output::{self, Table};
use super::parse::{self, NewSize, Switch};
use super::progress;
use clap::{Args, Subcommand, ValueEnum};
use weir_control::client::Client;
use weir_control::live::{VolumeInfo, VolumeLive};
use weir_control::model::{
    CompressionSpec, Compressor, DeduplicationSpec, EncryptionSpec, FormSpec, KeySource, Layout,
    MigrationSpec, RekeySpec, SnapshotRule, VolumeKind, VolumePatch, VolumeSpec, VolumeState,
};
use weir_control::units::format_size;
use weir_control::{Code, Error};

/// How a volume is laid out.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// A sparse file of its own on a `dir` device.
    Thin,
    /// One device after the other.
    Concat,
    /// Striped over several devices.
    Stripe,
    /// On the pool's `ram` devices.
    Ram,
    /// On the pool's `null` devices.
    Null,
    /// In a protected pool: thin, with copies, checksums and snapshots.
    Protected,
}

impl From<Kind> for VolumeKind {
    fn from(kind: Kind) -> VolumeKind {
        match kind {
            Kind::Thin => VolumeKind::Thin,
            Kind::Concat => VolumeKind::Concat,
            Kind::Stripe => VolumeKind::Stripe,
            Kind::Ram => VolumeKind::Ram,
            Kind::Null => VolumeKind::Null,
            Kind::Protected => VolumeKind::Protected,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Its name.
    name: String,
    /// Size, e.g. 10G.
    #[arg(long, short, value_parser = parse::size)]
    size: u64,
    /// The pool that holds it; may be left out when there is only one.
    #[arg(long, short)]
    pool: Option<String>,
    /// How to lay it out; left out: what suits the pool.
    #[arg(long, short, value_enum)]
    kind: Option<Kind>,
    /// Logical block size in bytes: 512 or 4096.
    #[arg(long, default_value = "512", value_parser = block_size)]
    block_size: u32,
    /// Stripes: bytes on one device before the next one's turn, 4k to 1M [default: 64k].
    #[arg(long, value_parser = parse::size)]
    chunk: Option<u64>,
    /// Stripes: number of devices [default: all].
    #[arg(long)]
    columns: Option<usize>,
    /// Hosts may only read it.
    #[arg(long)]
    read_only: bool,
    /// Unit serial number [default: made from the world-wide name].
    #[arg(long)]
    serial: Option<String>,
    /// Keep its data encrypted (protected pools); takes --key.
    #[arg(long, requires = "key")]
    encrypt: bool,
    /// Where the key comes from: file:/PATH, or command:/PATH ARGUMENTS for a program that prints it.
    #[arg(long, value_name = "SOURCE", requires = "encrypt", value_parser = parse::key_source)]
    key: Option<KeySource>,
    /// Protected pools: compress the data by lz4, or zstd, or zstd:LEVEL with a level from 1 to 9.
    #[arg(long, value_name = "ALGORITHM")]
    compress: Option<Compressor>,
    /// Bytes that are compressed together, a power of two from 8k to 128k [default: 32k].
    #[arg(long, value_parser = parse::size, requires = "compress")]
    compress_chunk: Option<u64>,
    /// Protected pools: keep equal data only once.
    #[arg(long)]
    dedup: bool,
    /// Bytes that are compared as one, a power of two from 4k to 128k [default: 4k, or that of compression].
    #[arg(long, value_parser = parse::size, requires = "dedup")]
    dedup_chunk: Option<u64>,
    /// Have snapshots made periodically, e.g. every=10m,keep=24; may be given several times.
    #[arg(long = "snapshot", value_name = "RULE", value_parser = super::policy::rule)]
    snapshots: Vec<SnapshotRule>,
}

#[derive(Debug, Args)]
pub(crate) struct Rekey {
    /// The volume.
    name: String,
    /// Where the new key comes from: file:/PATH, or command:/PATH ARGUMENTS.
    #[arg(long, value_name = "SOURCE", required_unless_present = "reencrypt", value_parser = parse::key_source)]
    key: Option<KeySource>,
    /// Where the old key is now [default: where it was].
    #[arg(long, value_name = "SOURCE", conflicts_with = "reencrypt", value_parser = parse::key_source)]
    old_key: Option<KeySource>,
    /// Encrypt all data anew: the volume moves within its pool to a place with another key of its own. It must have no
    /// snapshots.
    #[arg(long)]
    reencrypt: bool,
    #[command(flatten)]
    how: migrate::How,
}

impl Rekey {
    async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        if self.reencrypt {
            let spec = MigrationSpec {
                pool: Some(client.volume(&self.name).await?.volume.pool),
                reencrypt: true,
                form: encrypted(self.key),
                ..self.how.spec()
            };
            return migrate::start(client, &self.name, &spec, self.how.wait, json).await;
        }
        let Some(key) = self.key else { return Ok(()) };
        let spec = RekeySpec { key, old_key: self.old_key };
        let volume = client.rekey(&self.name, &spec).await?;
        output::show(json, &volume, |v| {
            format!("volume {} has another key, from {}", v.name, spec.key)
        })
    }
}

/// The form of a volume with a key from there.
pub(crate) fn encrypted(key: Option<KeySource>) -> FormSpec {
    FormSpec { encryption: key.map(|key| EncryptionSpec { key }), ..FormSpec::default() }
}

/// The part of a form that compresses, if that is asked for.
pub(crate) fn compressed(
    algorithm: Option<Compressor>,
    chunk: Option<u64>,
) -> Option<CompressionSpec> {
    algorithm.map(|algorithm| CompressionSpec { algorithm, chunk })
}

/// The part of a form that deduplicates, if that is asked for.
pub(crate) fn deduplicated(asked: bool, chunk: Option<u64>) -> Option<DeduplicationSpec> {
    asked.then_some(DeduplicationSpec { chunk })
}

pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    match parse::size(text)? {
        512 => Ok(512),
        4096 => Ok(4096),
        other => Err(format!("{other} bytes cannot be a block size; use 512 or 4096")),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a volume.
    #[command(after_help = "Examples:\n  weir volume create db-01 --size 100G\n  \
        weir volume create scratch --pool fast --size 1T --kind stripe --chunk 128k\n  \
        weir volume create db-02 --pool safe --size 1T --snapshot every=10m,keep=24\n  \
        weir volume create db-03 --pool safe --size 1T --encrypt --key file:/etc/weir/db-03.key\n  \
        weir volume create logs --pool safe --size 1T --compress zstd\n  \
        weir volume create desktops --pool safe --size 10T --dedup")]
    Create(Create),
    /// List the volumes.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir volume list --pool main")]
    List {
        /// Only those of this pool.
        #[arg(long, short)]
        pool: Option<String>,
    },
    /// Show one volume with its layout.
    #[command(after_help = "Example:\n  weir volume show db-01")]
    Show {
        /// The volume.
        name: String,
    },
    /// Change a volume's size while it is in use.
    #[command(
        after_help = "Examples:\n  weir volume resize db-01 200G\n  weir volume resize db-01 +50G"
    )]
    Resize {
        /// The volume.
        name: String,
        /// The new size, or with `+` in front how much to add.
        #[arg(value_parser = parse::new_size)]
        size: NewSize,
        /// Allow a smaller size; what lies beyond the new end is lost.
        #[arg(long)]
        allow_shrink: bool,
    },
    /// Change whether hosts may write, or have a volume served that is left where a newer pool does not have it.
    #[command(
        after_help = "Examples:\n  weir volume set db-01 --read-only on\n  weir volume set db-01 --serve-here"
    )]
    Set {
        /// The volume.
        name: String,
        /// Whether hosts may only read it.
        #[arg(long, value_enum, required_unless_present = "serve_here")]
        read_only: Option<Switch>,
        /// Serve what is here, though a pool that was newer had the volume, too.
        #[arg(long, conflicts_with = "read_only")]
        serve_here: bool,
    },
    /// Change the key of an encrypted volume: at once, by wrapping the volume's own key anew; or with --reencrypt by
    /// encrypting all of its data with a new one, in the background.
    #[command(after_help = "Examples:\n  weir volume rekey db-03 --key file:/etc/weir/new.key\n  \
        weir volume rekey db-03 --old-key file:/mnt/usb/db-03.key --key file:/etc/weir/db-03.key\n  \
        weir volume rekey db-03 --reencrypt --wait")]
    Rekey(Rekey),
    /// Make a volume of a foreign file or disk, as it is. Nothing of Weir's is written to it.
    #[command(after_help = "Examples:\n  weir volume adopt old --path /dev/sdb\n  \
        weir volume adopt old --path /srv/old.img --read-only")]
    Adopt(migrate::Adopt),
    /// Move a volume to a file or disk of its own, byte by byte, while hosts use it.
    #[command(
        after_help = "Examples:\n  weir volume export db-01 --to /srv/db-01.img --create --wait\n  \
        weir volume export db-01 --to /dev/sdb --detach --wait"
    )]
    Export(migrate::Export),
    /// Delete a volume that is not mapped, with its data; a file or disk of its own keeps it.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir volume delete db-01 --yes")]
    Delete {
        /// The volume.
        name: String,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create(args) => {
                let volume = client.create_volume(&args.spec(&client).await?).await?;
                output::show(json, &volume, |v| {
                    format!(
                        "volume {} created in pool {}: {}, naa.{}",
                        v.name,
                        v.pool,
                        format_size(v.size),
                        v.naa
                    )
                })
            }
            Command::List { pool } => {
                let mut volumes = client.volumes().await?;
                if let Some(pool) = pool {
                    // A pool that does not exist is an error, not an empty list.
                    client.pool(&pool).await?;
                    volumes.retain(|v| v.volume.pool == pool);
                }
                output::show(json, &volumes, |v| table(v))
            }
            Command::Show { name } => {
                let volume = client.volume(&name).await?;
                let form = volume.volume.form();
                let live = match form.compression.is_some() || form.deduplication.is_some() {
                    true => {
                        let all = client.status().await?.live.volumes;
                        all.into_iter().find(|v| v.name == name)
                    }
                    false => None,
                };
                output::show(json, &volume, |v| details(v, live.as_ref()))
            }
            Command::Resize { name, size, allow_shrink } => {
                let size = match size {
                    NewSize::To(size) => size,
                    NewSize::By(more) => {
                        client.volume(&name).await?.volume.size.saturating_add(more)
                    }
                };
                let patch =
                    VolumePatch { size: Some(size), allow_shrink, ..VolumePatch::default() };
                let work = client.patch_volume(&name, &patch);
                let volume = progress::waited(format!("resizing {name}"), json, work).await?;
                output::show(json, &volume, |v| {
                    format!("volume {} is now {}", v.name, format_size(v.size))
                })
            }
            Command::Set { name, read_only, serve_here } => {
                let read_only = read_only.map(|r| r.is_on());
                let patch = VolumePatch { read_only, serve_here, ..VolumePatch::default() };
                let volume = client.patch_volume(&name, &patch).await?;
                output::show(json, &volume, |v| {
                    let how = match (serve_here, v.read_only) {
                        (true, _) => "served here",
                        (false, true) => "read-only",
                        (false, false) => "writable",
                    };
                    format!("volume {} is now {how}", v.name)
                })
            }
            Command::Rekey(args) => args.run(client, json).await,
            Command::Adopt(args) => migrate::adopt(client, args, json).await,
            Command::Export(args) => migrate::export(client, args, json).await,
            Command::Delete { name, yes } => {
                output::confirm(yes, &format!("Delete volume {name} and all its data?"))?;
                let left = client.delete_volume(&name).await?;
                let what = if left.is_some() { "deleting" } else { "deleted" };
                output::show(json, &serde_json::json!({ what: name }), |_| match &left {
                    None => format!("volume {name} deleted"),
                    Some(_) => format!(
                        "volume {name} is being deleted: its pool's devices take long to give its space back"
                    ),
                })
            }
        }
    }
}

impl Create {
    async fn spec(self, client: &Client) -> anyhow::Result<VolumeSpec> {
        let pool = match self.pool {
            Some(pool) => pool,
            None => only_pool(client).await?,
        };
        Ok(VolumeSpec {
            name: self.name,
            pool,
            size: self.size,
            block_size: Some(self.block_size),
            kind: self.kind.map(Into::into),
            chunk: self.chunk,
            columns: self.columns,
            read_only: self.read_only,
            serial: self.serial,
            snapshots: (!self.snapshots.is_empty()).then_some(self.snapshots),
            form: FormSpec {
                compression: compressed(self.compress, self.compress_chunk),
                deduplication: deduplicated(self.dedup, self.dedup_chunk),
                ..encrypted(self.key)
            },
        })
    }
}

async fn only_pool(client: &Client) -> anyhow::Result<String> {
    let mut pools = client.pools().await?;
    match (pools.pop(), pools.len()) {
        (Some(pool), 0) => Ok(pool.name),
        (None, _) => Err(Error::new(Code::PoolNotFound, "there is no pool to put the volume into")
            .hint("make one first, e.g. `weir pool create main --device file:/srv/weir/disk0.img:100G`")
            .into()),
        (Some(_), others) => Err(Error::new(Code::InvalidRequest, "it is not clear which pool is meant")
            .because(format!("there are {}", others + 1))
            .hint("name one with --pool; `weir pool list` shows them")
            .into()),
    }
}

fn table(volumes: &[VolumeInfo]) -> String {
    if volumes.is_empty() {
        return "no volumes; `weir volume create --help` shows how to make one".into();
    }
    let mut t = Table::new(&["VOLUME", "POOL", "KIND", ">SIZE", ">BLOCK", "STATE", "NAA"]);
    for info in volumes {
        let v = &info.volume;
        t.row(vec![
            v.name.clone(),
            v.pool.clone(),
            v.kind.as_str().into(),
            format_size(v.size),
            v.block_size.to_string(),
            state(info).into(),
            v.naa.to_string(),
        ]);
    }
    t.text()
}

fn state(info: &VolumeInfo) -> &'static str {
    let v = &info.volume;
    match v.state {
        VolumeState::Creating => "creating",
        VolumeState::Deleting => "deleting",
        VolumeState::Ready if v.newer_in.is_some() => "left behind",
        VolumeState::Ready if info.not_served.is_some() => "not served",
        VolumeState::Ready if v.migration.is_some() => "migrating",
        VolumeState::Ready if v.read_only => "read-only",
        VolumeState::Ready => "ready",
    }
}

fn details(info: &VolumeInfo, live: Option<&VolumeLive>) -> String {
    let v = &info.volume;
    let mut rows = vec![
        ("volume", v.name.clone()),
        ("pool", v.pool.clone()),
        ("kind", v.kind.as_str().into()),
        ("size", format!("{} ({} bytes)", format_size(v.size), v.size)),
        ("block size", v.block_size.to_string()),
        ("state", state(info).into()),
        ("serial", v.serial.clone()),
        ("name", format!("naa.{}", v.naa)),
    ];
    if let Some(why) = &info.not_served {
        rows.push(("why", why.clone()));
    }
    rows.push(("layout", String::new()));
    let mut text = output::fields(&rows);
    draw(&v.layout, 1, &mut text);
    if let Some(e) = &v.form().encryption {
        text.push_str(&output::fields(&[
            ("encryption", e.cipher.as_str().into()),
            ("key from", e.key.to_string()),
        ]));
    }
    if let Some(c) = v.form().compression {
        text.push_str(&output::fields(&[("compression", c.to_string())]));
    }
    if let Some(d) = v.form().deduplication {
        text.push_str(&output::fields(&[("deduplication", d.to_string())]));
    }
    text.push_str(&live.map_or(String::new(), space));
    if !v.snapshots.is_empty() {
        let rules: Vec<String> = v.snapshots.iter().map(ToString::to_string).collect();
        text.push_str(&output::fields(&[("snapshots", rules.join("  "))]));
    }
    text
}

/// What is stored of a volume, and what that would be if it were kept as it is.
fn space(v: &VolumeLive) -> String {
    let (c, d) = (v.compression, v.deduplication);
    let stored = c.map(|c| c.stored_bytes).or(d.map(|d| d.stored_bytes));
    let Some(stored) = stored else { return String::new() };
    let exact = c.is_none_or(|c| c.exact) && d.is_none_or(|d| d.exact);
    let about = if exact { "" } else { "about " };
    let less = (c.map_or(0, |c| c.saved_bytes), d.map_or(0, |d| d.saved_bytes));
    let all = stored + less.0 + less.1;
    let ratio = all as f64 / stored.max(1) as f64;
    let what = match all {
        0 => "nothing yet".into(),
        _ => {
            let (stored, all) = (format_size(stored), format_size(all));
            format!("{stored} of {about}{all} ({about}{ratio:.2} to 1)")
        }
    };
    let mut text = output::fields(&[("stored", what)]);
    if let Some(d) = d {
        let mut what = format!("{about}{} less", format_size(d.saved_bytes));
        if let Some(done) = d.recount_percent {
            what.push_str(&format!("; after a crash {done:.1} % have been counted again"));
        }
        text.push_str(&output::fields(&[("deduplicated", what)]));
    }
    if let (Some(c), Some(_)) = (c, d) {
        let what = format!("{about}{} less", format_size(c.saved_bytes));
        text.push_str(&output::fields(&[("compressed", what)]));
    }
    text
}

fn draw(layout: &Layout, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    let (line, below): (String, &[Layout]) = match layout {
        Layout::File { device, file } => (format!("file {file} on device {device}"), &[]),
        Layout::Extent { device, offset, length } => (
            format!(
                "extent of device {device}: {} at {}",
                format_size(*length),
                format_size(*offset)
            ),
            &[],
        ),
        Layout::Store { dataset, origin, .. } => {
            let of = origin.as_ref().map_or(String::new(), |o| format!(", made of {o}"));
            (format!("dataset {dataset} of the protected pool{of}"), &[])
        }
        Layout::Image { path, read_only, .. } => {
            let how = if *read_only { ", read-only" } else { "" };
            (format!("all of {path}{how}"), &[])
        }
        Layout::Concat { parts } => ("concat".into(), parts),
        Layout::Stripe { chunk, columns } => {
            (format!("stripe, chunk {}", format_size(*chunk)), columns)
        }
    };
    out.push_str(&format!("{pad}{line}\n"));
    below.iter().for_each(|l| draw(l, depth + 1, out));
}
