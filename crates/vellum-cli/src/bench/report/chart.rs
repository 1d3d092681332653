//! Draws a chart as SVG that takes its colours and fonts from the page around it.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::RGBColor;

use super::{Chart, Ink, Scale};
use crate::bench::contender::Column;

const SIZE: (u32, u32) = (860, 330);

/// `plotters` needs fixed colours, but the page's style sheet defines the colours, light or dark.
/// So the chart is drawn with a stand-in for each colour of the page, which [`svg`] then replaces
/// by the colour's name in the style sheet.
const INK: RGBColor = RGBColor(1, 1, 1);
const RULE: RGBColor = RGBColor(1, 1, 2);

/// Returns the stand-in for a line's colour.
fn colour(ink: Ink) -> RGBColor {
    match ink {
        Ink::Column(column) => RGBColor(1, 2, column as u8),
        Ink::Other(line) => RGBColor(1, 3, line as u8),
    }
}

/// Returns each stand-in, and the page's name for it.
fn roles() -> impl Iterator<Item = (RGBColor, String)> {
    let inks = Column::ALL.map(Ink::Column).into_iter().chain((0..Ink::OTHERS).map(Ink::Other));
    let texts = [(INK, "ink".to_owned()), (RULE, "rule".to_owned())];
    texts.into_iter().chain(inks.map(|ink| (colour(ink), ink.name())))
}

/// Draws the chart. Returns `None` if it has no points.
///
/// # Errors
/// The drawing failed.
pub fn svg(chart: &Chart) -> anyhow::Result<Option<String>> {
    let values = chart.series.iter().flat_map(|series| series.line.iter().chain(&series.lone)).map(|point| point.1);
    let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    let (Some(first), Some(last)) = (chart.ticks.first(), chart.ticks.last()) else {
        return Ok(None);
    };
    if low > high {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let x = Axis { range: first.0 - 0.3..last.0 + 0.3, ticks: chart.ticks.clone() };
        let y = match chart.scale {
            Scale::Decades => decades(low, high),
            Scale::Times(most) => times(high, most),
        };
        draw(&root, chart, x, y).map_err(|error| anyhow::anyhow!("{error}"))?;
        root.present().map_err(|error| anyhow::anyhow!("{error}"))?;
    }
    for (RGBColor(r, g, b), name) in roles() {
        svg = svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &format!("var(--{name})"));
    }
    Ok(Some(svg))
}

/// Makes a logarithmic axis from `low` to `high`, rounded to powers of ten, with a tick at each.
fn decades(low: f64, high: f64) -> Axis {
    let decades = low.log10().floor() as i32..=high.log10().floor() as i32 + 1;
    Axis {
        range: f64::from(*decades.start())..f64::from(*decades.end()),
        ticks: decades.map(|decade| (f64::from(decade), power_of_ten(decade))).collect(),
    }
}

/// Makes a linear axis of ratios from zero to at least `high` and `most`, with about four ticks at
/// whole numbers.
fn times(high: f64, most: u32) -> Axis {
    let end = (high.ceil() as u32).max(most);
    let step = (end / 4).max(1);
    Axis {
        range: 0.0..f64::from(end) * 1.05,
        ticks: (0..=end)
            .filter(|times| times.is_multiple_of(step))
            .map(|times| (f64::from(times), format!("{times}×")))
            .collect(),
    }
}

/// An axis with given ticks only.
struct Axis {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Return ticks for the bold grid only: the light grid's lines would be drawn over them.
        let bold = !hint.weight().allow_light_points();
        self.ticks.iter().filter(|_| bold).map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|(place, _)| place == value).map_or_else(String::new, |(_, name)| name.clone())
    }
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(root: &DrawingArea<SVGBackend<'a>, Shift>, chart: &Chart, x: Axis, y: Axis) -> Drawn<'a> {
    let mut axes =
        ChartBuilder::on(root).margin(10).x_label_area_size(36).y_label_area_size(72).build_cartesian_2d(x, y)?;
    let text = ("sans-serif", 14).into_font().color(&INK);
    axes.configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(RULE)
        .label_style(text.clone())
        .axis_desc_style(text)
        .y_desc(chart.y_name.as_str())
        .draw()?;
    for series in &chart.series {
        let colour = colour(series.ink);
        let stroke = colour.stroke_width(if series.ink == Ink::Column(Column::Vellum) { 3 } else { 2 });
        let at = |&(x, y): &(f64, f64)| match chart.scale {
            Scale::Decades => (x, y.log10()),
            Scale::Times(_) => (x, y),
        };
        axes.draw_series(LineSeries::new(series.line.iter().map(at), stroke))?;
        let dots = series.line.iter().chain(&series.lone).map(|point| Circle::new(at(point), 4, colour.filled()));
        axes.draw_series(dots)?;
    }
    Ok(())
}

fn power_of_ten(exponent: i32) -> String {
    if exponent < 0 {
        format!("{:.*}", exponent.unsigned_abs() as usize, 10f64.powi(exponent))
    } else {
        super::show::grouped(10u64.pow(exponent.min(18) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::example;

    #[test]
    fn a_chart_has_its_labels_as_text_and_its_colours_from_the_page() {
        let report = example();
        let svg = svg(report.sections[0].parts[0].chart.as_ref().unwrap()).unwrap().unwrap();
        for expected in ["16 KiB", "huge", "var(--linux)", "var(--ink)"] {
            assert!(svg.contains(expected), "{expected} in:\n{svg}");
        }
        assert!(!svg.contains("#010"), "a stand-in colour is left");
        assert_eq!(svg.matches("<circle").count(), 3, "two joined points and one by itself");
    }

    #[test]
    fn without_points_there_is_no_picture() {
        let empty = Chart {
            label: String::new(),
            y_name: String::new(),
            scale: Scale::Decades,
            ticks: vec![(1.0, "a".into())],
            series: vec![],
        };
        assert_eq!(svg(&empty).unwrap(), None);
    }

    #[test]
    fn times_begin_at_zero_and_come_in_few_steps() {
        let names = |high, most| times(high, most).ticks.into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(names(1.4, 2), ["0×", "1×", "2×"]);
        assert_eq!(names(2.1, 2), ["0×", "1×", "2×", "3×"]);
        assert_eq!(names(15.0, 16), ["0×", "4×", "8×", "12×", "16×"]);
    }

    #[test]
    fn axis_labels_are_plain_numbers() {
        assert_eq!([-2, 0, 3].map(power_of_ten), ["0.01", "1", "1\u{202f}000"]);
    }
}
