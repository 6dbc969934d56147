//! Conversations as the text that a chat model was trained on, by the model's own template.
//!
//! Templates are written in Jinja for Python; they are rendered here as `transformers` renders them.

use std::fmt;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind, Output, State, context, escape_formatter};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::date::strftime;
use crate::error::Error;
use crate::tokenizer::TokenizerParts;

const NAME: &str = "chat template";

/// One message of a conversation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`, for most templates.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model is told to be.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// A template that turns messages into a prompt.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// A template from its Jinja source, with the special tokens that it may write.
    ///
    /// # Errors
    ///
    /// When the source is no template; the line is named.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(write_as_python);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation_marks(source)).map_err(|error| fault(&error))?;
        Ok(Self { environment, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// The template of a tokenizer.
    ///
    /// # Errors
    ///
    /// When there is none, or it is broken.
    pub fn of(parts: &TokenizerParts) -> Result<Self, Error> {
        let source = parts
            .chat_template
            .as_deref()
            .ok_or_else(|| Error::Input("the model has no chat template; give it a plain prompt".into()))?;
        Self::new(source, parts.bos.as_deref(), parts.eos.as_deref())
    }

    /// The conversation as text; with `add_generation_prompt`, up to where the model's answer begins.
    ///
    /// # Errors
    ///
    /// When the template refuses the messages, or fails; the line is named.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, Error> {
        let token = |text: &Option<String>| text.as_deref().map_or(Value::UNDEFINED, Value::from);
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => token(&self.bos),
            eos_token => token(&self.eos),
            tools => (),
            documents => (),
        };
        let template = self.environment.get_template(NAME).map_err(|error| fault(&error))?;
        template.render(context).map_err(|error| fault(&error))
    }
}

/// A template's error with its line.
fn fault(error: &minijinja::Error) -> Error {
    let line = error.line().map(|line| format!(", line {line}")).unwrap_or_default();
    let problem = match error.detail() {
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    Error::Input(format!("{NAME}{line}: {problem}"))
}

/// The source with `{% generation %}` and `{% endgeneration %}`, by which `transformers` marks what a model has said,
/// replaced by tags that do nothing. Their signs for white space stay.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((tag, after)) = tag.split_once("%}") else { break };
        let replaced = match tag.trim_matches(['-', '+']).trim() {
            "generation" => tag.replacen("generation", "if true", 1),
            "endgeneration" => tag.replacen("endgeneration", "endif", 1),
            _ => tag.to_owned(),
        };
        result.extend([before, "{%", &replaced, "%}"]);
        rest = after;
    }
    result + rest
}

/// Writes a value as Python does.
fn write_as_python(out: &mut Output, state: &State, value: &Value) -> Result<(), minijinja::Error> {
    let text = match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        _ => return escape_formatter(out, state, value),
    };
    fmt::Write::write_str(out, text).map_err(minijinja::Error::from)
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// The time in UTC.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    strftime(format, SystemTime::now()).ok_or_else(|| {
        let problem = format!("strftime_now: `{format}` has a directive that is not known");
        minijinja::Error::new(ErrorKind::InvalidOperation, problem)
    })
}

/// JSON as Python's `json.dumps` writes it.
fn to_json(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width);
            value
                .serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(indent.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, SpacedFormatter)),
    };
    let failed = |problem: String| minijinja::Error::new(ErrorKind::BadSerialization, problem);
    written.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| failed(error.to_string()))?;
    Ok(if ensure_ascii == Some(true) { in_ascii(&text) } else { text })
}

/// JSON text with `\u` in place of other characters than those of ASCII.
fn in_ascii(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            result.push(character);
        } else {
            let units =
                character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            result += &units;
        }
    }
    result
}

/// JSON on one line, with a space after each comma and colon.
struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String, String> {
        let template = ChatTemplate::new(source, Some("<s>"), None).map_err(|error| error.to_string())?;
        template.render(messages, true).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_written_as_python_does() {
        let messages = [Message::user("<é 🙂>")];
        for (source, text) in [
            ("{{ true }} {{ false }} {{ none }} {{ missing }}|{{ eos_token }}", "True False None |"),
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "<é 🙂>"}"#),
            ("{{ [1, [], {}] | tojson(indent=2) }}", "[\n  1,\n  [],\n  {}\n]"),
            ("{{ messages[0].content | tojson(ensure_ascii=true) }}", r#""<\u00e9 \ud83d\ude42>""#),
            ("{%- generation -%}\n a {% endgeneration %}b", "a b"),
            ("{{ messages[0].content.strip('<>').upper() }}", "É 🙂"),
        ] {
            assert_eq!(render(source, &messages).as_deref(), Ok(text), "{source}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        let refused = render("{{ bos_token }}\n{{ raise_exception('System role not supported') }}", &[]);
        assert_eq!(refused, Err("input: chat template, line 2: System role not supported".into()));
        let broken = render("a\nb\n{% for %}", &[]).unwrap_err();
        assert!(broken.starts_with("input: chat template, line 3: syntax error: "), "{broken}");
        let undefined = render("\n{{ messages[0].content.upper() }}", &[]).unwrap_err();
        assert!(undefined.starts_with("input: chat template, line 2: "), "{undefined}");
    }
}
