//! Which layers see only a window of keys, and which turn how.

use super::hf_config::HfConfig;
use crate::model::{LayerPattern, LayerRotary};

/// Which layers slide: what `layer_types` says, or else `rule`.
pub(super) fn sliding_layers(hf: &mut HfConfig, n_layers: usize, rule: impl Fn(usize) -> bool) -> Vec<bool> {
    let Some(types) = hf.texts("layer_types") else {
        return (0..n_layers).map(rule).collect();
    };
    if types.len() != n_layers {
        hf.fault("layer_types", format!("must hold {n_layers} entries, one per layer, got {}", types.len()));
    }
    let mut sliding = Vec::with_capacity(n_layers);
    for layer in &types {
        sliding.push(layer == "sliding_attention");
        if !["sliding_attention", "full_attention"].contains(&layer.as_str()) {
            hf.fault("layer_types", format!("holds `{layer}`; known are full_attention and sliding_attention"));
        }
    }
    sliding.resize(n_layers, false);
    sliding
}

/// The window of the Qwen family. Its keys are in most files, and `use_sliding_window` is off in nearly all of them.
pub(super) fn switched_window(hf: &mut HfConfig) -> Option<usize> {
    let is_used = hf.flag("use_sliding_window", false);
    hf.size_or_null("sliding_window", Some(4096)).filter(|_| is_used)
}

/// One pattern per layer: sliding layers see `window` keys.
pub(super) fn windows(sliding: &[bool], window: Option<usize>) -> Vec<LayerPattern> {
    let layer = |slides: &bool| LayerPattern { window: window.filter(|_| *slides), ..LayerPattern::default() };
    sliding.iter().map(layer).collect()
}

/// The shortest list of patterns that, repeated over the depth, gives these layers.
pub(super) fn compressed(layers: &[LayerPattern]) -> Vec<LayerPattern> {
    let repeats_after = |period: &usize| layers.iter().skip(*period).eq(layers.iter().take(layers.len() - period));
    let period = (1..layers.len()).find(repeats_after).unwrap_or(layers.len());
    let mut patterns: Vec<LayerPattern> = Vec::new();
    for layer in &layers[..period] {
        match patterns.last_mut() {
            Some(last) if LayerPattern { repeat: 1, ..*last } == *layer => last.repeat += 1,
            _ => patterns.push(*layer),
        }
    }
    if patterns.is_empty() { vec![LayerPattern::default()] } else { patterns }
}

/// As [`windows`], with `local` rotation in sliding layers and `global` in the others.
pub(super) fn windows_and_rotations(
    sliding: &[bool],
    window: Option<usize>,
    local: LayerRotary,
    global: LayerRotary,
) -> Vec<LayerPattern> {
    let mut layers = windows(sliding, window);
    for (layer, slides) in layers.iter_mut().zip(sliding) {
        layer.rotary = if *slides { local } else { global };
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(windows: &[usize]) -> Vec<LayerPattern> {
        let window = |window: &usize| (*window > 0).then_some(*window);
        windows.iter().map(|w| LayerPattern { window: window(w), ..LayerPattern::default() }).collect()
    }

    fn shown(windows: &[usize]) -> Vec<(usize, usize)> {
        compressed(&layers(windows)).iter().map(|l| (l.window.unwrap_or(0), l.repeat)).collect()
    }

    #[test]
    fn patterns_are_as_short_as_can_be() {
        assert_eq!(shown(&[0; 7]), [(0, 1)]);
        assert_eq!(shown(&[4, 0, 4, 0, 4]), [(4, 1), (0, 1)]);
        assert_eq!(shown(&[4, 4, 4, 0, 4, 4, 4, 0, 4]), [(4, 3), (0, 1)]);
        assert_eq!(shown(&[0, 0, 4, 4, 4]), [(0, 2), (4, 3)]);
        assert_eq!(shown(&[]), [(0, 1)]);
    }

    #[test]
    fn the_list_in_the_file_overrides_the_rule() {
        let text = r#"{"layer_types": ["full_attention", "sliding_attention", "full_attention"]}"#;
        let mut hf = HfConfig::parse(text).expect("a JSON object");
        assert_eq!(sliding_layers(&mut hf, 3, |_| true), [false, true, false]);
        assert!(hf.finish(&[]).is_ok());
        let mut hf = HfConfig::parse(r#"{"layer_types": ["linear_attention"]}"#).expect("a JSON object");
        assert_eq!(sliding_layers(&mut hf, 2, |_| true).len(), 2);
        let message = hf.finish(&[]).expect_err("two faults").to_string();
        assert!(message.contains("must hold 2 entries, one per layer, got 1"), "{message}");
        assert!(message.contains("holds `linear_attention`"), "{message}");
    }
}
