//! Charts as SVG.

use std::io;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use super::charts::{Chart, Kind, LINES, Line, Point};
use super::format;

/// Size of a chart in pixels.
const WIDTH: u32 = 620;
const HEIGHT: u32 = 320;

/// Space of a bar with its gap, and of the axis below, in pixels.
const BAR: usize = 20;
const BELOW: usize = 48;

/// Characters of a bar's name, at most.
const NAME: usize = 52;

/// Colours of lines, told apart also by colour-blind readers (Okabe and Ito, 2008).
pub const COLOURS: [RGBColor; LINES] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(148, 103, 60),
];

/// Span above which an axis is logarithmic.
const LOGARITHMIC: f64 = 20.0;

/// Marks of an axis, about.
const TICKS: f64 = 6.0;

/// Name space of SVG, which a page of HTML implies.
const NAMESPACE: &str = " xmlns=\"http://www.w3.org/2000/svg\"";

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<io::Error>;

/// The picture of a chart, as an element of HTML.
pub fn svg(chart: &Chart) -> Result<String, DrawError> {
    let mut text = String::new();
    match &chart.kind {
        Kind::Lines { axis, lines } => {
            let canvas = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
            draw_lines(&canvas, &chart.of, axis, lines)?;
        }
        Kind::Bars(bars) => {
            let size = (WIDTH, (bars.len() * BAR + BELOW) as u32);
            let canvas = SVGBackend::with_string(&mut text, size).into_drawing_area();
            draw_bars(&canvas, &chart.of, bars)?;
        }
    }
    Ok(text.replacen(NAMESPACE, "", 1))
}

