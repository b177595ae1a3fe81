//! The names of a body's fields that may be refused. They are read in a pass of their own, because serde does not say
//! which fields a type has left out.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::field::{Fate, Field, On, is_neutral};
use super::{bodies, table};
use crate::base::error::Error;

/// Values that ask for nothing where a field has no effect.
const NEUTRAL_ELSEWHERE: &[&str] = &["false", "0", "\"none\"", "\"auto\""];
/// Most characters of an unknown name that are repeated to the client.
const MAX_NAME_CHARS: usize = 60;

/// The first names of a body that may be refused.
#[derive(Debug, Default)]
pub(super) struct Names {
    refused: Option<Refused>,
    /// The path inside the body, such as `.parameters.x`.
    unknown: Option<String>,
}

/// A field that is refused, whatever `--strict-fields` says.
#[derive(Debug, Clone, Copy)]
struct Refused {
    name: &'static str,
    /// The routes that have it; `None` if it is not supported anywhere.
    elsewhere: Option<&'static str>,
    /// The hint about what to send instead here; `None` if there is none.
    instead: Option<&'static str>,
}

impl Refused {
    /// The error; `path` is that of the object that has the field.
    fn error(self, path: &str) -> Error {
        let param = self.name;
        match (self.elsewhere, self.instead) {
            (None, None) if path.is_empty() => return Error::NotSupported(param),
            (None, Some(instead)) if path.is_empty() => return Error::SendInstead { param, instead },
            _ => {}
        }
        let reason = match self.elsewhere {
            Some(routes) => format!("is a field of {routes} only"),
            None => "is not supported yet".to_owned(),
        };
        let instead = self.instead.map(|instead| format!(": {instead}")).unwrap_or_default();
        let name = format!("{path}.{param}").trim_start_matches('.').to_owned();
        let message = format!("`{name}` {reason}{instead}");
        Error::invalid(name, message)
    }
}

impl Names {
    /// Reads the names of such a body, or of an object inside one.
    pub(super) fn of(on: On) -> impl for<'de> DeserializeSeed<'de, Value = Self> {
        NamesOf(on)
    }

    /// The error for the first of them; `path` is that of the object that has the names.
    pub(super) fn check(self, path: &str, strict: bool) -> Result<(), Error> {
        match (self.refused, self.unknown) {
            (Some(refused), _) => Err(refused.error(path)),
            (None, Some(name)) if strict => {
                let name = format!("{path}{name}").trim_start_matches('.').to_owned();
                let message = format!("`{name}` is not a known field (--strict-fields)");
                Err(Error::invalid(name, message))
            }
            _ => Ok(()),
        }
    }

    /// Takes over the unknown name of an object inside, whose path is `path`.
    fn add_nested(&mut self, path: &str, nested: Self) {
        if self.unknown.is_none() {
            self.unknown = nested.unknown.map(|name| format!("{path}{name}"));
        }
    }

    fn add_unknown(&mut self, name: &str) {
        let shown = || name.chars().take(MAX_NAME_CHARS).collect::<String>();
        self.unknown.get_or_insert_with(|| format!(".{}", shown()));
    }
}

/// The result of looking up a name in the tables.
enum Found {
    /// It is refused unless its value is one of these, or empty.
    MayBeRefused(Refused, &'static [&'static str]),
    /// Its value has known fields, too.
    Nested(On),
    Known,
    Nothing,
}

impl Found {
    fn of(name: &str, on: On) -> Self {
        let Some(body) = bodies::find(on) else {
            return match table::find(name, on) {
                Some(field @ Field { name, fate: Fate::Refused(neutral), .. }) => {
                    Self::MayBeRefused(Refused { name, elsewhere: None, instead: field.instead() }, neutral)
                }
                Some(_) => Self::Known,
                None => Self::elsewhere(name, on),
            };
        };
        let is_of_chat = on == On::TokenizeChat && table::find(name, On::Chat).is_some();
        match body.nested(name) {
            Some(on) => Self::Nested(on),
            None if is_of_chat || body.has(name) => Self::Known,
            None => match body.refused(name) {
                Some((name, neutral)) => Self::MayBeRefused(
                    Refused { name, elsewhere: None, instead: body.instead(name) },
                    neutral,
                ),
                None => Self::elsewhere(name, on),
            },
        }
    }

    /// A name that this route does not have: one that changes what chat completions or completions answer is not
    /// ignored. A body of these two may have prompts for both.
    fn elsewhere(name: &str, on: On) -> Self {
        let is_of_either = matches!(on, On::Chat | On::Completions);
        let found = table::find_elsewhere(name, on)
            .filter(|field| !is_of_either || !["messages", "prompt"].contains(&field.name));
        let Some(field) = found else { return Self::Nothing };
        let neutral = match field.fate {
            Fate::Works => NEUTRAL_ELSEWHERE,
            Fate::Refused(neutral) => neutral,
            Fate::Accepted => return Self::Nothing,
        };
        let is_elsewhere = is_of_either || matches!(field.fate, Fate::Works);
        let refused = Refused {
            name: field.name,
            elsewhere: is_elsewhere.then(|| field.on.title()),
            instead: bodies::find(on).and_then(|body| body.instead(name)),
        };
        Self::MayBeRefused(refused, neutral)
    }
}

/// Reads the names of a body.
#[derive(Clone, Copy)]
struct NamesOf(On);

impl<'de> DeserializeSeed<'de> for NamesOf {
    type Value = Names;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Names, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NamesOf {
    type Value = Names;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object, a list of objects, or null")
    }

    fn visit_unit<E>(self) -> Result<Names, E> {
        Ok(Names::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        let mut number = 0;
        while let Some(nested) = items.next_element_seed(self)? {
            names.add_nested(&format!("[{number}]"), nested);
            number += 1;
        }
        Ok(names)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        while let Some(name) = fields.next_key::<String>()? {
            match Found::of(&name, self.0) {
                Found::MayBeRefused(refused, neutral) if names.refused.is_none() => {
                    let value = fields.next_value()?;
                    names.refused = (!is_neutral(&value, neutral)).then_some(refused);
                    if refused.elsewhere.is_some() {
                        names.add_unknown(&name);
                    }
                }
                Found::Nested(on) => {
                    let nested = fields.next_value_seed(NamesOf(on))?;
                    names.add_nested(&format!(".{name}"), nested);
                }
                Found::MayBeRefused(..) | Found::Known => drop(fields.next_value::<IgnoredAny>()?),
                Found::Nothing => {
                    fields.next_value::<IgnoredAny>()?;
                    names.add_unknown(&name);
                }
            }
        }
        Ok(names)
    }
}
