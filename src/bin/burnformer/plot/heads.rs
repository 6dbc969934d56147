//! `burnformer plot heads`

use burnformer::Error;
use burnformer::head_roles::HeadRole;
use burnformer::plot::{RoleMap, check_target, score_map};
use clap::Args;

use super::{Reading, Target, title_of};
use crate::Outcome;
use crate::arguments::Compute;
use crate::text_input::TextSource;

/// Draw what each head does, or one of its scores.
#[derive(Args)]
pub struct Arguments {
    /// Preset, configuration file, checkpoint folder or GGUF file.
    model: String,
    #[command(flatten)]
    text: TextSource,
    /// Draw this score in place of the role: `previous_token`, `next_token`, `first_token`, `induction`, `duplicate_token`,
    /// `self` or `entropy`.
    #[arg(long, value_name = "NAME", value_parser = score)]
    score: Option<HeadRole>,
    /// Seed of the repeated tokens, of random weights and of random text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    compute: Compute,
}

fn score(text: &str) -> Result<HeadRole, String> {
    let named = [
        ("previous_token", HeadRole::PreviousToken),
        ("next_token", HeadRole::NextToken),
        ("first_token", HeadRole::FirstToken),
        ("induction", HeadRole::Induction),
        ("duplicate_token", HeadRole::DuplicateToken),
        ("self", HeadRole::OwnToken),
        ("entropy", HeadRole::Uniform),
    ];
    let names = named.map(|(name, _)| name).join(", ");
    let found = named.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, role)| role).ok_or_else(|| format!("there are the scores {names}"))
}

pub fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let Arguments { model, text, score, seed, target, compute } = arguments;
    check_target(&target.out)?;
    let reading = Reading::open(&model, text, seed, &compute)?;
    let heads = reading.scores(seed)?;
    let name = title_of(&model);
    reading.argument.note_weights(seed, &compute.show);
    let picture = match score {
        None => RoleMap { title: target.title(|| format!("What the heads of {name} do")), heads }.into(),
        Some(role) => {
            let title = target.title(|| format!("{name}: {}", role.label()));
            score_map(title, &heads, role).into()
        }
    };
    target.write(picture, &compute.show)
}
