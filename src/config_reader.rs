//! Reading a configuration from TOML or JSON text so that every fault is reported at once.
//!
//! serde stops at the first fault. So the text is read again and again: each fault is noted and mended in the parsed
//! tree (an unknown key taken out, a missing or mistyped one replaced by a value that is known to be valid), until it
//! can be read whole; then the values themselves are checked.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path as KeyPath, Segment};

use crate::error::{ConfigError, Error, Fault, Faults, nearest};

/// More faults than this are not looked for.
const MOST_FAULTS: usize = 50;

/// A configuration that is read from a file.
pub(crate) trait FileConfig: DeserializeOwned {
    /// A configuration in which every section is there, whose values replace faulty ones while the rest is checked.
    fn stand_in() -> Value;

    /// Notes what is wrong with the values.
    fn check_values(&self, faults: &mut Faults);
}

/// Reads a file: TOML, or JSON where the name ends in `.json`.
pub(crate) fn from_file<C: FileConfig>(path: &Path) -> Result<C, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let config = if is_json { from_json(&text) } else { from_toml(&text) };
    Ok(config.map_err(|error| error.at(path.display()))?)
}

/// Reads TOML text.
pub(crate) fn from_toml<C: FileConfig>(text: &str) -> Result<C, ConfigError> {
    match toml::from_str::<Value>(text) {
        Ok(tree) => read(tree),
        Err(error) => Err(unreadable("TOML", error.message(), error.span().map(|span| line_of(text, span.start)))),
    }
}

/// Reads JSON text.
pub(crate) fn from_json<C: FileConfig>(text: &str) -> Result<C, ConfigError> {
    match serde_json::from_str(text) {
        Ok(tree) => read(tree),
        Err(error) => Err(unreadable("JSON", &error.to_string(), None)),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].lines().count().max(1)
}

fn unreadable(format: &str, message: &str, line: Option<usize>) -> ConfigError {
    let place = line.map(|line| format!(" at line {line}")).unwrap_or_default();
    let problem = format!("is not valid {format}{place}: {}", message.lines().collect::<Vec<_>>().join(" "));
    ConfigError { origin: String::new(), faults: vec![Fault { key: String::new(), problem }] }
}

fn read<C: FileConfig>(mut tree: Value) -> Result<C, ConfigError> {
    let mut faults = Faults::default();
    let mut replaced: Vec<String> = Vec::new();
    let stand_in = C::stand_in();
    for _ in 0..MOST_FAULTS {
        let (path, message) = match serde_path_to_error::deserialize(tree.clone()) {
            Ok(config) => return check(&config, faults, &replaced).map(|()| config),
            Err(error) => (error.path().clone(), error.inner().to_string()),
        };
        let mended = if let Some(key) = quoted_after(&message, "missing field `") {
            let key = join(&path, key);
            faults.add(&key, "is missing");
            replace(&mut tree, &stand_in, &key).then_some(key)
        } else if let Some(unknown) = quoted_after(&message, "unknown field `") {
            let known = quoted_list(&message);
            let advice = match nearest(unknown, known.iter().copied()) {
                Some(near) => format!("is no key here, did you mean `{near}`?"),
                None => format!("is no key here; there are {}", known.join(", ")),
            };
            // The path of an unknown key ends with that key.
            let key = path_text(&path);
            faults.add(&key, advice);
            remove(&mut tree, &key).then_some(key)
        } else if let Some(unknown) = quoted_after(&message, "unknown variant `") {
            let known = quoted_list(&message);
            let key = path_text(&path);
            let advice = match nearest(unknown, known.iter().copied()) {
                Some(near) => format!("cannot be `{unknown}`, did you mean `{near}`?"),
                None => format!("cannot be `{unknown}`; it is one of {}", known.join(", ")),
            };
            faults.add(&key, advice);
            (replace(&mut tree, &stand_in, &key) || remove(&mut tree, &key)).then_some(key)
        } else {
            let key = path_text(&path);
            faults.add(&key, format!("has a wrong value: {message}"));
            (replace(&mut tree, &stand_in, &key) || remove(&mut tree, &key)).then_some(key)
        };
        match mended {
            Some(key) => replaced.push(key),
            None => break,
        }
    }
    faults.into_result().map(|()| unreachable!("reading went on without a fault"))
}

/// Adds what is wrong with the values, leaving out what concerns a value that was put in by [`read`].
fn check<C: FileConfig>(config: &C, mut faults: Faults, replaced: &[String]) -> Result<(), ConfigError> {
    let mut found = Faults::default();
    config.check_values(&mut found);
    for fault in found.into_faults() {
        let concerns_stand_in = replaced.iter().any(|key| {
            let name = key.rsplit('.').next().unwrap_or(key);
            fault.key.starts_with(key.as_str()) || fault.problem.contains(name)
        });
        if !concerns_stand_in {
            faults.add(&fault.key, fault.problem);
        }
    }
    faults.into_result()
}

/// The text between `before` and the next backtick.
fn quoted_after<'a>(message: &'a str, before: &str) -> Option<&'a str> {
    message.strip_prefix(before)?.split('`').next()
}

/// The names that a message of serde offers: everything in backticks after the first.
fn quoted_list(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).skip(1).collect()
}

/// A path as keys joined by dots, `layers.0.window` for `layers[0].window`.
fn path_text(path: &KeyPath) -> String {
    let keys = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    });
    keys.collect::<Vec<_>>().join(".")
}

fn join(path: &KeyPath, key: &str) -> String {
    let path = path_text(path);
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Puts the stand-in's value at `key`; says whether that could change anything.
fn replace(tree: &mut Value, stand_in: &Value, key: &str) -> bool {
    let value = key.split('.').try_fold(stand_in, |node, part| child(node, part));
    match (value, parent(tree, key)) {
        (Some(value), Some((Value::Object(map), name))) if map.get(name) != Some(value) => {
            map.insert(name.to_owned(), value.clone());
            true
        }
        _ => false,
    }
}

fn remove(tree: &mut Value, key: &str) -> bool {
    match parent(tree, key) {
        Some((Value::Object(map), name)) => Map::remove(map, name).is_some(),
        Some((Value::Array(list), index)) => {
            index.parse().is_ok_and(|index: usize| index < list.len() && !list.remove(index).is_null())
        }
        _ => false,
    }
}

fn child<'a>(node: &'a Value, part: &str) -> Option<&'a Value> {
    match node {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        node => node.get(part),
    }
}

/// The node that holds `key`, and the last part of it.
fn parent<'a, 'k>(tree: &'a mut Value, key: &'k str) -> Option<(&'a mut Value, &'k str)> {
    let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
    let node = path.split('.').filter(|part| !part.is_empty()).try_fold(tree, |node, part| match node {
        Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?),
        node => node.get_mut(part),
    })?;
    Some((node, name))
}
