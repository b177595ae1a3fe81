//! A body whose fields are compared with the table. Its names are read in a pass of their own, because serde does not
//! say which fields a type has left out.

use std::fmt;
use std::marker::PhantomData;

use axum::extract::{FromRequest, Request};
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::field::{Fate, Field, HasKnownFields, is_neutral};
use super::table::find;
use crate::base::error::Error;
use crate::http::body::{JsonBytes, parse_part};
use crate::http::state::AppState;

/// Most characters of an unknown name that are repeated to the client.
const MAX_NAME_CHARS: usize = 60;

/// Extracts a JSON body of type `T` that has no field which is refused.
pub struct Known<T>(pub T);

impl<T: DeserializeOwned + HasKnownFields> Known<T> {
    /// Parses a body that was already read.
    pub fn parse(body: &JsonBytes, state: &AppState) -> Result<Self, Error> {
        let request = body.parse()?;
        body.parse::<Names<T>>()?.check("", state.inference.limits.strict_fields)?;
        Ok(Self(request))
    }

    /// Parses a part of a body; `place` is its path.
    pub fn parse_part(part: Value, place: &str, state: &AppState) -> Result<Self, Error> {
        let names = Names::<T>::deserialize(&part).unwrap_or_default();
        let request = parse_part(part, place)?;
        names.check(&format!("{place}."), state.inference.limits.strict_fields)?;
        Ok(Self(request))
    }
}

impl<T: DeserializeOwned + HasKnownFields> FromRequest<AppState> for Known<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        Self::parse(&JsonBytes::from_request(request, state).await?, state)
    }
}

/// The first names of a body that may be refused.
pub(super) struct Names<T> {
    refused: Option<&'static str>,
    unknown: Option<String>,
    request: PhantomData<T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { refused: None, unknown: None, request: PhantomData }
    }
}

impl<T> Names<T> {
    /// The error for the first of them; `place` is what stands before a name.
    pub(super) fn check(self, place: &str, strict: bool) -> Result<(), Error> {
        match (self.refused, self.unknown) {
            (Some(name), _) if place.is_empty() => Err(Error::NotSupported(name)),
            (Some(name), _) => {
                let name = format!("{place}{name}");
                let message = format!("`{name}` is not supported yet");
                Err(Error::invalid(name, message))
            }
            (None, Some(name)) if strict => {
                let name = format!("{place}{name}");
                let message = format!("`{name}` is not a known field (--strict-fields)");
                Err(Error::invalid(name, message))
            }
            _ => Ok(()),
        }
    }
}

impl<'de, T: HasKnownFields> Deserialize<'de> for Names<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamesVisitor(PhantomData))
    }
}

struct NamesVisitor<T>(PhantomData<T>);

impl<'de, T: HasKnownFields> Visitor<'de> for NamesVisitor<T> {
    type Value = Names<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Names<T>, A::Error> {
        let mut names = Names::default();
        while let Some(name) = fields.next_key::<String>()? {
            match find(&name, T::ROUTE) {
                Some(Field { name, fate: Fate::Refused(neutral), .. }) if names.refused.is_none() => {
                    let value = fields.next_value()?;
                    names.refused = (!is_neutral(&value, neutral)).then_some(name);
                }
                Some(_) => drop(fields.next_value::<IgnoredAny>()?),
                None => {
                    fields.next_value::<IgnoredAny>()?;
                    names.unknown.get_or_insert_with(|| name.chars().take(MAX_NAME_CHARS).collect());
                }
            }
        }
        Ok(names)
    }
}
