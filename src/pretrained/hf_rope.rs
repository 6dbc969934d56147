//! Rotary positions in a Hugging Face config, in its two spellings.
//!
//! The older one puts `rope_theta`, `rope_scaling` and `partial_rotary_factor` at top level; the newer one puts
//! everything into `rope_parameters`, once or once per type of layer. As in transformers, a `rope_scaling` that says
//! anything wins over `rope_parameters`, and what neither holds comes from the top level, then from the family.

use super::hf_config::HfConfig;
use crate::attention::{RotaryConfig, RotaryScaling, RotaryStyle};
use crate::error::nearest;
use crate::positions::RotaryPositions;

/// The usual keys.
const THETA: &str = "rope_theta";
const FRACTION: &str = "partial_rotary_factor";

/// What a family's rotary positions are where the file is silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeDefaults {
    /// Base of the frequencies.
    pub theta: f64,
    /// The key at top level that holds the base, if there is one.
    pub theta_key: Option<&'static str>,
    /// Fraction of a head that turns.
    pub fraction: f64,
    /// The key at top level that holds the fraction; `None` where whole heads always turn.
    pub fraction_key: Option<&'static str>,
    /// Which features turn together; no file says so.
    pub style: RotaryStyle,
}

impl RopeDefaults {
    /// Whole heads that turn in halves.
    pub const fn new(theta: f64) -> Self {
        Self { theta, theta_key: Some(THETA), fraction: 1.0, fraction_key: None, style: RotaryStyle::Half }
    }

    /// The same for a family in which part of a head may turn.
    pub const fn with_fraction(self, fraction: f64) -> Self {
        Self { fraction, fraction_key: Some(FRACTION), ..self }
    }
}

