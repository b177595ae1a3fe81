//! What constrains an output: read from what clients send ([`parse`]), and compiled before the request is accepted, so
//! that a grammar is refused with a reason or works. Compiling happens on threads of its own, with limits on what a
//! grammar may cost; the shards compile it again, under the same limits, and compute the masks.

mod cache;
mod compiler;
mod parse;
mod schema;

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cache::Cache;
use compiler::Compiler;
pub use parse::{from_native, from_response_format, from_text, from_text_format};

use crate::detokenizer::Vocabulary;
use crate::error::Error;
use crate::scheduler::Grammar;
use crate::workers::{NoResult, Workers, WorkersConfig};

const THREADS: u32 = 2;
/// At the tens of milliseconds that the worst grammar costs, this is a few seconds of work.
const MAX_WAITING: usize = 64;
/// Schemas recurse, at about 5 kB a level; [`schema`] bounds the levels.
const STACK_BYTES: usize = 64 << 20;
/// Until a grammar is checked, waiting included.
const DEADLINE: Duration = Duration::from_secs(5);

/// Compiles grammars to see whether they work. A cheap handle.
#[derive(Clone)]
pub struct Grammars {
    workers: Workers,
    compiler: Arc<LazyCompiler>,
    cache: Arc<Mutex<Cache>>,
}

/// Built with the first grammar: it takes a second for a large vocabulary, and most servers never need it.
struct LazyCompiler {
    vocabulary: Arc<Vocabulary>,
    vocab_size: u32,
    eos_token_ids: Vec<u32>,
    built: OnceLock<Result<Compiler, String>>,
}

impl Grammars {
    /// Starts the threads.
    pub fn new(vocabulary: Arc<Vocabulary>, vocab_size: u32, eos_token_ids: Vec<u32>) -> io::Result<Self> {
        let workers = Workers::start(&WorkersConfig {
            name: "grammar",
            threads: THREADS,
            max_waiting: MAX_WAITING,
            stack_bytes: STACK_BYTES,
        })?;
        let compiler =
            Arc::new(LazyCompiler { vocabulary, vocab_size, eos_token_ids, built: OnceLock::new() });
        Ok(Self { workers, compiler, cache: Arc::default() })
    }

    /// Whether the grammar works; `param` is what the client called it.
    pub async fn check(&self, grammar: &Grammar, param: &'static str) -> Result<(), Error> {
        let refuse = |reason| Error::Grammar { param: param.into(), reason };
        if let Some(known) = self.lock_cache().get(grammar) {
            return known.map_err(refuse);
        }
        let (compiler, work) = (Arc::clone(&self.compiler), grammar.clone());
        let compiling = self.workers.run(move || compiler.get()?.check(&work));
        let checked = match tokio::time::timeout(DEADLINE, compiling).await {
            Ok(Ok(checked)) => checked,
            // llguidance has a few asserts left; what they catch is in the grammar.
            Ok(Err(NoResult::Panicked)) => Err("it cannot be compiled".to_owned()),
            Ok(Err(NoResult::Busy)) | Err(_) => return Err(Error::GrammarsBusy { limit: MAX_WAITING }),
        };
        self.lock_cache().put(grammar.clone(), checked.clone());
        checked.map_err(refuse)
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A schema as other grammars embed it, if it is not too much work.
pub(crate) fn schema_text(schema: &serde_json::Value) -> Result<String, String> {
    schema::check_size(schema)?;
    Ok(parse::with_settings(schema.clone()).to_string())
}

impl LazyCompiler {
    fn get(&self) -> Result<&Compiler, String> {
        let build = || Compiler::new(&self.vocabulary, self.vocab_size, &self.eos_token_ids);
        self.built.get_or_init(build).as_ref().map_err(Clone::clone)
    }
}

#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;
