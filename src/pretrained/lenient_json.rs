//! JSON as Python writes it: with `NaN`, `Infinity` and `-Infinity`, which standard JSON does not have.

use serde_json::Value;

/// Reads JSON text. The three numbers that JSON lacks become texts, so that a key that nothing reads does no harm, and
/// one that is read is refused by name.
pub(super) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let text = text.trim_start_matches('\u{feff}');
    serde_json::from_str(text).or_else(|error| match quoted(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(error),
    })
}

/// The text with those numbers in quotes, if there are any outside of strings.
fn quoted(text: &str) -> Option<String> {
    let mut result = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut is_changed = false;
    let mut is_in_string = false;
    while let Some(next) = rest.chars().next() {
        let number = ["-Infinity", "Infinity", "NaN"].into_iter().find(|number| rest.starts_with(number));
        let length = match (is_in_string, next, number) {
            (false, _, Some(number)) => {
                is_changed = true;
                result.extend(["\"", number, "\""]);
                rest = &rest[number.len()..];
                continue;
            }
            // The character after a backslash ends no string.
            (true, '\\', _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (_, '"', _) => {
                is_in_string = !is_in_string;
                1
            }
            _ => next.len_utf8(),
        };
        result.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    is_changed.then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_become_texts() {
        let value = parse(r#"{"a": [0.0, Infinity, -Infinity], "b": NaN, "c": "NaN \" Infinity \\", "d": 1}"#);
        let value = value.expect("readable");
        assert_eq!(value["a"][1], "Infinity");
        assert_eq!(value["a"][2], "-Infinity");
        assert_eq!(value["b"], "NaN");
        assert_eq!(value["c"], "NaN \" Infinity \\");
        assert_eq!(value["d"], 1);
    }

    #[test]
    fn other_mistakes_stay_mistakes() {
        for text in ["{", "{\"a\": nan}", "", "{\"a\": \"x\\", "{\"a\": Infinity"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
