//! Scaled dot-product attention: every option, by every kernel.

use burn::tensor::{Bool, Tensor};

use super::case::{Case, Kind};
use super::numbers::{draw, draw_below};
use super::probe::Probe;
use crate::attention::{
    AlibiConfig, AttentionKernel, AttentionMask, AttentionRequest, MaskForm, ScoreOptions,
    scaled_dot_product_attention, supports,
};
use crate::error::Error;

const BATCH: usize = 2;
const N_HEADS: usize = 6;
const D_HEAD: usize = 8;
const D_VALUE: usize = 7;

/// Which keys are padding.
#[derive(Clone, Copy, PartialEq)]
enum Padding {
    None,
    /// The last keys, of each sequence another number.
    Right,
    /// The first keys, likewise.
    Left,
    /// Every key of the second sequence.
    WholeItem,
}

/// An explicit mask.
#[derive(Clone, Copy, PartialEq)]
enum Explicit {
    None,
    /// Drawn, `[batch, n_heads, query_len, key_len]`.
    Drawn,
    /// Drawn, `[1, n_heads, 1, key_len]`.
    PerHead,
    /// Everything from the third query, `[1, 1, query_len, key_len]`.
    Row,
    /// Causality that starts with the first key instead of ending with the last; the mistake that twins make.
    StartAligned,
}

/// A bias on scores.
#[derive(Clone, Copy, PartialEq)]
enum Bias {
    None,
    Alibi,
    /// `[batch, n_heads, query_len, key_len]`.
    Full,
    /// `[1, n_heads, 1, key_len]`.
    PerHead,
    /// Full, with minus infinity at drawn places.
    MinusInfinity,
    /// Minus infinity at the first key, which is the only one that the first query of a causal mask sees.
    HidesFirstKey,
}

/// One combination of options.
#[derive(Clone, Copy)]
struct Setting {
    n_kv_heads: usize,
    query_len: usize,
    key_len: usize,
    causal: bool,
    window: Option<usize>,
    padding: Padding,
    explicit: Explicit,
    bias: Bias,
    softcap: Option<f64>,
    scale: Option<f64>,
    weights: bool,
    /// Query head `h` reads key/value head `h % n_kv_heads`; the mistake that twins make.
    tiled_heads: bool,
}

/// Two query heads share each key/value head; all sizes differ.
const BASE: Setting = Setting {
    n_kv_heads: 3,
    query_len: 5,
    key_len: 11,
    causal: false,
    window: None,
    padding: Padding::None,
    explicit: Explicit::None,
    bias: Bias::None,
    softcap: None,
    scale: None,
    weights: false,
    tiled_heads: false,
};

impl Setting {
    setters! {
        with_n_kv_heads => n_kv_heads: usize,
        with_query_len => query_len: usize,
        with_key_len => key_len: usize,
        with_causal => causal: bool,
        with_window => window: usize,
        with_padding => padding: Padding,
        with_explicit => explicit: Explicit,
        with_bias => bias: Bias,
        with_softcap => softcap: f64,
        with_scale => scale: f64,
        with_weights => weights: bool,
        with_tiled_heads => tiled_heads: bool,
    }

    /// The mistake of a mask that is aligned to the first key.
    fn start_aligned(self) -> Self {
        self.with_causal(false).with_explicit(Explicit::StartAligned)
    }

    /// Long enough for two tiles of keys, and for the tiled way of fused kernels.
    fn long(self) -> Self {
        self.with_query_len(70).with_key_len(600)
    }
}

/// Every option at once.
fn together() -> Setting {
    let masked = BASE.with_causal(true).with_window(7).with_padding(Padding::Left).with_explicit(Explicit::PerHead);
    masked.with_bias(Bias::MinusInfinity).with_softcap(1.5).with_scale(0.9)
}

