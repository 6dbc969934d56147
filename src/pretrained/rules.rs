//! Where each parameter of a model stands in a checkpoint.
//!
//! A family states this as data: pairs of names, ours and theirs, for a module (`layers.N.attention.query`, its weight
//! and bias follow) or for one parameter (`embedding.tokens`). `N` stands for the number of a layer, `E` for that of an
//! expert and `H` for that of a head. Which rows of a tensor are meant, and whether it is stored the other way round, follows from the few
//! [`Part`]s below and the shape of the parameter.

use std::ops::Range;

use super::numbers::Cut;
use crate::attention::MultiHeadAttentionConfig;

/// What of a tensor belongs to a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// All of it, one row per head, in a parameter that is a vector.
    Flat,
    /// One tensor per head, one after the other.
    PerHead,
    /// The rows of the queries, keys or values in a tensor that holds all three.
    Projection(Projection, Fused),
    /// The first half of the rows.
    FirstHalf,
    /// The second half of the rows.
    SecondHalf,
}

/// A projection inside a fused tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Query,
    Key,
    Value,
}

/// The order of rows in a tensor that holds queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fused {
    /// All queries, all keys, all values.
    Stacked,
    /// Per key/value head: the queries that read it, its keys, its values. With one head per query this is `[H, 3, d]`
    /// (GPT-NeoX, BLOOM), with one head in all it is stacked (Falcon 7b).
    ByHead,
}

/// The sizes that cutting needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    n_heads: usize,
    n_kv_heads: usize,
    d_head: usize,
}

impl Heads {
    pub fn of(attention: &MultiHeadAttentionConfig) -> Self {
        Self { n_heads: attention.n_heads, n_kv_heads: attention.n_kv_heads(), d_head: attention.d_head() }
    }

    fn fused_rows(self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.d_head
    }

    fn rows(self, projection: Projection, order: Fused) -> Vec<Range<usize>> {
        let Self { n_heads, n_kv_heads, d_head } = self;
        let (blocks, queries, keys) = match order {
            Fused::Stacked => (1, n_heads, n_kv_heads),
            Fused::ByHead => (n_kv_heads, n_heads / n_kv_heads.max(1), 1),
        };
        let (first, count) = match projection {
            Projection::Query => (0, queries),
            Projection::Key => (queries, keys),
            Projection::Value => (queries + keys, keys),
        };
        let block = |index: usize| index * (queries + 2 * keys) + first;
        (0..blocks).map(|index| block(index) * d_head..(block(index) + count) * d_head).collect()
    }
}

/// What fills one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The tensors, nearly always one; several follow each other along the first axis.
    pub tensors: Vec<String>,
    /// The shape that each of them must have.
    pub shape: Vec<usize>,
    /// The axis along which `ranges` cuts.
    pub axis: usize,
    /// What is taken along `axis`; everything where this is empty.
    pub ranges: Vec<Range<usize>>,
    /// Whether rows and columns change places.
    pub transpose: bool,
}

impl Source {
    /// What of a tensor fills the parameter.
    pub fn cut(&self) -> Cut<'_> {
        Cut { axis: self.axis, ranges: &self.ranges, transpose: self.transpose }
    }
}

#[derive(Clone, Debug)]
struct Rule {
    ours: &'static str,
    /// The names it may have, the first one in the file counts.
    theirs: Vec<&'static str>,
    part: Part,
}

/// The rules of one family.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    /// Modules and parameters outside the part that all names of a file may be put under (`lm_head`).
    roots: Vec<&'static str>,
    ignored: Vec<&'static str>,
    is_in_out: bool,
    has_old_norm_names: bool,
}

impl Rules {
    /// Rules that pair `names`, ours with theirs.
    pub fn new(names: &[(&'static str, &'static str)]) -> Self {
        Self::default().with(names)
    }

    /// Adds pairs; one of a name that is already there replaces it.
    #[must_use]
    pub fn with(mut self, names: &[(&'static str, &'static str)]) -> Self {
        for (ours, theirs) in names {
            self.set(ours, theirs, Part::Whole);
        }
        self
    }

    /// Adds another name that `ours` may have.
    #[must_use]
    pub fn or(mut self, ours: &'static str, theirs: &'static str) -> Self {
        match self.rules.iter_mut().find(|rule| rule.ours == ours) {
            Some(rule) => rule.theirs.push(theirs),
            None => self.set(ours, theirs, Part::Whole),
        }
        self
    }

