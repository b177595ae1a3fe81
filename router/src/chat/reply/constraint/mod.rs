//! The grammar of a constrained reply, or of one whose reasoning is limited: reasoning first, if the model reasons, then calls of tools in the model's own
//! format, or the content that `response_format` asks for. Written in Lark, in which llguidance embeds JSON schemas.

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
use crate::chat::tools::{CustomInput, Function, INPUT, Tools};
use crate::grammar;

/// The grammar of a reply, and what is needed to report the part that does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// The grammar of the whole reply.
    pub grammar: Grammar,
    /// The parameter that asks for it, in the client's dialect.
    pub param: &'static str,
    /// The grammars that the client gave, each by itself: one that does not work alone is the one at fault.
    pub parts: Vec<Part>,
    /// If the grammar does not work, the reply is not constrained and the request goes on.
    pub is_optional: bool,
}

/// A grammar that a client gave, as a part of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Path in the request.
    pub path: Cow<'static, str>,
    /// The grammar by itself.
    pub grammar: Grammar,
}

/// The field that limits the tokens of reasoning.
const REASONING_BUDGET: &str = "thinking_token_budget";

/// The text that models write before content in Harmony.
const HARMONY_FINAL: &str = "<|channel|>final<|message|>";

impl ReplyStyle {
    /// The constraint on a reply; `None` if there is none. May change the format of calls.
    pub fn constrain(
        &self,
        format: &mut ReplyFormat,
        tools: Option<&Tools>,
        requested: Option<Grammar>,
        dialect: Dialect,
    ) -> Result<Option<Constraint>, Error> {
        let param = dialect.names().grammar;
        let given = requested.clone();
        let Some(whole) = self.whole(format, tools, requested, param)? else { return Ok(None) };
        Ok(Some(Constraint {
            grammar: whole.grammar,
            param: whole.param,
            parts: parts(tools, given, param)?,
            is_optional: whole.is_optional,
        }))
    }

    fn whole(
        &self,
        format: &mut ReplyFormat,
        tools: Option<&Tools>,
        requested: Option<Grammar>,
        param: &'static str,
    ) -> Result<Option<Whole>, Error> {
        let writer = Writer { style: self, thinking: format.thinking, budget: format.reasoning_budget };
        match (tools, requested) {
            (None, None) => writer.limited(),
            (None, Some(requested)) => {
                let grammar = match requested.kind {
                    // It is the whole reply: reasoning cannot be put before it.
                    GrammarKind::Lark => {
                        format.thinking = Thinking::Never;
                        requested
                    }
                    _ if writer.starts_with_content() => requested,
                    _ => lark(writer.after_reasoning(&writer.content(&requested))?),
                };
                Ok(Some(Whole { grammar, param, is_optional: false }))
            }
            // The reply is a call, and has no content that another grammar could constrain.
            (Some(tools), _) if tools.is_required => {
                let calls = self.tools.when_required();
                format.tools = Some(calls);
                format.is_call = true;
                let body = writer.after_reasoning("calls")? + &writer.calls(calls, tools)?;
                Ok(Some(Whole { grammar: lark(body), param: "tools", is_optional: false }))
            }
            (Some(tools), None) => {
                let Some(grammar) = writer.calls_if_triggered(self.tools, tools)? else {
                    return writer.limited();
                };
                let is_optional = !tools.functions().iter().any(|function| function.is_strict);
                Ok(Some(Whole { grammar, param: "tools", is_optional }))
            }
            (Some(tools), Some(requested)) if requested.kind != GrammarKind::Lark => {
                let calls = self.tools.when_required();
                format.tools = Some(calls);
                let either = writer.after_reasoning(&format!("calls | {}", writer.content(&requested)))?;
                let grammar = lark(either + &writer.calls(calls, tools)?);
                Ok(Some(Whole { grammar, param, is_optional: false }))
            }
            (Some(_), Some(_)) => {
                let message = format!(
                    "a grammar in `{param}` cannot go together with `tools` unless a call is required: it would \
                     constrain the calls, too"
                );
                Err(Error::invalid(param, message))
            }
        }
    }
}

