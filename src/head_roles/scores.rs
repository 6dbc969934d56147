//! The scores of one head and the name of what it does.

use std::fmt;

use serde::Serialize;

use super::pattern::{AttentionPattern, Visibility};
use crate::model::{AttentionPart, AttentionPlace};

/// One head of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeadId {
    /// Which attention of its layer it belongs to.
    pub part: AttentionPart,
    /// The layer, counted from 0 in its stack.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
}

impl HeadId {
    /// Reads `layer.head`, a head of the part `main`, or `part.layer.head`.
    ///
    /// # Errors
    ///
    /// A sentence that says what is expected.
    pub fn parse(text: &str, main: AttentionPart) -> Result<Self, String> {
        let expected =
            || format!("`{text}` names no head; write LAYER.HEAD (3.1), or encoder.3.1, decoder.3.1, cross.3.1");
        let words: Vec<&str> = text.trim().split('.').collect();
        let (part, layer, head) = match words[..] {
            [layer, head] => (main, layer, head),
            [part, layer, head] => {
                let part = AttentionPart::ALL.into_iter().find(|known| known.name() == part);
                (part.ok_or_else(expected)?, layer, head)
            }
            _ => return Err(expected()),
        };
        let number = |word: &str| word.parse().map_err(|_| expected());
        Ok(Self { part, layer: number(layer)?, head: number(head)? })
    }

    /// The attention that the head belongs to.
    pub fn place(self) -> AttentionPlace {
        AttentionPlace { part: self.part, layer: self.layer }
    }

    /// The name that [`parse`](Self::parse) reads with the same `main`.
    pub fn name(self, main: AttentionPart) -> String {
        if self.part == main { format!("{}.{}", self.layer, self.head) } else { self.to_string() }
    }
}

impl fmt::Display for HeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.part, self.layer, self.head)
    }
}

/// What a head does, where its scores say it clearly.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum HeadRole {
    /// Looks at the token before its own.
    PreviousToken,
    /// Looks at the token after its own; only where later keys are visible.
    NextToken,
    /// Rests on the first token, which serves as a sink ([Xiao et al. 2023](https://arxiv.org/abs/2309.17453)).
    FirstToken,
    /// Looks at what came after the same token before ([Olsson et al. 2022](https://arxiv.org/abs/2209.11895)).
    Induction,
    /// Looks at the same token where it occurred before ([Wang et al. 2022](https://arxiv.org/abs/2211.00593)).
    DuplicateToken,
    /// Looks at its own token.
    #[serde(rename = "self")]
    OwnToken,
    /// Looks at everything alike.
    Uniform,
    /// None of these, or several.
    Mixed,
}

impl HeadRole {
    /// Every role.
    pub const ALL: [Self; 8] = [
        Self::PreviousToken,
        Self::NextToken,
        Self::FirstToken,
        Self::Induction,
        Self::DuplicateToken,
        Self::OwnToken,
        Self::Uniform,
        Self::Mixed,
    ];

    /// The name, for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::PreviousToken => "previous token",
            Self::NextToken => "next token",
            Self::FirstToken => "first token",
            Self::Induction => "induction",
            Self::DuplicateToken => "duplicate token",
            Self::OwnToken => "self",
            Self::Uniform => "uniform",
            Self::Mixed => "mixed",
        }
    }

    /// One letter, for a map of heads.
    pub fn symbol(self) -> char {
        match self {
            Self::PreviousToken => 'P',
            Self::NextToken => 'N',
            Self::FirstToken => 'F',
            Self::Induction => 'I',
            Self::DuplicateToken => 'D',
            Self::OwnToken => 'S',
            Self::Uniform => 'U',
            Self::Mixed => '·',
        }
    }

    /// The score that decides whether `scores` have this role; `None` where it was not measured, and for
    /// [`Mixed`](Self::Mixed).
    pub fn score(self, scores: &HeadScores) -> Option<f64> {
        match self {
            Self::PreviousToken => scores.previous_token,
            Self::NextToken => scores.next_token,
            Self::FirstToken => Some(scores.first_token),
            Self::Induction => scores.induction,
            Self::DuplicateToken => scores.duplicate_token,
            Self::OwnToken => scores.own_token,
            Self::Uniform => Some(scores.entropy),
            Self::Mixed => None,
        }
    }
}