/// A scale with its marks.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    /// The base of a logarithmic scale.
    base: Option<f64>,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// The axis of a label.
    fn of_label(name: &str, values: &[f64]) -> Self {
        let is_positive = values.iter().all(|value| *value > 0.0);
        if is_positive && (name == "bytes" || span(values) > LOGARITHMIC) {
            Self::logarithmic(2.0, values)
        } else {
            Self::linear(values)
        }
    }

    /// The axis of positive figures.
    fn of_figure(values: &[f64]) -> Self {
        if span(values) > LOGARITHMIC {
            Self::logarithmic(10.0, values)
        } else {
            Self::linear(values)
        }
    }

    fn linear(values: &[f64]) -> Self {
        let (low, high) = ends(values);
        let (low, high) = (low.min(0.0), high.max(0.0));
        let rough = (high - low) / TICKS;
        if rough <= 0.0 {
            return Self::linear(&[0.0, 1.0]);
        }
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        Axis {
            base: None,
            low: first as f64 * step,
            high: last as f64 * step,
            ticks: (first..=last).map(|at| at as f64 * step).collect(),
        }
    }

    fn logarithmic(base: f64, values: &[f64]) -> Self {
        let (low, high) = ends(values);
        let (first, last) = (low.log(base).floor() as i32, high.log(base).ceil() as i32);
        let last = last.max(first + 1);
        let step = (f64::from(last - first) / TICKS).ceil().max(1.0) as usize;
        let ticks = (first..=last).step_by(step);
        Axis {
            base: Some(base),
            low: base.powi(first),
            high: base.powi(last),
            ticks: ticks.map(|power| base.powi(power)).collect(),
        }
    }

    /// One mark in the middle of each of `count` rows.
    fn of_rows(count: usize) -> Self {
        Axis {
            base: None,
            low: 0.0,
            high: count as f64,
            ticks: (0..count).map(middle).collect(),
        }
    }

    /// The place of a value on paper.
    fn place(&self, value: f64) -> f64 {
        self.base.map_or(value, |base| value.log(base))
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let [low, high, place] = [self.low, self.high, *value].map(|value| self.place(value));
        let share = (place - low) / (high - low);
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let are_minor = hint.weight().allow_light_points();
        if are_minor {
            Vec::new()
        } else {
            self.ticks.clone()
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

fn middle(row: usize) -> f64 {
    row as f64 + 0.5
}

fn ends(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (low, high)
}

fn span(values: &[f64]) -> f64 {
    let (low, high) = ends(values);
    high / low
}

/// The ends of the intervals and the medians.
fn figures<'a>(points: impl Iterator<Item = &'a Point>) -> Vec<f64> {
    points
        .flat_map(|point| [point.low, point.y, point.high])
        .collect()
}

fn draw_lines(canvas: &Canvas, of: &str, axis: &str, lines: &[Line]) -> Result<(), DrawError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let xs: Vec<f64> = points().map(|point| point.x).collect();
    let (x, y) = (
        Axis::of_label(axis, &xs),
        Axis::of_figure(&figures(points())),
    );
    let mut chart = ChartBuilder::on(canvas)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(38)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 14))
        .x_desc(axis)
        .x_label_formatter(&|x| format::measure(axis, *x))
        .y_label_formatter(&|y| format::measure(of, *y))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let at = |point: &Point, value| (point.x, value);
        let middle = line.points.iter().map(|point| at(point, point.y));
        let path = PathElement::new(middle.clone().collect::<Vec<_>>(), colour.stroke_width(2));
        chart.draw_series([path])?;
        let intervals = line.points.iter().map(|point| {
            let ends = vec![at(point, point.low), at(point, point.high)];
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(intervals)?;
        chart.draw_series(middle.map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    canvas.present()
}

fn draw_bars(canvas: &Canvas, of: &str, bars: &[(String, Point)]) -> Result<(), DrawError> {
    let x = Axis::of_figure(&figures(bars.iter().map(|(_, point)| point)));
    let (start, count) = (x.low, bars.len());
    // The first bar is at the top.
    let names = |place: &f64| {
        let bar = count
            .checked_sub(1 + *place as usize)
            .and_then(|at| bars.get(at));
        bar.map_or(String::new(), |(name, _)| format::cut_at(name, NAME))
    };
    let mut chart = ChartBuilder::on(canvas)
        .margin(6)
        .margin_right(28)
        .x_label_area_size(28)
        .y_label_area_size(300)
        .build_cartesian_2d(x, Axis::of_rows(count))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 13))
        .x_label_formatter(&|x| format::measure(of, *x))
        .y_label_formatter(&names)
        .draw()?;
    for (at, (_, point)) in bars.iter().rev().enumerate() {
        let (bottom, top) = (at as f64 + 0.2, at as f64 + 0.8);
        let bar = [(start, bottom), (point.y, top)];
        chart.draw_series([Rectangle::new(bar, COLOURS[0].mix(0.7).filled())])?;
        let ends = [point.low, point.high].map(|end| (end, middle(at)));
        chart.draw_series([PathElement::new(ends.to_vec(), BLACK.stroke_width(1))])?;
    }
    canvas.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64) -> Point {
        let (low, high) = (0.9 * y, 1.1 * y);
        Point { x, y, low, high }
    }

    fn lines(axis: &str, points: &[Point]) -> Chart {
        let line = Line {
            name: "a".into(),
            points: points.into(),
        };
        Chart {
            title: String::new(),
            of: "p50_ns".into(),
            kind: Kind::Lines {
                axis: axis.into(),
                lines: vec![line],
            },
        }
    }

    #[test]
    fn bytes_are_on_a_logarithmic_axis_with_binary_units() {
        let text = svg(&lines("bytes", &[point(4.0, 10.0), point(65536.0, 12.0)])).unwrap();
        for mark in ["4 B", "16 KiB", "15 ns", "bytes"] {
            assert!(text.contains(mark), "{mark}: {text}");
        }
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(!text.contains("http"));
    }

    /// By hand: 4 B to 64 KiB are powers 2 to 16, every third one is marked.
    #[test]
    fn axes_have_few_round_marks() {
        let bytes = Axis::of_label("bytes", &[4.0, 65536.0]);
        assert_eq!(bytes.ticks, [4.0, 32.0, 256.0, 2048.0, 16384.0]);
        assert_eq!((bytes.low, bytes.high), (4.0, 65536.0));
        let times = Axis::of_figure(&[120.0, 9e5]);
        assert_eq!((times.low, times.high), (100.0, 1e6));
        assert_eq!(times.ticks, [100.0, 1e3, 1e4, 1e5, 1e6]);
        let share = Axis::of_label("x", &[0.0, 25.0, 100.0]);
        assert_eq!(share.ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let same = Axis::of_figure(&[3.0, 3.0]);
        assert_eq!((same.low, same.high), (0.0, 3.0));
        assert_eq!(Axis::of_label("bytes", &[64.0]).ticks, [64.0, 128.0]);
    }

    #[test]
    fn names_of_bars_are_text() {
        let bars = vec![
            ("<script>".into(), point(0.0, 5.0)),
            ("b".into(), point(0.0, 500.0)),
        ];
        let chart = Chart {
            kind: Kind::Bars(bars),
            ..lines("", &[])
        };
        let text = svg(&chart).unwrap();
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"));
    }
}
