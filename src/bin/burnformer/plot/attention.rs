//! `burnformer plot attention`

use burnformer::Error;
use burnformer::head_roles::{HeadId, HeadRole, HeadScores, attention_patterns};
use burnformer::model::{AttentionPart, ModelConfig};
use burnformer::plot::{AttentionPanel, attention, check_target};
use clap::Args;

use super::{Reading, Target, title_of};
use crate::Outcome;
use crate::arguments::{Compute, Row};
use crate::text_input::TextSource;

/// Draw the attention weights of heads on a text.
#[derive(Args)]
#[command(after_help = "\
Without --layers and --heads, the clearest head of each role that `burnformer heads` finds is drawn. --heads takes numbers, \
which are drawn for each of --layers, or single heads as LAYER.HEAD (with encoder. or cross. before it in a model of encoder \
and decoder).

Examples:
  burnformer plot attention path/to/checkpoint --text \"The cat sat on the mat.\" --out attention.png
  burnformer plot attention model.gguf --text \"The cat sat on the mat.\" --layers 0,5 --heads 1,2 --out attention.svg
  burnformer plot attention model.gguf --text \"The cat sat on the mat.\" --heads 3.1,5.0 --out attention.svg")]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    #[command(flatten)]
    text: TextSource,
    /// Layers, separated by commas [default with --heads: all].
    #[arg(long, value_name = "NUMBERS")]
    layers: Option<Row<usize>>,
    /// Heads, separated by commas [default with --layers: all].
    #[arg(long, value_name = "HEADS")]
    heads: Option<String>,
    /// Seed of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    compute: Compute,
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text, layers, heads, seed, target, compute } = arguments;
    check_target(&target.out)?;
    let reading = Reading::open(&model, text, seed, &compute)?;
    let config = reading.argument.config();
    let chosen = match (layers, heads) {
        (None, None) => clearest(&reading.scores(seed)?),
        (layers, heads) => chosen_heads(config, layers.map(|row| row.0), heads.as_deref())?,
    };
    let ids: Vec<HeadId> = chosen.iter().map(|(id, _)| *id).collect();
    let [first, ..] = ids[..] else {
        return Err(Error::Input("no head has a clear role on this text; choose some with --layers or --heads".into()));
    };
    if let Some(other) = ids.iter().find(|id| (id.part == AttentionPart::Cross) != (first.part == AttentionPart::Cross))
    {
        let problem = format!("{first} and {other} look at different texts; draw them one by one");
        return Err(Error::Input(problem));
    }
    let input = reading.tokens.head_input(&reading.argument, seed);
    let patterns = attention_patterns(&reading.model, &input, &ids)?;
    let panel = |((id, title), pattern): (&(HeadId, String), _)| AttentionPanel {
        title: title.clone(),
        pattern,
        is_causal: id.part == AttentionPart::Decoder,
    };
    let panels: Vec<AttentionPanel> = chosen.iter().zip(patterns).map(panel).collect();
    let title = target.title(|| format!("Attention of {}", title_of(&model)));
    let [queries, keys] = reading.tokens.labels(first.part);
    reading.argument.note_weights(seed, &compute.show);
    target.write(attention(title, &panels, queries, keys).into(), &compute.show)
}

/// The clearest head of each role, of the part that has the most of them.
fn clearest(scores: &[HeadScores]) -> Vec<(HeadId, String)> {
    let own: Vec<&HeadScores> = scores.iter().filter(|head| head.part != AttentionPart::Cross).collect();
    let last = own.iter().map(|head| head.part).max();
    let of_role = |role: HeadRole| {
        let heads = own.iter().filter(|head| head.role == role && Some(head.part) == last);
        let best = heads.max_by(|a, b| role.score(a).unwrap_or(0.0).total_cmp(&role.score(b).unwrap_or(0.0)));
        best.map(|head| (head.id(), format!("{} (layer {}, head {})", role.label(), head.layer, head.head)))
    };
    HeadRole::ALL.into_iter().filter(|role| *role != HeadRole::Mixed).filter_map(of_role).collect()
}

/// The heads that the flags name, with what stands above them.
fn chosen_heads(
    config: &ModelConfig,
    layers: Option<Vec<usize>>,
    heads: Option<&str>,
) -> Result<Vec<(HeadId, String)>, Error> {
    let main = config.attention_part();
    let title = |id: HeadId| {
        let part = if id.part == main { String::new() } else { format!("{} ", id.part) };
        (id, format!("{part}layer {}, head {}", id.layer, id.head))
    };
    if let Some(list) = heads.filter(|list| list.contains('.')) {
        if layers.is_some() {
            let problem = "--heads names layers already; leave out --layers, or give plain numbers of heads";
            return Err(Error::Input(problem.into()));
        }
        let parse = |text| HeadId::parse(text, main).map_err(Error::Input);
        return list.split(',').map(|text| parse(text).map(title)).collect();
    }
    let numbers = match heads {
        Some(list) => list.parse::<Row<usize>>().map_err(|problem| Error::Input(format!("--heads: {problem}")))?.0,
        None => (0..config.attention.n_heads).collect(),
    };
    let layers = layers.unwrap_or_else(|| (0..config.n_layers).collect());
    let of_layer = |layer: usize| numbers.iter().map(move |head| HeadId { part: main, layer, head: *head });
    Ok(layers.into_iter().flat_map(of_layer).map(title).collect())
}
