//! `burnformer heads`

use burnformer::Error;
use burnformer::head_roles::{
    Ablation, HeadId, HeadRole, HeadScores, ablate_heads, all_heads, check_ablation, head_scores,
};
use burnformer::model::{AttentionPart, ModelConfig};
use clap::Args;
use serde::Serialize;

use crate::arguments::Compute;
use crate::model_argument::ModelArgument;
use crate::progress::LoadingBar;
use crate::text_input::TextSource;
use crate::{Outcome, output};

/// Tell what each attention head does on a text.
#[derive(Args)]
#[command(after_help = "\
Scores are mean attention weights between 0 and 1: on the token before (P), after (N, where a model sees it) and at (S) the \
query's place, on the first token (F), and, on random tokens said twice, on the token after a token's first occurrence (I, \
induction) and on that occurrence (D, duplicate). A score above 0.5 names the head's role, those on repeated tokens first; \
without one, an entropy above 0.9 of the largest possible makes it uniform (U), and all else is mixed (·).

--ablate zeroes the output of one head at a time and says by how many nats per token the next-token loss grows. Heads are \
LAYER.HEAD, from 0; in a model of encoder and decoder also encoder.LAYER.HEAD and cross.LAYER.HEAD, and the encoder reads \
the text, too. Weights are random unless MODEL is a checkpoint.

Examples:
  burnformer heads path/to/checkpoint --text \"The cat sat on the mat because the cat was tired.\"
  burnformer heads model.gguf --text \"The cat sat on the mat.\" --ablate 3.1,5.0 --json
  burnformer heads gpt2 --seq 32 --ablate --backend ndarray")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    #[command(flatten)]
    text: TextSource,
    /// Measure the loss without each of these heads, separated by commas, or without each of all.
    #[arg(long, value_name = "HEADS", num_args = 0..=1, default_missing_value = "all")]
    ablate: Option<String>,
    /// Seed of the repeated tokens, of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    compute: Compute,
}

/// How many heads are listed for each role.
const STRONGEST: usize = 3;

#[derive(Serialize)]
struct Report {
    backend: String,
    /// How many.
    tokens: usize,
    /// Of the whole model, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    heads: Vec<Head>,
}

#[derive(Serialize)]
struct Head {
    #[serde(flatten)]
    scores: HeadScores,
    /// By how many nats per token the loss grows without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ablation: Option<f64>,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text, ablate, seed, compute } = arguments;
    let argument = ModelArgument::resolve(&model)?;
    let target = compute.open()?;
    let config = argument.config();
    let tokens = text.read(&argument, seed)?;
    argument.check_weights(tokens.ids.len())?;
    let without = ablate.map(|heads| chosen_heads(&heads, config)).transpose()?;
    let input = tokens.head_input(&argument, seed);
    if let Some(heads) = &without {
        check_ablation(config, &input, heads)?;
    }

    let bar = LoadingBar::new(&compute.show);
    let built = argument.build_with(&target, seed, &mut |progress| bar.show(progress))?;
    drop(bar);
    let scores = head_scores(&built, &input)?;
    let ablation = match &without {
        None => None,
        Some(heads) => {
            let mut progress = |done| compute.show.note(format!("ablation: {done} of {} heads", heads.len()));
            Some(ablate_heads(&built, &input, heads, &mut progress)?)
        }
    };
    argument.note_weights(seed, &compute.show);

    let effect = |id: HeadId| {
        let (heads, Ablation { effects, .. }) = (without.as_ref()?, ablation.as_ref()?);
        heads.iter().position(|head| *head == id).map(|index| effects[index])
    };
    let heads = scores.into_iter().map(|scores| Head { ablation: effect(scores.id()), scores }).collect();
    let loss = ablation.as_ref().map(|ablation| ablation.loss);
    let report = Report { backend: target.name.to_string(), tokens: input.tokens.len(), loss, heads };
    match compute.show.json {
        true => output::print_json(&report)?,
        false => output::print(&text_of(&report, config.attention_part()))?,
    }
    Ok(Outcome::Done)
}

