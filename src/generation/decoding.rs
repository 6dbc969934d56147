//! The loop: prompts in, one token after another out.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::sampling::{Sampler, Sampling};
use super::stopping::StopReason;
use crate::error::{ConfigError, Error, Faults};
use crate::model::{Cache, ForwardOptions, Logits, ModelConfig, ModelInput, ModelKind, Transformer};

/// What is asked of a generation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationOptions {
    /// Tokens per prompt at most. Default: 128.
    pub max_new_tokens: usize,
    /// How tokens are drawn. Default: greedy.
    pub sampling: Sampling,
    /// Seed of the draws. Each row of a batch has random numbers of its own, so that what one row gives does not depend on
    /// the others. Default: 0.
    pub seed: u64,
    /// Tokens that end a sequence. Default: none.
    pub stop_ids: Vec<u32>,
    /// Strings that end a text, which goes up to the first of them. Only where text is generated. Default: none.
    pub stop_strings: Vec<String>,
    /// The token that a decoder begins with which has an encoder to read the prompt. Default: none.
    pub start_id: Option<u32>,
    /// Feeds prompts in pieces of this many tokens, which takes less memory at a time and gives the same. Default: whole.
    pub prefill_chunk: Option<usize>,
}

impl Default for GenerationOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            sampling: Sampling::default(),
            seed: 0,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            start_id: None,
            prefill_chunk: None,
        }
    }
}

impl GenerationOptions {
    /// Greedy, `max_new_tokens` tokens at most.
    pub fn new(max_new_tokens: usize) -> Self {
        Self { max_new_tokens, ..Self::default() }
    }

    setters! {
        with_sampling => sampling: Sampling,
        with_seed => seed: u64,
        with_stop_ids => stop_ids: Vec<u32>,
        with_stop_strings => stop_strings: Vec<String>,
        with_start_id => start_id: u32,
        with_prefill_chunk => prefill_chunk: usize,
    }

    /// Checks the options.
    ///
    /// # Errors
    ///
    /// Every option that is out of range, at once.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut faults = Faults::default();
        faults.section("sampling", |faults| self.sampling.check(faults));
        if let Some(chunk) = self.prefill_chunk {
            faults.require(chunk > 0, "prefill_chunk", || "must be at least 1, got 0".into());
        }
        faults.require(!self.stop_strings.contains(&String::new()), "stop_strings", || {
            "must not hold the empty text, which every text contains".into()
        });
        faults.into_result().map_err(|error| error.at("generation"))
    }
}

/// Fails where a model cannot continue `prompts`. Computes nothing.
///
/// # Errors
///
/// When the model is no decoder with a language-model head, or a prompt is empty, has an id outside the vocabulary, or is
/// longer than the model's context (`max_seq_len`).
pub fn check_prompts(config: &ModelConfig, prompts: &[Vec<u32>]) -> Result<(), Error> {
    let fault = |problem: String| Err(Error::Input(problem));
    if config.kind == ModelKind::Encoder {
        return fault("the model is an encoder, which reads whole texts and continues none".into());
    }
    if config.head.is_none() {
        return fault("the model has no language-model head, so it gives no tokens".into());
    }
    let vocab_size = config.vocab_size();
    for (index, prompt) in prompts.iter().enumerate() {
        let name = if prompts.len() == 1 { "the prompt".to_owned() } else { format!("prompt {}", index + 1) };
        if prompt.is_empty() {
            return fault(format!("{name} is empty; a model continues from at least one token"));
        }
        if prompt.len() > config.max_seq_len {
            let (len, limit) = (prompt.len(), config.max_seq_len);
            return fault(format!("{name} has {len} tokens and the model's context {limit} (max_seq_len)"));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            let last = vocab_size.saturating_sub(1);
            return fault(format!("token id {id} is out of range: the vocabulary has {vocab_size}, from 0 to {last}"));
        }
    }
    Ok(())
}

/// A token that has just been generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Which prompt it continues.
    pub row: usize,
    /// The id.
    pub token: u32,
    /// Why the row ends with it, where it does.
    pub stop: Option<StopReason>,
}

/// How long the parts of a generation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Reading the prompts, to the first token of each.
    pub prefill: Duration,
    /// All further tokens.
    pub decode: Duration,
}