/// Every setting by name, with the setting in which its option is ignored.
fn settings() -> Vec<(&'static str, Setting, Option<Setting>)> {
    let multi_head = BASE.with_n_kv_heads(N_HEADS);
    let square = BASE.with_query_len(11);
    let more_queries = BASE.with_query_len(11).with_key_len(5);
    let causal = BASE.with_causal(true);
    let bias_and_mask = causal.with_bias(Bias::Full).with_explicit(Explicit::Drawn);
    let hides_row = square.with_causal(true).with_bias(Bias::HidesFirstKey);
    let long = together().with_window(300).long();
    vec![
        ("multi-head", multi_head, None),
        ("grouped", BASE, Some(BASE.with_tiled_heads(true))),
        ("multi-query", BASE.with_n_kv_heads(1), Some(multi_head)),
        ("causal", square.with_causal(true), Some(square)),
        ("causal, multi-head", multi_head.with_causal(true), Some(multi_head)),
        (
            "causal, multi-head, as many queries",
            square.with_n_kv_heads(N_HEADS).with_causal(true),
            Some(square.with_n_kv_heads(N_HEADS)),
        ),
        ("causal, fewer queries", causal, Some(BASE.start_aligned())),
        ("causal, more queries", more_queries.with_causal(true), Some(more_queries.start_aligned())),
        ("window", BASE.with_window(3), Some(BASE)),
        ("causal+window", causal.with_window(3), Some(causal)),
        ("causal+window, more queries", more_queries.with_causal(true).with_window(3), Some(more_queries)),
        ("padding", BASE.with_padding(Padding::Right), Some(BASE)),
        ("causal+padding", causal.with_padding(Padding::Left), Some(causal)),
        ("item of padding", BASE.with_padding(Padding::WholeItem), Some(BASE)),
        ("explicit", BASE.with_explicit(Explicit::Drawn), Some(BASE)),
        ("explicit per head", BASE.with_explicit(Explicit::PerHead), Some(BASE)),
        ("hidden row", BASE.with_explicit(Explicit::Row), Some(BASE)),
        ("softcap", BASE.with_softcap(1.5), Some(BASE)),
        ("scale", BASE.with_scale(0.9), Some(BASE)),
        ("alibi", BASE.with_bias(Bias::Alibi), Some(BASE)),
        ("bias", BASE.with_bias(Bias::Full), Some(BASE)),
        ("bias per head", BASE.with_bias(Bias::PerHead), Some(BASE)),
        ("bias of minus infinity", BASE.with_bias(Bias::MinusInfinity), Some(BASE)),
        ("causal+bias that hides a row", hides_row, Some(square.with_causal(true))),
        ("softcap+bias+mask", bias_and_mask.with_softcap(1.5), Some(bias_and_mask)),
        ("all options", together(), Some(together().with_padding(Padding::None))),
        ("long", causal.long(), Some(BASE.long())),
        ("long, all options", long, Some(long.with_window(7))),
    ]
}

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kernel, name) in [
        (AttentionKernel::Composed, "composed"),
        (AttentionKernel::Blockwise, "blockwise"),
        (AttentionKernel::Auto, "auto"),
        (AttentionKernel::Fused, "fused"),
    ] {
        for (option, setting, without) in settings() {
            let mut case = case(&format!("attention/{name}/{option}"), kernel, setting);
            if kernel == AttentionKernel::Composed
                && let Some(without) = without
            {
                case = case.without(option, move |probe| without.attend(kernel, probe));
            }
            if kernel == AttentionKernel::Fused {
                // Fused kernels record no gradients.
                case =
                    case.forward_only().only_where(move |device| supports(kernel, &setting.request(), device).is_ok());
            }
            cases.push(case);
        }
    }
    for kernel in [AttentionKernel::Composed, AttentionKernel::Auto] {
        let name = if kernel == AttentionKernel::Auto { "auto" } else { "composed" };
        let name = format!("attention/{name}/all options, weights returned");
        cases.push(case(&name, kernel, together().with_weights(true)));
    }
    // Long enough for two tiles of queries.
    let setting = BASE.with_causal(true).with_window(300).with_query_len(700).with_key_len(720);
    cases.push(case("attention/blockwise/tiles of queries", AttentionKernel::Blockwise, setting).forward_only());
    cases
}

fn case(name: &str, kernel: AttentionKernel, setting: Setting) -> Case {
    Case::new(Kind::Function, name, move |probe| setting.attend(kernel, probe))
}

impl Setting {
    fn attend(&self, kernel: AttentionKernel, probe: &mut Probe) -> Result<(), Error> {
        let Self { n_kv_heads, query_len, key_len, .. } = *self;
        let query = probe.input("query", [BATCH, N_HEADS, query_len, D_HEAD]);
        let mut key = probe.input("key", [BATCH, n_kv_heads, key_len, D_HEAD]);
        let mut value = probe.input("value", [BATCH, n_kv_heads, key_len, D_VALUE]);
        if self.tiled_heads {
            (key, value) = (key.repeat_dim(1, N_HEADS / n_kv_heads), value.repeat_dim(1, N_HEADS / n_kv_heads));
        }
        let bias = self.bias(probe);
        let options = ScoreOptions {
            scale: self.scale,
            softcap: self.softcap,
            kernel: probe.kernel(kernel),
            return_weights: self.weights,
            ..ScoreOptions::default()
        };
        let output = scaled_dot_product_attention(query, key, value, &self.mask(probe), bias.as_ref(), &options);
        probe.output("context", output.context);
        if let Some(weights) = output.weights {
            probe.output("weights", weights);
        }
        Ok(())
    }