/// The heads that a list names.
fn chosen_heads(list: &str, config: &ModelConfig) -> Result<Vec<HeadId>, Error> {
    if list == "all" {
        return Ok(all_heads(config));
    }
    let parse = |text| HeadId::parse(text, config.attention_part()).map_err(Error::Input);
    list.split(',').map(parse).collect()
}

fn text_of(report: &Report, main: AttentionPart) -> String {
    let mut lines = vec![format!("{} heads on {} tokens, {}", report.heads.len(), report.tokens, report.backend)];
    for part in AttentionPart::ALL {
        let heads: Vec<&Head> = report.heads.iter().filter(|head| head.scores.part == part).collect();
        if !heads.is_empty() {
            let title = if heads.len() == report.heads.len() { String::new() } else { format!("{part}: ") };
            lines.push(format!("\n{title}{}", map(&heads)));
        }
    }
    let legend = HeadRole::ALL.into_iter().filter(|role| report.heads.iter().any(|head| head.scores.role == *role));
    let legend: Vec<String> = legend.map(|role| format!("{} {}", role.symbol(), role.label())).collect();
    lines.push(legend.join("   "));
    lines.push(format!("\n{}", strongest(report, main)));
    if let Some(loss) = report.loss {
        lines.push(format!("\nloss {loss:.4} nats per token\n{}", costliest(report, main)));
    }
    lines.join("\n")
}

/// One row of symbols per layer.
fn map(heads: &[&Head]) -> String {
    let n_heads = heads.iter().map(|head| head.scores.head + 1).max().unwrap_or(0);
    let width = n_heads.saturating_sub(1).to_string().len();
    let numbers: Vec<String> = (0..n_heads).map(|head| format!("{head:>width$}")).collect();
    let mut rows = vec![format!("layer  head {}", numbers.join(" "))];
    for layer in heads.chunk_by(|a, b| a.scores.layer == b.scores.layer) {
        let symbols: Vec<String> = layer.iter().map(|head| format!("{:>width$}", head.scores.role.symbol())).collect();
        rows.push(format!("{:>5}       {}", layer[0].scores.layer, symbols.join(" ")));
    }
    rows.join("\n")
}

/// For each role, the heads that have it most.
fn strongest(report: &Report, main: AttentionPart) -> String {
    let mut rows = Vec::new();
    for role in HeadRole::ALL {
        let mut heads: Vec<&Head> = report.heads.iter().filter(|head| head.scores.role == role).collect();
        let score = |head: &Head| role.score(&head.scores).unwrap_or(f64::NEG_INFINITY);
        heads.sort_by(|a, b| score(b).total_cmp(&score(a)));
        if role == HeadRole::Mixed {
            continue;
        }
        let count = heads.len();
        for (at, head) in heads.into_iter().take(STRONGEST).enumerate() {
            let name = if at == 0 { format!("{} ({count})", role.label()) } else { String::new() };
            let distance = head.scores.distance.map_or_else(String::new, |distance| format!("{distance:.1}"));
            let entropy = format!("{:.2}", head.scores.entropy);
            rows.push([name, head.scores.id().name(main), format!("{:.3}", score(head)), entropy, distance]);
        }
    }
    match rows.is_empty() {
        true => "no head has a clear role".into(),
        false => output::table(["role", "head", "score", "entropy", "distance"], &rows),
    }
}

/// The heads without which the loss grows most.
fn costliest(report: &Report, main: AttentionPart) -> String {
    let effect = |head: &Head| head.ablation.unwrap_or(f64::NEG_INFINITY);
    let mut heads: Vec<&Head> = report.heads.iter().filter(|head| head.ablation.is_some()).collect();
    heads.sort_by(|a, b| effect(b).total_cmp(&effect(a)));
    let row = |head: &&Head| {
        [head.scores.id().name(main), format!("{:+.4}", effect(head)), head.scores.role.label().to_owned()]
    };
    let rows: Vec<_> = heads.iter().take(4 * STRONGEST).map(row).collect();
    output::table(["without", "loss", "role"], &rows)
}
