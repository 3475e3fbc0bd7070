//! Graphs as text.

use super::{Graph, GraphSpec, HOSTS, NodeSpec};
use crate::stats::{Op, Rate, Rates};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A number of bytes with the largest unit that leaves it whole, else with one decimal.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut x = n as f64;
    while x >= 1024.0 && unit < UNITS.len() - 1 {
        x /= 1024.0;
        unit += 1;
    }
    if x.fract() == 0.0 {
        format!("{x} {}", UNITS[unit])
    } else {
        format!("{x:.1} {}", UNITS[unit])
    }
}

fn time(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

fn count(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{:.2}M", x / 1e6),
        x if x >= 1e4 => format!("{:.1}k", x / 1e3),
        x => format!("{x:.0}"),
    }
}

fn rate(out: &mut String, op: Op, r: Rate) {
    if r.iops <= 0.0 {
        return;
    }
    let _ = write!(out, "  {} {}/s", op.name(), count(r.iops));
    if r.bytes > 0.0 {
        let _ = write!(out, " {}/s", bytes(r.bytes as u64));
    }
    if r.mean > 0 {
        let _ = write!(out, " mean {}", time(r.mean));
    }
    if r.p99 > 0 {
        let _ = write!(out, " p99 {}", time(r.p99));
    }
    if r.errors > 0.0 {
        let _ = write!(out, " ERRORS {}/s", count(r.errors));
    }
}

struct Render<'a> {
    spec: &'a GraphSpec,
    rates: &'a BTreeMap<String, Rates>,
    about: &'a dyn Fn(&str) -> String,
    shown: BTreeSet<&'a str>,
    out: String,
}

impl<'a> Render<'a> {
    fn line(&mut self, n: &NodeSpec) {
        let _ = write!(self.out, "{} [{}]", n.id, n.kind);
        for (k, v) in &n.params {
            let _ = write!(self.out, " {k}={v}");
        }
        self.out.push_str(&(self.about)(&n.id));
        let key = |id: &str| format!("{}/{id}", self.spec.name);
        let of_top = (n.id == self.spec.top).then(|| self.rates.get(&key(HOSTS))).flatten();
        if let Some(r) = of_top.or_else(|| self.rates.get(&key(&n.id))) {
            for op in Op::ALL {
                rate(&mut self.out, op, r.of(op));
            }
            if r.in_flight > 0 {
                let _ = write!(self.out, "  in flight {}", r.in_flight);
            }
        }
        self.out.push('\n');
    }

    fn tree(&mut self, id: &'a str, lead: &str, depth: usize) {
        let Some(n) = self.spec.node(id) else {
            let _ = writeln!(self.out, "{id} (missing)");
            return;
        };
        if !self.shown.insert(id) {
            let _ = writeln!(self.out, "{id} (see above)");
            return;
        }
        self.line(n);
        if depth >= super::MAX_DEPTH {
            return;
        }
        for (i, c) in n.children.iter().enumerate() {
            let last = i + 1 == n.children.len();
            let _ = write!(self.out, "{lead}{}", if last { "└─ " } else { "├─ " });
            let below = format!("{lead}{}", if last { "   " } else { "│  " });
            self.tree(c, &below, depth + 1);
        }
    }
}

fn draw(
    spec: &GraphSpec,
    rates: &BTreeMap<String, Rates>,
    about: &dyn Fn(&str) -> String,
) -> String {
    let mut r = Render { spec, rates, about, shown: BTreeSet::new(), out: String::new() };
    r.tree(&spec.top, "", 0);
    r.out
}

impl GraphSpec {
    /// The graph as a tree of text, a line for each node, with the rates of nodes that are counted
    /// (`graph/node`, from a [`Watch`](crate::Watch)). Any thread can do this.
    pub fn render(&self, rates: &BTreeMap<String, Rates>) -> String {
        draw(self, rates, &|_| String::new())
    }
}

impl Graph {
    /// As [`GraphSpec::render`], with every node's size and nature.
    pub fn render(&self, rates: &BTreeMap<String, Rates>) -> String {
        draw(&self.spec, rates, &|id| {
            let Some(b) = self.nodes.get(id) else { return String::new() };
            let g = b.volume.geometry();
            let mut s = format!("  {} in {}-byte blocks", bytes(g.len), g.block_size);
            for (is, word) in
                [(g.thin, "thin"), (g.volatile_cache, "volatile cache"), (g.read_only, "read-only")]
            {
                if is {
                    let _ = write!(s, ", {word}");
                }
            }
            s
        })
    }
}