/// The grammar of a whole reply, without the parts that the client gave.
struct Whole {
    grammar: Grammar,
    param: &'static str,
    is_optional: bool,
}

/// The grammars that the client gave, each by itself.
fn parts(tools: Option<&Tools>, requested: Option<Grammar>, param: &'static str) -> Result<Vec<Part>, Error> {
    let requested = requested.map(|grammar| Part { path: param.into(), grammar });
    let mut parts: Vec<Part> = requested.into_iter().collect();
    for function in tools.iter().flat_map(|tools| tools.functions()) {
        if let Some(CustomInput::Grammar(input)) = &function.custom {
            parts.push(Part { path: function.path.clone().into(), grammar: lark(input.clone()) });
        } else if let Some(text) = arguments_schema(function)? {
            let grammar = Grammar { kind: GrammarKind::JsonSchema, text };
            parts.push(Part { path: function.path.clone().into(), grammar });
        }
    }
    Ok(parts)
}

fn lark(text: String) -> Grammar {
    Grammar { kind: GrammarKind::Lark, text }
}

/// A schema or a regular expression as a part of a rule.
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
    /// The most tokens of reasoning, if they are limited.
    budget: Option<u32>,
}

impl Writer<'_> {
    /// Whether a reply cannot have anything before its content.
    fn starts_with_content(&self) -> bool {
        self.thinking == Thinking::Never && self.style.tools != ToolFormat::Harmony
    }

    /// The content that is asked for, after what the model writes before it.
    fn content(&self, requested: &Grammar) -> String {
        match self.style.tools {
            ToolFormat::Harmony => self.literal(HARMONY_FINAL) + " " + &embedded(requested),
            _ => embedded(requested),
        }
    }

    /// The start rule for Harmony, where reasoning is a message of its own.
    fn after_analysis(&self, body: &str) -> Result<String, Error> {
        let (open, next) =
            (self.literal("<|channel|>analysis<|message|>"), self.literal("<|start|>assistant"));
        let end = self.reasoning_until("analysis_end", harmony::END)?;
        Ok(format!("start: ({open} analysis_end {next})? content\ncontent: {body}\n{end}TEXT: /(.|\\n)*/\n"))
    }

    /// The start rule; `body` is what may come after reasoning.
    fn after_reasoning(&self, body: &str) -> Result<String, Error> {
        if self.style.tools == ToolFormat::Harmony {
            return self.after_analysis(body);
        }
        let rules = match self.thinking {
            Thinking::Never => return Ok(format!("start: {body}\n")),
            Thinking::Open => "start: thought content\n".to_owned(),
            Thinking::Possible => format!("start: ({} thought)? content\n", self.literal(reasoning::OPEN)),
        };
        let thought = self.reasoning_until("thought_end", reasoning::CLOSE)?;
        Ok(format!(
            "{rules}content: {body}\nthought: thought_end (\"\\n\" | \"\\n\\n\")?\n{thought}TEXT: /(.|\\n)*/\n"
        ))
    }

    /// A rule for reasoning up to and with the `marker` that ends it, which is forced where the budget is spent. Before
    /// content that is asked for, a reply cannot end.
    fn reasoning_until(&self, rule: &str, marker: &str) -> Result<String, Error> {
        let Some(budget) = self.budget else { return Ok(self.text_until(rule, marker)) };
        let end = self.budgeted(marker)?;
        let others: String = self.style.end_ids.iter().map(|id| format!(",{id}")).collect();
        let thoughts = at_most(budget, &format!("<[^{end}{others}]>"));
        Ok(format!("{rule}: {thoughts} <[{end}]>\n"))
    }

    /// The grammar that limits the reasoning of a reply that is otherwise free; `None` if nothing limits it. Counts
    /// tokens, whatever they are, so that a character of several tokens may be cut, as at the end of a reply.
    fn limited(&self) -> Result<Option<Whole>, Error> {
        let Some(budget) = self.budget else { return Ok(None) };
        let rules = match (self.style.tools, self.thinking) {
            (ToolFormat::Harmony, _) => self.limited_analysis(budget)?,
            (_, Thinking::Never) => return Ok(None),
            (_, thinking) => {
                let (open, close) = (self.budgeted(reasoning::OPEN), self.budgeted(reasoning::CLOSE)?);
                let thoughts = at_most(budget, &format!("<[^{close}]>"));
                let thought = format!("thought: {thoughts} <[{close}]>\n");
                match thinking {
                    Thinking::Open => format!("start: thought <[*]>*\n{thought}"),
                    _ => format!("start: text (<[{0}]> thought text)?\ntext: <[^{0}]>*\n{thought}", open?),
                }
            }
        };
        Ok(Some(Whole { grammar: lark(rules), param: REASONING_BUDGET, is_optional: false }))
    }

    /// Like `limited`, for Harmony: each message on the channel of reasoning is limited.
    fn limited_analysis(&self, budget: u32) -> Result<String, Error> {
        let [channel, message, end] = [harmony::CHANNEL, harmony::MESSAGE, harmony::END];
        let [channel, message, end] = [self.budgeted(channel)?, self.budgeted(message)?, self.budgeted(end)?];
        let thoughts = at_most(budget, &format!("<[^{end}]>"));
        Ok(format!(
            "start: (analysis | other)*\n\
             analysis: <[{channel}]> \"analysis\" <[{message}]> {thoughts} <[{end}]>\n\
             other: <[^{channel}]> | <[{channel}]> (\"commentary\" | \"final\")\n"
        ))
    }

    /// The id of a marker, without which reasoning cannot be limited.
    fn budgeted(&self, marker: &str) -> Result<u32, Error> {
        self.style.marker_id(marker).ok_or_else(|| {
            let message = format!(
                "`{REASONING_BUDGET}` is not supported by this model: {marker} is no token of its tokenizer"
            );
            Error::invalid(REASONING_BUDGET, message)
        })
    }

    /// A rule for any text up to and with the first `marker`.
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

    /// Any text until the model starts a call, and a valid call from there on. `None` if nothing starts only calls, or
    /// if the reply may have reasoning.
    fn calls_if_triggered(&self, format: ToolFormat, tools: &Tools) -> Result<Option<Grammar>, Error> {
        let (Some(trigger), Thinking::Never) = (format.trigger(), self.thinking) else { return Ok(None) };
        let shape = format.shape();
        let triggered = self.text_until("trigger", trigger) + "TEXT: /(.|\\n)*/\n";
        let text = match shape.open.strip_prefix(trigger) {
            None => {
                let first = shape.before_name.strip_prefix(trigger).unwrap_or(shape.before_name);
                // Text after the only call could hold another one.
                let start = if tools.is_parallel { "(trigger call)* text" } else { "trigger call | text" };
                format!("start: {start}\ntext: TEXT\n") + &self.call("call", first, shape, tools)?
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

    /// A text as it is; markers that are tokens of the tokenizer are written as their ids.
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

/// So many tokens of this kind, or fewer.
fn at_most(count: u32, token: &str) -> String {
    if count == 0 { String::new() } else { format!("{token}{{0,{count}}}") }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { Value::from(text).to_string() }
}

fn arguments(function: &Function) -> Result<String, Error> {
    if let Some(CustomInput::Grammar(input)) = &function.custom {
        let open = quoted(&format!("{{\"{INPUT}\": \""));
        return Ok(format!("{open} %lark {{\n{input}}} {}", quoted("\"}")));
    }
    let schema = arguments_schema(function)?;
    Ok(schema.map_or_else(|| quoted("{}"), |schema| format!("%json {schema}")))
}

/// The text of the schema of a function's arguments; `None` if it takes none.
fn arguments_schema(function: &Function) -> Result<Option<String>, Error> {
    let refuse = |reason| Error::Grammar { param: function.path.clone().into(), reason };
    function.parameters.as_ref().map(|schema| grammar::schema_text(schema).map_err(refuse)).transpose()
}

#[cfg(test)]
mod tests;
