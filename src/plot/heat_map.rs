//! Heat maps: tables of numbers as colours, several of the same size side by side.

use plotters::prelude::DrawingBackend;
use plotters::style::RGBColor;

use super::axis::{AXIS_TITLE, CellLabels, LABEL, TITLE, number, ticks};
use super::canvas::{Align, Canvas, Drawn, Label, cut, text_width};
use super::colour::{ColourScale, INK};

/// One table of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What stands above it; may be empty.
    pub title: String,
    /// Its rows from top to bottom, all of the same length. What is no number stays blank.
    pub rows: Vec<Vec<f64>>,
}

/// Tables of numbers as colours, with one colour bar.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// What stands above all.
    pub title: String,
    /// What the columns are.
    pub x_title: String,
    /// What the rows are.
    pub y_title: String,
    /// What the colours are.
    pub value_title: String,
    /// The tables, all of the same size, at least one.
    pub panels: Vec<Panel>,
    /// What the columns are called.
    pub x_labels: CellLabels,
    /// What the rows are called.
    pub y_labels: CellLabels,
    /// From numbers to colours.
    pub scale: ColourScale,
}

/// Space between things, in points.
const GAP: f64 = 8.0;
/// Width of the colour bar.
const BAR: f64 = 14.0;
/// Highest colour bar.
const LONGEST_BAR: f64 = 420.0;
/// Cells that nobody has given a size.
const USUAL_CELL: f64 = 14.0;

/// Where things stand.
struct Layout {
    columns: usize,
    /// Left, top, right and bottom of the first panel.
    origin: [f64; 2],
    panel: [f64; 2],
    /// From one panel to the next.
    pitch: [f64; 2],
    cell: [f64; 2],
}

/// Space around the panels.
struct Margins {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl HeatMap {
    /// Rows and columns of a table.
    fn table(&self) -> [usize; 2] {
        self.panels.first().map_or([0, 0], |panel| [panel.rows.len(), panel.rows.first().map_or(0, Vec::len)])
    }

    /// How many panels stand side by side: such that the picture is a little wider than high.
    fn columns(&self) -> usize {
        let [rows, columns] = self.table().map(|count| count.max(1) as f64);
        let wanted = (1.4 * self.panels.len() as f64 * rows / columns).sqrt();
        (wanted.round() as usize).clamp(1, self.panels.len().max(1))
    }

    fn margins(&self) -> Margins {
        let [rows, columns] = self.table();
        let x_labels = if self.x_labels.are_upright() { self.x_labels.width(columns) } else { LABEL };
        let [low, high] = self.scale.range();
        let bar_labels =
            ticks(low, high, 5).into_iter().map(|tick| text_width(&number(tick), LABEL)).fold(0.0, f64::max);
        Margins {
            left: GAP + AXIS_TITLE + GAP + self.y_labels.width(rows) + GAP,
            top: 2.0 * GAP + TITLE + GAP,
            right: 2.0 * GAP + BAR + GAP + bar_labels + GAP + AXIS_TITLE + GAP,
            bottom: GAP + x_labels + GAP + AXIS_TITLE + GAP,
        }
    }

    /// Height of the title of a panel.
    fn panel_title(&self) -> f64 {
        if self.panels.iter().all(|panel| panel.title.is_empty()) { 0.0 } else { AXIS_TITLE + GAP }
    }

    fn layout(&self, [width, height]: [f64; 2]) -> Layout {
        let [rows, columns] = self.table().map(|count| count.max(1) as f64);
        let Margins { left, top, right, bottom } = self.margins();
        let across = self.columns();
        let down = self.panels.len().max(1).div_ceil(across);
        let gaps = [(across - 1) as f64 * 2.0 * GAP, (down - 1) as f64 * GAP + down as f64 * self.panel_title()];
        let panel = [
            ((width - left - right - gaps[0]) / across as f64).max(1.0),
            ((height - top - bottom - gaps[1]) / down as f64).max(1.0),
        ];
        Layout {
            columns: across,
            origin: [left, top + self.panel_title()],
            panel,
            pitch: [panel[0] + 2.0 * GAP, panel[1] + GAP + self.panel_title()],
            cell: [panel[0] / columns, panel[1] / rows],
        }
    }