    /// Adds pairs whose names do not take the prefix of the others.
    #[must_use]
    pub fn with_roots(mut self, names: &[(&'static str, &'static str)]) -> Self {
        self.roots.extend(names.iter().map(|(ours, _)| ours));
        self.with(names)
    }

    /// The query, key and value projections of a layer are one tensor.
    #[must_use]
    pub fn with_fused_projections(mut self, theirs: &'static str, order: Fused) -> Self {
        self.set("layers.N.attention.query", theirs, Part::Projection(Projection::Query, order));
        self.set("layers.N.attention.key", theirs, Part::Projection(Projection::Key, order));
        self.set("layers.N.attention.value", theirs, Part::Projection(Projection::Value, order));
        self
    }

    /// The gate and up projections of a layer are one tensor, the gate first.
    #[must_use]
    pub fn with_fused_gate(mut self, theirs: &'static str) -> Self {
        self.set("layers.N.feed_forward.gate", theirs, Part::FirstHalf);
        self.set("layers.N.feed_forward.up", theirs, Part::SecondHalf);
        self
    }

    /// The norms of queries and keys, which stand in the file as `part` says.
    #[must_use]
    pub fn with_qk_norms(mut self, query: &'static str, key: &'static str, part: Part) -> Self {
        self.set("layers.N.attention.query_norm", query, part);
        self.set("layers.N.attention.key_norm", key, part);
        self
    }

    /// Names, or their ends after a dot, that are no parameters.
    #[must_use]
    pub fn ignoring(mut self, names: &[&'static str]) -> Self {
        self.ignored.extend(names);
        self
    }

    /// Linear weights are stored `[in, out]`, as here, and not `[out, in]` as nearly everywhere else.
    #[must_use]
    pub fn stored_in_out(mut self) -> Self {
        self.is_in_out = true;
        self
    }

    /// Norms may be called `gamma` and `beta`.
    #[must_use]
    pub fn with_old_norm_names(mut self) -> Self {
        self.has_old_norm_names = true;
        self
    }

    fn set(&mut self, ours: &'static str, theirs: &'static str, part: Part) {
        self.rules.retain(|rule| rule.ours != ours);
        self.rules.push(Rule { ours, theirs: vec![theirs], part });
    }

    /// Puts the rules under the prefix that the names of a file have, seen from where its token table stands, or its
    /// class token in a model of images.
    pub fn bind<'a>(self, names: impl Iterator<Item = &'a str>) -> Result<BoundRules, Vec<&'static str>> {
        let is_table = |rule: &&Rule| ["embedding.tokens", "patches.class_token"].contains(&rule.ours);
        let tables = self.rules.iter().find(is_table).map(|rule| rule.theirs.clone());
        let tables = tables.unwrap_or_default();
        let prefix = |name: &'a str| {
            let before = tables.iter().find_map(|table| name.strip_suffix(table))?;
            (before.is_empty() || before.ends_with('.')).then_some(before)
        };
        match names.filter_map(prefix).min_by_key(|prefix| prefix.len()) {
            Some(prefix) => Ok(BoundRules { prefix: prefix.to_owned(), rules: self, is_native: false }),
            None => Err(tables),
        }
    }
}

/// Rules for the names of one file.
#[derive(Clone, Debug)]
pub(super) struct BoundRules {
    rules: Rules,
    prefix: String,
    /// Whether names and layouts are those of this crate itself.
    is_native: bool,
}

impl BoundRules {
    /// The rules of this crate's own files, in which every parameter stands under its own name and as it is.
    pub fn native() -> Self {
        Self { rules: Rules::default(), prefix: String::new(), is_native: true }
    }

    /// Adds a module whose names do not take the prefix of the others.
    pub fn add_root(&mut self, ours: &'static str, theirs: &'static str) {
        self.rules = std::mem::take(&mut self.rules).with_roots(&[(ours, theirs)]);
    }

    /// Every name that a tensor may have that does not take the prefix of the others.
    pub fn names_of_root(&self, name: &str) -> Vec<String> {
        self.places(true).into_iter().map(|place| format!("{place}{name}")).collect()
    }