    fn mask(&self, probe: &Probe) -> AttentionMask {
        let mut mask = if self.causal { AttentionMask::causal() } else { AttentionMask::none() };
        if let Some(window) = self.window {
            mask = mask.with_window(window);
        }
        if self.padding != Padding::None {
            // One of three keys, rounded up, is padding in the first sequence, one of five in the second.
            let len = |item: usize| self.key_len.div_ceil([3, 5][item]);
            let is_padding = |item: usize, key: usize| match self.padding {
                Padding::None => false,
                Padding::Right => key >= self.key_len - len(item),
                Padding::Left => key < len(item),
                Padding::WholeItem => item == 1,
            };
            let flags = (0..BATCH).flat_map(|item| (0..self.key_len).map(move |key| is_padding(item, key)));
            mask = mask.with_padding(probe.flags([BATCH, self.key_len], flags.collect()));
        }
        match self.explicit(probe) {
            Some(hidden) => mask.with_explicit(hidden),
            None => mask,
        }
    }

    fn explicit(&self, probe: &Probe) -> Option<Tensor<4, Bool>> {
        let Self { query_len, key_len, .. } = *self;
        let drawn = |len| draw_below("explicit", len, 10).into_iter().map(|x| x < 3).collect();
        let pairs = |hides: &dyn Fn(usize, usize) -> bool| {
            (0..query_len)
                .flat_map(|query| (0..key_len).map(move |key| (query, key)))
                .map(|(q, k)| hides(q, k))
                .collect()
        };
        match self.explicit {
            Explicit::None => None,
            Explicit::Drawn => {
                let shape = [BATCH, N_HEADS, query_len, key_len];
                Some(probe.flags(shape, drawn(shape.iter().product())))
            }
            Explicit::PerHead => Some(probe.flags([1, N_HEADS, 1, key_len], drawn(N_HEADS * key_len))),
            Explicit::Row => Some(probe.flags([1, 1, query_len, key_len], pairs(&|query, _| query == 2))),
            Explicit::StartAligned => Some(probe.flags([1, 1, query_len, key_len], pairs(&|query, key| key > query))),
        }
    }

    fn bias(&self, probe: &mut Probe) -> Option<Tensor<4>> {
        let Self { query_len, key_len, .. } = *self;
        let full = [BATCH, N_HEADS, query_len, key_len];
        let len = full.iter().product();
        match self.bias {
            Bias::None => None,
            Bias::Alibi => {
                let positions = [(0..key_len).collect(), (0..key_len).map(|key| key.saturating_sub(4)).collect()];
                let scale = self.scale.unwrap_or_else(|| (D_HEAD as f64).sqrt().recip());
                Some(AlibiConfig::default().bias(N_HEADS, &positions, scale, probe.device()))
            }
            Bias::Full => Some(probe.input("bias", full)),
            Bias::PerHead => Some(probe.input("bias", [1, N_HEADS, 1, key_len])),
            Bias::MinusInfinity => {
                let hidden = probe.flags(full, draw("minus infinity", len, 1.0).into_iter().map(|x| x > 1.0).collect());
                Some(probe.input("bias", full).mask_fill(hidden, f64::NEG_INFINITY))
            }
            Bias::HidesFirstKey => {
                let hidden = probe.flags(full, (0..len).map(|at| at % key_len == 0).collect());
                Some(probe.input("bias", full).mask_fill(hidden, f64::NEG_INFINITY))
            }
        }
    }

    fn request(&self) -> AttentionRequest {
        let mask = match self.causal {
            _ if self.window.is_some() || self.padding != Padding::None || self.explicit != Explicit::None => {
                MaskForm::General
            }
            true => MaskForm::Causal,
            false => MaskForm::None,
        };
        AttentionRequest {
            scores: [BATCH, N_HEADS, self.query_len, self.key_len],
            n_kv_heads: self.n_kv_heads,
            mask,
            biased: self.bias != Bias::None,
            softcapped: self.softcap.is_some(),
            dropout: false,
            return_weights: self.weights,
            autodiff: false,
        }
    }
}
