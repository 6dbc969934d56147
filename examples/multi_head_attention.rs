//! Multi-head, grouped-query and multi-query attention over the same input, and what a causal mask does.
//!
//! ```sh
//! cargo run --release --example multi_head_attention
//! ```

use burn::tensor::{Distribution, Tensor};
use burnformer::Error;
use burnformer::attention::{AttentionContext, AttentionMask, MultiHeadAttentionConfig};
use burnformer::backend::DeviceName;

fn main() -> Result<(), Error> {
    let device = "flex".parse::<DeviceName>()?.open()?;
    let x = Tensor::<3>::random([2, 5, 128], Distribution::Normal(0.0, 1.0), &device);
    let mask = AttentionMask::causal();

    for (name, n_kv_heads) in [("multi-head", 4), ("grouped-query", 2), ("multi-query", 1)] {
        let config = MultiHeadAttentionConfig::new(128, 4).with_n_kv_heads(n_kv_heads);
        let attention = config.init(&device);
        let (output, weights) = attention.forward_with_weights(x.clone(), None, AttentionContext::masked(&mask));
        println!("{name}: {} parameters, output {:?}", config.n_parameters(), output.dims());
        if n_kv_heads == 4 {
            let first_head = weights.slice([0..1, 0..1]).reshape([5, 5]);
            println!("weights of the first head; a row is a query and sees no key after it:\n{first_head}");
        }
    }
    Ok(())
}