    /// Every name that the tensor of the parameter `path` may have, likeliest first; empty for a parameter without a
    /// rule. Of a parameter that several tensors make up, these are the first ones.
    pub fn names(&self, path: &str) -> Vec<String> {
        if self.is_native {
            return vec![path.to_owned()];
        }
        let Some(found) = self.find(path) else {
            return Vec::new();
        };
        let places = self.places(self.rules.roots.contains(&found.rule.ours));
        let names = found.theirs().into_iter().flat_map(|name| {
            let name = name.replace(".H.", ".0.");
            places.iter().map(move |place| format!("{place}{name}"))
        });
        names.collect()
    }

    /// What fills the parameter `path` of shape `shape` in a file for which `is_there` knows the names. Without a
    /// tensor under any of its names, the likeliest one is given.
    pub fn source(&self, path: &str, shape: &[usize], heads: Heads, is_there: impl Fn(&str) -> bool) -> Option<Source> {
        if self.is_native {
            let tensors = vec![path.to_owned()];
            return Some(Source { tensors, shape: shape.to_vec(), axis: 0, ranges: Vec::new(), transpose: false });
        }
        let found = self.find(path)?;
        let candidates = self.names(path);
        let name = candidates.iter().find(|name| is_there(name)).or(candidates.first())?;
        let is_linear = shape.len() == 2 && path.ends_with(".weight") && path != "head.weight";
        // Task heads are stored as nearly everywhere else in every family.
        let transpose = is_linear && (!self.rules.is_in_out || path.starts_with("task."));
        // The axis of the outputs in the file: the last one of a weight that is not turned.
        let axis = if is_linear && !transpose { 1 } else { 0 };
        let mut stored = shape.to_vec();
        if transpose {
            stored.reverse();
        }
        let rows = stored.get(axis).copied().unwrap_or(0);
        let mut tensors = vec![name.clone()];
        let mut ranges = Vec::new();
        match found.rule.part {
            Part::Whole => {}
            Part::Flat => stored = vec![rows / heads.d_head.max(1), heads.d_head],
            Part::PerHead => {
                let heads_in_all = rows / heads.d_head.max(1);
                tensors = (0..heads_in_all).map(|head| numbered(name, head)).collect();
                stored = vec![heads.d_head];
            }
            Part::Projection(projection, order) => {
                stored[axis] = heads.fused_rows();
                ranges = heads.rows(projection, order);
            }
            Part::FirstHalf => {
                stored[axis] = 2 * rows;
                ranges.push(0..rows);
            }
            Part::SecondHalf => {
                stored[axis] = 2 * rows;
                ranges.push(rows..2 * rows);
            }
        }
        Some(Source { tensors, shape: stored, axis, ranges, transpose })
    }

    /// Whether a tensor is known to be no parameter.
    pub fn ignores(&self, tensor: &str) -> bool {
        let general = ["rotary_emb.inv_freq", "position_ids"];
        general
            .iter()
            .chain(&self.rules.ignored)
            .any(|end| tensor.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.')))
    }

    fn find(&self, path: &str) -> Option<Found<'_>> {
        let mut parts: Vec<&str> = path.split('.').collect();
        let mut numbers = Vec::new();
        for at in 1..parts.len() {
            let sign = match parts[at - 1] {
                "layers" => "N",
                "experts" => "E",
                _ => continue,
            };
            numbers.push((sign, std::mem::replace(&mut parts[at], sign).to_owned()));
        }
        let whole = parts.join(".");
        let last = parts.pop()?;
        let module = parts.join(".");
        let rule = |ours: &str| self.rules.rules.iter().find(|rule| rule.ours == ours);
        let (rule, suffixes) = match (rule(&whole), rule(&module)) {
            (Some(rule), _) => (rule, Vec::new()),
            (None, Some(rule)) => (rule, self.suffixes(last)),
            (None, None) => return None,
        };
        Some(Found { rule, numbers, suffixes })
    }

    /// What a parameter of a module can be called in the file.
    fn suffixes(&self, name: &str) -> Vec<&'static str> {
        match (name, self.rules.has_old_norm_names) {
            ("weight", false) => vec![".weight"],
            ("weight", true) => vec![".weight", ".gamma"],
            ("bias", false) => vec![".bias"],
            ("bias", true) => vec![".bias", ".beta"],
            _ => Vec::new(),
        }
    }

    /// What may stand before a name. The head of a model whose names are below `language_model.model.` can be anywhere
    /// above.
    fn places(&self, is_root: bool) -> Vec<&str> {
        if !is_root {
            return vec![&self.prefix];
        }
        let mut places = vec![""];
        places.extend(self.prefix.char_indices().filter(|(_, c)| *c == '.').map(|(end, _)| &self.prefix[..=end]));
        places
    }
}

