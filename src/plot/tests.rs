//! Pictures show their numbers: pixels have the colours of values, and SVG files hold every title and label.

use plotters::style::RGBColor;

use super::file::{pixels, svg};
use super::*;
use crate::head_roles::{AttentionPattern, HeadId, HeadRole, HeadScores, Visibility};
use crate::model::AttentionPart;

/// The pixels of a picture.
struct Pixels {
    width: usize,
    bytes: Vec<u8>,
}

impl Pixels {
    fn of(picture: &Picture, size: [u32; 2]) -> Self {
        Self { width: size[0] as usize, bytes: pixels(picture, size).expect("it is drawn") }
    }

    fn colours(&self) -> impl Iterator<Item = RGBColor> {
        self.bytes.chunks(3).map(|pixel| RGBColor(pixel[0], pixel[1], pixel[2]))
    }

    /// How many pixels have this colour, and the middle of them.
    fn find(&self, colour: RGBColor) -> (usize, [f64; 2]) {
        let at = |index: usize| [(index % self.width) as f64, (index / self.width) as f64];
        let found: Vec<[f64; 2]> =
            self.colours().enumerate().filter(|(_, found)| *found == colour).map(|(index, _)| at(index)).collect();
        let mean = |axis: usize| found.iter().map(|place| place[axis]).sum::<f64>() / found.len().max(1) as f64;
        (found.len(), [mean(0), mean(1)])
    }
}

fn heat_map(rows: Vec<Vec<f64>>) -> HeatMap {
    HeatMap {
        title: "Title".into(),
        x_title: "across".into(),
        y_title: "down".into(),
        value_title: "how much".into(),
        panels: vec![Panel { title: "panel".into(), rows }],
        x_labels: CellLabels::Names(vec!["<s>".into(), "a & b".into()]),
        y_labels: CellLabels::Numbers,
        scale: ColourScale::Sequential { low: 0.0, high: 1.0 },
    }
}

fn head(layer: usize, head: usize, key: usize) -> HeadScores {
    let rows = (0..4).flat_map(|_| (0..4).map(move |at| f64::from(at == key))).collect();
    let id = HeadId { part: AttentionPart::Decoder, layer, head };
    HeadScores::of(id, &AttentionPattern::new(rows, 4), Visibility { is_causal: true, window: None })
}

#[test]
fn a_cell_has_the_colour_of_its_value_at_its_place() {
    let size = [400, 300];
    // These shares occur nowhere else: the bar has steps of 1/128 and the other cells are dark.
    for value in [0.3371, 0.8123] {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut rows = vec![vec![0.0; 2]; 2];
            rows[row][column] = value;
            let map = heat_map(rows);
            let colour = map.scale.colour(value);
            let (count, [x, y]) = Pixels::of(&map.into(), size).find(colour);
            assert!(count > 5000, "{value}: {count} pixels");
            assert_eq!((x > 170.0, y > 130.0), (column == 1, row == 1), "{value}: {x} {y}");
        }
    }
}

#[test]
fn what_is_no_number_stays_blank() {
    let white = |rows| Pixels::of(&heat_map(rows).into(), [400, 300]).find(RGBColor(255, 255, 255)).0;
    let full = white(vec![vec![0.5; 2]; 2]);
    let blank = white(vec![vec![0.5, f64::NAN], vec![0.5; 2]]);
    assert!(blank > full + 5000, "{blank} {full}");
}

#[test]
fn an_svg_file_holds_titles_and_labels_escaped() {
    let text = svg(&heat_map(vec![vec![0.25, 0.5]; 3]).into(), [400, 300]).expect("it is drawn");
    for part in ["Title", "across", "down", "how much", "panel", "&lt;s&gt;", "a &amp; b", "0.2", "0.8"] {
        assert!(text.contains(&format!("\n{part}\n")), "{part}: {text}");
    }
    assert!(!text.contains("<s>"), "{text}");
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    let RGBColor(r, g, b) = ColourScale::Sequential { low: 0.0, high: 1.0 }.colour(0.25);
    let cell = format!("fill=\"#{r:02X}{g:02X}{b:02X}\"");
    assert!(text.matches(&cell).count() >= 3, "{cell}: {text}");
}

