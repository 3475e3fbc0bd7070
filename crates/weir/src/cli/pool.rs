//! `weir pool`.

mod wait;

use super::output::{self, Table};
use super::parse;
use super::progress;
use super::table::counted;
use clap::Subcommand;
use weir_control::client::Client;
use weir_control::model::{
    DeviceAction, DeviceGrow, DeviceSpec, DeviceUse, ImportReport, ImportSpec, MapMemory,
    Overwrite, PoolInfo, PoolPatch, PoolSpec, Protection, Raid,
};
use weir_control::units::format_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a pool of one or more devices.
    #[command(
        after_help = "Examples:\n  weir pool create main --device file:/srv/weir/disk0.img:100G\n  \
        weir pool create fast --device /dev/nvme1n1 --device /dev/nvme2n1\n  \
        weir pool create thin --device dir:/srv/weir/thin\n  weir pool create mem --device ram:4G\n  \
        weir pool create safe --raid 1 --device /dev/nvme1n1 --device /dev/nvme2n1\n  \
        weir pool create big --raid 10 -d /dev/sda -d /dev/sdb -d /dev/sdc -d /dev/sdd\n  \
        weir pool create two --raid 1 --device /dev/nvme1n1 --device brp://192.0.2.7/half-a"
    )]
    Create {
        /// Its name.
        name: String,
        /// A device: file:PATH:SIZE, dir:PATH, block:PATH (or /dev/…), ram:SIZE, null:SIZE, or with --raid a volume of
        /// another node, brp://HOST/VOLUME. May be repeated.
        #[arg(long = "device", short = 'd', required = true, value_parser = parse::device)]
        devices: Vec<DeviceSpec>,
        /// Protect its volumes with checksums, snapshots and copies. 0: one copy; 1: two devices with the same
        /// data; 10: pairs of copies over three or more devices. For files, block devices and volumes of other nodes.
        #[arg(long, value_name = "0|1|10")]
        raid: Option<Raid>,
        /// What may be destroyed that is on the devices, in the words of the refusal without it, e.g. ext4,gpt.
        #[arg(long, value_name = "WHAT", value_delimiter = ',')]
        overwrite: Vec<String>,
        /// Protected pools: how much of the maps of their volumes is kept in memory. lean: half a GiB for a TiB; full:
        /// all, 3.1 GiB for a TiB.
        #[arg(long, requires = "raid", value_name = "lean|full")]
        memory: Option<MapMemory>,
    },
    /// Take a protected pool over from the devices that it is on: of another node, or when the data directory was lost.
    #[command(
        after_help = "Examples:\n  weir pool import --device /dev/nvme1n1 --device /dev/nvme2n1 --dry-run\n  \
        weir pool import --device /dev/nvme1n1 --device /dev/nvme2n1\n  \
        weir pool import safe2 --prefix old- -d file:/srv/a -d file:/srv/b\n\n\
        Devices carry the names, forms and wrapped keys of volumes, and which hosts see them."
    )]
    Import {
        /// What to call it, instead of what it was called.
        name: Option<String>,
        /// A device of the pool: block:PATH (or /dev/…), file:PATH, brp://HOST/VOLUME. Repeated: all that it has, in any order.
        #[arg(long = "device", short = 'd', required = true, value_parser = parse::device)]
        devices: Vec<DeviceSpec>,
        /// Put before the names of its volumes.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Take in volumes, too, whose keys come from commands: these are run. Not for devices of unknown origin.
        #[arg(long)]
        key_commands: bool,
        /// Leave hosts and mappings out.
        #[arg(long)]
        without_hosts: bool,
        /// Though devices are missing that may have what the others have not, or some of what the pool carries cannot be read; that
        /// is lost then.
        #[arg(long)]
        force: bool,
        /// Only tell what would be done.
        #[arg(long)]
        dry_run: bool,
    },
    /// List the pools.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir pool list --json")]
    List,
    /// Show one pool with its devices.
    #[command(after_help = "Example:\n  weir pool show main")]
    Show {
        /// The pool.
        name: String,
    },
    /// Add devices to a pool, or grow those that it has.
    #[command(after_help = "Examples:\n  weir pool resize main --add /dev/nvme3n1\n  \
        weir pool resize main --grow 0:200G\n  \
        weir pool resize main --grow 1")]
    Resize {
        /// The pool.
        name: String,
        /// A device to add, written as for `weir pool create`. May be repeated.
        #[arg(long, value_parser = parse::device, required_unless_present = "grow")]
        add: Vec<DeviceSpec>,
        /// What may be destroyed that is on devices to add, or in what a disk has gained, in the words of the refusal without it,
        /// e.g. ext4,gpt.
        #[arg(long, value_name = "WHAT", value_delimiter = ',')]
        overwrite: Vec<String>,
        /// A device (see `weir pool show`) and its new size. Without one a disk grows by all that it has gained. May be repeated.
        #[arg(long, value_name = "INDEX[:SIZE]", value_parser = parse::grow)]
        grow: Vec<DeviceGrow>,
    },
    /// Change how much of the maps of its volumes a protected pool keeps in memory.
    #[command(after_help = "Example:\n  weir pool memory safe full")]
    Memory {
        /// The pool.
        name: String,
        /// lean: half a GiB for a TiB; full: all, 3.1 GiB for a TiB.
        #[arg(value_name = "lean|full")]
        memory: MapMemory,
    },
    /// Open a protected pool though devices are missing that may have what the others have not; that is lost then.
    #[command(after_help = "Example:\n  weir pool force safe --yes")]
    Force {
        /// The pool.
        name: String,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Give a protected pool further devices.
    #[command(
        after_help = "Examples:\n  weir pool add safe --device /dev/nvme3n1 --device /dev/nvme4n1\n  \
        weir pool add safe --spare --device file:/srv/weir/spare.img:100G"
    )]
    Add {
        /// The pool.
        name: String,
        /// A device, written as for `weir pool create`. May be repeated.
        #[arg(long, short, value_parser = parse::device, required = true)]
        device: Vec<DeviceSpec>,
        /// Keep them for when others fail.
        #[arg(long)]
        spare: bool,
        /// What may be destroyed that is on them, in the words of the refusal without it, e.g. ext4,gpt.
        #[arg(long, value_name = "WHAT", value_delimiter = ',')]
        overwrite: Vec<String>,
    },
    /// Let a device take the place of another, which leaves when everything is off it; in the background.
    #[command(after_help = "Example:\n  weir pool replace safe 1 --device /dev/nvme3n1")]
    Replace {
        /// The pool.
        name: String,
        /// Number of the device that leaves; `weir pool show` numbers them.
        number: u16,
        /// The new device, written as for `weir pool create`.
        #[arg(long, short, value_parser = parse::device)]
        device: DeviceSpec,
        /// What may be destroyed that is on it, in the words of the refusal without it, e.g. ext4,gpt.
        #[arg(long, value_name = "WHAT", value_delimiter = ',')]
        overwrite: Vec<String>,
        /// Wait until it is done, and show how far it is.
        #[arg(long)]
        wait: bool,
    },
    /// Take a device back that was missing or failed; it is brought up to date in the background.
    #[command(after_help = "Example:\n  weir pool attach safe --device /dev/nvme2n1")]
    Attach {
        /// The pool.
        name: String,
        /// The device, under its present name.
        #[arg(long, short, value_parser = parse::device)]
        device: DeviceSpec,
        /// Wait until it is done, and show how far it is.
        #[arg(long)]
        wait: bool,
    },
    /// Move everything off a device, in the background.
    #[command(after_help = "Example:\n  weir pool drain safe 1 --wait")]
    Drain {
        /// The pool.
        name: String,
        /// Number of the device.
        number: u16,
        /// Wait until it is done, and show how far it is.
        #[arg(long)]
        wait: bool,
    },
    /// Let a device go that holds nothing: a spare, or one that was drained.
    #[command(after_help = "Example:\n  weir pool remove safe 1")]
    Remove {
        /// The pool.
        name: String,
        /// Number of the device.
        number: u16,
    },
    /// Bring every device back that is out of sync and answers.
    #[command(after_help = "Example:\n  weir pool resync safe --wait")]
    Resync {
        /// The pool.
        name: String,
        /// Wait until it is done, and show how far it is.
        #[arg(long)]
        wait: bool,
    },
    /// Have a suspended pool go on when its devices are well again, without a restart of the daemon.
    #[command(after_help = "Example:\n  weir pool resume safe")]
    Resume {
        /// The pool.
        name: String,
    },
    /// Stop what is being done about a device: drain, replace, resync.
    #[command(after_help = "Example:\n  weir pool cancel safe 1")]
    Cancel {
        /// The pool.
        name: String,
        /// Number of the device.
        number: u16,
    },
    /// Let go of a protected pool and its volumes, which stay on its devices, for `weir pool import` on another node. One whose
    /// volumes hosts use stays, since their file systems would fail.
    #[command(after_help = "Example:\n  weir pool release safe --yes")]
    Release {
        /// The pool.
        name: String,
        /// Even if hosts of its volumes are logged in: their commands end with errors, and what they have not written yet is lost.
        /// Disks of `weir attach` wait until the pool is back.
        #[arg(long)]
        force: bool,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Delete a pool that holds no volumes. Its files and devices stay as they are.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir pool delete main")]
    Delete {
        /// The pool.
        name: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create { name, devices, raid, overwrite, memory } => {
                let overwrite = Overwrite(overwrite);
                let spec = PoolSpec { name, devices, raid, overwrite, memory };
                let pool = client.create_pool(&spec).await?;
                output::show(json, &pool, |p| {
                    format!("pool {} created, {} free", p.name, format_size(p.free))
                })
            }
            Command::Import {
                name,
                devices,
                prefix,
                key_commands,
                without_hosts,
                force,
                dry_run,
            } => {
                let spec = ImportSpec {
                    name,
                    devices,
                    prefix,
                    key_commands,
                    without_hosts,
                    force,
                    dry_run,
                };
                let work = client.import_pool(&spec);
                let report = progress::waited("pool import", json, work).await?;
                output::show(json, &report, |r| imported(r, dry_run))
            }
            Command::List => output::show(json, &client.pools().await?, |p| table(p)),
            Command::Show { name } => output::show(json, &client.pool(&name).await?, details),
            Command::Resize { name, add, overwrite, grow } => {
                let overwrite = Overwrite(overwrite);
                let patch = PoolPatch { add, grow, memory: None, overwrite };
                let pool = client.patch_pool(&name, &patch).await?;
                output::show(json, &pool, |p| {
                    format!(
                        "pool {} has {}, {} free",
                        p.name,
                        format_size(p.capacity),
                        format_size(p.free)
                    )
                })
            }
            Command::Memory { name, memory } => {
                let patch = PoolPatch { memory: Some(memory), ..PoolPatch::default() };
                output::show(json, &client.patch_pool(&name, &patch).await?, details)
            }
            Command::Force { name, yes } => {
                let question =
                    format!("Open pool {name} and give up what only the missing devices have?");
                output::confirm(yes, &question)?;
                output::show(json, &client.force_pool(&name).await?, details)
            }
            Command::Add { name, device, spare, overwrite } => {
                let overwrite = Overwrite(overwrite);
                let r#as = if spare { DeviceUse::Spare } else { DeviceUse::Member };
                let mut last = None;
                // One that is refused leaves those before it where they are, which `weir pool show` tells.
                for device in device {
                    let overwrite = overwrite.clone();
                    let action = DeviceAction::Put { device, r#as, overwrite };
                    last = Some(client.pool_device(&name, &action).await?);
                }
                output::show(json, &last, |p| p.as_ref().map_or(String::new(), details))
            }
            Command::Replace { name, number, device, overwrite, wait } => {
                let (r#as, overwrite) = (DeviceUse::Replace(number), Overwrite(overwrite));
                let action = DeviceAction::Put { device, r#as, overwrite };
                act(client, json, &name, action, wait).await
            }
            Command::Attach { name, device, wait } => {
                let overwrite = Overwrite::default();
                let r#as = DeviceUse::Back;
                let action = DeviceAction::Put { device, r#as, overwrite };
                act(client, json, &name, action, wait).await
            }
            Command::Drain { name, number, wait } => {
                act(client, json, &name, DeviceAction::Drain { number }, wait).await
            }
            Command::Remove { name, number } => {
                act(client, json, &name, DeviceAction::Remove { number }, false).await
            }
            Command::Cancel { name, number } => {
                act(client, json, &name, DeviceAction::Cancel { number }, false).await
            }
            Command::Resync { name, wait } => {
                act(client, json, &name, DeviceAction::Resync, wait).await
            }
            Command::Resume { name } => act(client, json, &name, DeviceAction::Resume, false).await,
            Command::Release { name, force, yes } => {
                let volumes = client.pool(&name).await?.volumes;
                let volumes = counted(volumes, "volume");
                let question = format!("Take {volumes} of pool {name} from hosts?");
                output::confirm(yes, &question)?;
                client.release_pool(&name, force).await?;
                let gone = serde_json::json!({ "released": name });
                output::show(json, &gone, |_| {
                    format!(
                        "pool {name} released; `weir pool import` takes it in again, here or elsewhere"
                    )
                })
            }
            Command::Delete { name } => {
                client.delete_pool(&name).await?;
                let gone = serde_json::json!({ "deleted": name });
                output::show(json, &gone, |_| format!("pool {name} deleted"))
            }
        }
    }
}

async fn act(
    client: Client,
    json: bool,
    name: &str,
    action: DeviceAction,
    wait: bool,
) -> anyhow::Result<()> {
    let mut pool = client.pool_device(name, &action).await?;
    if wait {
        let ends = format!(
            "`weir pool show {name}` tells how far, `weir pool cancel {name} NUMBER` ends it"
        );
        let over = wait::settled(&client, name, &action, json);
        pool = progress::while_wanted(json, ends, over).await?;
    }
    output::show(json, &pool, details)
}

fn imported(r: &ImportReport, dry_run: bool) -> String {
    let done = if dry_run { "would be taken over; nothing was changed" } else { "taken over" };
    let mut text = format!("pool {} {done}\n", r.pool);
    if !r.volumes.is_empty() {
        let mut t = Table::new(&["VOLUME", ">SIZE", ""]);
        for v in &r.volumes {
            let note = if v.nameless {
                "read-only: the pool knows no more of it than that it is there"
            } else {
                ""
            };
            t.row(vec![v.name.clone(), format_size(v.size), note.into()]);
        }
        text.push_str(&t.text());
    }
    if !r.hosts.is_empty() {
        text.push_str(&format!("hosts: {}\n", r.hosts.join(", ")));
    }
    if !r.maps.is_empty() {
        let maps: Vec<String> = r.maps.iter().map(|(h, v)| format!("{v} for {h}")).collect();
        text.push_str(&format!("mappings: {}\n", maps.join(", ")));
    }
    for l in &r.left_out {
        text.push_str(&format!("left out: {l}\n"));
    }
    text.trim_end().to_string()
}

fn table(pools: &[PoolInfo]) -> String {
    if pools.is_empty() {
        return "no pools; `weir pool create --help` shows how to make one".into();
    }
    let mut t = Table::new(&["POOL", ">DEVICES", ">VOLUMES", ">CAPACITY", ">FREE", ">PROVISIONED"]);
    for p in pools {
        t.row(vec![
            p.name.clone(),
            p.devices.len().to_string(),
            p.volumes.to_string(),
            format_size(p.capacity),
            format_size(p.free),
            format_size(p.provisioned),
        ]);
    }
    t.text()
}

fn details(p: &PoolInfo) -> String {
    let mut text = output::fields(&[
        ("pool", p.name.clone()),
        ("volumes", p.volumes.to_string()),
        ("capacity", format_size(p.capacity)),
        ("allocated", format_size(p.allocated)),
        ("free", free(p)),
        ("provisioned", format_size(p.provisioned)),
    ]);
    if let Some(pr) = &p.protection {
        text.push_str(&protection(p, pr));
        if p.live.is_some() {
            return text;
        }
    }
    text.push('\n');
    // What numbers the devices of a protected pool have is on them.
    let is_numbered = p.protection.is_none();
    let heads = [">#", "KIND", ">SIZE", "PATH"];
    let mut t = Table::new(if is_numbered { &heads } else { &heads[1..] });
    for (i, d) in p.devices.iter().enumerate() {
        let size = if d.size == 0 { "-".to_string() } else { format_size(d.size) };
        let row = [d.kind.as_str().into(), size, d.path.clone().unwrap_or_default()];
        t.row(is_numbered.then(|| i.to_string()).into_iter().chain(row).collect());
    }
    text + &t.text()
}

fn free(p: &PoolInfo) -> String {
    let all = format_size(p.free);
    match &p.live {
        Some(l) => format!("{all}, of which hosts can write {}", format_size(l.room)),
        None => all,
    }
}

fn protection(p: &PoolInfo, pr: &Protection) -> String {
    let mut fields = vec![("raid", pr.raid.to_string()), ("identity", pr.id.to_string())];
    let Some(l) = &p.live else {
        fields.push(("state", "not up; `weir status` says why".into()));
        return output::fields(&fields);
    };
    let why = l.reason.as_ref().map_or(String::new(), |r| format!(": {r}"));
    let c = &l.counters;
    fields.push(("state", format!("{}{why}", l.state)));
    fields.push(("copies", l.copies.to_string()));
    fields.push(("reactor", l.reactor.to_string()));
    fields
        .push(("written", format!("{} blocks, {} to the media", c.blocks_written, c.media_writes)));
    fields.push(("read", format!("{} blocks", c.blocks_read)));
    fields.push((
        "damaged",
        format!(
            "{} copies, {} mended ({} moved to spare blocks), {} blocks lost, since it was opened",
            c.damaged, c.repaired, c.relocated, c.lost
        ),
    ));
    let [maps, most] = l.maps.map(format_size);
    fields.push(("maps", format!("{maps} in memory, at most {most} ({})", pr.memory)));
    fields.push(("recovery", format!("{} log entries taken up at the last start", c.replayed)));
    if let Some(w) = &l.work {
        let percent = progress::percent(w.done, w.total);
        let rate = progress::rate(w.pace.bytes_per_second);
        let left = w.pace.seconds_left.map(|s| format!(", {} left", progress::seconds(s)));
        let left = left.unwrap_or_default();
        let what = format!("{} of device {}, {percent} %, {rate}{left}", w.work, w.device);
        fields.push(("under way", what));
    }
    if let Some(t) = &l.trouble {
        fields.push(("trouble", t.clone()));
    }
    if !l.unused.is_empty() {
        fields.push(("not in use", l.unused.join("; ")));
    }
    let mut text = output::fields(&fields);
    text.push('\n');
    let mut t = Table::new(&[
        ">#",
        "STATE",
        ">SIZE",
        ">SLABS",
        ">ROOM",
        ">REPLACED",
        ">DAMAGED",
        ">UNREAD",
        "DEVICE",
        "PATH",
    ]);
    for d in &l.devices {
        t.row(vec![
            d.number.to_string(),
            match d.slabs {
                0 if d.draining => format!("{}, drained", d.state),
                _ if d.draining => format!("{}, draining", d.state),
                _ => d.state.clone(),
            },
            format_size(d.size),
            d.slabs.to_string(),
            d.room.to_string(),
            d.replaced.to_string(),
            d.damaged.to_string(),
            d.unread.to_string(),
            d.id.clone(),
            d.path.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    text + &t.text()
}
