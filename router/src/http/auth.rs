//! API keys: the keys of the server, the tenant of each, and the layer that requires one. The table of routes says
//! which routes have this layer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use thiserror::Error as ThisError;

use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::base::rate_limit::{RateLimit, Rates};
use crate::observe::access_log::RequestLog;

const MAX_TENANT_BYTES: usize = 64;
const MAX_WEIGHT: u32 = 1000;

/// A secret that a client sends with every request. Not shown by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// An error in the API keys that the operator gave.
#[derive(Debug, ThisError)]
pub enum ApiKeyError {
    /// The key is empty: such a key protects nothing.
    #[error("an API key must not be empty")]
    Empty,
    /// The key has characters that a header cannot carry.
    #[error("an API key must be printable ASCII without spaces")]
    Unprintable,
    /// The file of --api-key-file cannot be read.
    #[error("cannot read --api-key-file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// A line of the file is not a key with known options.
    #[error("--api-key-file {} line {number}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        number: usize,
        /// The error in the line.
        reason: Box<ApiKeyError>,
    },
    /// An unknown or malformed option after a key.
    #[error(
        "`{0}` is none of tenant=NAME (at most {MAX_TENANT_BYTES} bytes), requests-per-minute=N, tokens-per-minute=N \
         (N at least 1), weight=N (N from 1 to {MAX_WEIGHT}), adapters=load, model=change"
    )]
    Option(String),
    /// A weight out of range.
    #[error("`weight={0}`: a weight is an integer from 1 to {MAX_WEIGHT}")]
    Weight(String),
    /// A tenant has one weight, whichever of its keys is used.
    #[error("weight={given}, but line {line} says weight={earlier} of the same tenant")]
    Weights {
        /// The weight of this line.
        given: u32,
        /// The weight before.
        earlier: u32,
        /// Its line, from 1.
        line: usize,
    },
    /// It has no line at all.
    #[error("--api-key-file {} has no key", .0.display())]
    NoLine(PathBuf),
}

impl FromStr for ApiKey {
    type Err = ApiKeyError;

