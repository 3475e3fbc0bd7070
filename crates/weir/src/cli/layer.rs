//! `weir layer`: layers that come and go over volumes.

use super::graph::passing;
use super::output::{self, Table};
use clap::{Args, Subcommand};
use weir_control::client::Client;
use weir_control::live::{LayerKindLive, LayerLive};
use weir_control::model::{LayerParams, LayerSpec, LayerSwap};

/// A parameter as it is written on the command line.
fn param(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((k, v)) if !k.is_empty() && !v.is_empty() => Ok((k.to_owned(), v.to_owned())),
        _ => Err("write NAME=VALUE, such as time=2ms".into()),
    }
}

/// What a layer is to be.
#[derive(Debug, Args)]
pub(crate) struct What {
    /// Its parameters, such as `time=2ms`; `weir layer kinds` explains them.
    #[arg(value_name = "NAME=VALUE", value_parser = param)]
    params: Vec<(String, String)>,
    /// Put it in without trying it, and also if it is made to damage data: for tests.
    #[arg(long)]
    force: bool,
}

impl What {
    fn params(&self) -> LayerParams {
        self.params.iter().cloned().collect()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put a layer over a volume while hosts use it.
    #[command(
        after_help = "The new layer is tried on memory, and in its place while hosts' I/O is held back: it must do as the volume \
        below it does,\nelse everything stays as it was and hosts have seen nothing.\n\n\
        Examples:\n  weir layer insert db-01 stats\n  weir layer insert db-01 delay time=2ms ops=read --name slow\n  \
        weir layer insert db-01 fault error=busy chance=0.01 --force --over volume"
    )]
    Insert {
        /// The volume.
        volume: String,
        /// The kind of layer: delay, fault or stats.
        kind: String,
        /// Its name [default: that of the kind].
        #[arg(long)]
        name: Option<String>,
        /// Right above this layer, or `volume` for the volume itself [default: above all layers].
        #[arg(long, value_name = "LAYER")]
        over: Option<String>,
        #[command(flatten)]
        what: What,
    },
    /// Put another layer in the place of one while hosts use the volume.
    #[command(after_help = "Example:\n  weir layer swap db-01 slow delay time=500us")]
    Swap {
        /// The volume.
        volume: String,
        /// The layer.
        layer: String,
        /// The kind of layer that takes its place.
        kind: String,
        #[command(flatten)]
        what: What,
    },
    /// Take a layer off a volume while hosts use it.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir layer remove db-01 slow")]
    Remove {
        /// The volume.
        volume: String,
        /// The layer.
        layer: String,
    },
    /// List the layers over a volume, the uppermost first, with what passes them.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir layer list db-01 --json")]
    List {
        /// The volume.
        volume: String,
    },
    /// List the kinds of layers and their parameters, and which can come and go.
    #[command(after_help = "Example:\n  weir layer kinds")]
    Kinds,
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let layers = match self {
            Command::Insert { volume, kind, name, over, what } => {
                let params = what.params();
                let spec = LayerSpec { kind, name, params, over, force: what.force };
                client.insert_layer(&volume, &spec).await?
            }
            Command::Swap { volume, layer, kind, what } => {
                let with = LayerSwap { kind, params: what.params(), force: what.force };
                client.swap_layer(&volume, &layer, &with).await?
            }
            Command::Remove { volume, layer } => client.remove_layer(&volume, &layer).await?,
            Command::List { volume } => client.layers(&volume).await?,
            Command::Kinds => {
                return output::show(json, &client.layer_kinds().await?, |k| kinds(k));
            }
        };
        output::show(json, &layers, |l| table(l))
    }
}

fn table(layers: &[LayerLive]) -> String {
    if layers.is_empty() {
        return "no layers over it; `weir layer insert VOLUME stats` puts one in".into();
    }
    let mut t = Table::new(&["LAYER", "KIND", "PARAMETERS", "IN USE", "PASSING"]);
    for l in layers {
        let params: Vec<String> = l.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let passing = passing(&l.read, &l.write, l.in_flight);
        t.row(vec![
            l.name.clone(),
            l.kind.clone(),
            params.join(" "),
            if l.in_use { "yes" } else { "no" }.into(),
            passing.trim().to_owned(),
        ]);
    }
    t.text()
}

fn kinds(all: &[LayerKindLive]) -> String {
    let mut text = String::new();
    for (refused, title) in [(false, "Can come and go under I/O:"), (true, "Cannot:")] {
        text.push_str(&format!("{title}\n"));
        for k in all.iter().filter(|k| k.refused.is_some() == refused) {
            let why = k.refused.as_ref().map_or(String::new(), |w| format!("; it {w}"));
            text.push_str(&format!("  {}: {}{why}\n", k.kind, k.about));
            if refused {
                continue;
            }
            for p in &k.params {
                text.push_str(&format!("    {} ({}): {}\n", p.name, p.value, p.help));
            }
        }
    }
    text
}
