//! The grammar of a reply that is held to something: reasoning first, if the model thinks, then calls of tools in the
//! model's own format, or what `response_format` asks for. Written in Lark, in which llguidance embeds JSON schemas.

mod shape;

use std::borrow::Cow;

use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::Value;

use self::shape::Shape;
use super::format::{ReplyFormat, Thinking, ToolFormat};
use super::style::ReplyStyle;
use super::{harmony, reasoning};
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::chat::tools::{Function, Tools};
use crate::grammar;

/// A grammar, and whose fault it is if it does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// What the reply is held to.
    pub grammar: Grammar,
    /// What the client called it.
    pub param: &'static str,
    /// What the client gave for it, each by itself; one of these is to blame, if it does not work alone.
    pub parts: Vec<Part>,
    /// If it does not work, the reply is not held to anything.
    pub is_optional: bool,
}

/// A grammar that a client gave, as a part of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Where it is in the request.
    pub place: Cow<'static, str>,
    /// By itself.
    pub grammar: Grammar,
}

/// Before an answer that is text.
const HARMONY_ANSWER: &str = "<|channel|>final<|message|>";

impl ReplyStyle {
    /// What a reply is held to, if to anything; the format may change with it.
    pub fn constrain(
        &self,
        format: &mut ReplyFormat,
        tools: Option<&Tools>,
        asked: Option<Grammar>,
        dialect: Dialect,
    ) -> Result<Option<Constraint>, Error> {
        let param = dialect.name("grammar");
        let given = asked.clone();
        let Some(held) = self.hold(format, tools, asked, param)? else { return Ok(None) };
        Ok(Some(Constraint {
            grammar: held.grammar,
            param: held.param,
            parts: parts(tools, given, param)?,
            is_optional: held.is_optional,
        }))
    }

    fn hold(
        &self,
        format: &mut ReplyFormat,
        tools: Option<&Tools>,
        asked: Option<Grammar>,
        param: &'static str,
    ) -> Result<Option<Held>, Error> {
        let writer = Writer { style: self, thinking: format.thinking };
        match (tools, asked) {
            (None, None) => Ok(None),
            (None, Some(asked)) => {
                let grammar = match asked.kind {
                    // It starts as it starts: there is no room for reasoning before it.
                    GrammarKind::Lark => {
                        format.thinking = Thinking::Never;
                        asked
                    }
                    _ if writer.starts_with_answer() => asked,
                    _ => lark(writer.after_reasoning(&writer.answer(&asked))),
                };
                Ok(Some(Held { grammar, param, is_optional: false }))
            }
            (Some(tools), None) if tools.is_required => {
                let calls = self.tools.when_required();
                format.tools = Some(calls);
                let body = writer.after_reasoning("calls") + &writer.calls(calls, tools)?;
                Ok(Some(Held { grammar: lark(body), param: "tools", is_optional: false }))
            }
            (Some(tools), None) => {
                let grammar = writer.calls_if_triggered(self.tools, tools)?;
                let is_optional = !tools.functions().iter().any(|function| function.is_strict);
                Ok(grammar.map(|grammar| Held { grammar, param: "tools", is_optional }))
            }
            (Some(tools), Some(asked)) if !tools.is_required && asked.kind != GrammarKind::Lark => {
                let calls = self.tools.when_required();
                format.tools = Some(calls);
                let either = writer.after_reasoning(&format!("calls | {}", writer.answer(&asked)));
                let grammar = lark(either + &writer.calls(calls, tools)?);
                Ok(Some(Held { grammar, param, is_optional: false }))
            }
            (Some(_), Some(_)) => {
                let message = format!(
                    "`{param}` cannot go together with `tools` when a call is required, and a grammar not with \
                     `tools` at all"
                );
                Err(Error::invalid(param, message))
            }
        }
    }
}

/// A constraint as a whole.
struct Held {
    grammar: Grammar,
    param: &'static str,
    is_optional: bool,
}

/// What the client gave, each by itself.
fn parts(tools: Option<&Tools>, asked: Option<Grammar>, param: &'static str) -> Result<Vec<Part>, Error> {
    let asked = asked.map(|grammar| Part { place: param.into(), grammar });
    let mut parts: Vec<Part> = asked.into_iter().collect();
    for function in tools.iter().flat_map(|tools| tools.functions()) {
        if let Some(text) = arguments_schema(function)? {
            let grammar = Grammar { kind: GrammarKind::JsonSchema, text };
            parts.push(Part { place: function.place.clone().into(), grammar });
        }
    }
    Ok(parts)
}

fn lark(text: String) -> Grammar {
    Grammar { kind: GrammarKind::Lark, text }
}

/// A schema or an expression inside a rule.
fn embedded(grammar: &Grammar) -> String {
    match grammar.kind {
        GrammarKind::JsonSchema => format!("%json {}", grammar.text),
        GrammarKind::Regex => format!("/{}/", llguidance::regex_to_lark(&grammar.text, "")),
        GrammarKind::Lark => grammar.text.clone(),
    }
}

/// Writes rules for one model.
struct Writer<'a> {
    style: &'a ReplyStyle,
    thinking: Thinking,
}

