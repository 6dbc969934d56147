//! What pictures are drawn on: rectangles, lines and text in points of the picture, over any backend of plotters.

use std::sync::Once;

use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, FontTransform, RGBColor, TextStyle, register_font};

use super::colour::INK;

/// What drawing gives: nothing, or a sentence that says what went wrong.
pub(super) type Drawn = Result<(), String>;

/// The name of the font. In an SVG file the reader's own font of that name is used.
const FONT: &str = "sans-serif";

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// Text that is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label<'a> {
    pub text: &'a str,
    /// Height of a line, in points.
    pub size: f64,
    pub align: Align,
    pub colour: RGBColor,
    /// Whether it runs upwards.
    pub is_vertical: bool,
}

impl<'a> Label<'a> {
    /// Dark text that runs to the right.
    pub fn new(text: &'a str, size: f64, align: Align) -> Self {
        Self { text, size, align, colour: INK, is_vertical: false }
    }

    /// The same, running upwards.
    pub fn vertical(self) -> Self {
        Self { is_vertical: true, ..self }
    }

    /// The same in another colour.
    pub fn with_colour(self, colour: RGBColor) -> Self {
        Self { colour, ..self }
    }
}

/// A backend of plotters under a scale.
pub(super) struct Canvas<'a, B> {
    backend: &'a mut B,
    /// Pixels per point.
    scale: f64,
    /// How far below where the backend puts it a text must be drawn for its middle to be at its point, as a share of its
    /// size.
    text_shift: f64,
}

impl<'a, B: DrawingBackend> Canvas<'a, B> {
    /// A canvas of `scale` pixels per point.
    pub fn new(backend: &'a mut B, scale: f64, text_shift: f64) -> Self {
        Self { backend, scale, text_shift }
    }

    fn pixel(&self, [x, y]: [f64; 2]) -> (i32, i32) {
        ((x * self.scale).round() as i32, (y * self.scale).round() as i32)
    }

    /// A filled rectangle between two corners.
    pub fn fill(&mut self, from: [f64; 2], to: [f64; 2], colour: RGBColor) -> Drawn {
        let (from, to) = (self.pixel(from), self.pixel(to));
        self.backend.draw_rect(from, to, &colour.filled(), true).map_err(|error| error.to_string())
    }

    /// A line through points, `width` points wide.
    pub fn line(&mut self, points: &[[f64; 2]], width: f64, colour: RGBColor) -> Drawn {
        let points: Vec<_> = points.iter().map(|point| self.pixel(*point)).collect();
        let width = (width * self.scale).round().max(1.0) as u32;
        self.backend.draw_path(points, &colour.stroke_width(width)).map_err(|error| error.to_string())
    }

    /// The outline of a rectangle.
    pub fn frame(&mut self, [x0, y0]: [f64; 2], [x1, y1]: [f64; 2], colour: RGBColor) -> Drawn {
        self.line(&[[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]], 1.0, colour)
    }

    /// A dot.
    pub fn dot(&mut self, centre: [f64; 2], radius: f64, colour: RGBColor) -> Drawn {
        let (centre, radius) = (self.pixel(centre), (radius * self.scale).round() as u32);
        self.backend.draw_circle(centre, radius, &colour.filled(), true).map_err(|error| error.to_string())
    }

    /// A text whose middle line runs through `at`.
    pub fn text(&mut self, label: Label, [x, y]: [f64; 2]) -> Drawn {
        let shift = label.size * self.text_shift;
        let (at, transform) = match label.is_vertical {
            false => ([x, y + shift], FontTransform::None),
            true => ([x + shift, y], FontTransform::Rotate270),
        };
        let horizontal = match label.align {
            Align::Start => HPos::Left,
            Align::Middle => HPos::Center,
            Align::End => HPos::Right,
        };
        let style = TextStyle {
            font: font(label.size * self.scale).transform(transform),
            color: label.colour.to_backend_color(),
            pos: Pos::new(horizontal, VPos::Center),
        };
        let at = self.pixel(at);
        self.backend.draw_text(label.text, &style, at).map_err(|error| error.to_string())
    }
}

/// The font in a size.
fn font(size: f64) -> FontDesc<'static> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // The font is part of the program, so that it can only be one that is read; without it text has no width.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    FontDesc::new(FontFamily::Name(FONT), size, FontStyle::Normal)
}

/// How wide a text is, in points.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    // Widths come in whole pixels; in this size their rounding does not show.
    const FINE: f64 = 16.0;
    font(size * FINE).layout_box(text).map_or(0.0, |((left, _), (right, _))| f64::from(right - left) / FINE)
}

/// `text`, cut to at most `width` points.
pub(super) fn cut(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut kept: Vec<char> = text.chars().collect();
    loop {
        kept.pop();
        let shorter: String = kept.iter().chain(['…'].iter()).collect();
        if kept.is_empty() || text_width(&shorter, size) <= width {
            return shorter;
        }
    }
}
