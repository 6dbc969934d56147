//! Text generation: the decoding loop, sampling, and from text to text.
//!
//! [`Decoding`] continues token ids and needs no tokenizer. With the feature `tokenizer`, `TextGenerator` continues texts
//! and answers conversations.

#[cfg(feature = "tokenizer")]
mod chat;
#[cfg(feature = "tokenizer")]
mod date;
mod decoding;
mod sampling;
mod stopping;
#[cfg(feature = "tokenizer")]
mod streaming;
#[cfg(feature = "tokenizer")]
mod text;

#[cfg(feature = "tokenizer")]
pub use chat::{ChatTemplate, Message};
pub use decoding::{Decoding, GenerationOptions, NewToken, Timing, check_prompts};
pub use sampling::{Candidate, Sampler, Sampling};
pub use stopping::{StopReason, StopStrings};
#[cfg(feature = "tokenizer")]
pub use streaming::TextStream;
#[cfg(feature = "tokenizer")]
pub use text::{EncodedPrompt, Generated, GeneratedText, Prompt, TextGenerator, check_generation, encode_prompt};
