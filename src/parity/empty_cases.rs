//! Sizes of zero: shapes as they should be, zeros where there is nothing to see, and no panic.

use burn::tensor::Tensor;

use super::case::{Case, Kind};
use super::probe::Probe;
use crate::attention::{
    AttentionContext, AttentionKernel, AttentionMask, MultiHeadAttentionConfig, ScoreOptions,
    scaled_dot_product_attention,
};
use crate::error::Error;
use crate::feed_forward::FeedForwardConfig;
use crate::model::{ForwardOptions, ModelConfig, ModelInput};
use crate::norm::NormConfig;
use crate::transformer_block::{BlockContext, TransformerBlockConfig};

use super::shrink::shrunk;

/// Batch and sequence length, one of them zero.
const EMPTY: [(&str, [usize; 2]); 2] = [("batch", [0, 5]), ("sequence", [2, 0])];

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [("batch", [0, 3, 4]), ("queries", [2, 0, 4]), ("keys", [2, 3, 0])];
    for (kernel, name) in [(AttentionKernel::Composed, "composed"), (AttentionKernel::Blockwise, "blockwise")] {
        for (what, [batch, query_len, key_len]) in sizes {
            cases.push(Case::new(Kind::Empty, format!("empty/attention/{name}/no {what}"), move |probe| {
                if probe.is_oracle() {
                    let zeros = Tensor::<4>::zeros([batch, 6, query_len, 7], (probe.device(), probe.dtype()));
                    probe.output("context", zeros);
                    return Ok(());
                }
                let query = empty(probe, [batch, 6, query_len, 8]);
                let (key, value) = (empty(probe, [batch, 3, key_len, 8]), empty(probe, [batch, 3, key_len, 7]));
                let options = ScoreOptions { kernel, ..ScoreOptions::default() };
                let mask = AttentionMask::none();
                let output = scaled_dot_product_attention(query, key, value, &mask, None, &options);
                probe.output("context", output.context);
                Ok(())
            }));
        }
    }
    for (what, [batch, seq]) in EMPTY {
        let mut case = |name: &str, run: fn(Tensor<3>, &mut Probe) -> Tensor<3>| {
            cases.push(Case::new(Kind::Empty, format!("empty/{name}/no {what}"), move |probe| {
                let x = empty(probe, [batch, seq, 20]);
                let y = run(x, probe);
                probe.output("y", y);
                Ok(())
            }));
        };
        case("norm", |x, probe| probe.module("norm", NormConfig::default().init(20, probe.device())).forward(x));
        case("feed_forward", |x, probe| {
            probe.module("feed_forward", FeedForwardConfig::new(20, 28).init(probe.device())).forward(x)
        });
        case("multi_head_attention", |x, probe| {
            let module = probe.module("attention", attention().init(probe.device()));
            module.forward(x, AttentionContext::masked(&AttentionMask::causal()))
        });
        case("block", |x, probe| {
            let config = TransformerBlockConfig::new(attention(), FeedForwardConfig::new(20, 28));
            let block = probe.module("block", config.init(probe.device()));
            block.forward(x, BlockContext::masked(&AttentionMask::causal()))
        });
        cases.push(Case::new(Kind::Empty, format!("empty/model/no {what}"), move |probe| model(batch, seq, probe)));
    }
    // Nothing to see gives zeros, and the output projection of zeros is its bias.
    let nothing_to_see = Case::new(Kind::Function, "empty/multi_head_attention/no memory", |probe| {
        let module = probe.module("attention", attention().init(probe.device()));
        if probe.is_oracle() {
            let bias = module.output.bias.as_ref().expect("there is a bias by default").val();
            probe.output("y", bias.reshape([1, 1, 20]).expand([2, 5, 20]));
            return Ok(());
        }
        let (x, memory) = (empty(probe, [2, 5, 20]), empty(probe, [2, 0, 20]));
        probe.output("y", module.forward_cross(x, memory, AttentionContext::masked(&AttentionMask::none())));
        Ok(())
    });
    cases.push(nothing_to_see.forward_only());
    cases
}

fn attention() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(20, 6).with_n_kv_heads(3).with_d_head(8)
}

fn empty<const D: usize>(probe: &Probe, shape: [usize; D]) -> Tensor<D> {
    // Not all of them are empty; what there is does not matter.
    Tensor::ones(shape, (probe.device(), probe.dtype()))
}

fn model(batch: usize, seq: usize, probe: &mut Probe) -> Result<(), Error> {
    let config = shrunk(&ModelConfig::preset("gpt2")?);
    let model = probe.module("model", config.init(probe.device()));
    let mut cache = model.new_cache();
    let rows: Vec<Vec<i64>> = vec![vec![0; seq]; batch];
    let output = model.forward(&ModelInput::tokens(&rows), Some(&mut cache), ForwardOptions::default())?;
    probe.output("hidden", output.hidden);
    probe.output("logits", output.logits.expect("the model has a head"));
    Ok(())
}