impl Writer<'_> {
    fn starts_with_answer(&self) -> bool {
        self.thinking == Thinking::Never && self.style.tools != ToolFormat::Harmony
    }

    /// What is asked for, and what the model puts before it.
    fn answer(&self, asked: &Grammar) -> String {
        match self.style.tools {
            ToolFormat::Harmony => self.literal(HARMONY_ANSWER) + " " + &embedded(asked),
            _ => embedded(asked),
        }
    }

    /// The same for Harmony, where reasoning is a message of its own.
    fn after_analysis(&self, body: &str) -> String {
        let (open, next) =
            (self.literal("<|channel|>analysis<|message|>"), self.literal("<|start|>assistant"));
        let end = self.text_until("analysis_end", harmony::END);
        format!("start: ({open} analysis_end {next})? answer\nanswer: {body}\n{end}TEXT: /(.|\\n)*/\n")
    }

    /// The start rule, for what may come after reasoning.
    fn after_reasoning(&self, body: &str) -> String {
        if self.style.tools == ToolFormat::Harmony {
            return self.after_analysis(body);
        }
        let rules = match self.thinking {
            Thinking::Never => return format!("start: {body}\n"),
            Thinking::Open => "start: thought answer\n".to_owned(),
            Thinking::Possible => format!("start: ({} thought)? answer\n", self.literal(reasoning::OPEN)),
        };
        let thought = self.text_until("thought_end", reasoning::CLOSE);
        format!(
            "{rules}answer: {body}\nthought: thought_end (\"\\n\" | \"\\n\\n\")?\n{thought}TEXT: /(.|\\n)*/\n"
        )
    }

    /// A rule for any text that ends with the first of this marker.
    fn text_until(&self, rule: &str, marker: &str) -> String {
        match self.style.marker_id(marker) {
            Some(id) => format!("{rule}: TEXT <[{id}]>\n"),
            None => format!("{rule}[lazy]: TEXT {}\n", quoted(marker)),
        }
    }

    /// The rule `calls`: one call, or several.
    fn calls(&self, format: ToolFormat, tools: &Tools) -> Result<String, Error> {
        let shape = format.shape();
        let several = tools.is_parallel && format != ToolFormat::Harmony;
        let more = if several { format!("({} call)*", self.literal(shape.separator)) } else { String::new() };
        let (open, close) = (self.literal(shape.open), self.literal(shape.close));
        let rules = format!("calls: {open} call {more} {close}\n");
        Ok(rules + &self.call("call", shape.before_name, shape, tools)?)
    }

    /// Text until the model starts a call by itself, and from there on a call that is sound.
    fn calls_if_triggered(&self, format: ToolFormat, tools: &Tools) -> Result<Option<Grammar>, Error> {
        let (Some(trigger), Thinking::Never) = (format.trigger(), self.thinking) else { return Ok(None) };
        let shape = format.shape();
        let triggered = self.text_until("trigger", trigger) + "TEXT: /(.|\\n)*/\n";
        let text = match shape.open.strip_prefix(trigger) {
            None => {
                let first = shape.before_name.strip_prefix(trigger).unwrap_or(shape.before_name);
                let times = if tools.is_parallel { "*" } else { "?" };
                format!("start: (trigger call){times} text\ntext: TEXT\n")
                    + &self.call("call", first, shape, tools)?
            }
            Some(opened) => {
                let calls = self.calls(format, tools)?;
                let calls = calls.replacen(&self.literal(shape.open), &self.literal(opened), 1);
                format!("start: trigger calls | text\ntext: TEXT\n{calls}")
            }
        };
        Ok(Some(lark(text + &triggered)))
    }

    /// A rule for a call of any function.
    fn call(&self, rule: &str, before_name: &str, shape: &Shape, tools: &Tools) -> Result<String, Error> {
        let functions = tools.functions();
        let numbered: Vec<String> = (0..functions.len()).map(|number| format!("{rule}_{number}")).collect();
        let mut rules = format!("{rule}: {}\n", numbered.join(" | "));
        for (name, function) in numbered.iter().zip(functions) {
            let before = self.literal(&[before_name, &function.name, shape.after_name].concat());
            let after = self.literal(shape.after_arguments);
            rules += &format!("{name}: {before} {} {after}\n", arguments(function)?);
        }
        Ok(rules)
    }

    /// Text as it is, its markers as the tokens that they are to this tokenizer.
    fn literal(&self, text: &str) -> String {
        let markers = self.style.marker_ids.iter();
        let first = markers.filter_map(|(marker, id)| Some((text.find(marker)?, marker.len(), id))).min();
        match first {
            None => quoted(text),
            Some((at, len, id)) => {
                let (before, after) = (quoted(&text[..at]), self.literal(&text[at + len..]));
                format!("{before} <[{id}]> {after}")
            }
        }
    }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { Value::from(text).to_string() }
}

fn arguments(function: &Function) -> Result<String, Error> {
    let schema = arguments_schema(function)?;
    Ok(schema.map_or_else(|| quoted("{}"), |schema| format!("%json {schema}")))
}

/// The text of the schema of a function's arguments, if it takes any.
fn arguments_schema(function: &Function) -> Result<Option<String>, Error> {
    let refuse = |reason| Error::Grammar { param: function.place.clone().into(), reason };
    function.parameters.as_ref().map(|schema| grammar::schema_text(schema).map_err(refuse)).transpose()
}

#[cfg(test)]
mod tests;
