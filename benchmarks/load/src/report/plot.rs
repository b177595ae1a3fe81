//! Plots as inline SVG: axes with round ticks, lines, dots, and a title for each that shows under the pointer.
//!
//! Colours and fonts come from the page's style sheet by class, so that a plot follows light and dark.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Most dots of one series: more only make the page heavy.
const MAX_DOTS: usize = 2000;

/// One colour of a plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in any order.
    pub points: Vec<(f64, f64)>,
    /// Whether points are joined.
    pub is_line: bool,
}

/// A plot of some series over one pair of axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// The title of the plot.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x_name: String,
    /// The vertical axis, with its unit.
    pub y_name: String,
    /// The series that are drawn.
    pub series: Vec<Series>,
}

impl Plot {
    /// The plot as a figure, or nothing if there is nothing to draw.
    pub fn render(&self) -> String {
        let (Some(x_axis), Some(y_axis)) = (self.axis(|point| point.0), self.axis(|point| point.1)) else {
            return String::new();
        };
        let frame = Frame { x: x_axis, y: y_axis };
        let mut svg = String::new();
        frame.draw_grid(&mut svg);
        self.draw_axis_names(&mut svg);
        for (index, series) in self.series.iter().enumerate() {
            frame.draw_series(&mut svg, series, index);
        }
        format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{svg}</svg>{}</figure>\n",
            escape(&self.title),
            escape(&self.title),
            self.legend()
        )
    }

    fn axis(&self, pick: fn(&(f64, f64)) -> f64) -> Option<Axis> {
        let values =
            self.series.iter().flat_map(|series| series.points.iter().map(pick)).filter(|v| v.is_finite());
        values.reduce(f64::max).map(Axis::up_to)
    }

    fn draw_axis_names(&self, svg: &mut String) {
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        let (x_name, y_name) = (escape(&self.x_name), escape(&self.y_name));
        write_to(svg, &format!("<text class=\"name\" x=\"{middle}\" y=\"{}\">{x_name}</text>", HEIGHT - 6.0));
        let up = TOP + (HEIGHT - TOP - BOTTOM) / 2.0;
        write_to(
            svg,
            &format!("<text class=\"name\" transform=\"translate(13 {up}) rotate(-90)\">{y_name}</text>"),
        );
    }

    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let entry = |(index, series): (usize, &Series)| {
            format!("<span class=\"{}\">{}</span>", colour(index), escape(&series.name))
        };
        format!(
            "<div class=\"legend\">{}</div>",
            self.series.iter().enumerate().map(entry).collect::<String>()
        )
    }
}

/// Class of a series' colour; the style sheet has eight.
pub fn colour(index: usize) -> String {
    format!("c{}", index % 8)
}

/// An axis from zero to a round number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    end: f64,
    step: f64,
}

impl Axis {
    fn up_to(max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 5.0);
        Self { end: (max / step).ceil() * step, step }
    }

    fn ticks(self) -> impl Iterator<Item = f64> {
        let count = (self.end / self.step).round() as u32;
        (0..=count).map(move |index| f64::from(index) * self.step)
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|round| *round >= step * (1.0 - 1e-9)).unwrap_or(step)
}

struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn x_at(&self, value: f64) -> f64 {
        LEFT + value / self.x.end * (WIDTH - LEFT - RIGHT)
    }

    fn y_at(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y.end * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_grid(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in self.y.ticks() {
            let y = self.y_at(tick);
            write_to(svg, &format!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>"));
            write_to(
                svg,
                &format!(
                    "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                    LEFT - 6.0,
                    y + 4.0,
                    short(tick)
                ),
            );
        }
        for tick in self.x.ticks() {
            let x = self.x_at(tick);
            write_to(
                svg,
                &format!("<text class=\"x\" x=\"{x:.1}\" y=\"{}\">{}</text>", bottom + 16.0, short(tick)),
            );
        }
    }

    fn draw_series(&self, svg: &mut String, series: &Series, index: usize) {
        write_to(svg, &format!("<g class=\"{}\">", colour(index)));
        if series.is_line {
            self.draw_line(svg, &series.points);
        }
        if !series.is_line || series.points.len() <= 60 {
            self.draw_dots(svg, series);
        }
        svg.push_str("</g>");
    }

    fn draw_line(&self, svg: &mut String, points: &[(f64, f64)]) {
        let step = |(x, y): &(f64, f64)| format!("{:.1},{:.1}", self.x_at(*x), self.y_at(*y));
        let path = points.iter().map(step).collect::<Vec<_>>().join(" ");
        write_to(svg, &format!("<polyline points=\"{path}\"/>"));
    }

    fn draw_dots(&self, svg: &mut String, series: &Series) {
        let every = series.points.len().div_ceil(MAX_DOTS).max(1);
        for (x, y) in series.points.iter().step_by(every) {
            let title = escape(&format!("{}: {}, {}", series.name, short(*x), short(*y)));
            let (cx, cy) = (self.x_at(*x), self.y_at(*y));
            write_to(
                svg,
                &format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.4\"><title>{title}</title></circle>"),
            );
        }
    }
}

fn write_to(text: &mut String, piece: &str) {
    let _ = text.write_str(piece); // writing to a string cannot fail
}

/// A number with as many digits as a label has room for.
pub fn short(value: f64) -> String {
    let rounded = match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    if rounded.contains('.') {
        rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        rounded
    }
}

/// Text that means itself inside HTML and its attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)]) -> Plot {
        let series = Series { name: "a<b".into(), points: points.to_vec(), is_line: true };
        Plot { title: "t & u".into(), x_name: "x".into(), y_name: "y".into(), series: vec![series] }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(Axis::up_to(97.0), Axis { end: 100.0, step: 20.0 });
        assert_eq!(Axis::up_to(1.1), Axis { end: 1.25, step: 0.25 });
        assert_eq!(Axis::up_to(0.0).end, 1.0);
        assert_eq!(Axis::up_to(97.0).ticks().collect::<Vec<_>>(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn points_lie_between_the_axes() {
        let svg = plot(&[(0.0, 0.0), (10.0, 10.0)]).render();
        assert!(svg.contains("<polyline points=\"62.0,236.0 536.0,12.0\"/>"), "{svg}");
    }

    #[test]
    fn text_is_escaped() {
        let svg = plot(&[(1.0, 1.0)]).render();
        assert!(svg.contains("t &amp; u") && svg.contains("a&lt;b: 1, 1") && !svg.contains("a<b"), "{svg}");
    }

    #[test]
    fn an_empty_plot_is_nothing_and_a_crowded_one_is_thinned() {
        assert_eq!(plot(&[]).render(), "");
        let mut crowded = plot(&(0..10_000).map(|i| (f64::from(i), 1.0)).collect::<Vec<_>>());
        crowded.series[0].is_line = false;
        assert_eq!(crowded.render().matches("<circle").count(), MAX_DOTS);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.0, 0.25, 12.0, 1234.5, 0.0031].map(short), ["0", "0.25", "12", "1234", "0.0031"]);
    }
}
