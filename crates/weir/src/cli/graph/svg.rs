//! A device graph as a drawing: layers are boxes, hosts above, devices below, and what passes each is written in it.

use super::{DEEPEST, parts};
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_control::live::{GraphLive, GraphNodeLive};
use weir_control::units::format_size;

/// All measures in pixels.
const LINE: usize = 18;
const PAD: usize = 12;
const GAP: usize = 36;
/// Of a character of the text, about.
const CHAR: usize = 7;
/// Longest line of a box, in characters.
const LONGEST: usize = 60;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The lines of a layer's box.
fn lines(n: &GraphNodeLive) -> Vec<String> {
    let mut all = vec![format!("{} [{}]", n.id, n.kind)];
    all.extend(n.params.iter().map(|(k, v)| format!("{k}={v}")));
    all.push(format_size(n.size));
    all.extend(parts(&n.read, &n.write, n.in_flight));
    for line in &mut all {
        if line.chars().count() > LONGEST {
            *line = line.chars().take(LONGEST - 1).chain(['…']).collect();
        }
    }
    all
}

/// A layer's box.
struct Cell {
    lines: Vec<String>,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

/// How far each layer is below the top, by the longest way.
fn ranks(g: &GraphLive) -> BTreeMap<&str, usize> {
    let mut ranks = BTreeMap::new();
    let Some(top) = g.nodes.first() else { return ranks };
    ranks.insert(top.id.as_str(), 0);
    // Each turn settles at least one rank more; an answer with a cycle ends all the same.
    for _ in 0..g.nodes.len().min(DEEPEST) {
        for n in &g.nodes {
            let Some(rank) = ranks.get(n.id.as_str()).copied() else { continue };
            for c in &n.children {
                let below = ranks.entry(c.as_str()).or_insert(0);
                *below = (*below).max(rank + 1).min(DEEPEST);
            }
        }
    }
    ranks
}

/// The drawing.
pub(super) fn draw(g: &GraphLive) -> String {
    let ranks = ranks(g);
    let mut rows: BTreeMap<usize, Vec<&GraphNodeLive>> = BTreeMap::new();
    for n in &g.nodes {
        if let Some(rank) = ranks.get(n.id.as_str()) {
            rows.entry(*rank).or_default().push(n);
        }
    }
    let mut cells: BTreeMap<&str, Cell> = BTreeMap::new();
    let (mut y, mut widths) = (GAP + LINE, Vec::new());
    for row in rows.values() {
        let (mut x, mut tallest) = (0, 0);
        for n in row {
            let lines = lines(n);
            let longest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
            let (width, height) = (longest * CHAR + 2 * PAD, lines.len() * LINE + PAD);
            cells.insert(&n.id, Cell { lines, x, y, width, height });
            x += width + GAP;
            tallest = tallest.max(height);
        }
        widths.push(x.saturating_sub(GAP));
        y += tallest + GAP;
    }
    let width = widths.iter().copied().max().unwrap_or(0).max(g.volume.len() * CHAR) + 2 * GAP;
    for (row, wide) in rows.values().zip(&widths) {
        for n in row {
            if let Some(c) = cells.get_mut(n.id.as_str()) {
                c.x += (width - wide) / 2;
            }
        }
    }
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{y}\" viewBox=\"0 0 {width} {y}\" \
         font-family=\"monospace\" font-size=\"11\">\n<title>{}</title>\n\
         <rect width=\"{width}\" height=\"{y}\" fill=\"white\"/>\n",
        escaped(&g.volume)
    );
    let middle = width / 2;
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{LINE}\" text-anchor=\"middle\" font-weight=\"bold\">{}</text>",
        escaped(&g.volume)
    );
    let line = |out: &mut String, from: (usize, usize), to: (usize, usize)| {
        let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
        let _ = writeln!(
            out,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#666\"/>"
        );
    };
    let top_of = |c: &Cell| (c.x + c.width / 2, c.y);
    for (i, n) in g.nodes.iter().enumerate() {
        let Some(c) = cells.get(n.id.as_str()) else { continue };
        if i == 0 {
            line(&mut out, (middle, LINE + PAD / 2), top_of(c));
        }
        for child in n.children.iter().filter_map(|id| cells.get(id.as_str())) {
            line(&mut out, (c.x + c.width / 2, c.y + c.height), top_of(child));
        }
    }
    for c in cells.values() {
        let Cell { x, y, width, height, .. } = c;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"#eef3f8\" stroke=\"#357\"/>"
        );
        for (i, text) in c.lines.iter().enumerate() {
            let bold = if i == 0 { " font-weight=\"bold\"" } else { "" };
            let (x, y) = (x + PAD, y + (i + 1) * LINE);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\"{bold}>{}</text>", escaped(text));
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::graph;
    use super::*;

    #[test]
    fn each_layer_has_a_box_below_those_above_it() {
        let svg = draw(&graph());
        for (word, n) in [("<rect x=", 4), ("<line ", 4), ("[ram]", 2), ("time=&lt;2ms&gt;", 1)] {
            assert_eq!(svg.matches(word).count(), n, "{word}: {svg}");
        }
        assert!(svg.contains("read 12.3k/s 1 MiB/s mean 2.10ms p99 3.00ms"), "{svg}");
        let ranks: Vec<usize> = ranks(&graph()).into_values().collect();
        assert_eq!(ranks, [2, 2, 0, 1]);
    }
}
