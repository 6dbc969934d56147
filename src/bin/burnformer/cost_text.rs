//! What a model costs, for people.

use burnformer::cost::{Bound, CostReport, FlopsByPart, Work};

use crate::output::table;
use crate::quantity::{bytes, grouped, scaled, seconds};

/// Everything about one model.
pub fn document(model: &str, cost: &CostReport) -> String {
    let sections = [
        heading(model, cost),
        parameters(cost),
        flops(cost),
        blocks(cost),
        memory(cost),
        training_compute(cost),
        roofline(cost),
    ];
    sections.join("\n\n")
}

/// Several models side by side.
pub fn comparison(costs: &[(String, CostReport)]) -> String {
    let rows: Vec<[String; 12]> = costs
        .iter()
        .map(|(model, cost)| {
            let shape = &cost.shape;
            [
                model.clone(),
                shape.d_model.to_string(),
                shape.n_heads.to_string(),
                shape.n_kv_heads.to_string(),
                shape.d_head.to_string(),
                shape.d_ff.map_or("-".into(), |d_ff| d_ff.to_string()),
                shape.n_layers.to_string(),
                grouped(cost.parameters.total),
                percent(cost.parameters.attention_share),
                scaled(cost.flops_per_token, "FLOP"),
                cost.blocks[0].crossover.full.map_or("never".into(), grouped),
                cost.kv_cache.map_or("-".into(), |cache| bytes(cache.per_token)),
            ]
        })
        .collect();
    let head = [
        "model",
        "d_model",
        "n_heads",
        "n_kv_heads",
        "d_head",
        "d_ff",
        "n_layers",
        "parameters",
        "attention",
        "per token",
        "crossover",
        "cache per token",
    ];
    table(head, &rows)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn share(part: u64, of: u64) -> String {
    percent(if of == 0 { 0.0 } else { part as f64 / of as f64 })
}

fn several(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn heading(model: &str, cost: &CostReport) -> String {
    let shape = &cost.shape;
    let mut text = format!(
        "{model}: {} of d_model {}, {} of {}",
        several(shape.n_layers as u64, "layer"),
        shape.d_model,
        several(shape.n_heads as u64, "head"),
        shape.d_head
    );
    if shape.n_kv_heads != shape.n_heads {
        text += &format!(" ({} of keys and values)", shape.n_kv_heads);
    }
    if let Some(d_ff) = shape.d_ff {
        text += &format!(", d_ff {d_ff}");
    }
    if let Some(n_experts) = shape.n_experts {
        text += &format!(" in each of {n_experts} experts");
    }
    text += &format!("\n{} x {} tokens in {}", cost.batch, cost.seq, cost.dtype);
    if let Some(source) = cost.source_seq {
        text += &format!(", the encoder reads {source}");
    }
    text
}

fn parameters(cost: &CostReport) -> String {
    let parameters = &cost.parameters;
    let feed_forward = &parameters.feed_forward;
    let row = |name: &str, count: u64| [name.to_owned(), grouped(count), share(count, parameters.total)];
    let mut rows = vec![
        row("embedding", parameters.embedding.total),
        row("attention", parameters.attention.total),
        row("feed-forward", feed_forward.total),
    ];
    if feed_forward.experts > 0 {
        rows.extend([row("  experts", feed_forward.experts), row("  router", feed_forward.router)]);
    }
    if feed_forward.shared > 0 {
        rows.push(row("  shared experts", feed_forward.shared));
    }
    rows.extend([row("norms", parameters.norms), row("head", parameters.head.total), row("total", parameters.total)]);
    if parameters.active != parameters.total {
        rows.push(row("active", parameters.active));
    }
    rows.push(row("without embeddings", parameters.without_embeddings));
    if let Some(encoder) = &parameters.encoder {
        rows.push(row("in the encoder", encoder.total));
    }
    table(["parameters", "", "share"], &rows)
}

fn flops(cost: &CostReport) -> String {
    let (full, visible) = (&cost.flops.full, &cost.flops.visible);
    let row = |name: &str, part: fn(&FlopsByPart) -> u64| {
        let flop = |count: u64| scaled(count as f64, "FLOP");
        [name.to_owned(), flop(part(full)), share(part(full), full.total), flop(part(visible))]
    };
    let rows = [
        row("embedding", |flops| flops.embedding),
        row("projections", |flops| flops.projections),
        row("scores", |flops| flops.scores),
        row("feed-forward", |flops| flops.feed_forward),
        row("head", |flops| flops.head),
        row("total", |flops| flops.total),
    ];
    let mut text = table(["forward", "full", "share", "visible pairs"], &rows);
    text += &format!("\n{} per token", scaled(cost.flops_per_token, "FLOP"));
    if let Some(all) = cost.flops.all_experts {
        text += &format!("; with all experts {} in all", scaled(all as f64, "FLOP"));
    }
    text
}

fn blocks(cost: &CostReport) -> String {
    let rows: Vec<[String; 7]> = cost
        .blocks
        .iter()
        .map(|block| {
            let of = if block.in_encoder { "encoder " } else { "" };
            let window = block.window.map_or(String::new(), |window| format!(", window {window}"));
            let length = |at: Option<u64>| at.map_or("never".into(), grouped);
            [
                format!("{}{window}", several(block.layers, &format!("{of}layer"))),
                grouped(block.parameters.total),
                scaled(block.weight_flops as f64, "FLOP"),
                scaled(block.flops.scores as f64, "FLOP"),
                length(block.crossover.full),
                length(block.crossover.visible),
                bytes(block.activations.total),
            ]
        })
        .collect();
    let head = ["each of", "parameters", "weights", "scores", "crossover", "of visible", "activations"];
    table(head, &rows)
}

fn memory(cost: &CostReport) -> String {
    let memory = &cost.training_memory;
    let row = |name: &str, count: u64| [name.to_owned(), bytes(count)];
    let mut rows = Vec::new();
    if let Some(cache) = &cost.kv_cache {
        rows.push(row("cache, a token", cache.per_token));
        if cache.per_token_beyond_windows != cache.per_token {
            rows.push(row("  beyond the windows", cache.per_token_beyond_windows));
        }
        rows.push(row("cache, a sequence", cache.per_sequence));
        if cache.encoder_memory > 0 {
            rows.push(row("  of the encoder's output", cache.encoder_memory));
        }
        rows.push(row("cache, the batch", cache.total));
    }
    rows.extend([
        row("training: weights", memory.weights),
        row("  gradients", memory.gradients),
        row("  AdamW's moments", memory.moments),
    ]);
    if memory.master_weights > 0 {
        rows.push(row("  weights in 32 bits", memory.master_weights));
    }
    rows.extend([
        row("  activations of blocks", memory.activations.blocks),
        row("    of these, scores", memory.activations.scores),
        row("    with checkpointing", memory.activations.blocks_with_checkpointing),
        row("  other activations", memory.activations.outside),
        row("  logits", memory.activations.logits),
        row("  total", memory.total),
        row("  total with checkpointing", memory.total_with_checkpointing),
    ]);
    table(["memory", ""], &rows)
}

fn training_compute(cost: &CostReport) -> String {
    let compute = &cost.training_compute;
    let assumed = if compute.tokens_assumed { " (20 per parameter)" } else { "" };
    let flop = |value: f64| format!("{value:.3e}");
    let row = |name: &str, full: String, visible: String| [name.to_owned(), full, visible];
    let rows = [
        row("6ND", flop(compute.six_n_d), flop(compute.six_n_d)),
        row("scores of attention", flop(compute.attention.full), flop(compute.attention.visible)),
        row("6ND with scores", flop(compute.corrected.full), flop(compute.corrected.visible)),
        row("6ND is too low by", percent(compute.undercount.full), percent(compute.undercount.visible)),
        row("three forwards", flop(compute.exact.full), flop(compute.exact.visible)),
    ];
    let table = table(["training run, FLOP", "full", "visible pairs"], &rows);
    format!(
        "{table}\nN = {:.4e}, D = {:.4e}{assumed}, in sequences of {}",
        compute.parameters, compute.tokens, compute.seq
    )
}

fn roofline(cost: &CostReport) -> String {
    let roofline = &cost.roofline;
    let works = [
        ("forward", Some(&roofline.forward)),
        ("prefill", roofline.prefill.as_ref()),
        ("decode, one token", roofline.decode.as_ref()),
        ("training step", Some(&roofline.training_step)),
    ];
    let works = works.into_iter().filter_map(|(name, work)| Some((name, work?)));
    let counts = |name: &str, work: &Work| {
        let intensity = format!("{:.2}", work.intensity);
        [name.to_owned(), scaled(work.flops as f64, "FLOP"), bytes(work.bytes), intensity]
    };
    let Some(machine) = &roofline.machine else {
        let rows: Vec<[String; 4]> = works.map(|(name, work)| counts(name, work)).collect();
        return table(["work and traffic", "work", "traffic", "FLOP/byte"], &rows);
    };
    let rows: Vec<[String; 7]> = works
        .map(|(name, work)| {
            let [name, flops, traffic, intensity] = counts(name, work);
            let (least, bound) = match &work.time {
                Some(time) => (seconds(time.seconds), if time.bound == Bound::Compute { "compute" } else { "memory" }),
                None => ("-".into(), "-"),
            };
            let rate = work.tokens_per_second.map_or("-".into(), |rate| scaled(rate, ""));
            [name, flops, traffic, intensity, least, bound.into(), rate.trim().to_owned()]
        })
        .collect();
    let head = ["work and traffic", "work", "traffic", "FLOP/byte", "at least", "bound by", "tokens/s"];
    format!(
        "{}\nmachine: {}, {}; compute-bound from {:.1} FLOP/byte on",
        table(head, &rows),
        scaled(machine.peak_flops, "FLOP/s"),
        scaled(machine.bandwidth, "B/s"),
        machine.ridge()
    )
}
