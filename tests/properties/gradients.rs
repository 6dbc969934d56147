//! Gradients against the slopes of the function.

use super::*;

/// What a block of a gradient test is called with.
struct Setting {
    name: &'static str,
    config: TransformerBlockConfig,
    mask: AttentionMask,
    rotary: Option<RotaryConfig>,
    alibi: bool,
}

const WIDTH: usize = 6;
const LEN: usize = 5;

/// Blocks that together use every operation with parameters or a derivative of its own.
fn settings(device: &Device) -> Vec<Setting> {
    let attention = || MultiHeadAttentionConfig::new(WIDTH, 2);
    let feed_forward = |activation| FeedForwardConfig::new(WIDTH, 7).with_activation(activation);
    let block = |attention, activation, placement| {
        TransformerBlockConfig::new(attention, feed_forward(activation)).with_layout(BlockLayout::new(placement))
    };
    let qk_norm = |scope, kind| QkNorm { scope, norm: NormConfig::new(kind) };
    let plain = |name, config, mask| Setting { name, config, mask, rotary: None, alibi: false };
    let padding = || {
        let hidden = [[true, false, false, true, false], [false, false, true, false, false]];
        Tensor::<2, Bool>::from_data(TensorData::from(hidden), device)
    };
    let mut gated = block(
        attention()
            .with_n_kv_heads(1)
            .with_d_head(4)
            .with_softcap(1.5)
            .with_qk_norm(qk_norm(QkNormScope::PerHead, NormKind::RmsPlusOne))
            .with_kernel(AttentionKernel::Blockwise),
        Activation::Silu,
        NormPlacement::Sandwich,
    )
    .with_norm(NormConfig::new(NormKind::RmsPlusOne));
    gated.feed_forward = gated.feed_forward.map(|feed_forward| feed_forward.with_gated(true));
    let parallel = |topology| BlockLayout::default().with_topology(topology);
    vec![
        plain(
            "pre-norm, gelu, causal",
            block(attention(), Activation::Gelu, NormPlacement::Pre),
            AttentionMask::causal(),
        ),
        plain(
            "post-norm, tanh gelu, padding",
            block(attention(), Activation::GeluTanh, NormPlacement::Post),
            AttentionMask::none().with_padding(padding()),
        ),
        Setting {
            name: "sandwich, gated silu, grouped heads, norms of queries and keys, rotary, cap, window, in tiles",
            config: gated,
            mask: AttentionMask::causal().with_window(3).with_padding(padding()),
            rotary: Some(RotaryConfig::new(10.0)),
            alibi: false,
        },
        Setting {
            name: "parallel, quick gelu, linear biases, own norm per head",
            config: block(
                attention().with_qk_norm(qk_norm(QkNormScope::PerHeadOwnWeight, NormKind::Layer)),
                Activation::QuickGelu,
                NormPlacement::Pre,
            )
            .with_layout(parallel(BlockTopology::Parallel)),
            mask: AttentionMask::causal(),
            rotary: None,
            alibi: true,
        },
        Setting {
            name: "parallel with one norm, squared relu, neighbours turn",
            config: block(attention().with_clip_qkv(1.0), Activation::ReluSquared, NormPlacement::Pre)
                .with_layout(parallel(BlockTopology::ParallelSharedNorm)),
            mask: AttentionMask::none(),
            rotary: Some(RotaryConfig::new(10.0).with_style(RotaryStyle::Interleaved)),
            alibi: false,
        },
        plain(
            "norms on outputs, relu, norms of queries and keys over the full width",
            block(
                attention().with_qk_norm(qk_norm(QkNormScope::FullWidth, NormKind::Rms)),
                Activation::Relu,
                NormPlacement::Output,
            ),
            AttentionMask::causal(),
        ),
        plain(
            "cross-attention",
            block(attention(), Activation::Tanh, NormPlacement::Pre)
                .with_cross_attention(attention().with_d_context(3)),
            AttentionMask::causal(),
        ),
    ]
}

/// The loss of a block: the output times fixed numbers.
fn loss(setting: &Setting, block: &TransformerBlock, x: &Tensor<3>) -> Tensor<1> {
    let device = x.device();
    let positions = || vec![(0..LEN).collect::<Vec<_>>()];
    let angles = setting.rotary.as_ref().map(|rotary| rotary.angles(block_d_head(setting), &positions(), &device));
    let bias = setting.alibi.then(|| AlibiConfig::default().bias(2, &positions(), 1.0, &device));
    let mut numbers = Numbers::new(77);
    let mut fixed = |shape: [usize; 3]| numbers.tensor::<3>(shape, &device).cast(FloatDType::F64);
    let (direction, states) = (fixed([2, LEN, WIDTH]), fixed([2, 4, 3]));
    let all = AttentionMask::none();
    let projected = block.project_memory(states);
    let context = BlockContext {
        rotary: angles.as_ref(),
        bias: bias.as_ref(),
        memory: projected.as_ref().map(|projected| Memory { projected, mask: &all }),
        ..BlockContext::masked(&setting.mask)
    };
    (block.forward(x.clone(), context) * direction).sum()
}

