//! Pictures: heat maps, the map of head roles and line charts, as PNG and SVG files.
//!
//! ```no_run
//! use burnformer::plot::{positions, save};
//!
//! # fn main() -> Result<(), burnformer::Error> {
//! save(positions(50, 64), "positions.svg", None)
//! # }
//! ```
//!
//! Colours can be told apart by the colour-blind, and magnitudes also in print: viridis for magnitudes, blue to red for
//! numbers of both signs.

mod axis;
mod canvas;
mod charts;
mod colour;
mod file;
mod heat_map;
mod line_chart;
mod role_map;
#[cfg(test)]
mod tests;

use plotters::prelude::DrawingBackend;

pub use axis::CellLabels;
use canvas::{Canvas, Drawn};
pub use charts::{AttentionPanel, attention, costs, gradient_norms, positions, score_map};
pub use colour::ColourScale;
pub use file::{LARGEST_SIDE, check_target, save};
pub use heat_map::{HeatMap, Panel};
pub use line_chart::{AxisScale, LineChart, Series};
pub use role_map::RoleMap;

/// Something that can be drawn in any size.
#[derive(Clone, Debug, PartialEq)]
pub enum Picture {
    /// Tables of numbers as colours.
    HeatMap(HeatMap),
    /// What the heads of a model do.
    Roles(RoleMap),
    /// Lines over a number.
    Lines(LineChart),
}

impl From<HeatMap> for Picture {
    fn from(heat_map: HeatMap) -> Self {
        Self::HeatMap(heat_map)
    }
}

impl From<RoleMap> for Picture {
    fn from(roles: RoleMap) -> Self {
        Self::Roles(roles)
    }
}

impl From<LineChart> for Picture {
    fn from(lines: LineChart) -> Self {
        Self::Lines(lines)
    }
}

impl Picture {
    /// Width and height in which it looks well, in points; a point is a pixel of a PNG file.
    pub fn size(&self) -> [u32; 2] {
        let size = match self {
            Self::HeatMap(heat_map) => heat_map.size(),
            Self::Roles(roles) => roles.size(),
            Self::Lines(lines) => lines.size(),
        };
        size.map(|side| (side.ceil() as u32).clamp(1, LARGEST_SIDE))
    }

    fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, size: [f64; 2]) -> Drawn {
        match self {
            Self::HeatMap(heat_map) => heat_map.draw(canvas, size),
            Self::Roles(roles) => roles.draw(canvas, size),
            Self::Lines(lines) => lines.draw(canvas, size),
        }
    }
}
