//! Lines over a number, on linear or logarithmic axes.

use plotters::prelude::DrawingBackend;

use super::axis::{AXIS_TITLE, LABEL, TITLE, log_ticks, number, ticks};
use super::canvas::{Align, Canvas, Drawn, Label, cut, text_width};
use super::colour::{GRID, INK, KINDS};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, from left to right. Points that an axis cannot show (no numbers, or on a logarithmic axis none above
    /// zero) are left out.
    pub points: Vec<[f64; 2]>,
}

impl Series {
    /// A line whose points stand at 0, 1, 2 and so on.
    pub fn counted(name: impl Into<String>, values: &[f64]) -> Self {
        let points = values.iter().enumerate().map(|(at, value)| [at as f64, *value]);
        Self { name: name.into(), points: points.collect() }
    }
}

/// How an axis runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AxisScale {
    /// Equal differences are equally long; a vertical axis begins at 0 where nothing lies below.
    #[default]
    Linear,
    /// Equal ratios are equally long.
    Log,
}

/// Lines over a number.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// What stands above all.
    pub title: String,
    /// What the horizontal axis counts, with its unit.
    pub x_title: String,
    /// What the vertical axis counts, with its unit.
    pub y_title: String,
    /// How the horizontal axis runs.
    pub x_scale: AxisScale,
    /// How the vertical axis runs.
    pub y_scale: AxisScale,
    /// The lines.
    pub series: Vec<Series>,
    /// Places on the horizontal axis that are marked by a line across, with what is written there.
    pub marks: Vec<(f64, String)>,
}

const GAP: f64 = 8.0;
/// Length of a line in the legend, and of the dashes of a mark.
const SAMPLE: f64 = 22.0;
const DASH: f64 = 5.0;
/// Lines with at most this many points have dots on them.
const MOST_DOTS: usize = 40;
const USUAL_SIZE: [f64; 2] = [860.0, 520.0];

