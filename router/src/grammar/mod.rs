//! What constrains an output: read from what clients send ([`parse`]), and compiled before the request is accepted, so
//! that a grammar is refused with a reason or works. Compiling happens on threads of its own, with limits on what a
//! grammar may cost; the shards compile it again, under the same limits, and compute the masks.

mod cache;
mod compiler;
mod lark;
mod multiples;
mod parse;
mod schema;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_scheduler::Grammar;

use cache::{Cache, Checked};
use compiler::Compiler;
pub use parse::{from_native, from_response_format, from_text, from_text_format};

use crate::detokenizer::Vocabulary;
use crate::error::Error;
use crate::workers::{NoResult, Workers, WorkersConfig};

const THREADS: u32 = 2;
/// At the tens of milliseconds that the worst grammar costs, this is a few seconds of work.
const MAX_WAITING: usize = 64;
/// Schemas recurse, at about 5 kB a level; [`schema`] bounds the levels.
const STACK_BYTES: usize = 64 << 20;
/// For waiting, and then for compiling. The shards compile it again, and their batch waits for that.
const DEADLINE: Duration = Duration::from_secs(5);
/// Threads that may be held by grammars that took longer than that, beside those that compile.
const MAX_HELD: u32 = 4;

/// Patterns that one text may have to match at once. Whether any text does costs twice as much with every one more: a
/// tenth of a second for 16, a minute and gigabytes for 40.
const MAX_JOINED: usize = 8;

/// Compiles grammars to see whether they work. A cheap handle.
#[derive(Clone)]
pub struct Grammars {
    workers: Workers,
    compiler: Arc<LazyCompiler>,
    cache: Arc<Mutex<Cache>>,
    /// For waiting, and then for compiling.
    limit: Duration,
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
        let workers = Workers::start(WorkersConfig {
            name: "grammar",
            threads: THREADS,
            max_held: MAX_HELD,
            max_waiting: MAX_WAITING,
            stack_bytes: STACK_BYTES,
        })?;
        let compiler =
            Arc::new(LazyCompiler { vocabulary, vocab_size, eos_token_ids, built: OnceLock::new() });
        Ok(Self { workers, compiler, cache: Arc::default(), limit: DEADLINE })
    }

    /// Whether the grammar works; `param` is what the client called it.
    pub async fn check(&self, grammar: &Grammar, param: &'static str) -> Result<(), Error> {
        let known = lock(&self.cache).get(grammar);
        let checked = match known {
            Some(known) => known,
            // Goes on if the client leaves: what a grammar costs is paid once.
            None => {
                tokio::spawn(self.clone().compile(grammar.clone())).await.map_err(|_| Error::Internal)??
            }
        };
        checked.map_err(|reason| Error::Grammar { param: param.into(), reason })
    }

    async fn compile(self, grammar: Grammar) -> Result<Checked, Error> {
        let checked = match self.try_compile(grammar.clone()).await {
            Ok(checked) => checked,
            // llguidance has a few asserts left; what they catch is in the grammar.
            Err(NoResult::Panicked) => Err("it cannot be compiled".to_owned()),
            Err(NoResult::TooLong) => Err(format!("it takes longer than {:?} to compile", self.limit)),
            Err(NoResult::Busy) => return Err(Error::GrammarsBusy { limit: MAX_WAITING }),
        };
        lock(&self.cache).put(grammar, checked.clone());
        Ok(checked)
    }

    async fn try_compile(&self, grammar: Grammar) -> Result<Checked, NoResult> {
        let compiler = Arc::clone(&self.compiler);
        if compiler.built.get().is_none() {
            // The time that this takes is not the grammar's.
            let compiler = Arc::clone(&compiler);
            self.workers.run(move || drop(compiler.get())).await?;
        }
        let cache = Arc::clone(&self.cache);
        let work = move || {
            // The same one may have been compiled while this one waited.
            let known = lock(&cache).get(&grammar);
            known.unwrap_or_else(|| compiler.get()?.check(&grammar))
        };
        self.workers.run_within(self.limit, work).await
    }
}

fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
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