/// A generation under way: a batch of prompts, of any lengths, that a model continues token by token.
///
/// Each row gives what it gives alone. A row that has ended leaves the batch.
///
/// Prompts must fit into `max_seq_len`. Where positions are learned, their table ends there, and so does generation, with
/// [`StopReason::Context`]. All other positions go on without end: generation does too, though a model becomes worse
/// beyond the length that it was trained for.
///
/// In a model that has an encoder too, the encoder reads the prompts, and the decoder begins with `start_id`.
///
/// ```no_run
/// # use burnformer::generation::{Decoding, GenerationOptions};
/// # fn example(model: &burnformer::model::Transformer) -> Result<(), burnformer::Error> {
/// let mut decoding = Decoding::new(model, &[vec![1, 5, 9], vec![2, 7]], &GenerationOptions::new(20))?;
/// while !decoding.is_done() {
///     for new in decoding.step()? {
///         println!("row {}: token {}", new.row, new.token);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Decoding<'a> {
    model: &'a Transformer,
    options: GenerationOptions,
    rows: Vec<Row>,
    /// The rows that are in the cache, in its order.
    fed: Vec<usize>,
    cache: Cache,
    timing: Timing,
}

#[derive(Debug)]
struct Row {
    /// The prompt and what has been generated; in a model with an encoder, the start token in place of the prompt.
    tokens: Vec<u32>,
    /// How many of these were there at the beginning.
    given: usize,
    /// What the encoder reads.
    source: Option<Vec<u32>>,
    sampler: Sampler,
    stop: Option<StopReason>,
}

impl Row {
    fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.given..]
    }
}

impl<'a> Decoding<'a> {
    /// Prepares to continue `prompts`. Computes nothing.
    ///
    /// # Errors
    ///
    /// When options are out of range, stop strings are given (tokens have no text), a model with an encoder is not told
    /// what its decoder begins with, or as [`check_prompts`] says.
    pub fn new(model: &'a Transformer, prompts: &[Vec<u32>], options: &GenerationOptions) -> Result<Self, Error> {
        options.validate()?;
        if !options.stop_strings.is_empty() {
            return Err(Error::Input("stop strings need a tokenizer, and only token ids are generated here".into()));
        }
        check_prompts(model.config(), prompts)?;
        let start = start_id(model.config(), options)?;
        let row = |(prompt, stream): (&Vec<u32>, u64)| {
            let sampler = Sampler::new(options.sampling, options.seed, stream)?;
            let (tokens, source) = match start {
                Some(start) => (vec![start], Some(prompt.clone())),
                None => (prompt.clone(), None),
            };
            Ok(Row { given: tokens.len(), tokens, source, sampler, stop: None })
        };
        let rows = prompts.iter().zip(0..).map(row).collect::<Result<Vec<_>, Error>>()?;
        let (cache, timing) = (model.new_cache(), Timing::default());
        let mut decoding = Self { model, options: options.clone(), rows, fed: Vec::new(), cache, timing };
        for row in 0..decoding.rows.len() {
            decoding.rows[row].stop = decoding.limit_reached(row);
        }
        Ok(decoding)
    }

