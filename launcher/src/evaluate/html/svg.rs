//! Line plots as SVG.

use std::fmt::Write as _;

use crate::html::escape;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Colors of the lines, ours first. The others are in an order in which everyone can distinguish neighbors (Okabe and
/// Ito 2008, <https://jfly.uni-koeln.de/color/>).
const COLORS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000",
];

/// One line of a plot.
pub(super) struct Line {
    /// The line's label.
    pub(super) name: String,
    /// The line's points, in x order.
    pub(super) points: Vec<(f64, f64)>,
}

/// The axes, with their ranges and tick marks.
pub(super) struct Frame<'a> {
    /// Label of the x axis.
    pub(super) x: &'a str,
    /// Label of the y axis.
    pub(super) y: &'a str,
    /// True if the x axis is logarithmic.
    pub(super) log_x: bool,
    /// Tick marks of the x axis with their labels. The first and the last one are the ends of the axis.
    pub(super) x_marks: Vec<(f64, String)>,
    /// Tick marks of the y axis with their labels. The first and the last one are the ends of the axis.
    pub(super) y_marks: Vec<(f64, String)>,
}

impl Frame<'_> {
    fn place_x(&self, x: f64) -> f64 {
        let (first, last) = ends(&self.x_marks);
        let share = if self.log_x {
            (x / first).ln() / (last / first).ln()
        } else {
            (x - first) / (last - first)
        };
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn place_y(&self, y: f64) -> f64 {
        let (first, last) = ends(&self.y_marks);
        let share = ((y - first) / (last - first)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    /// Draws `lines` as SVG.
    pub(super) fn draw(&self, lines: &[Line]) -> String {
        let mut text = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" font-size=\"12\" \
             font-family=\"system-ui,sans-serif\" fill=\"#33414d\">"
        );
        self.axes(&mut text);
        for (index, line) in lines.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let width = if index == 0 { 3.0 } else { 1.5 };
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", self.place_x(*x), self.place_y(*y)))
                .collect();
            let _ = write!(
                text,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" points=\"{}\"/>",
                points.join(" ")
            );
            let y = TOP + 10.0 + 18.0 * index as f64;
            let x = WIDTH - RIGHT + 14.0;
            let _ = write!(
                text,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{color}\"/><text x=\"{}\" \
                 y=\"{:.1}\">{}</text>",
                y - 6.0,
                x + 20.0,
                y,
                escape(&line.name)
            );
        }
        text + "</svg>"
    }

    fn axes(&self, text: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for (value, word) in &self.x_marks {
            let x = self.place_x(*value);
            let _ = write!(
                text,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e3e8ec\"/><text \
                 x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{word}</text>",
                bottom + 16.0
            );
        }
        for (value, word) in &self.y_marks {
            let y = self.place_y(*value);
            let _ = write!(
                text,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e3e8ec\"/><text \
                 x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{word}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text transform=\"translate(14 {:.1}) \
             rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escape(self.x),
            (TOP + bottom) / 2.0,
            escape(self.y)
        );
    }
}

fn ends(marks: &[(f64, String)]) -> (f64, f64) {
    let first = marks.first().map_or(0.0, |(value, _)| *value);
    let last = marks.last().map_or(1.0, |(value, _)| *value);
    (first, if last > first { last } else { first + 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_where_the_axes_say() {
        let mark = |value: f64| (value, value.to_string());
        let frame = Frame {
            x: "slower",
            y: "found",
            log_x: true,
            x_marks: vec![mark(1.0), mark(10.0), mark(100.0)],
            y_marks: vec![mark(0.0), mark(1.0)],
        };
        assert_eq!(frame.place_x(1.0), LEFT);
        assert!((frame.place_x(10.0) - (LEFT + (WIDTH - LEFT - RIGHT) / 2.0)).abs() < 1e-9);
        assert_eq!((frame.place_y(0.0), frame.place_y(2.0)), (HEIGHT - BOTTOM, TOP));
        let line = Line {
            name: "a < b".to_owned(),
            points: vec![(1.0, 0.0), (100.0, 1.0)],
        };
        let drawn = frame.draw(&[line]);
        assert!(drawn.contains("points=\"60.0,256.0 570.0,14.0\""), "{drawn}");
        assert!(drawn.contains("a &lt; b"));
    }
}