    fn draw_panel<B: DrawingBackend>(
        &self,
        canvas: &mut Canvas<B>,
        panel: &Panel,
        at: [f64; 2],
        layout: &Layout,
    ) -> Drawn {
        let [x, y] = at;
        let [cell_width, cell_height] = layout.cell;
        let end = [x + layout.panel[0], y + layout.panel[1]];
        if !panel.title.is_empty() {
            let title = cut(&panel.title, AXIS_TITLE, layout.panel[0]);
            let middle = [x + layout.panel[0] / 2.0, y - GAP / 2.0 - AXIS_TITLE / 2.0];
            canvas.text(Label::new(&title, AXIS_TITLE, Align::Middle), middle)?;
        }
        for (row, values) in panel.rows.iter().enumerate() {
            let (top, bottom) = (y + row as f64 * cell_height, y + (row + 1) as f64 * cell_height);
            // Neighbours of one colour are one rectangle, which keeps files of long texts small.
            for (first, count, colour) in
                runs(values.iter().map(|value| value.is_finite().then(|| self.scale.colour(*value))))
            {
                let (left, right) = (x + first as f64 * cell_width, x + (first + count) as f64 * cell_width);
                canvas.fill([left, top], [right, bottom], colour)?;
            }
        }
        canvas.frame(at, end, INK)
    }

    fn draw_labels<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, layout: &Layout) -> Drawn {
        let [rows, columns] = self.table();
        let [cell_width, cell_height] = layout.cell;
        let down = self.panels.len().div_ceil(layout.columns);
        let [x_room, y_room] = match self.x_labels.are_upright() {
            true => [LABEL, LABEL],
            false => [self.x_labels.width(columns) + 2.0 * GAP, 2.5 * LABEL],
        };
        let mut lowest = layout.origin[1];
        for column in 0..layout.columns {
            // The last panel of this column; the last row of panels may be short.
            let row = (0..down).rev().find(|row| row * layout.columns + column < self.panels.len()).unwrap_or(0);
            let left = layout.origin[0] + column as f64 * layout.pitch[0];
            let bottom = layout.origin[1] + row as f64 * layout.pitch[1] + layout.panel[1];
            lowest = lowest.max(bottom);
            for (cell, name) in self.x_labels.shown(columns, cell_width, x_room) {
                let x = left + (cell as f64 + 0.5) * cell_width;
                canvas.line(&[[x, bottom], [x, bottom + GAP / 2.0]], 1.0, INK)?;
                match self.x_labels.are_upright() {
                    true => {
                        canvas.text(Label::new(&name, LABEL, Align::End).vertical(), [x, bottom + GAP])?;
                    }
                    false => {
                        let y = bottom + GAP + LABEL / 2.0;
                        canvas.text(Label::new(&name, LABEL, Align::Middle), [x, y])?;
                    }
                }
            }
        }
        for row in 0..down {
            let top = layout.origin[1] + row as f64 * layout.pitch[1];
            let left = layout.origin[0];
            for (cell, name) in self.y_labels.shown(rows, cell_height, y_room) {
                let y = top + (cell as f64 + 0.5) * cell_height;
                canvas.line(&[[left - GAP / 2.0, y], [left, y]], 1.0, INK)?;
                canvas.text(Label::new(&name, LABEL, Align::End), [left - GAP, y])?;
            }
        }
        Ok(())
    }

