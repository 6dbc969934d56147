//! The map of head roles: a coloured cell for each head, layers from left to right.

use plotters::prelude::DrawingBackend;
use plotters::style::RGBColor;

use super::axis::{AXIS_TITLE, CellLabels, LABEL, TITLE};
use super::canvas::{Align, Canvas, Drawn, Label, cut, text_width};
use super::colour::{INK, KINDS, ink_on};
use crate::head_roles::{HeadRole, HeadScores};
use crate::model::AttentionPart;

/// A coloured cell for each head of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleMap {
    /// What stands above all.
    pub title: String,
    /// The heads of one part or of several, which stand below each other.
    pub heads: Vec<HeadScores>,
}

const GAP: f64 = 8.0;
/// Side of a cell that nobody has given a size, and the smallest in which a letter can be read.
const USUAL_CELL: f64 = 24.0;
const SMALLEST_CELL_WITH_LETTER: f64 = 13.0;
/// Narrower pictures look lost.
const LEAST_WIDTH: f64 = 320.0;
/// Side of a square in the legend.
const SQUARE: f64 = 14.0;

/// Heads of one part.
struct Part<'a> {
    title: &'static str,
    heads: Vec<&'a HeadScores>,
    n_layers: usize,
    n_heads: usize,
}

/// The colour of a role.
fn colour(role: HeadRole) -> RGBColor {
    match role {
        HeadRole::PreviousToken => KINDS[0],
        HeadRole::NextToken => KINDS[6],
        HeadRole::FirstToken => KINDS[4],
        HeadRole::Induction => KINDS[1],
        HeadRole::DuplicateToken => KINDS[5],
        HeadRole::OwnToken => KINDS[2],
        HeadRole::Uniform => KINDS[3],
        HeadRole::Mixed => RGBColor(0xe4, 0xe4, 0xe4),
    }
}

impl RoleMap {
    fn parts(&self) -> Vec<Part<'_>> {
        let of_part = |part: AttentionPart| {
            let heads: Vec<&HeadScores> = self.heads.iter().filter(|head| head.part == part).collect();
            let count = |of: fn(&HeadScores) -> usize| heads.iter().map(|head| of(head) + 1).max().unwrap_or(0);
            let (n_layers, n_heads) = (count(|head| head.layer), count(|head| head.head));
            Part { title: part.name(), heads, n_layers, n_heads }
        };
        AttentionPart::ALL.into_iter().map(of_part).filter(|part| !part.heads.is_empty()).collect()
    }

    /// The roles that occur, each with what the legend says.
    fn legend(&self) -> Vec<(HeadRole, String)> {
        let count = |role| self.heads.iter().filter(|head| head.role == role).count();
        let counted = HeadRole::ALL.into_iter().map(|role| (role, count(role)));
        let occurring = counted.filter(|(_, count)| *count > 0);
        occurring.map(|(role, count)| (role, format!("{} ({count})", role.label()))).collect()
    }

    fn right(&self) -> f64 {
        let names = self.legend().into_iter().map(|(_, name)| text_width(&name, LABEL)).fold(0.0, f64::max);
        2.0 * GAP + SQUARE + GAP + names + 2.0 * GAP
    }

    fn left(parts: &[Part]) -> f64 {
        let widest = parts.iter().map(|part| CellLabels::Numbers.width(part.n_heads)).fold(0.0, f64::max);
        GAP + AXIS_TITLE + GAP + widest + GAP
    }

    /// Height above the cells of a part and below them.
    fn around(parts: &[Part]) -> [f64; 2] {
        [if parts.len() > 1 { AXIS_TITLE + GAP } else { 0.0 }, GAP + LABEL + GAP]
    }

    fn top() -> f64 {
        2.0 * GAP + TITLE + GAP
    }

    fn draw_part<B: DrawingBackend>(canvas: &mut Canvas<B>, part: &Part, [x, y]: [f64; 2], cell: f64) -> Drawn {
        // A hair between cells, where there is room for one.
        let hair = if cell > 8.0 { 1.0 } else { 0.0 };
        for head in &part.heads {
            let (left, top) = (x + head.layer as f64 * cell, y + head.head as f64 * cell);
            let fill = colour(head.role);
            canvas.fill([left, top], [left + cell - hair, top + cell - hair], fill)?;
            if cell >= SMALLEST_CELL_WITH_LETTER && head.role != HeadRole::Mixed {
                let letter = head.role.symbol().to_string();
                let label = Label::new(&letter, (0.6 * cell).min(LABEL), Align::Middle).with_colour(ink_on(fill));
                canvas.text(label, [left + (cell - hair) / 2.0, top + (cell - hair) / 2.0])?;
            }
        }
        let bottom = y + part.n_heads as f64 * cell;
        let x_room = CellLabels::Numbers.width(part.n_layers) + GAP;
        for (layer, name) in CellLabels::Numbers.shown(part.n_layers, cell, x_room) {
            let at = [x + (layer as f64 + 0.5) * cell, bottom + GAP / 2.0 + LABEL / 2.0];
            canvas.text(Label::new(&name, LABEL, Align::Middle), at)?;
        }
        for (head, name) in CellLabels::Numbers.shown(part.n_heads, cell, LABEL) {
            canvas.text(Label::new(&name, LABEL, Align::End), [x - GAP / 2.0, y + (head as f64 + 0.5) * cell])?;
        }
        Ok(())
    }
}