    /// Whether every row has ended.
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.stop.is_some())
    }

    /// The tokens that continue a prompt so far; a token that ends the row is the last of them.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn tokens(&self, row: usize) -> &[u32] {
        self.rows[row].new_tokens()
    }

    /// Why a row ended, where it has.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn stop_reason(&self, row: usize) -> Option<StopReason> {
        self.rows[row].stop
    }

    /// How long it took so far.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Ends a row that goes on.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn stop(&mut self, row: usize, reason: StopReason) {
        self.rows[row].stop.get_or_insert(reason);
    }

    /// Adds one token to each row that goes on, and gives these; none when all have ended.
    ///
    /// # Errors
    ///
    /// When the model refuses its input, or its logits leave no token to draw.
    pub fn step(&mut self) -> Result<Vec<NewToken>, Error> {
        let start = Instant::now();
        let live: Vec<usize> = (0..self.rows.len()).filter(|row| self.rows[*row].stop.is_none()).collect();
        if live.is_empty() {
            return Ok(Vec::new());
        }
        let is_first = self.cache.is_empty();
        let logits = if is_first { self.prefill(live)? } else { self.advance(live)? };
        let vocab_size = self.model.config().vocab_size();
        let mut new = Vec::with_capacity(self.fed.len());
        for (row, logits) in self.fed.iter().copied().zip(logits.chunks(vocab_size)) {
            let Row { tokens, sampler, .. } = &mut self.rows[row];
            let token = sampler.sample(logits, tokens)?;
            tokens.push(token);
            let is_end = self.options.stop_ids.contains(&token);
            let stop = if is_end { Some(StopReason::StopToken) } else { self.limit_reached(row) };
            self.rows[row].stop = stop;
            new.push(NewToken { row, token, stop });
        }
        let phase = if is_first { &mut self.timing.prefill } else { &mut self.timing.decode };
        *phase += start.elapsed();
        Ok(new)
    }

    /// Which limit a row has come to.
    fn limit_reached(&self, row: usize) -> Option<StopReason> {
        let row = &self.rows[row];
        let context = self.model.config().position_limit();
        if row.new_tokens().len() >= self.options.max_new_tokens {
            Some(StopReason::Length)
        } else {
            context.is_some_and(|context| row.tokens.len() >= context).then_some(StopReason::Context)
        }
    }

    /// Feeds the prompts of `live`.
    fn prefill(&mut self, live: Vec<usize>) -> Result<Vec<f64>, Error> {
        self.fed = live;
        let rows: Vec<&Row> = self.fed.iter().map(|row| &self.rows[*row]).collect();
        let sources: Vec<&[u32]> = rows.iter().filter_map(|row| row.source.as_deref()).collect();
        let tokens: Vec<&[u32]> = rows.iter().map(|row| row.tokens.as_slice()).collect();
        let longest = longest(&tokens);
        let (mut fed, mut logits) = (0, Vec::new());
        while fed < longest {
            let end = self.options.prefill_chunk.map_or(longest, |chunk| fed.saturating_add(chunk).min(longest));
            let mut input = padded(&tokens, fed..end);
            if fed == 0 && !sources.is_empty() {
                input = input.with_source(padded(&sources, 0..self::longest(&sources)));
            }
            let which = if end == longest { Logits::Last } else { Logits::None };
            logits = forward(self.model, &input, &mut self.cache, which)?;
            fed = end;
        }
        Ok(logits)
    }

    /// Feeds the newest token of each row of `live`.
    fn advance(&mut self, live: Vec<usize>) -> Result<Vec<f64>, Error> {
        if live != self.fed {
            let kept: Vec<usize> = (0..self.fed.len()).filter(|place| live.contains(&self.fed[*place])).collect();
            self.cache.keep_rows(&kept);
            self.fed = live;
        }
        let newest = |row: &usize| self.rows[*row].tokens.last().copied().into_iter().collect();
        let ids: Vec<Vec<u32>> = self.fed.iter().map(newest).collect();
        forward(self.model, &ModelInput::tokens(&ids), &mut self.cache, Logits::Last)
    }
}

/// The token that the decoder begins with, in a model that has an encoder too.
fn start_id(config: &ModelConfig, options: &GenerationOptions) -> Result<Option<u32>, Error> {
    let vocab_size = config.vocab_size();
    match (&config.encoder, options.start_id) {
        (None, _) => Ok(None),
        (Some(_), Some(id)) if (id as usize) < vocab_size => Ok(Some(id)),
        (Some(_), Some(id)) => {
            Err(Error::Input(format!("the decoder cannot begin with token id {id}: the vocabulary has {vocab_size}")))
        }
        (Some(_), None) => Err(Error::Input("the model has an encoder, and no token is named to begin with".into())),
    }
}

fn longest(rows: &[&[u32]]) -> usize {
    rows.iter().map(|row| row.len()).max().unwrap_or(0)
}

/// Some columns of a batch whose shorter rows are padded on the left, so that all end together.
fn padded(rows: &[&[u32]], columns: Range<usize>) -> ModelInput {
    let longest = longest(rows);
    let at = |row: &[u32], column: usize| (column + row.len()).checked_sub(longest).map(|at| row[at]);
    let rows: Vec<Vec<Option<u32>>> =
        rows.iter().map(|row| columns.clone().map(|column| at(row, column)).collect()).collect();
    let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.iter().map(|id| id.unwrap_or(0)).collect()).collect();
    let padding: Vec<Vec<bool>> = rows.iter().map(|row| row.iter().map(Option::is_none).collect()).collect();
    let input = ModelInput::tokens(&ids);
    if padding.iter().flatten().any(|is_padding| *is_padding) { input.with_padding(padding) } else { input }
}

/// The logits on the host, row by row; empty where none are asked for.
fn forward(model: &Transformer, input: &ModelInput, cache: &mut Cache, logits: Logits) -> Result<Vec<f64>, Error> {
    let options = ForwardOptions { logits, ..ForwardOptions::default() };
    let output = model.forward(input, Some(cache), options)?;
    Ok(output.logits.map(|logits| logits.into_data().iter::<f64>().collect()).unwrap_or_default())
}
