//! Figures: lines over logarithmic or plain axes, and bars, as SVG.

mod bars;

pub use bars::{Bars, bars};

use plotters::coord::Shift;
use plotters::coord::ranged1d::{NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;

/// How numbers of an axis are shown and spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Evenly, with ticks at whole numbers only.
    Count,
    /// By powers of 2, shown as sizes in bytes.
    Bytes,
    /// By powers of 10.
    Decades,
}

/// One axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How.
    pub scale: Scale,
}

impl Scale {
    fn is_logarithmic(self) -> bool {
        matches!(self, Scale::Bytes | Scale::Decades)
    }
}

impl Axis {
    /// An axis.
    pub fn new(label: &str, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), scale }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Points, ascending in x. Those that have no place on a logarithmic axis are left out.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), points }
    }
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
}

/// A figure that could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the figure cannot be drawn: {0}")]
pub struct PlotError(String);

/// Colours that people with any colour vision can tell apart (M. Okabe and K. Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

const WIDTH: u32 = 860;
const HEIGHT: u32 = 480;

/// Draws figures below each other.
///
/// # Errors
/// There is nothing to draw.
pub fn svg(charts: &[Chart]) -> Result<String, PlotError> {
    let mut out = String::new();
    {
        let height = HEIGHT * charts.len().max(1) as u32;
        let root = SVGBackend::with_string(&mut out, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| PlotError(e.to_string()))?;
        for (area, chart) in root.split_evenly((charts.len().max(1), 1)).iter().zip(charts) {
            draw(area, chart)?;
        }
        root.present().map_err(|e| PlotError(e.to_string()))?;
    }
    Ok(out)
}

/// Least and greatest of a coordinate.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |r, v| match r {
        None => Some((v, v)),
        Some((a, b)) => Some((a.min(v), b.max(v))),
    })
}

/// The range of an axis around its values.
fn range(scale: Scale, (low, high): (f64, f64), from_zero: bool) -> Range<f64> {
    match scale {
        Scale::Linear | Scale::Count if from_zero => {
            0.0..(high * 1.08).max(f64::MIN_POSITIVE.max(1e-9))
        }
        Scale::Linear | Scale::Count if low == high => low - 0.5..high + 0.5,
        Scale::Linear | Scale::Count => low..high,
        Scale::Bytes if low == high => low / 2.0..high * 2.0,
        Scale::Bytes => low..high,
        Scale::Decades => {
            10f64.powf((low / 1.1).log10().floor())..10f64.powf((high * 1.1).log10().ceil())
        }
    }
}

/// Text of a tick.
fn tick(scale: Scale, v: f64) -> String {
    match scale {
        Scale::Bytes => crate::units::size(v.round() as u64),
        _ if v != 0.0 && v.abs() < 0.01 => format!("{v:.0e}"),
        _ => {
            let t = crate::units::si(v);
            let short = t.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let unit = &t[short.len()..];
            let short = if short.contains('.') {
                short.trim_end_matches('0').trim_end_matches('.')
            } else {
                short
            };
            format!("{short}{unit}")
        }
    }
}

/// An axis of either kind, with ticks where people expect them.
struct Ticks {
    scale: Scale,
    range: Range<f64>,
}

