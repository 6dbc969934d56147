//! What the files of a checkpoint folder say about text: the tokenizer, its special tokens, the chat template, and where a
//! text ends.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::lenient_json;
use crate::error::Error;
#[cfg(feature = "tokenizer")]
use crate::tokenizer::{TokenizerParts, read_tokenizer};

const EOS: &str = "eos_token_id";

/// The ids that end a text: those of `generation_config.json`, or else those of `config.json`. Empty where neither names
/// any.
pub(super) fn stop_ids(folder: &Path) -> Result<Vec<u32>, Error> {
    let ids = token_ids(folder, EOS)?;
    Ok(ids.unwrap_or_default())
}

/// The ids that end a text by the text of a `config.json` that stands in the header of the file `path`.
pub(super) fn stop_ids_in(path: &Path, config: &str) -> Result<Vec<u32>, Error> {
    let config = lenient_json::parse(config).map_err(|error| Error::file(path, error))?;
    Ok(ids_under(path, &config, EOS)?.unwrap_or_default())
}

/// The id that the decoder of a model with an encoder begins with, from the same files.
pub(super) fn start_id(folder: &Path) -> Result<Option<u32>, Error> {
    let ids = token_ids(folder, "decoder_start_token_id")?;
    Ok(ids.and_then(|ids| ids.first().copied()))
}

/// Tokenizer and what belongs to it; `None` where the folder has no `tokenizer.json`.
#[cfg(feature = "tokenizer")]
pub(super) fn tokenizer(folder: &Path) -> Result<Option<TokenizerParts>, Error> {
    if !folder.join("tokenizer.json").exists() {
        return Ok(None);
    }
    let tokenizer = read_tokenizer(folder)?;
    let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or(Value::Null);
    let map = read_json(&folder.join("special_tokens_map.json"))?.unwrap_or(Value::Null);
    let by_id = |key: &str| -> Result<Option<String>, Error> {
        let ids = token_ids(folder, key)?.unwrap_or_default();
        Ok(ids.first().and_then(|id| tokenizer.id_to_token(*id)))
    };
    let special = |key: &str| match token_text(&config[key]).or_else(|| token_text(&map[key])) {
        None => by_id(&format!("{key}_id")),
        text => Ok(text),
    };
    let (bos, eos) = (special("bos_token")?, special("eos_token")?);
    let mut stop_ids = stop_ids(folder)?;
    if stop_ids.is_empty() {
        stop_ids.extend(eos.as_deref().and_then(|eos| tokenizer.token_to_id(eos)));
    }
    let path = folder.join("chat_template.jinja");
    let chat_template = read_text(&path)?.or_else(|| template_text(&config["chat_template"]));
    Ok(Some(TokenizerParts { tokenizer, bos, eos, stop_ids, chat_template }))
}

/// The token ids under `key` of `generation_config.json`, or else of `config.json`: one, a list, or none.
fn token_ids(folder: &Path, key: &str) -> Result<Option<Vec<u32>>, Error> {
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let Some(config) = read_json(&path)? else { continue };
        if let Some(ids) = ids_under(&path, &config, key)? {
            return Ok(Some(ids));
        }
    }
    Ok(None)
}

/// The token ids under `key` of one configuration.
fn ids_under(path: &Path, config: &Value, key: &str) -> Result<Option<Vec<u32>>, Error> {
    // Models of several kinds of input keep what is about text apart.
    for value in [&config[key], &config["text_config"][key]] {
        let values = match value {
            Value::Null => continue,
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        let ids: Option<Vec<Option<u32>>> = values.iter().map(token_id).collect();
        let ids =
            ids.ok_or_else(|| Error::file(path, format!("`{key}` must be a token id or a list of some, got {value}")))?;
        return Ok(Some(ids.into_iter().flatten().collect()));
    }
    Ok(None)
}

/// A token id; negative ones stand for no token. `None` where the value is no whole number.
fn token_id(value: &Value) -> Option<Option<u32>> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && *number <= f64::from(u32::MAX))?;
    Some((number >= 0.0).then_some(number as u32))
}

/// A special token, which is a text or an object that holds it.
#[cfg(feature = "tokenizer")]
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// A chat template: a text, or of several with names the default one or the only one.
#[cfg(feature = "tokenizer")]
fn template_text(value: &Value) -> Option<String> {
    let several = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = several.iter().find(|named| named["name"] == "default").or(match several {
        [only] => Some(only),
        _ => None,
    });
    let text = chosen.map_or(value, |named| &named["template"]);
    text.as_str().map(str::to_owned)
}

fn read_json(path: &Path) -> Result<Option<Value>, Error> {
    let value = read_text(path)?.map(|text| lenient_json::parse(&text)).transpose();
    value.map_err(|error| Error::file(path, format!("is not JSON: {error}")))
}

/// The content of a file, or `None` where there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path, error)),
    }
}

#[cfg(all(test, feature = "tokenizer"))]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_may_be_one_of_several() {
        let named = |name: &str, template: &str| json!({"name": name, "template": template});
        let several = json!([named("tool_use", "a"), named("default", "b")]);
        assert_eq!(template_text(&several), Some("b".into()));
        assert_eq!(template_text(&json!([named("chat", "c")])), Some("c".into()));
        assert_eq!(template_text(&json!([named("tool_use", "a"), named("rag", "b")])), None);
        assert_eq!(template_text(&json!("d")), Some("d".into()));
        assert_eq!(template_text(&Value::Null), None);
    }

    #[test]
    fn special_tokens_are_texts_or_objects() {
        assert_eq!(token_text(&json!("<s>")), Some("<s>".into()));
        assert_eq!(token_text(&json!({"content": "<s>", "lstrip": false})), Some("<s>".into()));
        assert_eq!(token_text(&Value::Null), None);
    }
}