/// One axis, from numbers to points of the picture.
#[derive(Clone, Copy, Debug)]
struct Axis {
    scale: AxisScale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that shows all of `values`.
    fn over(values: impl Iterator<Item = f64>, scale: AxisScale, begins_at_zero: bool) -> Self {
        let [mut low, mut high] =
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)]);
        if low > high {
            [low, high] = [1.0, 10.0];
        }
        match scale {
            AxisScale::Linear => {
                if begins_at_zero && low > 0.0 {
                    low = 0.0;
                }
                if low == high {
                    [low, high] = [low - 1.0, high + 1.0];
                }
            }
            AxisScale::Log => {
                if low == high {
                    [low, high] = [low / 2.0, high * 2.0];
                }
            }
        }
        Self { scale, low, high, from: 0.0, to: 1.0 }
    }

    /// Leaves some room beyond the highest number.
    fn with_room(mut self) -> Self {
        match self.scale {
            AxisScale::Linear => self.high += 0.05 * (self.high - self.low),
            AxisScale::Log => {
                let room = (self.high / self.low).powf(0.05);
                [self.low, self.high] = [self.low / room, self.high * room];
            }
        }
        self
    }

    fn between(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    fn shows(self, value: f64) -> bool {
        value.is_finite() && (self.scale == AxisScale::Linear || value > 0.0)
    }

    fn place(self, value: f64) -> f64 {
        let share = match self.scale {
            AxisScale::Linear => (value - self.low) / (self.high - self.low),
            AxisScale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + (self.to - self.from) * share
    }

    /// Where the labels stand.
    fn ticks(self) -> Vec<f64> {
        match self.scale {
            AxisScale::Linear => ticks(self.low, self.high, 8),
            AxisScale::Log => log_ticks(self.low, self.high),
        }
    }
}

impl LineChart {
    fn axes(&self) -> [Axis; 2] {
        let is_shown = |[x, y]: &&[f64; 2]| {
            let can = |value: f64, scale| value.is_finite() && (scale == AxisScale::Linear || value > 0.0);
            can(*x, self.x_scale) && can(*y, self.y_scale)
        };
        let points: Vec<[f64; 2]> =
            self.series.iter().flat_map(|series| series.points.iter().filter(is_shown)).copied().collect();
        let x = Axis::over(points.iter().map(|[x, _]| *x), self.x_scale, false);
        let y = Axis::over(points.iter().map(|[_, y]| *y), self.y_scale, true).with_room();
        [x, y]
    }

    fn legend_width(&self) -> f64 {
        let widest = self.series.iter().map(|series| text_width(&series.name, LABEL)).fold(0.0, f64::max);
        2.0 * GAP + SAMPLE + GAP + widest + 2.0 * GAP
    }

    fn draw_axes<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [x, y]: [Axis; 2]) -> Drawn {
        let mut free_from = f64::NEG_INFINITY;
        for tick in x.ticks() {
            let (at, name) = (x.place(tick), number(tick));
            canvas.line(&[[at, y.from], [at, y.to]], 1.0, GRID)?;
            canvas.line(&[[at, y.from], [at, y.from + GAP / 2.0]], 1.0, INK)?;
            let half = text_width(&name, LABEL) / 2.0;
            if at - half > free_from {
                free_from = at + half + GAP;
                canvas.text(Label::new(&name, LABEL, Align::Middle), [at, y.from + GAP + LABEL / 2.0])?;
            }
        }
        for tick in y.ticks() {
            let at = y.place(tick);
            canvas.line(&[[x.from, at], [x.to, at]], 1.0, GRID)?;
            canvas.line(&[[x.from - GAP / 2.0, at], [x.from, at]], 1.0, INK)?;
            canvas.text(Label::new(&number(tick), LABEL, Align::End), [x.from - GAP, at])?;
        }
        canvas.frame([x.from, y.to], [x.to, y.from], INK)
    }

    fn draw_marks<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [x, y]: [Axis; 2]) -> Drawn {
        let is_inside = |value: f64| x.shows(value) && value >= x.low && value <= x.high;
        for (index, (value, name)) in self.marks.iter().filter(|(value, _)| is_inside(*value)).enumerate() {
            let at = x.place(*value);
            let mut top = y.to;
            while top < y.from {
                canvas.line(&[[at, top], [at, (top + DASH).min(y.from)]], 1.0, INK)?;
                top += 2.0 * DASH;
            }
            let width = text_width(name, LABEL);
            // Beside the line, to the left where the right has no room.
            let (align, beside) = if at + GAP + width > x.to { (Align::End, -GAP) } else { (Align::Start, GAP) };
            let height = y.from - (index as f64 + 1.0) * (LABEL + GAP);
            canvas.text(Label::new(name, LABEL, align), [at + beside, height])?;
        }
        Ok(())
    }

    fn draw_lines<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [x, y]: [Axis; 2]) -> Drawn {
        for (series, colour) in self.series.iter().zip(KINDS.into_iter().cycle()) {
            let shown = series.points.iter().filter(|[at, value]| x.shows(*at) && y.shows(*value));
            let points: Vec<[f64; 2]> = shown.map(|[at, value]| [x.place(*at), y.place(*value)]).collect();
            canvas.line(&points, 2.0, colour)?;
            if points.len() <= MOST_DOTS {
                points.iter().try_for_each(|point| canvas.dot(*point, 3.0, colour))?;
            }
        }
        for (index, (series, colour)) in self.series.iter().zip(KINDS.into_iter().cycle()).enumerate() {
            let (left, at) = (x.to + 2.0 * GAP, y.to + LABEL / 2.0 + index as f64 * (LABEL + GAP));
            canvas.line(&[[left, at], [left + SAMPLE, at]], 2.0, colour)?;
            canvas.dot([left + SAMPLE / 2.0, at], 3.0, colour)?;
            canvas.text(Label::new(&series.name, LABEL, Align::Start), [left + SAMPLE + GAP, at])?;
        }
        Ok(())
    }
}

impl LineChart {
    /// Width and height in which it looks well, in points.
    pub(super) fn size(&self) -> [f64; 2] {
        USUAL_SIZE
    }

    pub(super) fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [width, height]: [f64; 2]) -> Drawn {
        let [x, y] = self.axes();
        let y_labels = y.ticks().into_iter().map(|tick| text_width(&number(tick), LABEL)).fold(0.0, f64::max);
        let left = GAP + AXIS_TITLE + GAP + y_labels + GAP;
        let right = (width - self.legend_width()).max(left + 1.0);
        let (top, bottom) = (2.0 * GAP + TITLE + GAP, height - GAP - AXIS_TITLE - GAP - LABEL - GAP);
        let bottom = bottom.max(top + 1.0);
        let axes = [x.between(left, right), y.between(bottom, top)];

        let title = cut(&self.title, TITLE, width - 2.0 * GAP);
        canvas.text(Label::new(&title, TITLE, Align::Middle), [width / 2.0, GAP + TITLE / 2.0 + GAP / 2.0])?;
        self.draw_axes(canvas, axes)?;
        self.draw_marks(canvas, axes)?;
        self.draw_lines(canvas, axes)?;
        let x_title = Label::new(&self.x_title, AXIS_TITLE, Align::Middle);
        canvas.text(x_title, [f64::midpoint(left, right), height - GAP - AXIS_TITLE / 2.0])?;
        let y_title = Label::new(&self.y_title, AXIS_TITLE, Align::Middle).vertical();
        canvas.text(y_title, [GAP + AXIS_TITLE / 2.0, f64::midpoint(top, bottom)])
    }
}
