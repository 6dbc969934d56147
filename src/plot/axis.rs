//! Where axes have their labels, and what these say.

use super::canvas::{cut, text_width};

/// Size of labels, of the titles of axes and of the title of a picture, in points.
pub(super) const LABEL: f64 = 12.0;
pub(super) const AXIS_TITLE: f64 = 14.0;
pub(super) const TITLE: f64 = 18.0;

/// Longer names are cut, in points.
const LONGEST_NAME: f64 = 110.0;

/// What the cells along an axis are called.
#[derive(Clone, Debug, PartialEq)]
pub enum CellLabels {
    /// By their number, from 0.
    Numbers,
    /// By name.
    Names(Vec<String>),
}

impl CellLabels {
    fn name(&self, cell: usize) -> String {
        match self {
            Self::Numbers => cell.to_string(),
            Self::Names(names) => names.get(cell).map_or_else(String::new, |name| cut(name, LABEL, LONGEST_NAME)),
        }
    }

    /// The width of the widest of `count` names.
    pub(super) fn width(&self, count: usize) -> f64 {
        match self {
            Self::Numbers => text_width(&count.saturating_sub(1).to_string(), LABEL),
            Self::Names(_) => (0..count).map(|cell| text_width(&self.name(cell), LABEL)).fold(0.0, f64::max),
        }
    }

    /// Whether names along a horizontal axis run upwards.
    pub(super) fn are_upright(&self) -> bool {
        matches!(self, Self::Names(_))
    }

    /// The cells that have a label, and the label: as many as have `room` points each. Numbers stand at round ones.
    pub(super) fn shown(&self, count: usize, cell: f64, room: f64) -> Vec<(usize, String)> {
        let least = (room / cell).ceil().max(1.0) as usize;
        let step = match self {
            Self::Names(_) => least,
            Self::Numbers => round_up(least as f64) as usize,
        };
        (0..count).step_by(step).map(|cell| (cell, self.name(cell))).collect()
    }
}

/// The least of 1, 2, 5, 10, 20, 50 and so on that is not below `least`; likewise 0.5, 0.2, 0.1 and so on.
fn round_up(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    // Rounding may have left the quotient a little above a round number.
    let fits = |factor: &f64| factor * power >= least * (1.0 - 1e-9);
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// Round numbers from `low` to `high`, at most `count` of them, or a few more.
pub(super) fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let step = round_up(((high - low) / count.max(1) as f64).max(f64::MIN_POSITIVE));
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|index| index as f64 * step).collect()
}

/// Powers of ten from `low` to `high`, with 2 and 5 times those where there are few.
pub(super) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = ((low.log10() - 1e-9).floor() as i32, (high.log10() + 1e-9).ceil() as i32);
    let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (first..=last).flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
    let within = low * (1.0 - 1e-9)..=high * (1.0 + 1e-9);
    all.filter(|tick| within.contains(tick)).collect()
}

/// A number in few digits: `0.25`, `20`, `4 k`, `1.5 M`, `1e-5`.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e18).contains(&magnitude) {
        return format!("{value:e}");
    }
    let units = [(1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let (unit, name) = units.into_iter().find(|(unit, _)| magnitude >= *unit * (1.0 - 1e-12)).unwrap_or((1.0, ""));
    let digits = format!("{:.3}", value / unit);
    format!("{}{name}", digits.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [0.9, 1.0, 1.1, 3.0, 6.0, 20.0, 51.0, 0.03].map(round_up),
            [1.0, 1.0, 2.0, 5.0, 10.0, 20.0, 100.0, 0.05]
        );
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(-1.0, 1.0, 4), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(log_ticks(20.0, 3000.0), [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!(log_ticks(1.0, 1e5), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
    }

    #[test]
    fn numbers_have_few_digits() {
        let found = [0.0, 0.25, 0.6000000000000001, 20.0, -1.5e6, 1000.0, 2e-5].map(number);
        assert_eq!(found, ["0", "0.25", "0.6", "20", "-1.5 M", "1 k", "2e-5"]);
    }

    #[test]
    fn labels_leave_room_for_each_other() {
        let names = CellLabels::Names((0..7).map(|name| format!("n{name}")).collect());
        let shown = |labels: &CellLabels, cell| -> Vec<usize> {
            labels.shown(7, cell, 12.0).into_iter().map(|(cell, _)| cell).collect()
        };
        assert_eq!(shown(&names, 12.0), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(shown(&names, 4.5), [0, 3, 6]);
        assert_eq!(shown(&CellLabels::Numbers, 4.5), [0, 5]);
    }
}
