//! `weir graph`: what a volume is made of, as text, JSON or a drawing.

mod svg;

use super::output;
use super::top::{rate, time};
use weir_control::client::Client;
use weir_control::live::{GraphLive, GraphNodeLive, IoStats};
use weir_control::units::format_size;

/// Most layers above each other that are drawn: graphs have no cycles, an answer that is not ours may have.
const DEEPEST: usize = 64;

/// How a graph is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A tree with a line for each layer.
    Text,
    /// As in the REST interface.
    Json,
    /// A drawing.
    Svg,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume.
    volume: String,
    /// How to show it [default: text].
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let graph = client.graph(&self.volume).await?;
        match self.format.unwrap_or(if json { Format::Json } else { Format::Text }) {
            Format::Json => output::json(&graph),
            Format::Text => output::text(&text(&graph)),
            Format::Svg => output::text(&svg::draw(&graph)),
        }
    }
}

/// One direction of what passes a layer in a few words; none if nothing does.
fn direction(name: &str, s: &IoStats) -> Option<String> {
    if s.iops <= 0.0 {
        return None;
    }
    let bytes = format_size(s.bytes_per_second as u64);
    let mut text = format!("{name} {}/s {bytes}/s", rate(s.iops));
    if s.latency.mean_ns > 0 {
        let (mean, p99) = (time(s.latency.mean_ns), time(s.latency.p99_ns));
        text.push_str(&format!(" mean {mean} p99 {p99}"));
    }
    Some(text)
}

/// What passes a layer, in parts.
fn parts(read: &IoStats, write: &IoStats, in_flight: u64) -> Vec<String> {
    let mut all: Vec<String> =
        [direction("read", read), direction("write", write)].into_iter().flatten().collect();
    let errors = read.errors + write.errors;
    if errors > 0 {
        all.push(format!("{errors} errors"));
    }
    if in_flight > 0 {
        all.push(format!("{in_flight} in flight"));
    }
    all
}

/// What passes a layer, in a line.
pub(crate) fn passing(read: &IoStats, write: &IoStats, in_flight: u64) -> String {
    parts(read, write, in_flight).iter().map(|p| format!("  {p}")).collect()
}

/// What a layer is, in a line.
fn what(n: &GraphNodeLive) -> String {
    let params: String = n.params.iter().map(|(k, v)| format!(" {k}={v}")).collect();
    format!("{} [{}]{params}", n.id, n.kind)
}

fn text(g: &GraphLive) -> String {
    let mut out = format!("{}\n", g.volume);
    if let Some(top) = g.nodes.first() {
        branch(g, &top.id, "", "└─ ", 1, &mut out);
    }
    out
}

fn branch(g: &GraphLive, id: &str, lead: &str, mark: &str, depth: usize, out: &mut String) {
    let Some(n) = g.nodes.iter().find(|n| n.id == id) else { return };
    let size = format_size(n.size);
    let passing = passing(&n.read, &n.write, n.in_flight);
    out.push_str(&format!("{lead}{mark}{}  {size}{passing}\n", what(n)));
    if depth >= DEEPEST {
        return;
    }
    let lead = format!("{lead}{}", if mark.starts_with('├') { "│  " } else { "   " });
    for (i, c) in n.children.iter().enumerate() {
        let mark = if i + 1 == n.children.len() { "└─ " } else { "├─ " };
        branch(g, c, &lead, mark, depth + 1, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::live::Latency;

    pub(super) fn graph() -> GraphLive {
        let node = |id: &str, kind: &str, children: &[&str]| GraphNodeLive {
            id: id.into(),
            kind: kind.into(),
            children: children.iter().map(|c| (*c).to_owned()).collect(),
            size: 1 << 30,
            block_size: 512,
            ..GraphNodeLive::default()
        };
        let mut slow = node("slow.1", "delay", &["top"]);
        slow.params.insert("time".into(), "<2ms>".into());
        slow.read = IoStats {
            iops: 12_345.0,
            bytes_per_second: 1048576.0,
            errors: 2,
            latency: Latency { mean_ns: 2_100_000, p99_ns: 3_000_000, ..Latency::default() },
            ..IoStats::default()
        };
        slow.in_flight = 7;
        let nodes = vec![
            slow,
            node("top", "stripe", &["part-1", "part-2"]),
            node("part-1", "ram", &[]),
            node("part-2", "ram", &[]),
        ];
        GraphLive { volume: "v".into(), nodes }
    }

    #[test]
    fn a_tree_with_what_passes_each_layer() {
        let all = text(&graph());
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(
            lines,
            [
                "v",
                "└─ slow.1 [delay] time=<2ms>  1 GiB  read 12.3k/s 1 MiB/s mean 2.10ms p99 3.00ms  2 errors  7 in flight",
                "   └─ top [stripe]  1 GiB",
                "      ├─ part-1 [ram]  1 GiB",
                "      └─ part-2 [ram]  1 GiB",
            ]
        );
    }

    #[test]
    fn an_answer_with_a_cycle_ends() {
        let mut g = graph();
        g.nodes[3].children.push("slow.1".into());
        assert!(text(&g).lines().count() < 200);
        assert!(svg::draw(&g).ends_with("</svg>\n"));
    }
}