    fn from_str(key: &str) -> Result<Self, ApiKeyError> {
        match key {
            "" => Err(ApiKeyError::Empty),
            key if !key.bytes().all(|byte| byte.is_ascii_graphic()) => Err(ApiKeyError::Unprintable),
            key => Ok(Self(key.to_owned())),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// A key, its tenant, and its rate limits.
#[derive(Debug)]
struct Entry {
    key: ApiKey,
    tenant: Option<Arc<str>>,
    rates: Rates,
    /// The tenant's share of the batch beside others.
    weight: Option<u32>,
    limit: Option<Arc<RateLimit>>,
    may_load_adapters: bool,
    may_change_model: bool,
}

impl Entry {
    fn new(key: ApiKey, tenant: Option<Arc<str>>, rates: Rates, weight: Option<u32>) -> Self {
        let is_limited = rates != Rates::default();
        Self {
            key,
            tenant,
            rates,
            weight,
            limit: is_limited.then(|| Arc::new(RateLimit::new(rates))),
            may_load_adapters: false,
            may_change_model: false,
        }
    }

    /// The bytes that identify the tenant: its name if it has one, else the key.
    fn identity(&self) -> &[u8] {
        self.tenant.as_ref().map_or(self.key.0.as_bytes(), |tenant| tenant.as_bytes())
    }
}

/// The keys of a server. A server without keys is open to everyone who can reach it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys {
    entries: Arc<[Entry]>,
    /// Hashes tenants into their names, so that names differ from one run of the server to the next.
    names: RandomState,
}

impl ApiKeys {
    /// Loads the keys of the flags and those of a file, one a line. Blank lines and lines that start with `#` are
    /// skipped.
    pub fn load(given: &[ApiKey], file: Option<&Path>) -> Result<Self, ApiKeyError> {
        let given = given.iter().map(|key| Entry::new(key.clone(), None, Rates::default(), None));
        let mut entries: Vec<_> = given.collect();
        if let Some(path) = file {
            entries.extend(read(path)?);
        }
        Ok(Self { entries: entries.into(), names: RandomState::new() })
    }

    /// Whether the server is open to everyone.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The keys with their options as text, one a line, as [`ApiKeys::load`] reads them.
    pub fn to_lines(&self) -> String {
        self.entries.iter().map(to_line).collect()
    }

    /// The weights that the key file gives to tenants, by the names that their requests have.
    pub fn weights(&self) -> BTreeMap<Arc<str>, u32> {
        let weighted = self.entries.iter().filter_map(|entry| Some((entry, entry.weight?)));
        weighted.map(|(entry, weight)| (self.name(entry.identity()), weight)).collect()
    }

    /// The caller who sent these headers. Refused without one of the keys, unless the server has none.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, Error> {
        let presented = presented_key(headers);
        let found = presented.and_then(|key| self.find(key));
        let entry = found.map(|(_, entry)| entry);
        if entry.is_none() && !self.is_empty() {
            return Err(Error::Unauthorized { has_key: presented.is_some() });
        }
        // Other credentials, which a proxy may have checked, distinguish callers, too.
        let other = || headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let credential = presented.or_else(other).filter(|credential| !credential.is_empty());
        let tenant = entry.map(Entry::identity).or(credential);
        Ok(Caller {
            tenant: tenant.map(|tenant| self.name(tenant)).unwrap_or_default(),
            key: found.map(|(number, _)| number),
            tenant_name: entry.and_then(|entry| entry.tenant.clone()),
            may_load_adapters: entry.is_some_and(|entry| entry.may_load_adapters),
            may_change_model: entry.is_some_and(|entry| entry.may_change_model),
            rate_limit: entry.and_then(|entry| entry.limit.clone()),
        })
    }

    fn name(&self, tenant: &[u8]) -> Arc<str> {
        format!("{:016x}", self.names.hash_one(tenant)).into()
    }

    /// Compares with every key in constant time: neither the position of the key nor the length of a common prefix
    /// shows. Returns the number of the key with its entry, counted from 1.
    fn find(&self, given: &[u8]) -> Option<(u32, &Entry)> {
        let number = self.entries.iter().zip(1_u32..).fold(0, |found, (entry, number)| {
            u32::conditional_select(&found, &number, entry.key.0.as_bytes().ct_eq(given))
        });
        let place = number.checked_sub(1)?;
        self.entries.get(place as usize).map(|entry| (number, entry))
    }
}

fn to_line(entry: &Entry) -> String {
    let ApiKey(key) = &entry.key;
    let tenant = entry.tenant.iter().map(|tenant| format!(" tenant={tenant}"));
    let requests = entry.rates.requests.iter().map(|rate| format!(" requests-per-minute={rate}"));
    let tokens = entry.rates.tokens.iter().map(|rate| format!(" tokens-per-minute={rate}"));
    let weight = entry.weight.iter().map(|weight| format!(" weight={weight}"));
    let adapters = entry.may_load_adapters.then(|| " adapters=load".to_owned());
    let model = entry.may_change_model.then(|| " model=change".to_owned());
    let limits = tenant.chain(requests).chain(tokens).chain(weight);
    let options: String = limits.chain(adapters).chain(model).collect();
    format!("{key}{options}\n")
}

fn read(path: &Path) -> Result<Vec<Entry>, ApiKeyError> {
    let text = std::fs::read_to_string(path)
        .map_err(|reason| ApiKeyError::Unreadable { path: path.to_owned(), reason })?;
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let explained =
        |number| move |reason| ApiKeyError::Line { path: path.to_owned(), number, reason: Box::new(reason) };
    let entries: Vec<(usize, Entry)> = lines
        .map(|(line, number)| Ok((number, entry(line).map_err(explained(number))?)))
        .collect::<Result<_, _>>()?;
    check_weights(&entries).map_err(|(number, reason)| explained(number)(reason))?;
    if entries.is_empty() {
        return Err(ApiKeyError::NoLine(path.to_owned()));
    }
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// Refuses the first line that gives a tenant another weight than a line before it.
fn check_weights(entries: &[(usize, Entry)]) -> Result<(), (usize, ApiKeyError)> {
    let mut weights: HashMap<&[u8], (usize, u32)> = HashMap::new();
    for (number, entry) in entries {
        let Some(given) = entry.weight else { continue };
        let (line, earlier) = *weights.entry(entry.identity()).or_insert((*number, given));
        if given != earlier {
            return Err((*number, ApiKeyError::Weights { given, earlier, line }));
        }
    }
    Ok(())
}

/// A key, and after it what is said of it: `tenant=NAME`, `requests-per-minute=N`, `tokens-per-minute=N`, `weight=N`,
/// `adapters=load`, `model=change`.
fn entry(line: &str) -> Result<Entry, ApiKeyError> {
    let mut words = line.split_ascii_whitespace();
    let key = words.next().unwrap_or_default().parse()?;
    let (mut tenant, mut rates, mut weight) = (None, Rates::default(), None);
    let (mut may_load_adapters, mut may_change_model) = (false, false);
    for word in words {
        let unknown = || ApiKeyError::Option(word.chars().take(60).collect());
        let rate = |value: &str| value.parse().ok().filter(|&rate| rate > 0).map(Some).ok_or_else(unknown);
        match word.split_once('=').ok_or_else(unknown)? {
            ("tenant", name) if !name.is_empty() && name.len() <= MAX_TENANT_BYTES => {
                tenant = Some(name.into())
            }
            ("requests-per-minute", value) => rates.requests = rate(value)?,
            ("tokens-per-minute", value) => rates.tokens = rate(value)?,
            ("weight", value) => weight = Some(parse_weight(value)?),
            ("adapters", "load") => may_load_adapters = true,
            ("model", "change") => may_change_model = true,
            _ => return Err(unknown()),
        }
    }
    Ok(Entry { may_load_adapters, may_change_model, ..Entry::new(key, tenant, rates, weight) })
}

fn parse_weight(value: &str) -> Result<u32, ApiKeyError> {
    let weight = value.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight));
    weight.ok_or_else(|| ApiKeyError::Weight(value.chars().take(60).collect()))
}