impl RoleMap {
    /// Width and height in which it looks well, in points.
    pub(super) fn size(&self) -> [f64; 2] {
        let parts = self.parts();
        let columns = parts.iter().map(|part| part.n_layers).max().unwrap_or(0) as f64;
        let rows = parts.iter().map(|part| part.n_heads).sum::<usize>() as f64;
        let [above, below] = Self::around(&parts);
        let legend = self.legend().len() as f64 * (SQUARE + GAP);
        let cells = (rows * USUAL_CELL + parts.len() as f64 * (above + below)).max(legend);
        let width = Self::left(&parts) + columns * USUAL_CELL + self.right();
        let width = width.max(text_width(&self.title, TITLE) + 4.0 * GAP).max(LEAST_WIDTH);
        let height = Self::top() + cells + AXIS_TITLE + GAP;
        [width, height]
    }

    pub(super) fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, [width, height]: [f64; 2]) -> Drawn {
        let parts = self.parts();
        let [above, below] = Self::around(&parts);
        let columns = parts.iter().map(|part| part.n_layers).max().unwrap_or(1) as f64;
        let rows = parts.iter().map(|part| part.n_heads).sum::<usize>().max(1) as f64;
        let across = width - Self::left(&parts) - self.right();
        let down = height - Self::top() - parts.len() as f64 * (above + below) - AXIS_TITLE - GAP;
        let cell = (across / columns).min(down / rows).max(1.0);
        let title = cut(&self.title, TITLE, width - 2.0 * GAP);
        canvas.text(Label::new(&title, TITLE, Align::Middle), [width / 2.0, GAP + TITLE / 2.0 + GAP / 2.0])?;

        let left = Self::left(&parts);
        let mut y = Self::top();
        for part in &parts {
            if above > 0.0 {
                canvas.text(Label::new(part.title, AXIS_TITLE, Align::Start), [left, y + AXIS_TITLE / 2.0])?;
            }
            let middle = y + above + part.n_heads as f64 * cell / 2.0;
            canvas.text(Label::new("head", AXIS_TITLE, Align::Middle).vertical(), [GAP + AXIS_TITLE / 2.0, middle])?;
            Self::draw_part(canvas, part, [left, y + above], cell)?;
            y += above + part.n_heads as f64 * cell + below;
        }
        let middle = left + columns * cell / 2.0;
        canvas.text(Label::new("layer", AXIS_TITLE, Align::Middle), [middle, y + AXIS_TITLE / 2.0])?;

        let x = left + columns * cell + 2.0 * GAP;
        for (at, (role, name)) in self.legend().into_iter().enumerate() {
            let y = Self::top() + at as f64 * (SQUARE + GAP);
            canvas.fill([x, y], [x + SQUARE, y + SQUARE], colour(role))?;
            canvas.frame([x, y], [x + SQUARE, y + SQUARE], INK)?;
            canvas.text(Label::new(&name, LABEL, Align::Start), [x + SQUARE + GAP, y + SQUARE / 2.0])?;
        }
        Ok(())
    }
}
