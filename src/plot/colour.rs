//! Colours: two maps from numbers, and colours that tell kinds apart. All can be told apart by the colour-blind.

use plotters::style::RGBColor;

/// Text, frames and ticks.
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Lines that guide the eye.
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Behind everything.
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// The map viridis of matplotlib at eight equal steps: equal differences of numbers look equally large, in print too.
const VIRIDIS: [[u8; 3]; 9] = [
    [0x44, 0x01, 0x54],
    [0x47, 0x2d, 0x7b],
    [0x3b, 0x52, 0x8b],
    [0x2c, 0x72, 0x8e],
    [0x21, 0x91, 0x8c],
    [0x28, 0xae, 0x80],
    [0x5e, 0xc9, 0x62],
    [0xad, 0xdc, 0x30],
    [0xfd, 0xe7, 0x25],
];

/// From blue over nearly white to red: the map RdBu of ColorBrewer, turned round.
const BLUE_RED: [[u8; 3]; 7] = [
    [0x21, 0x66, 0xac],
    [0x67, 0xa9, 0xcf],
    [0xd1, 0xe5, 0xf0],
    [0xf7, 0xf7, 0xf7],
    [0xfd, 0xdb, 0xc7],
    [0xef, 0x8a, 0x62],
    [0xb2, 0x18, 0x2b],
];

/// Seven colours of Okabe and Ito (2008); the eighth, yellow, is too pale for lines.
pub(super) const KINDS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x22, 0x22, 0x22),
];

/// From numbers to colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColourScale {
    /// For magnitudes: viridis from `low` to `high`.
    Sequential {
        /// The number with the darkest colour.
        low: f64,
        /// The number with the brightest colour.
        high: f64,
    },
    /// For numbers of both signs: blue for `−limit`, nearly white for 0, red for `limit`.
    Diverging {
        /// The largest magnitude.
        limit: f64,
    },
}

impl ColourScale {
    /// The colour of `value`; what lies outside has the colour of the nearer end.
    pub fn colour(self, value: f64) -> RGBColor {
        let [low, high] = self.range();
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        match self {
            Self::Sequential { .. } => between(&VIRIDIS, share),
            Self::Diverging { .. } => between(&BLUE_RED, share),
        }
    }

    /// The lowest and the highest number.
    pub fn range(self) -> [f64; 2] {
        match self {
            Self::Sequential { low, high } => [low, high],
            Self::Diverging { limit } => [-limit, limit],
        }
    }
}

/// The colour at `share` of the way along equal steps.
fn between(stops: &[[u8; 3]], share: f64) -> RGBColor {
    let steps = stops.len() - 1;
    let at = share.clamp(0.0, 1.0) * steps as f64;
    let index = (at as usize).min(steps - 1);
    let part = at - index as f64;
    let [r, g, b] = std::array::from_fn(|channel| {
        let [from, to] = [stops[index][channel], stops[index + 1][channel]].map(f64::from);
        (from + (to - from) * part).round() as u8
    });
    RGBColor(r, g, b)
}

/// Black or white, whichever can be read on `colour`.
pub(super) fn ink_on(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let brightness = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
    if brightness > 140.0 { INK } else { PAPER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_and_the_middle_have_their_colours() {
        let scale = ColourScale::Sequential { low: 0.0, high: 2.0 };
        assert_eq!([0.0, 1.0, 2.0].map(|value| scale.colour(value)), [VIRIDIS[0], VIRIDIS[4], VIRIDIS[8]].map(rgb));
        assert_eq!(scale.colour(-3.0), scale.colour(0.0));
        assert_eq!(scale.colour(3.0), scale.colour(2.0));
        let signed = ColourScale::Diverging { limit: 0.5 };
        assert_eq!(
            [-0.5, 0.0, 0.5].map(|value| signed.colour(value)),
            [BLUE_RED[0], BLUE_RED[3], BLUE_RED[6]].map(rgb)
        );
    }

    #[test]
    fn brightness_grows_along_the_sequential_map() {
        let scale = ColourScale::Sequential { low: 0.0, high: 1.0 };
        let brightness = |step: i32| {
            let RGBColor(r, g, b) = scale.colour(f64::from(step) / 100.0);
            0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b)
        };
        assert!((0..100).all(|step| brightness(step) < brightness(step + 1)));
    }

    fn rgb([r, g, b]: [u8; 3]) -> RGBColor {
        RGBColor(r, g, b)
    }
}