/// The key of a request, from `Authorization: Bearer KEY`, or from `x-api-key: KEY`, which Anthropic's clients send.
pub fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer ")).map(|(_, key)| key);
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes())).map(<[u8]>::trim_ascii)
}

/// The layer that finds the caller and puts it into the request's extensions, or refuses the request.
pub async fn identify(State(keys): State<ApiKeys>, mut request: Request, next: Next) -> Response {
    match keys.identify(request.headers()) {
        Ok(caller) => {
            RequestLog::with_current(|log| log.on_caller(&caller));
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;

    use super::*;
    use crate::base::counted::Counted;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn keys_of_flags_and_of_a_file_count_alike() {
        let file = file("# of the web shop\nsecond\n\n  third  \n");
        let keys = ApiKeys::load(&["first".parse().unwrap()], Some(file.path())).unwrap();
        for key in ["first", "second", "third"] {
            assert!(keys.find(key.as_bytes()).is_some(), "{key}");
        }
        for other in ["", "First", "firs", "first ", "# of the web shop"] {
            assert!(keys.find(other.as_bytes()).is_none(), "{other}");
        }
        assert_eq!(keys.to_lines(), "first\nsecond\nthird\n");
    }

    #[test]
    fn empty_and_unprintable_keys_are_errors() {
        assert!(matches!("".parse::<ApiKey>(), Err(ApiKeyError::Empty)));
        assert!(matches!("a b".parse::<ApiKey>(), Err(ApiKeyError::Unprintable)));
        let message = |text: &str| ApiKeys::load(&[], Some(file(text).path())).unwrap_err().to_string();
        assert!(message("\n# nothing\n").ends_with("has no key"));
        assert!(message("a\nb\u{e4}\n").contains("line 2: an API key must be printable"));
        for wrong in
            ["c", "tenant=", "requests-per-minute=0", "tokens-per-minute=-1", "tokens-per-minute=4294967296"]
        {
            let message = message(&format!("a\nb {wrong}\n"));
            assert!(message.contains(&format!("line 2: `{wrong}` is none of tenant=NAME")), "{message}");
        }
        let missing = ApiKeys::load(&[], Some(Path::new("/nowhere"))).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read --api-key-file /nowhere: "), "{missing}");
    }

    #[test]
    fn a_line_says_whose_a_key_is_and_what_it_may_use() {
        let lines = "a\nb tenant=shop requests-per-minute=60 tokens-per-minute=1\nc tokens-per-minute=4294967295 adapters=load model=change\n";
        let keys = ApiKeys::load(&[], Some(file(lines).path())).unwrap();
        assert_eq!(keys.to_lines(), lines);
        let entry = |key: &str| keys.find(key.as_bytes()).unwrap().1;
        assert_eq!((entry("a").key.0.as_str(), entry("c").key.0.as_str()), ("a", "c"));
        assert!(entry("a").tenant.is_none() && entry("a").limit.is_none());
        assert_eq!(entry("b").tenant.as_deref(), Some("shop"));
        let limit = entry("b").limit.as_ref().unwrap();
        assert!(limit.take(Counted::Tokens, 1).is_ok());
        assert!(limit.take(Counted::Tokens, 1).is_err());
    }

    #[test]
    fn a_tenant_has_the_weight_that_its_keys_say() {
        let lines = "a weight=1\nb tenant=shop\nc tenant=shop weight=1000\nd tenant=shop weight=1000\n";
        let keys = ApiKeys::load(&[], Some(file(lines).path())).unwrap();
        assert_eq!(keys.to_lines(), lines);
        let expected = BTreeMap::from([(keys.name(b"a"), 1), (keys.name(b"shop"), 1000)]);
        assert_eq!(keys.weights(), expected);
    }

    #[test]
    fn a_weight_out_of_range_or_unlike_another_of_its_tenant_is_an_error() {
        let message = |text: &str| {
            let file = file(text);
            let message = ApiKeys::load(&[], Some(file.path())).unwrap_err().to_string();
            message.replace(&*file.path().to_string_lossy(), "FILE")
        };
        for wrong in ["", "0", "1001", "-1", "1.5", "much"] {
            let expected = format!("line 2: `weight={wrong}`: a weight is an integer from 1 to 1000");
            assert_eq!(message(&format!("a\nb weight={wrong}\n")), format!("--api-key-file FILE {expected}"));
        }
        for (first, second) in [("a tenant=t", "b tenant=t"), ("a", "a")] {
            let lines = format!("# the first line\n{first} weight=2\n{second} weight=3\n");
            let expected = "line 3: weight=3, but line 2 says weight=2 of the same tenant";
            assert_eq!(message(&lines), format!("--api-key-file FILE {expected}"));
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", "secret".parse::<ApiKey>().unwrap()), "ApiKey(..)");
    }

    #[test]
    fn a_key_comes_in_either_header() {
        let key = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            presented_key(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(key("authorization", "Bearer  k "), Some(b"k".to_vec()));
        assert_eq!(key("authorization", "bearer k"), Some(b"k".to_vec()));
        assert_eq!(key("x-api-key", "k"), Some(b"k".to_vec()));
        for other in ["Basic k", "k", "Bearer", ""] {
            assert_eq!(key("authorization", other), None, "{other}");
        }
    }
}
