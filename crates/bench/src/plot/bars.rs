//! Bars in groups: what has no order to draw a line through.

use super::{COLOURS, HEIGHT, PlotError, Scale, WIDTH, tick};
use plotters::prelude::*;

/// One figure of groups of bars.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// Its title.
    pub title: String,
    /// What the height shows, with the unit.
    pub label: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Name of each bar of a group, and its height in each group; `None`: there is none.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Draw a line across at this height.
    pub line: Option<f64>,
}

/// Part of a group's width that its bars take.
const FILLED: f64 = 0.84;

/// Draws figures of bars below each other.
///
/// # Errors
/// There is nothing to draw.
pub fn bars(all: &[Bars]) -> Result<String, PlotError> {
    let mut out = String::new();
    {
        let height = HEIGHT * all.len().max(1) as u32;
        let root = SVGBackend::with_string(&mut out, (WIDTH, height)).into_drawing_area();
        let error = |e: DrawingAreaErrorKind<_>| PlotError(e.to_string());
        root.fill(&WHITE).map_err(error)?;
        for (area, chart) in root.split_evenly((all.len().max(1), 1)).iter().zip(all) {
            draw(area, chart)?;
        }
        root.present().map_err(error)?;
    }
    Ok(out)
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    chart: &Bars,
) -> Result<(), PlotError> {
    let error = |e: DrawingAreaErrorKind<_>| PlotError(e.to_string());
    let heights = chart.series.iter().flat_map(|(_, h)| h.iter().flatten());
    let high = heights.chain(&chart.line).copied().filter(|h| h.is_finite()).fold(0.0, f64::max);
    if high <= 0.0 || chart.groups.is_empty() {
        return Err(PlotError("there are no bars".into()));
    }
    let groups = chart.groups.len();
    // Room for the legend above the bars.
    let mut c = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 23))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..groups as f64, 0.0..high * 1.35)
        .map_err(error)?;
    let name = |x: &f64| {
        let middle = (x.fract() - 0.5).abs() < 0.01;
        chart.groups.get(*x as usize).filter(|_| middle).cloned().unwrap_or_default()
    };
    c.configure_mesh()
        .disable_x_mesh()
        // Twice as many places as groups: every other one is the middle of a group.
        .x_labels(groups * 2 + 1)
        .x_label_formatter(&name)
        .y_desc(&chart.label)
        .y_labels(10)
        .y_label_formatter(&|y| tick(Scale::Linear, *y))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 17))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(222, 222, 222))
        .draw()
        .map_err(error)?;
    let wide = FILLED / chart.series.len().max(1) as f64;
    for (i, (name, heights)) in chart.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let shown = heights.iter().enumerate().filter_map(|(g, h)| Some((g, (*h)?)));
        let boxes = shown.filter(|(_, h)| h.is_finite()).map(|(g, h)| {
            let left = g as f64 + (1.0 - FILLED) / 2.0 + i as f64 * wide;
            Rectangle::new([(left, 0.0), (left + wide * 0.92, h)], colour.filled())
        });
        c.draw_series(boxes)
            .map_err(error)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    if let Some(y) = chart.line {
        let ends = [(0.0, y), (groups as f64, y)];
        c.draw_series(LineSeries::new(ends, BLACK.stroke_width(1))).map_err(error)?;
    }
    c.configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .margin(8)
        .legend_area_size(20)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(180, 180, 180))
        .label_font(("sans-serif", 15))
        .draw()
        .map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Bars {
        Bars {
            title: "Rate <by> pattern".into(),
            label: "MB/s".into(),
            groups: ["read", "write", "randread"].map(String::from).to_vec(),
            series: vec![
                ("SRP".into(), vec![Some(1.0), Some(2.0), Some(3.0)]),
                ("BRP".into(), vec![Some(2.0), None, Some(4.0)]),
            ],
            line: Some(2.5),
        }
    }

    #[test]
    fn every_bar_and_every_name_is_there() {
        let s = bars(&[chart(), chart()]).unwrap();
        for text in ["Rate &lt;by&gt; pattern", "MB/s", "randread", "SRP", "BRP"] {
            assert_eq!(s.matches(text).count(), 2, "{text}");
        }
        let one = bars(&[chart()]).unwrap();
        let less = Bars { series: chart().series[..1].to_vec(), ..chart() };
        let less = bars(&[less]).unwrap();
        // Two bars and an entry of the legend.
        assert_eq!(one.matches("<rect").count() - less.matches("<rect").count(), 3);
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(bars(&[Bars { groups: Vec::new(), ..chart() }]).is_err());
        assert!(bars(&[Bars { series: Vec::new(), line: None, ..chart() }]).is_err());
        let none = vec![("SRP".to_owned(), vec![None, Some(f64::NAN)])];
        assert!(bars(&[Bars { series: none, line: None, ..chart() }]).is_err());
    }
}