/// The mean weight above which a place names the role of a head. More than half of the attention goes there, so that no
/// other place of the same sequence can have as much.
pub const CLEAR_SHARE: f64 = 0.5;

/// The entropy above which a head is called uniform. One that leaves out half of n keys and looks at the others alike has
/// 1 − ln 2 / ln n: 0.8 of 32 tokens, 0.9 of 1000; so a head above this leaves out few.
pub const CLEAR_ENTROPY: f64 = 0.9;

/// What one head attends to.
///
/// Scores are mean weights between 0 and 1, measured on the text; [`induction`](Self::induction) and
/// [`duplicate_token`](Self::duplicate_token) on random tokens that are said twice. What makes no sense for a head is
/// `None`: a token after the query's own where later keys are hidden, induction where they are visible, places relative
/// to the query in cross-attention.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct HeadScores {
    /// Which attention of its layer the head belongs to.
    pub part: AttentionPart,
    /// The layer, counted from 0 in its stack.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
    /// Weight on the token before the query's own.
    pub previous_token: Option<f64>,
    /// Weight on the token after the query's own.
    pub next_token: Option<f64>,
    /// Weight on the first token.
    pub first_token: f64,
    /// Weight on the token after the same token's earlier occurrence.
    pub induction: Option<f64>,
    /// Weight on the same token's earlier occurrence.
    pub duplicate_token: Option<f64>,
    /// Weight on the query's own token.
    #[serde(rename = "self")]
    pub own_token: Option<f64>,
    /// Entropy as a share of that of equal weights on all visible keys.
    pub entropy: f64,
    /// Mean distance of the attended keys, in tokens.
    pub distance: Option<f64>,
    /// What the head does.
    pub role: HeadRole,
}

impl HeadScores {
    /// The scores of the head `id` with this pattern on a text, without those on repeated tokens.
    pub fn of(id: HeadId, pattern: &AttentionPattern, visibility: Visibility) -> Self {
        let is_self_attention = id.part != AttentionPart::Cross;
        let among_own = |score: f64| is_self_attention.then_some(score);
        let mut scores = Self {
            part: id.part,
            layer: id.layer,
            head: id.head,
            previous_token: among_own(pattern.previous_token()),
            next_token: among_own(pattern.next_token()).filter(|_| !visibility.is_causal),
            first_token: pattern.first_token(),
            induction: None,
            duplicate_token: None,
            own_token: among_own(pattern.own_token()),
            entropy: pattern.entropy(visibility),
            distance: among_own(pattern.distance()),
            role: HeadRole::Mixed,
        };
        scores.role = scores.clear_role();
        scores
    }

    /// Takes in what was measured on repeated tokens.
    pub(super) fn add_repeated(&mut self, induction: Option<f64>, duplicate_token: Option<f64>) {
        self.induction = induction;
        self.duplicate_token = duplicate_token;
        self.role = self.clear_role();
    }

    /// The head.
    pub fn id(&self) -> HeadId {
        HeadId { part: self.part, layer: self.layer, head: self.head }
    }

    /// The role whose score is clear. What a head does when tokens repeat comes first: where nothing repeats, such heads
    /// rest on the first token.
    fn clear_role(&self) -> HeadRole {
        let by_place = [
            HeadRole::Induction,
            HeadRole::DuplicateToken,
            HeadRole::PreviousToken,
            HeadRole::NextToken,
            HeadRole::FirstToken,
            HeadRole::OwnToken,
        ];
        let is_clear = |role: &HeadRole| role.score(self).is_some_and(|score| score > CLEAR_SHARE);
        match by_place.into_iter().find(is_clear) {
            Some(role) => role,
            None if self.entropy > CLEAR_ENTROPY => HeadRole::Uniform,
            None => HeadRole::Mixed,
        }
    }
}
