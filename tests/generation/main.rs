//! Generation: sampling, the decoding loop, and from text to text. Greedy tokens are compared with those of transformers,
//! stored beside each tiny checkpoint; chat templates and tokenizers with the fixtures in `text/`.

mod chat;
#[path = "../common/mod.rs"]
mod common;
mod decoding;
mod sampling;
mod smollm2;
mod text;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// So many cases from a seed that stays.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(55), failure_persistence: None, ..ProptestConfig::default() }
}
