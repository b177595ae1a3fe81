//! Compiles grammars to find out whether they work, on threads of its own and within limits.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_scheduler::Grammar;

use super::cache::{Cache, Checked};
use super::compiler::Compiler;
use crate::base::error::Error;
use crate::text::detokenizer::Vocabulary;
use crate::text::workers::{NoResult, Workers, WorkersConfig};

const THREADS: u32 = 2;
/// At the tens of milliseconds that the worst grammar costs, this is a few seconds of work.
const MAX_WAITING: usize = 64;
/// Schemas recurse, at about 5 kB a level; `schema` bounds the levels.
const STACK_BYTES: usize = 64 << 20;
/// Longest time in the queue, and again for compiling. The shards compile the grammar again, and their step waits for
/// it.
const DEADLINE: Duration = Duration::from_secs(5);
/// Most further threads, in place of those held by grammars that took longer than that.
const MAX_HELD: u32 = 4;

/// Compiles grammars to find out whether they work. Cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    workers: Workers,
    compiler: Arc<LazyCompiler>,
    cache: Arc<Mutex<Cache>>,
    /// Longest time in the queue, and again for compiling.
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
            gives_way: true,
        })?;
        let compiler =
            Arc::new(LazyCompiler { vocabulary, vocab_size, eos_token_ids, built: OnceLock::new() });
        Ok(Self { workers, compiler, cache: Arc::default(), limit: DEADLINE })
    }

    /// Fails if the grammar does not work; `param` is its name in the client's dialect.
    pub async fn check(&self, grammar: &Grammar, param: &'static str) -> Result<(), Error> {
        let known = lock(&self.cache).get(grammar);
        let checked = match known {
            Some(known) => known,
            // Goes on if the client disconnects, so that the grammar is not compiled again.
            None => {
                tokio::spawn(self.clone().compile(grammar.clone())).await.map_err(|_| Error::Internal)??
            }
        };
        checked.map_err(|reason| Error::Grammar { param: param.into(), reason })
    }

    async fn compile(self, grammar: Grammar) -> Result<Checked, Error> {
        let compiler = Arc::clone(&self.compiler);
        self.compile_by(grammar, move |grammar| compiler.get()?.check(grammar)).await
    }

    /// Compiles a grammar by `check`, within limits, and keeps the result.
    async fn compile_by<F>(self, grammar: Grammar, check: F) -> Result<Checked, Error>
    where
        F: FnOnce(&Grammar) -> Checked + Send + 'static,
    {
        let checked = match self.try_compile(grammar.clone(), check).await {
            Ok(checked) => checked,
            // llguidance has a few asserts left, which fail only because of the grammar.
            Err(NoResult::Panicked) => Err("it cannot be compiled".to_owned()),
            Err(NoResult::TooLong) => Err(format!("it takes longer than {:?} to compile", self.limit)),
            Err(NoResult::Busy) => return Err(Error::GrammarsBusy { limit: MAX_WAITING }),
        };
        lock(&self.cache).put(grammar, checked.clone());
        Ok(checked)
    }

    async fn try_compile<F>(&self, grammar: Grammar, check: F) -> Result<Checked, NoResult>
    where
        F: FnOnce(&Grammar) -> Checked + Send + 'static,
    {
        if self.compiler.built.get().is_none() {
            // The time that this takes does not count for the grammar.
            let compiler = Arc::clone(&self.compiler);
            self.workers.run(move || drop(compiler.get())).await?;
        }
        let cache = Arc::clone(&self.cache);
        let work = move || {
            // The same grammar may have been compiled while this job waited.
            let known = lock(&cache).get(&grammar);
            known.unwrap_or_else(|| check(&grammar))
        };
        self.workers.run_within(self.limit, work).await
    }
}

fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LazyCompiler {
    fn get(&self) -> Result<&Compiler, String> {
        let build = || Compiler::new(&self.vocabulary, self.vocab_size, &self.eos_token_ids);
        self.built.get_or_init(build).as_ref().map_err(Clone::clone)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