fn block_d_head(setting: &Setting) -> usize {
    setting.config.attention.d_head()
}

/// The gradient of each parameter, in the order in which they are visited, with its path.
fn slopes(block: &TransformerBlock, gradients: &Gradients) -> Vec<(String, Vec<f64>)> {
    struct Collect<'a> {
        gradients: &'a Gradients,
        path: Vec<String>,
        found: Vec<(String, Vec<f64>)>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.path.join(".");
            let gradient = param.val().grad(self.gradients).unwrap_or_else(|| panic!("{path} has no gradient"));
            self.found.push((path, values(gradient)));
        }
    }
    let mut collect = Collect { gradients, path: Vec::new(), found: Vec::new() };
    block.visit(&mut collect);
    collect.found
}

/// The block with one number of one parameter moved.
fn moved(block: TransformerBlock, parameter: usize, element: usize, by: f64) -> TransformerBlock {
    struct Move {
        left: usize,
        element: usize,
        by: f64,
    }
    impl ModuleMapper for Move {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let is_it = self.left == 0;
            self.left = self.left.wrapping_sub(1);
            if is_it { param.map(|tensor| moved_tensor(&tensor, self.element, self.by)) } else { param }
        }
    }
    block.map(&mut Move { left: parameter, element, by })
}

fn moved_tensor<const D: usize>(tensor: &Tensor<D>, element: usize, by: f64) -> Tensor<D> {
    let (shape, device) = (tensor.dims().to_vec(), tensor.device());
    let mut values = values(tensor.clone());
    values[element] += by;
    Array { shape, values }.tensor_of(FloatDType::F64, &device)
}

#[test]
fn gradients_are_the_slopes_of_the_function() {
    for backend in [Backend::Flex, Backend::NdArray] {
        let plain = device(backend);
        let recording = plain.clone().autodiff();
        let in_64_bits = |setting: &Setting, device: &Device| {
            cast_parameters(randomised(setting.config.init(device), 3), FloatDType::F64)
        };
        for (setting, on_autodiff) in settings(&plain).iter().zip(settings(&recording)) {
            let name = format!("{backend}, {}", setting.name);
            let x: Tensor<3> = Numbers::new(9).tensor([2, LEN, WIDTH], &plain).cast(FloatDType::F64);

            let leaf = x.clone().autodiff().require_grad();
            let block = in_64_bits(&on_autodiff, &recording);
            let gradients = loss(&on_autodiff, &block, &leaf).backward();
            let analytic = slopes(&block, &gradients);

            let block = in_64_bits(setting, &plain);
            let value = |block: &TransformerBlock, x: &Tensor<3>| values(loss(setting, block, x))[0];
            let central = |plus: f64, minus: f64| (plus - minus) / (2.0 * STEP);
            let mut numbers = Numbers::new(21);
            let mut sample = |count: usize| [0, numbers.below(count), numbers.below(count), count - 1];

            for (index, (path, analytic)) in analytic.iter().enumerate() {
                let tolerance = SLOPE * largest(analytic).max(1.0);
                for element in sample(analytic.len()) {
                    let at = |by: f64| value(&moved(block.clone(), index, element, by), &x);
                    let want = central(at(STEP), at(-STEP));
                    assert_close(&format!("{name}: {path}[{element}]"), &[analytic[element]], &[want], tolerance);
                }
                // What a bias adds to every key alike cancels out in the softmax where keys do not turn; all else must
                // matter.
                let is_key_bias = match setting.config.attention.qk_norm {
                    Some(_) => path.ends_with("key_norm.bias"),
                    None => path.ends_with("key.bias"),
                };
                let cancels = is_key_bias && setting.rotary.is_none();
                assert!(cancels || largest(analytic) > 1e3 * SLOPE, "{name}: {path} changes nothing");
            }
            let analytic = values(leaf.grad(&gradients).expect("the input has a gradient"));
            for element in sample(analytic.len()) {
                let at = |by: f64| value(&block, &moved_tensor(&x, element, by));
                let want = central(at(STEP), at(-STEP));
                let tolerance = SLOPE * largest(&analytic).max(1.0);
                assert_close(&format!("{name}: x[{element}]"), &[analytic[element]], &[want], tolerance);
            }
        }
    }
}
