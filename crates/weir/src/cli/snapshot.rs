//! `weir snapshot` and `weir clone`.

use super::output::{self, Table};
use clap::Subcommand;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_control::client::Client;
use weir_control::live::SnapshotLive;
use weir_control::model::{CloneSpec, check_name, check_snapshot_name};
use weir_control::server::{SnapshotSpec, SnapshotWish};
use weir_control::units::format_size;

/// `VOLUME@NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    volume: String,
    name: String,
}

fn named(text: &str) -> Result<Named, String> {
    let (volume, name) = text
        .split_once('@')
        .ok_or_else(|| format!("`{text}` is not VOLUME@NAME, e.g. db-01@before"))?;
    check_name("volume", volume).map_err(|e| e.to_string())?;
    check_snapshot_name(name).map_err(|e| e.to_string())?;
    Ok(Named { volume: volume.into(), name: name.into() })
}

/// `VOLUME[@NAME]`; without a name, one made of the time.
fn to_make(text: &str) -> Result<Named, String> {
    if text.contains('@') {
        return named(text);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    named(&format!("{text}@{}", time(now).to_lowercase().replace([':', ' '], "-")))
}

/// Seconds since 1970 as date and time, UTC.
pub(crate) fn time(seconds: u64) -> String {
    let d = weir_base::Date::of(seconds);
    let (date, clock) = ((d.year, d.month, d.day), (d.hour, d.minute, d.second));
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        date.0, date.1, date.2, clock.0, clock.1, clock.2
    )
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make snapshots of volumes of a protected pool; several in one command are of one instant.
    #[command(after_help = "Examples:\n  weir snapshot create db-01\n  \
        weir snapshot create db-data@before-upgrade db-log@before-upgrade")]
    Create {
        /// VOLUME or VOLUME@NAME; without a name, the snapshot is called after the time.
        #[arg(required = true, value_parser = to_make)]
        volumes: Vec<Named>,
    },
    /// List snapshots, as the devices have them.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir snapshot list db-01")]
    List {
        /// Only those of this volume.
        volume: Option<String>,
    },
    /// Delete a snapshot that no volume was made of. Its space comes back in the background.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  weir snapshot delete db-01@before --yes"
    )]
    Delete {
        /// VOLUME@NAME.
        #[arg(value_parser = named)]
        snapshot: Named,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
    /// Periodic snapshots.
    #[command(subcommand)]
    Policy(super::policy::Command),
    /// Make a volume that no host sees what it was at its newest snapshot.
    #[command(after_help = "Example:\n  weir snapshot revert db-01@before --yes")]
    Revert {
        /// VOLUME@NAME.
        #[arg(value_parser = named)]
        snapshot: Named,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CloneCommand {
    /// Make a writable volume of a snapshot, at once and without copying.
    #[command(after_help = "Example:\n  weir clone create db-01@before db-test")]
    Create {
        /// VOLUME@NAME.
        #[arg(value_parser = named)]
        snapshot: Named,
        /// The new volume's name.
        name: String,
        /// Hosts may only read it.
        #[arg(long)]
        read_only: bool,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create { volumes } => {
                let wish = |n: Named| SnapshotWish { volume: n.volume, name: n.name };
                let snapshots = volumes.into_iter().map(wish).collect();
                let made = client.create_snapshots(&SnapshotSpec { snapshots }).await?;
                output::show(json, &made, |all| {
                    let line =
                        |s: &SnapshotLive| format!("snapshot {}@{} made\n", s.volume, s.name);
                    all.iter().map(line).collect()
                })
            }
            Command::List { volume } => {
                output::show(json, &client.snapshots(volume.as_deref()).await?, |s| table(s))
            }
            Command::Policy(command) => command.run(client, json).await,
            Command::Delete { snapshot: Named { volume, name }, yes } => {
                output::confirm(yes, &format!("Delete snapshot {volume}@{name}?"))?;
                client.delete_snapshot(&volume, &name).await?;
                let gone = serde_json::json!({ "deleted": format!("{volume}@{name}") });
                output::show(json, &gone, |_| format!("snapshot {volume}@{name} deleted"))
            }
            Command::Revert { snapshot: Named { volume, name }, yes } => {
                let question =
                    format!("Give up everything that was written to {volume} after {name}?");
                output::confirm(yes, &question)?;
                let v = client.revert(&volume, &name).await?;
                output::show(json, &v, |v| format!("volume {} is what it was at {name}", v.name))
            }
        }
    }
}

impl CloneCommand {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let CloneCommand::Create { snapshot, name, read_only } = self;
        let spec = CloneSpec { volume: snapshot.volume, snapshot: snapshot.name, name, read_only };
        let volume = client.create_clone(&spec).await?;
        output::show(json, &volume, |v| {
            let of = format!("{}@{}", spec.volume, spec.snapshot);
            format!("volume {} made of {of}: {}, naa.{}", v.name, format_size(v.size), v.naa)
        })
    }
}

fn table(all: &[SnapshotLive]) -> String {
    if all.is_empty() {
        return "no snapshots; `weir snapshot create VOLUME` makes one".into();
    }
    let mut t = Table::new(&["SNAPSHOT", "POOL", "MADE (UTC)", ">SIZE", ">DATA", "CLONES"]);
    for s in all {
        let volume = if s.volume.is_empty() { "(unknown)" } else { &s.volume };
        t.row(vec![
            format!("{volume}@{}", s.name),
            s.pool.clone(),
            time(s.created),
            format_size(s.size),
            format_size(s.used),
            s.clones.join(", "),
        ]);
    }
    t.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_times() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(time(951_868_799 + 1), "2000-03-01 00:00:00");
        assert_eq!(time(1_795_321_280), "2026-11-22 04:21:20");
        let n = named("db-01@before").expect("good");
        assert_eq!((n.volume.as_str(), n.name.as_str()), ("db-01", "before"));
        for bad in ["db-01", "@x", "db@", "db@X", "db@a@b"] {
            assert!(named(bad).is_err(), "{bad}");
        }
        assert!(to_make("db-01").expect("good").name.starts_with("20"));
    }
}