#[test]
fn a_role_map_colours_roles_and_counts_them() {
    // The first token, the token before (of the last query), the own token.
    let roles =
        RoleMap { title: "Roles".into(), heads: vec![head(0, 0, 0), head(0, 1, 0), head(1, 0, 0), head(1, 1, 2)] };
    assert_eq!(roles.heads.iter().filter(|head| head.role == HeadRole::FirstToken).count(), 3);
    let text = svg(&roles.clone().into(), [400, 300]).expect("it is drawn");
    for part in ["Roles", "layer", "head", "first token (3)", "mixed (1)", "F"] {
        assert!(text.contains(&format!("\n{part}\n")), "{part}: {text}");
    }
    let sky = RGBColor(0x56, 0xb4, 0xe9);
    let cells = |roles: &RoleMap| Pixels::of(&roles.clone().into(), [400, 300]).find(sky).0;
    let fewer = RoleMap { heads: vec![head(0, 0, 0), head(0, 1, 2), head(1, 0, 2), head(1, 1, 2)], ..roles.clone() };
    assert!(cells(&roles) > 2 * cells(&fewer) && cells(&fewer) > 1000, "{} {}", cells(&roles), cells(&fewer));
}

#[test]
fn blank_keys_are_those_after_a_causal_query() {
    let pattern = || AttentionPattern::new([0.25; 16].to_vec(), 4);
    let words = || (0..4).map(|word| format!("w{word}")).collect::<Vec<_>>();
    let drawn = |is_causal| {
        let panel = AttentionPanel { title: "one".into(), pattern: pattern(), is_causal };
        attention("Attention", &[panel], words(), words()).panels.remove(0).rows
    };
    let blank = |rows: Vec<Vec<f64>>| rows.concat().into_iter().filter(|weight| weight.is_nan()).count();
    assert_eq!((blank(drawn(true)), blank(drawn(false))), (6, 0));
}

#[test]
fn a_score_map_has_layers_across_and_heads_down() {
    let map = score_map("Scores", &[head(0, 0, 0), head(0, 1, 0), head(1, 0, 0), head(2, 1, 2)], HeadRole::FirstToken);
    let rows = &map.panels[0].rows;
    assert_eq!((rows.len(), rows[0].len()), (2, 3));
    assert_eq!((rows[0][0], rows[1][2]), (1.0, 0.0));
    assert!(rows[0][2].is_nan() && rows[1][1].is_nan());
    assert_eq!(map.value_title, "weight on the first token");
}

fn lines(points: Vec<[f64; 2]>, y_scale: AxisScale) -> Picture {
    let series = vec![Series { name: "line & dot".into(), points }];
    let marks = vec![(15.0, "here".into())];
    Picture::Lines(LineChart { x_scale: AxisScale::Log, y_scale, marks, ..costs("Costs", series, Vec::new()) })
}

#[test]
fn a_line_runs_through_its_points() {
    let blue = RGBColor(0x00, 0x72, 0xb2);
    let points = |low: f64, high: f64| vec![[10.0, low], [20.0, high]];
    let middle = |points| Pixels::of(&lines(points, AxisScale::Linear), [600, 400]).find(blue).1[1];
    // Low numbers under high ones drawn on the same axis.
    let high = middle(vec![[10.0, 0.0], [15.0, 100.0], [20.0, 100.0]]);
    let low = middle(vec![[10.0, 100.0], [15.0, 0.0], [20.0, 0.0]]);
    assert!(low > high + 50.0, "{low} {high}");
    for scale in [AxisScale::Linear, AxisScale::Log] {
        let text = svg(&lines(points(1e3, 1e6), scale), [600, 400]).expect("it is drawn");
        for part in ["Costs", "sequence length in tokens", "FLOP of a forward", "line &amp; dot", "here", "20"] {
            assert!(text.contains(&format!("\n{part}\n")), "{scale:?}: {part}: {text}");
        }
    }
    let shown = |scale| svg(&lines(points(1e3, 1e6), scale), [600, 400]).expect("it is drawn");
    assert!(shown(AxisScale::Log).contains("\n10 k\n") && !shown(AxisScale::Linear).contains("\n10 k\n"));
}

#[test]
fn nothing_to_show_and_odd_numbers_are_drawn_without_fault() {
    for points in [vec![], vec![[5.0, 5.0]], vec![[f64::NAN, 1.0], [1.0, f64::INFINITY], [0.0, -3.0]]] {
        for scale in [AxisScale::Linear, AxisScale::Log] {
            svg(&lines(points.clone(), scale), [600, 400]).expect("it is drawn");
        }
    }
    for size in [[1, 1], [60, 2000], [2000, 60]] {
        pixels(&heat_map(vec![vec![0.5; 2]; 2]).into(), size).expect("it is drawn");
        pixels(&lines(vec![[1.0, 2.0]], AxisScale::Log), size).expect("it is drawn");
    }
}

#[test]
fn positions_are_the_table_of_sines() {
    let map = positions(50, 64);
    let rows = &map.panels[0].rows;
    assert_eq!((rows.len(), rows[0].len()), (50, 64));
    assert!((rows[3][0] - 3f64.sin()).abs() < 1e-12 && (rows[3][1] - 3f64.cos()).abs() < 1e-12);
    assert!((rows[7][10] - (7.0 / 10_000f64.powf(10.0 / 64.0)).sin()).abs() < 1e-12);
}