/// A rule that speaks of a parameter.
struct Found<'a> {
    rule: &'a Rule,
    /// What `N` and `E` stand for.
    numbers: Vec<(&'static str, String)>,
    /// Empty where the rule names the parameter itself.
    suffixes: Vec<&'static str>,
}

impl Found<'_> {
    fn theirs(&self) -> Vec<String> {
        let name = |theirs: &str, suffix: &str| {
            let name = format!("{theirs}{suffix}");
            let put_in = |name: String, (sign, number): &(&str, String)| {
                name.replacen(&format!(".{sign}."), &format!(".{number}."), 1)
            };
            self.numbers.iter().fold(name, put_in)
        };
        let suffixes = if self.suffixes.is_empty() { &[""][..] } else { &self.suffixes };
        self.rule.theirs.iter().flat_map(|theirs| suffixes.iter().map(move |suffix| name(theirs, suffix))).collect()
    }
}

/// The name of the tensor of head `head`, given that of head 0, whose number is the last one in it.
fn numbered(name: &str, head: usize) -> String {
    match name.rsplit_once(".0.") {
        Some((before, after)) => format!("{before}.{head}.{after}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, d_head: 3 };

    #[test]
    fn fused_projections_are_cut_by_their_order() {
        let rows = |order: Fused| {
            [Projection::Query, Projection::Key, Projection::Value].map(|projection| HEADS.rows(projection, order))
        };
        assert_eq!(rows(Fused::Stacked).concat(), [0..12, 12..18, 18..24]);
        assert_eq!(rows(Fused::ByHead), [vec![0..6, 12..18], vec![6..9, 18..21], vec![9..12, 21..24]]);
    }

    fn bound(rules: Rules, names: &[&'static str]) -> BoundRules {
        rules.bind(names.iter().copied()).expect("a token table")
    }

    #[test]
    fn the_prefix_is_what_stands_before_the_token_table() {
        let rules = Rules::new(&[
            ("embedding.tokens", "embed_tokens.weight"),
            ("layers.N.attention.query", "layers.N.self_attn.q_proj"),
        ])
        .with_roots(&[("head", "lm_head")]);
        for (file, query, head) in [
            ("embed_tokens.weight", "layers.11.self_attn.q_proj.bias", "lm_head.weight"),
            ("model.embed_tokens.weight", "model.layers.11.self_attn.q_proj.bias", "lm_head.weight"),
            ("a.model.embed_tokens.weight", "a.model.layers.11.self_attn.q_proj.bias", "a.lm_head.weight"),
        ] {
            let rules = bound(rules.clone(), &["x", file]);
            assert_eq!(rules.names("layers.11.attention.query.bias"), [query]);
            assert!(rules.names("head.weight").iter().any(|name| name == head));
        }
        assert_eq!(rules.bind(["not_embed_tokens.weight"].into_iter()).expect_err("none"), ["embed_tokens.weight"]);
    }

    #[test]
    fn shapes_are_those_of_the_file() {
        let rules = Rules::new(&[("embedding.tokens", "wte.weight")])
            .with_fused_projections("h.N.attn.c_attn", Fused::Stacked)
            .with_qk_norms("h.N.q_norm.H", "h.N.k_norm", Part::PerHead);
        let turned = bound(rules.clone(), &["wte.weight"]);
        let source = |rules: &BoundRules, path: &str, shape: &[usize]| {
            rules.source(path, shape, HEADS, |_| true).expect("a rule")
        };
        let key = source(&turned, "layers.0.attention.key.weight", &[5, 6]);
        assert_eq!((key.shape, key.axis, key.transpose), (vec![24, 5], 0, true));
        assert_eq!(key.ranges, [12..18; 1]);
        let bias = source(&turned, "layers.0.attention.key.bias", &[6]);
        assert_eq!((bias.shape, bias.axis, bias.transpose), (vec![24], 0, false));
        let norm = source(&turned, "layers.7.attention.query_norm.weight", &[12]);
        assert_eq!(norm.tensors[3], "h.7.q_norm.3.weight");
        assert_eq!((norm.tensors.len(), norm.shape), (4, vec![3]));
        let straight = bound(rules.stored_in_out(), &["wte.weight"]);
        let key = source(&straight, "layers.0.attention.key.weight", &[5, 6]);
        assert_eq!((key.shape, key.axis, key.transpose), (vec![5, 24], 1, false));
    }
}