    fn draw_bar<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, x: f64, [top, bottom]: [f64; 2]) -> Drawn {
        let height = (bottom - top).min(LONGEST_BAR);
        let [low, high] = self.scale.range();
        let steps = 128;
        for step in 0..steps {
            let share = |step: usize| step as f64 / steps as f64;
            let colour = self.scale.colour(low + (high - low) * share(2 * step + 1) / 2.0);
            let y = |step| top + height * (1.0 - share(step));
            canvas.fill([x, y(step + 1)], [x + BAR, y(step)], colour)?;
        }
        canvas.frame([x, top], [x + BAR, top + height], INK)?;
        let mut widest: f64 = 0.0;
        for tick in ticks(low, high, 5) {
            let y = top + height * (1.0 - (tick - low) / (high - low));
            let name = number(tick);
            widest = widest.max(text_width(&name, LABEL));
            canvas.line(&[[x + BAR, y], [x + BAR + GAP / 2.0, y]], 1.0, INK)?;
            canvas.text(Label::new(&name, LABEL, Align::Start), [x + BAR + GAP, y])?;
        }
        let title = Label::new(&self.value_title, AXIS_TITLE, Align::Middle).vertical();
        canvas.text(title, [x + BAR + 2.0 * GAP + widest + AXIS_TITLE / 2.0, top + height / 2.0])
    }
}

impl HeatMap {
    /// Width and height in which it looks well, in points.
    pub(super) fn size(&self) -> [f64; 2] {
        let Margins { left, top, right, bottom } = self.margins();
        let across = self.columns();
        let down = self.panels.len().max(1).div_ceil(across);
        // Several panels are smaller, a single one is not less than is good to look at.
        let [least, most] = if self.panels.len() > 1 { [180.0, 480.0] } else { [320.0, 800.0] };
        let [height, width] = self.table().map(|count| (count as f64 * USUAL_CELL).clamp(least, most));
        let (across_gaps, down_gaps) = ((across - 1) as f64 * 2.0 * GAP, (down - 1) as f64 * GAP);
        let width = left + across as f64 * width + across_gaps + right;
        let height = top + down as f64 * (height + self.panel_title()) + down_gaps + bottom;
        // The title should fit, too.
        let width = width.max(text_width(&self.title, TITLE) + 4.0 * GAP);
        [width, height]
    }

    pub(super) fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [width, height]: [f64; 2]) -> Drawn {
        let layout = self.layout([width, height]);
        let title = cut(&self.title, TITLE, width - 2.0 * GAP);
        canvas.text(Label::new(&title, TITLE, Align::Middle), [width / 2.0, GAP + TITLE / 2.0 + GAP / 2.0])?;
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % layout.columns, index / layout.columns);
            let x = layout.origin[0] + column as f64 * layout.pitch[0];
            let y = layout.origin[1] + row as f64 * layout.pitch[1];
            self.draw_panel(canvas, panel, [x, y], &layout)?;
        }
        self.draw_labels(canvas, &layout)?;
        let down = self.panels.len().max(1).div_ceil(layout.columns);
        let [left, top] = layout.origin;
        let right = left + layout.columns as f64 * layout.pitch[0] - 2.0 * GAP;
        let bottom = top + (down - 1) as f64 * layout.pitch[1] + layout.panel[1];
        let x_title = Label::new(&self.x_title, AXIS_TITLE, Align::Middle);
        canvas.text(x_title, [f64::midpoint(left, right), height - GAP - AXIS_TITLE / 2.0])?;
        let y_title = Label::new(&self.y_title, AXIS_TITLE, Align::Middle).vertical();
        canvas.text(y_title, [GAP + AXIS_TITLE / 2.0, f64::midpoint(top, bottom)])?;
        self.draw_bar(canvas, right + 2.0 * GAP, [top, bottom])
    }
}

/// Neighbours of equal colour as the first place, how many, and the colour.
fn runs(colours: impl Iterator<Item = Option<RGBColor>>) -> Vec<(usize, usize, RGBColor)> {
    let mut runs: Vec<(usize, usize, RGBColor)> = Vec::new();
    for (at, colour) in colours.enumerate() {
        let Some(colour) = colour else { continue };
        match runs.last_mut() {
            Some((first, count, same)) if *first + *count == at && *same == colour => *count += 1,
            _ => runs.push((at, 1, colour)),
        }
    }
    runs
}
