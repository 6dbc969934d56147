//! The pictures of this crate's own numbers.

use super::axis::CellLabels;
use super::colour::ColourScale;
use super::heat_map::{HeatMap, Panel};
use super::line_chart::{AxisScale, LineChart, Series};
use crate::head_roles::{AttentionPattern, HeadRole, HeadScores};
use crate::model::AttentionPart;
use crate::positions::sinusoidal;

/// The sinusoidal vectors of the first positions, one row each.
///
/// # Panics
///
/// When there are no positions or dimensions.
pub fn positions(n_positions: usize, d_model: usize) -> HeatMap {
    assert!(n_positions > 0 && d_model > 0, "a table of {n_positions} × {d_model} numbers is empty");
    HeatMap {
        title: "Sinusoidal positions".into(),
        x_title: "dimension".into(),
        y_title: "position".into(),
        value_title: "value".into(),
        panels: vec![Panel {
            title: String::new(),
            rows: (0..n_positions).map(|position| sinusoidal(position, d_model)).collect(),
        }],
        x_labels: CellLabels::Numbers,
        y_labels: CellLabels::Numbers,
        scale: ColourScale::Diverging { limit: 1.0 },
    }
}

/// The attention of one head, as a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPanel {
    /// What stands above it.
    pub title: String,
    /// The weights.
    pub pattern: AttentionPattern,
    /// Whether keys after the query are hidden; they stay blank.
    pub is_causal: bool,
}

/// The attention weights of heads on one text: queries from top to bottom, keys from left to right.
///
/// # Panics
///
/// When there is no panel, or they have unequal sizes.
pub fn attention(
    title: impl Into<String>,
    panels: &[AttentionPanel],
    queries: Vec<String>,
    keys: Vec<String>,
) -> HeatMap {
    let size = |panel: &AttentionPanel| [panel.pattern.query_len(), panel.pattern.key_len()];
    assert!(!panels.is_empty(), "there is no head to draw");
    assert!(panels.iter().all(|panel| size(panel) == size(&panels[0])), "heads on texts of unequal lengths");
    let rows = |panel: &AttentionPanel| {
        let row = |query: usize| {
            let weights = panel.pattern.row(query).iter().enumerate();
            weights.map(|(key, weight)| if panel.is_causal && key > query { f64::NAN } else { *weight }).collect()
        };
        (0..panel.pattern.query_len()).map(row).collect()
    };
    HeatMap {
        title: title.into(),
        x_title: "key: the token that is looked at".into(),
        y_title: "query: the token that looks".into(),
        value_title: "attention weight".into(),
        panels: panels.iter().map(|panel| Panel { title: panel.title.clone(), rows: rows(panel) }).collect(),
        x_labels: CellLabels::Names(keys),
        y_labels: CellLabels::Names(queries),
        scale: ColourScale::Sequential { low: 0.0, high: 1.0 },
    }
}

/// The score that decides on `role`, for each head: layers from left to right. Heads for which it was not measured stay
/// blank. Parts of a model have a panel each.
///
/// # Panics
///
/// When there are no heads.
pub fn score_map(title: impl Into<String>, heads: &[HeadScores], role: HeadRole) -> HeatMap {
    assert!(!heads.is_empty(), "there is no head to draw");
    let count = |of: fn(&HeadScores) -> usize| heads.iter().map(|head| of(head) + 1).max().unwrap_or(0);
    let (n_layers, n_heads) = (count(|head| head.layer), count(|head| head.head));
    let parts: Vec<AttentionPart> =
        AttentionPart::ALL.into_iter().filter(|part| heads.iter().any(|head| head.part == *part)).collect();
    let panel = |part: &AttentionPart| {
        let mut rows = vec![vec![f64::NAN; n_layers]; n_heads];
        for head in heads.iter().filter(|head| head.part == *part) {
            rows[head.head][head.layer] = role.score(head).unwrap_or(f64::NAN);
        }
        Panel { title: if parts.len() > 1 { part.to_string() } else { String::new() }, rows }
    };
    HeatMap {
        title: title.into(),
        x_title: "layer".into(),
        y_title: "head".into(),
        value_title: match role {
            HeadRole::Uniform => "share of the largest entropy".into(),
            _ => format!("weight on the {}", target(role)),
        },
        panels: parts.iter().map(panel).collect(),
        x_labels: CellLabels::Numbers,
        y_labels: CellLabels::Numbers,
        scale: ColourScale::Sequential { low: 0.0, high: 1.0 },
    }
}

/// What a head of that role looks at.
fn target(role: HeadRole) -> &'static str {
    match role {
        HeadRole::PreviousToken => "previous token",
        HeadRole::NextToken => "next token",
        HeadRole::FirstToken => "first token",
        HeadRole::Induction => "token after the same token",
        HeadRole::DuplicateToken => "same token before",
        HeadRole::OwnToken => "own token",
        HeadRole::Uniform | HeadRole::Mixed => "text",
    }
}

/// Norms of gradients by layer, one line each for a model or a part of one.
pub fn gradient_norms(title: impl Into<String>, series: Vec<Series>, y_scale: AxisScale) -> LineChart {
    LineChart {
        title: title.into(),
        x_title: "layer".into(),
        y_title: "gradient norm".into(),
        x_scale: AxisScale::Linear,
        y_scale,
        series,
        marks: Vec::new(),
    }
}

/// Floating-point operations of a forward over sequence length, on logarithmic axes, one line for each part of a model.
/// `marks` are lengths that deserve a name, such as the one from which scores take more than weights.
pub fn costs(title: impl Into<String>, series: Vec<Series>, marks: Vec<(f64, String)>) -> LineChart {
    LineChart {
        title: title.into(),
        x_title: "sequence length in tokens".into(),
        y_title: "FLOP of a forward".into(),
        x_scale: AxisScale::Log,
        y_scale: AxisScale::Log,
        series,
        marks,
    }
}