impl Ranged for Ticks {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, v: &f64, limit: (i32, i32)) -> i32 {
        let of = |v: f64| if self.scale.is_logarithmic() { v.ln() } else { v };
        let (a, b) = (of(self.range.start), of(self.range.end));
        let part = if b > a { (of(*v) - a) / (b - a) } else { 0.5 };
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: plotters::coord::ranged1d::KeyPointHint>(&self, hint: H) -> Vec<f64> {
        let most = hint.max_num_points().max(2);
        let (a, b) = (self.range.start, self.range.end);
        let powers = |base: f64| {
            let first = (a.log(base) - 1e-9).ceil() as i32;
            let last = (b.log(base) + 1e-9).floor() as i32;
            let step = ((last - first) as usize / most + 1).max(1);
            (first..=last).step_by(step).map(|e| base.powi(e)).collect::<Vec<_>>()
        };
        match self.scale {
            Scale::Bytes => powers(2.0),
            Scale::Decades => {
                let decades = powers(10.0);
                if decades.len() > 3 {
                    return decades;
                }
                let fine = decades.iter().flat_map(|d| [*d, d * 2.0, d * 5.0]);
                fine.filter(|v| *v <= b * 1.000_001).collect()
            }
            Scale::Linear | Scale::Count => {
                let least = if self.scale == Scale::Count { 1.0 } else { 0.0 };
                let raw = ((b - a) / most as f64).max(least);
                let decade = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade);
                let step = step.into_iter().find(|s| *s >= raw).unwrap_or(decade * 10.0);
                let first = (a / step - 1e-9).ceil();
                let count = ((b - first * step) / step + 1e-9).floor().max(0.0) as usize;
                (0..=count).map(|i| (first + i as f64) * step).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ticks {
    fn format_ext(&self, v: &f64) -> String {
        tick(self.scale, *v)
    }
}

/// The corner of a figure with the fewest points near it: the place for the legend.
fn emptiest_corner<'a>(
    points: impl Iterator<Item = &'a (f64, f64)>,
    x: &Axis,
    y: &Axis,
    (left, right): (f64, f64),
    (low, high): (f64, f64),
) -> SeriesLabelPosition {
    let part = |scale: Scale, v: f64, a: f64, b: f64| {
        let of = |v: f64| if scale.is_logarithmic() { v.ln() } else { v };
        if of(b) > of(a) { (of(v) - of(a)) / (of(b) - of(a)) } else { 0.5 }
    };
    // Plain axes that go up begin at zero.
    let bottom = if y.scale.is_logarithmic() { low } else { low.min(0.0) };
    let mut corners = [
        (0, SeriesLabelPosition::UpperLeft),
        (0, SeriesLabelPosition::UpperRight),
        (0, SeriesLabelPosition::LowerRight),
        (0, SeriesLabelPosition::LowerLeft),
    ];
    for p in points {
        let (h, v) = (part(x.scale, p.0, left, right), part(y.scale, p.1, bottom, high));
        let near =
            [h < 0.4 && v > 0.65, h > 0.6 && v > 0.65, h > 0.6 && v < 0.35, h < 0.4 && v < 0.35];
        corners.iter_mut().zip(near).for_each(|(c, n)| c.0 += u32::from(n));
    }
    corners.into_iter().min_by_key(|c| c.0).map_or(SeriesLabelPosition::UpperLeft, |c| c.1)
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Chart) -> Result<(), PlotError> {
    let fits = |scale: Scale, v: f64| v.is_finite() && (v > 0.0 || !scale.is_logarithmic());
    let series: Vec<_> = chart
        .series
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let keep = |p: &&(f64, f64)| fits(chart.x.scale, p.0) && fits(chart.y.scale, p.1);
            (i, s, s.points.iter().filter(keep).copied().collect::<Vec<_>>())
        })
        .collect();
    let all = || series.iter().flat_map(|(_, _, p)| p);
    let (Some(xs), Some(ys)) = (extent(all().map(|p| p.0)), extent(all().map(|p| p.1))) else {
        return Err(PlotError("there are no points".into()));
    };
    let corner = emptiest_corner(all(), &chart.x, &chart.y, xs, ys);
    let x = Ticks { scale: chart.x.scale, range: range(chart.x.scale, xs, false) };
    let y = Ticks { scale: chart.y.scale, range: range(chart.y.scale, ys, true) };
    let error = |e: DrawingAreaErrorKind<_>| PlotError(e.to_string());
    let mut c = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 23))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)
        .map_err(error)?;
    c.configure_mesh()
        .x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .x_labels(14)
        .y_labels(10)
        .label_style(("sans-serif", 16))
        .axis_desc_style(("sans-serif", 17))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(222, 222, 222))
        .draw()
        .map_err(error)?;
    for (i, s, points) in &series {
        let colour = COLOURS[i % COLOURS.len()];
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
        c.draw_series(line)
            .map_err(error)?
            .label(&s.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        // Dense lines need no marks.
        if points.len() <= 64 {
            let marks = points.iter().map(|p| Circle::new(*p, 4, colour.filled()));
            c.draw_series(marks).map_err(error)?;
        }
    }
    if series.len() > 1 {
        c.configure_series_labels()
            .position(corner)
            .margin(12)
            .legend_area_size(28)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(180, 180, 180))
            .label_font(("sans-serif", 16))
            .draw()
            .map_err(error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether tags are closed in the order in which they were opened.
    fn well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let Some((tag, text)) = part.split_once('>') else { return false };
            if text.contains('>') {
                return false;
            }
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name.trim()) {
                    return false;
                }
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(tag.split_whitespace().next().unwrap_or(""));
            }
        }
        open.is_empty() && svg.contains("<svg")
    }

    fn chart(x: Scale, y: Scale) -> Chart {
        let sizes = [512.0, 4096.0, 65536.0, 1048576.0];
        let line = |k: f64| sizes.iter().map(|s| (*s, 1e6 * k / s)).collect();
        Chart {
            title: "Rate by <size> & depth".into(),
            x: Axis::new("bytes per I/O", x),
            y: Axis::new("IOPS", y),
            series: vec![Series::new("read", line(1.0)), Series::new("write", line(0.3))],
        }
    }

    #[test]
    fn figures_are_svg_with_title_legend_and_units() {
        for x in [Scale::Linear, Scale::Count, Scale::Bytes, Scale::Decades] {
            for y in [Scale::Linear, Scale::Decades] {
                let s = svg(&[chart(x, y), chart(x, y)]).unwrap();
                assert!(well_formed(&s), "{s}");
                for text in ["Rate by &lt;size&gt; &amp; depth", "bytes per I/O", "IOPS", "write"] {
                    assert!(s.contains(text), "{text}");
                }
            }
        }
        let s = svg(&[chart(Scale::Bytes, Scale::Decades)]).unwrap();
        assert!(s.contains("4k\n") && s.contains("1m\n"), "{s}");
        assert_eq!(s.matches("<circle").count(), 8);
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error_or_left_out() {
        let mut c = chart(Scale::Bytes, Scale::Decades);
        c.series[0].points[0].1 = 0.0;
        c.series[0].points[1].1 = f64::NAN;
        let s = svg(&[c.clone()]).unwrap();
        assert_eq!(s.matches("<circle").count(), 6);
        c.series.clear();
        assert!(svg(&[c.clone()]).is_err());
        c.series = vec![Series::new("one", vec![(4096.0, 5.0)])];
        assert!(well_formed(&svg(&[c]).unwrap()));
    }

    #[test]
    fn the_legend_avoids_the_lines() {
        let corner = |points: &[(f64, f64)]| {
            let (x, y) = (Axis::new("", Scale::Linear), Axis::new("", Scale::Linear));
            emptiest_corner(points.iter(), &x, &y, (0.0, 10.0), (0.0, 10.0))
        };
        let rising = [(0.0, 0.0), (5.0, 5.0), (10.0, 10.0)];
        assert!(matches!(corner(&rising), SeriesLabelPosition::UpperLeft));
        let falling = [(0.0, 10.0), (5.0, 5.0), (10.0, 0.0)];
        assert!(matches!(corner(&falling), SeriesLabelPosition::UpperRight));
    }

    #[test]
    fn ticks_are_round_numbers() {
        use plotters::coord::ranged1d::BoldPoints;
        let t = |scale, range| Ticks { scale, range }.key_points(BoldPoints(6));
        assert_eq!(t(Scale::Linear, 0.0..10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(t(Scale::Count, 1.0..3.0), [1.0, 2.0, 3.0]);
        assert_eq!(t(Scale::Decades, 1.0..1e5), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(t(Scale::Bytes, 512.0..4096.0), [512.0, 1024.0, 2048.0, 4096.0]);
        assert_eq!(tick(Scale::Bytes, 4096.0), "4k");
        assert_eq!([tick(Scale::Decades, 200_000.0), tick(Scale::Linear, 0.5)], ["200k", "0.5"]);
    }
}
