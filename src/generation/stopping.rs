//! Where a text ends: reasons, and strings that end it.

use serde::Serialize;

/// Why a sequence ended.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model gave a token that ends a text.
    StopToken,
    /// The text came to a string that ends it.
    StopString,
    /// As many tokens as were asked for.
    Length,
    /// The model's positions end.
    Context,
    /// The caller wanted no more.
    Cancelled,
}

/// Looks for strings in a text that comes in pieces, and lets nothing through that may yet turn out to begin one.
///
/// Of several strings the one that ends first counts, and of those that end together the longest; so what is let through
/// does not depend on the pieces.
///
/// ```
/// # use burnformer::generation::StopStrings;
/// let mut stop = StopStrings::new(vec!["\nUser:".into()]);
/// assert_eq!(stop.push("Hello.\nUs"), "Hello.");
/// assert_eq!(stop.push("e "), "\nUse ");
/// assert_eq!(stop.push("it.\nUser"), "it.");
/// assert_eq!(stop.push(": more"), "");
/// assert!(stop.is_found());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
    is_found: bool,
}

impl StopStrings {
    /// Looks for `strings`; empty ones are never found.
    pub fn new(strings: Vec<String>) -> Self {
        Self { strings: strings.into_iter().filter(|string| !string.is_empty()).collect(), ..Self::default() }
    }

    /// Whether one of the strings has come.
    pub fn is_found(&self) -> bool {
        self.is_found
    }

    /// Takes the next piece of the text and gives what of the text is certain to come before any of the strings.
    pub fn push(&mut self, piece: &str) -> String {
        if self.is_found {
            return String::new();
        }
        self.held.push_str(piece);
        let places = self.strings.iter().filter_map(|string| {
            let start = self.held.find(string)?;
            Some((start + string.len(), start))
        });
        if let Some((_, start)) = places.min() {
            self.is_found = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let may_begin_here = |at: usize| self.strings.iter().any(|string| string.starts_with(&self.held[at..]));
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let kept = starts.find(|at| may_begin_here(*at)).unwrap_or(self.held.len());
        let rest = self.held.split_off(kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back, once no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes through when `text` comes in pieces of `length` characters, and whether a string was found.
    fn through(strings: &[&str], text: &str, length: usize) -> (String, bool) {
        let mut stop = StopStrings::new(strings.iter().map(ToString::to_string).collect());
        let characters: Vec<char> = text.chars().collect();
        let mut given = String::new();
        for piece in characters.chunks(length) {
            given += &stop.push(&piece.iter().collect::<String>());
        }
        given += &stop.finish();
        (given, stop.is_found())
    }

    #[test]
    fn what_comes_through_does_not_depend_on_the_pieces() {
        for (strings, text, want, is_found) in [
            (&["END"][..], "one END two", "one ", true),
            (&["END"], "one EN", "one EN", false),
            (&["END"], "EEND", "E", true),
            (&["aab"], "aaab", "a", true),
            (&["b", "ab"], "xab", "x", true),
            (&["abcd", "bc"], "abcd", "a", true),
            (&["é🙂"], "caf é🙂!", "caf ", true),
            (&["é🙂"], "caf é🙃", "caf é🙃", false),
            (&[""], "text", "text", false),
            (&[], "text", "text", false),
        ] {
            for length in 1..=text.chars().count() {
                let found = through(strings, text, length);
                assert_eq!(found, (want.to_owned(), is_found), "{strings:?} in {text:?}, pieces of {length}");
            }
        }
    }
}