/// The types of layers that can have rotary positions of their own.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The `rope_type`s of published configs.
const ROPE_TYPES: &[&str] = &["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "mrope"];

/// Keys of the object that are notes: what turns in pictures, how a model was made.
const HARMLESS: &[&str] = &["finetuned", "mrope_section"];

/// Rotary positions that are the same in all layers.
pub(super) fn rotary(hf: &mut HfConfig, defaults: &RopeDefaults, max_seq_len: usize) -> RotaryConfig {
    let mut written = Written::read(hf);
    let config = resolve(hf, &mut written, defaults, max_seq_len);
    written.close(hf);
    config
}

/// Rotary positions that differ between layers that see all keys (`global`) and sliding ones (`local`).
///
/// The older spelling, and a flat `rope_parameters`, speak of global layers only.
pub(super) fn rotary_by_layer(
    hf: &mut HfConfig,
    global: &RopeDefaults,
    local: &RopeDefaults,
    max_seq_len: usize,
) -> RotaryPositions {
    let mut written = Written::read(hf);
    let parts = LAYER_TYPES.map(|layer| written.section.as_mut().and_then(|section| section.section(layer)));
    let [full, sliding] = parts.map(|section| Written { key: "rope_parameters", section });
    let is_by_layer = full.section.is_some() || sliding.section.is_some();
    let mut full = if is_by_layer { full } else { std::mem::take(&mut written) };
    let mut sliding = sliding;
    let global = resolve(hf, &mut full, global, max_seq_len);
    let local = resolve(hf, &mut sliding, local, max_seq_len);
    match &mut written.section {
        Some(section) => {
            for part in [full, sliding] {
                part.close(section);
            }
        }
        None => full.close(hf),
    }
    written.close(hf);
    RotaryPositions { global, local: Some(local) }
}

/// The object in force, if the file has one.
#[derive(Default)]
struct Written {
    key: &'static str,
    section: Option<HfConfig>,
}

impl Written {
    fn read(hf: &mut HfConfig) -> Self {
        // Both are read, so that neither counts as unknown.
        let [old, new] = ["rope_scaling", "rope_parameters"].map(|key| Self { key, section: hf.section(key) });
        if old.section.is_some() { old } else { new }
    }

    /// The number under `key` of the object, or under `top` at top level. Two that differ are a fault.
    fn number(&mut self, hf: &mut HfConfig, key: &str, top: Option<&str>) -> Option<f64> {
        let inner = self.section.as_mut().and_then(|section| section.optional_number(key));
        let Some(top) = top else { return inner };
        let outer = hf.optional_number(top);
        if let (Some(inner), Some(outer)) = (inner, outer)
            && inner != outer
        {
            hf.fault(top, format!("= {outer} contradicts `{}.{key}` = {inner}; remove one of them", self.key));
        }
        inner.or(outer)
    }

    fn close(self, hf: &mut HfConfig) {
        if let Some(section) = self.section {
            hf.close(section, HARMLESS);
        }
    }
}

fn resolve(hf: &mut HfConfig, written: &mut Written, defaults: &RopeDefaults, max_seq_len: usize) -> RotaryConfig {
    let theta = written.number(hf, THETA, defaults.theta_key).unwrap_or(defaults.theta);
    let fraction_key = defaults.fraction_key.unwrap_or(FRACTION);
    let fraction = written.number(hf, FRACTION, Some(fraction_key)).unwrap_or(defaults.fraction);
    let original = hf.optional_size("original_max_position_embeddings");
    let scaling = match &mut written.section {
        Some(section) => scaling(section, original, max_seq_len),
        None => RotaryScaling::None,
    };
    // transformers reads it with a scaling only, and then turns that part of a head.
    if defaults.fraction_key.is_none() && scaling == RotaryScaling::None && fraction != 1.0 {
        hf.fault(fraction_key, format!("= {fraction}, and this family turns whole heads"));
    }
    RotaryConfig { theta, fraction, style: defaults.style, scaling }
}

/// The scaling that `section` describes; `original` is the context of training where the top level gives it.
fn scaling(section: &mut HfConfig, original: Option<usize>, max_seq_len: usize) -> RotaryScaling {
    let [rope_type, older] = ["rope_type", "type"].map(|key| section.optional_text(key));
    let kind = rope_type.or(older).unwrap_or_else(|| "default".to_owned());
    let original_inside = section.optional_size("original_max_position_embeddings");
    let original_max_seq_len = original.or(original_inside).unwrap_or(max_seq_len);
    match kind.as_str() {
        "default" | "mrope" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear { factor: required(section, "factor") },
        "dynamic" => RotaryScaling::Dynamic { factor: required(section, "factor"), original_max_seq_len: max_seq_len },
        "llama3" => RotaryScaling::Llama3 {
            factor: required(section, "factor"),
            low_freq_factor: required(section, "low_freq_factor"),
            high_freq_factor: required(section, "high_freq_factor"),
            original_max_seq_len,
        },
        "yarn" => RotaryScaling::Yarn {
            factor: section
                .optional_number("factor")
                .unwrap_or_else(|| max_seq_len as f64 / original_max_seq_len.max(1) as f64),
            original_max_seq_len,
            beta_fast: section.number("beta_fast", 32.0),
            beta_slow: section.number("beta_slow", 1.0),
            attention_factor: section.optional_number("attention_factor"),
            mscale: section.optional_number("mscale"),
            mscale_all_dim: section.optional_number("mscale_all_dim"),
            truncate: section.flag("truncate", true),
        },
        "longrope" | "su" => RotaryScaling::Longrope {
            short_factor: required_list(section, "short_factor"),
            long_factor: required_list(section, "long_factor"),
            original_max_seq_len,
            max_seq_len,
            factor: section.optional_number("factor"),
            attention_factor: section.optional_number("attention_factor"),
        },
        unknown => {
            let known = ROPE_TYPES.join(", ");
            let problem = match nearest(unknown, ROPE_TYPES.iter().copied()) {
                Some(near) => format!("`{unknown}` is not known, did you mean `{near}`? Known are {known}"),
                None => format!("`{unknown}` is not known; known are {known}"),
            };
            section.fault("rope_type", problem);
            RotaryScaling::None
        }
    }
}

fn required(section: &mut HfConfig, key: &str) -> f64 {
    if !section.has(key) {
        section.fault(key, "is missing");
    }
    section.number(key, 1.0)
}

fn required_list(section: &mut HfConfig, key: &str) -> Vec<f64> {
    if !section.has(key) {
        section.fault(key, "is missing");
    }
    section.numbers(key).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: RopeDefaults = RopeDefaults::new(10_000.0);

    fn read(text: &str) -> Result<RotaryConfig, String> {
        let mut hf = HfConfig::parse(text).expect("a JSON object");
        let config = rotary(&mut hf, &LLAMA, 128);
        hf.finish(&[]).map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings_give_the_same() {
        let old = r#"{"rope_theta": 500000, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 16}}"#;
        let new = r#"{"rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}"#;
        let old = read(old).expect("valid");
        assert_eq!(old, read(new).expect("valid"));
        assert_eq!(old.theta, 500_000.0);
        assert!(matches!(old.scaling, RotaryScaling::Llama3 { original_max_seq_len: 16, .. }));
    }

    #[test]
    fn the_older_scaling_wins_and_contradicting_bases_are_refused() {
        let both = r#"{"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 7}}"#;
        let config = read(both).expect("valid");
        assert_eq!((config.theta, config.scaling), (5.0, RotaryScaling::Linear { factor: 2.0 }));
        let message = read(r#"{"rope_theta": 5, "rope_parameters": {"rope_theta": 7}}"#).expect_err("two bases");
        assert!(message.contains("`rope_theta` = 5 contradicts `rope_parameters.rope_theta` = 7"), "{message}");
    }

    #[test]
    fn the_original_length_at_top_level_wins() {
        let text = r#"{"original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": null,
            "original_max_position_embeddings": 16}}"#;
        let scaling = read(text).expect("valid").scaling;
        assert!(matches!(scaling, RotaryScaling::Yarn { factor: 4.0, original_max_seq_len: 32, .. }), "{scaling:?}");
    }

    #[test]
    fn unknown_types_and_keys_are_named() {
        let message = read(r#"{"rope_scaling": {"rope_type": "llama4", "factor": 8}}"#).expect_err("unknown");
        assert!(
            message.contains("`rope_scaling.rope_type` `llama4` is not known, did you mean `llama3`?"),
            "{message}"
        );
        assert!(message.contains("yarn"), "{message}");
        let message = read(r#"{"rope_scaling": {"rope_type": "linear", "factr": 8}}"#).expect_err("unknown");
        assert!(message.contains("`rope_scaling.factor` is missing"), "{message}");
        assert!(message.contains("`rope_scaling.factr` = 8 is not understood"), "{message}");
    }

    #[test]
    fn layers_may_have_their_own() {
        let global = RopeDefaults::new(1e6);
        let read = |text: &str| {
            let mut hf = HfConfig::parse(text).expect("a JSON object");
            let local = RopeDefaults { theta: 1e4, theta_key: Some("rope_local_base_freq"), ..global };
            let positions = rotary_by_layer(&mut hf, &global, &local, 128);
            hf.finish(&[]).map(|()| positions).expect("valid")
        };
        let old = read(
            r#"{"rope_theta": 20000.0, "rope_local_base_freq": 500, "rope_scaling": {"factor": 8, "type": "linear"}}"#,
        );
        let new = read(
            r#"{"rope_parameters": {
                "full_attention": {"factor": 8.0, "rope_theta": 20000.0, "rope_type": "linear"},
                "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"}}}"#,
        );
        assert_eq!(old, new);
        assert_eq!(old.global.scaling, RotaryScaling::Linear { factor: 8.0 });
        let local = old.local.expect("a local rotation");
        assert_eq!((local.theta, local.scaling), (500.0, RotaryScaling::None));
        let silent = read("{}");
        assert_eq!((silent.global.theta, silent.local.map(|local| local.theta)), (1e6, Some(1e4)));
    }
}
